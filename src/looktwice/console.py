"""What a person sees while a run goes on and when it is over; machines get JSON instead."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from looktwice.asking import Asker, Estimate
from looktwice.outcome import Progress as Run
from looktwice.pictures import Picture
from looktwice.profile import Figure, Result
from looktwice.session import fastest_loop
from looktwice.views import Panel

if TYPE_CHECKING:
    from looktwice.model import AsyncModel

T = TypeVar("T")
OUT = Console()
ERR = Console(stderr=True)

COLUMNS = {"accuracy": "acc. ↑", "ece": "ECE ↓", "auroc": "AUROC ↑", "brier": "Brier ↓"}


def safe(text: str) -> str:
    """Text from outside, fit for a terminal: control characters are shown, not obeyed."""
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def say(line: str) -> None:
    """A line for the person, on the error stream, so that results can be piped."""
    ERR.print(line, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """A result for a machine, on one line."""
    # Names of files that are not UTF-8 hold halves of characters, which JSON writes as it should: \udcff.
    sys.stdout.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n")


def show_estimate(total: Estimate, as_json: bool) -> None:
    """What would be asked and what it would cost."""
    if as_json:
        print_json(asdict(total))
        return
    hours = "" if total.seconds is None else f", at least {total.seconds / 3600:.1f} hours at the allowed rate"
    say(
        f"{total.pictures} pictures, {total.unreadable} of them unreadable: {total.questions} questions, of which the "
        f"ledger answers {total.hits}; the other {total.queries} cost {total.micros / 1e6:.4f}{hours}"
        ". Nothing was asked."
    )


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run async work on the fastest loop that is installed."""

    async def main() -> T:
        return await work()

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(main())


@dataclass(frozen=True)
class Output:
    """How a command shows what it does."""

    json: bool = False
    """Results as JSON in place of words and tables."""
    json_log: bool = False
    """Progress as JSON lines."""
    dry_run: bool = False
    """Say what would be asked and what it costs; ask nothing."""


def estimate(model: AsyncModel, pictures: Sequence[Picture], panel: Panel, output: Output) -> None:
    """Say what asking about these pictures would cost, and ask nothing; stopping early may make it less."""

    async def work() -> Estimate:
        async with model:
            return await model.estimate(pictures, views=panel)

    show_estimate(run(work), output.json)


@asynccontextmanager
async def watched(model: AsyncModel, total: int, output: Output) -> AsyncIterator[None]:
    """Show how a run gets on; Ctrl-C once stops it gently, twice at once. The model is closed at the end."""
    loop = asyncio.get_running_loop()
    show = _log_json if output.json_log else _show_bar if ERR.is_terminal else _log_lines
    async with model, shown(model.asker, total, show):
        loop.add_signal_handler(signal.SIGINT, _interrupt, model.asker)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)


Show = Callable[["Asker", int | None, "Purse"], Coroutine[None, None, None]]
"""Shows an asker's progress until it is cancelled: the asker, how many pictures there are, and what it may spend."""


@asynccontextmanager
async def shown(asker: Asker, total: int | None, show: Show | None = None) -> AsyncIterator[None]:
    """Show how an asker gets on, by default as a bar."""
    display = asyncio.create_task((show or _show_bar)(asker, total, Purse(asker)))
    try:
        yield
    finally:
        display.cancel()
        await asyncio.gather(display, return_exceptions=True)
        if asker.trust.flipped:
            say(
                f"The classifier is random: {asker.trust.flipped} of {asker.trust.asked} questions that were asked "
                f"again got another answer ({asker.trust.flip_rate():.0%})."
            )


class Purse:
    """What a run has spent, and what was left of its budget when it began."""

    def __init__(self, asker: Asker) -> None:
        self._progress = asker.progress
        self._price = asker.terms.price_micros
        self._room = asker.room()

    def words(self) -> list[str]:
        """Money where a question has a price, else questions; nothing where nothing is limited."""
        left = None if self._room is None else max(0, self._room - self._progress.sent)
        if not self._price:
            return [] if left is None else [f"{left} left"]
        spent = f"{self._progress.micros / 1e6:.4f} spent"
        return [spent if left is None else f"{spent}, {left * self._price / 1e6:.4f} left"]


