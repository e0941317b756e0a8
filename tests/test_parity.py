"""Every option has the same effect at every interface: command line, service, worker, library and estimator."""

from __future__ import annotations

import asyncio
import csv
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import date
from functools import partial
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from subprocess import CompletedProcess
from typing import Any, get_type_hints

import numpy as np
import pytest
from conformance.batch_replica import BatchReplica
from conformance.oip_replica import Served, oip_routes
from conformance.replica import DEMO as MODEL, Replica, model, pictures
from conformance.vendors import HOUSES, PRICES, app_of, description, served
from support.errors import code_in, coded
from support.faults import Running, fault_server
from support.parity import (
    DECISIONS,
    PICTURES,
    ROWS,
    Told,
    arguments,
    check,
    check_told,
    of_verdict,
    write_place,
)
from support.serving import DEMO, Client, started, started_here
from support.workshop import PANEL, call, run, write_pictures, write_profile

from looktwice import AsyncModel, Model
from looktwice.classifiers.registry import read_toml
from looktwice.cli.app import built
from looktwice.cli.look import Machines
from looktwice.decisions import judging
from looktwice.decisions.evaluation import Evaluation
from looktwice.decisions.planning import strictest_guarantee
from looktwice.decisions.policy import DecisionKeywords, DecisionOptions
from looktwice.decisions.profile import Profile
from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import COLUMNS
from looktwice.engine.ledger.maintenance import DayCost, stats
from looktwice.errors import BudgetError, ImageError, LookTwiceError
from looktwice.images.collection import find, labelled
from looktwice.images.image import encode_png
from looktwice.model.options import AskKeywords, AskOptions
from looktwice.ray import Scorer
from looktwice.sklearn import LookTwice

Run = Callable[..., CompletedProcess[str]]
"""Runs a command line, in this process or in one of its own."""
PLAIN = DecisionOptions()

# The table


def options_of(options: type) -> list[str]:
    """The options that a user sets; which command asks is told by each interface itself."""
    return [field.name for field in fields(options) if field.name != "scope"]


@pytest.mark.parametrize(("options", "keywords"), [(DecisionOptions, DecisionKeywords), (AskOptions, AskKeywords)])
def test_the_keywords_are_the_fields(options: type, keywords: type) -> None:
    assert get_type_hints(keywords) == {name: get_type_hints(options)[name] for name in options_of(options)}


def test_every_decision_option_is_in_the_table() -> None:
    assert set(DECISIONS["all options"]) == {field.name for field in fields(DecisionOptions)}


def test_every_ask_option_is_in_the_table() -> None:
    for_chat_models = {"prices", "batch"}
    limits = {name for options, _ in LIMITS.values() for name in options}
    assert {*COUNTED, *DRAWN, *EFFECTS, *limits, *ELSEWHERE, *for_chat_models, "label_check"} == set(
        options_of(AskOptions)
    )


@pytest.mark.parametrize("name", ["fit", "look", "score", "evaluate", "check", "label", "transfer", "borrow", "serve"])
def test_the_command_line_has_every_option(name: str) -> None:
    taken = {option for parameter in built(name).params for option in parameter.opts}
    compares = name in ("fit", "evaluate", "transfer", "borrow")  # answers with truths: see test_label_check.py
    assert ("--label-check" in taken) == compares
    wanted = [option for option in options_of(AskOptions) if option != "label_check" or compares]
    if name in ("look", "score", "evaluate", "serve"):
        wanted += options_of(DecisionOptions)
    assert {f"--{option.replace('_', '-')}" for option in wanted} <= taken


PYTHON = {
    "fit": {"add": "model:Model.borrow"},
    "look": {"burst": "model:Model.burst"},
    "score": {},
    "evaluate": {},
    "check": {},
}
"""What stands in Python for options of a command that its method of `Model` does not take."""
FILES = {
    "classifier": "model:Model",
    "profile": "model:Model.load",
    "out": "model:Model.save",
    "votes": "calibration:Votes.save",
    "report": "report:write",
    "truths": "images.collection:labelled",
    "truths_column": "images.collection:labelled",
    "take": "images.collection:labelled",
    "dry_run": "model:Model.estimate",
    "json": "decisions.evaluation:Evaluation.record",
    "json_log": "engine.query:Progress",
}
"""The same for what any command reads, writes and tells."""


