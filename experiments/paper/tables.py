"""The rows of the paper's Tables 1 to 4 for our models, each with the paper's own values beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import pearsonr

from experiments.collected import MILD16
from experiments.paper import published
from experiments.paper.answers import Answers, Readings, draws_of
from experiments.paper.subjects import Rows, Scale, Subject
from looktwice.calibration import crossfit, metrics
from looktwice.calibration.calibrators import Calibrator
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Codes, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Ballot, Cumulative, Gaussian, Naive, Objective, Probit, Transfer
from looktwice.calibration.votes import LabelledVotes
from looktwice.errors import DataError
from looktwice.views import Panel, View

Row = dict[str, object]
BALLOTS: tuple[Ballot, ...] = ("base", "vote")
ARGMAX = "argmax"
"""The third ballot: the most probable label of the paper's own distribution, which is not always A."""
TRANSFORMS = ("gaussian", "affine", "elastic", "rotation")
"""In the paper's order."""
RACE = 3
"""Settings of a transform that are asked about all pictures of the search; the others stop at a quarter of them."""
STEPS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Figure 2's numbers of draws, as shares of S: 10, 20, 30, 40 and 50."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Votes under one panel about the labelled and the tested pictures."""

    fit: LabelledVotes
    test: LabelledVotes

    def outcome(self, calibrator: Calibrator) -> tuple[Calibrator, Outcome]:
        """The calibrator fitted on one part, and its outcome on the other."""
        fitted = calibrator.fit(self.fit)
        return fitted, crossfit.outcome(fitted, self.test)

    def under(self, views: int) -> Parts:
        columns = range(views)
        return Parts(self.fit.under(columns), self.test.under(columns))


