"""The figures in a report: guarantees, the gain from further queries, results by class, and the cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from looktwice.model import (
    LADDER,
    Answers,
    Claim,
    ClaimTest,
    Floats,
    HeldOut,
    Noise,
    Result,
    calibration,
    metrics,
    missing_labels,
    plots,
    selection_level,
)
from looktwice.report.inputs import Evidence, Judged

CLASSES = 20
"""The number of rows in the class table."""
MISTAKES = 2
"""The maximum number of other labels listed per class."""


# What may be guaranteed ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guarantee:
    """Whether the error rate of accepted answers can be guaranteed."""

    max_error: float
    threshold: float | None
    """The lowest accepted confidence; None if nothing can be guaranteed."""
    accepted: float
    """The share of evaluated pictures whose confidence reaches the threshold."""
    wrong: float | None
    """The share of wrong answers among those accepted; None if no outcome is known or none is accepted."""
    missing: int | None
    """The number of further labelled pictures that the guarantee needs, if it is not possible yet; None if more labels
    would not help."""
    estimate: calibration.Estimate | None = None
    """The best estimate, if the error rate cannot be guaranteed."""


def guarantees(evidence: Evidence, asked: Floats, max_error: float, level: float) -> list[Guarantee]:
    """Guarantees for `max_error` at this level, and for the error rates in LADDER at a level corrected for choosing
    among them, strictest first.

    `asked` contains the confidences of the pictures whose accepted share is reported.
    """
    rows, answers = [], Answers.unnamed(evidence.confidence, evidence.correct)
    levels = dict.fromkeys(LADDER, selection_level(level)) | {max_error: level}
    for error, tested in sorted(levels.items()):
        threshold = calibration.risk.threshold(evidence.confidence, evidence.correct, error, tested)
        if threshold is not None:
            rows.append(_above(threshold, evidence, asked, error))
            continue
        missing = missing_labels([ClaimTest([Claim(error)], answers, tested)])
        expected = calibration.estimate(evidence.confidence, evidence.correct, error)
        rows.append(Guarantee(error, None, 0.0, None, missing, expected))
    return rows


def kept(guarantee: HeldOut, evidence: Evidence, max_error: float, level: float) -> Guarantee | None:
    """Evaluate, on these pictures, a guarantee that was fitted on other pictures; returns None if there is no
    guarantee."""
    threshold = guarantee.threshold(max_error, level)
    return None if threshold is None else _above(threshold, evidence, evidence.confidence, max_error)


def _above(threshold: float, evidence: Evidence, asked: Floats, max_error: float) -> Guarantee:
    wrong = ~evidence.correct[evidence.confidence >= threshold]
    share = float(wrong.mean()) if len(wrong) else None
    return Guarantee(max_error, threshold, float((asked >= threshold).mean()), share, None)


# What more queries bring ---------------------------------------------------------------------------------------------


def enough(curve: Sequence[Result], share: float = 0.8) -> Result | None:
    """The first point of a curve with at least this share of the total gain; None if there is no gain."""
    losses = [point.figures["brier"].value or 0.0 for point in curve]
    if len(losses) < 3 or losses[-1] >= losses[0]:
        return None
    goal = losses[0] - share * (losses[0] - losses[-1])
    return next(point for point, loss in zip(curve, losses, strict=True) if loss <= goal)


# Classes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassRow:
    """The results of one class."""

    label: str
    pictures: int
    right: float
    """The share of the class's pictures that were given this label."""
    low: float
    high: float
    """The 95 % interval of this share."""
    predicted: int
    """The number of pictures that were given this label."""
    precise: float | None
    """The share of these answers that are right; None if there are none."""
    claimed: float | None
    """The mean confidence of these answers."""
    mistaken: tuple[tuple[str, int], ...]
    """The most frequent wrong labels for the class's pictures, with the number of pictures for each."""


def classes(judged: Judged) -> list[ClassRow]:
    """All classes with pictures, if true labels are known; the lowest upper limits of the accuracy come first."""
    labelled, correct = judged.labelled(), judged.correct
    if labelled is None or correct is None:
        return []
    words = (*labelled.vocabulary, *sorted(set(labelled.words) - set(labelled.vocabulary)))
    code = {word: i for i, word in enumerate(words)}
    truth = np.array([code[word] for word in labelled.words], np.int32)
    count = np.bincount(truth, minlength=len(words))
    right = np.bincount(truth, correct, len(words)).astype(int)
    low, high = metrics.wilson(right, count)
    times, hits, claims = (
        np.bincount(judged.label, weights, len(words)) for weights in (None, correct, judged.confidence)
    )
    mistakes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for was, called in zip(truth[~correct].tolist(), judged.label[~correct].tolist(), strict=True):
        mistakes[was][called] += 1
    rows = [
        ClassRow(
            words[i],
            int(count[i]),
            right[i] / count[i],
            float(low[i]),
            float(high[i]),
            int(times[i]),
            hits[i] / times[i] if times[i] else None,
            claims[i] / times[i] if times[i] else None,
            tuple((words[called], often) for called, often in mistakes[i].most_common(MISTAKES)),
        )
        for i in np.flatnonzero(count).tolist()
    ]
    return sorted(rows, key=lambda row: (row.high, row.low, row.label))


def drawn(noise: Noise, title: str) -> str:
    """A figure, as SVG, of the mean cumulative distribution with a band that contains 95 % of the pictures, and of the
    closest Gaussian."""
    from scipy.special import ndtr

    known = np.array(noise.cumulative.x)
    low, high = noise.cumulative.inverse(np.array([0.002, 0.998]))
    x = np.linspace(low, high, 240)
    mean, below, above = (np.interp(x, known, column) for column in (noise.cumulative.f, noise.low, noise.high))
    a = noise.normal.a
    lines = [
        plots.Line("mean over pictures and 95 % of them", x, mean, below, above),
        plots.Line(f"Φ(x / {a:.3g})", x, ndtr(x / a)),
    ]
    title = f"{title}: Var {noise.var:.3f}, KS {noise.normal.ks:.3f}"
    return plots.lines_svg(lines, title=title, x_label="shift of the margin", y_label="share of views", y_range=(0, 1))
