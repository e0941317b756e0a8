"""Votes → probabilities, as pure functions of arrays: no network and no clock.

>>> from looktwice import calibration
>>> calibration.Probit().name
'probit'
"""

from looktwice.calibration.base import Ballot, Calibrator, ShareCalibrator
from looktwice.calibration.calibrators import dump, register
from looktwice.calibration.conformal import AdaptiveSets, Conformal, SetKind, SetMaker, draws
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
from looktwice.calibration.distribution import Distribution, TruthRank
from looktwice.calibration.jury import Z95, AdaptiveJury, Jury
from looktwice.calibration.logit import Patterns, PenalisedLoss, folds
from looktwice.calibration.metrics import BINS, Reliability, RiskCoverage
from looktwice.calibration.options import tabulate
from looktwice.calibration.paper import PAPER_A, Cumulative, Gaussian, Naive, Transfer
from looktwice.calibration.powered import prediction_powered
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
    thresholds,
)
from looktwice.calibration.scales import useless
from looktwice.calibration.shares import Beta, Constant, Isotonic, Probit
from looktwice.calibration.storage import save
from looktwice.calibration.tag_votes import LabelledTagVotes, TagVotes
from looktwice.calibration.tags import TagJury
from looktwice.calibration.votes import (
    ENDINGS,
    MISSING,
    OUTSIDE,
    Bools,
    Codes,
    Counts,
    Floats,
    LabelledVotes,
    Places,
    RankedList,
    Row,
    Tally,
    Votes,
    base_tally,
    check_truths,
)

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
