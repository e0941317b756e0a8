"""The paper's claims, judged by our tables: seen, not seen or unclear, with the numbers.

A comparison counts for or against a claim only where its interval over pictures excludes zero after Holm's correction
for all comparisons of its ballot and reading. A claim is *seen* if all its comparisons are for it, *not seen* if one is
against it, and *unclear* otherwise. Brier scores are compared picture by picture. ECE and AUROC are compared by the
intervals of the two rows as if these were independent; both are on the same pictures, so this is conservative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import hypot
from typing import Literal, NamedTuple

from scipy.special import ndtr

from experiments.paper import published
from experiments.paper.tables import ARGMAX, BALLOTS, Row

Line = dict[str, str]
Rows = Sequence[Line]
Mark = Literal["for", "against", "unclear"]
NATURAL = ("Affine", "Elastic", "Rotation")
LEVEL = 0.05
WIDTH = 3.92
"""Standard errors in a 95 % interval."""
PAPER = "paper"
"""In the place of a reading: the numbers that the paper itself prints, which have no intervals."""


class Case(NamedTuple):
    """One comparison: the gain that the claim asserts, and the two-sided p-value of a gain of zero."""

    name: str
    gain: float
    p: float | None = None
    """None where there is no interval."""


Claims = dict[str, list[Case]]


def judged(found: Mapping[str, Rows]) -> Iterator[Row]:
    """One row a claim, reading and ballot; the paper's own tables come last, counted but not judged."""
    readings = list(dict.fromkeys(row["reading"] for row in [*found["table1"], *found["table2"]])) or ["looktwice"]
    for reading, ballot in product(readings, (*BALLOTS, ARGMAX)):
        claims = cases(found, reading, ballot)
        marks = iter(corrected([case.p for part in claims.values() for case in part]))
        for claim, part in claims.items():
            yield _verdict(claim, reading, ballot, part, [next(marks) for _ in part])
    for claim, part in cases(printed(), PAPER, PAPER).items():
        if part:
            yield _verdict(claim, PAPER, "", part, None)


def cases(found: Mapping[str, Rows], reading: str, ballot: str) -> Claims:
    """The comparisons that each claim rests on."""
    tables = {name: [row for row in rows if row["reading"] == reading] for name, rows in found.items()}
    naive = {row["model"]: row for name in ("table1", "table2") for row in found[name] if row["method"] == "Naive"}
    mine = {name: [row for row in rows if row["ballot"] == ballot] for name, rows in tables.items()}
    photos = [row for row in mine["table2"] if row["calibrator"] == "gaussian"]
    runs = [row for row in mine["table1"] if row["calibrator"] == "gaussian"] + photos
    claims: Claims = {}
    for metric in ("ece", "auroc", "brier"):
        claims[f"every transform beats naive, {metric}"] = [
            _compared(metric, row, naive[row["model"]], "naive") for row in runs
        ]
    for metric in ("ece", "auroc", "brier"):
        claims[f"natural beats Gaussian, {metric}"] = _against("Gaussian", NATURAL, runs, metric, 1)
    claims["rotation is best in Brier"] = _against("Rotation", ("Gaussian", "Affine", "Elastic"), runs, "brier", -1)
    same = "base" if ballot == ARGMAX else ballot  # the distribution is the base ballot's, and so is its Brier score
    grown = [row for row in tables["figure2"] if row["ballot"] == same]
    claims["Brier improves from the smallest S to the largest"] = _grown(grown)
    for metric in ("ece", "brier"):
        claims[f"S = 2 helps on photos, {metric}"] = [
            _compared(metric, row, naive[row["model"]], "naive") for row in photos
        ]
    for row in mine["table4"]:
        if row["dataset"] == "All datasets":
            claims[f"{row['statistic']} correlates with ECE"] = _correlated(row)
    for metric in ("ece", "brier"):
        claims[f"F_n improves Gaussian's {'ECE' if metric == 'ece' else 'Brier'}"] = _transferred(
            [row for row in mine["table3"] if row["objective"] == "ece"], metric
        )
    for metric in ("ece", "brier"):
        learned = [row for row in mine["table3"] if row["objective"] == "ece" and row["cumulative"] == "F_n"]
        claims[f"Gaussian with F_n beats every natural transform, {metric}"] = [
            _compared(metric, {**row, "method": f"{row['open']}, {other['method'].lower()}"}, other, "")
            for row, other in product(learned, runs)
            if other["model"] == row["model"] and other["method"] in NATURAL
        ]
    return claims


def corrected(p: Sequence[float | None]) -> list[bool]:
    """Which of the p-values Holm's step-down test rejects at LEVEL; None is never rejected."""
    ranked = sorted((value, place) for place, value in enumerate(p) if value is not None)
    passed = [False] * len(p)
    for rank, (value, place) in enumerate(ranked):
        if value * (len(ranked) - rank) > LEVEL:
            break
        passed[place] = True
    return passed


