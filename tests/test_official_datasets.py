"""The public test sets, read from tiny files written in the exact official formats, and hostile ones."""

import csv
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from experiments.official import ILSVRC_HOME, ilsvrc, open_labelled
from looktwice.errors import DataError
from looktwice.images.collection import Picture
from looktwice.images.image import encode_jpeg

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
HUNDRED = [f"fine {number}" for number in range(100)]


def pixels(rows: int = 5) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, (rows, 3072), dtype=np.uint8)


def seen(flat: NDArray[np.uint8], row: int) -> NDArray[np.uint8]:
    """The picture in a row, put together one plane after the other, as the authors describe it."""
    red, green, blue = flat[row, :1024], flat[row, 1024:2048], flat[row, 2048:]
    return np.dstack([red.reshape(32, 32), green.reshape(32, 32), blue.reshape(32, 32)])


def complaint(read: Callable[[Path], object], path: Path, code: str = "") -> str:
    """What is said about a folder that is refused, with this code."""
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).isprintable()
    assert code in ("", caught.value.code)
    return str(caught.value)


# --- pickles as Python 2 wrote them ------------------------------------------------------------------------------


class Python2:
    """Writes what Python 2's cPickle wrote with protocol 2: byte strings, a memo entry for everything but numbers."""

    def __init__(self) -> None:
        self.memo = 0

    def put(self) -> bytes:
        self.memo += 1
        number = self.memo
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def text(self, value: bytes) -> bytes:
        short = b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
        return short + value + self.put()

    def number(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)

    def list(self, values: list[object]) -> bytes:
        body = b"]" + self.put()
        for start in range(0, len(values), 1000):
            body += b"(" + b"".join(self.any(value) for value in values[start : start + 1000]) + b"e"
        return body

    def dict(self, values: dict[bytes, object]) -> bytes:
        pairs = b"".join(self.text(key) + self.any(value) for key, value in values.items())
        return b"}" + self.put() + b"(" + pairs + b"u"

    def array(self, values: NDArray[np.uint8]) -> bytes:
        made = b"cnumpy.core.multiarray\n_reconstruct\n" + self.put() + b"cnumpy\nndarray\n" + self.put()
        made += b"K\0\x85" + self.put() + self.text(b"b") + b"\x87" + self.put() + b"R" + self.put()
        shape = b"".join(self.number(size) for size in values.shape) + b"\x86" + self.put()
        kind = b"cnumpy\ndtype\n" + self.put() + self.text(b"u1") + b"K\0K\1\x87" + self.put() + b"R" + self.put()
        kind += b"(K\3" + self.text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t" + self.put() + b"b"
        return made + b"(K\1" + shape + kind + b"\x89" + self.text(values.tobytes()) + b"t" + self.put() + b"b"

    def any(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return self.text(value)
        if isinstance(value, int):
            return self.number(value)
        if isinstance(value, list):
            return self.list(value)
        assert isinstance(value, np.ndarray)
        return self.array(value)


def python2(content: dict[bytes, object]) -> bytes:
    return b"\x80\2" + Python2().dict(content) + b"."


META_10: dict[bytes, object] = {
    b"num_cases_per_batch": 10000,
    b"label_names": [name.encode() for name in TEN],
    b"num_vis": 3072,
}


def cifar_10(root: Path, **changed: object) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    batch: dict[bytes, object] = {
        b"data": pixels(),
        b"labels": [3, 8, 8, 0, 6],
        b"batch_label": b"testing batch 1 of 1",
        b"filenames": [f"domestic_cat_s_{number:06}.png".encode() for number in range(5)],
    }
    batch |= {key.encode(): value for key, value in changed.items()}
    (root / "test_batch").write_bytes(python2(batch))
    (root / "batches.meta").write_bytes(python2(META_10))
    return root


def cifar_100(root: Path) -> Path:
    root.mkdir(parents=True)
    batch: dict[bytes, object] = {
        b"filenames": [b"x.png"] * 5,
        b"batch_label": b"testing batch 1 of 1",
        b"fine_labels": [49, 33, 72, 51, 99],
        b"coarse_labels": [10, 10, 0, 4, 7],
        b"data": pixels(),
    }
    names: dict[bytes, object] = {
        b"fine_label_names": [name.encode() for name in HUNDRED],
        b"coarse_label_names": [f"coarse {number}".encode() for number in range(20)],
    }
    (root / "test").write_bytes(python2(batch))
    (root / "meta").write_bytes(python2(names))
    return root


def check(collection: list[Picture], truths: list[str]) -> None:
    assert [picture.truth for picture in collection] == truths
    for row, picture in enumerate(collection):
        assert picture.name.endswith(f"#{row}")
        assert np.array_equal(picture.image().pixels, seen(pixels(), row))


def test_the_names_of_cifar_10_take_as_many_bytes_as_in_the_official_file() -> None:
    assert len(python2(META_10)) == 158
    assert pickle.loads(python2(META_10), encoding="bytes") == META_10


def test_cifar_10_is_read_from_pickles(tmp_path: Path) -> None:
    collection = open_labelled(cifar_10(tmp_path / "cifar-10-batches-py"))
    check(collection, ["cat", "ship", "ship", "airplane", "frog"])
    assert collection[0].name == "test_batch#0"


def test_cifar_100_is_read_from_pickles(tmp_path: Path) -> None:
    collection = open_labelled(cifar_100(tmp_path / "cifar-100-python"))
    check(collection, ["fine 49", "fine 33", "fine 72", "fine 51", "fine 99"])


def test_the_folder_above_a_renamed_folder_and_a_single_batch_are_recognised(tmp_path: Path) -> None:
    root = cifar_10(tmp_path / "data" / "cifar-10-batches-py")
    (root / "data_batch_2").write_bytes((root / "test_batch").read_bytes())
    assert len(open_labelled(tmp_path / "data")) == 5
    assert open_labelled(root / "data_batch_2")[1].name == "data_batch_2#1"
    root.rename(tmp_path / "renamed")
    assert len(open_labelled(tmp_path / "renamed")) == 5


def test_long_lists_and_large_arrays_are_read(tmp_path: Path) -> None:
    rows = 1500
    root = cifar_10(tmp_path / "cifar-10-batches-py", data=pixels(rows), labels=[n % 10 for n in range(rows)])
    collection = open_labelled(root)
    assert len(collection) == rows
    assert np.array_equal(collection[1499].image().pixels, seen(pixels(rows), 1499))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"labels": [3, 8, 8, 0, 10]}, "file-malformed"),
        ({"labels": [3, 8]}, "file-malformed"),
        ({"labels": [b"fish"] * 5}, "file-malformed"),
        ({"labels": b"cat"}, "file-malformed"),
        ({"data": pixels()[:, :3000]}, "file-malformed"),
        ({"data": b"no array"}, "file-malformed"),
        ({"data": pixels(0)}, "file-malformed"),
    ],
)
def test_contents_that_do_not_fit_say_why(tmp_path: Path, changed: dict[str, object], code: str) -> None:
    root = cifar_10(tmp_path / "cifar-10-batches-py", **changed)
    assert complaint(open_labelled, root, code).startswith(str(root / "test_batch"))


