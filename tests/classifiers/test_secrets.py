"""A key stays where it is: no spelling of it, in a body, header, label or error, gets into a file, screen or reply."""

from __future__ import annotations

import asyncio
import base64
import html
import itertools
import json
import logging
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, quote_plus

import numpy as np
import pytest
from aiohttp import web
from conformance.chat_replica import anthropic_reply, openai_reply
from conformance.replica import Replica
from hypothesis import given, strategies as st
from support.errors import coded
from support.faults import LABELS, label_of
from support.serving import started
from support.workshop import run, write_pictures

from looktwice import Model
from looktwice.classifiers import aws, command as program, http, oip
from looktwice.classifiers.base import AnyClassifier
from looktwice.classifiers.chat.vendors import Completions, Messages
from looktwice.classifiers.registry import connect as connect_any
from looktwice.classifiers.secrets import LEAST, MASK, Secrets
from looktwice.errors import ClassifierError, LookTwiceError, PermanentError
from looktwice.images.image import encode_png

VARIABLE = "ECHOED_KEY"
KEYS = (
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCY==",
    'it\'s "quoted"\\n&<%2F>',
    "schlüssel/geheim+ß=😀1",
    "0123456789abcdef",
)
PICTURE = np.full((100, 100, 3), 90, np.uint8)


def _percent(key: str) -> str:
    return "".join(f"%{byte:02x}" for byte in key.encode())


def _json(key: str) -> str:
    return json.dumps(key)[1:-1]


def _pieces(key: str, between: str) -> str:
    return between.join(key[start : start + 5] for start in range(0, len(key), 5))


SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": _json,
    "JSON with escaped slashes": lambda key: _json(key).replace("/", "\\/"),
    "JSON in JSON": lambda key: _json(_json(key).replace("/", "\\/")),
    "unicode escapes": lambda key: "".join(_json(c) if ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in key),
    "unicode escapes in capitals": lambda key: "".join(
        f"\\u{half:04X}" for half in np.frombuffer(key.encode("utf-16-le"), "<u2")
    ),
    "byte escapes": lambda key: "".join(f"\\x{byte:02x}" for byte in key.encode()),
    "octal escapes": lambda key: "".join(f"\\{byte:03o}" for byte in key.encode()),
    "percent": lambda key: quote(key, safe=""),
    "percent, slashes kept": quote,
    "percent in small letters": lambda key: quote(key, safe="").replace("%2F", "%2f").replace("%3D", "%3d"),
    "percent throughout": _percent,
    "percent twice": lambda key: quote(_percent(key), safe=""),
    "percent thrice": lambda key: quote(quote(quote(key, safe=""), safe=""), safe=""),
    "a form": quote_plus,
    "HTML": lambda key: html.escape(key).replace("/", "&#x2F;"),
    "HTML, decimal throughout": lambda key: "".join(f"&#{ord(c)};" for c in key),
    "hex": lambda key: key.encode().hex(),
    "hex with colons": lambda key: key.encode().hex(":").upper(),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 for addresses, with a name": lambda key: base64.urlsafe_b64encode(f"user:{key}".encode()).decode(),
    "base64 of base64": lambda key: base64.b64encode(base64.b64encode(key.encode())).decode(),
    "percent in base64": lambda key: base64.b64encode(_percent(key).encode()).decode(),
    "over lines": lambda key: _pieces(key, "\n"),
    "over escaped lines": lambda key: _json(_pieces(key, "\n")),
    "base64 over lines": lambda key: _pieces(base64.b64encode(key.encode()).decode(), "\r\n "),
    "capitals": lambda key: key.replace("ß", "s").upper() if "ß" not in key else key,
}
ONE_LINE = [name for name in SPELLINGS if "over lines" not in name]


