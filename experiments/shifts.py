"""What happens after a drift alarm: eight shifts of CIFAR-10 pictures on ResNet-20, and a hundred streams without one.

python -m experiments.shifts          results/shifts.csv
python -m experiments.shifts clean    results/shifts_clean.csv
python -m experiments.shifts bound    results/shifts_bound.csv

The pictures and the network are looked for in ../shared. A profile is fitted on 1,000 pictures. A shifted stream has
200 pictures as they are and 1,000 changed ones, with a guarantee of at most 5 % wrong. `delay` is how many changed
pictures came until the alarm, `accepted_before` how many of them were accepted until then, `accepted_after` how many
from then on, and `wrong` how often the answers that would have been accepted are wrong. Then 50, 100 or 200 of the
changed pictures, drawn at random, are labelled, and the jury is repaired as `fit --add` does it; `ece` and `ece_50` …
are those of the changed pictures before, and of the others after, the mean over 20 draws. `below_50` … is the share of
draws below .06, and `ece_by_chance` what perfect confidences would have: 950 pictures or fewer raise an ECE.

Clean streams are 1,000 pictures drawn from those that took no part in a fit, ten for each of ten profiles, each fitted
on 1,000 of 4,000 pictures. `held` counts streams in which any verdict was held.

The bound is the ECE of a repair that knows all but the level. A jury is fitted on all labels of 500 changed pictures,
and its confidences are taken as the truth: 1,000 of them are drawn, and each answer is right with that probability. Of
these, 50 determine a constant that is added to the log odds; `level_50` is the ECE of the other 950, the mean over 200
draws, `below_50` the share of draws below .06, and `none` the ECE without the constant, which is due to chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit

from experiments import script
from experiments.collected import MODELS
from experiments.evaluation import ece_by_chance
from experiments.familiarity import PANEL, Change, _blur, _dark, _jpeg, opened
from experiments.writing import cells, write
from looktwice import Model, Profile
from looktwice.calibration import crossfit
from looktwice.calibration.borrow import Pupil
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.metrics import ece
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions.fitting import jury_of
from looktwice.decisions.policy import DecisionOptions
from looktwice.decisions.stream import Monitor
from looktwice.decisions.verdict import Verdict
from looktwice.images.collection import Held, Picture
from looktwice.images.image import Pixels

RESULTS = Path(__file__).parent / "results"
FIT, CLEAN, SHIFTED, LABELLED, DRAWS = 1000, 200, 1000, (50, 100, 200), 20
AIM = 0.06
"""The ECE that is wanted after a repair."""
POOL, PROFILES, STREAMS = 4000, 10, 10
BOUND, BOUND_DRAWS = 500, 200
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


def repaired(profile: Profile, votes: LabelledVotes) -> Iterator[tuple[str, float]]:
    """The ECE after a repair with few labels, and how often it is as wanted."""
    pupil = Pupil(jury_of(profile), changed=True)
    for labels in LABELLED:
        errors = []
        for seed in range(DRAWS):
            few, others = np.split(np.random.default_rng(seed).permutation(len(votes)), [labels])
            outcome = crossfit.outcome(pupil.fit(votes.take(few)), votes.take(others))
            errors.append(ece(outcome.confidence, outcome.correct))
        yield f"ece_{labels}", float(np.mean(errors))
        yield f"below_{labels}", float(np.mean(np.array(errors) < AIM))


def shifted(model: Model, profile: Profile, clean: Sequence[Picture], changed: Sequence[Picture]) -> dict[str, object]:
    """One line: what an alarm holds back, and what labels mend."""
    model = Model(model.engine.first.classifier, profile, ledger="memory")
    with model:
        verdicts, votes = scored(model, [*clean, *changed]), model.ask(changed).labelled()
        model.end_alarm()  # the next stream shares the profile and the ledger
    held = next((place for place, verdict in enumerate(verdicts) if verdict.held), len(verdicts))
    accepted = [verdict.decision == "accept" and verdict.held is None for verdict in verdicts]
    wanted = [place for place in range(len(clean), len(verdicts)) if verdicts[place].decision == "accept"]
    wrong = [verdicts[place].label != changed[place - len(clean)].truth for place in wanted]
    before, by_chance = calibration_error(verdicts[len(clean) :], changed)
    return {
        "false_alarm": held < len(clean),
        "delay": held - len(clean),
        "accepted_before": sum(accepted[len(clean) : held]),
        "accepted_after": sum(accepted[held:]),
        "would_accept": len(wanted),
        "wrong": float(np.mean(wrong)) if wrong else None,
        "ece": before,
        **dict(repaired(profile, votes)),
        "ece_by_chance": by_chance,
    }


def shifts(model: Model, pictures: Sequence[Picture]) -> list[dict[str, object]]:
    """A line for each shift."""
    profile = model.fit(named(pictures[:FIT]), views=PANEL).profile
    clean, live = named(pictures[FIT : FIT + CLEAN]), pictures[FIT + CLEAN : FIT + CLEAN + SHIFTED]
    return [{"shift": name} | shifted(model, profile, clean, named(live, SHIFTS[name])) for name in SHIFTS]


def bound(model: Model, pictures: Sequence[Picture]) -> list[dict[str, object]]:
    """A line for each shift: the ECE if only the level of the confidences is learned from few labels."""
    rows, live = list[dict[str, object]](), pictures[FIT + CLEAN : FIT + CLEAN + BOUND]
    for name, change in SHIFTS.items():
        votes = model.ask(named(live, change), views=PANEL).labelled()
        outcome = crossfit.outcome(Jury().fit(votes), votes)
        errors = np.array([level_errors(outcome.confidence, seed) for seed in range(BOUND_DRAWS)])
        level, none = errors.mean(axis=0).tolist()
        below = float((errors[:, 0] < AIM).mean())
        accuracy = float(outcome.correct.mean())
        rows.append({"shift": name, "accuracy": accuracy, "level_50": level, "below_50": below, "none": none})
    return rows


def level_errors(confidence: Floats, seed: int) -> tuple[float, float]:
    """The ECE of true probabilities after and before a constant from LABELLED[0] labels is added to their log odds."""
    rng = np.random.default_rng(seed)
    odds = logit(np.clip(rng.choice(confidence, SHIFTED), 1e-6, 1 - 1e-6))
    right, few = rng.random(SHIFTED) < expit(odds), LABELLED[0]

    def loss(level: float) -> float:
        return float((np.logaddexp(0.0, odds[:few] + level) - right[:few] * (odds[:few] + level)).sum())

    level = minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded").x
    return ece(expit(odds[few:] + level), right[few:]), ece(expit(odds[few:]), right[few:])


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


TABLES = {"shifts": shifts, "clean": clean_streams, "bound": bound}


def main(words: Sequence[str] = (), results: Path = RESULTS) -> None:
    """The CSV of the shifts, of the clean streams, or of the bound."""
    found, (what,) = opened("CIFAR-10"), words or ["shifts"]
    mixed = [found[place] for place in np.random.default_rng(0).permutation(len(found))]
    with Model(MODELS["resnet20"].description(), ledger="memory") as model:
        rows = TABLES[what](model, mixed[FIT:] if what == "clean" else mixed)
    name = what if what == "shifts" else f"shifts_{what}"
    write(results / f"{name}.csv", (cells(row, ".4g") for row in rows))


if __name__ == "__main__":
    script.run(main, __doc__, ["clean", "bound"])
