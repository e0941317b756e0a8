"""Runs of the command line without the second that its imports take: each is a fork of a process that has them.

A run has a folder, environment, output and exit code of its own, as one from a shell has. The process that is forked
is started with the first run and ends with the tests; `python tests/forked.py FD` is that process.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

PRELOADED = (
    *("scipy.optimize", "scipy.stats"),
    *("looktwice.cli.check", "looktwice.cli.demo", "looktwice.cli.inputs", "looktwice.cli.ledger"),
    *("looktwice.classifiers.http", "looktwice.model", "looktwice.report"),
)
"""Nothing that a test takes away to see what happens without it (pyarrow), or that has threads (onnxruntime)."""


def run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """One run of the command line, to its end."""
    with TemporaryFile("r+") as out, TemporaryFile("r+") as err:
        reading, writing = os.pipe()
        order = json.dumps({"arguments": arguments, "folder": str(folder), "environment": dict(environment)})
        socket.send_fds(_prepared(), [order.encode()], [out.fileno(), err.fileno(), writing])
        os.close(writing)
        with open(reading) as ending:
            code = int(ending.read())
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@cache
def _prepared() -> socket.socket:
    """Where to send orders to the process that has everything imported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    theirs.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _serve(orders: socket.socket) -> None:
    """Fork for each order; return in the process that is to run it."""
    for module in PRELOADED:
        importlib.import_module(module)
    while True:
        text, descriptors, _, _ = socket.recv_fds(orders, 2**20, 3)
        if not text:
            sys.exit()
        if not os.fork():
            _fork(json.loads(text), *descriptors)
            return
        for each in descriptors:
            os.close(each)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork(order: dict[str, Any], out: int, err: int, ending: int) -> None:
    """Return in the process that runs the order; the other one waits for its end and tells the exit code."""
    if running := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(running, 0)[1])
        os.write(ending, str(code).encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, max(out, err, ending) + 1)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["arguments"]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from looktwice.cli.app import main

    main()
