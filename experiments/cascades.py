"""Several classifiers about the same pictures: ours beside other ways to use the same answers.

python -m experiments cascades    results/cascades.csv, cascades_rules.csv and cascades_guarantees.csv

The answers are in ../shared/answers. Every split draws 400 labelled pictures and tests on the rest, at most 5,000; the
seed of a split is its number. `accuracy` and `price` are means over 20 splits. `ahead` is ours less the method's at the
same limit, and `low` and `high` its 95 % interval over pictures: the differences of one picture are averaged over the
splits that test it. A picture without an answer counts as wrong. `limit` is the mean price of a picture that is
allowed, as a multiple of that of the best single model *chosen on the same labels* (`x1.00`) or of the cheapest
(`6`, saints alone); methods that have no such knob are the same at each.

Prices. Saints: dollars for 1,000 questions of 1,000 tokens in and 50 out, by the vendors' lists when the models came
out (per million tokens: gemini-2.5-flash-lite .10 and .40, 2.5-flash .30 and 2.50, 3-flash-preview .50 and 3.00,
3.1-pro-preview 2.00 and 12.00, gpt-4o 2.50 and 10.00). Faces: dollars for 10,000, as the authors of FrugalML give them
(Google 15, Face++ 5, Microsoft 10, the open network .01); GPT-4V 50 (gpt-4-vision-preview, 10 and 30 per million
tokens, 400 in and 35 out). Local networks: millions of multiplications and additions for a picture, as published.

Methods: each single model; the best of them on the labelled pictures; all in order of price with one threshold of
confidence, chosen as ours is; agreement (the two cheapest agree, else the most expensive is asked and believed);
FrugalML-like (a first model, and by its label and score another one to be believed instead, for the highest accuracy
on the labelled pictures); random escalation from the cheapest to the best single one; and as a bound the oracle, which
asks the cheapest model that is right.

cascades_rules.csv compares the stopping rule with one threshold for all sources, over the same sequences: the Brier
score and price on tested pictures. cascades_guarantees.csv has 200 splits of two classifiers: a threshold of confidence
from the nested outcome of `find`, at most 5 or 10 % wrong at a level of 95 %. `above` counts splits whose accepted
tested pictures were wrong more often than that, `broken` those where chance does not explain it (exact binomial test,
p < .05); `hindsight` is the share that the best threshold for the tested pictures accepts. `possible` is how many
guarantees at the most any method can make from so many labelled pictures: see `power`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from experiments import general
from experiments.closed import emotions, rows_of
from experiments.collected import MODELS, logits
from experiments.models import log_probabilities
from experiments.writing import Row, merge
from looktwice.calibration import crossfit
from looktwice.calibration.evidence import MISSING, UNLISTED, Bools, Evidence, Floats, Places
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.results import HeldOut
from looktwice.decisions.sequence import (
    LEVELS,
    NEVER,
    HeldOutJuries,
    Point,
    Sequence as Asked,
    Source,
    between,
    candidates,
    choose,
    find,
)

RESULTS = Path(__file__).parent / "results"
SPLITS, GUARANTEED, LABELLED, MOST_TESTED = 20, 200, 400, 5000
ERRORS, LEVEL = (0.05, 0.1), 0.95
SHARES = (1.0, 0.75, 0.45)
"""Limits as multiples of the price of the best single model."""
PRICES = (1.0, 2.0, 4.0, 6.0, 12.0)
"""Limits as multiples of the price of the cheapest, for saints."""
IN, OUT = 1000, 50
"""Tokens of a question and of its answer."""
SAINTS = {
    "gemini-2.5-flash-lite": (0.10, 0.40),
    "gemini-2.5-flash": (0.30, 2.50),
    "gemini-3-flash-preview": (0.50, 3.00),
    "gpt-4o-2024-08-06": (2.50, 10.00),
    "gemini-3.1-pro-preview": (2.00, 12.00),
}
"""Dollars per million tokens in and out."""
FACES = {"open_cnn": 0.01, "facepp": 5.0, "microsoft": 10.0, "google": 15.0}
GPT = 50.0
CIFAR = {"resnet8": 12.5, "resnet20": 41.0, "resnet32": 69.0}
PHOTOS = {"mobilenetv2": 300.0, "efficientnet": 407.0}
OURS, BEST, RANDOM, ORACLE = "ours", "best single", "random escalation", "oracle"


@dataclass(frozen=True, eq=False)
class Pool:
    """Classifiers and their answers about the same labelled pictures."""

    name: str
    votes: LabelledVotes
    sources: tuple[Source, ...]
    labelled: int = LABELLED
    limits: tuple[float, ...] = ()
    """Limits of the price as multiples of the cheapest source's."""

    def split(self, seed: int) -> tuple[Places, Places]:
        """Pictures to learn from and to test on."""
        mixed = np.random.default_rng(seed).permutation(len(self.votes))
        return mixed[: self.labelled], mixed[self.labelled :][:MOST_TESTED]

    def under(self, places: Sequence[int]) -> Pool:
        """The same about some of the classifiers."""
        sources = tuple(self.sources[place] for place in places)
        return replace(self, votes=self.votes.of_sources(places), sources=sources)

    @property
    def prices(self) -> Floats:
        return np.array([source.price for source in self.sources])


