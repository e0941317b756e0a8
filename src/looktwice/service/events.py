"""A look as it happens: server-sent events for the picture, its views, each answer as it comes, and the verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from looktwice.pictures.collection import Held, Source
from looktwice.pictures.image import Image, WorkingSize, data_url, shrunk
from looktwice.service.replies import Refusal, caption
from looktwice.views import Panel, Question, questions, render

Emit = Callable[[str, dict[str, object]], None]
"""Sends an event: its name and its data."""

MOST_DRAWN = 24
"""Views of a panel that are drawn."""
VIEW_SIDE, PICTURE_SIDE = 128, 512
"""Pixels of the longer side of a thumbnail."""
KEPT = 2_000_000
"""Pixels of the largest picture that stays decoded while it is looked at."""
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


def answers(emit: Emit) -> Callable[[int, str | None], None]:
    """Emits each answer: the place of its view, from 1, or 0 for the picture itself; null where it has no label."""
    return lambda place, label: emit("answer", {"place": place, "label": label})


def picture_event(shown: Shown, name: str, views: Sequence[str]) -> dict[str, object]:
    """The first event: what is looked at, and how."""
    named = [{"view": view, "caption": caption(view)} for view in views]
    return {"name": name, "width": shown.width, "height": shown.height, "picture": shown.thumbnail, "views": named}


@dataclass(frozen=True)
class Shown:
    """A picture as people see it, and where its pixels are."""

    width: int
    height: int
    thumbnail: str
    source: Source

    @classmethod
    def of(cls, source: Source, side: int, size: WorkingSize) -> Shown:
        """Decodes the picture at a working size; a large one is dropped, and decoded again where its pixels are needed.

        What people see is decoded apart where the working size is smaller than that.
        """
        image = source.image("", size)
        height, width, _ = image.pixels.shape
        kept = Held(image) if height * width <= KEPT else source
        seen = source.image("", WorkingSize(long=side)) if image.original_size and max(height, width) < side else image
        height, width = image.original_size or (height, width)
        return cls(width, height, data_url(shrunk(seen.pixels, side)), kept)


async def draw(emit: Emit, source: Source, size: WorkingSize, panel: Panel, seed: int) -> None:
    """Emits the views of a picture as they are drawn, from the very pixels that the classifier is shown."""
    image = await asyncio.to_thread(source.image, "", size)
    for place, question in enumerate(questions(image, panel[:MOST_DRAWN], seed), 1):
        emit("view", {"place": place, "picture": await asyncio.to_thread(_drawn, image, question)})


def _drawn(image: Image, question: Question) -> str:
    (pixels,) = render(image, [question])
    return data_url(shrunk(pixels, VIEW_SIDE))
