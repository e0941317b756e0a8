"""Processes without the seconds that their imports take: each is a fork of a process that has them.

Each has a folder, environment, output and exit code of its own, as one from a shell has. The process that is forked is
started with the first one and ends with the tests; `python -m support.forked FD` is that process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

Process = multiprocessing.get_context("fork").Process
COMMAND_LINE = "looktwice.cli.app"
PRELOADED = (
    *("scipy.optimize", "scipy.stats"),
    *(f"looktwice.cli.{each}" for each in ("app", "check", "demo", "ledger", "look", "open_model")),
    *("looktwice.classifiers.http", "looktwice.model", "looktwice.report"),
    *("support.faults", "support.serving", "looktwice.service.app", "looktwice.service.server"),
    "uvicorn.protocols.http.h11_impl",
)
"""Nothing that a test takes away to see what happens without it (pyarrow), or that has threads (onnxruntime)."""


class Forked:
    """A process that runs, with what tests need of `subprocess.Popen`."""

    def __init__(self, pid: int, ending: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ending], [], [], timeout)[0]:
            self.returncode = int(os.read(self._ending, 99))
            os.close(self._ending)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its exit code is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()


def start(
    module: str,
    arguments: Sequence[object],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    out: int = subprocess.DEVNULL,
    err: int = subprocess.DEVNULL,
) -> Forked:
    """A process that runs the function `main` of a module; its output goes to a file, a pipe or nowhere."""
    order = {
        "module": module,
        "arguments": [module, *map(str, arguments)],
        "folder": str(folder or Path.cwd()),
        "environment": dict(os.environ if environment is None else environment),
    }
    (stdout, out_end), (stderr, err_end), (ending, end) = _opened(out), _opened(err), os.pipe()
    socket.send_fds(_prepared(), [json.dumps(order).encode()], [out_end, err_end, end])
    for each in (out_end, err_end, end):
        os.close(each)
    return Forked(int(os.read(ending, PID_DIGITS)), ending, stdout, stderr)


def _opened(where: int) -> tuple[IO[str] | None, int]:
    """The end of a stream that is read here, if it is, and the one that is written to."""
    if where == subprocess.PIPE:
        reading, writing = os.pipe()
        return open(reading), writing
    return None, os.open(os.devnull, os.O_WRONLY) if where == subprocess.DEVNULL else os.dup(where)


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], module: str = COMMAND_LINE
) -> subprocess.CompletedProcess[str]:
    """One run of the command line, or of another module's `main`, to its end."""
    with TemporaryFile("r+") as out, TemporaryFile("r+") as err:
        code = start(module, arguments, folder, environment, out.fileno(), err.fileno()).wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


PID_DIGITS = 10


@cache
def _prepared() -> socket.socket:
    """Where to send orders to the process that has everything imported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "support.forked", str(theirs.fileno())]
    tests, nowhere = Path(__file__).parents[1], subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=tests, pass_fds=[theirs.fileno()], stdin=nowhere, stdout=nowhere)
    theirs.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _serve(orders: socket.socket) -> None:
    """Take orders until nobody can send one."""
    for module in PRELOADED:
        with suppress(ImportError):  # the environment of Ray has no service
            importlib.import_module(module)
    gc.freeze()
    while (received := socket.recv_fds(orders, 2**20, 3))[0]:
        Process(target=_watch, args=(json.loads(received[0]), *received[1])).start()
        for each in received[1]:
            os.close(each)


def _watch(order: dict[str, Any], out: int, err: int, ending: int) -> None:
    """Tell the process id and the exit code of the order."""
    running = Process(target=_obey, args=(order, out, err))
    running.start()
    os.write(ending, f"{running.pid:{PID_DIGITS}}".encode())
    for each in (out, err):
        os.close(each)  # so that who reads there sees the end
    running.join()
    os.write(ending, str(running.exitcode).encode())


def _obey(order: dict[str, Any], out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["arguments"]
    try:
        importlib.import_module(order["module"]).main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves without them


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
