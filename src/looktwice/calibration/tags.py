"""Tags: the probability that each tag applies to a picture, from the tags that classifiers returned.

A tag classifier returns several tags that may all be right, or scores for every category. Each (picture, tag) is a row
with two options, *present* and *absent*, whose log odds are a sum over columns. Columns are grouped in blocks, each
with one ridge penalty, and a block is used only if it lowers the log loss on held-out pictures. The following blocks
are shared by all tags:

- `votes`: a constant, and which classifiers returned the tag;
- `score`: the log odds of its score, by classifier; `bend`: hinges of it, which correct the shape of a score;
- `place`: the log of its rank in the answer; `crowd`: the log of the number of other tags, for a tag that was returned
  and for one that was not;
- `views`: the share of a classifier's views that return it, and their mean score;
- `agreement`: the log of the number of answers that return it.

The following blocks are specific to each tag and shrunk towards 0, so that a rare tag borrows strength from the others:

- `offset`: its frequency; `reliability`: the weight of a classifier that returned it; `slope`: the weight of its score;
  `companions`: other tags in the answers that make it more or less likely.

The penalised log loss is convex. Parameters of one tag occur only in rows of that tag, so the Hessian is block-diagonal
except for the shared columns, and the cost of a fit is linear in the number of tags. With a dense Hessian, as in
`looktwice.calibration.logit`, the cost would grow with the cube of this number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.evidence import Bools, Floats, Places, sigmoid
from looktwice.calibration.logit import folds
from looktwice.calibration.shares import unfitted
from looktwice.calibration.tag_votes import LabelledTagVotes, TagScale, TagVotes
from looktwice.errors import DataError, FitError

Block = Literal[
    "votes", "score", "bend", "place", "crowd", "views", "agreement", "offset", "reliability", "slope", "companions"
]
COMMON: tuple[Block, ...] = ("votes", "score", "bend", "place", "crowd", "views", "agreement")
BY_TAG: tuple[Block, ...] = ("offset", "reliability", "slope", "companions")
TRIALS: tuple[tuple[Block, tuple[float, ...]], ...] = (
    ("offset", (10.0, 3.0, 1.0, 0.3)),
    ("score", (0.1,)),
    ("reliability", (10.0, 3.0, 1.0, 0.3)),
    ("companions", (10.0, 3.0, 1.0, 0.3)),
    ("crowd", (1.0,)),
    ("agreement", (1.0,)),
    ("views", (1.0,)),
    ("bend", (1.0,)),
    ("place", (1.0,)),
    ("slope", (10.0, 3.0, 1.0)),
)
"""The blocks in the order of selection, with their candidate ridge penalties, the strongest first."""
VOTES: dict[Block, float] = {"votes": 0.01}
"""The ridge penalty of the block that is always used, which keeps undetermined parameters finite."""
WEAKEST = VOTES | {block: strengths[-1] for block, strengths in TRIALS}
MOST_COMPANIONS = 20
"""The maximum number of tags that can be companions, which are the most frequently returned ones."""
LEAST_FALL = 1e-7
"""The expected decrease of the loss below which a fit has converged."""
FEWEST = 10
"""The minimum number of labelled pictures for a fit."""
CORRECTION = (1.0, 0.1, 3.0)
"""Ridge penalties of a correction, for its slope, its common offset, and the offset of each tag."""
CELLS = 4_000_000
"""The maximum number of design-matrix elements in memory at once."""
Z95 = 1.959964


@dataclass(frozen=True)
class TagMember:
    """The parameters for pictures answered by a given set of classifiers, with their covariance.

    With S the `common_covariance`, the log odds of a row with common columns g and tag-specific columns h have the
    variance uᵀSu + hᵀDh where u = g − M·h, D is the tag's `own_covariance` and M its `coupling`.
    """

    classifiers: tuple[int, ...]
    common: tuple[float, ...]
    """(G,): the weights of the shared columns."""
    own: tuple[tuple[float, ...], ...]
    """(T, K): the weights of the tag-specific columns."""
    common_covariance: tuple[tuple[float, ...], ...] = field(repr=False)
    """(G, G)."""
    own_covariance: tuple[tuple[tuple[float, ...], ...], ...] = field(repr=False)
    """(T, K, K): conditional on the shared weights."""
    coupling: tuple[tuple[tuple[float, ...], ...], ...] = field(repr=False)
    """(T, G, K)."""

    def corrected(self, slope: float, offsets: Floats, variance: Floats) -> Self:
        """The parameters with log odds times a slope, plus the offset of each tag; (T,) offsets and their variance."""
        own, covariance = slope * np.array(self.own), slope**2 * np.array(self.own_covariance)
        own[:, 0] += offsets  # the first tag-specific column is constant
        covariance[:, 0, 0] += variance
        common = slope * np.array(self.common), slope**2 * np.array(self.common_covariance)
        return replace(
            self,
            common=_nested(common[0]),
            own=_nested(own),
            common_covariance=_nested(common[1], digits=4),
            own_covariance=_nested(covariance, digits=4),
        )

    def log_odds(self, design: Design) -> tuple[Floats, Floats]:
        """(n, T) twice: the log odds of each tag, and their variance."""
        own, covariance, coupling = (np.array(each) for each in (self.own, self.own_covariance, self.coupling))
        odds = design.common @ np.array(self.common) + np.einsum("ntk,tk->nt", design.own, own)
        apart = design.common - np.einsum("ntk,tgk->ntg", design.own, coupling)
        common = np.einsum("ntg,gh,nth->nt", apart, np.array(self.common_covariance), apart, optimize=True)
        return odds, common + np.einsum("ntk,tkl,ntl->nt", design.own, covariance, design.own, optimize=True)


@dataclass(frozen=True)
class TagJury:
    """The probability of each tag, present or absent, from the answers of one or more classifiers."""

    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    scales: tuple[TagScale, ...] = ()
    """The scale of each classifier."""
    companions: tuple[int, ...] = ()
    """The tags that can be companions."""
    blocks: tuple[tuple[Block, float], ...] = ()
    """The selected blocks of columns, each with its ridge penalty."""
    members: tuple[TagMember, ...] = ()
    """The parameters for each set of classifiers that may have answered, the largest first; the last is for the empty
    set."""

    def fit(self, labelled: LabelledTagVotes) -> Self:
        """Fit the jury, with blocks selected on held-out pictures."""
        groups = labelled.groups()
        answered = labelled.asked[:, [group[0] for group in groups]]
        whole = np.flatnonzero(answered.all(axis=1))
        if len(whole) < FEWEST or not len(labelled.tags):
            raise FitError(
                f"{len(whole)} labelled pictures that all classifiers answered are too few; give at least {FEWEST}",
                code="labels-too-few",
            )
        scales = tuple(TagScale.learn(labelled.ranks[:, group], labelled.scores[:, group]) for group in groups)
        frequency = (labelled.ranks > 0).sum(axis=(0, 1))
        companions = tuple(np.argsort(-frequency, kind="stable")[:MOST_COMPANIONS].tolist())
        jury = replace(self, tags=labelled.tags, sources=labelled.sources, scales=scales, companions=companions)
        jury = replace(jury, blocks=jury.choose_blocks(labelled.take(whole)))
        members = []
        for subset in _subsets(len(groups)):
            rows = np.flatnonzero(answered[:, list(subset)].all(axis=1))
            members.append(jury.estimate(labelled.take(rows), subset))
        return replace(jury, members=tuple(members))

    def choose_blocks(self, labelled: LabelledTagVotes) -> tuple[tuple[Block, float], ...]:
        """Select the blocks that lower the held-out log loss.

        Each block must lower the log loss. Unlike for labels, the gain need not exceed its standard error: a block with
        a small gain has a strong penalty.
        """
        chosen = VOTES
        rows = TagRows.tabulate(labelled, self._design(labelled, range(len(self.scales))))
        fold = folds(len(labelled))
        held, start = rows.held_out(chosen, fold)
        for block, strengths in TRIALS:
            best = None
            for strength in strengths if block in rows.blocks() else ():
                trial = chosen | {block: strength}
                losses, point = rows.held_out(trial, fold, start)
                if losses.sum() >= (best[0] if best else held).sum():
                    break
                best = losses, point, trial
            if best:
                held, start, chosen = best
        return tuple(chosen.items())

    def estimate(self, labelled: LabelledTagVotes, classifiers: tuple[int, ...]) -> TagMember:
        """Fit the parameters for pictures that these classifiers answered."""
        rows = TagRows.tabulate(labelled, self._design(labelled, classifiers))
        total, present = rows.counts()
        point = rows.minimise(dict(self.blocks), total, present, rows.zero())
        hessian = rows.hessian(rows.log_odds(point), total, rows.ridge(WEAKEST))
        parts = np.linalg.inv(hessian.schur()), hessian.own_inverse, hessian.coupling()
        return TagMember(classifiers, *map(_nested, point), *(_nested(part, digits=4) for part in parts))

    def corrected(self, labelled: LabelledTagVotes) -> Self:
        """Correct the log odds with further pictures by a common slope, a common offset, and an offset for each tag.

        The parameters are shrunk towards no correction. Log odds are linear in the parameters, so the result is a jury
        too.
        """
        slope, *offsets = _correction(self._log_odds(labelled)[0], labelled.truths)
        return replace(self, members=tuple(member.corrected(float(slope), *offsets) for member in self.members))

    def probability(self, votes: TagVotes) -> Floats:
        """(n, T): the probability that each tag applies to each picture."""
        return sigmoid(self._log_odds(votes)[0])

    def interval(self, votes: TagVotes) -> tuple[Floats, Floats]:
        """(n, T) twice: the 95 % interval of the probability in the limit of many labelled pictures.

        Every block is included with its weakest penalty, even if it was not selected: an effect that is not detectable
        with few pictures need not be zero.
        """
        odds, variance = self._log_odds(votes)
        half = Z95 * np.sqrt(np.maximum(variance, 0.0))  # rounding may make it negative
        return sigmoid(odds - half), sigmoid(odds + half)

    def _log_odds(self, votes: TagVotes) -> tuple[Floats, Floats]:
        """(n, T) twice: the log odds of each tag, and their variance."""
        if not self.members:
            raise unfitted("tags")
        if (votes.tags, votes.sources) != (self.tags, self.sources):
            raise DataError(
                "these votes have other tags or sources than those fitted; fit again",
                code="votes-mismatch",
            )
        answered = votes.asked[:, [group[0] for group in votes.groups()]]
        odds, variance = np.zeros((2, len(votes), len(self.tags)))
        left = np.ones(len(votes), bool)
        for member in self.members:
            fits = left & answered[:, list(member.classifiers)].all(axis=1)
            left &= ~fits
            step = max(1, CELLS // (len(self.tags) * (len(member.common) + len(member.own[0]))))
            places = np.flatnonzero(fits)
            for rows in (places[at : at + step] for at in range(0, len(places), step)):
                odds[rows], variance[rows] = member.log_odds(self._design(votes.take(rows), member.classifiers))
        return odds, variance

    def _design(self, votes: TagVotes, classifiers: Sequence[int]) -> Design:
        """The columns of every (picture, tag), from the answers of some classifiers."""
        columns: dict[Block, list[Floats]] = {block: [] for block in (*COMMON, *BY_TAG)}
        returned, groups, every = votes.ranks > 0, votes.groups(), np.ones((len(votes), len(self.tags)))
        columns["votes"], columns["offset"] = [every], [every]
        content = np.zeros_like(every)
        for number in classifiers:
            (base, *views), scale = groups[number], self.scales[number]
            ranks, scores, back = votes.ranks[:, base], votes.scores[:, base], returned[:, base]
            odds, shares = scale.log_odds(ranks, scores), scale.shares(ranks, scores)
            known = back & np.isfinite(scores)
            rest = np.log1p(shares.sum(axis=1, keepdims=True) - shares)
            content += shares / len(classifiers)
            columns["votes"].append(back.astype(np.float64))
            columns["reliability"].append(columns["votes"][-1])
            if scale.kind != "rank":
                columns["score"].append(odds)
                columns["slope"].append(odds)
            columns["bend"] += [np.where(known, np.maximum(odds - knot, 0.0), 0.0) for knot in scale.knots]
            columns["place"].append(np.log(np.maximum(ranks, 1)))
            columns["crowd"] += [back * rest, ~back * rest]
            if views:
                asked = np.maximum(votes.asked[:, views].sum(axis=1), 1)[:, None]
                odds = scale.log_odds(votes.ranks[:, views], votes.scores[:, views]).sum(axis=1) / asked
                columns["views"] += [returned[:, views].sum(axis=1) / asked, odds]
        if len(classifiers) > 1:
            heads = [groups[number][0] for number in classifiers]
            columns["agreement"].append(np.log(np.maximum(returned[:, heads].sum(axis=1), 1)))
        if classifiers:
            columns["companions"] += [content[:, [tag]] * (np.arange(len(self.tags)) != tag) for tag in self.companions]
        return Design(*Design.stack(columns, COMMON), *Design.stack(columns, BY_TAG))


class Design(NamedTuple):
    """The columns of (picture, tag) rows, and the block of each column."""

    common: Floats
    """(n, T, G)."""
    common_blocks: tuple[Block, ...]
    own: Floats
    """(n, T, K)."""
    own_blocks: tuple[Block, ...]

    @staticmethod
    def stack(columns: dict[Block, list[Floats]], blocks: Sequence[Block]) -> tuple[Floats, tuple[Block, ...]]:
        """The columns of some blocks as one array, and the block of each."""
        names = tuple(block for block in blocks for _ in columns[block])
        return np.stack([column for block in blocks for column in columns[block]], axis=-1), names


Point = tuple[Floats, Floats]
"""The parameters: (G,) shared, and (T, K) tag-specific."""


class Hessian(NamedTuple):
    """The Hessian of the penalised loss: a block for the shared columns, one for each tag, and the cross terms."""

    common: Floats
    """(G, G)."""
    joint: Floats
    """(T, G, K)."""
    own_inverse: Floats
    """(T, K, K)."""

    def coupling(self) -> Floats:
        """(T, G, K): the response of the tag-specific parameters to the shared ones."""
        return self.joint @ self.own_inverse

    def schur(self) -> Floats:
        """(G, G): the Schur complement of the tag-specific parameters."""
        return self.common - np.einsum("tgk,thk->gh", self.coupling(), self.joint)

    def solve(self, common: Floats, own: Floats) -> Point:
        """The Newton step for a gradient."""
        step = np.linalg.solve(self.schur(), common - np.einsum("tgk,tk->g", self.coupling(), own))
        return step, np.einsum("tkl,tl->tk", self.own_inverse, own - np.einsum("tgk,g->tk", self.joint, step))


@dataclass(frozen=True, eq=False)
class TagRows:
    """The distinct rows of labelled pictures, sorted by tag, and the true tags."""

    common: Floats
    """(R, G)."""
    own: Floats
    """(R, K)."""
    parts: tuple[slice, ...]
    """(T,): the rows of each tag."""
    kind: Places
    """(n, T): the row of each picture and tag."""
    truths: Bools
    """(n, T)."""
    design: Design

    @classmethod
    def tabulate(cls, labelled: LabelledTagVotes, design: Design) -> Self:
        """Collect the rows of labelled pictures."""
        kind, tables, ends = np.zeros(labelled.truths.shape, np.intp), [], [0]
        for tag in range(len(labelled.tags)):
            table = np.concatenate([design.common[:, tag], design.own[:, tag]], axis=1)
            packed = np.ascontiguousarray(table).view(f"V{8 * table.shape[1]}").ravel()
            _, first, place = np.unique(packed, return_index=True, return_inverse=True)
            kind[:, tag] = ends[-1] + place
            tables.append(table[first])
            ends.append(ends[-1] + len(first))
        common, own = np.split(np.concatenate(tables), [design.common.shape[2]], axis=1)
        return cls(common, own, tuple(slice(*pair) for pair in pairwise(ends)), kind, labelled.truths, design)

    def counts(self, pictures: Bools | slice = slice(None)) -> tuple[Floats, Floats]:
        """(R,) twice: the number of pictures with each row, and the number of those that have the tag."""
        kind, size = self.kind[pictures].ravel(), len(self.own)
        present: Floats = np.bincount(kind, self.truths[pictures].ravel(), size).astype(np.float64)
        return np.bincount(kind, minlength=size).astype(np.float64), present

    def blocks(self) -> set[Block]:
        """The blocks with at least one nonzero column."""
        blocks = (*self.design.common_blocks, *self.design.own_blocks)
        sizes = np.abs(np.concatenate([self.common, self.own], axis=1)).sum(axis=0)
        return {block for block, size in zip(blocks, sizes.tolist(), strict=True) if size}

    def zero(self) -> Point:
        """Parameters of 0."""
        return np.zeros(self.common.shape[1]), np.zeros((len(self.parts), self.own.shape[1]))

    def held_out(self, strengths: dict[Block, float], fold: Places, start: Point | None = None) -> tuple[Floats, Point]:
        """(n,): the log loss of each picture under parameters fitted on the other folds; and the last parameters."""
        losses, point = np.zeros(len(fold)), start or self.zero()
        for part in range(int(fold.max()) + 1):
            point = self.minimise(strengths, *self.counts(fold != part), point)
            odds = self.log_odds(point)[self.kind[fold == part]]
            losses[fold == part] = (np.logaddexp(0.0, odds) - odds * self.truths[fold == part]).sum(axis=1)
        return losses, point

    def ridge(self, strengths: dict[Block, float]) -> Point:
        """The ridge penalties of the columns; infinite for blocks that are left out."""
        common, own = (
            np.array([strengths.get(block, np.inf) for block in blocks], np.float64)
            for blocks in (self.design.common_blocks, self.design.own_blocks)
        )
        return common, own

    def minimise(self, strengths: dict[Block, float], total: Floats, present: Floats, start: Point) -> Point:
        """Minimise the penalised loss by Newton steps; parameters of blocks that are left out are 0."""
        ridge = self.ridge(strengths)
        used = tuple(np.isfinite(penalty) for penalty in ridge)
        rows = replace(self, common=self.common[:, used[0]], own=self.own[:, used[1]])
        ridge = ridge[0][used[0]], ridge[1][used[1]]
        point = rows._descend(total, present, ridge, (start[0][used[0]], start[1][:, used[1]]))
        common, own = self.zero()
        common[used[0]], own[:, used[1]] = point
        return common, own

    def _descend(self, total: Floats, present: Floats, ridge: Point, point: Point) -> Point:
        def loss(point: Point, odds: Floats) -> float:
            penalty = ridge[0] @ point[0] ** 2 + (ridge[1] * point[1] ** 2).sum()
            return float(total @ np.logaddexp(0.0, odds) - present @ odds + penalty / 2)

        odds = self.log_odds(point)
        value = loss(point, odds)
        for _ in range(100):
            gap = total * sigmoid(odds) - present
            slope = self.common.T @ gap + ridge[0] * point[0]
            own_slope = np.stack([self.own[part].T @ gap[part] for part in self.parts]) + ridge[1] * point[1]
            step = self.hessian(odds, total, ridge).solve(slope, own_slope)
            fall, size = float(slope @ step[0] + (own_slope * step[1]).sum()), 1.0
            if fall < LEAST_FALL:
                break
            while size > 1e-6:
                trial = point[0] - size * step[0], point[1] - size * step[1]
                odds = self.log_odds(trial)
                if (reached := loss(trial, odds)) <= value - 1e-4 * size * fall:
                    break
                size /= 2
            point, value = trial, reached
        return point

    def hessian(self, odds: Floats, total: Floats, ridge: Point) -> Hessian:
        """The Hessian of the penalised loss."""
        chance = sigmoid(odds)
        weight = (total * chance * (1.0 - chance))[:, None]
        common, weighted = (self.common * weight).T @ self.common + np.diag(ridge[0]), self.own * weight
        joint = np.stack([self.common[part].T @ weighted[part] for part in self.parts])
        own = np.stack([self.own[part].T @ weighted[part] for part in self.parts]) + np.diag(ridge[1])
        return Hessian(common, joint, np.asarray(np.linalg.inv(own), np.float64))

    def log_odds(self, point: Point) -> Floats:
        """(R,)."""
        common, weights = point
        own = [self.own[part] @ weight for part, weight in zip(self.parts, weights, strict=True)]
        odds: Floats = self.common @ common + np.concatenate(own)
        return odds


def _correction(odds: Floats, truths: Bools) -> tuple[Floats, Floats, Floats]:
    """The slope of log odds (n, T), the offset of each tag, and its variance given the others, by penalised fit."""
    from scipy.optimize import minimize

    tags = odds.shape[1]
    ridge = np.array([*CORRECTION[:2], *[CORRECTION[2]] * tags])

    def loss(theta: Floats) -> tuple[float, Floats]:
        trial = (1.0 + theta[0]) * odds + theta[1] + theta[2:]
        gap = sigmoid(trial) - truths
        slope = np.array([(gap * odds).sum(), gap.sum(), *gap.sum(axis=0)]) + ridge * theta
        return float((np.logaddexp(0.0, trial) - truths * trial).sum() + ridge @ theta**2 / 2), slope

    bounds = [(-1.0, None), *[(None, None)] * (tags + 1)]
    theta = minimize(loss, np.zeros(tags + 2), jac=True, method="L-BFGS-B", bounds=bounds).x
    chance = sigmoid((1.0 + theta[0]) * odds + theta[1] + theta[2:])
    return 1.0 + theta[0], theta[1] + theta[2:], 1.0 / ((chance * (1.0 - chance)).sum(axis=0) + CORRECTION[2])


def _subsets(classifiers: int) -> list[tuple[int, ...]]:
    """The sets of classifiers with separate parameters, the largest first.

    The sets are all classifiers, all but one, the first ones, each alone, and none. For any other set, the largest of
    these that it contains is used.
    """
    every = tuple(range(classifiers))
    without = [every[:gap] + every[gap + 1 :] for gap in every]
    subsets = {every, *without, *(every[:count] for count in every), *((one,) for one in every), ()}
    return sorted(subsets, key=lambda subset: (-len(subset), subset))


def _nested(values: NDArray[np.generic], digits: int = 17) -> Any:
    """An array as nested tuples of numbers with this many significant digits."""
    if values.ndim > 1:
        return tuple(_nested(part, digits) for part in values)
    return tuple(float(f"{value:.{digits}g}") for value in values.tolist())
