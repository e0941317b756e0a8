"""Familiarity of single pictures, and drift of streams."""

from looktwice.monitoring.drift import Drift
from looktwice.monitoring.familiarity import AnswerKinds, Familiarity
