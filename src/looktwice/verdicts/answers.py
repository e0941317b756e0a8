"""Are these answers like those about the labelled pictures? A conformal p-value from how often each kind came."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from looktwice.calibration.votes import MISSING, Counts, Floats, Votes, base_tally

LEAST = 20
"""Labelled pictures that are needed to say anything."""
MOST = 2000
"""Labelled pictures whose answers are kept, at the most."""
KIND = re.compile(r"\d{1,9}/\d{1,9}")
Kind = tuple[str, str]
"""The label of the picture itself, and of its views how many agree and how many labels all name together: `8/1`."""


class AnswerKinds(BaseModel):
    """How often the labelled pictures had which kind of answers; a part of a profile."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    views: Annotated[int, Field(ge=0)]
    """How many views of the panel count, the first ones."""
    seen: dict[str, dict[str, Annotated[int, Field(ge=1)]]]
    """For each label, how many pictures had it with so many views that agree, and so many labels in all: `8/1`."""

    @classmethod
    def fit(cls, votes: Votes) -> Self | None:
        """Learn from the answers about distinct labelled pictures; None where they are too few."""
        if len(votes) < LEAST:
            return None
        some = np.random.default_rng(0).permutation(len(votes))[:MOST]
        seen: dict[str, dict[str, int]] = {}
        for (label, kind), count in sorted(Counter(kinds(votes.take(some))).items()):
            seen.setdefault(label, {})[kind] = count
        return cls(views=len(votes.panel), seen=seen)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.seen or not all(self.seen.values()):
            raise ValueError("there must be kinds of answers for every label")
        if not all(KIND.fullmatch(kind) for found in self.seen.values() for kind in found):
            raise ValueError("a kind of answers is written like 8/1")
        return self

    def p_values(self, votes: Votes) -> Floats:
        """(n,): how usual the answers about each picture are, in (0, 1]; at most a with a chance of a, for new ones.

        The new picture is put among the labelled ones. How common a picture's answers are is how many have the same,
        with a little for how many have the same of any label. The p-value is the share of pictures, the new one
        included, whose answers are no commoner than its own (full conformal prediction).
        """
        found, table = kinds(votes.under(range(self.views))), self._table()
        known = {kind: _p_value(*table, *kind) for kind in set(found)}
        return np.array([known[kind] for kind in found], np.float64)

    def because(self, votes: Votes, row: int) -> str:
        """What is unusual about the answers about a picture, for people."""
        ((label, kind),) = kinds(votes.under(range(self.views)).take(np.array([row])))
        agree, labels = kind.split("/")
        among = self.seen.get(label)
        if among is None:
            return f"the classifier answered {label!r}, which it said of no labelled picture"
        how = f"{agree} of {self.views} views agree with {label!r} and {labels} labels are named"
        times = among.get(kind, 0)
        often = f"{times} of" if times else "none of"
        return f"{how}, as with {often} the {sum(among.values())} labelled pictures that it called so"

    def _table(self) -> tuple[dict[str, int], dict[str, int], Counts]:
        """The row of each label, the column of each kind, and how many pictures had both; the last ones are empty."""
        labels = {label: row for row, label in enumerate(self.seen)}
        among = dict.fromkeys(kind for found in self.seen.values() for kind in found)
        columns = {kind: column for column, kind in enumerate(among)}
        count = np.zeros((len(labels) + 1, len(columns) + 1), np.int64)
        for label, found in self.seen.items():
            for kind, times in found.items():
                count[labels[label], columns[kind]] = times
        return labels, columns, count


def kinds(votes: Votes) -> list[Kind]:
    """The kind of answers about each picture."""
    agree = base_tally(votes).agree.tolist()
    said = np.column_stack([votes.base, np.where(votes.views == MISSING, votes.base[:, None], votes.views)])
    labels = 1 + (np.diff(np.sort(said, axis=1)) != 0).sum(axis=1)
    words = (votes.vocabulary[code] for code in votes.base.tolist())
    return [(word, f"{k}/{d}") for word, k, d in zip(words, agree, labels.tolist(), strict=True)]


def _p_value(labels: dict[str, int], columns: dict[str, int], count: Counts, label: str, kind: str) -> float:
    """The p-value of one kind of answers, by the table of those that were seen."""
    count, cell = count.copy(), (labels.get(label, -1), columns.get(kind, -1))
    count[cell] += 1
    of_label, of_kind = count.sum(axis=1, keepdims=True), count.sum(axis=0)
    common = (of_label / (of_label + 1) * (count + of_kind / count.sum())).round(9)
    return float(count[common <= common[cell]].sum() / count.sum())
