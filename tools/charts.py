"""Draws docs/figures/results/*.svg from the CSVs in experiments/results: python tools/charts.py [NAME …]

Each chart is a grid of panels with common rows or lines. A test draws them again and compares; intervals are drawn
where the CSV has columns with the endings _low and _high.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS, FIGURES = ROOT / "experiments" / "results", ROOT / "docs" / "figures" / "results"
INK, FAINT, PALE = "#1f2430", "#6b7280", "#dfe3e8"
COLOURS = ("#2563c9", "#d9622b", "#13806b", "#9a4bb0", "#9c7410", "#6b7280")
WIDTH, LETTER = 1000.0, 7.1
Row = dict[str, str]


@dataclass(frozen=True)
class Dot:
    """A value in a row of a panel, with its interval if there is one."""

    row: str
    value: float
    series: int = 0
    low: float | None = None
    high: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Curve:
    """A line through points of a panel."""

    series: int
    points: Sequence[tuple[float, float]]
    marks_only: bool = False


@dataclass(frozen=True)
class Panel:
    """A small chart: dots in named rows, or lines; `line` is a vertical (dots) or horizontal (lines) mark."""

    title: str
    dots: Sequence[Dot] = ()
    curves: Sequence[Curve] = ()
    line: float | None = None


def read(name: str) -> list[Row]:
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, colour: str = PALE, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{more}/>'


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About this many round values between two limits."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * m for m in (1, 2, 2.5, 5, 10)), key=lambda width: abs(math.log(width / rough)))
    return [round(i * step, 10) + 0.0 for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float, marks: Sequence[float]) -> str:
    step = min((b - a for a, b in pairwise(marks)), default=1.0)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    places += int(abs(step * 10**places - round(step * 10**places)) > 1e-6)
    return f"{value:.{places}f}".replace("-", "−").replace("0.", ".", 1) if abs(value) < 1 and value else f"{value:g}"


def span(values: Iterable[float], share: float = 0.06) -> tuple[float, float]:
    kept = list(values)
    low, high = min(kept), max(kept)
    margin = (high - low or abs(high) or 1.0) * share
    return low - margin, high + margin


def legend(names: Sequence[str], y: float) -> tuple[list[str], float]:
    x, parts = 20.0, []
    for i, name in enumerate(names):
        width = 26 + LETTER * len(name)
        if x + width > WIDTH - 10:
            x, y = 20.0, y + 19
        parts += [f'<circle cx="{x + 5:.1f}" cy="{y - 4:.1f}" r="5" fill="{COLOURS[i]}"/>', text(x + 16, y, name)]
        x += width + 14
    return parts, y + 14


def document(title: str, about: str, height: float, parts: Iterable[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" fill="{INK}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" font-size="13">'
    )
    heads = [f"<title>{escape(title)}</title>", f"<desc>{escape(about)}</desc>"]
    card = f'<rect width="{WIDTH:.0f}" height="{height:.0f}" rx="8" fill="#fff"/>'
    return "\n".join([opening, *heads, card, *parts, "</svg>\n"])


def heading(title: str, names: Sequence[str]) -> tuple[list[str], float]:
    parts = [text(20, 30, title, ' font-size="17" font-weight="600"')]
    if len(names) < 2:
        return parts, 44.0
    marks, y = legend(names, 54)
    return [*parts, *marks], y


def dots(panels: Sequence[Panel], title: str, x_label: str, series: Sequence[str] = (), columns: int = 3) -> str:
    """Rows of dots, labelled at the left of each row of panels; each panel has its own scale."""
    names = list(dict.fromkeys(dot.row for panel in panels for dot in panel.dots))
    parts, top = heading(title, series)
    left, gap, step = 30 + LETTER * max(map(len, names)), 26.0, 20.0
    width = (WIDTH - 20 - left - gap * (columns - 1)) / columns
    tall = step * len(names)
    for at, panel in enumerate(panels):
        row, column = divmod(at, columns)
        x0, y0 = left + column * (width + gap), top + 30 + row * (tall + 78)
        values = [v for d in panel.dots for v in (d.value, d.low, d.high) if v is not None]
        low, high = span([*values, *([] if panel.line is None else [panel.line])])

        def place(value: float, x0: float = x0, low: float = low, high: float = high) -> float:
            return x0 + width * (value - low) / (high - low)

        parts.append(text(x0, y0 - 8, panel.title, ' font-weight="600"'))
        middle = f' text-anchor="middle" fill="{FAINT}" font-size="12"'
        marks = ticks(low, high, max(2, int(width / 62)))
        for mark in marks:
            parts.append(rule(place(mark), y0, place(mark), y0 + tall))
            parts.append(text(place(mark), y0 + tall + 15, number(mark, marks), middle))
        if panel.line is not None:
            parts.append(rule(place(panel.line), y0, place(panel.line), y0 + tall, INK, ' stroke-dasharray="4 3"'))
        for i, name in enumerate(names):
            y = y0 + step * (i + 0.5)
            if column == 0:
                parts.append(text(left - 10, y + 4, name, ' text-anchor="end"'))
            parts += [mark for dot in panel.dots if dot.row == name for mark in _dot(dot, place, y)]
        parts.append(
            text(x0 + width / 2, y0 + tall + 33, x_label, f' text-anchor="middle" fill="{FAINT}" font-size="12"')
        )
    rows = math.ceil(len(panels) / columns)
    about = f"{x_label} of {', '.join(names)}, for {', '.join(panel.title for panel in panels)}."
    return document(title, about, top + 30 + rows * (tall + 78) - 30, parts)


def _dot(dot: Dot, place: Callable[[float], float], y: float) -> Iterable[str]:
    colour = COLOURS[dot.series]
    if dot.low is not None and dot.high is not None:
        yield rule(place(dot.low), y, place(dot.high), y, colour, ' stroke-width="2" stroke-opacity="0.55"')
    look = f'fill="#fff" stroke="{colour}" stroke-width="2"' if dot.hollow else f'fill="{colour}"'
    name = f"<title>{escape(dot.row)}: {dot.value:g}</title>"
    yield f'<circle cx="{place(dot.value):.1f}" cy="{y:.1f}" r="4.6" {look}>{name}</circle>'


def curves(
    panels: Sequence[Panel],
    title: str,
    labels: tuple[str, str],
    series: Sequence[str],
    columns: int = 3,
    x_ticks: Sequence[float] | None = None,
    scale: Callable[[float], float] = float,
) -> str:
    """Lines over a common x axis; each panel has its own scale, and `scale` is log if x grows by factors."""
    parts, top = heading(title, series)
    left, gap, tall = 62.0, 58.0, 190.0
    width = (WIDTH - 20 - left - gap * (columns - 1)) / columns
    for at, panel in enumerate(panels):
        row, column = divmod(at, columns)
        x0, y0 = left + column * (width + gap), top + 34 + row * (tall + 82)
        points = [point for curve in panel.curves for point in curve.points]
        x_low, x_high = span((scale(x) for x, _ in points), 0.04)
        y_low, y_high = span([*(y for _, y in points), *([] if panel.line is None else [panel.line])])

        def place(
            x: float, y: float, x0: float = x0, y0: float = y0, xs: tuple[float, float] = (x_low, x_high),
            ys: tuple[float, float] = (y_low, y_high),
        ) -> tuple[float, float]:  # fmt: skip
            across, up = (scale(x) - xs[0]) / (xs[1] - xs[0]), (y - ys[0]) / (ys[1] - ys[0])
            return x0 + width * across, y0 + tall * (1 - up)

        parts.append(text(x0, y0 - 10, panel.title, ' font-weight="600"'))
        small = f' fill="{FAINT}" font-size="12"'
        marks = ticks(y_low, y_high)
        for mark in marks:
            y = place(points[0][0], mark)[1]
            parts += [
                rule(x0, y, x0 + width, y),
                text(x0 - 6, y + 4, number(mark, marks), f' text-anchor="end"{small}'),
            ]
        shown = [x for x in x_ticks or ticks(x_low, x_high) if x_low <= scale(x) <= x_high]
        for x in shown:
            words = f"{x:,g}" if x_ticks else number(x, shown)
            parts.append(text(place(x, y_low)[0], y0 + tall + 16, words, f' text-anchor="middle"{small}'))
        if panel.line is not None:
            y = place(points[0][0], panel.line)[1]
            parts.append(rule(x0, y, x0 + width, y, INK, ' stroke-dasharray="4 3"'))
        for curve in panel.curves:
            places = [place(x, y) for x, y in curve.points]
            colour = COLOURS[curve.series]
            if not curve.marks_only:
                way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
                parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
        parts.append(text(x0 + width / 2, y0 + tall + 34, labels[0], f' text-anchor="middle"{small}'))
    rows = math.ceil(len(panels) / columns)
    about = f"{labels[1]} against {labels[0]}: {', '.join(series)}; for {', '.join(p.title for p in panels)}."
    return document(f"{title}", about, top + 34 + rows * (tall + 82) - 30, parts)


def values(rows: Iterable[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def dot(row: Row, name: str, column: str, series: int = 0, hollow: bool = False) -> Dot:
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    return Dot(name, float(row[column]), series, float(low) if low else None, float(high) if high else None, hollow)


BRIER = "Brier score (lower is better)"
HIDDEN = ("softmax, temperature", "mean logits, temperature")


def baselines() -> str:
    """All methods on the labels from the same nine queries; hollow dots use information that a closed classifier does
    not return."""
    rows = read("baselines")

    def place(row: Row) -> Dot:
        hidden = any(name in row["method"] for name in HIDDEN)
        return dot(row, row["method"], "brier", 0 if row["method"] == "jury" else 5, hidden)

    panels = [
        Panel(model, [place(row) for row in rows if row["model"] == model and float(row["brier"]) > 0])
        for model in values(rows, "model")
    ]
    return dots(panels, "Nine labels, many ways to use them", BRIER)


def headline() -> str:
    """The README's figure: nine labels compared with the hidden softmax of a single query."""
    rows = read("baselines")
    shown = {
        "vote counts, one temperature": ("vote shares, temperature-scaled, 9 queries", 5),
        "jury": ("looktwice, 9 queries", 0),
        "softmax, temperature": ("hidden softmax, temperature-scaled, 1 query", 1),
    }
    panels = [
        Panel(
            model,
            [
                dot(row, shown[row["method"]][0], "brier", shown[row["method"]][1], row["method"] == HIDDEN[0])
                for row in rows
                if row["model"] == model and row["method"] in shown
            ],
        )
        for model in values(rows, "model")
    ]
    return dots(panels, "Nine labels beside the softmax that a closed classifier hides", BRIER)