def saints(dataset: str) -> Pool:
    """Five closed models about saints in paintings, asked with the first prompt."""
    said: dict[str, dict[str, str]] = {model: {} for model in SAINTS}
    truths: dict[str, str] = {}
    for row in rows_of("vlm_saints.csv.gz"):
        if row["dataset"] == dataset and row["prompt"] == "test_1" and row["model"] in said:
            said[row["model"]][row["image"]] = row["label"]
            truths[row["image"]] = row["truth"]
    names = sorted(truths)
    first, *others = [[answers.get(name, "") for name in names] for answers in said.values()]
    votes = Votes.from_labels(first, list(zip(*others, strict=True)), [truths[name] for name in names])
    dollars = [(IN * into + OUT * out) / 1000 for into, out in SAINTS.values()]
    return Pool(dataset, votes, _sources(SAINTS, dollars), limits=PRICES)


def faces(dataset: str) -> Pool:
    """Three APIs and an open network about faces, with their scores."""
    return Pool(dataset, emotions(dataset, list(FACES)), _sources(FACES, FACES.values()))


def faces_with_gpt() -> Pool:
    """The same about the test faces of RAF-DB, and GPT-4V's first label, which has no score."""
    rows = rows_of("emotion_with_gpt4v.csv.gz")
    table = [[*(row[api] for api in FACES), row["gpt4v_ranked"].split(",")[0].strip()] for row in rows]
    truths = [row["truth"] for row in rows]
    known = set(truths)
    table = [[label if label in known else "" for label in row] for row in table]
    votes = Votes.from_labels([row[0] for row in table], [row[1:] for row in table], truths)
    scores = np.array([[*(float(row[f"{api}_score"]) for api in FACES), np.nan] for row in rows], np.float32)
    listed = np.where(np.isnan(scores), UNLISTED, votes.answers()).astype(np.int32)
    votes = replace(votes, evidence=Evidence(listed[:, :, None], scores[:, :, None]))
    return Pool("rafdb with GPT-4V", votes, _sources({**FACES, "gpt4v": GPT}, [*FACES.values(), GPT]))


def local(name: str, millions: dict[str, float]) -> Pool:
    """Networks about the same pictures, with the probability of their label; the price is the work of one answer."""
    outputs = [log_probabilities(logits(MODELS[model])) for model in millions]
    model = MODELS[next(iter(millions))]
    labels = np.stack([output.argmax(axis=1) for output in outputs], axis=1).astype(np.int32)
    scores = np.exp(np.stack([output.max(axis=1) for output in outputs], axis=1)).astype(np.float32)
    names, panel = tuple(picture.name for picture in model.pictures), tuple(millions)[1:]
    evidence = Evidence(labels[:, :, None], scores[:, :, None])
    votes = Votes(names, panel, model.labels, labels[:, 0], labels[:, 1:], len(model.labels), evidence=evidence)
    truths = [str(picture.truth) for picture in model.pictures]
    return Pool(name, votes.labelled(truths), _sources(millions, millions.values()))


