"""Connect classifiers from a string such as `onnx:model.onnx`, a TOML file or a Python function.

Other packages add protocols in the entry-point group `looktwice.classifiers`: a function
`connect(address, settings) -> Classifier`.

Classifiers given by the user (`-c`, `classifier=`) are connected directly. An untrusted description is parsed,
but nothing in it is run, read or contacted before the user has approved it: each description in a profile is checked by
`trusted` before it is connected. Approvals are files in the user's data folder, named by a digest of the description;
deleting the file withdraws the approval.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl

from looktwice import files
from looktwice.classifiers.base import AnyClassifier, Classifier, Naming, Renamed, Settings, names_of
from looktwice.classifiers.secrets import PLACE
from looktwice.errors import LookTwiceError, PermanentError, UntrustedError, shown

if TYPE_CHECKING:
    from pydantic import BaseModel

    from looktwice.classifiers.chat.model import ChatModel

PROTOCOLS = {
    "anthropic": "looktwice.classifiers.chat.vendors:Messages.connect",
    "command": "looktwice.classifiers.command:connect",
    "gemini": "looktwice.classifiers.chat.vendors:Gemini.connect",
    "http": "looktwice.classifiers.http:connect",
    "https": "looktwice.classifiers.http:connect",
    "oip": "looktwice.classifiers.oip:connect",
    "oip+http": "looktwice.classifiers.oip:connect",
    "oip+https": "looktwice.classifiers.oip:connect",
    "onnx": "looktwice.classifiers.onnx:connect",
    "openai": "looktwice.classifiers.chat.vendors:Completions.connect",
    "openai+http": "looktwice.classifiers.chat.vendors:Completions.connect",
    "openai+https": "looktwice.classifiers.chat.vendors:Completions.connect",
    "openai-responses": "looktwice.classifiers.chat.vendors:Responses.connect",
    "preset": "looktwice.classifiers.http:connect_preset",
    "python": "looktwice.classifiers.python:connect",
    "rekognition": "looktwice.classifiers.aws:connect_rekognition",
    "sagemaker": "looktwice.classifiers.aws:connect_sagemaker",
}
"""The built-in protocols with their functions, imported on first use."""

ASKING = ("name", "budget", "money")
"""The settings in a TOML file that are not passed to the connector."""

Description = TypeVar("Description", bound="BaseModel")

Connect = Callable[[str, Settings], AnyClassifier]


@dataclass(frozen=True)
class Described:
    """A parsed description; nothing in it has been imported, run or connected yet."""

    text: str
    scheme: str
    address: str
    settings: Settings
    asking: Settings = field(default_factory=dict)
    """The settings `name`, `budget` and `money`, which matter if there are several classifiers."""


Amount = str | int | float | Decimal


@dataclass(frozen=True)
class Connected:
    """A classifier with a name and individual settings; for settings that are None, the model's options are used."""

    classifier: AnyClassifier
    name: str
    description: str
    rename: Mapping[str, str] = field(default_factory=dict)
    """Renamed labels."""
    price: Amount | None = None
    prices: str | Path | None = None
    rate: float | None = None
    concurrency: int | None = None
    budget: int | str | None = None
    """The budget of this classifier, in addition to that of the model."""
    money: Amount | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the classifier."""
        return self.classifier.fingerprint

    @property
    def names(self) -> Naming:
        """The naming that maps the answers to labels."""
        return Renamed(names_of(self.classifier), self.rename) if self.rename else names_of(self.classifier)


Source = str | Path | Described | Connected | AnyClassifier | Callable[..., object]
"""The types that `connect` accepts."""


def connect(source: Source) -> AnyClassifier:
    """Create a classifier from a string, a TOML file or a Python function; a classifier is returned unchanged.

    A function takes one picture (uint8, height × width × RGB) and returns a label. With `@looktwice.batched` it takes a
    list of pictures and returns a list of labels. It may be async.
    """
    if isinstance(source, str | Path):
        source = resolve(str(source))
    if isinstance(source, Described):
        return _protocol(source.scheme)(source.address, source.settings)
    if isinstance(source, Connected):
        return source.classifier
    if isinstance(source, Classifier):
        return source
    if callable(source):
        from looktwice.classifiers.python import PythonClassifier

        return PythonClassifier(source)
    raise PermanentError(
        f"{type(source).__name__} is not a classifier; give a description such as onnx:model.onnx, a function, "
        "or a connected classifier"
    )


def describe(source: Source, classifier: AnyClassifier) -> str:
    """The text that describes the classifier for this source in profiles and ledgers."""
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, Described):
        return source.text
    if isinstance(source, Connected):
        return source.description
    return str(getattr(classifier, "description", classifier.fingerprint))


def read_renames(path: Path) -> dict[str, str]:
    """Read renamed labels from a CSV file with the columns `label` and `name`."""
    try:
        rows = list(csv.reader(path.read_text("utf-8-sig").splitlines(), skipinitialspace=True, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise PermanentError(f"the label names in {str(path)!r} cannot be read: {error}") from None
    wrong = next((line for line, row in enumerate(rows, 1) if row and len(row) != 2), 0)
    if not rows or rows[0] != ["label", "name"] or wrong:
        raise PermanentError(
            f"{str(path)!r} is invalid in line {wrong or 1}; start with label,name and write two texts per line"
        )
    return dict(filter(None, rows[1:]))


def resolve(text: str) -> Described:
    """Parse a description, and its TOML file if any; nothing is imported, run or connected."""
    if text.endswith(".toml"):
        return _from_file(text)
    scheme, separator, address = text.partition(":")
    if not separator:
        raise PermanentError(
            f"{text!r} does not describe a classifier; write for example onnx:model.onnx, "
            "python:module:function, or the name of a .toml file"
        )
    if scheme.endswith(("http", "https")):  # `oip+http://host/model` is at `http://host/model`
        address = f"{scheme.rpartition('+')[2]}:{address}"
    return Described(text, scheme, address, {})


def _from_file(text: str) -> Described:
    path = Path(text)
    settings = read_toml(path)
    scheme = settings.pop("connector", "http" if "preset" in settings else None)
    if not isinstance(scheme, str):
        raise PermanentError(f'{str(path)!r} does not name its protocol; add a line such as connector = "onnx"')
    asking = {key: settings.pop(key) for key in ASKING if key in settings}
    return Described(text, scheme, "", {**settings, "folder": str(path.parent)}, asking)


def _protocol(scheme: str) -> Connect:
    if scheme in PROTOCOLS:
        module, _, name = PROTOCOLS[scheme].partition(":")
        function: Connect = attrgetter(name)(import_module(module))
        return function
    others = {point.name: point for point in entry_points(group="looktwice.classifiers")}
    if scheme in others:
        loaded: Connect = others[scheme].load()
        return loaded
    known = sorted({*PROTOCOLS, *others})
    near = get_close_matches(scheme, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
    raise PermanentError(f"no connector is called {scheme!r}; {hint}")


# The settings of a description --------------------------------------------------------------------------------


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file; raises a PermanentError if it is invalid."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PermanentError(f"there is no classifier description {str(path)!r}", code="description-missing") from None
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise PermanentError(f"the classifier description {str(path)!r} cannot be read: {why}") from None


def read_beside(path: Path) -> Settings:
    """The settings in the TOML file beside a model."""
    beside = path.with_suffix(".toml")
    if not path.exists():
        raise PermanentError(f"there is no model file {str(path)!r}", code="description-missing")
    if not beside.exists():
        raise PermanentError(
            f"{str(path)!r} needs a description {str(beside)!r} in the same folder, with at least size = [224, 224], "
            "the labels, and how pixels are scaled; docs/connectors.md shows an example",
            code="description-missing",
        )
    return {"model": path.name, **read_toml(beside), "folder": str(path.parent)}


def labels_of(labels: tuple[str, ...] | str | None, settings: Settings) -> tuple[str, ...] | None:
    """The labels in a description, read from a file if the description specifies a file instead of a list."""
    return read_labels(folder_of(settings) / labels) if isinstance(labels, str) else labels


def read_labels(path: Path) -> tuple[str, ...]:
    """Read a text file with one label per line; raises a PermanentError if it is invalid."""
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except FileNotFoundError:
        raise PermanentError(f"there is no label file {str(path)!r}", code="description-missing") from None
    except (OSError, ValueError) as error:
        raise PermanentError(f"the label file {str(path)!r} cannot be read: {error}") from None


def folder_of(settings: Settings) -> Path:
    """The folder of the description with these settings."""
    return Path(str(settings.get("folder", ".")))


def checked(model: type[Description], values: Mapping[str, object], what: str, page: str) -> Description:
    """Validate settings; raises a ValueError with the name of the invalid setting and any similar valid name.

    The message uses `what` for the object with these settings, and `page` for the document that lists them.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_input=False)
        # Unknown settings are reported first: one may be a misspelling of a setting that is reported as missing.
        first = next((each for each in wrong if each["type"] == "extra_forbidden"), wrong[0])
        where = ".".join(map(str, first["loc"])) or "its settings"
        message = f"{what} is invalid at {where}: {first['msg'].removeprefix('Value error, ').replace('tuple', 'list')}"
        if first["type"] == "extra_forbidden":
            close = get_close_matches(where, [field.alias or name for name, field in model.model_fields.items()], 1)
            meant = f"did you mean {close[0]!r}?" if close else f"see {page} for the supported settings"
            message = f"{what} has an unknown setting {where!r}; {meant}"
    raise ValueError(message)