def scores() -> str:
    rows = read("scores")
    names = {"label": "label", "score": "label and score", "top five": "five labels with scores"}
    names["white box"] = "all logits (hidden)"
    panels = [
        Panel(
            model,
            curves=[
                Curve(
                    i,
                    [
                        (1 + float(row["queries"].split("+")[1]), float(row["brier"]))
                        for row in rows
                        if row["model"] == model and row["answers"] == kind
                    ],
                )
                for i, kind in enumerate(names)
            ],
        )
        for model in values(rows, "model")
    ]
    return curves(
        panels, "Brier score against queries, by what the API returns", ("queries", "Brier score"),
        list(names.values()), x_ticks=(1, 2, 3, 5, 9), scale=math.log,
    )  # fmt: skip


def cascades() -> str:
    """Accuracy against price: each way of using several classifiers, at each price limit."""
    rows = [row for row in read("cascades") if row["set"] in ("ArtDL", "ICONCLASS", "ferplus, two")]
    ways = ("ours", "best single", "in order of price", "agreement", "FrugalML-like", "random escalation")
    panels = []
    for name in values(rows, "set"):
        lines = []
        for i, way in enumerate(ways):
            points = {
                (float(r["price"]), float(r["accuracy"])) for r in rows if r["set"] == name and r["method"] == way
            }
            lines.append(Curve(i, sorted(points)))
        panels.append(Panel(name, curves=[line for line in lines if line.points]))
    return curves(
        panels, "Accuracy against the mean price of a picture", ("price of a picture", "accuracy"), ways,
        x_ticks=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20), scale=math.log,
    )  # fmt: skip


