"""A keeper in this process, and the way to it: what a fleet does between machines, without any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from looktwice.fleet.courier import Line
from looktwice.fleet.keeper import Away, Keeper


class LocalLine(Line):
    """The way to a keeper whose loop runs in a thread; without a keeper there is nobody to reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: str | None, per_second: float | None) -> None:
        self._loop = loop
        self._place, self._per_second = place, per_second
        self.keeper: Keeper | None = Keeper(place, per_second)
        self.calls: list[str] = []

    def call(self, method: str, *arguments: object) -> Any:
        self.calls.append(method)
        keeper = self.keeper
        if keeper is None:
            raise Away("killed")
        done = asyncio.run_coroutine_threadsafe(getattr(keeper, method)(*arguments), self._loop)
        try:
            return done.result(60)
        finally:
            if keeper is not self.keeper:
                raise Away("killed before its reply was heard")

    def kill(self) -> None:
        """What becomes of the keeper's process is told in other tests; here its ledger merely falls silent."""
        keeper, self.keeper = self.keeper, None
        assert keeper
        keeper._ledger.close()

    def revive(self) -> None:
        self.keeper = Keeper(self._place, self._per_second, again=True)


@contextmanager
def keeping(place: str | None, per_second: float | None = None) -> Iterator[LocalLine]:
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    line = LocalLine(loop, place, per_second)
    try:
        yield line
    finally:
        if line.keeper:
            line.call("close")
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
