"""Where a reply holds the label: lists, scores, positions, and what is no label."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from looktwice.classifiers.base import NO_LABEL, Answer, Names, tags
from looktwice.classifiers.replies import Found, Paths, Reader
from looktwice.classifiers.transport import Garbled

LIST = Paths(label="found[].name", score="found[].p")


def listed(*pairs: tuple[object, object]) -> dict[str, object]:
    return {"found": [{"name": name, "p": p} for name, p in pairs]}


@pytest.mark.parametrize(
    ("paths", "said", "told"),
    [
        (Paths(), {"label": "cat"}, Found("cat", None)),
        (Paths(score="p"), {"p": [0.1, 0.9]}, Found("#1", 0.9, (("#1", 0.9), ("#0", 0.1)))),
        (Paths(score="p"), {"p": [-20.0, 20.0]}, Found("#1", 1.0, (("#1", 1.0), ("#0", math.exp(-40))))),
        (Paths(score="p"), {"p": [25.0, 75.0]}, Found("#1", 0.75, (("#1", 0.75), ("#0", 0.25)))),
        (Paths(label="name", score="p"), {"name": "cat", "p": 0.4}, Found("cat", 0.4)),
        (Paths(label="names"), {"names": ["dog", "cat"]}, Found("dog", None, (("dog", None), ("cat", None)))),
        (Paths(label="at"), {"at": 1}, Found("#1", None)),
        (Paths(rename={"Katze": "cat"}), {"label": "Katze"}, Found("Katze", None)),
        (Paths(), {"label": "#1"}, Found("##1", None)),
        (
            LIST,
            listed(("cat", 0.2), ("dog", 0.7), ("ox", 0.7)),
            Found("dog", 0.7, (("dog", 0.7), ("ox", 0.7), ("cat", 0.2))),
        ),
        (LIST, listed(("cat", 0.2), ([], 0.1), ("ox", 0.7)), Found("ox", 0.7, (("ox", 0.7), ("cat", 0.2)))),
        (Paths(), {"label": True}, Found("true", None)),
        (Paths(label="nsfw", rename={"false": "safe"}), {"nsfw": False}, Found("false", None)),
        (LIST, listed(("cat", False), ("dog", True)), Found("dog", 1.0, (("dog", 1.0), ("cat", 0.0)))),
        (LIST, listed(("cat", "UNKNOWN"), ("ox", "POSSIBLE")), Found("ox", 0.5, (("ox", 0.5), ("cat", None)))),
        (Paths(label="joy", score="p"), {"joy": "yes", "p": "VERY_LIKELY"}, Found("yes", 0.95)),
        (Paths(label="name", score="p"), {"name": "cat", "p": "0.93"}, Found("cat", 0.93)),
        (Paths(score="p"), {"p": ["1e-1", "9E-1"]}, Found("#1", 0.9, (("#1", 0.9), ("#0", 0.1)))),
        (LIST, listed(), Found(NO_LABEL, None)),
        (LIST.model_copy(update={"empty": "∅ nothing"}), listed(), Found(NO_LABEL, None)),
    ],
)
def test_the_label_that_counts_is_found(paths: Paths, said: object, told: Found) -> None:
    assert Reader(paths, ("cat", "dog")).read(said) == told


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (Paths(), {}),
        (Paths(), {"result": {"tags": [{"name": "cat"}]}, "id": 7}),
        (Paths(), {f"part {place}": "cat" for place in range(9)}),
        (Paths(), {"label": 0.5}),
        (Paths(), {"label": 2}),
        (Paths(), {"label": -1}),
        (Paths(score="p"), {"p": 0.3}),
        (LIST, listed(("cat", math.nan))),
        (LIST, listed(("cat", "nan"))),
        (LIST, listed(("cat", "93 %"))),
        (LIST, listed(("cat", None), ("dog", 0.5))),
        (Paths(error="error"), {"error": "no credit", "label": "cat"}),
        (Paths(label="abs(label)"), {"label": "cat"}),
    ],
)
def test_what_does_not_fit_is_never_a_label(paths: Paths, said: object) -> None:
    with pytest.raises(Garbled):
        Reader(paths, ("cat", "dog")).read(said)


def test_a_hundred_options_are_kept_the_best_first() -> None:
    told = Reader(Paths(score="p"), None).read({"p": [place / 1000 for place in range(1000)]})
    assert [word for word, _ in told.options] == [f"#{place}" for place in range(999, 899, -1)]


TAGS = Paths(label="keys(tags)", score="values(tags)", answer="tags")


@pytest.mark.parametrize(
    ("paths", "said", "told"),
    [
        (LIST.model_copy(update={"answer": "tags"}), listed(("cat", 0.2)), Found("cat", 0.2, (("cat", 0.2),))),
        (LIST.model_copy(update={"answer": "tags"}), listed(), Found(NO_LABEL, None)),
        (Paths(label="names", answer="tags"), {"names": ["cat"]}, Found("cat", None, (("cat", None),))),
        (TAGS, {"tags": {"a": 0.1, "b": 0.9}}, Found("b", 0.9, (("b", 0.9), ("a", 0.1)))),
        (TAGS, {"tags": {"a": False, "b": True}}, Found("b", 1.0, (("b", 1.0), ("a", 0.0)))),
        (TAGS, {"tags": {"a": "UNKNOWN", "b": "UNLIKELY"}}, Found("b", 0.25, (("b", 0.25), ("a", None)))),
        (TAGS, {"tags": {}}, Found(NO_LABEL, None)),
        (Paths(score="p", answer="tags"), {"p": [-2.0, 3.0]}, Found("#1", 3.0, (("#1", 3.0), ("#0", -2.0)))),
        (Paths(score="p", answer="tags"), {"p": [60.0, 40.0]}, Found("#0", 60.0, (("#0", 60.0), ("#1", 40.0)))),
    ],
)
def test_all_tags_of_a_reply_are_kept_with_their_scores(paths: Paths, said: object, told: Found) -> None:
    assert Reader(paths, None).read(said) == told


def test_tags_that_mean_the_same_are_one_with_the_largest_score() -> None:
    names = Names(rename={"Kitten": "Cat", "Sky": ""})
    answer = Answer("Cat", 0.4, options=(("Cat", 0.4), ("Kitten", 0.9), ("Sky", 0.8), ("Dog", None), ("Dog", -1.0)))
    assert tags(names, answer) == (("Cat", 0.9), ("Dog", -1.0))
    assert tags(names, Answer(NO_LABEL)) == ()
    many = Answer("0", 1.0, options=tuple((str(place), 1.0) for place in range(100)))
    assert len(tags(names, many)) == 100


def test_a_path_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError):
        Paths(label="found[")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["found", "name", "p"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_whatever_is_said_is_a_label_or_garbled(said: object) -> None:
    try:
        told = Reader(LIST, None).read(said)
    except Garbled:
        return
    assert isinstance(told.word, str)


@pytest.mark.slow
@pytest.mark.parametrize("paths", [Paths(), Paths(label="name", score="label"), Paths(error="label")])
def test_a_value_that_can_be_read_and_is_too_deep_to_be_shown_is_no_label(paths: Paths) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Garbled):
        Reader(paths, None).read({"name": "cat", "label": deep})
