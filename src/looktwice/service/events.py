"""A look as it happens: server-sent events for the picture, its views, each answer as it comes, and the verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from looktwice.model import AnswerEvent, OnAnswer, Picture, Pixels, WorkingSize, data_url, shrunk
from looktwice.service.replies import Refusal

TYPE = "text/event-stream"
Emit = Callable[[str, dict[str, object]], None]
"""Sends an event: its name and its data."""

MOST_DRAWN = 24
"""Views of a panel that are drawn."""
VIEW_SIDE, PICTURE_SIDE = 128, 512
"""Pixels of the longer side of a thumbnail."""
HEARTBEAT = 15.0
"""Seconds after which a silent stream says that it is alive."""


def event(name: str, data: dict[str, object]) -> bytes:
    """One event as it goes over the wire."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def stream(work: Callable[[Emit], Awaitable[None]]) -> AsyncIterator[bytes]:
    """The events of some work, with the problem that ended it as the last one if there was one."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def emit(name: str, data: dict[str, object]) -> None:
        queue.put_nowait(event(name, data))

    async def run() -> None:
        try:
            await work(emit)
        except Refusal as refusal:
            emit("problem", refusal.problem().model_dump())
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while True:
            try:
                part = await asyncio.wait_for(queue.get(), HEARTBEAT)
            except TimeoutError:
                part = b": still looking\n\n"
            if part is None:
                break
            yield part
        await task
    finally:
        task.cancel()


def answers(emit: Emit) -> OnAnswer:
    """Emits each answer: the place of its view, from 1, or 0 for the picture itself; null where it has no label."""

    def on_answer(event: AnswerEvent) -> None:
        emit("answer", {"place": event.place, "label": event.label})

    return on_answer


def picture_event(shown: Shown, name: str, views: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The first event: what is looked at, and the views with their captions."""
    named = [{"view": view, "caption": caption} for view, caption in views]
    return {"name": name, "width": shown.width, "height": shown.height, "picture": shown.thumbnail, "views": named}


@dataclass(frozen=True)
class Shown:
    """A picture as people see it."""

    width: int
    height: int
    thumbnail: str

    @classmethod
    def of(cls, picture: Picture, side: int, size: WorkingSize) -> Shown:
        """Decodes the picture at a working size, or larger where people would see less than `side`."""
        image = picture.image(size)
        height, width, _ = image.pixels.shape
        seen = picture.image(WorkingSize(long=side)) if image.original_size and max(height, width) < side else image
        height, width = image.original_size or (height, width)
        return cls(width, height, data_url(shrunk(seen.pixels, side)))


async def draw(emit: Emit, views: Iterator[Pixels]) -> None:
    """Emits the views of a picture as they are rendered."""

    def following() -> str | None:
        pixels = next(views, None)
        return None if pixels is None else data_url(shrunk(pixels, VIEW_SIDE))

    for place in range(1, MOST_DRAWN + 1):
        if (view := await asyncio.to_thread(following)) is None:
            break
        emit("view", {"place": place, "picture": view})
