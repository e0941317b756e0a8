"""The pipeline behind every interface, in both forms: `AsyncModel`, and `Model` for code that does not await."""

import asyncio
import gc
import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from importlib.resources import files
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from rich.console import Console
from support.errors import coded
from support.faults import Running, fault_server
from support.waiting import until
from support.workshop import brightest, write_pictures, write_profile
from test_sklearn import pictures

import looktwice as lt
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions.profile import Profile
from looktwice.engine.query import AnswerEvent, Progress
from looktwice.errors import BudgetError, DataError, FitError, ImageError, LookTwiceError, ProfileError
from looktwice.images.collection import Held, labelled, many, with_truths

VIEWS = "gaussian:0.1*4"
IMAGES, LABELS = pictures(60)
DEMO = Path(str(files("looktwice") / "demo"))


@pytest.fixture(scope="module")
def profile() -> Profile:
    with lt.Model(brightest) as model:
        return model.fit(IMAGES, LABELS.tolist(), views=VIEWS).profile


@pytest.fixture
def server() -> Iterator[Running]:
    with fault_server() as running:
        yield running


def labels(verdicts: Iterator[lt.Verdict | lt.Unscored]) -> list[str]:
    return [verdict.label for verdict in verdicts if isinstance(verdict, lt.Verdict)]


# Opening and closing --------------------------------------------------------------------------------------------------


def test_a_closed_model_has_given_everything_back_and_may_be_used_again(
    tmp_path: Path, server: Running, ours: Callable[[], list[str]]
) -> None:
    model = lt.Model(server.describe(tmp_path), ledger=str(tmp_path / "answers.db"))
    for _ in range(2):
        with model:
            assert len(model.ask(IMAGES[:5], views="mirror").votes) == 5
            assert ours() != []
        assert ours() == []
    model.close()
    assert server.stats()["requests"] == 10


def test_a_local_classifier_may_be_used_again_too() -> None:
    connected = lt.connect(DEMO / "fashion.toml")
    for _ in range(2):
        with lt.Model(connected) as model:
            assert len(model.ask(IMAGES[:3], views="mirror").votes) == 3


def test_a_model_that_is_forgotten_ends_its_threads(
    tmp_path: Path, server: Running, ours: Callable[[], list[str]]
) -> None:
    model = lt.Model(server.describe(tmp_path), ledger=str(tmp_path / "answers.db"))
    model.ask(IMAGES[:5], views="mirror")
    del model
    gc.collect()
    until(lambda: ours() == [])


@pytest.mark.parametrize("ledger", ["memory", "answers.db"])
def test_a_script_that_closes_nothing_ends_quietly(tmp_path: Path, server: Running, ledger: str) -> None:
    script = """
import sys
import numpy as np
import looktwice as lt
X = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
y = ["ant", "bee"] * 10
model = lt.Model(sys.argv[1], ledger=sys.argv[2])
model.fit(X, y, views="mirror", calibrator="probit")
estimator = lt.LookTwice(sys.argv[1], views="mirror", ledger=sys.argv[2], calibrator="probit").fit(X, y)
print(len(estimator.predict(X)), next(model.score(X)).name, flush=True)
"""
    command = [sys.executable, "-W", "always", "-c", script, str(server.describe(tmp_path)), ledger]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "20 0\n", "")
    assert server.stats()["requests"] == 40


@pytest.mark.slow
async def test_a_model_works_in_a_running_loop_with_await_and_without(profile: Profile) -> None:
    with lt.Model(brightest, profile) as model:
        expected = model.look(IMAGES[0])
        assert len(list(model.score(IMAGES[:5]))) == 5
    async with lt.AsyncModel(brightest, profile) as awaited:
        assert await awaited.look(IMAGES[0]) == expected
        assert [verdict.name async for verdict in awaited.score(IMAGES[:3])] == ["0", "1", "2"]
        assert awaited.asked.pictures == 4