@dataclass(frozen=True, eq=False)
class Study:
    """One subject at one scale, with its answers."""

    answers: Answers
    size: Scale

    @property
    def subject(self) -> Subject:
        return self.answers.subject

    @cached_property
    def settings(self) -> dict[str, View]:
        """The best setting of each transform."""
        return {family: self._settle(views) for family, views in self.size.settings.items()}

    def _settle(self, views: Sequence[View]) -> View:
        """A grid search over setting and a, by the Brier score of the base ballot, in two rungs."""
        rows = self.subject.labelled(self.size)[: self.size.grid]
        ranked = sorted(views, key=lambda view: self._loss(view, rows[: max(10, len(rows) // 4)]))
        return min(ranked[:RACE], key=lambda view: self._loss(view, rows))

    def _loss(self, view: View, rows: Rows) -> float:
        votes = self.answers.votes(draws_of(view, self.size.grid_draws), rows)
        return crossfit.outcome(Gaussian().fit(votes), votes).scores().brier

    def parts(self, panel: Panel) -> Parts:
        """The answers about labelled and tested pictures, asked together."""
        fit, test = self.subject.labelled(self.size), self.subject.tested(self.size)
        votes = self.answers.votes(panel, np.concatenate([fit, test]))
        return Parts(votes.take(slice(len(fit))), votes.take(slice(len(fit), None)))

    def drawn(self, family: str) -> Parts:
        """The answers to S draws of a transform in its best setting."""
        return self.parts(draws_of(self.settings[family], self.size.draws))

    def noise(self, view: View) -> Readings:
        return self.answers.noise(view, self.subject.labelled(self.size)[: self.size.noise], self.size.noise_draws)


# Tables 1 and 2 ------------------------------------------------------------------------------------------------------


def results(study: Study) -> Iterator[Row]:
    """The rows of one model and reading: the paper's four transforms by three ballots, and Probit beside each.

    Naive, jury and softmax do not depend on the reading of the transforms and come with the first one.
    """
    naive = study.parts(Panel(())).outcome(Naive())[1]
    make, ours = _Maker(study, naive), study.size.reading == "looktwice"
    if ours:
        yield make.row("Naive", "naive", "base", naive)
        yield from _all_unlabelled(study, make)
    families = [family for family in TRANSFORMS if family in study.settings]
    # Noise first: its draws are among those of the ballots.
    noise = {family: _noise(study.noise(study.settings[family])) if study.size.noise else {} for family in families}
    found = {family: _ballots(study.drawn(family)) for family in families}
    for family in families:
        view = study.settings[family]
        for ballot, (a, outcome) in found[family].items():
            more = {"view": str(view), "a": a, **noise[family]}
            for other in ("gaussian", "rotation"):
                more |= _gap(other, outcome, found[other][ballot][1]) if other in found else {}
            yield make.row(family.title(), "gaussian", ballot, outcome, more)
        for vote in BALLOTS:
            fitted, outcome = study.drawn(family).outcome(Probit(ballot=vote))
            more = {"view": str(view), "a": getattr(fitted, "a", None)}
            yield make.row(family.title(), "probit", vote, outcome, more)
    if ours:
        yield from _jury(study, make)
        yield from _white_box(study, make)


def _all_unlabelled(study: Study, make: _Maker) -> Iterator[Row]:
    """Naive on all pictures that are not labelled, where only some of them are asked views about."""
    size = study.size
    if size.start + size.tested < size.pictures:
        everyone = Study(study.answers, replace(size, tested=size.pictures - size.start))
        yield make.row("Naive, all pictures", "naive", "base", everyone.parts(Panel(())).outcome(Naive())[1])


def _ballots(parts: Parts) -> dict[str, tuple[float | None, Outcome]]:
    """The a of Equation 3 and its outcome by each ballot."""
    found: dict[str, tuple[float | None, Outcome]] = {}
    for ballot in BALLOTS:
        fitted, outcome = parts.outcome(Gaussian(ballot=ballot))
        found[ballot] = getattr(fitted, "a", None), outcome
    a, outcome = found["base"]
    return found | {ARGMAX: (a, argmax(outcome, parts.test.truths, parts.test.classes))}


def argmax(found: Outcome, truths: Codes, classes: int) -> Outcome:
    """The base ballot's outcome, the answer being the most probable label of the distribution that it makes.

    The others share 1 − p(A) evenly, so A is dropped once p(A) < 1/K; of the others, all equal, the first is taken.
    The distribution is the same, and so is its Brier score.
    """
    dropped = found.confidence < 1.0 / classes
    label = np.where(dropped, found.label == 0, found.label).astype(np.int32)
    confidence = np.where(dropped, (1.0 - found.confidence) / (classes - 1), found.confidence)
    return replace(found, label=label, confidence=confidence, correct=label == truths)


def _jury(study: Study, make: _Maker) -> Iterator[Row]:
    """The mild panel's first views: as many as the paper draws, or all sixteen."""
    panel = MILD16[: study.size.draws]
    parts = study.parts(panel)
    fitted, found = parts.outcome(Jury())
    yield make.row("Jury", "jury", "vote", found)
    if isinstance(fitted, Jury):
        own = crossfit.outcome(replace(fitted, ballot="base"), parts.test)
        yield make.row("Jury", "jury", "base", own)


def _white_box(study: Study, make: _Maker) -> Iterator[Row]:
    """The model's own softmax, raw and with the temperature that suits the labelled pictures best."""
    fit, test = study.subject.labelled(study.size), study.subject.tested(study.size)
    output, truths = study.answers.logits(np.concatenate([fit, test])), study.subject.truths
    best = _temperature(output[: len(fit)], truths[fit])
    for name, temperature in (("Softmax", 1.0), ("Softmax, temperature", best)):
        probability = np.exp(log_softmax(output[len(fit) :] / temperature, axis=1))
        yield make.row(name, "softmax", "base", dense(probability, truths[test]), {"a": 1.0 / temperature})


def _temperature(output: Floats, truths: Codes) -> float:
    def loss(log_t: float) -> float:
        logs = log_softmax(output / np.exp(log_t), axis=1)
        return -float(logs[np.arange(len(truths)), truths].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def dense(probability: Floats, truths: Codes) -> Outcome:
    """A full table of probabilities (n, K) as an outcome."""
    labels = np.broadcast_to(np.arange(probability.shape[1], dtype=np.int32), probability.shape)
    distribution = Distribution(labels, probability, probability.shape[1])
    label = probability.argmax(axis=1).astype(np.int32)
    return Outcome.from_predictions("softmax", 1, label, probability.max(axis=1), distribution, truths)


def _noise(readings: Readings) -> Row:
    plain, centred = readings.plain, readings.centred
    return {
        "var": plain.var,
        "ks": plain.normal.ks,
        "centred_var": centred.var,
        "centred_ks": centred.normal.ks,
        "noise_pictures": len(readings.margin),
        "noise_draws": readings.noise.shape[1],
    }


def _gap(name: str, found: Outcome, other: Outcome | None) -> Row:
    """How much the Brier score differs from another's on the same pictures, with its interval."""
    if other is None or other is found:
        return {}
    gap = metrics.paired_difference(found.brier, other.brier)
    return {f"brier_less_{name}": gap.mean, f"less_{name}_low": gap.low, f"less_{name}_high": gap.high}


COLUMNS = (
    *(
        "dataset",
        "model",
        "reading",
        "method",
        "calibrator",
        "ballot",
        "view",
        "S",
        "queries",
        "a",
        "labelled",
        "tested",
    ),
    *(f"{metric}{end}" for metric in ("acc", "ece", "auroc", "brier") for end in ("", "_low", "_high")),
    *("brier_full", "var", "ks", "centred_var", "centred_ks", "noise_pictures", "noise_draws"),
    *("brier_less_naive", "less_naive_low", "less_naive_high"),
    *("brier_less_gaussian", "less_gaussian_low", "less_gaussian_high"),
    *("brier_less_rotation", "less_rotation_low", "less_rotation_high"),
    *("paper_model", "paper_S", *(f"paper_{metric}" for metric in published.METRICS)),
)


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes the rows of one study."""

    study: Study
    naive: Outcome

    def row(self, method: str, calibrator: str, ballot: str, found: Outcome, more: Row | None = None) -> Row:
        subject, size = self.study.subject, self.study.size
        full = float(found.brier.mean())
        if ballot != ARGMAX:  # whose Brier score is that of the distribution, evenly spread already
            even = metrics.brier_even_losses(found.confidence, found.correct, len(subject.labels))
            found = replace(found, brier=even)
        row: Row = {
            "dataset": subject.dataset,
            "model": subject.title,
            "reading": size.reading,
            "method": method,
            "calibrator": calibrator,
            "ballot": ballot,
            "S": round(found.queries) - 1,
            "queries": found.queries,
            "labelled": size.labelled,
            "tested": len(found.correct),
            "brier_full": full,
        }
        same = self.naive if len(found.correct) == len(self.naive.correct) else None
        row |= _figures(found) | _gap("naive", found, same) | self._paper(method, calibrator) | (more or {})
        return {column: row.get(column, "") for column in COLUMNS}

    def _paper(self, method: str, calibrator: str) -> Row:
        if calibrator not in ("naive", "gaussian"):
            return {}
        subject = self.study.subject
        model = published.nearest(subject.dataset, subject.title, float(self.naive.correct.mean()))
        line = published.row(subject.dataset, model, method.partition(",")[0])
        if line is None:
            return {}
        values = {f"paper_{name}": value for name, value in line.values.items() if value is not None}
        return {"paper_model": line.model, "paper_S": line.S, **values}


def _figures(found: Outcome) -> Row:
    scores, ends = found.scores(), found.intervals()
    row: Row = {}
    for short, name in (("acc", "accuracy"), ("ece", "ece"), ("auroc", "auroc"), ("brier", "brier")):
        low, high = getattr(ends, name) or ("", "")
        row |= {short: getattr(scores, name), f"{short}_low": low, f"{short}_high": high}
    return row


# Figure 2 ------------------------------------------------------------------------------------------------------------


def growth(study: Study) -> Iterator[Row]:
    """Brier against S, for each transform and ballot, a anew for each S, less the score at the smallest S."""
    for family, view in study.settings.items():
        whole = study.drawn(family)
        for ballot in BALLOTS:
            first = None
            for draws in dict.fromkeys(max(1, round(step * study.size.draws)) for step in STEPS):
                fitted, found = whole.under(draws).outcome(Gaussian(ballot=ballot))
                first = first or found
                gap, ends = metrics.paired_difference(found.brier, first.brier), found.intervals().brier
                yield {
                    "dataset": study.subject.dataset,
                    "model": study.subject.title,
                    "reading": study.size.reading,
                    "transform": family,
                    "view": str(view),
                    "ballot": ballot,
                    "S": draws,
                    "a": getattr(fitted, "a", None),
                    "tested": len(found.correct),
                    "brier": float(found.brier.mean()),
                    "brier_low": ends[0],
                    "brier_high": ends[1],
                    "less_first": gap.mean,
                    "less_first_low": gap.low,
                    "less_first_high": gap.high,
                }


# Table 3 -------------------------------------------------------------------------------------------------------------

TRANSFERRED = 10
"""S of Table 3."""
RESAMPLED = 1000
"""Bootstrap resamples of the pictures."""


def transfer(source: Study, target: Study) -> Iterator[Row]:
    """Φ against F_n of the source, for Gaussian views on the target, by each objective and ballot.

    Setting and a are chosen together on labelled pictures of the target, the setting by the base ballot.
    """
    for study in (source, target):
        if "gaussian" not in study.size.settings:
            raise DataError(
                f"{study.subject.title} takes pixels as they are, so noise after normalisation has no meaning"
            )
    objectives: tuple[Objective, ...] = ("ece", "brier")
    for objective in objectives:
        chosen = {cumulative: _transferable(source, target, objective, cumulative) for cumulative in ("Φ", "F_n")}
        for ballot in (*BALLOTS, ARGMAX):
            found = {name: _transferred(source, target, view, name, ballot, objective) for name, view in chosen.items()}
            for cumulative, (a, outcome) in found.items():
                view, line = chosen[cumulative], _printed(target.subject, cumulative)
                yield {
                    "open": source.subject.title,
                    "dataset": target.subject.dataset,
                    "model": target.subject.title,
                    "reading": target.size.reading,
                    "objective": objective,
                    "ballot": ballot,
                    "cumulative": cumulative,
                    "view": str(view),
                    "S": TRANSFERRED,
                    "a": a,
                    "labelled": target.size.labelled,
                    "tested": len(outcome.correct),
                    **_figures(outcome),
                    "ks": _ks(source, target, view, cumulative),
                    **_less("ece", outcome, found["Φ"][1]),
                    **_less("brier", outcome, found["Φ"][1]),
                    **{f"paper_{name}": line.get(name) for name in ("acc", "ece", "auroc", "brier", "ks")},
                }


def _printed(subject: Subject, cumulative: str) -> dict[str, float | None]:
    """The paper's Table 3 for this model, where it has it."""
    method = "gaussian+Phi" if cumulative == "Φ" else "gaussian+Fn"
    line = published.row(subject.dataset, subject.title, method)
    return {} if line is None else line.values


def _transferable(source: Study, target: Study, objective: Objective, cumulative: str) -> View:
    """The setting whose a suits the labelled pictures of the target best."""
    rows = target.subject.labelled(target.size)[: target.size.grid]

    def loss(view: View) -> float:
        votes = target.answers.votes(draws_of(view, TRANSFERRED), rows)
        scores = crossfit.outcome(_cumulative(source, view, cumulative, "base", objective).fit(votes), votes).scores()
        return scores.ece if objective == "ece" else scores.brier

    return min(target.size.settings["gaussian"], key=loss)


def _transferred(
    source: Study, target: Study, view: View, cumulative: str, ballot: str, objective: Objective
) -> tuple[float | None, Outcome]:
    parts = target.parts(draws_of(view, TRANSFERRED))
    vote: Ballot = "vote" if ballot == "vote" else "base"
    fitted, found = parts.outcome(_cumulative(source, view, cumulative, vote, objective))
    if ballot == ARGMAX:
        found = argmax(found, parts.test.truths, parts.test.classes)
    return getattr(fitted, "a", None), found


def _cumulative(
    source: Study, view: View, cumulative: str, ballot: Ballot, objective: Objective
) -> Gaussian | Transfer:
    if cumulative == "Φ":
        return Gaussian(ballot=ballot, objective=objective)
    return Transfer(noise=_learned(source, view), ballot=ballot, objective=objective)


def _learned(source: Study, view: View) -> Cumulative:
    """F_n of the open model, from as many draws as the closed one is asked."""
    rows = source.subject.labelled(source.size)[: source.size.noise]
    return source.answers.noise(view, rows, TRANSFERRED).plain.cumulative


def _ks(source: Study, target: Study, view: View, cumulative: str) -> float:
    """How far the closed model's own noise is from what is used in its place."""
    own = target.noise(view).plain
    return own.normal.ks if cumulative == "Φ" else gap(own.cumulative, _learned(source, view))


def _less(metric: str, found: Outcome, other: Outcome) -> Row:
    """How much a figure differs from another's on the same pictures, with its interval over them."""
    if found is other:
        return {f"{metric}_less_phi": "", f"{metric}_less_phi_low": "", f"{metric}_less_phi_high": ""}
    if metric == "brier":
        gap = metrics.paired_difference(found.brier, other.brier)
    else:
        apart = [
            metrics.ece(found.confidence[rows], found.correct[rows])
            - metrics.ece(other.confidence[rows], other.correct[rows])
            for rows in (np.arange(len(found.correct)), *chain(*metrics.draws(len(found.correct), RESAMPLED, seed=0)))
        ]
        low, high = np.quantile(apart[1:], [0.025, 0.975])
        gap = metrics.Difference(apart[0], float(low), float(high))
    return {
        f"{metric}_less_phi": gap.mean,
        f"{metric}_less_phi_low": gap.low,
        f"{metric}_less_phi_high": gap.high,
    }


def gap(one: Cumulative, other: Cumulative) -> float:
    """The least of sup_x |F(x) − G(x/a)| over a."""
    x, f = np.array(one.x), np.array(one.f)
    return min(float(np.abs(f - np.interp(x / s, other.x, other.f)).max()) for s in np.geomspace(0.05, 20, 400))


# Table 4 -------------------------------------------------------------------------------------------------------------


LEAST_RUNS = 8
"""Fewer runs mean nothing: four unrelated ones have |r| > .9 one time in ten."""


def correlations(rows: Iterable[dict[str, str]]) -> Iterator[Row]:
    """Pearson's r and p of Var and KS with ECE, AUROC and Brier over runs, of each dataset and of all together."""
    runs = [row for row in rows if row["calibrator"] == "gaussian" and row["var"]]
    readings = list(dict.fromkeys(row["reading"] for row in runs))
    for reading, ballot in product([*readings, *(["both"] if len(readings) > 1 else [])], (*BALLOTS, ARGMAX)):
        mine = [row for row in runs if reading in (row["reading"], "both") and row["ballot"] == ballot]
        for statistic in ("var", "ks", "centred_var", "centred_ks"):
            for dataset in [*dict.fromkeys(row["dataset"] for row in mine), "All datasets"]:
                part = [row for row in mine if dataset in (row["dataset"], "All datasets")]
                yield {"source": "ours", "reading": reading, "ballot": ballot} | _correlated(dataset, statistic, part)


def recomputed() -> Iterator[Row]:
    """The same from the numbers that the paper prints in its Tables 1 and 2."""
    runs = [line for line in published.lines() if line.table < 3 and line.method != "Naive"]
    values = [{"dataset": line.dataset, **{k: str(v) for k, v in line.values.items()}} for line in runs]
    for statistic in ("var", "ks"):
        for dataset in (*dict.fromkeys(line.dataset for line in runs), "All datasets"):
            part = [row for row in values if dataset in (row["dataset"], "All datasets")]
            yield {"source": "paper, recomputed", "reading": "", "ballot": ""} | _correlated(dataset, statistic, part)


def printed() -> Iterator[Row]:
    """The paper's Table 4 as printed."""
    for line in published.correlations():
        row: Row = {"source": "paper, printed", "reading": "", "ballot": "", "dataset": line["dataset"]}
        row |= {"statistic": line["statistic"].lower(), "runs": ""}
        yield row | {f"{m}_{x}": float(line[f"{m}_{x}"]) for m in ("ece", "auroc", "brier") for x in "rp"}


def _correlated(dataset: str, statistic: str, runs: Sequence[dict[str, str]]) -> Row:
    row: Row = {"dataset": dataset, "statistic": statistic, "runs": len(runs)}
    x = np.array([float(row[statistic]) for row in runs])
    for metric in ("ece", "auroc", "brier"):
        y = np.array([float(row[metric]) for row in runs])
        flat = len(runs) < LEAST_RUNS or np.ptp(x) == 0 or np.ptp(y) == 0
        r, p = ("", "") if flat else pearsonr(x, y)
        row |= {f"{metric}_r": r if flat else float(r), f"{metric}_p": p if flat else float(p)}
    return row
