"""Tags: labelled pictures → a tag profile, and its evaluation."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter

from looktwice.calibration import (
    Bools,
    Floats,
    LabelledTagVotes,
    LabelledVotes,
    Row,
    TagJury,
    Votes,
    check_truths,
    folds,
    metrics,
    risk,
)
from looktwice.decisions import collecting
from looktwice.decisions.collecting import Collected, OnCollected
from looktwice.decisions.evaluation import Evaluated
from looktwice.decisions.monitoring import Familiarity
from looktwice.decisions.policy import MOST_COUNTED, TagPolicy, tag_bin
from looktwice.decisions.profile import DIGEST_DIGITS, Profile, ProfileClassifier, tag_votes
from looktwice.decisions.results import HeldOut
from looktwice.engine import NO_SCREEN, QueryEngine, Screen
from looktwice.errors import FitError, few
from looktwice.files import join_tags, split_tags
from looktwice.images import Image, Picture
from looktwice.plots import Drawing, figures, notebook
from looktwice.views import Panel, renderer

if TYPE_CHECKING:
    import pandas as pd

Fit = Callable[[LabelledTagVotes], TagJury]
FAMILY = "tags"
"""The name of the calibrator in a profile."""
NO_TAGS = "no labelled picture has a tag; give pictures with tags"
RENEWED = 50
"""The minimum number of further pictures with which a repair may refit a jury."""
PRECISION = 0.95
"""The precision at which recall is reported."""


async def fit(
    engine: QueryEngine, pictures: Sequence[Picture], panel: Panel, on_collected: OnCollected | None
) -> tuple[Profile, Collected]:
    """Ask all classifiers about labelled pictures, and fit a profile; returns both."""
    if not any(picture.tags for picture in pictures):
        raise FitError(NO_TAGS, code="labels-missing")
    collecting.check_teachable(pictures)
    await _check_tags(engine, pictures)
    collected = collecting.check_learnable(await collect(engine, pictures, panel), len(pictures), on_collected or warn)
    asked = [collecting.described(channel) for channel in engine.channels.values()]
    return learn(collected, asked), collected


def warn(collected: Collected) -> None:
    """Warn about pictures without answers or with contradictory true tags, and about tags that are left out."""
    collecting.warn(collected)
    if sentence := left_out(collected):
        warnings.warn(sentence, stacklevel=2)


def left_out(collected: Collected, known: Sequence[str] = ()) -> str:
    """A remark on returned tags that apply to no labelled picture, which cannot be learned; empty if none."""
    votes = collected.votes
    listed = Counter(label for row in votes.lists() for ranked in row for label, _ in ranked)
    others = sorted(listed.keys() - {*true_tags(votes), *known})
    return f"left out because no labelled picture has them: {few(others, 'returned tag')}" if others else ""


def true_tags(votes: Votes) -> tuple[str, ...]:
    """The tags that apply to any labelled picture, sorted."""
    words = votes.words if isinstance(votes, LabelledVotes) else ()
    return tuple(sorted({tag for word in set(words) for tag in split_tags(word)}))


async def _check_tags(engine: QueryEngine, pictures: Sequence[Picture]) -> None:
    """Raise an error if no true tag is a tag of a classifier; if its tags are unknown, ask about a few pictures."""
    truths = {tag for picture in pictures for tag in picture.tags or ()}
    known = {tag for channel in engine.channels.values() for tag in channel.labels or ()}
    if not all(channel.labels for channel in engine.channels.values()):
        drawn = np.random.default_rng(0).permutation(len(pictures))[: engine.settings.label_check].tolist()
        answers = await engine.labels([pictures[place] for place in drawn])
        known |= {tag for answer in answers for tag in split_tags(answer)}
    check_truths(truths, known)


async def collect(
    engine: QueryEngine, pictures: Sequence[Picture], panel: Panel, screen: Screen = NO_SCREEN
) -> Collected:
    """Collect the answers about every picture, each as a string of tags, labelled if all true tags are known."""
    screen = replace(screen, describe=screen.describe or Image.described, thumbnails=True)
    rows = [collecting.affordable(row) async for row in engine.ask(pictures, panel, None, screen)]
    answered = [(picture, row) for picture, row in zip(pictures, rows, strict=True) if isinstance(row, Row)]
    truths = [join_tags(sorted(picture.tags)) for picture, _ in answered if picture.tags is not None]
    votes = Votes.collect([row for _, row in answered], tuple(map(str, panel)), truths)
    votes = votes.labelled(truths) if len(truths) == len(votes) else votes
    return collecting.collected(engine, panel, rows, votes, kind="tags")


def learn(collected: Collected, asked: Sequence[ProfileClassifier]) -> Profile:
    """Fit a profile from answers and true tags, without queries."""
    first, tags = asked[0], true_tags(collected.votes)
    if not tags:
        raise FitError(NO_TAGS, code="labels-missing")
    profile = Profile(
        kind="tags",
        classifier=first.description,
        fingerprint=first.fingerprint,
        reading=first.reading,
        renames=first.renames,
        name=first.name if len(asked) > 1 else "",
        others=tuple(asked[1:]),
        vocabulary=tags,
        classes=max(2, len(tags)),
        panel=str(collected.panel),
        seed=collected.seed,
        working_size=collected.working_size,
        renderer=renderer(collected.panel),
        calibrator={},
        pictures=0,
        results=(),
        held_out=HeldOut(confidence=(), correct=()),
    )
    return taught(profile, collected, TagJury().fit)


def taught(profile: Profile, collected: Collected, fit: Fit) -> Profile:
    """The profile with this jury; guarantees and drift references come from these answers and true tags alone."""
    votes, described = collected.labelled(), collected.described()
    labelled = labelled_tags(votes, profile)
    fitted = fit(labelled)
    probability = np.round(counted_probability(labelled, held_out(labelled, fit), fitted.probability(labelled)), 6)
    jury = TypeAdapter(TagJury).dump_python(fitted, mode="json")
    base = [tag_bin(votes.vocabulary[code]) if code >= 0 else 0 for code in votes.base.tolist()]
    return profile.model_copy(
        update={
            "calibrator": {"family": FAMILY, **jury},
            "held_out": HeldOut(
                confidence=tuple(probability.ravel().tolist()), correct=tuple(labelled.truths.ravel().tolist())
            ),
            "pictures": len(votes),
            "fitted_on": tuple(digest[:DIGEST_DIGITS] for digest in votes.digests if digest),
            "agreement_bins": tuple(np.bincount(base, minlength=MOST_COUNTED + 1).tolist()),
            "familiarity": None if described is None else Familiarity.fit(described, collected.described_at),
        }
    )


async def repair(
    engine: QueryEngine, pictures: Sequence[Picture], profile: Profile, on_collected: OnCollected | None
) -> Profile:
    """Update a profile's jury with further labelled pictures; guarantees are based on these alone.

    The jury is corrected, or refitted if that has the lower log loss on held-out folds.
    """
    profile.check(engine.channels)
    collecting.check_teachable(pictures)
    check_truths({tag for picture in pictures for tag in picture.tags or ()}, profile.vocabulary)
    collected = await collect(engine, pictures, profile.views())
    collecting.check_learnable(collected, len(pictures), on_collected or collecting.warn)
    labelled = labelled_tags(collected.labelled(), profile)
    fits = [profile.tag_jury().corrected, TagJury().fit][: 2 if len(labelled) >= RENEWED else 1]
    return taught(profile, collected, min(fits, key=lambda fit: log_loss(held_out(labelled, fit), labelled.truths)))


def log_loss(probability: Floats, truths: Bools) -> float:
    """The mean negative log-likelihood of tags."""
    return float(-np.log(np.clip(np.where(truths, probability, 1.0 - probability), 1e-9, None)).mean())


def labelled_tags(votes: LabelledVotes, profile: Profile) -> LabelledTagVotes:
    """The votes on a profile's tags, with the true tags: those not listed for a picture are absent."""
    true = [set(split_tags(word)) for word in votes.words]
    truths = np.array([[tag in each for tag in profile.vocabulary] for each in true], bool)
    return tag_votes(votes, profile).labelled(truths.reshape(len(votes), len(profile.vocabulary)))


