"""A question on its way to its answer, and the round of questions that are asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from looktwice.asking.ledger.protocol import Entry
from looktwice.asking.meter import Quote
from looktwice.asking.outcome import Failure
from looktwice.classifiers.base import Answer
from looktwice.views import Question

SOONEST = 0.05
"""Seconds after which a question that another session has is looked for again, at first."""


class Round:
    """Questions that are asked together; it is over when each has its answer or failure."""

    def __init__(self) -> None:
        self.left = 0
        self.over = asyncio.Event()
        self.error: Exception | None = None

    def end(self, error: Exception) -> None:
        """Something broke that is not the classifier's failure: whoever waits gets it raised."""
        self.error = self.error or error
        self.over.set()

    async def wait(self) -> None:
        await self.over.wait()
        if self.error:
            raise self.error


@dataclass(eq=False, slots=True)
class Job:
    """One question; `answer` gets what came back, or why nothing did."""

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
    """How often of these the classifier said that there are too many questions."""
    look_again: float = SOONEST
    """Seconds until it is looked for again, if another session has it."""
    listeners: tuple[Callable[[Answer | Failure], None], ...] = ()

    def listen(self, listener: Callable[[Answer | Failure], None]) -> None:
        """Tell it the answer: now, or when it comes."""
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
    """Say of each that has no answer why it has none."""
    for job in jobs:
        job.settle(failure)
