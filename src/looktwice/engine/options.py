"""How a classifier is asked: the options of a run, and the one place where classifier, ledger and budget meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Self, TypedDict, TypeVar, get_args

from looktwice.classifiers.base import AnyClassifier, Metered, Terms
from looktwice.classifiers.prices import read_table
from looktwice.engine.budget import Budget, Money, Spend, micros, total
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger.places import OFF, POSTGRES, close_ledger, open_ledger
from looktwice.engine.ledger.sqlite import default_path
from looktwice.engine.limits import Polling, RetryPolicy
from looktwice.engine.meter import Meter, TokenMeter
from looktwice.engine.query import Scores
from looktwice.engine.runner import Settings
from looktwice.errors import BudgetError, LookTwiceError
from looktwice.images.image import WorkingSize

T = TypeVar("T")
WHOLE = {"canaries": 0, "seed": 0, "per_day": 0, "label_check": 0, "concurrency": 1, "working_size": 1}
"""Options that are whole numbers, and the least that each may be."""
NUMBERS = {"rate": 0.001, "longest_wait": 0.0}


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run async work on the fastest loop that is installed."""

    async def main() -> T:
        return await work()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(main())


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@dataclass(frozen=True)
class AskOptions:
    """How a classifier is asked. Nothing here changes an answer but the seed and the working size."""

    ledger: str | None = None
    """A path, `postgresql://…`, `memory` (kept as long as this process lives), `off`, or None: the default path, or
    none if the classifier is local and free."""
    budget: int | str | None = None
    """Queries: a total for this ledger and classifier, or with a plus sign that many more than now (`"+500"`)."""
    money: Money | None = None
    """The same in money: 25, or `"+2.50"`."""
    price: Money | None = None
    """The price of one query; the classifier's description where None."""
    prices: str | Path | None = None
    """A table of prices by the token, for chat models; see `looktwice prices`."""
    rate: float | None = None
    """Queries a second, at most; the classifier's own limit where None."""
    concurrency: int | None = None
    """Calls at the same time, at most; the classifier's own limit where None."""
    canaries: int = 3
    """Stored answers that are asked for again, to see whether the classifier is still the same."""
    seed: int | None = None
    """Seed of the random views; the profile's where None, or 0."""
    per_day: int | None = None
    """Queries in one UTC day."""
    money_per_day: Money | None = None
    longest_wait: float = 900.0
    """Seconds of the longest wait that the classifier may ask for; the run stops where it asks for more."""
    scores: Scores = "use"
    """Whether a fit may use the scores and ranked lists of answers, where they help on held-out folds, or must ignore
    them; with a profile that was fitted with scores they cannot be ignored."""
    working_size: int | None = None
    """Pixels of the longer side, to which larger pictures are scaled down; the profile's where None, or what the
    classifier can use."""
    batch: bool = False
    """Ask in the vendor's batches: within a day, at a lower price; for chat models."""
    scope: str = ""
    """What a budget with a plus sign is for, such as a command and its output: the same scope continues it after an
    interruption, and does not grant it again."""
    label_check: int = 20
    """Pictures whose labels are compared with their truths before the others are asked about, where the labels of the
    classifier are not known beforehand; 0 asks about all of them even if no label is a truth."""

    def __post_init__(self) -> None:
        for name, least in WHOLE.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= least):
                raise LookTwiceError(f"{name} is {value!r}; give a whole number of at least {least}")
        for name, at_least in NUMBERS.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= at_least):
                raise LookTwiceError(f"{name} is {value!r}; give a number of at least {at_least:g}")
        if self.scores not in get_args(Scores):
            raise LookTwiceError(f"scores is {self.scores!r}; give {' or '.join(get_args(Scores))}")

    def terms(self, classifier: AnyClassifier) -> Terms:
        """The classifier's terms, with what these options say otherwise."""
        terms = classifier.terms
        return replace(
            terms,
            price_micros=terms.price_micros if self.price is None else micros(self.price),
            per_second=self.rate or terms.per_second,
            concurrency=self.concurrency or terms.concurrency,
            working_size=WorkingSize(long=self.working_size) if self.working_size else terms.working_size,
        )

    def limits(self, terms: Terms, spend: Spend) -> Budget:
        """The budget, given what the ledger has spent so far."""
        queries = total(self.budget, int, spend.queries, "budget")
        money = total(self.money, micros, spend.micros, "money")
        daily = None if self.money_per_day is None else micros(self.money_per_day)
        if (money, daily) != (None, None) and terms.price_micros == 0 and self.prices is None:
            raise BudgetError(
                "a limit in money needs the price of a query: give --price, a price in the classifier's description, "
                "or for a chat model a table of prices by the token with --prices"
            )
        stated = tuple(str(limit) if str(limit).startswith("+") else "" for limit in (self.budget, self.money))
        return Budget(queries, money, self.per_day, daily, (stated[0], stated[1]))

    def meter(self, classifier: AnyClassifier) -> Meter | None:
        """Prices by the token, where queries do not all cost the same."""
        if self.prices is None:
            return None
        if self.price is not None:
            raise BudgetError("give --price for one price a query, or --prices for a table by the token, not both")
        if not isinstance(classifier, Metered):
            raise BudgetError(
                "a table of prices is for chat models, which are billed by the token; give --price instead"
            )
        return TokenMeter(classifier, read_table(Path(self.prices)).of(classifier.model), self.batch)

    def settled(self, terms: Terms, spend: Spend) -> Self:
        """The same with totals in place of what is relative to the ledger as it is now."""
        limits = self.limits(terms, spend)
        money = None if limits.micros is None else Decimal(limits.micros).scaleb(-6)
        return replace(self, budget=limits.queries, money=money)

    def budget_scope(self, classifier: AnyClassifier) -> str:
        """What a relative budget is stored under; empty where there is none."""
        relative = [str(limit) for limit in (self.budget, self.money) if str(limit).startswith("+")]
        return " ".join((classifier.fingerprint, self.scope, *relative)) if relative and self.scope else ""

    def is_limited(self) -> bool:
        """Whether something limits what is spent."""
        return any(limit is not None for limit in (self.budget, self.money, self.per_day, self.money_per_day))


