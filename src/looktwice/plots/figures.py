"""Draw computed curves as inline SVG.

A figure fills the width of its container, so the container should have a maximum width, such as 34rem. Text and axes
use `currentColor`, and a page may set the line colours with the CSS variables --lt-1 … --lt-6. The same curve always
produces the same SVG text.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from looktwice.calibration import BINS, Bools, Floats, Reliability, RiskCoverage, metrics
from looktwice.errors import DataError
from looktwice.plots.notebook import Drawing

_WIDTH, _EDGE, _LEFT, _RIGHT = 400.0, 4.0, 52.0, 380.0
_LETTER = 6.3
"""The approximate width of a letter in small type, in figure units."""
_POINTS = 240
"""The maximum number of points of a line: more than a phone can show, but few enough for a fast page."""
_COLOURS = ("#3d7eea", "#e2742f", "#179c82", "#b158c2", "#b98a12", "#7f8694")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")


@dataclass(frozen=True)
class Line:
    """A named line through (x, y), with an optional band from `low` to `high`; all arrays have the same length."""

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


def reliability_svg(curve: Reliability, title: str = "Confidence and real accuracy", unit: str = "pictures") -> str:
    """A reliability diagram with intervals, above a histogram of the pictures, or of another unit."""
    filled = [int(i) for i in np.flatnonzero(curve.count)]
    gaps, count = np.abs(curve.accuracy - curve.confidence)[filled], curve.count[filled]
    points = 100 * float(gaps @ count) / int(count.sum())
    heading, top = _heading(title, [f"{count.sum():,} {unit}, off by {points:.1f} points on average"])
    share = _Axis("answers that are right", _ticks(0, 1), _percent)
    upper = _Frame(top, 300, (0, 1), (0, 1))
    lower = _Frame(upper.bottom + 32, 54, (0, 1), (0, max(1, int(curve.count.max()))))
    x, y, angle = upper.x(0.04), upper.y(0.04) - 6, -math.degrees(math.atan2(upper.height, _RIGHT - _LEFT))
    parts = [
        heading,
        _axes(upper, _Axis("", share.ticks, lambda _: ""), share),
        _axes(lower, _Axis("confidence", share.ticks, _percent), _Axis(unit, lower.y_range, "{:,.0f}".format)),
        _diagonal(upper),
        _text(x, y, "as claimed", f' opacity="0.72" transform="rotate({_n(angle)} {_n(x)} {_n(y)})"'),
        *(_bin(curve, i, upper, lower) for i in filled),
    ]
    about = f"Share of right answers against confidence, in {len(filled)} bins; the diagonal is ideal."
    return _svg(title, about, lower.bottom + 40, parts)


def risk_coverage_svg(
    curve: RiskCoverage, threshold: float | None = None, title: str = "Mistakes among accepted answers"
) -> str:
    """A risk–coverage curve.

    `threshold` marks the point at which answers with at least this confidence are accepted.
    """
    if threshold is None:
        return _risks_svg({"risk": curve}, title)
    if not (kept := int((curve.threshold >= threshold).sum())):
        return _risks_svg({"risk": curve}, title, [f"no answer has a confidence of {upward(threshold)} or more"])
    accepted, wrong = float(curve.coverage[kept - 1]), float(curve.risk[kept - 1])
    remark = f"at {upward(threshold)} or more: {100 * accepted:.1f} % accepted, {100 * wrong:.1f} % of them wrong"
    return _risks_svg({"risk": curve}, title, [remark], (accepted, wrong))


def _risks_svg(
    curves: Mapping[str, RiskCoverage],
    title: str,
    remarks: Sequence[str] = (),
    mark: tuple[float, float] | None = None,
) -> str:
    # Equal confidences come in random order, so up to the first point the expected risk is level.
    lines = [
        Line(name, np.append(0.0, curve.coverage), np.append(curve.risk[0], curve.risk))
        for name, curve in curves.items()
    ]
    # An error among the first few answers makes a high but meaningless peak, which may be clipped.
    highest = max(float(curve.risk[curve.coverage >= 0.05].max()) for curve in curves.values())
    return lines_svg(
        lines,
        title=title,
        x_label="accepted answers",
        y_label="wrong among the accepted",
        x_range=(0, 1),
        y_range=(0, min(1.0, max(0.01, 1.1 * highest))),
        remarks=remarks,
        mark=mark,
        words=_percent,
    )


def lines_svg(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    remarks: Sequence[str] = (),
    mark: tuple[float, float] | None = None,
    words: Callable[[float], str] | None = None,
) -> str:
    """A chart of up to six lines with their bands; by default, the axes cover the range of the data.

    `remarks` are printed below the title, `mark` is a point with lines to both axes, and `words` formats ticks.
    """
    _check(lines)
    for bounds in (x_range, y_range):
        if bounds is not None and not -math.inf < bounds[0] + 1e-9 < bounds[1] < math.inf:
            raise DataError(f"{bounds} is not a range; give the lower end first", code="option-invalid")
    heading, top = _heading(title, remarks)
    legend, top = _legend([line.name for line in lines], top) if len(lines) > 1 else ("", top)
    x_range = x_range or _span(line.x for line in lines)
    y_ticks = _ticks(*(y_range or _span(values for line in lines for values in _heights(line))))
    x_ticks = _ticks(*x_range)
    frame = _Frame(top, 230, x_range, y_range or (y_ticks[0], y_ticks[-1]))
    bands = []
    for i, line in enumerate(lines):
        if line.low is not None and line.high is not None:
            there, back = _places(frame, line.x, line.low), _places(frame, line.x[::-1], line.high[::-1])
            bands.append(f'<polygon points="{there} {back}" fill="{_colour(i)}" fill-opacity="0.16"/>')
    strokes = [_marked(frame, line, i) for i, line in enumerate(lines)]
    x, y = _Axis(x_label, x_ticks, words or _decimal(x_ticks)), _Axis(y_label, y_ticks, words or _decimal(y_ticks))
    about = f"{y_label} against {x_label}: {', '.join(line.name for line in lines)}."
    parts = [
        heading,
        legend,
        _axes(frame, x, y),
        _clipped(frame, [*bands, *strokes, *(_mark(frame, *mark) if mark else ())]),
    ]
    return _svg(title, about, frame.bottom + 40, parts)


def bars_svg(bars: Mapping[str, float], *, title: str, words: str = "{:,.3g}") -> str:
    """A bar chart of amounts with their names above the bars; the first is the reference."""
    heading, y = _heading(title, ())
    most = max(bars.values(), default=0.0) or 1.0
    parts = [heading]
    for place, (name, amount) in enumerate(bars.items()):
        length = max(1.0, 320 * amount / most)
        parts.append(_text(_EDGE, y, name))
        size = f'width="{_n(length)}" height="14" rx="2" fill="{_colour(min(place, 1))}"'
        parts.append(f'<rect x="{_n(_EDGE)}" y="{_n(y + 6)}" {size}/>')
        parts.append(_text(_EDGE + length + 6, y + 17, words.format(amount)))
        y += 44
    about = "; ".join(f"{name}: {words.format(amount)}" for name, amount in bars.items())
    return _svg(title, about, y - 16, parts)


def column_svg(charts: Sequence[str], title: str) -> str:
    """Combine several figures of this module into one, stacked vertically."""
    y, parts = 0.0, []
    for chart in charts:
        height = float(chart.split('viewBox="', 1)[1].split('"', 1)[0].split()[3])
        place = f'<svg y="{_n(y)}" height="{_n(height)}" '
        parts.append(chart.strip().replace("<svg ", place, 1))
        y += height + 12
    return _svg(title, f"{len(parts)} charts, one below the other.", y, parts)


@dataclass(frozen=True)
class _Axis:
    """An axis: its label, its ticks and the text of a tick."""

    label: str
    ticks: Sequence[float]
    words: Callable[[float], str]


@dataclass(frozen=True)
class _Frame:
    """A plotting area with its coordinate transform."""

    top: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (_RIGHT - _LEFT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - self.height * (value - low) / (high - low)


# Values to words


def _percent(value: float) -> str:
    return f"{round(100 * value, 6):g} %"


def _decimal(ticks: Sequence[float]) -> Callable[[float], str]:
    """Format ticks with as many decimals as they need to differ."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return lambda value: f"{value:,.{places}f}".replace("-", "−")


