"""Results as Markdown: printed after a run, and in docs a screen of each, with all rows on pages of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.paper.index import entries
from experiments.writing import fill as fill_marks, markdown, read

Line = dict[str, str]
Rows = Sequence[Line]
METRICS = ("acc", "ece", "auroc", "brier", "var", "ks")


# Tables 1 and 2 ------------------------------------------------------------------------------------------------------


def results(rows: Rows) -> str:
    """Tables 1 and 2: the paper's row, then ours, each with its interval and how far it is from the paper's."""
    head = ("model", "method", "reading", "ballot", "S", "tested", "Acc", "ECE", "AUROC", "Brier", "Var", "KS")
    body, shown = [], set[tuple[str, str]]()
    for row in rows:
        method = row["method"].partition(",")[0]
        if row.get("paper_model") and (row["model"], method) not in shown:
            shown.add((row["model"], method))
            theirs = [_short(row[f"paper_{metric}"]) for metric in METRICS]
            body.append([f"*paper, {row['paper_model']}*", f"*{method}*", "", "", row["paper_S"], "", *theirs])
        about = [row[name] for name in ("reading", "ballot", "S", "tested")]
        body.append([row["model"], _method(row), *about, *(_beside(row, metric) for metric in METRICS)])
    return markdown(head, body)


def selection(rows: Rows) -> str:
    """How far each rule is from the paper on average over the transforms of each model."""
    head = ("our model", "the paper's", "reading", "ballot", "rule", "Acc", "ECE", "AUROC", "Brier", "mean of the four")
    names = ("model", "paper_model", "reading", "ballot", "rule")
    mine = [row for row in rows if row["paper_model"]]
    body = []
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in mine):
        part = [row for row in mine if tuple(row[name] for name in names) == key]
        gaps = [[abs(float(row[m]) - float(row[f"paper_{m}"])) for row in part if row[m]] for m in METRICS[:4]]
        whole = [float(row["distance"]) for row in part]
        body.append([*key, *(f"{sum(x) / len(x):.3f}" for x in (*gaps, whole))])
    return markdown(head, body)


def _papers_own(rows: Rows) -> str:
    """The rules on the paper's own network, by the ballots on which they differ most."""
    return selection([row for row in rows if row["dataset"] == "CIFAR-100" and row["ballot"] != "argmax"])


def _cifar100(rows: Rows) -> str:
    """The paper's main dataset by the base ballot."""
    mine = [row for row in rows if row["dataset"] == "CIFAR-100" and row["ballot"] == "base"]
    ranked = sorted(mine, key=lambda row: list(dict.fromkeys(r["method"] for r in mine)).index(row["method"]))
    return results([row for row in ranked if row["calibrator"] != "probit"] + _probit(ranked))


def _probit(rows: Rows) -> list[Line]:
    """The transform whose votes Probit turns into the best Brier score."""
    found = [row for row in rows if row["calibrator"] == "probit"]
    return [min(found, key=lambda row: float(row["brier"]))] if found else []


def _photos(rows: Rows) -> str:
    """The base ballot without Probit and the raw softmax."""
    return results(
        [r for r in rows if r["ballot"] == "base" and r["calibrator"] != "probit" and r["method"] != "Softmax"]
    )


def ballots(rows: Rows) -> str:
    """How far each reading and ballot is from the paper on average over the transforms of each of its models."""
    head = ("our model", "the paper's", "reading", "ballot", "Acc", "ECE", "AUROC", "Brier", "Var", "KS")
    mine = [row for row in rows if row["calibrator"] == "gaussian" and row["paper_model"]]
    keys = dict.fromkeys(tuple(row[k] for k in ("model", "paper_model", "reading", "ballot")) for row in mine)
    body = []
    for key in keys:
        part = [row for row in mine if tuple(row[k] for k in ("model", "paper_model", "reading", "ballot")) == key]
        gaps = [[abs(float(r[m]) - float(r[f"paper_{m}"])) for r in part if r[m]] for m in METRICS]
        body.append([*key, *(_short(str(sum(gap) / len(gap))) if gap else "" for gap in gaps)])
    return markdown(head, body)


def _method(row: Line) -> str:
    setting = _setting(row)
    name = row["method"] if row["calibrator"] != "probit" else f"{row['method']}, Probit"
    return f"{name} {setting}" if setting and row["calibrator"] == "gaussian" else name


def _setting(row: Line) -> str:
    """The numbers of a view, without the border and the interpolation that its reading implies."""
    return re.sub(r",?(border|interpolation)=\w+", "", row["view"].partition(":")[2])


def _beside(row: Line, metric: str) -> str:
    """Ours with its interval, and less the paper's where it has one."""
    theirs = row.get(f"paper_{metric}")
    value = _pair(row, metric) if metric in ("var", "ks") else _interval(row, metric)
    return f"{value} {_signed(float(row[metric]) - float(theirs))}" if theirs and row[metric] else value


