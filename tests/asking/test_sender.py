"""The sender, question by question: when each is sent, what the ledger is told, and what is counted.

Everything runs by a clock that jumps, so that minutes of waiting are exact and take no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from clock import timeless

from looktwice.asking import sender as module
from looktwice.asking.jobs import Job, Meter, Quote, Round
from looktwice.asking.ledger.memory import Memory, MemoryLedger
from looktwice.asking.ledger.protocol import LEASE, Account, Bill, Booked, Budget, Entry, Grant, Outcome
from looktwice.asking.outcome import Cause, Failure, Progress
from looktwice.asking.pace import Rate, RetryPolicy
from looktwice.asking.sender import IN_A_BATCH, LONGEST_HOLD, RENEWAL, STALL, Sender
from looktwice.classifiers.base import Answer, Terms, Tokens
from looktwice.errors import ClassifierError, LedgerError, PermanentError, QuotaError, TransientError
from looktwice.pictures.image import WorkingSize
from looktwice.views import Mirror, Question

CAT = Answer("cat")
LOST = TransientError("lost")
UNREACHED = TransientError("not reached", sent=False)
BROKEN = TransientError("broken", status=500)
GARBLED = TransientError("garbled", status=200, garbled=True)
STOP = Failure(Cause.STOPPED, "enough")


def slow_down(seconds: float | None = None, billed: bool = False, status: int = 429) -> TransientError:
    return TransientError("slow down", status=status, retry_after=seconds, billed=billed)


class Scripted:
    """Does what is written for each question, in turn, and says "cat" after that; it notes when it was asked what."""

    fingerprint = "test:scripted"
    labels = None
    terms = Terms()

    def __init__(self, script: Mapping[str, Sequence[Answer | Exception]] | None = None, seconds: float = 0.0) -> None:
        self.script = {name: list(replies) for name, replies in (script or {}).items()}
        self.seconds = seconds
        self.calls: list[tuple[float, tuple[str, ...]]] = []
        self.busy = self.busiest = 0

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    async def label(self, batch: Sequence[str]) -> list[Answer]:
        self.calls.append((round(asyncio.get_running_loop().time(), 6), tuple(batch)))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.busy -= 1
        replies = [self.script[name].pop(0) if self.script.get(name) else CAT for name in batch]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return [reply for reply in replies if isinstance(reply, Answer)]

    def moments(self, name: str) -> list[float]:
        """When it was asked this question."""
        return [moment for moment, batch in self.calls if name in batch]

    async def close(self) -> None: ...


class Noting(MemoryLedger):
    """Notes what it is told of which question."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__(memory or Memory())
        self.notes: list[tuple[object, ...]] = []
        self.intents: list[tuple[float, int]] = []
        """When how many questions were entered."""
        self.reserves: list[int | None] = []
        self.prices: set[int] = set()

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        self.intents.append((round(asyncio.get_running_loop().time(), 6), len(entries)))
        self.reserves += [each.reserve for each in entries]
        self.prices.add(price_micros)
        return super().intend(fingerprint, entries, price_micros, budget)

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int, bill: Bill | None = None) -> None:
        self.notes.append(("record", key.decode(), answer, round(latency, 6), attempts, bill))
        super().record(key, answer, latency, attempts, bill)

    def release(self, keys: Sequence[bytes]) -> None:
        self._note("release", keys)
        super().release(keys)

    def refuse(self, keys: Sequence[bytes], billed: bool) -> None:
        self._note("billed" if billed else "waived", keys)
        super().refuse(keys, billed)

    def give_up(self, keys: Sequence[bytes]) -> None:
        self._note("give up", keys)
        super().give_up(keys)

    def renew(self, keys: Sequence[bytes]) -> None:
        self.notes.append((round(asyncio.get_running_loop().time(), 6), *(key.decode() for key in keys)))
        super().renew(keys)

    def conclude(self, booked: Booked, outcome: Outcome, bill: Bill | None = None) -> None:
        self.notes.append((outcome, booked.queries, bill))
        super().conclude(booked, outcome, bill)

    def _note(self, what: str, keys: Sequence[bytes]) -> None:
        if not self.notes or self.notes[-1][0] != "waived":  # which is a release as well
            self.notes.append((what, *(key.decode() for key in keys)))


class Tokenwise:
    """Quotes ten, and bills as much as the answer's score says, in millionths."""

    def quote(self, height: int, width: int, *_: object) -> Quote:
        return Quote(3, 10)

    def bill(self, answer: Answer, quote: Quote) -> Bill | None:
        return Bill(Tokens(5, 2, 1), round((answer.score or 0) * 1_000_000), quote.expected)


ONE = Terms(batch=1, concurrency=1, price_micros=7)
TWO = replace(ONE, concurrency=2)


def made(
    classifier: Scripted,
    ledger: MemoryLedger | None = None,
    terms: Terms = ONE,
    pace: RetryPolicy | None = None,
    budget: Budget | None = None,
    rate: Rate | None = None,
    meter: Meter | None = None,
) -> Sender:
    return Sender(
        classifier,
        terms,
        Noting() if ledger is None else ledger,
        pace or RetryPolicy(),
        budget or Budget(),
        rate,
        meter,
    )


