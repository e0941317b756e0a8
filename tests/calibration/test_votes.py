"""Votes: counted by hand, coded, saved and loaded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.errors import coded

from looktwice import files
from looktwice.calibration import storage
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import MISSING, Evidence, Row
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Probit, base_tally, vote_tally
from looktwice.calibration.votes import OUTSIDE, LabelledVotes, Votes
from looktwice.errors import DataError, FitError

LABELS = st.sampled_from(["cat", "dog", "fox", "owl"])
ROWS = st.integers(1, 6).flatmap(
    lambda s: st.lists(st.tuples(LABELS, st.tuples(*[st.none() | LABELS] * s)), min_size=1, max_size=12)
)


def votes_of(*rows: tuple[str, tuple[str | None, ...]]) -> Votes:
    panel = [f"turn:{i + 1}" for i in range(len(rows[0][1]))]
    return Votes.collect([Row(f"{i}.png", base, views) for i, (base, views) in enumerate(rows)], panel)


def test_the_share_of_views_that_kept_the_base_label() -> None:
    tally = base_tally(votes_of(("cat", ("cat", "dog", "cat", "cat")), ("dog", ("fox", "fox", "fox", "fox"))))
    assert tally.agree.tolist() == [3, 0]
    assert tally.fraction().tolist() == [0.75, 0.0]
    assert tally.smoothed().tolist() == pytest.approx([3.5 / 5, 0.5 / 5])


def test_a_word_that_the_vocabulary_has_twice_is_one_label() -> None:
    twice = ["crane", "owl", "crane", "fox"]  # ImageNet has the bird and the machine
    rows = [Row("a", "fox", ("owl", "crane")), Row("b", "newt", ("crane", "fox"))]
    votes = Votes.collect(rows, ["mirror", "turn:8"], twice, classes=1000)
    assert votes.vocabulary == ("crane", "owl", "fox", "newt")
    said = [
        tuple(votes.vocabulary[code] for code in (base, *views))
        for base, views in zip(votes.base, votes.views, strict=True)
    ]
    assert said == [("fox", "owl", "crane"), ("newt", "crane", "fox")]
    assert votes.classes == 1000


def test_a_view_that_was_not_asked_counts_neither_way() -> None:
    tally = base_tally(votes_of(("cat", ("cat", None, "dog", None))))
    assert (tally.agree[0], tally.asked[0]) == (1, 2)


def test_with_no_view_asked_the_share_is_one_and_the_smoothed_share_a_half() -> None:
    tally = vote_tally(votes_of(("cat", (None, None))))
    assert (tally.fraction()[0], tally.smoothed()[0]) == (1.0, 0.5)


def test_the_vote_of_the_views_can_overrule_the_base_label() -> None:
    votes = votes_of(("cat", ("dog", "dog", "cat")))
    assert votes.vocabulary[vote_tally(votes).label[0]] == "dog"


def test_a_tied_vote_goes_to_the_base_label_then_to_the_first_view() -> None:
    votes = votes_of(("cat", ("dog", "dog", "cat", "cat")), ("owl", ("fox", "dog", "dog", "fox")))
    assert [votes.vocabulary[code] for code in vote_tally(votes).label] == ["cat", "fox"]


@given(ROWS)
def test_the_vote_matches_a_plain_count(rows: list[tuple[str, tuple[str | None, ...]]]) -> None:
    votes = votes_of(*rows)
    tally = vote_tally(votes)
    for (_, views), label, agree in zip(rows, tally.label, tally.agree, strict=True):
        said = [view for view in views if view is not None]
        if said:
            assert agree == max(said.count(label) for label in said) == said.count(votes.vocabulary[label])


def test_labels_get_codes_and_unknown_truths_are_outside() -> None:
    votes = votes_of(("cat", ("dog",)))
    assert votes.codes(["dog", "cat", "unicorn"]).tolist() == [1, 0, OUTSIDE]


def test_a_given_vocabulary_comes_first_and_grows_when_it_must() -> None:
    votes = Votes.collect([Row("a", "yak", ("cat",))], ["mirror"], ["cat", "dog"])
    assert votes.vocabulary == ("cat", "dog", "yak")
    assert votes.classes == 3


def test_some_pictures_and_some_views_can_be_taken() -> None:
    votes = votes_of(("cat", ("cat", "dog")), ("dog", ("fox", "dog")), ("fox", ("fox", "cat")))
    part = votes.take(np.array([2, 0])).under([1])
    assert part.names == ("2.png", "0.png")
    assert part.panel == ("turn:2",)
    assert [part.vocabulary[code] for code in part.views[:, 0]] == ["cat", "dog"]


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
@given(rows=ROWS, known=st.booleans())
def test_votes_survive_a_file(
    tmp_path_factory: pytest.TempPathFactory, ending: str, rows: list[tuple[str, tuple[str | None, ...]]], known: bool
) -> None:
    path = tmp_path_factory.mktemp("votes") / f"votes{ending}"
    votes = votes_of(*rows).labelled("cat" for _ in rows) if known else votes_of(*rows)
    storage.save(path, votes)
    saved = storage.load(path)
    assert (saved.names, saved.panel, saved.vocabulary) == (votes.names, votes.panel, votes.vocabulary)
    assert (saved.base == votes.base).all()
    assert (saved.views == votes.views).all()
    assert saved.classes == votes.classes
    assert isinstance(saved, LabelledVotes) == known
    if isinstance(saved, LabelledVotes):
        assert saved.words == ("cat",) * len(rows)
        assert (saved.truths == saved.codes(saved.words)).all()


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_a_file_that_holds_no_votes_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"votes{ending}"
    with pytest.raises(DataError, check=coded("file-missing")):
        storage.load(path)
    for content in (b"", b"not votes at all", b"PK\x03\x04 broken", b"PAR1 broken PAR1"):
        path.write_bytes(content)
        with pytest.raises(DataError, check=coded("file-malformed")):
            storage.load(path)


def test_a_pickle_inside_a_votes_file_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "votes.npz"
    np.savez(path, base=np.array([{"a": 1}], dtype=object), views=np.zeros((1, 0)), texts=np.zeros(1))
    with pytest.raises(DataError, check=coded("file-malformed")):
        storage.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_a_parquet_file_that_grows_when_it_is_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A long text that a dictionary holds once is there again in every row, whatever the metadata say of the size."""
    pa, pq = files.arrow()
    monkeypatch.setattr(storage, "MOST_BYTES", 10**7)
    path, rows = tmp_path / "votes.parquet", 1000
    texts = {"names": ["a"] * rows if named else [], "panel": [], "vocabulary": [], "truths": None, "classes": 2}
    table = pa.table({"name": pa.array(["a"] * rows), "base": pa.array(["x" * 10**5] * rows)})
    pq.write_table(table.replace_schema_metadata({"looktwice": json.dumps(texts)}), path)
    assert path.stat().st_size < 10**5
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size < 10**6
    with pytest.raises(DataError, check=coded("file-malformed")):
        storage.load(path)


