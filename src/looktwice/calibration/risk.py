"""Risk control: confidence thresholds at which claims about accepted answers hold, and the labels they need.

The last part is prediction-powered inference, which estimates accuracy from a few labels and the confidences of many
other answers.

Arrays have one entry for each labelled answer: its confidence, predicted label and true label. For a tag the labels are
*present* and *absent*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.evidence import Bools, Counts, Floats
from looktwice.calibration.metrics import checked, wilson
from looktwice.errors import DataError

ANY = "*"
"""Stands for every label without its own claim."""
NEVER = math.inf
"""The threshold if no answer may be accepted: no confidence reaches it."""
STARTS = (0.25, 1.0, 2.0)
"""The errors, as multiples of the allowed error, whose candidate thresholds have an initial share of the risk; the
threshold zero also has one."""
STEPS = 16
"""The number of candidates between an allowed error and its double."""
SHARES = {"max_error": 0.02, "max_miss": 0.02, "level": 0.95, "coverage": 0.9, "power": 0.8, "alpha": 0.01}

Basis = Literal["guarantee", "estimate"]
"""The basis of a threshold: a guarantee at a level, or an estimate from held-out answers."""


class Answers(NamedTuple):
    """Held-out answers with their true labels."""

    confidence: Floats
    predicted: NDArray[np.generic]
    truth: NDArray[np.generic]

    @classmethod
    def unnamed(cls, confidence: Floats, correct: Bools) -> Self:
        """Answers for which only correctness is known; claims about single labels are not possible."""
        return cls(confidence, np.zeros(len(correct), np.int64), np.where(correct, 0, 1))

    @property
    def correct(self) -> Bools:
        """(n,): whether each answer is right."""
        return np.asarray(self.predicted == self.truth, bool)


@dataclass(frozen=True)
class Claim:
    """A bound on the error rate of accepted answers, or on the miss rate of a class."""

    bound: float
    label: str = ANY
    """The label of the claim; ANY for all labels without a claim of the same kind."""
    kind: Literal["error", "miss"] = "error"
    """`error`: at most this share of the accepted answers with the label is wrong. `miss`: at most this share of the
    pictures with this true label is accepted with another label."""

    def sentence(self) -> str:
        """The claim as a phrase.

        >>> Claim(0.05).sentence()
        'at most 5 % of the accepted answers are wrong'
        >>> Claim(0.02, "unsafe", "miss").sentence()
        'at most 2 % of the pictures whose true label is unsafe are accepted with another label'
        """
        share = f"at most {100 * self.bound:.3g} %"
        if self.kind == "miss":
            return f"{share} of the pictures whose true label is {self.label} are accepted with another label"
        which = "" if self.label == ANY else f" that say {self.label}"
        return f"{share} of the accepted answers{which} are wrong"

    def option(self) -> list[str]:
        """The claim as a command-line option."""
        value = f"{self.bound:.10g}" if self.label == ANY else f"{self.label}={self.bound:.10g}"
        return [f"--max-{self.kind}", value]


def claims(
    max_error: float | Mapping[str, float] | None = None, max_miss: Mapping[str, float] | None = None
) -> tuple[Claim, ...]:
    """The simultaneous claims; an allowed error that is a number applies to all labels."""
    errors = {} if max_error is None else max_error if isinstance(max_error, Mapping) else {ANY: max_error}
    simultaneous = [Claim(bound, label) for label, bound in errors.items()]
    simultaneous += [Claim(bound, label, "miss") for label, bound in (max_miss or {}).items()]
    for claim in simultaneous:
        check_share(f"max_{claim.kind}", claim.bound)
        if claim.kind == "miss" and claim.label == ANY:
            raise DataError(
                "max_miss applies to a single class; specify it, for example unsafe=0.02", code="option-invalid"
            )
    return tuple(simultaneous)


def counted_confidence(held_out: Floats, final: Floats, correct: Bools) -> Floats:
    """(n,): the confidence at which claims count each labelled answer, from held-out folds and the final calibrator.

    The final calibrator gives the same confidence to all pictures with the same answers, but each fold gives a slightly
    different one: a threshold between these would include only some of the pictures, although all are accepted in use.
    Each answer is therefore counted at the mean over the folds, and a wrong answer at no less than the final
    confidence.
    """
    _, group, size = np.unique(np.round(final, 6), return_inverse=True, return_counts=True)
    mean = (np.bincount(group, held_out) / size)[group]
    return np.where(correct | (size[group] == 1), mean, np.maximum(mean, final))


def level_of_each(level: float, claims: int) -> float:
    """The level for each of several simultaneous claims, so that all hold at `level` (Bonferroni)."""
    check_share("level", level)
    return 1.0 - (1.0 - level) / max(claims, 1)


@dataclass(frozen=True)
class Thresholds:
    """The lowest accepted confidence, by predicted label."""

    by_label: Mapping[str, float]
    """The thresholds; ANY applies to all other labels, and NEVER means that nothing may be accepted."""
    basis: Basis = "guarantee"
    claims: tuple[Claim, ...] = ()
    """The claims that the thresholds were chosen for."""

    def for_label(self, label: str) -> float:
        """The lowest confidence at which this label is accepted."""
        return self.by_label.get(label, self.by_label[ANY])

    @property
    def least(self) -> float:
        """The lowest threshold: NEVER if no answer can be accepted."""
        return min(self.by_label.values())


def thresholds(claims: Sequence[Claim], answers: Answers, level: float, basis: Basis = "guarantee") -> Thresholds:
    """Find thresholds at which all claims hold simultaneously at `level`, or are expected to hold.

    A miss bound for a class sets a minimum threshold for all other labels; error bounds then select thresholds from
    this minimum upwards. If errors are bounded by label, a label without a bound is never accepted.
    """
    level = level_of_each(level, len(claims))
    errors = {claim.label: claim for claim in claims if claim.kind == "error"}
    misses = {claim.label: _miss_threshold(claim, answers, level, basis) for claim in claims if claim.kind == "miss"}
    by_label = {}
    for label in (ANY, *(errors | misses)):
        least = max((bound for missed, bound in misses.items() if missed != label), default=0.0)
        claim = errors.get(label, errors.get(ANY))
        if claim is None:
            by_label[label] = NEVER if errors else least
            continue
        among = concerned(claim, claims, answers)
        by_label[label] = _error_threshold(
            claim, answers.confidence[among], answers.correct[among], level, basis, least
        )
    return Thresholds(by_label, basis, tuple(claims))


def concerned(claim: Claim, claims: Sequence[Claim], answers: Answers) -> Bools:
    """(n,): the answers that a claim applies to, by predicted or by true label."""
    if claim.label != ANY:
        return np.asarray((answers.truth if claim.kind == "miss" else answers.predicted) == claim.label, bool)
    return ~np.isin(answers.predicted, [other.label for other in claims if other.kind == "error"])


def broken(claim: Claim, answers: Answers) -> Bools:
    """(n,): accepted answers that violate a claim."""
    return answers.predicted != claim.label if claim.kind == "miss" else ~answers.correct


def _error_threshold(
    claim: Claim, confidence: Floats, correct: Bools, level: float, basis: Basis, least: float
) -> float:
    if basis == "guarantee":
        lowest = threshold(confidence, correct, claim.bound, level, least)
        return NEVER if lowest is None else lowest
    expected = estimate(confidence, correct, claim.bound)
    return NEVER if expected is None or expected.error > claim.bound else max(least, expected.threshold)


def _miss_threshold(claim: Claim, answers: Answers, level: float, basis: Basis) -> float:
    true = np.asarray(answers.truth == claim.label, bool)
    missed = answers.confidence[true & broken(claim, answers)]
    if basis == "guarantee":
        lowest = miss_threshold(missed, int(true.sum()), claim.bound, level)
        return NEVER if lowest is None else lowest
    allowed = math.floor(claim.bound * (true.sum() + 1) - 0.5)
    return _beyond(missed, allowed) if true.any() and allowed >= 0 else NEVER


def threshold(
    confidence: Floats, correct: Bools, max_error: float, level: float = 0.95, least: float = 0.0
) -> float | None:
    """The lowest threshold at which the error rate of accepted answers is at most `max_error`.

    The guarantee holds with confidence `level` over the sampling of labelled pictures; returns None if there is no such
    threshold. Candidates are fixed beforehand and tested from strict to lax, each with an exact binomial test (Learn
    then Test). A few candidates have a share of the risk 1 − level, and each candidate that passes transfers its share
    to the next laxer one. This fallback procedure controls the family-wise error: all candidates that pass hold
    simultaneously, so the laxest one from `least` on is returned.
    """
    check_share("max_error", max_error)
    check_share("level", level)
    levels, shares = _candidates(max_error)
    accepted, wrong = _above(confidence, levels), _above(confidence[~correct], levels)
    surprise = _binomial(wrong, accepted, max_error)
    best, budget = None, 0.0
    for candidate, p, share in zip(levels.tolist(), surprise.tolist(), shares.tolist(), strict=True):
        budget += share * (1.0 - level)
        passed = p <= budget
        budget = budget if passed else 0.0
        best = candidate if passed and candidate >= least else best
    return best


def miss_threshold(missed: Floats, true: int, max_miss: float, level: float = 0.95) -> float | None:
    """The lowest threshold at which at most `max_miss` of a class is accepted with another label.

    `true` is the number of labelled pictures of the class, and `missed` the confidences of those predicted as another
    label. Misses only grow as the threshold falls, so one exact binomial bound serves all thresholds (Bates et al.
    2021). Returns None if no number of misses would be small enough.
    """
    check_share("max_miss", max_miss)
    check_share("level", level)
    if not true:
        return None
    allowed = int(_critical(np.array([float(true)]), max_miss, 1.0 - level)[0])
    return None if allowed < 0 else _beyond(missed, allowed)


def _beyond(missed: Floats, allowed: int) -> float:
    """The lowest threshold that at most this many confidences reach."""
    ordered = np.sort(missed)[::-1]
    return 0.0 if len(ordered) <= allowed else float(np.nextafter(ordered[allowed], np.inf))


@dataclass(frozen=True)
class Estimate:
    """The expected error of accepting above a threshold: an estimate, not a guarantee."""

    threshold: float
    error: float
    """The expected share of wrong answers among the accepted answers."""
    low: float
    high: float
    """The upper end of the 95 % interval of `error`."""
    accepted: float
    """The share of accepted answers."""

    def sentence(self) -> str:
        """A sentence that marks the estimate as such."""
        interval = f"95 % interval {100 * self.low:.1f} % to {100 * self.high:.1f} %"
        share = f"with the {100 * self.accepted:.0f} % of pictures above a confidence of {self.threshold:.3f} accepted"
        return f"Best estimate, not a guarantee: {share}, the error rate is {100 * self.error:.1f} % ({interval})."


def estimate(confidence: Floats, correct: Bools, max_error: float) -> Estimate | None:
    """Find the lowest threshold with an expected error of at most `max_error`, or else the one with the least error.

    Half a wrong answer is added to offset the selection of the lowest threshold. Returns None if there are no answers.
    """
    from scipy.stats import beta

    check_share("max_error", max_error)
    if not len(confidence):
        return None
    order = np.argsort(-confidence, kind="stable")
    sure, wrong = confidence[order], np.cumsum(~correct[order])
    ends = np.append(np.flatnonzero(np.diff(sure)), len(sure) - 1)
    taken, wrong = ends + 1, wrong[ends]
    error = (wrong + 0.5) / (taken + 1.0)
    fits = np.flatnonzero(error <= max_error)
    at = int(fits[-1]) if len(fits) else int(error.argmin())
    low, high = beta.ppf([0.025, 0.975], [wrong[at], wrong[at] + 1], [taken[at] - wrong[at] + 1, taken[at] - wrong[at]])
    ends_at = 0.0 if at == len(ends) - 1 else float(sure[ends[at]])
    interval = float(np.nan_to_num(low)), float(np.nan_to_num(high, nan=1.0))
    return Estimate(ends_at, float(error[at]), *interval, float(taken[at] / len(sure)))


def labels_needed(
    max_error: float,
    level: float = 0.95,
    expected_error: float = 0.0,
    coverage: float = 1.0,
    power: float = 0.8,
    tests: int = len(STARTS) + 1,
) -> int:
    """The number of labelled pictures that `threshold` needs for its guarantee, to within 1 %.

    `expected_error` is the true error of accepted answers, `coverage` the accepted share, and `power` the probability
    that the guarantee can be given. `tests` is the number of candidates that share the risk, which is 1 for
    `miss_threshold`.
    """
    check_share("max_error", max_error)
    check_share("level", level)
    check_share("power", power)
    if not 0.0 <= expected_error < max_error:
        guarantee = f"accepted answers with an expected error of {expected_error:g}"
        raise DataError(
            f"{guarantee} cannot be guaranteed to have an error of at most {max_error:g}; raise max_error",
            code="guarantee-impossible",
        )
    if not 0.0 < coverage <= 1.0:
        raise DataError(
            f"coverage is {coverage:g}; give a share of the pictures above 0 and at most 1", code="option-invalid"
        )
    accepted = np.unique(np.geomspace(1.0, 1e9, 2100).round())
    allowed = _critical(accepted, max_error, (1.0 - level) / tests)
    success = np.where(allowed >= 0, _binomial(np.maximum(allowed, 0), accepted, expected_error), 0.0)
    enough = success >= power
    if not enough.any():
        raise DataError(
            f"more than {accepted[-1]:.0e} labelled pictures would be needed; raise max_error",
            code="guarantee-impossible",
        )
    return math.ceil(accepted[enough.argmax()] / coverage)


def _candidates(max_error: float) -> tuple[Floats, Floats]:
    """The candidate thresholds, from strict to lax, and the initial share of the risk of each."""
    powers = np.arange(round(math.log2(STARTS[0]) * STEPS), math.ceil(-math.log2(max_error) * STEPS))
    levels = np.append(1.0 - max_error * 2.0 ** (powers / STEPS), 0.0)
    starts = [int(np.abs(levels - (1.0 - max_error * start)).argmin()) for start in STARTS]
    starts.append(len(levels) - 1)
    return levels, np.bincount(starts, minlength=len(levels)) / len(starts)


def _above(confidence: Floats, levels: Floats) -> Counts:
    """The number of confidences that reach each level."""
    return len(confidence) - np.searchsorted(np.sort(confidence), levels, side="left")


def _binomial(wrong: Counts | Floats, asked: Counts | Floats, error: float) -> Floats:
    """P(X ≤ wrong) of a binomial X with `asked` trials of probability `error`."""
    from scipy.special import betainc

    return np.where(wrong < asked, betainc(np.maximum(asked - wrong, 1), wrong + 1, 1.0 - error), 1.0)


def _critical(asked: Floats, error: float, risk: float) -> Floats:
    """Find by bisection the largest number of wrong answers that a binomial test rejects at this risk; −1 if none."""
    low, high = np.full(len(asked), -1.0), asked
    while (high - low > 1).any():
        middle = np.ceil((low + high) / 2)
        fits = _binomial(middle, asked, error) <= risk
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def check_share(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise DataError(
            f"{name} is {value}; give a share between 0 and 1, such as {SHARES[name]}", code="option-invalid"
        )


# Prediction-powered inference -----------------------------------------------------------------------------------------

LEAST_POWERED = 50
"""The minimum number of labels, and of other answers, for a prediction-powered interval."""
PLAIN_LABELS = 10
"""The weight of the plain variance, as a number of labels, when a prediction-powered variance is shrunk towards it."""


class Powered(NamedTuple):
    """A share with its interval."""

    value: float
    low: float
    high: float


def check_powered(labels: int, others: int) -> None:
    """Raise an error if there are too few labelled or other pictures."""
    if min(labels, others) < LEAST_POWERED:
        counts = f"{labels} labelled and {others} other pictures"
        raise DataError(
            f"{counts} are too few for a prediction-powered accuracy; give {LEAST_POWERED} of each",
            code="labels-too-few",
        )


def prediction_powered(correct: Bools, confidence: Floats, unlabelled: Floats, level: float = 0.95) -> Powered:
    """Estimate the accuracy from checked answers and from the confidences of unchecked ones.

    The confidences are not labels, but show whether easy pictures were drawn for labelling by chance: the mean of
    `correct` is shifted by the difference in mean confidence to the `unlabelled` answers, as far as confidence
    correlates with correctness (prediction-powered inference with the power that minimises the variance; unbiased even
    if the confidences are wrong). The interval is a Wilson interval for the effective number of labels. The power is
    estimated from the same labels, so residuals are jackknifed, Student's quantile is used, and the variance is shrunk
    towards the variance from labels alone. At least `LEAST_POWERED` labels are required.

    >>> correct, confidence = np.arange(100) < 80, np.where(np.arange(100) < 80, 0.9, 0.4)
    >>> tuple(round(x, 3) for x in prediction_powered(correct, confidence, np.full(5000, 0.85)))
    (0.85, 0.805, 0.886)
    """
    from scipy.special import ndtri, stdtrit

    confidence, correct = checked(confidence, correct)
    unlabelled = np.asarray(unlabelled, dtype=np.float64)
    labels, others = len(correct), len(unlabelled)
    check_powered(labels, others)
    away = confidence - confidence.mean()
    spread = np.concatenate([confidence, unlabelled]).var()
    together = float(np.cov(correct, confidence)[0, 1])
    power = float(np.clip(together / spread / (1.0 + labels / others), 0.0, 1.0)) if spread > 0 else 0.0
    value = float(np.clip(correct.mean() + power * (unlabelled.mean() - confidence.mean()), 0.0, 1.0))
    leverage = 1.0 / labels + away**2 / max(float(away @ away), 1e-12)
    residual = (correct - correct.mean() - power * away) / np.maximum(1.0 - leverage, 1e-6)
    variance = float(residual @ residual) / labels**2 + power**2 * unlabelled.var(ddof=1) / others
    plain = (correct.sum() + 1.0) * (labels - correct.sum() + 1.0) / (labels + 2.0) ** 2
    variance = (labels * variance + PLAIN_LABELS * plain / labels) / (labels + PLAIN_LABELS)
    tail = (1 - level) / 2
    worth = plain / variance * (ndtri(tail) / stdtrit(labels - 2, tail)) ** 2
    low, high = wilson(value * worth, worth, level)
    return Powered(value, float(low), float(high))
