"""Canaries: a classifier that changed is noticed before money is spent, one that rolls dice is only reported."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.classifiers import Labelling
from support.engines import engine_on, rows_of
from support.errors import coded
from support.workshop import PANEL, write_pictures

from looktwice.classifiers.base import Answer
from looktwice.engine.budget import Budget
from looktwice.engine.channel import REPEATS
from looktwice.errors import ChangedError


class Says(Labelling):
    """Calls every picture the same, until it is told otherwise."""

    word = "ant"
    calls = 0

    async def label(self, batch: Sequence[object]) -> list[Answer]:
        Says.calls += len(batch)
        return [Answer(self.word) for _ in batch]


class Dice(Labelling):
    """Calls half of all pictures a bee, another half each time."""

    dice = random.Random(0)

    async def label(self, batch: Sequence[object]) -> list[Answer]:
        return [Answer(self.dice.choice(["ant", "bee"])) for _ in batch]


async def test_a_changed_classifier_stops_the_run_before_it_costs_more_than_the_canaries(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 40)
    ledger = tmp_path / "ledger.db"
    async with engine_on(Says(), ledger, canaries=3) as engine:
        await rows_of(engine, pictures[:10], PANEL)
    changed = Says()
    changed.word = "bee"
    Says.calls = 0
    async with engine_on(changed, ledger, canaries=3) as engine:
        with pytest.raises(ChangedError, check=coded("classifier-changed")):
            await rows_of(engine, pictures, PANEL)
    assert Says.calls == REPEATS
    async with engine_on(changed, ledger) as unwatched:
        assert len(await rows_of(unwatched, pictures, PANEL)) == 40


async def test_the_same_classifier_is_asked_again_three_times_and_goes_on(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 20)
    async with engine_on(Says(), tmp_path / "ledger.db", canaries=3) as first:
        await rows_of(first, pictures[:10], PANEL)
    async with engine_on(Says(), tmp_path / "ledger.db", canaries=3) as engine:
        await rows_of(engine, pictures, PANEL)
    assert (engine.first.canaries.asked, engine.first.canaries.flipped) == (3, 0)
    assert engine.progress.sent == 50 + 3


async def test_nothing_is_asked_again_when_everything_is_stored(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 10)
    for _ in range(2):
        async with engine_on(Says(), tmp_path / "ledger.db", canaries=3) as engine:
            await rows_of(engine, pictures, PANEL)
    assert engine.progress.sent == 0


async def test_a_classifier_that_rolls_dice_is_reported_not_refused(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 30)
    async with engine_on(Dice(), tmp_path / "ledger.db") as first:
        await rows_of(first, pictures[:20], PANEL)
    async with engine_on(Dice(), tmp_path / "ledger.db", canaries=10) as engine:
        await rows_of(engine, pictures, PANEL)
    assert engine.first.canaries.asked >= 10
    assert 0.1 < engine.first.canaries.flipped / engine.first.canaries.asked < 0.9


async def test_canaries_stay_within_the_budget(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 20)
    async with engine_on(Says(), tmp_path / "ledger.db") as first:
        await rows_of(first, pictures[:10], PANEL)
    async with engine_on(Says(), tmp_path / "ledger.db", canaries=3, budget=Budget(queries=52)) as engine:
        await rows_of(engine, pictures, PANEL)
        assert engine.spend().queries == 52
    assert engine.progress.sent == 2
