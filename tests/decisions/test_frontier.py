"""Pixels against looks: what is worth its money, and which size and number of views are taken."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workshop import run

from looktwice import AsyncModel, Model
from looktwice.classifiers.base import Terms, Weight
from looktwice.classifiers.registry import connect
from looktwice.decisions.pilot import Choice, frontier, taken
from looktwice.engine.query import AnswerEvent
from looktwice.errors import UnscoredError
from looktwice.images.collection import labelled
from looktwice.phrasing import AS_DESCRIBED, Phrasing

DEMO = Path(str(files("looktwice") / "demo"))
PRICES = """
[models."by-the-pixel"]
input = "1"
output = "1"
image = { rule = "squares", side = 1, most = 1000000 }
"""

CHOICES = st.builds(
    Choice, st.sampled_from([256, 512]), st.integers(0, 8), st.integers(1, 20).map(float), st.floats(0, 2)
)


@given(st.lists(CHOICES, min_size=1))
def test_nothing_off_the_frontier_is_better_and_no_dearer(choices: list[Choice]) -> None:
    found = frontier(choices)
    assert [each.micros for each in found] == sorted({each.micros for each in found})
    assert [each.brier for each in found] == sorted({each.brier for each in found}, reverse=True)
    for each in choices:
        assert any(one.micros <= each.micros and one.brier <= each.brier for one in found)
    assert taken(found) in found


def test_many_small_looks_beat_few_large_ones_where_they_cost_less() -> None:
    small = [Choice(256, views, 10.0 * (1 + views), brier) for views, brier in enumerate((0.50, 0.42, 0.40))]
    large = [Choice(1024, views, 90.0 * (1 + views), brier) for views, brier in enumerate((0.45, 0.41, 0.399))]
    found = frontier([*large, *small])
    assert [(each.size, each.views) for each in found] == [(256, 0), (256, 1), (256, 2), (1024, 2)]
    assert taken(found) == small[2]


class ByThePixel:
    """The embedded classifier as one that is billed by the pixel."""

    model = "by-the-pixel"

    def __init__(self) -> None:
        self._own = connect(str(DEMO / "fashion.toml"))
        self.fingerprint, self.labels = self._own.fingerprint, self._own.labels
        self.terms: Terms = replace(self._own.terms, local=False)
        self.prepare, self.label, self.close = self._own.prepare, self._own.label, self._own.close

    def weigh(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Weight:
        return Weight(0, 0, height, width, None, 0, 1)


def test_tuning_over_sizes_prices_each_by_its_pixels_and_keeps_the_size_with_the_profile(tmp_path: Path) -> None:
    prices, pictures = tmp_path / "prices.toml", labelled(DEMO / "pictures.npz")[:200]
    prices.write_text(PRICES)
    with Model(ByThePixel(), ledger=str(tmp_path / "ledger.db"), prices=prices) as model:
        sized = model.tune_sizes(pictures, sizes=[14, 28], max_queries=2)
    costs = {(each.size, each.views): each.micros for each in sized.choices}
    assert costs[28, 0] == 28 * 28
    assert costs[14, 0] == 14 * 14
    assert costs[28, 1] == 2 * 28 * 28
    assert sized.taken in frontier(sized.choices)
    kept = sized.tuned.profile.working_size
    assert kept == (14 if sized.taken.size == 14 else kept)
    assert len(sized.tuned.profile.views()) == max(1, sized.taken.views)


def test_the_command_shows_the_frontier_and_draws_it(tmp_path: Path) -> None:
    command = ("tune", DEMO / "pictures.npz", "--take", ":200", "-c", DEMO / "fashion.toml", "--max-queries", "2")
    done = run(*command, "--size", "28", "-o", tmp_path / "p.json", "--ledger", tmp_path / "ledger.db")
    assert done.returncode == 0, done.stderr
    assert "Worth their cost" in done.stdout
    assert "◀ chosen" in done.stdout
    assert "28 px" in (tmp_path / "p.svg").read_text()


def test_tuning_over_sizes_stops_where_it_is_told_to_and_counts_what_it_asked(tmp_path: Path) -> None:
    answers = list[AnswerEvent]()

    def stop(event: AnswerEvent) -> None:
        answers.append(event)
        if len(answers) == 50:
            model.engine.stop("the person said so")

    async def tune() -> None:
        async with model:
            await model.tune_sizes(labelled(DEMO / "pictures.npz")[:200], sizes=[14, 28], max_queries=2)

    model = AsyncModel(DEMO / "fashion.toml", ledger=str(tmp_path / "ledger.db"), on_answer=stop, concurrency=1)
    counted = model.engine.progress
    with pytest.raises(UnscoredError, match=r"no views were chosen.*the person said so"):
        asyncio.run(tune())
    assert 50 <= counted.answered < 500