def test_a_missing_path_is_one_short_line(tmp_path: Path) -> None:
    assert str(tmp_path / "missing") in complaint(open_labelled, tmp_path / "missing", "file-missing")


# --- hostile pickles ---------------------------------------------------------------------------------------------


class Shell:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_command_is_refused_and_nothing_runs(tmp_path: Path, protocol: int) -> None:
    root, mark = cifar_10(tmp_path / "cifar-10-batches-py"), tmp_path / "ran"
    evil = {b"data": pixels(), b"labels": [0] * 5, b"more": Shell(mark)}
    (root / "test_batch").write_bytes(pickle.dumps(evil, protocol))
    assert "official" in complaint(open_labelled, root)
    assert not mark.exists()


HOSTILE = {
    "a command": b"cos\nsystem\n(U\4true\x85R.",
    "a name with escapes": b"c\x1b[2J\nevil\n.",
    "eval": b"c__builtin__\neval\n(U\x011\x85R.",
    "an import by numpy": b"cnumpy.testing\nrunstring\n.",
    "an array of objects": b"cnumpy\ndtype\nU\2O8K\0K\1\x87R.",
    "a call of a text": b"U\1xU\1y\x85R.",
    "another coding": b"c_codecs\nencode\nU\1xU\4idna\x86R.",
    "an array with too few bytes": b"cnumpy.core.multiarray\n_reconstruct\nU\1x\x85R"
    b"(K\1K\2K\2\x86cnumpy\ndtype\nU\2u1\x85R\x89U\1atb.",
    "a state for a list": b"](K\1K\2tb.",
    "a key that is a list": b"}]K\1s.",
    "an odd number of keys": b"}(K\1K\2K\3u.",
    "an append to a dict": b"}K\1a.",
    "a key in a list": b"]K\1K\2s.",
    "an empty stack": b"R.",
    "a missing mark": b"K\1e.",
    "a missing memory": b"h\7.",
    "a memory far away": b"K\1r\xff\xff\xff\x7f.",
    "no end": b"K\1",
    "no dict": b"K\1.",
    "a length beyond the end": b"T\xff\xff\xff\x7fabc.",
    "a negative length": b"T\xff\xff\xff\xffabc.",
    "a global by the stack": b"\x8c\2os\x8c\6system\x93.",
    "an instance": b"(ios\nsystem\n.",
    "an object": b"(cos\nsystem\no.",
    "a persistent thing": b"Px\n.",
    "an extension": b"\x82\1.",
    "nothing": b"",
    "no pickle": b"hello, this is a text",
}


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_programs_that_are_in_no_official_file_are_refused(tmp_path: Path, program: bytes) -> None:
    root = cifar_10(tmp_path / "cifar-10-batches-py")
    for head in (b"", b"\x80\2"):
        (root / "test_batch").write_bytes(head + program)
        assert str(root / "test_batch") in complaint(open_labelled, root)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_pickles_give_pictures_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    root = tmp_path_factory.getbasetemp() / "cifar-10-batches-py"
    batch = bytearray((cifar_10(root, data=pixels(1), labels=[1], filenames=[]) / "test_batch").read_bytes())
    skeleton = [place for place in range(len(batch)) if place < 250 or place > len(batch) - 80]
    for place, value in damage:
        batch[skeleton[place % len(skeleton)]] = value
    (root / "test_batch").write_bytes(batch)
    try:
        assert len(open_labelled(root)) == 1
    except DataError as refusal:
        if not str(refusal).isprintable():
            raise AssertionError(str(refusal)) from refusal


