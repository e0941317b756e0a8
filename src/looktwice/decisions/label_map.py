"""Match labels of a classifier to truths that are spelled differently."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from unicodedata import normalize


@dataclass(frozen=True)
class LabelMap:
    """The correspondence of a classifier's labels to truths."""

    same: tuple[str, ...]
    """Labels that equal a truth."""
    names: dict[str, str]
    """Labels that differ from exactly one truth only in case, spaces, hyphens, slashes or the form of letters."""
    unmatched: tuple[str, ...]
    """Labels that match no truth, or several."""
    unsaid: tuple[str, ...]
    """Truths without a label."""


def folded(label: str) -> str:
    """The normalised form of a label.

    >>> folded("New  York"), folded("ｎｅｗ_york"), folded("T-shirt/top")
    ('new_york', 'new_york', 't_shirt_top')
    """
    return re.sub(r"[\s/_-]+", "_", normalize("NFKC", normalize("NFKC", label).casefold()).strip())


def propose(labels: Iterable[str], truths: Iterable[str]) -> LabelMap:
    """Propose pairs of labels and truths; two labels may be matched to one truth.

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
