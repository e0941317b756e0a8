"""Whether a picture is like the labelled ones: the descriptor, its conformal p-value, and the words."""

from __future__ import annotations

import time
from functools import cache

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from serving import DEMO

from looktwice.pictures.collection import find
from looktwice.pictures.descriptor import NAMES, PLACES, Floats, Pixels, descriptor
from looktwice.verdicts.familiarity import LEAST, Familiarity


@cache
def clothes() -> Floats:
    """The descriptors of the demo's pictures."""
    return np.stack([descriptor(picture.image().pixels) for picture in find([DEMO / "pictures.npz"])])


@cache
def known() -> Familiarity:
    found = Familiarity.fit(clothes()[:1000])
    assert found is not None
    return found


def photo(width: int = 500, height: int = 375) -> Pixels:
    """A colourful scene with soft and hard edges."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def told(pixels: Pixels) -> dict[str, float]:
    return dict(zip(NAMES, descriptor(pixels).tolist(), strict=True))


# The descriptor


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_every_picture_has_finite_numbers(height: int, width: int, seed: int) -> None:
    found = descriptor(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))
    assert found.shape == (len(NAMES),)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("shape", [(1, 3000), (3000, 1), (1500, 2000), (257, 256)])
def test_large_and_thin_pictures_have_them_too(shape: tuple[int, int]) -> None:
    assert np.isfinite(descriptor(np.full((*shape, 3), 7, np.uint8))).all()


def test_the_numbers_mean_what_their_names_say() -> None:
    scene = photo()
    plain, blurred = told(scene), told(np.asarray(cv2.GaussianBlur(scene, (0, 0), 3), np.uint8))
    assert (plain["side"], plain["aspect"]) == pytest.approx((np.log2(500 * 375) / 2, np.log2(500 / 375)))
    assert told(np.repeat(scene[:, :, :1], 3, axis=2))["saturation"] == 0 < plain["saturation"]
    assert told(scene // 4)["median"] < plain["median"] / 3
    assert blurred["band_0"] < plain["band_0"]
    assert told(np.ascontiguousarray(np.rot90(scene)))["aspect"] == pytest.approx(-plain["aspect"])
    squeezed = cv2.imdecode(cv2.imencode(".jpg", scene, [cv2.IMWRITE_JPEG_QUALITY, 5])[1], cv2.IMREAD_COLOR)
    assert told(np.asarray(squeezed, np.uint8))["blocks"] > plain["blocks"] + 0.5
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::4] = 255
    assert told(stripes)["direction"] > 3 > -3 > told(np.ascontiguousarray(stripes.transpose(1, 0, 2)))["direction"]


def test_a_picture_takes_under_two_milliseconds() -> None:
    scene, familiarity, best = photo(), known(), 1.0
    for _ in range(30):  # the best of many: others use this machine as well
        began = time.perf_counter()
        familiarity.p_values(descriptor(scene)[None])
        best = min(best, time.perf_counter() - began)
    assert best < 0.002


# The p-value


def test_false_alarms_are_as_often_as_the_rate_says() -> None:
    rng, pictures, shares = np.random.default_rng(0), clothes(), []
    for _ in range(30):
        mixed = rng.permutation(len(pictures))
        found = Familiarity.fit(pictures[mixed[:600]])
        assert found is not None
        p_values = found.p_values(pictures[mixed[600:]])
        shares.append([(p_values <= rate).mean() for rate in (0.01, 0.05, 0.5)])
    # Over splits the mean is at most the rate, and at least the rate less one step of the count.
    for share, rate in zip(np.mean(shares, axis=0), (0.01, 0.05, 0.5), strict=True):
        assert share == pytest.approx(rate, abs=1 / 301 + 3 * np.sqrt(rate / (30 * 150)))


def test_other_kinds_of_pictures_are_told_and_more_surely_the_farther_they_are() -> None:
    rng = np.random.default_rng(0)
    page = np.full((600, 400, 3), 255, np.uint8)
    page[40::20, 30:370] = rng.integers(0, 2, (28, 340, 1), np.uint8) * 255
    others = [
        photo(),
        photo(32, 32),
        page,
        np.zeros((480, 640, 3), np.uint8),
        rng.integers(0, 256, (28, 28, 3), np.uint8),
    ]
    p_values = known().p_values(np.stack([descriptor(pixels) for pixels in others]))
    assert (p_values <= 0.01).all()
    assert p_values[0] < p_values[1]


def test_few_labelled_pictures_still_tell_what_is_far_away() -> None:
    few = Familiarity.fit(clothes()[:LEAST])
    assert few is not None
    assert Familiarity.fit(clothes()[: LEAST - 1]) is None
    assert few.p_values(descriptor(photo())[None])[0] <= 0.01
    assert (few.p_values(clothes()[1000:]) <= 0.01).mean() < 0.05


def test_a_copy_of_a_neighbour_is_as_familiar_as_can_be() -> None:
    same = np.full((28, 28, 3), 9, np.uint8)
    found = Familiarity.fit(np.stack([descriptor(same)] * 40))
    assert found is not None
    near, far = found.p_values(np.stack([descriptor(same), descriptor(photo())]))
    assert (near, far < 1e-6) == (1.0, True)


# The words


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (photo(), "a colour picture of 500 × 375; the labelled pictures are grey and 28 × 28"),
        (photo(28, 28), "a colour picture; the labelled pictures are grey"),
        (np.zeros((480, 640, 3), np.uint8), "a picture of 640 × 480; the labelled pictures are 28 × 28"),
    ],
)
def test_it_says_what_stands_out(pixels: Pixels, words: str) -> None:
    assert known().because(descriptor(pixels)) == words


def test_it_compares_where_size_and_colour_are_the_usual() -> None:
    middle = np.median(clothes()[:1000], axis=0)
    shifted = middle.copy()
    shifted[PLACES["blocks"]] += 500
    shifted[PLACES["contrast"]] -= 10
    assert known().because(shifted) == "more blocky and lower in contrast than the labelled pictures"
    assert known().because(middle) == "its colours, light and detail are together unlike those of the labelled pictures"


# In a profile


def test_the_summary_is_small_and_comes_back_the_same() -> None:
    text = known().model_dump_json()
    assert len(text) < 200_000
    again = Familiarity.model_validate_json(text)
    assert (again.p_values(clothes()[1000:1100]) == known().p_values(clothes()[1000:1100])).all()


@pytest.mark.parametrize(
    "change",
    [
        {"neighbours": "abc"},
        {"neighbours": "AAAA"},
        {"neighbours": ""},
        {"neighbours": "//8=" * 49},
        {"distances": []},
        {"distances": [2.0, 1.0]},
        {"distances": [-1.0, 1.0]},
        {"distances": [float("nan")]},
        {"descriptor": 2},
    ],
)
def test_a_damaged_summary_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Familiarity.model_validate({**known().model_dump(), **change})
