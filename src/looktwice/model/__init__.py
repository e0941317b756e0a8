"""The model, and what it takes and gives: all that an interface imports of the packages below."""

from looktwice.calibration.base import Calibrator
from looktwice.calibration.crossfit import Outcome, cross_fit, outcome
from looktwice.calibration.panels import LossName, Plan
from looktwice.calibration.storage import save as save_votes
from looktwice.calibration.votes import ENDINGS as VOTES
from looktwice.calibration.votes import LabelledVotes
from looktwice.classifiers.base import Pixels, Terms
from looktwice.classifiers.prices import example as example_prices
from looktwice.classifiers.registry import resolve
from looktwice.classifiers.secrets import no_keys_needed
from looktwice.classifiers.trust import approve, reach
from looktwice.decisions.evaluation import Evaluation, evaluation
from looktwice.decisions.fitting import Collected, OnCollected, check_teachable
from looktwice.decisions.judging import Verdict, alternatives, is_unfamiliar, percent
from looktwice.decisions.pilot import Sized, Tuned, frontier, grid_of, search_queries
from looktwice.decisions.planning import LADDER, least_error, needs, remarks, selection_level
from looktwice.decisions.policy import NEVER, SHARES, DecisionOptions, Policy
from looktwice.decisions.profile import Profile, Result
from looktwice.decisions.stored import doubtful as doubtful_verdicts
from looktwice.decisions.stored import read as read_verdicts
from looktwice.decisions.stream import ExpectedAccuracy, Monitor, Observation, Stream
from looktwice.decisions.transferring import Transferred
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.engine.check import Checkup
from looktwice.engine.engine import Estimate
from looktwice.engine.ledger.places import OFF, POSTGRES
from looktwice.engine.options import NUMBERS, WHOLE, AskOptions, run
from looktwice.engine.outcome import Cause, Progress, Unscored
from looktwice.engine.query import AnswerEvent, OnAnswer
from looktwice.images.collection import Picture, few, find, labelled
from looktwice.images.datasets import open_labelled
from looktwice.images.image import WorkingSize, shown
from looktwice.images.video import is_video_file
from looktwice.model.connection import ShowProgress
from looktwice.model.model import AsyncModel
from looktwice.transfer.noise import NoiseFile
from looktwice.transfer.noise import drawn as draw_noise
from looktwice.transfer.noise import measure as measure_noise
from looktwice.views import GENERAL, Panel
from looktwice.views.panels import panel_of

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    **{name: (least, None) for name, least in {**WHOLE, **NUMBERS}.items()},
    **dict.fromkeys(SHARES, (0, 1)),
}
"""The least and the most that an option of asking or deciding may be."""

__all__ = [
    "BOUNDS",
    "GENERAL",
    "LADDER",
    "NEVER",
    "OFF",
    "POSTGRES",
    "VOTES",
    "AnswerEvent",
    "AskOptions",
    "AsyncModel",
    "Calibrator",
    "Cause",
    "Checkup",
    "Collected",
    "DecisionOptions",
    "Estimate",
    "Evaluation",
    "ExpectedAccuracy",
    "LabelledVotes",
    "LossName",
    "Monitor",
    "NoiseFile",
    "Observation",
    "OnAnswer",
    "OnCollected",
    "Outcome",
    "Panel",
    "Picture",
    "Pixels",
    "Plan",
    "Policy",
    "Profile",
    "Progress",
    "Result",
    "ScoreFile",
    "ShowProgress",
    "Sized",
    "Stream",
    "Terms",
    "Transferred",
    "Tuned",
    "Unscored",
    "Verdict",
    "WorkingSize",
    "alternatives",
    "approve",
    "check_teachable",
    "cross_fit",
    "doubtful_verdicts",
    "draw_noise",
    "evaluation",
    "example_prices",
    "few",
    "find",
    "frontier",
    "grid_of",
    "is_unfamiliar",
    "is_video_file",
    "labelled",
    "least_error",
    "measure_noise",
    "needs",
    "no_keys_needed",
    "open_labelled",
    "outcome",
    "panel_of",
    "percent",
    "reach",
    "read_verdicts",
    "remarks",
    "resolve",
    "run",
    "save_votes",
    "search_queries",
    "selection_level",
    "shown",
]