def upward(threshold: float) -> str:
    """Format a threshold, rounded up to three decimals, or more if it is close to 1."""
    places = max(3, math.ceil(-math.log10(max(1e-9, 1 - threshold))) + 1)
    return f"{math.ceil(threshold * 10**places - 1e-6) / 10**places:.{places}f}"


# Values to ranges


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Round values, four to eight of them, from at most `low` to at least `high`."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda m: abs(math.log(m * power / rough)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(i * step, 12) + 0.0 for i in range(first, last + 1))


def _within(ticks: Sequence[float], bounds: tuple[float, float]) -> list[float]:
    return [tick for tick in ticks if bounds[0] <= tick <= bounds[1]]


def _span(columns: Iterable[Floats]) -> tuple[float, float]:
    values = np.concatenate(list(columns))
    low, high = float(values.min()), float(values.max())
    same = high - low <= 1e-9 * max(1.0, abs(low), abs(high))
    return (low - 0.5, high + 0.5) if same else (low, high)


def _heights(line: Line) -> list[Floats]:
    return [values for values in (line.y, line.low, line.high) if values is not None]


def _check(lines: Sequence[Line]) -> None:
    if not 1 <= len(lines) <= len(_COLOURS):
        raise DataError(
            f"a chart shows 1 to {len(_COLOURS)} lines, not {len(lines)}; draw more than one chart",
            code="option-invalid",
        )
    for line in lines:
        columns = [line.x, *_heights(line)]
        if {column.shape for column in columns} != {(len(line.x),)} or not len(line.x):
            raise DataError(
                f"line {line.name!r} has columns of different lengths or none; give one value per point",
                code="option-invalid",
            )
        if not all(np.isfinite(column).all() for column in columns):
            raise DataError(
                f"line {line.name!r} holds a value that is not finite; leave that point out", code="option-invalid"
            )