def sets() -> str:
    rows = read("sets")
    panels = [
        Panel(model, [Dot(row["sets"], float(row["coverage"]), 5 * ("MAPIE" in row["sets"]))
                      for row in rows if row["model"] == model], line=0.9)
        for model in values(rows, "model")
    ]  # fmt: skip
    return dots(panels, "Sets that should contain the truth in 90 % of the cases", "share that do")


def set_sizes() -> str:
    rows = [row for row in read("sets") if "CIFAR-10" not in row["model"] or "CIFAR-100" in row["model"]]
    panels = [
        Panel(model, [Dot(row["sets"], math.log10(float(row[column])), i, hollow=bool(i))
                      for i, column in enumerate(("labels", "classes")) for row in rows if row["model"] == model])
        for model in values(rows, "model")
    ]  # fmt: skip
    return dots(
        panels, "How large the sets are", "log₁₀ of the number: 1 is ten, 2 is a hundred",
        ("labels listed", "classes that the set stands for (“something else” counted)"),
    )  # fmt: skip


def guarantees() -> str:
    rows = read("guarantees")
    panels = []
    for model in values(rows, "model"):
        made = [row for row in rows if row["model"] == model and row["seen"]]
        seen = [Dot(f"at most {row['allowed']}", 100 * float(row["seen"]), 0) for row in made]
        allowed = [Dot(f"at most {row['allowed']}", float(row["allowed"].split()[0]), 1, hollow=True) for row in made]
        panels.append(Panel(model, [*allowed, *seen]))
    return dots(panels, "Wrong among the accepted, mean of the splits that made a guarantee", "percent",
                ("seen", "allowed"))  # fmt: skip


