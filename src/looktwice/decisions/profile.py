"""What fitting learned about one classifier: plain JSON, versioned, shareable, with no secret in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from looktwice import __version__, files
from looktwice.calibration import base, calibrators, metrics, panels, risk
from looktwice.calibration.conformal import AdaptiveSets, Conformal, SetKind, SetMaker
from looktwice.calibration.crossfit import ONE_QUERY, OWN, Evidence, Outcome
from looktwice.calibration.distribution import Standing
from looktwice.calibration.jury import Prefixes
from looktwice.calibration.votes import Row, Votes
from looktwice.classifiers.base import AnyClassifier, lasting, names_of, reading
from looktwice.decisions.stopping import RANKING, AdaptiveRule, Expected
from looktwice.engine.query import Scores
from looktwice.errors import DataError, FitError, ProfileError, ViewError
from looktwice.images.image import shown
from looktwice.monitoring.familiarity import AnswerKinds, Familiarity
from looktwice.plots import figures, notebook
from looktwice.plots.notebook import Drawing
from looktwice.views import Panel, renderer

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
DIGEST_DIGITS = 12
"""Enough to tell a million pictures apart."""
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Part):
    """A number and the interval in which it lies with 95 % certainty; None where it is undefined."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, value: float | None, interval: tuple[float, float] | None) -> Self:
        """The same in six decimals, which is more than its interval deserves."""
        numbers = (value, *(interval or (None, None)))
        rounded = [None if x is None or not np.isfinite(x) else round(float(x), 6) for x in numbers]
        return cls(value=rounded[0], low=rounded[1], high=rounded[2])


class Result(_Part):
    """What one calibrator reached on pictures that it was not fitted on."""

    calibrator: str
    queries: int | float
    """Queries a picture; their mean where pictures differ."""
    figures: dict[str, Figure]
    evidence: Evidence = "labels"
    """What the calibrator looked at."""

    @classmethod
    def of(cls, outcome: Outcome, intervals: bool = True) -> Self:
        """The figures of an outcome, with their 95 % intervals unless they are points of a curve."""
        ends = asdict(outcome.intervals()) if intervals else {}
        figures = {key: Figure.of(value, ends.get(key)) for key, value in asdict(outcome.scores()).items()}
        return cls(calibrator=outcome.name, queries=outcome.queries, figures=figures, evidence=outcome.evidence)

    def title(self) -> str:
        """The calibrator, and whether it uses scores where its name does not say that."""
        scored = self.evidence == "scores" and self.calibrator not in (OWN, ONE_QUERY)
        return f"{self.calibrator} with scores" if scored else self.calibrator

    def record(self) -> dict[str, object]:
        """Calibrator, queries and the value of each figure, as one row of a table."""
        values = {key: figure.value for key, figure in self.figures.items()}
        return {"calibrator": self.calibrator, "queries": self.queries, "evidence": self.evidence, **values}


def results_html(title: str, results: Sequence[Result]) -> str:
    """Figures as an HTML table, one calibrator a row."""
    rows = [result.record() for result in results]
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    return notebook.table(title, list(rows[0]) if rows else ["no picture was labelled"], cells)


def results_text(title: str, results: Sequence[Result]) -> str:
    """The main figures as lines of text, one calibrator a row."""
    shown = ("accuracy", "ece", "auroc", "brier")
    lines = [title, f"{'calibrator':24}{'queries':>8}" + "".join(f"{key:>10}" for key in shown)]
    for result in results:
        values = [result.figures[key].value for key in shown]
        cells = "".join(f"{'–' if value is None else format(value, '.3f'):>10}" for value in values)
        lines.append(f"{result.calibrator:24}{result.queries:>8.3g}{cells}")
    return "\n".join(lines)


