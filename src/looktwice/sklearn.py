"""The scikit-learn estimator (extra `sklearn`): a closed classifier with `fit`, `predict` and `predict_proba`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Self, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looktwice.model import (
    AskKeywords,
    AskOptions,
    Calibrator,
    Classifier,
    Classifiers,
    Collected,
    Connected,
    DecisionKeywords,
    DecisionOptions,
    FitError,
    Floats,
    MissingExtra,
    Model,
    Panel,
    Picture,
    PicturesLike,
    Profile,
    TagVerdict,
    Unscored,
    Verdict,
    many,
    one,
)

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError:
    raise MissingExtra("scikit-learn's tools", "sklearn") from None

Options = TypeVar("Options", AskOptions, DecisionOptions)
COVERAGE = 0.9
"""The default coverage of the sets from `predict_set`."""
_TURN = threading.Lock()
"""A connected classifier serves one event loop at a time, so estimators that share one are serialised."""


class EstimatorKeywords(AskKeywords, DecisionKeywords, total=False):
    """The query and decision options as keyword arguments; see `AskOptions` and `DecisionOptions`."""


OPTIONS: dict[str, object] = {
    option.name: option.default
    for kind in (AskOptions, DecisionOptions)
    for option in fields(kind)
    if option.name != "scope"
} | {"ledger": "memory", "canaries": 0, "seed": 0}
"""The estimator parameters that are options, with their defaults."""


def _listing(options: Mapping[str, object], init: Callable[..., None]) -> Signature:
    """The signature with each option as a parameter of its own."""
    *named, _ = signature(init).parameters.values()
    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in options.items()]
    return Signature([*named, *more])


class LookTwice(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A black-box classifier with calibrated confidence.

    `fit` learns confidence, not labels: the classifier itself is unchanged. No query is sent twice as long as the
    ledger exists; by default, all estimators of a process, including clones, share one ledger.

    Parameters:
        classifier: A description such as `onnx:model.onnx`, a TOML file, a function of one picture (or of a `batch`),
            or a connected classifier, which clones share; or a list of these.
        views: The panel; by default the general one, or no views for tags.
        calibrator: A calibrator or its name.
        seed: Seed of the random views.
        ledger: `memory` (kept until the process ends), a path, `postgresql://…`, `off`, or None for the default path,
            or no ledger if the classifier is local.
        budget: The query budget: a total for this ledger and classifier, or `"+500"` for 500 more in each call.
        money: The money budget, in the same form.
        price: The price of one query; by default the one in the classifier's description.
        prices: A table of token prices, for chat models; see `looktwice prices`.
        rate: The maximum number of queries per second; by default the classifier's own limit.
        concurrency: The maximum number of concurrent calls; by default the classifier's own limit.
        canaries: The number of stored answers to query again in each call, to detect a changed classifier; useful with
            a persistent ledger.
        per_day: The maximum number of queries per UTC day.
        money_per_day: The maximum amount of money per UTC day.
        longest_wait: The longest wait in seconds that the classifier may request.
        scores: `use` the classifier's scores and ranked lists where they help on held-out folds, or `ignore` them.
        working_size: The longer side in pixels to which larger pictures are scaled down; by default that of `fit`, or
            what the classifier can use.
        batch: Use a chat vendor's batch interface: answers within a day, at a lower price; needs a ledger on disk.
        label_check: The number of pictures whose labels `fit` compares with `y` before it queries the others; with 0,
            all are queried even if no label is in `y`.
        all: Whether to send all queries about each picture, even if further answers would have little effect.
        max_price: The maximum average price per picture, reached by stopping earlier.
        max_queries: The maximum average number of queries per picture, reached by stopping earlier.
        max_error: The maximum error rate among the answers that `verdicts` accepts, or a mapping by label; with None,
            verdicts have no decision.
        max_miss: By class, the share of its pictures that `verdicts` may accept as another class.
        level: The confidence level of these guarantees.
        accept: Whether `verdicts` accepts by `guarantee` or by `estimate`.
        coverage: The share of prediction sets that should contain the true label; by default, `verdicts` returns no
            sets and `predict_set` uses 0.9.
        sets: The construction of the sets: `aps`, `raps`, `aps-deterministic` or `lac`.
        unfamiliar: The treatment by `verdicts` of pictures unlike those of `fit`: `accept` allows their acceptance,
            `review` leaves them to people, and `refuse` does not query them.
        false_alarms: The share of familiar pictures that may be flagged as unfamiliar.
        on_drift: What happens to verdicts after a drift alarm: `hold` accepts none, `accept` continues as before.
        tags: The tag of each column of `y`, if the classifier returns tags and `y` is an n × tags array of 0 and 1.

    Attributes:
        classes_: The sorted labels in `y`, with its type; or the tags, in the order of the columns.
        profile_: The fitted profile.

    >>> import numpy as np
    >>> def classify(image): return int(image.mean() > 128)
    >>> X = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    >>> y = np.array([classify(image) for image in X])
    >>> model = LookTwice(classify, views="gaussian:0.1*4").fit(X, y)
    >>> model.predict_proba(X).shape, model.predict(X).dtype == y.dtype
    ((60, 2), True)
    """

    def __init__(
        self,
        classifier: Classifiers | None = None,
        views: Panel | str | None = None,
        calibrator: Calibrator | str = "jury",
        tags: Sequence[str] | None = None,
        **options: Unpack[EstimatorKeywords],
    ) -> None:
        if unknown := options.keys() - OPTIONS.keys():
            raise TypeError(f"LookTwice has no parameter {min(unknown)!r}; its parameters are in its docstring")
        self.classifier, self.views, self.calibrator, self.tags = classifier, views, calibrator, tags
        self.__dict__.update(OPTIONS | options)

    __init__.__signature__ = _listing(OPTIONS, __init__)  # type: ignore[attr-defined]  # scikit-learn reads it

    def fit(self, X: PicturesLike, y: ArrayLike) -> Self:
        """Learn from pictures and their true labels.

        `X` is an array of pictures (uint8, n × height × width [× RGB]), or a sequence of arrays, paths, bytes or Pillow
        images. If a picture cannot be scored, the error names it; calling again only sends the missing queries.
        """
        tags = np.asarray(y) if np.ndim(y) == 2 else None
        truths = column_or_1d(y, warn=True) if tags is None else tags
        check_classification_targets(truths)
        with self._opened(None, self.seed) as model:
            self.profile_ = model.fit(
                _pictures(X),
                _texts(truths) if tags is None else self._named(tags),
                views=self.views,
                calibrator=self.calibrator,
                on_collected=_check_complete,
            ).profile
        self.classes_ = np.unique(truths) if tags is None else np.array(self._tag_names(tags.shape[1]))
        return self

    def _tag_names(self, columns: int) -> list[str]:
        """The tag of each column of `y`."""
        if self.tags is None or len(self.tags) != columns:
            given = "none are" if self.tags is None else f"{len(self.tags)} are"
            raise FitError(
                f"y has {columns} columns, but {given} named; give tags=, a sequence with the tag of each column",
                code="labels-unmatched",
            )
        return list(self.tags)

    def _named(self, y: NDArray[np.generic]) -> list[list[str]]:
        """The tags of each picture, from a column of 0 and 1 for each tag."""
        names = self._tag_names(y.shape[1])
        return [[name for name, true in zip(names, row, strict=True) if true] for row in y]

    def predict(self, X: PicturesLike) -> NDArray[np.generic]:
        """(n,): the label of each verdict, or the most probable one in `classes_`.

        With tags, the shape is (n, len(classes_)), with 1 where a tag's probability is at least 0.5, as in
        scikit-learn's multi-label output.
        """
        if self._of_tags():
            return (self.predict_proba(X) >= 0.5).astype(np.int64)
        verdicts = self._complete(X, DecisionOptions())
        labels: NDArray[np.generic] = self.classes_[self._places(verdicts)]
        return labels

    def predict_proba(self, X: PicturesLike) -> Floats:
        """(n, len(classes_)): the probability of each label, given that the true label is in `classes_`; with tags, the
        probability of each tag, 0 for a tag that applied to no picture of `fit`."""
        if self._of_tags():
            verdicts = cast("list[TagVerdict]", self._complete(X, DecisionOptions()))
            shares = [{tag.name: tag.probability for tag in verdict.tags} for verdict in verdicts]
            return np.array([[share.get(name, 0.0) for name in self.classes_] for share in shares], np.float64)
        return self._probabilities(self._complete(X, DecisionOptions()))

    def predict_set(self, X: PicturesLike, coverage: float | None = None) -> NDArray[np.bool_]:
        """(n, len(classes_)): whether each label is in the prediction set."""
        coverage = coverage or self.coverage or COVERAGE
        verdicts = self._complete(X, DecisionOptions(coverage=coverage, sets=self.sets))
        members = np.zeros((len(verdicts), len(self.classes_)), bool)
        labels = _texts(self.classes_)
        for row, verdict in enumerate(verdicts):
            listed, inside = {option.label for option in verdict.distribution}, verdict.prediction_set or ()
            members[row] = [label in inside or (None in inside and label not in listed) for label in labels]
        members[np.arange(len(verdicts)), self._places(verdicts)] = True
        return members

    def verdicts(self, X: PicturesLike) -> list[Verdict | Unscored]:
        """The verdict on each picture, as from `looktwice look`, or why there is none."""
        return self._verdicts(X, self._options(DecisionOptions))

    def familiarity(self, X: PicturesLike) -> Floats:
        """(n,): the familiarity of each picture, a p-value in (0, 1]; sends no query.

        At most 1 % of new familiar pictures have a familiarity of 0.01 or less. NaN if the profile does not support
        this.
        """
        check_is_fitted(self, "profile_")
        with self._opened(self.profile_) as model:
            return model.familiarity(_pictures(X))

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON; `looktwice.Model.load` reads it."""
        check_is_fitted(self, "profile_")
        with self._opened(self.profile_) as model:
            model.save(path)

    def _verdicts(self, X: PicturesLike, options: DecisionOptions) -> list[Verdict | Unscored]:
        check_is_fitted(self, "profile_")
        with self._opened(self.profile_) as model:
            return list(model.score(_pictures(X), options))

    def _complete(self, X: PicturesLike, options: DecisionOptions) -> list[Verdict]:
        """The verdict on every picture; raises an error for the first without one. Answers are in the ledger."""
        outcomes = self._verdicts(X, options)
        if failed := next((verdict for verdict in outcomes if isinstance(verdict, Unscored)), None):
            raise failed.error()
        return [verdict for verdict in outcomes if not isinstance(verdict, Unscored)]

    def _of_tags(self) -> bool:
        check_is_fitted(self, "profile_")
        return bool(self.profile_.kind == "tags")

    def _probabilities(self, verdicts: Sequence[Verdict]) -> Floats:
        rows = np.zeros((len(verdicts), len(self.classes_)))
        for row, verdict in enumerate(verdicts):
            listed = {option.label: option.probability for option in verdict.distribution}
            others = max(self.profile_.classes - len(listed), 0)
            unlisted = max(0.0, 1.0 - sum(listed.values())) / others if others else 0.0
            rows[row] = [listed.get(label, unlisted) for label in _texts(self.classes_)]
        total = rows.sum(axis=1, keepdims=True)
        return np.where(total > 0, rows / np.where(total > 0, total, 1.0), 1.0 / len(self.classes_))

    def _places(self, verdicts: Sequence[Verdict]) -> NDArray[np.intp]:
        """(n,): the predicted class of each picture."""
        believed = np.array([[verdict.label == label for label in _texts(self.classes_)] for verdict in verdicts])
        believed = believed.reshape(len(verdicts), len(self.classes_))
        return np.where(believed.any(axis=1), believed.argmax(axis=1), self._probabilities(verdicts).argmax(axis=1))

    def _options(self, kind: type[Options]) -> Options:
        """The parameters that belong to this options class."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind) if hasattr(self, field.name)})

    @contextmanager
    def _opened(self, profile: Profile | None, seed: int | None = None) -> Iterator[Model]:
        if self.classifier is None:
            raise FitError("LookTwice needs a classifier: a description, a function or a connected classifier")
        given = self.classifier if isinstance(self.classifier, list | tuple) else [self.classifier]
        turn = _TURN if any(isinstance(one, Classifier | Connected) for one in given) else nullcontext()
        with turn, Model(self.classifier, profile, options=self._options(AskOptions), seed=seed) as model:
            yield model

    def __sklearn_clone__(self) -> Self:
        """A clone shares the classifier, since a connection cannot be copied, and the answers of a function are stored
        only for that function."""
        bare = copy(self)
        bare.classifier = None
        twin: Self = super(LookTwice, bare).__sklearn_clone__()
        return twin.set_params(classifier=self.classifier)

    def __sklearn_tags__(self):  # type: ignore[no-untyped-def]
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.tags is not None
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def _pictures(X: PicturesLike) -> list[Picture]:
    """One picture per item; those in memory are named by their index."""
    if isinstance(X, str | Path):
        return list(many(X))
    return [one(item, f"picture {place}") for place, item in enumerate(X)]


def _texts(labels: NDArray[np.generic]) -> list[str]:
    """Convert labels to the classifier's strings; integral floats, which scikit-learn allows, become integers."""
    return [str(label) for label in (labels.astype(np.int64) if labels.dtype.kind == "f" else labels).tolist()]


def _check_complete(collected: Collected) -> None:
    """Raise an error for the first picture that was not scored. Answers are in the ledger."""
    if collected.unscored:
        raise collected.unscored[0].error()
