"""From clicks to a profile: `fit` reads what people said while they still label."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.serving import DEMO
from support.workshop import run

from looktwice.decisions.profile import Profile
from looktwice.images.collection import labelled
from looktwice.images.image import encode_png
from looktwice.labelling.labels import Click, Labels


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eighty pictures, of which people labelled sixty: some they could not tell, of some only what they are not."""
    pictures = labelled(DEMO / "pictures.npz")[:80]
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, picture in enumerate(pictures):
        (folder / f"{number:03}.png").write_bytes(encode_png(picture.image().pixels))
    labels = Labels(folder / "labels.csv")
    known = sorted({picture.truth or "" for picture in pictures})
    for number, picture in enumerate(pictures[:60]):
        others = [label for label in known if label != picture.truth]
        says, told = {
            0: ("unsure", []),
            1: ("not", others[:1]),
            2: ("not", known if number == 2 else others[:3]),
        }.get(number % 10, ("label", [picture.truth]))
        body = {"id": str(number), "window": "w", "file": f"{number:03}.png", "says": says, "labels": told}
        labels.add(Click.model_validate(body))
    labels.close()
    return folder


def test_fit_and_evaluate_take_what_is_labelled_so_far(photos: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    done = run("fit", photos, "-c", DEMO / "fashion.toml", "--views", "mirror zoom:1.15", "-o", profile)
    assert done.returncode == 0, done.stderr
    assert Profile.load(profile).pictures == 54
    assert "Label mismatch:" not in done.stderr
    done = run("evaluate", photos, "-p", profile, "--max-error", "0.2", "--votes", tmp_path / "votes.npz")
    assert done.returncode == 0, done.stderr
    assert "On 54 pictures" in done.stdout
