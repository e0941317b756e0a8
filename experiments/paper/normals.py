"""KS over the paper's grid of a beside KS over every a, from the cumulatives of Figure 4.

The cumulatives are those at the 61 points that figure4.csv holds, so a distance may be missed between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from scipy.special import ndtr

from experiments.writing import Row, cells
from looktwice.calibration import PAPER_A

KEYS = ("dataset", "model", "reading", "transform", "view", "kind")


def compared(rows: Sequence[Row]) -> Iterator[Row]:
    """One line for each cumulative: the closest normal of any width, and of the paper's."""
    for key, points in groupby(rows, key=lambda row: tuple(row[name] for name in KEYS)):
        curve = list(points)
        x, mean = (np.array([float(point[name]) for point in curve]) for name in ("x", "mean"))
        widths = np.array([float(curve[0]["a"]), *PAPER_A])
        ks = np.abs(mean - ndtr(x / widths[:, None])).max(axis=1)
        on_grid = int(ks[1:].argmin())
        found = {"a": widths[0], "ks": float(ks[0]), "grid_a": PAPER_A[on_grid], "grid_ks": float(ks[1 + on_grid])}
        yield cells(dict(zip(KEYS, key, strict=True)) | found)
