"""Questions as jobs: their prices, wordings, known answers and results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

from looktwice.asking.ledger.protocol import MICRO, Bill, Entry, keys, tail
from looktwice.asking.outcome import Cause, Failure, Unscored
from looktwice.calibration.votes import RankedList, Row
from looktwice.classifiers.base import (
    NO_LABEL,
    Answer,
    AnyClassifier,
    Metered,
    Naming,
    Pixels,
    Prompted,
    Terms,
    Tokens,
    merged,
    why_none,
)
from looktwice.classifiers.prices import Tariff, tokens_of
from looktwice.errors import ImageError, PermanentError, ViewError
from looktwice.phrasing import AS_DESCRIBED, Phrasing
from looktwice.pictures.collection import Picture
from looktwice.pictures.descriptor import Floats, descriptor
from looktwice.pictures.image import Image
from looktwice.views import Panel, Question, View, base_question, questions, renderer
from looktwice.views.rendering import LONGEST

SOONEST = 0.05
"""Seconds until a question that another session has is looked up again; doubled each time."""


class Quote(NamedTuple):
    """The price of a question in millionths of the currency: expected, and at most."""

    expected: int
    most: int
    tokens: Tokens = Tokens()
    """The expected tokens."""


class Meter(Protocol):
    """Prices questions."""

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        """The price of a question about a picture of this size, in this wording."""

    def bill(self, answer: Answer, quote: Quote) -> Bill | None:
        """The bill of an answer; None where it costs the quoted maximum."""


@dataclass(frozen=True)
class FlatMeter:
    """Every question has the same price."""

    price_micros: int

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        return Quote(self.price_micros, self.price_micros)

    def bill(self, answer: Answer, quote: Quote) -> Bill | None:
        return None


class TokenMeter:
    """Questions are billed by the tokens of request and reply; in a batch at its lower price."""

    def __init__(self, classifier: Metered, tariff: Tariff, batched: bool = False) -> None:
        self._classifier, self._tariff, self._batched = classifier, tariff, batched
        self._quoted = lru_cache(maxsize=256)(self._weighed)

    def quote(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        return self._quoted(height, width, replace(phrasing, order=None))  # which has no price

    def bill(self, answer: Answer, quote: Quote) -> Bill | None:
        tokens = tokens_of(dict(answer.usage))
        return tokens and Bill(tokens, self._tariff.picos(tokens, self._batched), quote.expected)

    def _weighed(self, height: int, width: int, phrasing: Phrasing) -> Quote:
        weight = self._classifier.weigh(height, width, phrasing)
        tokens = self._tariff.expected(weight)
        expected, most = (self._tariff.picos(each, self._batched) for each in (tokens, self._tariff.most(weight)))
        return Quote(round(expected / MICRO), -(-most // MICRO), tokens)


class Round:
    """Questions that are asked together; it is over when each has its answer or failure."""

    def __init__(self) -> None:
        self.left = 0
        self.over = asyncio.Event()
        self.error: Exception | None = None

    def end(self, error: Exception) -> None:
        """Fail for a reason other than the classifier: `wait` raises the error."""
        self.error = self.error or error
        self.over.set()

    async def wait(self) -> None:
        await self.over.wait()
        if self.error:
            raise self.error


@dataclass(eq=False, slots=True)
class Job:
    """One question, and its answer or failure once it has one."""

    question: Question
    entry: Entry
    answer: Answer | Failure | None = None
    round: Round | None = None
    prepared: object = None
    quote: Quote | None = None
    """What it costs, where it has a price of its own."""
    attempts: int = 0
    """How often it was sent."""
    refusals: int = 0
    """How many of these the classifier refused because of its rate limit."""
    recheck_after: float = SOONEST
    """Seconds until it is looked up again, if another session has it."""
    listeners: tuple[Callable[[Answer | Failure], None], ...] = ()

    def listen(self, listener: Callable[[Answer | Failure], None]) -> None:
        """Call the listener with the answer, now or when it comes."""
        if self.answer is None:
            self.listeners = (*self.listeners, listener)
        else:
            listener(self.answer)

    def settle(self, answer: Answer | Failure) -> None:
        """Only the first answer counts."""
        if self.answer is None:
            self.answer, self.prepared = answer, None
            for listener in self.listeners:
                listener(answer)
            if self.round:
                self.round.left -= 1
                if self.round.left == 0:
                    self.round.over.set()


def settle(jobs: Iterable[Job], failure: Failure) -> None:
    """Fail each of these that has no answer."""
    for job in jobs:
        job.settle(failure)


class AnswerEvent(NamedTuple):
    """One answer, as it arrives."""

    name: str
    """The picture that was asked about."""
    place: int
    """0 for the picture itself, 1 … for the views of the panel."""
    view: str
    """What was shown: `again` is the picture as it is."""
    label: str | None
    """None where no label could be read, or nothing was answered."""


OnAnswer = Callable[[AnswerEvent], None]
Scores = Literal["use", "ignore"]
"""Whether scores and ranked lists of answers are evidence."""


@dataclass(frozen=True)
class Rounds:
    """Views asked a few at a time: `first` with the picture itself, then as many as `more` says, 0 for enough."""

    first: int
    more: Callable[[Row], int]
    """The answers about a picture so far → how many views to ask next."""


@dataclass(frozen=True)
class Screen:
    """What is computed from a picture's pixels before anything is asked about it."""

    descriptors: bool = False
    """Whether to describe each picture."""
    thumbnails: bool = False
    """Whether to make the thumbnail by which near-duplicates are found."""
    why: Callable[[Floats], str | None] | None = None
    """Why a picture with this descriptor is of another kind, for people; None where it is not."""
    refuse: bool = False
    """Whether nothing is asked about pictures of another kind."""

    def unfamiliar(self, described: Floats | None) -> str | None:
        """Why a picture is of another kind, as far as that is known."""
        return self.why(described) if self.why and described is not None else None