def held_out(labelled: LabelledTagVotes, fit: Fit) -> Floats:
    """(n, T): the held-out probability of each tag."""
    fold, probability = folds(len(labelled)), np.zeros(labelled.truths.shape)
    for number in range(int(fold.max()) + 1):
        jury = fit(labelled.take(np.flatnonzero(fold != number)))
        rows = np.flatnonzero(fold == number)
        probability[rows] = jury.probability(labelled.take(rows))
    return probability


def counted_probability(labelled: LabelledTagVotes, held_out: Floats, final: Floats) -> Floats:
    """(n, T): the probability at which claims count each tag of each labelled picture; see `counted_confidence`."""
    present = held_out >= 0.5
    sure, sure_in_use = (np.where(present, p, 1.0 - p) for p in (held_out, final))
    counted = risk.counted_confidence(sure.ravel(), sure_in_use.ravel(), (present == labelled.truths).ravel())
    counted = counted.reshape(present.shape)
    return np.where(present, counted, 1.0 - counted)


# Evaluation ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TagFigures:
    """Results of decisions about one tag; a share is None if its denominator is 0."""

    tag: str
    pictures: int
    """The number of pictures with the tag."""
    precision: float | None
    """The share of "yes" decisions that are right."""
    recall: float | None
    """The share of pictures with the tag for which the decision is "yes"."""
    missed: float | None
    """The share of pictures with the tag for which the decision is "no"."""
    review: float
    """The share of all pictures for which the tag needs review."""
    ece: float
    yes_from: float | None
    """The lowest probability for "yes"; None if there is none."""
    no_below: float | None
    """The highest probability for "no"; None if there is none."""


