"""One run of the command line: a classifier, its ledger, pace and budget, opened and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from looktwice.asking import Asker
from looktwice.classifiers import AnyClassifier, connect
from looktwice.errors import BudgetError, PermanentError
from looktwice.ledger import Budget, Ledger, Spend, default_path, open_at
from looktwice.pacing import Pace

OFF = "off"


@dataclass(frozen=True)
class Wishes:
    """What the options of a command say about asking."""

    seed: int = 0
    ledger: str | None = None
    """A path, a `postgresql://` address, `off`, or None: the default path, or none if the classifier is local."""
    budget: str | None = None
    """Queries: a total for this ledger and classifier, or with a plus sign so many more than now."""
    money: str | None = None
    """The same in money."""
    price: str | None = None
    """The price of one query; the classifier's description where None."""
    rate: float | None = None
    """Questions a second."""
    concurrency: int | None = None
    canaries: int = 3
    """Stored answers that are asked for again, to see whether the classifier is still the same."""
    dry_run: bool = False
    json_log: bool = False
    per_day: int | None = None
    """Queries in one UTC day."""
    money_per_day: str | None = None


@asynccontextmanager
async def opened(description: str, wishes: Wishes) -> AsyncIterator[Asker]:
    """An asker for the described classifier; closed, with everything saved, when the block is left."""
    classifier = connect(description)
    if wishes.price is not None:
        classifier = priced(classifier, micros(wishes.price))
    ledger = open_ledger(classifier, wishes)
    try:
        spent = ledger.spent(classifier.fingerprint) if ledger else None
        if ledger:
            ledger.introduce(classifier.fingerprint, description)
        pace = Pace(concurrency=wishes.concurrency, per_second=wishes.rate)
        yield Asker(classifier, ledger, pace, budget(wishes, classifier, spent), wishes.seed, wishes.canaries)
    finally:
        await classifier.close()
        if ledger:
            ledger.close()


def open_ledger(classifier: AnyClassifier, wishes: Wishes) -> Ledger | None:
    """The ledger that the wishes name, if any."""
    place = ledger_place(classifier, wishes)
    return open_at(place) if place else None


def ledger_place(classifier: AnyClassifier, wishes: Wishes) -> str | None:
    """Where the ledger is; a classifier on this machine is free, so it has none unless asked for."""
    if wishes.ledger == OFF or (wishes.ledger is None and classifier.terms.local):
        return None
    return wishes.ledger or str(default_path())


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def micros(money: str) -> int:
    """Millionths of the currency: '0.0015' → 1500."""
    try:
        value = Decimal(money) * 1_000_000
    except InvalidOperation:
        raise BudgetError(f"{money!r} is not an amount of money; write for example 0.0015") from None
    if not value.is_finite() or value < 0 or value != int(value):
        raise BudgetError(f"{money!r} is not an amount of money in whole millionths, 0 or more")
    return int(value)


def budget(wishes: Wishes, classifier: AnyClassifier, spent: Spend | None) -> Budget:
    """The limits that the wishes mean, given what the ledger has spent so far."""
    queries = _total(wishes.budget, int, spent.queries if spent else 0, "--budget")
    money = _total(wishes.money, micros, spent.micros if spent else 0, "--money")
    daily = None if wishes.money_per_day is None else micros(wishes.money_per_day)
    if (money, daily) != (None, None) and classifier.terms.price_micros == 0:
        raise BudgetError(
            "--money needs the price of a query: give --price, or a price in the classifier's description"
        )
    return Budget(queries, money, wishes.per_day, daily)


def _total(wish: str | None, read: Callable[[str], int], spent: int, option: str) -> int | None:
    """The limit that a wish means: `500` in all, `+500` more than is spent now."""
    if wish is None:
        return None
    try:
        amount = read(wish.removeprefix("+"))
    except ValueError:
        raise BudgetError(
            f"{option} {wish!r} is not a number; write 500 for a total, or +500 for that many more"
        ) from None
    if amount < 0:
        raise BudgetError(f"{option} {wish!r} is negative")
    return amount + (spent if wish.startswith("+") else 0)


def priced(classifier: AnyClassifier, price: int) -> AnyClassifier:
    """The classifier at another price, in millionths of the currency."""
    try:
        classifier.terms = replace(classifier.terms, price_micros=price)  # type: ignore[misc]
    except AttributeError:
        raise PermanentError("this classifier's price cannot be changed; set it in its description") from None
    return classifier
