"""The jury beside other methods that use the same labels of the same views, and what the model itself could do.

python -m experiments baselines    results/baselines.csv, one line for each model and method

Each model is asked under the panel that was grown on the other five, with pictures of the odd blocks (general.csv);
pictures of the even blocks are tested. All methods see the labels of the picture and of each view, and the truths of
the labelled part. Those that give one confidence assign it to the most frequent label and spread the rest evenly.
Dawid–Skene, GLAD and MACE (crowd-kit) learn from the votes about all pictures, without truths, and their probabilities
get a temperature by the labelled ones; these and stacking are left out beyond 50 classes. Methods of HIDDEN are not
label-only: see experiments/hidden.py.

`brier`, `ece` and `auroc` minus those of the jury have 95 % intervals by resampling pictures, the same for all methods
(experiments/resampled.py); `holm` is the p-value of the difference in Brier score, adjusted for all label-only
methods and models of the table together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaln, log_softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from experiments.collected import CACHE
from experiments.evaluation import Figures, dense_outcome, figures, means, tempered
from experiments.general import Answers, recorded_splits
from experiments.hidden import chosen, dirichlet, weighted_views
from experiments.manifest import digest
from experiments.resampled import holm, resampled
from experiments.writing import Row, write
from looktwice.calibration import Beta, Gaussian, Isotonic, Probit, crossfit
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Bools, Codes, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import ShareCalibrator, base_tally, vote_tally
from looktwice.calibration.votes import LabelledVotes

RESULTS = Path(__file__).parent / "results"
SPLITS, VIEWS = 10, 8
FIGURES = ("accuracy", "ece", "ece_by_chance", "auroc", "base_auroc", "brier", "nll")
OURS = "jury"
HIDDEN = (
    "softmax, temperature",
    "softmax, Dirichlet calibration",
    "mean logits, temperature",
    "learned test-time weights",
)
"""What only the owner of the model can do: with one query, and with all of them."""
SHARES: dict[str, type[ShareCalibrator]] = {"Eq. 3": Gaussian, "probit": Probit, "beta": Beta, "isotonic": Isotonic}
"""Calibrators that look at one number, the share of views that agree."""
TABLES, OF_CLASS = 50, 100
"""Classes beyond which tables and crowd-sourcing take hours, and beyond which a regression has no column for each."""
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
        if len(self.votes.vocabulary) > OF_CLASS:
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
    return Outcome.from_predictions(name, crowd.answers.shape[1], label[test], confidence[test], distribution, truths)


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
    if len(votes.vocabulary) <= TABLES:
        logs = stacked(crowd, fit)[test]
        yield whole_table("one-hot votes, logistic", logs, truths[test], base, crowd.answers.shape[1])
    for name, family in SHARES.items():
        yield by_shares(name, family, votes.take(fit), tested)
    jury = Jury().fit(votes.take(fit))
    yield crossfit.outcome(jury, tested, OURS), replace(jury, ballot="base").confidence(tested)


def by_shares(
    name: str, family: type[ShareCalibrator], labelled: LabelledVotes, tested: LabelledVotes
) -> tuple[Outcome, Floats]:
    """A calibrator of vote shares, for the label that most views give, and for the base answer."""
    vote, own = (family(ballot=ballot).fit(labelled) for ballot in ("vote", "base"))
    return crossfit.outcome(vote, tested, name), own.confidence(tested)


def stacked(crowd: Crowd, fit: Rows) -> Floats:
    """(n, K): log probabilities of a multinomial logistic regression on the one-hot labels of all answers."""
    classes, truths = len(crowd.votes.vocabulary), crowd.votes.truths
    table = (crowd.answers[:, :, None] == np.arange(classes)).reshape(len(truths), -1) * 1.0

    def fitted(rows: Rows, penalty: float) -> Callable[[Floats], Floats]:
        regression = LogisticRegression(C=1.0 / penalty, max_iter=100).fit(table[rows], truths[rows])

        def predict(features: Floats) -> Floats:
            logs = np.full((len(features), classes), np.log(1e-6))  # of a class that has no labelled picture
            logs[:, regression.classes_] = np.maximum(regression.predict_log_proba(features), np.log(1e-6))
            return log_softmax(logs, axis=1)

        return predict

    return chosen(fitted, table, truths, fit)


def whole_table(name: str, logs: Floats, truths: Codes, base: Codes, queries: int) -> tuple[Outcome, Floats]:
    """A full table of log probabilities, with the confidence in the base answer that it gives."""
    return dense_outcome(name, logs, truths, queries), np.exp(logs[np.arange(len(base)), base])


def white_box(each: Answers, fit: Rows, test: Rows) -> Iterator[tuple[Outcome, Floats]]:
    """What the owner of the model could do, with one query and with the panel's."""
    truths, base = each.votes.truths, each.votes.base[test]
    single, views = each.mean_logs([]), range(min(VIEWS, len(each.votes.panel)))
    tables = {HIDDEN[0]: tempered(single, truths, fit)}
    if single.shape[1] <= TABLES:
        tables[HIDDEN[1]] = dirichlet(single, truths, fit)
    tables[HIDDEN[2]] = tempered(each.mean_logs(views), truths, fit)
    tables[HIDDEN[3]] = weighted_views(each.logs[:, : 1 + len(views)].astype(np.float64), truths, fit)
    for name, logs in tables.items():
        queries = 1 if name.startswith("softmax") else 1 + len(views)
        yield whole_table(name, logs[test], truths[test], base, queries)


