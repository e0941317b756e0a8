"""Every option has the same effect at every door: command line, service, worker, library and estimator."""

from __future__ import annotations

import asyncio
import base64
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from conformance.oip_replica import Served, oip_routes
from conformance.replica import DEMO as MODEL
from conformance.replica import Replica, model, pictures
from faults import Running, fault_server
from parity import DECISIONS, FIELDS, PICTURES, ROWS, Told, arguments, check, of_row, of_verdict, write_place
from serving import Service, started
from workshop import PANEL, command, run, write_pictures, write_profile

from looktwice.asking.ledger import SqliteLedger
from looktwice.asking.ledger.protocol import Account
from looktwice.asking.session import AskKeywords, AskOptions
from looktwice.classifiers.settings import read_toml
from looktwice.cli.app import app
from looktwice.errors import BudgetError, ImageError
from looktwice.estimator import LookTwice
from looktwice.fleet.shards import Shards
from looktwice.fleet.sources import units
from looktwice.fleet.worker import Job, Scorer
from looktwice.model import AsyncModel, Model
from looktwice.pictures.collection import find
from looktwice.pictures.image import encode_png
from looktwice.service.replies import VerdictReply
from looktwice.service.server import guaranteeing
from looktwice.verdicts import look as looking
from looktwice.verdicts.look import Verdict
from looktwice.verdicts.policy import DecisionKeywords, DecisionOptions
from looktwice.verdicts.profile import Profile

# The table


def options_of(options: type) -> list[str]:
    """The options that a user sets; which command asks is told by each door itself."""
    return [field.name for field in fields(options) if field.name != "command"]


@pytest.mark.parametrize(("options", "keywords"), [(DecisionOptions, DecisionKeywords), (AskOptions, AskKeywords)])
def test_the_keywords_are_the_fields(options: type, keywords: type) -> None:
    assert get_type_hints(keywords) == {name: get_type_hints(options)[name] for name in options_of(options)}


def test_every_decision_option_is_in_the_table_alone_and_with_all_others() -> None:
    names, default = {field.name for field in fields(DecisionOptions)}, asdict(DecisionOptions())
    rows = [{name for name, value in row.items() if value != default[name]} for row in DECISIONS.values()]
    assert all({name} in rows for name in names)
    assert names in rows


def test_every_ask_option_is_in_the_table() -> None:
    assert set(EFFECTS) == set(options_of(AskOptions))


@pytest.mark.parametrize("name", ["fit", "tune", "look", "score", "evaluate", "check", "transfer", "borrow", "serve"])
def test_the_command_line_has_every_option(name: str) -> None:
    group = typer.main.get_command(app)
    taken = {option for parameter in group.commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]
    wanted = options_of(AskOptions)
    if name in ("look", "score", "evaluate", "serve"):
        wanted += options_of(DecisionOptions)
    assert {f"--{option.replace('_', '-')}" for option in wanted} <= taken


def test_the_estimator_has_every_option_with_the_same_default() -> None:
    # It keeps answers as long as the process lives, in which nobody changes the classifier.
    defaults = {**asdict(AskOptions()), **asdict(DecisionOptions()), "ledger": "memory", "seed": 0, "canaries": 0}
    parameters = LookTwice().get_params()
    for name in options_of(AskOptions) + options_of(DecisionOptions):
        assert parameters[name] == defaults[name], name


def test_the_service_replies_with_every_field() -> None:
    assert set(VerdictReply.model_fields) == {*FIELDS, "sentence"}


# Decisions


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("parity"))


def judged(place: Path, options: DecisionOptions) -> list[Verdict]:
    """What the road itself says, without a door."""
    profile = Profile.load(place / "profile.json")

    async def work() -> list[Verdict]:
        async with AsyncModel(profile.classifier) as model:
            found = looking.look(model.asker, find([place / "pictures"]), profile, options.of(profile))
            return [verdict async for verdict in found if isinstance(verdict, Verdict)]

    return asyncio.run(work())


