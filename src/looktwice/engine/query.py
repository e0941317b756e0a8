"""Pictures as queries: what is asked about each, what the ledger knows of it, and the votes that come of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from looktwice.calibration.votes import RankedList, Row
from looktwice.classifiers.base import (
    NO_LABEL,
    Answer,
    AnyClassifier,
    Naming,
    Pixels,
    Prompted,
    Terms,
    merged,
    names_of,
    why_none,
)
from looktwice.engine.ledger.schema import Entry, joined, keys
from looktwice.engine.meter import Quote
from looktwice.engine.outcome import Cause, Failure, Unscored
from looktwice.errors import ImageError, PermanentError, ViewError
from looktwice.images.collection import Picture
from looktwice.images.descriptor import Floats, descriptor
from looktwice.images.image import Image
from looktwice.phrasing import AS_DESCRIBED, Phrasing
from looktwice.views import Panel, Question, View, base_question, questions, render, renderer
from looktwice.views.rendering import LONGEST

RENDERED_BYTES = 4_000_000
"""Rendered views of a picture that a thread holds before they are prepared."""


@dataclass(eq=False, slots=True)
class Query:
    """One question to a classifier, and its answer or failure once it has one."""

    entry: Entry
    name: str = ""
    """The picture that it is about."""
    place: int = 0
    """0 for the picture itself, 1 … for the views of the panel."""
    question: Question | None = None
    """What is shown; None where it was prepared beforehand."""
    prepared: object = None
    quote: Quote | None = None
    """What it costs, once it is prepared."""
    answer: Answer | Failure | None = None
    stored_at: float | None = None
    """When the answer was stored, where the ledger had it."""
    retried: bool = True
    """Whether it is sent again if it fails in a transient way."""
    waiting: int = 0
    """How many wait for the answer; a query that nobody waits for is not sent."""


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


@dataclass(eq=False, slots=True)
class OpenPicture:
    """A picture whose queries are being asked: the base query first, then those of the panel."""

    name: str
    image: Image
    descriptor: Floats | None
    thumbnail: bytes
    queries: list[Query]
    names: Naming
    scores: Scores
    asked: int = 0

    def failure(self) -> Failure | None:
        """Why a query of this picture has no answer, where one has none."""
        return next((each.answer for each in self.queries[: self.asked] if isinstance(each.answer, Failure)), None)

    def labels(self) -> list[str | None]:
        """The label of each query asked; None where none could be read."""
        return [label_of(self.names, query.answer) for query in self.queries[: self.asked]]

    def lists(self) -> tuple[RankedList, ...]:
        """The ranked list of each query of the panel, empty where there is none; nothing where no answer has one."""
        if self.scores == "ignore":
            return ()
        answers = [query.answer for query in self.queries[: self.asked]]
        ranked = [merged(self.names, answer) if isinstance(answer, Answer) else () for answer in answers]
        return (*ranked, *[()] * (len(self.queries) - self.asked)) if any(ranked) else ()

    def next_queries(self, rounds: Rounds | None) -> list[Query]:
        """The queries to ask now: all of them, or as many as the rounds say; none once one has failed."""
        start = self.asked
        if rounds is None:
            self.asked = len(self.queries)
        elif start == 0:
            self.asked = min(1 + rounds.first, len(self.queries))
        else:
            base, *views = self.labels()
            if base is not None and not self.failure() and start < len(self.queries):
                row = Row(self.name, base, tuple(views), lists=self.lists()[:start])
                self.asked = min(start + rounds.more(row), len(self.queries))
        return self.queries[start : self.asked]

    def row(self) -> Row | Unscored:
        """What was answered, or why there is no base label."""
        base, *views = self.labels()
        if failure := self.failure():
            return Unscored(self.name, failure.cause, failure.message)
        if base is None:
            answer = self.queries[0].answer
            why = why_none(self.names, answer.label if isinstance(answer, Answer) else NO_LABEL)
            return Unscored(self.name, Cause.NO_LABEL, why)
        asked = (*views, *[None] * (len(self.queries) - self.asked))
        return Row(self.name, base, asked, self.image.digest, self.thumbnail, self.lists(), self.descriptor)


def label_of(names: Naming, answer: Answer | Failure | None) -> str | None:
    """The label that an answer means; None where it means none."""
    label = names.label(answer.label) if isinstance(answer, Answer) else NO_LABEL
    return label if label != NO_LABEL else None


@dataclass(frozen=True)
class Opener:
    """Reads pictures and makes their queries to one classifier."""

    classifier: AnyClassifier
    terms: Terms
    seed: int
    scores: Scores
    names: Naming = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", names_of(self.classifier))

    def open(self, picture: Picture, panel: Panel, screen: Screen) -> OpenPicture | Unscored:
        """The picture with its queries, or why nothing is asked about it."""
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
        if screen.refuse and (unfamiliar := screen.unfamiliar(described)):
            return Unscored(picture.name, Cause.UNFAMILIAR, unfamiliar)
        asked = (base_question(image), *questions(image, panel, self.seed))
        form = " ".join(filter(None, (image.scaling, self.terms.sent_as(height, width))))
        texts = [_text(view, seed, index, form) for _, view, seed, index in asked]
        names = keys(self.classifier.fingerprint, image.digest, [tail for _, tail in texts])
        queries = [
            Query(Entry(key, question.digest, text, question.seed, question.index), picture.name, place, question)
            for place, (key, question, (text, _)) in enumerate(zip(names, asked, texts, strict=True))
        ]
        return OpenPicture(picture.name, image, described, thumbnail, queries, self.names, self.scores)

    def prepare(self, image: Image, queries: Sequence[Query], quote: Callable[[int, int, Phrasing], Quote]) -> None:
        """Render and encode, in slices, so that a large picture is never held in all its views at once.

        A query that the classifier cannot take gets its failure.
        """
        step = max(1, RENDERED_BYTES // image.pixels.nbytes)
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            shown = [query.question for query in part if query.question]
            for query, question, pixels in zip(part, shown, render(image, shown), strict=True):
                height, width, _ = pixels.shape
                try:
                    query.prepared = prepare(self.classifier, pixels, question.phrasing)
                except ImageError as error:
                    query.answer = Failure(Cause.UNFIT, str(error))
                else:
                    query.quote = quote(height, width, question.phrasing)


@lru_cache(maxsize=4096)
def _text(view: View, seed: int, index: int, form: str) -> tuple[str, bytes]:
    """The text of a view, and the part of the key that distinguishes queries about the same picture.

    `form` is how the picture was scaled and is sent, where it is not as it came and as the fingerprint says.
    """
    rendered = renderer([view])
    return str(view), joined(str(view), str(seed), str(index), f"{rendered} {form}" if form else rendered)


def again(entry: Entry) -> Entry:
    """A query that asks a stored one again, with a key of its own."""
    return entry._replace(key=entry.key[:4] + secrets.token_bytes(12), of=entry.key)


def check_words(classifier: AnyClassifier, views: Iterable[View]) -> None:
    """Refuse views that change the words of a query where the classifier cannot be asked so; nothing is asked."""
    for view in views:
        phrasing = view.phrased(AS_DESCRIBED, "")
        if phrasing is AS_DESCRIBED:
            continue
        if not isinstance(classifier, Prompted):
            raise ViewError(f"the view {view} changes the words of a question, and this classifier takes no prompt")
        classifier.words(phrasing)


def askable(classifier: AnyClassifier, views: Iterable[View]) -> tuple[View, ...]:
    """Those of the views that a classifier which takes a prompt can be asked; none for another classifier."""
    possible: list[View] = []
    for view in views if isinstance(classifier, Prompted) else ():
        with suppress(PermanentError):
            check_words(classifier, [view])
            possible.append(view)
    return tuple(possible)


def prepare(classifier: AnyClassifier, pixels: Pixels, phrasing: Phrasing) -> object:
    """One picture as the classifier takes it, with the question in this wording."""
    if phrasing is not AS_DESCRIBED and isinstance(classifier, Prompted):
        return classifier.prepare_as(pixels, phrasing)
    return classifier.prepare(pixels)
