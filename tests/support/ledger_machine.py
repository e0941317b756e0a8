"""What must always hold of a ledger, as a state machine that knows nothing of its inside.

Three processes share a ledger, in which two classifiers have budgets of their own and one together. Each settles what
it has in flight and claims more, is killed between any two statements, stalls until the others take it for dead, or
leaves; meanwhile days pass. `Model` says on one page what the
ledger must answer and count. `python -m support.ledger_machine --steps 20000` in `tests` is the long form.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from hypothesis import HealthCheck, Phase, seed as seeded, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

Granted = Literal["granted", "answered", "elsewhere", "later", "refused"]
"""What a claim is told: send it; it is answered; it is in flight; the budget may cover it later, or does not."""
DAY = 86_400
FIRST_DAY = 20_000
SEQUENCE = 40
"""Steps on one ledger, at most."""


class Crashed(Exception):
    """The process of a session was killed."""


class Limits(NamedTuple):
    """A budget in queries and money, in total and by the day; None is no limit."""

    queries: int | None = None
    picos: int | None = None
    queries_per_day: int | None = None
    picos_per_day: int | None = None


class Counted(NamedTuple):
    """What is spent, in the order of `Limits`."""

    queries: int
    picos: int
    queries_today: int
    picos_today: int

    def plus(self, other: Counted) -> Counted:
        return Counted(*(one + more for one, more in zip(self, other, strict=True)))

    def covers(self, limits: Limits, price: int) -> bool:
        """Whether the limits cover one more query at this price."""
        checks = zip(limits, self, (1, price, 1, price), strict=True)
        return all(most is None or not more or spent + more <= most for most, spent, more in checks)


class Budgets(NamedTuple):
    """The limits of each classifier alone, and of both together."""

    own: tuple[Limits, Limits] = (Limits(), Limits())
    total: Limits = Limits()


def classifier_of(query: int) -> int:
    """The classifier that a query is for: 0 or 1."""
    return query % 2


class Request(NamedTuple):
    """A query to be claimed, and the most it can cost."""

    query: int
    price: int


class Settlement(NamedTuple):
    """How a claim ended; an answer without a bill costs what was reserved."""

    query: int
    ending: Literal["answered", "unsent", "lost"]
    label: str = ""
    bill: int | None = None


class SessionUnderTest(Protocol):
    """One open ledger, as if in a process of its own."""

    def work(self, settlements: Sequence[Settlement], requests: Sequence[Request], budgets: Budgets) -> list[Granted]:
        """Settle, then claim, queued together; what each claim is told, once everything is committed."""

    def find(self, query: int) -> str | None: ...
    def counted(self) -> list[Counted]:
        """What is spent on each classifier."""

    def kill(self, after: int | None = None) -> None:
        """Be killed now, or after so many statements of the next work, which then raises `Crashed`."""

    def close(self) -> None: ...


class LedgerUnderTest(Protocol):
    """A ledger that sessions share."""

    def open(self) -> SessionUnderTest: ...
    def set_day(self, day: int) -> None: ...
    def stall(self, session: SessionUnderTest) -> None:
        """Let others take a session for dead that is not."""

    def problems(self) -> list[str]:
        """What a check of the whole ledger finds."""


class Claim(NamedTuple):
    """A query in flight: what is reserved for it, and the day on which that counts."""

    price: int
    day: int


@dataclass
class Model:
    """What the ledger must know: the answers, who has what in flight, and what is spent on each day."""

    day: int = FIRST_DAY
    answers: dict[int, str] = field(default_factory=dict)
    claims: dict[tuple[int, int], Claim] = field(default_factory=dict)
    """By process and query."""
    stalled: set[int] = field(default_factory=set)
    """Processes that are taken for dead: they still settle what they have, but others may claim it."""
    queries: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By the classifier and the day on which they count; so is the money."""
    picos: Counter[tuple[int, int]] = field(default_factory=Counter)

    def counted(self) -> list[Counted]:
        def total(counts: Counter[tuple[int, int]], classifier: int) -> int:
            return sum(counted for (who, _), counted in counts.items() if who == classifier)

        return [
            Counted(
                total(self.queries, who), total(self.picos, who), self.queries[who, self.day], self.picos[who, self.day]
            )
            for who in (0, 1)
        ]

    def in_flight(self) -> set[int]:
        """The queries that a live process has claimed."""
        return {query for process, query in self.claims if process not in self.stalled} - self.answers.keys()

    def claim(self, process: int, request: Request, budgets: Budgets) -> Granted:
        if request.query in self.answers:
            return "answered"
        if request.query in self.in_flight():
            return "elsewhere"
        who, counted = classifier_of(request.query), self.counted()
        short = []
        if not counted[who].covers(budgets.own[who], request.price):
            short.append({query for query in self.in_flight() if classifier_of(query) == who})
        if not counted[0].plus(counted[1]).covers(budgets.total, request.price):
            short.append(self.in_flight())
        if short:
            return "later" if all(short) else "refused"
        self.claims[process, request.query] = Claim(request.price, self.day)
        self._count(request.query, self.day, 1, request.price)
        return "granted"

    def settle(self, process: int, settlement: Settlement) -> None:
        """The first answer stays; what was not sent is given back; what was lost stays counted."""
        claim = self.claims.pop((process, settlement.query))
        if settlement.ending == "answered":
            self.answers.setdefault(settlement.query, settlement.label)
            self._count(settlement.query, claim.day, 0, 0 if settlement.bill is None else settlement.bill - claim.price)
        elif settlement.ending == "unsent":
            self._count(settlement.query, claim.day, -1, -claim.price)

    def end(self, process: int) -> None:
        """A process is gone: what it had in flight stays counted, and is free."""
        self.claims = {place: claim for place, claim in self.claims.items() if place[0] != process}
        self.stalled.discard(process)

    def _count(self, query: int, day: int, queries: int, picos: int) -> None:
        self.queries[classifier_of(query), day] += queries
        self.picos[classifier_of(query), day] += picos


