"""The paper's Figures 2 and 4 and its illustrations of the two sources of error, as SVG and as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from scipy.special import ndtr

from experiments.paper.answers import Readings
from experiments.paper.tables import Row, Study
from looktwice.calibration.evidence import Floats
from looktwice.calibration.latent import Noise
from looktwice.plots.figures import Line, column_svg, lines_svg
from looktwice.report.findings import drawn

POINTS = 61
"""Points at which the cumulatives are written down."""
BINS = 12


def brier_svg(rows: Sequence[Row], ballot: str) -> str:
    """Figure 2: Brier against S, a line a transform."""
    mine = [row for row in rows if row["ballot"] == ballot]
    lines = []
    for transform, group in groupby(mine, key=lambda row: str(row["transform"])):
        part = list(group)
        lines.append(Line(transform, _floats(part, "S"), _floats(part, "brier")))
    first = mine[0]
    title = f"{first['model']}, {first['reading']}: Brier score, {ballot} ballot, {first['tested']:,} pictures"
    return lines_svg(lines, title=title, x_label="S, draws a picture", y_label="Brier score")


def cumulatives(study: Study) -> Iterator[Row]:
    """Figure 4 as numbers: F_n, its band and the closest Φ(x/a), as it is and centred."""
    for family, view in study.settings.items():
        readings = study.noise(view)
        for kind, noise in (("plain", readings.plain), ("centred", readings.centred)):
            x, mean, low, high = _curves(noise)
            for values in zip(x, mean, low, high, ndtr(x / noise.normal.a), strict=True):
                point = dict(zip(("x", "mean", "low", "high", "phi"), map(float, values), strict=True))
                yield {
                    "dataset": study.subject.dataset,
                    "model": study.subject.title,
                    "reading": study.size.reading,
                    "transform": family,
                    "view": str(view),
                    "kind": kind,
                    "a": noise.normal.a,
                    **point,
                }


def cumulatives_svg(study: Study) -> str:
    """Figure 4: one chart a transform."""
    title = f"{study.subject.title}, {study.size.reading}"
    charts = [drawn(study.noise(view).plain, f"{title}, {view}") for view in study.settings.values()]
    return column_svg(charts, f"{title}: empirical cumulatives")


def _curves(noise: Noise) -> tuple[Floats, Floats, Floats, Floats]:
    low, high = noise.cumulative.inverse(np.array([0.005, 0.995]))
    x, known = np.linspace(low, high, POINTS), np.array(noise.cumulative.x)
    mean, below, above = (np.interp(x, known, y) for y in (noise.cumulative.f, noise.low, noise.high))
    return x, mean, below, above


# The two sources of error --------------------------------------------------------------------------------------------


def first_error_svg(readings: Readings, title: str) -> str:
    """Two pictures whose noise differs so much that the one with the larger margin keeps its label less often."""
    one, two = reversal(readings)
    lines = [_margins(readings, place, name) for place, name in ((one, "picture 1"), (two, "picture 2"))]
    lines.append(Line("the boundary", np.zeros(2), np.array([0.0, 1.0])))
    numbers = ", ".join(
        f"{name}: margin {readings.margin[place]:.1f}, p_A {readings.share[place]:.2f}"
        for place, name in ((one, "1"), (two, "2"))
    )
    return lines_svg(
        lines,
        title=f"{title}: the noise depends on the picture. {numbers}",
        x_label="margin after the view",
        y_label="share of views up to here",
        y_range=(0, 1),
    )


def reversal(readings: Readings) -> tuple[int, int]:
    """Two pictures: the second has the larger margin and the smaller share of views that keep its label."""
    margin, share = readings.margin, readings.share
    middle = np.flatnonzero((share > 0.05) & (share < 1.0))
    places = middle if len(middle) > 1 else np.arange(len(share))
    spread = max(float(margin[places].std()), 1e-9)
    gain = (margin[places][None, :] - margin[places][:, None]) / spread + (
        share[places][:, None] - share[places][None, :]
    ) / max(float(share[places].std()), 1e-9)
    larger = margin[places][None, :] > margin[places][:, None]
    lower = share[places][None, :] < share[places][:, None]
    best = np.where(larger & lower, gain, -np.inf)
    one, two = np.unravel_index(int(best.argmax()), best.shape)
    return int(places[one]), int(places[two])


def _margins(readings: Readings, place: int, name: str) -> Line:
    moved = np.sort(readings.margin[place] + readings.noise[place])
    steps = np.repeat(moved, 2)
    return Line(name, steps, np.repeat(np.arange(len(moved) + 1) / len(moved), 2)[1:-1])


def second_error(readings: Readings) -> tuple[Floats, Floats]:
    """Mean margin and mean p_A in bins that hold equally many pictures, from small margins to large ones."""
    order = np.argsort(readings.margin)
    parts = np.array_split(order, min(BINS, len(order)))
    return (
        np.array([readings.margin[part].mean() for part in parts]),
        np.array([readings.share[part].mean() for part in parts]),
    )


def second_error_svg(found: dict[str, Readings], title: str) -> str:
    """The share of views that keep the label against the margin: each transform has a curve of its own."""
    lines = [Line(name, *second_error(readings)) for name, readings in found.items()]
    return lines_svg(
        lines,
        title=f"{title}: the margin that p_A implies depends on the noise",
        x_label="margin of the picture",
        y_label="p_A",
        y_range=(0, 1),
    )


def statistics_svg(readings: Readings, title: str) -> str:
    """Var and KS: the cumulatives of five pictures, then the mean of all with its band and the closest Φ(x/a)."""
    order = np.argsort(np.median(readings.noise, axis=1))
    places = order[np.unique(np.linspace(0.05, 0.95, 5) * (len(order) - 1)).astype(np.intp)]
    lines = []
    for number, place in enumerate(places, 1):
        moved = np.sort(readings.noise[place])
        lines.append(Line(f"picture {number}", moved, np.arange(1, len(moved) + 1) / len(moved)))
    several = lines_svg(
        lines,
        title=f"{title}: cumulatives of five pictures",
        x_label="shift of the margin",
        y_label="share of views",
        y_range=(0, 1),
    )
    return column_svg([several, drawn(readings.plain, title)], f"{title}: Var and KS")


def illustrations(study: Study) -> dict[str, str]:
    """The paper's illustrations from real pictures: a name and an SVG each."""
    found = {str(view): study.noise(view) for view in study.settings.values()}
    title, rotation = study.subject.title, study.settings["rotation"]
    turned = study.noise(rotation)
    return {
        "error1": first_error_svg(turned, f"{title}, {rotation}"),
        "error2": second_error_svg(found, title),
        "statistics": statistics_svg(turned, f"{title}, {rotation}"),
    }


def illustrated(study: Study) -> Iterator[Row]:
    """The numbers of the illustrations: the two pictures, and the curve of each transform."""
    about = {"dataset": study.subject.dataset, "model": study.subject.title}
    turned = study.noise(study.settings["rotation"])
    for name, place in zip(("picture 1", "picture 2"), reversal(turned), strict=True):
        point = {"margin": float(turned.margin[place]), "share": float(turned.share[place])}
        yield about | {"what": "error 1", "line": name, **point}
    for view in study.settings.values():
        for margin, share in zip(*second_error(study.noise(view)), strict=True):
            yield about | {"what": "error 2", "line": str(view), "margin": float(margin), "share": float(share)}


def _floats(rows: Sequence[Row], column: str) -> Floats:
    return np.array([float(str(row[column])) for row in rows])
