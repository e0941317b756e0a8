"""One query, from its claim to its answer: `Runner._ask` shows the steps in order.

Every attempt is a separate claim, committed before it is sent and settled before its answer is used. Nothing is claimed
while a retry waits. Free classifiers are queried without claims.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from looktwice.classifiers import Answer, AnyClassifier, Limits, Rereadable, reading
from looktwice.engine.budget import MICRO, TYPICAL_SIZE, Bill, Budget, FlatMeter, Meter, Spend
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.schema import Account, Claim, Entry, InBatch, Outcome, OverBudget, Settled, Stored, Wait
from looktwice.engine.ledger.transaction import Transaction
from looktwice.engine.limits import Answered, Calls, Concurrency, Permits, RetryPolicy, Tries
from looktwice.engine.query import Bought, Cause, Failure, Progress, Query, Scores
from looktwice.errors import ClassifierError, LedgerError, QuotaError, TransientError

SOONEST, LATEST = 0.05, 1.0
"""The initial and the maximum delay in seconds before a query that cannot be claimed yet is retried."""
MOST_AHEAD = 0.5
"""The maximum number of claims beyond the concurrency, as a share of it, so that no call waits for a commit."""

IN_A_BATCH = Failure(
    Cause.STOPPED, "the query is in a batch whose results are not in the ledger yet; run with --batch to fetch them"
)
ABANDONED = Failure(Cause.STOPPED, "the query was cancelled")


FREE = Claim(Entry(b"", "", "", 0, 0), 0, 0, 0, 0.0)
"""The placeholder for the claim of a free query, which is not stored."""


@dataclass(frozen=True)
class Settings:
    """Settings for one classifier; only the seed and the working size affect answers."""

    limits: Limits
    seed: int = 0
    scores: Scores = "use"
    label_check: int = 0
    """The number of pictures whose labels are compared with their true labels before all others are queried."""
    canaries: int = 0
    budgets: tuple[Budget, ...] = ()
    """The classifier's own budget, and the budget shared with the model's other classifiers."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    description: str = ""
    """The description of the classifier in the ledger."""


