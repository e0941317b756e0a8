"""Figures are well-formed, say what the curve says, and are the same every time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.errors import coded

from looktwice import plots
from looktwice.calibration import metrics
from looktwice.calibration.metrics import Bools, Floats
from looktwice.errors import DataError
from looktwice.plots import figures
from looktwice.plots.figures import Line, upward

SVG = "{http://www.w3.org/2000/svg}"
X = np.array([1.0, 2.0, 4.0])
Y = np.array([0.3, 0.2, 0.1])

unhurried = settings(deadline=None, max_examples=40)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Floats, Bools]:
    rows = draw(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])


def parsed(svg: str) -> ElementTree.Element:
    """The figure's root, once it is sure that nothing in it is missing or loads anything."""
    assert not re.search(r"nan|inf[^o]|<script|href|style=|\bid=|-0\.0\"", svg)
    return ElementTree.fromstring(svg)


def words(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def marks(root: ElementTree.Element) -> int:
    """The number of marked points."""
    return sum(circle.attrib["r"] == "4.5" for circle in root.iter(f"{SVG}circle"))


def circles(root: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in root.iter(f"{SVG}circle")]


def inside(root: ElementTree.Element) -> bool:
    """Whether every point, bar and rule lies on the canvas."""
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    across = [float(mark.attrib[key]) for mark in root.iter() for key in ("x1", "x2", "cx") if key in mark.attrib]
    down = [float(mark.attrib[key]) for mark in root.iter() for key in ("y1", "y2", "cy") if key in mark.attrib]
    return all(0 <= x <= width for x in across) and all(0 <= y <= height for y in down)


@unhurried
@given(answers())
def test_every_reliability_curve_can_be_drawn(data: tuple[Floats, Bools]) -> None:
    curve = metrics.reliability(*data)
    root = parsed(figures.reliability_svg(curve))
    assert len(circles(root)) == np.count_nonzero(curve.count)
    assert inside(root)


@unhurried
@given(answers(), st.none() | st.floats(0, 1))
def test_every_risk_coverage_curve_can_be_drawn(data: tuple[Floats, Bools], threshold: float | None) -> None:
    root = parsed(figures.risk_coverage_svg(metrics.risk_coverage(*data), threshold))
    accepts = threshold is not None and bool((data[0] >= threshold).any())
    assert marks(root) == int(accepts)


@unhurried
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=40))
def test_every_line_can_be_drawn(rows: list[tuple[float, float]]) -> None:
    x, y = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    root = parsed(figures.lines_svg([Line("a", x, y, y - 1, y + 1)], title="t", x_label="x", y_label="y"))
    assert inside(root)


def test_a_figure_tells_a_screen_reader_what_it_is() -> None:
    root = parsed(figures.lines_svg([Line("a", X, Y)], title="Brier", x_label="queries", y_label="score"))
    assert root.attrib["role"] == "img"
    assert [child.tag for child in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert root[0].text == "Brier"
    assert all(label in str(root[1].text) for label in ("score", "queries", "a"))


def test_words_cannot_break_out_of_a_figure() -> None:
    evil = '</text><script>alert(1)</script>&\x00"'
    svg = figures.lines_svg([Line(evil, X, Y), Line("b", X, Y)], title=evil, x_label=evil, y_label=evil)
    root = parsed(svg)
    assert sum('<script>alert(1)</script>& "' in text for text in words(root)) >= 3
    assert not list(root.iter(f"{SVG}script"))


def test_points_of_a_calibrated_confidence_lie_on_the_diagonal() -> None:
    confidence = np.repeat([0.2, 0.5, 0.8], 10)
    correct = np.concatenate([np.arange(10) < right for right in (2, 5, 8)])
    root = parsed(figures.reliability_svg(metrics.reliability(confidence, correct)))
    diagonal = next(rule.attrib for rule in root.iter(f"{SVG}line") if rule.attrib.get("stroke-dasharray") == "4 4")
    x1, y1, x2, y2 = (float(diagonal[key]) for key in ("x1", "y1", "x2", "y2"))
    for (x, y), share in zip(circles(root), (0.2, 0.5, 0.8), strict=True):
        assert x == pytest.approx(x1 + share * (x2 - x1), abs=0.11)
        assert y == pytest.approx(y1 + share * (y2 - y1), abs=0.11)
    assert any(text.startswith("30 pictures") and "0.0 points" in text for text in words(root))


def test_a_bin_tells_its_numbers_when_pointed_at() -> None:
    confidence, correct = np.full(10, 0.9), np.arange(10) < 8
    svg = figures.reliability_svg(metrics.reliability(confidence, correct))
    assert re.search(r"90\.0 %.*80\.0 % \(49\.0 to 94\.3\), 10 pictures", svg)


def test_a_threshold_says_what_it_leads_to() -> None:
    confidence, correct = np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, True, False, False])
    curve = metrics.risk_coverage(confidence, correct)
    root = parsed(figures.risk_coverage_svg(curve, threshold=0.5))
    assert any(all(figure in text for figure in ("0.500", "75.0 %", "33.3 %")) for text in words(root))
    root = parsed(figures.risk_coverage_svg(curve, threshold=0.95))
    assert any("0.950" in text for text in words(root))
    assert not marks(root)


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    x = np.linspace(0, 1, 50_000)
    svg = figures.lines_svg([Line("a", x, x)], title="t", x_label="x", y_label="y")
    points = next(parsed(svg).iter(f"{SVG}polyline")).attrib["points"].split()
    assert len(points) <= 240
    whole = figures.lines_svg([Line("a", x[[0, -1]], x[[0, -1]])], title="t", x_label="x", y_label="y")
    ends = next(parsed(whole).iter(f"{SVG}polyline")).attrib["points"].split()
    assert [points[0], points[-1]] == ends


