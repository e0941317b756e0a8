"""What every ledger promises, whichever database is behind it; and how several processes share one."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from ledger_players import (
    LIMITLESS,
    PRICE,
    WHO,
    answer,
    asks_all,
    asks_until_killed,
    entries,
    entry,
    heard,
    intend,
    label,
    record,
    sends_and_leaves,
    sends_and_stays,
    start,
    told,
)

from looktwice.asking.ledger import Account, Budget, Ledger, Outcome, Spend, SqliteLedger, Unrecorded, key, verify
from looktwice.asking.ledger.protocol import DEAD, LEASE, MICRO, BatchLedger, Bill, Grant, Settled
from looktwice.asking.session import open_ledger
from looktwice.classifiers.base import Answer, Option, Tokens
from looktwice.errors import LedgerError


@contextmanager
def balanced(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A ledger that does not exist yet; whatever is done with it, its books balance in the end."""
    if kind == "postgres":
        yield request.getfixturevalue("database")
    else:
        path = request.getfixturevalue("tmp_path") / "new" / "ledger.db"
        yield str(path)
        assert verify(path) == []


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    with balanced(request.param, request) as where:
        yield where


class Opened:
    """Opens the same ledger once more, as another process or another worker of a fleet would."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.ledgers: list[Ledger] = []

    def __call__(self) -> Ledger:
        self.ledgers.append(open_ledger(self.where))
        return self.ledgers[-1]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with balanced(request.param, request) as where:
        opened = Opened(where)
        yield opened
        for each in opened.ledgers:
            each.close()


@pytest.fixture
def ledger(opened: Opened) -> Ledger:
    return opened()


def keys(numbers: range) -> list[bytes]:
    return [each.key for each in entries(numbers)]


# --- questions and answers


def test_a_ranked_list_is_found_again(opened: Opened) -> None:
    lists: list[tuple[Option, ...]] = [
        (("cat", 0.912345678), ("dög", 0.05)),
        (("a\0b", None), ("#1", None)),
        (("x", float("nan")), ("y", -3.25)),
        (),
    ]
    ledger = opened()
    granted = intend(ledger, list(range(len(lists)))).granted
    for key_, options in zip(granted, lists, strict=True):
        ledger.record(key_, Answer("x", 0.5, 200, options=options), 0.1, 1)
    ledger.flush().result()
    found = opened().find(granted)
    kept = [found[each].options for each in granted]
    assert kept == [(("cat", 0.9123457), ("dög", 0.05)), lists[1], (("x", None), ("y", -3.25)), ()]


def test_a_key_depends_on_every_part_of_the_question() -> None:
    parts: list[tuple[str, str, str, int, int, str]] = [
        ("a", "b", "c", 1, 2, "r"),
        ("x", "b", "c", 1, 2, "r"),
        ("a", "x", "c", 1, 2, "r"),
        ("a", "b", "x", 1, 2, "r"),
        ("a", "b", "c", 12, 2, "r"),
        ("a", "b", "c", 1, 22, "r"),
        ("a", "b", "c", 1, 2, "x"),
        ("ab", "", "c", 1, 2, "r"),
        ("a", "b", "c1", 1, 2, "r"),
    ]
    assert len({key(*each) for each in parts}) == len(parts)
    assert {len(key(*each)) for each in parts} == {16}


def test_a_key_never_changes_because_stored_answers_are_found_by_it() -> None:
    assert key("onnx:abc", "00" * 16, "rotation:30", 7, 3, "1").hex() == "a0f292d078bc81d69268d751d73dd6f2"


def test_keys_of_one_picture_are_neighbours() -> None:
    assert {entry(5, view).key[:4] for view in ("mirror", "zoom:1.15", "turn:3")} == {entry(5).key[:4]}


def test_an_answer_is_found_again_with_its_score_and_status(ledger: Ledger) -> None:
    granted = intend(ledger, range(3)).granted
    ledger.record(granted[0], Answer("Katze 🐈", 0.25, 200), 0.5, 2)
    ledger.record(granted[1], Answer(""), 0.5, 1)
    ledger.flush().result()
    assert ledger.find(keys(range(5))) == {
        granted[0]: Answer("Katze 🐈", 0.25, 200),
        granted[1]: Answer("", None, None),
    }


def test_a_question_is_granted_once_and_answered_from_then_on(ledger: Ledger) -> None:
    granted = intend(ledger, range(4)).granted
    assert granted == keys(range(4))
    answer(ledger, granted)
    grant = intend(ledger, range(6))
    assert grant.answered == {name: Answer(label(name), 0.5, 200) for name in granted}
    assert grant.granted == keys(range(4, 6))
    assert ledger.spent(WHO) == Account(6, 6 * PRICE, 6, 6 * PRICE, 4, 2)


def test_a_question_given_twice_in_one_call_is_one_question(ledger: Ledger) -> None:
    assert intend(ledger, [1, 1, 2, 1]).granted == [entry(1).key, entry(2).key]
    assert ledger.spent(WHO).queries == 2


def test_thousands_of_questions_in_one_call_are_all_granted_and_found(ledger: Ledger) -> None:
    granted = intend(ledger, range(3001)).granted
    assert granted == keys(range(3001))
    answer(ledger, granted)
    assert len(ledger.find(granted)) == 3001


def test_a_retry_by_the_same_session_is_granted_and_counted_again(ledger: Ledger) -> None:
    intend(ledger, [1])
    assert intend(ledger, [1], price=7).granted == [entry(1).key]
    assert ledger.spent(WHO) == Account(2, PRICE + 7, 2, PRICE + 7, 0, 1)


def test_the_first_answer_to_a_question_stays(ledger: Ledger) -> None:
    [name] = intend(ledger, [1]).granted
    ledger.record(name, Answer("first"), 0.1, 1)
    ledger.record(name, Answer("second"), 0.1, 1)
    ledger.flush().result()
    assert ledger.find([name])[name].label == "first"


def test_an_answer_to_a_question_that_was_not_sent_is_an_error(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="not in flight"):
        ledger.record(entry(1).key, Answer("cat"), 0.1, 1)


def test_half_a_character_is_refused_and_does_not_stop_the_ledger(ledger: Ledger) -> None:
    granted = intend(ledger, range(2)).granted
    with pytest.raises(LedgerError, match="not valid Unicode"):
        ledger.record(granted[0], Answer("\ud800"), 0.1, 1)
    answer(ledger, granted[1:])
    assert set(ledger.find(granted)) == set(granted[1:])


def test_a_number_that_no_database_keeps_is_refused_and_does_not_stop_the_ledger(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="too large"):
        ledger.intend(WHO, [entry(1)._replace(seed=2**63)], PRICE, LIMITLESS)
    with pytest.raises(LedgerError, match="price of -1"):
        ledger.intend(WHO, [entry(1)], -1, LIMITLESS)
    assert intend(ledger, [1]).granted


def test_classifiers_do_not_see_each_others_answers_or_spend(ledger: Ledger) -> None:
    answer(ledger, intend(ledger, range(3)).granted)
    other = [entry(number, fingerprint="another") for number in range(3)]
    grant = ledger.intend("another", other, 10, Budget(queries=2)).result()
    assert len(grant.granted) == 2
    assert ledger.spent("another") == Account(2, 20, 2, 20, 0, 2)
    assert ledger.spent(WHO).queries == 3
    assert ledger.spent("unknown") == Account(0, 0, 0, 0, 0, 0)


# --- giving back


def test_a_question_that_was_surely_not_sent_is_given_back_whole(ledger: Ledger) -> None:
    granted = intend(ledger, range(3)).granted
    ledger.release(granted[:2])
    ledger.flush().result()
    assert ledger.spent(WHO) == Account(1, PRICE, 1, PRICE, 0, 1)


def test_releasing_gives_back_the_last_grant_only_and_only_once(ledger: Ledger) -> None:
    intend(ledger, [1])
    granted = intend(ledger, [1], price=7).granted
    for _ in range(3):
        ledger.release(granted * 2)
    ledger.flush().result()
    assert ledger.spent(WHO) == Account(1, PRICE, 1, PRICE, 0, 1)


def test_releasing_what_was_never_granted_or_is_answered_changes_nothing(ledger: Ledger) -> None:
    granted = intend(ledger, [1]).granted
    answer(ledger, granted)
    ledger.release([*granted, entry(2).key])
    ledger.flush().result()
    assert ledger.spent(WHO) == Account(1, PRICE, 1, PRICE, 1, 0)


def test_a_question_can_be_released_and_intended_again_without_waiting(ledger: Ledger) -> None:
    granted = intend(ledger, range(2), Budget(queries=2)).granted
    ledger.release(granted)
    assert intend(ledger, range(2), Budget(queries=2)).granted == granted


def test_an_intent_that_is_withdrawn_in_time_counts_nothing(ledger: Ledger) -> None:
    futures = [ledger.intend(WHO, entries([number]), PRICE, LIMITLESS) for number in range(50)]
    withdrawn = sum(future.cancel() for future in futures)
    ledger.flush().result()
    assert withdrawn > 0
    assert ledger.spent(WHO).queries == 50 - withdrawn


def test_a_refusal_is_given_back_unless_it_is_billed_and_is_held_no_longer(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    granted = intend(theirs, range(4)).granted
    theirs.refuse(granted[:1], billed=False)
    theirs.refuse(granted[1:2], billed=True)
    theirs.flush().result()
    assert ours.spent(WHO) == Account(3, 3 * PRICE, 3, 3 * PRICE, 0, 3)
    assert intend(ours, range(4)).granted == granted[:2]
    answer(theirs, granted[2:3])
    outcomes = "SELECT SUM(queries), SUM(answered), SUM(refused), SUM(waived) FROM spend"
    assert told(opened.where, outcomes) == [(5, 1, 2, 1)]


def test_a_retry_that_is_released_is_held_no_longer(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    for _ in range(2):
        granted = intend(theirs, [1]).granted
    theirs.release(granted)
    theirs.flush().result()
    assert intend(ours, [1]).granted == granted


@pytest.mark.parametrize(
    ("outcome", "queries"),
    [(Outcome.ANSWERED, 2), (Outcome.REFUSED, 2), (Outcome.WAIVED, 0), (Outcome.UNSENT, 0)],
)
def test_booked_queries_are_given_back_if_they_are_not_billed(ledger: Ledger, outcome: Outcome, queries: int) -> None:
    booked = ledger.book(WHO, 2, PRICE, Budget(queries=2)).result()
    assert booked
    ledger.conclude(booked, outcome)
    ledger.flush().result()
    assert ledger.spend(WHO) == Spend(queries, queries * PRICE, queries, queries * PRICE)
    assert bool(ledger.book(WHO, 2, PRICE, Budget(queries=2)).result()) is (queries == 0)


# --- budget

LIMITS = st.none() | st.integers(0, 40)


@given(LIMITS, LIMITS, LIMITS, LIMITS, st.integers(0, 30), st.integers(0, 30), st.integers(0, 4))
def test_room_is_the_largest_number_of_queries_that_breaks_no_limit(
    queries: int | None,
    micros: int | None,
    queries_per_day: int | None,
    micros_per_day: int | None,
    before: int,
    today: int,
    price: int,
) -> None:
    budget = Budget(queries, micros, queries_per_day, micros_per_day)
    spend = Spend(before + today, 2 * (before + today), today, 2 * today)
    room = budget.room(spend, price)

    def covered(n: int) -> bool:
        return all(
            most is None or spent + more <= most or not more
            for most, spent, more in (
                (queries, spend.queries, n),
                (queries_per_day, spend.queries_today, n),
                (micros, spend.micros, n * price),
                (micros_per_day, spend.micros_today, n * price),
            )
        )

    assert covered(min(room, 1000))
    assert room > 1000 or not covered(room + 1)


def test_what_the_budget_does_not_cover_is_refused_in_order(ledger: Ledger) -> None:
    grant = intend(ledger, range(5), Budget(queries=3))
    assert (grant.granted, grant.refused) == (keys(range(3)), keys(range(3, 5)))
    assert intend(ledger, range(5, 6), Budget(micros=3 * PRICE + PRICE - 1)).refused
    assert intend(ledger, range(5, 6), Budget(micros=4 * PRICE)).granted


def test_each_question_counts_at_its_own_reserve_until_its_bill_is_known(ledger: Ledger) -> None:
    dear, cheap, mid = (entry(n)._replace(reserve=reserve) for n, reserve in ((1, 900), (2, 100), (3, 400)))
    budget = Budget(micros=1000)
    grant = ledger.intend(WHO, [dear, mid, cheap], 7, budget).result(30)
    assert (grant.granted, grant.refused) == ([dear.key, cheap.key], [mid.key]), "what the rest of the money covers"
    ledger.record(dear.key, Answer("cat"), 0.1, 1, Bill(Tokens(100, 2), 350_500_000, 340))
    assert ledger.intend(WHO, [mid], 7, budget).result(30).granted == [mid.key], "the bill took the reserve's place"
    assert ledger.spent(WHO).micros == 351 + 100 + 400
    ledger.release([mid.key])
    ledger.flush().result(30)
    assert ledger.spent(WHO).micros == 351 + 100


def test_the_budget_counts_what_was_spent_before_the_ledger_was_closed(opened: Opened) -> None:
    first = opened()
    intend(first, range(5))
    first.close()
    assert len(intend(opened(), range(5, 15), Budget(queries=7)).granted) == 2


def test_booked_queries_count_all_or_none(ledger: Ledger) -> None:
    budget = Budget(queries=5)
    assert ledger.book(WHO, 3, PRICE, budget).result()
    assert ledger.book(WHO, 3, PRICE, budget).result() is None
    assert len(intend(ledger, range(5), budget).granted) == 2
    assert ledger.spent(WHO) == Account(5, 5 * PRICE, 5, 5 * PRICE, 0, 2)


def test_a_new_day_has_its_own_limit_and_the_total_stays(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(queries=5, queries_per_day=3)
    assert len(intend(ledger, range(4), budget).granted) == 3
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    assert len(intend(ledger, range(4, 8), budget).granted) == 2
    assert ledger.spent(WHO) == Account(5, 5 * PRICE, 2, 2 * PRICE, 0, 5)


def test_what_is_released_after_midnight_is_given_back_to_its_own_day(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = intend(ledger, range(3)).granted
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    intend(ledger, [7], price=1)
    ledger.release(granted[:1])
    ledger.flush().result()
    assert ledger.spent(WHO) == Account(3, 2 * PRICE + 1, 1, 1, 0, 3)


class Accounting(RuleBasedStateMachine):
    """Any sequence of operations, against a model of what is owed."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger = Unrecorded()

    def new(self) -> Ledger:
        return Unrecorded()

    @initialize(queries=LIMITS, micros=st.none() | st.integers(0, 60))
    def open(self, queries: int | None, micros: int | None) -> None:
        self.ledger = self.new()
        self.budget = Budget(queries, micros)
        self.queries = self.micros = self.picos = 0
        self.flying: dict[bytes, int] = {}
        self.answered: set[bytes] = set()

    @rule(numbers=st.lists(st.integers(0, 12), max_size=6), price=st.integers(0, 3))
    def intend(self, numbers: list[int], price: int) -> None:
        grant = intend(self.ledger, numbers, self.budget, price)
        wanted = {entry(number).key for number in numbers}
        assert {*grant.granted, *grant.answered, *grant.refused} == wanted
        assert not grant.held
        self.queries += len(grant.granted)
        self.micros += len(grant.granted) * price
        self.flying |= dict.fromkeys(grant.granted, price)
        assert self.budget.queries is None or self.queries <= self.budget.queries
        owed = self.micros + self.picos / MICRO
        assert self.budget.micros is None or owed <= self.budget.micros or not price or not grant.granted

    @rule(data=st.data(), picos=st.none() | st.integers(0, 3_000_000))
    def record(self, data: st.DataObject, picos: int | None) -> None:
        for name in self.choose(data):
            bill = None if picos is None else Bill(Tokens(10, 1), picos, 1)
            self.ledger.record(name, Answer(label(name)), 0.01, 1, bill)
            self.answered.add(name)
            price = self.flying.pop(name)
            if picos is not None:
                self.micros -= price
                self.picos += picos

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        names = self.choose(data)
        self.ledger.release(names)
        for name in names:
            self.queries -= 1
            self.micros -= self.flying.pop(name)

    @rule(data=st.data(), billed=st.booleans())
    def refuse(self, data: st.DataObject, billed: bool) -> None:
        names = self.choose(data)
        self.ledger.refuse(names, billed)
        for name in names:
            price = self.flying.pop(name)
            self.queries -= not billed
            self.micros -= 0 if billed else price

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        names = self.choose(data)
        self.ledger.give_up(names)
        for name in names:
            del self.flying[name]

    @rule(queries=st.integers(0, 4), price=st.integers(0, 3), outcome=st.none() | st.sampled_from(Outcome))
    def book(self, queries: int, price: int, outcome: Outcome | None) -> None:
        booked = self.ledger.book(WHO, queries, price, self.budget).result(30)
        if booked and queries and outcome is Outcome.ANSWERED:
            self.ledger.conclude(booked, outcome, Bill(Tokens(10, 1), queries * price * MICRO, 1))
        elif booked and outcome:
            self.ledger.conclude(booked, outcome)
        if booked and outcome not in (Outcome.WAIVED, Outcome.UNSENT):
            self.queries += queries
            self.micros += queries * price

    def choose(self, data: st.DataObject) -> list[bytes]:
        flying = sorted(self.flying)
        return data.draw(st.lists(st.sampled_from(flying), unique=True, max_size=4)) if flying else []

    @invariant()
    def the_spend_is_what_was_granted_and_not_given_back(self) -> None:
        if hasattr(self, "budget"):
            self.ledger.flush().result(30)
            self.check()

    def check(self) -> None:
        spent = self.ledger.spent(WHO)
        assert (spent.queries, spent.micros) == (self.queries, self.micros - -self.picos // MICRO)


class AccountingInSqlite(Accounting):
    def new(self) -> Ledger:
        self.folder = tempfile.TemporaryDirectory()
        return SqliteLedger(Path(self.folder.name) / "ledger.db")

    def check(self) -> None:
        super().check()
        assert set(self.ledger.find(keys(range(13)))) == self.answered

    def teardown(self) -> None:
        self.ledger.close()
        if hasattr(self, "folder"):
            assert verify(Path(self.folder.name) / "ledger.db") == []
            self.folder.cleanup()


class AccountingInPostgres(Accounting):
    address = ""

    def new(self) -> Ledger:
        told(self.address, "TRUNCATE questions, spend, replies, checks, classifiers")
        return open_ledger(self.address)

    def check(self) -> None:
        super().check()
        assert set(self.ledger.find(keys(range(13)))) == self.answered

    def teardown(self) -> None:
        self.ledger.close()
        from postgres_server import unbalanced

        assert unbalanced(self.address) == []


def test_any_sequence_of_operations_is_counted_right_in_postgres(database: str) -> None:
    open_ledger(database).close()
    machine = type("Accounting", (AccountingInPostgres,), {"address": database})
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=15))


