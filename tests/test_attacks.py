"""Folders and files made to harm: bombs, names that command terminals, labels that are scripts, endless archives."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from support.errors import code_in, coded
from support.workshop import command, run, write_pictures, write_profile

from looktwice.calibration import storage
from looktwice.calibration.evidence import Row
from looktwice.calibration.votes import Votes
from looktwice.classifiers import http
from looktwice.classifiers.registry import connect
from looktwice.errors import DataError, ImageError, TransientError
from looktwice.images.decode import decode
from looktwice.images.image import encode_png
from looktwice.views import Panel

NAMES = (
    b"a\nb.png",
    b"\x1b[31mred\x1b]0;owned\x07.png",
    b"\xff\xfe.png",
    "\u202egnp.exe.png".encode(),
    b"<script>alert(1)<.png",
    b"=cmd|x.png",
    b"  .png",
    b"[bold]x[red].png",
    b"-rf.png",
)
EVIL = "<script>alert(1)</script>\x1b[31m\u202e\n"
PANEL = Panel.parse("mirror")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with every odd name, a file that is no picture, a link to itself, and a ring of folders."""
    folder, picture = tmp_path / "odd", encode_png(np.full((8, 8, 3), 200, np.uint8))
    folder.mkdir()
    for name in NAMES:
        (folder / os.fsdecode(name)).write_bytes(picture)
    (folder / os.fsdecode(b"bad\n\x1b[31m\xff.png")).write_bytes(b"nope")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "ring").symlink_to(".")
    (tmp_path / "evil.py").write_text(f"def classify(image):\n    return {EVIL!r}\n")
    return folder


@pytest.fixture
def profile(odd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(odd.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(odd.parent), os.environ.get("PYTHONPATH", "")]))
    # Python is lenient about stdout where the locale is C; most users have one where it is not.
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    write_profile(odd.parent / "profile.json", "python:evil:classify", PANEL)
    return odd.parent / "profile.json"


def unsafe(text: str) -> set[str]:
    """Characters that a terminal would obey."""
    return {character for line in text.splitlines() for character in line if not character.isprintable()}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_pictures_with_odd_names_are_scored_and_bad_ones_named(odd: Path, profile: Path, ending: str) -> None:
    out = odd.parent / f"verdicts.{ending}"
    done = run("score", odd, "-p", profile, "-o", out)
    assert done.returncode == 3
    assert len(re.findall("^not scored: ", done.stderr, re.MULTILINE)) == 2
    assert "Traceback" not in done.stderr
    assert not unsafe(done.stdout + done.stderr)
    assert out.read_bytes().count(b"gnp.exe.png") >= 1


def test_a_terminal_obeys_neither_names_nor_labels(odd: Path, profile: Path) -> None:
    names = [odd / os.fsdecode(name) for name in NAMES]
    done = run("look", "-p", profile, *names)
    assert done.returncode == 0
    assert "script" in done.stdout
    assert not unsafe(done.stdout + done.stderr)
    machine = run("look", "--json", "-p", profile, *names)
    assert [json.loads(line)["label"] for line in machine.stdout.splitlines()] == [EVIL] * len(NAMES)
    assert json.loads(machine.stdout.splitlines()[2])["name"].endswith("\udcff\udcfe.png")


def as_ordinary_user() -> list[str]:
    """What to put before a command so that rights bind it: the superuser gives up what makes it one."""
    if os.geteuid():
        return []
    if not shutil.which("setpriv"):
        pytest.skip("the superuser may read everything, and there is no setpriv to change that")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


@pytest.mark.parametrize("command_name", ["look", "score"])
def test_a_file_that_may_not_be_read_stops_no_other(odd: Path, profile: Path, command_name: str) -> None:
    good, secret, out = odd / "=cmd|x.png", odd / "secret.png", odd.parent / "out.csv"
    secret.write_bytes(good.read_bytes())
    secret.chmod(0)
    more = ("-o", out) if command_name == "score" else ()
    words = [*as_ordinary_user(), *command(command_name, "-p", profile, secret, good, *more)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "secret.png: " in done.stderr
    assert "=cmd|x.png" in (out.read_text() if more else done.stdout.replace("\n", ""))


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(odd: Path, profile: Path) -> None:
    write_pictures(odd.parent / "pictures.npz", 400)
    out = odd.parent / "verdicts.csv"
    words = command("score", odd.parent / "pictures.npz", "-p", profile, "-o", out)
    for limit in (3_000, 20_000, 60_000):
        full = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=partial(_confine, limit))
        assert full.returncode == 1
        assert code_in(full.stderr) in ("disk-full", "file-unwritable")
        assert "Traceback" not in full.stderr
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert len(out.read_text().splitlines()) > 400