def test_axes_have_few_round_ticks() -> None:
    lines = [Line("a", np.array([0.0, 17.0]), np.array([0.1205, 0.171]))]
    shown = words(parsed(figures.lines_svg(lines, title="t", x_label="x", y_label="y")))
    assert [word for word in shown if re.fullmatch(r"0\.\d+", word)] == [f"0.{i}" for i in range(12, 19)]
    assert [word for word in shown if re.fullmatch(r"\d+", word)] == ["0", "5", "10", "15"]


def test_given_ranges_hold_and_no_tick_lies_outside_them() -> None:
    svg = figures.lines_svg(
        [Line("a", X, Y)], title="t", x_label="x", y_label="y", x_range=(1.5, 3.5), y_range=(0.0, 0.25)
    )
    assert [word for word in words(parsed(svg)) if re.match(r"[\d−]", word)] == [
        *("0.00", "0.05", "0.10", "0.15", "0.20", "0.25"),
        *("1.5", "2.0", "2.5", "3.0", "3.5"),
    ]


def test_several_lines_have_a_legend_and_differ_in_more_than_colour() -> None:
    lines = [Line(name, X, Y + i) for i, name in enumerate("abcdef")]
    root = parsed(figures.lines_svg(lines, title="t", x_label="x", y_label="y"))
    assert set("abcdef") <= set(words(root))
    assert len({mark.attrib["stroke-dasharray"] for mark in root.iter(f"{SVG}polyline")}) == 6


def test_a_band_is_drawn_only_where_there_is_one() -> None:
    with_band = figures.lines_svg([Line("a", X, Y, Y - 0.1, Y + 0.1)], title="t", x_label="x", y_label="y")
    without = figures.lines_svg([Line("a", X, Y)], title="t", x_label="x", y_label="y")
    assert with_band.count("<polygon") == 1
    assert "<polygon" not in without


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [Line("a", X, Y)] * 7,
        [Line("a", X, Y[:2])],
        [Line("a", X[:0], Y[:0])],
        [Line("a", X, Y * np.nan)],
    ],
)
def test_lines_that_cannot_be_drawn_are_refused(lines: list[Line]) -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        figures.lines_svg(lines, title="t", x_label="x", y_label="y")


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        figures.lines_svg([Line("a", X, Y)], title="t", x_label="x", y_label="y", y_range=(1, 0))


def test_a_threshold_is_never_rounded_down() -> None:
    for threshold in np.random.default_rng(0).random(500) ** 0.01:
        assert float(upward(float(threshold))) >= threshold
        assert float(upward(float(threshold))) < 1
    assert upward(0.87) == "0.870"
    assert upward(0.99996) == "0.999960"


# Several methods in one figure ---------------------------------------------------------------------------------------


@unhurried
@given(answers(), answers())
def test_the_curves_of_several_methods_are_one_figure(one: tuple[Floats, Bools], other: tuple[Floats, Bools]) -> None:
    for draw in (plots.reliability, plots.risk_coverage):
        root = parsed(draw({"jury": one, "constant": other}))
        assert {"jury", "constant"} <= set(words(root))
        assert len(list(root.iter(f"{SVG}polyline"))) == (3 if draw is plots.reliability else 2)


def test_a_reliability_curve_has_a_point_for_each_bin_that_holds_answers() -> None:
    root = parsed(plots.reliability({"a": (np.array([0.1, 0.5, 0.51, 1.0]), np.array([False, True, False, True]))}))
    assert len(circles(root)) == 3 + 2  # and the ends of the diagonal


def test_a_reliability_diagram_shows_up_to_five_methods() -> None:
    five = dict.fromkeys("abcde", (X / 10, X > 1))
    assert set("abcde") <= set(words(parsed(plots.reliability(five))))
    with pytest.raises(DataError, check=coded("option-invalid")):
        plots.reliability(five | {"f": five["a"]})