@pytest.mark.slow
def test_two_threads_may_use_one_model_at_once(profile: Profile) -> None:
    with lt.Model(brightest, profile) as model:
        expected = labels(model.score(IMAGES))
        with ThreadPoolExecutor(2) as threads:
            looked = threads.map(model.look, IMAGES)
            scored = threads.submit(lambda: labels(model.score(IMAGES)))
            assert [verdict.label for verdict in looked] == expected
            assert scored.result() == expected


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_leaving_a_loop_early_keeps_what_was_answered(tmp_path: Path, profile: Profile) -> None:
    asked: Counter[bytes] = Counter()

    def counting(image: np.ndarray) -> str:
        asked[image.tobytes()] += 1
        return brightest(image)

    many, _ = pictures(900, seed=3)
    with lt.Model(counting, ledger=str(tmp_path / "answers.db"), canaries=0) as model:
        model.fit(IMAGES, LABELS.tolist(), views="gaussian:0.1")
        fitted = asked.total()
        (verdict,) = labels(islice(model.score(many, all=True), 1))
        assert fitted < asked.total() < fitted + 1800
        assert model.look(many[0], all=True).label == verdict
        assert len(list(model.score(many, all=True))) == 900
    assert asked.total() == fitted + 1800
    assert set(asked.values()) == {1}


@pytest.mark.slow
async def test_leaving_one_loop_early_does_not_stop_another(profile: Profile) -> None:
    many, _ = pictures(600, seed=4)
    async with lt.AsyncModel(brightest, profile) as model:

        async def leave() -> None:
            async with aclosing(model.score(many)) as verdicts:
                async for _ in verdicts:
                    return

        async def stay() -> int:
            return len([verdict async for verdict in model.score(many) if isinstance(verdict, lt.Verdict)])

        assert (await asyncio.gather(leave(), stay()))[1] == 600


INTERRUPTED = """
import sys
import looktwice as lt
from pathlib import Path
heard = []
def hear(answer):
    heard.append(answer)
    if len(heard) == 20:
        print("asking", flush=True)
model = lt.Model.load(sys.argv[1], ledger=sys.argv[2], canaries=0, on_answer=hear)
try:
    list(model.score(Path("pictures.npz")))
except KeyboardInterrupt:
    first = sum(answer.label is not None for answer in heard)
    print(len(list(model.score(Path("pictures.npz")))), first, flush=True)
    model.close()
    raise
"""


def test_an_interrupted_run_loses_nothing_and_asks_nothing_twice(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 60)
    with fault_server(delay=0.2) as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, concurrency=8))
        command = [sys.executable, "-c", INTERRUPTED, "profile.json", "answers.db"]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "asking\n"
            os.kill(process.pid, signal.SIGINT)
            said, errors = process.communicate(timeout=120)
        pictures_scored, heard = map(int, said.split())
        assert pictures_scored == 60
        assert heard < 300
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert process.returncode == -signal.SIGINT
        assert server.stats()["requests"] == 300


INTERRUPTED_TWICE = """
import os, signal, sys, threading, time
import looktwice as lt
from pathlib import Path

def press_twice():
    while model.asked.sent < looked + 8:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    while not model.engine.stopped:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

model = lt.Model.load(sys.argv[1], ledger=sys.argv[2], canaries=0)
model.look("picture.png")
looked = model.asked.sent
threading.Thread(target=press_twice).start()
try:
    list(model.score(Path("pictures.npz")))
except KeyboardInterrupt:
    print("left", flush=True)
while model.engine.stopped:  # until what was in flight has come
    time.sleep(0.01)
print(len([v for v in model.score(Path("pictures.npz")) if isinstance(v, lt.Verdict)]), flush=True)
model.close()
"""


def test_a_second_interrupt_leaves_and_the_model_goes_on_afterwards(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 4)
    Pillow.fromarray(pictures(1)[0][0]).save(tmp_path / "picture.png")
    with fault_server(delay=2) as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, concurrency=8))
        command = [sys.executable, "-c", INTERRUPTED_TWICE, "profile.json", "answers.db"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout.split()) == (0, ["left", "4"]), done.stderr
        assert server.stats()["requests"] == 25