Hidden = Callable[[Rows, Rows], Iterator[tuple[Outcome, Floats]]]


@dataclass(frozen=True, eq=False)
class Compared:
    """The outcomes of every method on the splits of one set of pictures."""

    title: str
    pictures: int
    tested: list[Rows]
    outcomes: dict[str, list[Outcome]]
    figures: dict[str, list[Figures]]

    def rows(self) -> Iterator[tuple[Row, float]]:
        """One line for each method, with the p-value of its difference in Brier score to the jury."""
        drawn = {name: resampled(self.pictures, each, self.tested) for name, each in self.outcomes.items()}
        for name, found in drawn.items():
            row = {"model": self.title, "method": name, "queries": f"{self.outcomes[name][0].queries:g}"}
            row |= means(self.figures[name], FIGURES)
            low, high = found["brier"].interval
            row |= {"brier_low": f"{low:.4f}", "brier_high": f"{high:.4f}", "pictures": str(self.pictures)}
            for figure, value in found.items():
                gap = value.less(drawn[OURS][figure])
                low, high = gap.interval
                row |= {
                    f"{figure}_minus_jury": f"{gap.value:+.4f}",
                    f"{figure}_minus_low": f"{low:+.4f}",
                    f"{figure}_minus_high": f"{high:+.4f}",
                }
            yield row, found["brier"].less(drawn[OURS]["brier"]).p_value

    @classmethod
    def on(
        cls, title: str, votes: LabelledVotes, splits: Iterable[tuple[Rows, Rows]], hidden: Hidden | None = None
    ) -> Compared:
        """Every method on some splits of these votes, and what `hidden` adds to the label-only ones."""
        result, crowd = cls(title, len(votes), [], {}, {}), Crowd(votes)
        for fit, test in splits:
            right = (votes.base == votes.truths)[test]
            result.tested.append(test)
            for outcome, own in (*label_only(crowd, fit, test), *(hidden(fit, test) if hidden else ())):
                result.outcomes.setdefault(outcome.name, []).append(outcome)
                result.figures.setdefault(outcome.name, []).append(figures(outcome, own, right))
        return result


Lines = Iterable[tuple[Row, float]]
"""Those of one set of pictures, with p-values."""


def table(subjects: Iterable[Lines], splits: int) -> list[Row]:
    """All lines, with Holm's p-values over the label-only ones."""
    lines = [line for each in subjects for line in each]
    judged = [p_value for row, p_value in lines if row["method"] not in (*HIDDEN, OURS)]
    adjusted = iter(holm(judged))
    return [
        {**row, "holm": "" if row["method"] in (*HIDDEN, OURS) else f"{next(adjusted):.2g}", "splits": str(splits)}
        for row, _ in lines
    ]


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/baselines.csv."""
    if find_spec("crowdkit") is None:
        print("GLAD, MACE and Dawid-Skene are left out; they need: make experiments TASK=baselines", flush=True)
    write(results / "baselines.csv", table((lines(each, splits) for each in models), splits))


def lines(each: Answers, splits: int) -> Lines:
    """The lines of a model; those that the same code made of as many pictures before are read again."""
    name = f"{each.name}-{len(each.votes)}-{splits}-{digest(__name__)}.json"
    path = CACHE / "baselines" / name
    if not path.exists():
        measured = list(compared(each, splits).rows())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured), "utf-8")
        print(f"{each.title} is measured", flush=True)
    return [(row, p_value) for row, p_value in json.loads(path.read_text("utf-8"))]


def compared(each: Answers, splits: int) -> Compared:
    """Every method on the splits of one model; pictures of the even blocks are tested."""
    drawn = recorded_splits(each, splits)
    return Compared.on(each.title, each.votes.under(range(VIEWS)), drawn, partial(white_box, each))
