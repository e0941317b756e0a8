"""What a person sees of a run: money spent and left, and that a classifier rolls dice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.engines import engine_for

from looktwice.calibration import crossfit
from looktwice.calibration.evidence import Row
from looktwice.calibration.shares import Constant
from looktwice.calibration.votes import Votes
from looktwice.classifiers.base import Answer, Limits, Pixels
from looktwice.cli import demo
from looktwice.cli.console import Output, watched
from looktwice.decisions.results import Result
from looktwice.engine.budget import Budget
from looktwice.model import AsyncModel
from looktwice.model.runs import Spending


@dataclass
class Priced:
    """A classifier that says the same of everything, at a price."""

    limits: Limits
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
    engine = engine_for(Priced(Limits(price_micros=price)), "off", budget=budget)
    purse = Spending(engine)
    progress = engine.first.runner.progress
    progress.sent, progress.micros = 3, 3 * price
    assert purse.words() == words


@pytest.mark.parametrize(("flipped", "told"), [(0, False), (2, True)])
def test_a_classifier_that_rolls_dice_is_told_of_with_its_rate(
    flipped: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        model = AsyncModel(Priced(Limits()), ledger="off")
        async with watched(model, 1, Output()):
            model.engine.first.canaries.asked, model.engine.first.canaries.flipped = 8, flipped

    asyncio.run(run())
    line = "The classifier is random: 2 of 8 queries asked again got another answer (25 %)."
    assert (line in " ".join(capsys.readouterr().err.split())) == told


def test_the_demo_shows_figures_prices_and_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(str(i), "ant", ("ant" if i % 3 else "bee",)) for i in range(12)]
    votes = Votes.collect(rows, ("mirror",), ("ant", "bee"), 2).labelled(
        "bee" if i % 4 == 0 else "ant" for i in range(12)
    )
    best = crossfit.outcome(Constant().fit(votes), votes, "constant")
    situations = [demo.Situation("labels", 9.0, 0.0135, 0.75, 0.05), demo.Situation("a coin", 1.0, 0.1, 0.0, None)]
    demo.show(demo.Demo([Result.from_outcome(best)], situations, 12, Path("there")), as_json=False)
    shown = capsys.readouterr()
    assert re.search(r"labels +9.0 +75 % +5.0 % +18.00 *\n", shown.out)
    assert re.search(r"a coin +1.0 +0 % +– +– *\n", shown.out)
    assert "there/profile.json" in shown.err