def test_closing_a_model_keeps_what_another_thread_has_in_flight(tmp_path: Path) -> None:
    with fault_server(delay=0.5) as server, ThreadPoolExecutor(1) as threads:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, concurrency=2))
        model = lt.Model.load(tmp_path / "profile.json", ledger=str(tmp_path / "answers.db"), canaries=0)
        looking = threads.submit(model.look, IMAGES[0])
        while not server.stats()["requests"]:
            pass
        model.close()
        with pytest.raises(LookTwiceError, check=coded("stopped")):
            looking.result(timeout=60)
        sent = server.stats()["requests"]
        assert sent < 5
        model.look(IMAGES[0])
        assert server.stats()["requests"] == 5  # so those that were in flight are in the ledger
        model.close()


def test_a_stream_says_that_its_model_was_closed(profile: Profile, ours: Callable[[], list[str]]) -> None:
    model = lt.Model(brightest, profile)
    verdicts = model.score(IMAGES)
    next(verdicts)
    model.close()
    with pytest.raises(LookTwiceError, check=coded("model-closed")):
        next(verdicts)
    assert ours() == []


def test_garbage_is_collected_in_the_models_own_thread(profile: Profile) -> None:
    def collect(_: AnswerEvent) -> None:
        gc.collect()

    gc.disable()
    try:
        with lt.Model(brightest, profile, on_answer=collect) as model, ThreadPoolExecutor(1) as threads:
            cycle: list[object] = [model.score(IMAGES[:1])]
            next(cycle[0])  # type: ignore[call-overload]
            cycle.append(cycle)
            del cycle
            assert threads.submit(model.look, IMAGES[1]).result(timeout=60).label == brightest(IMAGES[1])
    finally:
        gc.enable()


def test_a_forked_process_is_told_to_make_a_model_of_its_own(tmp_path: Path, profile: Profile) -> None:
    with lt.Model(brightest, profile) as model:
        model.look(IMAGES[0])
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                model.look(IMAGES[1])
            except LookTwiceError as error:
                model.close()
                (tmp_path / "said").write_text(error.code)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / "said").read_text() == "model-closed"
        model.look(IMAGES[1])


