"""Tables in MATLAB files: as SciPy reads sound ones, and an error where the file is not sound."""

import io

import numpy as np
import pytest
import scipy.io

from looktwice.matfile import read_table

ROWS = [
    (1, "n01440764", "tench, Tinca tinca", 0.5),
    (300, "n01443537", "poisson doré", -7.0),
    (70_000, "n0", "", 1e300),
]


def saved(compressed: bool) -> bytes:
    table = np.array(ROWS, [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "height")])
    file = io.BytesIO()
    others = {"before": np.arange(5), "text": "hello"}
    scipy.io.savemat(file, {**others, "synsets": table.reshape(-1, 1)}, do_compression=compressed)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_table_is_read_as_scipy_reads_it(compressed: bool) -> None:
    rows = read_table(saved(compressed), "synsets")
    theirs = scipy.io.loadmat(io.BytesIO(saved(compressed)), squeeze_me=True)["synsets"]
    assert [tuple(row.values()) for row in rows] == ROWS
    assert [row["WNID"] for row in rows] == [str(row["WNID"]) for row in theirs]
    assert [row["ILSVRC2012_ID"] for row in rows] == [int(row["ILSVRC2012_ID"]) for row in theirs]


def test_a_table_that_is_not_there_or_is_none_is_told() -> None:
    with pytest.raises(KeyError, match="elsewhere"):
        read_table(saved(True), "elsewhere")
    with pytest.raises(ValueError, match="no table"):
        read_table(saved(True), "before")
    with pytest.raises(ValueError, match="no MATLAB file"):
        read_table(b"MATLAB 7.3 MAT-file" + bytes(200), "synsets")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_is_cut_off_has_no_table(compressed: bool) -> None:
    whole = saved(compressed)
    for end in range(0, len(whole) - 1, 37):
        with pytest.raises((ValueError, KeyError)):
            read_table(whole[:end], "synsets")
