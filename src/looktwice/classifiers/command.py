"""A program on this machine that receives the path of a PNG file and prints the label as its last line.

    command:./classify --model birds.bin {image}

or, in a TOML file beside the program:

    connector = "command"
    command = "./classify --model birds.bin {image}"
    timeout = 20

In place of a label the last line may be JSON: a label with a score, or a ranked list, with or without scores:

    {"label": "cat", "score": 0.91}
    [{"label": "cat", "score": 0.91}, {"label": "dog", "score": 0.06}]

The command is not run by a shell. The program inherits the environment, including keys. `${NAME}` in the command is
replaced by the value of an environment variable; other users of this machine can see it while the program runs.
Exit code 0 means an answer, 75 (EX_TEMPFAIL) a transient failure, and any other code a permanent failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shlex
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from looktwice.classifiers.base import (
    KEPT_OPTIONS,
    NO_LABEL,
    Answer,
    Classifier,
    Limits,
    Pixels,
    Settings,
    fingerprint,
)
from looktwice.classifiers.registry import described, folder_of
from looktwice.classifiers.secrets import LEAST, Secrets, is_secret, refuse_literals
from looktwice.classifiers.settings import DAY, Encoding, Price, kind_of
from looktwice.errors import ClassifierError, PermanentError, TransientError, require_posix
from looktwice.images import WorkingSize

MOST_OUTPUT = 1 << 20
"""The maximum output on each stream, in bytes."""
EX_TEMPFAIL = 75
FOLDERS = ("PWD", "OLDPWD")
"""Environment variables that are not treated as secrets."""
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
"""Transient errors when a program is started."""


class CommandDescription(BaseModel):
    """A command line with {image} for the path of the picture."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    timeout: float = Field(default=60.0, gt=0, le=DAY, description="maximum seconds for one picture")
    concurrency: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    encoding: Encoding = Encoding()
    working_size: int | None = Field(
        default=None, ge=1, description="maximum longer side in pixels; larger pictures are scaled down"
    )
    labels: tuple[str, ...] | None = None
    price: Price = Field(default=Decimal(0), description="price per query, if the program calls a paid service")
    public: tuple[str, ...] = Field(
        default=(), description="names of options that look like secrets but are not confidential"
    )

    @field_validator("command")
    @classmethod
    def _takes_a_picture(cls, command: str) -> str:
        words = shlex.split(command)
        if not any("{image}" in word for word in words[1:]):
            raise ValueError("the command has no place for the picture; write {image} for the path of its file")
        return command

    @model_validator(mode="after")
    def _writes_no_secret(self) -> Self:
        refuse_literals(_options(shlex.split(self.command)), self.public)
        return self


class Printed(BaseModel):
    """A label in a program's JSON output; other fields are ignored."""

    label: str = Field(min_length=1)
    score: float | None = Field(default=None, allow_inf_nan=False)


RANKED = TypeAdapter(list[Printed])


