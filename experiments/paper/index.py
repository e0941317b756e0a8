"""Every equation, table, figure and claim of the paper in one table: where it is, its number, ours, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from experiments.paper import claims, published

Line = dict[str, str]
Rows = Sequence[Line]
METRICS = ("acc", "ece", "auroc", "brier", "var", "ks")
MAIN = "ResNet56"
"""The network that is most likely the paper's own."""
GAINS = {
    ("CIFAR-100", "naive"): {"ece": "~.30", "auroc": "~.32", "brier": ".10"},
    ("CIFAR-10", "naive"): {"ece": "~.03", "auroc": "~.40", "brier": ".01"},
    ("Imagenet", "naive"): {"ece": "~.03", "auroc": "~.20", "brier": "~.05"},
    ("", "Gaussian"): {"ece": "~.15", "auroc": "~.30"},
}
"""The largest gains that the paper's text names: on which data, over what, by which metric."""


class Entry(NamedTuple):
    """One line of the index."""

    what: str
    code: str
    paper: str
    ours: str
    verdict: str


def entries(found: Mapping[str, Rows]) -> Iterator[Entry]:
    """All lines, in the order of the paper."""
    yield from _equations(found)
    yield from _table1(found["table1"])
    yield from _others(found)
    yield from _figures(found)
    yield from _claims(found["claims"])
    runs = [*found["table1"], *found["table2"]]
    yield from _gains(runs)
    yield from _largest(runs)


def _equations(found: Mapping[str, Rows]) -> Iterator[Entry]:
    def entry(what: str, code: str, verdict: str) -> Entry:
        return Entry(what, code, "", "", verdict)

    rows = found["proposition1"]
    gaps = [float(row["share_less_common"]) for row in rows]
    widths = [float(row["share_less_common_high"]) - float(row["share_less_common_low"]) for row in rows]
    decided = claims.corrected([claims.p_value(*pair) for pair in zip(gaps, widths, strict=True)])
    for row, gap, clear in zip(rows, gaps, decided, strict=True):
        one, common = float(row["share_rms_jacobian"]), float(row["share_rms_common"])
        closer = ("the Jacobian is closer" if gap < 0 else "one a is closer") if clear else "unclear"
        yield Entry(
            f"Eq. 1, Proposition 1: σ_*‖J_h(x)w‖; {row['model']}, {row['view']}",
            "`experiments/paper/jacobian.py`",
            "not measured",
            f"p_A off by {_s(one)} with the Jacobian, {_s(common)} with one a",
            closer,
        )
    yield entry("Eq. 2: softmax of two classes", "`calibration/latent.py`: `read`", "exact; `tests/calibration`")
    yield entry("Eq. 3: Gaussian model", "`calibration/shares.py`: `Gaussian`", "exact; `tests/calibration`")
    yield entry("the rest spread evenly over the other classes", "`calibration/distribution.py`", "exact")
    yield entry("Eq. 4: p_A", "`calibration/votes.py`: `base_tally`", "exact")
    yield entry(
        "Eq. 5, Proposition 2",
        "`calibration/shares.py`: `Transfer` with a = 1",
        "exact; put to the test in docs/transfer.md",
    )
    yield entry("Eq. 6: transfer model, Eq. 5 with an a", "`calibration/shares.py`: `Transfer`", "exact")
    yield entry("Var, KS, F_n", "`calibration/latent.py`: `describe`", "exact; `tests/calibration/test_latent.py`")
    yield entry("naive baseline, p(A) = 1", "`calibration/shares.py`: `Naive`", "exact")
    yield entry("grids of a and of the transforms", "`calibration/shares.py`, `views`: `GRIDS`", "the paper's")
    yield entry(
        "m = 1,000 of 10,000 (CIFAR), 5,000 of 50,000 (Imagenet); S = 50, 10, 2",
        "`experiments/paper/subjects.py`: `scale`",
        "the paper's; photos: a tenth of the 1,500 at hand",
    )
    yield entry(
        "grid search over a and the setting",
        "`experiments/paper/tables.py`: `Study.settings`",
        "whole grids, two rungs",
    )
    yield entry(
        "ECE, AUROC, Brier", "`calibration/metrics.py`", "15 bins of equal width; the paper does not name a number"
    )


