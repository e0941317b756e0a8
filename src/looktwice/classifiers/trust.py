"""Approval of untrusted descriptions: nothing is run, read or contacted before the user has approved it.

Classifiers given by the user (`-c`, `classifier=`) are connected directly. Those in a profile pass `checked`, the only
way from a profile to a classifier. Approvals are files in the user's data folder, named by a digest of the description;
deleting one withdraws it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from looktwice import files
from looktwice.classifiers.base import Settings
from looktwice.classifiers.onnx import read_beside
from looktwice.classifiers.registry import PROTOCOLS, Described, folder_of, resolve
from looktwice.classifiers.secrets import PLACE
from looktwice.errors import LookTwiceError, UntrustedError, shown

if TYPE_CHECKING:
    from looktwice.classifiers.chat.model import ChatModel

PACE = {"timeout", "connect_timeout", "concurrency", "per_second", "working_size"}
READING = {"label", "score", "error", "rename", "empty", "synonyms", "without_label"}
"""Settings of rates and of reading replies, which may change without a new approval."""
LOCAL = {"command", "onnx", "python"}
"""Connectors whose descriptions depend on the folder."""
MOST = 160
"""The most characters of side effects in an error; `looktwice trust` shows all of them."""


@dataclass(frozen=True)
class Reach:
    """The side effects of connecting to a described classifier: programs, environment variables, hosts."""

    runs: tuple[str, ...] = ()
    """Programs and Python code."""
    variables: tuple[str, ...] = ()
    """The names of environment variables whose values it gets."""
    sends: tuple[str, ...] = ()
    """The addresses to which pictures go."""
    files: tuple[str, ...] = ()
    """Files outside the folder of the description."""

    def lines(self) -> list[str]:
        """One line per kind of side effect; none if no approval is needed."""
        kinds = {
            "run {} with your rights and environment variables": self.runs,
            "send pictures to {}": self.sends,
            "read the environment variables {}": self.variables,
            "read {}": self.files,
        }
        return [line.format(", ".join(map(shown, what))) for line, what in kinds.items() if what]


def checked(text: str, file: Path) -> Described:
    """Return the description in `file` if it is harmless or approved; raises an UntrustedError otherwise."""
    if PureWindowsPath(text.removeprefix("onnx:")).drive.startswith("\\\\"):
        raise UntrustedError(f"{str(file)!r} names a classifier on a network drive; name the classifier with -c")
    described = resolve(text)
    would = " and ".join(reach(described).lines())
    if not would or os.path.isfile(_place(described)):  # which is false where nothing may be read
        return described
    would = would if len(would) <= MOST else f"{would[:MOST]}…"
    raise UntrustedError(
        f"{str(file)!r} names a classifier that would {would}; if you trust it run: looktwice trust "
        f"{shlex.quote(str(file))}, or name the classifier yourself: -c, in Python classifier=…"
    )


def approve(described: Described) -> Path:
    """Store the approval of a description."""
    place = _place(described)
    files.make_folder(place.parent)
    files.write(place, "\n".join([described.text, *reach(described).lines(), ""]))
    return place


def remember(text: str) -> None:
    """Approve a classifier given by the user; if the approval cannot be stored, it has to be given again."""
    with suppress(LookTwiceError, OSError):
        approve(resolve(text))


def reach(described: Described) -> Reach:
    """The side effects of a description, from its text alone: nothing is imported, read or resolved."""
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
    elif not url and scheme != "http":
        vendor = _vendor(scheme)
        url = f"{vendor.usual_url} (or the address in {vendor.url_variable})"
        variables += [vendor.url_variable, *([] if "key" in settings else [vendor.key_variable])]
    return Reach((), tuple(dict.fromkeys(variables)), (str(url),), outside)


def _with_address(described: Described) -> Settings:
    """Merge the settings with those in the address, like the connectors do."""
    from looktwice.classifiers.http import PLACE as VALUE, merge_preset

    scheme, address, settings = described.scheme, described.address, described.settings
    if scheme == "onnx":
        return read_beside(Path(address)) if address else settings
    name, _, query = address.partition("#")[0].partition("?")
    if scheme == "preset":
        settings = {"preset": name, "values": dict(parse_qsl(query))}
    elif address and scheme.endswith(("http", "https")):
        settings = {**dict(parse_qsl(query)), "url": f"{scheme.rpartition('+')[2]}:{address}"}
    elif address:
        settings = dict(parse_qsl(query))
    settings = merge_preset(settings)
    values = settings.get("values")
    if isinstance(values, Mapping):
        settings["url"] = VALUE.sub(lambda match: str(values.get(match[1], match[0])), str(settings.get("url")))
    return settings


def _files_outside(settings: Settings, names: Sequence[str]) -> tuple[str, ...]:
    """Files that are named in the settings and lie outside the folder of the description, also through links."""
    folder = folder_of(settings).resolve()
    paths = [(folder / value).resolve() for value in map(settings.get, names) if isinstance(value, str)]
    return tuple(str(path) for path in paths if not path.is_relative_to(folder))


def _vendor(scheme: str) -> type[ChatModel]:
    from looktwice.classifiers.chat.anthropic import Messages
    from looktwice.classifiers.chat.gemini import Gemini
    from looktwice.classifiers.chat.openai import OpenAIModel

    vendors: dict[str, type[ChatModel]] = {"anthropic": Messages, "gemini": Gemini}
    return vendors.get(scheme, OpenAIModel)


def _place(described: Described) -> Path:
    """The file that records the approval of a description."""
    settings = {key: value for key, value in described.settings.items() if key not in PACE | READING | {"folder"}}
    here = Path.cwd() if described.scheme == "python" else folder_of(described.settings).resolve()
    where = str(here) if described.scheme in LOCAL or described.scheme not in PROTOCOLS else ""
    text = json.dumps([described.scheme, described.address, settings, where], sort_keys=True, default=str)
    return files.data_folder() / "trusted" / hashlib.sha256(text.encode()).hexdigest()
