"""Estimates of a run's queries and cost, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from looktwice.classifiers import size_in_bytes
from looktwice.engine.channel import Channel
from looktwice.engine.picture import OpenPicture, Run
from looktwice.engine.query import Cause, Unscored
from looktwice.errors import ImageError
from looktwice.images import Image


@dataclass(frozen=True)
class Estimate:
    """An estimate of a run's queries, without retries and canaries; identical queries count once."""

    pictures: int
    unreadable: int
    """Pictures that cannot be read."""
    questions: int
    hits: int
    """Queries with a stored answer."""
    queries: int
    """Queries that would be sent."""
    micros: int
    """Their cost in millionths of the currency: exact for a price per query, estimated for prices by the token."""
    seconds: float | None
    """The duration in seconds at the allowed rate; None without a rate limit."""
    unfamiliar: int = 0
    """Unfamiliar pictures, as far as the profile can tell."""
    width: int = 0
    height: int = 0
    """The size of the largest picture, after scaling."""
    question_bytes: int | None = None
    """The size of a query about it in bytes; None if unknown."""
    input_tokens: int = 0
    output_tokens: int = 0
    """Their estimated tokens, if billed by the token."""
    most_micros: int = 0
    """Their maximum cost, which a budget must cover while they are in flight."""
    remaining: int | None = None
    """Queries that the budget still covers, at a typical price; None without a limit."""
    classifiers: dict[str, dict[str, int]] = field(default_factory=dict)
    """Stored answers, queries, money and tokens by classifier, if there are several."""

    def __add__(self, other: Estimate) -> Estimate:
        """Combine the estimates of two sets of pictures."""
        limited = [each.seconds for each in (self, other) if each.seconds is not None]
        largest = max(self, other, key=lambda each: each.width * each.height)
        return Estimate(
            pictures=self.pictures + other.pictures,
            unreadable=self.unreadable + other.unreadable,
            questions=self.questions + other.questions,
            hits=self.hits + other.hits,
            queries=self.queries + other.queries,
            micros=self.micros + other.micros,
            seconds=sum(limited) if limited else None,
            unfamiliar=self.unfamiliar + other.unfamiliar,
            width=largest.width,
            height=largest.height,
            question_bytes=largest.question_bytes,
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
    """Sum over pictures whose queries were looked up in the ledger."""
    counts, seen = Counter[str](), set[bytes]()
    asked: dict[str, Counter[str]] = {channel.name: Counter() for channel in run.channels}
    largest: Image | None = None
    for picture in opened:
        counts["pictures"] += 1
        if isinstance(picture, Unscored):
            counts["unreadable"] += picture.cause is Cause.UNREADABLE
            counts["unfamiliar"] += picture.cause is Cause.UNFAMILIAR
            continue
        counts["unfamiliar"] += run.screen.unfamiliar(picture.descriptor) is not None
        if largest is None or picture.image.pixels.size > largest.pixels.size:
            largest = picture.image
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
    height, width = largest.pixels.shape[:2] if largest else (0, 0)
    rates = [(channel.settings.limits.per_second, asked[channel.name]["queries"]) for channel in run.channels]
    return Estimate(
        **{**dict.fromkeys(names, 0), **counts, **sum(asked.values(), Counter[str]())},
        width=width,
        height=height,
        question_bytes=_bytes(run.channels[0], largest) if largest else None,
        seconds=max((queries / rate for rate, queries in rates if rate), default=None),
        remaining=remaining,
        classifiers={name: dict(own) for name, own in asked.items()} if len(asked) > 1 else {},
    )


def _bytes(channel: Channel, image: Image) -> int | None:
    """The size of a query about this picture; None if the classifier does not accept it."""
    try:
        return size_in_bytes(channel.classifier.prepare(image.pixels))
    except ImageError:
        return None
