"""The jury beside other methods that use the same labels of the same views, and what the model itself could do.

python -m experiments baselines    results/baselines.csv, one line for each model and method

Answers, panels and splits are those of experiments/general.py: the panel was grown on the other models, with pictures
that are not tested. All methods but the last two see the labels of the picture and of each view of that panel, and the
truths of the labelled part. Those that give one confidence assign it to the most frequent label and spread the rest
evenly. Dawid–Skene, GLAD and MACE (crowd-kit, `pip install --group baselines`) learn from the votes about all pictures,
without truths, and their probabilities get a temperature by the labelled ones; beyond 100 classes they take too long
and are left out. The last two lines are not label-only: the softmax with a temperature at one query, and the mean log
probabilities over the same nine queries with a temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaln
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from experiments.evaluation import Figures, dense_outcome, figures, means, tempered
from experiments.general import Answers, Split, left_out_splits
from experiments.writing import Row, write
from looktwice.calibration import crossfit, logit
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import Bools, Codes, Floats, LabelledVotes, base_tally, vote_tally

RESULTS = Path(__file__).parent / "results"
SPLITS = 20
FIGURES = ("accuracy", "ece", "ece_by_chance", "auroc", "base_auroc", "brier", "nll")
COMMON = 1000.0
"""The shrinkage at which all views have nearly one weight."""
TABLES = 100
"""Classes beyond which these take hours, and Dawid–Skene's tables are too large."""
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Crowd:
    """The votes about all pictures, as crowdsourcing sees them: views are workers."""

    votes: LabelledVotes

    @cached_property
    def answers(self) -> Codes:
        """(n, S + 1): the labels of the picture and of each view."""
        return np.column_stack([self.votes.base, self.votes.views])

    @cached_property
    def counts(self) -> Floats:
        """(n, K): how often each label was returned."""
        table = np.zeros((len(self.votes), len(self.votes.vocabulary)))
        np.add.at(table, (np.arange(len(table))[:, None], self.answers), 1.0)
        return table

    @cached_property
    def majority(self) -> Codes:
        """(n,): the most frequent label, the base label on a tie."""
        return vote_tally(replace(self.votes, views=self.answers, panel=("base", *self.votes.panel))).label

    @cached_property
    def features(self) -> Floats:
        """(n, 3): how often that label was returned, the entropy of the votes, and the number of labels."""
        share = self.counts / self.answers.shape[1]
        entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(axis=1)
        return np.column_stack([self.counts.max(axis=1), entropy, (share > 0).sum(axis=1)])

    @cached_property
    def agreeing(self) -> Floats:
        """(n, S): which views return the base label, and where classes are few, which label that is."""
        views = (self.votes.views == self.votes.base[:, None]) * 1.0
        if len(self.votes.vocabulary) > TABLES:
            return views
        return np.column_stack([views, np.eye(len(self.votes.vocabulary))[self.votes.base]])

    @cached_property
    def aggregated(self) -> dict[str, Floats]:
        """(n, K) each: log probabilities by methods that need no truths; none where crowd-kit is not installed."""
        if len(self.votes.vocabulary) > TABLES:
            return {}
        if find_spec("crowdkit") is None:
            return {}
        import pandas as pd
        from crowdkit.aggregation import GLAD, MACE, DawidSkene

        rows, workers = np.indices(self.answers.shape)
        columns = {"task": rows.ravel(), "worker": workers.ravel(), "label": self.answers.ravel()}
        makers = {
            "GLAD": GLAD(n_iter=20),
            "MACE": MACE(n_restarts=2, n_iter=20, random_state=0),
            "Dawid-Skene": DawidSkene(n_iter=50),
        }
        found = {}
        for name, maker in makers.items():
            table = maker.fit_predict_proba(pd.DataFrame(columns)).reindex(range(len(self.answers)))
            table = table.reindex(columns=range(len(self.votes.vocabulary)), fill_value=0.0).fillna(0.0)
            found[name] = np.log(np.maximum(table.to_numpy(), 1e-6))
        return found


def alone(name: str, crowd: Crowd, label: Codes, confidence: Floats, test: Rows) -> Outcome:
    """One label with a confidence as an outcome, the rest spread evenly."""
    distribution = Distribution(label[test, None], confidence[test, None], crowd.votes.classes)
    truths = crowd.votes.truths[test]
    return Outcome.of(name, crowd.answers.shape[1], label[test], confidence[test], distribution, truths)


def regressed(features: Floats, right: Bools, fit: Rows, model: type) -> Floats:
    """The probability that a label is right, by a regression on features."""
    if right[fit].all() or not right[fit].any():
        return np.full(len(right), right[fit].mean())
    maker = model(max_iter=1000) if model is LogisticRegression else model(max_iter=60, max_depth=3, random_state=0)
    chance: Floats = maker.fit(features[fit], right[fit]).predict_proba(features)[:, 1]
    return chance