def test_every_option_shows_in_some_verdict(place: Path) -> None:
    told = {name: judged(place, DecisionOptions(**options)) for name, options in DECISIONS.items()}
    for name, less in (
        ("adaptive", "none"),
        ("max_error", "none"),
        ("max_error and level", "max_error"),
        ("coverage", "none"),
        ("coverage and sets", "coverage"),
        ("unfamiliar", "none"),
        ("false_alarms", "none"),
    ):
        assert told[name] != told[less], name
    everything = DECISIONS["all"]
    for name in everything:
        rest: dict[str, Any] = {option: value for option, value in everything.items() if option != name}
        assert judged(place, DecisionOptions(**rest)) != told["all"], name


@pytest.mark.parametrize("options", ROWS)
def test_look_and_score_on_the_command_line(place: Path, tmp_path: Path, options: DecisionKeywords) -> None:
    expected = judged(place, DecisionOptions(**options))
    words = (place / "pictures", "--profile", place / "profile.json", *arguments(options))
    looked = run("look", *words, "--json")
    assert looked.returncode == 0, looked.stderr
    check([json.loads(line) for line in looked.stdout.splitlines()], expected)
    for ending in ("csv", "jsonl"):
        scored = run("score", *words, "--out", tmp_path / f"out.{ending}")
        assert scored.returncode == 0, scored.stderr
        rows = read(tmp_path / f"out.{ending}")
        check([of_row(row, verdict) for row, verdict in zip(rows, expected, strict=True)], expected)


