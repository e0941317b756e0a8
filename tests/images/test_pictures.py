"""Collections of pictures: what is found, in which order, with which truths, and what is said when they do not fit."""

import csv
import io
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings, strategies as st
from support.errors import coded

from looktwice.errors import DataError, ImageError, few
from looktwice.images.collection import ENDINGS, Picture, find, labelled, one
from looktwice.images.image import Image, encode_png

SHARED = Path(__file__).parents[3] / "shared" / "data"
NOBODY = 65534


def colour(number: int) -> Image:
    return Image.from_array(np.full((3, 4, 3), number, np.uint8))


def put(root: Path, *names: str) -> Path:
    """Small pictures of different greys under these names."""
    for number, name in enumerate(names):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_png(colour(number).pixels))
    return root


def names(pictures: Sequence[Picture]) -> list[str]:
    return [picture.name for picture in pictures]


def truths(pictures: list[Picture]) -> dict[str, str | None]:
    return {picture.name: picture.truth for picture in pictures}


def complaint(*given: object, code: str = "") -> str:
    """What `labelled` says about a collection it refuses with this code, in one printable line."""
    with pytest.raises(DataError) as caught:
        labelled(*given)  # type: ignore[arg-type]
    assert str(caught.value).isprintable()
    assert code in ("", caught.value.code)
    return str(caught.value)


def table(path: Path, *rows: tuple[str, ...]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def npz(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]
    return path


# --- finding -----------------------------------------------------------------------------------------------------


def test_a_folder_is_searched_to_its_depth_and_sorted_by_code_point(tmp_path: Path) -> None:
    put(tmp_path, "b.png", "a/z.png", "a.png", "B.png", "a/a/a.PNG", "é.png", "a b.png", "10.png", "9.png")
    listed = names(find([tmp_path]))
    assert listed == sorted(listed)
    assert listed == ["10.png", "9.png", "B.png", "a b.png", "a.png", "a/a/a.PNG", "a/z.png", "b.png", "é.png"]


def test_every_ending_is_found_in_any_case_and_nothing_else(tmp_path: Path) -> None:
    wanted = [f"x{ending}" for ending in ENDINGS] + [f"y{ending.upper()}" for ending in ENDINGS]
    put(tmp_path, *wanted, "notes.txt", "x.png.bak", "png", ".hidden.png", ".git/x.png", "labels.csv")
    assert names(find([tmp_path])) == sorted(wanted)


def test_a_picture_decodes_what_its_name_says(tmp_path: Path) -> None:
    collection = find([put(tmp_path, "a.png", "b/c.png")])
    assert [picture.image().digest for picture in collection] == [colour(0).digest, colour(1).digest]
    assert {picture.truth for picture in collection} == {None}


def test_with_several_paths_names_begin_with_the_path_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "one/x.png", "two/x.png", "two/deep/y.png", "z.dat")
    npz(tmp_path / "two" / "t.npz", images=np.zeros((2, 4, 4), np.uint8))
    monkeypatch.chdir(tmp_path)
    collection = find([Path("two"), Path("./one/x.png"), Path("z.dat"), Path("two/t.npz")])
    assert names(collection) == ["two/deep/y.png", "two/x.png", "one/x.png", "z.dat", "two/t.npz#0", "two/t.npz#1"]
    assert collection[1].image().digest == colour(1).digest


def opaque_half() -> PIL.Image.Image:
    pixels = np.zeros((3, 4, 4), np.uint8)
    pixels[:, :2, 3] = 255
    return PIL.Image.fromarray(pixels, "RGBA")


def turned() -> PIL.Image.Image:
    picture = PIL.Image.fromarray(np.arange(36, dtype=np.uint8).reshape(3, 4, 3))
    picture.getexif()[0x112] = 6
    return picture


