"""Stream a look as server-sent events: the picture, its views, each answer, and the verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator

from looktwice.model import AnswerEvent, OnAnswer, Picture, Pixels, Verdict, WorkingSize, data_url, shrunk
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


async def stream(work: Callable[[Emit], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Stream the events of some work; an error becomes the last event."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def emit(name: str, data: dict[str, object]) -> None:
        queue.put_nowait(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

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


def picture_event(picture: Picture, size: WorkingSize, views: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The first event: the picture, and the views with their captions.

    The picture is decoded at the working size, or at `PICTURE_SIDE` for display if that is larger.
    """
    image = picture.image(size)
    height, width, _ = image.pixels.shape
    small = image.original_size and max(height, width) < PICTURE_SIDE
    seen = picture.image(WorkingSize(long=PICTURE_SIDE)) if small else image
    height, width = image.original_size or (height, width)
    named = [{"view": view, "caption": caption} for view, caption in views]
    thumbnail = data_url(shrunk(seen.pixels, PICTURE_SIDE))
    return {"name": picture.name, "width": width, "height": height, "picture": thumbnail, "views": named}


async def look(
    emit: Emit,
    first: dict[str, object],
    verdict: Callable[[OnAnswer], Awaitable[Verdict]],
    drawing: Coroutine[None, None, None],
) -> None:
    """Emit a look: the picture, each answer as it comes, the verdict, and the views as they are drawn."""

    def on_answer(answer: AnswerEvent) -> None:
        emit("answer", {"place": answer.place, "label": answer.label})

    emit("picture", first)
    task = asyncio.create_task(drawing)
    try:
        emit("verdict", (await verdict(on_answer)).to_dict())
        await task
    finally:
        task.cancel()


async def draw(emit: Emit, views: Iterator[Pixels], limit: asyncio.Semaphore) -> None:
    """Emits the views of a picture as they are rendered, as many at a time as the limit allows."""

    def following() -> str | None:
        pixels = next(views, None)
        return None if pixels is None else data_url(shrunk(pixels, VIEW_SIDE))

    for place in range(1, MOST_DRAWN + 1):
        async with limit:
            view = await asyncio.to_thread(following)
        if view is None:
            break
        emit("view", {"place": place, "picture": view})