@dataclass(frozen=True)
class TagScores:
    """Results of tag probabilities: overall, and by tag."""

    pictures: int
    done: float
    """The share of pictures for which all tags are decided."""
    brier: float
    """The mean over pictures of Σ (p − y)² over tags."""
    ece: float
    recall_95: float
    """The highest recall of a single threshold with a precision of at least .95."""
    tags: tuple[TagFigures, ...]

    def sentence(self) -> str:
        """The overall results, as a sentence."""
        return (
            f"Brier score {self.brier:.3f} per picture, ECE {self.ece:.3f}, recall at precision {PRECISION:g}: "
            f"{100 * self.recall_95:.0f} %; all tags decided of {100 * self.done:.0f} % of the pictures."
        )


def scores(probability: Floats, truths: Bools, policy: TagPolicy) -> TagScores:
    """Evaluate probabilities (n, T), and the decisions of a policy."""
    decided = policy.decide(probability)
    by_tag = []
    for code, (tag, (yes, no)) in enumerate(zip(policy.jury.tags, policy.least, strict=True)):
        true, said, ruled_out = truths[:, code], decided[:, code] == "yes", decided[:, code] == "no"
        by_tag.append(
            TagFigures(
                tag,
                int(true.sum()),
                _share(true[said]),
                _share(said[true]),
                _share(ruled_out[true]),
                float((decided[:, code] == "review").mean()),
                metrics.ece(probability[:, code], true),
                None if yes > 1 else max(yes, 0.5),
                None if no > 1 else min(1.0 - no, 0.5),
            )
        )
    return TagScores(
        len(truths),
        float((decided != "review").all(axis=1).mean()),
        float(((probability - truths) ** 2).sum(axis=1).mean()),
        metrics.ece(probability.ravel(), truths.ravel()),
        recall_at(PRECISION, probability.ravel(), truths.ravel()),
        tuple(by_tag),
    )


