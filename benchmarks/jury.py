"""How long a jury takes to learn, and how much memory, beside goals: python benchmarks/jury.py

Votes are simulated: pictures of unlike difficulty, a wrong label that a hard picture lures to, and stray ones.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import numpy as np
from goals import at_most

from looktwice.calibration import jury, logit, metrics
from looktwice.calibration.evidence import Evidence
from looktwice.calibration.options import tabulate
from looktwice.calibration.votes import LabelledVotes, Votes


def simulated(pictures: int, views: int, classes: int, seed: int = 0) -> LabelledVotes:
    """Votes in which about three of four pictures are answered alike by all views."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=pictures)
    lure = (truth + rng.integers(1, classes, size=pictures)) % classes
    hard = rng.beta(0.25, 1.5, size=(pictures, 1))
    draw = rng.random((pictures, views + 1))
    said = np.where(draw < 1 - hard, truth[:, None], lure[:, None])
    said = np.where(draw > 1 - hard / 3, rng.integers(classes, size=said.shape), said).astype(np.int32)
    names, panel = tuple(map(str, range(pictures))), tuple(f"view {s}" for s in range(views))
    votes = Votes(names, panel, tuple(map(str, range(classes))), said[:, 0], said[:, 1:], classes)
    return votes.labelled(map(str, truth))


def simulated_lists(pictures: int, views: int, classes: int, listed: int = 5, seed: int = 0) -> LabelledVotes:
    """Ranked lists with scores: the softmax of logits that a picture and its views share in part."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(np.where(rng.random(pictures) < 0.5, 60, classes))
    common = 1.2 * rng.standard_normal((pictures, classes), np.float32)
    common[np.arange(pictures), truth] += 8 * rng.beta(2, 1, pictures)
    labels = np.empty((pictures, views + 1, listed), np.int32)
    scores = np.empty(labels.shape, np.float32)
    for question in range(views + 1):
        logits = common + 0.6 * rng.standard_normal(common.shape, np.float32)
        powers = np.exp(2 * logits)
        labels[:, question] = np.argsort(-logits, axis=1)[:, :listed]
        scores[:, question] = np.take_along_axis(powers, labels[:, question], 1) / powers.sum(axis=1, keepdims=True)
    names, panel = tuple(map(str, range(pictures))), tuple(f"view {s}" for s in range(views))
    said, words = labels[:, :, 0], tuple(map(str, range(classes)))
    votes = Votes(names, panel, words, said[:, 0], said[:, 1:], classes, evidence=Evidence(labels, scores))
    return votes.labelled(map(str, truth))


def greedy(votes: LabelledVotes, steps: int, shrinkage: float = 30.0) -> list[int]:
    """The panel that grows by the view which helps most on held-out folds."""
    fold, panel = logit.folds(len(votes)), list[int]()
    for _ in range(steps):
        left = [s for s in range(len(votes.panel)) if s not in panel]
        tables = {s: tabulate(votes.under([*panel, s])) for s in left}
        loss = {s: logit.held_out_losses(table, fold, shrinkage).sum() for s, table in tables.items()}
        panel.append(min(loss, key=lambda s: loss[s]))
    return panel


def quick(what: str, work: Callable[[], object], goal: float) -> bool:
    """Whether some work takes at most so many seconds."""
    began = time.perf_counter()
    work()
    return at_most(f"{what}, seconds", time.perf_counter() - began, goal)


def times() -> bool:
    votes, many = simulated(1000, 16, 1000), simulated(5000, 16, 1000)
    broad = simulated(1000, 40, 1000)
    ranked = simulated_lists(5000, 16, 1000)
    reached = [
        quick("Jury of 1,000 pictures, 1,000 classes, 16 views", lambda: jury.Jury().fit(votes), 10),
        at_most("the same, MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 500),
        quick("Jury of 5,000 pictures, 1,000 classes, 16 views", lambda: jury.Jury().fit(many), 10),
        quick("the same with five labels and their scores", lambda: jury.Jury().fit(ranked), 15),
        at_most("the same, MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 800),
        quick("a jury for every number of 16 views", lambda: jury.AdaptiveJury().fit(votes), 10),
        quick("10 of 40 views chosen, 1,000 pictures, 5 folds", lambda: greedy(broad, 10), 20),
        quick("1,000 resamples of all figures, 50,000 pictures", resampled, 5),
    ]
    return all(reached)


def resampled() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(50_000)
    correct = rng.random(50_000) < confidence
    brier, nll = (confidence - correct) ** 2, -np.log(np.where(correct, confidence, 1 - confidence))
    metrics.bootstrap(confidence, correct, brier, nll)


if __name__ == "__main__":
    sys.exit(0 if times() else 1)
