"""Probabilities → decisions: fitting, profiles, early stopping, acceptance and guarantees."""

from looktwice.decisions.collecting import Collected, LabelMap, OnCollected, check_teachable, labelled_votes, propose
from looktwice.decisions.evaluation import (
    Evaluation,
    VerdictsLike,
    baselines,
    evaluate,
    sets_lines,
)
from looktwice.decisions.fitting import Transferred
from looktwice.decisions.judging import Judging
from looktwice.decisions.noise import NoiseFile, measure
from looktwice.decisions.pilot import FitResult, Frontier, Plan, Selection, Stage, grid_of, search_queries
from looktwice.decisions.planning import (
    LADDER,
    MAX_ERROR,
    best_estimate,
    can_be_made,
    guesses,
    least_error,
    missing_labels,
    missing_sentence,
    needs,
    remarks,
    selection_level,
    strictest_guarantee,
)
from looktwice.decisions.policy import (
    FALSE_ALARMS,
    SHARES,
    ClaimTest,
    DecisionKeywords,
    DecisionOptions,
    OnDrift,
    PicturePolicy,
    Policy,
    TagPolicy,
    Unfamiliar,
)
from looktwice.decisions.profile import Profile, ProfileClassifier
from looktwice.decisions.results import HeldOut, Result
from looktwice.decisions.stream import ExpectedAccuracy, Monitor, Observation, Stream
from looktwice.decisions.tagging import TagEvaluation, TagFigures, TagScores, held_out_scores, labelled_tags, left_out
from looktwice.decisions.verdict import AnyVerdict, TagVerdict, Verdict, alternatives, is_unfamiliar, percent
from looktwice.decisions.verdict_files import (
    COLUMNS,
    COLUMNS_OF,
    ReviewFolder,
    ScoreFile,
    doubtful,
    from_record,
    read,
    read_any,
    record,
    returned_labels,
    selected_by,
)
