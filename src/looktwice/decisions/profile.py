"""Profiles: the result of `fit` as versioned, shareable JSON without secrets."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from looktwice import files
from looktwice.calibration import (
    ONE_QUERY,
    AdaptiveJury,
    Calibrator,
    Evidence,
    Floats,
    Row,
    TagJury,
    TagVotes,
    Votes,
    calibrators,
    metrics,
    panels,
)
from looktwice.classifiers import AnswerKind, AnyClassifier, Naming, answer_kind, lasting, reading
from looktwice.decisions.monitoring import AnswerKinds, Familiarity
from looktwice.decisions.results import Count, FrontierPoint, HeldOut, Part, Result, results_html, results_text
from looktwice.decisions.sequence import STOPPING, Expected
from looktwice.engine import Scores
from looktwice.errors import DataError, FitError, ProfileError, ViewError, shown
from looktwice.plots import Drawing, figures, notebook
from looktwice.views import Panel, classifier_of, renderer

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
DIGEST_DIGITS = 12
"""The number of digest digits stored, enough to distinguish a million pictures."""


class Adaptive(Part):
    """Early stopping: when to stop, and the confidence at each number of queries."""

    panel: str
    """The views in the order of asking; the profile's panel is a prefix of it."""
    first: Count
    """The number of views that are always asked, in one round."""
    enough: tuple[float, ...]
    """The confidence at which asking stops after 0, 1 … views."""
    calibrator: dict[str, object]
    held_out: HeldOut
    agreement_bins: tuple[Count, ...] = ()
    """The number of labelled pictures in each bin, by the first round and the number of views asked."""
    answers: AnswerKinds | None = None
    """The distribution of first-round answers about the labelled pictures."""
    expected: Expected | None = None
    """The expected results on new pictures; None if unknown."""
    queries: float = Field(default=0.0, ge=0)
    price: float = Field(default=0.0, ge=0)
    """The mean price per picture; `queries` is the mean number of queries."""

    def views(self) -> Panel:
        """The panel to ask from."""
        return Panel.parse(self.panel)

    def restored_calibrator(self) -> AdaptiveJury:
        """The fitted juries, one for each number of views."""
        calibrator = calibrators.restore(self.calibrator)
        views = len(self.views())
        if not isinstance(calibrator, AdaptiveJury) or {len(calibrator.juries) - 1, len(self.enough)} != {views}:
            raise DataError("its early-stopping parameters are inconsistent; fit again", code="calibrator-malformed")
        if self.first > views:
            raise DataError(
                f"it always asks {self.first} views, but its panel has {views}; fit again", code="calibrator-malformed"
            )
        return calibrator


class ProfileClassifier(Part):
    """One of the classifiers of a profile."""

    name: str
    description: str
    """The description of the classifier; credentials are referred to by their environment variables."""
    fingerprint: str
    """The digest of what determines its replies."""
    reading: str = ""
    """The digest of what is read from the replies; empty if part of the fingerprint."""
    renames: dict[str, str] = Field(default_factory=dict)
    """How its description renames labels; `#3` is position 3."""
    working_size: int | None = Field(default=None, ge=1)
    """The longer side in pixels to which larger pictures are scaled, if selected; see `AskOptions`."""
    price: float = Field(default=1.0, ge=0)
    """The price of a query; 1 if unknown."""


