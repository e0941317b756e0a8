"""The pictures of a report: thumbnails, views, and examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from looktwice.model import (
    PHOTO,
    SMALL,
    Calibrator,
    DataError,
    Image,
    ImageError,
    Jury,
    Panel,
    Picture,
    Policy,
    View,
    Votes,
    calibration,
    data_url,
    find,
    questions,
    render,
    shrunk,
)
from looktwice.report.inputs import Judged

SIDE = 144
"""The maximum number of pixels on the longer side of a thumbnail."""
SAMPLE_SIDE = 512
"""The size to which the sample is scaled before views are rendered, since rendering is slow on large photos."""
SAMPLE = 14
"""The embedded sample picture, a boot, whose orientation is visible."""
CARDS = 12
"""Pictures in a gallery."""
VIEWS = 24
"""Views that are listed."""
DRAWS = 3
"""The number of draws shown for a random view."""


@dataclass(frozen=True)
class Thumbnail:
    """A picture in the form in which a page embeds it."""

    uri: str
    width: int
    height: int

    @property
    def small(self) -> bool:
        """Whether to display the picture without smoothing."""
        return max(self.width, self.height) <= SMALL


def thumbnail(pixels: NDArray[np.uint8]) -> Thumbnail:
    """A thumbnail as a data URL, at most SIDE pixels wide and high."""
    small = shrunk(pixels, SIDE)
    return Thumbnail(data_url(small), small.shape[1], small.shape[0])


# The panel -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViewRow:
    """One view, or all draws of one random view, and its weight."""

    text: str
    words: str
    draws: int
    weight: float | None
    """The view's weight, a log odds ratio, averaged over the draws; None if all weights are equal."""
    low: float | None
    high: float | None
    keeps: float | None
    """The share of pictures on which the view's label equals the base label."""
    right: float | None
    """The share of pictures on which the view's label is the true label."""
    thumbnails: tuple[Thumbnail, ...]

    @property
    def odds(self) -> float | None:
        """The factor by which the view's vote multiplies the odds of a label."""
        return None if self.weight is None else float(np.exp(self.weight))


def panel(policy: Policy, seed: int, judged: Judged | None, image: Image) -> list[ViewRow]:
    """The base query, then each view of the panel in order; draws of one view are in the same row."""
    places: dict[View, list[int]] = {}
    for place, view in enumerate(policy.panel):
        places.setdefault(view, []).append(place)
    jury, small = _jury(policy.calibrator), Image.from_array(shrunk(image.pixels, SAMPLE_SIDE))
    itself = (thumbnail(small.pixels),)
    rows = [ViewRow("", "the picture itself", 1, *_weight(jury, [0]), None, _right(judged, None), itself)]
    for view, here in list(places.items())[:VIEWS]:
        weight = _weight(jury, [1 + place for place in here])
        keeps = None if judged is None else _share(judged.votes, here, judged.votes.base)
        asked = questions(small, Panel((view,) * min(len(here), DRAWS)), seed)
        drawn = tuple(thumbnail(pixels) for pixels in render(small, asked))
        rows.append(ViewRow(str(view), view.adjective, len(here), *weight, keeps, _right(judged, here), drawn))
    return rows


def _jury(calibrator: Calibrator) -> Jury | None:
    """The jury whose view weights are shown; None for other calibrators."""
    jury = calibrator.juries[-1] if isinstance(calibrator, calibration.AdaptiveJury) else calibrator
    return jury if isinstance(jury, Jury) else None


def _weight(jury: Jury | None, places: list[int]) -> tuple[float | None, float | None, float | None]:
    """The mean weight of the answers at these indices, where 0 is the picture itself, with its 95 % interval."""
    if jury is None:
        return None, None, None
    middle = float(np.array(jury.weights)[places].mean())
    half = 1.96 * float(np.sqrt(max(0.0, np.array(jury.covariance)[np.ix_(places, places)].mean())))
    return middle, middle - half, middle + half


def _right(judged: Judged | None, places: list[int] | None) -> float | None:
    """The accuracy of views, or of the pictures themselves."""
    labelled = judged.labelled() if judged else None
    if labelled is None:
        return None
    right = labelled.base == labelled.truths
    return float(right.mean()) if places is None else _share(labelled, places, labelled.truths)


