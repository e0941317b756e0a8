"""Scores and ranked lists: from the reply to the votes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.replica import DEMO, Replica, model, pictures
from support.errors import coded

from looktwice import Model
from looktwice.calibration import storage
from looktwice.calibration.evidence import UNLISTED, Evidence, Row, Scale, useless
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.classifiers.base import Answer, Names, merged, probabilities
from looktwice.classifiers.chat.vendors import Completions
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.python import PythonClassifier
from looktwice.errors import DataError, PermanentError

ROWS = [
    Row(
        "a", "cat", ("cat", "dog"), lists=((("cat", 0.9), ("dog", 0.05)), (("cat", 0.6),), (("dog", 0.5), ("ox", 0.4)))
    ),
    Row("b", "dog", ("dog", None), lists=((("dog", 0.7),), (), ())),
    Row("c", "ox", ("ox", "ox")),
]


def votes() -> LabelledVotes:
    return Votes.collect(ROWS, ("v1", "v2"), classes=5).labelled(["cat", "dog", "emu"])


def test_votes_without_scores_have_no_evidence() -> None:
    assert Votes.collect([replace(row, lists=()) for row in ROWS], ("v1", "v2")).evidence is None


def test_lists_become_arrays_and_come_back() -> None:
    ranked_votes = votes()
    assert ranked_votes.evidence is not None
    assert ranked_votes.evidence.labels[0].tolist() == [[0, 1], [0, UNLISTED], [1, 2]]
    assert [[label for label, _ in ranked] for ranked in ranked_votes.lists()[0]] == [
        ["cat", "dog"],
        ["cat"],
        ["dog", "ox"],
    ]
    assert ranked_votes.lists()[0][0][0][1] == pytest.approx(0.9)
    assert ranked_votes.lists()[2] == ((), (), ())


def test_a_part_of_the_votes_has_the_same_part_of_the_lists() -> None:
    part = votes().take(np.array([1, 0])).under([1])
    assert part.lists()[1] == votes().under([1]).lists()[0]
    assert len(part.lists()[0]) == 2
    assert part.label_only().evidence is None


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_votes_files_keep_lists(tmp_path: Path, ending: str) -> None:
    storage.save(tmp_path / f"votes{ending}", votes())
    loaded, expected = storage.load(tmp_path / f"votes{ending}"), votes()
    assert loaded.evidence is not None
    assert expected.evidence is not None
    np.testing.assert_array_equal(loaded.evidence.labels, expected.evidence.labels)
    np.testing.assert_array_equal(loaded.evidence.scores, expected.evidence.scores)
    storage.save(tmp_path / f"plain{ending}", expected.label_only())
    assert storage.load(tmp_path / f"plain{ending}").evidence is None


def test_lists_that_are_not_about_the_votes_are_refused() -> None:
    evidence = votes().evidence
    assert evidence is not None
    with pytest.raises(DataError, check=coded("votes-malformed")):
        replace(votes(), evidence=evidence.take(slice(2)))
    with pytest.raises(DataError, check=coded("votes-malformed")):
        replace(votes(), evidence=Evidence(evidence.labels + 9, evidence.scores))


def test_words_that_mean_the_same_are_one_label() -> None:
    names = Names(rename={"tabby": "cat", "siamese": "cat"})
    answer = Answer("tabby", 0.5, options=(("tabby", 0.5), ("dog", 0.3), ("siamese", 0.1)))
    assert merged(names, answer) == (("cat", 0.6), ("dog", 0.3))
    assert merged(names, Answer("tabby", 0.5)) == (("cat", 0.5),)
    twice = Answer("dog", 0.9, options=(("dog", 0.9), ("tabby", 0.5), ("dog", 0.8), ("siamese", 0.1)))
    assert merged(names, twice) == (("dog", 0.9), ("cat", 0.6))
    assert merged(names, Answer("tabby")) == ()


async def test_a_function_may_return_scores() -> None:
    picture = [np.zeros((2, 2, 3), np.uint8)]
    said = {
        "label": "cat",
        "pair": ("cat", 0.9),
        "scores": {f"class {i}": i / 100 for i in range(20)},
    }
    (plain,) = await PythonClassifier(lambda image: said["label"]).label(picture)
    (pair,) = await PythonClassifier(lambda image: said["pair"]).label(picture)
    (ranked,) = await PythonClassifier(lambda image: said["scores"]).label(picture)
    assert plain == Answer("cat")
    assert pair == Answer("cat", 0.9)
    assert (ranked.label, ranked.score, len(ranked.options)) == ("class 19", 0.19, 20)
    with pytest.raises(PermanentError, check=coded("reply-malformed")):
        await PythonClassifier(lambda image: ("cat", "high")).label(picture)


def test_what_a_classifier_lists_reaches_the_votes_and_the_ledger(tmp_path: Path) -> None:
    def classify(image: np.ndarray) -> dict[str, float]:
        return {"bright": float(image.mean() / 255), "dark": float(1 - image.mean() / 255)}

    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    for _ in range(2):
        with Model(classify, ledger=str(tmp_path / "ledger.db")) as model:
            collected_votes = model.ask(images, views="mirror").votes
            sent = model.asked.sent
        assert collected_votes.evidence is not None
        assert collected_votes.evidence.labels.shape == (4, 2, 2)
        np.testing.assert_allclose(collected_votes.evidence.scores.sum(axis=2), 1.0, rtol=1e-5)
    assert sent == 0  # the second time all lists came from the ledger


def evidence(*lists: tuple[float | None, ...]) -> Evidence:
    """One list a picture, about the labels 0, 1 …"""
    rows = [[tuple((str(place), score) for place, score in enumerate(scores))] for scores in lists]
    return Evidence.collect(rows, 1, {str(code): code for code in range(9)})


@pytest.mark.parametrize(
    ("lists", "kind", "claims"),
    [
        ([(0.9, 0.1), (0.6,)], "probability", [0.9, 0.6]),
        ([(0.9, 0.9), (0.6,)], "probability", [0.5, 0.6]),
        ([(90.0, 5.0), (60.0,)], "percentage", [0.9, 0.6]),
        ([(2.0, 2.0), (-1.0, -2.0)], "logit", [0.5, 0.731059]),
        ([(0.0,), (-1.0,)], "logit", [0.5, 0.268941]),
        ([(14.0, 12.0), (9.0, 9.0)], "logit", [0.880797, 0.5]),
        ([(None, None), (None,)], "rank", [0.5, 0.5]),
    ],
)
def test_scores_on_any_scale_become_shares(
    lists: list[tuple[float | None, ...]], kind: str, claims: list[float]
) -> None:
    told = evidence(*lists)
    scale = Scale.learn(told)
    assert scale.kind == kind
    np.testing.assert_allclose(scale.claims(told), claims, atol=1e-6)


def test_what_a_list_leaves_over_is_shared_by_the_labels_that_it_does_not_name() -> None:
    told = evidence((0.7, 0.2))
    logs = Scale("probability", 1e-6).log_shares(told, np.array([[0, 1, 2]], np.int32), classes=12)
    np.testing.assert_allclose(np.exp(logs[0, 0]), [0.7, 0.2, 0.01, 0.01], rtol=1e-5)


def test_an_empty_list_says_nothing() -> None:
    told = Evidence(np.full((1, 1, 2), UNLISTED, np.int32), np.full((1, 1, 2), np.nan, np.float32))
    logs = Scale().log_shares(told, np.array([[0, 1]], np.int32), classes=4)
    np.testing.assert_allclose(np.exp(logs[0, 0]), [0.25] * 3)


def test_the_least_share_is_as_fine_as_the_scores() -> None:
    assert Scale.learn(evidence((1.0,), (0.99,), (0.5,))).least == pytest.approx(0.005)
    assert Scale.learn(evidence((1.0,), (0.999999,), (0.5,))).least == pytest.approx(5e-7, rel=0.1)


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ([(0.95,), (0.95,)], "all scores are 0.95"),
        ([(float("nan"),), (float("nan"),)], "no score is a number"),
        ([(), ()], "no answer has a score"),
        ([(0.95,), (0.9,)], None),
        ([(0.95, 0.01), (0.95, 0.02)], None),
    ],
)
def test_scores_that_can_say_nothing_are_named(lists: list[tuple[float, ...]], why: str | None) -> None:
    assert useless(evidence(*lists)) == why


def test_the_embedded_model_ranks_labels_where_its_description_says_so() -> None:
    plain = model()
    description = plain._description.model_copy(update={"scores": 5})
    ranking = OnnxClassifier(DEMO / "fashion.onnx", description)
    batch = [ranking.prepare(image) for image in pictures()[:3]]
    logits = ranking.logits(batch)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for answer, told, row in zip(ranking._answer(batch), plain._answer(batch), shares, strict=True):
        assert answer.label == told.label
        assert [score for _, score in answer.options] == pytest.approx(sorted(row, reverse=True)[:5], rel=1e-4)
    assert ranking.fingerprint != plain.fingerprint


@pytest.mark.parametrize("answer", ["schema", "plain"])
async def test_a_chat_model_is_asked_for_a_ranking_if_its_description_says_so(answer: str) -> None:
    asked: list[dict[str, object]] = []
    routes = web.RouteTableDef()

    @routes.post("/v1/chat/completions")
    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        said = json.dumps({"labels": ["dog", "cat", "dog", "ox"]})
        return web.json_response({"choices": [{"message": {"content": said}, "finish_reason": "stop"}]})

    async with Replica().running(routes) as replica:
        settings = {"model": "m", "labels": ("cat", "dog", "ox"), "url": f"{replica.url}/v1", "answer": answer}
        plain, ranking = Completions.connect("", settings), Completions.connect("", {**settings, "ranked": 3})
        (told,) = await ranking.label([ranking.prepare(pictures()[0])])
        await ranking.close()
        await plain.close()
    assert told.label == "dog"
    assert told.options == (("dog", None), ("cat", None), ("ox", None))
    assert "3 most probable" in json.dumps(asked)
    assert ("json_schema" in json.dumps(asked)) == (answer == "schema")
    assert ranking.fingerprint != plain.fingerprint


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), 1e300, float("nan")])
def test_a_score_beyond_all_numbers_is_taken_without_a_warning(odd: float) -> None:
    """Warnings are errors here."""
    shares = probabilities(np.array([odd, 3.0, -odd]))
    assert np.isfinite(shares).all()
    assert shares.sum() == pytest.approx(1.0)
    votes = Evidence.collect([[(("ant", odd), ("bee", -odd))]], 1, {})
    assert not np.isfinite(votes.scores).any()
