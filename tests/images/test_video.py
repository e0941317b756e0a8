"""A short video as a burst: some frames, evenly spaced, at every interface; broken ones are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.errors import coded
from support.parity import of_verdict, write_place
from support.serving import started
from support.workshop import run

from looktwice import Model
from looktwice.classifiers.python import PythonClassifier
from looktwice.errors import DataError, ImageError
from looktwice.images import video
from looktwice.images.decode import is_video
from looktwice.images.image import WorkingSize
from looktwice.images.video import frames, is_video_file


def film(path: Path, count: int, side: tuple[int, int] = (64, 48)) -> Path:
    """A video of grey frames, each five levels brighter than the one before."""
    code = cv2.VideoWriter.fourcc(*("MJPG" if path.suffix == ".avi" else "mp4v"))
    writer = cv2.VideoWriter(str(path), code, 30, side)
    for level in range(count):
        writer.write(np.full((side[1], side[0], 3), 5 * level, np.uint8))
    writer.release()
    return path


def levels(path: Path, count: int) -> list[int]:
    """Which frames they are, by their grey."""
    return [round(float(image.pixels.mean()) / 5) for image in frames(path, "film", count)]


def test_frames_are_evenly_spaced_from_the_first_to_the_last(tmp_path: Path) -> None:
    path = film(tmp_path / "film.avi", 43)
    assert levels(path, 8) == [0, 6, 12, 18, 24, 30, 36, 42]
    assert levels(path, 2) == [0, 42]


def test_a_video_of_few_frames_gives_each_once(tmp_path: Path) -> None:
    assert levels(film(tmp_path / "film.avi", 3), 8) == [0, 1, 2]


def test_a_video_that_ends_before_it_claims_to_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    data = bytearray(film(tmp_path / "film.avi", 40).read_bytes())
    at = data.index(b"avih") + 8 + 16  # total frames in the header of an AVI
    data[at : at + 4] = (400).to_bytes(4, "little")
    at = data.index(b"strh") + 8 + 32
    data[at : at + 4] = (400).to_bytes(4, "little")
    found = frames(bytes(data), "film", 8)
    assert [round(float(image.pixels.mean()) / 5) for image in found] == levels(tmp_path / "film.avi", 8)


def test_frames_are_scaled_down_to_the_working_size(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4", 4, (640, 480))
    found = frames(path, "film", 4, WorkingSize(160))
    assert {(image.pixels.shape, image.original_size) for image in found} == {((120, 160, 3), (480, 640))}
    with pytest.raises(ImageError, check=coded("image-too-large")):
        frames(path, "film", 4, max_pixels=1000)


def test_a_frame_that_is_scaled_down_is_as_familiar_as_a_photo_of_its_size(tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(0), ["dark", "bright"] * 20
    photos = [np.full((96, 128, 3), rng.integers(0, 100) + 128 * (label == "bright"), np.uint8) for label in labels]
    path = film(tmp_path / "film.avi", 20, (128, 96))
    classifier = PythonClassifier(lambda image: "bright" if image.mean() > 114 else "dark", size=WorkingSize(long=32))
    with Model(classifier) as model:
        model.fit(photos, labels, views="mirror")
        assert model.burst(path, frames=4).unfamiliar_because is None


@pytest.mark.parametrize("count", [0, 1])
def test_a_video_without_frames_is_refused(tmp_path: Path, count: int) -> None:
    path = film(tmp_path / "film.mp4", count)
    with pytest.raises(ImageError, check=coded("image-unreadable")):
        frames(path, "film")


def test_what_is_cut_off_or_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = film(tmp_path / "film.mp4", 40).read_bytes()
    with pytest.raises(ImageError, check=coded("image-unreadable")):
        frames(data[: len(data) // 3], "film")
    with pytest.raises(ImageError, check=coded("image-missing")):
        frames(tmp_path / "none.mp4", "film")
    monkeypatch.setattr(video, "MOST_FRAMES", 30)
    with pytest.raises(ImageError, check=coded("image-too-large")):
        frames(data, "film")


def test_only_videos_are_given_to_ffmpeg(tmp_path: Path) -> None:
    assert is_video_file(film(tmp_path / "film.mp4", 2))
    assert is_video_file(film(tmp_path / "film.avi", 2))
    assert not is_video_file(tmp_path)
    lists = (b"#EXTM3U\nfile:///etc/hostname", b"ffconcat version 1.0", b"v=0\no=- 0 0 IN IP4")
    stills = (b"\0\0\0\x18ftypheic", b"\0\0\0\x18ftypavif", b"RIFF\0\0\0\0WEBPVP8 ", b"")
    assert not any(map(is_video, (*lists, *stills)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_place(tmp_path_factory.mktemp("video"))
    shots = [cv2.imread(str(file)) for file in sorted((folder / "pictures").iterdir())]
    writer = cv2.VideoWriter(str(folder / "film.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 30, (280, 280))
    for shot in shots * 3:
        assert shot is not None
        writer.write(cv2.resize(shot, (280, 280)))
    writer.release()
    film(folder / "empty.mp4", 0)
    return folder


def test_a_video_is_judged_alike_at_every_interface(place: Path) -> None:
    with Model.load(place / "profile.json") as model:
        expected = of_verdict(model.burst(place / "film.mp4", frames=6))
        assert of_verdict(model.burst([str(place / "film.mp4")], frames=6)) == expected
        assert expected["queries"] == 6
        assert of_verdict(model.burst(place / "film.mp4"))["queries"] == 8
    words = ("--profile", place / "profile.json")
    done = run("look", "--burst", place / "film.mp4", "--frames", 6, *words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["asked"] == expected["asked"]
    with started("serve", *words, "--port", 0) as service:
        upload = ("film.mp4", (place / "film.mp4").read_bytes())
        said = service.form("/v1/burst?frames=6", upload).json()
        events = service.form("/v1/burst/events?frames=6", upload).body.decode()
        few = service.form("/v1/burst?frames=1", upload)
        empty = service.form("/v1/burst", ("empty.mp4", (place / "empty.mp4").read_bytes()))
    assert [asked["label"] for asked in said["asked"]] == [asked["label"] for asked in expected["asked"]]
    assert said["confidence"] == pytest.approx(expected["confidence"])
    assert events.count("event: view") == 5
    assert few.status == 400
    assert (empty.status, empty.json()["error"]) == (422, "image-unreadable")


def test_a_single_photo_or_an_empty_video_is_no_burst(place: Path) -> None:
    with Model.load(place / "profile.json") as model:
        with pytest.raises(DataError, check=coded("pictures-none")):
            model.burst([sorted((place / "pictures").iterdir())[0]])
        with pytest.raises(ImageError, check=coded("image-unreadable")):
            model.burst(place / "empty.mp4")
    done = run("look", "--burst", place / "empty.mp4", "--profile", place / "profile.json")
    assert done.returncode != 0
    assert "empty.mp4" in done.stderr.splitlines()[-1]
    done = run("look", place / "film.mp4", "--profile", place / "profile.json")
    assert (done.returncode, "--burst" in done.stderr) == (3, True)
