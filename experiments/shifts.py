"""What happens after a drift alarm: eight shifts of CIFAR-10 pictures on ResNet-20, and a hundred streams without one.

python -m experiments.shifts    results/shifts.csv and shifts_clean.csv

The pictures and the network are looked for in ../shared. A profile is fitted on 1,000 pictures. A shifted stream has
200 pictures as they are and 1,000 changed ones, with a guarantee of at most 5 % wrong. `delay` is how many changed
pictures came until the alarm, `accepted_before` how many of them were accepted until then, `accepted_after` how many
from then on, and `wrong` how often the answers that would have been accepted are wrong. 50 of the changed pictures,
drawn at random, are then labelled, and `fit --add` repairs the profile; `ece` and `ece_repaired` are those of the other
changed pictures before and after, and `ece_by_chance` is what perfect confidences would have.

Clean streams are 1,000 pictures drawn from those that took no part in a fit, ten for each of ten profiles, each fitted
on 1,000 of 4,000 pictures. `held` counts streams in which any verdict was held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments import script
from experiments.collected import MODELS
from experiments.evaluation import ece_by_chance
from experiments.familiarity import PANEL, Change, _blur, _dark, _jpeg, opened
from experiments.writing import cells, write
from looktwice import Model, Profile
from looktwice.calibration.metrics import ece
from looktwice.decisions.policy import DecisionOptions
from looktwice.decisions.stream import Monitor
from looktwice.decisions.verdict import Verdict
from looktwice.images.collection import Held, Picture
from looktwice.images.descriptor import Pixels

RESULTS = Path(__file__).parent / "results"
FIT, CLEAN, SHIFTED, LABELLED = 1000, 200, 1000, 50
POOL, PROFILES, STREAMS = 4000, 10, 10
DECIDE = DecisionOptions(max_error=0.05, unfamiliar="accept")
"""Unfamiliar pictures are judged as any other, so that only the alarm keeps them from being accepted."""


def _noise(deviation: float) -> Change:
    def change(pixels: Pixels) -> Pixels:
        rng = np.random.default_rng(int(pixels.sum()))
        return np.clip(pixels + rng.normal(0.0, deviation, pixels.shape), 0, 255).astype(np.uint8)

    return change


SHIFTS: dict[str, Change] = {
    **{f"blur {sigma}": _blur(sigma) for sigma in (0.7, 1.2)},
    **{f"JPEG {quality}": _jpeg(quality) for quality in (30, 10)},
    **{f"noise {deviation}": _noise(deviation) for deviation in (10, 25)},
    **{f"darkness {share}": _dark(share) for share in (0.5, 0.25)},
}
"""Two strengths each."""


def named(pictures: Sequence[Picture], change: Change | None = None) -> list[Picture]:
    """The pictures after a change, each with its pixels."""
    images = [picture.image().pixels for picture in pictures]
    return [
        Picture(picture.name, picture.truth, Held(change(pixels) if change else pixels))
        for picture, pixels in zip(pictures, images, strict=True)
    ]


def scored(model: Model, pictures: Sequence[Picture]) -> list[Verdict]:
    return [verdict for verdict in model.score(pictures, DECIDE) if isinstance(verdict, Verdict)]


def calibration_error(verdicts: Sequence[Verdict], pictures: Sequence[Picture]) -> tuple[float, float]:
    """The ECE of verdicts, and that of perfect confidences."""
    confidence = np.array([verdict.confidence for verdict in verdicts])
    right = np.array([verdict.label == item.truth for verdict, item in zip(verdicts, pictures, strict=True)])
    return ece(confidence, right), ece_by_chance(confidence)


def shifted(model: Model, profile: Profile, clean: Sequence[Picture], changed: Sequence[Picture]) -> dict[str, object]:
    """One line: what an alarm holds back, and what labels mend."""
    model = Model(model.engine.first.classifier, profile, ledger="memory")
    with model:
        verdicts = scored(model, [*clean, *changed])
        held = next((place for place, verdict in enumerate(verdicts) if verdict.held), len(verdicts))
        accepted = [verdict.decision == "accept" and verdict.held is None for verdict in verdicts]
        wanted = [place for place in range(len(clean), len(verdicts)) if verdicts[place].decision == "accept"]
        wrong = [verdicts[place].label != changed[place - len(clean)].truth for place in wanted]
        drawn = np.random.default_rng(0).permutation(len(changed))
        labelled, others = ([changed[place] for place in part] for part in np.split(drawn, [LABELLED]))
        before, by_chance = calibration_error([verdicts[len(clean) + place] for place in drawn[LABELLED:]], others)
        model.end_alarm()  # the next stream shares the profile and the ledger
        model.borrow(profile, labelled)
        after, _ = calibration_error(scored(model, others), others)
    return {
        "false_alarm": held < len(clean),
        "delay": held - len(clean),
        "accepted_before": sum(accepted[len(clean) : held]),
        "accepted_after": sum(accepted[held:]),
        "would_accept": len(wanted),
        "wrong": float(np.mean(wrong)) if wrong else None,
        "ece": before,
        "ece_repaired": after,
        "ece_by_chance": by_chance,
    }


def shifts(model: Model, pictures: Sequence[Picture]) -> list[dict[str, object]]:
    """A line for each shift."""
    profile = model.fit(named(pictures[:FIT]), views=PANEL).profile
    clean, live = named(pictures[FIT : FIT + CLEAN]), pictures[FIT + CLEAN : FIT + CLEAN + SHIFTED]
    return [{"shift": name} | shifted(model, profile, clean, named(live, SHIFTS[name])) for name in SHIFTS]


async def is_held(verdicts: Sequence[Verdict], monitor: Monitor) -> bool:
    """Whether any verdict of a stream is held."""
    return any([(await monitor.observe(verdict)).held for verdict in verdicts])


def clean_streams(model: Model, pictures: Sequence[Picture]) -> list[dict[str, object]]:
    """A line for each profile."""
    pool, rows = named(pictures[:POOL]), list[dict[str, object]]()
    for seed in range(PROFILES):
        rng = np.random.default_rng(seed)
        drawn = rng.permutation(len(pool))
        model.fit([pool[place] for place in drawn[:FIT]], views=PANEL)
        policy, verdicts = model.policy(DECIDE), scored(model, [pool[place] for place in drawn[FIT:]])
        verdicts = [verdict.model_copy(update={"held": None}) for verdict in verdicts]
        held = 0
        for _ in range(STREAMS):
            stream = [verdicts[place] for place in rng.permutation(len(verdicts))[:1000]]
            held += asyncio.run(is_held(stream, Monitor(policy, str(seed))))
        rows.append({"profile": seed, "streams": STREAMS, "held": held})
    return rows


def main(_: Sequence[str] = (), results: Path = RESULTS) -> None:
    """Both CSVs."""
    found = opened("CIFAR-10")
    mixed = [found[place] for place in np.random.default_rng(0).permutation(len(found))]
    with Model(MODELS["resnet20"].description(), ledger="memory") as model:
        write(results / "shifts.csv", (cells(row, ".4g") for row in shifts(model, mixed)))
        write(results / "shifts_clean.csv", (cells(row, ".4g") for row in clean_streams(model, mixed[FIT:])))


if __name__ == "__main__":
    script.run(main, __doc__, [])
