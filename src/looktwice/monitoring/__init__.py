"""Is a picture of the usual kind, and do the answers still look like those the profile was fitted on?"""

from looktwice.monitoring.drift import Drift
from looktwice.monitoring.familiarity import AnswerKinds, Familiarity
