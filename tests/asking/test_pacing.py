"""The pace: a rate that no window of time exceeds, a gate that counts right, and a rate learned from refusals."""

import asyncio
import heapq
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looktwice.asking.ledger.memory import Memory, MemoryLedger
from looktwice.asking.pace import AdaptiveRate, Gate, Rate

ARRIVALS = st.lists(st.floats(0, 2, allow_subnormal=False), min_size=1, max_size=80)


@given(ARRIVALS, st.floats(0.1, 50), st.integers(1, 10))
def test_no_window_of_time_ever_holds_more_than_the_rate_allows(gaps: list[float], rate: float, burst: int) -> None:
    bucket = Rate(rate, burst)
    sent = [bucket.when(now) for now in np.cumsum(gaps)]
    for i, start in enumerate(sent):
        for j in range(i, len(sent)):
            # A window from one question to another: at most the burst, and what the rate lets through meanwhile.
            assert j - i + 1 <= burst + (sent[j] - start) * rate + 1e-6


@given(ARRIVALS, st.floats(0.1, 50), st.integers(1, 10))
def test_questions_go_in_order_and_never_before_they_come(gaps: list[float], rate: float, burst: int) -> None:
    bucket = Rate(rate, burst)
    arrivals = np.cumsum(gaps)
    sent = [bucket.when(now) for now in arrivals]
    assert sent == sorted(sent)
    assert all(moment >= now for moment, now in zip(sent, arrivals, strict=True))


def test_an_idle_rate_lets_one_burst_through_at_once() -> None:
    bucket = Rate(10.0, 3)
    assert [round(bucket.when(5.0), 3) for _ in range(5)] == [5.0, 5.0, 5.0, 5.1, 5.2]


def test_sessions_of_one_memory_share_the_rate_of_a_classifier() -> None:
    memory = Memory()
    first, second = MemoryLedger(memory), MemoryLedger(memory)
    assert first.claim_moments("a", 0.01, 5) == 0.0
    assert 400 < second.claim_moments("a", 0.01, 1) <= 500
    assert second.claim_moments("b", 0.01, 1) == 0.0


async def test_a_gate_never_lets_more_through_than_its_limit() -> None:
    gate, most = Gate(4), 0

    async def work() -> None:
        nonlocal most
        async with gate:
            most = max(most, gate.busy)
            assert gate.busy <= 4
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(200)))
    assert gate.busy == 0
    assert most > 1


async def test_a_cancelled_wait_does_not_block_the_gate() -> None:
    gate = Gate(1)
    async with gate:
        waiting = asyncio.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(60), gate:
        assert gate.busy == 1


# --- what is learned from refusals

Accepts = Callable[[float], bool]
"""Whether a server takes a call at a moment."""


def bucket(per_second: float, burst: int) -> Accepts:
    """A server with a limit, of which it forgives so many calls at once."""
    tokens, last = float(burst), 0.0

    def accepts(now: float) -> bool:
        nonlocal tokens, last
        tokens, last = min(burst, tokens + (now - last) * per_second), now
        taken = tokens >= 1
        tokens -= taken
        return taken

    return accepts


def chance(share: float) -> Accepts:
    """A server that refuses so many calls, however few there are."""
    dice = random.Random(0)
    return lambda _: dice.random() >= share


def played(accepts: Accepts, width: int, learning: bool, seconds: float = 60.0) -> tuple[float, float]:
    """Calls accepted and refused a second, at 20 ms each and a Retry-After of 1 s, without a real clock.

    In a loop that learns nothing, each caller that is refused waits, and no other does.
    """
    pressure, counts = AdaptiveRate(width), {True: 0, False: 0}
    events: list[tuple[float, int, bool | None]] = [(pressure.when(0.0), caller, None) for caller in range(width)]
    while (event := heapq.heappop(events))[0] < seconds:
        now, caller, taken = event
        if taken is None:
            heapq.heappush(events, (now + 0.02, caller, accepts(now)))
            continue
        counts[taken] += 1
        if learning and taken:
            pressure.answered(now)
        elif learning:
            pressure.refused(now, 1.0)
        heapq.heappush(events, (pressure.when(now) if learning or taken else now + 1.0, caller, None))
    return counts[True] / seconds, counts[False] / seconds


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("burst", [1, 10, 50])
def test_a_limit_is_learned_and_used_with_fewer_refusals_than_without_learning(width: int, burst: int) -> None:
    answered, refused = played(bucket(50, burst), width, learning=True)
    naive, naively_refused = played(bucket(50, burst), width, learning=False)
    assert answered >= 0.95 * naive
    assert refused < 0.7 * naively_refused


@pytest.mark.parametrize(("share", "least"), [(0.0, 399), (0.03, 380), (0.1, 330), (0.3, 260)])
def test_refusals_that_do_not_depend_on_the_pace_do_not_slow_it(share: float, least: float) -> None:
    answered, _ = played(chance(share), 8, learning=True)
    assert answered >= least


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("first", "until", "share", "least"), [(0.6, 0.6, 0.3, 120), (0.5, 1.0, 0.15, 250)])
def test_a_bad_beginning_does_not_slow_it_for_good(
    first: float, until: float, share: float, least: float, seed: int
) -> None:
    dice = random.Random(seed)
    answered, _ = played(lambda now: dice.random() >= (first if now < until else share), 8, learning=True)
    assert answered >= least


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.95, 1.0])
def test_a_server_that_failed_for_a_while_is_soon_found_well_again(share: float, seed: int) -> None:
    dice = random.Random(seed)
    answered, _ = played(lambda now: now > 20 or dice.random() >= share, 8, learning=True)
    assert answered >= 0.5 * 400 * 40 / 60


def test_a_pace_that_was_learned_is_unlearned_when_the_limit_is_gone() -> None:
    limited = bucket(50, 10)
    answered, _ = played(lambda now: now > 20 or limited(now), 8, learning=True)
    assert answered >= 0.75 * (50 + 2 * 400) / 3
