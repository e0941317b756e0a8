"""Several methods on the same pictures in one figure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from looktwice.calibration import BINS, Bools, Floats, metrics
from looktwice.errors import DataError
from looktwice.plots.figures import Line, lines_svg
from looktwice.plots.notebook import Drawing

MOST = 5
"""The most methods of a reliability diagram, whose diagonal is a line too."""

Outcomes = Mapping[str, tuple[Floats, Bools]]
"""The confidence (n,) of each method and whether its answers were right (n,), by the method's name."""


def reliability(outcomes: Outcomes, *, bins: int = BINS, title: str = "Confidence and real accuracy") -> Drawing:
    """Reliability diagram of up to five methods, in equal-width bins, with 95 % Wilson intervals as bands."""
    if len(outcomes) > MOST:
        raise DataError(
            f"a reliability diagram shows up to {MOST} methods, not {len(outcomes)}; draw several",
            code="option-invalid",
        )
    lines = []
    for name, (confidence, correct) in outcomes.items():
        curve = metrics.reliability(confidence, correct, bins)
        some = curve.count > 0
        lines.append(Line(name, curve.confidence[some], curve.accuracy[some], curve.low[some], curve.high[some]))
    ends = np.array([0.0, 1.0])
    lines.append(Line("as claimed", ends, ends))
    return Drawing(
        lines_svg(lines, title=title, x_label="confidence", y_label="accuracy", x_range=(0, 1), y_range=(0, 1))
    )


def risk_coverage(outcomes: Outcomes, *, title: str = "Mistakes among accepted answers") -> Drawing:
    """Risk–coverage curves of up to six methods."""
    curves = {name: metrics.risk_coverage(*outcome) for name, outcome in outcomes.items()}
    # Equal confidences come in random order, so up to the first point the expected risk is level.
    lines = [
        Line(name, np.append(0.0, curve.coverage), np.append(curve.risk[0], curve.risk))
        for name, curve in curves.items()
    ]
    highest = max(0.01, 1.1 * max(float(curve.risk[curve.coverage >= 0.05].max()) for curve in curves.values()))
    return Drawing(
        lines_svg(
            lines, title=title, x_label="coverage", y_label="risk", x_range=(0, 1), y_range=(0, min(1.0, highest))
        )
    )
