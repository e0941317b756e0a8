"""How a classifier is asked: the options of a run, and the one place where classifier, ledger, pace and budget open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Self, TypedDict, TypeVar, get_args

from looktwice.asking.asker import Asker
from looktwice.asking.jobs import Meter, Scores, TokenMeter
from looktwice.asking.ledger.memory import MemoryLedger, of_this_process
from looktwice.asking.ledger.protocol import Budget, Ledger, Spend
from looktwice.asking.ledger.sqlite import SqliteLedger, default_path
from looktwice.asking.pace import Moments, Polling, RetryPolicy, SharedRate
from looktwice.classifiers.base import AnyClassifier, Metered, Terms
from looktwice.classifiers.prices import read_table
from looktwice.errors import BudgetError, LookTwiceError
from looktwice.pictures.image import WorkingSize

T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run async work on the fastest loop that is installed."""

    async def main() -> T:
        return await work()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(main())


POSTGRES = ("postgresql://", "postgres://")
MEMORY = "memory"
OFF = "off"

Money = str | int | float | Decimal


@dataclass(frozen=True)
class AskOptions:
    """How a classifier is asked. Nothing here changes an answer but the seed and the working size."""

    ledger: str | None = None
    """A path, `postgresql://…`, `memory` (kept as long as this process lives), `off`, or None: the default path, or
    none if the classifier is local."""
    budget: int | str | None = None
    """Queries: a total for this ledger and classifier, or with a plus sign that many more than now (`"+500"`)."""
    money: Money | None = None
    """The same in money: 25, or `"+2.50"`."""
    price: Money | None = None
    """The price of one query; the classifier's description where None."""
    prices: str | Path | None = None
    """A table of prices by the token, for chat models; see `looktwice prices`."""
    rate: float | None = None
    """Questions a second, at most; the classifier's own limit where None."""
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
    label_check: int = 20
    """Pictures whose labels are compared with their truths before the others are asked about, where the labels of the
    classifier are not known beforehand; 0 asks about all of them even if no label is a truth."""
    command: str = "Python"
    """The command under which the ledger counts the spend; see `looktwice ledger stats --by command`."""

    def __post_init__(self) -> None:
        least_of = {"rate": 0.001, "canaries": 0, "seed": 0, "per_day": 0, "longest_wait": 0, "label_check": 0}
        least_of |= dict.fromkeys(("concurrency", "working_size"), 1)
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise LookTwiceError(f"{name} is {value!r}; give a number of at least {least:g}")

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

    def limits(self, terms: Terms, spent: Spend | None) -> Budget:
        """The budget, given what the ledger has spent so far."""
        queries = _total(self.budget, int, spent.queries if spent else 0, "budget")
        money = _total(self.money, micros, spent.micros if spent else 0, "money")
        daily = None if self.money_per_day is None else micros(self.money_per_day)
        if (money, daily) != (None, None) and terms.price_micros == 0 and self.prices is None:
            raise BudgetError(
                "a limit in money needs the price of a query: give --price, a price in the classifier's description, "
                "or for a chat model a table of prices by the token with --prices"
            )
        return Budget(queries, money, self.per_day, daily)

    def meter(self, classifier: AnyClassifier) -> Meter | None:
        """Prices by the token, where questions do not all cost the same."""
        if self.prices is None:
            return None
        if self.price is not None:
            raise BudgetError("give --price for one price a query, or --prices for a table by the token, not both")
        if not isinstance(classifier, Metered):
            raise BudgetError(
                "a table of prices is for chat models, which are billed by the token; give --price instead"
            )
        return TokenMeter(classifier, read_table(Path(self.prices)).of(classifier.model), self.batch)

    def settled(self, terms: Terms, spent: Spend | None) -> Self:
        """The same with totals in place of what is relative to the ledger as it is now."""
        limits = self.limits(terms, spent)
        money = None if limits.micros is None else Decimal(limits.micros).scaleb(-6)
        return replace(self, budget=limits.queries, money=money)


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


def open_asker(classifier: AnyClassifier, description: str, options: AskOptions, seed: int = 0) -> Asker:
    """An asker for a classifier, with the ledger, pace and budget that the options mean; close it when done.

    `seed` is that of the random views where the options name none.
    """
    terms = options.terms(classifier)
    meter = options.meter(classifier)
    place = ledger_place(terms, options)
    ledger = open_ledger(place, options.command) if place else None
    try:
        budget = options.limits(terms, ledger.spent(classifier.fingerprint) if ledger else None)
        if ledger:
            ledger.introduce(classifier.fingerprint, description)
        rate = None
        if terms.per_second and isinstance(ledger, Moments):
            rate = SharedRate(terms.per_second, ledger, classifier.fingerprint)
        return Asker(
            classifier,
            ledger,
            RetryPolicy(longest_wait=options.longest_wait),
            budget,
            seed if options.seed is None else options.seed,
            options.canaries,
            terms,
            rate,
            options.scores,
            meter,
            Polling() if options.batch else None,
            options.label_check,
        )
    except BaseException:
        if ledger:
            ledger.close()
        raise


def open_ledger(place: str, command: str | None = None) -> Ledger:
    """The ledger in a file, in a PostgreSQL database if the place begins with `postgresql://`, or in `memory`.

    What is spent through it is counted as spent by `command`.
    """
    if place == MEMORY:
        return MemoryLedger(of_this_process())
    if place.startswith(POSTGRES):
        from looktwice.asking.ledger.postgres import PostgresLedger

        return PostgresLedger(place, command)
    return SqliteLedger(Path(place), command)


def ledger_place(terms: Terms, options: AskOptions) -> str | None:
    """Where the ledger is; a classifier on this machine is free, so it has none unless asked for."""
    if options.ledger == OFF or (options.ledger is None and terms.local):
        return None
    return options.ledger or str(default_path())


def ledger_name(terms: Terms, options: AskOptions) -> str | None:
    """The same for people and logs: of a database only that it is one, since an address may hold a password."""
    place = ledger_place(terms, options)
    return "postgresql" if place and place.startswith(POSTGRES) else place


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def micros(money: Money) -> int:
    """Millionths of the currency: '0.0015' → 1500."""
    try:
        value = Decimal(str(money)) * 1_000_000
    except ArithmeticError:  # no number, or one beyond all bounds
        raise BudgetError(f"{money!r} is not an amount of money; write for example 0.0015") from None
    if not value.is_finite() or value < 0 or value != int(value):
        raise BudgetError(f"{str(money)!r} is not an amount of money in whole millionths, 0 or more")
    return int(value)


def _total(limit: Money | None, read: Callable[[str], int], spent: int, option: str) -> int | None:
    """The limit that an option means: `500` in total, `+500` more than is spent now."""
    if limit is None:
        return None
    text = str(limit)
    try:
        amount = read(text.removeprefix("+"))
    except ValueError:
        raise BudgetError(
            f"a {option} of {text!r} is not a number; write 500 for a total, or +500 for that many more"
        ) from None
    if amount < 0:
        raise BudgetError(f"a {option} of {text!r} is negative")
    return amount + (spent if text.startswith("+") else 0)
