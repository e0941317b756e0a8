"""Options of a run, and the creation of engines from classifiers, ledger and budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Self, TypedDict, TypeVar, get_args

from looktwice.classifiers import AnyClassifier, Connected, Limits, Metered, read_table
from looktwice.engine import (
    OFF,
    POSTGRES,
    TYPICAL_SIZE,
    Budget,
    Channel,
    Meter,
    Money,
    Polling,
    QueryEngine,
    RetryPolicy,
    Scores,
    Settings,
    Spend,
    TokenMeter,
    close_ledger,
    micros,
    open_ledger,
    total,
)
from looktwice.errors import BudgetError, LookTwiceError
from looktwice.images import WorkingSize
from looktwice.model.project import Project

T = TypeVar("T")
WHOLE = {"canaries": 0, "seed": 0, "per_day": 0, "label_check": 0, "concurrency": 1, "working_size": 1}
"""The integer options with their minimum."""
NOT_METERED = "a table of prices is for chat models, which are billed by the token; give --price instead"
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
    """Options of a run. Only the seed and the working size affect answers."""

    ledger: str | None = None
    """A path, `postgresql://…`, `memory` (kept as long as this process lives), `off`, or None: the default path, or
    none if the classifier is local and free."""
    budget: int | str | None = None
    """Queries: a total for this ledger and classifier, or with a plus sign (`"+500"`) relative to now."""
    money: Money | None = None
    """The same in money: 25, or `"+2.50"`."""
    price: Money | None = None
    """The price of one query; by default that of the classifier's description."""
    prices: str | Path | None = None
    """A table of prices by the token, for chat models; see `looktwice prices`."""
    rate: float | None = None
    """The most queries per second; by default the classifier's own limit."""
    concurrency: int | None = None
    """The most concurrent calls; by default the classifier's own limit."""
    canaries: int = 3
    """The number of stored answers to query again, to detect a changed classifier."""
    seed: int | None = None
    """The seed of the random views; by default the profile's, or 0."""
    per_day: int | None = None
    """Queries in one UTC day."""
    money_per_day: Money | None = None
    longest_wait: float = 900.0
    """The longest wait in seconds that the classifier may ask for; the run stops if it asks for more."""
    scores: Scores = "use"
    """Whether a fit may use scores and ranked lists, if they help on held-out folds, or must ignore them; a profile
    that was fitted with scores needs them."""
    working_size: int | None = None
    """The longer side in pixels to which larger pictures are scaled down; by default the profile's, or what the
    classifier can use."""
    batch: bool = False
    """Ask in the vendor's batches: within a day, at a lower price; for chat models."""
    scope: str = ""
    """The scope of a relative budget, such as a command and its output: the same scope continues it after an
    interruption, without granting it again."""
    label_check: int = 20
    """The number of pictures whose labels are compared with their truths before all others are asked, if the
    classifier's labels are unknown; 0 skips the check."""

    def __post_init__(self) -> None:
        for name, least in WHOLE.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= least):
                raise LookTwiceError(
                    f"{name} is {value!r}; give a whole number of at least {least}", code="option-invalid"
                )
        for name, at_least in NUMBERS.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= at_least):
                raise LookTwiceError(
                    f"{name} is {value!r}; give a number of at least {at_least:g}", code="option-invalid"
                )
        if self.scores not in get_args(Scores):
            raise LookTwiceError(
                f"scores is {self.scores!r}; give {' or '.join(get_args(Scores))}", code="option-invalid"
            )

    def or_project(self) -> Self:
        """Fill in unset options from the environment and the project file."""
        stated = Project.here().limits()
        if self.price is not None:
            stated.pop("prices", None)
        return replace(self, **{name: value for name, value in stated.items() if getattr(self, name) is None})  # type: ignore[arg-type]

    def limits(self, classifier: AnyClassifier) -> Limits:
        """The classifier's limits, overridden by these options."""
        limits = classifier.limits
        return replace(
            limits,
            price_micros=limits.price_micros if self.price is None else micros(self.price),
            per_second=self.rate or limits.per_second,
            concurrency=self.concurrency or limits.concurrency,
            working_size=WorkingSize(long=self.working_size) if self.working_size else limits.working_size,
        )

    def of(self, one: Connected) -> AskOptions:
        """The options of one classifier: its own settings override these, and its own budget replaces this one."""
        priced = one.price is not None or one.prices is not None
        table = self.prices if isinstance(one.classifier, Metered) else None
        return replace(
            self,
            price=one.price if priced else self.price,
            prices=one.prices if priced else table,
            scope=f"{self.scope} alone" if self.scope else "",
            rate=one.rate or self.rate,
            concurrency=one.concurrency or self.concurrency,
            budget=one.budget,
            money=one.money,
            per_day=None,
            money_per_day=None,
        )

    def resolved_budget(self, spend: Spend, group: Sequence[str] = (), has_price: bool = True) -> Budget:
        """The budget of a group of classifiers, given what the ledger has spent on them so far."""
        queries = total(self.budget, int, spend.queries, "budget")
        money = total(self.money, micros, spend.micros, "money")
        daily = None if self.money_per_day is None else micros(self.money_per_day)
        if (money, daily) != (None, None) and not has_price:
            raise BudgetError(
                "a limit in money needs the price of a query: give --price, a price in the classifier's description, "
                "or for a chat model a table of prices by the token with --prices",
                code="budget-invalid",
            )
        stated = tuple(str(limit) if str(limit).startswith("+") else "" for limit in (self.budget, self.money))
        scope = " ".join((*group, self.scope, *filter(None, stated))) if any(stated) and self.scope else ""
        return Budget(queries, money, self.per_day, daily, (stated[0], stated[1]), tuple(group), scope)

    def meter(self, classifier: AnyClassifier) -> Meter | None:
        """The price table, if queries do not all cost the same."""
        if self.prices is None:
            return None
        if self.price is not None:
            raise BudgetError(
                "give --price for one price a query, or --prices for a table by the token, not both",
                code="option-conflict",
            )
        if not isinstance(classifier, Metered):
            raise BudgetError(NOT_METERED, code="budget-invalid")
        return TokenMeter(classifier, read_table(Path(self.prices)).tariff(classifier.model), self.batch)

    def settled(self, limits: Limits, spend: Spend) -> Self:
        """Replace relative budgets by totals, given the current ledger."""
        budget = self.resolved_budget(spend, (), bool(limits.price_micros or self.prices))
        money = None if budget.micros is None else Decimal(budget.micros).scaleb(-6)
        return replace(self, budget=budget.queries, money=money)

    def is_limited(self) -> bool:
        """Whether any budget is set."""
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


