"""The wording of a query, for classifiers that take a prompt.

Views that change the words instead of the pixels make a `Phrasing`, and the connectors of chat models follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

Item = TypeVar("Item")

THIRDS = 3


@dataclass(frozen=True)
class LabelOrder:
    """An order of the labels that is determined by the picture.

    Numbers 1 to 3 share one shuffled list that is rotated by thirds, and so do 4 to 6: within such a group every label
    is once in each third of the list, if their number is divisible by three.
    """

    digest: str
    number: int
    """1 or more."""

    def permuted(self, labels: Sequence[Item]) -> tuple[Item, ...]:
        """The labels in this order."""
        group, turn = divmod(self.number - 1, THIRDS)
        ranks = [
            blake2b(f"{self.digest} {group} {place}".encode(), digest_size=16, person=b"looktwice order").digest()
            for place in range(len(labels))
        ]
        shuffled = sorted(range(len(labels)), key=lambda place: ranks[place])
        start = turn * len(labels) // THIRDS
        return tuple(labels[place] for place in shuffled[start:] + shuffled[:start])


@dataclass(frozen=True)
class Phrasing:
    """Changes of the prompt for one query; none by default."""

    order: LabelOrder | None = None
    wording: int = 0
    """The paraphrase, from 1; 0 is the default prompt."""
    ranked: bool = False
    """Whether it asks for a ranked list of labels."""
    describe: bool = False
    """Whether it asks for a description of the picture before the label."""


AS_DESCRIBED = Phrasing()
"""The default wording."""