class CommandClassifier:
    """A program that is started once per picture."""

    def __init__(self, description: CommandDescription, folder: Path = Path()) -> None:
        self._description = description
        self._folder = folder
        self._words = shlex.split(description.command)
        self._secrets = Secrets()
        self._filled = [self._secrets.fill(word) for word in self._words]
        for name, value in os.environ.items():  # the program inherits these, and may print them
            if is_secret(name) and name not in FOLDERS and len(value.strip().encode()) >= LEAST:
                self._secrets.add(name, value.strip())
        if shutil.which(str(_place(self._words[0], folder))) is None:
            what = f"the program {self._words[0]!r} does not exist or cannot be started"
            raise PermanentError(f"{what}; check its path and its permissions", code="program-unusable")
        self.labels = description.labels
        self.fingerprint = fingerprint("command", self._parts())
        micros = int(description.price * 1_000_000)
        encoding, side = description.encoding, description.working_size
        size = WorkingSize(long=side) if side else encoding.usable_size()
        self.limits = Limits(1, description.concurrency, None, micros, micros == 0, size, encoding.jpeg_above)

    def prepare(self, pixels: Pixels) -> bytes:
        return self._description.encoding.encode(self._description.encoding.fit(pixels))

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        return [await self._one(file) for file in batch]

    async def close(self) -> None:
        """Do nothing: every program ends with its query."""

    async def _one(self, file: bytes) -> Answer:
        with tempfile.TemporaryDirectory(prefix="looktwice-") as folder:
            path = Path(folder) / f"image.{kind_of(file)}"
            path.write_bytes(file)
            process = await self._started(path)
            output, errors = await self._printed(process)
            return self._answer(process.returncode or 0, output, errors)

    async def _started(self, path: Path) -> Process:
        """Start the program; if the query is cancelled meanwhile, the program is ended."""
        starting = asyncio.create_task(self._start(path))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _end(await starting)
            raise

    async def _start(self, path: Path) -> Process:
        words = [word.replace("{image}", str(path)) for word in self._filled]
        try:
            # A separate session, so that all its child processes can be ended too.
            return await asyncio.create_subprocess_exec(
                *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=self._folder, start_new_session=True
            )
        except OSError as error:
            problem = f"{self._words[0]!r} cannot be started: {error.strerror}"
            if error.errno in SHORTAGES:
                raise TransientError(f"{problem}; lower concurrency if this continues", sent=False) from None
            raise PermanentError(
                f"{problem}; run the command by hand on one picture", sent=False, code="program-unusable"
            ) from None

    async def _printed(self, process: Process) -> tuple[bytes, bytes]:
        """Read the output of a program; the program is ended after its timeout or if the query is cancelled."""
        seconds = self._description.timeout
        try:
            async with asyncio.timeout(seconds):
                output, errors = await asyncio.gather(*(_capped(process, s) for s in (process.stdout, process.stderr)))
                await process.wait()
        except BaseException as error:
            await _end(process)
            if not isinstance(error, TimeoutError):
                raise
            raise TransientError(
                f"{self._words[0]!r} took longer than {seconds:g} s; if it needs more time, raise timeout",
                code="classifier-timeout",
            ) from None
        if max(len(output), len(errors)) > MOST_OUTPUT:
            raise PermanentError(
                f"{self._words[0]!r} printed more than {MOST_OUTPUT} bytes; it must print a label on one line",
                code="reply-malformed",
            )
        return output, errors

    def _answer(self, code: int, output: bytes, errors: bytes) -> Answer:
        if code != 0:
            raise self._failed(code, errors)
        lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
        last = next((line for line in reversed(lines) if line), None)
        if last is None:
            raise PermanentError(
                f"{self._words[0]!r} printed no label; its last line must be the label", code="reply-malformed"
            )
        if last[0] not in "{[":
            return self._secrets.answer(last)
        try:
            ranked = RANKED.validate_json(last if last.startswith("[") else f"[{last}]")
        except ValidationError:
            raise PermanentError(
                f"{self._words[0]!r} printed JSON that contains no label; print "
                '{"label": "cat", "score": 0.9}, or a list of such objects',
                code="reply-malformed",
            ) from None
        if all(each.score is not None for each in ranked):
            ranked.sort(key=lambda each: -(each.score or 0.0))
        options = tuple((each.label, each.score) for each in ranked[:KEPT_OPTIONS])
        first = options[0] if options else (NO_LABEL, None)
        return self._secrets.answer(*first, options=options if len(options) > 1 else ())

    def _failed(self, code: int, errors: bytes) -> ClassifierError:
        line = next((line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()), "")
        words = self._secrets.line(line) or "nothing on stderr"
        if code == EX_TEMPFAIL:
            return TransientError(f"{self._words[0]!r} reported a temporary failure (exit code {code}): {words}")
        if code < 0:
            return TransientError(f"{self._words[0]!r} was ended by signal {-code}: {words}", garbled=True)
        return PermanentError(
            f"{self._words[0]!r} failed with exit code {code}: {words}; run the command by hand on one picture",
            code="classifier-refused",
        )

    def _parts(self) -> dict[str, object]:
        named = [self._folder / word for word in self._words[1:] if word != "{image}"]
        program = shutil.which(str(_place(self._words[0], self._folder)))
        files = [path for path in (Path(program or ""), *named) if path.is_file()]
        contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        encoding = self._description.encoding.parts()
        return {"command": self._words, "files": contents, "encoding": encoding}


def connect(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `command:./classify {image}`, or the settings of a TOML file."""
    require_posix("a program as a classifier")
    values = {"command": address, **settings} if address else settings
    return CommandClassifier(described(CommandDescription, values), folder_of(settings))


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options and values of a command line, `--name=value` or `--name value`; other arguments have no name."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        argument = value if separator else following
        if separator or (word.startswith("-") and not argument.startswith("-")):
            yield name.lstrip("-"), argument.replace("{image}", "")
        yield "command", word


def _place(program: str, folder: Path) -> Path | str:
    """Resolve the path of a program: a path is relative to the folder, and a bare name is searched for in PATH."""
    return folder.absolute() / program if os.sep in program else program


async def _capped(process: Process, stream: asyncio.StreamReader | None) -> bytes:
    """Read output up to the limit; a program that prints more is ended."""
    data = bytearray()
    while stream and (part := await stream.read(1 << 16)):
        if len(data) <= MOST_OUTPUT:
            data += part
        else:
            _kill(process)
    return bytes(data)


def _kill(process: Process) -> None:
    """End a program and its child processes, which may still be running after the program has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: Process) -> None:
    _kill(process)
    # Reading the remaining output lets the pipes close; a child in its own session could keep them open.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), 1.0)