NO_SCREEN = Screen()


@dataclass(frozen=True)
class Trial:
    """A few pictures that are asked about, each in one question, before anything else is sent."""

    pictures: Sequence[Picture]
    check: Callable[[Sequence[str]], None]
    """Raises if their labels show that asking on would be in vain."""


@dataclass(eq=False, slots=True)
class Opened:
    """A picture whose questions are being asked: the base question first, then those of the panel."""

    picture: Picture
    image: Image
    descriptor: Floats | None
    thumbnail: bytes
    jobs: list[Job]
    names: Naming
    scores: Scores
    asked: int = 0

    def failure(self) -> Failure | None:
        """Why a question of this picture has no answer, where one has none."""
        return next((job.answer for job in self.jobs[: self.asked] if isinstance(job.answer, Failure)), None)

    def labels(self) -> list[str | None]:
        """The label of each question asked; None where none could be read."""
        return [self.label(job.answer) for job in self.jobs[: self.asked]]

    def lists(self) -> tuple[RankedList, ...]:
        """The ranked list of each question of the panel, empty where there is none; nothing where no answer has one."""
        if self.scores == "ignore":
            return ()
        answers = [job.answer for job in self.jobs[: self.asked]]
        found = [merged(self.names, answer) if isinstance(answer, Answer) else () for answer in answers]
        return (*found, *[()] * (len(self.jobs) - self.asked)) if any(found) else ()

    def label(self, answer: Answer | Failure | None) -> str | None:
        """The label that an answer means; None where it means none."""
        label = self.names.label(answer.label) if isinstance(answer, Answer) else NO_LABEL
        return label if label != NO_LABEL else None

    def report(self, on_answer: OnAnswer, place: int, answer: Answer | Failure) -> None:
        """Pass on the answer to one question."""
        on_answer(AnswerEvent(self.picture.name, place, self.jobs[place].entry.view, self.label(answer)))

    def further(self, rounds: Rounds) -> int:
        """How many more views to ask about this picture; none once a question of it has failed."""
        base, *views = self.labels()
        if base is None or self.failure() or self.asked == len(self.jobs):
            return 0
        return rounds.more(Row(self.picture.name, base, tuple(views), lists=self.lists()[: self.asked]))

    def row(self) -> Row | Unscored:
        """What was answered, or why there is no base label."""
        base, *views = self.labels()
        if failure := self.failure():
            return Unscored(self.picture.name, failure.cause, failure.message)
        if base is None:
            answer = self.jobs[0].answer
            why = why_none(self.names, answer.label if isinstance(answer, Answer) else NO_LABEL)
            return Unscored(self.picture.name, Cause.NO_LABEL, why)
        asked = (*views, *[None] * (len(self.jobs) - self.asked))
        return Row(self.picture.name, base, asked, self.image.digest, self.thumbnail, self.lists(), self.descriptor)