@pytest.mark.parametrize(
    ("ending", "drawn"),
    [
        pytest.param("png", opaque_half(), id="transparent"),
        pytest.param("png", opaque_half().convert("P"), id="transparent palette"),
        pytest.param(
            "png", PIL.Image.fromarray(np.arange(0, 60_000, 5_000, dtype=np.uint16).reshape(3, 4)), id="16 bits"
        ),
        pytest.param("png", turned(), id="turned PNG"),
        pytest.param("jpg", turned(), id="turned JPEG"),
        pytest.param("tif", turned(), id="turned TIFF"),
        pytest.param("webp", turned(), id="turned WebP"),
    ],
)
def test_a_pillow_image_is_the_picture_that_its_file_is(tmp_path: Path, ending: str, drawn: PIL.Image.Image) -> None:
    path = tmp_path / f"picture.{ending}"
    drawn.save(path, exif=drawn.getexif())
    with PIL.Image.open(path) as opened:
        assert one(opened).image().digest == one(path).image().digest


def test_a_damaged_exif_block_leaves_a_pillow_image_as_it_is() -> None:
    picture = PIL.Image.new("RGB", (4, 3))
    picture.info["exif"] = b"Exif\0\0broken"
    assert one(picture).image().pixels.shape == (3, 4, 3)


def test_a_file_is_taken_by_name_whatever_its_ending(tmp_path: Path) -> None:
    (file,) = find([put(tmp_path, ".odd") / ".odd"])
    assert file.image().digest == colour(0).digest
    assert file.name == (tmp_path / ".odd").as_posix()


def test_a_picture_given_twice_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    with pytest.raises(DataError, check=coded("pictures-duplicate")):
        find([tmp_path, tmp_path / "a.png"])


@pytest.mark.parametrize("name", ["", "missing", "empty", "text"])
def test_a_folder_without_pictures_or_a_missing_one_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("hello")
    for read in (lambda path: find([path]), labelled):
        with pytest.raises(DataError, check=coded("file-missing" if name == "missing" else "pictures-none")) as caught:
            read(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))


def test_no_path_at_all_is_refused() -> None:
    with pytest.raises(DataError, check=coded("pictures-none")):
        find([])


def test_links_in_a_ring_come_to_an_end_and_real_folders_keep_their_names(tmp_path: Path) -> None:
    put(tmp_path, "b/x.png", "c/y.png")
    for link, target in (("a", "b"), ("b/up", ".."), ("c/self", "."), ("c/b", "../b"), ("loop.png", "loop.png")):
        (tmp_path / link).symlink_to(target)
    assert names(find([tmp_path])) == ["b/x.png", "c/y.png", "loop.png"]


def test_a_link_to_a_folder_elsewhere_is_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "far", "x.png", "deep/y.png")
    put(tmp_path / "here", "cats/z.png")
    for link in ("dogs", "wolves"):
        (tmp_path / "here" / link).symlink_to(tmp_path / "far")
    (tmp_path / "far" / "back").symlink_to(tmp_path / "here")
    assert names(find([tmp_path / "here"])) == ["cats/z.png", "dogs/deep/y.png", "dogs/x.png"]


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "own/a.png", "others/b.png", "far/c.png")
    (tmp_path / "own" / "up").symlink_to("..")
    (tmp_path / "own" / "far").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "up").symlink_to(tmp_path)
    assert names(find([tmp_path / "own"])) == ["a.png", "far/c.png"]


def test_a_dangling_link_is_listed_and_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    (picture,) = find([tmp_path])
    with pytest.raises(ImageError, check=coded("image-missing")):
        picture.image()


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """The folder without rights; the superuser, whom rights do not stop, gives them up meanwhile."""
    root = os.geteuid() == 0
    folder.chmod(0)
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_a_folder_that_may_not_be_read_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, "locked/a.png")
    with unreadable(tmp_path / "locked"), pytest.raises(DataError, check=coded("file-unreadable")):
        find([tmp_path / "locked"])
    with unreadable(tmp_path / "locked"):
        complaint(tmp_path / "locked", code="file-unreadable")
        complaint(tmp_path, code="file-unreadable")


