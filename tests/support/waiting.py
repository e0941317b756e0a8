"""Waits for what will happen, with an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds; far more than anything takes on a busy machine."""


def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


async def until_async(condition: Callable[[], object]) -> None:
    """The same on an event loop."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)
