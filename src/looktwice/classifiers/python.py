"""Any Python callable as a classifier: sync or async, one picture or a batch.

A function decorated with `batched` gets a list of pictures and returns a list of labels; any other function gets one
picture. Pictures are uint8 arrays, height × width × RGB. Instead of a label, a function may return a label and its
score, `("cat", 0.91)`, or the scores of several labels, `{"cat": 0.91, "dog": 0.06}`. A function decorated with
`returns_tags` returns all tags that may apply to a picture, as a list or as a dict with a score for each tag.

A module-level function is identified by its name and source. A lambda, a closure, a function with default values, a
method or another callable object may depend on more than that, so its fingerprint also has a part behind `#` that is
specific to the object: its answers in a ledger are not shared with other objects, and are valid only as long as the
object exists. A profile ignores that part, so the profile can be loaded in another process.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np

from looktwice.classifiers.base import (
    KEPT_OPTIONS,
    NO_LABEL,
    Answer,
    AnswerKind,
    Classifier,
    Limits,
    Pixels,
    Settings,
    fingerprint,
)
from looktwice.errors import PermanentError
from looktwice.images import PHOTO, WorkingSize

Function = TypeVar("Function", bound=Callable[..., object])


def batched(function: Function) -> Function:
    """Decorator: the function takes a list of up to 64 pictures, and returns one label for each."""
    function.__dict__["batched"] = True
    return function


def returns_tags(function: Function) -> Function:
    """Decorator: the function returns tags, several of which may apply to a picture.

    The result is a list of tags, `["cat", "sofa"]`, or a dict with a score for each, `{"cat": 0.91, "sofa": 0.2}`; a
    score may also be true or false.
    """
    function.__dict__["answer_kind"] = "tags"
    return function


_TOKENS: dict[int, str] = {}
"""A random text for each object, by its `id`, since equal objects may contain different values."""


def _token(owner: object) -> str:
    """The text for an object while it exists; without support for weak references, a new text for each call."""
    new = uuid4().hex
    if id(owner) not in _TOKENS:
        try:
            weakref.finalize(owner, _TOKENS.pop, id(owner), None).atexit = False
        except TypeError:
            return new
    return _TOKENS.setdefault(id(owner), new)


class PythonClassifier:
    """A callable in this process, which is run in threads unless it is async."""

    def __init__(
        self,
        function: Callable[..., object],
        name: str | None = None,
        labels: Sequence[str] = (),
        size: WorkingSize = PHOTO,
    ) -> None:
        self._function = function
        self._batched = bool(getattr(function, "batched", getattr(type(function).__call__, "batched", False)))
        self.answer_kind: AnswerKind = getattr(
            function, "answer_kind", getattr(type(function).__call__, "answer_kind", "label")
        )
        self._name = name or f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"
        self.description = f"python:{self._name}"
        source = _source(function)
        self.fingerprint = fingerprint("python", {"name": self._name, "source": source})
        if name is None and not (source and _is_plain(function)):
            self.fingerprint += f"#{_token(getattr(function, '__self__', function))}"
        self.labels = tuple(labels) or None
        self.limits = Limits(batch=64 if self._batched else 1, concurrency=2, local=True, working_size=size)

    def prepare(self, pixels: Pixels) -> Pixels:
        return pixels

    async def label(self, batch: Sequence[Pixels]) -> list[Answer]:
        answers = await self._call(list(batch)) if self._batched else [await self._call(pixels) for pixels in batch]
        if not isinstance(answers, (list, tuple)) or len(answers) != len(batch):
            raise PermanentError(
                f"{self._name} was given {len(batch)} pictures and must return a list with one label for each",
                code="reply-malformed",
            )
        return [self._answer(label) for label in answers]

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _call(self, argument: object) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(argument)
        return await asyncio.to_thread(self._function, argument)

    def _answer(self, value: object) -> Answer:
        tags = self.answer_kind == "tags"
        if tags and isinstance(value, list | tuple | set | frozenset):
            words = tuple((self._word(tag), None) for tag in list(value)[:KEPT_OPTIONS])
            return Answer(words[0][0] if words else NO_LABEL, options=words)
        if tags and not isinstance(value, Mapping):
            raise PermanentError(
                f"{self._name} returned {value!r} ({type(value).__name__}); return a list of tags, or a dict of scores",
                code="reply-malformed",
            )
        if isinstance(value, Mapping):
            ranked = sorted(value.items(), key=lambda item: -self._number(item[1]))[:KEPT_OPTIONS]
            options = tuple((self._word(label), self._number(score)) for label, score in ranked)
            return Answer(*options[0], options=options) if options else Answer(NO_LABEL)
        if isinstance(value, tuple) and len(value) == 2:
            return Answer(self._word(value[0]), self._number(value[1]))
        return Answer(self._word(value))

    def _number(self, score: object) -> float:
        is_bool = isinstance(score, bool | np.bool_) and self.answer_kind == "label"
        if is_bool or not isinstance(score, int | float | np.integer | np.floating | np.bool_):
            raise PermanentError(
                f"{self._name} returned the score {score!r}; a score must be a number", code="reply-malformed"
            )
        return float(score)

    def _word(self, label: object) -> str:
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise PermanentError(
                f"{self._name} returned {label!r} ({type(label).__name__}); a label must be a str or an int",
                code="reply-malformed",
            )
        return str(label)


def connect(address: str, settings: Settings) -> Classifier[Pixels]:
    """Connect `python:module:function`, or `function` in a TOML file; the current folder is on the import path."""
    address = address or str(settings.get("function", ""))
    module, _, function = address.partition(":")
    if not module or not function:
        raise PermanentError(
            f"python:{address} does not name a module and a function; write python:package.module:function"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        target = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PermanentError(f"python:{address} cannot be imported: {error}", code="program-unusable") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    side = settings.get("working_size")
    if side is not None and not (type(side) is int and side > 0):
        raise PermanentError(f"the working_size of python:{address} is {side!r}; give the longer side in pixels")
    return PythonClassifier(target, address, size=WorkingSize(long=side) if side else PHOTO)


def _is_plain(function: Callable[..., object]) -> bool:
    """Whether the source determines the function: it has no closure, no bound object and no default values."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        return False
    return not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)


def _source(function: Callable[..., object]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""
