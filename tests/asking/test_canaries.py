"""Canaries: a classifier that changed is noticed before money is spent, one that rolls dice is only reported."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_asking import Labelling, everything
from workshop import HURRY, write_pictures

from looktwice.asking.asker import Asker
from looktwice.asking.canaries import REPEATS
from looktwice.asking.ledger import Budget, SqliteLedger
from looktwice.classifiers.base import Answer
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
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        await everything(Asker(Says(), ledger, HURRY, canaries=3), pictures[:10])
        changed = Says()
        changed.word = "bee"
        Says.calls = 0
        with pytest.raises(ChangedError, match="called 'ant' it now calls 'bee'"):
            await everything(Asker(changed, ledger, HURRY, canaries=3), pictures)
        assert Says.calls == REPEATS
        unwatched = Asker(changed, ledger, HURRY, canaries=0)
        assert len(await everything(unwatched, pictures)) == 40


async def test_the_same_classifier_is_asked_again_three_times_and_goes_on(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 20)
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        await everything(Asker(Says(), ledger, HURRY, canaries=3), pictures[:10])
        asker = Asker(Says(), ledger, HURRY, canaries=3)
        await everything(asker, pictures)
    assert (asker.canaries.asked, asker.canaries.flipped) == (3, 0)
    assert asker.progress.sent == 50 + 3


async def test_nothing_is_asked_again_when_everything_is_stored(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 10)
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        await everything(Asker(Says(), ledger, HURRY, canaries=3), pictures)
        asker = Asker(Says(), ledger, HURRY, canaries=3)
        await everything(asker, pictures)
    assert asker.progress.sent == 0


async def test_a_classifier_that_rolls_dice_is_reported_not_refused(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 30)
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        await everything(Asker(Dice(), ledger, HURRY), pictures[:20])
        asker = Asker(Dice(), ledger, HURRY, canaries=10)
        await everything(asker, pictures)
    assert asker.canaries.asked >= 10
    assert 0.1 < asker.canaries.flipped / asker.canaries.asked < 0.9


async def test_canaries_stay_within_the_budget(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 20)
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        await everything(Asker(Says(), ledger, HURRY), pictures[:10])
        asker = Asker(Says(), ledger, HURRY, Budget(queries=52), canaries=3)
        await everything(asker, pictures)
        assert ledger.spent(Says.fingerprint).queries == 52
    assert asker.progress.sent == 2
