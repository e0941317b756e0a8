"""Which pictures a profile takes for unfamiliar: false alarms, what is detected, and what becomes of calibration.

python -m experiments.familiarity [TASK …]    results/familiarity_TASK.csv: alarms, few, detected, calibration, streams

The clothes are embedded; CIFAR-10, CIFAR-100 and photos are looked for in ../shared and left out where they are not.
Answers about these are those that `experiments.general ask` kept.
The plain baseline is the same test with the size, the aspect and the mean of each colour channel alone.
Set OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
from scipy.stats import betabinom, binom

from experiments import general, script
from experiments.collected import CACHE, MODELS, SHARED
from experiments.official import open_labelled
from experiments.writing import cells, write
from looktwice import Model
from looktwice.calibration.evidence import Floats, Places
from looktwice.calibration.metrics import ece
from looktwice.calibration.votes import Votes
from looktwice.decisions.monitoring import NEIGHBOURS, AnswerKinds, Familiarity
from looktwice.decisions.policy import Policy
from looktwice.decisions.stream import Observation, Stream
from looktwice.decisions.verdict import Verdict
from looktwice.images.collection import Held, Picture
from looktwice.images.image import PLACES, Image, Pixels, descriptor
from looktwice.views import Panel

RESULTS = Path(__file__).parent / "results"
DEMO = Path(str(files("looktwice") / "demo"))
MOST, FEW = 4000, 300
"""Pictures of a data set that are described, and of each kind of drawn or changed ones."""
LABELLED, TESTED, SPLITS, REPEATED = 1000, 1000, 100, 10
RATES = (0.01, 0.05)
FEWER = (20, 50, 100, 200, 300)
"""Labelled pictures that are too few to count half of the lower rate."""
TESTS = 2
"""Pixels and answers: a decision at a rate takes each test at its half (Bonferroni)."""
HARDEST = ("Shirt", "Pullover", "Coat")
"""The clothes that are taken for each other most."""
PLAIN = ("side", "aspect", "red", "green", "blue")
PANEL = "mirror zoom:1.15 turn:8 shift:0.08,0"
ASKED = {"CIFAR-10": "resnet20", "CIFAR-100": "resnet56", "photos": "mobilenetv2"}
"""The models whose answers about the pictures are kept."""
FIT, SHIFTED, STREAM = 500, 120, 600
"""Pictures on which a jury is fitted, changed ones that it is tested on, and those of a stream."""
Change = Callable[[Pixels], Pixels]


# Pictures ------------------------------------------------------------------------------------------------------------


@cache
def opened(name: str) -> Sequence[Picture]:
    """The labelled pictures of a data set in their own order; none where it is not there."""
    places = {
        "clothes": [DEMO / "pictures.npz"],
        "CIFAR-10": [SHARED / "data/cifar10_test.npz"],
        "CIFAR-100": [SHARED / "data/cifar-100-python"],
        "photos": [SHARED / "data/imagenet_val_1500", SHARED / "data/imagenet_val_1000"],
    }[name]
    return [picture for place in places if place.exists() for picture in open_labelled(place)]


@cache
def pictures(name: str) -> Sequence[Picture]:
    """A random part of them."""
    found = opened(name)
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))[:MOST]]


DATA = ("clothes", "CIFAR-10", "CIFAR-100", "photos")


def _jpeg(quality: int) -> Change:
    def change(pixels: Pixels) -> Pixels:
        data = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)
        assert decoded is not None
        return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)

    return change


def _blur(sigma: float) -> Change:
    return lambda pixels: np.asarray(cv2.GaussianBlur(pixels, (0, 0), sigma), np.uint8)


def _dark(share: float) -> Change:
    return lambda pixels: (pixels * share).astype(np.uint8)


def _small(side: int, grey: bool) -> Change:
    def change(pixels: Pixels) -> Pixels:
        small = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_AREA)
        shades = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
        return np.asarray(cv2.cvtColor(shades, cv2.COLOR_GRAY2RGB) if grey else small, np.uint8)

    return change


CHANGES: dict[str, Change] = {
    "none": lambda pixels: pixels,
    **{f"blur {sigma}": _blur(sigma) for sigma in (1, 2, 4)},
    **{f"dark {share}": _dark(share) for share in (0.5, 0.25, 0.1)},
    "rotated by 90°": lambda pixels: np.ascontiguousarray(np.rot90(pixels)),
    "negative": lambda pixels: 255 - pixels,
    **{f"JPEG {quality}": _jpeg(quality) for quality in (40, 20, 10, 5)},
}
"""What may become of a picture: blur by a Gaussian of so many pixels, a share of its light, JPEG of a quality."""


def _noise(rng: np.random.Generator) -> Pixels:
    return rng.integers(0, 256, (64, 64, 3), np.uint8)


def _black(rng: np.random.Generator) -> Pixels:
    return rng.integers(0, 3, (240, 320, 1), np.uint8).repeat(3, axis=2)


def _screenshot(rng: np.random.Generator) -> Pixels:
    """A window with a title bar, a side bar, panels and lines of text."""
    pixels = np.full((600, 800, 3), rng.integers(225, 256, 3), np.uint8)
    pixels[:40], pixels[40:, :160] = rng.integers(20, 120, 3), rng.integers(200, 240, 3)
    for _ in range(rng.integers(3, 9)):
        left, top = int(rng.integers(180, 600)), int(rng.integers(60, 450))
        corner = (left + int(rng.integers(60, 190)), top + int(rng.integers(30, 140)))
        cv2.rectangle(pixels, (left, top), corner, rng.integers(0, 256, 3).tolist(), -1)
    return _written(pixels, rng, 12, 0.45)


def _page(rng: np.random.Generator) -> Pixels:
    return _written(np.full((700, 500, 3), 255, np.uint8), rng, 30, 0.5)


def _written(pixels: Pixels, rng: np.random.Generator, lines: int, size: float) -> Pixels:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz     "))
    for line in range(lines):
        text = "".join(rng.choice(letters, 60))
        cv2.putText(pixels, text, (20, 60 + 20 * line), cv2.FONT_HERSHEY_SIMPLEX, size, (20, 20, 20), 1, cv2.LINE_AA)
    return pixels


def _drawing(rng: np.random.Generator) -> Pixels:
    """Strokes of a pen on white paper."""
    pixels = np.full((300, 300, 3), 255, np.uint8)
    for _ in range(rng.integers(5, 15)):
        points = np.cumsum(rng.normal(0, 25, (12, 2)), axis=0) + rng.integers(60, 240, 2)
        cv2.polylines(pixels, [points.astype(np.int32)], False, (0, 0, 0), int(rng.integers(1, 4)), cv2.LINE_AA)
    return pixels


DRAWN = {
    "noise": _noise,
    "screenshots": _screenshot,
    "drawings": _drawing,
    "text pages": _page,
    "black frames": _black,
}


# Descriptors ---------------------------------------------------------------------------------------------------------


@cache
def described(name: str) -> Floats:
    """The descriptors of a data set, of drawn pictures, or of changed ones."""
    return _descriptors(images(name, MOST))


def images(name: str, most: int = FEW) -> Iterable[Pixels]:
    """A data set, drawn pictures, or changed ones (`photos: blur 2`, `photos: 32 px`)."""
    data, _, change = name.partition(": ")
    if data in DRAWN:
        return (DRAWN[data](np.random.default_rng(seed)) for seed in range(FEW))
    plain = (picture.image().pixels for picture in pictures(data)[: FEW if change else most])
    if " px" in change:
        return map(_small(int(change.split()[0]), grey="grey" in change), plain)
    return map(CHANGES[change or "none"], plain)


def _descriptors(images: Iterable[Pixels]) -> Floats:
    return np.stack([descriptor(pixels) for pixels in images])


def plain(descriptors: Floats) -> Floats:
    """The same with nothing but size, aspect and mean colour."""
    kept = np.zeros_like(descriptors)
    columns = [PLACES[name] for name in PLAIN]
    kept[:, columns] = descriptors[:, columns]
    return kept


def p_values(name: str, labelled: Floats) -> Floats:
    """The p-values of a data set, or of drawn or changed pictures, to a profile made from the labelled ones."""
    found = fitted(labelled)
    return found.p_values(np.stack([found.describe(Image.from_array(pixels)) for pixels in images(name)]))


def fitted(descriptors: Floats) -> Familiarity:
    found = Familiarity.fit(descriptors)
    assert found is not None
    return found


# Experiments ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answered:
    """Pictures about which a model was asked: what they are like, and what it said."""

    descriptors: Floats
    votes: Votes

    @classmethod
    @cache
    def of(cls, name: str) -> Answered:
        """Those of a data set."""
        if name in ASKED:
            votes: Votes = general.stored(ASKED[name], Panel(general.TRIED.views[:8]))
        else:
            (embedded,) = general.small(CACHE / "clothes", len(opened(name)), ["embedded"])
            votes = embedded.votes.under(range(8))
        return cls(_descriptors(opened(name)[int(place)].image().pixels for place in votes.names), votes)


def familiarity(answered: Answered, labelled: Places, tested: Places) -> dict[str, Floats]:
    """How familiar tested pictures are to a profile made from the labelled ones: by pixels, answers, and both."""
    kinds = AnswerKinds.fit(answered.votes.take(labelled))
    assert kinds is not None
    pixels = fitted(answered.descriptors[labelled]).p_values(answered.descriptors[tested])
    answers = kinds.p_values(answered.votes.take(tested))
    return {"pixels": pixels, "answers": answers, "both": TESTS * np.minimum(pixels, answers)}


def alarms(names: Sequence[str]) -> list[dict[str, object]]:
    """How often new pictures of the same kind are unfamiliar.

    The ranked pictures are a sample too: given them, the chance of an alarm is beta distributed, and the count of one
    split is beta-binomial; `low` and `high` are the ends of its 95 %. That is exact for pixels, and a yardstick for
    answers, which are ranked among all labelled pictures, and for both.
    """
    rows = []
    for name in names:
        answered = Answered.of(name)
        labelled = min(LABELLED, len(answered.votes) // 2)
        tested = min(TESTED, len(answered.votes) - labelled)
        counts = {(by, rate): list[int]() for by in ("pixels", "answers", "both") for rate in RATES}
        for seed in range(SPLITS):
            mixed = np.random.default_rng(100 + seed).permutation(len(answered.votes))
            found = familiarity(answered, mixed[:labelled], mixed[labelled : labelled + tested])
            for (by, rate), told in counts.items():
                told.append(int((found[by] <= rate).sum()))
        ranked = labelled - min(labelled // 2, NEIGHBOURS)
        for (by, rate), told in counts.items():
            allowed = int(rate * (ranked + 1) + 1e-9)
            spread, narrow = betabinom(tested, allowed, ranked + 1 - allowed), binom(tested, rate)
            low, high = spread.ppf(0.025), spread.ppf(0.975)
            row = {"pictures": name, "by": by, "labelled": labelled, "tested": tested, "splits": SPLITS, "rate": rate}
            row |= {"share": np.mean(told) / tested, "error": np.std(told) / tested / np.sqrt(SPLITS)}
            row |= {"low": low / tested, "high": high / tested}
            row["splits_inside"] = np.mean([low <= count <= high for count in told])
            row["splits_above"] = np.mean([count > high for count in told])
            binomial = narrow.ppf(0.025), narrow.ppf(0.975)
            rows.append(row | {"splits_inside_binomial": np.mean([binomial[0] <= c <= binomial[1] for c in told])})
    return rows


def detected(names: Sequence[str]) -> list[dict[str, object]]:
    """How often pictures of another kind are unfamiliar by their pixels at 1 % false alarms, and by the plain baseline.

    Answers are tested as well, so pixels have half of that rate to themselves.
    """
    rate = RATES[0] / TESTS
    others = {
        "clothes": ["CIFAR-10", "CIFAR-100", "photos", *DRAWN, *(f"{n}: 28 px, grey" for n in ("CIFAR-10", "photos"))],
        "CIFAR-10": ["clothes", "photos: 32 px", "CIFAR-100", "photos", *DRAWN],
        "CIFAR-100": ["clothes", "photos: 32 px", "CIFAR-10", "photos", *DRAWN],
        "photos": ["clothes", "CIFAR-10", *DRAWN, *(f"photos: {change}" for change in CHANGES if change != "none")],
    }
    rows = []
    for name in names:
        for other in others[name]:
            if other.partition(":")[0] not in (*names, *DRAWN):
                continue
            shares, simple = [], []
            for seed in range(REPEATED):
                rows_of = described(name)
                labelled = rows_of[np.random.default_rng(100 + seed).permutation(len(rows_of))[:LABELLED]]
                shares.append((p_values(other, labelled) <= rate).mean())
                simple.append((fitted(plain(labelled)).p_values(plain(described(other)[:FEW])) <= rate).mean())
            row = {"profile": name, "pictures": other, "shown": FEW, "detected": np.mean(shares)}
            rows.append(row | {"least": np.min(shares), "plain": np.mean(simple)})
    return rows


def few(names: Sequence[str]) -> list[dict[str, object]]:
    """False alarms by pixels at half of 1 %, which fewer than 400 labelled pictures cannot count."""
    rate, rows = RATES[0] / TESTS, []
    for name in names:
        for labelled in FEWER:
            shares = []
            for seed in range(SPLITS):
                mixed = described(name)[np.random.default_rng(100 + seed).permutation(len(described(name)))]
                told = fitted(mixed[:labelled]).p_values(mixed[labelled : labelled + TESTED])
                shares.append((told <= rate).mean())
            row = {"pictures": name, "labelled": labelled, "splits": SPLITS, "rate": rate}
            rows.append(row | {"share": np.mean(shares), "error": np.std(shares) / np.sqrt(SPLITS)})
    return rows


def calibration(names: Sequence[str]) -> list[dict[str, object]]:
    """What becomes of a jury's calibration when its pictures are changed, and how many of them are unfamiliar."""
    rows = []
    for name, description in (("clothes", str(DEMO / "fashion.toml")), ("photos", _photo_model())):
        if name not in names:
            continue
        with Model(description) as model:
            model.fit(_changed(pictures(name)[:FIT], CHANGES["none"]), views=PANEL)
            for change, function in CHANGES.items():
                told = model.evaluate(_changed(pictures(name)[FIT : FIT + SHIFTED], function))
                confidence, correct = told.outcome.confidence, told.outcome.correct
                row = {"pictures": name, "change": change, "tested": len(correct)}
                row |= {"unfamiliar": told.guarantees.unfamiliar, "accuracy": correct.mean()}
                row |= {"confidence": confidence.mean(), "ece": ece(confidence, correct)}
                rows.append(row | {"brier": told.outcome.brier.mean()})
    return rows