def read(path: Path) -> list[Told]:
    """The rows of a file of verdicts; a CSV holds texts, lists as JSON, and nothing for null."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = ("confidence", "low", "high", "agree", "queries", "votes", "prediction_set", "score", "familiarity")
    parsed = [{name: json.loads(row[name]) for name in parts if row[name]} for row in rows]
    return [{name: text or None for name, text in row.items()} | more for row, more in zip(rows, parsed, strict=True)]


@pytest.mark.parametrize("options", ROWS)
def test_the_service(place: Path, options: DecisionKeywords) -> None:
    # Without --max-error a service chooses the guarantee itself; it is the one difference between the doors.
    decide = guaranteeing(DecisionOptions(**options), Profile.load(place / "profile.json"))
    expected, files = judged(place, decide), sorted((place / "pictures").iterdir())
    words = ("--profile", place / "profile.json", "--port", 0, *arguments(options))
    with started(command("serve", *words)) as service:
        uploads = [(file.name, file.read_bytes()) for file in files]
        check([of_reply(service.form("/v1/look", upload).json()) for upload in uploads], expected)
        check([of_reply(said) for said in service.form("/v1/looks", *uploads).json()["verdicts"]], expected)
        check([of_reply(last_verdict(service, upload)) for upload in uploads], expected)
        inferred = infer(service, [data for _, data in uploads])
        check([{**told, "name": file.name} for told, file in zip(inferred, files, strict=True)], expected)
        said = service.get("/v1/profile").json()
    level = DecisionOptions(**options).level
    assert (said["max_error"], said["level"], said["coverage"]) == (decide.max_error, level, decide.coverage)
    assert said["sets"] == (decide.sets if decide.coverage is not None else None)
    assert (said["unfamiliar"], said["false_alarms"]) == (decide.unfamiliar, decide.false_alarms)


def of_reply(said: Told) -> Told:
    return {**said, "votes": [[vote["view"], vote["label"]] for vote in said["votes"]]}


def last_verdict(service: Service, upload: tuple[str, bytes]) -> Told:
    """The verdict among the events of a look."""
    blocks = service.form("/v1/look/events", upload).body.decode().split("\n\n")
    (data,) = [block.partition("data: ")[2] for block in blocks if block.startswith("event: verdict\n")]
    return dict(json.loads(data))


def infer(service: Service, files: Sequence[bytes]) -> list[Told]:
    """Every output of the Open Inference Protocol, picture by picture."""
    model = "/v2/models/looktwice"
    data = [base64.b64encode(file).decode() for file in files]
    wanted = [{"name": output["name"]} for output in service.get(model).json()["outputs"]]
    asked = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}], "outputs": wanted}
    reply = service.post(f"{model}/infer", json.dumps(asked).encode(), "application/json")
    assert reply.status == 200, reply.body
    columns = {tensor["name"]: tensor["data"] for tensor in reply.json()["outputs"]}
    told = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [
        of_reply(
            {
                **row,
                "decision": row["decision"] or None,
                "votes": json.loads(row["votes"]),
                "prediction_set": json.loads(row["prediction_set"]),
                "score": json.loads(row["score"]),
                "familiarity": None if row["familiarity"] == -1 else row["familiarity"],
                "unfamiliar_because": row["unfamiliar_because"] or None,
            }
        )
        for row in told
    ]


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
def test_a_worker_of_a_fleet(place: Path, tmp_path: Path, options: DecisionKeywords) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    profile, decide = Profile.load(place / "profile.json"), DecisionOptions(**options)
    Shards(str(tmp_path / "out")).begin({})
    job = Job(profile, profile.classifier, AskOptions(ledger="off"), decide, str(Path.cwd()), str(tmp_path / "out"))

    async def work() -> None:
        scorer = Scorer(job)
        for unit in units([str(place / "pictures")], 100):
            assert (await scorer.work(unit)).error is None
        await scorer.close()

    asyncio.run(work())
    expected = judged(place, decide)
    rows = sorted(pq.read_table(tmp_path / "out").to_pylist(), key=lambda row: str(row["name"]))
    check([of_row(row, verdict) for row, verdict in zip(rows, expected, strict=True)], expected)


def test_every_door_refuses_unfamiliar_pictures_before_asking(place: Path, tmp_path: Path) -> None:
    expected = [verdict.name for verdict in judged(place, DecisionOptions(unfamiliar="refuse"))]
    assert expected == [f"{place}.png" for place in PICTURES]
    why = "a colour picture of 40 × 30; the labelled pictures are grey and 28 × 28"
    words = (place / "pictures", "--profile", place / "profile.json", "--unfamiliar", "refuse")
    looked = run("look", *words, "--json")
    refused = [told for line in looked.stdout.splitlines() if "cause" in (told := json.loads(line))]
    assert (looked.returncode, refused) == (3, [{"name": "fish.png", "cause": "unfamiliar", "message": why}])
    assert run("score", *words, "--out", tmp_path / "out.jsonl").returncode == 3
    (row,) = [row for row in read(tmp_path / "out.jsonl") if row["cause"]]
    assert (row["name"], row["cause"], row["message"], row["queries"]) == ("fish.png", "unfamiliar", why, None)
    with Model.load(place / "profile.json") as library:
        with pytest.raises(ImageError, match="a colour picture of 40 × 30"):
            library.look(place / "pictures" / "fish.png", unfamiliar="refuse")
        assert library._model.asked.sent == 0
    with started(command("serve", *words[1:], "--port", 0)) as service:
        reply = service.form("/v1/look", ("fish.png", (place / "pictures" / "fish.png").read_bytes()))
        assert (reply.status, reply.json()["code"], reply.json()["detail"]) == (422, "unfamiliar", why)
        assert "looktwice_queries_total 0.0" in service.get("/metrics").body.decode()


def test_a_burst_is_judged_alike(place: Path) -> None:
    photos = sorted((place / "pictures").iterdir())
    with Model.load(place / "profile.json") as model:
        expected = model.burst([file.read_bytes() for file in photos])
    words = ("--profile", place / "profile.json")
    told = json.loads(run("look", "--burst", *photos, *words, "--json").stdout)
    views = [view for view, _ in expected.votes]
    labels = [label for _, label in told["votes"]]
    check([{**told, "name": expected.name, "votes": [list(v) for v in zip(views, labels, strict=True)]}], [expected])
    with started(command("serve", *words, "--port", 0, *arguments({"max_error": 0.08, "coverage": 0.9}))) as service:
        said = service.form("/v1/burst", *[(file.name, file.read_bytes()) for file in photos]).json()
    check([{**of_reply(said), "name": expected.name}], [expected])
    assert (expected.decision, expected.prediction_set) == (None, None)


# Asking

COUNT, QUESTIONS = 2, 1 + len(PANEL)
EVERYTHING = COUNT * QUESTIONS
N = QUESTIONS + 2
"""A budget that ends within the second picture."""


@dataclass(frozen=True)
class Paid:
    """Pictures, and a profile of a classifier that counts what it is asked and answers after a moment."""

    folder: Path
    server: Running
    fingerprint: str

    @property
    def profile(self) -> Path:
        return self.folder / "profile.json"

    @property
    def pictures(self) -> list[Path]:
        return sorted((self.folder / "pictures").iterdir())

    def spent(self, ledger: Path) -> Account:
        with SqliteLedger(ledger) as book:
            return book.spent(self.fingerprint)


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paid]:
    folder = tmp_path_factory.mktemp("paid")
    (folder / "pictures").mkdir()
    for picture in write_pictures(folder / "pictures.npz", COUNT):
        name = picture.name.rpartition("#")[2]
        (folder / "pictures" / f"{name}.png").write_bytes(encode_png(picture.image().pixels))
    with fault_server(delay=0.03) as server:
        profile = write_profile(folder / "profile.json", server.describe(folder))
        yield Paid(folder, server, profile.fingerprint)


Votes = list[list[object]]
"""The votes about each picture that has a verdict."""
Door = Callable[[Paid, Path, dict[str, Any]], Votes]


def by_look(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    done = run("look", *paid.pictures, "--profile", paid.profile, "--json", *arguments(options))
    return _votes([json.loads(line) for line in done.stdout.splitlines()])


def by_score(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    out = tmp_path / "verdicts.jsonl"
    run("score", paid.folder / "pictures", "--profile", paid.profile, "--out", out, *arguments(options))
    return [list(row["votes"]) for row in read(out) if row["votes"]]


def by_service(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    with started(command("serve", "--profile", paid.profile, "--port", 0, *arguments(options))) as service:
        said = [service.post("/v1/look", file.read_bytes()).json() for file in paid.pictures]
    return _votes([of_reply(reply) for reply in said if "votes" in reply])


def by_model_look(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    verdicts = []
    with Model.load(paid.profile, **options) as model:
        for file in paid.pictures:
            try:
                verdicts.append(of_verdict(model.look(file)))
            except BudgetError:
                continue
    return _votes(verdicts)


def by_model_score(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    with Model.load(paid.profile, options=AskOptions(**options)) as model:
        return _votes([of_verdict(v) for v in model.score(paid.folder / "pictures") if isinstance(v, Verdict)])


def by_async_look(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    async def work() -> Votes:
        async with AsyncModel.load(paid.profile, **options) as model:
            looks = [await asyncio.gather(model.look(file), return_exceptions=True) for file in paid.pictures]
            return _votes([of_verdict(verdict) for (verdict,) in looks if isinstance(verdict, Verdict)])

    return asyncio.run(work())


def by_estimator(paid: Paid, tmp_path: Path, options: dict[str, Any]) -> Votes:
    estimator = estimator_of(paid.profile, **options)
    # The seed of an estimator is that of its fit.
    seed = options.get("seed", estimator.profile_.seed)
    estimator.profile_ = estimator.profile_.model_copy(update={"seed": seed})
    verdicts = estimator.verdicts(paid.folder / "pictures")
    return _votes([of_verdict(verdict) for verdict in verdicts if isinstance(verdict, Verdict)])


def _votes(told: Sequence[Told]) -> Votes:
    return [[label for _, label in each["votes"]] for each in told if "votes" in each]


DOORS: dict[str, Door] = {
    "look": by_look,
    "score": by_score,
    "service": by_service,
    "Model.look": by_model_look,
    "Model.score": by_model_score,
    "AsyncModel.look": by_async_look,
    "LookTwice.verdicts": by_estimator,
}


@dataclass(frozen=True)
class Effect:
    """What a door did."""

    arrivals: list[tuple[float, int]]
    spent: Account
    votes: Votes

    @property
    def seconds(self) -> float:
        return self.arrivals[-1][0] - self.arrivals[0][0]

    @property
    def busiest(self) -> int:
        return max(busy for _, busy in self.arrivals)


def effect(door: Door, paid: Paid, tmp_path: Path, ledger: Path, **options: Any) -> Effect:
    """Go through a door with these options, and see what the classifier and the ledger saw of it."""
    before = len(paid.server.arrivals())
    votes = door(paid, tmp_path, {"ledger": str(ledger), **options})
    return Effect(paid.server.arrivals()[before:], paid.spent(ledger), votes)


EFFECTS: dict[str, tuple[dict[str, Any], Callable[[Effect], bool]]] = {
    "ledger": ({}, lambda e: e.spent.answered == len(e.arrivals) == EVERYTHING and e.spent.micros == 0),
    "budget": ({"budget": N}, lambda e: len(e.arrivals) == e.spent.queries == N),
    "money": ({"price": "0.01", "money": "0.07"}, lambda e: len(e.arrivals) == e.spent.queries == 7),
    "price": ({"price": "0.01"}, lambda e: e.spent.micros == EVERYTHING * 10_000),
    "rate": ({"rate": 10}, lambda e: e.seconds > 0.8 * (EVERYTHING - 1) / 10),
    "concurrency": ({"concurrency": 1}, lambda e: e.busiest == 1),
    "canaries": ({"canaries": 0}, lambda e: len(e.arrivals) == QUESTIONS),
    "seed": ({"seed": 7}, lambda e: len(e.votes) == COUNT),
    "working_size": ({"working_size": 8}, lambda e: len(e.votes) == COUNT),
    "per_day": ({"per_day": N}, lambda e: len(e.arrivals) == e.spent.queries == N),
    # It shows where a classifier wants to be left alone: see test_asking.py.
    "longest_wait": ({"longest_wait": 5.0}, lambda e: len(e.arrivals) == e.spent.queries),
    # It shows where a classifier gives scores: see test_score_doors.py.
    "scores": ({"scores": "ignore"}, lambda e: len(e.votes) == COUNT),
    "money_per_day": ({"price": "0.01", "money_per_day": "0.07"}, lambda e: len(e.arrivals) == e.spent.queries == 7),
}
"""Each option, with what it needs, and the effect that it has: on two pictures, each asked about in five questions."""


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("option", EFFECTS)
def test_an_option_of_asking_has_its_effect(paid: Paid, tmp_path: Path, door: Door, option: str) -> None:
    options, shows = EFFECTS[option]
    found = effect(door, paid, tmp_path, begun(paid, tmp_path, option), **options)
    assert shows(found), found
    if option in ("seed", "working_size"):
        assert found.votes == by_model_score(paid, tmp_path, {"ledger": "off", **options})


def begun(paid: Paid, tmp_path: Path, option: str) -> Path:
    """A ledger without an answer; for canaries, with those about the first picture."""
    ledger = tmp_path / f"{option}.db"
    if option == "canaries":
        with Model.load(paid.profile, ledger=str(ledger)) as model:
            model.look(paid.pictures[0])
    return ledger


@pytest.mark.parametrize("option", sorted(set(EFFECTS) - {"ledger", "seed", "longest_wait", "scores", "working_size"}))
def test_without_the_option_there_is_no_such_effect(paid: Paid, tmp_path: Path, option: str) -> None:
    plain = effect(by_model_score, paid, tmp_path, begun(paid, tmp_path, option))
    assert not EFFECTS[option][1](plain), plain


@pytest.mark.parametrize("option", ["seed", "working_size"])
def test_another_seed_or_working_size_asks_other_questions(paid: Paid, tmp_path: Path, option: str) -> None:
    plain = by_model_score(paid, tmp_path, {"ledger": "off"})
    assert plain != by_model_score(paid, tmp_path, {"ledger": "off", **EFFECTS[option][0]})


def test_what_one_door_paid_for_no_other_asks_again(paid: Paid, tmp_path: Path) -> None:
    first, *others = DOORS
    ledger = tmp_path / "ledger.db"
    votes = effect(DOORS[first], paid, tmp_path, ledger).votes
    assert len(votes) == COUNT
    for name in others:
        found = effect(DOORS[name], paid, tmp_path, ledger)
        assert (name, found.arrivals, found.votes) == (name, [], votes)


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
        with SqliteLedger(tmp_path / "ledger.db") as ledger:
            assert ledger.spent(json.loads(done.stdout)["fingerprint"]).micros == len(replica.asked) * 2_000