def _table1(rows: Rows) -> Iterator[Entry]:
    mine = [row for row in rows if row["paper_model"] and row["calibrator"] in ("naive", "gaussian")]
    order = [MAIN, *dict.fromkeys(row["model"] for row in mine if row["model"] != MAIN)]
    for model in order:
        for row in mine:
            if row["model"] == model and row["ballot"] == "base":
                known = [m for m in METRICS if row[f"paper_{m}"]]
                yield Entry(
                    f"Table 1, {row['dataset']}, {row['paper_model']}: {row['method']}",
                    f"`table1`: {model}, {row['reading']}",
                    " ".join(_s(float(row[f"paper_{m}"])) for m in known),
                    " ".join(_s(float(row[m])) for m in known if row[m]),
                    _within(row, known),
                )
    yield Entry(
        "Table 1, the other networks",
        "`table1 --data … --model …`",
        "MobileNet and ResNet50 of CIFAR-10, MobileNet and ResNet20 of CIFAR-100",
        "",
        "not at hand",
    )


def _within(row: Line, known: Sequence[str]) -> str:
    """How many of the paper's figures lie within our intervals, and whether the network is another one."""
    ends = [(row[f"paper_{m}"], row[f"{m}_low"], row[f"{m}_high"]) for m in known if row.get(f"{m}_low")]
    ends = [(value, low, high) for value, low, high in ends if low != high]
    inside = sum(float(low) <= float(value) <= float(high) for value, low, high in ends)
    other = "" if row["model"] == MAIN else "another network; "
    return f"{other}{inside} of {len(ends)} within our interval"


def _others(found: Mapping[str, Rows]) -> Iterator[Entry]:
    for row in found["table2"]:
        if row["paper_model"] and row["calibrator"] in ("naive", "gaussian") and row["ballot"] == "base":
            known = [m for m in METRICS if row[f"paper_{m}"]]
            yield Entry(
                f"Table 2, {row['paper_model']}: {row['method']}",
                f"`table2`: {row['model']}, {row['reading']}, {row['tested']} photos",
                " ".join(_s(float(row[f"paper_{m}"])) for m in known),
                " ".join(_s(float(row[m])) for m in known if row[m]),
                _within(row, known),
            )
    yield Entry("Table 2, the other networks", "`table2 --data … --model …`", "ViTB16, ViTL16", "", "not at hand")
    for row in found["table3"]:
        if row["objective"] == "ece" and row["ballot"] == "base":
            known = [m for m in ("acc", "ece", "auroc", "brier") if row[f"paper_{m}"]]
            yield Entry(
                f"Table 3, {row['model']}: {row['cumulative']} of {row['open']}",
                f"`table3`: {row['reading']}, σ = {row['view'].partition(':')[2]}",
                " ".join(_s(float(row[f"paper_{m}"])) for m in (*known, "ks")),
                " ".join(_s(float(row[m])) for m in (*known, "ks")),
                _within(row, known),
            )
    printed = {(r["dataset"], r["statistic"]): r for r in found["table4"] if r["source"] == "paper, printed"}
    for row in found["table4"]:
        same = printed.get((row["dataset"], row["statistic"]))
        if same and row["ballot"] == "base" and row["ece_r"]:
            yield Entry(
                f"Table 4, {row['dataset']}: {row['statistic']} with ECE",
                f"`table4`: {row['reading']}, {row['runs']} runs",
                f"r = {float(same['ece_r']):.2f}, p = {float(same['ece_p']):.1g}",
                f"r = {float(row['ece_r']):.2f}, p = {float(row['ece_p']):.1g}",
                "the same sign" if float(row["ece_r"]) * float(same["ece_r"]) > 0 else "the other sign",
            )


