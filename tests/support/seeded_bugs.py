"""Bugs that the state machine or the driver must notice, each put into the ledger for as long as a block runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from looktwice.engine.budget import Budget, Spend
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.schema import Claim, Granted, Outcome, OverBudget, Settled, Wait
from looktwice.engine.ledger.sqlite import SqliteDatabase
from looktwice.engine.ledger.transaction import Transaction

Bug = AbstractContextManager[object]


def skip_commits() -> Bug:
    """Every third commit of a session is reported and not made: queries are sent without a claim on disk."""
    commit, commits = SqliteDatabase.commit, Counter[SqliteDatabase]()

    def skipping(self: SqliteDatabase) -> None:
        commits[self] += 1
        (commit if commits[self] % 3 else SqliteDatabase.roll_back)(self)

    return patch.object(SqliteDatabase, "commit", skipping)


def drop_locks() -> Bug:
    """The header of the file is read by hand: closing it drops every lock that the process holds on it."""
    initialise = SqliteDatabase.__init__

    def peeking(self: SqliteDatabase, path: Any) -> None:
        initialise(self, path)
        if path:
            path.open("rb").close()

    return patch.object(SqliteDatabase, "__init__", peeking)


def settle_twice() -> Bug:
    """Every settlement is counted again."""
    settle = Transaction.settle

    def twice(self: Transaction, claim: Claim, settled: Settled) -> None:
        settle(self, claim, settled)
        settle(self, claim, settled)

    return patch.object(Transaction, "settle", twice)


def keep_unsent() -> Bug:
    """A query that was not sent stays counted."""
    settle = Ledger.settle

    def keeping(self: Ledger, claim: Claim, settled: Settled) -> asyncio.Future[None]:
        return settle(
            self, claim, replace(settled, result=Outcome.KEPT) if settled.result is Outcome.UNSENT else settled
        )

    return patch.object(Ledger, "settle", keeping)


def forget_the_day() -> Bug:
    """The limits of a day are not looked at."""
    covers = Budget.covers

    def for_ever(self: Budget, spend: Spend, picos: int) -> bool:
        return covers(replace(self, queries_per_day=None, micros_per_day=None), spend, picos)

    return patch.object(Budget, "covers", for_ever)


def refuse_early() -> Bug:
    """A query is refused for good though a claim is open that may give back."""
    claim = Transaction.claim

    def hasty(self: Transaction, *arguments: Any) -> list[Granted]:
        return [
            OverBudget(Budget(), Spend()) if each == Wait(elsewhere=False) else each for each in claim(self, *arguments)
        ]

    return patch.object(Transaction, "claim", hasty)


def bury_the_living() -> Bug:
    """The claims of other sessions that are alive do not count."""
    return patch.object(Transaction, "living", lambda self: {self.session.id})


BUGS: dict[str, Callable[[], Bug]] = {
    bug.__name__: bug
    for bug in (skip_commits, drop_locks, settle_twice, keep_unsent, forget_the_day, refuse_early, bury_the_living)
}


def seeded(name: str) -> Bug:
    """A block in which looktwice has one of these bugs."""
    return BUGS[name]()
