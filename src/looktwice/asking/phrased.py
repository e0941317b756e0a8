"""Views of the question: which a classifier can be asked, and a picture prepared with the words that one asks for."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from looktwice.classifiers.base import AnyClassifier, Pixels, Prompted
from looktwice.errors import PermanentError, ViewError
from looktwice.phrasing import AS_DESCRIBED, Phrasing
from looktwice.views import View


def check_words(classifier: AnyClassifier, views: Iterable[View]) -> None:
    """Refuse views that change the words of a question where the classifier cannot be asked so; nothing is asked."""
    for view in views:
        phrasing = view.phrased(AS_DESCRIBED, "")
        if phrasing is AS_DESCRIBED:
            continue
        if not isinstance(classifier, Prompted):
            raise ViewError(f"the view {view} changes the words of a question, and this classifier takes no prompt")
        classifier.words(phrasing)


def askable(classifier: AnyClassifier, views: Iterable[View]) -> tuple[View, ...]:
    """Those of the views that a classifier which takes a prompt can be asked; none for another classifier."""
    found: list[View] = []
    for view in views if isinstance(classifier, Prompted) else ():
        with suppress(PermanentError):
            check_words(classifier, [view])
            found.append(view)
    return tuple(found)


def prepare(classifier: AnyClassifier, pixels: Pixels, phrasing: Phrasing) -> object:
    """One picture as the classifier takes it, with the question put so."""
    if phrasing is not AS_DESCRIBED and isinstance(classifier, Prompted):
        return classifier.prepare_as(pixels, phrasing)
    return classifier.prepare(pixels)