# Tables 3 and 4 ------------------------------------------------------------------------------------------------------


def transfer(rows: Rows) -> str:
    """Table 3."""
    head = ("open", "closed", "reading", "objective", "ballot", "cumulative", "σ", "a", "tested")
    return markdown(
        (*head, "Acc", "ECE", "AUROC", "Brier", "KS", "ECE less that of Φ"),
        [
            [
                *(row[k] for k in ("open", "model", "reading", "objective", "ballot", "cumulative")),
                row["view"].partition(":")[2],
                row["a"],
                row["tested"],
                *(_beside(row, metric) for metric in ("acc", "ece", "auroc", "brier")),
                _short(row["ks"])
                + (f" {_signed(float(row['ks']) - float(row['paper_ks']))}" if row["paper_ks"] else ""),
                _gap(row, "ece_less_phi"),
            ]
            for row in rows
        ],
    )


def _by_ece(rows: Rows) -> str:
    """The paper's objective, from the first open model."""
    sources = list(dict.fromkeys(row["open"] for row in rows))
    return transfer([row for row in rows if row["objective"] == "ece" and row["open"] == sources[0]])


def correlations(rows: Rows) -> str:
    """Table 4."""
    head = ("source", "reading", "ballot", "data", "statistic", "runs", "ECE", "AUROC", "Brier")
    body = [
        [
            *(row[k] for k in ("source", "reading", "ballot", "dataset", "statistic", "runs")),
            *(_correlation(row, metric) for metric in ("ece", "auroc", "brier")),
        ]
        for row in rows
    ]
    return markdown(head, body)


def _together(rows: Rows) -> str:
    """All datasets and CIFAR-100, the base ballot, where there are runs enough."""
    return correlations(
        [
            row
            for row in rows
            if row["dataset"] in ("All datasets", "CIFAR-100")
            and row["ballot"] in ("base", "")
            and (row["ece_r"] or row["statistic"] in ("var", "ks"))
            and row["reading"] != "torchvision"
        ]
    )


def _correlation(row: Line, metric: str) -> str:
    r, p = row[f"{metric}_r"], row[f"{metric}_p"]
    return f"r = {float(r):.2f}, p = {float(p):.1g}" if r else "–"


# Figure 2, Proposition 1, the prescription, the claims ---------------------------------------------------------------


def growth(rows: Rows) -> str:
    """Figure 2 as a table: the Brier score at each S, and what the largest S brings over the smallest."""
    steps = sorted({int(row["S"]) for row in rows})
    about = ("model", "reading", "transform", "ballot", "tested")
    body = []
    for case in dict.fromkeys(tuple(row[name] for name in about) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in about) == case]
        known = {int(row["S"]): _short(row["brier"], 4) for row in mine}
        model, reading, transform, ballot, tested = case
        shown = [model, reading, f"{transform} {_setting(mine[0])}", ballot, tested]
        body.append([*shown, *(known.get(step, "") for step in steps), _gap(mine[-1], "less_first", 4)])
    return markdown((*about, *(f"S = {step}" for step in steps), "last less first"), body)


def _grown(rows: Rows) -> str:
    """The base ballot."""
    return growth([row for row in rows if row["ballot"] == "base"])


def proposition1(rows: Rows) -> str:
    """Equation 1 with each picture's own slope, beside one a for all."""
    columns = {
        "σ‖Jw‖": "scale",
        "deviation": "deviation",
        "ρ": "scale_deviation_spearman",
        "a": "a",
        "p_A off, Jacobian": "share_rms_jacobian",
        "common a": "share_rms_common",
        "softmax off, Jacobian": "softmax_rms_jacobian",
        "common a ": "softmax_rms_common",
        "Var": "var",
        "Var ÷ σ‖Jw‖": "var_scaled",
        "chance": "var_chance",
        "Var, centred": "var_centred",
        "centred ÷ σ‖Jw‖": "var_centred_scaled",
        "chance ": "var_centred_chance",
    }
    head = ("model", "reading", "σ", *columns)
    body = [
        [row["model"], row["reading"], row["view"].partition(":")[2], *(_short(row[name]) for name in columns.values())]
        for row in rows
    ]
    return markdown(head, body)


def prescription(rows: Rows) -> str:
    """What an open model's transform, noise and a are worth on a closed one, in labels of its own."""
    head = ("closed", "calibrator", "labels", "ECE", "AUROC", "Brier", "Brier less the open model's")
    body = []
    for row in rows:
        ece = _short(row["ece"]) + (f" ± {_short(row['ece_sd'])}" if row["ece_sd"] else "")
        figures = [ece, _short(row["auroc"]), _short(row["brier"], 4)]
        apart = ""
        if row["brier_less_open"]:
            low, high = float(row["less_open_low"]), float(row["less_open_high"])
            apart = f"{float(row['brier_less_open']):+.4f} ({low:+.4f} to {high:+.4f})"
        body.append([row["closed"], row["calibrator"], row["labels"], *figures, apart])
    return markdown(head, body)


