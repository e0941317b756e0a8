"""Photos as phones take them: brought to the working size once, with a digest and keys that stay sound."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock

import cv2
import numpy as np
import pytest
from aiohttp import web
from conformance.replica import DEMO, Replica
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from PIL import Image as Pillow
from support.engines import engine_for, engine_on, rows_of
from support.errors import coded
from support.faults import fault_server
from support.workshop import run, write_profile

from looktwice import Model
from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import AnyClassifier, Limits, Settings
from looktwice.classifiers.chat.vendors import Completions, Messages
from looktwice.classifiers.onnx import Preprocessing
from looktwice.classifiers.registry import connect
from looktwice.classifiers.settings import Encoding
from looktwice.engine.ledger.schema import joined, keys
from looktwice.engine.query import Progress, Unscored
from looktwice.errors import ImageError, PermanentError
from looktwice.images.collection import Picture, one
from looktwice.images.decode import MemoryLimit, decode
from looktwice.images.image import PHOTO, Image, WorkingSize, encode_jpeg, encode_png
from looktwice.views import Panel, base_question, renderer

Pixels = NDArray[np.uint8]
WIDE, HIGH = 4000, 3000


@cache
def scene(width: int = WIDE, height: int = HIGH) -> Pixels:
    """A photo of shapes in many colours and sizes, with the fine grain of a sensor."""
    rng = np.random.default_rng(0)
    coarse = [cv2.resize(rng.normal(0, 1, (s * 3, s * 4, 3)), (width, height)) / s**0.4 for s in (2, 8, 32, 128)]
    grain = rng.normal(0, 3, (height, width, 1))
    return np.clip(128 + 60 * sum(coarse) + grain, 0, 255).astype(np.uint8)


@cache
def photo() -> bytes:
    """The 12-megapixel photo as a phone saves it."""
    return encode_jpeg(scene(), 90)


def saved(pixels: Pixels, **settings: object) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, "JPEG", **settings)
    return file.getvalue()


def difference(one: Pixels, other: Pixels) -> float:
    """Mean difference of two pictures, in grey levels."""
    return float(np.abs(one.astype(np.int16) - other).mean())


# The size


@given(st.integers(1, 60_000), st.integers(1, 60_000), st.integers(1, 5000), st.integers(1, 5000))
def test_a_working_size_limits_both_sides_and_enlarges_nothing(height: int, width: int, long: int, short: int) -> None:
    size = WorkingSize(long, short).scaled(height, width)
    assert max(size) <= long
    assert min(size) <= short
    assert 1 <= size[0] <= height
    assert 1 <= size[1] <= width
    assert WorkingSize(long, short).scaled(*size) == size


def test_a_picture_of_two_megapixels_is_left_as_it_is_where_nothing_is_known() -> None:
    assert PHOTO.scaled(1000, 2000) == (1000, 2000)
    assert PHOTO.scaled(3000, 4000) == (768, 1024)


def test_a_classifier_says_how_large_a_picture_it_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k-0123456789")
    chat = {"model": "m", "labels": ["ant", "bee"], "key": "KEY"}
    assert Preprocessing(crop=0.875).usable_size((224, 224)) == WorkingSize(short=384)
    assert connect(str(DEMO / "fashion.toml")).limits.working_size == WorkingSize(short=42)
    assert connect(lambda picture: "ant").limits.working_size == PHOTO
    assert Completions.connect("", chat).limits.working_size == WorkingSize(2048, 768)
    assert Completions.connect("", {**chat, "detail": "low"}).limits.working_size == WorkingSize(512)
    assert Messages.connect("", chat).limits.working_size == WorkingSize(1568)
    lines = ['connector = "http"', 'url = "http://localhost/x"', 'label = "label"']
    for more, size in (
        ("", PHOTO),
        ("encoding = { max_side = 640 }", WorkingSize(640)),
        ("encoding = { max_side = 640 }\nworking_size = 300", WorkingSize(300)),
        (
            'body = { kind = "json", template = { x = "{pixels}" } }\npixels = { size = [64, 96] }',
            WorkingSize(short=144),
        ),
    ):
        (tmp_path / "http.toml").write_text("\n".join([*lines, more]))
        assert connect(tmp_path / "http.toml").limits.working_size == size
    (tmp_path / "command.toml").write_text('connector = "command"\ncommand = "cat {image}"\nworking_size = 300')
    assert connect(tmp_path / "command.toml").limits.working_size == WorkingSize(300)


def test_a_working_size_in_a_description_changes_no_fingerprint(tmp_path: Path) -> None:
    text = (DEMO / "fashion.toml").read_text().replace('"fashion.onnx"', json.dumps(str(DEMO / "fashion.onnx")))
    (tmp_path / "same.toml").write_text(text)
    (tmp_path / "sized.toml").write_text(text.replace("connector", "working_size = 99\nconnector", 1))
    same, sized = connect(tmp_path / "same.toml"), connect(tmp_path / "sized.toml")
    assert sized.limits.working_size == WorkingSize(99)
    assert sized.fingerprint == same.fingerprint == connect(str(DEMO / "fashion.toml")).fingerprint


def test_a_function_in_a_description_may_have_a_working_size(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text('connector = "python"\nfunction = "os:getcwd"\nworking_size = 300')
    assert connect(tmp_path / "it.toml").limits.working_size == WorkingSize(300)
    (tmp_path / "it.toml").write_text('connector = "python"\nfunction = "os:getcwd"\nworking_size = "300"')
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect(tmp_path / "it.toml")


# Decoding


@pytest.mark.slow
@pytest.mark.parametrize("progressive", [False, True])
def test_a_photo_is_decoded_at_the_working_size_as_an_area_filter_would(progressive: bool) -> None:
    data = saved(scene(), quality=90, progressive=progressive)
    image = decode(data, "x", size=PHOTO)
    assert image.pixels.shape == (768, 1024, 3)
    assert (image.original_size, image.scaling) == ((HIGH, WIDE), "area 1024x768")
    whole = cv2.resize(decode(data, "x").pixels, (1024, 768), interpolation=cv2.INTER_AREA)
    assert difference(image.pixels, np.asarray(whole, np.uint8)) < 1.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_upright_before_it_is_scaled(orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x112] = orientation
    data = saved(scene(800, 600), exif=exif)
    image, whole = decode(data, "x", size=WorkingSize(200)), decode(data, "x")
    assert image.original_size == whole.pixels.shape[:2]
    assert image.pixels.shape == ((200, 150, 3) if orientation >= 5 else (150, 200, 3))
    small = cv2.resize(whole.pixels, image.pixels.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert difference(image.pixels, np.asarray(small, np.uint8)) < 1.5


def test_other_formats_and_arrays_are_scaled_too() -> None:
    pixels = scene(800, 600)
    small = np.asarray(cv2.resize(pixels, (200, 150), interpolation=cv2.INTER_AREA), np.uint8)
    size = WorkingSize(200)
    for item in (encode_png(pixels), pixels, Image.from_array(pixels), Pillow.fromarray(pixels)):
        image = one(item).image(size)
        assert np.array_equal(image.pixels, small)
        assert image.original_size == (600, 800)
    assert one(pixels).image(size).digest == Image.from_array(pixels).digest


def test_at_or_below_the_working_size_a_picture_is_what_it_was() -> None:
    """The digests are golden: a change of them would have every answer asked for again."""
    y, x = np.mgrid[0:45, 0:60]
    pixels = np.stack([(4 * x + y) % 256, (x * y) % 256, 255 * ((x // 5 + y // 7) % 2)], axis=2).astype(np.uint8)
    for size in (None, PHOTO, WorkingSize(60), WorkingSize(short=45)):
        for item in (encode_png(pixels), pixels):
            image = one(item).image(size)
            assert image.digest == "2e40ef8ff489d68e74be322ec291aac5"
            assert image.scaling == ""
            assert np.array_equal(image.pixels, pixels)


def test_the_digest_of_a_reduced_file_is_that_of_its_bytes_at_every_size() -> None:
    data = saved(scene(800, 600))
    digests = {decode(data, "x", size=WorkingSize(side)).digest for side in (100, 200, 799)}
    assert len(digests) == 1
    assert decode(data, "x").digest not in digests
    assert decode(saved(scene(800, 600), quality=80), "x", size=WorkingSize(200)).digest not in digests


# Hostile files


@pytest.mark.slow
def test_a_panorama_of_200_megapixels_is_scaled_without_ever_being_whole() -> None:
    tile = cv2.resize(scene(), (40_000, 50))
    data = encode_jpeg(np.tile(np.asarray(tile, np.uint8), (100, 1, 1)), 50)
    image = decode(data, "wide.jpg", size=WorkingSize(short=384))
    assert image.pixels.shape == (384, 3072, 3)
    assert image.original_size == (5000, 40_000)
    with pytest.raises(ImageError, check=coded("image-too-large")):
        decode(data, "wide.jpg")


def test_a_large_jpeg_that_is_not_decoded_row_by_row_is_refused() -> None:
    data = bytearray(saved(scene(80, 60), progressive=True))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = (10_000).to_bytes(2) + (20_000).to_bytes(2)
    with pytest.raises(ImageError, check=coded("image-too-large")):
        decode(bytes(data), "x", size=PHOTO)
    apart = bytearray(saved(scene(80, 60)))
    frame, scan = apart.index(b"\xff\xc0"), apart.index(b"\xff\xda")
    apart[frame + 5 : frame + 9] = data[data.index(b"\xff\xc2") + 5 : data.index(b"\xff\xc2") + 9]
    first = b"\xff\xda\x00\x08\x01" + bytes(apart[scan + 5 : scan + 7]) + b"\x00\x3f\x00"
    with pytest.raises(ImageError, check=coded("image-too-large")):
        decode(bytes(apart[:scan]) + first + bytes(apart[scan + 14 :]), "x", size=PHOTO)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, PHOTO, WorkingSize(short=384)])
def test_a_strip_is_no_trouble(size: WorkingSize | None) -> None:
    strip = np.repeat(scene(4000, 3000)[:1, :3000], 10, axis=1)
    assert one(encode_png(strip)).image(size).pixels.shape == (1, 30_000, 3)
    assert one(encode_png(strip)).image(WorkingSize(1000)).pixels.shape == (1, 1000, 3)


@pytest.mark.parametrize("size", [None, PHOTO])
def test_a_photo_that_is_cut_off_says_so(size: WorkingSize | None) -> None:
    with pytest.raises(ImageError, check=coded("image-unreadable")):
        decode(photo()[: len(photo()) // 2], "cut.jpg", size=size)


# The question's key


async def asked(pictures: list[Picture], size: WorkingSize) -> tuple[list[bytes], list[tuple[int, ...]]]:
    """The keys under which the ledger keeps the answers, and the shapes of what the classifier was shown."""
    shapes: list[tuple[int, ...]] = []

    def classify(picture: Pixels) -> str:
        shapes.append(picture.shape)
        return "ant"

    classifier = connect(classify)
    classifier.fingerprint = "test"  # type: ignore[misc]
    async with engine_on(classifier, "off", limits=Limits(working_size=size, local=True)) as engine:
        assert all(isinstance(row, Row) for row in await rows_of(engine, pictures, Panel.parse("mirror")))
        image = pictures[0].image(size)
        drawn = f"{renderer([base_question(pictures[0].image()).view])} {image.scaling}".strip()
        asked_keys = keys("test", image.digest, [joined("again", "0", "0", drawn)])
        assert engine.first.runner.ledger
        assert set(engine.first.runner.ledger.find(asked_keys)) == set(asked_keys)
    return asked_keys, shapes


async def test_the_working_size_is_in_the_key_where_it_matters() -> None:
    large, small = one(scene(800, 600), "large"), one(scene(80, 60), "small")
    keys: set[bytes] = set()
    for side in (200, 400, 1000):
        asked_keys, shapes = await asked([large], WorkingSize(side))
        assert set(shapes) == {(side * 3 // 4, side, 3) if side < 800 else (600, 800, 3)}
        keys |= set(asked_keys)
    assert len(keys) == 3
    same = [(await asked([small], WorkingSize(side)))[0] for side in (80, 400)]
    assert same[0] == same[1]


# Interfaces


def test_check_tells_the_size_and_the_bytes_of_a_query(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(photo())
    with fault_server() as server:
        description = server.describe(tmp_path)
        words = ("--ledger", tmp_path / "ledger.db")
        check = run("check", description, tmp_path / "photo.jpg", *words)
        sized = run("check", description, tmp_path / "photo.jpg", "--working-size", 300, "--json", *words)
    assert "1,024 px" in check.stdout
    assert re.search(r"1024 x 768 px, [\d,]+ bytes", check.stdout)
    assert (json.loads(sized.stdout)["width"], json.loads(sized.stdout)["height"]) == (300, 225)


def test_score_goes_on_with_photos_that_were_scaled_down(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for place in range(3):
        (tmp_path / "photos" / f"{place}.jpg").write_bytes(saved(scene(800 + place, 600)))
    (tmp_path / "photos" / "3.jpg").write_bytes(b"no picture")
    words = ("score", tmp_path / "photos", "--profile", tmp_path / "profile.json", "--out", tmp_path / "out.csv")
    with fault_server() as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path))
        assert "Resuming" not in run(*words, "--working-size", 200, "--ledger", "off").stderr
        again = run(*words, "--working-size", 200, "--ledger", "off")
    assert "3 of 4 " in again.stderr


def test_the_names_of_reduced_photos_are_in_an_export(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(saved(scene(800, 600)))
    with (
        fault_server() as server,
        Model(str(server.describe(tmp_path)), ledger=str(tmp_path / "ledger.db"), working_size=200) as model,
    ):
        model.ask([tmp_path / "photo.jpg"], views="mirror")
    done = run(
        "ledger",
        "export",
        tmp_path / "out.csv",
        "--pictures",
        tmp_path / "photo.jpg",
        "--ledger",
        tmp_path / "ledger.db",
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 3
    assert all("photo.jpg" in line for line in lines[1:])


# What goes over the wire


def described(folder: Path, url: str, *more: str) -> Path:
    lines = ['connector = "http"', f'url = "{url}/classify"', 'label = "label"', *more]
    (folder / "http.toml").write_text("\n".join(lines))
    return folder / "http.toml"


@pytest.mark.parametrize(("side", "kind"), [(512, "png"), (513, "jpeg")])
async def test_without_a_format_large_pictures_go_as_jpeg(tmp_path: Path, side: int, kind: str) -> None:
    pixels = scene(side, 100)
    bodies = {
        'body = "raw"': kind,
        'body = "multipart"': kind,
        'body = { kind = "json", template = { x = "{image_data_url}" } }': kind,
        'body = { kind = "raw", content_type = "image/png" }': "png",
        'body = { kind = "multipart", filename = "x.png" }': "png",
        'encoding = { format = "png" }': "png",
        'encoding = { format = "jpeg" }': "jpeg",
    }
    routes, seen = web.RouteTableDef(), list[tuple[str, bytes]]()

    @routes.post("/classify")
    async def classify(request: web.Request) -> web.Response:
        seen.append((request.headers["content-type"], await request.read()))
        return web.json_response({"label": "ant"})

    async with Replica().running(routes) as replica:
        for body, expected in bodies.items():
            classifier = connect(described(tmp_path, replica.url, body))
            await classifier.label([classifier.prepare(pixels)])
            await classifier.close()
            header, sent = seen[-1]
            file = base64.b64decode(json.loads(sent)["x"].split(",")[1]) if "json" in header else sent
            assert (b"\xff\xd8\xff" in file, b"\x89PNG" in file) == (expected == "jpeg", expected == "png"), body
            assert f"image/{expected}" in f"{header} {sent[:300]!r}", body


@pytest.mark.parametrize("connect_to", [Completions.connect, Messages.connect])
def test_a_chat_model_is_told_what_kind_of_file_it_gets(
    monkeypatch: pytest.MonkeyPatch, connect_to: Callable[[str, Settings], AnyClassifier]
) -> None:
    monkeypatch.setenv("KEY", "k-0123456789")
    classifier = connect_to("", {"model": "m", "labels": ["ant", "bee"], "key": "KEY"})
    assert b"image/png" in classifier.prepare(scene(80, 60)).body
    assert b"image/jpeg" in classifier.prepare(scene(800, 600)).body


def test_jpeg_by_default_keeps_all_colours_and_a_chosen_jpeg_is_what_it_was() -> None:
    pixels = scene(800, 600)
    for encoding, layers in ((Encoding(), 1), (Encoding(format="jpeg"), 2)):
        with Pillow.open(io.BytesIO(encoding.encode(pixels))) as file:
            assert file.layer[0][1] == layers  # type: ignore[attr-defined]
    assert Encoding(format="jpeg").encode(pixels) == encode_jpeg(pixels, 95)


def test_a_default_format_changes_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprints are golden: a change of them would have every answer asked for again."""
    monkeypatch.setenv("KEY", "k-0123456789")
    chat = {"model": "m", "labels": ["ant", "bee"], "key": "KEY"}
    assert connect("https://api.example.com/classify").fingerprint == "http:8509368f2c1687aea8d5f64f"
    assert Completions.connect("", chat).fingerprint == "chat:ff141705e50e44bf423b23d7"
    assert Messages.connect("", chat).fingerprint == "chat:fe43099df2cd500253cb9c89"
    assert Encoding().parts() == Encoding(quality=80).parts() == Encoding(format="png").parts()


