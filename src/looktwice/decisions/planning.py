"""How many labelled pictures a guarantee about accepted answers needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from looktwice.calibration import metrics
from looktwice.calibration.risk import labels_needed
from looktwice.decisions.policy import NEVER, DecisionOptions
from looktwice.decisions.profile import HeldOut, Profile
from looktwice.errors import DataError

ACCEPTED = (0.25, 0.5, 0.75, 0.9, 1.0)
"""The shares of pictures to accept that a plan looks at."""

MARGINS = (0.0, 0.25, 0.5)
"""How often accepted answers may really be wrong, as shares of what is guaranteed, when nothing is known yet."""

POWER = 0.8

LADDER = (0.01, 0.02, 0.05, 0.1, 0.2)
"""The allowed errors among which the strictest guarantee is sought."""


def strictest_guarantee(options: DecisionOptions, profile: Profile) -> DecisionOptions:
    """The options with a guarantee: the one they name, or the strictest of LADDER that the profile supports.

    Because one of several is picked, each is tested at a stricter level.
    """
    if options.max_error is not None:
        return options
    level = selection_level(options.level)
    candidates = [replace(options, max_error=max_error, level=level) for max_error in LADDER]
    return next((each for each in candidates if each.of(profile).accept != NEVER), candidates[-1])


def selection_level(level: float) -> float:
    """The level at which each error of LADDER is tested, so that the one picked holds at `level` (Bonferroni)."""
    return 1.0 - (1.0 - level) / len(LADDER)


MOST_LABELS = 1_000_000
"""A need beyond this is not told by its number, which nobody will label."""


@dataclass(frozen=True)
class Need:
    """So many labelled pictures are needed, if this share is accepted and is really wrong so often."""

    labels: int
    accepted: float
    error: float

    def line(self) -> str:
        """The need in words."""
        share = "every picture" if self.accepted == 1.0 else f"{100 * self.accepted:.0f} % of the pictures"
        count = f"{self.labels:,}" if self.labels <= MOST_LABELS else "> million"  # the error is almost the one allowed
        return f"{count:>9} labelled pictures to accept {share}, if {100 * self.error:.2f} % of those are wrong"


def needs(max_error: float, level: float = 0.95, held_out: HeldOut | None = None) -> list[Need]:
    """What the guarantee takes, for several shares of pictures to accept; it then succeeds four times out of five.

    From a profile's held-out answers one knows how often each share is wrong. A share that is wrong too often to be
    guaranteed is left out. Without a profile these are guesses, with every picture accepted.
    """
    if held_out is None:
        return [_need(max_error, level, 1.0, max_error * margin) for margin in MARGINS]
    found = [_need(max_error, level, share, error) for share, error in _errors(held_out) if error < max_error]
    if not found:
        least = least_error(held_out, level)
        reach = f" to {least[0]:.3g}, the least that its labelled pictures can guarantee" if least else ""
        surest = f"even the most confident answers of this profile are wrong more often than {max_error:g}"
        raise DataError(f"{surest}; raise --max-error{reach}")
    return found


def least_error(held_out: HeldOut, level: float = 0.95) -> tuple[float, float] | None:
    """The strictest guarantee of LADDER that the labelled pictures of a profile support: its error, the share accepted.

    Each is tested at `selection_level(level)`; None if they support none of them.
    """
    confidence = np.array(held_out.confidence)
    for error in LADDER:
        threshold = held_out.threshold(error, selection_level(level))
        if threshold is not None and (confidence >= threshold).any():
            return error, float((confidence >= threshold).mean())
    return None


def remarks(needs: Sequence[Need], held_out: HeldOut, level: float = 0.95) -> list[str]:
    """What is to be said about the needs of a profile, one sentence each."""
    found = []
    for less, more in pairwise(sorted(needs, key=lambda need: need.accepted)):
        if less.labels > more.labels:
            fewer, others = (f"{100 * need.accepted:.0f} %" for need in (less, more))
            found.append(
                f"Accepting {fewer} takes more labels than {others}: only labelled pictures that would be accepted "
                f"count as evidence, {fewer} of them, and the surest are hardly more often right "
                f"({100 * less.error:.2f} % wrong, {100 * more.error:.2f} % among {others})."
            )
    if least := least_error(held_out, level):
        found.append(
            f"The strictest guarantee that the {len(held_out.correct):,} labelled pictures so far support: an error of "
            f"at most {least[0]:.3g}, accepting {100 * least[1]:.0f} %."
        )
    else:
        found.append(f"The {len(held_out.correct):,} labelled pictures so far are too few to guarantee any error.")
    return found


def _need(max_error: float, level: float, accepted: float, error: float) -> Need:
    return Need(labels_needed(max_error, level, error, accepted, POWER), accepted, error)


def _errors(held_out: HeldOut) -> list[tuple[float, float]]:
    """How often the answers of each share are wrong, as far as the held-out ones tell: never exactly 0."""
    confidence, correct = held_out.arrays()
    found = []
    for share in ACCEPTED:
        kept = share * len(correct)
        wrong = kept * (1.0 - metrics.accuracy_at_coverage(confidence, correct, share))
        found.append((share, (wrong + 0.5) / (kept + 1.0)))
    return found