@pytest.mark.parametrize("name", PYTHON)
def test_the_library_takes_what_the_command_takes(name: str) -> None:
    options = {str(parameter.name) for parameter in built(name).params}
    options -= {*options_of(AskOptions), *signature(Machines).parameters, "help"}
    options -= set(options_of(DecisionOptions)) if name in ("look", "score", "evaluate") else set()
    elsewhere = {option: place for option, place in (FILES | PYTHON[name]).items() if option in options}
    listeners = {"on_answer", "on_collected"}
    taken = set(signature(getattr(Model, name)).parameters) - {"self", "labels", "options", "decision", *listeners}
    called = {"pictures": "picture"} if name in ("look", "check") else {}
    assert {called.get(option, option) for option in options - set(elsewhere)} == taken
    assert all(callable(resolve_name(f"looktwice.{place}")) for place in elsewhere.values())


def test_the_estimator_has_every_option_with_the_same_default() -> None:
    # It keeps answers as long as the process lives, in which nobody changes the classifier.
    defaults = {**asdict(AskOptions()), **asdict(DecisionOptions()), "ledger": "memory", "seed": 0, "canaries": 0}
    parameters = LookTwice().get_params()
    for name in options_of(AskOptions) + options_of(DecisionOptions):
        assert parameters[name] == defaults[name], name


# Decisions


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("parity"))


JUDGED: dict[str, list[Verdict]] = {}


def judged(place: Path, options: DecisionOptions) -> list[Verdict]:
    """What the pipeline itself says, without an interface; computed once for the tests of all interfaces."""
    profile, key = Profile.load(place / "profile.json"), f"{place} {options}"

    async def work() -> list[Verdict]:
        async with AsyncModel(profile.classifier) as model:
            verdicts = judging.look(model.engine, find([place / "pictures"]), profile, options.of(profile))
            return [verdict async for verdict in verdicts if isinstance(verdict, Verdict)]

    if key not in JUDGED:
        JUDGED[key] = asyncio.run(work())
    return JUDGED[key]


def test_every_option_shows_in_some_verdict(place: Path) -> None:
    def shown(**options: Any) -> list[dict[str, object]]:
        return [verdict.to_dict() for verdict in judged(place, DecisionOptions(**options))]

    alone = {"max_price", "max_queries", "max_miss"}
    for name in alone:
        assert shown(**DECISIONS[name]) != shown(), name
    single = shown(max_error=0.08)
    assert shown(**DECISIONS["max_error and level"]) != single
    assert shown(**DECISIONS["max_error by label"]) != single
    everything = DECISIONS["all options"]
    # An estimate has no level, `all` goes before limits, and five pictures are too few for an alarm.
    for name in set(everything) - alone - {"level", "on_drift"}:
        rest: dict[str, Any] = {option: value for option, value in everything.items() if option != name}
        assert shown(**rest) != shown(**everything), name


@pytest.mark.parametrize("options", ROWS)
def test_look_and_score_on_the_command_line(place: Path, tmp_path: Path, options: DecisionKeywords) -> None:
    look_and_score(call, place, tmp_path, options)


def test_look_and_score_in_processes_of_their_own(place: Path, tmp_path: Path) -> None:
    look_and_score(run, place, tmp_path, {"all": True})


def look_and_score(run: Run, place: Path, tmp_path: Path, options: DecisionKeywords) -> None:
    expected = judged(place, DecisionOptions(**options))
    words = (place / "pictures", "--profile", place / "profile.json", *arguments(options))
    looked = run("look", *words, "--json")
    assert looked.returncode == 0, looked.stderr
    check([json.loads(line) for line in looked.stdout.splitlines()], expected)
    for ending in ("csv", "jsonl"):
        scored = run("score", *words, "--out", tmp_path / f"out.{ending}")
        assert scored.returncode == 0, scored.stderr
        rows = read(tmp_path / f"out.{ending}")
        check(rows, expected)