class HeldOut(_Part):
    """The confidence of each labelled picture by a calibrator fitted without it, and whether its answer was right."""

    confidence: tuple[Share, ...]
    correct: tuple[bool, ...]
    true_probability: tuple[Share, ...] = ()
    """The probability of what came true, all labels that nobody named being one option."""
    through: tuple[Share, ...] = ()
    """The probability of all options up to what came true, the most probable first."""
    rank: tuple[Count, ...] = ()
    """The place of what came true among them, from 1."""

    @classmethod
    def of(cls, held_out: Outcome, final: Outcome) -> Self:
        """What guarantees rest on: the outcome of cross-validation, and of the calibrator that the profile keeps.

        Many pictures have the same answers and so the same probability of the truth, and it differs a little from fold
        to fold. The worse one counts, so that sets do not leave out a tenth of the pictures by a hair.
        """
        through = np.ceil(np.maximum(held_out.through, final.through) * 1e6 - 1e-3) / 1e6
        true_probability = np.floor(np.minimum(held_out.true_probability, final.true_probability) * 1e6) / 1e6
        return cls(
            confidence=tuple(np.round(held_out.confidence, 6).tolist()),
            correct=tuple(held_out.correct.tolist()),
            true_probability=tuple(true_probability.tolist()),
            through=tuple(np.minimum(through, 1.0).tolist()),
            rank=tuple(np.maximum(held_out.rank, final.rank).tolist()),
        )

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        optional = {len(self.true_probability), len(self.through), len(self.rank)}
        if len(self.correct) != len(self.confidence) or not optional <= {0, len(self.confidence)}:
            raise ValueError("there must be one confidence, one correct and one true_probability for each picture")
        return self

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The confidences and whether each answer was right."""
        return np.array(self.confidence, np.float64), np.array(self.correct, bool)

    def threshold(self, max_error: float, level: float = 0.95) -> float | None:
        """The least confidence to accept, so that accepted answers are wrong at most `max_error` of the time."""
        return risk.threshold(*self.arrays(), max_error, level)

    def conformal(self, coverage: float = 0.9, kind: SetKind = "adaptive") -> SetMaker:
        """What makes sets of labels that hold the truth so often."""
        if not (self.true_probability if kind == "threshold" else self.through and self.rank):
            raise ProfileError(f"this profile holds nothing that {kind} sets of labels could rest on; fit again")
        own = np.array(self.true_probability)
        if kind == "threshold":
            return Conformal.of(own, coverage)
        return AdaptiveSets.learn(kind, Standing(own, np.array(self.through), np.array(self.rank)), coverage)


class Adaptive(_Part):
    """How to ask no more than needed: when to stop, and what to believe then."""

    panel: str
    """The views in the order in which they are asked; it begins as the profile's panel does, and may go on."""
    first: Count
    """Views that are always asked, in one go."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """After 0, 1 … views one goes on while the confidence is between these."""
    calibrator: dict[str, object]
    held_out: HeldOut
    agreement_bins: tuple[Count, ...] = ()
    """How many labelled pictures were of each kind, by the first round and by how many views were asked."""
    answers: AnswerKinds | None = None
    """How often the first round of questions about the labelled pictures had which answers."""
    expected: Expected | None = None
    """What it is expected to do on new pictures; None in a profile that does not know."""

    def views(self) -> Panel:
        """The panel to ask from."""
        return Panel.parse(self.panel)

    def rule(self) -> AdaptiveRule:
        """When to stop."""
        return AdaptiveRule(self.low, self.high)

    def restored_calibrator(self) -> Prefixes:
        """The fitted juries, one for each number of views."""
        calibrator = calibrators.restore(self.calibrator)
        views = len(self.views())
        if not isinstance(calibrator, Prefixes) or {len(calibrator.juries) - 1, len(self.low), len(self.high)} != {
            views
        }:
            raise DataError("its part about stopping early does not hold together; fit again")
        if self.first > views:
            raise DataError(f"it always asks {self.first} views of a panel that has {views}; fit again")
        return calibrator


class Profile(_Part):
    """Everything needed to repeat a verdict, and how good such verdicts were."""

    schema_version: Literal[1] = 1
    looktwice: str = Field(default_factory=lambda: __version__)
    classifier: str
    """The classifier as it was described; credentials are named by their environment variables."""
    fingerprint: str
    """What decides the classifier's replies."""
    reading: str = ""
    """What is read from them; empty where the fingerprint says that too."""
    renames: dict[str, str] = {}
    """What its description made of the classifier's own words; `#3` is the position 3."""
    vocabulary: tuple[str, ...]
    classes: int = Field(ge=2)
    panel: str
    seed: int
    working_size: int | None = Field(default=None, ge=1)
    """Pixels of the longer side to which larger pictures are scaled, where that was chosen; see `AskOptions`."""
    renderer: str
    calibrator: dict[str, object]
    pictures: int
    """How many labelled pictures it was fitted on."""
    fitted_on: tuple[str, ...] = ()
    """The first digits of the digests of those pictures; empty where they are not known."""
    results: tuple[Result, ...]
    held_out: HeldOut
    curve: tuple[Result, ...] = ()
    """What the first 0, 1 … views of the panel reached, where the calibrator is a jury."""
    adaptive: Adaptive | None = None
    agreement_bins: tuple[Count, ...] = ()
    """How many labelled pictures had 0, 1 … views on the side of the base label: what drift is measured against."""
    one_query: dict[str, object] | None = None
    """The calibrator for pictures that are asked about once, where the classifier gives scores."""
    scores: str = ""
    """Whether the classifier's scores are used and why, for people; empty where it gives none."""
    familiarity: Familiarity | None = None
    """What tells pictures like the labelled ones from others; None where the profile cannot tell."""
    answers: AnswerKinds | None = None
    """How often the labelled pictures had which answers; None where the profile cannot tell."""

    def views(self) -> Panel:
        """The panel to ask."""
        return Panel.parse(self.panel)

    def restored_calibrator(self) -> base.Calibrator:
        """The fitted calibrator."""
        return calibrators.restore(self.calibrator)

    @property
    def evidence(self) -> Evidence:
        """What its calibrator looks at: labels alone, or scores too."""
        return "scores" if self.calibrator.get("scored") else "labels"

    def count_fitted(self, digests: Iterable[str]) -> int:
        """How many of these pictures it was fitted on."""
        known = set(self.fitted_on)
        return sum(digest[:DIGEST_DIGITS] in known for digest in digests)

    def advice(self, results: Sequence[Result] = (), asked: Panel | None = None) -> list[str]:
        """What is to be said about stopping early and about the classifier's own score, one sentence each.

        `results` are those on other pictures; by default the sentences are about the held-out folds. `asked` is the
        panel that the labelled pictures were asked.
        """
        sentences = [f"Scores: {self.scores}."] if self.scores else []
        if self.adaptive and self.adaptive.expected and not results:
            sentences.append(self.adaptive.expected.sentence())
        found = {result.calibrator: result.figures["brier"].value for result in results or self.results}
        single, whole, views = found.get(ONE_QUERY), found.get(str(self.calibrator.get("family"))), len(self.views())
        if single and whole and self.evidence == "scores":
            figures = f"Brier score {single:.3f} with one query, {whole:.3f} with {1 + views}"
            if single <= panels.SUFFICES * whole:
                advice = f"One query with its score suffices: {figures}; fit with --views none to ask no more."
            else:
                cost = f"--views none asks one query, at 1/{1 + views} of the cost"
                advice = f"Views add to the score: {figures}; {cost}."
            sentences.append(advice)
        if asked and self.adaptive and len(self.adaptive.views()) < len(asked):
            unknown = f"Fewer than {RANKING} answers were wrong, too few to tell which further views help"
            sentences.append(f"{unknown}: --adaptive stops within {views} views.")
        return sentences

    def threshold(self, max_error: float, level: float = 0.95) -> float | None:
        """The least confidence to accept, so that accepted answers are wrong at most `max_error` of the time.

        The guarantee holds with certainty `level`; None if the labelled pictures are too few, or too often answered
        wrongly, for any.
        """
        return self.held_out.threshold(max_error, level)

    def accuracy(self) -> float:
        """The base answer's accuracy on the labelled pictures: what constant trust believes."""
        known = self.results[0].figures.get("accuracy") if self.results else None
        return float((known and known.value) or 0.0)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        files.write(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Profile:
        """The profile in a file; a ProfileError says what is wrong with it."""
        try:
            values = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise ProfileError(f"there is no profile {str(path)!r}; make one with: looktwice fit") from None
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"{str(path)!r} is not a profile: {error}; make one with: looktwice fit") from None
        except OSError as error:
            raise ProfileError(f"the profile {str(path)!r} cannot be read: {error}") from None
        return cls.of(values, str(path))

    @classmethod
    def of(cls, values: object, name: str) -> Profile:
        """The profile that JSON values describe; every part of it is checked now rather than when it is used."""
        version = values.get("schema_version") if isinstance(values, dict) else None
        if isinstance(version, int) and version > SCHEMA:
            raise ProfileError(f"the profile {name!r} has schema {version}, newer than {SCHEMA}: upgrade looktwice")
        try:
            profile = cls.model_validate(values)
            _try(profile.restored_calibrator(), profile.views(), profile.classes)
            if profile.one_query:
                _try(calibrators.restore(profile.one_query), Panel(()), profile.classes)
            if adaptive := profile.adaptive:
                _try(adaptive.restored_calibrator(), adaptive.views(), profile.classes)
        except ValidationError as error:
            first = error.errors()[0]
            where = shown(".".join(map(str, first["loc"])) or "the top")
            raise ProfileError(f"the profile {name!r} is malformed at {where}: {first['msg']}") from None
        except (DataError, ViewError) as error:
            raise ProfileError(f"the profile {name!r} is malformed: {error}") from None
        asked = [*profile.views(), *(profile.adaptive.views() if profile.adaptive else ())]
        if profile.renderer != (current := renderer(asked)):
            raise ProfileError(
                f"the profile {name!r} was fitted with renderer {shown(profile.renderer)}, this looktwice renders "
                f"with {current}; fit again"
            )
        return profile

    def to_frame(self) -> pd.DataFrame:
        """The figures on held-out folds as a frame of pandas, one calibrator a row."""
        return notebook.frame(result.record() for result in self.results)

    def plot_reliability(self) -> Drawing:
        """Confidence against real accuracy on held-out folds."""
        return Drawing(figures.reliability_svg(metrics.reliability(*self.held_out.arrays())))

    def plot_risk_coverage(self, max_error: float | None = None, level: float = 0.95) -> Drawing:
        """Mistakes among accepted answers; `max_error` marks the threshold that guarantees it."""
        threshold = None if max_error is None else self.threshold(max_error, level)
        return Drawing(figures.risk_coverage_svg(metrics.risk_coverage(*self.held_out.arrays()), threshold))

    def plot_curve(self) -> Drawing:
        """Figures against queries a picture: those that should fall above those that should rise."""
        queries, charts = [float(point.queries) for point in self.curve], []
        for names, title, better in (
            ({"brier": "Brier", "ece": "ECE"}, "What is lost", "lower is better"),
            ({"accuracy": "acc", "auroc": "AUROC"}, "What is gained", "higher is better"),
        ):
            lines = []
            for key, name in names.items():
                values = [point.figures[key].value for point in self.curve]
                known = [(x, y) for x, y in zip(queries, values, strict=True) if y is not None]
                lines += [figures.Line(name, *map(np.array, zip(*known, strict=True)))] if known else []
            charts.append(figures.lines_svg(lines, title=title, x_label="queries per picture", y_label=better))
        return Drawing(figures.column_svg(charts, "Metrics against queries per picture"))

    def _title(self) -> str:
        return f"{self.classifier}: on held-out folds of {self.pictures} pictures, panel {self.panel}"

    def _repr_html_(self) -> str:
        return results_html(self._title(), self.results)

    def __repr__(self) -> str:
        return results_text(self._title(), self.results)

    def __str__(self) -> str:
        return repr(self)

    def check_scores(self, scores: Scores) -> None:
        """Refuse to ignore the scores on which the profile rests."""
        if scores == "ignore" and self.evidence == "scores":
            raise ProfileError(
                "this profile rests on the classifier's scores; leave out --scores ignore, or fit again with it: it "
                "costs no query, the answers are in the ledger"
            )

    def check(self, classifier: AnyClassifier) -> None:
        """Refuse a classifier that this profile was not made for, or that is read otherwise since."""
        if lasting(classifier.fingerprint) != lasting(self.fingerprint):
            raise ProfileError(
                f"this profile was fitted on classifier {self.fingerprint}, not on {classifier.fingerprint}; "
                "fit again, or give the classifier it was made for"
            )
        if reading(classifier) != self.reading:
            raise ProfileError(
                "this profile was fitted when something else was read from the classifier's replies (its label or "
                "score path); fit again: it costs no query, the replies are in the ledger"
            )
        renames = names_of(classifier).renames
        if changed := sorted(word for word, _ in self.renames.items() ^ renames.items()):
            then, now = (shown(names.get(changed[0], changed[0])) for names in (self.renames, renames))
            raise ProfileError(
                f"this profile was fitted when {shown(changed[0])!r} was called {then!r}, and the description now "
                f"calls it {now!r}; fit again: it costs no query, the answers are in the ledger"
            )


def _try(calibrator: base.Calibrator, panel: Panel, classes: int) -> None:
    """Believe two made-up pictures, one with scores, so that parameters that do not fit together are found now."""
    views = tuple(map(str, panel))
    plain = Row("", "a", ("a",) * len(views))
    scored = replace(plain, lists=((("a", 0.5),),) * (len(views) + 1))
    votes = Votes.collect([plain, scored], views, (), classes)
    try:
        numbers = np.concatenate([calibrator.confidence(votes), *calibrator.interval(votes)])
        calibrator.distribution(votes), calibrator.predict(votes)
    except FitError as error:
        raise DataError(str(error)) from None
    except (ValueError, IndexError, ArithmeticError) as error:
        raise DataError(f"its calibrator cannot be used ({type(error).__name__}); fit again") from None
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise DataError("its calibrator gives confidences that are no probabilities; fit again")
