"""A program as a classifier: what it is given, what is made of its words, and that it never outlives a question."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.errors import coded
from support.waiting import until_async

from looktwice.classifiers.base import NO_LABEL, AnyClassifier, Option
from looktwice.classifiers.command import connect as connect_command
from looktwice.classifiers.registry import connect
from looktwice.errors import PermanentError, TransientError

PICTURE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def program(folder: Path, text: str, **settings: object) -> AnyClassifier:
    """A classifier that runs a shell script of these lines, with the picture as $1."""
    path = folder / "classify"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return connect_command("", {"command": "./classify {image}", "folder": str(folder), **settings})


async def ask(classifier: AnyClassifier) -> str:
    return (await classifier.label([classifier.prepare(PICTURE)]))[0].label


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> bool:
    """Whether a process ends, now or after a while."""
    for _ in range(2000):
        if not alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


async def pid_in(path: Path) -> int:
    """The process id that a program has written into a file."""
    await until_async(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.mark.parametrize(
    ("printed", "label"),
    [
        ("cat\\n", "cat"),
        ("cat", "cat"),
        ("loading\\ncat\\n", "cat"),
        ("  tabby cat \\r\\n\\n\\n", "tabby cat"),
        ("café ∅\\n", "café ∅"),
    ],
)
async def test_the_label_is_the_last_line_that_says_something(tmp_path: Path, printed: str, label: str) -> None:
    assert await ask(program(tmp_path, f"printf '{printed}'; echo progress >&2")) == label


@pytest.mark.parametrize(
    ("printed", "label", "score", "options"),
    [
        ('{"label": "cat", "score": 0.91, "model": 3}', "cat", 0.91, ()),
        ('{"label": "cat"}', "cat", None, ()),
        ('[{"label": "dog", "score": 5}, {"label": "cat", "score": 90}]', "cat", 90.0, (("cat", 90.0), ("dog", 5.0))),
        ('[{"label": "dog"}, {"label": "cat"}]', "dog", None, (("dog", None), ("cat", None))),
        ("[]", NO_LABEL, None, ()),
        ("7", "7", None, ()),
    ],
)
async def test_a_line_of_json_holds_a_score_or_a_ranked_list(
    tmp_path: Path, printed: str, label: str, score: float | None, options: tuple[Option, ...]
) -> None:
    classifier = program(tmp_path, f"cat <<'END'\n{printed}\nEND")
    (answer,) = await classifier.label([classifier.prepare(PICTURE)])
    assert (answer.label, answer.score, answer.options) == (label, score, options)


@pytest.mark.parametrize(
    "printed", ['{"class": "cat"}', '[{"label": "cat", "score": "high"}]', '["cat", "dog"]', "{}", "[sic]"]
)
async def test_json_without_a_label_says_what_to_print(tmp_path: Path, printed: str) -> None:
    with pytest.raises(PermanentError, check=coded("reply-malformed")):
        await ask(program(tmp_path, f"cat <<'END'\n{printed}\nEND"))


async def test_the_program_gets_the_picture_without_loss(tmp_path: Path) -> None:
    script = tmp_path / "read.py"
    script.write_text(
        "import sys\nfrom PIL import Image\n"
        "print(Image.open(sys.argv[2]).convert('RGB').tobytes().hex(), sys.argv[1])\n"
    )
    classifier = connect(f"command:{sys.executable} {script} 'a b;$HOME' {{image}}")
    assert await ask(classifier) == f"{PICTURE.tobytes().hex()} a b;$HOME"


async def test_the_picture_is_gone_afterwards(tmp_path: Path) -> None:
    path = await ask(program(tmp_path, 'test -s "$1" && echo "$1"'))
    assert path.endswith(".png")
    assert not Path(path).parent.exists()


async def test_a_failure_tells_the_first_line_of_stderr(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, check=coded("classifier-refused")):
        await ask(program(tmp_path, "echo cat; echo 'no model here' >&2; echo more >&2; exit 3"))


async def test_exit_code_75_may_work_later(tmp_path: Path) -> None:
    with pytest.raises(TransientError, check=coded("classifier-unavailable")):
        await ask(program(tmp_path, "echo busy >&2; exit 75"))


async def test_a_program_that_crashes_gets_few_more_tries(tmp_path: Path) -> None:
    with pytest.raises(TransientError, check=coded("classifier-unavailable")) as caught:
        await ask(program(tmp_path, "kill -SEGV $$"))
    assert caught.value.garbled


async def test_silence_is_no_label(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, check=coded("reply-malformed")):
        await ask(program(tmp_path, "printf '\\n  \\n'"))


async def test_a_flood_of_output_ends_the_program(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(PermanentError, check=coded("reply-malformed")):
        await ask(program(tmp_path, f"echo $$ > {tmp_path}/pid; yes", timeout=300))
    assert time.monotonic() - started < 250  # and not its timeout
    assert await gone(await pid_in(tmp_path / "pid"))


async def test_a_program_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    with pytest.raises(TransientError, check=coded("classifier-timeout")):
        await ask(program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait", timeout=2.0))
    assert await gone(await pid_in(tmp_path / "pid"))


async def test_a_child_that_keeps_the_output_open_is_ended_too(tmp_path: Path) -> None:
    with pytest.raises(TransientError, check=coded("classifier-timeout")):
        await ask(program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; echo cat", timeout=2.0))
    assert await gone(await pid_in(tmp_path / "pid"))


async def test_a_noisy_program_is_ended_in_time(tmp_path: Path) -> None:
    with pytest.raises(TransientError, check=coded("classifier-timeout")):
        await ask(program(tmp_path, f"echo $$ > {tmp_path}/pid; head -c 500000 /dev/zero; sleep 600", timeout=2.0))
    assert await gone(await pid_in(tmp_path / "pid"))


async def test_a_cancelled_question_ends_the_program(tmp_path: Path) -> None:
    classifier = program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    question = asyncio.create_task(ask(classifier))
    child = await pid_in(tmp_path / "pid")
    assert alive(child)
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert await gone(child)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("./missing {image}", "program-unusable"),
        ("cat", "description-invalid"),
        ("{image}", "description-invalid"),
        ("cat '{image}", "description-invalid"),
    ],
)
def test_a_wrong_command_is_told_when_connecting(tmp_path: Path, command: str, code: str) -> None:
    with pytest.raises(PermanentError, check=coded(code)):
        connect_command("", {"command": command, "folder": str(tmp_path)})


async def test_a_file_that_is_no_program_is_told(tmp_path: Path) -> None:
    classifier = program(tmp_path, "")
    (tmp_path / "classify").write_bytes(b"\0\1\2\3")
    with pytest.raises(PermanentError, check=coded("program-unusable")):
        await ask(classifier)


def test_a_description_lies_beside_its_program(tmp_path: Path) -> None:
    program(tmp_path, "echo cat")
    (tmp_path / "mine.toml").write_text(
        'connector = "command"\ncommand = "./classify {image}"\nprice = "0.002"\nlabels = ["cat"]\n'
    )
    classifier = connect(tmp_path / "mine.toml")
    assert asyncio.run(ask(classifier)) == "cat"
    assert classifier.labels == ("cat",)
    assert (classifier.limits.price_micros, classifier.limits.local) == (2000, False)
    assert classifier.limits.concurrency == os.cpu_count()


def test_the_fingerprint_knows_the_program_and_the_files_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("1")
    settings = {"command": "./classify weights {image}"}
    before = program(tmp_path, "echo cat", **settings).fingerprint
    assert program(tmp_path, "echo cat", **settings).fingerprint == before
    assert program(tmp_path, "echo dog", **settings).fingerprint != before
    (tmp_path / "weights").write_text("2")
    assert program(tmp_path, "echo cat", **settings).fingerprint != before