def read(path: Path) -> list[Told]:
    """The rows of a file of verdicts; a CSV holds texts, lists as JSON, and nothing for null."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = [name for name, kind in COLUMNS.items() if kind not in ("text", "flag")]
    parsed = [{name: json.loads(row[name]) for name in parts if row[name]} for row in rows]
    return [{name: text or None for name, text in row.items()} | more for row, more in zip(rows, parsed, strict=True)]


@pytest.mark.parametrize("options", ROWS)
def test_the_service(place: Path, options: DecisionKeywords) -> None:
    with started_here("serve", "--profile", place / "profile.json", *arguments(options)) as service:
        ask_service(service, place, options)


def test_the_service_in_a_process_of_its_own(place: Path) -> None:
    words = ("--profile", place / "profile.json", "--port", 0, "--all")
    with started("serve", *words) as service:
        ask_service(service, place, {"all": True})


def ask_service(service: Client, place: Path, options: DecisionKeywords) -> None:
    # Without --max-error a service chooses the guarantee itself; it is the one difference between the interfaces.
    decide = strictest_guarantee(DecisionOptions(**options), Profile.load(place / "profile.json"))
    expected, files = judged(place, decide), sorted((place / "pictures").iterdir())
    uploads = [(file.name, file.read_bytes()) for file in files]
    check([service.form("/v1/look", upload).json() for upload in uploads], expected)
    check(service.form("/v1/looks", *uploads).json()["verdicts"], expected)
    check([last_verdict(service, upload) for upload in uploads], expected)
    said = service.get("/v1/profile").json()
    level = DecisionOptions(**options).level
    assert (said["max_error"], said["level"], said["coverage"]) == (decide.max_error, level, decide.coverage)
    assert said["sets"] == (decide.sets if decide.coverage is not None else None)
    assert (said["unfamiliar"], said["false_alarms"]) == (decide.unfamiliar, decide.false_alarms)


def last_verdict(service: Client, upload: tuple[str, bytes]) -> Told:
    """The verdict among the events of a look."""
    blocks = service.form("/v1/look/events", upload).body.decode().split("\n\n")
    (data,) = [block.partition("data: ")[2] for block in blocks if block.startswith("event: verdict\n")]
    return dict(json.loads(data))


@pytest.mark.parametrize("options", ROWS)
def test_the_library(place: Path, options: DecisionKeywords) -> None:
    expected, files = judged(place, DecisionOptions(**options)), sorted((place / "pictures").iterdir())

    async def looked() -> list[Verdict]:
        async with AsyncModel.load(place / "profile.json") as model:
            return [await model.look(find([place / "pictures"])[n], **options) for n in range(len(files))]

    with Model.load(place / "profile.json") as model:
        scored = [verdict for verdict in model.score(place / "pictures", **options) if isinstance(verdict, Verdict)]
        check(list(map(of_verdict, scored)), expected)
        check([{**of_verdict(model.look(file, **options)), "name": file.name} for file in files], expected)
        given = DecisionOptions(**options)
        check([{**of_verdict(model.look(file, given)), "name": file.name} for file in files], expected)
    check(list(map(of_verdict, asyncio.run(looked()))), expected)


def test_evaluate_says_the_same_on_the_command_line_and_in_the_library(place: Path, tmp_path: Path) -> None:
    clothes = DEMO / "pictures.npz"
    others, scored = find([clothes])[600:900], tmp_path / "scored.jsonl"
    words = ("--profile", place / "profile.json", "--all")
    assert call("score", clothes, "--take", "600:900", "-o", scored, *words).returncode == 0
    told = call("evaluate", clothes, "--take", "400:600", "--unlabelled", scored, "--json", *words)
    expected = json.loads(told.stdout)
    assert (expected["accuracy"]["labels"], expected["accuracy"]["unlabelled"]) == (200, 300)

    async def awaited() -> Evaluation:
        async with AsyncModel.load(place / "profile.json") as model:
            return await model.evaluate(labelled(clothes)[400:600], unlabelled=scored, all=True)

    with Model.load(place / "profile.json") as model:
        verdicts = model.score([*others, *find([clothes])[400:410]], all=True)  # ten of them are labelled
        evaluation = model.evaluate(labelled(clothes)[400:600], unlabelled=verdicts, all=True)
        plain = model.evaluate(labelled(clothes)[400:600], all=True)
    rounded = {name: pytest.approx(value, abs=1e-5) for name, value in expected["accuracy"].items()}
    assert json.loads(json.dumps(evaluation.record())) == {**expected, "accuracy": rounded}  # a file rounds confidences
    assert json.loads(json.dumps(asyncio.run(awaited()).record())) == expected
    assert (plain.accuracy, plain.record()) == (None, {n: v for n, v in evaluation.record().items() if n != "accuracy"})
    assert evaluation.accuracy
    assert evaluation.accuracy.sentence() in evaluation._repr_html_()
    assert f"{100 * evaluation.accuracy.value:.1f} %" in evaluation.lines()[-1]


@pytest.mark.parametrize("options", ROWS)
def test_the_estimator(place: Path, options: DecisionKeywords) -> None:
    estimator = estimator_of(place / "profile.json", **options)
    told = [of_verdict(verdict) for verdict in estimator.verdicts(place / "pictures") if isinstance(verdict, Verdict)]
    check(told, judged(place, DecisionOptions(**options)))


def estimator_of(profile: Path, **options: Any) -> LookTwice:
    """An estimator as `fit` leaves it."""
    estimator = LookTwice(Profile.load(profile).classifier, **options)
    estimator.profile_ = Profile.load(profile)
    return estimator


@pytest.mark.parametrize("options", ROWS)
def test_a_worker_on_ray(place: Path, options: DecisionKeywords) -> None:
    pytest.importorskip("pyarrow")
    rows = worked(place, AskOptions(ledger="off"), DecisionOptions(**options))
    expected = judged(place, DecisionOptions(**options))
    check(rows, expected)


def worked(place: Path, ask: AskOptions, decide: DecisionOptions = PLAIN) -> list[Told]:
    """The rows that a worker on Ray gives for the pictures of a place."""
    scorer = Scorer(place / "profile.json", name="name", decide=decide, options=ask)
    pictures = sorted((place / "pictures").iterdir())
    batch = {
        "name": np.array([file.name for file in pictures], object),
        "bytes": np.array([file.read_bytes() for file in pictures], object),
    }
    try:
        rows: list[Told] = scorer(batch).to_pylist()
    finally:
        scorer.model.close()
    return rows


def test_every_interface_refuses_unfamiliar_pictures_before_asking(place: Path, tmp_path: Path) -> None:
    expected = [verdict.name for verdict in judged(place, DecisionOptions(unfamiliar="refuse"))]
    assert expected == [f"{place}.png" for place in PICTURES]
    why = "a colour picture 1.33 times as wide as high; the labelled pictures are grey and square"
    words = (place / "pictures", "--profile", place / "profile.json", "--unfamiliar", "refuse")
    looked = call("look", *words, "--json")
    refused = [told for line in looked.stdout.splitlines() if "cause" in (told := json.loads(line))]
    assert (looked.returncode, refused) == (
        3,
        [{"name": "fish.png", "cause": "unfamiliar", "message": why, "code": "unfamiliar"}],
    )
    assert call("score", *words, "--out", tmp_path / "out.jsonl").returncode == 3
    (row,) = [row for row in read(tmp_path / "out.jsonl") if row["cause"]]
    assert (row["name"], row["cause"], row["message"], row["queries"]) == ("fish.png", "unfamiliar", why, None)
    with Model.load(place / "profile.json") as library:
        with pytest.raises(ImageError, check=coded("unfamiliar")):
            library.look(place / "pictures" / "fish.png", unfamiliar="refuse")
        assert library.asked.sent == 0
    with started_here("serve", *words[1:]) as service:
        reply = service.form("/v1/look", ("fish.png", (place / "pictures" / "fish.png").read_bytes()))
        assert (reply.status, reply.json()["code"], reply.json()["detail"]) == (422, "unfamiliar", why)
        assert 'looktwice_queries_total{classifier="fashion"} 0.0' in service.get("/metrics").body.decode()


def test_a_burst_is_judged_alike(place: Path) -> None:
    photos = sorted((place / "pictures").iterdir())
    with Model.load(place / "profile.json") as model:
        expected = model.burst([file.read_bytes() for file in photos])
    words = ("--profile", place / "profile.json")
    told = json.loads(call("look", "--burst", *photos, *words, "--json").stdout)
    views = [{**asked, "view": own.view} for asked, own in zip(told["asked"], expected.asked, strict=True)]
    check([{**told, "name": expected.name, "asked": views, "sentence": expected.sentence}], [expected])
    with started_here("serve", *words, *arguments({"max_error": 0.08, "coverage": 0.9})) as service:
        said = service.form("/v1/burst", *[(file.name, file.read_bytes()) for file in photos]).json()
    check([{**said, "name": expected.name}], [expected])
    assert (expected.decision, expected.prediction_set) == (None, None)


# Asking

COUNT, QUESTIONS = 2, 1 + len(PANEL)
EVERYTHING = COUNT * QUESTIONS
N = QUESTIONS + 2
"""A budget that ends within the second picture."""


@dataclass(frozen=True)
class Asked:
    """Two pictures, and a profile of a classifier that is asked about them."""

    folder: Path
    fingerprint: str

    @property
    def profile(self) -> Path:
        return self.folder / "profile.json"

    @property
    def pictures(self) -> list[Path]:
        return sorted((self.folder / "pictures").iterdir())

    def spent(self, ledger: Path) -> DayCost:
        """What the ledger counts, on all days together."""
        days = [day for day in stats(ledger) if day.fingerprint == self.fingerprint]
        sums = (sum(getattr(day, name) for day in days) for name in ("queries", "picos", "answered"))
        return DayCost(self.fingerprint, "", date.min, *sums)


@dataclass(frozen=True)
class Paid(Asked):
    """The same with a classifier that counts what it is asked and answers after a moment."""

    server: Running


def write_files(folder: Path) -> None:
    (folder / "pictures").mkdir()
    for picture in write_pictures(folder / "pictures.npz", COUNT):
        name = picture.name.rpartition("#")[2]
        (folder / "pictures" / f"{name}.png").write_bytes(encode_png(picture.image().pixels))


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("paid")
    write_files(folder)
    with fault_server(delay=0.03) as server:
        profile = write_profile(folder / "profile.json", server.describe(folder))
        yield Paid(folder, profile.fingerprint, server)


Interface = Callable[[Asked, Path, dict[str, Any]], list[Told]]
"""Uses an interface with these options; what is told of each picture that has a verdict."""


def by_look(asked: Asked, tmp_path: Path, options: dict[str, Any], run: Run = call) -> list[Told]:
    done = run("look", *asked.pictures, "--profile", asked.profile, "--json", *arguments(options))
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return [{**each, "name": Path(each["name"]).name} for each in told if "asked" in each]


def by_score(asked: Asked, tmp_path: Path, options: dict[str, Any], run: Run = call) -> list[Told]:
    out = tmp_path / "verdicts.jsonl"
    run("score", asked.folder / "pictures", "--profile", asked.profile, "--out", out, *arguments(options))
    return [row for row in read(out) if row["asked"]]


def by_service(asked: Asked, tmp_path: Path, options: dict[str, Any]) -> list[Told]:
    with started_here("serve", "--profile", asked.profile, *arguments(options)) as service:
        return looked_at(service, asked)


def by_served_process(asked: Asked, tmp_path: Path, options: dict[str, Any]) -> list[Told]:
    with started("serve", "--profile", asked.profile, "--port", 0, *arguments(options)) as service:
        return looked_at(service, asked)


def looked_at(service: Client, asked: Asked) -> list[Told]:
    said = [service.form("/v1/look", (file.name, file.read_bytes())).json() for file in asked.pictures]
    return [reply for reply in said if "asked" in reply]


def by_model_look(asked: Asked, tmp_path: Path, options: dict[str, Any]) -> list[Told]:
    told = []
    with Model.load(asked.profile, **options) as model:
        for file in asked.pictures:
            with suppress(BudgetError):
                told.append({**of_verdict(model.look(file)), "name": file.name})
    return told


def by_model_score(
    asked: Asked, tmp_path: Path, options: dict[str, Any], decide: DecisionOptions = PLAIN
) -> list[Told]:
    with Model.load(asked.profile, options=AskOptions(**options)) as model:
        return [of_verdict(v) for v in model.score(asked.folder / "pictures", decide) if isinstance(v, Verdict)]


def by_async_look(asked: Asked, tmp_path: Path, options: dict[str, Any]) -> list[Told]:
    async def work() -> list[Told]:
        told = []
        async with AsyncModel.load(asked.profile, **options) as model:
            for file in asked.pictures:
                with suppress(BudgetError):
                    told.append({**of_verdict(await model.look(file)), "name": file.name})
        return told

    return asyncio.run(work())


def by_estimator(asked: Asked, tmp_path: Path, options: dict[str, Any]) -> list[Told]:
    estimator = estimator_of(asked.profile, **options)
    # The seed of an estimator is that of its fit.
    seed = options.get("seed", estimator.profile_.seed)
    estimator.profile_ = estimator.profile_.model_copy(update={"seed": seed})
    verdicts = estimator.verdicts(asked.folder / "pictures")
    return [of_verdict(verdict) for verdict in verdicts if isinstance(verdict, Verdict)]


def by_worker(asked: Asked, tmp_path: Path, options: dict[str, Any]) -> list[Told]:
    pytest.importorskip("pyarrow")
    return [row for row in worked(asked.folder, AskOptions(**options)) if row["asked"]]


INTERFACES: dict[str, Interface] = {
    "look": by_look,
    "score": by_score,
    "service": by_service,
    "Model.look": by_model_look,
    "Model.score": by_model_score,
    "AsyncModel.look": by_async_look,
    "LookTwice.verdicts": by_estimator,
    "worker": by_worker,
}
PROCESSES: dict[str, Interface] = {
    "look": partial(by_look, run=run),
    "score": partial(by_score, run=run),
    "service": by_served_process,
}
"""The interfaces that users start as processes, so started."""


def expected_at(interface: str, asked: Asked, tmp_path: Path, **options: Any) -> list[Told]:
    """What is to be told of the pictures at an interface, asked anew; a service chooses a guarantee itself."""
    decide = PLAIN
    if interface == "service":
        decide = strictest_guarantee(decide, Profile.load(asked.profile))
    return by_model_score(asked, tmp_path, {"ledger": "off", **options}, decide)


@dataclass(frozen=True)
class Effect:
    """What an interface did."""

    arrivals: list[tuple[float, int]]
    spent: DayCost
    told: list[Told]

    @property
    def seconds(self) -> float:
        return self.arrivals[-1][0] - self.arrivals[0][0]

    @property
    def busiest(self) -> int:
        return max(busy for _, busy in self.arrivals)


def effect(interface: Interface, paid: Paid, tmp_path: Path, ledger: Path, **options: Any) -> Effect:
    """Use an interface with these options, and see what the classifier and the ledger saw of it."""
    before = len(paid.server.arrivals())
    told = interface(paid, tmp_path, {"ledger": str(ledger), **options})
    return Effect(paid.server.arrivals()[before:], paid.spent(ledger), told)


Shows = Callable[[Effect], bool]
"""Whether an option has its effect, on two pictures that are each asked about in five questions."""
LIMITS: dict[str, tuple[dict[str, Any], Shows]] = {
    "budget": ({"budget": N, "rate": 10}, lambda e: len(e.arrivals) == e.spent.queries == N),
    "money": ({"price": "0.01", "money": "0.07"}, lambda e: len(e.arrivals) == e.spent.queries == 7),
    "per_day": ({"per_day": N}, lambda e: len(e.arrivals) == e.spent.queries == N),
    "money_per_day": ({"price": "0.01", "money_per_day": "0.07"}, lambda e: len(e.arrivals) == e.spent.queries == 7),
}
"""Options of which one would hide the others."""
COUNTED: dict[str, Any] = {"price": "0.01", "concurrency": 1, "canaries": 0}
EFFECTS: dict[str, Shows] = {
    "price": lambda e: e.spent.micros == len(e.arrivals) * 10_000,
    "concurrency": lambda e: e.busiest == 1,
    "canaries": lambda e: len(e.arrivals) == QUESTIONS,
    "ledger": lambda e: e.spent.answered == EVERYTHING,
}
DRAWN: dict[str, Any] = {"seed": 7, "working_size": 8}
"""Options that change what is asked, and so the verdicts."""
ELSEWHERE = {"scores", "longest_wait"}
"""They show where a classifier gives scores (test_score_interfaces.py) or asks for a long wait (test_engine.py)."""


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("option", LIMITS)
def test_a_limit_is_kept_at_every_interface(paid: Paid, tmp_path: Path, interface: str, option: str) -> None:
    options, shows = LIMITS[option]
    done = effect(INTERFACES[interface], paid, tmp_path, tmp_path / "ledger.db", **options)
    assert shows(done), done
    assert "rate" not in options or done.seconds > 0.5 * (N - 1) / options["rate"], "not even with a server that stalls"


@pytest.mark.parametrize("interface", INTERFACES)
def test_an_option_of_asking_has_its_effect_at_every_interface(paid: Paid, tmp_path: Path, interface: str) -> None:
    done = effect(INTERFACES[interface], paid, tmp_path, begun(paid, tmp_path), **COUNTED)
    assert {name: shows(done) for name, shows in EFFECTS.items()} == dict.fromkeys(EFFECTS, True), done
    told = INTERFACES[interface](paid, tmp_path, {"ledger": "off", **DRAWN})
    check_told(told, expected_at(interface, paid, tmp_path, **DRAWN))


def begun(paid: Paid, tmp_path: Path) -> Path:
    """A ledger with the answers about the first picture, which can be canaries."""
    ledger = tmp_path / "begun.db"
    ledger.unlink(missing_ok=True)
    with Model.load(paid.profile, ledger=str(ledger)) as model:
        model.look(paid.pictures[0])
    return ledger


def test_without_an_option_there_is_no_such_effect(paid: Paid, tmp_path: Path) -> None:
    plain = effect(by_model_score, paid, tmp_path, tmp_path / "ledger.db")
    assert not any(shows(plain) for _, shows in LIMITS.values())
    for name in COUNTED:
        others = {option: value for option, value in COUNTED.items() if option != name}
        done = effect(by_model_score, paid, tmp_path, begun(paid, tmp_path), **others)
        assert not EFFECTS[name](done), name
    drawn = by_model_score(paid, tmp_path, {"ledger": "off", **DRAWN})
    for name, value in DRAWN.items():
        assert by_model_score(paid, tmp_path, {"ledger": "off", name: value}) != drawn, name


def test_what_one_interface_paid_for_no_other_asks_again(paid: Paid, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert len(effect(by_model_score, paid, tmp_path, ledger).told) == COUNT
    for name, interface in (INTERFACES | PROCESSES).items():
        shown = effect(interface, paid, tmp_path, ledger)
        assert (name, shown.arrivals) == (name, [])
        check_told(shown.told, expected_at(name, paid, tmp_path))


# Asking chat models


@dataclass(frozen=True)
class Chat(Asked):
    """The same with a chat model that keeps its own bill."""

    vendor: BatchReplica

    @property
    def options(self) -> dict[str, Any]:
        return {"prices": str(self.folder / "prices.toml")}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    folder = tmp_path / "chat"
    folder.mkdir()
    write_files(folder)
    vendor = BatchReplica(HOUSES["openai"]())
    with served(app_of(vendor.house, vendor.app())) as address:
        (folder / "model.toml").write_text(description(vendor.house, address))
        (folder / "prices.toml").write_text(PRICES)
        yield Chat(folder, write_profile(folder / "profile.json", folder / "model.toml").fingerprint, vendor)


IN_BATCHES = [name for name in INTERFACES if name not in ("service", "worker")]
"""The interfaces whose users can wait; the others refuse."""


@pytest.mark.parametrize("interface", sorted(set(INTERFACES) - set(IN_BATCHES)))
def test_a_table_of_prices_makes_the_vendors_bill_at_every_interface(
    chat: Chat, tmp_path: Path, interface: str
) -> None:
    ledger = tmp_path / "ledger.db"
    told = INTERFACES[interface](chat, tmp_path, {"ledger": str(ledger), **chat.options})
    spent, bill = chat.spent(ledger), chat.vendor.house.bill
    assert (chat.vendor.house.calls, spent.answered, spent.queries) == (EVERYTHING,) * 3
    assert spent.micros == math.ceil(bill) > 0
    check_told(told, expected_at(interface, chat, tmp_path), priced=False)


@pytest.mark.parametrize("interface", IN_BATCHES)
def test_a_batch_has_the_same_verdicts_at_half_the_price_at_every_interface(
    chat: Chat, tmp_path: Path, interface: str
) -> None:
    ledger = tmp_path / "ledger.db"
    told = INTERFACES[interface](chat, tmp_path, {"ledger": str(ledger), **chat.options, "batch": True})
    spent, bill = chat.spent(ledger), chat.vendor.house.bill
    assert sum(len(batch.lines) for batch in chat.vendor.batches.values()) == spent.queries == EVERYTHING
    assert spent.micros == math.ceil(bill)
    check_told(told, expected_at(interface, chat, tmp_path), priced=False)
    assert chat.vendor.house.bill == bill * 3, "one by one, the same questions cost twice as much"


def test_where_nobody_can_wait_for_a_batch_it_is_refused_before_anything_is_asked(chat: Chat, tmp_path: Path) -> None:
    model, pictures = chat.folder / "model.toml", chat.folder / "pictures"
    options = ("--ledger", tmp_path / "ledger.db", *arguments(chat.options), "--batch")
    on_ray = ("score", pictures, "-p", chat.profile, "-o", tmp_path / "out", "--engine", "ray")
    for words in (on_ray, ("check", model, chat.pictures[0])):
        done = call(*words, *options)
        assert (done.returncode, done.stdout, code_in(done.stderr)) == (1, "", "option-conflict")
    for words_of in (("serve", "-p", chat.profile), ("label", pictures, "-c", model)):
        with pytest.raises(LookTwiceError, check=coded("option-conflict")), started_here(*words_of, *options):
            pass
    with pytest.raises(LookTwiceError, check=coded("option-conflict")), Model(model, batch=True) as asked:
        asked.check(chat.pictures[0])
    assert chat.vendor.house.calls == len(chat.vendor.batches) == 0


async def test_a_price_on_the_command_line_is_taken_for_a_server_that_tells_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(encode_png(pictures()[0]))
    settings = {name: value for name, value in read_toml(MODEL / "fashion.toml").items() if name in ("mean", "std")}
    async with Replica().running(oip_routes(Served())) as replica:
        lines = ['connector = "oip"', f'url = "{replica.url}/fashion"', *(f"{k} = {v}" for k, v in settings.items())]
        (tmp_path / "oip.toml").write_text("\n".join([*lines, f"labels = {json.dumps(model().labels)}"]))
        words = ("--price", "0.002", "--ledger", tmp_path / "ledger.db", "--json")
        done = await asyncio.to_thread(run, "check", tmp_path / "oip.toml", tmp_path / "picture.png", *words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["price_micros"] == 2_000
        (day,) = stats(tmp_path / "ledger.db")
        assert (day.fingerprint, day.micros) == (json.loads(done.stdout)["fingerprint"], len(replica.asked) * 2_000)