def in_order(classifiers: Sequence[Connected], options: AskOptions) -> list[Connected]:
    """The classifiers by the price of a query, the lowest first; the order given breaks ties.

    One on this machine costs nothing unless it has a price, and any other without a price counts as 1.
    """

    def price(one: Connected) -> float:
        own = options.of(one)
        limits, meter = own.limits(one.classifier), own.meter(one.classifier)
        micros = meter.quote(*limits.working_size.scaled(*TYPICAL_SIZE)).expected if meter else limits.price_micros
        return micros / 1e6 if micros or own.price is not None or limits.local else 1.0

    names = [one.name for one in classifiers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LookTwiceError(
            f"two classifiers are called {twice!r}; give one of them another name: connect(…, name=…)",
            code="option-conflict",
        )
    return sorted(classifiers, key=price) if len(classifiers) > 1 else list(classifiers)


def open_engine(classifiers: Sequence[Connected], options: AskOptions, seed: int = 0) -> QueryEngine:
    """Create an engine for these classifiers, with ledger and budgets; close it when done.

    `seed` is the default seed of the random views.
    """
    if options.prices is not None and not any(isinstance(one.classifier, Metered) for one in classifiers):
        raise BudgetError(NOT_METERED, code="budget-invalid")
    asked = [options.of(one) for one in classifiers]
    limits = [own.limits(one.classifier) for one, own in zip(classifiers, asked, strict=True)]
    meters = [own.meter(one.classifier) for one, own in zip(classifiers, asked, strict=True)]
    priced = [bool(each.price_micros or meter) for each, meter in zip(limits, meters, strict=True)]
    group = tuple(dict.fromkeys(one.fingerprint for one in classifiers))
    place = ledger_place(classifiers, options)
    ledger = open_ledger(place) if place else None
    try:
        spend = ledger.spend(*group) if ledger else Spend()
        total = options.resolved_budget(spend, group, any(priced))
        channels = []
        for one, own, each, meter, price in zip(classifiers, asked, limits, meters, priced, strict=True):
            needed = ledger if needs_ledger(each, own, options) else None
            spent = needed.spend(one.fingerprint) if needed else Spend()
            budgets = (total, own.resolved_budget(spent, (one.fingerprint,), price))
            settings = Settings(
                each,
                seed if options.seed is None else options.seed,
                options.scores,
                options.label_check,
                options.canaries,
                tuple(budget for budget in budgets if budget.is_limited()),
                RetryPolicy(longest_wait=options.longest_wait),
                one.description,
            )
            polling = Polling() if options.batch else None
            channels.append(Channel(one.classifier, needed, settings, meter, polling, one.name, one.rename))
        return QueryEngine(channels)
    except BaseException:
        if ledger:
            close_ledger(ledger)
        raise


def needs_ledger(limits: Limits, own: AskOptions, options: AskOptions) -> bool:
    """Whether queries to a classifier are claimed and kept: all but those to one that is free, which is local and has
    no price, budget, rate limit or a ledger that the user named."""
    limited = limits.price_micros or limits.per_second or own.prices or own.is_limited()
    counted = (options.budget, options.per_day) != (None, None)  # of money it spends nothing
    return not limits.local or bool(limited) or counted or options.ledger not in (None, OFF)


def ledger_place(classifiers: Sequence[Connected], options: AskOptions) -> str | None:
    """Where the ledger is; None if all classifiers are free. Limits without a place to remember them hold for as
    long as the engine is open."""
    if options.ledger not in (None, OFF):
        return options.ledger
    asked = [(own.limits(one.classifier), own) for one in classifiers for own in (options.of(one),)]
    if not any(needs_ledger(limits, own, options) for limits, own in asked):
        return None
    if options.ledger == OFF:
        return OFF
    project = Project.here()
    return project.stated_ledger() or (OFF if all(limits.local for limits, _ in asked) else project.ledger_place())


def ledger_name(classifiers: Sequence[Connected], options: AskOptions) -> str | None:
    """The location for people and logs; the address of a database is omitted, since it may contain a password."""
    place = ledger_place(classifiers, options)
    if place == OFF:
        return None
    return "postgresql" if place and place.startswith(POSTGRES) else place
