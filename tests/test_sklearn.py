"""The scikit-learn interface, used with scikit-learn's own tools and those that build on it."""

import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib import parallel_config
from mapie.classification import SplitConformalClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data
from support.errors import coded
from support.faults import LABELS, fault_server
from support.waiting import until
from support.workshop import brightest

import looktwice as lt
from looktwice.errors import BudgetError, DataError, FitError, ImageError, ProfileError

PANEL = "mirror zoom:1.15 gaussian:0.2*4"
"""Six views: seven questions a picture."""


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


def noise(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of noise, and labels as the fault server gives them."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 16, 16, 3), np.uint8), rng.choice(LABELS, count)


@pytest.mark.slow
def test_probabilities_and_sets_do_not_depend_on_new_labels_of_other_pictures() -> None:
    def light(image: np.ndarray) -> str:
        level = float(image.mean()) + 0.3 * (float(image[0, 0, 0]) - 128)
        return "odd" if image[-1, -1].tolist() == [1, 2, 3] else "light" if level > 100 else "dark"

    images = np.random.default_rng(0).integers(0, 256, (160, 8, 8, 3), np.uint8)
    images[::2] //= 2
    odd = images[0].copy()
    odd[-1, -1] = 1, 2, 3
    model = lt.LookTwice(light, views="mirror turn:90 turn:180").fit(images[:120], ["dark", "light"] * 60)
    among = np.stack([*images[120:], odd])
    for told in (model.predict_proba, model.predict, model.predict_set):
        assert np.array_equal(told(among)[:-1], told(images[120:]))


# What is learned and told ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", ["probit", "jury"])
def test_fit_predict_and_probabilities(calibrator: str) -> None:
    images, labels = pictures(200)
    model = lt.LookTwice(brightest, views="gaussian:0.1*8", calibrator=calibrator).fit(images, labels)
    chances = model.predict_proba(images)
    assert chances.shape == (200, 4)
    assert chances.sum(axis=1) == pytest.approx(np.ones(200))
    assert list(model.classes_) == ["ne", "nw", "se", "sw"]
    assert model.score(images, labels) > 0.6
    # Knowing which answers to doubt beats full trust and a guess alike.
    assert log_loss(labels, chances, labels=model.classes_) < log_loss(
        labels, np.full((200, 4), 0.25), labels=model.classes_
    )


@pytest.mark.slow
def test_labels_that_the_classifier_never_says_get_a_probability_too() -> None:
    images, labels = pictures(60)
    labels = labels.astype("U9")
    labels[:5] = "elsewhere"
    model = lt.LookTwice(brightest, views="rotation:40*8").fit(images, labels)
    assert "elsewhere" in model.classes_
    assert model.predict_proba(images)[:, list(model.classes_).index("elsewhere")].min() > 0


@pytest.mark.slow
def test_labels_that_only_the_classifier_says_get_no_column_and_are_never_predicted() -> None:
    images, labels = pictures(120)
    northern = np.char.startswith(labels, "n")
    model = lt.LookTwice(brightest, views="gaussian:0.1*4").fit(images[northern], labels[northern])
    assert list(model.classes_) == ["ne", "nw"]
    assert set(model.profile_.vocabulary) > {"ne", "nw"}
    chances = model.predict_proba(images)
    assert chances.sum(axis=1) == pytest.approx(np.ones(120))
    assert set(model.predict(images)) == {"ne", "nw"}
    assert model.predict_set(images).any(axis=1).all()


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float64, np.str_, object])
def test_classes_have_the_type_of_the_labels(kind: type) -> None:
    def bright(image: np.ndarray) -> int:
        return int(image.mean() > 128)

    images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), np.uint8)
    said = np.array([bright(image) for image in images])
    labels: np.ndarray = (said.astype(str) if kind is object else said).astype(kind)
    model = lt.LookTwice(bright, views="gaussian:0.3*3", calibrator="probit").fit(images, labels)
    assert model.classes_.dtype == labels.dtype
    assert model.classes_.tolist() == sorted(set(labels.tolist()))
    assert model.predict(images).dtype == labels.dtype
    assert model.score(images, labels) > 0.9


