"""Several sessions on one ledger: whatever happens to them, none waits for a question that nobody asks.

Real senders on a real SQLite file, in an event loop whose clock jumps, so that minutes pass at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from unittest import mock

import numpy as np
from clock import Clock, Direct
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_players import entry, told

from looktwice.asking.jobs import Job
from looktwice.asking.ledger import Budget, verify
from looktwice.asking.ledger.protocol import DEAD
from looktwice.asking.outcome import Cause, Failure
from looktwice.asking.pace import AdaptiveRate, RetryPolicy
from looktwice.asking.sender import Sender
from looktwice.classifiers.base import Answer, Terms
from looktwice.errors import ClassifierError, PermanentError, TransientError
from looktwice.views import Question, parse

NOON = 20_000 * 86_400 + 43_200.0
PRICE = 3
LEASE = 60.0
PLACES = st.integers(0, 2)


class Waiting:
    """A classifier that answers when it is told to, and notes each call."""

    fingerprint = "test:waiting"
    labels = None
    terms = Terms(batch=1, concurrency=2, price_micros=PRICE)

    def __init__(self, calls: Counter[bytes]) -> None:
        self.calls = calls
        self.open: dict[bytes, asyncio.Future[list[Answer]]] = {}

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        (key,) = batch
        self.calls[key] += 1
        self.open[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.open[key]
        finally:
            del self.open[key]

    async def close(self) -> None: ...


LOST = TransientError("lost", sent=True)
SLOW_DOWN = TransientError("slow down", status=429, retry_after=5.0, billed=False)
FAILURES: tuple[ClassifierError, ...] = (
    TransientError("not reached", sent=False),
    TransientError("slow down", status=429, retry_after=3600.0, billed=True),
    TransientError("internal trouble", status=500),
    PermanentError("the key was refused", status=401, billed=False),
)


class Player:
    """One session: its ledger, its classifier and its sender."""

    def __init__(self, path: Path, clock: Clock, number: int, budget: Budget, calls: Counter[bytes]) -> None:
        self.ledger = Direct(path, clock, number)
        self.classifier = Waiting(calls)
        pace = RetryPolicy(attempts=3, refusals=4, breaker=8)
        self.sender = Sender(self.classifier, Waiting.terms, self.ledger, pace, budget, None)
        self.jobs: list[Job] = []


class Sessions(RuleBasedStateMachine):
    """Three sessions that ask the same few questions, and all that can happen to them."""

    @initialize(queries=st.none() | st.integers(1, 12))
    def open(self, queries: int | None) -> None:
        self.shortened = ExitStack()
        self.shortened.enter_context(mock.patch("looktwice.asking.ledger.accounting.LEASE", LEASE))
        self.shortened.enter_context(mock.patch("looktwice.asking.sender.RENEWAL", LEASE / 3))
        self.shortened.enter_context(
            mock.patch.object(AdaptiveRate, "MOST", 2.0)
        )  # more than all: nothing is slowed down
        self.shortened.enter_context(mock.patch.object(AdaptiveRate, "MANY", 2.0))
        self.folder = self.shortened.enter_context(tempfile.TemporaryDirectory())
        self.path = Path(self.folder) / "ledger.db"
        self.clock = Clock()
        self.budget = Budget(queries)
        self.calls: Counter[bytes] = Counter()
        self.waived = 0
        """Calls that cost nothing."""
        self.never_sent = 0
        """Questions that were entered by a session that crashed before it sent them."""
        self.numbers = count(1)
        self.players = [self.player() for _ in range(3)]

    def player(self) -> Player:
        return Player(self.path, self.clock, next(self.numbers), self.budget, self.calls)

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, in which everybody does what it can."""

        async def pass_by() -> None:
            until = self.clock.time() + seconds
            while True:
                for _ in range(12):
                    await asyncio.sleep(0)
                for player in self.players:
                    player.ledger.beat()
                if (left := until - self.clock.time()) <= 0:
                    return
                await asyncio.sleep(min(left, DEAD / 2))

        self.clock.run_until_complete(pass_by())

    @rule(place=PLACES, numbers=st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
    def ask(self, place: int, numbers: list[int]) -> None:
        player = self.players[place]
        asking = {job.entry.key for job in player.jobs if job.answer is None}
        view = parse("mirror")
        jobs = [
            Job(Question(each.digest, view, 0, 0), each, prepared=each.key)
            for each in map(entry, numbers)
            if each.key not in asking and not player.ledger.find([each.key])
        ]
        player.jobs += jobs
        if player.sender.halt:
            player.sender.resume()

        async def send() -> None:
            player.sender.send(jobs)

        self.clock.run_until_complete(send())
        self.settle()

    def replying(self) -> bool:
        return any(player.classifier.open for player in self.players)

    def call(self, data: st.DataObject) -> asyncio.Future[list[Answer]]:
        return data.draw(st.sampled_from([call for each in self.players for call in each.classifier.open.values()]))

    @precondition(replying)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.call(data).set_result([Answer("ant")])
        self.settle()

    @precondition(replying)
    @rule(data=st.data(), failure=st.sampled_from(FAILURES))
    def fail(self, data: st.DataObject, failure: ClassifierError) -> None:
        self.call(data).set_exception(failure)
        self.waived += not failure.billed
        self.settle()

    @precondition(replying)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.fail(data, LOST)

    @precondition(replying)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        self.fail(data, SLOW_DOWN)

    @rule(seconds=st.sampled_from([0.1, 2.0, 10.0, DEAD + 5, LEASE + 5]))
    def wait(self, seconds: float) -> None:
        self.settle(seconds)

    @rule(place=PLACES, trouble=st.sampled_from(["stop", "crash", "die", "forget"]))
    def suffer(self, place: int, trouble: str) -> None:
        if trouble == "stop":
            self.stop(place)
        elif trouble == "forget":
            self.forget(place)
        else:
            self.crash(place, DEAD + 1 if trouble == "die" else 0.0)

    def stop(self, place: int) -> None:
        self.players[place].sender.stop(Failure(Cause.STOPPED, "stopped"))
        self.settle()

    def crash(self, place: int, pause: float) -> None:
        """It is gone without a word, and another one starts in its place; after a while it is taken for dead."""
        gone, self.players[place] = self.players[place], self.player()
        self.never_sent += len(gone.sender._ready)
        for task in gone.sender._tasks:
            task.cancel()
        gone.ledger.cut_off()
        self.settle(pause)

    def forget(self, place: int) -> None:
        """The worst fault of a sender: it lives on and has forgotten a question that it has in flight."""
        player = self.players[place]
        if not player.classifier.open:
            return
        key = min(player.classifier.open)
        del player.sender._held[key]
        self.settle(LEASE + 1)
        asked = next(each for each in map(entry, range(5)) if each.key == key)
        other = self.player()
        grant = other.ledger.intend(Waiting.fingerprint, [asked], PRICE, Budget(queries=0)).result()
        other.ledger.close()
        taken = any(key in each.sender._held for each in self.players)
        assert taken or not grant.held, "a lease ends if nobody renews it"
        player.sender._held[key] = self.clock.time()

    @precondition(lambda self: hasattr(self, "players"))
    @invariant()
    def a_question_is_held_only_by_a_session_that_waits_for_it(self) -> None:
        held = told(str(self.path), "SELECT session, key FROM questions WHERE session IS NOT NULL AND label IS NULL")
        for player in self.players:
            waits = {*player.classifier.open, *(job.entry.key for job in player.sender._ready)}
            assert {key for session, key in held if session == player.ledger.id} <= waits
            assert {*player.sender._held} == waits

    @precondition(lambda self: hasattr(self, "players"))
    @invariant()
    def the_budget_is_exact(self) -> None:
        [(queries, micros)] = told(str(self.path), "SELECT TOTAL(queries), TOTAL(micros) FROM spend")
        ahead = sum(len(player.sender._ready) for player in self.players)
        assert queries == self.calls.total() - self.waived + ahead + self.never_sent
        assert micros == PRICE * queries
        assert self.budget.queries is None or queries <= self.budget.queries

    @precondition(lambda self: hasattr(self, "players"))
    @invariant()
    def every_question_is_answered_in_flight_or_looked_at_again(self) -> None:
        for player in self.players:
            open_jobs = [job for job in player.jobs if job.answer is None]
            queued = {job.entry.key for job in (*player.sender._due, *player.sender._ready)}
            assert len(open_jobs) == len(queued | player.classifier.open.keys()) + player.sender._resting_jobs

    def teardown(self) -> None:
        if not hasattr(self, "players"):
            return
        for _ in range(5):
            for player in self.players:
                for call in player.classifier.open.values():
                    call.set_result([Answer("ant")])
            self.settle(10.0)
        assert all(job.answer is not None for player in self.players for job in player.jobs), "nobody waits for ever"
        for player in self.players:
            player.ledger.close()
        self.clock.close()
        assert verify(self.path) == []
        self.shortened.close()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
