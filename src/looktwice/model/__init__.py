"""The model, and what it takes and gives: all that an interface imports of the packages below."""

from looktwice.calibration.base import Calibrator
from looktwice.calibration.conformal import SetKind
from looktwice.calibration.crossfit import FOLDS, cross_fit
from looktwice.calibration.votes import Bools, Counts, Floats, LabelledVotes, Places, Row, Votes
from looktwice.classifiers.base import Classifier, Pixels
from looktwice.classifiers.registry import Source
from looktwice.decisions.fitting import Collected, labelled_votes
from looktwice.decisions.planning import LADDER, needs, selection_level
from looktwice.decisions.policy import FALSE_ALARMS, DecisionOptions, Policy, Unfamiliar
from looktwice.decisions.profile import HeldOut, Profile, Result
from looktwice.decisions.stored import ReviewFolder, returned_labels
from looktwice.decisions.stream import ExpectedAccuracy, Monitor
from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import COLUMNS as VERDICT_COLUMNS
from looktwice.decisions.verdict_files import record as verdict_record
from looktwice.engine.budget import Money
from looktwice.engine.options import AskOptions
from looktwice.engine.outcome import Cause, Progress, Unscored
from looktwice.engine.query import AnswerEvent, OnAnswer, Scores
from looktwice.images.collection import ENDINGS as PICTURE_ENDINGS
from looktwice.images.collection import (
    FILE_COLUMNS,
    Picture,
    PicturesLike,
    few,
    find,
    many,
    one,
    read_header,
    read_truths,
)
from looktwice.images.decode import decode, is_video, load
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize, data_url, encode_jpeg, encode_png, shown, shrunk
from looktwice.images.video import FRAMES
from looktwice.images.video import frames as video_frames
from looktwice.model.model import AsyncModel, OnCollected, ShowProgress, Sized, Tuned, panel_of
from looktwice.views import Panel

__all__ = [
    "FALSE_ALARMS",
    "FILE_COLUMNS",
    "FOLDS",
    "FRAMES",
    "LADDER",
    "MAX_PIXELS",
    "PICTURE_ENDINGS",
    "VERDICT_COLUMNS",
    "AnswerEvent",
    "AskOptions",
    "AsyncModel",
    "Bools",
    "Calibrator",
    "Cause",
    "Classifier",
    "Collected",
    "Counts",
    "DecisionOptions",
    "ExpectedAccuracy",
    "Floats",
    "HeldOut",
    "Image",
    "LabelledVotes",
    "Money",
    "Monitor",
    "OnAnswer",
    "OnCollected",
    "Panel",
    "Picture",
    "PicturesLike",
    "Pixels",
    "Places",
    "Policy",
    "Profile",
    "Progress",
    "Result",
    "ReviewFolder",
    "Row",
    "Scores",
    "SetKind",
    "ShowProgress",
    "Sized",
    "Source",
    "Tuned",
    "Unfamiliar",
    "Unscored",
    "Verdict",
    "Votes",
    "WorkingSize",
    "cross_fit",
    "data_url",
    "decode",
    "encode_jpeg",
    "encode_png",
    "few",
    "find",
    "is_video",
    "labelled_votes",
    "load",
    "many",
    "needs",
    "one",
    "panel_of",
    "read_header",
    "read_truths",
    "returned_labels",
    "selection_level",
    "shown",
    "shrunk",
    "verdict_record",
    "video_frames",
]
