"""How a classifier is reached: by a string such as `onnx:model.onnx`, by a TOML file, or as a Python function.

Other packages add protocols in the entry-point group `looktwice.classifiers`: a function
`connect(address, settings) -> Classifier`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from looktwice.classifiers.base import AnyClassifier, Classifier, Settings
from looktwice.classifiers.settings import read_toml
from looktwice.errors import PermanentError

PROTOCOLS = {
    "anthropic": "looktwice.classifiers.chat.anthropic:connect",
    "command": "looktwice.classifiers.command:connect",
    "gemini": "looktwice.classifiers.chat.gemini:connect",
    "http": "looktwice.classifiers.http:connect",
    "https": "looktwice.classifiers.http:connect_tls",
    "oip": "looktwice.classifiers.oip:connect",
    "oip+http": "looktwice.classifiers.oip:connect",
    "oip+https": "looktwice.classifiers.oip:connect_tls",
    "onnx": "looktwice.classifiers.onnx:connect",
    "openai": "looktwice.classifiers.chat.openai:connect",
    "openai+http": "looktwice.classifiers.chat.openai:connect_http",
    "openai+https": "looktwice.classifiers.chat.openai:connect_https",
    "openai-responses": "looktwice.classifiers.chat.responses:connect",
    "preset": "looktwice.classifiers.http:connect_preset",
    "python": "looktwice.classifiers.python:connect",
    "rekognition": "looktwice.classifiers.aws:connect_rekognition",
    "sagemaker": "looktwice.classifiers.aws:connect_sagemaker",
}
"""Schemes that come with looktwice, and the functions that speak them; each is imported when it is first used."""

Connect = Callable[[str, Settings], AnyClassifier]

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