def embedded(folder: Path) -> Pool:
    """The embedded model about embedded pictures: the picture itself and three views, at prices of 1, 2, 3 and 4."""
    (answers,) = general.small(folder, 240, ("first",))
    votes = answers.votes.under(range(3))
    sources = tuple(Source("clothes", view, price) for price, view in enumerate(("base", *votes.panel), 1))
    return Pool("clothes", votes, sources, labelled=120, limits=(1.0, 4.0))


def _sources(names: Iterable[str], prices: Iterable[float]) -> tuple[Source, ...]:
    return tuple(Source(name, price=price) for name, price in zip(names, prices, strict=True))


# Methods -------------------------------------------------------------------------------------------------------------

Result = tuple[Floats, Floats]
"""(n,) twice: whether the answer about each tested picture is right, or how probably, and its price."""


@dataclass(frozen=True, eq=False)
class Split:
    """A pool's labelled and tested pictures, and the juries of the labelled ones."""

    pool: Pool
    train: LabelledVotes
    test: LabelledVotes
    held: HeldOutJuries
    points: list[Point]

    @classmethod
    def of(cls, pool: Pool, seed: int) -> Split:
        train, test = (pool.votes.take(rows) for rows in pool.split(seed))
        held = candidates(train, pool.sources)
        return cls(pool, train, test, held, held.search())

    def right(self, tested: bool = True) -> Bools:
        """(n, sources): whether each source is right about each tested or labelled picture."""
        votes = self.test if tested else self.train
        return np.asarray(votes.answers() == votes.truths[:, None])

    def best(self) -> int:
        """The single source that is right about most labelled pictures; the cheaper of two that are."""
        share = self.right(tested=False).mean(axis=0)
        return min(range(len(share)), key=lambda place: (-share[place], self.pool.prices[place]))

    def followed(self, asked: Asked) -> tuple[Result, Floats]:
        """How a sequence fares on the tested pictures, and its Brier scores."""
        places = tuple(map(self.pool.sources.index, asked.sources))
        calibrator = self.held.calibrator(places)
        counts, votes = asked.follow(calibrator, self.test.of_sources(places))
        right = calibrator.predict(votes) == votes.truths
        brier = calibrator.distribution(votes).brier(votes.truths)
        return (right.astype(float), asked.prices()[counts - 1]), brier

    def single(self, place: int) -> Result:
        return self.right()[:, place].astype(float), np.full(len(self.test), self.pool.prices[place])


def ours(split: Split, limit: float) -> Result:
    return split.followed(choose(split.points, limit).sequence)[0]


def in_order_of_price(split: Split, limit: float) -> Result:
    """All sources in order of price with one threshold, chosen as ours is; without the search."""
    order = tuple(np.argsort(split.pool.prices, kind="stable").tolist())
    return split.followed(choose(one_threshold(split, order), limit).sequence)[0]


def one_threshold(split: Split, places: tuple[int, ...]) -> list[Point]:
    """The points of a sequence that stops at the same confidence after each source."""
    steps = split.held.steps(places)
    confidence, losses = steps.confidence, steps.losses
    sources, found = tuple(split.pool.sources[place] for place in places), []
    levels = np.unique(np.quantile(confidence[:, :-1], LEVELS)) if len(places) > 1 else ()
    for level in (NEVER, *(between(confidence[:, :-1], level) for level in levels)):
        asked = Asked(sources, (level,) * (len(places) - 1))
        counts = asked.asked(confidence)
        lost = losses[np.arange(len(counts)), counts - 1]
        found.append(Point(asked, lost, asked.prices()[counts - 1], float(counts.mean())))
    return found


def agreement(split: Split, _: float) -> Result:
    """Two agree, else the most expensive is asked and believed."""
    order = np.argsort(split.pool.prices, kind="stable")
    first, second, last = order[0], order[1], order[-1]
    answers, prices, right = split.test.answers(), split.pool.prices, split.right()
    same = (answers[:, first] == answers[:, second]) & (answers[:, first] != MISSING)
    both, third = prices[first] + prices[second], prices[last] if last != second else 0.0
    return np.where(same, right[:, first], right[:, last]).astype(float), np.where(same, both, both + third)


