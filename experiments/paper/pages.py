"""Results as Markdown: printed after a run, and put into docs/reproduction.md between marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from experiments.paper.writing import read
from looktwice.errors import DataError

Rows = Sequence[dict[str, str]]


def results(rows: Rows) -> str:
    """Tables 1 and 2, ours above the paper's."""
    head = ("model", "method", "ballot", "S", "Acc", "ECE", "AUROC", "Brier", "Var", "KS")
    body = []
    for row in rows:
        figures = [_interval(row, metric) for metric in ("acc", "ece", "auroc", "brier")]
        spread = [_pair(row, "var"), _pair(row, "ks")]
        body.append([row["model"], _method(row), row["ballot"], row["S"], *figures, *spread])
        if row.get("paper_model") and row["ballot"] == "base":
            theirs = [_short(row[f"paper_{metric}"]) for metric in ("acc", "ece", "auroc", "brier", "var", "ks")]
            body.append([f"*paper, {row['paper_model']}*", _method(row), "", row["paper_S"], *theirs])
    return _table(head, body)


def transfer(rows: Rows) -> str:
    """Table 3."""
    head = ("closed model", "objective", "ballot", "cumulative", "σ", "a", "Acc", "ECE", "AUROC", "Brier", "KS")
    body = [
        [
            *(row[k] for k in ("model", "objective", "ballot", "cumulative")),
            row["view"].partition(":")[2],
            row["a"],
            *(_interval(row, metric) for metric in ("acc", "ece", "auroc", "brier")),
            _short(row["ks"]),
        ]
        for row in rows
    ]
    return _table(head, body)


def correlations(rows: Rows) -> str:
    """Table 4."""
    head = ("source", "ballot", "data", "statistic", "runs", "ECE", "AUROC", "Brier")
    body = [
        [
            *(row[k] for k in ("source", "ballot", "dataset", "statistic", "runs")),
            *(_correlation(row, metric) for metric in ("ece", "auroc", "brier")),
        ]
        for row in rows
    ]
    return _table(head, body)


def growth(rows: Rows) -> str:
    """Figure 2 as a table: the Brier score at each S, and what the largest S brings over the smallest."""
    steps = sorted({int(row["S"]) for row in rows})
    head = ("model", "transform", "ballot", *(f"S = {step}" for step in steps), "last less first")
    cases = dict.fromkeys((row["model"], row["view"], row["ballot"]) for row in rows)
    body = []
    for case in cases:
        mine = [row for row in rows if (row["model"], row["view"], row["ballot"]) == case]
        last, known = mine[-1], {int(row["S"]): _short(row["brier"], 4) for row in mine}
        ends = f"{float(last['less_first_low']):+.4f} to {float(last['less_first_high']):+.4f}"
        body.append([*case, *(known.get(step, "") for step in steps), f"{float(last['less_first']):+.4f} ({ends})"])
    return _table(head, body)


def claims(rows: Rows) -> str:
    """The claims with their verdicts."""
    head = ("claim", "ballot", "verdict", "cases", "mean gain", "least", "most")
    body = [
        [
            row["claim"],
            row["ballot"],
            f"**{row['verdict']}**",
            f"{row['for']} of {row['of']}",
            f"{float(row['mean_gain']):+.4f}" if row["mean_gain"] else "",
            row["least"],
            row["most"],
        ]
        for row in rows
    ]
    return _table(head, body)


BLOCKS: dict[str, Callable[[Rows], str]] = {
    "table1": results,
    "table2": results,
    "table3": transfer,
    "table4": correlations,
    "figure2": growth,
    "claims": claims,
}


FULL = """# The paper's tables, all rows

Made from experiments/results/*.csv by `python -m experiments page`; [the reproduction](../reproduction.md) shows
the base ballot alone and says how everything was run.
"""


def fill(page: Path, folder: Path, full: Path) -> None:
    """Put a summary of each table between its marks, such as `<!-- table1 -->`, and all rows on `full`."""
    text, parts = page.read_text("utf-8"), [FULL]
    for name, made in BLOCKS.items():
        path = folder / f"{name}.csv"
        found = re.search(rf"<!-- {name} -->.*?<!-- /{name} -->", text, re.DOTALL)
        if found is None:
            raise DataError(f"{str(page)!r} has no marks for {name}; write <!-- {name} --> and <!-- /{name} -->")
        if path.exists():
            rows = read(path)
            before, after = text[: found.start()], text[found.end() :]
            text = f"{before}<!-- {name} -->\n{made(_summary(rows))}\n<!-- /{name} -->{after}"
            parts.append(f"## {name.capitalize()}\n\n{made(rows)}\n")
    page.write_text(text, "utf-8")
    full.write_text("\n".join(parts), "utf-8")


def _summary(rows: Rows) -> Rows:
    """The paper's reading, which judges the picture's own answer, without Probit beside each of its rows."""
    return [row for row in rows if row["ballot"] in ("base", "") and row.get("calibrator") != "probit"]


def _method(row: dict[str, str]) -> str:
    setting = row["view"].partition(":")[2]
    name = row["method"] if row["calibrator"] != "probit" else f"{row['method']}, Probit"
    return f"{name} {setting}" if setting and row["calibrator"] == "gaussian" else name


def _interval(row: dict[str, str], metric: str) -> str:
    value = _short(row[metric])
    low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
    return f"{value} ({_short(low)}–{_short(high)})" if low and high and low != high else value


def _pair(row: dict[str, str], statistic: str) -> str:
    """As it is, and centred in brackets."""
    return f"{_short(row[statistic])} ({_short(row[f'centred_{statistic}'])})" if row[statistic] else ""


def _correlation(row: dict[str, str], metric: str) -> str:
    r, p = row[f"{metric}_r"], row[f"{metric}_p"]
    return f"r = {float(r):.2f}, p = {float(p):.1g}" if r else "–"


def _short(value: str | None, places: int = 3) -> str:
    return f"{float(value):.{places}f}".replace("0.", ".", 1) if value else ""


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))