@pytest.mark.slow
def test_prediction_sets_hold_the_truth_as_often_as_was_asked() -> None:
    images, labels = pictures(600)
    model = lt.LookTwice(brightest, views="gaussian:0.1*4", coverage=0.8).fit(images[:300], labels[:300])
    places = np.searchsorted(model.classes_, labels[300:])
    sizes = []
    for coverage in (None, 0.95):
        sets = model.predict_set(images[300:], coverage)
        assert sets.shape == (300, 4)
        assert sets.dtype == bool
        assert sets[np.arange(300), np.searchsorted(model.classes_, model.predict(images[300:]))].all()
        assert sets[np.arange(300), places].mean() > (coverage or 0.8) - 0.05
        sizes.append(sets.sum(axis=1).mean())
    assert sizes[0] < sizes[1]
    with pytest.raises(DataError, check=coded("option-invalid")):
        model.predict_set(images, 1.5)


@pytest.mark.slow
def test_a_saved_profile_gives_the_same_verdicts(tmp_path: Path) -> None:
    images, labels = pictures(60)
    model = lt.LookTwice(brightest, views="rotation:10*3", seed=7).fit(images, labels)
    model.save(tmp_path / "profile.json")
    with lt.Model.load(tmp_path / "profile.json", brightest) as again:
        verdicts = list(again.score(images))
    assert [verdict.label for verdict in verdicts if isinstance(verdict, lt.Verdict)] == model.predict(images).tolist()


def test_the_profile_decides_the_views_and_the_seed_once_there_is_one() -> None:
    images, labels = pictures(60)
    model = lt.LookTwice(brightest, views="gaussian:0.1*3", seed=7, calibrator="probit").fit(images, labels)
    before = model.predict_proba(images)
    assert model.set_params(seed=8, views="mirror").predict_proba(images) == pytest.approx(before)


@pytest.mark.slow
def test_pictures_may_be_files_and_of_any_size(tmp_path: Path) -> None:
    images, labels = pictures(30)
    from PIL import Image

    paths = []
    for place, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{place}.png")
        paths.append(str(tmp_path / f"{place}.png"))
    expected = (
        lt.LookTwice(brightest, views="rotation:10*3", calibrator="probit").fit(images, labels).predict_proba(images)
    )
    for given in (paths, np.array(paths), [Path(path) for path in paths], [Path(p).read_bytes() for p in paths]):
        model = lt.LookTwice(brightest, views="rotation:10*3", calibrator="probit").fit(given, labels)
        assert model.predict_proba(given) == pytest.approx(expected)
    assert len(model.predict([images[0], np.zeros((9, 7), np.uint8)])) == 2
    assert len(model.predict([paths[0], paths[0]])) == 2


@pytest.mark.slow
def test_async_and_batch_functions_are_classifiers_too() -> None:
    images, labels = pictures(40)

    async def one(image: np.ndarray) -> str:
        return brightest(image)

    @lt.batched
    def many(batch: list[np.ndarray]) -> list[str]:
        return [brightest(image) for image in batch]

    expected = (
        lt.LookTwice(brightest, views="rotation:10*3", calibrator="probit").fit(images, labels).predict_proba(images)
    )
    for function in (one, many):
        model = lt.LookTwice(function, views="rotation:10*3", calibrator="probit").fit(images, labels)
        assert model.predict_proba(images) == pytest.approx(expected)


# What is asked --------------------------------------------------------------------------------------------------------


def test_no_question_is_asked_twice(tmp_path: Path) -> None:
    images, labels = noise(10)
    with fault_server() as server:
        model = lt.LookTwice(str(server.describe(tmp_path)), views=PANEL).fit(images, labels)
        model.predict(images)
        model.predict_proba(images)
        model.score(images, labels)
        model.predict_set(images)
        clone(model).fit(images, labels).predict(images)
        assert server.stats()["requests"] == 70
        clone(model).set_params(ledger="off").fit(images, labels)
        assert server.stats()["requests"] == 140


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("connected", [False, True])
def test_cross_validation_asks_each_question_once(tmp_path: Path, jobs: int, connected: bool) -> None:
    images, labels = noise(30)
    with fault_server() as server:
        description = str(server.describe(tmp_path))
        model = lt.LookTwice(lt.connect(description) if connected else description, views=PANEL, calibrator="probit")
        with parallel_config("threading", n_jobs=jobs):
            assert len(cross_val_score(model, images, labels, cv=3)) == 3
            GridSearchCV(model, {"calibrator": ["probit", "constant"]}, cv=3).fit(images, labels)
        assert server.stats()["requests"] == 210


