"""A real `datasets`: pictures with truths out of it for fit, and verdicts into it as columns."""

from __future__ import annotations

import io
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pytest
from serving import DEMO, PANEL

from looktwice import Model
from looktwice.errors import DataError
from looktwice.images.collection import labelled
from looktwice.labelling.exchange import datasets as exchange


@pytest.fixture(scope="module")
def clothes() -> datasets.Dataset:
    """The embedded pictures as a dataset of PNG files, the last of them without a truth."""
    with np.load(DEMO / "pictures.npz") as file:
        names, labels, images = [str(n) for n in file["class_names"]], file["labels"][:300].tolist(), file["images"]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    columns = {"image": [{"bytes": png(grey), "path": None} for grey in images[:300]], "label": [*labels[:-1], None]}
    return datasets.Dataset.from_dict(columns, features=features)


def png(grey: np.ndarray) -> bytes:
    out = io.BytesIO()
    PIL.Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2)).save(out, "PNG")
    return out.getvalue()


def test_a_profile_learned_from_a_dataset_is_that_of_its_pictures(clothes: datasets.Dataset) -> None:
    found = exchange.pictures(clothes)
    known = labelled(DEMO / "pictures.npz")[:300]
    assert [picture.truth for picture in found] == [*(picture.truth for picture in known[:-1]), None]
    assert all(a.image().digest == b.image().digest for a, b in zip(found[:20], known, strict=False))
    with Model(str(DEMO / "fashion.toml")) as model:
        profile = model.fit(found[:-1], views=PANEL)
        expected = Model(str(DEMO / "fashion.toml")).fit(known[:-1], views=PANEL)
        assert profile.calibrator == expected.calibrator
        scored = exchange.with_verdicts(clothes, list(model.score(found))[1:])
    assert scored.column_names == ["image", "label", "looktwice_label", "looktwice_confidence", "looktwice_decision"]
    assert scored["looktwice_label"][0] is None
    assert scored["looktwice_confidence"][0] is None
    names = [scored.features["label"].int2str(label) for label in scored["label"][1:-1]]
    right = np.array(names) == np.array(scored["looktwice_label"][1:-1])
    assert np.mean(right) == pytest.approx(np.mean(scored["looktwice_confidence"][1:-1]), abs=0.1)


def test_pictures_in_files_texts_as_labels_and_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(np.zeros((8, 8), np.uint8)))
    columns = {"photo": [str(tmp_path / "a.png"), None], "kind": ["cat", None]}
    dataset = datasets.Dataset.from_dict(columns).cast_column("photo", datasets.Image())
    found = exchange.pictures(dataset, "photo", "kind")
    assert [picture.truth for picture in found] == ["cat", None]
    assert found[0].image().pixels.shape == (8, 8, 3)
    with pytest.raises(Exception, match="holds no picture"):
        found[1].image()
    assert exchange.pictures(dataset, "photo")[0].truth is None
    with pytest.raises(DataError, match="no column 'image' of pictures"):
        exchange.pictures(dataset)
