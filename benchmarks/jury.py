"""How long a jury takes to learn and how much memory, and which additions to it earn their place.

python benchmarks/jury.py                        times beside their goals; votes are simulated: pictures of unlike
                                                 difficulty, a wrong label that a hard picture lures to, and stray ones
python benchmarks/jury.py VOTES.npz 1000         what each addition changes in log loss on new pictures, over six
                                                 random splits with so many to fit; the file holds votes and truths
python benchmarks/jury.py VOTES.npz 1000 TURNS.npy   the same, with the severity in [0, 1] of each picture's views
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from goals import at_most
from scipy.optimize import minimize

from looktwice.calibration import jury, logit, metrics
from looktwice.calibration.storage import load
from looktwice.calibration.votes import Evidence, Floats, LabelledVotes, Places, Votes

SHRINKAGES = (1000.0, 100.0, 10.0, 1.0)
SPLITS = 6


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
    fold, panel, theta = logit.folds(len(votes)), list[int](), np.zeros(4)
    for _ in range(steps):
        left = [s for s in range(len(votes.panel)) if s not in panel]
        tables = {s: logit.tabulate(votes.under([*panel, s])) for s in left}
        start = logit.widen(theta)
        loss = {s: logit.held_out_losses(table, fold, shrinkage, start).sum() for s, table in tables.items()}
        panel.append(min(loss, key=lambda s: loss[s]))
        theta = logit.descend(tables[panel[-1]], shrinkage, start=start)
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


def single(votes: LabelledVotes) -> logit.Patterns:
    """The table of a jury without γ, one pattern a picture and in their order, so that columns can be added."""
    codes = np.column_stack([votes.base, votes.views])
    first = logit.first_named(codes)
    named = first == np.arange(first.shape[1])
    count = named.sum(axis=1)
    choice = np.column_stack([named, count < votes.classes])
    owner, options = logit._options(first, choice, count)
    options = np.delete(options, codes.shape[1], axis=1)
    column = logit.truth_columns(codes, votes.truths)
    place = np.cumsum(choice.ravel()).reshape(choice.shape) - 1
    others = np.where(column < codes.shape[1], 1, votes.classes - count)
    left = options[:, -2] * np.log(np.maximum(votes.classes - count, 1) / (votes.classes - 1))[owner]
    starts = np.searchsorted(owner, np.arange(len(votes)))
    truth = place[np.arange(len(votes)), column]
    return logit.Patterns(options, left, starts, owner, truth, np.log(others), len(votes.panel))


def additions(votes: Votes, patterns: logit.Patterns, severity: Floats | None) -> dict[str, Floats]:
    """What each addition puts beside the votes for an option: (r, columns)."""
    heard, base = patterns.options[:, :-2], votes.base[patterns.owner]
    family = np.array([view.split(":")[0] for view in votes.panel])
    groups = [family == name for name in sorted(set(family)) if (family == name).sum() > 1]
    found = {
        "votes count less and less": np.log1p(heard.sum(axis=1))[:, None],
        "a bonus for being unanimous": (heard.sum(axis=1) == heard.shape[1]).reshape(-1, 1) * 1.0,
    }
    if groups:
        found["one voice more for each family"] = (
            np.column_stack([heard[:, 1:][:, g].any(axis=1) for g in groups]) * 1.0
        )
    if votes.classes <= 100:
        found["a bias for the base label's class"] = (base[:, None] == np.arange(votes.classes)) * heard[:, :1]
    if severity is not None:
        bucket = np.minimum((severity * 4).astype(int), 3)[patterns.owner]
        pooled = [(heard[:, 1:] * (bucket == b)).sum(axis=1) for b in range(4)]
        found["a weight for each severity"] = np.column_stack(pooled)
    return found


def held_out(patterns: logit.Patterns, extra: Floats, rows: Floats, shrinkage: float, shrink: float) -> Floats:
    """(n,): the losses of all pictures under a fit on those of `rows`, with the extra columns shrunk to nothing."""
    options, ridge = np.insert(patterns.options, [-2], extra, axis=1), (shrink,) * extra.shape[1]
    wide = replace(patterns, options=options, ridge=ridge)
    objective = logit.PenalisedLoss.of(wide, shrinkage, wide.hits(rows > 0))
    start, settings = np.zeros(options.shape[1]), {"gtol": 1e-3}
    best = minimize(objective.at, start, jac=True, hess=objective.curvature, method="trust-exact", options=settings)
    return logit.losses(wide, best.x)


def test_loss(patterns: logit.Patterns, extra: Floats, fit: Floats, fold: Places) -> float:
    """The mean loss on the pictures not fitted on; both shrinkages are chosen by cross-validation on the others."""
    grid = [(a, b) for a in SHRINKAGES for b in (SHRINKAGES if extra.shape[1] else (1.0,))]

    def loss(pair: tuple[float, float]) -> float:
        parts = [held_out(patterns, extra, fit * (fold != k), *pair)[(fit > 0) & (fold == k)] for k in range(3)]
        return float(np.concatenate(parts).mean())

    return float(held_out(patterns, extra, fit, *min(grid, key=loss))[fit == 0].mean())


def compare(path: Path, pictures: int, severity: Floats | None) -> None:
    votes = load(path)
    if not isinstance(votes, LabelledVotes):
        sys.exit(f"{path} holds no truths; save votes with `looktwice evaluate --votes`")
    patterns = single(votes)
    plain = np.zeros((len(patterns.options), 0))
    tried = {"plain": plain, **additions(votes, patterns, severity)}
    gaps: dict[str, list[float]] = {name: [] for name in tried}
    for split in range(SPLITS):
        order = np.random.default_rng(100 + split).permutation(len(votes))
        fit = (order < pictures).astype(np.float64)
        base = test_loss(patterns, plain, fit, order % 3)
        for name, extra in tried.items():
            gaps[name].append(base if name == "plain" else test_loss(patterns, extra, fit, order % 3) - base)
    for name, gap in gaps.items():
        print(f"{name:<36}{np.mean(gap):+.4f} ± {np.std(gap, ddof=1) / np.sqrt(SPLITS):.4f}")


def main() -> None:
    if len(sys.argv) == 1:
        sys.exit(0 if times() else 1)
    severity = np.load(sys.argv[3]) if len(sys.argv) > 3 else None
    compare(Path(sys.argv[1]), int(sys.argv[2]), severity)


if __name__ == "__main__":
    main()
