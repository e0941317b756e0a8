"""What becomes of confidences when pictures change after the fit: corruptions, another class prior, another set.

python -m experiments.shift ask     query ResNet-20 with corrupted pictures; an interrupted run resumes
python -m experiments.shift         results/shift.csv

A jury is fitted on 1,000 clean pictures. *Corruptions* are made from the same 300 tested pictures with a seed, at five
severities. *Prior*: of the tested pictures all of three classes are kept, and one in ten of the others. *Set*: fitted
on photos of imagenet_val_1500 and tested on imagenet_val_1000; emotion APIs fitted on one set of faces and tested on
another. Beside the jury (9 queries) stand the softmax with a temperature (1 query, hidden) and the share of right base
answers among the labelled pictures.

Accepted is what reaches the confidence at which 5 % of the accepted labelled pictures, judged by folds, were wrong.
`alarm` is after how many tested pictures, in random order, the drift test raises its alarm; `held_…` counts only what
is accepted before that. `new_…` is a jury of 50 newly labelled pictures alone, `with_new_…` of old and new together;
both on the tested pictures that are not among these 50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from experiments import script
from experiments.answered import answers, faces, panel_records, subject
from experiments.collected import CACHE
from experiments.evaluation import dense_outcome, tempered
from experiments.general import Answers, Record
from experiments.writing import Row, cells, write
from looktwice.calibration import Constant, crossfit, metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.evidence import Floats, Places
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import base_tally
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.classifiers.base import Pixels
from looktwice.decisions.monitoring import Drift
from looktwice.images.image import Image

RESULTS = Path(__file__).parent / "results" / "shift.csv"
NETWORK, BLOCKS, FIT, NEW, MAX_ERROR = "resnet20", range(30, 33), 1000, 50, 0.05
SEVERITIES = (1, 2, 3, 4, 5)
KEPT_CLASSES, KEPT_OTHERS = (0, 1, 2), 10


def _noise(pixels: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return _bytes(pixels / 255 + rng.normal(0, deviation, pixels.shape))


def _blur(pixels: Pixels, severity: int, _: np.random.Generator) -> Pixels:
    return np.asarray(cv2.GaussianBlur(pixels, (0, 0), (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]), np.uint8)


def _contrast(pixels: Pixels, severity: int, _: np.random.Generator) -> Pixels:
    share = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    return _bytes((pixels / 255 - (mean := pixels.mean(axis=(0, 1)) / 255)) * share + mean)


def _bytes(values: Floats) -> Pixels:
    return np.rint(np.clip(values, 0.0, 1.0) * 255).astype(np.uint8)


CORRUPTIONS: dict[str, Callable[[Pixels, int, np.random.Generator], Pixels]] = {
    "noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
}
"""After CIFAR-10-C (Hendrycks and Dietterich, 2019), with its settings for these three."""


@dataclass(frozen=True, eq=False)
class Shifted:
    """Votes to fit on and to test on, and log probabilities of both where they are known."""

    subject: str
    shift: str
    severity: int
    train: LabelledVotes
    test: LabelledVotes
    logs: tuple[Floats, Floats] | None = None

    def rows(self) -> Iterator[Row]:
        """One line for each method."""
        outcomes = dict(self._outcomes())
        about = {"subject": self.subject, "shift": self.shift, "severity": self.severity, "tested": len(self.test)}
        for method, outcome in outcomes.items():
            scores = outcome.scores()
            figures = {"accuracy": scores.accuracy, "ece": scores.ece, "brier": scores.brier}
            more = self._decided(outcome) | self._relabelled() if method == "jury" else dict.fromkeys(COLUMNS)
            yield cells(about | {"method": method} | figures | more, ".4f")

    def _outcomes(self) -> Iterator[tuple[str, Outcome]]:
        yield "jury", crossfit.outcome(Jury().fit(self.train), self.test)
        yield "constant", crossfit.outcome(Constant().fit(self.train), self.test)
        if self.logs is not None:
            both, truths = np.concatenate(self.logs), np.concatenate([self.train.truths, self.test.truths])
            logs = tempered(both, truths, np.arange(len(self.train)))[len(self.train) :]
            yield "softmax, temperature", dense_outcome("softmax, temperature", logs, self.test.truths, 1)

    def _decided(self, outcome: Outcome) -> dict[str, float | int | None]:
        """Wrong among accepted answers, and among those that are accepted before the alarm."""
        judged = crossfit.cross_fit(Jury(), self.train)
        curve = metrics.risk_coverage(judged.confidence, judged.correct)
        allowed = np.flatnonzero(curve.risk <= MAX_ERROR)
        threshold = curve.threshold[allowed[-1]] if len(allowed) else np.inf
        order = np.random.default_rng(0).permutation(len(self.test))
        accepted, wrong = outcome.confidence[order] >= threshold, ~outcome.correct[order]
        reference = np.bincount(base_tally(self.train).agree, minlength=1 + len(self.train.panel))
        drift, alarm = Drift(tuple(reference.tolist())), None
        for seen, kind in enumerate(base_tally(self.test).agree[order], 1):
            drift = drift.update([kind])
            if drift.alarm:
                alarm = seen
                break
        before = accepted & (np.arange(len(order)) < (alarm or len(order)))
        return {
            "accepted": int(accepted.sum()),
            "wrong": int((wrong & accepted).sum()),
            "alarm": alarm,
            "held_accepted": int(before.sum()),
            "held_wrong": int((wrong & before).sum()),
        }

    def _relabelled(self) -> dict[str, float | int | None]:
        """ECE and Brier score with newly labelled pictures."""
        mixed = np.random.default_rng(1).permutation(len(self.test))
        new, rest = self.test.take(mixed[:NEW]), self.test.take(mixed[NEW:])
        found: dict[str, float | int | None] = {}
        for name, labelled in (("new", new), ("with_new", self._joined(mixed[:NEW]))):
            scores = crossfit.outcome(Jury().fit(labelled), rest).scores()
            found |= {f"{name}_ece": scores.ece, f"{name}_brier": scores.brier}
        return found

    def _joined(self, new: Places) -> LabelledVotes:
        base, views = (
            np.concatenate([old, fresh[new]])
            for old, fresh in (
                (self.train.base, self.test.base),
                (self.train.views, self.test.views),
            )
        )
        words = (*self.train.words, *(self.test.words[i] for i in new))
        names = tuple(f"{place}" for place in range(len(words)))
        joined = Votes(names, self.train.panel, self.test.vocabulary, base, views, self.test.classes)
        return joined.labelled(words)


COLUMNS = (
    *("accepted", "wrong", "alarm", "held_accepted", "held_wrong"),
    *("new_ece", "new_brier", "with_new_ece", "with_new_brier"),
)


Part = tuple[LabelledVotes, Floats]


def _part(asked: Answers, rows: Places) -> Part:
    return asked.votes.take(rows), asked.logs[rows, 0].astype(np.float64)


def _shifted(name: str, shift: str, severity: int, train: Part, test: Part) -> Shifted:
    return Shifted(name, shift, severity, train[0], test[0], (train[1], test[1]))


def record(corruption: str, severity: int) -> Record:
    """Where the answers about corrupted pictures are stored."""
    clean = next(each for each in panel_records() if each.name == NETWORK)
    return replace(clean, cache=CACHE / "shift" / f"{corruption}-{severity}")


def ask() -> None:
    """Query the tested pictures under every corruption."""
    clean = next(each for each in panel_records() if each.name == NETWORK)
    plain = subject(clean)
    for severity in reversed(SEVERITIES):
        for corruption, corrupt in CORRUPTIONS.items():
            stored = record(corruption, severity)
            images = list(plain.images)
            for row in plain.order[BLOCKS.start * plain.block : BLOCKS.stop * plain.block]:
                rng = np.random.default_rng([severity, int(row)])
                images[row] = Image.from_array(corrupt(plain.images[row].pixels, severity, rng))
            asked = replace(plain, cache=stored.cache, images=images)
            for block in BLOCKS:
                asked.ask(block)
            print(f"{corruption} {severity}", flush=True)


def corrupted() -> Iterator[Shifted]:
    asked = answers(NETWORK)
    train = _part(asked, np.flatnonzero(asked.block < FIT // 100))
    tested = np.flatnonzero(np.isin(asked.block, BLOCKS))
    yield _shifted(NETWORK, "none", 0, train, _part(asked, tested))
    for corruption in CORRUPTIONS:
        for severity in SEVERITIES:
            found = record(corruption, severity).load()
            yield _shifted(NETWORK, corruption, severity, train, _part(found, np.arange(len(found.votes))))


def priors() -> Iterator[Shifted]:
    for name in ("resnet8", "resnet20", "resnet32"):
        asked = answers(name)
        rest = np.flatnonzero(asked.block >= FIT // 100)
        kept = np.isin(asked.votes.truths[rest], KEPT_CLASSES) | (np.arange(len(rest)) % KEPT_OTHERS == 0)
        yield _shifted(
            name, "prior", 1, _part(asked, np.flatnonzero(asked.block < FIT // 100)), _part(asked, rest[kept])
        )


def other_sets() -> Iterator[Shifted]:
    for name in ("mobilenetv2", "efficientnet"):
        asked = answers(name)
        later = np.array([int(row) >= 1500 for row in asked.votes.names])
        yield _shifted(name, "set", 1, _part(asked, np.flatnonzero(~later)), _part(asked, np.flatnonzero(later)))
    apis = {each.name: each.votes.label_only() for each in faces()}
    for train, test in (("rafdb google", "ferplus google"), ("ferplus microsoft", "expw microsoft")):
        rows = np.random.default_rng(0).permutation(len(apis[train]))[:FIT]
        others = np.random.default_rng(0).permutation(len(apis[test]))[:2000]
        tested = apis[test].take(others)
        tested = tested.recoded(apis[train].vocabulary).labelled(tested.words)
        yield Shifted(f"{train} to {test}", "set", 1, apis[train].take(rows), tested)


def main(words: list[str]) -> None:
    if words:
        ask()
        return
    shifts = (shift for make in (corrupted, priors, other_sets) for shift in make())
    write(RESULTS, (row for shift in shifts for row in shift.rows()))


if __name__ == "__main__":
    script.run(main, __doc__, ["ask"])