PROCESSES = st.integers(0, 2)
QUERIES = 6
REQUESTS = st.lists(
    st.builds(Request, st.integers(0, QUERIES - 1), st.sampled_from((3, 7, 0))),
    min_size=1,
    max_size=4,
    unique_by=lambda request: request.query,
)
ENDINGS = st.lists(st.sampled_from(("answered", "billed", "unsent", "lost")), min_size=1, max_size=3)
LIMITS = st.just(Limits()) | st.builds(Limits, *(st.none() | st.integers(0, most) for most in (12, 60, 6, 30)))
BUDGETS = st.builds(Budgets, st.tuples(LIMITS, LIMITS), LIMITS)


class LedgerMachine(RuleBasedStateMachine):
    """Processes on one ledger, and the model beside it."""

    def __init__(self, ledger: LedgerUnderTest) -> None:
        super().__init__()
        self.ledger, self.model = ledger, Model()
        self.sessions: dict[int, SessionUnderTest] = {}
        self.settled: dict[int, set[int]] = {}
        """What each process has settled, and has not claimed again."""
        ledger.set_day(FIRST_DAY)
        self.session(0)  # there is a ledger from now on

    @rule(process=PROCESSES, requests=REQUESTS, budgets=BUDGETS)
    def claim(self, process: int, requests: list[Request], budgets: Budgets) -> None:
        self.work(process, [], requests, budgets)

    @rule(process=PROCESSES, endings=ENDINGS)
    def settle(self, process: int, endings: list[str]) -> None:
        self.work(process, endings, [], Budgets())

    @rule(process=PROCESSES, endings=ENDINGS, requests=REQUESTS, budgets=BUDGETS)
    def settle_and_claim(self, process: int, endings: list[str], requests: list[Request], budgets: Budgets) -> None:
        """Both are decided in one transaction."""
        self.work(process, endings, requests, budgets)

    @rule(process=PROCESSES, endings=ENDINGS, requests=REQUESTS, budgets=BUDGETS, statements=st.integers(0, 15))
    def be_killed_at_work(
        self, process: int, endings: list[str], requests: list[Request], budgets: Budgets, statements: int
    ) -> None:
        """The same, but the process is killed after so many statements."""
        self.session(process).kill(statements)
        self.work(process, endings, requests, budgets)
        if process in self.sessions:  # there were fewer
            self.end(process, killed=True)

    def work(self, process: int, endings: list[str], requests: list[Request], budgets: Budgets) -> None:
        """A process settles some of what it has in flight and claims more, which the model does as well."""
        session = self.session(process)
        requests = [] if process in self.model.stalled else requests
        requests = sorted(requests, key=lambda request: classifier_of(request.query))
        in_flight = sorted(query for owner, query in self.model.claims if owner == process)
        settlements = [self.settlement(process, *pair) for pair in zip(in_flight, endings, strict=False)]
        moments = [self.model]
        for settlement in settlements:
            moments.append(deepcopy(moments[-1]))
            moments[-1].settle(process, settlement)
        expected = []
        for _, group in groupby(requests, key=lambda request: classifier_of(request.query)):
            moments.append(deepcopy(moments[-1]))
            expected += [moments[-1].claim(process, request, budgets) for request in group]
        try:
            told = session.work(settlements, requests, budgets)
        except Crashed:
            self.recover(process, moments)
            return
        assert told == expected, f"{requests} within {budgets}: {told} instead of {expected}; {self.model}"
        self.model = moments[-1]
        self.settled[process] |= {settlement.query for settlement in settlements}
        self.settled[process] -= {query for owner, query in self.model.claims if owner == process}

    def settlement(self, process: int, query: int, ending: str) -> Settlement:
        """How a claim ended; each process would answer in its own words."""
        label, price = f"label {query} of {process}", self.model.claims[process, query].price
        kinds = {
            "answered": Settlement(query, "answered", label),
            "billed": Settlement(query, "answered", label, bill=price // 2),
            "unsent": Settlement(query, "unsent"),
            "lost": Settlement(query, "lost"),
        }
        return kinds[ending]

    def recover(self, process: int, moments: Sequence[Model]) -> None:
        """A process was killed at work: the ledger is as it was at one of these moments, and none between."""
        self.forget(process)
        for moment in moments:
            moment.end(process)
        witness = self.ledger.open()
        seen = witness.counted(), {query: witness.find(query) for query in range(QUERIES)}
        witness.close()
        possible = [moment for moment in moments if seen == (moment.counted(), answers_of(moment))]
        assert possible, f"a part of what was done together is lost: {seen}; {moments}"
        self.model = possible[-1]

    @rule(process=PROCESSES)
    def settle_again(self, process: int) -> None:
        """Whoever settles twice changes nothing."""
        session = self.session(process)
        session.work([Settlement(query, "unsent") for query in sorted(self.settled[process])], [], Budgets())

    @rule(process=PROCESSES, killed=st.booleans())
    def end(self, process: int, killed: bool) -> None:
        session = self.session(process)
        (session.kill if killed else session.close)()
        self.forget(process)

    @rule(process=PROCESSES)
    def stall(self, process: int) -> None:
        """Others take a process for dead; it comes back, and settles what it has."""
        self.ledger.stall(self.session(process))
        self.model.stalled.add(process)

    @rule()
    def midnight(self) -> None:
        self.model.day += 1
        self.ledger.set_day(self.model.day)

    @rule()
    def verify(self) -> None:
        assert self.ledger.problems() == []

    @invariant()
    def every_process_sees_the_truth(self) -> None:
        for session in self.sessions.values():
            assert session.counted() == self.model.counted(), self.model
            assert {query: session.find(query) for query in range(QUERIES)} == answers_of(self.model), self.model

    def session(self, process: int) -> SessionUnderTest:
        """The session of a process, which is started if it does not run."""
        if process not in self.sessions:
            self.sessions[process], self.settled[process] = self.ledger.open(), set()
        return self.sessions[process]

    def forget(self, process: int) -> None:
        del self.sessions[process]
        self.model.end(process)

    def teardown(self) -> None:
        for session in self.sessions.values():
            session.close()
        assert self.ledger.problems() == []


def answers_of(model: Model) -> dict[int, str | None]:
    return {query: model.answers.get(query) for query in range(QUERIES)}


def run(make: Callable[[], LedgerUnderTest], steps: int, seed: int = 0, shrink: bool = True) -> None:
    """About so many random steps, each sequence on a ledger of its own; what breaks one is shortened and printed."""
    examples = settings(
        max_examples=-(-steps // SEQUENCE),
        stateful_step_count=SEQUENCE,
        derandomize=False,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        phases=(Phase.generate, Phase.shrink)[: 1 + shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seeded(seed)(lambda: LedgerMachine(make())), settings=examples)  # type: ignore[arg-type]


def main() -> None:
    from support import ledger_machine  # noqa: PLW0406  # the module that the adapter knows
    from support.ledger_adapter import SharedLedger
    from support.postgres_server import server as postgres_server

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder, number = Path(stack.enter_context(tempfile.TemporaryDirectory())), count()
        database = stack.enter_context(postgres_server()) if options.postgres else None
        assert database or not options.postgres, "no PostgreSQL server can be run here"

        def make() -> LedgerUnderTest:
            return SharedLedger(database.emptied() if database else str(folder / f"{next(number)}.db"))

        ledger_machine.run(make, options.steps, options.seed)
    print(f"{options.steps} steps: every invariant held")  # noqa: T201


if __name__ == "__main__":
    main()
