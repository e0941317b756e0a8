"""Ask about one picture a few times: whether the classifier can be reached, its latency, price and repeatability."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from looktwice.classifiers import Answer, AnswerKind, size_in_bytes, tags, tokens_of, why_none
from looktwice.engine.channel import Channel
from looktwice.engine.ledger.schema import Entry, place
from looktwice.engine.query import Failure, Unscored
from looktwice.files import join_tags
from looktwice.images import Image

TIMES = 3
SHOWN = 200
"""The most characters of an unreadable reply that are shown."""
NAMED = 3
"""The most labels of a list that are shown."""


@dataclass(frozen=True)
class Checkup:
    """Repeated answers of a classifier about one picture, and its limits."""

    fingerprint: str
    labels: tuple[str | None, ...]
    """The label of each answer, None if it held no label."""
    seconds: float
    """The median latency, in seconds."""
    price_micros: int
    batch: int
    concurrency: int
    per_second: float | None
    classes: int | None
    working_size: str
    """The size to which pictures are scaled down, as a phrase."""
    width: int
    height: int
    """The size of the picture as sent."""
    question_bytes: int | None
    """The size of a query in bytes; None if unknown."""
    scores: tuple[tuple[float | None, int], ...] = ()
    """The score of each answer and the number of ranked labels; 0 without a ranked list."""
    tokens: tuple[int, int] = (0, 0)
    """The expected tokens of a query and its answer, if billed by the token."""
    billed: tuple[tuple[int, int], ...] = ()
    """The tokens of each query, as counted by the classifier."""
    kind: AnswerKind = "label"
    """The kind of answer; for tags, `labels` has all tags of an answer as one string."""
    listed: tuple[str, ...] = ()
    """The first labels of the first answer, if it lists several that may all apply."""
    unread: tuple[str, ...] = ()
    """Why answers have no label, with their text."""

    def steady(self) -> bool:
        """Whether all answers are the same label."""
        return None not in self.labels and len(set(self.labels)) == 1


def test_card() -> NDArray[np.uint8]:
    """A test image of 256 × 256 pixels with edges, colours and a gradient."""
    ramp = np.linspace(0, 255, 256, dtype=np.uint8)
    card = np.stack(
        [np.tile(ramp, (256, 1)), np.tile(ramp[:, None], (1, 256)), np.full((256, 256), 96, np.uint8)], axis=2
    )
    card[64:192, 64:192] = 255 - card[64:192, 64:192]
    return card


async def examine(channel: Channel, image: Image) -> Checkup:
    """Ask about one picture three times, which is billed; raises a ClassifierError if it fails."""
    classifier, limits = channel.classifier, channel.settings.limits
    prepared = await asyncio.to_thread(classifier.prepare, image.pixels)
    quote = channel.quote(image)
    entry = Entry(place(image.digest), image.digest, "again", 0, 0)
    timed: list[tuple[Answer, float]] = []
    for _ in range(TIMES):
        started = time.perf_counter()
        answer = await channel.probe(image, entry, retried=False)
        if isinstance(answer, Failure):
            raise answer.error or channel.runner.fatal or Unscored("check", answer.cause, answer.message).error()
        timed.append((answer, time.perf_counter() - started))
    answers = [(_label(channel, answer), seconds) for answer, seconds in timed]
    return Checkup(
        classifier.fingerprint,
        tuple(label for label, _ in answers),
        median(seconds for _, seconds in answers),
        quote.expected,
        limits.batch,
        limits.concurrency,
        limits.per_second,
        len(classifier.labels) if classifier.labels else None,
        str(limits.working_size),
        image.pixels.shape[1],
        image.pixels.shape[0],
        size_in_bytes(prepared),
        tuple((answer.score, len(answer.options)) for answer, _ in timed),
        quote.tokens[:2],
        tuple(tokens[:2] for answer, _ in timed if (tokens := tokens_of(dict(answer.usage)))),
        channel.kind,
        tuple(channel.names.label(word) for word, _ in timed[0][0].options[:NAMED]) if _are_tags(timed[0][0]) else (),
        tuple(
            f"{why_none(channel.names, answer.label)}; the reply was {answer.label[:SHOWN]!r}"
            for answer, _ in timed
            if _label(channel, answer) is None
        ),
    )


def _label(channel: Channel, answer: Answer) -> str | None:
    """The label of an answer, or its tags as one string, possibly empty; None if there is none."""
    if channel.kind == "tags":
        return join_tags(tag for tag, _ in tags(channel.names, answer))
    return channel.names.label(answer.label) or None


def _are_tags(answer: Answer) -> bool:
    """Whether an answer looks like tags: several labels whose scores sum to more than one."""
    known = [score for _, score in answer.options if score is not None]
    whole = 100.0 if max(known, default=0.0) > 1 else 1.0
    return len(answer.options) > 1 and (len(known) < len(answer.options) or sum(known) > 1.05 * whole)