def test_names_with_newlines_and_escapes_are_listed_and_printed_safely(tmp_path: Path) -> None:
    put(tmp_path, "a\nb/\x1b[2J.png", "loose\r.png")
    assert names(find([tmp_path])) == ["a\nb/\x1b[2J.png", "loose\r.png"]
    assert r"loose\r.png" in complaint(tmp_path)


def test_the_limit_of_pixels_reaches_the_decoder(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.png")
    for (picture,) in (find([tmp_path], max_pixels=11), labelled(tmp_path, max_pixels=11)):
        with pytest.raises(ImageError, check=coded("image-too-large")):
            picture.image()


# --- one folder a class ------------------------------------------------------------------------------------------


def test_one_folder_a_class_gives_the_folder_as_truth(tmp_path: Path) -> None:
    put(tmp_path, "dog/a.png", "cat/b.png", "cat/more/c.png", ".cache/x.png")
    (tmp_path / "readme.txt").write_text("hello")
    collection = labelled(tmp_path)
    assert list(truths(collection).items()) == [("cat/b.png", "cat"), ("cat/more/c.png", "cat"), ("dog/a.png", "dog")]
    assert collection[2].image().digest == colour(0).digest


def test_loose_pictures_beside_class_folders_are_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.png", *(f"loose{number}.png" for number in range(5)))
    said = complaint(tmp_path)
    assert "5 pictures (loose0.png, loose1.png, loose2.png and 2 more)" in said


def test_a_class_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.png")
    (tmp_path / "dog").mkdir()
    assert "1 class folder (dog)" in complaint(tmp_path)


def test_a_single_picture_is_no_collection_with_truths(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    assert "a.png" in complaint(tmp_path / "a.png", code="labels-unmatched")


# --- labels.csv --------------------------------------------------------------------------------------------------


def test_labels_csv_gives_truths_and_ignores_other_columns(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "deep/b.png")
    table(tmp_path / "labels.csv", ("name", "file", "label"), ("x", "deep/b.png", "cat, small"), ("y", "./a.png", "7"))
    assert list(truths(labelled(tmp_path)).items()) == [("a.png", "7"), ("deep/b.png", "cat, small")]


def test_an_accent_may_be_spelled_otherwise_in_the_table_than_in_the_name_of_the_file(tmp_path: Path) -> None:
    put(tmp_path, normalize("NFD", "café.png"), normalize("NFC", "thé.png"), "é.png")
    rows = [(normalize("NFC", "café.png"), "a"), (normalize("NFD", "thé.png"), "b"), ("é.png", "c")]
    table(tmp_path / "labels.csv", ("file", "label"), *rows)
    by_name = {normalize("NFC", name): truth for name, truth in truths(labelled(tmp_path)).items()}
    assert by_name == {"café.png": "a", "thé.png": "b", "é.png": "c"}


@pytest.mark.parametrize(
    "text", ["\ufefffile,label\r\na.png,Käfer\r\n", "file, label\n\na.png, Käfer\n\n", 'file,label\n"a.png","Käfer"']
)
def test_a_byte_order_mark_blank_lines_spaces_and_quotes_are_accepted(tmp_path: Path, text: str) -> None:
    put(tmp_path, "a.png")
    (tmp_path / "labels.csv").write_bytes(text.encode())
    assert truths(labelled(tmp_path)) == {"a.png": "Käfer"}


def test_a_table_elsewhere_takes_the_place_of_folders_and_of_labels_csv(tmp_path: Path) -> None:
    put(tmp_path / "pictures", "cat/a.png")
    table(tmp_path / "pictures" / "labels.csv", ("file", "label"), ("cat/a.png", "old"))
    other = table(tmp_path / "other.csv", ("file", "label"), ("cat/a.png", "new"))
    assert truths(labelled(tmp_path / "pictures", other)) == {"cat/a.png": "new"}


def test_another_column_of_a_table_may_hold_the_truths(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "b.png")
    table(tmp_path / "labels.csv", ("file", "label", "name"), ("a.png", "0", "cat"), ("b.png", "1", "dog"))
    assert truths(labelled(tmp_path, column="name")) == {"a.png": "cat", "b.png": "dog"}
    other = table(tmp_path / "other.csv", ("name", "file"), ("ant", "a.png"), ("bee", "b.png"))
    assert truths(labelled(tmp_path, other, column="name")) == {"a.png": "ant", "b.png": "bee"}
    with pytest.raises(DataError, check=coded("file-malformed")):
        labelled(tmp_path, column="class")


@pytest.mark.parametrize("name", ["file_name", "filename", "path", "image", "picture"])
def test_the_column_of_files_may_have_the_names_that_people_give_it(tmp_path: Path, name: str) -> None:
    put(tmp_path, "a.png")
    table(tmp_path / "labels.csv", (name, "label"), ("a.png", "cat"))
    assert truths(labelled(tmp_path)) == {"a.png": "cat"}


def test_of_several_columns_of_files_the_one_called_file_counts(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    table(tmp_path / "labels.csv", ("image", "label", "file"), ("7", "cat", "a.png"))
    assert truths(labelled(tmp_path)) == {"a.png": "cat"}


def test_a_column_is_for_tables_alone(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.png", "dog/b.png")
    with pytest.raises(DataError, check=coded("option-conflict")):
        labelled(tmp_path, column="name")


def test_a_row_may_name_a_file_of_another_ending(tmp_path: Path) -> None:
    put(tmp_path, "b.png", "a.dat")
    table(tmp_path / "labels.csv", ("file", "label"), ("b.png", "x"), ("a.dat", "y"))
    collection = labelled(tmp_path)
    assert names(collection) == ["a.dat", "b.png"]
    assert collection[0].image().digest == colour(1).digest


def test_rows_do_not_reach_outside_the_folder(tmp_path: Path) -> None:
    put(tmp_path, "secret.dat", "in/a.png")
    for outside in ("../secret.dat", "in/../../secret.dat", str(tmp_path / "secret.dat")):
        table(tmp_path / "in" / "labels.csv", ("file", "label"), ("a.png", "x"), (outside, "y"))
        assert "1 true label (" in complaint(tmp_path / "in")


def test_pictures_without_truths_and_truths_without_pictures_are_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.png" for number in range(6)))
    table(tmp_path / "labels.csv", ("file", "label"), ("0.png", "x"))
    assert "5 pictures (1.png, 2.png, 3.png and 2 more)" in complaint(tmp_path)
    rows = [(f"{number}.png", "x") for number in range(8)]
    table(tmp_path / "labels.csv", ("file", "label"), *rows)
    assert "2 true labels (6.png, 7.png)" in complaint(tmp_path)


def test_files_in_more_than_one_row_are_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "b.png")
    table(tmp_path / "labels.csv", ("file", "label"), ("a.png", "x"), ("b.png", "x"), ("./a.png", "x"))
    assert "1 file (a.png)" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "file-malformed"),
        (b"file,truth\na.png,x\n", "file-malformed"),
        (b"a.png,x\n", "file-malformed"),
        (b"file;label\na.png;x\n", "file-malformed"),
        (b"file,label\na.png\n", "file-malformed"),
        (b"file,label\na.png,cat, small\n", "file-malformed"),
        (b"file,label\na.png,\n", "file-malformed"),
        (b"file,label\n,x\n", "file-malformed"),
        (b"file,label\n", "labels-unmatched"),
        (b'file,label\n"a.png,x\n', "file-malformed"),
        (b"file,label\na.png,K\xe4fer\n", "file-malformed"),
        ("file,label\na.png,x\n".encode("utf-16"), "file-malformed"),
        (b"file,label\na.png," + b"x" * 200_000, "file-malformed"),
    ],
)
def test_tables_that_cannot_be_read_say_why(tmp_path: Path, text: bytes, code: str) -> None:
    put(tmp_path, "a.png")
    (tmp_path / "labels.csv").write_bytes(text)
    assert complaint(tmp_path, code=code).startswith(str(tmp_path / "labels.csv"))