def claims(rows: Rows) -> str:
    """The claims with their verdicts."""
    head = ("claim", "reading", "ballot", "verdict", "for", "against", "unclear", "mean gain", "least", "most")
    body = [
        [
            *(row[k] for k in ("claim", "reading", "ballot")),
            f"**{row['verdict']}**",
            *(row[k] for k in ("for", "against", "unclear")),
            f"{float(row['mean_gain']):+.4f}" if row["mean_gain"] else "",
            row["least"],
            row["most"],
        ]
        for row in rows
    ]
    return markdown(head, body)


def _verdicts(rows: Rows) -> str:
    """A line a claim: its verdict in each reading and ballot, and what the paper's own tables say."""
    keys = list(dict.fromkeys((row["reading"], row["ballot"]) for row in rows))
    known = {(row["claim"], row["reading"], row["ballot"]): row for row in rows}
    head = ("claim", *(", ".join(filter(None, key)) for key in keys))
    body = []
    for claim in dict.fromkeys(row["claim"] for row in rows):
        cells = []
        for key in keys:
            row = known.get((claim, *key))
            if row is None or row["verdict"] == "not judged":
                cells.append("")
                continue
            counts = f"{row['for']}–{row['against']}–{row['unclear']}"
            cells.append(counts if key[0] == "paper" else f"{row['verdict']} {counts}")
        body.append([claim, *cells])
    return markdown(head, body)


# The pages -----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """One table of docs."""

    page: str
    """The page that has its marks."""
    screen: Callable[[Rows], str]
    title: str = ""
    whole: Callable[[Rows], str] | None = None
    """All rows, on a page of their own; None where the screen has them all."""
    source: str = ""
    """The CSV, if it is not named as the marks are."""


PAGE, ADVICE, INDEX = "reproduction.md", "prescription.md", "paper.md"
BLOCKS: dict[str, Block] = {
    "table1": Block(PAGE, _cifar100, "Table 1, all rows", results),
    "ballots": Block(PAGE, ballots, source="table1"),
    "selection": Block(PAGE, _papers_own),
    "table2": Block(PAGE, _photos, "Table 2, all rows", results),
    "table3": Block(PAGE, _by_ece, "Table 3, all rows", transfer),
    "table4": Block(PAGE, _together, "Table 4, all rows", correlations),
    "figure2": Block(PAGE, _grown, "Figure 2, all rows", growth),
    "proposition1": Block(PAGE, proposition1),
    "claims": Block(PAGE, _verdicts, "The paper's claims, all comparisons", claims),
    "prescription": Block(ADVICE, prescription),
}


def fill(docs: Path, folder: Path) -> None:
    """Put a screen of each table between its marks, such as `<!-- table1 -->`, and all rows on a page of their own."""
    _fill_index(docs / INDEX, folder)
    for name, block in BLOCKS.items():
        path = folder / f"{block.source or name}.csv"
        if not path.exists():
            continue
        rows = read(path)
        fill_marks(docs / block.page, name, block.screen(rows))
        if block.whole:
            made = f"Made from experiments/results/{path.name} by `python -m experiments page`."
            whole = f"# {block.title}\n\n{made} [The reproduction](../{block.page}) says how it was run.\n"
            (docs / "tables" / f"paper-{name}.md").write_text(f"{whole}\n{block.whole(rows)}\n", "utf-8")


def _fill_index(page: Path, folder: Path) -> None:
    names = ("table1", "table2", "table3", "table4", "figure2", "proposition1", "claims")
    found = {name: read(folder / f"{name}.csv") if (folder / f"{name}.csv").exists() else [] for name in names}
    made = markdown(("what", "where", "paper", "ours", "verdict"), entries(found))
    fill_marks(page, "index", made)


def _interval(row: Line, metric: str) -> str:
    value = _short(row[metric])
    low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
    return f"{value} ({_short(low)}–{_short(high)})" if low and high and low != high else value


def _pair(row: Line, statistic: str) -> str:
    """As it is, and centred in brackets."""
    return f"{_short(row[statistic])} ({_short(row[f'centred_{statistic}'])})" if row[statistic] else ""


def _gap(row: Line, name: str, places: int = 3) -> str:
    if not row[name]:
        return ""
    low, high = (_signed(float(row[f"{name}_{end}"]), places) for end in ("low", "high"))
    return f"{_signed(float(row[name]), places)} ({low} to {high})"


def _signed(value: float, places: int = 3) -> str:
    return f"{value:+.{places}f}".replace("0.", ".", 1).replace("-", "−")


def _short(value: str | None, places: int = 3) -> str:
    return f"{float(value):.{places}f}".replace("0.", ".", 1) if value else ""
