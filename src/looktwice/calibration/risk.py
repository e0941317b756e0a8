"""Which confidences to accept so that a guarantee about the accepted answers holds, and how many labels it takes."""

from __future__ import annotations

import math

import numpy as np

from looktwice.calibration.votes import Bools, Counts, Floats
from looktwice.errors import DataError

STARTS = (0.25, 1.0, 2.0)
"""Thresholds that `threshold` tries on their own account, as multiples of the allowed error below 1; and zero."""

STEPS = 16
"""How many thresholds it tries between an allowed error and its double."""

UNSEEN = 1
"""Wrong answers that it counts beyond those that were seen."""

SHARES = {"max_error": 0.02, "level": 0.95, "coverage": 0.9, "power": 0.8, "alpha": 0.01}


def threshold(confidence: Floats, correct: Bools, max_error: float, level: float = 0.95) -> float | None:
    """The least confidence to accept, so that accepted answers are wrong at most `max_error` of the time.

    The guarantee holds with certainty `level` over the choice of the labelled pictures; None if none can be made.
    Candidates are fixed beforehand and tested from strict to lax, each with an exact binomial test (Learn then Test). A
    few of them have a share of the risk 1 − level of their own, and each that passes hands its share on to the next
    laxer one (the fallback procedure), so that all mistakes together stay within the risk. One wrong answer more is
    counted than was seen: pictures are judged by folds, and the calibrator that decides later is a little another than
    those of the folds.
    """
    check_share("max_error", max_error)
    check_share("level", level)
    levels, shares = _candidates(max_error)
    accepted, wrong = _above(confidence, levels), _above(confidence[~correct], levels) + UNSEEN
    surprise = _binomial(wrong, accepted, max_error)
    best, budget = None, 0.0
    for candidate, p, share in zip(levels.tolist(), surprise.tolist(), shares.tolist(), strict=True):
        budget += share * (1.0 - level)
        best, budget = (candidate, budget) if p <= budget else (best, 0.0)
    return best


def labels_needed(
    max_error: float, level: float = 0.95, expected_error: float = 0.0, coverage: float = 1.0, power: float = 0.8
) -> int:
    """How many labelled pictures `threshold` needs to make its guarantee, within one in a hundred.

    `expected_error` is how often accepted answers are really wrong, `coverage` the share that is accepted, and
    `power` the probability that the guarantee can then be made.
    """
    check_share("max_error", max_error)
    check_share("level", level)
    check_share("power", power)
    if not 0.0 <= expected_error < max_error:
        guarantee = f"answers that are wrong {expected_error:g} of the time"
        raise DataError(f"{guarantee} cannot be guaranteed to be so {max_error:g} of it; raise max_error")
    if not 0.0 < coverage <= 1.0:
        raise DataError(f"coverage is {coverage:g}; give a share of the pictures above 0 and up to 1")
    accepted = np.unique(np.geomspace(1.0, 1e9, 2100).round())
    allowed = _critical(accepted, max_error, (1.0 - level) / (len(STARTS) + 1)) - UNSEEN
    success = np.where(allowed >= 0, _binomial(np.maximum(allowed, 0), accepted, expected_error), 0.0)
    enough = success >= power
    if not enough.any():
        raise DataError(f"more than {accepted[-1]:.0e} labelled pictures would be needed; raise max_error")
    return math.ceil(accepted[enough.argmax()] / coverage)


def _candidates(max_error: float) -> tuple[Floats, Floats]:
    """The thresholds to try, from strict to lax, and the share of the risk that each has of its own."""
    powers = np.arange(round(math.log2(STARTS[0]) * STEPS), math.ceil(-math.log2(max_error) * STEPS))
    levels = np.append(1.0 - max_error * 2.0 ** (powers / STEPS), 0.0)
    starts = [int(np.abs(levels - (1.0 - max_error * start)).argmin()) for start in STARTS]
    starts.append(len(levels) - 1)
    return levels, np.bincount(starts, minlength=len(levels)) / len(starts)


def _above(confidence: Floats, levels: Floats) -> Counts:
    """How many confidences reach each level."""
    return len(confidence) - np.searchsorted(np.sort(confidence), levels, side="left")


def _binomial(wrong: Counts | Floats, asked: Counts | Floats, error: float) -> Floats:
    """P(X ≤ wrong) of a binomial X with `asked` trials of probability `error`."""
    from scipy.special import betainc

    return np.where(wrong < asked, betainc(np.maximum(asked - wrong, 1), wrong + 1, 1.0 - error), 1.0)


def _critical(asked: Floats, error: float, risk: float) -> Floats:
    """The most wrong answers that are still surprising at this risk, −1 if not even none is; by bisection."""
    low, high = np.full(len(asked), -1.0), asked
    while (high - low > 1).any():
        middle = np.ceil((low + high) / 2)
        fits = _binomial(middle, asked, error) <= risk
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def check_share(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise DataError(f"{name} is {value}; give a share between 0 and 1, such as {SHARES[name]}")
