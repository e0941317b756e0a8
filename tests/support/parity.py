"""One table of options for every interface, and what each interface's answer says of a verdict, in one form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from looktwice.decisions.policy import DecisionKeywords
from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import COLUMNS
from looktwice.images.image import encode_png
from support.serving import clothes, learn_profile

DECISIONS: dict[str, DecisionKeywords] = {
    "none": {},
    "max_price": {"max_price": 3.0},
    "max_queries": {"max_queries": 3.0},
    "max_error by label": {"max_error": {"*": 0.2, "Bag": 0.3}},
    "max_error and level": {"max_error": 0.08, "level": 0.5},
    "max_miss": {"max_miss": {"Bag": 0.3}},
    "all options": {
        "all": True,
        "max_price": 2.0,
        "max_queries": 2.0,
        "max_error": 0.03,
        "max_miss": {"Bag": 0.3},
        "level": 0.5,
        "accept": "estimate",
        "coverage": 0.97,
        "sets": "lac",
        "unfamiliar": "accept",
        "false_alarms": 0.9,
        "on_drift": "accept",
    },
}
"""All decision options together, and alone those that do not show among the others."""
ROWS = [pytest.param(options, id=name) for name, options in DECISIONS.items()]
PICTURES = (0, 4, 5, 9)
"""Pictures on whose verdicts every option shows, with one of another kind."""
FIELDS = tuple(name for name in COLUMNS if name not in ("digest", "profile", "held", "cause", "code", "message"))
"""Every part of a verdict that depends on the picture and the profile alone, but for its pixels' digest."""
Told = dict[str, Any]
"""The fields of a verdict as JSON has them."""


def write_place(folder: Path) -> Path:
    """A profile that can stop early and name sets, and the pictures to be judged in a folder beside it."""
    learn_profile(folder / "profile.json", "jury", "mirror rotation:20*3 zoom:1.15 turn:8")
    (folder / "pictures").mkdir()
    for place in PICTURES:
        (folder / "pictures" / f"{place}.png").write_bytes(clothes()[place])
    (folder / "pictures" / "fish.png").write_bytes(encode_png(fish()))
    return folder


def fish(width: int = 40, height: int = 30) -> NDArray[np.uint8]:
    """A picture that is no piece of clothing: an orange body and a tail, in blue water."""
    y, x = np.mgrid[:height, :width] / np.array([height, width]).reshape(2, 1, 1)
    body = ((x - 0.45) / 0.3) ** 2 + ((y - 0.5) / 0.25) ** 2 < 1
    tail = (x > 0.68) & (x < 0.92) & (abs(y - 0.5) < x - 0.66)
    pixels = np.stack([30 + 20 * y, 90 + 60 * x, 160 + 60 * y], axis=2)
    pixels[body | tail] = (240, 120, 30)
    pixels[((x - 0.28) ** 2 + (y - 0.42) ** 2) < 0.0012] = 0
    return pixels.astype(np.uint8)


def arguments(options: Mapping[str, object]) -> list[str]:
    """The options as the command line takes them."""
    words = [
        (f"--{name.replace('_', '-')}", each)
        for name, value in options.items()
        for each in (
            [share if label == "*" else f"{label}={share}" for label, share in value.items()]
            if isinstance(value, Mapping)
            else [value]
        )
    ]
    return [part for word, value in words for part in ([word] if value is True else [word, str(value)])]


def of_verdict(verdict: Verdict) -> Told:
    """The verdict itself."""
    return dict(json.loads(json.dumps(verdict.to_dict())))


def check(told: Sequence[Told], expected: Sequence[Verdict]) -> None:
    """Every field is what it should be."""
    check_told(told, [of_verdict(verdict) for verdict in expected])


def check_told(told: Sequence[Told], expected: Sequence[Told], priced: bool = True) -> None:
    """The same, where what is expected is what an interface tells; the prices too, unless they are of another table."""
    for said, wanted in zip(told, expected, strict=True):
        assert _compared(said, priced) == _compared(wanted, priced)


def _compared(told: Told, priced: bool) -> Told:
    asked = [{name: part for name, part in query.items() if priced or name != "price"} for query in told["asked"]]
    return {name: told[name] for name in FIELDS if priced or name != "price"} | {"asked": asked}
