"""The paper's claims, put to the tables: seen, not seen or mixed, with the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.paper import published
from experiments.paper.tables import Row

Rows = Sequence[dict[str, str]]
NATURAL = ("Affine", "Elastic", "Rotation")


PAPER = "paper"
"""In the place of a ballot: the numbers that the paper itself prints."""


def judged(found: Mapping[str, Rows]) -> Iterator[Row]:
    """One row a claim and ballot, where there is something to judge it by; the paper's own tables come third."""
    for ballot in ("base", "vote", PAPER):
        tables = printed() if ballot == PAPER else found
        runs = [r for name in ("table1", "table2") for r in tables[name] if r["ballot"] == ballot]
        photos = [r for r in tables["table2"] if r["ballot"] == ballot]
        lines = [r for r in tables["figure2"] if r["ballot"] == ballot]
        naive = {r["model"]: r for name in ("table1", "table2") for r in tables[name] if r["method"] == "Naive"}
        for metric in ("ece", "auroc", "brier"):
            yield from _verdict(f"every transform beats naive, {metric}", ballot, _against_naive(runs, naive, metric))
        for metric in ("ece", "auroc", "brier"):
            yield from _verdict(f"natural beats Gaussian, {metric}", ballot, _against_gaussian(runs, metric))
        yield from _verdict("rotation is best in Brier", ballot, _rotation_best(runs))
        yield from _verdict("Brier improves from the smallest S to the largest", ballot, _grown(lines))
        for metric in ("ece", "brier"):
            yield from _verdict(f"S = 2 helps on photos, {metric}", ballot, _against_naive(photos, naive, metric))
        yield from _correlated([r for r in tables["table4"] if r["ballot"] == ballot], ballot)
        pairs = [r for r in tables["table3"] if r["ballot"] == ballot and r["objective"] == "ece"]
        yield from _verdict("F_n improves Gaussian's ECE", ballot, _transferred(pairs, "ece"))
        yield from _verdict("F_n improves Gaussian's Brier", ballot, _transferred(pairs, "brier"))


def printed() -> dict[str, Rows]:
    """The paper's tables as rows like ours; it has no numbers for Figure 2."""
    tables: dict[str, list[dict[str, str]]] = {"table1": [], "table2": [], "table3": [], "table4": [], "figure2": []}
    for line in published.lines():
        row = {"model": f"{line.dataset} {line.model}", "method": line.method, "ballot": PAPER, "objective": "ece"}
        row |= {name: str(value) for name, value in line.values.items()}
        row |= {"calibrator": "naive" if line.method == "Naive" else "gaussian"}
        row |= {"cumulative": "F_n" if line.method.endswith("Fn") else "Φ"}
        tables[f"table{line.table}"].append(row)
    for told in published.correlations():
        tables["table4"].append({**told, "ballot": PAPER, "runs": "its", "statistic": told["statistic"].lower()})
    return dict(tables)


Case = tuple[str, float]
"""What is compared, and by how much it is better: above 0 speaks for the claim."""


def _verdict(claim: str, ballot: str, cases: Sequence[Case]) -> Iterator[Row]:
    if not cases:
        return
    good = [case for case in cases if case[1] > 0]
    verdict = "seen" if len(good) == len(cases) else "not seen" if not good else "mixed"
    worst, best = min(cases, key=lambda case: case[1]), max(cases, key=lambda case: case[1])
    yield {
        "claim": claim,
        "ballot": ballot,
        "verdict": verdict,
        "for": len(good),
        "of": len(cases),
        "mean_gain": sum(gain for _, gain in cases) / len(cases),
        "least": f"{worst[0]}: {worst[1]:+.4f}",
        "most": f"{best[0]}: {best[1]:+.4f}",
    }


def _gain(metric: str, better: dict[str, str], worse: dict[str, str]) -> float:
    sign = 1 if metric == "auroc" else -1
    return sign * (float(better[metric]) - float(worse[metric]))


def _paper(rows: Rows) -> list[dict[str, str]]:
    return [row for row in rows if row["calibrator"] == "gaussian"]


def _name(row: dict[str, str]) -> str:
    return f"{row['model']}, {row['method'].lower()}"


def _against_naive(rows: Rows, naive: dict[str, dict[str, str]], metric: str) -> list[Case]:
    return [(_name(row), _gain(metric, row, naive[row["model"]])) for row in _paper(rows)]


def _against_gaussian(rows: Rows, metric: str) -> list[Case]:
    other = {row["model"]: row for row in _paper(rows) if row["method"] == "Gaussian"}
    return [(_name(r), _gain(metric, r, other[r["model"]])) for r in _paper(rows) if r["method"] in NATURAL]


def _rotation_best(rows: Rows) -> list[Case]:
    cases = []
    for model in dict.fromkeys(row["model"] for row in _paper(rows)):
        mine = {row["method"]: row for row in _paper(rows) if row["model"] == model}
        rest = min((row for name, row in mine.items() if name != "Rotation"), key=lambda row: float(row["brier"]))
        cases.append((f"{model}, against {rest['method'].lower()}", _gain("brier", mine["Rotation"], rest)))
    return cases


def _grown(rows: Rows) -> list[Case]:
    last = {(row["model"], row["transform"]): row for row in rows}
    return [(f"{model}, {transform}", -float(row["less_first"])) for (model, transform), row in last.items()]


def _transferred(rows: Rows, metric: str) -> list[Case]:
    by = {(row["model"], row["cumulative"]): row for row in rows}
    models = dict.fromkeys(row["model"] for row in rows)
    return [(model, _gain(metric, by[model, "F_n"], by[model, "Φ"])) for model in models]


def _correlated(rows: Rows, ballot: str) -> Iterator[Row]:
    """Seen where the correlation over all runs is above 0 and its p below 0.05."""
    for row in rows:
        if row["dataset"] != "All datasets":
            continue
        known = row["ece_r"] != ""
        seen = known and float(row["ece_r"]) > 0 and float(row["ece_p"]) < 0.05
        told = (
            f"r = {float(row['ece_r']):.2f}, p = {float(row['ece_p']):.2g}"
            if known
            else "no correlation: it is constant"
        )
        yield {
            "claim": f"{row['statistic']} correlates with ECE",
            "ballot": ballot,
            "verdict": "seen" if seen else "not seen",
            "for": int(seen),
            "of": 1,
            "mean_gain": "",
            "least": f"{row['runs']} runs: {told}",
            "most": "",
        }