def _share(votes: Votes, places: list[int], labels: calibration.Codes) -> float | None:
    """The share of answers to these views that equal these labels; None without answers."""
    views = votes.views[:, places]
    asked = int((views != calibration.MISSING).sum())
    return int((views == labels[:, None]).sum()) / asked if asked else None


# The pictures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """One picture of a gallery."""

    name: str
    label: str
    confidence: float
    truth: str | None
    """The picture's true label, if known."""
    right: bool | None
    base: str
    votes: str
    """The votes of the views, or the reason why the picture is unfamiliar."""
    thumbnail: Thumbnail | None


@dataclass(frozen=True)
class Gallery:
    """A group of similar examples."""

    heading: str
    about: str
    total: int
    cards: tuple[Card, ...]


def galleries(
    judged: Judged, pictures: Sequence[Picture], unfamiliar: Mapping[int, str], false_alarms: float
) -> list[Gallery]:
    """Unfamiliar pictures, the ones with the lowest confidence, with confident wrong answers, and with answers
    corrected by views; empty groups are omitted.

    `unfamiliar` has the reason for each unfamiliar picture by its index, the least familiar first.
    """
    share, rising = len(unfamiliar) / len(judged.votes), np.argsort(judged.confidence, kind="stable")
    groups = [
        (
            "Unlike the pictures that the profile was fitted on",
            f"{100 * share:.1f} % of the pictures, while {100 * false_alarms:.1f} % are expected. They are never "
            "accepted: their confidence is not valid.",
            np.array(list(unfamiliar), np.intp),
        ),
        ("Most doubtful", "The answers with the lowest confidence, which a person should check first.", rising),
    ]
    labelled = judged.labelled()
    if judged.correct is not None and labelled is not None:
        correct, first = judged.correct, labelled.base == labelled.truths
        falling = rising[::-1]
        saved, spoilt = falling[(correct & ~first)[falling]], int((~correct & first).sum())
        groups += [
            (
                "Confidently wrong",
                "The wrong answers with the highest confidence: errors that the views share, or wrong true labels.",
                falling[~correct[falling]],
            ),
            (
                "Corrected by the views",
                "The classifier was wrong about the picture itself, but the views outvoted it. "
                f"In return, they overturned {spoilt:,} right answer{'s' if spoilt != 1 else ''}.",
                saved,
            ),
        ]
    known = {item.name: item for item in pictures}
    return [
        Gallery(
            heading, about, len(rows), tuple(_card(judged, known, row, unfamiliar) for row in rows[:CARDS].tolist())
        )
        for heading, about, rows in groups
        if len(rows)
    ]


def sample(pictures: Iterable[Picture]) -> Image:
    """A sample picture for the views: the first readable one, else an embedded one."""
    for item in pictures:
        try:
            return item.image(PHOTO)
        except (ImageError, DataError):
            continue
    clothes = find([Path(str(files("looktwice") / "demo" / "pictures.npz"))])
    return clothes[SAMPLE].image()


def _card(judged: Judged, known: Mapping[str, Picture], row: int, unfamiliar: Mapping[int, str]) -> Card:
    votes, labelled = judged.votes, judged.labelled()
    name, label = votes.names[row], votes.vocabulary[judged.label[row]]
    try:
        seen = thumbnail(known[name].image(PHOTO).pixels) if name in known else None
    except (ImageError, DataError):
        seen = None
    return Card(
        name,
        label,
        float(judged.confidence[row]),
        None if labelled is None else labelled.words[row],
        None if judged.correct is None else bool(judged.correct[row]),
        votes.vocabulary[votes.base[row]],
        unfamiliar.get(row) or _agreement(votes, row, label),
        seen,
    )


def _agreement(votes: Votes, row: int, label: str) -> str:
    """The number of views that return this label, and the most frequent other labels."""
    views = [votes.vocabulary[code] for code in votes.views[row].tolist() if code != calibration.MISSING]
    parts = [f"{views.count(label)} of {len(views)} views agree" if views else "no view was asked"]
    for other, times in Counter(view for view in views if view != label).most_common(2):
        parts.append(f"{times} say {other}" if times > 1 else f"one says {other}")
    return "; ".join(parts)
