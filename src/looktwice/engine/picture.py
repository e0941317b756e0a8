"""A picture, its queries to each classifier, and the resulting votes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from typing import NamedTuple

from looktwice.calibration import RankedList, Row
from looktwice.classifiers import NO_LABEL, Answer, merged, tags, why_none
from looktwice.engine.channel import Channel
from looktwice.engine.ledger.schema import Entry, joined, keys
from looktwice.engine.query import Cause, Failure, OnAnswer, Query, Rounds, Screen, Unscored, check_words
from looktwice.errors import ImageError, ViewError
from looktwice.images import Floats, Image, Picture, WorkingSize
from looktwice.views import LONGEST, Again, Panel, Question, View, classifier_of, drawn, renderer


class Slot(NamedTuple):
    """One source of a panel: a view and a classifier."""

    place: int
    channel: Channel
    view: View
    seed: int
    index: int  # type: ignore[assignment]
    source: str
    """The name of the source in the panel, such as `gpt@mirror`."""


@dataclass(eq=False)
class Run:
    """The state of one call of `ask`: its queries for each picture, and the classifiers that failed."""

    slots: tuple[Slot, ...]
    rounds: Rounds | None
    screen: Screen
    on_answer: OnAnswer | None
    spent: dict[str, Failure] = field(default_factory=dict)
    """The classifiers whose budgets do not cover another query, by name, each with the failure to report."""

    @classmethod
    def for_panel(
        cls,
        channels: Mapping[str, Channel],
        panel: Panel,
        rounds: Rounds | None,
        screen: Screen,
        on_answer: OnAnswer | None,
    ) -> Run:
        """Create a run of this panel; raises a ViewError if a classifier does not support a view."""
        first = panel.first or next(iter(channels))
        slots = [(Again(), 0), *panel.slots]
        names = [classifier_of(view) or first for view, _ in slots]
        if unknown := set(names) - channels.keys():
            raise ViewError(
                f"no classifier is named {min(unknown)!r}; choose one of {', '.join(channels)}", code="view-unknown"
            )
        for name in dict.fromkeys(names):
            views = (drawn(view) for (view, _), who in zip(slots, names, strict=True) if who == name)
            check_words(channels[name].classifier, views)
        placed = []
        for place, ((view, index), name) in enumerate(zip(slots, names, strict=True)):
            seed = channels[name].settings.seed if view.random else 0
            placed.append(Slot(place, channels[name], drawn(view), seed, index, str(view)))
        return cls(tuple(placed), rounds, screen, on_answer)

    @cached_property
    def channels(self) -> list[Channel]:
        """The distinct classifiers that are queried."""
        return list({slot.channel.name: slot.channel for slot in self.slots}.values())

    @property
    def asked_first(self) -> int:
        """The number of first-round queries per picture."""
        return min(1 + self.rounds.first, len(self.slots)) if self.rounds else len(self.slots)

    def note_spent(self, queries: Iterable[Query]) -> None:
        """Record the classifiers whose budgets did not cover one of these queries."""
        for query in queries:
            if isinstance(query.answer, Failure) and query.answer.cause is Cause.BUDGET:
                self.spent[query.channel.name] = query.answer

    def closed(self, channel: Channel) -> Failure | None:
        """The reason why a classifier can no longer be queried; None if it still can."""
        return channel.runner.halt or self.spent.get(channel.name)

    def halted(self) -> Failure | None:
        """The reason why every classifier was stopped or has failed permanently; None if at least one is still
        available."""
        reasons = [channel.runner.halt for channel in self.channels]
        return reasons[0] if all(reasons) else None

    def ended(self) -> Failure | None:
        """The reason why no classifier can be queried any more; None if at least one still can."""
        reasons = [self.closed(channel) for channel in self.channels]
        return reasons[0] if all(reasons) else None

    def fatal(self) -> Exception | None:
        """The error that ends the run, once every classifier has failed permanently; until then None."""
        errors = [channel.runner.fatal for channel in self.channels]
        return errors[0] if all(errors) else None


@dataclass(eq=False, slots=True)
class OpenPicture:
    """A picture and its queries so far: the base query first, then the panel's queries."""

    picture: Picture
    run: Run
    image: Image
    """The image prepared for the first classifier."""
    descriptor: Floats | None
    thumbnail: bytes
    queries: list[Query] = field(default_factory=list)
    images: dict[WorkingSize, Image] = field(default_factory=dict)

    def add(self, wanted: int, prepares: bool = True) -> list[Query]:
        """The next `count` queries, either with their stored answers or prepared for sending.

        Queries whose classifier can no longer be queried are added with the reason instead of an answer.
        """
        start = len(self.queries)
        while wanted > 0 and (slots := self.run.slots[len(self.queries) :][:wanted]):
            wanted = 0
            for channel, group in groupby(slots, key=lambda slot: slot.channel):
                queries = self._queries(channel, tuple(group))
                self.queries += queries
                for query in queries:
                    if query.answer is None and (reason := self.run.closed(channel)):
                        query.answer, wanted = reason, wanted + 1
                if prepares and not channel.batches:
                    self.prepare(queries)
        return self.queries[start:]

    def prepare(self, queries: Sequence[Query]) -> None:
        """Prepare unanswered queries to one classifier."""
        if asked := [query for query in queries if query.answer is None]:
            channel = asked[0].channel
            channel.prepare(self.images[channel.settings.limits.working_size], asked)

    def _queries(self, channel: Channel, slots: Sequence[Slot]) -> list[Query]:
        size = channel.settings.limits.working_size
        if size not in self.images:
            try:
                self.images[size] = _opened(self.picture, size)
            except ImageError as error:
                failure = Failure(Cause.UNREADABLE, error.why, error)
                return [Query(Entry(b"", "", "", 0, 0), channel, self.picture.name, slot.source, slot.place,
                              answer=failure) for slot in slots]  # fmt: skip
        image = self.images[size]
        height, width, _ = image.pixels.shape
        form = " ".join(filter(None, (image.scaling, channel.settings.limits.sent_as(height, width))))
        texts = [_text(slot.view, slot.seed, slot.index, form) for slot in slots]
        names = keys(channel.classifier.fingerprint, image.digest, [tail for _, tail in texts])
        queries = []
        for key, (text, _), (place, _, view, seed, index, source) in zip(names, texts, slots, strict=True):
            entry, question = Entry(key, image.digest, text, seed, index), Question(image.digest, view, seed, index)
            queries.append(Query(entry, channel, self.picture.name, source, place, question))
        channel.find(queries)
        return queries

    def keep_canaries(self) -> None:
        """Offer the queries about the unchanged picture, one for each classifier, as canaries."""
        for query in self.queries:
            if (query.entry.view, query.entry.number) == ("again", 0):
                query.channel.keep_canary(query, self.images[query.channel.settings.limits.working_size])

    def next_queries(self, rounds: Rounds) -> list[Query]:
        """The queries of the next round; empty if a query failed and there is no other classifier.

        If no classifier has answered yet, the next one is queried.
        """
        if len(self.queries) == len(self.run.slots) or isinstance(row := self.row(so_far=True), Unscored):
            return []
        return self.add(rounds.more(row) if {row.base, *row.views} != {None} else 1)

    def lists(self) -> tuple[RankedList, ...]:
        """The ranked list or the tags for each query; empty if no answer contains any."""
        ranked = [_listed(query) for query in self.queries]
        return tuple(ranked) if any(ranked) else ()

    def row(self, so_far: bool = False) -> Row | Unscored:
        """Collect the answers to the whole panel, or to the queries so far; returns the reason if there is no label.

        With several classifiers, a missing answer is treated as a missing vote, as long as there is another answer.
        """
        several, ended = len(self.run.channels) > 1, self.run.ended()
        labels = [query.label for query in self.queries]
        missing = {query.place: _why(query) for query, label in zip(self.queries, labels, strict=True) if label is None}
        failed = [reason for reason in missing.values() if reason.cause is not Cause.NO_LABEL]
        if several and failed and ended and ended.cause is Cause.STOPPED:  # the next run gets the answers
            return Unscored(self.picture.name, ended.cause, ended.message, ended.code)
        if (set(labels) == {None} and not so_far) if several else (failed or labels[0] is None):
            place, reason = next(missed for missed in missing.items() if missed[1] in (failed or [missing[0]]))
            who = f"{self.queries[place].channel.name}: " if several else ""
            return Unscored(self.picture.name, reason.cause, f"{who}{reason.message}", reason.code)
        rest = 0 if so_far else len(self.run.slots) - len(labels)
        lists = self.lists()
        return Row(
            self.picture.name,
            labels[0],
            (*labels[1:], *[None] * rest),
            self.image.digest,
            self.thumbnail,
            (*lists, *[()] * rest) if lists else (),
            self.descriptor,
            (*(query.picos for query in self.queries), *[0] * rest),
            {place: (reason.code, reason.message) for place, reason in missing.items()},
        )


