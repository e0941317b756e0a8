"""Results on disk as the command line leaves them: two runs at a time, ended by a signal, sent to bad places."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.engines import counted
from support.errors import code_in, coded
from support.faults import LABELS, Running, fault_server
from support.waiting import until
from support.workshop import command, run, start, write_pictures, write_profile

from looktwice import files
from looktwice.calibration.calibrators import dump
from looktwice.calibration.jury import Jury
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.errors import DataError
from looktwice.images.image import encode_png
from looktwice.model.runs import TOGETHER
from looktwice.views import Panel


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
    until(lambda: asked(server) >= requests)


# --- one run at a time


def test_a_second_run_with_the_same_output_is_told_who_has_it_and_asks_nothing(server: Running, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 300)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with (tmp_path / "said").open("w") as err, start(*score(tmp_path), err=err.fileno()) as first:
        wait_for(server, 20)
        first.send_signal(signal.SIGSTOP)  # so that it is at work for as long as the second run takes
        second = run(*score(tmp_path, "--ledger", tmp_path / "other.db"))
        first.send_signal(signal.SIGCONT)
        first.wait(120)
        said = (tmp_path / "said").read_text()
    assert (second.returncode, code_in(second.stderr)) == (1, "file-locked")
    assert f"process {first.pid} on " in " ".join(second.stderr.split())
    assert "Traceback" not in second.stderr + said
    assert first.returncode == 0
    assert asked(server) == 1500
    assert len((tmp_path / "verdicts.csv").read_text().splitlines()) == 301
    assert not list(tmp_path.glob("verdicts.csv.*"))


def test_a_lock_that_a_killed_run_left_holds_nobody_up(server: Running, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 100)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with start(*score(tmp_path)) as first:
        wait_for(server, 20)
        first.kill()
    assert (tmp_path / "verdicts.csv.lock").exists()
    assert run(*score(tmp_path)).returncode == 0
    assert not (tmp_path / "verdicts.csv.lock").exists()


def test_of_many_who_want_one_file_at_a_time_one_has_it(tmp_path: Path) -> None:
    first = files.FileLock(tmp_path / "out.csv")
    for _ in range(2):
        with pytest.raises(DataError, check=coded("file-locked")):
            files.FileLock(tmp_path / "out.csv")
    other = files.FileLock(tmp_path / "other.csv")
    first.release()
    second = files.FileLock(tmp_path / "out.csv")
    first.release()
    with pytest.raises(DataError, check=coded("file-locked")):
        files.FileLock(tmp_path / "out.csv")
    second.release()
    other.release()
    assert not list(tmp_path.iterdir())


# --- ended from outside


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 3)])
def test_a_signal_ends_a_run_gently_and_nothing_is_bought_again(
    server: Running, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    write_pictures(tmp_path / "pictures.npz", 300)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with (tmp_path / "said").open("w") as err, start(*score(tmp_path), err=err.fileno()) as process:
        wait_for(server, 50)
        process.send_signal(number)
        process.wait(120)
        said = (tmp_path / "said").read_text()
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert name in said
    assert process.returncode == code
    assert 50 <= asked(server) < 1500
    assert run(*score(tmp_path)).returncode == 0
    assert asked(server) == 1500


def test_a_run_whose_terminal_is_gone_still_saves_everything(server: Running, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 300)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with subprocess.Popen(command(*score(tmp_path)), stderr=subprocess.PIPE, text=True) as process:
        wait_for(server, 50)
        assert process.stderr
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        process.wait(60)
    assert process.returncode == 129
    assert len((tmp_path / "verdicts.csv").read_text().splitlines()) == 301
    assert run(*score(tmp_path)).returncode == 0
    assert asked(server) == 1500


def test_the_second_signal_leaves_at_once(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 50)
    with fault_server(delay=900) as slow:
        write_profile(tmp_path / "profile.json", slow.describe(tmp_path, timeout=600))
        with subprocess.Popen(command(*score(tmp_path)), stderr=subprocess.PIPE, text=True) as process:
            wait_for(slow, 5)
            process.send_signal(signal.SIGTERM)
            assert process.stderr
            while "Stopping" not in process.stderr.readline():
                pass
            time.sleep(TOGETHER)  # signals that come together are one
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 143


def test_the_second_signal_leaves_a_model_that_never_returns(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "import time\ndef f(image):\n    open('began', 'w').close()\n    time.sleep(1e6)\n"
    )
    write_pictures(tmp_path / "pictures.npz", 20)
    words = command("look", "pictures.npz", "-p", "profile.json", "-c", "python:endless:f")
    with chdir(tmp_path):
        write_profile(tmp_path / "profile.json", "python:endless:f")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        until((tmp_path / "began").exists)
        process.send_signal(signal.SIGINT)
        assert process.stderr
        while "Stopping" not in process.stderr.readline():
            pass
        time.sleep(TOGETHER)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_sent_twice_at_once_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """As a closed terminal (the shell, then the system), `timeout` and wrappers of commands do."""
    write_pictures(tmp_path / "pictures.npz", 50)
    with fault_server(delay=0.5) as slow:
        write_profile(tmp_path / "profile.json", slow.describe(tmp_path))
        with start(*score(tmp_path)) as process:
            wait_for(slow, 20)
            process.send_signal(number)
            time.sleep(0.02)
            process.send_signal(number)
            process.wait(120)
        assert counted(tmp_path / "ledger.db") == (asked(slow), asked(slow))


def test_a_hang_up_that_nohup_ignores_stops_nothing(server: Running, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 100)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with subprocess.Popen(["nohup", *command(*score(tmp_path))], stderr=subprocess.DEVNULL) as process:
        wait_for(server, 50)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    assert asked(server) == 500


# --- verdicts about pictures as they are


def write_photos(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    images = np.random.default_rng(7).integers(0, 256, (count, 8, 8, 3), np.uint8)
    paths = [folder / f"{place:03}.png" for place in range(count)]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(encode_png(image))
        os.utime(path, (1e9, 1e9))
    return paths


def test_a_picture_that_was_overwritten_between_two_runs_is_asked_about_again(server: Running, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 60)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path, concurrency=1))
    rest = ("-p", tmp_path / "profile.json", "--ledger", tmp_path / "ledger.db", "--canaries", 0)
    verdicts = ("score", tmp_path / "photos", "-o", tmp_path / "verdicts.csv", *rest)
    assert run(*verdicts, "--budget", 250).returncode == 3
    assert asked(server) == 250
    images = np.random.default_rng(8).integers(0, 256, (3, 8, 8, 3), np.uint8)
    for path, image in zip(photos, images, strict=False):
        path.write_bytes(encode_png(image))
    os.utime(photos[5])
    done = run(*verdicts)
    assert done.returncode == 0, done.stderr
    assert "3 pictures changed" in done.stderr
    assert "Resuming: 47 of 60" in done.stderr
    assert asked(server) == 300 + 15
    assert run("score", tmp_path / "photos", "-o", tmp_path / "fresh.csv", *rest).returncode == 0
    assert (tmp_path / "verdicts.csv").read_bytes() == (tmp_path / "fresh.csv").read_bytes()
    assert asked(server) == 300 + 15


def test_a_file_that_only_seems_unchanged_is_asked_about_again(server: Running, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 20)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path, concurrency=1))
    rest = ("-p", tmp_path / "profile.json", "--ledger", tmp_path / "ledger.db", "--canaries", 0)
    verdicts = ("score", tmp_path / "photos", "-o", tmp_path / "verdicts.csv", *rest)
    assert run(*verdicts, "--budget", 50).returncode == 3
    first, second = (photo.read_bytes() for photo in photos[:2])
    assert len(first) == len(second)
    photos[0].write_bytes(second)
    os.utime(photos[0], (1e9, 1e9))
    done = run(*verdicts)
    assert "1 picture changed" in done.stderr
    lines = (tmp_path / "verdicts.csv").read_text().splitlines()
    assert lines[1].partition(",")[2] == lines[2].partition(",")[2]


# --- whole or not at all


def test_a_file_that_is_not_finished_leaves_the_one_before(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    files.write(out, "before")
    out.chmod(0o600)
    with suppress(KeyboardInterrupt), files.atomic(out) as part:
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
    files.check_writable(Path(os.devnull))
    files.write(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()


def test_a_pipe_takes_a_result_and_a_device_that_is_full_is_one_line(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "w") as end:
        place = Path(f"/dev/fd/{end.fileno()}")
        files.check_writable(place)
        files.write(place, "text")
        end.close()
        assert pipe.read() == "text"
    with pytest.raises(DataError, check=coded("file-unwritable")):
        files.write(Path("/dev/full"), "text")


@pytest.mark.parametrize(
    ("streams", "code", "told"),
    [(">&-", 0, ""), ("2>&-", 0, ""), ("<&- >&- 2>&-", 0, ""), (">/dev/full", 1, "no space is left")],
)
def test_streams_that_are_closed_or_full_end_no_run_in_a_crash(
    server: Running, tmp_path: Path, streams: str, code: int, told: str
) -> None:
    write_pictures(tmp_path / "pictures.npz", 5)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    words = command("look", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", "--ledger", tmp_path / "l.db")
    done = subprocess.run(["sh", "-c", f"{shlex.join(words)} --json {streams}"], capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert told.encode() in done.stderr
    assert b"Traceback" not in done.stderr
    assert bool(done.stdout) == (streams == "2>&-")


# --- checked before anything is asked


def write_labelled(path: Path, count: int, classes: int = 5) -> Path:
    """Different pictures whose truths are among what the server says."""
    images = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 3), np.uint8)
    np.savez(path, images=images, labels=np.arange(count) % classes, class_names=np.array(LABELS[:classes]))
    return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A server, and a folder with pictures and a profile, in which nothing is asked and nothing is written."""
    folder = tmp_path_factory.mktemp("bench")
    write_labelled(folder / "some.npz", 40)
    write_labelled(folder / "few.npz", 9)
    write_labelled(folder / "alike.npz", 40, classes=1)
    (folder / "file").write_text("no folder")
    (folder / "full").mkdir()
    (folder / "nowhere.csv").symlink_to("missing/x.csv")
    (folder / "other-name.npz").hardlink_to(folder / "some.npz")
    without = folder / "without" / "pyarrow"
    without.mkdir(parents=True)
    (without / "__init__.py").write_text("raise ImportError")
    with fault_server() as running:
        description = running.describe(folder, price="0.01")
        description.rename(folder / "api.toml")
        write_profile(folder / "profile.json", folder / "api.toml")
        jury = Jury(weights=(1.0, 1.0), unnamed=(0.0, 0.0), covariance=((0.0,) * 5,) * 5)
        teacher = write_profile(folder / "teacher.json", folder / "api.toml", Panel.parse("mirror"))
        teacher.model_copy(update={"calibrator": dump(jury)}).save(folder / "teacher.json")
        yield running, folder