def _confine(size: int) -> None:
    """No file may become larger; a program that tries is told, not killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("endless", [b"X-A: b\r\n" * 1000, b"a" * 10_000])
async def test_a_server_whose_headers_never_end_is_left(endless: bytes) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.read(100)
        writer.write(b"HTTP/1.1 200 OK\r\nX-Start: ")
        with suppress(ConnectionError):
            while sent < 50_000_000:
                writer.write(endless)
                await writer.drain()
                sent += len(endless)
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    classifier = connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    with pytest.raises(TransientError):
        await classifier.label([b"picture"])
    await classifier.close()
    server.close()
    assert sent < 20_000_000


@pytest.mark.slow
async def test_a_server_that_says_continue_for_ever_is_left_when_the_time_is_up() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        with suppress(ConnectionError):
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 400)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    classifier = http.connect("", {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", "timeout": 1.0})
    tracemalloc.start()
    try:
        with pytest.raises(TransientError, check=coded("classifier-timeout")):
            await classifier.label([b"picture"])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    await classifier.close()
    server.close()


def bombs() -> dict[str, bytes]:
    """Small files of large pictures, each as large as is still decoded or a little larger."""
    side = 8_000
    row = b"\0" + bytes(side * 3)
    packed = zlib.compressobj(1)
    body = b"".join(packed.compress(row) for _ in range(side)) + packed.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
    return {
        "png": png,
        "webp": _saved((6_400, 6_200), "WEBP", lossless=True, quality=0, method=0),
        "tiff": _saved((8_000, 8_000), "TIFF", compression="tiff_adobe_deflate"),
    }


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _saved(size: tuple[int, int], kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", size).save(file, kind, **options)
    return file.getvalue()


DECODE = """
import sys
from pathlib import Path
from looktwice.errors import ImageError
from looktwice.images.decode import load
try:
    load(Path(sys.argv[1]))
except ImageError:
    pass
peak = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(peak[0].split()[1])  # not ru_maxrss, which begins with that of the process that started this one
"""


def test_bombs_take_less_than_a_gigabyte(tmp_path: Path) -> None:
    for kind, data in bombs().items():
        assert len(data) < 2_000_000
        (tmp_path / kind).write_bytes(data)
        command = [sys.executable, "-c", DECODE, str(tmp_path / kind)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout) < 1_000_000, kind


def scan_bomb(scans: int) -> bytes:
    """A JPEG of 25 megapixels with so many scans, of a few bytes each."""
    whole = _saved((5_000, 5_000), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * (scans - whole.count(b"\xff\xda")) + b"\xff\xd9"


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once() -> None:
    bomb = scan_bomb(5_000)
    assert len(bomb) < 500_000
    started = time.process_time()
    with pytest.raises(ImageError, check=coded("image-too-large")):
        decode(bomb, "bomb.jpg")
    assert time.process_time() - started < 5


def test_what_follows_or_is_inside_a_segment_of_a_jpeg_is_no_scan() -> None:
    plain = _saved((16, 16), "JPEG", progressive=True)
    noise = b"\xff\xda" * 5_000
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(noise)) + noise
    expected = decode(plain, "plain.jpg").pixels
    for data in (plain + noise, plain[:2] + comment + plain[2:]):
        assert np.array_equal(decode(data, "photo.jpg").pixels, expected)


def test_a_picture_too_long_to_be_drawn_stops_no_other(odd: Path, profile: Path) -> None:
    folder = odd.parent / "long"
    folder.mkdir()
    for name, size in (("a.png", (1, 40_000)), ("b.png", (40_000, 1)), ("c.png", (8, 8))):
        (folder / name).write_bytes(_saved(size, "PNG"))
    done = run("score", folder, "-p", profile, "-o", odd.parent / "long.jsonl")
    assert done.returncode == 3, done.stderr
    assert len(re.findall(r"^not scored: ", done.stderr, re.MULTILINE)) == 2
    lines = [json.loads(line) for line in (odd.parent / "long.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [None, None, EVIL]


def test_a_drawing_in_words_is_no_png() -> None:
    svg = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    for data in (svg, b"\x89PNG\r\n\x1a\n" + svg, b"\xff\xd8\xff" + svg):
        with pytest.raises(ImageError):
            decode(data, "drawing.png")


def test_archives_that_unpack_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(number) for number in range(50_000)]
    many = Votes.collect([Row(name, "cat", ("cat",)) for name in names], ["mirror"])
    for path in (tmp_path / "votes.npz", tmp_path / "votes.parquet"):
        storage.save(path, many)
        assert len(storage.load(path)) == len(names)
    monkeypatch.setattr(storage, "MOST_BYTES", 100_000)
    for path in tmp_path.iterdir():
        with pytest.raises(DataError, check=coded("file-malformed")):
            storage.load(path)


def test_scripts_in_labels_stay_text_in_a_report(odd: Path, profile: Path) -> None:
    rows = [Row(name.decode("utf-8", "surrogateescape"), EVIL, ("ant",)) for name in NAMES]
    saved = odd.parent / "votes.npz"
    storage.save(saved, Votes.collect(rows, ["mirror"]).labelled([EVIL] * len(rows)))
    done = run("report", "--votes", saved, "--pictures", odd, "-p", profile, "-o", odd.parent / "report.html")
    assert done.returncode == 0, done.stderr
    page = (odd.parent / "report.html").read_text("utf-8", "surrogateescape")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
