"""Votes → probabilities, as pure functions of arrays: no network and no clock.

>>> from looktwice import calibration
>>> calibration.Probit().name
'probit'
"""

from looktwice.calibration.borrow import Pupil
from looktwice.calibration.calibrators import Calibrator, dump, register
from looktwice.calibration.crossfit import (
    FOLDS,
    ONE_QUERY,
    OWN,
    Evidence,
    Outcome,
    check_count,
    cross_fit,
    joined,
    outcome,
)
from looktwice.calibration.distribution import (
    AdaptiveSets,
    Conformal,
    Distribution,
    SetKind,
    SetMaker,
    TruthRank,
    draws,
)
from looktwice.calibration.evidence import MISSING, Bools, Codes, Counts, Floats, Places, RankedList, Row, useless
from looktwice.calibration.jury import Z95, AdaptiveJury, Jury, by_scores, first_scored
from looktwice.calibration.latent import Noise
from looktwice.calibration.logit import folds
from looktwice.calibration.metrics import BINS, Reliability, RiskCoverage
from looktwice.calibration.risk import (
    ANY,
    NEVER,
    Answers,
    Basis,
    Claim,
    Estimate,
    Thresholds,
    broken,
    check_share,
    claims,
    concerned,
    estimate,
    labels_needed,
    level_of_each,
    prediction_powered,
    thresholds,
)
from looktwice.calibration.shares import (
    PAPER_A,
    Ballot,
    Beta,
    Constant,
    Cumulative,
    Gaussian,
    Isotonic,
    Naive,
    Probit,
    ShareCalibrator,
    Tally,
    Transfer,
    base_tally,
)
from looktwice.calibration.tag_votes import LabelledTagVotes, TagVotes
from looktwice.calibration.tags import TagJury
from looktwice.calibration.votes import ENDINGS, OUTSIDE, LabelledVotes, Votes, check_truths

__all__ = [
    "Beta",
    "Calibrator",
    "Constant",
    "Cumulative",
    "Distribution",
    "Gaussian",
    "Isotonic",
    "Jury",
    "Naive",
    "Probit",
    "ShareCalibrator",
    "Transfer",
    "prediction_powered",
    "register",
]
