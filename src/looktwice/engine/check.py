"""Query one picture a few times to check that the classifier responds, and to measure its latency, price and
repeatability."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from looktwice.classifiers import Answer, AnswerKind, size_in_bytes, tags, why_none
from looktwice.engine.channel import Channel
from looktwice.engine.ledger.schema import Entry, place
from looktwice.engine.picture import OpenPicture, Run
from looktwice.engine.query import Cause, Failure, Unscored
from looktwice.files import join_tags
from looktwice.images import Image

TIMES = 3
SHOWN = 200
"""The maximum number of characters of an unreadable reply that are shown."""
NAMED = 3
"""The maximum number of labels shown from a list."""


@dataclass(frozen=True)
class Checkup:
    """Repeated answers of a classifier about one picture, and its limits."""

    fingerprint: str
    labels: tuple[str | None, ...]
    """The label of each answer; None for an answer without a label."""
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
    """The expected numbers of tokens of a query and its answer, if billed per token."""
    billed: tuple[tuple[int, int], ...] = ()
    """The numbers of tokens of each query and its answer, as reported by the classifier."""
    kind: AnswerKind = "label"
    """The kind of answer; for tags, each element of `labels` contains all tags of one answer as a string."""
    listed: tuple[str, ...] = ()
    """The first labels in the first answer, if this answer lists several labels that may all apply."""
    unread: tuple[str, ...] = ()
    """The reasons why answers have no label, with the text of these answers."""

    def steady(self) -> bool:
        """Whether all answers contain the same label."""
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
    """Query one picture three times, which is billed; raises a ClassifierError if it fails."""
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
        tuple(answer.usage[:2] for answer, _ in timed if answer.usage),
        channel.kind,
        tuple(channel.names.label(word) for word, _ in timed[0][0].options[:NAMED]) if _are_tags(timed[0][0]) else (),
        tuple(
            f"{why_none(channel.names, answer.label)}; the reply was {answer.label[:SHOWN]!r}"
            for answer, _ in timed
            if _label(channel, answer) is None
        ),
    )


def _label(channel: Channel, answer: Answer) -> str | None:
    """The label of an answer, or its tags as one string, possibly empty; None if the answer contains neither."""
    if channel.kind == "tags":
        return join_tags(tag for tag, _ in tags(channel.names, answer))
    return channel.names.label(answer.label) or None


def _are_tags(answer: Answer) -> bool:
    """Whether an answer looks like tags: several labels whose scores sum to more than one."""
    known = [score for _, score in answer.options if score is not None]
    whole = 100.0 if max(known, default=0.0) > 1 else 1.0
    return len(answer.options) > 1 and (len(known) < len(answer.options) or sum(known) > 1.05 * whole)


@dataclass(frozen=True)
class Estimate:
    """An estimate of a run's queries, without retries and canaries; identical queries are counted once."""

    pictures: int
    unreadable: int
    """Pictures that cannot be read."""
    questions: int
    hits: int
    """Queries with a stored answer."""
    queries: int
    """Queries that would be sent."""
    micros: int
    """The cost of these queries in millionths of the currency: exact for a price per query, estimated for prices per
    token."""
    seconds: float | None
    """The duration in seconds at the allowed rate; None without a rate limit."""
    unfamiliar: int = 0
    """The number of unfamiliar pictures, as far as the profile can recognise them."""
    input_tokens: int = 0
    output_tokens: int = 0
    """The estimated numbers of tokens, if queries are billed per token."""
    most_micros: int = 0
    """The maximum cost of the queries, which a budget must cover while they are in flight."""
    remaining: int | None = None
    """The number of queries that the budget still covers, at a typical price; None without a limit."""
    classifiers: dict[str, dict[str, int]] = field(default_factory=dict)
    """Stored answers, queries, money and tokens by classifier, if there are several."""

    def __add__(self, other: Estimate) -> Estimate:
        """Combine the estimates of two sets of pictures."""
        limited = [each.seconds for each in (self, other) if each.seconds is not None]
        return Estimate(
            pictures=self.pictures + other.pictures,
            unreadable=self.unreadable + other.unreadable,
            questions=self.questions + other.questions,
            hits=self.hits + other.hits,
            queries=self.queries + other.queries,
            micros=self.micros + other.micros,
            seconds=sum(limited) if limited else None,
            unfamiliar=self.unfamiliar + other.unfamiliar,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            most_micros=self.most_micros + other.most_micros,
            remaining=self.remaining,
            classifiers={
                name: dict(Counter(self.classifiers.get(name, {})) + Counter(other.classifiers.get(name, {})))
                for name in self.classifiers | other.classifiers
            },
        )


def estimate(run: Run, opened: Iterable[OpenPicture | Unscored], remaining: int | None) -> Estimate:
    """Sum the estimates for pictures whose queries were looked up in the ledger."""
    counts, seen = Counter[str](), set[bytes]()
    asked: dict[str, Counter[str]] = {channel.name: Counter() for channel in run.channels}
    for picture in opened:
        counts["pictures"] += 1
        if isinstance(picture, Unscored):
            counts["unreadable"] += picture.cause is Cause.UNREADABLE
            counts["unfamiliar"] += picture.cause is Cause.UNFAMILIAR
            continue
        counts["unfamiliar"] += run.screen.unfamiliar(picture.descriptor) is not None
        for query in picture.queries:
            if query.entry.key in seen:
                continue
            seen.add(query.entry.key)
            own = asked[query.channel.name]
            own.update(questions=1, hits=query.answer is not None, queries=query.answer is None)
            if query.answer is None and query.question:
                image = picture.images[query.channel.settings.limits.working_size]
                quote = query.channel.quote(image, query.question.phrasing)
                own.update(micros=quote.expected, most_micros=quote.most)
                own.update(input_tokens=quote.tokens.input, output_tokens=quote.tokens.output)
    names = ("pictures", "unreadable", "questions", "hits", "queries", "micros")
    rates = [(channel.settings.limits.per_second, asked[channel.name]["queries"]) for channel in run.channels]
    return Estimate(
        **{**dict.fromkeys(names, 0), **counts, **sum(asked.values(), Counter[str]())},
        seconds=max((queries / rate for rate, queries in rates if rate), default=None),
        remaining=remaining,
        classifiers={name: dict(own) for name, own in asked.items()} if len(asked) > 1 else {},
    )
