"""The jury's typical weights without one of the six models that made them, for figures of that model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from experiments.writing import read
from looktwice.calibration import typical

WEIGHTS = Path(__file__).parent / "results" / "typical_weights.csv"
"""Written by `python -m experiments.typical fit`: a row for each model that is left out, and number of views."""


def stored(name: str) -> tuple[typical.Typical, ...]:
    """The weights without this model; of all six where it is none of them."""
    rows = [row for row in read(WEIGHTS) if row["without"] == name]
    nested = [(tuple(json.loads(row["weights"])), json.loads(row["information"])) for row in rows]
    return tuple((weights, tuple(map(tuple, information))) for weights, information in nested) or typical.TYPICAL


@contextmanager
def without(name: str) -> Iterator[None]:
    """Juries that are fitted here have the prior that leaves this model out."""
    with patch.object(typical, "TYPICAL", stored(name)):
        yield