class Profile(Part):
    """Everything needed to reproduce a verdict, with held-out results."""

    schema_version: Literal[1] = 1
    kind: AnswerKind = "label"
    """The kind of answer. For tags, the vocabulary holds the tags, the calibrator is a `TagJury`, and `held_out` has
    the probability of each tag, and whether it is true, for each picture."""
    looktwice: str = Field(default_factory=lambda: version("looktwice"))
    classifier: str
    """The description of the classifier; credentials are referred to by their environment variables."""
    fingerprint: str
    """The digest of what determines the classifier's replies."""
    reading: str = ""
    """The digest of what is read from the replies; empty if part of the fingerprint."""
    renames: dict[str, str] = Field(default_factory=dict)
    """How the description renames the classifier's labels; `#3` is position 3."""
    name: str = ""
    """The classifier's name, if there are several."""
    others: tuple[ProfileClassifier, ...] = ()
    """Further classifiers, in the order of asking; `gpt@mirror` in the panel is a view of gpt."""
    label_maps: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Renamed labels by classifier, given outside its description."""
    vocabulary: tuple[str, ...]
    classes: int = Field(ge=2)
    unsayable: tuple[tuple[Count, ...], ...] = ()
    """The codes that the classifiers of the base and of each view cannot return, if classifiers differ."""
    panel: str
    seed: int
    working_size: int | None = Field(default=None, ge=1)
    """The longer side in pixels to which larger pictures are scaled, if selected; see `AskOptions`."""
    renderer: str
    calibrator: dict[str, object]
    pictures: int
    """The number of labelled pictures that the profile was fitted on."""
    fitted_on: tuple[str, ...] = ()
    """The digest prefixes of those pictures; empty if unknown."""
    results: tuple[Result, ...]
    held_out: HeldOut
    curve: tuple[Result, ...] = ()
    """Results with the first 0, 1 … views of the panel, if the calibrator is a jury."""
    adaptive: Adaptive | None = None
    cheaper: tuple[Adaptive, ...] = ()
    """Earlier stopping in the same sequence, for limits of queries or price; the cheapest first."""
    agreement_bins: tuple[Count, ...] = ()
    """The number of labelled pictures with 0, 1 … agreeing views: the reference for drift."""
    one_query: dict[str, object] | None = None
    """The calibrator for a single query, if the classifier returns scores."""
    scores: str = ""
    """Whether the classifier's scores are used and why, as a sentence; empty if it returns none."""
    frontier: tuple[FrontierPoint, ...] = ()
    """The frontier of loss against price, cheapest first, if several classifiers were tried."""
    familiarity: Familiarity | None = None
    """The model of familiar pixels; None if there is none."""
    answers: AnswerKinds | None = None
    """The model of familiar answers; None if there is none."""

    def views(self) -> Panel:
        """The panel of views."""
        return replace(Panel.parse(self.panel), first=self.name)

    def within(self, max_price: float | None = None, max_queries: float | None = None) -> Adaptive | None:
        """The best early stopping within these limits on the mean per picture; None for the whole panel."""
        if max_price is None and max_queries is None:
            return self.adaptive
        price, queries = (np.inf if limit is None else (1.0 + 1e-9) * limit for limit in (max_price, max_queries))
        known = (*self.cheaper, *([self.adaptive] if self.adaptive else ()))
        if not known and not self.panel and queries >= 1 and max_price is None:
            return None
        allowed = [stopping for stopping in known if stopping.price <= price and stopping.queries <= queries]
        if not allowed:
            least = f"; the cheapest rule takes {known[0].queries:.3g} queries at {known[0].price:.3g}" if known else ""
            limits = [("--max-price", max_price), ("--max-queries", max_queries)]
            wanted = [word for name, limit in limits if limit is not None for word in (name, f"{limit:g}")]
            described = [word for _, text in self.described() for word in ("-c", text)]
            raise ProfileError(
                f"this profile has no stopping rule within {' '.join(wanted)}{least}; fit again with that limit "
                f"(stored answers cost nothing): {shlex.join(['looktwice', 'fit', 'LABELLED', *described, *wanted])}",
                code="profile-incomplete",
            )
        return allowed[-1]

    def described(self) -> tuple[tuple[str, str], ...]:
        """The names and descriptions of all its classifiers; a single classifier may have no name."""
        return tuple((known.name, known.description) for known in self.asked)

    @property
    def asked(self) -> tuple[ProfileClassifier, ...]:
        """All its classifiers, in the order of asking."""
        first = ProfileClassifier(
            name=self.name,
            description=self.classifier,
            fingerprint=self.fingerprint,
            reading=self.reading,
            renames=self.renames,
        )
        return (first, *self.others)

    def restored_calibrator(self) -> Calibrator:
        """The fitted calibrator."""
        return calibrators.restore(self.calibrator)

    @cached_property
    def digest(self) -> str:
        """An identifier of 12 digits, derived from the content."""
        text = json.dumps(self.model_dump(exclude={"label_maps"}), default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]

    def tag_jury(self) -> TagJury:
        """The fitted calibrator of a tag profile."""
        values = {name: value for name, value in self.calibrator.items() if name != "family"}
        try:
            return TypeAdapter(TagJury).validate_python(values)
        except ValidationError as error:
            raise DataError(
                f"its calibrator cannot be read: {error.errors()[0]['msg']}", code="calibrator-malformed"
            ) from None

    @property
    def evidence(self) -> Evidence:
        """The evidence that its calibrator uses: labels alone, or also scores."""
        blocks = dict(self.calibrator.get("blocks") or ())  # type: ignore[call-overload]
        return "scores" if self.calibrator.get("scored") or "score" in blocks else "labels"

    def count_fitted(self, digests: Iterable[str]) -> int:
        """The number of these pictures that the profile was fitted on."""
        known = set(self.fitted_on)
        return sum(digest[:DIGEST_DIGITS] in known for digest in digests)

    def advice(self, results: Sequence[Result] = ()) -> list[str]:
        """Remarks on early stopping and on the classifier's own score, one sentence each.

        `results` are results on other pictures; by default, the results on held-out folds are used.
        """
        sentences = [f"Scores: {self.scores}."] if self.scores else []
        if self.adaptive and self.adaptive.expected and not results:
            sentences.append(self.adaptive.expected.sentence())
        briers = {result.calibrator: result.figures["brier"].value for result in results or self.results}
        single, views = briers.get(ONE_QUERY), len(self.views())
        names = (str(self.calibrator.get("family")), STOPPING, AdaptiveJury.name)
        whole = next((briers[name] for name in names if name in briers), None)
        if single and whole and self.evidence == "scores":
            suffices = single <= panels.SUFFICES * whole
            advice = "One query with its score suffices" if suffices else "Further queries add to the score"
            sentences.append(f"{advice}: Brier score {single:.3f} with one query, {whole:.3f} with up to {1 + views}.")
        return sentences

    def threshold(self, max_error: float, level: float = 0.95) -> float | None:
        """The lowest confidence threshold at which accepted answers have an error rate of at most `max_error`.

        The guarantee holds with confidence `level`; returns None if there are too few labelled pictures, or too many
        errors.
        """
        return self.held_out.threshold(max_error, level)

    def accuracy(self) -> float:
        """The accuracy of the base answer on the labelled pictures: the confidence of the constant baseline."""
        known = self.results[0].figures.get("accuracy") if self.results else None
        return float((known and known.value) or 0.0)

    def save(self, path: Path) -> None:
        """Save as JSON."""
        files.write(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Load a profile from a file; raises a ProfileError if it is invalid."""
        try:
            values = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise ProfileError(
                f"there is no profile {str(path)!r}; make one with: looktwice fit", code="profile-missing"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"{str(path)!r} is not a profile: {error}; make one with: looktwice fit") from None
        except OSError as error:
            raise ProfileError(f"the profile {str(path)!r} cannot be read: {error}") from None
        return cls.of(values, str(path))

    @classmethod
    def of(cls, values: object, name: str) -> Profile:
        """Build a profile from JSON values; every part is validated now."""
        version = values.get("schema_version") if isinstance(values, dict) else None
        if isinstance(version, int) and version > SCHEMA:
            raise ProfileError(
                f"the profile {name!r} has schema {version}, newer than {SCHEMA}: upgrade looktwice",
                code="profile-newer",
            )
        try:
            profile = cls.model_validate(values)
            if profile.kind == "tags":
                _try_tags(profile)
            else:
                _try(profile.restored_calibrator(), profile.views(), profile.classes)
            if profile.one_query:
                _try(calibrators.restore(profile.one_query), Panel(()), profile.classes)
            for stopping in (*profile.cheaper, *([profile.adaptive] if profile.adaptive else ())):
                _try(stopping.restored_calibrator(), stopping.views(), profile.classes)
        except ValidationError as error:
            first = error.errors()[0]
            where = shown(".".join(map(str, first["loc"])) or "the top")
            raise ProfileError(f"the profile {name!r} is malformed at {where}: {first['msg']}") from None
        except (DataError, ViewError) as error:
            if error.code in ("calibrator-unknown", "view-unknown"):
                unknown = str(error).partition(";")[0]
                raise ProfileError(
                    f"the profile {name!r} cannot be used yet: {unknown}; import the module that registers "
                    "it, or install its package",
                    code=error.code,
                ) from None
            raise ProfileError(f"the profile {name!r} is malformed: {error}") from None
        asked = [*profile.views(), *(profile.adaptive.views() if profile.adaptive else ())]
        if profile.renderer != (current := renderer(asked)):
            raise ProfileError(
                f"the profile {name!r} was fitted with renderer {shown(profile.renderer)}, but this looktwice "
                f"renders with {current}; fit again",
                code="profile-mismatch",
            )
        return profile

    def to_frame(self) -> pd.DataFrame:
        """The held-out results as a pandas data frame, one row per calibrator."""
        return notebook.frame(result.record() for result in self.results)

    def plot_reliability(self) -> Drawing:
        """Confidence against accuracy on held-out folds; for tags, probability against how often they are true."""
        if self.kind == "tags":
            from looktwice.decisions.tagging import reliability_svg

            return Drawing(reliability_svg(*self.held_out.arrays()))
        return Drawing(figures.reliability_svg(metrics.reliability(*self.held_out.arrays())))

    def plot_risk_coverage(self, max_error: float | None = None, level: float = 0.95) -> Drawing:
        """Errors among accepted answers; `max_error` marks the threshold that guarantees it."""
        threshold = None if max_error is None else self.threshold(max_error, level)
        return Drawing(figures.risk_coverage_svg(metrics.risk_coverage(*self.held_out.arrays()), threshold))

    def plot_curve(self) -> Drawing:
        """Metrics against queries per picture, with those to minimise above those to maximise."""
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
        asked = ", ".join(text for _, text in self.described())
        return f"{asked}: on held-out folds of {self.pictures} pictures, panel {self.panel}"

    def _repr_html_(self) -> str:
        return results_html(self._title(), self.results)

    def __repr__(self) -> str:
        return results_text(self._title(), self.results)

    __str__ = __repr__

    def check_scores(self, scores: Scores) -> None:
        """Raise an error if scores that the profile uses are to be ignored."""
        if scores == "ignore" and self.evidence == "scores":
            raise ProfileError(
                "this profile uses the classifier's scores; leave out --scores ignore, or fit again with it, which "
                "costs no query because the answers are in the ledger",
                code="profile-mismatch",
            )

    def check(self, classifiers: Mapping[str, Asks]) -> None:
        """Raise an error if classifiers, by name, differ from those of the profile, or their replies are read
        differently."""
        for known in self.asked:
            name = known.name or next(iter(classifiers))
            if name not in classifiers:
                raise ProfileError(
                    f"this profile uses the classifier {name!r}, but the classifiers given are "
                    f"{', '.join(map(repr, classifiers))}; connect a classifier under this name",
                    code="profile-mismatch",
                )
            classifier, renames = classifiers[name].classifier, classifiers[name].names.renames
            if answer_kind(classifier) != self.kind:
                raise ProfileError(
                    f"this profile was fitted on answers of kind {self.kind!r}, but the classifier is described "
                    f'with answer = "{answer_kind(classifier)}"; fit again: stored answers cost nothing',
                    code="profile-mismatch",
                )
            if lasting(classifier.fingerprint) != lasting(known.fingerprint):
                raise ProfileError(
                    f"this profile was fitted on classifier {known.fingerprint}, not on {classifier.fingerprint}; "
                    "fit again, or use the classifier that it was fitted on",
                    code="profile-mismatch",
                )
            if reading(classifier) != known.reading:
                raise ProfileError(
                    "this profile was fitted when a different label or score path was used to read the classifier's "
                    "replies; fit again, which costs no query because the replies are in the ledger",
                    code="profile-mismatch",
                )
            if changed := sorted(word for word, _ in known.renames.items() ^ renames.items()):
                before, after = (shown(names.get(changed[0], changed[0])) for names in (known.renames, renames))
                raise ProfileError(
                    f"this profile was fitted when {shown(changed[0])!r} was called {before!r}, but the description "
                    f"now calls it {after!r}; fit again, which costs no query because the replies are in the ledger",
                    code="profile-mismatch",
                )


class Asks(Protocol):
    """The interface of a connected classifier with its renamed labels."""

    @property
    def classifier(self) -> AnyClassifier: ...
    @property
    def names(self) -> Naming: ...


def _try_tags(profile: Profile) -> None:
    """Validate the tag calibrator."""
    jury, views = profile.tag_jury(), tuple(map(str, profile.views()))
    votes = Votes.collect([Row("", "", ("",) * len(views))], views)

    def probabilities() -> list[Floats]:
        about, held_out = tag_votes(votes, profile), profile.held_out.arrays()[0]
        return [jury.probability(about), *jury.interval(about), held_out.reshape(-1, len(profile.vocabulary))]

    _check_probabilities(probabilities)
    if jury.tags != profile.vocabulary:
        raise DataError("its tag calibrator is inconsistent; fit again", code="calibrator-malformed")


def tag_votes(votes: Votes, profile: Profile) -> TagVotes:
    """Convert votes to the tags of a profile."""
    names = [profile.name, *(classifier_of(view) or profile.name for view in profile.views())]
    order = list(dict.fromkeys(names))
    return TagVotes.from_votes(votes, profile.vocabulary, [order.index(name) for name in names])


def _try(calibrator: Calibrator, panel: Panel, classes: int) -> None:
    """Run the calibrator on two synthetic pictures, one with scores, to detect inconsistent parameters."""
    views = tuple(map(str, panel))
    plain = Row("", "a", ("a",) * len(views))
    scored = replace(plain, lists=((("a", 0.5),),) * (len(views) + 1))
    votes = Votes.collect([plain, scored], views, (), classes)

    def probabilities() -> list[Floats]:
        calibrator.predict(votes)
        return [calibrator.confidence(votes), *calibrator.interval(votes), calibrator.distribution(votes).named]

    _check_probabilities(probabilities)


def _check_probabilities(compute: Callable[[], list[Floats]]) -> None:
    """Raise an error if probabilities cannot be computed, or are not in [0, 1]."""
    try:
        numbers = np.concatenate([table.ravel() for table in compute()])
    except FitError as error:
        raise DataError(str(error), code="calibrator-malformed") from None
    except (ValueError, IndexError, ArithmeticError) as error:
        raise DataError(
            f"its calibrator cannot be used ({type(error).__name__}); fit again", code="calibrator-malformed"
        ) from None
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise DataError(
            "its calibrator returns confidences that are not probabilities; fit again", code="calibrator-malformed"
        )
