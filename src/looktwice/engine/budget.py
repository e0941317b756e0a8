"""Prices, budgets and spend, in queries and money, in total and per UTC day.

Money is counted in picos (1e-12 of the currency), so that per-token bills are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from sys import maxsize
from typing import NamedTuple

from looktwice.classifiers import Amount, Answer, Metered, Tariff, Tokens
from looktwice.errors import BudgetError
from looktwice.views import AS_DESCRIBED, Phrasing

MICRO = 1_000_000
"""Picos per micro (1e-6 of the currency)."""

Money = Amount


class Spend(NamedTuple):
    """The spend on one or more classifiers so far; today is the day in UTC."""

    queries: int = 0
    picos: int = 0
    queries_today: int = 0
    picos_today: int = 0

    @property
    def micros(self) -> int:
        """The money in millionths, rounded up."""
        return -(-self.picos // MICRO)

    @classmethod
    def total(cls, spends: Iterable[Spend]) -> Spend:
        """The sum of the spends."""
        return cls(*map(sum, zip(*spends, strict=True)))

    def plus(self, queries: int, picos: int, today: bool) -> Spend:
        """Add a change in the spend, of today or of an earlier day."""
        return Spend(
            self.queries + queries,
            self.picos + picos,
            self.queries_today + queries * today,
            self.picos_today + picos * today,
        )


@dataclass(frozen=True)
class Budget:
    """Limits on the spend for one or more classifiers, in total and per UTC day; None means no limit. They apply to the
    total spend in the ledger, across all runs and users.
    """

    queries: int | None = None
    micros: int | None = None
    queries_per_day: int | None = None
    micros_per_day: int | None = None
    stated: tuple[str, str] = ("", "")
    """The limits of queries and money as the user wrote them, if they differ from the total."""
    group: tuple[str, ...] = ()
    """The fingerprints of the classifiers whose spend is summed; if empty, only the spend on the query's own classifier
    is included."""
    scope: str = ""
    """The scope of a relative budget, which lets a repeated command continue it; empty for a total budget."""

    def is_limited(self) -> bool:
        """Whether any limit is set."""
        return (self.queries, self.micros, self.queries_per_day, self.micros_per_day) != (None, None, None, None)

    def covers(self, spend: Spend, picos: int) -> bool:
        """Whether one more query at this price is within every limit."""
        return self.remaining(spend, picos) > 0

    def remaining(self, spend: Spend, picos: int) -> int:
        """The number of further queries at this price, at least 0; `sys.maxsize` without a limit."""
        limits = (
            (self.queries, spend.queries, 1),
            (self.queries_per_day, spend.queries_today, 1),
            (self._picos(self.micros), spend.picos, picos),
            (self._picos(self.micros_per_day), spend.picos_today, picos),
        )
        counts = [(most - spent) // price for most, spent, price in limits if most is not None and price]
        return max(0, min(counts, default=maxsize))

    def money_left(self, spend: Spend) -> int | None:
        """The remaining money, in millionths; None without a limit."""
        limits = ((self.micros, spend.picos), (self.micros_per_day, spend.picos_today))
        return min((most - -(-spent // MICRO) for most, spent in limits if most is not None), default=None)

    def exhausted(self, spend: Spend, picos: int) -> str:
        """A message that states which limit does not cover a query at this price, the spend so far, and what to do."""
        wait, price = "or wait for midnight UTC, and run again", picos / MICRO / 1e6
        queries, money = self.stated
        limits = (
            (self.queries, spend.queries, 1, "queries", f"raise --budget{_as_stated(queries)} and run again"),
            (self.queries_per_day, spend.queries_today, 1, "queries a day", f"raise --per-day, {wait}"),
            (_units(self.micros), spend.picos / MICRO / 1e6, price, "in money",
             f"raise --money{_as_stated(money)} and run again"),
            (_units(self.micros_per_day), spend.picos_today / MICRO / 1e6, price, "a day in money",
             f"raise --money-per-day, {wait}"),
        )  # fmt: skip
        for most, spent, least, what, remedy in limits:
            if most is not None and most - spent < least - 1e-12:
                more = f", and a query may cost {least:,.10g}" if spent < most else ""
                spending = f"{spent:,.10g} of {most:,.10g}{more}"
                return f"the budget of {most:,.10g} {what} is spent ({spending}); {remedy} to continue"
        return "the budget is spent; run again to resume"

    @staticmethod
    def _picos(micros: int | None) -> int | None:
        return None if micros is None else micros * MICRO


def _units(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6


def _as_stated(text: str) -> str:
    return f" {text}" if text else ""


class Bill(NamedTuple):
    """The price of a reply from its token counts."""

    tokens: Tokens
    picos: int


def micros(money: Money) -> int:
    """Millionths of the currency: '0.0015' → 1500."""
    try:
        value = Decimal(str(money)) * 1_000_000
    except ArithmeticError:  # no number, or one beyond all bounds
        raise BudgetError(
            f"{money!r} is not an amount of money; write for example 0.0015", code="budget-invalid"
        ) from None
    if not value.is_finite() or value < 0 or value != int(value):
        raise BudgetError(
            f"{str(money)!r} is not an amount of money in whole millionths, 0 or more", code="budget-invalid"
        )
    return int(value)


def total(limit: Money | None, read: Callable[[str], int], spent: int, option: str) -> int | None:
    """Parse a limit: `500` in total, or `+500` more than the current spend."""
    if limit is None:
        return None
    text = str(limit)
    try:
        amount = read(text.removeprefix("+"))
    except ValueError:
        raise BudgetError(
            f"a {option} of {text!r} is not a number; write 500 for a total, or +500 for 500 more",
            code="budget-invalid",
        ) from None
    if amount < 0:
        raise BudgetError(f"a {option} of {text!r} is negative", code="budget-invalid")
    return amount + (spent if text.startswith("+") else 0)


TYPICAL_SIZE = (3024, 4032)
"""The size of a phone photo, assumed for pictures of unknown size."""


class Quote(NamedTuple):
    """The expected and the maximum price of a query, in millionths of the currency."""

    expected: int
    most: int
    tokens: Tokens = Tokens()
    """The expected tokens."""


@dataclass(frozen=True)
class FlatMeter:
    """A fixed price per query."""

    price_micros: int

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        """The price of a query about a picture of this size, with this wording."""
        return Quote(self.price_micros, self.price_micros)

    def bill(self, answer: Answer) -> Bill | None:
        """The billed cost of an answer; None if it is the quoted maximum."""
        return None


class TokenMeter:
    """Prices per token of request and reply, with lower prices in batches."""

    def __init__(self, classifier: Metered, tariff: Tariff, batched: bool = False) -> None:
        self._classifier, self._tariff, self._batched = classifier, tariff, batched
        self._quoted = lru_cache(maxsize=256)(self._weighed)

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        return self._quoted(height, width, replace(phrasing, order=None))  # which has no price

    def bill(self, answer: Answer) -> Bill | None:
        tokens = answer.usage
        return tokens and Bill(tokens, self._tariff.picos(tokens, self._batched))

    def _weighed(self, height: int, width: int, phrasing: Phrasing) -> Quote:
        weight = self._classifier.weigh(height, width, phrasing)
        tokens = self._tariff.expected(weight)
        expected, most = (self._tariff.picos(each, self._batched) for each in (tokens, self._tariff.most(weight)))
        return Quote(round(expected / MICRO), -(-most // MICRO), tokens)


Meter = FlatMeter | TokenMeter
"""Prices queries."""