FIT, EVALUATE, SCORE = ("fit", "some.npz", "-c", "api.toml"), ("evaluate", "some.npz"), ("score", "some.npz")
BAD = [
    (("fit", "few.npz", "-c", "api.toml"), "labels-too-few"),
    (("fit", "alike.npz", "-c", "api.toml"), "labels-one-class"),
    (("fit", "few.npz", "-c", "api.toml", "--paper", "rotation"), "labels-too-few"),
    ((*FIT, "--paper", "mirror"), "view-invalid"),
    (("borrow", "teacher.json", "-c", "api.toml", "--pictures", "few.npz"), "labels-too-few"),
    (("borrow", "teacher.json", "-c", "api.toml", "--pictures", "some.npz", "-o", "missing/x.json"), "file-unwritable"),
    (
        ("borrow", "profile.json", "-c", "api.toml", "--pictures", "some.npz", "-o", "x.json"),
        "profile-incomplete",
    ),
    ((*FIT, "-o", "missing/x.json"), "file-unwritable"),
    ((*FIT, "-o", "file/x.json"), "file-unwritable"),
    ((*FIT, "-o", "full"), "file-unwritable"),
    ((*FIT, "-o", "/proc/x.json"), "file-unwritable"),
    ((*FIT, "--votes", "missing/x.npz"), "file-unwritable"),
    ((*FIT, "--votes", "x.csv"), "file-ending"),
    ((*FIT, "--calibrator", "transfer", "--noise", "none.json"), "file-missing"),
    ((*FIT, "--noise", "none.json"), "option-conflict"),
    ((*FIT, "--views", "rotate:5"), "view-unknown"),
    ((*FIT, "--calibrator", "hope"), "calibrator-unknown"),
    ((*FIT, "--report", "missing/x.html"), "file-unwritable"),
    ((*FIT, "--paper", "rotation", "--report", "x.pdf"), "file-ending"),
    ((*EVALUATE, "--votes", "x.json"), "file-ending"),
    ((*EVALUATE, "--votes", "full"), "file-ending"),
    ((*EVALUATE, "--report", "report.pdf"), "file-ending"),
    ((*EVALUATE, "--report", "missing/x.html"), "file-unwritable"),
    ((*SCORE, "-o", "missing/x.csv"), "file-unwritable"),
    ((*SCORE, "-o", "x.xlsx"), "file-ending"),
    ((*SCORE, "-o", "/proc/x.csv"), "file-unwritable"),
    ((*SCORE, "-o", "nowhere.csv"), "file-unwritable"),
    ((*FIT, "-o", "some.npz"), "file-exists"),
    ((*FIT, "-o", "api.toml"), "file-exists"),
    ((*FIT, "--votes", "other-name.npz"), "file-exists"),
    ((*EVALUATE, "--votes", "some.npz"), "file-exists"),
    (("borrow", "teacher.json", "-c", "api.toml", "-o", "teacher.json"), "file-exists"),
]
NO_PARQUET = [
    (*FIT, "--votes", "x.parquet"),
    (*EVALUATE, "--votes", "x.parquet"),
    (*SCORE, "-o", "x.parquet"),
]