def beta_binomial(crowd: Crowd, fit: Rows) -> Floats:
    """The probability that the base label is right, agreement being beta-binomial for right and for wrong pictures."""
    tally, right = base_tally(crowd.votes), crowd.votes.base == crowd.votes.truths
    agree, asked = tally.agree * 1.0, tally.asked * 1.0

    def log_likelihood(shape: Floats, rows: Rows | slice) -> Floats:
        a, b = np.exp(shape)
        found: Floats = betaln(agree[rows] + a, asked[rows] - agree[rows] + b) - betaln(a, b)
        return found

    def fitted(rows: Rows) -> Floats:
        best: Floats = minimize(lambda shape: -float(log_likelihood(shape, rows).sum()), np.zeros(2)).x
        return np.clip(best, -6, 6)

    share = np.clip(right[fit].mean(), 0.01, 0.99)
    yes, no = (log_likelihood(fitted(fit[right[fit] == side]), slice(None)) for side in (True, False))
    return 1 / (1 + np.exp(no - yes) * (1 - share) / share)


def label_only(crowd: Crowd, fit: Rows, test: Rows) -> Iterator[tuple[Outcome, Floats]]:
    """Every method with the confidence in the base answer that it gives."""
    votes, truths = crowd.votes, crowd.votes.truths
    tested, base = votes.take(test), votes.base[test]
    right = crowd.majority == truths

    def single(name: str, confidence: Floats) -> tuple[Outcome, Floats]:
        given = np.where(crowd.majority == votes.base, confidence, (1 - confidence) / (votes.classes - 1))
        return alone(name, crowd, crowd.majority, confidence, test), given[test]

    def table(name: str, logs: Floats) -> tuple[Outcome, Floats]:
        return whole_table(name, tempered(logs, truths, fit)[test], truths[test], base, crowd.answers.shape[1])

    yield single("majority share", crowd.features[:, 0] / crowd.answers.shape[1])
    yield single("entropy of the votes", regressed(crowd.features[:, 1:2], right, fit, LogisticRegression))
    yield single("count and entropy, logistic", regressed(crowd.features, right, fit, LogisticRegression))
    own = regressed(crowd.agreeing, votes.base == truths, fit, LogisticRegression)
    yield alone("views and class, logistic", crowd, votes.base, own, test), own[test]
    boosted = np.column_stack([crowd.features, crowd.agreeing])
    yield single("gradient boosting", regressed(boosted, right, fit, HistGradientBoostingClassifier))
    pooled = beta_binomial(crowd, fit)
    yield alone("beta-binomial", crowd, votes.base, pooled, test), pooled[test]
    for name, logs in crowd.aggregated.items():
        yield table(name, logs)
    yield table("vote counts, one temperature", crowd.counts)
    for name, fitted in (("jury, one common weight", common), ("jury", Jury().fit)):
        calibrator = fitted(votes.take(fit))
        own = replace(calibrator, ballot="base").confidence(tested)
        yield crossfit.outcome(calibrator, tested, name), own


def common(labelled: LabelledVotes) -> Jury:
    """The jury with nearly one weight for all views, and no offsets."""
    patterns = logit.tabulate(labelled)
    fitted = Jury(shrinkage=COMMON)._with_parameters(patterns, logit.descend(patterns, COMMON), logit.Offsets())
    return fitted.with_companions(labelled, labelled)


def whole_table(name: str, logs: Floats, truths: Codes, base: Codes, queries: int) -> tuple[Outcome, Floats]:
    """A full table of log probabilities, with the confidence in the base answer that it gives."""
    return dense_outcome(name, logs, truths, queries), np.exp(logs[np.arange(len(base)), base])


def white_box(each: Answers, split: Split) -> Iterator[tuple[Outcome, Floats]]:
    """What the owner of the model could do, with one query and with the panel's."""
    truths, base = each.votes.truths, each.votes.base[split.test]
    for name, panel in {"softmax, temperature": [], "mean logits, temperature": split.panel}.items():
        logs = tempered(each.mean_logs(panel), truths, split.fit)[split.test]
        yield whole_table(name, logs, truths[split.test], base, 1 + len(panel))


def measured(models: Sequence[Answers], each: Answers, splits: int) -> Iterator[Row]:
    """One line for each method: the means over the splits."""
    crowds: dict[int, Crowd] = {}
    found: dict[tuple[str, float], list[Figures]] = {}
    for split in left_out_splits(models, each, splits):
        crowd = crowds.setdefault(split.parity, Crowd(split.votes))
        right = (split.votes.base == split.votes.truths)[split.test]
        for outcome, own in (*label_only(crowd, split.fit, split.test), *white_box(each, split)):
            found.setdefault((outcome.name, outcome.queries), []).append(figures(outcome, own, right))
    for (name, queries), of_splits in found.items():
        row = {"model": each.title, "method": name, "queries": f"{queries:g}"}
        yield {**row, **means(of_splits, FIGURES), "splits": str(splits)}


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/baselines.csv."""
    if find_spec("crowdkit") is None:
        print("GLAD, MACE and Dawid-Skene are left out; they need: pip install --group baselines", flush=True)
    write(results / "baselines.csv", (row for each in models for row in measured(models, each, splits)))