def test_codes_that_point_nowhere_are_refused() -> None:
    with pytest.raises(DataError, check=coded("votes-malformed")):
        Votes(("a",), ("mirror",), ("cat",), np.array([0], np.int32), np.array([[5]], np.int32), 2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, check=coded("votes-malformed")):
        Votes(("a",), ("mirror",), ("cat",), np.array([0, 0], np.int32), np.array([[0]], np.int32), 2)


def example() -> Distribution:
    labels = np.array([[0, 1], [2, MISSING]], np.int32)
    return Distribution(labels, np.array([[0.7, 0.2], [0.4, 0.0]]), classes=5)


def test_what_nobody_named_shares_the_rest_evenly() -> None:
    distribution = example()
    assert distribution.rest() == pytest.approx([0.1, 0.6])
    assert distribution.unnamed() == pytest.approx([0.1 / 3, 0.6 / 4])
    assert distribution.dense(5).sum(axis=1) == pytest.approx([1.0, 1.0])
    assert distribution.top().tolist() == [0, 2]


@pytest.mark.parametrize("truth", [0, 1, 2, 3, OUTSIDE])
def test_brier_and_nll_equal_those_of_the_dense_table(truth: int) -> None:
    distribution = example()
    codes = np.array([truth, truth], np.int32)
    # A truth outside the vocabulary is some label that nobody named: the last column stands for it.
    column = 4 if truth == OUTSIDE else truth
    dense = distribution.dense(5)
    hot = np.eye(5)[[column, column]]
    assert distribution.brier(codes) == pytest.approx(((dense - hot) ** 2).sum(axis=1))
    assert distribution.nll(codes) == pytest.approx(-np.log(dense[:, column]))


# Labels that one has already


TABLES = st.integers(0, 4).flatmap(
    lambda s: st.lists(st.tuples(LABELS, st.tuples(*[st.none() | LABELS] * s), LABELS), min_size=1, max_size=30)
)
Table = list[tuple[str, tuple[str | None, ...], str]]


