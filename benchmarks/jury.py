"""How long a jury takes to learn, and how much memory: python benchmarks/jury.py

Votes are simulated: pictures of unlike difficulty, a wrong label that a hard picture lures to, and stray ones.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from secondlook import jury
from secondlook.votes import Codes, Votes


def simulated(pictures: int, views: int, classes: int, seed: int = 0) -> tuple[Votes, Codes]:
    """Votes in which about three of four pictures are answered alike by all views, and their truths."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=pictures)
    lure = (truth + rng.integers(1, classes, size=pictures)) % classes
    hard = rng.beta(0.25, 1.5, size=(pictures, 1))
    draw = rng.random((pictures, views + 1))
    said = np.where(draw < 1 - hard, truth[:, None], lure[:, None])
    said = np.where(draw > 1 - hard / 3, rng.integers(classes, size=said.shape), said).astype(np.int32)
    names, panel = tuple(map(str, range(pictures))), tuple(f"view {s}" for s in range(views))
    votes = Votes(names, panel, tuple(map(str, range(classes))), said[:, 0], said[:, 1:], classes)
    return votes, truth.astype(np.int32)


def greedy(votes: Votes, truths: Codes, steps: int, strength: float = 30.0) -> list[int]:
    """The panel that grows by the view which helps most on held-out folds."""
    fold, panel, theta = jury.folds(len(votes)), list[int](), np.zeros(3)
    for _ in range(steps):
        left = [s for s in range(len(votes.panel)) if s not in panel]
        tables = {s: jury.tabulate(votes.under([*panel, s]), truths) for s in left}
        start = jury.widen(theta)
        loss = {s: jury.held_out_losses(table, fold, strength, start).sum() for s, table in tables.items()}
        panel.append(min(loss, key=lambda s: loss[s]))
        theta = jury.descend(tables[panel[-1]], strength, start=start)
    return panel


def report(what: str, work: Callable[[], object]) -> None:
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<58}{seconds:8.2f} s{peak:8.0f} MB at most so far")


def main() -> None:
    for pictures, classes, views in [(1000, 10, 8), (1000, 1000, 16), (5000, 1000, 16), (5000, 1000, 40)]:
        votes, truths = simulated(pictures, views, classes)
        size = f"{pictures} pictures, {classes} classes, {views} views"
        report(f"Jury.fit: {size}", lambda v=votes, t=truths: jury.Jury().fit(v, t))  # type: ignore[misc]
    votes, truths = simulated(1000, 16, 1000)
    report("fit_prefixes: 1000 pictures, 1000 classes, 16 views", lambda: jury.fit_prefixes(votes, truths))
    broad, known = simulated(1000, 40, 1000)
    report("greedy choice of 10 of 40 views, 1000 pictures, 5 folds", lambda: greedy(broad, known, 10))


if __name__ == "__main__":
    main()
