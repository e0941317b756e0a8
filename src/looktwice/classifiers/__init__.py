"""The closed box: what looktwice needs of a classifier, and how to reach one.

A classifier is described by a URL-like string (`onnx:model.onnx`, `python:package.module:function`) or by a TOML
file whose `connector` names the protocol. Other packages add protocols in the entry-point group
`looktwice.classifiers`: a function `connect(address, settings) -> Classifier`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from looktwice.classifiers.answer import Answer
from looktwice.classifiers.naming import Naming, Plain
from looktwice.errors import ClassifierError, PermanentError

if TYPE_CHECKING:
    from pydantic import BaseModel

Pixels = NDArray[np.uint8]
Settings = Mapping[str, object]
Prepared = TypeVar("Prepared")
Description = TypeVar("Description", bound="BaseModel")

PROTOCOLS = {
    "anthropic": "looktwice.classifiers.chat:connect_anthropic",
    "command": "looktwice.classifiers.command:connect",
    "http": "looktwice.classifiers.http:connect",
    "https": "looktwice.classifiers.http:connect_tls",
    "oip": "looktwice.classifiers.oip:connect",
    "oip+http": "looktwice.classifiers.oip:connect",
    "oip+https": "looktwice.classifiers.oip:connect_tls",
    "onnx": "looktwice.classifiers.onnx:connect",
    "openai": "looktwice.classifiers.chat:connect_openai",
    "openai+http": "looktwice.classifiers.chat:connect_openai_http",
    "openai+https": "looktwice.classifiers.chat:connect_openai_https",
    "preset": "looktwice.classifiers.http:connect_preset",
    "python": "looktwice.classifiers.python:connect",
    "rekognition": "looktwice.classifiers.aws:connect_rekognition",
    "sagemaker": "looktwice.classifiers.aws:connect_sagemaker",
}
"""Schemes that come with looktwice, and the functions that speak them; each is imported when it is first used."""


@dataclass(frozen=True)
class Terms:
    """How a classifier likes to be asked; nothing here changes its answers."""

    batch: int = 1
    """Pictures in one call."""
    concurrency: int = 8
    """Calls at the same time."""
    per_second: float | None = None
    """Questions a second that it allows."""
    price_micros: int = 0
    """The price of a question, in millionths of the currency."""
    local: bool = False
    """It runs on this machine and is free, so answers need no ledger."""


@runtime_checkable
class Classifier(Protocol, Generic[Prepared]):
    """A closed classifier: pictures in, one label each out.

    One whose words are not yet labels also has `names`, a `Naming`.
    """

    @property
    def fingerprint(self) -> str:
        """Changes when anything that could change its words changes, and only then; holds no secret."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Every label it can give, where that is known."""

    @property
    def terms(self) -> Terms:
        """How it likes to be asked."""

    def prepare(self, pixels: Pixels) -> Prepared:
        """One picture as the classifier takes it; heavy work, called in threads, before anything is paid."""

    async def label(self, batch: Sequence[Prepared]) -> list[Answer]:
        """One answer a picture, in their order; a ClassifierError says what kind of failure it was."""

    async def close(self) -> None:
        """Give back connections and processes."""


AnyClassifier = Classifier[Any]
"""A classifier whose prepared form of a picture is its own affair."""
Connect = Callable[[str, Settings], AnyClassifier]
PLAIN = Plain()
Source = str | Path | AnyClassifier | Callable[..., object]
"""What `connect` takes."""


def connect(source: Source) -> AnyClassifier:
    """The classifier that a string or a TOML file describes, a Python function as one, or a classifier as it is.

    A function takes one picture (uint8, height × width × RGB), or a list of them if its first parameter is called
    `batch`, `images` or `pictures`, and returns a label or a list of labels; it may be async.
    """
    if isinstance(source, str | Path):
        return _described(str(source))
    if isinstance(source, Classifier):
        return source
    if callable(source):
        from looktwice.classifiers.python import PythonClassifier

        return PythonClassifier(source)
    raise PermanentError(
        f"{type(source).__name__} is no classifier; give a description such as onnx:model.onnx, a function, "
        "or a connected classifier"
    )


def describe(source: Source, classifier: AnyClassifier) -> str:
    """What a profile and a ledger call the classifier that `connect` made of this source."""
    if isinstance(source, str | Path):
        return str(source)
    return str(getattr(classifier, "description", classifier.fingerprint))


def names_of(classifier: AnyClassifier) -> Naming:
    """What the words in a classifier's answers mean."""
    names: Naming = getattr(classifier, "names", PLAIN)
    return names


def _described(text: str) -> AnyClassifier:
    if text.endswith(".toml"):
        return _from_file(Path(text))
    scheme, separator, address = text.partition(":")
    if not separator:
        raise PermanentError(
            f"{text!r} does not describe a classifier; write for example onnx:model.onnx, "
            "python:module:function, or the name of a .toml file"
        )
    return _protocol(scheme)(address, {})


def _from_file(path: Path) -> AnyClassifier:
    settings = read_toml(path)
    scheme = settings.pop("connector", "http" if "preset" in settings else None)
    if not isinstance(scheme, str):
        raise PermanentError(f'{str(path)!r} does not name its protocol; add a line such as connector = "onnx"')
    return _protocol(scheme)("", {**settings, "folder": str(path.parent)})


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file; a PermanentError says what is wrong with it."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PermanentError(f"there is no classifier description {str(path)!r}") from None
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise PermanentError(f"the classifier description {str(path)!r} cannot be read: {why}") from None


def read_labels(name: str, *folders: Path) -> tuple[str, ...]:
    """The lines of a text file with one label each, from the first folder that has it.

    A PermanentError says what is wrong with it.
    """
    places = list(dict.fromkeys(folder / name for folder in folders))
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise PermanentError(f"there is no label file {' or '.join(repr(str(place)) for place in places)}")
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise PermanentError(f"the label file {str(path)!r} cannot be read: {error}") from None


def folder_of(settings: Settings) -> Path:
    """Where the description lies whose settings these are."""
    return Path(str(settings.get("folder", ".")))


def described(model: type[Description], settings: Settings) -> Description:
    """The settings of a TOML file as a checked model; a PermanentError names the one that is wrong."""
    from pydantic import ValidationError

    values = {key: value for key, value in settings.items() if key != "folder"}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "its settings"
        message = f"the description of the classifier is wrong at {where}: {first['msg'].removeprefix('Value error, ')}"
    raise PermanentError(message)


def _protocol(scheme: str) -> Connect:
    if scheme in PROTOCOLS:
        module, _, name = PROTOCOLS[scheme].partition(":")
        function: Connect = getattr(import_module(module), name)
        return function
    others = {point.name: point for point in entry_points(group="looktwice.classifiers")}
    if scheme in others:
        loaded: Connect = others[scheme].load()
        return loaded
    known = sorted({*PROTOCOLS, *others})
    near = difflib.get_close_matches(scheme, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise PermanentError(f"no connector is called {scheme!r}; {hint}")


def fingerprint(kind: str, parts: Mapping[str, object]) -> str:
    """A short tagged hash of everything that could change answers."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{kind}:{hashlib.blake2b(text.encode(), digest_size=12, person=b'looktwice').hexdigest()}"


def lasting(fingerprint: str) -> str:
    """The part of a fingerprint that is the same in every process; see `PythonClassifier`."""
    return fingerprint.partition("#")[0]


__all__ = [
    "Answer",
    "AnyClassifier",
    "Classifier",
    "ClassifierError",
    "Pixels",
    "Settings",
    "Terms",
    "connect",
    "describe",
    "fingerprint",
    "lasting",
    "names_of",
]