class Runner:
    """Gets answers from one classifier, within its limits and the budget."""

    def __init__(
        self, classifier: AnyClassifier, ledger: Ledger | None, settings: Settings, meter: Meter | None = None
    ) -> None:
        self.classifier, self.ledger, self.settings = classifier, ledger, settings
        self.reading = reading(classifier)
        limits = settings.limits
        self.meter = meter or FlatMeter(limits.price_micros)
        self.typical = self.meter.quote(*limits.working_size.scaled(*TYPICAL_SIZE))
        """The price of a query about a picture of unknown size."""
        self.progress = Progress()
        self._holds = False
        """Whether relative budgets have been resolved."""
        self.calls = Calls(classifier, Concurrency(limits.concurrency), limits.batch, settings.retry.longest_wait)
        self.halt: Failure | None = None
        """The reason why nothing more is sent; None while running."""
        self.fatal: Exception | None = None
        """The error that the run raises once it is halted."""
        self._stopping = asyncio.Event()
        self._permits = Permits(self._most_claims)
        self._commit_seconds = 0.0
        self._asking: dict[bytes, tuple[Query, asyncio.Task[Bought | Failure]]] = {}
        self._available_at: datetime | None = None
        """The time at which the classifier accepts queries again, according to Retry-After."""
        self._rounding = 0
        """The total rounding error of this run's billed costs, in picos."""

    @property
    def account(self) -> Account:
        """The account of claims."""
        settings = self.settings
        return Account(self.classifier.fingerprint, settings.budgets, settings.limits.per_second, settings.description)

    async def hold_budgets(self) -> None:
        """Resolve relative budgets once per command; an interrupted command continues with the same totals."""
        stated = self.settings.budgets
        if self.ledger and not self._holds and any(budget.scope for budget in stated):
            held = await self.ledger.change(
                lambda transaction: tuple(
                    transaction.hold_budget(budget) if budget.scope else budget for budget in stated
                )
            )
            self.settings = replace(self.settings, budgets=held)
            self._holds = True

    async def release_budgets(self) -> None:
        """End the command; the next one resolves its budgets again."""
        if self.ledger and self._holds:
            for budget in self.settings.budgets:
                await self.ledger.change(partial(Transaction.forget_budget, scope=budget.scope))

    # Asking ----------------------------------------------------------------------------------------------------------

    def start(self, query: Query) -> asyncio.Task[Bought | Failure]:
        """Start a task that gets the answer to a query; identical queries in progress share it.

        The task continues if the waiting caller is cancelled; the caller must then call `leave`, so that the query is
        not sent.
        """
        key = query.entry.key
        if key not in self._asking or self._asking[key][1].done():
            task = asyncio.create_task(self._ask(query))
            self._asking[key] = query, task
            task.add_done_callback(partial(self._forget, key))
        first, task = self._asking[key]
        first.waiting += 1
        return task

    async def ask_free(self, queries: Sequence[Query]) -> None:
        """Answer free queries in full batches, without storing the answers; failures are retried."""
        size = self.settings.limits.batch
        groups = [queries[start : start + size] for start in range(0, len(queries), size)]
        calls = [asyncio.create_task(self._call_free([query.prepared for query in group])) for group in groups]
        await asyncio.wait(calls)  # which goes on for others in the same call if this task is cancelled
        for group, call in zip(groups, calls, strict=True):
            answered = call.result()
            if isinstance(answered, Exception) and not isinstance(answered, ClassifierError):
                raise answered
            if isinstance(answered, ClassifierError) and not isinstance(answered, TransientError):
                self.end(answered)
                for query in group:
                    query.answer = self.halt
            elif isinstance(answered, Answered):
                self._count(len(group), 0)
                self.progress.answered += len(group)
                for query, answer in zip(group, answered.answers, strict=True):
                    query.answer = answer
            else:
                for query in group:
                    query.take(await asyncio.shield(self.start(query)))

    async def _call_free(self, prepared: Sequence[object]) -> Answered | Exception | None:
        try:
            return await self.calls.send(prepared, lambda: not self.halt)
        except Exception as error:
            return error

    def _forget(self, key: bytes, task: asyncio.Task[Bought | Failure]) -> None:
        _ = task.cancelled() or task.exception()  # retrieved: of several errors, the run raises the first
        if self._asking[key][1] is task:
            del self._asking[key]

    def leave(self, query: Query) -> None:
        """Stop waiting for an answer; it is stored when it arrives."""
        if asked := self._asking.get(query.entry.key):
            asked[0].waiting -= 1
            if not asked[0].waiting:
                self.calls.wake()

    async def _ask(self, query: Query) -> Bought | Failure:
        """Get the answer to one query and its cost, or the reason why there is no answer."""
        tries, wait, waited_since = Tries(self.settings.retry), SOONEST, time.monotonic()
        while not (ended := self._ended(query)):
            async with self._permits:
                claim = await self._claim(query)
                if isinstance(claim, Claim):
                    reply = await self._send(query, claim)
                    settled = self._settle(query, claim, reply)
            if isinstance(claim, Bought | Failure):
                return claim
            if isinstance(claim, Wait):  # another process has it in flight
                if time.monotonic() - waited_since > self.settings.retry.longest_wait:
                    return Failure(Cause.STOPPED, "another process has had the query in flight for too long; run again")
                await self.pause(wait)
                wait = min(LATEST, 2 * wait)
                continue
            retry_after = self._after_failure(reply, tries) if isinstance(reply, ClassifierError) else 0.0
            await settled
            if isinstance(reply, Answered):
                (answer,) = reply.answers
                bill = self.meter.bill(answer)
                picos = claim.spent + (bill.picos if bill else claim.reserve)
                return Bought(replace(answer, raw=None) if answer.raw is not None else answer, picos)
            if retry_after is None or (isinstance(reply, ClassifierError) and not query.retried):
                return self.halt or Failure(Cause.CLASSIFIER, str(reply), reply)
            await self.pause(retry_after)
        return ended

    def _ended(self, query: Query) -> Failure | None:
        return self.halt or (None if query.waiting else ABANDONED)

    async def _claim(self, query: Query) -> Claim | Wait | Bought | Failure:
        """Claim a query; returns the claim, the stored answer, or the reason why the query cannot be sent.

        If the budget does not cover it, wait for open claims, which may still return money.
        """
        if self.ledger is None:
            return FREE
        wait = SOONEST
        reserve, until = (query.quote or self.typical).most * MICRO, time.monotonic() + self.settings.retry.longest_wait
        while True:
            started = time.perf_counter()
            (granted,) = await self.ledger.claim(self.account, [(query.entry, reserve)])
            self._commit_seconds = 0.8 * self._commit_seconds + 0.2 * (time.perf_counter() - started)
            match granted:
                case Stored():
                    self.progress.hits += 1
                    answer = await asyncio.to_thread(self.read_stored, query, granted)
                    return answer if isinstance(answer, Failure) else Bought(answer, granted.picos)
                case InBatch():
                    return IN_A_BATCH
                case OverBudget(budget, spend):
                    return Failure(Cause.BUDGET, budget.exhausted(spend, reserve))
                case Wait(elsewhere=False) if not self._ended(query) and time.monotonic() < until:
                    await self.pause(wait)
                    wait = min(LATEST, 2 * wait)
                case _:
                    return granted

    async def _send(self, query: Query, claim: Claim) -> Answered | ClassifierError | None:
        """Send a claim when it is due; returns the reply, or None if it was not sent."""

        def may_send() -> bool:
            return not self._ended(query) and (self.ledger is None or self.ledger.is_current(claim))

        if self.ledger and (delay := claim.send_at - self.ledger.now()) > 0:
            await self.pause(delay)
        quote = query.quote or self.typical
        self._count(1, quote.most)
        try:
            sent = await self.calls.send([query.prepared], may_send)
        except ClassifierError as error:
            if not error.billed:
                self._count(-1, -quote.most)
            return error
        except BaseException:
            if self.ledger:
                self.ledger.settle(claim, Settled(claim.entry.key, Outcome.KEPT))
            raise
        if sent is None:
            self._count(-1, -quote.most)
            return None
        self.progress.answered += 1
        return sent

    def _settle(self, query: Query, claim: Claim, reply: Answered | ClassifierError | None) -> asyncio.Future[None]:
        """Queue the settlement of a claim; unsent or unbilled queries are given back."""
        key = claim.entry.key
        if isinstance(reply, Answered):
            (answer,) = reply.answers
            bill = self.meter.bill(answer)
            self.count_bill(bill, (query.quote or self.typical).most)
            settled = Settled(key, answer, bill, reply.latency, self.reading)
        else:
            kept = reply is not None and reply.billed
            settled = Settled(key, Outcome.KEPT if kept else Outcome.UNSENT)
        if self.ledger:
            return self.ledger.settle(claim, settled)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def _after_failure(self, error: ClassifierError, tries: Tries) -> float | None:
        """The seconds until the next attempt, or None if there will be none; halts the run if it cannot continue."""
        policy = self.settings.retry
        if not isinstance(error, TransientError):
            self.end(error)
            return None
        if error.retry_after and error.retry_after > policy.longest_wait:
            self._end_until(error, error.retry_after)
        elif self.calls.failures >= max(policy.breaker, 3 * self.calls.concurrency.most):
            self.end(
                ClassifierError(
                    f"{self.calls.failures} attempts in a row failed, so the run stopped with everything saved; "
                    f"the last error: {error}; run the same command again to resume"
                )
            )
        wait = None if self.halt else tries.wait(error)
        self.progress.retries += wait is not None
        return wait

    # What the ledger knows -------------------------------------------------------------------------------------------

    def read_stored(self, query: Query, stored: Stored) -> Answer | Failure:
        """Load a stored answer; if the settings for parsing replies have changed, the stored reply is parsed again,
        without a query."""
        if stored.reading == self.reading or not isinstance(self.classifier, Rereadable):
            return stored.answer
        reply = self.ledger.reply(query.entry.key) if self.ledger else None
        if reply is None:
            return Failure(
                Cause.CLASSIFIER,
                "the reply was too long to be stored in full, so it cannot be parsed again with "
                "different settings; specify another ledger",
            )
        try:
            return self.classifier.reread(reply, stored.answer.status)
        except ClassifierError as error:
            return Failure(Cause.CLASSIFIER, str(error), error)

    def remaining(self) -> int | None:
        """The number of further queries that the budget covers; None without a limit."""
        price = self.typical.most * MICRO
        return min((budget.remaining(spend, price) for budget, spend in self._spends() if budget.is_limited()),
                   default=None)  # fmt: skip

    def money_left(self) -> int | None:
        """The remaining money, in millionths; None without a limit."""
        left = (budget.money_left(spend) for budget, spend in self._spends())
        return min((money for money in left if money is not None), default=None)

    def _spends(self) -> list[tuple[Budget, Spend]]:
        """Each budget with its spend."""
        alone = (self.classifier.fingerprint,)
        return [
            (budget, self.ledger.spend(*(budget.group or alone))) for budget in self.settings.budgets if self.ledger
        ]

    def unavailable(self) -> str | None:
        """The reason why no query can be sent now, as a sentence; None if queries can be sent."""
        if self.halt:
            return self.halt.message
        if self._available_at and datetime.now(UTC) < self._available_at:
            return f"the classifier is rate-limited until {_local(self._available_at)}"
        try:
            return self._spent()
        except LedgerError as error:
            return str(error)

    def _spent(self) -> str | None:
        price = self.typical.most * MICRO
        short = [(budget, spend) for budget, spend in self._spends() if not budget.covers(spend, price)]
        if not short:
            return None
        if all(
            replace(budget, queries_per_day=None, micros_per_day=None).covers(spend, price) for budget, spend in short
        ):
            return "the budget of this day is spent; the next day begins at midnight UTC"
        return "the budget is spent; raise it to continue"

    # Ending ----------------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stopping.is_set()

    def stop(self, halt: Failure) -> None:
        """Send nothing more; queries in flight are awaited."""
        self.halt = self.halt or halt
        self._stopping.set()
        self.calls.wake()

    def end(self, error: Exception, cause: Cause = Cause.CLASSIFIER) -> None:
        """Stop permanently; the run raises this error after the queries in flight are completed."""
        self.fatal = self.fatal or error
        self.stop(Failure(cause, str(error), error))

    def resume(self) -> None:
        """Undo `stop`."""
        self._stopping.clear()
        self.halt = self.fatal = None
        self.calls.failures = 0

    async def finish(self) -> None:
        """Wait for the calls in flight, and until their answers are committed."""
        await asyncio.gather(*(task for _, task in self._asking.values()), return_exceptions=True)

    async def pause(self, seconds: float) -> None:
        """Sleep, but wake up if the run is stopped."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _end_until(self, error: TransientError, seconds: float) -> None:
        """Halt the run if the classifier requests a longer wait than allowed; the message states when the wait ends."""
        self._available_at = datetime.now(UTC) + timedelta(seconds=seconds)
        self.end(
            QuotaError(
                f"the classifier is rate-limited until {_local(self._available_at)}, which exceeds --longest-wait "
                f"({self.settings.retry.longest_wait:g} s), so the run stopped with everything saved; run the same "
                f"command again then, or raise --longest-wait ({error})",
                retry_after=seconds,
                code="rate-limited",
            ),
            Cause.STOPPED,
        )

    # Counting --------------------------------------------------------------------------------------------------------

    def _most_claims(self) -> int:
        """The maximum number of open claims: the concurrency, plus a number in proportion to the duration of a
        commit."""
        calls = max(1, int(self.calls.concurrency.size)) * self.settings.limits.batch
        ahead = min(MOST_AHEAD, 2 * self._commit_seconds / max(self.calls.seconds, 1e-4)) if self.ledger else 1.0
        return calls + int(calls * ahead)

    def _count(self, queries: int, micros: int) -> None:
        self.progress.sent += queries
        self.progress.micros += micros

    def count_bill(self, bill: Bill | None, counted: int) -> None:
        """Replace a query's reserve by its billed cost."""
        if bill:
            micros = -(-(bill.picos - self._rounding) // MICRO)
            self._rounding += micros * MICRO - bill.picos
            self.progress.micros += micros - counted
            self.progress.input_tokens += bill.tokens.input
            self.progress.output_tokens += bill.tokens.output
            self.progress.cached_tokens += bill.tokens.cached


def _local(moment: datetime) -> str:
    """Format a time in the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