def described(model: type[Description], settings: Settings) -> Description:
    """Validate the settings of a TOML file; raises a PermanentError with the name of the invalid one."""
    values = {key: value for key, value in settings.items() if key != "folder"}
    try:
        return checked(model, values, "the description of the classifier", "docs/connectors.md")
    except ValueError as error:
        raise PermanentError(str(error)) from None


# Approval of untrusted descriptions ----------------------------------------------------------------------------------


PACE_SETTINGS = {"timeout", "connect_timeout", "concurrency", "per_second", "working_size"}
READING_SETTINGS = {"label", "score", "error", "rename", "empty", "synonyms", "without_label"}
"""Settings for rates and for reading replies; they may change without a new approval."""
LOCAL = {"command", "onnx", "python"}
"""Connectors whose descriptions depend on the folder."""
LONGEST_REACH = 160
"""The maximum length of the list of side effects in an error message; `looktwice trust` shows the full list."""


@dataclass(frozen=True)
class Reach:
    """The side effects of connecting to a described classifier: programs, environment variables, hosts."""

    runs: tuple[str, ...] = ()
    """Programs and Python code that are run."""
    variables: tuple[str, ...] = ()
    """The names of the environment variables whose values the classifier receives."""
    sends: tuple[str, ...] = ()
    """The addresses to which pictures are sent."""
    files: tuple[str, ...] = ()
    """Files outside the description's folder that are read."""

    def lines(self) -> list[str]:
        """One line per kind of side effect; none if no approval is needed."""
        kinds = {
            "run {} with your rights and environment variables": self.runs,
            "send pictures to {}": self.sends,
            "read the environment variables {}": self.variables,
            "read {}": self.files,
        }
        return [line.format(", ".join(map(shown, what))) for line, what in kinds.items() if what]