def frugal(split: Split, limit: float) -> Result:
    """FrugalML-like: the first source and, by its label, a score below which another one is asked and believed.

    For each first source, label and other source, the threshold of the score that gains most at a price of accuracy;
    the first source and that price are those with the highest accuracy on the labelled pictures within the limit.
    """
    best: tuple[float, Result] | None = None
    right, prices = split.right(tested=False), split.pool.prices
    for first in range(len(prices)):
        for worth in (0.0, *np.geomspace(1e-4, 1.0, 30) / prices.max()):
            plan = {
                label: _addon(split, first, label, worth)
                for label in np.unique(split.train.answers()[:, first]).tolist()
            }
            correct, price = _planned(split.train, right, prices, first, plan)
            if price.mean() <= limit * (1 + 1e-9) and (best is None or correct.mean() > best[0]):
                best = float(correct.mean()), _planned(split.test, split.right(), prices, first, plan)
    return best[1] if best else split.single(int(prices.argmin()))


def _scores(votes: LabelledVotes, place: int) -> Floats:
    """The score of each answer of a source; 0 where it has none."""
    none = np.zeros(len(votes))
    return none if votes.evidence is None else np.nan_to_num(votes.evidence.scores[:, place, 0].astype(float))


def _addon(split: Split, first: int, label: int, worth: float) -> tuple[int, float]:
    """Which source replaces this label of the first, and below which score; none at −∞."""
    rows = split.train.answers()[:, first] == label
    scores, right = _scores(split.train, first)[rows], split.right(tested=False)[rows]
    best = (0.0, first, -np.inf)
    for other in range(right.shape[1]):
        gain = right[:, other].astype(float) - right[:, first] - worth * split.pool.prices[other]
        for level in np.unique(scores) if other != first else ():
            total = float(gain[scores <= level].sum())
            best = max(best, (total, other, float(level)))
    return best[1], best[2]


def _planned(
    votes: LabelledVotes, right: Bools, prices: Floats, first: int, plan: dict[int, tuple[int, float]]
) -> Result:
    correct, price = right[:, first].astype(float), np.full(len(votes), prices[first])
    scores = _scores(votes, first)
    for label, (other, level) in plan.items():
        rows = (votes.answers()[:, first] == label) & (scores <= level) & (other != first)
        correct[rows], price[rows] = right[rows, other], prices[first] + prices[other]
    return correct, price


def random_escalation(split: Split, limit: float) -> Result:
    """The cheapest, and with the probability that the limit allows the best single one, which is believed."""
    cheap, best, prices = int(split.pool.prices.argmin()), split.best(), split.pool.prices
    share = float(np.clip((limit - prices[cheap]) / prices[best], 0.0, 1.0)) if best != cheap else 0.0
    right = (1.0 - share) * split.right()[:, cheap] + share * split.right()[:, best]
    return right, np.full(len(split.test), prices[cheap] + share * prices[best])


def oracle(split: Split, _: float) -> Result:
    """The cheapest source that is right, or the cheapest of all."""
    price = np.where(split.right(), split.pool.prices, np.inf).min(axis=1)
    return np.isfinite(price).astype(float), np.where(np.isfinite(price), price, split.pool.prices.min())


METHODS: dict[str, Callable[[Split, float], Result]] = {
    OURS: ours,
    BEST: lambda split, _: split.single(split.best()),
    "in order of price": in_order_of_price,
    "agreement": agreement,
    "FrugalML-like": frugal,
    RANDOM: random_escalation,
    ORACLE: oracle,
}


# Tables --------------------------------------------------------------------------------------------------------------


def limits(split: Split) -> dict[str, float]:
    """The limits of the price by their names."""
    best, cheapest = split.pool.prices[split.best()], split.pool.prices.min()
    named = {f"x{share:.2f}": share * best for share in SHARES}
    return {**named, **{f"{limit:g}": limit * cheapest for limit in split.pool.limits}, "none": np.inf}


