"""Projects: settings in `looktwice.toml` of the current folder or a parent, overridden by the environment.

Reading it runs and connects nothing. It may be untrusted: its ledger and profile are in its own folder, and its
classifiers pass `registry.trusted`.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from looktwice import files
from looktwice.classifiers import checked
from looktwice.errors import DataError

FILE = "looktwice.toml"
FOLDER = ".looktwice"
"""The folder of a project's own ledger; it marks a project as the file does."""
NAME, USER = "ledger.db", "user"
LEDGER, PROFILE = "LOOKTWICE_LEDGER", "LOOKTWICE_PROFILE"
"""Environment variables that override the file."""
Amount = Annotated[Decimal, Field(ge=0)]
BARE = re.compile("[A-Za-z0-9_-]+")
"""Keys that TOML takes without quotes."""
Names = dict[str, str]
"""A map from a classifier's labels to other names."""


class Project(BaseModel):
    """The settings of a project, all optional."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    classifiers: tuple[str, ...] | dict[str, str] = ()
    """Descriptions such as `cheap.toml` or `onnx:model.onnx`, or a table of them by name."""
    profile: str = "profile.json"
    ledger: str | None = None
    """A file in this folder, or `user` for the one in the user's data folder; `.looktwice/ledger.db` if left out."""
    budget: int | None = Field(default=None, ge=0)
    money: Amount | None = None
    per_day: int | None = Field(default=None, ge=0)
    money_per_day: Amount | None = None
    """Limits for all classifiers together; see `AskOptions`."""
    prices: str | None = None
    """A table of prices by the token, for chat models."""
    rename: dict[str, Names | str] = {}
    """Renamed labels by classifier, or a CSV file of them."""
    _folder: Path | None = PrivateAttr(None)

    @classmethod
    def here(cls) -> Project:
        """The project of the current folder; without settings if there is none."""
        folder = _folder()
        if folder and (folder / FILE).is_file():
            return cls.read(folder / FILE)
        project = cls()
        project._folder = folder
        return project

    @classmethod
    def read(cls, path: Path) -> Project:
        """The project in a file; raises a DataError if it is invalid."""
        try:
            values = tomllib.loads(path.read_text("utf-8"))
            project = checked(cls, values, f"the project file {str(path)!r}", "docs/howto/project-file.md")
        except (OSError, ValueError, RecursionError) as error:
            why = str(error).partition("\n")[0]
            why = why if FILE in why else f"the project file {str(path)!r} cannot be read: {why}"
            raise DataError(why, code="project-invalid") from None
        project._folder = path.parent
        for name in ("profile", "ledger", "prices"):
            project._inside(name)
        return project

    @property
    def file(self) -> Path:
        """The path of the file, which may not exist."""
        return (self._folder or Path()) / FILE

    def descriptions(self) -> Iterator[tuple[str | None, str]]:
        """The name of each classifier, if given, and its description with paths relative to the project."""
        listed = self.classifiers
        for name, text in listed.items() if isinstance(listed, Mapping) else ((None, text) for text in listed):
            scheme = "onnx:" if text.startswith("onnx:") else ""
            path = text.removeprefix(scheme)
            yield name, f"{scheme}{self._below(path)}" if scheme or path.endswith(".toml") else text

    def profile_path(self) -> Path:
        """The path of the profile: from the environment, the file, or `profile.json`."""
        stated = os.environ.get(PROFILE)
        return Path(stated) if stated else self._below(self.profile)

    def stated_ledger(self) -> str | None:
        """The ledger given in the environment or the file, if any."""
        if (stated := os.environ.get(LEDGER)) or self.ledger is None:
            return stated or None
        return str(files.data_folder() / NAME if self.ledger == USER else self.file.parent / self.ledger)

    def ledger_place(self) -> str:
        """The default location of the ledger."""
        usual = self._folder / FOLDER if self._folder else files.data_folder()
        return self.stated_ledger() or str(usual / NAME)

    def names(self, classifier: str) -> Names | Path:
        """The renamed labels of a classifier, or the CSV file with them."""
        named = self.rename.get(classifier, {})
        return self._below(named) if isinstance(named, str) else named

    def limits(self) -> dict[str, object]:
        """The options of a run in the file."""
        stated = {name: getattr(self, name) for name in ("budget", "money", "per_day", "money_per_day")}
        stated |= {"ledger": self.stated_ledger(), "prices": self.prices and str(self._below(self.prices))}
        return {name: value for name, value in stated.items() if value is not None}

    def _below(self, path: str) -> Path:
        """Resolve a path relative to the project's folder."""
        return Path(path) if self._folder is None or self._folder == Path.cwd() else self._folder / path

    def _inside(self, name: str) -> None:
        """Raise an error for a path outside the project's folder: an untrusted file must not choose what is read and
        written."""
        path, folder = getattr(self, name), self.file.parent.resolve()
        if path is not None and ("://" in path or not (folder / path).resolve().is_relative_to(folder)):
            instead = {"ledger": f"set {LEDGER}", "profile": f"set {PROFILE}"}.get(name, f"give --{name}")
            raise DataError(  # the address of a database may hold a password
                f"the {name} in {str(self.file)!r} is not a file in its folder; {instead} instead",
                code="project-invalid",
            )


def _folder() -> Path | None:
    """The current folder, or its closest parent with a project's file or folder.

    Those of other users are ignored, since anybody can create one in a shared folder.
    """
    with suppress(OSError):  # the current folder may be gone
        here = Path.cwd()
        for folder in (here, *here.parents):
            if _is_ours(folder / FILE) or _is_ours(folder / FOLDER):
                return folder
    return None


def _is_ours(mark: Path) -> bool:
    """Whether such a file or folder exists and belongs to this user or the system; root trusts all."""
    if not mark.exists():
        return False
    user = os.getuid() if hasattr(os, "getuid") else 0
    return user in (0, mark.stat().st_uid) or mark.stat().st_uid == 0


def write_names(path: Path, names: Mapping[str, Names], classifiers: tuple[str, ...] = ()) -> None:
    """Add renamed labels to a project file, by classifier, preserving everything else.

    A new file starts with these classifiers, and keeps the current ledger, whose answers are paid for. Raises a
    DataError with the lines to add by hand if the file has another form.
    """
    text = f'classifiers = {json.dumps(classifiers, ensure_ascii=False)}\nledger = "{USER}"\n'
    text = path.read_text("utf-8") if path.exists() else text
    added = ""
    for classifier, pairs in names.items():
        header = f"[rename.{classifier if BARE.fullmatch(classifier) else _quoted(classifier)}]\n"
        lines = "".join(f"{_quoted(label)} = {_quoted(name)}\n" for label, name in pairs.items())
        added += header + lines
        text = text.replace(header, header + lines) if header in text else f"{text}\n{header}{lines}"
    try:
        known = tomllib.loads(text)["rename"]
        done = all(known[classifier].items() >= pairs.items() for classifier, pairs in names.items())
    except (ValueError, KeyError, AttributeError):
        done = False
    if not done:
        raise DataError(f"{str(path)!r} names labels in another form; add by hand: {added}", code="project-invalid")
    files.write(path, text)


def _quoted(text: str) -> str:
    """Quote a string for TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
