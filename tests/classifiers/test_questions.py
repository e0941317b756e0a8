"""Views of the question: balanced orders, the same words on every machine, and nothing asked that cannot be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.chat_replica import anthropic_routes, gemini_routes, openai_routes, responses_routes
from conformance.replica import Replica, labels_of, model, pictures
from hypothesis import given, strategies as st
from scipy import stats
from support.errors import coded

from looktwice.classifiers.base import Settings
from looktwice.classifiers.chat.model import Asked, ChatClassifier, ChatModel
from looktwice.classifiers.chat.prompts import usual_wordings
from looktwice.classifiers.chat.vendors import Completions, Gemini, Messages, Responses
from looktwice.engine.query import askable
from looktwice.errors import PermanentError, ViewError
from looktwice.images.image import Image
from looktwice.model import AsyncModel
from looktwice.views import GENERAL, PROMPTED, Panel, Question, parse, questions, render
from looktwice.views.base import AS_DESCRIBED, LabelOrder, Phrasing

VENDORS: dict[str, type[ChatModel]] = {
    "openai": Completions,
    "responses": Responses,
    "anthropic": Messages,
    "gemini": Gemini,
}
ROUTES: dict[str, Callable[[], web.RouteTableDef]] = {
    "openai": openai_routes,
    "responses": responses_routes,
    "anthropic": anthropic_routes,
    "gemini": gemini_routes,
}
EVERY = pytest.mark.parametrize("vendor", VENDORS)
GOLDEN = Path(__file__).with_name("golden_questions.json")
ASKED = "again order:1 order:2 wording:1 wording:2+order:3 ranked describe ranked+describe wording:3+describe"
DIGESTS = [hashlib.blake2b(f"picture {n}".encode(), digest_size=16).hexdigest() for n in range(1000)]


def connected(vendor: str, url: str = "http://127.0.0.1:9", /, **settings: object) -> ChatClassifier:
    told: Settings = {"url": url, "model": "fashion", "labels": model().labels, **settings}
    return VENDORS[vendor].connect("", told)


def phrased(view: str, digest: str = "0" * 32) -> Phrasing:
    return Question(digest, parse(view), 0, 0).phrasing


# Orders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 4, 17])
@pytest.mark.parametrize("count", [3, 10, 30])
def test_over_many_pictures_every_label_stands_in_each_third_equally_often(number: int, count: int) -> None:
    places = np.array([LabelOrder(digest, number).permuted(range(count)) for digest in DIGESTS]).argsort(axis=1)
    thirds = np.stack([(places * 3 // count == third).sum(axis=0) for third in range(3)])
    expected = np.bincount(np.arange(count) * 3 // count) * len(DIGESTS) / count
    chances = [stats.chisquare(counts, expected).pvalue for counts in thirds.T]
    assert min(chances) > 0.001 / count


@pytest.mark.parametrize("count", [3, 9, 30])
def test_over_three_orders_of_a_picture_every_label_stands_once_in_each_third(count: int) -> None:
    for digest in DIGESTS[:20]:
        for first in (1, 4):
            orders = np.array([LabelOrder(digest, first + turn).permuted(range(count)) for turn in range(3)])
            assert (np.sort(orders.argsort(axis=1) * 3 // count, axis=0) == np.arange(3)[:, None]).all()


@given(st.text(), st.integers(1, 99), st.lists(st.text(), max_size=20))
def test_an_order_holds_every_label_once(digest: str, number: int, labels: list[str]) -> None:
    assert sorted(LabelOrder(digest, number).permuted(labels)) == sorted(labels)


def test_pictures_and_numbers_have_their_own_orders() -> None:
    orders = {LabelOrder(digest, number).permuted(range(10)) for digest in DIGESTS for number in range(1, 7)}
    assert len(orders) > 5950


# Words -------------------------------------------------------------------------------------------------------------


def bodies() -> dict[str, str]:
    """A digest of all that each question sends but its picture."""
    digests = {}
    for vendor in VENDORS:
        classifier = connected(vendor)
        for view in ASKED.split():
            body = classifier.prepare_as(pictures()[0], phrased(view)).body
            body = re.sub(rb"[A-Za-z0-9+/]{200,}=*", b"PICTURE", body)
            digests[f"{vendor} {view}"] = hashlib.sha256(body).hexdigest()[:16]
    return digests


def test_the_same_question_gives_the_same_bytes_on_every_machine() -> None:
    assert bodies() == json.loads(GOLDEN.read_text())
    assert len(set(bodies().values())) == len(bodies())


def test_the_words_of_every_question() -> None:
    asked = connected("openai", labels=["ant", "bee", "cat"])
    order = "\n".join(LabelOrder("0" * 32, 3).permuted(["ant", "bee", "cat"]))
    one = "Answer with exactly one label of this list, written as it is there, and nothing else."
    assert asked.words(AS_DESCRIBED) == f"What does this picture show? {one}\n\nant\nbee\ncat"
    assert asked.words(phrased("mirror+order:3")) == f"What does this picture show? {one}\n\n{order}"
    assert asked.words(phrased("wording:3")) == f"Please classify this image. {one}\n\nant\nbee\ncat"
    assert "the 3 most probable" in asked.words(phrased("ranked"))
    assert '{"description": "...", "labels": [...]}' in asked.words(phrased("ranked+describe"))


def test_the_usual_wordings_are_short_questions_without_a_label() -> None:
    assert len(set(usual_wordings())) == 5
    assert all(line.strip() == line and 20 < len(line) < 80 and "{" not in line for line in usual_wordings())


def test_wordings_of_ones_own_are_lines_of_a_file_and_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("Which plant is it?\nOne of these: {labels}\n")
    told: dict[str, object] = {"labels": ["oak", "elm"], "folder": str(tmp_path)}
    mine = connected("gemini", "http://h", wordings="mine.txt", **told)
    assert mine.words(phrased("wording:1")).startswith("Which plant is it? Answer with exactly one")
    assert mine.words(phrased("wording:2")) == "One of these: oak\nelm"
    assert mine.words(phrased("wording:2+describe")).startswith("One of these: oak\nelm\n\nFirst describe")
    assert mine.fingerprint != connected("gemini", "http://h", **told).fingerprint


def test_a_prompt_of_ones_own_is_put_in_other_orders_and_asked_for_more() -> None:
    mine = connected("anthropic", prompt="Sort this slide:\n{labels}", labels=["ant", "bee"])
    assert set(mine.words(phrased("order:1")).splitlines()) == {"Sort this slide:", "ant", "bee"}
    assert mine.words(phrased("ranked")).startswith("Sort this slide:\nant\nbee\n\nAnswer with the 2 most probable")


# What cannot be asked ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "settings"),
    [
        ("wording:6", {}),
        ("mirror+wording:6", {}),
        ("wording:1", {"prompt": "Which? {labels}"}),
        ("ranked", {"ranked": 5}),
    ],
)
async def test_a_question_that_cannot_be_put_so_is_refused_before_anything_is_asked(
    view: str, settings: dict[str, object]
) -> None:
    async with Replica().running(openai_routes()) as replica:
        classifier = connected("openai", f"{replica.url}/v1", **settings)
        async with AsyncModel(classifier, ledger="memory") as asking:
            with pytest.raises(PermanentError, check=coded("view-unsupported")):
                await asking.ask([pictures()[0]], views=f"mirror {view}")
        assert replica.asked == []


@pytest.mark.parametrize("view", ["order:1", "wording:1", "ranked", "describe", "mirror+order:3"])
async def test_a_classifier_without_a_prompt_is_not_asked_views_of_the_question(view: str) -> None:
    asked: list[object] = []

    def classify(image: object) -> str:
        asked.append(image)
        return "bag"

    async with AsyncModel(classify) as asking:
        with pytest.raises(ViewError, check=coded("view-unsupported")):
            await asking.ask([pictures()[0]], views=f"mirror {view}")
    assert asked == []


@pytest.mark.parametrize("text", ["order", "order:0", "order:1.5", "order:100", "wording:-1", "ranked:5", "describe:1"])
def test_numbers_of_questions_are_whole_and_from_one_on(text: str) -> None:
    with pytest.raises(ViewError):
        parse(text)


def test_a_chain_puts_the_words_once() -> None:
    with pytest.raises(ViewError, check=coded("view-invalid")):
        parse("order:1+mirror+order:2")


def test_a_pilot_tries_other_words_where_a_prompt_is_taken() -> None:
    assert not set(GENERAL) & set(PROMPTED)
    assert askable(connected("openai"), PROMPTED) == PROMPTED
    own = askable(connected("openai", prompt="Which? {labels}", ranked=3), PROMPTED)
    assert [str(view) for view in own] == ["order:1", "order:2", "order:3", "describe", "mirror+order:1", "again"]
    assert askable(model(), PROMPTED) == ()


async def test_the_plan_of_a_fit_counts_the_questions_that_can_be_asked() -> None:
    async with AsyncModel(connected("openai"), ledger="memory") as prompted, AsyncModel(model()) as plain:
        assert prompted.plan(400).stages[0].queries == 50 * (1 + len(GENERAL) + len(PROMPTED))
        assert plain.plan(400).stages[0].queries == 50 * (1 + len(GENERAL))
        assert plain.plan(400).queries == 400 * (1 + len(GENERAL))


# The whole pipeline ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", ["mirror turn:10", "zoom:1.15+turn:10 mirror+zoom:1.3"])
def test_other_words_change_no_pixel(views: str) -> None:
    image = Image.from_array(np.ascontiguousarray(pictures()[0]))
    plain, worded = Panel.parse(views), Panel.parse(" ".join(f"{view}+order:3+describe" for view in views.split()))
    assert np.array_equal(render(image, questions(image, plain, 0)), render(image, questions(image, worded, 0)))


@asynccontextmanager
async def asking(vendor: str, ledger: Path, **settings: object) -> AsyncIterator[tuple[AsyncModel, Replica]]:
    async with Replica().running(ROUTES[vendor]()) as replica:
        base = f"{replica.url}/v1" if vendor in ("openai", "responses") else replica.url
        async with AsyncModel(connected(vendor, base, **settings), ledger=str(ledger), canaries=0) as opened:
            yield opened, replica


WORDED = "order:1 order:2 wording:2 mirror+order:3 ranked describe ranked+describe again"


@EVERY
@pytest.mark.parametrize("settings", [{}, {"answer": "plain"}, {"picture": "last"}])
async def test_every_question_is_asked_once_and_answered(
    vendor: str, settings: dict[str, object], tmp_path: Path
) -> None:
    shown = list(pictures()[:4])
    async with asking(vendor, tmp_path / "ledger.db", **settings) as (opened, replica):
        first = await opened.ask(shown, views=WORDED)
        again = await opened.ask(shown, views=WORDED)
        assert len(replica.asked) == len(shown) * 9
    assert [first.votes.vocabulary[code] for code in first.votes.base] == labels_of(shown)
    for place in (0, 1, 2, 4, 5, 6, 7):
        assert [first.votes.vocabulary[code] for code in first.votes.views[:, place]] == labels_of(shown)
    assert np.array_equal(first.votes.views, again.votes.views)
    bodies = {await request.text() for request in replica.asked}
    assert len(bodies) == len(shown) * 8  # only `again` repeats the base question


@pytest.mark.parametrize("answer", ["schema", "tool", "plain"])
@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_a_tool_is_another_way_to_hold_a_model_to_the_labels(vendor: str, answer: str, tmp_path: Path) -> None:
    async with asking(vendor, tmp_path / "ledger.db", answer=answer) as (opened, _):
        votes = (await opened.ask(list(pictures()[:3]), views="ranked describe")).votes
    assert [votes.vocabulary[code] for code in votes.base] == labels_of(pictures()[:3])
    assert [votes.vocabulary[code] for code in votes.views.ravel("F")] == labels_of(pictures()[:3]) * 2


@EVERY
async def test_a_ranking_that_a_view_asks_for_is_kept(vendor: str) -> None:
    async with Replica().running(ROUTES[vendor]()) as replica:
        base = f"{replica.url}/v1" if vendor in ("openai", "responses") else replica.url
        classifier = connected(vendor, base)
        asked: list[Asked] = [classifier.prepare_as(pictures()[0], phrased(view)) for view in ("again", "ranked")]
        one, five = await classifier.label(asked)
        await classifier.close()
    assert one.options == ()
    assert len(five.options) == 5
    assert five.options[0][0] == five.label == labels_of(pictures()[:1])[0]
    assert one.usage
    assert one.usage.input >= 300


@pytest.mark.slow
async def test_a_fit_with_views_of_the_question(tmp_path: Path) -> None:
    shown = list(pictures(120))
    async with asking("openai", tmp_path / "ledger.db") as (opened, _):
        profile = (await opened.fit(shown, labels_of(shown), views="order:1 wording:1 ranked again")).profile
    assert profile.panel == "order:1 wording:1 ranked again"


def test_a_label_list_that_a_schema_cannot_hold_is_left_to_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k-0123456789")
    labels = [f"class number {n}, with a long name" for n in range(1000)]
    for settings, listed in (({}, False), ({"url": "http://h/v1"}, True)):
        classifier = Completions.connect("", {"model": "m", "labels": labels, **settings})
        body = json.loads(classifier.prepare(pictures()[0]).body)
        assert ("enum" in json.dumps(body["response_format"])) == listed
        assert labels[7] in body["messages"][0]["content"][1]["text"]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(bodies(), indent=1) + "\n")
