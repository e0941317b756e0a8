"""What a person sees of a run: money spent and left, and that a classifier rolls dice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from looktwice.asking.asker import Asker
from looktwice.asking.ledger import Budget
from looktwice.asking.progress import Purse
from looktwice.classifiers.base import Answer, Pixels, Terms
from looktwice.cli.console import Output, watched
from looktwice.model import AsyncModel


@dataclass
class Priced:
    """A classifier that says the same of everything, at a price."""

    terms: Terms
    fingerprint: str = "priced"
    labels: tuple[str, ...] | None = None

    def prepare(self, pixels: Pixels) -> Pixels:
        return pixels

    async def label(self, batch: Sequence[Pixels]) -> list[Answer]:
        return [Answer("cat") for _ in batch]

    async def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize(
    ("price", "budget", "words"),
    [
        (0, Budget(), []),
        (0, Budget(queries=10), ["7 left"]),
        (1500, Budget(), ["0.0045 spent"]),
        (1500, Budget(queries=10), ["0.0045 spent, 0.0105 left"]),
        (1500, Budget(micros=6000), ["0.0045 spent, 0.0015 left"]),
    ],
)
def test_progress_tells_what_is_spent_and_what_is_left(price: int, budget: Budget, words: list[str]) -> None:
    asker = Asker(Priced(Terms(price_micros=price)), budget=budget)
    purse = Purse(asker)
    asker.progress.sent, asker.progress.micros = 3, 3 * price
    assert purse.words() == words


@pytest.mark.parametrize(("flipped", "told"), [(0, False), (2, True)])
def test_a_classifier_that_rolls_dice_is_told_of_with_its_rate(
    flipped: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        model = AsyncModel(Priced(Terms()), ledger="off")
        async with watched(model, 1, Output()):
            model.asker.canaries.asked, model.asker.canaries.flipped = 8, flipped

    asyncio.run(run())
    line = "The classifier is random: 2 of 8 questions asked again got another answer (25%)."
    assert (line in " ".join(capsys.readouterr().err.split())) == told
