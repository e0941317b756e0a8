"""Any Python callable as a classifier: sync or async, one picture or a batch.

A function whose first parameter is called `batch`, `images` or `pictures` gets a list of pictures and returns a list
of labels; any other gets one picture. Pictures are uint8 arrays, height × width × RGB.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from looktwice.classifiers import Classifier, Pixels, Settings, Terms, fingerprint
from looktwice.errors import PermanentError
from looktwice.votes import Answer

BATCH_NAMES = ("batch", "images", "pictures")


class PythonClassifier:
    """A callable of this process, asked in threads unless it is async."""

    def __init__(self, function: Callable[..., object], name: str | None = None, labels: Sequence[str] = ()) -> None:
        self._function = function
        self._batched = _takes_batches(function)
        self._name = name or f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"
        self.description = f"python:{self._name}"
        self.fingerprint = fingerprint("python", {"name": self._name, "source": _source(function)})
        self.labels = tuple(labels) or None
        self.terms = Terms(batch=64 if self._batched else 1, concurrency=2, local=True)

    def prepare(self, pixels: Pixels) -> Pixels:
        return pixels

    async def label(self, batch: Sequence[Pixels]) -> list[Answer]:
        said = await self._call(list(batch)) if self._batched else [await self._call(pixels) for pixels in batch]
        if not isinstance(said, (list, tuple)) or len(said) != len(batch):
            raise PermanentError(
                f"{self._name} was given {len(batch)} pictures and must return as many labels in a list"
            )
        return [self._answer(label) for label in said]

    async def close(self) -> None:
        """Nothing to give back."""

    async def _call(self, argument: object) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(argument)
        return await asyncio.to_thread(self._function, argument)

    def _answer(self, label: object) -> Answer:
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise PermanentError(
                f"{self._name} returned {label!r} ({type(label).__name__}); a label must be a str or an int"
            )
        return Answer(str(label))


def connect(address: str, settings: Settings) -> Classifier[Pixels]:
    """`python:module:function`, or `function = "module:function"` in a TOML file; the current folder is importable."""
    address = address or str(settings.get("function", ""))
    module, _, function = address.partition(":")
    if not module or not function:
        raise PermanentError(f"python:{address} needs a module and a function: python:package.module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PermanentError(f"python:{address} cannot be imported: {error}") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    return PythonClassifier(found, address)


def _takes_batches(function: Callable[..., object]) -> bool:
    return next(iter(inspect.signature(function).parameters), "") in BATCH_NAMES


def _source(function: Callable[..., object]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""