def columns(rows: Table) -> tuple[list[str], list[tuple[str | None, ...]], list[str]]:
    return [base for base, _, _ in rows], [views for _, views, _ in rows], [truth for _, _, truth in rows]


def spelt(votes: Votes) -> list[tuple[str, tuple[str | None, ...]]]:
    """The labels that the codes stand for."""
    words: dict[int, str | None] = {MISSING: None, **dict(enumerate(votes.vocabulary))}
    return [
        (votes.vocabulary[base], tuple(words[code] for code in row.tolist()))
        for base, row in zip(votes.base, votes.views, strict=True)
    ]


@given(TABLES, st.booleans())
def test_labels_come_back_as_they_were_given(rows: Table, arrays: bool) -> None:
    base, views, _ = columns(rows)
    as_array = np.array(views, dtype=object).reshape(len(rows), -1)
    votes = Votes.from_labels(np.array(base), as_array) if arrays else Votes.from_labels(base, views)
    assert spelt(votes) == list(zip(base, views, strict=True))
    assert not isinstance(votes, LabelledVotes)
    assert set(votes.vocabulary) == {*base, *(view for row in views for view in row)} - {None}


@given(TABLES, st.permutations(["cat", "dog", "fox", "owl"]))
def test_the_order_of_the_vocabulary_changes_no_confidence(rows: Table, order: list[str]) -> None:
    base, views, truths = columns(rows)
    one, other = (Votes.from_labels(base, views, truths, words) for words in (["cat", "dog", "fox", "owl"], order))
    assert other.vocabulary == tuple(order)
    assert one.words == other.words == tuple(truths)
    jury, same = Jury().fit(one), Jury().fit(other)
    assert same.confidence(other) == pytest.approx(jury.confidence(one), abs=1e-6)
    assert same.distribution(other).of(other.truths) == pytest.approx(jury.distribution(one).of(one.truths), abs=1e-6)


@given(TABLES)
def test_numbers_and_their_texts_are_the_same_votes(rows: Table) -> None:
    number = {"cat": 3, "dog": 10, "fox": 2, "owl": 0, None: None}
    base, views, truths = columns(rows)
    numbers = [[number[view] for view in row] for row in views]
    masked = np.array([[-1 if code is None else code for code in row] for row in numbers], np.int64)
    told = [number[truth] for truth in truths]
    spellings = [
        Votes.from_labels([number[label] for label in base], numbers, told, [0, 2, 3, 10]),
        Votes.from_labels(np.array([number[label] for label in base], np.uint8), masked, np.array(told), range(11)),
        Votes.from_labels(
            [str(number[label]) for label in base],
            np.ma.masked_less(masked, 0).astype(str),
            [str(truth) for truth in told],
            ["0", "2", "3", "10"],
        ),
    ]
    assert spelt(spellings[0]) == spelt(spellings[1]) == spelt(spellings[2])
    assert spellings[0].words == spellings[1].words == spellings[2].words


def test_views_that_were_not_asked_are_none_empty_or_minus_one() -> None:
    texts = Votes.from_labels(["cat", "dog"], [["cat", None], ["", "dog"]])
    assert texts.views.tolist() == [[0, MISSING], [MISSING, 1]]
    assert Votes.from_labels([7, 8], np.array([[7, -1], [-1, 8]])).views.tolist() == texts.views.tolist()


def test_a_truth_that_no_answer_names_is_outside_and_counts_as_a_class() -> None:
    votes = Votes.from_labels(["cat", "dog"], [["dog"], ["cat"]], ["cat", "fox"])
    assert votes.truths.tolist() == [0, OUTSIDE]
    assert (votes.words, votes.classes) == (("cat", "fox"), 3)
    assert np.isfinite(Jury().fit(votes).confidence(votes)).all()


def test_truths_stay_with_their_pictures() -> None:
    votes = Votes.from_labels(["cat", "dog", "fox"], [["cat", "dog"]] * 3, ["dog", "yak", "fox"])
    some = votes.take(np.array([2, 1])).under([1])
    assert (some.words, some.truths.tolist()) == (("fox", "yak"), [2, OUTSIDE])
    assert some.panel == ("view 2",)
    assert votes.take(slice(1)).words == ("dog",)


