"""The pace: a rate that no window of time exceeds, and a gate that counts right."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from looktwice.ledger.memory import Memory, MemoryLedger
from looktwice.pacing import Gate, Rate

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
    assert first.claim_moments("a", 10.0, 5) == 0.0
    assert 0.4 < second.claim_moments("a", 10.0, 1) <= 0.5
    assert second.claim_moments("b", 10.0, 1) == 0.0


async def test_a_gate_never_lets_more_through_than_its_limit() -> None:
    gate, most = Gate(4), 0

    async def work(i: int) -> None:
        nonlocal most
        async with gate:
            most = max(most, gate.busy)
            assert gate.busy <= 4
            await asyncio.sleep(0)
            if i % 7 == 0:
                gate.narrow()
            gate.widen()

    await asyncio.gather(*(work(i) for i in range(200)))
    assert gate.busy == 0
    assert most > 1


async def test_a_cancelled_wait_does_not_block_the_gate() -> None:
    gate = Gate(1)
    async with gate:
        waiting = asyncio.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1), gate:
        assert gate.busy == 1
