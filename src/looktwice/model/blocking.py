"""`Model`: the methods of `AsyncModel` for code without an event loop."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar, Unpack

from looktwice.decisions import Profile
from looktwice.engine import OnAnswer, Progress, QueryEngine
from looktwice.errors import LookTwiceError
from looktwice.model.connection import Classifiers, ShowProgress
from looktwice.model.model import AsyncModel
from looktwice.model.options import AskKeywords, AskOptions

P = ParamSpec("P")
T = TypeVar("T")


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
        self._thread = threading.Thread(target=self._live, name="looktwice", daemon=True)
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether the loop was created in another process, before a fork."""
        return self._process != os.getpid()

    def _live(self) -> None:
        async def leave() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        self._loop.run_forever()
        self._loop.run_until_complete(leave())
        self._loop.close()

    def run(self, work: Awaitable[T], interrupt: Callable[[], None], resume: Callable[[], None]) -> T:
        """Run a coroutine; the first Ctrl-C interrupts it and waits for its end, the second one exits."""
        future = self._take(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(interrupt)
            # In the loop, so that it cannot come before the interrupt, and not before the end: it would go on.
            future.add_done_callback(lambda _: self._soon(resume))
            with suppress(Exception):
                future.result()
            raise
        except CancelledError:
            raise _closed() from None

    def leave(self, work: Coroutine[None, None, None], wait: bool) -> None:
        """Run cleanup, unless the loop has ended."""
        try:
            future = self._take(work)
        except LookTwiceError:
            return
        if wait:
            with suppress(CancelledError):
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

    def _take(self, work: Awaitable[T]) -> Future[T]:
        """Start a coroutine in the loop; raises an error if waiting for it would deadlock."""

        async def main() -> T:
            return await work

        problem = None
        with self._taking:
            if threading.current_thread() is self._thread:
                problem = LookTwiceError(
                    "the model was called by its own on_answer or progress function, for which it waits; "
                    "store what you need there, and call the model afterwards or from another thread",
                    code="model-closed",
                )
            elif self.forked:
                problem = LookTwiceError(
                    "the model was opened before this process was forked; create another in this process",
                    code="model-closed",
                )
            elif self._ended:
                problem = _closed()
            else:
                return asyncio.run_coroutine_threadsafe(main(), self._loop)
        if inspect.iscoroutine(work):
            work.close()
        raise problem

    def _soon(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(work)


def _closed() -> LookTwiceError:
    return LookTwiceError(
        "the model was closed while it was asking; the answers so far are kept, so ask again", code="model-closed"
    )


def _waiting(method: Callable[Concatenate[AsyncModel, P], Awaitable[T]]) -> Callable[Concatenate[Model, P], T]:
    """Wrap an async method of `AsyncModel`."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._opened().run(method(self._model, *args, **kwargs), self._model.stop, self._model.resume)

    return call


def _passed_on(method: Callable[Concatenate[AsyncModel, P], T]) -> Callable[Concatenate[Model, P], T]:
    """Wrap a synchronous method of `AsyncModel`."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._model, *args, **kwargs)

    return call


class _End:
    """Marks the end of a stream."""


_END = _End()


def _streaming(
    method: Callable[Concatenate[AsyncModel, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Model, P], Iterator[T]]:
    """Wrap an async generator of `AsyncModel`; leaving the loop early stops the queries."""

    @wraps(method)
    def call(self: Model, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        stream, turn = method(self._model, *args, **kwargs), asyncio.Lock()
        loop, thread = self._opened(), threading.get_ident()

        async def step() -> T | _End:
            async with turn:
                return await anext(stream, _END)

        async def leave() -> None:
            async with turn:
                await stream.aclose()

        self._streams.add(leave)
        try:
            while not isinstance(item := loop.run(step(), self._model.stop, self._model.resume), _End):
                yield item
                thread = threading.get_ident()
        finally:
            self._streams.discard(leave)
            # Finalizers run in other threads, which may be those that are waited for.
            loop.leave(leave(), wait=threading.get_ident() == thread and not turn.locked())

    return call


class Model:
    """A black-box classifier with calibrated confidence; see `AsyncModel` for the arguments.

    >>> import numpy as np
    >>> def classify(image): return "bright" if image.mean() > 128 else "dark"
    >>> images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    >>> with Model(classify) as model:
    ...     result = model.fit(images, [classify(image) for image in images], views="gaussian:0.1*4")
    ...     model.look(images[0]).label in ("bright", "dark")
    True
    """

    def __init__(
        self,
        classifier: Classifiers,
        profile: Profile | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> None:
        self._wrap(AsyncModel(classifier, profile, options=options, progress=progress, on_answer=on_answer, **asking))

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        classifiers: Classifiers | None = None,
        *,
        options: AskOptions | None = None,
        progress: ShowProgress = False,
        on_answer: OnAnswer | None = None,
        **asking: Unpack[AskKeywords],
    ) -> Self:
        """Load a saved profile; raises an UntrustedError if it names a classifier that the user has not approved.

        The default path is the project's profile, with the project's limits. `classifiers` replace the ones listed in
        the profile. Profiles saved on this machine are approved.
        """
        model = cls.__new__(cls)
        model._wrap(
            AsyncModel.load(path, classifiers, options=options, progress=progress, on_answer=on_answer, **asking)
        )
        return model

    def _wrap(self, model: AsyncModel) -> None:
        self._model = model
        self._loop: _Loop | None = None
        self._opening = threading.Lock()
        self._streams: set[Callable[[], Coroutine[None, None, None]]] = set()
        """The finalizers of unfinished streams."""

    @property
    def profile(self) -> Profile | None:
        """The fitted profile of the classifier; None before `fit`."""
        return self._model.profile

    @property
    def asked(self) -> Progress:
        """The queries so far, since the ledger and the classifier were opened."""
        return self._model.asked

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
                loop.close(self._leave())

    async def _leave(self) -> None:
        """Send no further queries, and keep the answers so far."""
        if self._model.is_open:
            self._model.stop("the model was closed")
        for leave in [*self._streams]:
            await leave()
        await self._model.close()

    def _opened(self) -> _Loop:
        with self._opening:
            self._loop = self._loop or self._open()
            return self._loop

    def _open(self) -> _Loop:
        loop, model = _Loop(), self._model
        # Finalizers must not block: they may hold a lock that closing needs.
        self._forgotten = weakref.finalize(self, lambda: None if loop.forked else loop.end(model.close()))
        self._forgotten.atexit = False
        _open_models().add(self)
        return loop

    @property
    def is_open(self) -> bool:
        """Whether the ledger and the classifier are open."""
        return self._model.is_open

    @property
    def in_flight(self) -> int:
        """Calls to the classifier that are in flight."""
        return self._model.in_flight

    @property
    def engine(self) -> QueryEngine:
        """The query engine, opened when first needed."""
        return self._model.engine

    save = _passed_on(AsyncModel.save)
    fitted = _passed_on(AsyncModel.fitted)
    policy = _passed_on(AsyncModel.policy)
    plan = _passed_on(AsyncModel.plan)
    panel = _passed_on(AsyncModel.panel)
    learn = _passed_on(AsyncModel.learn)
    typical_price = _passed_on(AsyncModel.typical_price)
    ledger_name = _passed_on(AsyncModel.ledger_name)
    days = _passed_on(AsyncModel.days)
    label_maps = _passed_on(AsyncModel.label_maps)
    sends_to = _passed_on(AsyncModel.sends_to)
    labels_missing = _passed_on(AsyncModel.labels_missing)
    monitor = _passed_on(AsyncModel.monitor)
    rendered = _passed_on(AsyncModel.rendered)
    strictest_guarantee = _passed_on(AsyncModel.strictest_guarantee)
    unavailable = _passed_on(AsyncModel.unavailable)
    stop = _passed_on(AsyncModel.stop)
    resume = _passed_on(AsyncModel.resume)
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