# Words and values to marks


def _n(value: float) -> str:
    """Format a coordinate to a tenth of a unit, without negative zero."""
    return f"{round(value, 1) + 0.0:.1f}"


def _clean(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in text))


def _colour(index: int) -> str:
    return f"var(--lt-{index + 1}, {_COLOURS[index]})"


def _svg(title: str, about: str, height: float, parts: Iterable[str]) -> str:
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" class="lt-figure" role="img" width="100%" '
        f'viewBox="0 0 {_n(_WIDTH)} {_n(height)}" fill="currentColor" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" font-size="11.5">'
    )
    names = f"<title>{_clean(title)}</title><desc>{_clean(about)}</desc>"
    return "\n".join([opening, names, *(part for part in parts if part), "</svg>\n"])


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}"{more}>{_clean(words)}</text>' if words else ""


def _rule(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    return f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" {more}/>'


def _heading(title: str, remarks: Sequence[str]) -> tuple[str, float]:
    """Draw title and remarks; returns the top of the space below."""
    y, parts = 4.0, []
    for words in textwrap.wrap(title, 44):
        y += 17
        parts.append(_text(_EDGE, y, words, ' font-size="14.5" font-weight="600"'))
    for words in remarks:
        y += 17
        parts.append(_text(_EDGE, y, words, ' opacity="0.72"'))
    return "\n".join(parts), y + 32


def _legend(names: Sequence[str], top: float) -> tuple[str, float]:
    """Draw the legend, in as many rows as needed; returns the top of the space below."""
    x, y, parts = _EDGE, top - 12, []
    for i, name in enumerate(names):
        width = 28 + _LETTER * len(name)
        if x > _EDGE and x + width > _WIDTH:
            x, y = _EDGE, y + 17
        sample = f'stroke="{_colour(i)}" stroke-width="2.5" stroke-dasharray="{_DASHES[i]}"'
        parts += [_rule(x, y - 4, x + 18, y - 4, sample), _text(x + 23, y, name)]
        x += width + 12
    return "\n".join(parts), y + 32


def _axes(frame: _Frame, x: _Axis, y: _Axis) -> str:
    faint = 'stroke="currentColor" stroke-opacity="0.13"'
    parts = []
    for tick in _within(y.ticks, frame.y_range):
        parts.append(_rule(_LEFT, frame.y(tick), _RIGHT, frame.y(tick), faint))
        parts.append(_text(_LEFT - 7, frame.y(tick) + 4, y.words(tick), ' text-anchor="end" opacity="0.72"'))
    for tick in _within(x.ticks, frame.x_range):
        parts.append(_rule(frame.x(tick), frame.bottom, frame.x(tick), frame.bottom + 4, faint))
        parts.append(_text(frame.x(tick), frame.bottom + 17, x.words(tick), ' text-anchor="middle" opacity="0.72"'))
    parts.append(_text((_LEFT + _RIGHT) / 2, frame.bottom + 33, x.label, ' text-anchor="middle"'))
    parts.append(_text(_EDGE, frame.top - 11, y.label))
    return "\n".join(part for part in parts if part)


def _diagonal(frame: _Frame) -> str:
    style = 'stroke="currentColor" stroke-opacity="0.5" stroke-dasharray="4 4"'
    return _rule(frame.x(0), frame.y(0), frame.x(1), frame.y(1), style)


def _mark(frame: _Frame, x: float, y: float) -> list[str]:
    """A point, with lines to both axes."""
    across, height = frame.x(x), frame.y(y)
    thin = 'stroke="currentColor" stroke-opacity="0.5" stroke-dasharray="3 3"'
    dot = f'<circle cx="{_n(across)}" cy="{_n(height)}" r="4.5" fill="{_colour(1)}"/>'
    return [_rule(across, height, across, frame.bottom, thin), _rule(_LEFT, height, across, height, thin), dot]


def _bin(curve: Reliability, i: int, upper: _Frame, lower: _Frame) -> str:
    """One bin of a reliability diagram: a pale bar, the interval, a point at the mean confidence, and the histogram's
    bar, which has a minimum height."""
    claimed, real = f"{100 * curve.confidence[i]:.1f}", f"{100 * curve.accuracy[i]:.1f}"
    interval = f"{100 * curve.low[i]:.1f} to {100 * curve.high[i]:.1f}"
    x, y = upper.x(curve.confidence[i]), upper.y(curve.accuracy[i])
    left, right = upper.x(curve.edges[i]) + 0.75, upper.x(curve.edges[i + 1]) - 0.75
    whisker = f'stroke="{_colour(0)}" stroke-width="1.6" stroke-linecap="round"'
    top = min(lower.y(float(curve.count[i])), lower.bottom - 1)
    place = f'x="{_n(left)}" width="{_n(right - left)}"'
    return (
        f"<g><title>claimed {claimed} %, right {real} % ({interval}), {curve.count[i]:,} pictures</title>"
        f'<rect {place} y="{_n(y)}" height="{_n(upper.bottom - y)}" fill="{_colour(0)}" fill-opacity="0.16"/>'
        + _rule(x, upper.y(curve.low[i]), x, upper.y(curve.high[i]), whisker)
        + f'<circle cx="{_n(x)}" cy="{_n(y)}" r="3.6" fill="{_colour(0)}"/>'
        f'<rect {place} y="{_n(top)}" height="{_n(lower.bottom - top)}" fill="currentColor" fill-opacity="0.45"/></g>'
    )


def _clipped(frame: _Frame, parts: Iterable[str]) -> str:
    """Clip marks to the frame, plus the width of a point."""
    x, y, width, height = _LEFT - 4, frame.top - 4, _RIGHT - _LEFT + 8, frame.height + 8
    box = f"{_n(x)} {_n(y)} {_n(width)} {_n(height)}"
    place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return "\n".join([f'<svg {place} viewBox="{box}">', *(part for part in parts if part), "</svg>"])


def _places(frame: _Frame, x: Floats, y: Floats) -> str:
    rows = np.unique(np.linspace(0, len(x) - 1, _POINTS).round().astype(np.intp))
    x, y = x[rows], y[rows]  # evenly spaced points, the ends among them
    return " ".join(f"{_n(frame.x(a))},{_n(frame.y(b))}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _stroke(frame: _Frame, x: Floats, y: Floats, index: int) -> str:
    return (
        f'<polyline points="{_places(frame, x, y)}" fill="none" stroke="{_colour(index)}" stroke-width="2" '
        f'stroke-linejoin="round" stroke-linecap="round" stroke-dasharray="{_DASHES[index]}"/>'
    )


def _marked(frame: _Frame, line: Line, index: int) -> str:
    """A line, with a marker at each value if there are few."""
    stroke = _stroke(frame, line.x, line.y, index)
    if len(line.x) > 24:
        return stroke
    points = [
        f'<circle cx="{_n(frame.x(x))}" cy="{_n(frame.y(y))}" r="3" fill="{_colour(index)}">'
        f"<title>{_clean(f'{line.name}: {x:.6g}, {y:.6g}')}</title></circle>"
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
    ]
    return "\n".join([stroke, *points])


# Several methods on the same pictures -------------------------------------------------------------------------------

Outcomes = Mapping[str, tuple[Floats, Bools]]
"""For each method name, the confidences (n,) and whether the answers were right (n,)."""


def reliability(outcomes: Outcomes, *, bins: int = BINS, title: str = "Confidence and real accuracy") -> Drawing:
    """Reliability diagram of up to five methods, in equal-width bins, with 95 % Wilson intervals as bands."""
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
    return Drawing(_risks_svg({name: metrics.risk_coverage(*outcome) for name, outcome in outcomes.items()}, title))
