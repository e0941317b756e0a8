"""What sessions learn of a classifier's limit, shared through their ledger."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from clock import Clock, Direct, timeless
from ledger_players import WHO, entry, told

from looktwice.asking.jobs import Job
from looktwice.asking.ledger import Budget
from looktwice.asking.ledger.protocol import FADE
from looktwice.asking.ledger.queue import QueuedLedger
from looktwice.asking.outcome import Cause, Failure
from looktwice.asking.pace import LearnedPaces, RetryPolicy, SharedAdaptiveRate
from looktwice.asking.sender import Sender
from looktwice.asking.session import open_ledger
from looktwice.classifiers.base import Answer, Terms
from looktwice.errors import TransientError
from looktwice.views import Mirror, Question

LIMIT, RETRY_AFTER = 50.0, 1.0


class Paces:
    """A ledger that is opened again and again, as other processes would."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.ledgers: list[QueuedLedger] = []

    def __call__(self) -> QueuedLedger:
        ledger = open_ledger(self.where)
        assert isinstance(ledger, QueuedLedger)
        self.ledgers.append(ledger)
        return ledger

    def rates(self) -> list[float]:
        """What each session has learned, as the table has it."""
        rows = told(self.where, "SELECT rate FROM learned ORDER BY rate")
        return [float(str(rate)) for (rate,) in rows]


@pytest.fixture(params=["sqlite", "postgres"])
def paces(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Paces]:
    at = request.getfixturevalue("database") if request.param == "postgres" else str(tmp_path / "ledger.db")
    paces = Paces(at)
    yield paces
    for ledger in paces.ledgers:
        ledger.close()


def test_a_newcomer_gets_an_equal_part_and_all_together_stay_as_fast(paces: Paces) -> None:
    first, second, third = paces(), paces(), paces()
    assert first.join_pace(WHO).result() is None
    assert first.keep_pace(WHO, 48.0).result() == 48.0
    assert second.join_pace(WHO).result() == 24.0
    assert third.join_pace(WHO).result() == pytest.approx(16.0)
    assert sum(paces.rates()) == pytest.approx(48.0)
    assert first.keep_pace(WHO, 60.0).result() == pytest.approx(60.0 / 3), "it grew meanwhile, and gave two thirds"
    assert first.keep_pace(WHO, 21.0).result() == 21.0, "what it gave it gives once"
    assert second.keep_pace(WHO, 24.0).result() == pytest.approx(16.0)


def test_what_ended_sessions_have_learned_is_taken_over_whole(paces: Paces) -> None:
    first, second = paces(), paces()
    first.keep_pace(WHO, 30.0).result()
    second.keep_pace(WHO, 20.0).result()
    first.close()
    third = paces()
    assert third.join_pace(WHO).result() == 30.0
    assert second.keep_pace(WHO, 20.0).result() == 20.0
    assert paces.rates() == [20.0, 30.0]


def test_what_is_unlearned_or_old_or_about_another_classifier_is_not_handed_on(paces: Paces) -> None:
    first, second = paces(), paces()
    first.keep_pace(WHO, 30.0).result()
    assert second.join_pace("another").result() is None
    first.keep_pace(WHO, None).result()
    assert second.join_pace(WHO).result() is None
    first.keep_pace(WHO, 30.0).result()
    told(paces.where, f"UPDATE learned SET at = at - {int(FADE * 1000) + 1000}")
    assert second.join_pace(WHO).result() is None


class Limited:
    """A classifier that takes 50 calls a second and refuses the others, by the clock of its loop."""

    fingerprint = WHO
    labels = None
    terms = Terms(concurrency=32)

    def __init__(self) -> None:
        self._tokens, self._at = 5.0, 0.0
        self.answered: Counter[object] = Counter()
        self.refused: Counter[object] = Counter()

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    async def label(self, batch: Sequence[object]) -> list[Answer]:
        (who,), now = batch, asyncio.get_running_loop().time()
        self._tokens, self._at = min(5.0, self._tokens + (now - self._at) * LIMIT), now
        taken = self._tokens >= 1
        self._tokens -= taken
        await asyncio.sleep(0.01)
        if not taken:
            self.refused[who] += 1
            raise TransientError("slow down", status=429, retry_after=RETRY_AFTER, billed=False)
        self.answered[who] += 1
        return [Answer("ant")]

    async def close(self) -> None: ...


async def refusals_of_the_second(path: Path) -> int:
    """How often a session is refused until 25 answers, beside one that has learned the limit already."""
    loop, classifier = asyncio.get_running_loop(), Limited()
    assert isinstance(loop, Clock)
    ledgers, senders = [Direct(path, loop, who) for who in (1, 2)], list[Sender]()
    for who, ledger in enumerate(ledgers, 1):
        assert isinstance(ledger, LearnedPaces)
        senders.append(Sender(classifier, Limited.terms, ledger, RetryPolicy(), Budget(), None))
        questions = [entry(number) for number in range(1000 * who, 1000 * who + 1000)]
        senders[-1].send(Job(Question(each.digest, Mirror(), 0, 0), each, prepared=who) for each in questions)
        while not told(str(path), "SELECT 1 FROM learned"):
            await asyncio.sleep(0.02)
    while classifier.answered[2] < 25:
        await asyncio.sleep(0.02)
    refused = classifier.refused[2]
    for sender, ledger in zip(senders, ledgers, strict=True):
        sender.stop(Failure(Cause.STOPPED, "enough"))
        await sender.finish()
        ledger.close()
    return refused


def test_who_comes_second_does_not_learn_the_limit_again_by_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.asking.sender.random", random.Random(0))
    shared = timeless(refusals_of_the_second(tmp_path / "shared.db"))
    monkeypatch.setattr(SharedAdaptiveRate, "join", lambda self: None)
    alone = timeless(refusals_of_the_second(tmp_path / "alone.db"))
    assert 2 * shared < alone