def test_a_ledger_in_a_file_outlives_the_process(tmp_path: Path) -> None:
    images, labels = noise(10)
    np.savez(tmp_path / "pictures.npz", images=images, labels=labels)
    script = """
import sys
import numpy as np
import looktwice as lt
held = np.load("pictures.npz")
lt.LookTwice(sys.argv[1], "mirror rotation:10*2", "probit", ledger="answers.db").fit(held["images"], held["labels"])
"""
    with fault_server() as server:
        command = [sys.executable, "-W", "error", "-c", script, str(server.describe(tmp_path))]
        for _ in range(2):
            ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
            assert ended.stderr == ""
            assert server.stats()["requests"] == 40


def test_a_budget_ends_the_call_and_what_was_paid_is_kept(tmp_path: Path) -> None:
    images, labels = noise(10)
    with fault_server() as server:
        model = lt.LookTwice(str(server.describe(tmp_path)), views=PANEL, budget=40, calibrator="probit")
        with pytest.raises(BudgetError, check=coded("budget-spent")):
            model.fit(images, labels)
        assert server.stats()["requests"] == 40
        assert not hasattr(model, "profile_")
        model.set_params(budget=70).fit(images, labels)
        assert server.stats()["requests"] == 70


def test_a_picture_that_cannot_be_read_is_named_and_the_others_are_not_asked_again(tmp_path: Path) -> None:
    images, labels = noise(10)
    with fault_server() as server:
        model = lt.LookTwice(str(server.describe(tmp_path)), views=PANEL, calibrator="probit")
        with pytest.raises(ImageError, check=coded("image-unsupported")):
            model.fit([*images[:3], b"no picture", *images[4:]], labels)
        assert server.stats()["requests"] == 63
        model.fit(images, labels)
        assert server.stats()["requests"] == 70


def test_what_cannot_be_right_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    images, labels = noise(10)
    with fault_server() as server:
        model = lt.LookTwice(str(server.describe(tmp_path, labels=LABELS)), views=PANEL)
        with pytest.raises(DataError, check=coded("labels-unmatched")):
            model.fit(images, labels[:9])
        with pytest.raises(DataError, check=coded("labels-unmatched")):
            model.fit(images, np.arange(10) % 3)
        with pytest.raises(FitError, check=coded("calibrator-unknown")):
            clone(model).set_params(calibrator="hope").fit(images, labels)
        with pytest.raises(ValueError, match="continuous"):
            model.fit(images, np.linspace(0, 1, 10))
        with pytest.raises(NotFittedError):
            model.predict(images)
        with pytest.raises(NotFittedError):
            model.predict_set(images)
        with pytest.raises(NotFittedError):
            model.save(tmp_path / "profile.json")
        assert server.stats()["requests"] == 0


def test_integers_beside_a_classifier_that_says_words_are_an_error() -> None:
    images, labels = pictures(30)
    with pytest.raises(DataError, check=coded("labels-unmatched")):
        lt.LookTwice(brightest, views="mirror", calibrator="probit").fit(
            images, np.unique(labels, return_inverse=True)[1]
        )


def test_what_is_missing_is_said() -> None:
    images, labels = pictures(30)
    with pytest.raises(FitError, check=coded("fit-impossible")):
        lt.LookTwice().fit(images, labels)
    model = lt.LookTwice(brightest, views="mirror", calibrator="probit").fit(images, labels)
    with pytest.raises(ProfileError, check=coded("profile-mismatch")):
        model.set_params(classifier=dark).predict(images)


# Functions ------------------------------------------------------------------------------------------------------------


def dark(image: np.ndarray) -> str:
    return "ne" if image.mean() < 64 else "nw"


def saying(label: str) -> Callable[[np.ndarray], str]:
    def say(image: np.ndarray) -> str:
        return label

    return say


class Says:
    __slots__ = ("__weakref__", "label")

    def __init__(self, label: str) -> None:
        self.label = label

    def __call__(self, image: np.ndarray) -> str:
        return self.label

    def method(self, image: np.ndarray) -> str:
        return self.label

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Says)

    def __hash__(self) -> int:
        return 0