def familiarity_alarms() -> str:
    rows = read("familiarity_alarms")
    panels = [
        Panel(f"by {how}, at {100 * float(rate):g} %",
              [Dot(row["pictures"], 100 * float(row["share"]), 0, 100 * (float(row["share"]) - 2 * float(row["error"])),
                   100 * (float(row["share"]) + 2 * float(row["error"])))
               for row in rows if row["by"] == how and row["rate"] == rate], line=100 * float(rate))
        for rate in values(rows, "rate") for how in values(rows, "by")
    ]  # fmt: skip
    return dots(panels, "False alarms among new pictures of the same kind, over 100 splits", "percent")


def familiarity_detected() -> str:
    rows = read("familiarity_detected")
    panels = [
        Panel(f"profile of {profile}",
              [Dot(row["pictures"].removeprefix("photos: "), 100 * float(row[column]), i, hollow=bool(i))
               for i, column in ((1, "plain"), (0, "detected")) for row in rows if row["profile"] == profile])
        for profile in ("clothes", "photos")
    ]  # fmt: skip
    return dots(panels, "Pictures of another kind that are detected from their pixels", "percent detected",
                ("49 features", "size and mean colour only"), columns=2)  # fmt: skip


def familiarity_calibration() -> str:
    rows = read("familiarity_calibration")
    panels = [
        Panel(kind, [Dot(row["change"], 100 * float(row[column]), i, hollow=i == 2)
                     for i, column in enumerate(("accuracy", "confidence", "unfamiliar"))
                     for row in rows if row["pictures"] == kind])
        for kind in values(rows, "pictures")
    ]  # fmt: skip
    return dots(panels, "Changed pictures: what is right, what is claimed, what is noticed", "percent",
                ("right", "mean confidence", "flagged as unfamiliar"), columns=2)  # fmt: skip


def familiarity_streams() -> str:
    rows = read("familiarity_streams")
    panels = []
    for kind in values(rows, "pictures"):
        mine = [row for row in rows if row["pictures"] == kind]
        alarm = {row["change"]: " (no alarm)" if row["told"] == "True" else "" for row in mine}
        right = [Dot(row["change"] + alarm[row["change"]], 100 * float(row["accuracy"]), 0) for row in mine]
        told = [
            Dot(row["change"] + alarm[row["change"]], 100 * float(row["estimate"]), 1, 100 * float(row["low"]),
                100 * float(row["high"]), hollow=True)
            for row in mine
        ]  # fmt: skip
        panels.append(Panel(kind, [*told, *right]))
    return dots(panels, "Streams of 600 pictures whose second half is changed", "percent right",
                ("right", "estimate without labels, reported only if there is no alarm"), columns=2)  # fmt: skip


EMOTIONS = {
    "own score": "own score, at face value",
    "constant": "constant",
    "isotonic": "isotonic",
    "Platt": "Platt",
    "ours: class and score": "ours: class and score",
    "ours: two second opinions, labels": "ours: three APIs, labels",
    "ours: two second opinions, scores": "ours: three APIs, scores",
}
PLACES = {"ferplus": "FER+", "rafdb": "RAF-DB", "expw": "ExpW", "google": "Google", "facepp": "Face++"}


def closed_emotions() -> str:
    rows = [row for row in read("closed_emotions") if row["method"] in EMOTIONS]
    panels = []
    for subject in values(rows, "subject"):
        name = ", ".join(PLACES.get(part, part.title()) for part in subject.split(", "))
        mine = [row for row in rows if row["subject"] == subject]
        panels.append(
            Panel(name, [dot(r, EMOTIONS[r["method"]], "brier", 0 if "ours" in r["method"] else 5) for r in mine])
        )
    return dots(panels, "Three emotion APIs on three sets of faces", BRIER)


def closed_ranked() -> str:
    rows = read("closed_ranked")
    names = ("constant", "ours: first label", "ours: ranked five")
    panels = [
        Panel(title, [dot(row, row["subject"].removeprefix("GPT-4V, "), column, names.index(row["method"]))
                      for row in rows])
        for column, title in (("brier", BRIER), ("auroc", "AUROC (higher is better)"))
    ]  # fmt: skip
    return dots(panels, "GPT-4V's first label and its ranked five", "score", names, columns=2)


