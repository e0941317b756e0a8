"""What a run would ask and cost, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from looktwice.classifiers.base import size_in_bytes
from looktwice.engine.outcome import Cause, Unscored
from looktwice.engine.query import OpenPicture, Screen
from looktwice.errors import ImageError
from looktwice.phrasing import AS_DESCRIBED

if TYPE_CHECKING:
    from looktwice.engine.engine import QueryEngine
    from looktwice.images.image import Image


@dataclass(frozen=True)
class Estimate:
    """An estimate of what a run would ask, without retries and canaries; identical queries count once."""

    pictures: int
    unreadable: int
    """Pictures that would not be scored, because they cannot be read."""
    questions: int
    hits: int
    """Questions whose answers the ledger has."""
    queries: int
    """Questions that would be sent."""
    micros: int
    """Their cost in millionths of the currency: exact for a price a query, estimated for prices by the token."""
    seconds: float | None
    """Seconds that takes at the allowed rate; None where nothing limits the rate."""
    unfamiliar: int = 0
    """Pictures of another kind than the profile's, as far as it can tell."""
    width: int = 0
    height: int = 0
    """Of the largest picture, as its views are drawn."""
    question_bytes: int | None = None
    """The bytes of a query about it as sent to the classifier; None where they are not known."""
    input_tokens: int = 0
    output_tokens: int = 0
    """Their estimated tokens, where they are billed by the token."""
    most_micros: int = 0
    """What they can cost at the most, which a budget must cover while they are in flight."""
    remaining: int | None = None
    """Queries that the budget still covers, at a typical price; None where nothing limits them."""

    def __add__(self, other: Estimate) -> Estimate:
        """The estimate for the pictures of both, one after the other; the largest picture is the larger of the two."""
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
        )


def estimate(engine: QueryEngine, opened: Iterable[OpenPicture | Unscored], screen: Screen) -> Estimate:
    """The sum over pictures whose queries were looked up in the ledger."""
    counts, seen = Counter[str](), set[str]()
    largest: Image | None = None
    for picture in opened:
        counts["pictures"] += 1
        if isinstance(picture, Unscored):
            counts["unreadable"] += picture.cause is Cause.UNREADABLE
            counts["unfamiliar"] += picture.cause is Cause.UNFAMILIAR
            continue
        counts["unfamiliar"] += screen.unfamiliar(picture.descriptor) is not None
        if largest is None or picture.image.pixels.size > largest.pixels.size:
            largest = picture.image
        if picture.image.digest in seen:
            continue
        seen.add(picture.image.digest)
        missing = [query for query in picture.queries if query.answer is None]
        counts.update(questions=len(picture.queries), hits=len(picture.queries) - len(missing), queries=len(missing))
        for query in missing:
            quote = engine.quote(picture.image, query.question.phrasing if query.question else AS_DESCRIBED)
            counts.update(micros=quote.expected, most_micros=quote.most)
            counts.update(input_tokens=quote.tokens.input, output_tokens=quote.tokens.output)
    rate = engine.terms.per_second
    height, width = largest.pixels.shape[:2] if largest else (0, 0)
    names = ("pictures", "unreadable", "questions", "hits", "queries", "micros")
    return Estimate(
        **{**dict.fromkeys(names, 0), **counts},
        width=width,
        height=height,
        question_bytes=_bytes(engine, largest) if largest else None,
        seconds=counts["queries"] / rate if rate else None,
        remaining=engine.runner.remaining(),
    )


def _bytes(engine: QueryEngine, image: Image) -> int | None:
    """Of a query about this picture as it is sent; None where the classifier does not take it."""
    try:
        return size_in_bytes(engine.classifier.prepare(image.pixels))
    except ImageError:
        return None