def with_default(label: str) -> Callable[[np.ndarray], str]:
    namespace: dict[str, Any] = {}
    exec(f"def say(image, label={label!r}): return label", namespace)
    say: Callable[[np.ndarray], str] = namespace["say"]
    return say


LAMBDAS = {"nw": lambda _: "nw", "ne": lambda _: "ne"}


@pytest.mark.parametrize(
    "make",
    [
        saying,
        Says,
        with_default,
        LAMBDAS.__getitem__,
        lambda label: Says(label).method,
        lambda label: functools.partial(Says.method, Says(label)),
    ],
    ids=["closure", "object", "default", "lambda", "method", "partial"],
)
def test_functions_of_one_source_that_hold_other_values_do_not_share_answers(make: Callable[[str], Any]) -> None:
    images, labels = pictures(30)
    said = [make("nw"), make("ne")]
    models = [lt.LookTwice(function, views="mirror", calibrator="probit").fit(images, labels) for function in said]
    assert [set(model.profile_.vocabulary) for model in models] == [{"nw"}, {"ne"}]


def test_a_function_keeps_its_answers_through_clones_and_loses_them_when_it_goes() -> None:
    images, labels = pictures(30)
    asked = []

    class Counting:
        def classify(self, image: np.ndarray) -> str:
            asked.append(1)
            return brightest(image)

    owner = Counting()
    model = lt.LookTwice(owner.classify, views="mirror", calibrator="probit").fit(images, labels)
    clone(model).fit(images, labels).predict(images)
    lt.LookTwice(owner.classify, views="mirror", calibrator="probit").fit(images, labels)
    assert len(asked) == 60
    assert lt.connect(owner.classify).fingerprint == lt.connect(owner.classify).fingerprint
    assert lt.connect(owner.classify).fingerprint != lt.connect(Counting().classify).fingerprint


def test_the_profile_of_a_closure_may_be_loaded_elsewhere(tmp_path: Path) -> None:
    images, labels = pictures(30)
    lt.LookTwice(saying("nw"), views="mirror", calibrator="probit").fit(images, labels).save(tmp_path / "profile.json")
    with lt.Model.load(tmp_path / "profile.json", saying("nw")) as model:
        assert model.look(images[0]).label == "nw"


def test_a_function_of_a_module_is_known_by_its_source_in_every_process() -> None:
    code = "import looktwice as lt; from support import workshop; print(lt.connect(workshop.brightest).fingerprint)"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert elsewhere.stdout.strip() == lt.connect(brightest).fingerprint


# scikit-learn and what builds on it -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_can_be_cloned_searched_and_pickled() -> None:
    images, labels = pictures(120)
    model = lt.LookTwice(brightest, views="gaussian:0.1*4", calibrator="probit", seed=3)
    assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(model, {"calibrator": ["probit", "constant"]}, cv=2, scoring="neg_log_loss").fit(
        images, labels
    )
    assert search.best_params_["calibrator"] in ("probit", "constant")
    assert model.set_params(seed=5).seed == 5
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert again.predict_proba(images) == pytest.approx(search.predict_proba(images))


def test_a_connected_classifier_is_shared_and_stays_usable(tmp_path: Path) -> None:
    images, labels = noise(20)
    with fault_server() as server:
        connected = lt.connect(server.describe(tmp_path))
        model = lt.LookTwice(connected, views="mirror", calibrator="probit")
        assert clone(model).classifier is connected
        assert not hasattr(clone(model.fit(images, labels)), "profile_")
        with ThreadPoolExecutor(4) as threads:
            proba = list(threads.map(lambda seed: clone(model).set_params(seed=seed).fit(images, labels), range(4)))
        assert len(proba) == 4
        assert server.stats()["requests"] == 40


@pytest.mark.slow
def test_it_works_in_a_pipeline() -> None:
    images, labels = pictures(60)
    upright = lt.LookTwice(brightest, views="gaussian:0.1*4", calibrator="probit").fit(images, labels)
    turned = make_pipeline(
        FunctionTransformer(lambda X: X[:, ::-1]), lt.LookTwice(brightest, views="gaussian:0.1*4", calibrator="probit")
    )
    turned.fit(images[:, ::-1], labels)
    assert turned.predict_proba(images[:, ::-1]) == pytest.approx(upright.predict_proba(images))