# --- ILSVRC2012 --------------------------------------------------------------------------------------------------


SYNSETS = {1: "n02119789", 2: "n02100735", 3: "n01440764"}


def photos(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode_jpeg(np.full((8, 8, 3), 20 * number, np.uint8), 90))
    return root


def val(*numbers: int) -> list[str]:
    return [f"ILSVRC2012_val_{number:08}.JPEG" for number in numbers]


def devkit(root: Path, *truths: int) -> Path:
    """The two files of the kit: one number a line, and the synset of each number."""
    data = root / "data"
    data.mkdir(parents=True)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{truth}\n" for truth in truths))
    rows = [f"{synset} {number} kit_fox\n" for number, synset in SYNSETS.items()]
    (data / "map_clsloc.txt").write_text("".join(rows))
    return root


def test_photos_side_by_side_get_their_synsets_from_the_development_kit(tmp_path: Path) -> None:
    root = photos(tmp_path / "val", *val(1, 2, 3, 4))
    kit = devkit(tmp_path / "elsewhere" / "kit", 3, 1, 2, 1)
    for place in (kit, kit / "data", kit / "data" / "ILSVRC2012_validation_ground_truth.txt"):
        collection = open_labelled(root, place)
        assert [picture.truth for picture in collection] == ["n01440764", "n02119789", "n02100735", "n02119789"]
        assert collection[0].name == "ILSVRC2012_val_00000001.JPEG"
        assert collection[0].image().pixels.shape == (8, 8, 3)


