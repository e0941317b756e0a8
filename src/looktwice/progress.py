"""Progress of a run: a bar, lines, JSON, or calls of a function."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from looktwice.engine.engine import QueryEngine
from looktwice.engine.outcome import Progress as Run


class _Screen(Console):
    """A terminal that may disappear during a run; what is printed after that is lost."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


ERR = _Screen(stderr=True)


def say(line: str) -> None:
    """A line for the person, on the error stream, so that results can be piped; lost if nobody is there any more."""
    with suppress(OSError):
        ERR.print(line, highlight=False, soft_wrap=True)


Show = Callable[["QueryEngine", int | None, "Spending"], Coroutine[None, None, None]]
"""Shows an engine's progress until it is cancelled: the engine, how many pictures there are, and what it may spend."""


@asynccontextmanager
async def shown(engine: QueryEngine, total: int | None, show: Show | None = None) -> AsyncIterator[None]:
    """Show the progress of an engine, by default as a bar."""
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
        if engine.canaries.flipped:
            say(
                f"The classifier is random: {engine.canaries.flipped} of {engine.canaries.asked} queries asked "
                f"again got another answer ({100 * engine.canaries.flipped / engine.canaries.asked:.0f} %)."
            )


class Spending:
    """What a run has spent, and what was left of its budget when it began."""

    def __init__(self, engine: QueryEngine) -> None:
        self._progress = engine.progress
        self._price = engine.terms.price_micros
        self._remaining = engine.runner.remaining()
        self._money = engine.runner.money_left()

    def words(self) -> list[str]:
        """Money where a question has a price, else questions; nothing where nothing is limited."""
        progress = self._progress
        if progress.input_tokens:
            tokens = f"{progress.input_tokens:,} + {progress.output_tokens:,} tokens"
            rest = "" if self._money is None else f", {max(0, self._money - progress.micros) / 1e6:.4f} left"
            return [tokens, f"{progress.micros / 1e6:.4f} spent{rest}"]
        left = None if self._remaining is None else max(0, self._remaining - progress.sent)
        if not self._price:
            return [] if left is None else [f"{left} left"]
        spent = f"{self._progress.micros / 1e6:.4f} spent"
        return [spent if left is None else f"{spent}, {left * self._price / 1e6:.4f} left"]


async def show_bar(engine: QueryEngine, total: int | None, spending: Spending) -> None:
    """A bar with the time left, what was asked and what was spent."""
    text = TextColumn("pictures · {task.fields[text]}")
    columns = (BarColumn(), MofNCompleteColumn(), text, TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=ERR, transient=True) as bar:
        task = bar.add_task("", total=total, text="")
        try:
            while True:
                bar.update(task, completed=engine.progress.pictures, text=_line(engine, spending, started))
                await asyncio.sleep(0.1)
        finally:
            bar.update(task, completed=engine.progress.pictures, text=_line(engine, spending, started))


def callback_display(callback: Callable[[Run], None]) -> Show:
    """Calls a function with the progress of the run, ten times a second and at the end."""

    async def show(engine: QueryEngine, _total: int | None, _spending: Spending) -> None:
        try:
            while True:
                callback(replace(engine.progress))
                await asyncio.sleep(0.1)
        finally:
            callback(replace(engine.progress))

    return show


async def log_lines(engine: QueryEngine, total: int | None, spending: Spending) -> None:
    """A line every ten seconds."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(10)
        of = f" of {total}" if total else ""
        say(f"{engine.progress.pictures}{of} pictures · {_line(engine, spending, started)}")


async def log_json(engine: QueryEngine, total: int | None, _: Spending) -> None:
    """A JSON line every second."""
    while True:
        await asyncio.sleep(1)
        sys.stderr.write(json.dumps({"total": total, "in_flight": engine.in_flight, **asdict(engine.progress)}) + "\n")


def _line(engine: QueryEngine, spending: Spending, started: float) -> str:
    progress = engine.progress
    speed = progress.answered / max(time.monotonic() - started, 1e-9)
    parts = [f"{progress.sent} queries ({speed:.0f}/s, {engine.in_flight} in flight)"]
    if progress.hits:
        parts.append(f"{progress.hits} from the ledger")
    if progress.retries:
        parts.append(f"{progress.retries} retries")
    return " · ".join([*parts, *spending.words()])