def test_where_the_format_is_not_that_of_the_fingerprint_the_key_says_so(tmp_path: Path) -> None:
    pictures = [one(scene(side, 100), str(side)) for side in (512, 513)]
    with fault_server() as server:
        ledger, description = str(tmp_path / "ledger.db"), server.describe(tmp_path)
        with Model(str(description), ledger=ledger) as model:
            model.ask(pictures, views="mirror")
        as_png = server.describe(tmp_path, encoding={"format": "png"})
        told: list[Progress] = []
        with Model(str(as_png), ledger=ledger, canaries=0, progress=told.append) as model:
            model.ask(pictures, views="mirror")
    assert connect(as_png).fingerprint == connect(description).fingerprint
    assert (told[-1].hits, told[-1].sent) == (2, 2)


def test_a_question_about_a_photo_of_12_megapixels_takes_less_than_400_kb(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(photo())
    with fault_server() as server, Model(str(server.describe(tmp_path)), ledger="off") as model:
        told = model.check(tmp_path / "photo.jpg")
    assert (told.width, told.height) == (1024, 768)
    assert told.question_bytes is not None
    assert 100_000 < told.question_bytes < 400_000


# Decoding side by side


def test_large_pictures_wait_for_each_other_by_bytes() -> None:
    memory, most, busy = MemoryLimit(100), 0, 0
    lock = Lock()

    def work(wanted: int) -> None:
        nonlocal most, busy
        with memory.reserve(wanted):
            with lock:
                busy += wanted
                most = max(most, busy)
            with lock:
                busy -= wanted

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [30, 60, 100, 10, 400, 90] * 50))
    assert most <= 400
    assert busy == 0
    with memory.reserve(60), memory.reserve(40):
        pass