def compared(pool: Pool, splits: Sequence[Split]) -> Iterator[Row]:
    """A line for each limit and method: accuracy, price, and how far ours is ahead."""
    sums: dict[tuple[str, str], Floats] = {}
    for seed, split in enumerate(splits):
        rows = pool.split(seed)[1]
        singles = {str(source): split.single(place) for place, source in enumerate(pool.sources)}
        for name, limit in limits(split).items():
            results = {**singles, **{method: work(split, limit) for method, work in METHODS.items()}}
            for method, (right, price) in results.items():
                total = sums.setdefault((name, method), np.zeros((4, len(pool.votes))))
                total[:, rows] += right, price, results[OURS][0] - right, np.ones(len(rows))
    for (allowed, method), (right, price, ahead, times) in sums.items():
        tested = times > 0
        mean = ahead[tested] / times[tested]
        half = 1.96 * float(mean.std()) / np.sqrt(tested.sum())
        cost = price.sum() / times.sum()
        best, own = (sums[allowed, name][1].sum() / times.sum() for name in (BEST, OURS))
        yield {
            "set": pool.name,
            "limit": allowed,
            "method": method,
            "accuracy": f"{right.sum() / times.sum():.4f}",
            "price": f"{cost:.4f}",
            "share": f"{cost / best:.4f}",
            "ahead": f"{mean.mean():.4f}",
            "low": f"{mean.mean() - half:.4f}",
            "high": f"{mean.mean() + half:.4f}",
            "beats": str(int(cost < own and mean.mean() + half < 0)),
            "labelled": str(pool.labelled),
            "splits": str(len(splits)),
        }