@dataclass(frozen=True)
class Opener:
    """Reads pictures and makes their questions to one classifier."""

    fingerprint: str
    terms: Terms
    seed: int
    names: Naming
    scores: Scores

    def open(self, picture: Picture, panel: Panel, screen: Screen) -> Opened | Unscored:
        """The picture with its questions, or why nothing is asked about it."""
        try:
            image = picture.image(self.terms.working_size)
        except ImageError as error:
            return Unscored(picture.name, Cause.UNREADABLE, error.why)
        height, width, _ = image.pixels.shape
        if max(height, width) > LONGEST:
            long = f"a picture of {width} x {height} is too long; scale it to {LONGEST} pixels a side or less"
            return Unscored(picture.name, Cause.UNREADABLE, long)
        described = descriptor(image.pixels, image.original_size) if screen.descriptors else None
        thumbnail = image.thumbnail() if screen.thumbnails else b""
        if screen.refuse and (why := screen.unfamiliar(described)):
            return Unscored(picture.name, Cause.UNFAMILIAR, why)
        asked = (base_question(image), *questions(image, panel, self.seed))
        form = " ".join(filter(None, (image.scaling, self.terms.sent_as(height, width))))
        texts = [_text(view, seed, index, form) for _, view, seed, index in asked]
        names = keys(self.fingerprint, image.digest, [tail for _, tail in texts])
        entered = zip(names, asked, texts, strict=True)
        jobs = [Job(q, Entry(name, q[0], text, q[2], q[3])) for name, q, (text, _) in entered]
        return Opened(picture, image, described, thumbnail, jobs, self.names, self.scores)


@lru_cache(maxsize=4096)
def _text(view: View, seed: int, index: int, form: str) -> tuple[str, bytes]:
    """The text of a view, and the part of the key that distinguishes questions about the same picture.

    `form` is how the picture was scaled and is sent, where it is not as it came and as the fingerprint says.
    """
    drawn = renderer([view])
    return str(view), tail(str(view), seed, index, f"{drawn} {form}" if form else drawn)


def check_words(classifier: AnyClassifier, views: Iterable[View]) -> None:
    """Refuse views that change the words of a question where the classifier cannot be asked so; nothing is asked."""
    for view in views:
        phrasing = view.phrased(AS_DESCRIBED, "")
        if phrasing is AS_DESCRIBED:
            continue
        if not isinstance(classifier, Prompted):
            raise ViewError(f"the view {view} changes the words of a question, and this classifier takes no prompt")
        classifier.words(phrasing)


def askable(classifier: AnyClassifier, views: Iterable[View]) -> tuple[View, ...]:
    """Those of the views that a classifier which takes a prompt can be asked; none for another classifier."""
    found: list[View] = []
    for view in views if isinstance(classifier, Prompted) else ():
        with suppress(PermanentError):
            check_words(classifier, [view])
            found.append(view)
    return tuple(found)


def prepare(classifier: AnyClassifier, pixels: Pixels, phrasing: Phrasing) -> object:
    """One picture as the classifier takes it, with the question in this wording."""
    if phrasing is not AS_DESCRIBED and isinstance(classifier, Prompted):
        return classifier.prepare_as(pixels, phrasing)
    return classifier.prepare(pixels)
