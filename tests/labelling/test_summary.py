"""What labels show so far, against the figures that a fit gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

from looktwice.calibration import crossfit, metrics
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.results import HeldOut
from looktwice.labelling.summary import FEWEST, LabelSummary, summarise
from looktwice.model import LADDER


def voted(pictures: int, hard: float = 0.3, seed: int = 0) -> LabelledVotes:
    """Pictures of which a share is hard: there the classifier is right half the time and a view says what it likes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(10, size=pictures)
    unsure = rng.random(pictures) < hard
    said = np.where(
        unsure[:, None] & (rng.random((pictures, 4)) < 0.5), rng.integers(10, size=(pictures, 4)), truth[:, None]
    )
    words = [str(code) for code in range(10)]
    return Votes.from_labels(said[:, 0].astype(str), said[:, 1:].astype(str), truth.astype(str), words)


def test_few_labels_tell_their_number_and_from_when_on_there_is_more() -> None:
    summary = summarise(voted(FEWEST - 1), 3, 0.05)
    assert (summary.labels, summary.accuracy, summary.more, summary.enough) == (FEWEST - 1, None, None, False)
    assert summary.lines()[1][1] == f"{FEWEST} labels"
    one_class = voted(200).take(np.flatnonzero(voted(200).truths == 1))
    assert summarise(one_class, 0, 0.05).accuracy is None


def test_the_figures_are_those_of_a_fit() -> None:
    votes = voted(500)
    summary, outcome = summarise(votes, 0, 0.001), crossfit.cross_fit(Jury(), votes)
    assert summary.accuracy
    assert summary.accuracy[0] == (votes.base == votes.truths).mean()
    assert summary.accuracy[1] < summary.accuracy[0] < summary.accuracy[2]
    assert summary.ece == metrics.ece(outcome.confidence, outcome.correct)
    assert summary.max_error
    strict = 1 - 0.05 / 5
    held_out = HeldOut.combine(outcome, crossfit.outcome(Jury().fit(votes), votes))
    accept = held_out.threshold(summary.max_error, strict)
    assert accept is not None
    assert summary.accepted == (np.array(held_out.confidence) >= accept).mean()
    assert held_out.threshold(LADDER[LADDER.index(summary.max_error) - 1], strict) is None


@pytest.mark.slow
@pytest.mark.parametrize("max_error", [0.05, 0.1])
def test_so_many_more_labels_are_enough(max_error: float) -> None:
    summary = summarise(voted(60), 0, max_error)
    assert summary.more
    later = summarise(voted(60 + summary.more, seed=1), 0, max_error)
    assert later.max_error is not None
    assert later.max_error <= max_error
    assert summarise(voted(5000, seed=2), 0, max_error).enough


def test_a_guarantee_that_the_answers_cannot_keep_is_out_of_reach() -> None:
    summary = summarise(voted(400, hard=1.0), 0, 0.001)
    assert (summary.more, summary.enough) == (None, False)


def test_a_wanted_guarantee_that_holds_is_within_reach_also_beyond_the_ladder() -> None:
    votes = voted(30, hard=0.7)
    assert summarise(votes, 0, 0.001).max_error is None, "nothing of the ladder holds"
    summary = summarise(votes, 0, 0.35)
    assert (summary.max_error, summary.accepted is not None) == (0.35, True)
    assert any("35 %" in line[1] for line in summary.lines())


def test_labels_that_wait_for_the_classifier_are_counted_apart() -> None:
    (_, count, remark), *_ = LabelSummary(108, 2, unasked=192).lines()
    assert (count, re.findall(r"\d+", remark)) == ("108", ["192", "2"])
