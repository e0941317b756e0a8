"""What queries cost: one price each, or by the tokens of request and reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from looktwice.classifiers.base import Answer, Metered, Tokens
from looktwice.classifiers.prices import Tariff, tokens_of
from looktwice.engine.budget import MICRO, Bill
from looktwice.phrasing import AS_DESCRIBED, Phrasing

TYPICAL_SIZE = (3024, 4032)
"""Height and width of a phone's photo, whose price is assumed for queries about pictures of unknown size."""


class Quote(NamedTuple):
    """The price of a query in millionths of the currency: expected, and at most."""

    expected: int
    most: int
    tokens: Tokens = Tokens()
    """The expected tokens."""


class Meter(Protocol):
    """Prices queries."""

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        """The price of a query about a picture of this size, in this wording."""

    def bill(self, answer: Answer) -> Bill | None:
        """The bill of an answer; None where it costs the quoted maximum."""


@dataclass(frozen=True)
class FlatMeter:
    """Every query has the same price."""

    price_micros: int

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        return Quote(self.price_micros, self.price_micros)

    def bill(self, answer: Answer) -> Bill | None:
        return None


class TokenMeter:
    """Queries are billed by the tokens of request and reply; in a batch at its lower price."""

    def __init__(self, classifier: Metered, tariff: Tariff, batched: bool = False) -> None:
        self._classifier, self._tariff, self._batched = classifier, tariff, batched
        self._quoted = lru_cache(maxsize=256)(self._weighed)

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        return self._quoted(height, width, replace(phrasing, order=None))  # which has no price

    def bill(self, answer: Answer) -> Bill | None:
        tokens = tokens_of(dict(answer.usage))
        return tokens and Bill(tokens, self._tariff.picos(tokens, self._batched))

    def _weighed(self, height: int, width: int, phrasing: Phrasing) -> Quote:
        weight = self._classifier.weigh(height, width, phrasing)
        tokens = self._tariff.expected(weight)
        expected, most = (self._tariff.picos(each, self._batched) for each in (tokens, self._tariff.most(weight)))
        return Quote(round(expected / MICRO), -(-most // MICRO), tokens)
