"""Every parser of untrusted bytes: what calls it, what usually comes, and how that is spoilt.

Each gives an answer or an error of our own tree; anything else is a fault. `make fuzz` walks through
them for ten minutes, and test_fuzz.py for a moment.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import math
import os
import pickle
import random
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import PIL.Image

from experiments import official
from looktwice.calibration import storage
from looktwice.calibration.calibrators import dump
from looktwice.calibration.evidence import Row
from looktwice.calibration.jury import Jury
from looktwice.calibration.latent import Cumulatives, describe
from looktwice.calibration.shares import Cumulative, Probit, vote_tally
from looktwice.calibration.votes import Votes
from looktwice.classifiers.base import Answer, AnyClassifier
from looktwice.classifiers.command import CommandClassifier
from looktwice.classifiers.http import presets
from looktwice.classifiers.oip import OipClassifier
from looktwice.classifiers.registry import connect, read_labels
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import HttpSettings
from looktwice.classifiers.transport import Endpoint, Reply, Transport
from looktwice.decisions.collecting import Collected
from looktwice.decisions.fitting import learn
from looktwice.decisions.judging import judge
from looktwice.decisions.noise import Measured, NoiseFile
from looktwice.decisions.policy import DecisionOptions
from looktwice.decisions.profile import Profile
from looktwice.decisions.results import Figure, HeldOut, Result
from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import ScoreFile, record
from looktwice.engine.budget import MICRO, Budget
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.ledger import Ledger, close_ledger, open_ledger
from looktwice.engine.ledger.schema import Account, Claim, Entry, Outcome, Settled, again, joined, keys
from looktwice.engine.query import Cause, Unscored
from looktwice.errors import LookTwiceError
from looktwice.images import collection
from looktwice.images.decode import decode
from looktwice.images.image import MAX_PIXELS
from looktwice.service.guards import Tokens
from looktwice.views import RENDERER, Panel, parse, questions

T = TypeVar("T")
CORPUS = Path(__file__).parents[1] / "corpus"
"""Inputs that once found a fault, one folder a target."""
PIXELS = 1_000_000
STATUSES = (200, 200, 200, 200, 201, 204, 301, 400, 401, 402, 403, 404, 408, 413, 429, 500, 501, 503, 529, 600)


@dataclass(frozen=True)
class Target:
    """A target: `open` takes bytes and gives nothing back; `seeds` are bytes that it usually sees."""

    open: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]

    def __call__(self, data: bytes) -> None:
        """Try these bytes; whatever is raised is a fault."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                self.open(data)
            except LookTwiceError as refusal:
                message = str(refusal)
                assert message, "an error without words"
                assert "\n" not in message, "an error of more than one line"


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one try, in memory where the system has such."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A target that reads a file of this name."""

    def open_file(data: bytes) -> None:
        with folder() as place:
            (place / name).write_bytes(data)
            read(place / name)

    return open_file


# --- pictures


def picture_seeds() -> list[bytes]:
    photo = PIL.Image.fromarray(np.arange(24 * 20 * 3, dtype=np.uint8).reshape(24, 20, 3))
    exif = PIL.Image.Exif()
    exif[0x112] = 6
    ways: list[tuple[PIL.Image.Image, str, dict[str, Any]]] = [
        (photo, "PNG", {"exif": exif}),
        (photo.quantize(8), "PNG", {"transparency": 1}),
        (photo, "JPEG", {"exif": exif, "icc_profile": b"icc" * 9}),
        (photo.convert("CMYK"), "JPEG", {}),
        (photo, "WEBP", {"lossless": True, "exif": exif}),
        (photo, "WEBP", {"save_all": True, "append_images": [photo.rotate(9)]}),
        (photo, "BMP", {}),
        (photo, "TIFF", {"compression": "tiff_lzw"}),
        (photo, "TIFF", {"big_tiff": True, "compression": "packbits"}),
        (photo.convert("I;16"), "TIFF", {}),
        (photo, "GIF", {"save_all": True, "append_images": [photo.rotate(9)]}),
    ]
    return [_saved(*way) for way in ways]


