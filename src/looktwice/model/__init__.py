"""The model, and what it takes and gives: all that an interface imports of the packages below."""

from looktwice.calibration.base import Calibrator
from looktwice.calibration.conformal import SetKind
from looktwice.calibration.crossfit import FOLDS, Outcome, cross_fit, outcome
from looktwice.calibration.jury import Jury
from looktwice.calibration.panels import LossName, Plan
from looktwice.calibration.storage import save as save_votes
from looktwice.calibration.votes import ENDINGS as VOTES
from looktwice.calibration.votes import Bools, Counts, Floats, LabelledVotes, Places, Row, Votes
from looktwice.classifiers.base import Classifier, Pixels, Terms
from looktwice.classifiers.prices import example as example_prices
from looktwice.classifiers.registry import Source, connect, resolve
from looktwice.classifiers.secrets import no_keys_needed
from looktwice.classifiers.trust import approve, reach
from looktwice.decisions.evaluation import Evaluation, evaluation
from looktwice.decisions.fitting import Collected, OnCollected, check_teachable, labelled_votes
from looktwice.decisions.pilot import Sized, Tuned, frontier, grid_of, search_queries
from looktwice.decisions.planning import LADDER, least_error, needs, remarks, selection_level
from looktwice.decisions.policy import FALSE_ALARMS, NEVER, SHARES, DecisionOptions, Policy, Unfamiliar
from looktwice.decisions.profile import HeldOut, Profile, Result
from looktwice.decisions.stored import ReviewFolder, returned_labels
from looktwice.decisions.stored import doubtful as doubtful_verdicts
from looktwice.decisions.stored import read as read_verdicts
from looktwice.decisions.stream import ExpectedAccuracy, Monitor, Observation, Stream
from looktwice.decisions.transferring import Transferred
from looktwice.decisions.verdict import Verdict, alternatives, is_unfamiliar, percent
from looktwice.decisions.verdict_files import COLUMNS as VERDICT_COLUMNS
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.decisions.verdict_files import record as verdict_record
from looktwice.engine.budget import Money
from looktwice.engine.check import Checkup
from looktwice.engine.engine import QueryEngine
from looktwice.engine.estimate import Estimate
from looktwice.engine.ledger.places import OFF, POSTGRES
from looktwice.engine.options import NUMBERS, WHOLE, AskKeywords, AskOptions, run
from looktwice.engine.outcome import Cause, Progress, Unscored
from looktwice.engine.query import AnswerEvent, OnAnswer, Scores
from looktwice.images.collection import ENDINGS as PICTURE_ENDINGS
from looktwice.images.collection import (
    FILE_COLUMNS,
    Picture,
    PicturesLike,
    few,
    find,
    labelled,
    many,
    one,
    read_header,
    read_truths,
)
from looktwice.images.datasets import open_labelled
from looktwice.images.decode import decode, is_video, load
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize, data_url, encode_jpeg, encode_png, shown, shrunk
from looktwice.images.video import FRAMES, is_video_file
from looktwice.images.video import frames as video_frames
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
    "FALSE_ALARMS",
    "FILE_COLUMNS",
    "FOLDS",
    "FRAMES",
    "GENERAL",
    "LADDER",
    "MAX_PIXELS",
    "NEVER",
    "OFF",
    "PICTURE_ENDINGS",
    "POSTGRES",
    "VERDICT_COLUMNS",
    "VOTES",
    "AnswerEvent",
    "AskKeywords",
    "AskOptions",
    "AsyncModel",
    "Bools",
    "Calibrator",
    "Cause",
    "Checkup",
    "Classifier",
    "Collected",
    "Counts",
    "DecisionOptions",
    "Estimate",
    "Evaluation",
    "ExpectedAccuracy",
    "Floats",
    "HeldOut",
    "Image",
    "Jury",
    "LabelledVotes",
    "LossName",
    "Money",
    "Monitor",
    "NoiseFile",
    "Observation",
    "OnAnswer",
    "OnCollected",
    "Outcome",
    "Panel",
    "Picture",
    "PicturesLike",
    "Pixels",
    "Places",
    "Plan",
    "Policy",
    "Profile",
    "Progress",
    "QueryEngine",
    "Result",
    "ReviewFolder",
    "Row",
    "ScoreFile",
    "Scores",
    "SetKind",
    "ShowProgress",
    "Sized",
    "Source",
    "Stream",
    "Terms",
    "Transferred",
    "Tuned",
    "Unfamiliar",
    "Unscored",
    "Verdict",
    "Votes",
    "WorkingSize",
    "alternatives",
    "approve",
    "check_teachable",
    "connect",
    "cross_fit",
    "data_url",
    "decode",
    "doubtful_verdicts",
    "draw_noise",
    "encode_jpeg",
    "encode_png",
    "evaluation",
    "example_prices",
    "few",
    "find",
    "frontier",
    "grid_of",
    "is_unfamiliar",
    "is_video",
    "is_video_file",
    "labelled",
    "labelled_votes",
    "least_error",
    "load",
    "many",
    "measure_noise",
    "needs",
    "no_keys_needed",
    "one",
    "open_labelled",
    "outcome",
    "panel_of",
    "percent",
    "reach",
    "read_header",
    "read_truths",
    "read_verdicts",
    "remarks",
    "resolve",
    "returned_labels",
    "run",
    "save_votes",
    "search_queries",
    "selection_level",
    "shown",
    "shrunk",
    "verdict_record",
    "video_frames",
]