def traces(text: str, key: str) -> list[str]:
    """The spellings of which half or more can be read in a text."""
    said = "".join(text.split()).lower()
    spellings = []
    for name, spell in SPELLINGS.items():
        for form in (spell(key), _json(spell(key))):
            whole = "".join(form.split()).lower()
            half = max(LEAST, len(whole) // 2)
            block = (half + 1) // 2  # every half holds such a block from end to end
            if not any(whole[start : start + block] in said for start in range(0, len(whole) - block + 1, block)):
                continue
            if any(whole[start : start + half] in said for start in range(len(whole) - half + 1)):
                spellings.append(name)
    return spellings


# Every connector ---------------------------------------------------------------------------------------------------


def _raw(url: str) -> AnyClassifier:
    return http.connect("", {"url": f"{url}/it", "headers": {"authorization": f"Bearer ${{{VARIABLE}}}"}})


def _query(url: str) -> AnyClassifier:
    return http.connect("", {"url": f"{url}/it?appid=${{{VARIABLE}}}", "label": "found[].is", "score": "found[].p"})


def _body(url: str) -> AnyClassifier:
    template = {"api_key": f"${{{VARIABLE}}}", "image": "{image_base64}"}
    return http.connect("", {"url": f"{url}/it", "body": {"kind": "json", "template": template}})


def _form(url: str) -> AnyClassifier:
    fields = {"token": f"${{{VARIABLE}}}"}
    return http.connect("", {"url": f"{url}/it", "body": {"kind": "multipart", "fields": fields}, "reply": "text"})


def _preset(url: str) -> AnyClassifier:
    headers = {"authorization": f"Bearer ${{{VARIABLE}}}"}
    return http.connect_preset("hf?model=m", {"url": f"{url}/it", "headers": headers})


def _oip(url: str) -> AnyClassifier:
    told = {"input": "picture", "datatype": "FP32", "shape": [-1, 3, 8, 8]}
    return oip.connect("", {"url": f"{url}/it", "headers": {"x-auth-token": f"${{{VARIABLE}}}"}, **told})


def _openai(url: str) -> AnyClassifier:
    return Completions.connect("", {"url": f"{url}/v1", "key": VARIABLE, "model": "m", "labels": ["cat", "dog"]})


def _anthropic(url: str) -> AnyClassifier:
    return Messages.connect("", {"url": url, "key": VARIABLE, "model": "m", "labels": ["cat", "dog"]})


def _tensor(said: str) -> object:
    return {"outputs": [{"name": "answer", "datatype": "BYTES", "shape": [1], "data": [said]}]}


SERVED: Mapping[str, tuple[Callable[[str], AnyClassifier], Callable[[str], object]]] = {
    "a header": (_raw, lambda said: {"label": said}),
    "the address": (_query, lambda said: {"found": [{"is": "cat", "p": 0.1}, {"is": said, "p": 0.9}]}),
    "a JSON body": (_body, lambda said: {"label": said}),
    "a form": (_form, str),
    "a preset": (_preset, lambda said: [{"label": said, "score": 0.5}]),
    "oip": (_oip, _tensor),
    "openai": (_openai, openai_reply),
    "anthropic": (_anthropic, anthropic_reply),
}


class Leaky:
    """A server that says what it is told to, whatever it is asked."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"", dict[str, str]()

    def says(self, said: object, status: int = 200, **headers: str) -> None:
        body = said if isinstance(said, str) else json.dumps(said)
        self.status, self.body, self.headers = status, body.encode(), headers

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(status=self.status, body=self.body, headers=self.headers)

    @contextmanager
    def refused(self) -> Iterator[list[str]]:
        """All that anyone could print of the error that must come."""
        shown: list[str] = []
        with pytest.raises(ClassifierError) as caught:
            yield shown
        error: BaseException | None = caught.value
        while error is not None:
            shown += [str(error), repr(vars(error)), *traceback.format_exception(error)]
            error = error.__cause__ or error.__context__


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", SERVED)
async def test_no_spelling_gets_through_a_connector(
    name: str, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(VARIABLE, key)
    connect, reply = SERVED[name]
    server, routes = Leaky(), web.RouteTableDef()
    routes.post("/{path:.*}")(server.answer)
    async with Replica().running(routes) as replica:
        classifier = connect(replica.url)
        prepared = await asyncio.to_thread(classifier.prepare, PICTURE)
        shown = [repr(classifier), classifier.fingerprint]
        for spelling, spell in SPELLINGS.items():
            said = spell(key)
            server.says(reply(f"it is {said} here"))
            with server.refused() as words:
                await classifier.label([prepared])
            assert VARIABLE in words[0], spelling
            shown += words
            for status in (400, 503, 200):  # the last one is garbled, but for a text, which is a label
                server.says(f"no, {said}, go away", status)
                with server.refused() as words:
                    await classifier.label([prepared])
                shown += words
            server.says("elsewhere", 307, location=quote(f"http://else.where/?k={said}", safe="/:?=%&"))
            with server.refused() as words:
                await classifier.label([prepared])
            shown += words
        await classifier.close()
    assert not traces("\n".join([*shown, caplog.text]), key)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", [name for name in SERVED if name != "a form"])
async def test_a_reply_that_is_kept_holds_no_spelling(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, key)
    connect, reply = SERVED[name]
    server, routes = Leaky(), web.RouteTableDef()
    routes.post("/{path:.*}")(server.answer)
    async with Replica().running(routes) as replica:
        classifier = connect(replica.url)
        prepared = await asyncio.to_thread(classifier.prepare, PICTURE)
        for spell in SPELLINGS.values():
            told = reply("cat")
            server.says(
                [*told, {"label": "dog", "score": 0.1, "you": spell(key)}]
                if isinstance(told, list)
                else {**told, "you": spell(key)}
                if isinstance(told, dict)
                else ""
            )
            (answer,) = await classifier.label([prepared])
            assert answer.label == "cat"
            assert answer.raw is not None
            assert b"***" in answer.raw
            assert not traces(answer.raw.decode(), key)
        await classifier.close()


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("connector", ["rekognition", "sagemaker"])
@pytest.mark.usefixtures("aws_descriptions")
async def test_no_spelling_of_a_credential_gets_through_aws(
    connector: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    server, routes = Leaky(), web.RouteTableDef()
    routes.post("/{path:.*}")(server.answer)
    shown: list[str] = []
    async with Replica().running(routes) as replica:
        if connector == "rekognition":
            classifier = aws.connect_rekognition("", {"endpoint_url": replica.url})
        else:
            classifier = aws.connect_sagemaker("fashion", {"endpoint_url": replica.url})
        prepared = classifier.prepare(PICTURE)
        for spell in SPELLINGS.values():
            said = spell(key)
            server.says({"Labels": [{"Name": said, "Confidence": 99.0}], "label": said})
            with server.refused() as words:
                await classifier.label([prepared])
            assert words
            server.says({"__type": said, "message": f"{said} is wrong"}, 400)
            with server.refused() as more:
                await classifier.label([prepared])
            server.says({"other": said})
            with server.refused() as others:
                await classifier.label([prepared])
            shown += [*words, *more, *others]
        await classifier.close()
    assert not traces("\n".join(shown), key)


PROGRAM = """
if [ -e fails ]; then cat said >&2; exit 1; fi
cat said
"""


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
async def test_no_spelling_gets_through_a_program(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, key)
    (tmp_path / "classify.sh").write_text(PROGRAM)
    told = f"sh classify.sh --api-key ${{{VARIABLE}}} {{image}}"
    classifier = program.connect("", {"command": told, "folder": str(tmp_path)})
    file, leaky, shown = classifier.prepare(PICTURE), Leaky(), [classifier.fingerprint]
    for name, spell in SPELLINGS.items():
        (tmp_path / "said").write_text(spell(key))
        if name in ONE_LINE:  # a label is one
            with leaky.refused() as words:
                await classifier.label([file])
            assert words, name
            shown += words
        (tmp_path / "fails").touch()
        with leaky.refused() as words:
            await classifier.label([file])
        shown += words
        (tmp_path / "fails").unlink()
    assert not traces("\n".join(shown), key)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_program_that_repeats_a_key_it_inherited_is_masked(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_API_KEY", KEYS[0])
    (tmp_path / "classify.sh").write_text(PROGRAM)
    (tmp_path / "said").write_text(f"{tmp_path}: no picture for {KEYS[0]}")
    if fails:
        (tmp_path / "fails").touch()
    classifier = program.connect("", {"command": "sh classify.sh {image}", "folder": str(tmp_path)})
    with pytest.raises(PermanentError) as caught:
        await classifier.label([classifier.prepare(PICTURE)])
    assert not traces(str(caught.value), KEYS[0])
    assert fails or "VENDOR_API_KEY" in str(caught.value)


# Every file, screen and reply --------------------------------------------------------------------------------------


class Api(ThreadingHTTPServer):
    """Takes a PNG and answers with a label; as an echo beside it, and as told, in the label or in an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.leaks, self.spelling = "", "", "as it is"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        api = self.server
        assert isinstance(api, Api)
        said = SPELLINGS[api.spelling](api.key)
        picture = self.rfile.read(int(self.headers["content-length"]))
        label = said if api.leaks == "label" else label_of(picture)
        reply = json.dumps({"label": label, "you": said, "sent": dict(self.headers)}).encode()
        if api.leaks == "error":
            reply = f"this key is bad: {said}".encode()
        self.send_response(401 if api.leaks == "error" else 200)
        self.send_header("content-length", str(len(reply)))
        self.send_header("x-echo", quote(said))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def written(folder: Path) -> str:
    """Every byte of every file, those inside archives too."""
    parts = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in folder.rglob("*.npz"):
        with zipfile.ZipFile(path) as archive:
            parts += [archive.read(name) for name in archive.namelist()]
    return b"\n".join(part.replace(b"\0", b"") for part in parts).decode("latin-1")


def test_no_file_screen_or_reply_shows_a_key(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {VARIABLE: KEYS[0], "ANOTHER_KEY": KEYS[1]}
    for variable, api.key in keys.items():
        monkeypatch.setenv(variable, api.key)
    dice = np.random.default_rng(0)
    images, truths = dice.integers(0, 256, (30, 16, 16, 3), np.uint8), dice.integers(0, 5, 30)
    np.savez(tmp_path / "pictures.npz", images=images, labels=truths, class_names=np.array(LABELS))
    (tmp_path / "api.toml").write_text(
        f'connector = "http"\nurl = "http://127.0.0.1:{api.server_port}/it?appid=${{{VARIABLE}}}"\n'
        'headers = { authorization = "Bearer ${ANOTHER_KEY}" }\nprice = "0.001"\n'
    )
    place = ("--ledger", tmp_path / "ledger.db")
    shown: list[str] = []

    def done(*words: object, code: int = 0) -> str:
        ended = run(*words, cwd=tmp_path, PYTHONASYNCIODEBUG="1")
        assert ended.returncode == code, ended.stderr
        shown.append(ended.stdout + ended.stderr)
        return ended.stderr

    api.spelling = "JSON with escaped slashes"
    done("check", "api.toml", *place)
    done("fit", "pictures.npz", "-c", tmp_path / "api.toml", "--views", "mirror", "--calibrator", "probit",
         "-o", "p.json",
         "--votes", "votes.npz", *place)  # fmt: skip
    done("score", "pictures.npz", "-p", "p.json", "-o", "scores.csv", *place)
    done("evaluate", "pictures.npz", "-p", "p.json", "--report", "report.html", *place)
    done("ledger", "export", "answers.csv", *place)
    done("ledger", "export", "answers.jsonl", *place)
    write_pictures(tmp_path / "new.npz", 3, seed=9)
    leaks = (("label", "over lines"), ("label", "percent twice"), ("error", "base64"))
    for (variable, api.key), (api.leaks, api.spelling) in itertools.product(keys.items(), leaks):
        told = done("score", "new.npz", "-p", "p.json", "-o", "new.csv", *place, code=1)
        assert variable in told
    api.leaks = "label"
    with started("serve", "-p", tmp_path / "p.json", "--port", "0", *place) as service:
        leaks = (("label", "hex"), ("error", "unicode escapes"), ("label", "HTML"))
        for name, (api.key, (api.leaks, api.spelling)) in enumerate(itertools.product(keys.values(), leaks)):
            reply = service.post("/v1/look", encode_png(np.full((16, 16, 3), 3 * name, np.uint8)))
            assert reply.status >= 400
            shown.append(f"{reply.headers}{reply.body.decode()}{service.get('/metrics').body.decode()}")
    shown.append(written(tmp_path))
    assert not any(traces("\n".join(shown), key) for key in keys.values())
    assert "eel" in shown[-1], "the files do hold the labels"


@pytest.mark.slow
def test_no_spelling_in_a_label_reaches_the_ledger(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, api.key in enumerate(KEYS):
        monkeypatch.setenv(VARIABLE, api.key)
        (tmp_path / f"{number}.toml").write_text(
            f'connector = "http"\nurl = "http://127.0.0.1:{api.server_port}/{number}"\n'
            f'headers = {{ x-api-key = "${{{VARIABLE}}}" }}\n'
        )
        for api.leaks in ("label", "error"):
            for api.spelling in SPELLINGS:
                model = Model(str(tmp_path / f"{number}.toml"), ledger=str(tmp_path / "ledger.db"))
                with model, pytest.raises(LookTwiceError) as caught:
                    model.ask([PICTURE], views="mirror")
                assert not traces(str(caught.value), api.key)
        assert not traces(written(tmp_path), api.key)


# Descriptions ------------------------------------------------------------------------------------------------------

LITERAL = "abcdefgh12345678"
WRITTEN_OUT: Mapping[str, dict[str, object]] = {
    "authorization": {"url": "http://h/", "headers": {"Authorization": f"Bearer {LITERAL}"}},
    "x-api-key": {"url": "http://h/", "headers": {"X-API-Key": LITERAL}},
    "api-key": {"url": "http://h/", "headers": {"api-key": LITERAL}},
    "a bearer by another name": {"url": "http://h/", "headers": {"x-forward": f"Bearer {LITERAL}"}},
    "user and password": {"url": f"http://me:{LITERAL}@h/"},
    "appid": {"url": f"http://h/?appid={LITERAL}"},
    "key": {"url": f"http://h/?v=1&key={LITERAL}"},
    "apikey": {"url": "http://h/", "query": {"apikey": LITERAL}},
    "accessToken": {"url": "http://h/", "query": {"accessToken": LITERAL}},
    "sig": {"url": f"http://h/?sig={LITERAL}"},
    "client_secret": {"url": "http://h/", "query": {"client_secret": LITERAL}},
    "a field of JSON": {
        "url": "http://h/",
        "body": {"kind": "json", "template": {"auth": [{"token": LITERAL}], "image": "{image_base64}"}},
    },
    "a field of a form": {"url": "http://h/", "body": {"kind": "multipart", "fields": {"api_key": LITERAL}}},
    "a value": {"url": "http://h/{api_key}", "values": {"api_key": LITERAL}},
    "a value for a header": {"url": "http://h/", "headers": {"x-token": "{it}"}, "values": {"it": LITERAL}},
    "the shape of a key": {"url": f"http://h/{'sk-' + LITERAL * 2}/classify"},
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_key_that_is_written_out_is_refused(name: str) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")) as caught:
        http.connect("", WRITTEN_OUT[name])
    assert LITERAL not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "source",
    [
        f"https://host/classify?appid={LITERAL}",
        f"https://me:{LITERAL}@host/classify",
        f"preset:hf?model=m&token={LITERAL}",
        f"oip+http://me:{LITERAL}@host/model",
        f"oip+http://host/model?token={LITERAL}",
        f"openai+http://me:{LITERAL}@host/v1?labels=x#m",
        f"openai:m?labels=labels.txt&key=sk-{LITERAL}",
        f"openai:m?labels=labels.txt&key={LITERAL}",
        f"command:cat --api-key {LITERAL} {{image}}",
        f"command:cat --token={LITERAL} {{image}}",
    ],
)
def test_a_key_in_a_string_is_refused_and_not_repeated(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "x").write_text("cat\ndog\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "t")
    with pytest.raises(PermanentError) as caught:
        connect_any(source)
    assert LITERAL not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "settings",
    [
        {"url": f"http://h/?appid={LITERAL}", "public": ["appid"]},
        {"url": "http://h/", "headers": {"x-tokens": "5", "accept": "*/*"}},
        {"url": "http://h/", "query": {"design": "a", "keywords": "b", "max_tokens": "256", "author": "c"}},
        {"url": "http://h/", "query": {"key": ""}},
        {
            "url": "http://h/",
            "body": {
                "kind": "json",
                "template": {"key": "{image_base64}", "text": "Basic shapes and key points", "n": 5},
            },
        },
    ],
)
def test_what_is_no_key_is_taken(settings: dict[str, object]) -> None:
    http.connect("", settings)


# Labels and texts without a key ------------------------------------------------------------------------------------

LABEL = st.text(max_size=60)


@given(LABEL)
def test_a_label_without_a_key_stays_as_it_is(label: str) -> None:
    secrets = Secrets()
    secrets.add(VARIABLE, KEYS[0])
    assert secrets.answer(label).label == label
    assert secrets.mask(label) == label


def test_a_short_word_is_no_key_that_labels_must_not_hold() -> None:
    secrets = Secrets()
    secrets.add(VARIABLE, "EMPTY")  # what servers of one's own are often given
    assert secrets.answer("EMPTY shelf").label == "EMPTY shelf"
    assert secrets.mask("key EMPTY") == "key ***"


COMMON = ("as it is", "JSON", "JSON with escaped slashes", "percent", "percent, slashes kept", "a form", "base64")


@pytest.mark.parametrize("spelling", COMMON)
def test_the_words_around_a_key_in_a_common_spelling_are_kept(spelling: str) -> None:
    secrets = Secrets()
    secrets.add(VARIABLE, KEYS[0])
    masked = secrets.line(f"the key {SPELLINGS[spelling](KEYS[0])} was refused, try again")
    assert masked.startswith("the key ")
    assert masked.endswith("was refused, try again")
    assert MASK in masked


HOSTILE = {
    "percent": "%25" * 350_000,
    "backslashes": "\\" * 1_000_000,
    "entities": "&amp;" * 200_000,
    "base64": base64.b64encode(base64.b64encode(b"\\u0041%25" * 60_000)).decode(),
    "hex": "61" * 500_000,
    "half keys": _percent(KEYS[0])[:-3] * 8_000,
    "keys": _percent(KEYS[0]) * 8_000,
    "whitespace and half a key": " " * 1_048_570 + KEYS[0],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_that_is_made_to_be_searched_for_long_is_not(name: str) -> None:
    secrets, started_at = Secrets(), time.process_time()
    secrets.add(VARIABLE, KEYS[0])
    shown = [secrets.line(HOSTILE[name]), str(secrets.kept(HOSTILE[name][:60_000].encode()))]
    try:
        secrets.refuse(HOSTILE[name])
    except PermanentError as error:
        shown.append(str(error))
    assert time.process_time() - started_at < 30
    assert name == "half keys" or not traces("\n".join(shown), KEYS[0])