def test_the_development_kit_is_found_beside_and_above_the_photos(tmp_path: Path) -> None:
    root = photos(tmp_path / "val", *val(2))
    devkit(tmp_path / "ILSVRC2012_devkit_t12", 3, 1)
    assert [picture.truth for picture in open_labelled(root)] == ["n02119789"]


def test_a_part_of_the_photos_keeps_its_own_truths(tmp_path: Path) -> None:
    root = photos(tmp_path / "val", *val(4, 2))
    kit = devkit(tmp_path / "kit", 3, 1, 2, 2, 1)
    assert [picture.truth for picture in ilsvrc(root, kit)] == ["n02119789", "n02100735"]


def test_the_solution_of_kaggle_will_do_instead(tmp_path: Path) -> None:
    root = photos(tmp_path / "val", *val(1, 2))
    with (tmp_path / "LOC_val_solution.csv").open("w", newline="") as file:
        rows = [
            ("ILSVRC2012_val_00000002", "n03995372 85 1 499 272 "),
            ("ILSVRC2012_val_00000001", "n01440764 1 2 3 4 n01440764 5 6 7 8"),
        ]
        csv.writer(file).writerows([("ImageId", "PredictionString"), *rows])
    assert [picture.truth for picture in open_labelled(root)] == ["n01440764", "n03995372"]


def test_one_folder_a_synset_is_read_as_it_is(tmp_path: Path) -> None:
    root = photos(tmp_path / "val", f"n01440764/{val(293)[0]}", f"n02119789/{val(12)[0]}")
    assert [picture.truth for picture in open_labelled(root)] == ["n01440764", "n02119789"]


def test_photos_without_truths_say_what_was_looked_for_and_where_to_get_it(tmp_path: Path) -> None:
    said = complaint(open_labelled, photos(tmp_path / "val", *val(1)))
    assert all(word in said for word in ("ILSVRC2012_validation_ground_truth.txt", "map_clsloc.txt", ILSVRC_HOME))
    root = photos(tmp_path / "val", *val(1, 9), "stranger.jpg")
    devkit(tmp_path / "ILSVRC2012_devkit_t12", 3, 1)
    said = complaint(open_labelled, root)
    assert "2 photos (ILSVRC2012_val_00000009.JPEG, stranger.jpg)" in said


def test_a_damaged_development_kit_is_refused_by_name(tmp_path: Path) -> None:
    root, data = photos(tmp_path / "val", *val(1)), devkit(tmp_path / "kit", 3, 77) / "data"
    assert "77 in line 2" in complaint(lambda path: ilsvrc(path, data), root)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("three\n")
    assert "ground_truth.txt" in complaint(lambda path: ilsvrc(path, data), root)
    (data / "map_clsloc.txt").write_text("n02119789\n")
    assert "map_clsloc.txt" in complaint(lambda path: ilsvrc(path, data), root)


def test_a_labels_csv_beside_the_photos_comes_first(tmp_path: Path) -> None:
    root = photos(tmp_path / "val", *val(1))
    (root / "labels.csv").write_text(f"file,label\n{val(1)[0]},tench\n")
    assert [picture.truth for picture in open_labelled(root)] == ["tench"]
    (tmp_path / "other.csv").write_text(f"file,label\n{val(1)[0]},shark\n")
    assert [picture.truth for picture in open_labelled(root, tmp_path / "other.csv")] == ["shark"]


def test_other_collections_are_read_as_ever(tmp_path: Path) -> None:
    photos(tmp_path, "cat/a.jpg", "dog/b.jpg")
    assert [picture.truth for picture in open_labelled(tmp_path)] == ["cat", "dog"]
    photos(tmp_path, "loose.jpg")
    said = complaint(open_labelled, tmp_path)
    assert "loose.jpg" in said
