"""Engines for tests: a classifier with a ledger and limits in one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import AnyClassifier, Limits
from looktwice.engine.budget import Budget, Meter, Spend
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.ledger import close_ledger, open_ledger
from looktwice.engine.limits import RetryPolicy
from looktwice.engine.query import Scores, Unscored
from looktwice.engine.runner import Settings
from looktwice.images.collection import Picture
from looktwice.views import Panel

HURRY = RetryPolicy(backoff=0.01, attempts=12, few=12, longest=0.2)


def engine_for(
    classifier: AnyClassifier,
    ledger: str | Path | None = None,
    *,
    retry: RetryPolicy = HURRY,
    budget: Budget | None = None,
    canaries: int = 0,
    limits: Limits | None = None,
    seed: int = 0,
    scores: Scores = "use",
    label_check: int = 0,
    meter: Meter | None = None,
) -> QueryEngine:
    """An engine on a ledger at this place; without one the classifier is asked for free. Close it when done."""
    settings = Settings(
        limits or classifier.limits, seed, scores, label_check, canaries, (budget or Budget(),), retry, "the classifier"
    )
    return QueryEngine([Channel(classifier, None if ledger is None else open_ledger(str(ledger)), settings, meter)])


@asynccontextmanager
async def engine_on(
    classifier: AnyClassifier, ledger: str | Path | None = None, **how: object
) -> AsyncIterator[QueryEngine]:
    """The same, closed at the end."""
    engine = engine_for(classifier, ledger, **how)  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        await engine.close()


async def rows_of(engine: QueryEngine, pictures: Sequence[Picture], panel: Panel) -> list[Row | Unscored]:
    return [row async for row in engine.ask(pictures, panel)]


def counted(ledger: str | Path) -> tuple[int, int]:
    """The queries that a ledger counts, and how many of them were answered."""
    days = maintenance.stats(ledger)
    return sum(day.queries for day in days), sum(day.answered for day in days)


def spend_of(ledger: str | Path, fingerprint: str) -> Spend:
    """What a ledger has spent on a classifier."""
    opened = open_ledger(str(ledger))
    try:
        return opened.spend(fingerprint)
    finally:
        close_ledger(opened)
