"""`Model`: the methods of `AsyncModel` for code without an event loop."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache, wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from looktwice.errors import LookTwiceError
from looktwice.model.connection import ModelState
from looktwice.model.model import AsyncModel

P = ParamSpec("P")
T = TypeVar("T")


CLOSED = "the model was closed while it was asking; the answers so far are kept, so ask again"


class _Loop:
    """An event loop in a separate thread, for callers with or without their own loop.

    anyio's portal does not handle Ctrl-C, which must stop a run gracefully, and hangs after forks.
    """

    def __init__(self) -> None:
        # Not uvloop, 2 to 5 % faster here: a child that this process forks would crash as it ends.
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._ended = False
        self._taking = threading.RLock()  # finalizers may run while it is held
        self.streams: set[Callable[[], Coroutine[None, None, None]]] = set()
        """The finalizers of unfinished streams."""
        self._thread = threading.Thread(target=self._live, name="looktwice", daemon=True)
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether the loop was created in another process, before a fork."""
        return self._process != os.getpid()

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def run(self, work: Coroutine[object, None, T], model: Model) -> T:
        """Run a coroutine; the first Ctrl-C stops the model and waits for the end, the second one exits."""
        future = self._take(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(model.stop)
            # In the loop, so that it cannot come before the stop, and not before the end: it would go on.
            future.add_done_callback(lambda _: self._soon(model.resume))
            with suppress(Exception):
                future.result()
            raise
        except CancelledError:
            raise LookTwiceError(CLOSED, code="model-closed") from None

    def leave(self, work: Coroutine[None, None, None], wait: bool) -> None:
        """Run cleanup, unless the loop has ended."""
        with suppress(LookTwiceError, CancelledError):
            future = self._take(work)
            if wait:
                future.result()

    def end(self, work: Coroutine[None, None, None]) -> Future[None]:
        """Run the last coroutine and let the thread end, without waiting."""
        with self._taking:
            future = self._take(work)
            self._ended = True
        future.add_done_callback(lambda _: self._soon(self._loop.stop))
        return future

    def close(self, work: Coroutine[None, None, None]) -> None:
        """Run the last coroutine, and wait until the thread has ended."""
        try:
            self.end(work).result()
        finally:
            self._thread.join()

    def _take(self, work: Coroutine[object, None, T]) -> Future[T]:
        """Start a coroutine in the loop; raises an error if waiting for it would never end."""
        with self._taking:
            if (problem := self._problem()) is None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise LookTwiceError(problem, code="model-closed")

    def _problem(self) -> str | None:
        if threading.current_thread() is self._thread:
            return (
                "the model was called by its own on_answer or progress function, for which it waits; "
                "store what you need there, and call the model afterwards or from another thread"
            )
        if self.forked:
            return "the model was opened before this process was forked; create another in this process"
        return CLOSED if self._ended else None

    def _soon(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(work)


def _waiting(
    method: Callable[Concatenate[AsyncModel, P], Coroutine[object, None, T]],
) -> Callable[Concatenate[Model, P], T]:
    """Wrap an async method of `AsyncModel`."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._opened().run(method(self._awaited, *args, **kwargs), self)

    return call


def _streaming(
    method: Callable[Concatenate[AsyncModel, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Model, P], Iterator[T]]:
    """Wrap an async generator of `AsyncModel`, which yields no None; leaving the loop early stops the queries."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        stream, turn = method(self._awaited, *args, **kwargs), asyncio.Lock()
        loop, thread = self._opened(), threading.get_ident()

        async def step() -> T | None:
            async with turn:
                return await anext(stream, None)

        async def leave() -> None:
            async with turn:
                await stream.aclose()

        loop.streams.add(leave)
        try:
            while (item := loop.run(step(), self)) is not None:
                yield item
                thread = threading.get_ident()
        finally:
            loop.streams.discard(leave)
            # Finalizers run in other threads, which may be those that are waited for.
            loop.leave(leave(), wait=threading.get_ident() == thread and not turn.locked())

    return call


class Model(ModelState):
    """A black-box classifier with calibrated confidence; see `AsyncModel` for the arguments.

    >>> import numpy as np
    >>> def classify(image): return "bright" if image.mean() > 128 else "dark"
    >>> images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    >>> with Model(classify) as model:
    ...     result = model.fit(images, [classify(image) for image in images], views="gaussian:0.1*4")
    ...     model.look(images[0]).label in ("bright", "dark")
    True
    """

    _loop: _Loop | None = None
    _forgotten: weakref.finalize[[], Model]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write queued answers and release all resources; the next call reopens them."""
        with self._opening:
            loop, self._loop = self._loop, None
        if loop:
            _open_models().discard(self)
            self._forgotten.detach()
            if not loop.forked:
                loop.close(self._leave(loop))

    async def _leave(self, loop: _Loop) -> None:
        """Send no further queries, and keep the answers so far."""
        if self.is_open:
            self.stop("the model was closed")
        for leave in [*loop.streams]:
            await leave()
        await self._awaited.close()

    @property
    def _awaited(self) -> AsyncModel:
        """This model for code in the loop: an `AsyncModel` with the same attributes, which does not keep this one
        alive."""
        model = AsyncModel.__new__(AsyncModel)
        model.__dict__ = self.__dict__
        return model

    def _opened(self) -> _Loop:
        with self._opening:
            self._loop = self._loop or self._open()
            return self._loop

    def _open(self) -> _Loop:
        loop, model = _Loop(), self._awaited
        # Finalizers must not block: they may hold a lock that closing needs.
        self._forgotten = weakref.finalize(self, lambda: None if loop.forked else loop.end(model.close()))
        self._forgotten.atexit = False
        _open_models().add(self)
        return loop

    ask = _waiting(AsyncModel.ask)
    estimate = _waiting(AsyncModel.estimate)
    check = _waiting(AsyncModel.check)
    fit = _waiting(AsyncModel.fit)
    transfer = _waiting(AsyncModel.transfer)
    borrow = _waiting(AsyncModel.borrow)
    look = _waiting(AsyncModel.look)
    burst = _waiting(AsyncModel.burst)
    score_burst = _waiting(AsyncModel.score_burst)
    score = _streaming(AsyncModel.score)
    familiarity = _waiting(AsyncModel.familiarity)
    evaluate = _waiting(AsyncModel.evaluate)
    end_alarm = _waiting(AsyncModel.end_alarm)


@cache
def _open_models() -> weakref.WeakSet[Model]:
    """The open models, closed at the end of the process."""
    models = weakref.WeakSet[Model]()

    def close() -> None:
        for model in list(models):
            with suppress(RuntimeError):  # no thread can be started any more to close a ledger, whose answers are saved
                model.close()

    atexit.register(close)
    return models
