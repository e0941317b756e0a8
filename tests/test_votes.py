"""Votes: counted by hand, coded, saved and loaded."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looktwice import votes as voting
from looktwice.errors import DataError
from looktwice.votes import MISSING, OUTSIDE, Distribution, LabelledVotes, Row, Votes, base_tally, vote_tally

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
    voting.save(path, votes)
    saved = voting.load(path)
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
    with pytest.raises(DataError, match="there is no votes file"):
        voting.load(path)
    for content in (b"", b"not votes at all", b"PK\x03\x04 broken", b"PAR1 broken PAR1"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a votes file"):
            voting.load(path)


def test_a_pickle_inside_a_votes_file_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "votes.npz"
    np.savez(path, base=np.array([{"a": 1}], dtype=object), views=np.zeros((1, 0)), texts=np.zeros(1))
    with pytest.raises(DataError, match="is not a votes file"):
        voting.load(path)


def test_codes_that_point_nowhere_are_refused() -> None:
    with pytest.raises(DataError, match="not in their vocabulary"):
        Votes(("a",), ("mirror",), ("cat",), np.array([0], np.int32), np.array([[5]], np.int32), 2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="shapes"):
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