def test_a_forked_process_ends_as_it_wants_to_though_the_model_is_asking(tmp_path: Path, server: Running) -> None:
    write_pictures(tmp_path / "pictures.npz", 20)
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    code = (
        "import os, sys, looktwice as lt\n"
        f"model = lt.Model.load({str(tmp_path / 'profile.json')!r}, ledger={str(tmp_path / 'ledger.db')!r})\n"
        f"verdicts = model.score({str(tmp_path / 'pictures.npz')!r})\n"
        "next(verdicts)\n"
        "child = os.fork()\n"
        "if not child: sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(list(verdicts)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("7 19\n", 0), done.stderr
    assert server.stats()["requests"] == 100


@pytest.mark.slow
def test_nothing_is_learned_from_a_part_of_the_pictures() -> None:
    async def stopped() -> None:
        async with lt.AsyncModel(brightest, on_answer=lambda _: model.stop()) as model:
            with pytest.raises(lt.LookTwiceError, check=coded("unscored")):
                await model.fit(IMAGES, LABELS.tolist(), views=VIEWS, calibrator="probit")
            assert model.profile is None
            model._on_answer = model.engine.on_answer = None
            model.resume()
            await model.fit(IMAGES, LABELS.tolist(), views=VIEWS, calibrator="probit")

    asyncio.run(stopped())


# Being told -----------------------------------------------------------------------------------------------------------


def test_progress_is_shown_or_told(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("looktwice.model.runs.ERR", Console(file=screen, force_terminal=True, width=200, no_color=True))
    told: list[Progress] = []
    with lt.Model(brightest, profile, progress=told.append) as model:
        list(model.score(IMAGES, all=True))
        assert (told[0].pictures, told[-1].pictures, told[-1].answered) == (0, 60, 300)
    with lt.Model(brightest, profile, progress=True) as model:
        assert len(list(model.score(IMAGES))) == 60
    assert "60/60" in screen.getvalue()


@pytest.mark.slow
def test_every_answer_is_told_once(tmp_path: Path) -> None:
    heard: list[AnswerEvent] = []
    with lt.Model(brightest, ledger=str(tmp_path / "answers.db"), canaries=0, on_answer=heard.append) as model:
        votes = model.ask(IMAGES, views=VIEWS).votes
        assert len(heard) == 300
        assert Counter((answer.name, answer.place) for answer in heard).total() == 300
        assert {(answer.name, answer.place) for answer in heard} == {(n, p) for n in votes.names for p in range(5)}
        assert {answer.view for answer in heard} == {"again", "gaussian:0.1"}
        said = {answer.name: answer.label for answer in heard if answer.place == 0}
        assert [said[name] for name in votes.names] == [votes.vocabulary[code] for code in votes.base]
        model.ask(IMAGES[:10], views=VIEWS)
        assert len(heard) == 350  # those of the ledger are told too


@pytest.mark.slow
def test_the_answers_of_the_label_check_are_told_once() -> None:
    heard: list[AnswerEvent] = []
    with lt.Model(brightest, on_answer=heard.append) as model:
        model.fit(IMAGES, LABELS.tolist(), views=VIEWS, calibrator="probit")
    assert len(heard) == len({(answer.name, answer.place) for answer in heard}) == 300


# Pictures and verdicts ------------------------------------------------------------------------------------------------


def test_a_picture_in_any_form_gets_the_same_verdict(tmp_path: Path, profile: Profile) -> None:
    path = tmp_path / "picture.png"
    Pillow.fromarray(IMAGES[0]).save(path)
    forms = [path, str(path), path.read_bytes(), Pillow.open(path), IMAGES[0], lt.Image.from_array(IMAGES[0])]
    with lt.Model(brightest, profile) as model:
        verdicts = [model.look(form).model_copy(update={"name": ""}) for form in forms]
    assert verdicts == [verdicts[0]] * len(forms)


@pytest.mark.slow
def test_a_saved_profile_gives_the_same_verdicts(tmp_path: Path) -> None:
    with np.load(DEMO / "pictures.npz") as file:
        clothes = file["images"]
    with lt.Model(DEMO / "fashion.toml") as model:
        model.fit(clothes[:60], model_labels(model, clothes[:60]), views="mirror", calibrator="probit")
        model.save(tmp_path / "profile.json")
        expected = model.look(clothes[70])
    with lt.Model.load(tmp_path / "profile.json") as again:
        assert again.look(clothes[70]) == expected
        assert again.profile == model.profile


def model_labels(model: lt.Model, images: np.ndarray) -> list[str]:
    votes = model.ask(images, views="mirror").votes
    return [votes.vocabulary[code] for code in votes.base]


def test_answers_under_the_profiles_panel_have_its_codes(profile: Profile) -> None:
    with lt.Model(brightest, profile) as model:
        votes = model.ask(IMAGES[5:6]).votes
    assert votes.vocabulary == profile.vocabulary
    assert votes.panel == tuple(map(str, profile.views()))


def test_the_labels_of_an_npz_are_read_when_it_is_asked_about(tmp_path: Path) -> None:
    truths = [brightest(image) for image in IMAGES[:3]]
    np.savez(tmp_path / "own.npz", images=IMAGES[:3], labels=np.array(truths))
    np.savez(tmp_path / "plain.npz", images=IMAGES[:3])
    with lt.Model(brightest, ledger="memory") as model:
        assert model.ask(tmp_path / "own.npz", views="mirror").labelled().words == tuple(truths)
        assert not isinstance(model.ask(tmp_path / "plain.npz", views="mirror").votes, lt.LabelledVotes)


def test_only_a_function_declared_as_batched_gets_many_pictures() -> None:
    def one(images: np.ndarray) -> str:
        return brightest(images)

    @lt.batched
    def many(image: list[np.ndarray]) -> list[str]:
        return [brightest(each) for each in image]

    class Network:
        @lt.batched
        def __call__(self, pictures: list[np.ndarray]) -> list[str]:
            return many(pictures)

    labels = []
    for function in (one, many, Network()):
        with lt.Model(function, ledger="memory") as model:
            labels.append(model_labels(model, IMAGES[:5]))
    assert labels[0] == labels[1] == labels[2]


@pytest.mark.slow
@pytest.mark.parametrize("scored", [False, True])
def test_a_verdict_does_not_depend_on_new_labels_of_other_pictures(scored: bool) -> None:
    def light(image: np.ndarray) -> object:
        level = float(image.mean()) / 255 + 0.3 * (float(image[0, 0, 0]) / 255 - 0.5)
        label = "odd" if image[-1, -1].tolist() == [1, 2, 3] else "light" if level > 0.4 else "dark"
        return {label: 0.5 + abs(level - 0.4)} if scored else label

    def told(verdict: lt.Verdict | lt.Unscored) -> tuple[object, ...]:
        assert isinstance(verdict, lt.Verdict)
        numbers = (verdict.confidence, verdict.low, verdict.high)
        return verdict.base, verdict.label, *(round(number, 12) for number in numbers)

    images = np.random.default_rng(0).integers(0, 256, (160, 8, 8, 3), np.uint8)
    images[::2] //= 2
    odd = images[0].copy()
    odd[-1, -1] = 1, 2, 3
    with lt.Model(light) as model:
        model.fit(images[:120], ["dark", "light"] * 60, views="mirror turn:90 turn:180")
        alone = [told(model.look(image)) for image in (*images[120:], odd)]
        together = [told(verdict) for verdict in model.score([*images[120:], odd])]
    assert together == alone
    assert alone[-1][0] == "odd"


def test_pictures_of_two_folders_keep_their_truths_though_they_share_their_names() -> None:
    first, second = (
        with_truths(many(part), labels) for part, labels in ((IMAGES, LABELS), (IMAGES[::-1], LABELS[::-1]))
    )
    other = [replace(each, source=Held(255 - each.image().pixels), truth=f"not {each.truth}") for each in second]
    with lt.Model(brightest) as model:
        votes = model.ask([*first, *other], views="mirror").votes
    assert votes.names[: len(first)] == votes.names[len(first) :]
    assert isinstance(votes, LabelledVotes)
    assert votes.words == tuple(picture.truth for picture in (*first, *other))


@pytest.mark.slow
def test_a_truth_beyond_what_the_classifier_says_is_a_class_too() -> None:
    def bright(image: np.ndarray) -> str:
        return "bright" if image.mean() > 50 else "dark"

    truths = ["odd" if place % 7 == 0 else bright(image) for place, image in enumerate(IMAGES)]
    with lt.Model(bright) as model:
        assert model.fit(IMAGES, truths, views="gaussian:0.5*4", calibrator="probit").profile.classes == 3


def test_what_cannot_be_scored_is_an_error_of_its_kind(tmp_path: Path, server: Running, profile: Profile) -> None:
    with lt.Model(brightest, profile) as model:
        with pytest.raises(ImageError, check=coded("image-unsupported")):
            model.look(b"no picture")
        write_pictures(tmp_path / "a.npz", 2)
        with pytest.raises(DataError, check=coded("pictures-many")):
            model.look(tmp_path / "a.npz")
    with lt.Model(brightest) as model:
        with pytest.raises(ProfileError, check=coded("not-fitted")):
            model.look(IMAGES[0])
        with pytest.raises(FitError, check=coded("labels-missing")):
            model.fit(IMAGES)
        with pytest.raises(DataError, check=coded("labels-unmatched")):
            model.fit(IMAGES, ["a", "b", "c"])
    write_profile(tmp_path / "profile.json", server.describe(tmp_path))
    with lt.Model.load(tmp_path / "profile.json", ledger="off", budget=5) as model:
        model.look(IMAGES[0])
        with pytest.raises(BudgetError, check=coded("budget-spent")):
            model.look(IMAGES[1])
    assert server.stats()["requests"] == 5


def test_a_budget_that_ends_early_was_spent_on_all_classes(tmp_path: Path) -> None:
    images, truths = pictures(60)
    by_class = np.argsort(truths, kind="stable")
    images, truths = images[by_class], truths[by_class]
    with lt.Model(brightest, ledger=str(tmp_path / "answers.db"), budget=18 * 3, label_check=0) as model:
        collected = model.ask(with_truths(many(images), truths.tolist()), views="mirror turn:8")
    assert len(collected.unscored) == 60 - 18
    assert set(collected.labelled().words) == set(truths.tolist())
    places = list(map(int, collected.votes.names))
    assert places == sorted(places)
    assert [truths[place] for place in places] == list(collected.labelled().words)


# What notebooks show --------------------------------------------------------------------------------------------------


def test_an_evaluation_is_a_frame_a_table_and_figures(profile: Profile) -> None:
    images, truths = pictures(40, seed=1)
    with lt.Model(brightest, profile) as model:
        evaluation = model.evaluate(images, truths.tolist(), max_error=0.2)
    frame = evaluation.to_frame()
    assert list(frame.columns) == ["name", "truth", "label", "confidence", "correct"]
    assert frame.truth.tolist() == truths.tolist()
    assert ((frame.truth == frame.label) == frame.correct).all()
    assert frame.confidence.between(0, 1).all()
    assert "<table>" in evaluation._repr_html_()
    assert "40 pictures" in evaluation._repr_html_()
    for drawing in (evaluation.plot_reliability(), evaluation.plot_risk_coverage(), profile.plot_reliability()):
        assert drawing._repr_svg_().startswith("<svg")
    assert profile.to_frame().calibrator.tolist()[-1] == "jury, early stopping" or len(profile.to_frame()) == 4


def test_a_profile_and_an_evaluation_print_as_a_few_lines_of_figures(profile: Profile) -> None:
    images, truths = pictures(40, seed=1)
    with lt.Model(brightest, profile) as model:
        evaluation = model.evaluate(images, truths.tolist(), all=True, max_error=0.2)
    jury = next(line.split() for line in str(evaluation).splitlines() if line.startswith("jury"))
    assert jury[2] == f"{evaluation.outcome.correct.mean():.3f}"
    assert str(evaluation).splitlines()[0] == evaluation.title()
    assert str(evaluation).splitlines()[-len(evaluation.lines()) :] == evaluation.lines()
    assert "naive" in repr(profile)
    assert max(len(str(shown).splitlines()) for shown in (evaluation, profile)) < 15


@pytest.mark.slow
def test_html_is_escaped() -> None:
    def hostile(image: np.ndarray) -> str:
        return "<script>alert(1)</script>" if image.mean() > 50 else "<b>"

    truths = [hostile(image) for image in IMAGES]
    with lt.Model(hostile) as model:
        shown = [model.fit(IMAGES, truths, views="gaussian:0.5*2").profile._repr_html_()]
        shown += [model.look(IMAGES[0])._repr_html_(), model.evaluate(IMAGES, truths)._repr_html_()]
    assert "&lt;locals&gt;" in shown[0]
    assert "&lt;script&gt;" in shown[1] or "&lt;b&gt;" in shown[1]
    for html in shown:
        assert "<script" not in html
        assert "<b>" not in html
        assert "<locals>" not in html


def test_profiles_are_plain_json(tmp_path: Path, profile: Profile) -> None:
    profile.save(tmp_path / "profile.json")
    assert json.loads((tmp_path / "profile.json").read_text())["panel"] == VIEWS


def test_a_model_has_everything_that_an_async_model_has() -> None:
    public = {name for name in dir(lt.AsyncModel) if not name.startswith("_")}
    assert public <= set(dir(lt.Model))


def test_a_profile_finds_the_description_beside_it_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("fashion.toml", "fashion.onnx"):
        (tmp_path / name).write_bytes((DEMO / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    with lt.Model("fashion.toml") as model:
        model.fit(labelled(DEMO / "pictures.npz")[:60], views="mirror", calibrator="probit")
        model.save("profile.json")
    monkeypatch.chdir("elsewhere")
    with lt.Model.load(tmp_path / "profile.json") as model:
        assert model.look(labelled(DEMO / "pictures.npz")[100]).label