@pytest.mark.parametrize("truths", [["ant", "bee"], [0, 1]])
def test_truths_of_which_none_is_a_label_are_refused(truths: list[str] | list[int]) -> None:
    with pytest.raises(DataError, check=coded("labels-unmatched")):
        Votes.from_labels(["cat", "dog"], [["cat"], ["dog"]], truths)
    with pytest.raises(DataError, check=coded("labels-unmatched")):
        Votes.from_labels([4, 5], [[4], [5]], ["cat", "dog"])


NAN = float("nan")


@pytest.mark.parametrize(
    ("base", "views", "truths", "vocabulary"),
    [
        (["a", "b"], [["a"]], None, None),
        (["a", "b"], ["a", "b"], None, None),
        (["a", "b"], [["a"], ["a", "b"]], None, None),
        (["a"], np.zeros((1, 2, 2), int), None, None),
        ("ab", [["a"], ["b"]], None, None),
        (["a", "b"], [["a"], ["b"]], None, [["a", "b"]]),
        (["a", "b"], [["a"], ["b"]], ["a"], None),
        ([1.0, NAN], [[1.0], [2.0]], None, None),
        (["a", NAN], [["a"], ["b"]], None, None),
        (["a", 1], [["a"], ["b"]], None, None),
        (["a", "b"], [[0], [1]], None, None),
        ([True, False], [[True], [False]], None, None),
        ([b"a"], [[b"a"]], None, None),
        (["a"], [["a"]], [NAN], None),
        (["a"], [["a"]], ["a"], [0]),
        (["a", "b"], [["a"], ["b"]], ["a", ""], None),
        (["a"], [["b"]], None, ["a", "a"]),
        (["a"], [["b"]], None, ["a", "c"]),
    ],
)
def test_labels_that_are_no_table_are_one_line(base: object, views: object, truths: object, vocabulary: object) -> None:
    with pytest.raises(DataError, check=coded("votes-malformed")) as error:
        Votes.from_labels(base, views, truths, vocabulary)  # type: ignore[call-overload]
    assert "\n" not in str(error.value)


def test_a_first_answer_may_be_missing_and_the_files_keep_that(tmp_path: Path) -> None:
    votes = Votes.from_labels(["a", None, ""], [["a"], ["b"], [None]], truths=["a", "b", "c"])
    votes = replace(votes, unsayable=((), (1,)))
    assert votes.base.tolist() == [0, MISSING, MISSING]
    assert base_tally(votes).agree.tolist() == [1, 0, 0]
    for ending in (".npz", ".parquet"):
        storage.save(tmp_path / f"votes{ending}", votes)
        read = storage.load(tmp_path / f"votes{ending}")
        assert (read.answers() == votes.answers()).all()
        assert read.unsayable == votes.unsayable


@pytest.mark.parametrize("mask", [[True, False, True], np.array([True, False, True]), [0, 2], slice(0, 3, 2)])
def test_votes_are_taken_by_mask_position_or_slice(mask: Any) -> None:
    scores = [[0.9, 0.8], [0.7, 0.6], [0.5, 0.4]]
    votes = Votes.from_labels(["cat", "dog", "cat"], [["dog"], ["dog"], [None]], ["cat", "dog", "fox"], scores=scores)
    some = votes.take(mask)
    assert (some.names, some.words, some.excluded) == (("0", "2"), ("cat", "fox"), ())
    assert (some.base.tolist(), some.views.tolist(), some.truths.tolist()) == ([0, 0], [[1], [MISSING]], [0, OUTSIDE])
    assert some.lists()[0] == votes.lists()[0]
    assert len(some.lists()) == 2


def test_sources_are_taken_in_any_order_with_their_lists_and_labels() -> None:
    votes = Votes.from_labels(["a", None], [["b", "a"], ["b", None]])
    lists = np.arange(6, dtype=np.int32).reshape(2, 3, 1) % 2
    votes = replace(votes, evidence=Evidence(lists, lists.astype(np.float32)), unsayable=((), (0,), (1,)))
    taken = votes.of_sources([2, 0])
    assert taken.answers().tolist() == [[0, 0], [MISSING, MISSING]]
    assert taken.panel == ("base",)
    assert taken.evidence is not None
    assert taken.evidence.labels[:, :, 0].tolist() == [[0, 0], [1, 1]]
    assert taken.unsayable == ((1,), ())
    assert votes.of_sources([0, 2]).unsayable == votes.under([1]).unsayable == ((), (1,))