def trusted(text: str, file: Path) -> Described:
    """Return the description in `file` if it is harmless or approved; raises an UntrustedError otherwise."""
    if PureWindowsPath(text.removeprefix("onnx:")).drive.startswith("\\\\"):
        raise UntrustedError(f"{str(file)!r} names a classifier on a network drive; specify the classifier with -c")
    described = resolve(text)
    would = " and ".join(reach(described).lines())
    if not would or os.path.isfile(_place(described)):  # also false if the folder cannot be read
        return described
    would = would if len(would) <= LONGEST_REACH else f"{would[:LONGEST_REACH]}…"
    raise UntrustedError(
        f"{str(file)!r} names a classifier that would {would}; if you trust it, run: looktwice trust "
        f"{shlex.quote(str(file))}, or specify the classifier yourself with -c (in Python, classifier=…)"
    )


def approve(described: Described) -> Path:
    """Store the approval of a description."""
    place = _place(described)
    files.make_folder(place.parent)
    files.write(place, "\n".join([described.text, *reach(described).lines(), ""]))
    return place


def remember(text: str) -> None:
    """Approve a classifier given by the user; if the approval cannot be stored, it will be needed again."""
    with suppress(LookTwiceError, OSError):
        approve(resolve(text))


def reach(described: Described) -> Reach:
    """Determine the side effects of a description from its text alone: nothing is imported, read or resolved."""
    scheme, settings = described.scheme, _with_address(described)
    outside = _files_outside(settings, ("model", "labels") if scheme == "onnx" else ("labels", "wordings"))
    if scheme == "onnx":
        return Reach(files=outside)
    if scheme in LOCAL:
        words = described.address or str(settings.get("command") or settings.get("function"))
        return Reach((words if scheme == "command" else f"python:{words}",))
    if scheme not in PROTOCOLS:
        return Reach((f"the connector of another package, {described.text}",))
    variables = PLACE.findall(json.dumps(settings, default=str))
    variables += ["HTTP_PROXY", "HTTPS_PROXY"] if settings.get("trust_env") else []
    variables += [str(settings["key"])] if "key" in settings else []
    url = settings.get("url") or settings.get("endpoint_url")
    if scheme in ("rekognition", "sagemaker"):
        url = url or f"{scheme} of AWS in {settings.get('region') or 'the region in AWS_REGION'}"
        variables.append("AWS_… (credentials)")
    elif not url and "chat" in PROTOCOLS[scheme]:
        vendor: type[ChatModel] = _protocol(scheme).__self__  # type: ignore[attr-defined]  # a method of its class
        url = f"{vendor.usual_url} (or the address in {vendor.url_variable})"
        variables += [vendor.url_variable, *([] if "key" in settings else [vendor.key_variable])]
    return Reach((), tuple(dict.fromkeys(variables)), (str(url),), outside)


