"""Results on disk as the command line leaves them: two runs at a time, ended by a signal, sent to bad places."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faults import Running, fault_server
from workshop import command, run, write_pictures, write_profile

from looktwice import files
from looktwice.errors import DataError


@pytest.fixture
def server() -> Iterator[Running]:
    with fault_server(delay=0.02) as running:
        yield running


def score(folder: Path, *more: object) -> tuple[object, ...]:
    return (
        "score", folder / "pictures.npz", "-p", folder / "profile.json", "--ledger", folder / "ledger.db",
        "-o", folder / "verdicts.csv", "--canaries", 0, *more,
    )  # fmt: skip


def asked(server: Running) -> int:
    requests: int = server.stats()["requests"]
    return requests


def wait_for(server: Running, requests: int) -> None:
    while asked(server) < requests:
        time.sleep(0.02)


# --- one run at a time


def test_a_second_run_with_the_same_output_is_told_who_has_it_and_asks_nothing(server: Running, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 300)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with subprocess.Popen(command(*score(tmp_path)), stderr=subprocess.PIPE, text=True) as first:
        wait_for(server, 20)
        first.send_signal(signal.SIGSTOP)  # so that it is at work for as long as the second run takes
        second = run(*score(tmp_path, "--ledger", tmp_path / "other.db"))
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=60)
    assert second.returncode == 1
    told = " ".join(second.stderr.split())
    assert f"is being written by another run, process {first.pid} on " in told
    assert "Traceback" not in second.stderr + said
    assert first.returncode == 0
    assert asked(server) == 1500
    assert len((tmp_path / "verdicts.csv").read_text().splitlines()) == 301
    assert not list(tmp_path.glob("verdicts.csv.*"))


def test_a_lock_that_a_killed_run_left_holds_nobody_up(server: Running, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 100)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with subprocess.Popen(command(*score(tmp_path)), stderr=subprocess.DEVNULL) as first:
        wait_for(server, 20)
        first.kill()
    assert (tmp_path / "verdicts.csv.lock").exists()
    assert run(*score(tmp_path)).returncode == 0
    assert not (tmp_path / "verdicts.csv.lock").exists()


def test_of_many_who_want_one_file_at_a_time_one_has_it(tmp_path: Path) -> None:
    first = files.Hold(tmp_path / "out.csv")
    for _ in range(2):
        with pytest.raises(DataError, match=f"process {os.getpid()} on .* since "):
            files.Hold(tmp_path / "out.csv")
    other = files.Hold(tmp_path / "other.csv")
    first.release()
    second = files.Hold(tmp_path / "out.csv")
    first.release()
    with pytest.raises(DataError, match="another run"):
        files.Hold(tmp_path / "out.csv")
    second.release()
    other.release()
    assert not list(tmp_path.iterdir())


# --- whole or not at all


def test_a_file_that_is_not_finished_leaves_the_one_before(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    files.write(out, "before")
    out.chmod(0o600)
    with suppress(KeyboardInterrupt), files.whole(out) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert out.read_text() == "before"
    files.write(out, "after")
    assert (out.read_text(), out.stat().st_mode & 0o777) == ("after", 0o600)
    assert list(tmp_path.iterdir()) == [out]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"
    files.ready(Path(os.devnull))
    files.write(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()