def test_truths_are_one_for_each_picture_and_their_codes_exist() -> None:
    votes = votes_of(("cat", ("dog",)), ("dog", ("dog",)))
    with pytest.raises(DataError, check=coded("votes-malformed")):
        votes.labelled(["cat"])
    good = votes.labelled(["cat", "dog"])
    for code in (MISSING, 2, -3):
        with pytest.raises(DataError, check=coded("votes-malformed")):
            replace(good, truths=np.array([0, code], np.int32))


def test_votes_without_truths_say_so_and_are_short_to_look_at() -> None:
    votes = Votes.from_labels(["a", "b"] * 20, [["a", "b"]] * 40)
    for calibrator in (Jury(), Probit()):
        with pytest.raises(FitError, check=coded("labels-missing")):
            calibrator.fit(votes)  # type: ignore[arg-type]
    assert repr(votes) == "<Votes: 40 pictures, 2 views, 2 labels>"
    labelled = votes.labelled(["a", "b"] * 20)
    assert repr(labelled) == "<LabelledVotes: 40 pictures, 2 views, 2 labels>"
    assert len(repr(Jury().fit(labelled))) < 400


def test_what_labels_are_not_and_how_likely_they_came_is_told_of_every_picture_or_of_none() -> None:
    votes = Votes.collect([Row(str(i), "a", ("a",)) for i in range(3)], ("mirror",), ("a", "b"), 2)
    with pytest.raises(DataError, check=coded("votes-malformed")):
        votes.labelled(["a", "b", "?"], [(), (0,)])
    for probabilities in ([0.5, 1.0], [0.5, 1.0, 0.0], [0.5, 1.0, 1.5]):
        with pytest.raises(DataError, check=coded("votes-malformed")):
            votes.labelled(["a", "b", "a"], (), probabilities)
    assert votes.labelled(["a", "b", "a"], (), [0.5, 1.0, 0.1]).probabilities == (0.5, 1.0, 0.1)
    forbidden = votes.labelled(["a", "b", "?"], [(), (), (0,)]).forbids(np.array([[0, 1]] * 3, np.int32))
    assert forbidden.tolist() == [[False, False], [False, False], [True, False]]


# Votes of other tools ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_votes_with_names_views_and_scores_are_saved_and_loaded(tmp_path: Path, ending: str) -> None:
    scores = [[0.5, 0.25, np.nan], [0.75, np.nan, np.nan]]
    votes = Votes.from_labels(
        ["cat", "dog"],
        [["cat", "dog"], ["dog", None]],
        ["cat", "fox"],
        names=["a", "b"],
        panel=["mirror", "zoom"],
        scores=scores,
    )
    votes.save(tmp_path / f"votes.{ending}")
    loaded = Votes.load(tmp_path / f"votes.{ending}")
    assert isinstance(loaded, LabelledVotes)
    assert (loaded.names, loaded.panel, loaded.words) == (("a", "b"), ("mirror", "zoom"), ("cat", "fox"))
    assert loaded.lists() == [
        ((("cat", 0.5),), (("cat", 0.25),), (("dog", None),)),
        ((("dog", 0.75),), (("dog", None),), ()),
    ]
    frame = loaded.to_frame()
    assert list(frame.columns) == ["name", "base", "1 mirror", "2 zoom", "truth"]
    assert frame.to_dict("list")["1 mirror"] == ["cat", "dog"]


def test_ranked_lists_of_other_tools_are_evidence() -> None:
    ranked = [[(("cat", 0.5), ("dog", 0.25)), (("dog", None),)]]
    assert Votes.from_labels(["cat"], [["dog"]], lists=ranked).lists() == [tuple(ranked[0])]


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": ["a", "b"]},
        {"panel": ["mirror", "zoom"]},
        {"scores": [0.5, 0.5]},
        {"lists": [[(("cat", 0.5),)]]},
        {"scores": [[0.5, 0.5]], "lists": [[(("cat", 0.5),), ()]]},
    ],
)
def test_details_that_do_not_fit_the_labels_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        Votes.from_labels(["cat"], [["dog"]], **wrong)


def test_a_votes_file_of_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, check=coded("file-ending")):
        votes_of(("cat", ("cat",))).save(tmp_path / "votes.csv")


def test_a_misspelt_argument_is_an_error_and_integers_are_labels_too() -> None:
    with pytest.raises(TypeError, match="score"):
        Votes.from_labels(["cat"], [["cat"]], score=[[0.1, 0.2]])  # type: ignore[call-overload]
    assert Votes.from_labels([1, 2], [[1], [2]]).labelled(np.array([2, 1])).truths.tolist() == [1, 0]
