"""Classifiers in this process, for tests that need no server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from looktwice.classifiers.base import Answer, Limits


class Labelling:
    """Calls every picture an ant, or does what the test says with each call."""

    fingerprint = "test:labelling"
    labels = None

    def __init__(self, act: Callable[[int], object] | None = None, limits: Limits | None = None) -> None:
        """`act` gets the number of each call: an exception that it returns is raised, an answer is given."""
        self.limits = limits or Limits(batch=1, concurrency=8)
        self.calls = 0
        self._act = act

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    async def label(self, batch: Sequence[object]) -> list[Answer]:
        self.calls += 1
        done = self._act(self.calls) if self._act else None
        await asyncio.sleep(0.001)
        if isinstance(done, Exception):
            raise done
        return [done if isinstance(done, Answer) else Answer("ant") for _ in batch]

    async def close(self) -> None: ...
