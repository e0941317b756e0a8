"""Runs: their event loop, their progress as a bar, lines, JSON or a callback, and the signals that stop them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from threading import Timer
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from looktwice.engine import Progress as Run, QueryEngine

T = TypeVar("T")


class _Screen(Console):
    """A terminal that may disappear during a run; later output is lost."""

    gone = False

    def on_broken_pipe(self) -> None:
        self.quiet = self.gone = True


ERR = _Screen(stderr=True)
BAR = 12
"""The width of the bar, so that count, money and time left fit in 80 columns."""


def say(line: str) -> None:
    """Print a line on the error stream, so that results can be piped; the line is lost if the terminal is gone."""
    with suppress(OSError):
        ERR.print(line, highlight=False, soft_wrap=True)


Show = Callable[["QueryEngine", int | None, "Spending"], Coroutine[None, None, None]]
"""A function that shows progress until cancelled, given the engine, the number of pictures, and the budget."""


@asynccontextmanager
async def shown(engine: QueryEngine, total: int | None, show: Show | None = None) -> AsyncIterator[None]:
    """Show an engine's progress, by default as a bar."""
    display = asyncio.create_task((show or show_bar)(engine, total, Spending(engine)))

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            engine.stop()

    display.add_done_callback(ended)
    try:
        yield
    finally:
        display.cancel()
        (failed,) = await asyncio.gather(display, return_exceptions=True)
        if isinstance(failed, Exception):  # of a function that is called with the progress
            engine.resume()
            raise failed
        for name, channel in engine.channels.items():
            asked, flipped = channel.canaries.asked, channel.canaries.flipped
            if flipped:
                who = name if len(engine.channels) > 1 else "The classifier"
                say(
                    f"{who} is random: {flipped} of {asked} queries asked again got another answer "
                    f"({100 * flipped / asked:.0f} %)."
                )


class Spending:
    """The spend of a run, and its remaining budget at the start."""

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine
        self._price = engine.first.settings.limits.price_micros if len(engine.channels) == 1 else 0
        self._remaining = engine.remaining()
        self._money = engine.money_left()

    def words(self) -> list[str]:
        """The spend and the remaining budget as text, in money if queries have a price; else the remaining queries, if
        limited."""
        progress, spent = self._engine.progress, f"{self._engine.progress.micros / 1e6:.4f} spent"
        left = None if self._remaining is None else max(0, self._remaining - progress.sent)
        several = len(self._engine.channels) > 1 and progress.micros > 0
        if several or progress.input_tokens:
            tokens = [] if several else [f"{progress.input_tokens:,} + {progress.output_tokens:,} tokens"]
            money = None if self._money is None else max(0, self._money - progress.micros)
        elif self._price:
            tokens, money = [], None if left is None else left * self._price
        else:
            return [] if left is None else [f"{left} left"]
        return [*tokens, spent if money is None else f"{spent}, {money / 1e6:.4f} left"]


async def show_bar(engine: QueryEngine, total: int | None, spending: Spending) -> None:
    """A bar with the count, the spend and the time left, and further columns as far as they fit the terminal."""
    started = time.monotonic()
    columns = (BarColumn(BAR), TextColumn("{task.fields[text]}", markup=False))
    with Progress(*columns, console=ERR, transient=True) as bar:
        task = bar.add_task("", total=total, text="")

        def update() -> None:
            done, expected = _stage(engine, total)
            text = _status(engine, total, spending, started)[: max(20, ERR.width - BAR - 2)]
            bar.update(task, completed=done, total=expected, text=text)

        await _repeated(update)


def callback_display(callback: Callable[[Run], None]) -> Show:
    """Calls a function with the progress of the run, ten times per second and at the end."""

    async def show(engine: QueryEngine, _total: int | None, _spending: Spending) -> None:
        await _repeated(lambda: callback(replace(engine.progress)))

    return show


async def _repeated(tell: Callable[[], None]) -> None:
    """Call the function ten times per second, and once more at the end."""
    try:
        while True:
            tell()
            await asyncio.sleep(0.1)
    finally:
        tell()


async def log_lines(engine: QueryEngine, total: int | None, spending: Spending) -> None:
    """A line every ten seconds."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(10)
        say(_status(engine, total, spending, started))


async def log_json(engine: QueryEngine, total: int | None, _: Spending) -> None:
    """A JSON line every second."""
    while True:
        await asyncio.sleep(1)
        by_name = {name: asdict(channel.runner.progress) for name, channel in engine.channels.items()}
        several = {"classifiers": by_name} if len(by_name) > 1 else {}
        line = {"total": total, "in_flight": engine.in_flight, **asdict(engine.progress), **several}
        sys.stderr.write(json.dumps(line) + "\n")


def _stage(engine: QueryEngine, total: int | None) -> tuple[int, int | None]:
    """The number of pictures done and expected in the current stage of a run."""
    before, pictures, _ = engine.stage
    return engine.progress.pictures - before, pictures or total


def _status(engine: QueryEngine, total: int | None, spending: Spending, started: float) -> str:
    """The state of a run in one line, the most important first."""
    progress, (done, expected), (*_, began) = engine.progress, _stage(engine, total), engine.stage
    parts = [f"{done:,}/{expected:,} pictures" if expected else f"{done:,} pictures", *spending.words()]
    if expected and done:
        left = max(0, expected - done) * (time.monotonic() - began) / done
        parts.append(f"{timedelta(seconds=round(left))} left")
    sent = [f"{name} {channel.runner.progress.sent}" for name, channel in engine.channels.items()]
    by_name = f"{', '.join(sent)}; " if len(sent) > 1 else ""
    speed = progress.answered / max(time.monotonic() - started, 1e-9)
    parts.append(f"{progress.sent} queries ({by_name}{speed:.0f}/s, {engine.in_flight} in flight)")
    if progress.hits:
        parts.append(f"{progress.hits} from the ledger")
    if progress.retries:
        parts.append(f"{progress.retries} retries")
    return " · ".join(parts)


# Event loops ----------------------------------------------------------------------------------------------------------


def run(work: Callable[[], Coroutine[object, None, T]]) -> T:
    """Run async work on the fastest loop that is installed."""
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(work())


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


# Signals that end a run or a server: the first one gracefully, a later one at once ------------------------------------

TOGETHER = 0.5
"""Signals within this many seconds are treated as one, since a closed terminal and the command `timeout` send two."""

LEAVING = 5.0
"""Seconds for saving answers on an immediate exit."""


def stopping_signals() -> list[signal.Signals]:
    """Ctrl-C, and the signals of systemd, Docker, Slurm or a closed terminal.

    Ignored signals stay ignored, as under nohup, except Ctrl-C, which also stops runs in the background.
    """
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [each for each in known if each is signal.SIGINT or signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def handling_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Context manager that calls a function with the number of each of these signals."""
    before = {each: signal.signal(each, lambda number, _: handle(number)) for each in stopping_signals()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass
class ReceivedSignals:
    """The signals received so far."""

    first: int | None = None
    _since: float = 0.0

    def is_first(self, number: int) -> bool:
        """Record a signal; returns whether it is the first one."""
        if self.first is not None:
            return False
        self.first, self._since = number, time.monotonic()
        return True

    def is_later(self) -> bool:
        """Whether the last signal was sent after the first, not together with it."""
        return time.monotonic() - self._since > TOGETHER


def leave_soon(code: int) -> None:
    """End the process soon, even if a thread hangs."""
    timer = Timer(LEAVING, os._exit, [code])
    timer.daemon = True
    timer.start()