def test_a_missing_table_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    assert "none.csv" in complaint(tmp_path, tmp_path / "none.csv", code="file-unreadable")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_random_tables_give_truths_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    root = put(tmp_path_factory.mktemp("random"), "a.png")
    for text in (rest, b"file,label\n" + rest, b"file,label\na.png,x\n" + rest):
        (root / "labels.csv").write_bytes(text)
        try:
            assert names(labelled(root)) == ["a.png"]
        except DataError as refusal:
            if not str(refusal).isprintable():
                raise AssertionError(str(refusal)) from refusal


# --- npz ---------------------------------------------------------------------------------------------------------


def stack(*shape: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_an_npz_gives_pictures_named_by_their_place_in_their_own_order(tmp_path: Path) -> None:
    images = stack(12, 5, 6, 3)
    path = npz(tmp_path / "test.npz", images=images, labels=np.arange(12) % 2, class_names=["cat", "dog"])
    collection = labelled(path)
    assert names(collection) == [f"test.npz#{place}" for place in range(12)]
    assert [picture.truth for picture in collection] == ["cat", "dog"] * 6
    assert all(np.array_equal(p.image().pixels, image) for p, image in zip(collection, images, strict=True))
    assert names(find([path])) == names(collection)
    assert {picture.truth for picture in find([path])} == {None}


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 1), (3, 4, 5, 3), (3, 4, 5, 4)])
def test_an_npz_may_hold_grey_and_colour(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = stack(*shape)
    collection = find([npz(tmp_path / "x.npz", images=images)])
    assert [p.image().digest for p in collection] == [Image.from_array(image).digest for image in images]


@pytest.mark.parametrize(
    ("arrays", "wanted"),
    [
        ({"labels": [1, 0]}, ["1", "0"]),
        ({"labels": ["b", "a"]}, ["b", "a"]),
        ({"labels": ["b", "a"], "class_names": ["a", "b", "c"]}, ["b", "a"]),
        ({"labels": np.array(["b", "ä".encode()], "S4")}, ["b", "ä"]),
        ({"labels": np.array([2, 0], np.uint8), "class_names": np.array(["a", "b", "c"], "S")}, ["c", "a"]),
        ({"labels": [[1], [0]], "class_names": ["a", "b"]}, ["b", "a"]),
    ],
)
def test_labels_may_be_numbers_or_texts(tmp_path: Path, arrays: Mapping[str, object], wanted: list[str]) -> None:
    path = npz(tmp_path / "x.npz", images=stack(2, 3, 3), **arrays)
    assert [picture.truth for picture in labelled(path)] == wanted


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({}, "file-malformed"),
        ({"labels": [0]}, "labels-unmatched"),
        ({"labels": [0, 2], "class_names": ["a", "b"]}, "file-malformed"),
        ({"labels": [-1, 0], "class_names": ["a", "b"]}, "file-malformed"),
        ({"labels": ["a", "c"], "class_names": ["a", "b"]}, "file-malformed"),
        ({"labels": ["a", ""]}, "labels-missing"),
        ({"labels": [0.5, 1.0]}, "file-malformed"),
        ({"labels": [0, 1], "class_names": ["a", "a"]}, "file-malformed"),
        ({"labels": np.array([b"\xff", b"a"])}, "file-malformed"),
        ({"labels": np.array([{}, {}], object)}, "file-malformed"),
        ({"images": stack(2, 3)}, "file-malformed"),
        ({"images": stack(2, 3, 3, 2)}, "file-malformed"),
        ({"images": np.zeros((2, 3, 3))}, "file-malformed"),
        ({"images": np.zeros((0, 3, 3), np.uint8)}, "pictures-none"),
        ({"images": np.array([{}], object)}, "file-malformed"),
    ],
)
def test_an_npz_that_does_not_fit_says_why(tmp_path: Path, arrays: Mapping[str, object], code: str) -> None:
    path = npz(tmp_path / "x.npz", **{"images": stack(2, 3, 3), **arrays})
    assert path.name in complaint(path, code=code)