async def test_photos_that_are_decoded_side_by_side_come_in_their_order() -> None:
    pictures = [one(saved(scene(800 + n, 600)), str(n)) for n in range(9)]
    pictures.insert(4, one(b"no picture", "broken"))
    engine = engine_for(connect(lambda picture: "ant"), limits=Limits(working_size=WorkingSize(200), local=True))
    rows = [row async for row in engine.ask(pictures, Panel.parse("mirror"))]
    await engine.close()
    assert [row.name for row in rows] == [picture.name for picture in pictures]
    assert [row.name for row in rows if isinstance(row, Unscored)] == ["broken"]


def test_a_profile_keeps_the_working_size_it_was_fitted_with(tmp_path: Path) -> None:
    seen: list[int] = []

    def classify(picture: NDArray[np.uint8]) -> str:
        seen.append(max(picture.shape))
        return "bright" if picture.mean() > 120 else "dark"

    images = np.random.default_rng(0).integers(0, 256, (40, 1, 1, 3), np.uint8).repeat(60, 1).repeat(80, 2)
    with Model(classify, working_size=32) as model:
        model.fit(images, ["bright" if image.mean() > 128 else "dark" for image in images], views="mirror")
        model.save(tmp_path / "profile.json")
    with Model(classify) as plain:
        assert plain.fit(images, ["bright", "dark"] * 20, views="mirror").profile.working_size is None
    seen.clear()
    for size, options in ((32, {}), (16, {"working_size": 16})):
        with Model.load(tmp_path / "profile.json", classify, **options) as model:  # type: ignore[arg-type]
            model.look(images[0])
        assert set(seen) == {size}
        seen.clear()