def open_picture(picture: Picture, run: Run) -> OpenPicture | Unscored:
    """Open a picture, or return the reason why it is not queried."""
    size, screen = run.slots[0].channel.settings.limits.working_size, run.screen
    try:
        image = _opened(picture, size)
    except ImageError as error:
        return Unscored(picture.name, Cause.UNREADABLE, error.why, error.code)
    described = screen.describe(image) if screen.describe else None
    thumbnail = image.thumbnail() if screen.thumbnails else b""
    if screen.refuse and (unfamiliar := screen.unfamiliar(described)):
        return Unscored(picture.name, Cause.UNFAMILIAR, unfamiliar)
    return OpenPicture(picture, run, image, described, thumbnail, images={size: image})


def _opened(picture: Picture, size: WorkingSize) -> Image:
    image = picture.image(size)
    height, width, _ = image.pixels.shape
    if max(height, width) > LONGEST:
        raise ImageError(
            f"a picture of {width} x {height} is too large; scale it so that no side exceeds {LONGEST} pixels",
            code="image-too-large",
        )
    return image


def _listed(query: Query) -> RankedList:
    """The ranked list or the tags from an answer; without scores if scores are ignored."""
    channel, answer = query.channel, query.answer
    ignored = channel.settings.scores == "ignore"
    if not isinstance(answer, Answer) or (ignored and channel.kind == "label"):
        return ()
    listed = tags(channel.names, answer) if channel.kind == "tags" else merged(channel.names, answer)
    return tuple((tag, None) for tag, _ in listed) if ignored else listed


def _why(query: Query) -> Failure:
    """The reason why a query has no label."""
    if isinstance(query.answer, Failure):
        return query.answer
    word = query.answer.label if query.answer else NO_LABEL
    return Failure(Cause.NO_LABEL, why_none(query.channel.names, word))


@lru_cache(maxsize=4096)
def _text(view: View, seed: int, index: int, form: str) -> tuple[str, bytes]:
    """The text of a view, and the part of the key that distinguishes queries about the same picture.

    `form` describes scaling and encoding, if they differ from the original and the fingerprint.
    """
    rendered = renderer([view])
    return str(view), joined(str(view), str(seed), str(index), f"{rendered} {form}" if form else rendered)
