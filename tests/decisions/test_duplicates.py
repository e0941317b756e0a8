"""Copies of a picture are no evidence: what they teach, guarantee and measure is what the picture alone does."""

import csv
import json
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.errors import coded
from support.workshop import run

import looktwice as lt
from looktwice.calibration import storage
from looktwice.calibration.evidence import Row
from looktwice.calibration.votes import Votes
from looktwice.errors import DataError

DEMO = Path(str(files("looktwice") / "demo"))
VIEWS = ("--views", "mirror rotation:15*4")


def write(path: Path, rows: slice, copies: int) -> Path:
    """Some of the demo's pictures, so many times over."""
    with np.load(DEMO / "pictures.npz") as demo:
        images, labels = (np.concatenate([demo[name][rows]] * copies) for name in ("images", "labels"))
        np.savez(path, images=images, labels=labels, class_names=demo["class_names"])
    return path


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A profile fitted on 100 pictures, one fitted on the same ten times each, and what the second fit said."""
    folder = tmp_path_factory.mktemp("copies")
    for name, copies in (("once", 1), ("often", 10)):
        pictures = write(folder / f"{name}.npz", slice(0, 100), copies)
        done = run(
            "fit", pictures, "-c", DEMO / "fashion.toml", *VIEWS, "-o", folder / f"{name}.json",
            "--votes", folder / f"{name}-votes.npz",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return folder / "once.json", folder / "often.json", done.stderr


def test_ten_copies_of_each_picture_teach_what_one_does(profiles: tuple[Path, Path, str]) -> None:
    once, often, said = profiles
    assert "900 of 1,000 " in said
    assert json.loads(often.read_text()) == json.loads(once.read_text())


def test_copies_turn_no_refusal_into_a_guarantee(profiles: tuple[Path, Path, str], tmp_path: Path) -> None:
    once, often, _ = profiles
    votes = storage.load(often.with_name("often-votes.npz"))
    assert (len(votes), len(votes.distinct())) == (1000, 100)
    for profile in (once, often):
        for how in ((), ("--all",)):
            done = run(
                "score", DEMO / "pictures.npz", "--take", "100:120", "-p", profile, *how, "--max-error", 0.05,
                "-o", tmp_path / f"{profile.stem}.csv",
            )  # fmt: skip
            verdicts = csv.DictReader((tmp_path / f"{profile.stem}.csv").read_text().splitlines())
            assert {verdict["decision"] for verdict in verdicts} == {"review"}, done.stderr
    mine, theirs = (lt.Profile.load(profile).held_out for profile in (once, often))
    assert (len(theirs.confidence), theirs.conformal(0.95)) == (100, mine.conformal(0.95))


def test_copies_make_no_interval_narrower(profiles: tuple[Path, Path, str], tmp_path: Path) -> None:
    told = []
    for copies in (1, 10):
        pictures = write(tmp_path / f"{copies}.npz", slice(200, 260), copies)
        words = ("-p", profiles[0], "--max-error", 0.3, "--coverage", 0.9, "--report", tmp_path / f"{copies}.html")
        done = run("evaluate", pictures, *words, "--json")
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    assert told[0] == told[1]
    assert told[0]["pictures"] == 60
    assert "540 of 600 " in done.stderr
    pages = [(tmp_path / f"{copies}.html").read_text() for copies in (1, 10)]
    assert all("60 pictures" in " ".join(page.split()) for page in pages)


def test_an_evaluation_tells_which_pictures_took_part_in_fitting(
    profiles: tuple[Path, Path, str], tmp_path: Path
) -> None:
    pictures, page = write(tmp_path / "some.npz", slice(90, 120), 1), tmp_path / "report.html"
    done = run("evaluate", pictures, "-p", profiles[0], "--report", page, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert "30 pictures, 10 " in done.stdout
    assert "30 pictures, 10 " in " ".join(page.read_text().split())


def test_a_picture_with_two_truths_is_named(tmp_path: Path) -> None:
    with np.load(DEMO / "pictures.npz") as demo:
        names, pictures = demo["class_names"], list(zip(demo["images"], demo["labels"], strict=True))[:40]
    for place, (image, label) in enumerate(pictures):
        folder = tmp_path / "photos" / str(names[label]).replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{place}.png"), image)
    bag = next((tmp_path / "photos" / "Bag").iterdir())
    (tmp_path / "photos" / "Coat" / "copy.png").write_bytes(bag.read_bytes())
    done = run("fit", tmp_path / "photos", "-c", DEMO / "fashion.toml", *VIEWS, "-o", tmp_path / "profile.json")
    assert done.returncode == 0, done.stderr
    assert "1 of 41 " in done.stderr
    assert f"Bag/{bag.name} = Coat/copy.png" in done.stderr
    with lt.Model(DEMO / "fashion.toml") as model, pytest.warns(UserWarning, match="duplicates"):
        model.fit(tmp_path / "photos", views="mirror")


def test_a_photo_that_was_saved_again_or_scaled_is_named_and_counts(tmp_path: Path) -> None:
    """Blank pictures look alike, too, but say nothing."""
    with np.load(DEMO / "pictures.npz") as demo:
        for number, (grey, label) in enumerate(zip(demo["images"][:40], demo["labels"], strict=False)):
            folder = tmp_path / "photos" / str(demo["class_names"][label])
            folder.mkdir(parents=True, exist_ok=True)
            photo = cv2.resize(grey, (224, 224), interpolation=cv2.INTER_CUBIC)
            cv2.imwrite(str(folder / f"{number}.png"), photo)
            if number == 3:
                cv2.imwrite(str(folder / "again.jpg"), photo, [cv2.IMWRITE_JPEG_QUALITY, 70])
                twice = folder.name
            if number == 5:
                cv2.imwrite(str(folder / "small.png"), cv2.resize(photo, (150, 150), interpolation=cv2.INTER_AREA))
    for level in (200, 201, 202):
        cv2.imwrite(str(folder / f"blank{level}.png"), np.full((224, 224), level, np.uint8))
    done = run("fit", tmp_path / "photos", "-c", DEMO / "fashion.toml", *VIEWS, "-o", tmp_path / "profile.json")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "2 near-duplicates (" in said
    assert f"{twice}/3.png ~ {twice}/again.jpg" in said
    assert lt.Profile.load(tmp_path / "profile.json").pictures == 45


@pytest.mark.slow
def test_views_are_chosen_and_judged_on_pictures_that_have_no_copy_among_the_others() -> None:
    def brightest(image: np.ndarray) -> str:
        return "rgb"[int(image.mean(axis=(0, 1)).argmax())]

    images = np.random.default_rng(0).integers(0, 256, (120, 6, 6, 3), np.uint8)
    with lt.Model(brightest) as model:
        profile = model.fit(np.concatenate([images, images]), [brightest(image) for image in images] * 2).profile
    assert profile.pictures == 120
    assert len(profile.held_out.confidence) < 120


def test_votes_keep_their_digests_and_files_without_them_are_read(tmp_path: Path) -> None:
    rows = [Row("a", "cat", ("cat",), "d1"), Row("b", "cat", ("dog",), ""), Row("c", "cat", ("cat",), "d1")]
    votes = Votes.collect(rows, ["mirror"]).labelled(["cat", "dog", "dog"])
    assert votes.distinct().names == ("a", "b")
    assert votes.disputed() == [("a", "c")]
    for path in (tmp_path / "votes.npz", tmp_path / "votes.parquet"):
        storage.save(path, votes)
        loaded = storage.load(path)
        assert loaded.digests == ("d1", "", "d1")
        assert loaded.take(slice(1, None)).digests == ("", "d1")
    with np.load(tmp_path / "votes.npz") as file:
        texts = json.loads(file["texts"].tobytes())
        del texts["digests"]
        packed = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        np.savez(tmp_path / "old.npz", base=file["base"], views=file["views"], texts=packed)
    old = storage.load(tmp_path / "old.npz")
    assert old.digests == ()
    assert old.distinct() is old
    with pytest.raises(DataError, check=coded("votes-malformed")):
        Votes(old.names, old.panel, old.vocabulary, old.base, old.views, old.classes, digests=("d1",))
