"""Several classifiers in one engine: each keeps its own answers, limits and budget, and the others go on without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.classifiers import Labelling
from support.engines import HURRY, counted, engine_on, rows_of, spend_of
from support.errors import coded
from support.faults import Running, fault_server
from support.players import start
from support.workshop import write_pictures

import looktwice as lt
from looktwice.calibration.evidence import Row
from looktwice.calibration.votes import Votes
from looktwice.classifiers import registry
from looktwice.classifiers.base import Answer, AnyClassifier, Limits
from looktwice.engine.budget import MICRO, Budget
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger.ledger import Ledger, open_ledger
from looktwice.engine.query import AnswerEvent, Cause, Rounds, Unscored
from looktwice.engine.runner import Settings
from looktwice.errors import BudgetError, LookTwiceError, PermanentError, ViewError
from looktwice.images.collection import Picture
from looktwice.images.image import Image, WorkingSize
from looktwice.model.options import AskOptions, in_order, open_engine
from looktwice.views import Panel

PANEL = Panel.parse("mirror gpt@base gpt@mirror")
NONE = Budget()


@contextmanager
def servers(folder: Path, count: int = 2, **settings: object) -> Iterator[list[tuple[Running, Path]]]:
    """Classifiers over HTTP that count what they are asked."""
    with fault_server() as one, fault_server() as other:
        yield [(server, server.describe(folder, **settings)) for server in (one, other)]


def channel(classifier: AnyClassifier, ledger: Ledger | None, name: str, *budgets: Budget, **limits: Any) -> Channel:
    settings = Settings(replace(classifier.limits, **limits), budgets=budgets, retry=HURRY)
    return Channel(classifier, ledger, settings, name=name)


@asynccontextmanager
async def cheap_and_gpt(
    cheap: AnyClassifier | Path, gpt: AnyClassifier | Path, ledger: Path, of_gpt: Budget = NONE, total: Budget = NONE
) -> AsyncIterator[QueryEngine]:
    """An engine on two classifiers, with a budget of the second and one of both."""
    place = open_ledger(str(ledger))
    first, second = registry.connect(cheap), registry.connect(gpt)
    both = replace(total, group=(first.fingerprint, second.fingerprint))
    engine = QueryEngine([channel(first, place, "cheap", both), channel(second, place, "gpt", of_gpt, both)])
    try:
        yield engine
    finally:
        await engine.close()


def missing(path: Path) -> Path:
    """A description of the same server at an address that it does not have."""
    other = path.with_name("missing.toml")
    other.write_text(path.read_text().replace("/classify", "/nowhere"))
    return other


def scored(rows: Sequence[Row | Unscored]) -> list[Row]:
    return [row for row in rows if isinstance(row, Row)]


# Answers -------------------------------------------------------------------------------------------------------------


async def test_each_classifier_has_the_answers_that_it_would_have_alone(tmp_path: Path) -> None:
    pictures, ledger = write_pictures(tmp_path / "pictures.npz", 20), tmp_path / "ledger.db"
    panel = Panel.parse("mirror gpt@base gpt@again gpt@rotation:20*2")
    with servers(tmp_path) as [(one, cheap), (other, gpt)]:
        async with cheap_and_gpt(cheap, gpt, ledger) as engine:
            rows = scored(await rows_of(engine, pictures, panel))
            asked = {name: each.runner.progress.sent for name, each in engine.channels.items()}
            assert (engine.progress.sent, engine.progress.pictures, engine.in_flight) == (120, 20, 0)
        assert asked == {"cheap": one.stats()["billed"], "gpt": other.stats()["billed"]} == {"cheap": 40, "gpt": 80}
        async with engine_on(registry.connect(gpt), ledger) as alone:
            again = scored(await rows_of(alone, pictures, Panel.parse("again rotation:20*2")))
            assert (alone.progress.sent, alone.progress.hits) == (0, 80)
    assert [row.views[1:] for row in rows] == [(row.base, *row.views) for row in again]


async def test_a_panel_may_begin_with_another_classifier(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 10)
    with servers(tmp_path) as [(one, cheap), (other, gpt)]:
        async with cheap_and_gpt(cheap, gpt, tmp_path / "ledger.db") as engine:
            await rows_of(engine, pictures, Panel.parse("mirror"))
            await rows_of(engine, pictures, replace(Panel.parse("mirror cheap@base"), first="gpt"))
            assert (one.stats()["billed"], other.stats()["billed"]) == (20, 20)
            with pytest.raises(ViewError, check=coded("view-unknown")):
                await rows_of(engine, pictures, Panel.parse("claude@base"))


async def test_answers_are_reported_with_their_classifier(tmp_path: Path) -> None:
    pictures, events = write_pictures(tmp_path / "pictures.npz", 3), list[AnswerEvent]()
    with servers(tmp_path) as [(_, cheap), (_, gpt)]:
        async with cheap_and_gpt(cheap, gpt, tmp_path / "ledger.db") as engine:
            (first, *_) = [row async for row in engine.ask(pictures, PANEL, on_answer=events.append)]
    assert isinstance(first, Row)
    own = sorted(event[1:] for event in events if event.name == first.name)
    sources = (("again", "cheap"), ("mirror", "cheap"), ("gpt@base", "gpt"), ("gpt@mirror", "gpt"))
    labels = (first.base, *first.views)
    assert own == [(place, view, labels[place], who) for place, (view, who) in enumerate(sources)]


async def test_a_row_says_what_its_answers_cost_also_when_they_are_stored(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 4)
    with fault_server(0.3, 2) as one, fault_server() as other:
        paths = (one.describe(tmp_path, price="0.001"), other.describe(tmp_path, price="0.02"))
        async with cheap_and_gpt(*paths, tmp_path / "ledger.db") as engine:
            rows = scored(await rows_of(engine, pictures, PANEL))
        async with cheap_and_gpt(*paths, tmp_path / "ledger.db") as engine:
            again = scored(await rows_of(engine, pictures, PANEL))
            assert engine.progress.sent == 0
            total = engine.spend().picos
    assert [row.picos for row in rows] == [row.picos for row in again]
    assert sum(sum(row.picos) for row in rows) == total  # attempts that failed and were billed are among it
    assert all(row.picos[2:] == (20_000 * MICRO,) * 2 and min(row.picos[:2]) >= 1000 * MICRO for row in rows)


class Counting:
    """A picture in memory that counts how often it is decoded, by the size."""

    def __init__(self) -> None:
        self.decoded: list[int | None] = []

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        assert size
        self.decoded.append(size.long)
        return Image.from_array(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).within(size)


async def test_a_picture_is_decoded_once_for_each_working_size_and_only_when_it_is_asked_about() -> None:
    sizes = (16, 16, 32)
    channels = [
        channel(Labelling(), None, f"c{place}", working_size=WorkingSize(long=size)) for place, size in enumerate(sizes)
    ]
    panel, source, engine = Panel.parse("mirror c1@base c2@base c2@mirror"), Counting(), QueryEngine(channels)
    rounds = Rounds(2, lambda row: 2 if source.decoded == [16] else 0)
    (row,) = [row async for row in engine.ask([Picture("a", None, source)], panel, Rounds(2, lambda _: 0))]
    assert isinstance(row, Row)
    assert (row.views, source.decoded) == (("ant", "ant", None, None), [16])
    source.decoded.clear()
    (row,) = [row async for row in engine.ask([Picture("a", None, source)], panel, rounds)]
    assert source.decoded == [16, 32]
    await engine.close()


# What is missing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("down", ["cheap", "gpt"])
async def test_a_classifier_that_fails_for_good_is_a_missing_vote(tmp_path: Path, down: str) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 30)
    with servers(tmp_path) as [(one, cheap), (other, gpt)]:
        up, places = (other, (2, 3)) if down == "cheap" else (one, (0, 1))
        paths = (missing(cheap), gpt) if down == "cheap" else (cheap, missing(gpt))
        async with cheap_and_gpt(*paths, tmp_path / "ledger.db") as engine:
            rows = scored(await rows_of(engine, pictures, PANEL))
            assert up.stats()["billed"] == 60
            assert engine.unavailable() is None
    assert len(rows) == 30
    for row in rows:
        labels = (row.base, *row.views)
        assert [place for place, label in enumerate(labels) if label] == list(places)
        assert set(row.missing) == {0, 1, 2, 3} - set(places)
        assert all("404" in reason for _, reason in row.missing.values())
    assert len(Votes.collect(rows, [str(view) for view in PANEL])) == 30


async def test_where_every_classifier_fails_for_good_the_run_raises_and_few_queries_are_sent(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 200)
    with servers(tmp_path) as [(one, cheap), (other, gpt)]:
        async with cheap_and_gpt(missing(cheap), missing(gpt), tmp_path / "ledger.db") as engine:
            with pytest.raises(PermanentError, check=coded("classifier-refused")):
                await rows_of(engine, pictures, PANEL)
    assert one.port != other.port


async def test_a_server_that_is_gone_leaves_the_others_answers(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 30)
    with fault_server() as one:
        with fault_server() as other:
            gpt = other.describe(tmp_path)
        async with cheap_and_gpt(one.describe(tmp_path), gpt, tmp_path / "ledger.db") as engine:
            rows = scored(await rows_of(engine, pictures, PANEL))
            assert engine.channels["gpt"].runner.fatal is None  # the next run tries it again
    assert [row.views[1:] for row in rows] == [(None, None)] * 30
    assert all(row.base and row.missing.keys() == {2, 3} for row in rows)
    assert counted(tmp_path / "ledger.db") == (60, 60)


async def test_an_answer_off_the_list_is_a_missing_vote_with_several_and_no_verdict_with_one(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 5)
    mute = Labelling(lambda _: Answer(""))
    async with cheap_and_gpt(mute, Labelling2(), tmp_path / "ledger.db") as engine:
        rows = await rows_of(engine, pictures, PANEL)
        assert [(row.base, *row.views, *row.missing) for row in scored(rows)] == [(None, None, "bee", "bee", 0, 1)] * 5
        rows = await rows_of(engine, pictures, Panel.parse("mirror"))
        assert [row.cause for row in rows if isinstance(row, Unscored)] == [Cause.NO_LABEL] * 5


class Labelling2(Labelling):
    """Another classifier in this process."""

    fingerprint = "test:another"

    def __init__(self, limits: Limits | None = None, act: Callable[[int], object] = lambda _: Answer("bee")) -> None:
        super().__init__(act, limits)


async def test_a_failure_about_every_source_of_one_picture_leaves_it_unscored_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 2)
    mute, deaf = Labelling(lambda _: Answer("")), Labelling2(act=lambda call: Answer("" if call == 1 else "bee"))
    async with cheap_and_gpt(mute, deaf, tmp_path / "ledger.db") as engine:
        rows = await rows_of(engine, pictures, Panel.parse("gpt@base"))
    (unscored,) = [row for row in rows if isinstance(row, Unscored)]
    assert (unscored.cause, unscored.message.partition(":")[0]) == (Cause.NO_LABEL, "cheap")


async def test_a_round_passes_over_a_classifier_that_cannot_be_asked_any_more(tmp_path: Path) -> None:
    pictures, seen = write_pictures(tmp_path / "pictures.npz", 12), list[tuple[str | None, ...]]()

    def more(row: Row) -> int:
        seen.append((row.base, *row.views))
        return 1 if len(row.views) < 3 else 0

    panel = Panel.parse("gpt@base mirror gpt@mirror rotation:20")
    with servers(tmp_path) as [(one, cheap), (_, gpt)]:
        async with cheap_and_gpt(cheap, missing(gpt), tmp_path / "ledger.db") as engine:
            rows = scored([row async for row in engine.ask(pictures, panel, Rounds(0, more))])
        assert one.stats()["billed"] == 36
    assert all(row.base and row.views[0] is None and row.views[1] and row.views[2] is None for row in rows)
    assert [row.views[3] is not None for row in rows] == [True] * 12


async def test_without_a_first_answer_the_next_classifier_is_asked_before_anybody_decides(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 6)

    def more(row: Row) -> int:
        assert any((row.base, *row.views))
        return 0

    with servers(tmp_path) as [(_, cheap), (other, gpt)]:
        async with cheap_and_gpt(missing(cheap), gpt, tmp_path / "ledger.db") as engine:
            rows = scored([row async for row in engine.ask(pictures, PANEL, Rounds(0, more))])
        assert other.stats()["billed"] == 6
    assert all((row.base, row.views[0], row.views[2]) == (None, None, None) and row.views[1] for row in rows)


async def test_a_stop_stops_all_classifiers(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 300)
    with servers(tmp_path) as [(one, cheap), (other, gpt)]:
        async with cheap_and_gpt(cheap, gpt, tmp_path / "ledger.db") as engine:
            asking = asyncio.create_task(rows_of(engine, pictures, PANEL))
            while engine.progress.answered < 50:
                await asyncio.sleep(0.01)
            engine.stop("enough")
            rows = await asking
            assert engine.unavailable() == "cheap: enough; gpt: enough"
            assert counted(tmp_path / "ledger.db") == (one.stats()["billed"] + other.stats()["billed"],) * 2
            assert {row.message for row in rows if isinstance(row, Unscored)} == {"enough"}
            engine.resume()
            assert len(scored(await rows_of(engine, pictures, PANEL))) == 300


# Budgets and prices --------------------------------------------------------------------------------------------------


async def test_a_classifier_whose_own_budget_is_spent_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    pictures, ledger = write_pictures(tmp_path / "pictures.npz", 40), tmp_path / "ledger.db"
    with servers(tmp_path) as [(one, cheap), (other, gpt)]:
        async with cheap_and_gpt(cheap, gpt, ledger, of_gpt=Budget(queries=31)) as engine:
            rows = scored(await rows_of(engine, pictures, PANEL))
        assert (one.stats()["billed"], other.stats()["billed"]) == (80, 31)
        without = [row for row in rows if row.missing]
        assert len(rows) == 40
        assert sum(len(row.missing) for row in without) == 49
        assert all("31" in why for row in without for _, why in row.missing.values())
        async with cheap_and_gpt(cheap, gpt, ledger, of_gpt=Budget(queries=31)) as engine:
            again = scored(await rows_of(engine, pictures, PANEL))
            assert engine.progress.sent == 0
    assert [(row.base, row.views) for row in rows] == [(row.base, row.views) for row in again]


async def test_a_budget_of_both_is_spent_to_the_last_query_and_ends_the_run(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 100)
    with fault_server(0.3, 3) as one, fault_server(0.3, 4) as other:
        paths = one.describe(tmp_path), other.describe(tmp_path)
        async with cheap_and_gpt(*paths, tmp_path / "ledger.db", total=Budget(queries=101)) as engine:
            rows = await rows_of(engine, pictures, PANEL)
            assert engine.spend().queries == 101
            assert engine.remaining() == 0
        billed = one.stats()["billed"] + other.stats()["billed"]
        assert billed <= 101
    assert sum(isinstance(row, Unscored) and row.cause is Cause.BUDGET for row in rows) > 50


def _score(pipe: Any, folder: Path, paths: list[Path], budget: str) -> None:
    async def work() -> None:
        both = [lt.connect(path) for path in paths]
        engine = open_engine(both, AskOptions(ledger=str(folder / "ledger.db"), money=budget))
        try:
            panel = Panel.parse(f"mirror {both[1].name}@base {both[1].name}@mirror")
            rows = await rows_of(engine, registry_pictures(folder), panel)
        finally:
            await engine.close()
        pipe.send(len(scored(rows)))

    asyncio.run(work())


def registry_pictures(folder: Path) -> Sequence[Picture]:
    from looktwice.images.collection import find

    return find([folder / "pictures.npz"])


def test_processes_share_the_money_of_several_classifiers_exactly(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 200)
    with servers(tmp_path, price="0.25") as [(one, cheap), (other, gpt)]:
        gpt.write_text(gpt.read_text().replace("0.25", "0.75"))
        players = [start(_score, tmp_path, [cheap, gpt], "100") for _ in range(2)]
        for process, pipe in players:
            assert pipe.poll(120)
            pipe.recv()
            process.join()
        spent = [
            spend_of(tmp_path / "ledger.db", registry.connect(path).fingerprint).micros / 1e6 for path in (cheap, gpt)
        ]
        billed = [one.stats()["billed"] * 0.25, other.stats()["billed"] * 0.75]
    assert spent == billed
    assert 100 - 0.25 < sum(spent) <= 100


def test_a_model_keeps_budgets_by_classifier_and_in_total(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 40)
    with servers(tmp_path, price="0.01") as [(one, cheap), (other, gpt)]:
        gpt.write_text(f'name = "gpt"\nbudget = 25\n{gpt.read_text()}')
        model = lt.AsyncModel([gpt, lt.connect(cheap, price="0.001")], budget=90, ledger=str(tmp_path / "ledger.db"))

        async def work() -> None:
            async with model:
                name = model.connected[0].name
                assert [each.name for each in model.connected] == [cheap.stem, "gpt"]
                await rows_of(model.engine, pictures, PANEL)
                assert {key: each.runner.progress.sent for key, each in model.engine.channels.items()} == {
                    name: 65,
                    "gpt": 25,
                }

        asyncio.run(work())
        assert (one.stats()["billed"], other.stats()["billed"]) == (65, 25)


async def test_an_estimate_is_made_by_classifier_and_in_total(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 7)
    with servers(tmp_path, price="0.01") as [(one, cheap), (_, gpt)]:
        async with cheap_and_gpt(cheap, gpt, tmp_path / "ledger.db") as engine:
            await rows_of(engine, pictures, Panel.parse("gpt@base"))
            estimate = await engine.estimate(pictures, PANEL)
        assert one.stats()["requests"] == 7
    assert (estimate.questions, estimate.hits, estimate.queries, estimate.micros) == (28, 14, 14, 140_000)
    own = {"questions": 14, "hits": 7, "queries": 7, "micros": 70_000, "most_micros": 70_000}
    for part in estimate.classifiers.values():
        assert part == {**own, "input_tokens": 0, "output_tokens": 0}
    assert list(estimate.classifiers) == ["cheap", "gpt"]


async def test_a_free_classifier_needs_no_ledger_beside_one_that_is_paid(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 20)
    with fault_server() as server:
        gpt = lt.connect(server.describe(tmp_path, price="0.5"), name="gpt")
        local = lt.connect(bright, name="local")
        options = AskOptions(ledger=None, money=20)
        engine = open_engine(in_order([gpt, local], replace(options, ledger="off")), replace(options, ledger="off"))
        try:
            assert [each.runner.ledger is None for each in engine.channels.values()] == [True, False]
            rows = scored(await rows_of(engine, pictures, PANEL))
        finally:
            await engine.close()
        assert server.stats()["billed"] == 40
    assert all(row.picos == (0, 0, 500_000 * MICRO, 500_000 * MICRO) for row in rows)


def bright(image: np.ndarray) -> str:
    return "bright" if image.mean() > 128 else "dark"


# The way in ----------------------------------------------------------------------------------------------------------


def test_a_classifier_is_named_by_the_user_its_file_or_its_function(tmp_path: Path) -> None:
    (tmp_path / "My cheap.toml").write_text('connector = "python"\nfunction = "support.workshop:brightest"\n')
    (tmp_path / "other.toml").write_text(
        'connector = "python"\nfunction = "support.workshop:brightest"\nname = "own"\n'
    )
    named = (lt.connect(bright), lt.connect(tmp_path / "My cheap.toml"), lt.connect(str(tmp_path / "other.toml")))
    assert [one.name for one in named] == ["bright", "My-cheap", "own"]
    assert lt.connect(lt.connect(bright, name="mine")).name == "mine"
    for name in ("a b", "a@b", "", "x" * 61):
        with pytest.raises(LookTwiceError, check=coded("option-invalid")):
            lt.connect(bright, name=name)
    with pytest.raises(LookTwiceError, check=coded("option-conflict")):
        lt.Model([bright, bright])


def test_the_first_classifier_has_the_lowest_price_and_the_order_breaks_ties(tmp_path: Path) -> None:
    with servers(tmp_path) as [(_, unpriced), (_, _)]:
        both = {
            "dear": lt.connect(bright, name="dear", price="2"),
            "cheap": lt.connect(bright, name="cheap", price="0.1"),
            "local": lt.connect(bright, name="local"),
            "one": lt.connect(unpriced, name="one"),
            "same": lt.connect(bright, name="same", price="1"),
        }
        ordered = [one.name for one in in_order(list(both.values()), AskOptions())]
        assert ordered == ["local", "cheap", "one", "same", "dear"]
        assert [one.name for one in in_order([both["same"], both["one"]], AskOptions())] == ["same", "one"]


async def test_labels_are_renamed_inline_and_from_a_file(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 3)
    (tmp_path / "names.csv").write_text("label,name\nbright,hell\ndark,dunkel\n")
    for rename in ({"bright": "hell", "dark": "dunkel"}, tmp_path / "names.csv"):
        engine = open_engine([lt.connect(bright, rename=rename)], AskOptions())
        rows = scored(await rows_of(engine, pictures, Panel.parse("mirror")))
        assert {label for row in rows for label in (row.base, *row.views)} <= {"hell", "dunkel"}
        await engine.close()
    (tmp_path / "names.csv").write_text("bright,hell\n")
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        lt.connect(bright, rename=tmp_path / "names.csv")


def test_money_of_several_needs_a_price_of_one(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, check=coded("budget-invalid")):
        lt.Model([bright, lt.connect(bright, name="other")], money=1).unavailable()
    with pytest.raises(LookTwiceError, check=coded("option-invalid")):
        lt.Model([])
