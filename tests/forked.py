"""Runs of the command line without the second that its imports take: each is a fork of a process that has them.

A run has a folder, environment, output and exit code of its own, as one from a shell has. The process that is forked
is started with the first run and ends with the tests; `python tests/forked.py FD` is that process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

Process = multiprocessing.get_context("fork").Process
PRELOADED = (
    *("scipy.optimize", "scipy.stats"),
    *(f"looktwice.cli.{each}" for each in ("app", "check", "demo", "inputs", "ledger", "tune")),
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
    """Take orders until nobody can send one."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    while (received := socket.recv_fds(orders, 2**20, 3))[0]:
        Process(target=_watch, args=(json.loads(received[0]), *received[1])).start()
        for each in received[1]:
            os.close(each)


def _watch(order: dict[str, Any], out: int, err: int, ending: int) -> None:
    """Tell the exit code of the order."""
    running = Process(target=_obey, args=(order, out, err))
    running.start()
    running.join()
    os.write(ending, str(running.exitcode).encode())


def _obey(order: dict[str, Any], out: int, err: int) -> None:
    from looktwice.cli.app import main

    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["arguments"]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves without them


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