def held_out_scores(profile: Profile, policy: TagPolicy | None = None) -> TagScores:
    """The held-out results of a tag profile."""
    probability, truths = profile.held_out.arrays()
    shape = -1, len(profile.vocabulary)
    return scores(probability.reshape(shape), truths.reshape(shape), policy or TagPolicy.usual(profile))


def recall_at(precision: float, probability: Floats, truth: Bools) -> float:
    """The highest recall of a threshold with at least this precision."""
    levels, place = np.unique(-probability, return_inverse=True)
    right = np.cumsum(np.bincount(place, truth, len(levels)))
    kept = right / np.cumsum(np.bincount(place, minlength=len(levels))) >= precision
    return float(right[kept].max(initial=0.0) / max(truth.sum(), 1))


def reliability_svg(probability: Floats, truths: Bools) -> str:
    """The reliability diagram of all pictures and tags together."""
    curve = metrics.reliability(probability.ravel(), truths.ravel())
    return figures.reliability_svg(curve, title="Probability and how often tags are true", unit="pictures and tags")


def _share(values: Bools) -> float | None:
    return float(values.mean()) if len(values) else None


@dataclass(frozen=True, eq=False, repr=False)
class TagEvaluation(Evaluated):
    """The evaluation of a tag profile on held-out labelled pictures."""

    policy: TagPolicy
    probability: Floats
    """(n, T): the probability of each tag of the profile, for every distinct picture."""
    truths: Bools
    """(n, T)."""

    @property
    def scores(self) -> TagScores:
        """The figures."""
        return scores(self.probability, self.truths, self.policy)

    def lines(self) -> list[str]:
        """The overall results as sentences, with a warning if they are too optimistic."""
        return [*self._warnings(), self.scores.sentence()]

    def record(self) -> dict[str, object]:
        """The figures for JSON."""
        return {"kind": "tags", "fitted": self.fitted, **asdict(self.scores)}

    def to_frame(self) -> pd.DataFrame:
        """One row per picture and tag: probability, decision, and whether it is true."""
        decided, names = self.policy.decide(self.probability), self.collected.labelled().names
        cells = [(i, code) for i in range(len(names)) for code in range(len(self.profile.vocabulary))]
        return notebook.frame(
            {
                "name": names[i],
                "tag": self.profile.vocabulary[code],
                "probability": float(self.probability[i, code]),
                "decision": str(decided[i, code]),
                "truth": bool(self.truths[i, code]),
            }
            for i, code in cells
        )

    def plot_reliability(self) -> Drawing:
        """Probability against frequency of tags."""
        return Drawing(reliability_svg(self.probability, self.truths))

    def __repr__(self) -> str:
        return "\n".join([self.title(), *self.lines()])

    def _repr_html_(self) -> str:
        rows = [
            [f"{cell:.3f}" if isinstance(cell, float) else cell for cell in asdict(each).values()]
            for each in self.scores.tags
        ]
        return notebook.table(repr(self), list(TagFigures.__dataclass_fields__), rows)


async def evaluate(
    engine: QueryEngine, pictures: Sequence[Picture], profile: Profile, policy: TagPolicy
) -> TagEvaluation:
    """Evaluate a profile on labelled pictures; tags that are not in the profile are left out."""
    profile.check(engine.channels)
    profile.check_scores(engine.settings.scores)
    check_truths({tag for picture in pictures for tag in picture.tags or ()}, profile.vocabulary)
    collected = await collect(engine, pictures, policy.panel, policy.screen())
    labelled = labelled_tags(collected.labelled(), profile)
    return TagEvaluation(profile, collected, policy, policy.jury.probability(labelled), labelled.truths)