def streams(names: Sequence[str]) -> list[dict[str, object]]:
    """Streams of pictures that are changed halfway: alarms, since when, and what accuracy is expected of them.

    `told` is whether it is, and `estimate` what it is, or would be without an alarm.
    """
    rows = []
    for name, description in (("clothes", str(DEMO / "fashion.toml")), ("photos", _photo_model())):
        if name not in names:
            continue
        with Model(description) as model:
            profile = model.fit(_changed(pictures(name)[:FIT], CHANGES["none"]), views=PANEL).profile
            policy, shown = Policy.full_panel(profile), pictures(name)[FIT : FIT + STREAM]
            before = _changed(shown[: STREAM // 2], CHANGES["none"])
            hardest = [item for item in pictures(name)[FIT + STREAM // 2 :] if item.truth in HARDEST]
            for change in (*CHANGES, *(["hardest classes"] if hardest else [])):
                after = shown[STREAM // 2 :] if change in CHANGES else hardest[: STREAM // 2]
                live = [*before, *_changed(after, CHANGES.get(change, CHANGES["none"]))]
                named = [Picture(str(place), item.truth, item.source) for place, item in enumerate(live)]
                verdicts = [found for found in model.score(named) if isinstance(found, Verdict)]
                stream = Stream.start(policy).update([Observation.at(verdict, policy) for verdict in verdicts])
                right = [verdict.label == item.truth for verdict, item in zip(verdicts, named, strict=True)]
                told, unwatched = stream.expected(), Stream.start(policy)
                estimate = replace(stream, drift=unwatched.drift, shift=unwatched.shift).expected()
                row = {"pictures": name, "change": change, "shown": len(named)}
                row |= {"drift": bool(stream.drift and stream.drift.alarm)}
                row |= {"shift": bool(stream.shift and stream.shift.alarm), "since": stream.since}
                row |= {"accuracy": np.mean(right), "told": told.accuracy is not None}
                row |= {"estimate": estimate.accuracy, "low": estimate.low, "high": estimate.high}
                rows.append(row)
    return rows


def _changed(found: Sequence[Picture], change: Change) -> list[Picture]:
    """The pictures after a change, named by their places: two folders may have the same names."""
    images = (change(picture.image().pixels) for picture in found)
    return [Picture(str(n), p.truth, Held(i)) for n, (p, i) in enumerate(zip(found, images, strict=True))]


def _photo_model() -> str:
    """The description of MobileNetV2; nothing where it is not there."""
    return MODELS["mobilenetv2"].description() if (SHARED / "models").exists() else ""


TASKS = {"alarms": alarms, "few": few, "detected": detected, "calibration": calibration, "streams": streams}


def main(wanted: Sequence[str], results: Path = RESULTS) -> None:
    names = [name for name in DATA if pictures(name)]
    for task in wanted or list(TASKS):
        write(results / f"familiarity_{task}.csv", (cells(row, ".4g") for row in TASKS[task](names)))


if __name__ == "__main__":
    script.run(main, __doc__, [*TASKS])