def _with_address(described: Described) -> Settings:
    """Merge the settings with the settings in the address, as the connectors do."""
    from looktwice.classifiers.http import PLACE as VALUE, merge_preset

    scheme, address, settings = described.scheme, described.address, described.settings
    if scheme == "onnx":
        return read_beside(Path(address)) if address else settings
    name, _, query = address.partition("#")[0].partition("?")
    options = dict(parse_qsl(query))
    if scheme == "preset":
        settings = {"preset": name, "values": options}
    elif address:
        settings = {**options, "url": address} if scheme.endswith(("http", "https")) else options
    settings = merge_preset(settings)
    values = settings.get("values")
    if isinstance(values, Mapping):
        settings["url"] = VALUE.sub(lambda match: str(values.get(match[1], match[0])), str(settings.get("url")))
    return settings


def _files_outside(settings: Settings, names: Sequence[str]) -> tuple[str, ...]:
    """The files in the settings that are outside the description's folder, directly or through links."""
    folder = folder_of(settings).resolve()
    paths = [(folder / value).resolve() for value in map(settings.get, names) if isinstance(value, str)]
    return tuple(str(path) for path in paths if not path.is_relative_to(folder))


def _place(described: Described) -> Path:
    """The file that records the approval of a description."""
    settings = {
        key: value
        for key, value in described.settings.items()
        if key not in PACE_SETTINGS | READING_SETTINGS | {"folder"}
    }
    here = Path.cwd() if described.scheme == "python" else folder_of(described.settings).resolve()
    where = str(here) if described.scheme in LOCAL or described.scheme not in PROTOCOLS else ""
    text = json.dumps([described.scheme, described.address, settings, where], sort_keys=True, default=str)
    return files.data_folder() / "trusted" / hashlib.sha256(text.encode()).hexdigest()