def rules(pool: Pool, splits: Sequence[Split]) -> Iterator[Row]:
    """The stopping rule beside one threshold, over the same sequences, by the Brier score on tested pictures."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for split in splits:
        tried = dict.fromkeys(tuple(map(pool.sources.index, point.sequence.sources)) for point in split.points)
        single = [point for places in tried for point in one_threshold(split, places)]
        for name, limit in limits(split).items():
            for rule, points in (("expected gain", split.points), ("one threshold", single)):
                (right, price), brier = split.followed(choose(points, limit).sequence)
                found.setdefault((name, rule), []).append((brier.mean(), right.mean(), price.mean()))
    for (allowed, rule), values in found.items():
        shown = dict(
            zip(("brier", "accuracy", "price"), (f"{mean:.4f}" for mean in np.mean(values, axis=0)), strict=True)
        )
        yield {"set": pool.name, "limit": allowed, "rule": rule, **shown, "splits": str(len(splits))}


def hindsight(confidence: Floats, right: Bools, error: float) -> float:
    """The largest share of these pictures that one threshold accepts with at most this share wrong."""
    order = np.argsort(-confidence, kind="stable")
    last = np.append(np.diff(confidence[order]) != 0, True)
    wrong = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    allowed = np.flatnonzero(last & (wrong <= error))
    return float((allowed.max(initial=-1) + 1) / len(order))


def power(confidence: Floats, right: Bools, error: float, labelled: int) -> float:
    """How often the best single threshold for these pictures passes the exact test on so many labelled ones.

    No claim about a threshold can be made more often: the test is the most powerful one, the threshold is taken in
    hindsight, and no share of the risk is spent on others. Thresholds that accept 2, 4 … 100 % are looked at.
    """
    order = np.argsort(-confidence, kind="stable")
    wrong, drawn = np.cumsum(~right[order]), np.arange(labelled + 1)
    allowed = binom.ppf(1.0 - LEVEL, drawn, error)
    allowed -= binom.cdf(allowed, drawn, error) > 1.0 - LEVEL
    taken = np.unique(np.linspace(0.02, 1.0, 50) * len(order)).astype(int)
    return max(
        float(binom.pmf(drawn, labelled, count / len(order)) @ binom.cdf(allowed, drawn, wrong[count - 1] / count))
        for count in taken[taken > 0]
    )


class Kept(NamedTuple):
    """What came of one split at one allowed error."""

    made: bool
    """Whether a guarantee was made."""
    wrong: int
    accepted: int
    """Wrong and accepted among the tested pictures."""
    tested: int
    hindsight: float
    """The share that the best threshold for them accepts."""
    power: float


def accepted(pool: Pool, seed: int) -> dict[float, Kept]:
    """What was accepted on the tested pictures of a split, for each allowed error."""
    train, test = (pool.votes.take(rows) for rows in pool.split(seed))
    fitted = find(candidates(train, pool.sources))
    followed, votes = (
        fitted.sequence.follow(fitted.calibrator, part.of_sources(fitted.places))[1] for part in (train, test)
    )
    rests = HeldOut.combine(fitted.outcome, crossfit.outcome(fitted.calibrator, followed))
    confidence, right = fitted.calibrator.confidence(votes), fitted.calibrator.predict(votes) == votes.truths
    found = {}
    for error in ERRORS:
        least = rests.threshold(error, LEVEL)
        taken = confidence >= (np.inf if least is None else least)
        counts = int((~right[taken]).sum()), int(taken.sum()), len(taken)
        best = hindsight(confidence, right, error), power(confidence, right, error, pool.labelled)
        found[error] = Kept(least is not None, *counts, *best)
    return found


def guaranteed(pool: Pool, found: Sequence[dict[float, Kept]]) -> Iterator[Row]:
    """A line for each allowed error: how often the guarantee of two classifiers was made, and held."""
    for error in ERRORS:
        splits = [kept[error] for kept in found]
        made = [kept for kept in splits if kept.made]
        wrong, taken, tested, best = np.array([kept[1:5] for kept in made], float).reshape(-1, 4).T
        yield {
            "set": pool.name,
            "sources": " ".join(source.classifier for source in pool.sources),
            "allowed": f"{100 * error:.0f} %",
            "made": str(len(made)),
            "possible": f"{sum(kept.power for kept in splits):.1f}",
            "above": str(int((wrong > error * taken).sum())),
            "broken": str(int((binom.sf(wrong - 1, taken, error) < 0.05).sum())),
            "seen": f"{wrong.sum() / max(taken.sum(), 1):.4f}",
            "accepted": f"{taken.sum() / max(tested.sum(), 1):.4f}",
            "hindsight": f"{best.sum() / max(len(made), 1):.4f}",
            "labelled": str(pool.labelled),
            "splits": str(len(found)),
        }


PAIRS: dict[str, Callable[[], Pool]] = {
    "ArtDL": lambda: saints("ArtDL").under([0, 2]),
    "ICONCLASS": lambda: saints("ICONCLASS").under([0, 2]),
    "ferplus": lambda: faces("ferplus").under([0, 2]),
    "ArtDL, 1,000 labels": lambda: replace(PAIRS["ArtDL"](), name="ArtDL, 1,000 labels", labelled=1000),
    "ferplus, 1,000 labels": lambda: replace(PAIRS["ferplus"](), name="ferplus, 1,000 labels", labelled=1000),
    "CIFAR-10": lambda: local("CIFAR-10", CIFAR).under([0, 2]),
    "CIFAR-10, 1,000 labels": lambda: replace(PAIRS["CIFAR-10"](), name="CIFAR-10, 1,000 labels", labelled=1000),
}
"""Two classifiers each: the cheapest and the one that is right most often."""
POOLS: dict[str, Callable[[], Pool]] = {
    "ArtDL": partial(saints, "ArtDL"),
    "ICONCLASS": partial(saints, "ICONCLASS"),
    "ferplus, two": lambda: replace(PAIRS["ferplus"](), name="ferplus, two"),
    "ferplus": partial(faces, "ferplus"),
    "rafdb": partial(faces, "rafdb"),
    "expw": partial(faces, "expw"),
    "rafdb with GPT-4V": faces_with_gpt,
    "CIFAR-10": lambda: local("CIFAR-10", CIFAR),
    "photos": lambda: local("photos", PHOTOS),
}


def main(results: Path = RESULTS, quick: bool = False) -> None:
    """Measure every set, write the CSVs, and print them."""
    pools = [embedded(results)] if quick else [make() for make in POOLS.values()]
    pairs = [pools[0].under([0, 1])] if quick else [make() for make in PAIRS.values()]
    for pool in pools:
        splits = [Split.of(pool, seed) for seed in range(2 if quick else SPLITS)]
        _write(results / "cascades.csv", list(compared(pool, splits)), ("set", "limit", "method"))
        _write(results / "cascades_rules.csv", list(rules(pool, splits)), ("set", "limit", "rule"))
    for pool in pairs:
        lines = list(guaranteed(pool, [accepted(pool, seed) for seed in range(4 if quick else GUARANTEED)]))
        _write(results / "cascades_guarantees.csv", lines, ("set", "allowed"))


def _write(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    for row in rows:
        print(" ".join(row.values()), flush=True)
    merge(path, rows, keys)
