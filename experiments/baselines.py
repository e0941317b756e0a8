"""The jury beside the usual ways to use the same labels of the same views, and above them what the model could do.

python -m experiments baselines    results/baselines.csv, one line for each model and method

Answers are those of experiments/general.py, and so are the splits: the panel grew on the other models, by pictures
that are not tested. All methods but the last ones see the label of the picture and of each view of that panel, and the
truths of the labelled part. Those that give one confidence give it to the label that most say, the rest spread evenly.
Dawid–Skene, GLAD and MACE (crowd-kit, `pip install --group baselines`) learn from the votes about all pictures,
without truths, and their probabilities get a temperature by the labelled ones; beyond 100 classes they take too long
and are left out. The last lines are not label-only: the softmax with a temperature at one query, and the mean of the
log probabilities over nine queries with a temperature. The latter are known for the views of the mild panel
(experiments/outputs.py), so the jury of these nine queries stands beside it.
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
from scipy.special import betaln, log_softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from experiments.collected import CACHE
from experiments.general import OLD, Heard, Split, left_out_splits, write_table
from looktwice.calibration import crossfit, logit, metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import Bools, Codes, Floats, LabelledVotes, base_tally, vote_tally

RESULTS = Path(__file__).parent / "results"
SPLITS = 20
FIGURES = ("accuracy", "ece", "auroc", "base_auroc", "brier", "brier_even", "nll")
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
    def said(self) -> Codes:
        """(n, S + 1): what the picture and each view was called."""
        return np.column_stack([self.votes.base, self.votes.views])

    @cached_property
    def counts(self) -> Floats:
        """(n, K): how many say each label."""
        table = np.zeros((len(self.votes), len(self.votes.vocabulary)))
        np.add.at(table, (np.arange(len(table))[:, None], self.said), 1.0)
        return table

    @cached_property
    def majority(self) -> Codes:
        """(n,): the label that most say, the base label on a tie."""
        return vote_tally(replace(self.votes, views=self.said, panel=("base", *self.votes.panel))).label

    @cached_property
    def features(self) -> Floats:
        """(n, 3): how many say that label, the entropy of the votes, and how many labels were said."""
        share = self.counts / self.said.shape[1]
        entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(axis=1)
        return np.column_stack([self.counts.max(axis=1), entropy, (share > 0).sum(axis=1)])

    @cached_property
    def agreeing(self) -> Floats:
        """(n, S): which views say the base label, and where classes are few, which label that is."""
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
            print("GLAD, MACE and Dawid-Skene are left out; they need: pip install --group baselines", flush=True)
            return {}
        import pandas as pd
        from crowdkit.aggregation import GLAD, MACE, DawidSkene

        rows, workers = np.indices(self.said.shape)
        columns = {"task": rows.ravel(), "worker": workers.ravel(), "label": self.said.ravel()}
        makers = {
            "GLAD": GLAD(n_iter=20),
            "MACE": MACE(n_restarts=2, n_iter=20, random_state=0),
            "Dawid-Skene": DawidSkene(n_iter=50),
        }
        found = {}
        for name, maker in makers.items():
            told = maker.fit_predict_proba(pd.DataFrame(columns)).reindex(range(len(self.said)))
            table = told.reindex(columns=range(len(self.votes.vocabulary)), fill_value=0.0).fillna(0.0)
            found[name] = np.log(np.maximum(table.to_numpy(), 1e-6))
        return found


def dense(name: str, logs: Floats, truths: Codes, queries: float) -> Outcome:
    """A full table of log probabilities as an outcome."""
    p = np.exp(log_softmax(logs, axis=1))
    labels = np.broadcast_to(np.arange(p.shape[1], dtype=np.int32), p.shape)
    label = p.argmax(axis=1).astype(np.int32)
    return Outcome.of(name, queries, label, p.max(axis=1), Distribution(labels, p, p.shape[1]), truths)


def tempered(logs: Floats, truths: Codes, fit: Rows) -> Floats:
    """The log probabilities with the temperature that suits the labelled part best."""

    def loss(log_t: Floats) -> float:
        told = log_softmax(logs[fit] / np.exp(log_t[0]), axis=1)
        return -float(told[np.arange(len(fit)), truths[fit]].mean())

    best: Floats = logs / np.exp(minimize(loss, np.zeros(1), method="Nelder-Mead").x[0])
    return best


def alone(name: str, crowd: Crowd, label: Codes, confidence: Floats, test: Rows) -> Outcome:
    """One label with a confidence as an outcome, the rest spread evenly."""
    distribution = Distribution(label[test, None], confidence[test, None], crowd.votes.classes)
    truths = crowd.votes.truths[test]
    return Outcome.of(name, crowd.said.shape[1], label[test], confidence[test], distribution, truths)


def regressed(features: Floats, right: Bools, fit: Rows, model: type) -> Floats:
    """The probability that a label is right, by a regression on features."""
    if right[fit].all() or not right[fit].any():
        return np.full(len(right), right[fit].mean())
    maker = model(max_iter=1000) if model is LogisticRegression else model(max_iter=60, max_depth=3, random_state=0)
    told: Floats = maker.fit(features[fit], right[fit]).predict_proba(features)[:, 1]
    return told


def beta_binomial(crowd: Crowd, fit: Rows) -> Floats:
    """The probability that the base label is right, agreement being beta-binomial for right and for wrong pictures."""
    tally, right = base_tally(crowd.votes), crowd.votes.base == crowd.votes.truths
    agree, asked = tally.agree * 1.0, tally.asked * 1.0

    def log_likelihood(shape: Floats, rows: Rows | slice) -> Floats:
        a, b = np.exp(shape)
        told: Floats = betaln(agree[rows] + a, asked[rows] - agree[rows] + b) - betaln(a, b)
        return told

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
        told = tempered(logs, truths, fit)
        chance = np.exp(log_softmax(told[test], axis=1))
        return dense(name, told[test], truths[test], crowd.said.shape[1]), chance[np.arange(len(test)), base]

    yield single("majority share", crowd.features[:, 0] / crowd.said.shape[1])
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
    fitted = Jury(shrinkage=COMMON)._holding(patterns, logit.descend(patterns, COMMON), logit.Offsets())
    return fitted.beside(labelled, labelled)


def mean_logs(each: Heard) -> Floats | None:
    """(n, K): the mean log probabilities under the picture and its mild views; None where they are not kept."""
    path = CACHE / "outputs" / f"{each.name}.npy"
    if not path.exists():
        return None
    kept = np.load(path, mmap_mode="r")
    mean: Floats = np.stack([kept[int(name)].astype(np.float64).mean(axis=0) for name in each.votes.names])
    return mean


def white_box(each: Heard, mean: Floats | None, split: Split) -> Iterator[tuple[Outcome, Floats]]:
    """What the owner of the model could do, with one query and with nine, and the jury of the same nine."""
    truths, base = each.votes.truths, each.votes.base[split.test]
    tables = {"softmax, temperature": (1, each.logs)}
    if mean is not None:
        mild = each.votes.under(OLD)
        calibrator, tested = Jury().fit(mild.take(split.fit)), mild.take(split.test)
        yield (
            crossfit.outcome(calibrator, tested, "jury, mild views"),
            replace(calibrator, ballot="base").confidence(tested),
        )
        tables["mean logits of the mild views, temperature"] = (9, mean)
    for name, (queries, logs) in tables.items():
        told = tempered(logs, truths, split.fit)[split.test]
        chance = np.exp(log_softmax(told, axis=1))[np.arange(len(base)), base]
        yield dense(name, told, truths[split.test], queries), chance


def figures(outcome: Outcome, own: Floats, base_right: Bools, classes: int) -> dict[str, float]:
    """The figures of one method on one split."""
    scores = outcome.scores()
    return {
        "accuracy": scores.accuracy,
        "ece": scores.ece,
        "auroc": scores.auroc or 0.5,
        "base_auroc": metrics.auroc(own, base_right) or 0.5,
        "brier": scores.brier,
        "brier_even": metrics.brier_even(outcome.confidence, outcome.correct, classes),
        "nll": scores.nll,
    }


def measured(models: Sequence[Heard], each: Heard, splits: int) -> Iterator[dict[str, str]]:
    """One line for each method: the means over the splits."""
    crowds: dict[int, Crowd] = {}
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    mean = mean_logs(each)
    for split in left_out_splits(models, each, splits):
        crowd = crowds.setdefault(split.parity, Crowd(split.votes))
        right = (split.votes.base == split.votes.truths)[split.test]
        for outcome, own in (*label_only(crowd, split.fit, split.test), *white_box(each, mean, split)):
            told = figures(outcome, own, right, split.votes.classes)
            found.setdefault((outcome.name, outcome.queries), []).append(told)
    for (name, queries), told_of in found.items():
        means = {key: f"{np.mean([told[key] for told in told_of]):.4f}" for key in FIGURES}
        yield {"model": each.title, "method": name, "queries": f"{queries:g}", **means, "splits": str(splits)}


def main(models: Sequence[Heard], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/baselines.csv."""
    write_table(results / "baselines.csv", (line for each in models for line in measured(models, each, splits)))