class AskKeywords(TypedDict, total=False):
    """The options of asking as keyword arguments; see `AskOptions`."""

    ledger: str | None
    budget: int | str | None
    money: Money | None
    price: Money | None
    prices: str | Path | None
    rate: float | None
    concurrency: int | None
    canaries: int
    seed: int | None
    per_day: int | None
    money_per_day: Money | None
    longest_wait: float
    scores: Scores
    working_size: int | None
    batch: bool
    label_check: int


def open_engine(classifier: AnyClassifier, description: str, options: AskOptions, seed: int = 0) -> QueryEngine:
    """An engine for a classifier, with the ledger and budget that the options mean; close it when done.

    `seed` is that of the random views where the options name none.
    """
    terms = options.terms(classifier)
    meter = options.meter(classifier)
    place = ledger_place(terms, options)
    ledger = open_ledger(place) if place else None
    try:
        spend = ledger.spend(classifier.fingerprint) if ledger else Spend()
        settings = Settings(
            terms,
            seed if options.seed is None else options.seed,
            options.scores,
            options.label_check,
            options.canaries,
            options.limits(terms, spend),
            RetryPolicy(longest_wait=options.longest_wait),
            description,
            options.budget_scope(classifier),
        )
        return QueryEngine(classifier, ledger, settings, meter, Polling() if options.batch else None)
    except BaseException:
        if ledger:
            close_ledger(ledger)
        raise


def ledger_place(terms: Terms, options: AskOptions) -> str | None:
    """Where the ledger is; None for a classifier that is free: local, without price, budget, rate limit or a ledger
    that the user named. Limits without a place to remember them hold for as long as the engine is open."""
    if options.ledger not in (None, OFF):
        return options.ledger
    limited = bool(terms.price_micros or terms.per_second or options.prices or options.is_limited())
    if terms.local and not limited:
        return None
    return OFF if options.ledger == OFF or terms.local else str(default_path())


def ledger_name(terms: Terms, options: AskOptions) -> str | None:
    """The same for people and logs: of a database only that it is one, since an address may hold a password."""
    place = ledger_place(terms, options)
    if place == OFF:
        return None
    return "postgresql" if place and place.startswith(POSTGRES) else place