TestAccountingWithoutLedger = Accounting.TestCase
TestAccountingWithoutLedger.settings = settings(max_examples=60, stateful_step_count=20)
TestAccountingInSqlite = AccountingInSqlite.TestCase
TestAccountingInSqlite.settings = settings(max_examples=20, stateful_step_count=15)


# --- threads


def test_many_intents_at_once_are_all_resolved(ledger: Ledger) -> None:
    futures = [ledger.intend(WHO, entries([number]), PRICE, Budget(queries=400)) for number in range(500)]
    grants = [future.result(30) for future in futures]
    assert sum(len(grant.granted) for grant in grants) == 400
    assert sum(len(grant.refused) for grant in grants) == 100


def test_threads_can_share_a_ledger(ledger: Ledger) -> None:
    def ask(first: int) -> None:
        for start_at in range(first, first + 300, 30):
            granted = intend(ledger, range(start_at, start_at + 30)).granted
            record(ledger, granted)
            ledger.find(granted)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(0, 1200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.flush().result()
    found = ledger.find(keys(range(1200)))
    assert {name: each.label for name, each in found.items()} == {name: label(name) for name in keys(range(1200))}
    assert ledger.spent(WHO) == Account(1200, 1200 * PRICE, 1200, 1200 * PRICE, 1200, 0)


def test_closing_saves_what_is_queued_and_closing_twice_is_fine(opened: Opened) -> None:
    ledger = opened()
    granted = intend(ledger, range(20)).granted
    record(ledger, granted)
    ledger.close()
    ledger.close()
    assert len(opened().find(granted)) == 20
    with pytest.raises(LedgerError, match="is closed"):
        ledger.find(granted)
    with pytest.raises(LedgerError, match="is closed"):
        ledger.flush()


# --- several sessions


def test_a_question_in_flight_elsewhere_is_held_until_it_is_answered(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    granted = intend(theirs, range(3)).granted
    assert intend(ours, range(4)).held == granted
    answer(theirs, granted)
    assert set(intend(ours, range(3)).answered) == set(granted)
    assert ours.spent(WHO).queries == 4


def test_a_question_that_the_other_session_gave_up_or_released_is_granted(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    granted = intend(theirs, range(4)).granted
    theirs.give_up(granted[:1])
    theirs.release(granted[1:2])
    theirs.flush().result()
    grant = intend(ours, range(4))
    assert (grant.granted, grant.held) == (granted[:2], granted[2:])
    assert ours.spent(WHO) == Account(5, 5 * PRICE, 5, 5 * PRICE, 0, 4)


def test_a_question_of_a_session_that_was_closed_is_granted_and_counted_again(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    granted = intend(theirs, range(3)).granted
    theirs.close()
    assert intend(ours, range(3)).granted == granted
    assert ours.spent(WHO) == Account(6, 6 * PRICE, 6, 6 * PRICE, 0, 3)


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock that nobody can set be so much later."""
    before = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: before() + seconds)


def test_a_lease_ends_though_its_session_lives_unless_it_is_renewed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = opened(), opened()
    granted = intend(theirs, range(3)).granted
    told(opened.where, f"UPDATE questions SET at = at - {int(1000 * LEASE) - 60_000}")
    assert intend(ours, range(3)).held == granted
    told(opened.where, "UPDATE questions SET at = at - 120000")
    theirs.renew(granted[:1])
    theirs.flush().result()
    assert intend(ours, range(3)).held == granted, "a process that runs may renew the others yet"
    pass_time(DEAD, monkeypatch)
    grant = intend(ours, range(3))
    assert (grant.held, grant.granted) == (granted[:1], granted[1:])
    theirs.renew(granted[1:])  # what another session has taken over cannot be taken back
    theirs.flush().result()
    assert intend(ours, range(3)).granted == granted[1:]
    answer(theirs, granted)
    assert set(intend(ours, range(3)).answered) == set(granted)


def test_another_sessions_spend_counts_at_once(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    budget = Budget(queries=10)
    for turn in range(10):
        assert len(intend((ours, theirs)[turn % 2], [turn], budget).granted) == 1
    assert intend(ours, [10], budget).refused
    assert intend(theirs, [11], budget).refused


def test_a_canary_is_kept_beside_the_answer(opened: Opened) -> None:
    ledger = opened()
    [name] = intend(ledger, [1]).granted
    answer(ledger, [name])
    for said in ("cat", "dog", "cat"):
        ledger.recheck(name, Answer(said))
    ledger.flush().result()
    assert ledger.find([name])[name].label == label(name)
    assert told(opened.where, "SELECT label FROM checks ORDER BY at") == [("cat",), ("dog",), ("cat",)]


# --- several processes


# --- batches of a vendor


def enter(ledger: Ledger, numbers: range, batch: int, budget: Budget = LIMITLESS, reserve: int = 100) -> Grant:
    assert isinstance(ledger, BatchLedger)
    wanted = [each._replace(reserve=reserve, expected=60) for each in entries(numbers)]
    return ledger.enter_batch(WHO, batch, wanted, 0, budget).result(30)


def test_a_batch_outlives_its_session_and_is_settled_once_whoever_tells_its_results(opened: Opened) -> None:
    first = opened()
    granted = enter(first, range(4), 7, Budget(micros=400)).granted
    assert len(granted) == 4
    first.close()
    ours, theirs = opened(), opened()
    assert isinstance(ours, BatchLedger)
    assert isinstance(theirs, BatchLedger)
    [found] = ours.open_batches(WHO)
    assert (found.id, found.file, found.remote, set(found.keys), found.owned) == (7, None, None, set(granted), False)
    assert found.name == "looktwice-0000000000000007"
    assert intend(ours, range(4)).batched == granted, "nobody asks what is in a batch"
    ours.note_batch(7, file="file-1").result(30)
    ours.note_batch(7, remote="batch-1").result(30)
    [found] = theirs.open_batches(WHO)
    assert (found.file, found.remote) == ("file-1", "batch-1")
    assert theirs.known_batches(WHO) == frozenset(["batch-1"])
    assert theirs.known_batches("another") == frozenset()
    bill = Bill(Tokens(10, 1), 40_500_000, 0)
    one, two, three, four = granted
    results = [Settled(one, Answer("cat"), bill), Settled(one, Answer("dog"), bill), Settled(two, Outcome.WAIVED)]
    for ledger in (ours, theirs, ours):
        ledger.settle_batch(7, results).result(30)
    assert ours.find(granted)[one].label == "cat"
    assert (ours.spent(WHO).queries, ours.spent(WHO).micros) == (3, 41 + 200)
    assert set(theirs.open_batches(WHO)[0].keys) == {three, four}
    theirs.settle_batch(7, [Settled(three, None), Settled(four, Answer("fox"))]).result(30)
    assert not ours.open_batches(WHO)
    spent = ours.spent(WHO)
    assert (spent.queries, spent.micros, spent.answered) == (3, 241, 2), "of what nothing is known stays counted"
    assert enter(ours, range(4), 8).granted == [two, three], "and is asked again"


def test_a_batch_is_cut_to_the_budget_and_held_by_its_living_session(opened: Opened) -> None:
    ours, theirs = opened(), opened()
    assert isinstance(theirs, BatchLedger)
    grant = enter(ours, range(5), 3, Budget(micros=250))
    assert (len(grant.granted), len(grant.refused)) == (2, 3)
    assert [found.owned for found in theirs.open_batches(WHO)] == [True]
    theirs.settle_batch(3, [Settled(key, Outcome.UNSENT) for key in grant.granted]).result(30)
    assert theirs.spent(WHO).micros == 0
    assert not theirs.open_batches(WHO)


def test_spend_is_kept_by_the_command_that_a_session_was_opened_for(where: str) -> None:
    for command, numbers in (("fit", range(3)), ("score", range(5)), (None, range(5, 9))):
        with closing(open_ledger(where, command)) as ledger:
            answer(ledger, intend(ledger, numbers).granted)
    spent = "SELECT command, queries, answered FROM spend ORDER BY queries"
    assert told(where, spent) == [("score", 2, 2), ("fit", 3, 3), (None, 4, 4)]


def killed_when(pipe_says: int, where: str, seed: int) -> list[tuple[str, list[bytes]]]:
    """What a process told before it was killed, a moment after it had told so much."""
    process, pipe = start(asks_until_killed, where, seed)
    said = [pipe.recv() for _ in range(pipe_says)]
    time.sleep(random.Random(seed).uniform(0, 0.02))
    process.kill()
    process.join()
    return said + heard(pipe)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_kill_what_was_on_disk_is_there_and_nothing_is_uncounted(where: str, seed: int) -> None:
    said = killed_when(1 + seed * 2, where, seed)
    granted = [name for kind, names in said if kind == "granted" for name in names]
    answered = [name for kind, names in said if kind == "answered" for name in names]
    with closing(open_ledger(where)) as ledger:
        found = ledger.find(granted)
        assert {name: found[name].label for name in answered} == {name: label(name) for name in answered}
        spent = ledger.spent(WHO)
        assert spent.queries >= len(granted)
        assert spent.answered + spent.unanswered == spent.queries
        again = intend(ledger, range(len(granted)))
        assert set(again.granted) == set(granted) - set(found), "what has no answer may be asked again"
        assert ledger.spent(WHO).queries == spent.queries + len(again.granted), "and is counted again"


def test_two_processes_share_a_budget_to_the_last_query_and_ask_nothing_twice(where: str) -> None:
    players = [start(asks_all, where, range(1300), Budget(queries=1000), seed) for seed in (1, 2)]
    counts = Counter(name for _, pipe in players for _, names in heard(pipe) for name in names)
    for process, _ in players:
        process.join()
    assert counts.total() == 1000
    assert set(counts.values()) == {1}
    with closing(open_ledger(where)) as ledger:
        assert ledger.spent(WHO) == Account(1000, 1000 * PRICE, 1000, 1000 * PRICE, 1000, 0)


def test_many_processes_can_make_the_same_new_ledger(where: str) -> None:
    players = [start(asks_all, where, range(20), LIMITLESS, seed) for seed in range(5)]
    names = [name for _, pipe in players for _, names in heard(pipe) for name in names]
    assert sorted(names) == sorted(keys(range(20)))
    for process, _ in players:
        process.join()
        assert process.exitcode == 0


def test_questions_of_a_killed_process_are_granted_again_and_of_a_living_one_held(where: str) -> None:
    process, pipe = start(sends_and_stays, where, range(3))
    _, sent = pipe.recv()
    with closing(open_ledger(where)) as ledger:
        assert intend(ledger, range(3)).held == sent
        process.kill()
        process.join()
        assert intend(ledger, range(3)).granted == sent
        assert ledger.spent(WHO).queries == 6


def test_questions_of_a_process_that_left_are_granted_again(where: str) -> None:
    process, pipe = start(sends_and_leaves, where, range(3))
    [(_, sent)] = heard(pipe)
    process.join()
    with closing(open_ledger(where)) as ledger:
        assert intend(ledger, range(3)).granted == sent


@pytest.mark.parametrize("change", ["beat = beat - 60", "born = '1'", "host = 'elsewhere', beat = beat - 60"])
def test_a_session_is_dead_if_it_is_silent_or_its_process_id_has_a_new_owner(
    where: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_ledger(where)) as theirs, closing(open_ledger(where)) as ours:
        intend(theirs, range(2))
        assert len(intend(ours, range(2)).held) == 2
        told(where, f"UPDATE sessions SET {change}")
        if change == "beat = beat - 60":  # its process runs, so that it may be the clock that was set
            assert len(intend(ours, range(2)).held) == 2
            pass_time(DEAD, monkeypatch)
        assert len(intend(ours, range(2)).granted) == 2


def test_a_session_elsewhere_is_alive_while_it_beats(where: str) -> None:
    with closing(open_ledger(where)) as theirs, closing(open_ledger(where)) as ours:
        intend(theirs, range(2))
        told(where, "UPDATE sessions SET host = 'elsewhere', pid = 999999999")
        assert len(intend(ours, range(2)).held) == 2


def test_a_session_taken_for_dead_keeps_the_answer_that_still_comes(where: str) -> None:
    with closing(open_ledger(where)) as slept, closing(open_ledger(where)) as ours:
        granted = intend(slept, range(2)).granted
        told(where, "DELETE FROM sessions")
        assert intend(ours, range(2)).granted == granted
        answer(slept, granted[:1])
        ours.release(granted)
        ours.flush().result()
        assert set(ours.find(granted)) == set(granted[:1])
        assert ours.spent(WHO) == Account(2, 2 * PRICE, 2, 2 * PRICE, 1, 1)


def test_a_silent_session_with_questions_in_flight_keeps_beating(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.queue.BEAT", 0.02)
    monkeypatch.setattr("looktwice.asking.ledger.accounting.BEAT", 0.02)
    with closing(open_ledger(where)) as ledger:
        granted = intend(ledger, [1]).granted
        first = told(where, "SELECT beat FROM sessions")
        until = time.monotonic() + 60
        while told(where, "SELECT beat FROM sessions") == first:
            assert time.monotonic() < until
        answer(ledger, granted)
