"""Servers that send what no honest one would: the run ends in one line, and its files can be read by anything."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from conformance.vendors import served
from workshop import run, write_pictures, write_profile


@contextmanager
def answering(folder: Path, reply: web.Response, **settings: str) -> Iterator[Path]:
    """The profile of a classifier that gives this reply to everything."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)

    app = web.Application()
    app.router.add_post("/", answer)
    write_pictures(folder / "pictures.npz", 2)
    with served(app) as address:
        told = {"connector": "http", "url": f"{address}/", **settings}
        (folder / "api.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
        write_profile(folder / "profile.json", folder / "api.toml")
        yield folder / "profile.json"


def score(profile: Path, out: str) -> tuple[int, str]:
    folder = profile.parent
    told = run("score", folder / "pictures.npz", "-p", profile, "--ledger", folder / "ledger.db", "-o", folder / out)
    return told.returncode, told.stderr


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_ledger_that_is_deleted_during_a_run_stops_it(tmp_path: Path, whole_folder: bool) -> None:
    ledger, requests = tmp_path / "ledger" / "answers.db", 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        if requests == 20 and whole_folder:
            shutil.rmtree(ledger.parent)
        elif requests == 20:
            for file in ledger.parent.glob("answers.db*"):
                file.unlink()
        return web.json_response({"label": "ant"})

    app = web.Application()
    app.router.add_post("/", answer)
    write_pictures(tmp_path / "pictures.npz", 60)
    with served(app) as address:
        (tmp_path / "api.toml").write_text(f'connector = "http"\nurl = "{address}/"\nconcurrency = 2\n')
        write_profile(tmp_path / "profile.json", tmp_path / "api.toml")
        told = run("score", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", "--ledger", ledger,
                   "-o", tmp_path / "verdicts.csv")  # fmt: skip
    assert told.returncode == 1
    assert "was deleted, moved or replaced while it was in use" in told.stderr
    assert not {"Traceback", "Unclosed"} & {*told.stderr.split()}
    assert requests <= 20 + 8  # what was entered by then


@pytest.mark.parametrize("wait", ["999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "99999999999d"])
def test_a_wait_beyond_every_calendar_is_one_line(tmp_path: Path, wait: str) -> None:
    headers = {"retry-after": wait, "date": "Fri, 01 Jan 2021 00:00:00 GMT"}
    with answering(tmp_path, web.Response(status=429, headers=headers)) as profile:
        code, said = score(profile, "verdicts.csv")
    assert "wants to be left alone until" in said
    assert "Traceback" not in said
    assert code == 1


def test_a_score_without_end_is_no_number_in_any_file(tmp_path: Path) -> None:
    reply = web.Response(text='{"label": "ant", "score": 1e999}', content_type="application/json")
    with answering(tmp_path, reply, label="label", score="score") as profile:
        assert score(profile, "verdicts.jsonl")[0] == 0
    assert run("ledger", "export", tmp_path / "answers.jsonl", "--ledger", tmp_path / "ledger.db").returncode == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for name in ("verdicts.jsonl", "answers.jsonl"):
        lines = (tmp_path / name).read_text().splitlines()
        assert {json.loads(line, parse_constant=refuse)["score"] for line in lines} == {None}


def test_a_zero_character_is_no_label_in_any_ledger(tmp_path: Path) -> None:
    reply = web.Response(text='{"label": "a\\u0000nt"}', content_type="application/json")
    with answering(tmp_path, reply) as profile:
        code, said = score(profile, "verdicts.jsonl")
    assert code == 3
    assert "Traceback" not in said
    messages = [json.loads(line)["message"] for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert all("where a label should be" in message for message in messages)