def closed_language() -> str:
    rows = read("closed_language")
    panels = [
        Panel(subject, [dot(row, f"{row['method']}, {float(row['queries']):g} queries", "brier")
                        for row in rows if row["subject"] == subject])
        for subject in values(rows, "subject")
    ]  # fmt: skip
    return dots(panels, "Language models asked again", BRIER, columns=2)


def transfer_jury() -> str:
    rows = read("transfer_jury_summary")
    panels = [
        Panel(name, curves=[
            Curve(i, [(max(20.0, float(row["labels"])), float(row["brier"]))
                      for row in rows if row["to"] == name and row["fit"] == kind])
            for i, kind in enumerate(("prior", "scratch"))
        ])
        for name in values(rows, "to")
    ]  # fmt: skip
    labels = ("labels of the closed model (20 stands for none)", "Brier score")
    names = ("borrowed weights as the prior", "from scratch")
    marks = (20, 50, 200, 1000)
    return curves(panels, "A jury borrowed from ResNet-20", labels, names, x_ticks=marks, scale=math.log)


def transfer_closed() -> str:
    rows = [row for row in read("transfer_closed") if row["ballot"] == "base" and row["objective"] == "brier"]
    panels = [
        Panel(name, [Dot(row["calibrator"], float(row["brier"]), 0) for row in rows if row["model"] == name])
        for name in values(rows, "model")
    ]
    return dots(panels, "The same votes under Φ, F_n of ResNet-20, and Probit", BRIER)


def general(name: str, title: str) -> Callable[[], str]:
    def draw() -> str:
        rows = read(name)
        panels = [
            Panel(model, [dot(row, row["method"], "brier", 0, "softmax" in row["method"])
                          for row in rows if row["model"] == model])
            for model in values(rows, "model")
        ]  # fmt: skip
        return dots(panels, title, BRIER)

    return draw


def audits() -> str:
    """The number of stratified labels that give an interval as narrow as 400 random ones."""
    rows = [row for row in read("labelling") if row["method"] == "strata" and row["labels"] == "400"]
    names = {"resnet8": "ResNet-8", "resnet20": "ResNet-20", "resnet56": "ResNet-56", "mobilenetv2": "MobileNetV2"}
    levels = {row["threshold"]: f"confidence ≥ {float(row['threshold']):g}" for row in rows}
    levels = {key: words if float(key) else "all verdicts" for key, words in levels.items()}
    panels = [
        Panel(title, [Dot(levels[row["threshold"]], 100 * float(row[column]), i, hollow=bool(i))
                      for i, column in enumerate(("ratio", "bound")) for row in rows if row["model"] == model])
        for model, title in names.items()
    ]  # fmt: skip
    return dots(panels, "Labels that an audit needs, in percent of random ones", "percent",
                ("measured", "bound if the confidences were right"), columns=2)  # fmt: skip


def ruled_out() -> str:
    rows = [row for row in read("ruled_out") if row["labels"] == "500"]
    kinds = {"skip": "skipping the picture", "other": "a label “something else”", "named": "naming the truth"}
    panels = [
        Panel(f"compared with {words}",
              [Dot(row["model"], float(row[f"gain_{key}"]), 0, float(row[f"low_{key}"]), float(row[f"high_{key}"]))
               for row in rows], line=0.0)
        for key, words in kinds.items()
    ]  # fmt: skip
    return dots(panels, "What “it is not this” gains where the truth cannot be named", "fall of the Brier score")


CHARTS: Mapping[str, Callable[[], str]] = {
    "headline": headline,
    "baselines": baselines,
    "scores": scores,
    "cascades": cascades,
    "sets": sets,
    "set-sizes": set_sizes,
    "guarantees": guarantees,
    "familiarity-alarms": familiarity_alarms,
    "familiarity-detected": familiarity_detected,
    "familiarity-calibration": familiarity_calibration,
    "familiarity-streams": familiarity_streams,
    "closed-emotions": closed_emotions,
    "closed-ranked": closed_ranked,
    "closed-language": closed_language,
    "transfer-jury": transfer_jury,
    "transfer-closed": transfer_closed,
    "general": general("general", "Eight views grown on other models"),
    "general-chosen": general("general_chosen", "Views chosen on the labelled pictures"),
    "audits": audits,
    "ruled-out": ruled_out,
}


def main(names: Sequence[str]) -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name in names or CHARTS:
        (FIGURES / f"{name}.svg").write_text(CHARTS[name](), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
