"""Every equation, table, figure and claim of the paper in one table: where it is, its number, ours, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Line = dict[str, str]
Rows = Sequence[Line]
METRICS = ("acc", "ece", "auroc", "brier", "var", "ks")
MAIN = "ResNet56"
"""The network that is most likely the paper's own."""


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
    yield from _sizes(found["table1"])


def _equations(found: Mapping[str, Rows]) -> Iterator[Entry]:
    def entry(what: str, code: str, verdict: str) -> Entry:
        return Entry(what, code, "", "", verdict)

    for row in found["proposition1"]:
        one, common = float(row["share_rms_jacobian"]), float(row["share_rms_common"])
        closer = "the Jacobian" if one < common else "one a for all"
        yield Entry(
            f"Eq. 1, Proposition 1: σ_*‖J_h(x)w‖; {row['model']}, {row['view']}",
            "`experiments/paper/jacobian.py`",
            "not measured",
            f"p_A off by {_s(one)} with the Jacobian, {_s(common)} with one a",
            f"closer: {closer}",
        )
    yield entry("Eq. 2: softmax of two classes", "`transfer/latent.py`: `read`", "exact; `tests/transfer`")
    yield entry("Eq. 3: Gaussian model", "`calibration/paper.py`: `Gaussian`", "exact; `tests/calibration`")
    yield entry("the rest spread evenly over the other classes", "`calibration/distribution.py`", "exact")
    yield entry("Eq. 4: p_A", "`calibration/votes.py`: `base_tally`", "exact")
    yield entry(
        "Eq. 5, Proposition 2", "`transfer/noise.py`: `transferred`", "exact; put to the test in docs/transfer.md"
    )
    yield entry("Eq. 6: transfer model, Eq. 5 with an a", "`calibration/paper.py`: `Transfer`", "exact")
    yield entry("Var, KS, F_n", "`transfer/latent.py`: `describe`", "exact; `tests/transfer/test_latent.py`")
    yield entry("grids of a and of the transforms", "`calibration/paper.py`, `views`: `GRIDS`", "the paper's")


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
        "Table 1, the other networks", "`table1 --data … --model …`", "MobileNet, ResNet20 …", "", "not at hand"
    )


def _within(row: Line, known: Sequence[str]) -> str:
    """How many of the paper's figures lie within our intervals."""
    ends = [(row[f"paper_{m}"], row[f"{m}_low"], row[f"{m}_high"]) for m in known if row.get(f"{m}_low")]
    ends = [(value, low, high) for value, low, high in ends if low != high]
    inside = sum(float(low) <= float(value) <= float(high) for value, low, high in ends)
    return f"{inside} of {len(ends)} within our interval"


def _others(found: Mapping[str, Rows]) -> Iterator[Entry]:
    for row in found["table2"]:
        if row["calibrator"] == "gaussian" and row["ballot"] == "base":
            yield Entry(
                f"Table 2, {row['paper_model']}: {row['method']}",
                f"`table2`: {row['model']}",
                " ".join(_s(float(row[f"paper_{m}"])) for m in METRICS),
                " ".join(_s(float(row[m])) for m in METRICS),
                "another network; 1,125 photos",
            )
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
    steps = {
        row["model"]: row for row in found["figure2"] if row["ballot"] == "base" and row["transform"] == "rotation"
    }
    for model, row in steps.items():
        ends = f"{float(row['less_first_low']):+.4f} to {float(row['less_first_high']):+.4f}"
        yield Entry(
            f"Figure 2: Brier up to S = {row['S']}, rotations",
            f"`figure2`: {model}",
            "falls; no figures",
            f"{float(row['less_first']):+.4f} ({ends})",
            "falls" if float(row["less_first_high"]) < 0 else "unclear",
        )
    yield Entry("Figure 3: two sources of error", "`illustrations`", "a drawing", "real pictures", "seen")
    yield Entry("Figure 4: cumulatives", "`figure4`", "a drawing", "docs/figures", "see Var and KS above")
    yield Entry("Figures 5, 6: Var and KS", "`illustrations`", "a drawing", "real pictures", "drawn")


def _claims(rows: Rows) -> Iterator[Entry]:
    for claim in dict.fromkeys(row["claim"] for row in rows):
        mine = [row for row in rows if row["claim"] == claim]
        paper = next((row for row in mine if row["reading"] == "paper"), None)
        told = [row for row in mine if row["ballot"] == "base" and row["verdict"] != "not judged"]
        cases = "; ".join(f"{r['reading']} {r['for']}–{r['against']}–{r['unclear']}" for r in told)
        marks = "; ".join(f"{r['verdict']} ({r['reading']})" for r in told)
        printed = f"{paper['for']}–{paper['against']}–{paper['unclear']}" if paper else ""
        yield Entry(f"claim: {claim}", "`claims`", printed, cases, marks or "not judged")


def _sizes(rows: Rows) -> Iterator[Entry]:
    """The gains that the paper's introduction names, each the largest over our runs."""
    naive = {row["model"]: row for row in rows if row["method"] == "Naive"}
    runs = [row for row in rows if row["calibrator"] == "gaussian" and row["ballot"] == "base" and row["paper_model"]]
    noise = {(row["model"], row["reading"]): row for row in runs if row["method"] == "Gaussian"}
    natural = [row for row in runs if row["method"] != "Gaussian" and (row["model"], row["reading"]) in noise]
    for metric, sign, first, second in (("ece", -1, "~.30", "~.15"), ("auroc", 1, "~.40", "~.30")):
        over = [(sign * (float(r[metric]) - float(naive[r["model"]][metric])), r) for r in runs]
        more = [(sign * (float(r[metric]) - float(noise[r["model"], r["reading"]][metric])), r) for r in natural]
        for what, told, gains in (("naive", first, over), ("Gaussian views", second, more)):
            if gains:
                gain, row = max(gains, key=lambda pair: pair[0])
                where = f"{row['model']}, {row['method'].lower()}, {row['reading']}"
                yield Entry(f"claim: {metric} better than {what} by up to", "`table1`", told, _s(gain), where)


def _s(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)
