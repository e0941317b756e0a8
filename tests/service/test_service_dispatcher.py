"""The dispatcher where all requests meet: one asker for all, and nobody's leaving or failing is another's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import DEMO
from waiting import until_async
from workshop import write_profile

from looktwice.asking.asker import Asker
from looktwice.classifiers.base import Answer, Pixels, Terms
from looktwice.errors import ChangedError, ClassifierError, ImageError, PermanentError
from looktwice.model import AsyncModel
from looktwice.pictures.collection import Held, Picture
from looktwice.pictures.image import Image
from looktwice.service import Limits
from looktwice.service.dispatcher import Dispatcher
from looktwice.service.replies import Refusal
from looktwice.verdicts import look as looking
from looktwice.verdicts.policy import DecisionOptions
from looktwice.views import Panel

PANEL = Panel.parse("mirror turn:8")


class Scripted:
    """A classifier of this test: it answers when it is let, or fails as it is told."""

    fingerprint = "scripted"
    labels = ("bright", "dark")
    terms = Terms(batch=1, concurrency=1, local=True)

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failure: ClassifierError | None = None

    def prepare(self, pixels: Pixels) -> Pixels:
        if pixels.shape[0] < 4:
            raise ImageError("a side has 2 pixels; this classifier takes 4 or more")
        return pixels

    async def label(self, batch: Sequence[Pixels]) -> list[Answer]:
        self.asked += [int(pixels[0, 0, 0]) for pixels in batch]
        await self.open.wait()
        if self.failure:
            raise self.failure
        return [Answer("bright" if pixels.mean() > 128 else "dark") for pixels in batch]

    async def close(self) -> None:
        """Nothing to give back."""


def grey(level: int, side: int = 8) -> Held:
    return Held(Image.of(np.full((side, side), level, np.uint8)))


@asynccontextmanager
async def opened(tmp_path: Path, **limits: float) -> AsyncIterator[tuple[Dispatcher, Scripted]]:
    classifier = Scripted()
    profile = write_profile(tmp_path / "profile.json", DEMO / "fashion.toml", PANEL).model_copy(
        update={"fingerprint": classifier.fingerprint, "agreement_bins": (100, 0, 0)}
    )
    model = AsyncModel(classifier, profile, ledger="off")
    dispatcher = Dispatcher(model, DecisionOptions(), Limits(**limits))  # type: ignore[arg-type]
    try:
        yield dispatcher, classifier
    finally:
        classifier.open.set()
        await dispatcher.close()


async def test_pictures_that_come_while_the_classifier_is_busy_are_asked_about_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    look = looking.look

    def watched(asker: Asker, pictures: list[Picture], *rest: Any) -> AsyncIterator[object]:
        together.append(len(pictures))
        return look(asker, pictures, *rest)

    monkeypatch.setattr(looking, "look", watched)
    async with opened(tmp_path) as (dispatcher, classifier):
        classifier.open.clear()
        looks = [asyncio.create_task(dispatcher.look(grey(0)))]
        await until_async(lambda: classifier.asked != [])
        looks += [asyncio.create_task(dispatcher.look(grey(level))) for level in range(10, 90, 10)]
        await until_async(lambda: dispatcher.looks == 9)
        classifier.open.set()
        verdicts = await asyncio.gather(*looks)
    assert [verdict.label for verdict in verdicts] == ["dark"] * 9
    assert together == [1, 8]


async def test_a_caller_who_leaves_while_waiting_is_not_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as (dispatcher, classifier):
        classifier.open.clear()
        first = asyncio.create_task(dispatcher.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        leaving, staying = (asyncio.create_task(dispatcher.look(grey(level))) for level in (2, 3))
        await until_async(lambda: dispatcher.looks == 3)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert dispatcher.looks == 2
        classifier.open.set()
        await asyncio.gather(first, staying)
        assert set(classifier.asked) == {1, 3}


async def test_a_caller_who_leaves_while_asked_disturbs_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as (dispatcher, classifier):
        classifier.open.clear()
        leaving = asyncio.create_task(dispatcher.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        classifier.open.set()
        assert (await dispatcher.look(grey(200))).label == "bright"
        assert not dispatcher.asker.stopped
        assert dispatcher.looks == 0


async def test_each_caller_hears_the_answers_about_its_own_picture(tmp_path: Path) -> None:
    async with opened(tmp_path) as (dispatcher, _):
        heard: dict[str, list[tuple[int, str | None]]] = {"dark": [], "bright": []}
        await asyncio.gather(
            dispatcher.look(grey(0), lambda *answer: heard["dark"].append(answer)),
            dispatcher.look(grey(255), lambda *answer: heard["bright"].append(answer)),
        )
        for label, answers in heard.items():
            assert sorted(answers) == [(0, label), (1, label), (2, label)]
        photos: list[tuple[int, str | None]] = []
        await dispatcher.burst([grey(0), grey(255), grey(0)], lambda *answer: photos.append(answer))
        assert sorted(photos) == [(0, "dark"), (1, "bright"), (2, "dark")]


async def test_after_a_failure_it_rests_and_then_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.service.dispatcher.PAUSE", 1000.0)
    async with opened(tmp_path) as (dispatcher, classifier):
        classifier.failure = PermanentError("the model is gone")
        with pytest.raises(Refusal, match="the model is gone") as refused:
            await dispatcher.look(grey(1))
        assert refused.value.code == "unavailable"
        assert not dispatcher.state().ready
        with pytest.raises(Refusal, match="the model is gone"):
            await dispatcher.look(grey(2))
        classifier.failure = None
        await until_async(lambda: 900 < (dispatcher.state().retry_after or 0) <= 1000)
        monkeypatch.setattr(dispatcher, "_resume_at", time.monotonic())
        await until_async(lambda: dispatcher.state().ready)
        assert (await dispatcher.look(grey(3))).label == "dark"


async def test_a_classifier_that_changed_stays_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.service.dispatcher.PAUSE", 0.0)
    async with opened(tmp_path) as (dispatcher, classifier):
        classifier.failure = ChangedError("it seems to have changed")
        with pytest.raises(Refusal):
            await dispatcher.look(grey(1))
        classifier.failure = None
        await until_async(lambda: not dispatcher.looks)
        with pytest.raises(Refusal, match="changed"):
            await dispatcher.look(grey(2))


async def test_a_picture_that_the_classifier_cannot_take_is_the_clients_fault_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (dispatcher, _):
        good, bad = await asyncio.gather(
            dispatcher.look(grey(9)), dispatcher.look(grey(9, side=2)), return_exceptions=True
        )
        assert isinstance(bad, Refusal)
        assert bad.code == "picture"
        assert not isinstance(good, BaseException)
        assert dispatcher.state().ready


async def test_more_than_the_limit_is_refused_also_as_a_burst(tmp_path: Path) -> None:
    async with opened(tmp_path, looks=2) as (dispatcher, classifier):
        classifier.open.clear()
        look = asyncio.create_task(dispatcher.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        with pytest.raises(Refusal) as refused:
            await dispatcher.burst([grey(1), grey(2)])
        assert (refused.value.code, refused.value.retry_after) == ("busy", 1)
        classifier.open.set()
        await look


async def test_live_pictures_of_another_kind_raise_the_alarm(tmp_path: Path) -> None:
    async with opened(tmp_path) as (dispatcher, _):
        await dispatcher.look(grey(0))
        assert (dispatcher.stream.seen, dispatcher.stream.alarm, dispatcher.drift_since) == (1, False, None)
        began = time.time()
        await asyncio.gather(*(dispatcher.look(grey(level)) for level in range(1, 51)))
        assert (dispatcher.stream.seen, dispatcher.stream.alarm, dispatcher.stream.since) == (51, True, 0)
        assert dispatcher.drift_since is not None
        assert began - 60 < dispatcher.drift_since <= time.time()


async def test_a_desk_that_closes_answers_those_who_wait(tmp_path: Path) -> None:
    async with opened(tmp_path) as (dispatcher, classifier):
        classifier.open.clear()
        first = asyncio.create_task(dispatcher.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        waiting = asyncio.create_task(dispatcher.look(grey(2)))
        await until_async(lambda: dispatcher.looks == 2)
        closing = asyncio.create_task(dispatcher.close())
        await until_async(lambda: not dispatcher.state().ready)
        classifier.open.set()
        told = await asyncio.gather(first, waiting, closing, return_exceptions=True)
        assert isinstance(told[1], Refusal)
        assert "shutting down" in str(told[1])
        with pytest.raises(Refusal, match="shutting down"):
            await dispatcher.look(grey(3))