def _saved(picture: PIL.Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def see(data: bytes) -> None:
    image = decode(data, "it", PIXELS)
    assert image.pixels.dtype == np.uint8
    assert image.pixels.size <= 3 * PIXELS


# --- texts


VIEWS = (
    b"rotation:30",
    b"zoom:1.15,border=edge",
    b"mirror+turn:10",
    b"tone:brightness=0.1,contrast=1.2,grey=0.5,cast=-0.1",
    b"affine:10,0.1,0.3,interpolation=nearest",
    b"mirror+order:3 wording:2 ranked+describe",
    b"mirror zoom:1.15 gaussian:0.2*10 elastic:20,5 again*2 shift:0.06,-0.06",
)


def look_again(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    with suppress(LookTwiceError):
        view = parse(text)
        assert parse(view.text) == view
    panel = Panel.parse(text)
    assert Panel.parse(str(panel)) == panel
    questions(decode(picture_seeds()[0], "it"), panel[:3], 0)


DESCRIPTIONS = (
    b'connector = "http"\nurl = "http://127.0.0.1:9/{model}"\nvalues = { model = "birds" }\nlabel = "a[].b"\n'
    b'score = "a[].c"\nprice = "0.0015"\nheaders = { authorization = "Bearer ${FUZZ_KEY}" }\ntimeout = 2.5\n'
    b'body = { kind = "json", template = { image = "{image_base64}", size = ["{width}", "{height}"] } }\n',
    b'connector = "http"\nurl = "https://h/x?k=1"\nbody = "multipart"\nreply = "text"\nlabels = ["a", "b"]\n'
    b'encoding = { format = "jpeg", quality = 80, max_bytes = 9000 }\nquery = { a = "b" }\n',
    b'preset = "google-vision"\nlabels = "labels.txt"\nconcurrency = 4\nper_second = 3\n',
    b'connector = "oip"\nurl = "http://127.0.0.1:9/model/versions/3"\ncrop = 0.875\nchannels = "bgr"\nscale = 255.0\n'
    b'mean = [0.1, 0.2, 0.3]\nstd = [1, 1, 1]\ninput = "x"\ndatatype = "FP32"\nshape = [-1, 3, 8, 8]\n',
    b'connector = "openai"\nmodel = "m"\nlabels = ["cat", "dog"]\nurl = "http://127.0.0.1:9/v1"\nseed = 3\n'
    b'synonyms = { cat = ["kitten"] }\nprompt = "{labels}"\nanswer = "plain"\ntemperature = 0.5\n',
    b'connector = "anthropic"\nmodel = "m"\nlabels = ["cat", "dog"]\nurl = "http://127.0.0.1:9"\nmax_tokens = 9\n',
    b'connector = "gemini"\nmodel = "m"\nlabels = ["cat", "dog"]\nurl = "http://127.0.0.1:9"\nwordings = ["Which?"]\n'
    b'without_label = { refusal = "none", cut = "cat" }\nmedia_resolution = "low"\npicture = "last"\nranked = 2\n',
    b'connector = "openai-responses"\nmodel = "m"\nlabels = ["cat", "dog"]\nurl = "http://127.0.0.1:9/v1"\n',
    b'connector = "rekognition"\nregion = "eu-west-1"\nlabels = ["Dog"]\nmin_confidence = 10.0\n',
    b'connector = "sagemaker"\nendpoint = "e"\nregion = "eu-west-1"\nlabel = "[].label"\nscore = "[].score"\n',
    b'connector = "command"\ncommand = "cat {image}"\ntimeout = 20\nprice = "0.1"\n',
    b'connector = "onnx"\nmodel = "model.onnx"\n',
)


def describe_classifier(path: Path) -> None:
    if b"python" in path.read_bytes():
        return  # it would import whatever it names
    (path.parent / "labels.txt").write_bytes(b"cat\ndog\n")
    classifier = connect(path)
    assert classifier.fingerprint
    if not isinstance(classifier, OipClassifier):
        assert classifier.limits.price_micros >= 0
        asyncio.run(classifier.close())


TABLE = (
    b"file,label\na.png,cat\nb.png,dog\n",
    b'\xef\xbb\xbfid,label,file\r\n1,"cat, big",./a.png\r\n2,dog,b.png\r\n',
)


def read_table(path: Path) -> None:
    for name in ("a.png", "b.png"):
        (path.parent / name).touch()
    for picture in collection.labelled(path.parent):
        assert picture.truth


def read_solution(path: Path) -> None:
    for number in (1, 2):
        (path.parent / f"ILSVRC2012_val_{number:08}.JPEG").touch()
    official.open_labelled(path.parent)


def read_pickle(path: Path) -> None:
    place = path.parent
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat", "dog"]}, protocol=2))
    for picture in official.open_labelled(place):
        picture.image()


def pickle_seeds() -> list[bytes]:
    return [pickle.dumps({"data": [0] * 3072, "labels": [0]}, protocol=2)]


def read_synset_list(path: Path) -> None:
    (path.parent / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n")
    read_solution(path)


def synset_list_seeds() -> list[bytes]:
    return [b"n01440764 1 tench\nn01443537 2 goldfish\n"]


# --- our own files


def stack_seeds() -> list[bytes]:
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    plain = {"images": images, "labels": np.array([1, 0]), "class_names": np.array(["cat", "dog"])}
    return [_packed(np.savez, **plain), _packed(np.savez_compressed, images=images, labels=np.array(["cat", "dog"]))]


def _packed(save: Callable[..., None], **arrays: object) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def read_stack(path: Path) -> None:
    for picture in collection.labelled(path, None, PIXELS)[:3]:
        picture.image()


def profile_seeds() -> list[bytes]:
    accuracy = Result(calibrator="naive", queries=1, figures={"accuracy": Figure(value=0.9, low=0.8, high=1.0)})
    held = HeldOut(confidence=(0.9, 0.4), correct=(True, False), true_probability=(0.5, 0.6))
    profile = Profile(
        looktwice="1",
        classifier="python:m:f",
        fingerprint="python:1",
        vocabulary=("ant", "bee"),
        classes=5,
        panel="mirror rotation:20*3",
        seed=0,
        renderer=RENDERER,
        calibrator=dump(Probit(a=1.0, b=0.5)),
        pictures=100,
        results=(accuracy,),
        held_out=held,
        agreement_bins=(1, 2, 3, 4, 5),
    )
    return [profile.model_dump_json().encode(), *_fitted()]


@cache
def _fitted() -> tuple[bytes, ...]:
    """A profile of the jury with its rule for stopping early, as fitting makes it."""
    dice = np.random.default_rng(0)
    truths = dice.integers(0, 3, 120)
    said = np.where(dice.random((120, 5)) < 0.8, truths[:, None], dice.integers(0, 3, (120, 5)))
    rows = [Row(str(i), f"c{row[0]}", tuple(f"c{code}" for code in row[1:])) for i, row in enumerate(said)]
    panel = Panel.parse("mirror zoom:1.15 turn:5 turn:-5")
    votes = Votes.collect(rows, [str(view) for view in panel], ["c0", "c1", "c2"])
    collected = Collected(votes.labelled(f"c{code}" for code in truths), (), panel, "python:1", 0)
    return (learn(collected, Jury(), "python:m:f").model_dump_json().encode(),)


def read_profile(path: Path) -> None:
    profile = Profile.load(path)
    for everything in (False, True):
        policy = DecisionOptions(everything, max_error=0.1, coverage=0.9).of(profile)
        views = [str(view) for view in policy.panel]
        row = Row("it", "x", tuple("x" for _ in views))
        (verdict,) = judge([row], views, profile, policy)
        assert isinstance(verdict, Verdict)
        assert 0 <= verdict.confidence <= 1
        if drift := policy.drift():
            drift.update([0, 1])
        if policy.rounds:
            policy.rounds.more(Row("it", "x", ("x",) * policy.rounds.first))
    profile.accuracy()


def noise_seeds() -> list[bytes]:
    rng = np.random.default_rng(0)
    noise = describe(Cumulatives.count(rng.normal(size=(5, 20))))
    measured = Measured("rotation:20", 0.8, noise, noise, 0.1, 0.2)
    file = NoiseFile(model="m", fingerprint="f", seed=0, pictures=5, digest="0" * 32, draws=20, noises=(measured,))
    return [file.model_dump_json().encode()]


def read_noise(path: Path) -> None:
    file = NoiseFile.load(path)
    for item in file.noises:
        curve: Cumulative = item.noise.cumulative
        assert np.isfinite(curve.inverse(np.linspace(0.1, 0.9, 5))).all()


def votes_seeds(ending: str) -> list[bytes]:
    rows = [Row("a", "cat", ("cat", "dog")), Row("b", "dog", ("dog", None))]
    with folder() as place:
        path = place / f"votes{ending}"
        storage.save(path, Votes.collect(rows, ["mirror", "turn:5"]).labelled(["cat", "dog"]))
        return [path.read_bytes()]


def read_votes(path: Path) -> None:
    vote_tally(storage.load(path))


def part_seeds() -> list[bytes]:
    header = json.dumps({"profile": "p"}, sort_keys=True)
    line = json.dumps(
        {
            **record(Unscored("a.png", Cause.STOPPED, "late")),
            "label": "cat",
            "confidence": 0.5,
            "asked": [{"classifier": "c", "view": "again", "label": "cat", "score": None}],
        }
    )
    return [f"{header}\n{line}\n".encode(), f"{header}\n{line}\n{line[:20]}".encode(), b"other\n"]


def read_part(path: Path) -> None:
    told = collection.Collection(["a.png", "b.png"], collection.Folder(path.parent, MAX_PIXELS))
    file = ScoreFile(path.with_name("out.csv"), {"profile": "p"}, told)
    try:
        file.finish({})
    finally:
        file.close()


def entry(digest: str, view: str) -> Entry:
    (key,) = keys("f", digest, [joined(view, "0", "0", RENDERER)])
    return Entry(key, digest, view, 0, 0)


ENTRY = entry("d" * 32, "mirror")


def ledger_seeds() -> list[bytes]:
    return [_ledger()]


@cache
def _ledger() -> bytes:
    with folder() as place:
        path = place / "ledger.db"
        _fill(path)
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        return path.read_bytes()


def _fill(path: Path) -> None:
    """A ledger with an answer and its reply, a query that was lost, and an answer that was asked for again."""
    answer = Answer("cat", 0.5, 200, b'{"label": "cat"}')
    results: dict[Entry, Answer | Outcome] = {
        ENTRY: answer,
        entry("e" * 32, "turn:5"): Outcome.KEPT,
        again(ENTRY): Answer("cat"),
    }

    async def work(ledger: Ledger) -> None:
        requests = [(query, 1500 * MICRO) for query in results]
        for claim in await ledger.claim(Account("f", (Budget(queries=100),), description="python:m:f"), requests):
            assert isinstance(claim, Claim)
            await ledger.settle(claim, Settled(claim.entry.key, results[claim.entry], latency=0.01))

    with _opened(path) as ledger:
        asyncio.run(work(ledger))


@contextmanager
def _opened(path: Path) -> Iterator[Ledger]:
    ledger = open_ledger(str(path))
    try:
        yield ledger
    finally:
        close_ledger(ledger)


def read_ledger(path: Path) -> None:
    for work in (
        maintenance.verify,
        maintenance.stats,
        lambda path: maintenance.export(path, path.with_name("out.csv")),
        lambda path: maintenance.backup(path, path.with_name("backup.db")),
        _ask_ledger,
        lambda path: maintenance.forget(path, "f"),
    ):
        _tolerant(work, path)


def _tolerant(work: Callable[[Path], object], path: Path) -> None:
    with suppress(LookTwiceError):
        work(path)


def _ask_ledger(path: Path) -> None:
    async def claim(ledger: Ledger) -> None:
        await ledger.claim(Account("f", (Budget(queries=1000),)), [(entry("c" * 32, "mirror"), 10 * MICRO)])

    with _opened(path) as ledger:
        ledger.spend("f")
        for stored in ledger.find([ENTRY.key]).values():
            assert isinstance(stored.answer.label, str)
        ledger.reply(ENTRY.key)
        asyncio.run(claim(ledger))


# --- what classifiers reply


def reply_of(data: bytes) -> Reply:
    """Status and headers from the first line, which a mutation may change too, and the body after it."""
    head, _, body = data.partition(b"\n")
    status, _, lines = head.decode("latin-1").partition(" ")
    parted = (line.partition(":") for line in lines.split("|"))
    headers = {name.lower(): value for name, colon, value in parted if colon}
    number = int(status) if status.isascii() and status.isdecimal() and len(status) < 4 else 200
    return Reply(number, headers, body)


def through(work: Coroutine[object, None, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waited")


@contextmanager
def replying(*replies: Reply) -> Iterator[None]:
    """Every request gets these replies in turn, the last of them for ever."""
    left = list(replies)

    async def send(*_: object) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    with mock.patch.object(Endpoint, "_exchange", send):
        yield


def heard(data: bytes) -> None:
    """What a server sends, byte for byte, until it closes the connection."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for part in (data[:40], data[40:]):
                writer.write(part)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def listen() -> None:
        server = await asyncio.start_server(say, "127.0.0.1", 0)
        transport = Transport(HttpSettings(timeout=5.0, max_reply_bytes=10_000), Secrets())
        try:
            port = server.sockets[0].getsockname()[1]
            reply = await transport.endpoint("GET", f"http://127.0.0.1:{port}/", {}).send()
            assert len(reply.body) <= 10_000
        finally:
            await transport.close()
            server.close()
            await server.wait_closed()

    asyncio.run(listen())


RESPONSES = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{"label": "cat"}',
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\ncat\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 429 Slow\r\nRetry-After: 7\r\n\r\nlater",
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"cat"),
)


def labelled_by(text: str, *, batch: int = 1) -> Callable[[bytes], object]:
    """A target of the classifier that this description makes."""
    made = cache(lambda: described(text))
    shown = cache(lambda: made().prepare(np.zeros((8, 8, 3), np.uint8)))

    def ask(data: bytes) -> None:
        with replying(reply_of(data)):
            check(through(made().label([shown()] * batch)), batch)

    return ask


def described(text: str) -> AnyClassifier:
    with folder() as place, mock.patch.dict(os.environ, {"FUZZ_KEY": "a-secret-key", **KEYS}):
        (place / "it.toml").write_text(text)
        return connect(place / "it.toml")


def check(answers: Sequence[Answer], batch: int = 1) -> None:
    """What every answer must be, so that a ledger can keep it and a calibrator can count it."""
    assert len(answers) == batch
    for answer in answers:
        answer.label.encode()
        assert answer.score is None or (isinstance(answer.score, (int, float)) and not math.isnan(answer.score))
        float(answer.score or 0)


PLACES = dict.fromkeys(
    ("host", "project", "iteration", "api", "user", "app", "model", "version", "region", "endpoint"), "1"
)
KEYS = dict.fromkeys(
    ("AZURE_PREDICTION_KEY", "CLARIFAI_PAT", "GOOGLE_API_KEY", "HF_TOKEN", "ROBOFLOW_API_KEY", "GOOGLE_ACCESS_TOKEN"),
    "a-secret-key",
)


def preset_target(name: str) -> Target:
    """The target of a preset, fed with replies of all of them."""
    description = f"preset = {json.dumps(name)}\nlabels = ['cat', 'dog']\n[values]\n" + _toml(PLACES)
    return Target(labelled_by(description), replies(*PRESET_REPLIES))


PRESET_REPLIES: tuple[object, ...] = (
    {"predictions": [{"tagName": "cat", "probability": 0.7}, {"tagName": "dog", "probability": 0.1}]},
    {"predictions": [[0.1, 0.9]]},
    {"predictions": [{"displayNames": ["cat", "dog"], "confidences": [0.7, 0.1], "class": "cat", "confidence": 0.3}]},
    [{"label": "cat", "score": 0.7}, {"label": "dog", "score": 0.1}],
    {"label": "cat", "score": 0.5, "top": "cat", "confidence": 0.5},
    {"outputs": [{"data": {"concepts": [{"name": "cat", "value": 0.7}]}, "status": {"code": 10000}}]},
    {"responses": [{"labelAnnotations": [{"description": "cat", "score": 0.7}], "error": None}]},
)


def _toml(values: Mapping[str, object]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


OIP = """connector = "oip"
url = "http://h/model"
input = "x"
datatype = "UINT8"
shape = [-1, 3, 8, 8]
output = "y"
"""


def told_of_model(data: bytes) -> None:
    """A server of the Open Inference Protocol that tells of its model and of itself."""
    parts = [reply_of(part) for part in data.split(b"\n---\n")]
    classifier = described('connector = "oip"\nurl = "http://h/model"\n')
    assert isinstance(classifier, OipClassifier)
    with replying(*parts):
        model = through(classifier._ask(classifier._transport))
    classifier._learned = model
    assert classifier.limits.batch == 1
    classifier.prepare(np.zeros((8, 8, 3), np.uint8))


def aws_target(text: str) -> Callable[[bytes], object]:
    """Its requests are signed in a thread, so they need a loop."""
    made = cache(lambda: described(text))

    def ask(data: bytes) -> None:
        keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
        with replying(reply_of(data)), mock.patch.dict(os.environ, keys):
            check(asyncio.run(made().label([b"file"])))

    return ask


def printed(data: bytes) -> None:
    """A program's exit code and what it printed."""
    classifier = described('connector = "command"\ncommand = "cat {image}"\n')
    assert isinstance(classifier, CommandClassifier)
    code, output, errors = data[:1], *data[1:].partition(b"\n---\n")[::2]
    check([classifier._answer(int.from_bytes(code, signed=True), output, errors)])


def replies(*bodies: object, headers: str = "") -> Callable[[], list[bytes]]:
    """Seeds of replies: each body with a good status, and the first with all others."""
    encoded = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    retry = "retry-after:7|x-ratelimit-reset:3|date:Sun, 06 Nov 1994 08:49:37 GMT"
    good = [b"200 " + headers.encode() + b"\n" + body for body in encoded]
    bad = [f"{status} {retry}\n".encode() + encoded[0] for status in sorted(set(STATUSES) - {200})]
    return lambda: [*good, *bad]


def _oip(datatype: str, data: list[object], **parameters: object) -> dict[str, object]:
    output = {"name": "y", "datatype": datatype, "shape": [1, len(data)], "data": data, "parameters": parameters}
    return {"model_name": "m", "outputs": [output]}


METADATA = [
    {
        "name": "m",
        "platform": "onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    },
    {"name": "triton", "extensions": ["binary_tensor_data"]},
]
RANKED = {"results": [{"name": "cat", "p": 0.7}, {"name": "dog", "p": 0.2}], "error": None}
CHAT = {"choices": [{"message": {"content": '{"label": "cat"}', "refusal": None}, "finish_reason": "stop"}]}
MESSAGE = {"content": [{"type": "text", "text": '```json\n{"label": "cat"}\n```'}], "stop_reason": "end_turn"}
RESPONSE = {
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "cat"}]}],
    "usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}},
}
CONTENT = {
    "candidates": [{"content": {"parts": [{"text": "cat", "thought": False}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 3, "promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 2}]},
}
AWS = 'region = "eu-west-1"\n'
HTTP = 'connector = "http"\nurl = "http://h/x"\nheaders = { authorization = "Bearer ${FUZZ_KEY}" }\n'
TALK = 'model = "m"\nlabels = ["cat", "dog"]\nurl = "http://h"\nkey = "FUZZ_KEY"\n'
DETECTED = {"Labels": [{"Name": "Dog", "Confidence": 90.5, "Instances": []}, {"Name": "Cat", "Confidence": 20}]}
AMAZON_TROUBLE = {"__type": "ThrottlingException", "message": "slow down"}

TARGETS: dict[str, Target] = {
    "picture": Target(see, picture_seeds),
    "view": Target(look_again, lambda: VIEWS),
    "description": Target(in_file("it.toml", describe_classifier), lambda: DESCRIPTIONS),
    "labels": Target(in_file("labels.txt", read_labels), lambda: (b"cat\ndog\n", b"\xff\n")),
    "table": Target(in_file("labels.csv", read_table), lambda: TABLE),
    "solution": Target(
        in_file("LOC_val_solution.csv", read_solution),
        lambda: (
            b"ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1 2 3 4 \n"
            b"ILSVRC2012_val_00000002,n01443537 1 2 3 4 \n",
        ),
    ),
    "pickle": Target(in_file("test_batch", read_pickle), pickle_seeds),
    "synset-list": Target(in_file("map_clsloc.txt", read_synset_list), synset_list_seeds),
    "stack": Target(in_file("pictures.npz", read_stack), stack_seeds),
    "profile": Target(in_file("profile.json", read_profile), profile_seeds),
    "noise": Target(in_file("noise.json", read_noise), noise_seeds),
    "votes": Target(in_file("votes.npz", read_votes), lambda: votes_seeds(".npz")),
    "votes-parquet": Target(in_file("votes.parquet", read_votes), lambda: votes_seeds(".parquet")),
    "part": Target(in_file("out.csv.part", read_part), part_seeds),
    "ledger": Target(in_file("ledger.db", read_ledger), ledger_seeds),
    "tokens": Target(in_file("tokens.txt", Tokens.read), lambda: (b"# one\nalice " + b"0" * 64 + b"\n",)),
    "transport": Target(heard, lambda: RESPONSES),
    "reply-http": Target(labelled_by(HTTP), replies({"label": "cat"}, {"label": 3}, {"label": ["a"]})),
    "reply-ranked": Target(
        labelled_by(
            HTTP + 'label = "results[].name"\nscore = "results[].p"\nerror = "error"\nrename = { cat = "c" }\n'
        ),
        replies(RANKED),
    ),
    "reply-scores": Target(
        labelled_by(HTTP + 'score = "sort_by(p, &i)[].s"\nlabels = ["cat", "dog"]\n'),
        replies({"p": [{"i": 2, "s": 0.5}, {"i": 1, "s": 0.25}]}),
    ),
    "reply-text": Target(labelled_by(HTTP + 'reply = "text"\n'), replies(b"cat\n", b"\xff\xfe")),
    "reply-oip": Target(
        labelled_by(OIP + 'labels = ["a", "b", "c", "d"]\n'),
        replies(_oip("FP32", [0.1, 0.2, 0.3, 0.4]), _oip("INT64", [3]), _oip("BYTES", ["a"])),
    ),
    "reply-oip-model": Target(
        told_of_model, lambda: [b"\n---\n".join(b"200 \n" + json.dumps(part).encode() for part in METADATA)]
    ),
    "reply-openai": Target(labelled_by('connector = "openai"\n' + TALK), replies(CHAT)),
    "reply-openai-responses": Target(labelled_by('connector = "openai-responses"\n' + TALK), replies(RESPONSE)),
    "reply-gemini": Target(
        labelled_by('connector = "gemini"\n' + TALK), replies(CONTENT, {"promptFeedback": {"blockReason": "SAFETY"}})
    ),
    "reply-anthropic": Target(labelled_by('connector = "anthropic"\n' + TALK), replies(MESSAGE)),
    "reply-rekognition": Target(
        aws_target('connector = "rekognition"\n' + AWS), replies(DETECTED, AMAZON_TROUBLE, headers="x-amzn-requestid:1")
    ),
    "reply-sagemaker": Target(
        aws_target('connector = "sagemaker"\nendpoint = "e"\nlabel = "[].label"\nscore = "[].score"\n' + AWS),
        replies([{"label": "cat", "score": 0.5}], {"Message": "no", "OriginalStatusCode": 500}),
    ),
    **{f"reply-{name}": preset_target(name) for name in presets()},
    "reply-command": Target(
        printed, lambda: [b"\0some words\ncat\n\n---\n", b"\x4b\n---\nlater", b"\xf7\n---\nkilled"]
    ),
}


# --- spoiling


HOSTILE: tuple[object, ...] = (
    None, True, -1, 0, 1e308, 10**30, 10**400, -(10**30), float("nan"), float("inf"), "", "\ud800", "\0", "a\nb",
    "x" * 300, "http://[", "1e999999999", [], {}, [[]], [None], {"a": None}, [[[[[[[[1]]]]]]]],
)  # fmt: skip
TOKENS = (
    b"\0", b"\xff", b"{", b"[" * 3000, b'"', b"\\ud800", b"1e999", b"-1", b"9" * 400, b"9" * 5000, b"NaN", b"Infinity",
    b"null", b"true", b"http://[", b"\n", b"\r\n", b",", b"=", b"*", b"+", b":", b"\xed\xa0\x80", b"#", b"../",
)  # fmt: skip


def spoilt(data: bytes, dice: random.Random) -> bytes:
    """The bytes with one to four things changed: inside their JSON where they hold some, else anywhere."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        start = dice.choice(
            [at for at in (0, data.find(b"\n") + 1, data.rfind(b"\n---\n") + 5) if 0 <= at < len(data)] or [0]
        )
        changed = _spoilt_json(data[start:], dice) if dice.random() < 0.6 else None
        data = _spoilt_bytes(data, dice) if changed is None else data[:start] + changed
    return data


def _spoilt_json(data: bytes, dice: random.Random) -> bytes | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    try:
        return json.dumps(_spoilt_value(value, dice)).encode()
    except (ValueError, RecursionError):
        return None


def _spoilt_value(value: object, dice: random.Random) -> object:
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name = dice.choice(list(value))
        if dice.random() < 0.15:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: _spoilt_value(value[name], dice)}
    if isinstance(value, list) and value and dice.random() < 0.85:
        at = dice.randrange(len(value))
        changed = [] if dice.random() < 0.15 else [_spoilt_value(value[at], dice)]
        return [*value[:at], *changed, *value[at + 1 :]]
    return dice.choice(HOSTILE)


def _spoilt_bytes(data: bytes, dice: random.Random) -> bytes:
    at, way = dice.randrange(len(data) + 1), dice.random()
    if way < 0.3:
        return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
    if way < 0.5:
        token = dice.choice(TOKENS)
        return data[:at] + token + data[at + (len(token) if dice.random() < 0.5 else 0) :]
    if way < 0.6:
        return data[:at]
    length = dice.randrange(1, 9)
    if way < 0.75:
        return data[:at] + data[at + length :]
    if way < 0.9:
        number = dice.choice((0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)).to_bytes(
            4, dice.choice(("little", "big"))
        )
        return data[:at] + number + data[at + 4 :]
    return data[:at] + data[at : at + length] * dice.choice((2, 20)) + data[at + length :]


def kept(name: str) -> list[Path]:
    """Inputs that once found a fault of this target."""
    return sorted((CORPUS / name).glob("*"))