def _verdict(claim: str, reading: str, ballot: str, part: Sequence[Case], sure: Sequence[bool] | None) -> Row:
    marks: Counter[Mark] = Counter(
        "unclear" if not decided else "for" if case.gain > 0 else "against"
        for case, decided in zip(part, sure if sure is not None else [case.gain != 0 for case in part], strict=True)
    )
    if not part:
        verdict, worst, best = "not judged", "no run that it could be judged by", ""
    else:
        least, most = min(part, key=lambda case: case.gain), max(part, key=lambda case: case.gain)
        worst, best = f"{least.name}: {least.gain:+.4f}", f"{most.name}: {most.gain:+.4f}"
        verdict = "not seen" if marks["against"] else "seen" if marks["for"] == len(part) else "unclear"
    return {
        "claim": claim,
        "reading": reading,
        "ballot": ballot,
        "verdict": "no interval" if sure is None else verdict,
        "for": marks["for"],
        "against": marks["against"],
        "unclear": marks["unclear"],
        "mean_gain": sum(case.gain for case in part) / len(part) if part else "",
        "least": worst,
        "most": best,
    }


# The comparisons -----------------------------------------------------------------------------------------------------


def _compared(metric: str, row: Line, other: Line, name: str) -> Case:
    """How much better a row is than another of its model, paired by picture where that was kept."""
    title = f"{row['model']}, {row['method'].lower()}"
    for one, rival, way in ((row, name, -1), (other, row["method"].lower(), 1)):
        if gap := one.get(f"{metric}_less_{rival}"):
            return _case(title, way * float(gap), _width(one, f"less_{rival}"))
    sign = 1 if metric == "auroc" else -1
    return _case(
        title, sign * (float(row[metric]) - float(other[metric])), hypot(_width(row, metric), _width(other, metric))
    )


def _case(name: str, gain: float, width: float) -> Case:
    return Case(name, gain, p_value(gain, width))


def p_value(gain: float, width: float) -> float | None:
    """Two-sided p of a gain of zero, from the width of the gain's 95 % interval; None where that is zero."""
    return 2.0 * float(ndtr(-abs(gain) * WIDTH / width)) if width else None


def _width(row: Line, metric: str) -> float:
    low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
    return float(high) - float(low) if low and high else 0.0


def _against(rival: str, methods: Sequence[str], runs: Rows, metric: str, sign: int) -> list[Case]:
    """Each method against the rival on the same model; `sign` −1 turns the question round."""
    rivals = {row["model"]: row for row in runs if row["method"] == rival}
    found = [
        _compared(metric, row, rivals[row["model"]], rival.lower())
        for row in runs
        if row["method"] in methods and row["model"] in rivals
    ]
    return [case._replace(gain=sign * case.gain) for case in found]


def _grown(rows: Rows) -> list[Case]:
    last = {(row["model"], row["transform"]): row for row in rows}
    return [
        _case(f"{model}, {transform}", -float(row["less_first"]), _width(row, "less_first"))
        for (model, transform), row in last.items()
    ]


def _transferred(rows: Rows, metric: str) -> list[Case]:
    by = {(row["open"], row["model"], row["cumulative"]): row for row in rows}
    found = []
    for (source, model, cumulative), row in by.items():
        if cumulative == "F_n" and row[f"{metric}_less_phi"]:
            gain = -float(row[f"{metric}_less_phi"])
            found.append(_case(f"{source} to {model}", gain, _width(row, f"{metric}_less_phi")))
    return found


def _correlated(row: Line) -> list[Case]:
    if not row["ece_r"]:
        return []
    return [Case(f"r over {row['runs']} runs", float(row["ece_r"]), float(row["ece_p"]))]


# The paper's own tables ----------------------------------------------------------------------------------------------


def printed() -> dict[str, Rows]:
    """The paper's tables as rows like ours; it has no numbers for Figure 2."""
    tables: dict[str, list[Line]] = {"table1": [], "table2": [], "table3": [], "table4": [], "figure2": []}
    for line in published.lines():
        row = {"model": f"{line.dataset} {line.model}", "method": line.method, "reading": PAPER, "ballot": PAPER}
        row |= {name: str(value) for name, value in line.values.items()}
        row |= {"calibrator": "naive" if line.method == "Naive" else "gaussian", "objective": "ece", "open": "CIFAR-10"}
        row |= {"cumulative": "F_n" if line.method.endswith("Fn") else "Φ"}
        tables[f"table{line.table}"].append(row)
    by = {(row["model"], row["cumulative"]): row for row in tables["table3"]}
    for row, metric in product(tables["table3"], ("ece", "brier")):
        row[f"{metric}_less_phi"] = str(float(row[metric]) - float(by[row["model"], "Φ"][metric]))
    for found in published.correlations():
        about = {"reading": PAPER, "ballot": PAPER, "runs": "its", "statistic": found["statistic"].lower()}
        tables["table4"].append({**found, **about})
    return dict(tables)