@pytest.mark.slow
def test_its_probabilities_can_be_calibrated_once_more() -> None:
    images, labels = pictures(150)
    model = lt.LookTwice(brightest, views="gaussian:0.1*4", calibrator="probit")
    for calibrated in (CalibratedClassifierCV(model, cv=3), CalibratedClassifierCV(FrozenEstimator(model))):
        model.fit(images[:75], labels[:75])
        calibrated.fit(images[75:], labels[75:])
        assert calibrated.predict_proba(images).sum(axis=1) == pytest.approx(np.ones(150))
        assert calibrated.score(images, labels) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("prefit", [True, False])
def test_mapie_makes_sets_of_it(prefit: bool) -> None:
    images, labels = pictures(400)
    model = lt.LookTwice(brightest, views="gaussian:0.1*4", calibrator="probit")
    mapie = SplitConformalClassifier(
        model.fit(images[:100], labels[:100]) if prefit else model, confidence_level=0.9, prefit=prefit
    )
    if not prefit:
        mapie.fit(images[:100], labels[:100])
    said, sets = mapie.conformalize(images[100:250], labels[100:250]).predict_set(images[250:])
    assert set(said) <= set(labels)
    assert sets.shape == (150, 4, 1)
    assert sets[np.arange(150), np.searchsorted(np.unique(labels), labels[250:]), 0].mean() > 0.8


def by_brightness(image: np.ndarray) -> int:
    return int(image.mean() > 128)


class Rows(lt.LookTwice):
    """Rows of numbers, drawn as pictures of one line: scikit-learn's checks know nothing else."""

    def __init__(self, classifier: Any = by_brightness, views: str = "mirror", calibrator: str = "probit") -> None:
        super().__init__(classifier, views, calibrator)

    def fit(self, X: Any, y: Any) -> "Rows":
        X, y = validate_data(self, X, y)
        return super().fit(drawn(X), y)

    def _verdicts(self, X: Any, options: Any) -> Any:
        pictures = drawn(validate_data(self, X, reset=False)) if hasattr(self, "profile_") else X
        return super()._verdicts(pictures, options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[no-untyped-call]
        tags.input_tags.two_d_array = True
        return tags


def drawn(rows: np.ndarray) -> list[np.ndarray]:
    return [np.clip(128 + 40 * row[None, :], 0, 255).astype(np.uint8) for row in rows]


CANNOT_HOLD = {
    "check_classifiers_train": "a closed classifier learns no labels, so fitting does not make it accurate",
    "check_classifiers_classes": "a closed classifier has its own labels; others alone are an error",
    "check_classifiers_one_label": "one class teaches no confidence, which `Model.fit` says before anything is asked",
    "check_fit2d_1sample": "one picture teaches no confidence, which is said with a FitError",
    **dict.fromkeys(
        ("check_fit2d_1feature", "check_fit_idempotent", "check_fit_check_is_fitted", "check_n_features_in"),
        "their rows become fewer than ten different pictures, and copies of a picture count once",
    ),
}


@pytest.mark.slow
def test_it_passes_the_checks_of_scikit_learn_but_those_that_cannot_hold() -> None:
    checks = check_estimator(Rows(), expected_failed_checks=CANNOT_HOLD, on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in checks if result["status"] == "failed"}
    assert not failed
    assert {result["check_name"] for result in checks if result["status"] == "xfail"} == set(CANNOT_HOLD)
    assert sum(result["status"] == "passed" for result in checks) > 40


# Loops and threads ----------------------------------------------------------------------------------------------------


async def test_it_works_where_a_loop_is_running_as_in_a_notebook() -> None:
    images, labels = pictures(30)
    assert (
        len(lt.LookTwice(brightest, views="rotation:10*3", calibrator="probit").fit(images, labels).predict(images))
        == 30
    )


def test_no_thread_outlives_a_call(tmp_path: Path, ours: Callable[[], list[str]]) -> None:
    images, labels = noise(20)
    with fault_server() as server:
        model = lt.LookTwice(
            str(server.describe(tmp_path)), views="mirror", ledger=str(tmp_path / "answers.db"), calibrator="probit"
        )
        before = threading.active_count()
        model.fit(images, labels).predict(images)
        assert ours() == []
        until(lambda: threading.active_count() <= before)  # workers of the loop's pool are on their way out
