"""The model, and what it takes and gives: all that an interface imports of the packages below."""

from looktwice.calibration.base import Calibrator
from looktwice.calibration.conformal import SetKind
from looktwice.calibration.crossfit import FOLDS, Outcome, cross_fit, outcome
from looktwice.calibration.jury import Jury
from looktwice.calibration.risk import ANY, NEVER, Answers, Basis, Claim, claims
from looktwice.calibration.storage import save as save_votes
from looktwice.calibration.votes import ENDINGS as VOTES
from looktwice.calibration.votes import Bools, Counts, Floats, LabelledVotes, Places, Row, Votes
from looktwice.classifiers.base import AnswerKind, Classifier, Limits, Pixels
from looktwice.classifiers.prices import example as example_prices
from looktwice.classifiers.registry import Connected, Source, resolve
from looktwice.classifiers.secrets import no_keys_needed
from looktwice.classifiers.trust import approve, reach
from looktwice.decisions.evaluation import Evaluation, evaluation
from looktwice.decisions.fitting import Collected, OnCollected, check_teachable, labelled_votes
from looktwice.decisions.label_map import LabelMap
from looktwice.decisions.pilot import FitResult, Frontier, Plan, Stage, grid_of, search_queries
from looktwice.decisions.planning import (
    LADDER,
    MAX_ERROR,
    best_estimate,
    least_error,
    missing_labels,
    missing_sentence,
    needs,
    remarks,
    selection_level,
)
from looktwice.decisions.policy import (
    FALSE_ALARMS,
    SHARES,
    DecisionOptions,
    OnDrift,
    PicturePolicy,
    Policy,
    TagPolicy,
    Unfamiliar,
)
from looktwice.decisions.profile import HeldOut, Profile, Result
from looktwice.decisions.stored import ReviewFolder, read_any, returned_labels, selected_by
from looktwice.decisions.stored import doubtful as doubtful_verdicts
from looktwice.decisions.stored import read as read_verdicts
from looktwice.decisions.stream import ExpectedAccuracy, Monitor, Observation, Stream
from looktwice.decisions.tagging import TagEvaluation, TagFigures, TagScores, held_out_scores, left_out
from looktwice.decisions.transferring import Transferred
from looktwice.decisions.verdict import AnyVerdict, TagVerdict, Verdict, alternatives, is_unfamiliar, percent
from looktwice.decisions.verdict_files import COLUMNS as VERDICT_COLUMNS
from looktwice.decisions.verdict_files import COLUMNS_OF as VERDICT_COLUMNS_OF
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.decisions.verdict_files import record as verdict_record
from looktwice.engine.budget import Money
from looktwice.engine.channel import Channel
from looktwice.engine.check import Checkup
from looktwice.engine.engine import QueryEngine
from looktwice.engine.estimate import Estimate
from looktwice.engine.ledger.places import OFF, POSTGRES
from looktwice.engine.query import AnswerEvent, Cause, OnAnswer, Progress, Scores, Unscored
from looktwice.images.collection import ENDINGS as PICTURE_ENDINGS
from looktwice.images.collection import (
    Picture,
    PicturesLike,
    find,
    labelled,
    many,
    one,
)
from looktwice.images.datasets import open_all_labelled
from looktwice.images.decode import decode, is_video, load
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize, data_url, encode_jpeg, encode_png, few, shown, shrunk
from looktwice.images.truths import FILE_COLUMNS, read_header, read_truths
from looktwice.images.video import FRAMES, is_video_file
from looktwice.images.video import frames as video_frames
from looktwice.model.connection import Classifiers, ShowProgress, connect, named
from looktwice.model.model import AsyncModel
from looktwice.model.options import NUMBERS, WHOLE, AskKeywords, AskOptions, run
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
    "ANY",
    "BOUNDS",
    "FALSE_ALARMS",
    "FILE_COLUMNS",
    "FOLDS",
    "FRAMES",
    "GENERAL",
    "LADDER",
    "MAX_ERROR",
    "MAX_PIXELS",
    "NEVER",
    "OFF",
    "PICTURE_ENDINGS",
    "POSTGRES",
    "VERDICT_COLUMNS",
    "VERDICT_COLUMNS_OF",
    "VOTES",
    "AnswerEvent",
    "AnswerKind",
    "Answers",
    "AnyVerdict",
    "AskKeywords",
    "AskOptions",
    "AsyncModel",
    "Basis",
    "Bools",
    "Calibrator",
    "Cause",
    "Channel",
    "Checkup",
    "Claim",
    "Classifier",
    "Classifiers",
    "Collected",
    "Connected",
    "Counts",
    "DecisionOptions",
    "Estimate",
    "Evaluation",
    "ExpectedAccuracy",
    "FitResult",
    "Floats",
    "Frontier",
    "HeldOut",
    "Image",
    "Jury",
    "LabelMap",
    "LabelledVotes",
    "Limits",
    "Money",
    "Monitor",
    "NoiseFile",
    "Observation",
    "OnAnswer",
    "OnCollected",
    "OnDrift",
    "Outcome",
    "Panel",
    "Picture",
    "PicturePolicy",
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
    "Source",
    "Stage",
    "Stream",
    "TagEvaluation",
    "TagFigures",
    "TagPolicy",
    "TagScores",
    "TagVerdict",
    "Transferred",
    "Unfamiliar",
    "Unscored",
    "Verdict",
    "Votes",
    "WorkingSize",
    "alternatives",
    "approve",
    "best_estimate",
    "check_teachable",
    "claims",
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
    "grid_of",
    "held_out_scores",
    "is_unfamiliar",
    "is_video",
    "is_video_file",
    "labelled",
    "labelled_votes",
    "least_error",
    "left_out",
    "load",
    "many",
    "measure_noise",
    "missing_labels",
    "missing_sentence",
    "named",
    "needs",
    "no_keys_needed",
    "one",
    "open_all_labelled",
    "outcome",
    "panel_of",
    "percent",
    "reach",
    "read_any",
    "read_header",
    "read_truths",
    "read_verdicts",
    "remarks",
    "resolve",
    "returned_labels",
    "run",
    "save_votes",
    "search_queries",
    "selected_by",
    "selection_level",
    "shown",
    "shrunk",
    "verdict_record",
    "video_frames",
]