def refused(bench: tuple[Running, Path], *words: object, **environment: str) -> str:
    """The code of a command that ends before anything is asked or written."""
    running, folder = bench
    before = sorted(folder.iterdir())
    done = run(*words, "--ledger", "new.db", cwd=folder, **environment)
    (folder / "new.db").unlink(missing_ok=True)
    (folder / "new.db.ballast").unlink(missing_ok=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert asked(running) == 0
    assert sorted(folder.iterdir()) == before
    return code_in(done.stderr)


@pytest.mark.parametrize(("words", "code"), BAD, ids=lambda value: value if isinstance(value, str) else value[0])
def test_what_can_be_known_before_asking_costs_nothing(
    bench: tuple[Running, Path], words: tuple[object, ...], code: str
) -> None:
    assert refused(bench, *words) == code


@pytest.mark.parametrize("words", NO_PARQUET, ids=lambda words: words[0])
def test_a_format_whose_library_is_missing_costs_nothing(
    bench: tuple[Running, Path], words: tuple[object, ...]
) -> None:
    path = os.pathsep.join([str(bench[1] / "without"), os.environ.get("PYTHONPATH", "")])
    assert refused(bench, *words, PYTHONPATH=path) == "extra-missing"


# --- cells of tables


@given(st.one_of(st.text(), st.from_regex(r"\A'*[=+\-@\t\r\n]?[^\0]*\Z")))
def test_a_cell_is_read_as_the_text_that_it_was_and_no_spreadsheet_runs_it(text: str) -> None:
    cell = files.to_cell(text)
    assert files.from_cell(cell) == text
    with suppress(ValueError):
        float(cell)
        return
    assert cell[:1] not in {*"=+-@\t\r\n"}


# --- what others made


@pytest.mark.parametrize("ending", [".part", ".lock"])
def test_a_file_that_looktwice_did_not_make_is_not_overwritten(tmp_path: Path, ending: str) -> None:
    beside = tmp_path / f"out.csv{ending}"
    for content in (b"notes of mine\n", b"looktwice is nice", b"\0" * 100):
        beside.write_bytes(content)
        with pytest.raises(DataError, check=coded("file-exists")):
            ScoreFile(tmp_path / "out.csv", {}, [])
        assert beside.read_bytes() == content
        assert [path for path in tmp_path.iterdir() if path != beside] == []


@pytest.mark.parametrize("ending", [".part", ".lock"])
@pytest.mark.parametrize("content", [None, b"", b"precious"])
def test_a_link_is_not_followed_beside_a_result(tmp_path: Path, ending: str, content: bytes | None) -> None:
    mine = tmp_path / "mine"
    if content is not None:
        mine.write_bytes(content)
    (tmp_path / f"out.csv{ending}").symlink_to(mine)
    with pytest.raises(DataError, check=coded("file-unwritable")):
        ScoreFile(tmp_path / "out.csv", {}, [])
    assert (mine.read_bytes() if mine.exists() else None) == content


@pytest.mark.parametrize("ending", [".part", ".lock"])
def test_a_pipe_beside_a_result_is_refused(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"out.csv{ending}")
    with pytest.raises(DataError, check=coded("file-unwritable")):
        ScoreFile(tmp_path / "out.csv", {}, [])


def test_a_part_that_was_cut_off_in_its_beginning_is_ours(tmp_path: Path) -> None:
    for content in (b"", b"looktw", b"looktwice score {}\nhalf a li"):
        (tmp_path / "out.csv.part").write_bytes(content)
        file = ScoreFile(tmp_path / "out.csv", {}, [])
        file.finish({})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv"]