def job(name: str, quote: Quote | None = None) -> Job:
    entry = Entry(name.encode(), name * 32, "mirror", 0, 0)
    return Job(Question(name * 32, Mirror(), 0, 0), entry, prepared=name, quote=quote)


async def settled(*jobs: Job) -> list[Answer | Failure]:
    """What becomes of each; the run's error is raised."""
    loop = asyncio.get_running_loop()
    waits = [loop.create_future() for _ in jobs]
    for each, wait in zip(jobs, waits, strict=True):
        each.listen(wait.set_result)
    return list(await asyncio.gather(*waits))


async def asked(sender: Sender, *names: str) -> list[Answer | Failure]:
    """Ask these questions to their end."""
    jobs = [job(name) for name in names]
    sender.send(jobs)
    came = await settled(*jobs)
    await sender.finish()
    return came


def asking(*names: str, **parts: Any) -> tuple[list[Answer | Failure], Sender]:
    """The same by a clock of its own: what came, and the sender."""

    async def work() -> tuple[list[Answer | Failure], Sender]:
        sender = made(**parts)
        return await asked(sender, *names), sender

    return timeless(work())


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are jittered are as long as they can be."""
    monkeypatch.setattr("looktwice.asking.sender.random.uniform", lambda low, high: high)


# --- from the question to the answer


def test_an_answer_is_recorded_with_its_latency_and_counted_once() -> None:
    ledger, classifier = Noting(), Scripted({"a": [Answer("dog", raw=b"{}")]}, seconds=0.25)
    came, sender = asking("a", classifier=classifier, ledger=ledger)
    assert came == [Answer("dog")], "the raw reply is not kept"
    assert ledger.notes == [("record", "a", Answer("dog"), 0.25, 1, None)]
    assert sender.progress == Progress(sent=1, answered=1, micros=7)
    assert ledger.prices == {7}
    assert ledger.reserves == [None]


def test_what_the_ledger_has_is_not_asked() -> None:
    memory, classifier = Memory(), Scripted()
    asking("a", "b", classifier=classifier, ledger=Noting(memory))
    came, sender = asking(*"abc", classifier=classifier, ledger=Noting(memory))
    assert came == [CAT, CAT, CAT]
    assert sender.progress == Progress(hits=2, sent=1, answered=1, micros=7)
    assert [batch for _, batch in classifier.calls] == [("a",), ("b",), ("c",)]


def test_so_many_calls_go_at_a_time_and_no_more() -> None:
    classifier = Scripted(seconds=1.0)
    asking(*"abcdefg", classifier=classifier, terms=TWO)
    assert [moment for moment, _ in classifier.calls] == [0, 0, 1, 1, 2, 2, 3]
    assert classifier.busiest == 2


def test_questions_go_in_batches_in_their_order() -> None:
    classifier, ledger = Scripted(seconds=1.0), Noting()
    _, sender = asking(*"abcdefgh", classifier=classifier, ledger=ledger, terms=replace(ONE, batch=3))
    assert classifier.calls == [(0, ("a", "b", "c")), (1, ("d", "e", "f")), (2, ("g", "h"))]
    assert sender.progress == Progress(sent=8, answered=8, micros=56)


def test_no_more_is_entered_ahead_than_goes_at_a_time() -> None:
    """Until the first answer what is in flight counts as not sent; a crash counts no more than this as maybe paid."""
    classifier, ledger = Scripted(seconds=1.0), Noting()
    asking(*"abcdefghij", classifier=classifier, ledger=ledger, terms=replace(ONE, batch=2, concurrency=2))
    assert [batch for _, batch in classifier.calls] == [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("i", "j")]
    assert ledger.intents == [(0, 4), (1, 4), (1, 2)]


@pytest.mark.parametrize(("width", "together"), [(16, 2), (12, 1)])
def test_an_eighth_is_entered_together_as_long_as_there_are_so_many(width: int, together: int) -> None:
    ledger = Noting()
    names = map(chr, range(65, 65 + 4 * width))
    asking(*names, classifier=Scripted(seconds=1.0), ledger=ledger, terms=replace(ONE, concurrency=width))
    assert ledger.intents[0] == (0, width)
    assert min(entered for _, entered in ledger.intents) == together


def test_what_waits_for_its_turn_by_the_rate_counts_as_not_sent() -> None:
    classifier, ledger = Scripted(), Noting()
    asking(*"abcdefghijklmnop", classifier=classifier, ledger=ledger, terms=replace(ONE, concurrency=4), rate=Rate(1.0))
    for moment, _ in ledger.intents:
        entered = sum(count for at, count in ledger.intents if at <= moment)
        assert entered - sum(at <= moment for at, _ in classifier.calls) <= 4


def test_a_rate_is_kept_to_the_question() -> None:
    classifier = Scripted()
    asking(*"abcde", classifier=classifier, terms=TWO, rate=Rate(10.0))
    assert [moment for moment, _ in classifier.calls] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    batches = Scripted()
    asking(*"abcdef", classifier=batches, terms=replace(ONE, batch=3), rate=Rate(10.0))
    assert [moment for moment, _ in batches.calls] == pytest.approx([0.2, 0.5]), "a call waits for its last question"


def test_a_price_of_its_own_is_reserved_and_the_bill_counts_in_the_end() -> None:
    ledger, classifier = Noting(), Scripted({"a": [Answer("cat", 0.4)], "b": [Answer("cat", 0.4)]}, seconds=1.0)

    async def work() -> Sender:
        sender = made(classifier, ledger, meter=Tokenwise())
        assert sender.typical == Quote(3, 10)
        first, second = job("a", Quote(2, 8)), job("b")
        sender.send([first, second])
        await asyncio.sleep(0.5)
        assert sender.progress.micros == 8, "the most that it can cost while it is in flight"
        await settled(first, second)
        return sender

    progress = timeless(work()).progress
    assert ledger.reserves == [8, None]
    assert ledger.prices == {10}
    assert progress.micros == 1, "0.8 is rounded up once"
    assert (progress.input_tokens, progress.output_tokens, progress.cached_tokens) == (10, 4, 2)
    assert [note[-1] for note in ledger.notes] == [Bill(Tokens(5, 2, 1), 400_000, 2), Bill(Tokens(5, 2, 1), 400_000, 3)]


def test_bills_are_rounded_up_as_one_sum() -> None:
    sender = made(Scripted())
    for picos, micros in ((1_000_001, 2), (300_000, 2), (699_999, 2), (1, 3), (2_000_000, 5), (999_999, 5), (1, 6)):
        sender.count(Bill(Tokens(), picos, 0), 0)
        assert sender.progress.micros == micros
    sender.count(None, 5)
    assert sender.progress.micros == 6


def test_the_typical_price_is_that_of_a_phones_photo_at_the_working_size() -> None:
    class Sized(Tokenwise):
        def quote(self, height: int, width: int, *_: object) -> Quote:
            return Quote(height, width)

    sender = made(Scripted(), terms=replace(ONE, working_size=WorkingSize(long=2016)), meter=Sized())
    assert sender.typical == Quote(1512, 2016)
    assert made(Scripted()).typical == Quote(7, 7)


# --- failures


def test_a_question_that_is_lost_is_sent_again_after_waits_that_double() -> None:
    classifier, ledger = Scripted({"a": [LOST] * 9}), Noting()
    came, sender = asking("a", classifier=classifier, ledger=ledger)
    assert classifier.moments("a") == [0, 0.5, 1.5, 3.5, 7.5, 15.5]
    assert came == [Failure(Cause.CLASSIFIER, "lost")]
    assert sender.progress == Progress(sent=6, retries=5, micros=42)
    assert ledger.notes == [("give up", "a")] * 6
    assert (sender.fatal, sender.halt) == (None, None)


def test_waits_are_jittered_down_to_half_and_have_a_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.asking.sender.random.uniform", lambda low, high: low)
    classifier = Scripted({"a": [LOST] * 9, "b": [slow_down(2.0)]})
    asking("a", classifier=classifier, pace=RetryPolicy(longest=3.0))
    assert classifier.moments("a") == [0, 0.25, 0.75, 1.75, 3.25, 4.75]
    asking("b", classifier=classifier)
    assert classifier.moments("b") == [0, 2], "a wait that is asked for is never shorter"


@pytest.mark.parametrize("failure", [BROKEN, GARBLED])
def test_what_seldom_passes_gets_few_attempts(failure: TransientError) -> None:
    classifier = Scripted({"a": [failure] * 9, "b": [failure, failure]})
    came, _ = asking("a", "b", classifier=classifier, terms=TWO)
    assert came == [Failure(Cause.CLASSIFIER, str(failure)), CAT]
    assert classifier.moments("a") == classifier.moments("b") == [0, 0.5, 1.5]


def test_attempts_in_answers_are_counted() -> None:
    ledger = Noting()
    asking("a", classifier=Scripted({"a": [LOST, BROKEN]}), ledger=ledger)
    assert ledger.notes[-1] == ("record", "a", CAT, 0, 3, None)


def test_one_refusal_holds_up_nobody_but_the_question_that_was_refused() -> None:
    classifier, ledger = Scripted({"c": [slow_down(5.0)]}, seconds=1.0), Noting()
    came, sender = asking(*"abcdefgh", classifier=classifier, ledger=ledger)
    assert came == [CAT] * 8
    assert classifier.moments("c") == [2, 8.5], "so long, and a tenth more at the most"
    assert [batch for _, batch in classifier.calls] == [(name,) for name in "abcdefghc"]
    assert [moment for moment, _ in classifier.calls[:8]] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert sender.progress == Progress(sent=8, answered=8, retries=1, micros=56), "a refusal is not paid for"
    assert ("waived", "c") in ledger.notes


def test_where_everything_is_refused_all_wait_as_long_as_they_are_asked_to() -> None:
    classifier = Scripted({name: [slow_down(60.0)] for name in map(chr, range(65, 91))})
    came, _ = asking(*map(chr, range(65, 91)), classifier=classifier)
    assert came == [CAT] * 26
    early = [moment for moment, _ in classifier.calls if moment < 60]
    assert len(early) == 13, "more than three quarters of the last 16 replies"


def test_refusals_are_not_attempts_but_have_an_end_of_their_own() -> None:
    classifier = Scripted({"a": [slow_down(1.0)] * 9, "b": [slow_down()] * 3 + [LOST] * 9})
    came, _ = asking("a", classifier=classifier, pace=RetryPolicy(refusals=4))
    assert came == [Failure(Cause.CLASSIFIER, "slow down")]
    assert classifier.moments("a") == pytest.approx([0, 1.1, 2.2, 3.3])
    asking("b", classifier=classifier, pace=RetryPolicy(attempts=2))
    assert len(classifier.moments("b")) == 5


@pytest.mark.parametrize(
    ("failure", "told", "counted"),
    [
        (LOST, "give up", 2),
        (UNREACHED, "release", 1),
        (BROKEN, "billed", 2),
        (TransientError("busy", status=503, billed=True), "billed", 2),
        (slow_down(), "waived", 1),
    ],
)
def test_the_ledger_is_told_what_became_of_a_call(failure: TransientError, told: str, counted: int) -> None:
    ledger = Noting()
    _, sender = asking("a", "b", classifier=Scripted({"a": [failure]}), ledger=ledger, terms=replace(ONE, batch=2))
    assert ledger.notes[0] == (told, "a", "b")
    assert sender.progress == Progress(sent=2 * counted, answered=2, retries=2, micros=14 * counted)
    assert ledger.spent(Scripted.fingerprint).queries == 2 * counted


def test_an_error_that_will_not_pass_ends_everything() -> None:
    fault = PermanentError("the key was refused", status=401, billed=False)
    classifier, ledger = Scripted({"b": [fault]}), Noting()
    came, sender = asking(*"abcde", classifier=classifier, ledger=ledger)
    assert came == [CAT, *[Failure(Cause.CLASSIFIER, "the key was refused")] * 4]
    assert sender.fatal is fault
    assert sender.stopped
    assert [batch for _, batch in classifier.calls] == [("a",), ("b",)]
    assert sender.progress == Progress(sent=1, answered=1, micros=7)
    assert ledger.notes[1] == ("waived", "b")
    assert ledger.spent(Scripted.fingerprint).queries == 1


@pytest.mark.parametrize(("terms", "breaker", "calls"), [(ONE, 5, 5), (TWO, 5, 6), (ONE, 2, 3)])
def test_failures_in_a_row_stop_the_run(terms: Terms, breaker: int, calls: int) -> None:
    names = list("abcdefghij")
    classifier = Scripted({name: [UNREACHED] * 9 for name in names})
    came, sender = asking(*names, classifier=classifier, terms=terms, pace=RetryPolicy(breaker=breaker))
    assert len(classifier.calls) == calls
    assert type(sender.fatal) is ClassifierError
    said = str(sender.fatal)
    assert said.startswith(f"{calls} attempts in a row failed, so the run stopped with everything saved; ")
    assert "; the last one: not reached; run the same command again" in said
    assert {each for each in came if isinstance(each, Failure)} == {Failure(Cause.CLASSIFIER, said)}


def test_an_answer_between_failures_makes_them_no_row() -> None:
    async def work() -> None:
        sender = made(Scripted({name: [LOST] * 2 for name in "abc"}), pace=RetryPolicy(breaker=3))
        assert [await asked(sender, name) for name in "abc"] == [[CAT]] * 3
        assert sender.fatal is None

    timeless(work())


def test_failures_of_what_was_sent_before_a_pause_do_not_count() -> None:
    async def work() -> Sender:
        sender = made(Scripted(), pace=RetryPolicy(breaker=3))
        sender._adaptive.pause_until = 10.0
        for _ in range(5):
            sender.back_off(LOST)
        assert sender.fatal is None
        await asyncio.sleep(10.0)
        for _ in range(2):
            sender.back_off(LOST)
        assert sender.fatal is None
        sender.back_off(LOST)
        return sender

    assert str(timeless(work()).fatal).startswith("3 attempts in a row failed")


@pytest.mark.parametrize(
    ("failure", "asked_for"),
    [
        (LOST, [0.0]),
        (BROKEN, []),
        (slow_down(3.0), [3.0]),
        (slow_down(status=503), [0.0]),
        (slow_down(901.0), [900.0]),
    ],
)
def test_what_tells_of_a_busy_server_slows_everybody_down(failure: TransientError, asked_for: list[float]) -> None:
    heard: list[float | None] = []

    async def work() -> None:
        sender = made(Scripted())
        sender._adaptive.refused = lambda now, retry_after: heard.append(retry_after)  # type: ignore[method-assign]
        sender.back_off(failure)

    timeless(work())
    assert heard == asked_for


def test_a_wait_that_is_longer_than_allowed_stops_the_run_and_says_when_to_come_back() -> None:
    classifier = Scripted({"b": [slow_down(3600.0)]})
    came, sender = asking(*"abc", classifier=classifier)
    assert isinstance(sender.fatal, QuotaError)
    assert sender.fatal.retry_after == 3600.0
    assert sender._available_at
    assert timedelta(minutes=59) < sender._available_at - datetime.now(UTC) <= timedelta(hours=1)
    then = f"{sender._available_at.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    assert str(sender.fatal).startswith(f"the classifier wants to be left alone until {then}, which is further off")
    for part in (" than the longest wait of 900 s, so the run stopped", "raise --longest-wait (slow down)"):
        assert part in str(sender.fatal)
    assert came == [CAT, *[Failure(Cause.STOPPED, str(sender.fatal))] * 2]
    assert sender.blocked() == str(sender.fatal)
    sender.resume()
    assert sender.blocked() == f"the classifier wants to be left alone until {then}"
    sender._available_at = datetime.now(UTC)
    assert sender.blocked() is None


def test_the_longest_wait_that_is_allowed_is_waited_for() -> None:
    classifier = Scripted({"a": [slow_down(900.0)]})
    came, sender = asking("a", classifier=classifier)
    assert came == [CAT]
    assert sender.fatal is None
    assert classifier.moments("a") == [0, 990]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ClassifierError("", sent=False), Outcome.UNSENT),
        (ClassifierError("", sent=False, status=400), Outcome.UNSENT),
        (ClassifierError(""), None),
        (ClassifierError("", status=400), Outcome.REFUSED),
        (ClassifierError("", status=429, billed=False), Outcome.WAIVED),
    ],
)
def test_what_became_of_a_call_follows_from_its_error(error: ClassifierError, outcome: Outcome | None) -> None:
    assert module._outcome(error) is outcome


def test_too_few_answers_break_the_promise_of_a_connector() -> None:
    class Half(Scripted):
        async def label(self, batch: Sequence[str]) -> list[Answer]:
            return (await super().label(batch))[1:]

    came, sender = asking("a", "b", classifier=Half(), terms=replace(ONE, batch=2))
    assert str(sender.fatal) == "the classifier gave 1 answers to 2 questions"
    assert came == [Failure(Cause.CLASSIFIER, str(sender.fatal))] * 2
    assert sender.progress == Progress(sent=2, micros=14)


def broken_run(classifier: Scripted, ledger: Noting) -> tuple[Exception, Sender, list[Job]]:
    """What a round raises."""

    async def work() -> tuple[Exception, Sender, list[Job]]:
        sender, together = made(classifier, ledger, TWO), Round()
        jobs = [job(name) for name in "abcde"]
        for each in jobs:
            each.round, together.left = together, together.left + 1
        sender.send(jobs)
        with pytest.raises((LedgerError, ValueError)) as raised:
            await together.wait()
        await sender.finish()
        return raised.value, sender, jobs

    return timeless(work())


def test_a_connector_that_breaks_ends_the_run_with_its_own_error() -> None:
    fault, ledger = ValueError("not in my contract"), Noting()
    error, sender, jobs = broken_run(Scripted({"a": [fault]}), ledger)
    assert error is fault
    assert sender.halt == Failure(Cause.STOPPED, "not in my contract")
    assert ("give up", "a") in ledger.notes
    assert jobs[-1].answer == sender.halt
    assert sender._held == {}


def test_a_ledger_that_breaks_ends_the_run_with_its_own_error() -> None:
    class Full(Noting):
        def intend(self, *rest: object) -> Future[Grant]:
            raise LedgerError("the disk is full")

        def give_up(self, keys: Sequence[bytes]) -> None:
            raise LedgerError("it is closed by now")

    error, sender, jobs = broken_run(Scripted(), Full())
    assert str(error) == "the disk is full"
    assert jobs[-1].answer == sender.halt == Failure(Cause.STOPPED, "the disk is full")
    assert sender._entering == 0


# --- what the ledger says to a question


def test_what_the_budget_does_not_cover_is_refused_with_what_it_was() -> None:
    came, sender = asking(*"abcd", classifier=Scripted(), budget=Budget(queries=2))
    why = sender.why_refused([job("e")])
    assert why.startswith("the budget of 2 queries is spent (2 of 2); raise --budget")
    assert came == [CAT, CAT, *[Failure(Cause.BUDGET, why)] * 2]
    sender.budget = Budget(micros=25)
    dear = sender.why_refused([job("e", Quote(1, 1)), job("f", Quote(1, 20))])
    assert dear.startswith("the budget of 2.5e-05 in money is spent (1.4e-05 of 2.5e-05, and a query may cost 2e-05)")


def test_the_first_refusal_is_what_all_are_told() -> None:
    async def work() -> list[Answer | Failure]:
        sender = made(Scripted(), budget=Budget(queries=1))
        first = await asked(sender, "a", "b")
        sender.budget = Budget(queries=0)
        return [*first, *await asked(sender, "c")]

    _, second, third = timeless(work())
    assert second == third


def test_a_reserve_that_is_refused_waits_for_the_bills_of_those_in_flight() -> None:
    async def work() -> tuple[list[Answer | Failure], list[tuple[float, tuple[str, ...]]]]:
        classifier = Scripted({name: [Answer("cat", 1.0)] for name in "ab"}, seconds=0.12)
        sender = made(classifier, Noting(), TWO, budget=Budget(micros=15), meter=Tokenwise())
        jobs = [job(name, Quote(3, 10)) for name in "ab"]
        sender.send(jobs)
        return await settled(*jobs), classifier.calls

    came, calls = timeless(work())
    assert [each.label for each in came if isinstance(each, Answer)] == ["cat", "cat"]
    assert calls == [(0, ("a",)), (0.15, ("b",))], "it looks every 50 ms"


def test_a_refusal_that_comes_after_the_bills_of_those_in_flight_is_not_for_good() -> None:
    class Late(Noting):
        """Decides at once, and says a second later that it refused."""

        def intend(self, *words: Any) -> Future[Grant]:
            decided, later = super().intend(*words).result(), Future[Grant]()
            wait = 1.0 if decided.refused else 0.0
            asyncio.get_running_loop().call_later(wait, later.set_result, decided)
            return later

    async def work() -> list[Answer | Failure]:
        classifier = Scripted({name: [Answer("cat", 1.0)] for name in "ab"}, seconds=0.12)
        sender = made(classifier, Late(), TWO, budget=Budget(micros=15), meter=Tokenwise())
        jobs = [job(name, Quote(3, 10)) for name in "ab"]
        sender.send(jobs[:1])
        await asyncio.sleep(0.01)
        sender.send(jobs[1:])
        return await settled(*jobs)

    assert [each.label for each in timeless(work()) if isinstance(each, Answer)] == ["cat", "cat"]


def test_a_reserve_is_refused_for_good_once_nothing_is_in_flight() -> None:
    async def work() -> list[Answer | Failure]:
        sender = made(Scripted(), budget=Budget(micros=5), meter=Tokenwise())
        sender.send([dear := job("a", Quote(3, 10))])
        return await settled(dear)

    [came] = timeless(work())
    assert isinstance(came, Failure)
    assert came.cause is Cause.BUDGET


def test_what_another_session_has_in_flight_is_looked_for_more_and_more_seldom() -> None:
    memory, classifier = Memory(), Scripted(seconds=3.0)

    async def work() -> tuple[list[Answer | Failure], Sender, Noting]:
        made(classifier, Noting(memory)).send([job("a")])
        await asyncio.sleep(0)
        ledger = Noting(memory)
        other = made(classifier, ledger)
        return await asked(other, "a"), other, ledger

    came, other, ledger = timeless(work())
    assert came == [CAT]
    assert other.progress == Progress(hits=1)
    assert [moment for moment, _ in ledger.intents] == pytest.approx([0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55])


def test_a_question_in_an_open_batch_is_not_asked() -> None:
    class Batched(Noting):
        def intend(self, fingerprint: str, entries: Sequence[Entry], *_: object) -> Future[Grant]:
            done: Future[Grant] = Future()
            done.set_result(Grant(batched=[each.key for each in entries]))
            return done

    classifier = Scripted()
    came, _ = asking("a", classifier=classifier, ledger=Batched())
    assert came == [IN_A_BATCH]
    assert classifier.calls == []


def test_what_is_in_flight_for_long_is_held_on_to_but_not_for_ever() -> None:
    ledger = Noting()
    asking("a", classifier=Scripted(seconds=2.5 * RENEWAL), ledger=ledger)
    assert ledger.notes[:2] == [(RENEWAL, "a"), (2 * RENEWAL, "a")]
    assert ledger.notes[2][0] == "record"
    assert len(ledger.notes) == 3


@pytest.mark.parametrize("asleep", [STALL, STALL + 1])
def test_a_process_that_was_asleep_enters_its_questions_again_before_it_sends_them(
    asleep: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, classifier, now = Noting(), Scripted(), [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    async def work() -> list[Answer | Failure]:
        sender = made(classifier, ledger, replace(ONE, batch=2), rate=Rate(0.1))
        jobs = [job("a"), job("b")]
        sender.send(jobs)
        await asyncio.sleep(5)
        now[0] += asleep
        return await settled(*jobs)

    assert timeless(work()) == [CAT, CAT]
    if asleep > STALL:
        assert ("release", "a", "b") in ledger.notes
        assert ledger.intents == [(0, 2), (10, 2)]
    assert classifier.calls == [(30 if asleep > STALL else 10, ("a", "b"))]
    assert ledger.spent(Scripted.fingerprint).queries == 2


@pytest.mark.parametrize("jump", [3600, -3600, STALL])
def test_leases_are_renewed_at_once_when_the_clock_is_set(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, now = Noting(), [10_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    async def work() -> list[Answer | Failure]:
        sender = made(Scripted(seconds=20), ledger, ONE)
        sender.send([asked := job("a")])
        await asyncio.sleep(1)
        now[0] += jump
        return await settled(asked)

    assert timeless(work()) == [CAT]
    assert [note for note in ledger.notes if note[0] != "record"] == ([(5, "a")] if abs(jump) > STALL else [])


def test_all_that_is_in_flight_is_renewed_together() -> None:
    async def work() -> list[tuple[object, ...]]:
        ledger = Noting()
        sender = made(Scripted(seconds=1.5 * RENEWAL), ledger, TWO)
        sender.send([first := job("a")])
        await asyncio.sleep(100)
        sender.send([second := job("b")])
        await settled(first, second)
        await sender.finish()
        return [note for note in ledger.notes if note[0] != "record"]

    assert timeless(work()) == [(RENEWAL, "a", "b")]


def test_the_answer_to_a_question_that_was_forgotten_is_kept() -> None:
    async def work() -> list[Answer | Failure]:
        sender = made(Scripted(seconds=1.0))
        sender.send([one := job("a")])
        await asyncio.sleep(0.5)
        sender._held.clear()
        return await settled(one)

    assert timeless(work()) == [CAT]


def test_what_is_in_flight_for_a_day_is_not_held_on_to() -> None:
    class Away(Noting):
        def renew(self, keys: Sequence[bytes]) -> None:
            super().renew(keys)
            raise LedgerError("it is away, which whoever needs it is told")

    async def work() -> Noting:
        ledger = Away()
        await asyncio.sleep(LONGEST_HOLD)
        await asked(made(Scripted(seconds=LONGEST_HOLD + 2 * LEASE), ledger), "a")
        return ledger

    *renewals, _ = timeless(work()).notes
    assert [len(note) for note in renewals] == [2] * 287 + [1] * 7


def test_what_is_renewed_ends_with_the_last_question() -> None:
    async def work() -> tuple[Sender, list[tuple[object, ...]]]:
        ledger = Noting()
        sender = made(Scripted(seconds=1.0), ledger)
        sender.send([one := job("a")])
        await settled(one)
        assert sender._renewal
        await asyncio.sleep(2 * RENEWAL)
        assert sender._renewal is None, "nothing was held when it was time"
        await asked(sender, "b")
        assert sender._renewal is None
        await asyncio.sleep(2 * RENEWAL)
        return sender, [note for note in ledger.notes if note[0] != "record"]

    _, renewals = timeless(work())
    assert renewals == []


# --- stopping and going on


def test_stopping_waits_for_what_is_in_flight_and_gives_the_rest_back() -> None:
    async def work() -> tuple[list[Answer | Failure], Sender, Noting, Scripted]:
        ledger, classifier = Noting(), Scripted(seconds=1.0)
        sender = made(classifier, ledger, TWO)
        jobs = [job(name) for name in "abcdefgh"]
        sender.send(jobs)
        await asyncio.sleep(1.5)
        assert not sender.stopped
        sender.stop(STOP)
        sender.stop(Failure(Cause.STOPPED, "too late"))
        assert sender.stopped
        assert jobs[-1].answer == STOP, "what is not entered is told at once"
        await sender.finish()
        assert asyncio.get_running_loop().time() == 2.0
        return await settled(*jobs), sender, ledger, classifier

    came, sender, ledger, classifier = timeless(work())
    assert came == [CAT] * 4 + [STOP] * 4
    assert len(classifier.calls) == 4
    assert sorted(note for note in ledger.notes if note[0] != "record") == [("release", "e"), ("release", "f")]
    assert ledger.spent(Scripted.fingerprint).queries == 4
    assert sender.progress == Progress(sent=4, answered=4, micros=28)


def test_a_question_that_rests_is_told_at_once_when_the_run_is_stopped() -> None:
    async def work() -> tuple[Answer | Failure, float]:
        sender = made(Scripted({"a": [slow_down(600.0)]}))
        sender.send([resting := job("a")])
        await asyncio.sleep(1.0)
        assert resting.answer is None
        sender.stop(STOP)
        await sender.finish()
        assert resting.answer
        return resting.answer, asyncio.get_running_loop().time()

    assert timeless(work()) == (STOP, 1.0)


def test_a_failure_after_the_stop_is_not_tried_again() -> None:
    async def work() -> list[Answer | Failure]:
        classifier = Scripted({"a": [LOST]}, seconds=1.0)
        sender = made(classifier)
        sender.send([one := job("a")])
        await asyncio.sleep(0.5)
        sender.stop(STOP)
        await sender.finish()
        assert len(classifier.calls) == 1
        assert sender.progress.retries == 0
        return await settled(one)

    assert timeless(work()) == [STOP]


def test_a_stopped_sender_goes_on_when_it_is_let() -> None:
    async def work() -> list[Answer | Failure]:
        sender = made(Scripted(), pace=RetryPolicy(breaker=3))
        sender.back_off(LOST)
        sender.back_off(LOST)
        sender.end(PermanentError("down"))
        assert (sender.halt, str(sender.fatal)) == (Failure(Cause.CLASSIFIER, "down"), "down")
        sender.end(PermanentError("down again"))
        assert str(sender.fatal) == "down"
        sender.resume()
        assert not sender.stopped
        assert (sender.fatal, sender.halt) == (None, None)
        sender.back_off(LOST)
        sender.back_off(LOST)
        assert sender.fatal is None, "failures are counted anew"
        return await asked(sender, "a")

    assert timeless(work()) == [CAT]


def test_a_sender_is_starved_while_a_question_rests_and_little_else_is_due() -> None:
    async def work() -> None:
        sender = made(Scripted({"b": [slow_down(60.0)], "d": [slow_down(1.0)]}, seconds=1.0), terms=TWO)
        waiting = asyncio.create_task(sender.until_starved())
        await asked(sender, "a")
        assert not sender.starved
        assert not waiting.done()

        resting, others = job("b"), [job(name) for name in "cdefghijkl"]
        sender.send([resting, *others])
        await asyncio.sleep(2.5)
        assert sender._resting_jobs == 2, "both that were sent away"
        assert not sender.starved, "others are due"
        await settled(*others)
        assert sender._resting_jobs == 1
        assert sender.starved
        await asyncio.wait_for(waiting, 0.1)
        assert resting.answer is None

        await settled(resting)
        assert not sender.starved
        assert not sender._backing_off.is_set()
        assert sender._resting_jobs == sender._waiting == sender._entering == sender._senders == 0
        assert sender._held == {}

    timeless(work())


# --- what is left


@pytest.mark.parametrize(
    ("budget", "before", "after"),
    [
        (Budget(), (None, None), (None, None)),
        (Budget(queries=12), (12, None), (10, None)),
        (Budget(micros=30), (4, 30), (2, 16)),
        (Budget(queries=3, micros=700), (3, 700), (1, 686)),
    ],
)
def test_it_says_how_many_queries_and_how_much_money_are_left(
    budget: Budget, before: tuple[int | None, int | None], after: tuple[int | None, int | None]
) -> None:
    async def work() -> None:
        sender = made(Scripted(), budget=budget)
        assert (sender.room(), sender.money_left()) == before
        await asked(sender, "a", "b")
        assert (sender.room(), sender.money_left()) == after

    timeless(work())


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(queries=2), "the budget is spent; raise it"),
        (Budget(micros=20), "the budget is spent; raise it"),
        (Budget(queries_per_day=2), "the budget of this day is spent; the next day begins"),
        (Budget(micros_per_day=20), "the budget of this day is spent; the next day begins"),
        (Budget(queries=2, queries_per_day=2), "the budget is spent; raise it"),
        (Budget(queries=3), None),
    ],
)
def test_it_says_why_nothing_can_be_asked(budget: Budget, why: str | None) -> None:
    _, sender = asking("a", "b", classifier=Scripted(), budget=budget)
    said = sender.blocked()
    assert said is why is None or (said and why and said.startswith(why))


def test_a_ledger_that_cannot_be_read_blocks() -> None:
    class Closed(Noting):
        def spend(self, fingerprint: str) -> Account:
            raise LedgerError("it is closed")

    sender = made(Scripted(), Closed())
    assert sender.blocked() == "it is closed"
    sender.stop(STOP)
    assert sender.blocked() == "enough"


# --- probes


def probing(
    script: Sequence[Answer | Exception] = (), before: Callable[[Sender], object] = lambda sender: None, **parts: Any
) -> tuple[object, Sender, Noting]:
    """What a probe gives or raises."""
    ledger = Noting()

    async def work() -> tuple[object, Sender, Noting]:
        sender = made(Scripted({"p": script}, seconds=1.0), ledger, **parts)
        before(sender)
        try:
            return await sender.probe("p", Quote(3, 10)), sender, ledger
        except ClassifierError as error:
            return error, sender, ledger

    return timeless(work())


def test_a_probe_is_paid_for_and_not_kept() -> None:
    came, sender, ledger = probing([Answer("dog", 0.4)], meter=Tokenwise())
    assert came == Answer("dog", 0.4)
    bill = Bill(Tokens(5, 2, 1), 400_000, 3)
    assert ledger.notes == [(Outcome.ANSWERED, 1, bill)]
    assert sender.progress == Progress(sent=1, micros=1, input_tokens=5, output_tokens=2, cached_tokens=1)
    flat = probing()
    assert flat[2].notes == [(Outcome.ANSWERED, 1, None)]
    assert flat[1].progress == Progress(sent=1, micros=10)
    assert flat[2].spent(Scripted.fingerprint) == Account(1, 10, 1, 10, 0, 0)


def test_a_probe_that_the_budget_does_not_cover_is_not_sent() -> None:
    came, sender, ledger = probing(budget=Budget(micros=9))
    assert came is None
    assert sender.progress == Progress()
    assert ledger.notes == []


def test_a_probe_is_not_sent_once_the_run_is_stopped() -> None:
    came, sender, ledger = probing(before=lambda sender: sender.stop(STOP))
    assert came is None
    assert sender.progress == Progress()
    assert ledger.notes == [(Outcome.UNSENT, 1, None)]
    assert ledger.spent(Scripted.fingerprint).queries == 0


@pytest.mark.parametrize(
    ("error", "notes", "sent"),
    [
        (LOST, [], 1),
        (UNREACHED, [(Outcome.UNSENT, 1, None)], 0),
        (BROKEN, [(Outcome.REFUSED, 1, None)], 1),
        (slow_down(), [(Outcome.WAIVED, 1, None)], 0),
        (PermanentError("no", status=401, billed=False), [(Outcome.WAIVED, 1, None)], 0),
    ],
)
def test_a_probe_that_fails_is_counted_as_its_failure_says(
    error: ClassifierError, notes: list[object], sent: int
) -> None:
    came, sender, ledger = probing([error])
    assert came is error
    assert ledger.notes == notes
    assert sender.progress == Progress(sent=sent, micros=10 * sent)


def test_a_probe_waits_for_its_turn_as_questions_do() -> None:
    async def work() -> float:
        classifier = Scripted(seconds=1.0)
        sender = made(classifier, rate=Rate(0.5))
        sender.send([one := job("a")])
        await asyncio.sleep(0.5)
        await asyncio.gather(sender.probe("p", Quote(3, 10)), settled(one))
        assert classifier.busiest == 1
        return classifier.moments("p")[0]

    assert timeless(work()) == 2.0
