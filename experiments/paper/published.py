"""The paper's own numbers, as printed in its tables."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
METRICS = ("acc", "ece", "auroc", "brier", "var", "ks")


@dataclass(frozen=True)
class Line:
    """One row of the paper's Tables 1, 2 and 3; a metric that is not given is None."""

    table: int
    dataset: str
    model: str
    method: str
    S: int
    values: dict[str, float | None]


@cache
def lines() -> tuple[Line, ...]:
    """Every row of the paper's Tables 1 to 3."""
    with (HERE / "tables.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_line(row) for row in csv.DictReader(file))


def correlations() -> list[dict[str, str]]:
    """The rows of the paper's Table 4."""
    with (HERE / "correlations.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def nearest(dataset: str, title: str, accuracy: float) -> str | None:
    """The paper's model that is most like ours: on the same data, of the same name or family if there is one."""
    naive = [line for line in lines() if line.dataset == dataset and line.method == "Naive"]
    if not naive:
        return None
    return min(
        naive,
        key=lambda line: (
            line.model != title.replace("-", ""),
            not _related(line.model, title),
            abs((line.values["acc"] or 0.0) - accuracy),
        ),
    ).model


def row(dataset: str, model: str | None, method: str) -> Line | None:
    """What the paper has for this model and method, if it has it."""
    known = (line for line in lines() if (line.dataset, line.model) == (dataset, model))
    return next((line for line in known if line.method.lower() == method.lower()), None)


def _related(model: str, title: str) -> bool:
    letters = "".join(letter for letter in model if not letter.isdigit()).lower()
    return title.lower().startswith(letters[:6])


def _line(row: dict[str, str]) -> Line:
    values = {name: float(row[name]) if row[name] not in ("", "-") else None for name in METRICS}
    return Line(int(row["table"]), row["dataset"], row["model"], row["method"], int(row["S"]), values)
