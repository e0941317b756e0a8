"""Labels of a classifier that are written otherwise than the truths: which of them mean the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from unicodedata import normalize


@dataclass(frozen=True)
class LabelMap:
    """Which labels of a classifier are which truths."""

    same: tuple[str, ...]
    """Labels that are truths as they stand."""
    names: dict[str, str]
    """Labels that differ from one truth in case, blanks or the form of letters alone, and that truth."""
    unmatched: tuple[str, ...]
    """Labels that are no truth, or may be several."""
    unsaid: tuple[str, ...]
    """Truths that no label means."""


def folded(label: str) -> str:
    """The normalised form of a label.

    >>> folded("New  York"), folded("ｎｅｗ_york")
    ('new_york', 'new_york')
    """
    return "_".join(normalize("NFKC", normalize("NFKC", label).casefold()).split())


def propose(labels: Iterable[str], truths: Iterable[str]) -> LabelMap:
    """Pairs of labels and truths that mean the same; a truth that two labels could mean is given to both.

    >>> propose(["Tabby cat", "Dog", "bird"], ["tabby_cat", "dog", "fish"]).names
    {'Dog': 'dog', 'Tabby cat': 'tabby_cat'}
    """
    said, true = sorted(set(labels)), sorted(set(truths))
    alike: dict[str, list[str]] = {}
    for truth in true:
        alike.setdefault(folded(truth), []).append(truth)
    same = [label for label in said if label in true]
    options = {label: alike.get(folded(label), []) for label in said if label not in true}
    names = {label: found[0] for label, found in options.items() if len(found) == 1}
    meant = {*same, *names.values()}
    return LabelMap(
        tuple(same),
        names,
        tuple(label for label in options if label not in names),
        tuple(truth for truth in true if truth not in meant),
    )
