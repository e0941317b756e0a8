"""A classifier with its ledger and budget, opened when it is first asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from looktwice.classifiers import trust
from looktwice.classifiers.registry import Source, connect, describe, resolve
from looktwice.engine import check
from looktwice.engine.check import Checkup
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.maintenance import DayCost
from looktwice.engine.ledger.places import MEMORY, OFF, POSTGRES
from looktwice.engine.meter import TYPICAL_SIZE
from looktwice.engine.options import AskOptions, ledger_name, ledger_place, open_engine
from looktwice.engine.outcome import Progress
from looktwice.engine.query import OnAnswer
from looktwice.errors import LookTwiceError
from looktwice.images.collection import PictureLike, one
from looktwice.images.image import Image

ShowProgress = bool | Callable[[Progress], None]


class Connection:
    """A classifier that can be asked; closed at the end, it saves everything and gives everything back."""

    def __init__(
        self, classifier: Source, options: AskOptions, seed: int, progress: ShowProgress, on_answer: OnAnswer | None
    ) -> None:
        self.classifier = connect(classifier)
        self.description = describe(classifier, self.classifier)
        self.options = options
        self.terms = options.terms(self.classifier)
        self._seed, self._progress, self._on_answer = seed, progress, on_answer
        self._engine: QueryEngine | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued, and let go of the ledger and the classifier; the next call opens them again."""
        engine, self._engine = self._engine, None
        await (engine or self.classifier).close()

    @property
    def engine(self) -> QueryEngine:
        """The classifier, ledger, pace and budget, opened when first needed."""
        if self._engine is None:
            self._engine = open_engine(self.classifier, self.description, self.options, self._seed)
            self._engine.on_answer = self._on_answer
        return self._engine

    @property
    def asked(self) -> Progress:
        """What was asked so far, since the ledger and the classifier were opened."""
        return replace(self._engine.progress) if self._engine else Progress()

    @property
    def is_open(self) -> bool:
        """Whether the ledger and the classifier are open."""
        return self._engine is not None

    @property
    def in_flight(self) -> int:
        """Calls to the classifier that are in flight."""
        return self._engine.in_flight if self._engine else 0

    def unavailable(self) -> str | None:
        """Why no query would be sent now, for people; None if one would be.

        It was stopped, a budget is spent, the ledger failed, or the classifier is rate-limited for longer than the
        longest wait. Reads the ledger.
        """
        return self.engine.runner.unavailable()

    def ledger_name(self) -> str | None:
        """Where answers are stored, for people; None where they are not."""
        return ledger_name(self.terms, self.options)

    def days(self) -> list[DayCost]:
        """What the ledger says that the classifier cost, day by day."""
        place = ledger_place(self.terms, self.options)
        if place in (None, OFF, MEMORY) or not (place.startswith(POSTGRES) or Path(place).exists()):
            return []
        return [day for day in maintenance.stats(place) if day.fingerprint == self.classifier.fingerprint]

    def sends_to(self) -> tuple[str, ...]:
        """The addresses to which pictures go, as far as the description tells."""
        return trust.reach(resolve(self.description)).sends

    def typical_price(self) -> int:
        """What a question costs, in millionths; by the token, about, for a phone's photo at the working size."""
        meter = self.options.meter(self.classifier)
        return meter.quote(*self.terms.working_size.of(*TYPICAL_SIZE)).expected if meter else self.terms.price_micros

    def stop(self, message: str = "the run was stopped") -> None:
        """Send nothing more until `resume`; what is in flight is waited for and kept."""
        self.engine.stop(message)

    def resume(self) -> None:
        """Send again."""
        self.engine.resume()

    async def check(self, picture: PictureLike | None = None) -> Checkup:
        """One picture, or a test card, asked three times: latency, price, limits, and whether answers repeat."""
        if self.options.batch:
            raise LookTwiceError("a check asks three times at once, and a batch takes up to a day; leave --batch out")
        image = Image.of(check.test_card()) if picture is None else one(picture).image(self.terms.working_size)
        return await check.examine(self.engine, image)

    @asynccontextmanager
    async def _showing(self, pictures: int | None) -> AsyncIterator[QueryEngine]:
        """The engine, ready to send, with its progress shown as was asked for."""
        engine = self.engine
        if self._progress is False:
            yield engine
            return
        from looktwice.progress import callback_display, shown

        async with shown(engine, pictures, None if self._progress is True else callback_display(self._progress)):
            yield engine
