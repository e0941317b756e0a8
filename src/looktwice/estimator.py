"""The scikit-learn door (extra `sklearn`): a closed classifier with `fit`, `predict` and `predict_proba`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looktwice import look
from looktwice.asking import Asker
from looktwice.beliefs import FAMILIES, Belief
from looktwice.classifiers import AnyClassifier, connect
from looktwice.classifiers.python import PythonClassifier
from looktwice.errors import DataError, FitError, MissingExtra
from looktwice.images import Image
from looktwice.look import Polled
from looktwice.pictures import Picture
from looktwice.views import GENERAL, Panel
from looktwice.votes import Floats

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ImportError:
    raise MissingExtra("scikit-learn's tools", "sklearn") from None

T = TypeVar("T")
Images = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]
"""One array of pictures, or a sequence of pictures of any sizes."""


class LookTwice(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A closed classifier that says how sure it is.

    `classifier` is a function of one picture (or of a `batch`), a description such as `onnx:model.onnx`, or a
    connected classifier; `views` is a panel's text; `belief` the name of a belief, or a belief.
    `fit` teaches confidence, not labels: the classifier itself stays as it is.
    """

    def __init__(
        self,
        classifier: Callable[..., object] | AnyClassifier | str | None = None,
        views: str | None = None,
        belief: str | Belief = "jury",
        seed: int = 0,
    ) -> None:
        self.classifier = classifier
        self.views = views
        self.belief = belief
        self.seed = seed

    def fit(self, X: Images, y: ArrayLike) -> Self:
        """Learn from pictures (uint8, height × width [× RGB]) and their true labels."""
        truths = [str(label) for label in np.asarray(y)]
        if len(truths) != len(X):
            raise DataError(f"{len(X)} pictures and {len(truths)} labels were given; give one label for each picture")
        labelled = _wait(self._poll(_pictures(X, truths), ())).labelled()
        self.belief_ = self._chosen().fit(labelled)
        unsaid = sorted(set(truths) - set(labelled.vocabulary))
        self.vocabulary_ = (*labelled.vocabulary, *unsaid)
        self.classes_ = np.array(sorted(self.vocabulary_))
        return self

    def predict(self, X: Images) -> NDArray[np.str_]:
        """(n,): the label that is believed."""
        votes = self._ask(X).votes
        return np.array(votes.vocabulary)[self.belief_.predict(votes)]

    def predict_proba(self, X: Images) -> Floats:
        """(n, len(classes_)): the probability of each label of `classes_`."""
        votes = self._ask(X).votes
        order = votes.codes(self.classes_)
        return self.belief_.distribution(votes).dense(len(votes.vocabulary))[:, order]

    def _ask(self, X: Images) -> Polled:
        if not hasattr(self, "belief_"):
            raise FitError("this LookTwice has not been fitted; call fit(images, labels) first")
        return _wait(self._poll(_pictures(X, [None] * len(X)), self.vocabulary_))

    async def _poll(self, pictures: Sequence[Picture], vocabulary: Sequence[str]) -> Polled:
        panel = Panel.parse(self.views) if self.views else GENERAL
        asker = Asker(self._connected(), seed=self.seed)
        polled = await look.collect(asker, pictures, panel, vocabulary)
        if polled.unscored:
            raise DataError(f"{polled.unscored[0].name}: {polled.unscored[0].message}")
        return polled

    def _connected(self) -> AnyClassifier:
        if self.classifier is None:
            raise FitError("LookTwice needs a classifier: a function, a description or a connected classifier")
        if isinstance(self.classifier, str):
            return connect(self.classifier)
        return PythonClassifier(self.classifier) if callable(self.classifier) else self.classifier

    def _chosen(self) -> Belief:
        if not isinstance(self.belief, str):
            return self.belief
        if self.belief not in FAMILIES:
            raise FitError(f"no belief is called {self.belief!r}; there are {', '.join(FAMILIES)}")
        return FAMILIES[self.belief]()


@dataclass(frozen=True, eq=False)
class _Arrays:
    """Pictures in memory; a name is the place."""

    arrays: Images

    def image(self, name: str) -> Image:
        return Image.of(np.asarray(self.arrays[int(name)]))


def _pictures(arrays: Images, truths: Sequence[str | None]) -> list[Picture]:
    source = _Arrays(arrays)
    return [Picture(str(i), truth, source) for i, truth in enumerate(truths)]


def _wait(work: Coroutine[object, object, T]) -> T:
    """The result of async work, whether or not a loop runs in this thread (as it does in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