def _interrupt(asker: Asker) -> None:
    if asker.stopped:
        raise KeyboardInterrupt
    say("Stopping: waiting for what is in flight (Ctrl-C again to leave now) ...")
    asker.stop("the run was stopped by Ctrl-C; run the same command again to go on")


async def _show_bar(asker: Asker, total: int | None, purse: Purse) -> None:
    text = TextColumn("pictures · {task.fields[text]}")
    columns = (BarColumn(), MofNCompleteColumn(), text, TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=ERR, transient=True) as bar:
        task = bar.add_task("", total=total, text="")
        try:
            while True:
                bar.update(task, completed=asker.progress.pictures, text=_line(asker, purse, started))
                await asyncio.sleep(0.1)
        finally:
            bar.update(task, completed=asker.progress.pictures, text=_line(asker, purse, started))


def telling(tell: Callable[[Run], None]) -> Show:
    """Calls a function with the progress of the run, ten times a second and at the end."""

    async def show(asker: Asker, _total: int | None, _purse: Purse) -> None:
        try:
            while True:
                tell(asker.progress)
                await asyncio.sleep(0.1)
        finally:
            tell(asker.progress)

    return show


async def _log_lines(asker: Asker, total: int | None, purse: Purse) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(10)
        of = f" of {total}" if total else ""
        say(f"{asker.progress.pictures}{of} pictures · {_line(asker, purse, started)}")


async def _log_json(asker: Asker, total: int | None, _: Purse) -> None:
    while True:
        await asyncio.sleep(1)
        sys.stderr.write(json.dumps({"total": total, "in_flight": asker.in_flight, **asdict(asker.progress)}) + "\n")


def _line(asker: Asker, purse: Purse, started: float) -> str:
    progress = asker.progress
    speed = progress.answered / max(time.monotonic() - started, 1e-9)
    parts = [f"{progress.sent} queries ({speed:.0f}/s, {asker.in_flight} in flight)"]
    if progress.hits:
        parts.append(f"{progress.hits} from the ledger")
    if progress.retries:
        parts.append(f"{progress.retries} retries")
    return " · ".join([*parts, *purse.words()])


def results_table(results: Sequence[Result], title: str) -> Table:
    """Figures with their 95 % intervals, one belief a row."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("belief")
    table.add_column("queries", justify="right")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for result in results:
        cells = [_cell(result.figures[key]) for key in COLUMNS]
        table.add_row(safe(result.belief), f"{result.queries:.3g}", *cells)
    return table


def _cell(figure: Figure) -> str:
    if figure.value is None:
        return "–"
    interval = (
        "" if figure.low is None or figure.high is None else f"\n[dim]{_short(figure.low)}–{_short(figure.high)}[/dim]"
    )
    return f"{figure.value:.3f}{interval}"


def _short(value: float) -> str:
    """Three decimals without a leading zero: narrow enough for a terminal of 80 columns."""
    return f"{value:.3f}".removeprefix("0")


def thumbnails(pictures: Sequence[NDArray[np.uint8]], captions: Sequence[str], width: int = 24) -> Table:
    """Small pictures side by side, two pixels a character, each above its caption; three fit 80 columns."""
    import cv2

    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in pictures:
        grid.add_column(width=width, no_wrap=True)
    grid.add_row(*(_blocks(cv2.resize(pixels, (width, width), interpolation=cv2.INTER_AREA)) for pixels in pictures))
    grid.add_row(*captions)
    return grid


def _blocks(pixels: NDArray[np.generic]) -> Text:
    text = Text()
    for top, bottom in zip(pixels[::2], pixels[1::2], strict=False):
        for upper, lower in zip(top, bottom, strict=True):
            text.append("▀", style=f"rgb({','.join(map(str, upper))}) on rgb({','.join(map(str, lower))})")
        text.append("\n")
    return text
