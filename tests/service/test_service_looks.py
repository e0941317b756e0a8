"""Looks of many callers with one model: each ends by itself, and nobody's leaving or failing is another's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from support.errors import coded
from support.serving import DEMO
from support.waiting import until_async
from support.workshop import write_profile

from looktwice.classifiers.base import Answer, Limits, Pixels
from looktwice.decisions.policy import DecisionOptions
from looktwice.engine.query import AnswerEvent
from looktwice.errors import ChangedError, ClassifierError, ImageError, PermanentError
from looktwice.images.collection import Held, Picture
from looktwice.images.image import Image
from looktwice.model import AsyncModel
from looktwice.service import ServiceLimits
from looktwice.service.bodies import Refusal
from looktwice.service.looks import Looks, Metrics
from looktwice.views import Panel

PANEL = Panel.parse("mirror turn:8")


class Scripted:
    """A classifier of this test: it answers when it is let, or fails as it is told."""

    fingerprint = "scripted"
    labels = ("bright", "dark")
    limits = Limits(batch=1, concurrency=1, local=True)

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


def grey(level: int, side: int = 8) -> Picture:
    return Picture(f"grey {level}", None, Held(Image.from_array(np.full((side, side), level, np.uint8))))


@asynccontextmanager
async def opened(tmp_path: Path, **limits: float) -> AsyncIterator[tuple[Looks, Scripted]]:
    classifier = Scripted()
    profile = write_profile(tmp_path / "profile.json", DEMO / "fashion.toml", PANEL).model_copy(
        update={"fingerprint": classifier.fingerprint, "agreement_bins": (100, 0, 0)}
    )
    model = AsyncModel(classifier, profile, ledger="off")
    looks = Looks(model, DecisionOptions(), ServiceLimits(**limits))  # type: ignore[arg-type]
    try:
        yield looks, classifier
    finally:
        classifier.open.set()
        await looks.close()


async def test_no_more_pictures_are_looked_at_at_a_time_than_allowed(tmp_path: Path) -> None:
    async with opened(tmp_path, looks=2) as (looks, classifier):
        classifier.open.clear()
        tasks = [asyncio.create_task(looks.look(grey(level))) for level in range(10, 90, 10)]
        await until_async(lambda: classifier.asked != [])
        await until_async(lambda: looks.count == 8)
        assert set(classifier.asked) <= {10, 20}
        classifier.open.set()
        assert [verdict.label for verdict in await asyncio.gather(*tasks)] == ["dark"] * 8


async def test_a_caller_who_leaves_while_waiting_is_not_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path, looks=1) as (looks, classifier):
        classifier.open.clear()
        first = asyncio.create_task(looks.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        leaving, staying = (asyncio.create_task(looks.look(grey(level))) for level in (2, 3))
        await until_async(lambda: looks.count == 3)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert looks.count == 2
        classifier.open.set()
        await asyncio.gather(first, staying)
        assert set(classifier.asked) == {1, 3}


async def test_a_caller_who_leaves_while_asked_disturbs_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as (looks, classifier):
        classifier.open.clear()
        leaving = asyncio.create_task(looks.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        classifier.open.set()
        assert (await looks.look(grey(200))).label == "bright"
        assert not looks.model.engine.stopped
        assert looks.count == 0


async def test_each_caller_hears_the_answers_about_its_own_picture(tmp_path: Path) -> None:
    async with opened(tmp_path) as (looks, _):
        heard: dict[str, list[AnswerEvent]] = {"dark": [], "bright": [], "burst": []}
        await asyncio.gather(
            looks.look(grey(0), heard["dark"].append),
            looks.look(grey(255), heard["bright"].append),
            looks.burst([grey(0), grey(255), grey(1)], heard["burst"].append),
        )
        answers = {name: sorted((event.place, event.label) for event in events) for name, events in heard.items()}
        assert answers == {
            "dark": [(0, "dark"), (1, "dark"), (2, "dark")],
            "bright": [(0, "bright"), (1, "bright"), (2, "bright")],
            "burst": [(0, "dark"), (1, "bright"), (2, "dark")],
        }


def refused_for(looks: Looks) -> float | None:
    refusal = looks.refusal()
    return refusal.retry_after if refusal else None


async def test_after_a_failure_it_rests_and_then_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.service.looks.PAUSE", 1000.0)
    async with opened(tmp_path) as (looks, classifier):
        classifier.failure = PermanentError("the model is gone")
        with pytest.raises(Refusal, check=coded("unavailable")) as refused:
            await looks.look(grey(1))
        assert refused.value.code == "unavailable"
        assert looks.refusal()
        with pytest.raises(Refusal, check=coded("unavailable")):
            await looks.look(grey(2))
        classifier.failure = None
        await until_async(lambda: 900 < (refused_for(looks) or 0) <= 1000)
        monkeypatch.setattr(looks, "_resume_at", time.monotonic())
        await until_async(lambda: looks.refusal() is None)
        assert (await looks.look(grey(3))).label == "dark"


async def test_a_classifier_that_changed_stays_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.service.looks.PAUSE", 0.0)
    async with opened(tmp_path) as (looks, classifier):
        classifier.failure = ChangedError("it seems to have changed")
        with pytest.raises(Refusal):
            await looks.look(grey(1))
        classifier.failure = None
        await until_async(lambda: not looks.count)
        with pytest.raises(Refusal, check=coded("unavailable")):
            await looks.look(grey(2))


async def test_a_picture_that_the_classifier_cannot_take_is_the_clients_fault_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (looks, _):
        good, bad = await asyncio.gather(looks.look(grey(9)), looks.look(grey(9, side=2)), return_exceptions=True)
        assert isinstance(bad, Refusal)
        assert bad.code == "picture"
        assert not isinstance(good, BaseException)
        assert looks.refusal() is None


async def test_who_waits_half_the_time_for_a_turn_is_told_to_come_again(tmp_path: Path) -> None:
    async with opened(tmp_path, looks=1, seconds=0.2) as (looks, classifier):
        classifier.open.clear()
        look = asyncio.create_task(looks.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        with pytest.raises(Refusal) as refused:
            await looks.burst([grey(1), grey(2)])
        assert (refused.value.code, refused.value.retry_after) == ("busy", 1)
        with pytest.raises(Refusal) as late:
            await look
        assert late.value.code == "time"
        assert looks.count == 1, "it is still asked about"
        classifier.open.set()
        await until_async(lambda: looks.count == 0)
        assert (await looks.look(grey(1))).label == "dark"


async def test_live_pictures_of_another_kind_raise_the_alarm_and_it_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as (looks, _):
        await looks.look(grey(0))
        assert (looks.monitor.stream.seen, looks.monitor.alarm) == (1, None)
        began = time.time()
        await asyncio.gather(*(looks.look(grey(level)) for level in range(1, 51)))
        await looks.monitor.catch_up()
        assert (looks.monitor.stream.seen, looks.monitor.stream.since) == (51, 0)
        assert looks.monitor.alarm is not None
        assert began - 60 < looks.monitor.alarm.since <= time.time()
        assert [record.name for record in caplog.records] == ["looktwice.monitoring"]
        assert caplog.messages[0].lower().startswith("drift: ")
        assert (await looks.look(grey(77))).held


def test_the_drift_alarm_is_a_metric_also_where_one_query_is_asked(tmp_path: Path) -> None:
    one_query = write_profile(tmp_path / "profile.json", DEMO / "fashion.toml", Panel(())).model_copy(
        update={"fingerprint": Scripted.fingerprint}
    )
    looks = Looks(AsyncModel(Scripted(), one_query, ledger="off"), DecisionOptions(), ServiceLimits())
    assert looks.monitor.stream.drift is None
    text = Metrics(looks).text().decode()
    assert "looktwice_drift_alarm 0.0" in text
    assert "looktwice_queries_total{classifier=" in text


async def test_a_service_that_closes_answers_those_who_wait(tmp_path: Path) -> None:
    async with opened(tmp_path, looks=1) as (looks, classifier):
        classifier.open.clear()
        first = asyncio.create_task(looks.look(grey(1)))
        await until_async(lambda: classifier.asked != [])
        waiting = asyncio.create_task(looks.look(grey(2)))
        await until_async(lambda: looks.count == 2)
        closing = asyncio.create_task(looks.close())
        await until_async(lambda: looks.refusal() is not None)
        classifier.open.set()
        told = await asyncio.gather(first, waiting, closing, return_exceptions=True)
        assert isinstance(told[1], Refusal)
        assert isinstance(told[1], Refusal)
        with pytest.raises(Refusal, check=coded("unavailable")):
            await looks.look(grey(3))