def _figures(found: Mapping[str, Rows]) -> Iterator[Entry]:
    yield Entry("Figure 1: an error that rotations show", "`looktwice look`", "", "", "an example; the report has such")
    ends = {
        (row["model"], row["reading"]): row
        for row in found["figure2"]
        if row["ballot"] == "base" and row["transform"] == "rotation"
    }
    for (model, reading), row in ends.items():
        interval = f"{float(row['less_first_low']):+.4f} to {float(row['less_first_high']):+.4f}"
        yield Entry(
            f"Figure 2: Brier up to S = {row['S']}, rotations",
            f"`figure2`: {model}, {reading}, {row['tested']} pictures",
            "falls; no figures",
            f"{float(row['less_first']):+.4f} ({interval})",
            "falls" if float(row["less_first_high"]) < 0 else "unclear",
        )
    yield Entry("Figure 3: two sources of error", "`illustrations`", "a drawing", "real pictures", "seen")
    yield Entry("Figure 4: cumulatives", "`figure4`", "a drawing", "docs/figures", "see Var and KS above")
    yield Entry("Figures 5, 6: Var and KS", "`illustrations`", "a drawing", "real pictures", "drawn")


def _claims(rows: Rows) -> Iterator[Entry]:
    for claim in dict.fromkeys(row["claim"] for row in rows):
        mine = [row for row in rows if row["claim"] == claim]
        paper = next((row for row in mine if row["reading"] == "paper"), None)
        judged = [row for row in mine if row["ballot"] == "base" and row["verdict"] != "not judged"]
        cases = "; ".join(f"{r['reading']} {r['for']}–{r['against']}–{r['unclear']}" for r in judged)
        marks = "; ".join(f"{r['verdict']} ({r['reading']})" for r in judged)
        printed = f"{paper['for']}–{paper['against']}–{paper['unclear']}" if paper else ""
        yield Entry(f"claim: {claim}", "`claims`", printed, cases, marks or "not judged")


def _gains(rows: Rows) -> Iterator[Entry]:
    """The gains that the paper's text names, each beside the largest over our runs."""
    naive = {row["model"]: row for row in rows if row["method"] == "Naive"}
    runs = [row for row in rows if row["calibrator"] == "gaussian" and row["ballot"] == "base" and row["paper_model"]]
    noise = {(row["model"], row["reading"]): row for row in runs if row["method"] == "Gaussian"}
    for (dataset, rival), gains in GAINS.items():
        mine = [row for row in runs if dataset in ("", row["dataset"])]
        pairs = [
            (row, naive[row["model"]] if rival == "naive" else noise[row["model"], row["reading"]])
            for row in mine
            if rival == "naive" or (row["method"] != "Gaussian" and (row["model"], row["reading"]) in noise)
        ]
        for metric, printed in gains.items() if pairs else ():
            sign = 1 if metric == "auroc" else -1
            gain, row = max(
                ((sign * (float(one[metric]) - float(other[metric])), one) for one, other in pairs),
                key=lambda pair: pair[0],
            )
            where = f"{row['model']}, {row['method'].lower()}, {row['reading']}"
            what = f"claim: {metric} better than {rival} by up to{', ' + dataset if dataset else ''}"
            yield Entry(what, "`table1`, `table2`", printed, _s(gain), f"the largest: {where}")


def _largest(rows: Rows) -> Iterator[Entry]:
    """Figure 4's claim that Gaussian noise varies most between pictures and is least Gaussian in latent space."""
    runs = [row for row in rows if row["ballot"] == "base" and row.get("var") and row["paper_model"]]
    printed = [
        {"model": f"{line.dataset} {line.model}", "method": line.method, "reading": "", **_texts(line)}
        for line in published.lines()
        if line.table < 3 and line.method != "Naive"
    ]
    for statistic in ("var", "ks"):
        ours = "; ".join(
            f"{_most(statistic, [row for row in runs if row['reading'] == reading])} ({reading})"
            for reading in dict.fromkeys(row["reading"] for row in runs)
        )
        what = f"claim: Gaussian views have the largest {statistic.title() if statistic == 'var' else 'KS'}"
        yield Entry(what, "`table1`, `table2`", _most(statistic, printed), ours, "counted; no interval")


def _texts(line: published.Line) -> Line:
    return {name: str(value) for name, value in line.values.items()}


def _most(statistic: str, runs: Rows) -> str:
    """On how many models the statistic of Gaussian views is larger than that of every other transform."""
    models = list(dict.fromkeys(row["model"] for row in runs if row["method"] == "Gaussian"))
    values = [{row["method"]: float(row[statistic]) for row in runs if row["model"] == model} for model in models]
    found = sum(each["Gaussian"] > max(v for m, v in each.items() if m != "Gaussian") for each in values)
    return f"{found} of {len(models)} models"


def _s(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)