def test_an_npz_with_other_arrays_says_which_it_needs_and_has(tmp_path: Path) -> None:
    said = complaint(npz(tmp_path / "x.npz", x=stack(2, 3, 3), y=[0, 1]), code="file-malformed")
    assert "images" in said
    assert "x, y" in said


def test_damaged_archives_are_refused_by_name(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", images=stack(50, 64, 64), labels=[0] * 50)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert path.name in complaint(path, code="file-malformed")
    path.write_bytes(whole[:100_000] + bytes(2000) + whole[102_000:])
    picture = labelled(path)[0]
    with pytest.raises(DataError, check=coded("file-malformed")):
        picture.image()
    for odd in (b"", b"hello", pickle.dumps({"images": 1})):
        path.write_bytes(odd)
        assert path.name in complaint(path, code="file-malformed")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\0\x10\0{'descr': import}")
    assert path.name in complaint(path, code="file-malformed")


def forged(path: Path, shape: object, *, kind: str = "|u1", name: str = "images", size: int | None = None) -> Path:
    """An archive whose header claims an array that is not there; so does the archive itself if a size is given."""
    header = str({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", npy(stack(2, 3, 3)))
        archive.writestr("labels.npy", npy(stack(2)))
        archive.writestr(f"{name}.npy", content)
    if size is not None:
        raw = bytearray(path.read_bytes())
        place = raw.rindex(b"PK\x01\x02")
        raw[place + 24 : place + 28] = size.to_bytes(4, "little")
        path.write_bytes(raw)
    return path


def npy(array: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "claim",
    [
        {"shape": (10**9, 1, 1)},
        {"shape": (10**9, 1, 1), "size": 10**9 + 128},
        {"shape": (-5, 4, 4)},
        {"shape": (-4, -4, 4), "size": 64 + 128},
        {"shape": (10**30, 1, 1)},
        {"shape": (10**9,), "kind": "<i8", "name": "labels"},
        {"shape": (1,), "kind": "<U1000000000", "name": "class_names"},
    ],
    ids=str,
)
def test_an_npz_that_claims_what_it_does_not_hold_is_refused_before_memory_is_taken(
    tmp_path: Path, claim: dict[str, Any]
) -> None:
    path = forged(tmp_path / "x.npz", **claim)
    tracemalloc.start()
    try:
        complaint(path, code="file-malformed")
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_a_compressed_npz_may_not_unpack_to_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.images.npz.MOST_BYTES", 1000)
    path = npz(tmp_path / "x.npz", images=np.zeros((20, 10, 10), np.uint8))
    with pytest.raises(DataError, check=coded("image-too-large")):
        find([path])[0].image()


def test_an_npz_has_no_more_pictures_than_bytes(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", images=np.zeros((100_000, 1, 1), np.uint8))
    with pytest.raises(DataError, check=coded("file-malformed")):
        find([path])


def test_an_npz_without_compression_and_of_either_order_is_read(tmp_path: Path) -> None:
    images = np.asarray(stack(20, 6, 5, 3), order="F")
    np.savez(tmp_path / "x.npz", before=np.arange(7), images=images, labels=np.zeros(20, int))
    collection = labelled(tmp_path / "x.npz")
    assert all(np.array_equal(p.image().pixels, image) for p, image in zip(collection, images, strict=True))


def test_pictures_of_an_npz_over_the_limit_are_refused_before_they_are_loaded(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", images=stack(2, 10, 20))
    with pytest.raises(DataError, check=coded("image-too-large")):
        find([path], max_pixels=199)
    assert len(find([path], max_pixels=200)) == 2


def test_an_npz_that_changes_after_it_was_listed_is_not_mixed_with_the_old_truths(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", images=stack(2, 3, 3), labels=[0, 1])
    old = labelled(path)
    npz(path, images=stack(3, 3, 3)[1:], labels=[5, 6])
    os.utime(path, (1, 1))
    with pytest.raises(DataError, check=coded("file-malformed")):
        old[0].image()
    assert np.array_equal(labelled(path)[0].image().pixels[:, :, 0], stack(3, 3, 3)[1])


def test_the_array_of_an_npz_is_loaded_once_and_shared_by_threads(tmp_path: Path) -> None:
    collection = find([npz(tmp_path / "x.npz", images=stack(64, 16, 16, 3))])
    with ThreadPoolExecutor(8) as pool:
        pixels = list(pool.map(lambda picture: picture.image().pixels, collection))
    assert len({id(array.base) for array in pixels}) == 1


def test_a_table_may_name_the_pictures_of_an_npz(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", images=stack(11, 3, 3))
    rows = [(f"x.npz#{place}", f"t{place}") for place in range(11)]
    collection = labelled(path, table(tmp_path / "t.csv", ("file", "label"), *reversed(rows)))
    assert [(picture.name, picture.truth) for picture in collection] == rows


# --- pictures as values ------------------------------------------------------------------------------------------


def test_pictures_travel_to_another_process_without_their_pixels(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.png")
    pictures = [*labelled(tmp_path), *find([npz(tmp_path / "x.npz", images=stack(9, 64, 64, 3))])[4:5]]
    for picture in pictures:
        picture.image()
    packed = pickle.dumps(pictures)
    assert len(packed) < 2000
    code = "import pickle, sys; print([p.image().digest for p in pickle.load(sys.stdin.buffer)])"
    done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True)
    assert done.stdout.decode().strip() == str([picture.image().digest for picture in pictures])
    assert pickle.loads(packed) == pictures


def test_a_picture_is_small_and_asking_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (400, 400)).save(tmp_path / "a.png")
    source = find([tmp_path])[0].source
    tracemalloc.start()
    many = [Picture("a.png", "cat", source) for _ in range(10_000)]
    listed = tracemalloc.get_traced_memory()[0]
    for picture in many[:20]:
        picture.image()
    kept = tracemalloc.get_traced_memory()[0] - listed
    tracemalloc.stop()
    assert listed < 100 * 10_000
    assert kept < 400 * 400


@given(st.lists(st.text(min_size=1), min_size=1, max_size=9))
def test_few_counts_all_and_names_three(some: list[str]) -> None:
    text = few(some, "picture")
    assert text.startswith(f"{len(some)} picture")
    assert text.isprintable()
    assert (f"and {len(some) - 3} more" in text) == (len(some) > 3)


# --- the real thing ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_the_shared_collections_are_read_as_they_are() -> None:
    cifar = labelled(SHARED / "cifar10_test.npz")
    assert len(cifar) == 10_000
    assert cifar[0].truth == "cat"
    assert cifar[9999].image().pixels.shape == (32, 32, 3)
    photos = labelled(SHARED / "imagenet_val_1500")
    assert len(photos) == 1500
    assert (photos[0].name, photos[0].truth) == ("0000.jpg", "840")
    assert min(photos[0].image().pixels.shape[:2]) == 256


# Tags: several truths a picture


def tags_of(folder: Path, truths: Path | None = None) -> dict[str, tuple[str, ...] | None]:
    return {picture.name: picture.tags for picture in labelled(folder, truths)}


def test_a_column_of_tags_holds_all_tags_of_a_picture_or_none(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "b.png", "c.png", "d.png")
    rows = [("a.png", "cat; dog"), ("b.png", ""), ("c.png", '"black; white";dog')]
    table(tmp_path / "labels.csv", ("file", "tags"), *rows)
    assert tags_of(tmp_path) == {"a.png": ("cat", "dog"), "b.png": (), "c.png": ("black; white", "dog")}


def test_instances_of_coco_are_tags_of_the_pictures_that_are_there(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "b.png")
    content = {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(("a.png", "b.png", "elsewhere.png"))],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
        "annotations": [{"image_id": 0, "category_id": code} for code in (9, 7, 9)],
    }
    truths = tmp_path / "instances.json"
    truths.write_text(json.dumps(content))
    assert tags_of(tmp_path, truths) == {"a.png": ("dog", "cat"), "b.png": ()}
    truths.write_text('{"images": []}')
    with pytest.raises(DataError, check=coded("file-malformed")):
        labelled(tmp_path, truths)
