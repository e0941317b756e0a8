"""How hard a classifier is asked: calls at a time, and how failed ones are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.classifiers import Labelling

from looktwice.classifiers.base import Answer, Limits
from looktwice.engine.limits import DECREASE, IN_VAIN, WINDOW, Calls, Concurrency, Permits, RetryPolicy, Tries
from looktwice.errors import PermanentError, TransientError


def refuse(concurrency: Concurrency, share: float, windows: int = 1) -> None:
    """So many windows in which this share of replies are refusals."""
    for number in range(windows * max(WINDOW, 2 * concurrency.most)):
        if (number * share) % 1 < share:
            concurrency.refused(0.0)
        else:
            concurrency.answered()


def test_few_refusals_change_nothing() -> None:
    concurrency = Concurrency(8)
    refuse(concurrency, 0.03, windows=10)
    assert concurrency.limit == 8


def test_many_refusals_halve_the_calls_which_then_grow_again() -> None:
    concurrency = Concurrency(64)
    refuse(concurrency, 0.5)
    assert concurrency.limit <= 64 * DECREASE + 1
    for _ in range(2000):
        concurrency.answered()
    assert concurrency.limit == 64


def test_fewer_calls_that_do_not_help_are_given_up() -> None:
    concurrency = Concurrency(64)
    sizes = []
    for _ in range(60):
        refuse(concurrency, 0.5)
        sizes.append(concurrency.size)
    assert max(sizes[IN_VAIN:]) == 64, "refusals that do not depend on the pace are not answered by ever fewer calls"
    assert min(sizes) >= 1


def test_where_everything_is_refused_all_calls_wait_as_asked() -> None:
    concurrency = Concurrency(8)
    for _ in range(WINDOW):
        concurrency.refused(5.0)
    assert concurrency.limit == 0


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (TransientError("lost"), 6),
        (TransientError("internal", status=500), 3),
        (TransientError("odd", garbled=True), 3),
        (TransientError("busy", status=429), 30),
        (PermanentError("no"), 1),
    ],
)
def test_a_query_is_tried_so_often_and_no_more(error: TransientError, attempts: int) -> None:
    tries, count = Tries(RetryPolicy()), 1
    while tries.wait(error) is not None:
        count += 1
    assert count == attempts


def test_waits_double_with_jitter_up_to_a_longest_or_are_as_asked() -> None:
    tries = Tries(RetryPolicy(attempts=20, longest=4.0))
    waits = [tries.wait(TransientError("lost")) for _ in range(10)]
    for number, wait in enumerate(waits):
        backoff = min(0.5 * 2**number, 4.0)
        assert wait is not None
        assert backoff / 2 <= wait <= backoff
    asked = Tries(RetryPolicy()).wait(TransientError("busy", status=429, retry_after=7.0))
    assert asked is not None
    assert 7.0 <= asked <= 7.7


async def test_permits_are_given_in_order_and_to_no_more_than_the_limit() -> None:
    most, order, inside = 2, list[int](), set[int]()
    permits = Permits(lambda: most)

    async def work(number: int) -> None:
        async with permits:
            order.append(number)
            inside.add(number)
            assert len(inside) <= most
            await asyncio.sleep(0.001)
            inside.remove(number)

    await asyncio.gather(*map(work, range(6)))
    assert order == [0, 1, 2, 3, 4, 5]


async def test_calls_are_made_of_whatever_is_ready_up_to_a_batch() -> None:
    sizes: list[int] = []
    classifier = Labelling(limits=Limits(batch=4, concurrency=2))
    original = classifier.label

    async def label(batch: list[object]) -> list[object]:
        sizes.append(len(batch))
        return await original(batch)  # type: ignore[return-value]

    classifier.label = label  # type: ignore[method-assign, assignment]
    calls = Calls(classifier, Concurrency(2), 4, 900.0)
    futures = [calls.send([number], lambda: True) for number in range(10)]
    await asyncio.gather(*futures)
    assert sum(sizes) == 10
    assert max(sizes) == 4
    assert len(sizes) == 3


async def test_too_few_answers_break_the_promise_of_a_connector() -> None:
    class Short(Labelling):
        async def label(self, batch: Sequence[object]) -> list[Answer]:
            return []

    calls = Calls(Short(), Concurrency(2), 1, 900.0)
    with pytest.raises(PermanentError):
        await calls.send(["x"], lambda: True)
