"""The scikit-learn door, used with scikit-learn's own tools."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from test_profile import brightest

import looktwice as lt
from looktwice.errors import DataError, FitError


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a light in one corner, faint in some: the label is the corner."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 100, (count, 16, 16, 3), np.uint8)
    labels = rng.choice(["nw", "ne", "sw", "se"], count)
    for image, label, light in zip(images, labels, rng.integers(0, 12, count), strict=True):
        rows = slice(0, 8) if label[0] == "n" else slice(8, 16)
        columns = slice(0, 8) if label[1] == "w" else slice(8, 16)
        image[rows, columns] += np.uint8(light)
    return images, labels


@pytest.mark.parametrize("belief", ["gaussian", "probit", "jury"])
def test_fit_predict_and_probabilities(belief: str) -> None:
    images, labels = pictures(200)
    model = lt.LookTwice(brightest, views="gaussian:0.1*8", belief=belief).fit(images, labels)
    chances = model.predict_proba(images)
    assert chances.shape == (200, 4)
    assert chances.sum(axis=1) == pytest.approx(np.ones(200))
    assert list(model.classes_) == ["ne", "nw", "se", "sw"]
    assert model.score(images, labels) > 0.6
    # Knowing which answers to doubt beats full trust and a guess alike.
    assert log_loss(labels, chances, labels=model.classes_) < log_loss(
        labels, np.full((200, 4), 0.25), labels=model.classes_
    )


def test_it_can_be_cloned_and_cross_validated() -> None:
    images, labels = pictures(120)
    model = lt.LookTwice(brightest, views="gaussian:0.1*4", belief="probit", seed=3)
    assert clone(model).get_params() == model.get_params()
    assert len(cross_val_score(model, images, labels, cv=3)) == 3
    search = GridSearchCV(model, {"belief": ["probit", "constant"]}, cv=2, scoring="neg_log_loss").fit(images, labels)
    assert search.best_params_["belief"] in ("probit", "constant")
    assert model.set_params(seed=5).seed == 5


def test_labels_that_the_classifier_never_says_get_a_probability_too() -> None:
    images, labels = pictures(60)
    labels = labels.astype("U9")
    labels[:5] = "elsewhere"
    model = lt.LookTwice(brightest, views="rotation:10*3").fit(images, labels)
    assert "elsewhere" in model.classes_
    assert model.predict_proba(images)[:, list(model.classes_).index("elsewhere")].min() > 0


def test_labels_of_which_the_classifier_gives_none_are_refused() -> None:
    images, labels = pictures(40)
    numbers = np.unique(labels, return_inverse=True)[1]
    with pytest.raises(DataError, match=r"none of the truths \('0', '1', '2', …\) is among .*\('ne', 'nw', 'se', …\)"):
        lt.LookTwice(brightest, views="rotation:10*3").fit(images, numbers)
    with pytest.raises(DataError, match="40 pictures and 39 labels"):
        lt.LookTwice(brightest, views="rotation:10*3").fit(images, labels[:-1])


def test_async_and_batch_functions_are_classifiers_too() -> None:
    images, labels = pictures(40)

    async def one(image: np.ndarray) -> str:
        return brightest(image)

    def many(batch: list[np.ndarray]) -> list[str]:
        return [brightest(image) for image in batch]

    expected = lt.LookTwice(brightest, views="rotation:10*3").fit(images, labels).predict_proba(images)
    for function in (one, many):
        model = lt.LookTwice(function, views="rotation:10*3").fit(images, labels)
        assert model.predict_proba(images) == pytest.approx(expected)


async def test_it_works_where_a_loop_is_running_as_in_a_notebook() -> None:
    images, labels = pictures(30)
    assert len(lt.LookTwice(brightest, views="rotation:10*3").fit(images, labels).predict(images)) == 30


def test_what_is_missing_is_said() -> None:
    images, labels = pictures(30)
    with pytest.raises(FitError, match="needs a classifier"):
        lt.LookTwice().fit(images, labels)
    with pytest.raises(FitError, match="has not been fitted"):
        lt.LookTwice(brightest).predict(images)
    with pytest.raises(FitError, match="no belief is called"):
        lt.LookTwice(brightest, views="rotation:10*3", belief="hope").fit(images, labels)
