"""Every connector gives right labels, sorts failures, keeps secrets and cleans up after itself."""

from __future__ import annotations

import asyncio
import base64
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from support.errors import coded

from conformance.cases import CASES, KEY, Case, Gives
from conformance.replica import ECHO, FAULTS, HANG, Fault, Replica, meant, pictures, shares_of
from looktwice.classifiers.base import MOST_OPTIONS, AnyClassifier, reading
from looktwice.classifiers.settings import Encoding
from looktwice.errors import PermanentError, TransientError
from looktwice.model import AsyncModel

SECRET = "s3cr3t/+key==&x y"
EVERY = [pytest.param(case, id=case.name) for case in CASES]
SERVED = [pytest.param(case, id=case.name) for case in CASES if case.routes]
FAILING = [
    pytest.param(case, fault, id=f"{case.name}-{fault.name}")
    for case in CASES
    if case.routes
    for fault in FAULTS
    if fault.name not in case.spared
]


class Opened:
    """A case that runs: its replica, if it has one, and a way to connect that closes what it opened."""

    def __init__(self, case: Case, replica: Replica, place: str, stack: AsyncExitStack) -> None:
        self.case = case
        self.replica = replica
        self.place = place
        self._stack = stack

    def connect(self, **changes: object) -> AnyClassifier:
        classifier = self.case.connect(self.place, changes)
        self._stack.push_async_callback(classifier.close)
        return classifier


@pytest.fixture
async def opened(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    monkeypatch.setenv(KEY, SECRET)
    replica = Replica()
    async with AsyncExitStack() as stack:
        if case.routes:
            await stack.enter_async_context(replica.running(case.routes()))
        yield Opened(case, replica, replica.url or str(tmp_path), stack)


async def ask(classifier: AnyClassifier, count: int = 1) -> list[str]:
    """The labels of the first pictures, asked in one call."""
    batch = [classifier.prepare(image) for image in pictures()[:count]]
    return [answer.label for answer in meant(classifier, await classifier.label(batch))]


@pytest.mark.parametrize("case", EVERY)
async def test_labels_are_those_of_the_model_behind_it(opened: Opened) -> None:
    classifier = opened.connect()
    answers = [(await classifier.label([classifier.prepare(image)]))[0] for image in pictures()[:6]]
    said = [answer.label for answer in meant(classifier, answers)]
    assert said == opened.case.truth(pictures()[:6])
    assert len(set(said)) > 1


@pytest.mark.parametrize(
    ("case", "gives"),
    [pytest.param(case, gives, id=f"{case.name}: {gives}") for case in CASES for gives in case.saying],
)
async def test_answers_hold_scores_and_ranked_lists_where_the_service_gives_them(opened: Opened, gives: Gives) -> None:
    classifier = opened.connect(**opened.case.saying[gives])
    (answer,) = await classifier.label([classifier.prepare(pictures()[1])])
    if gives == "score":
        assert answer.options == ()
        assert answer.score is not None
        assert 0.5 < answer.score < 1
        return
    assert 1 < len(answer.options) <= MOST_OPTIONS
    assert answer.options[0] == (answer.label, answer.score)
    told = [score for _, score in answer.options if score is not None]
    assert len(told) == (0 if gives == "ranks" else len(answer.options))
    assert told == sorted(told, reverse=True)


@pytest.mark.parametrize("case", EVERY)
async def test_a_service_that_gives_a_label_alone_has_no_scores(opened: Opened) -> None:
    if {} not in opened.case.saying.values():
        classifier = opened.connect()
        (answer,) = await classifier.label([classifier.prepare(pictures()[0])])
        assert (answer.score, answer.options) == (None, ())


@pytest.mark.parametrize(
    "case", [case for case in CASES if "score" in case.saying and case.routes], ids=lambda c: c.name
)
async def test_a_score_is_the_probability_that_the_model_gives_to_the_label(opened: Opened) -> None:
    classifier = opened.connect(**opened.case.saying["score"])
    for image in pictures()[:6]:
        (answer,) = meant(classifier, await classifier.label([classifier.prepare(image)]))
        assert answer.score == pytest.approx(shares_of(Encoding().encode(image))[answer.label], rel=1e-5)


@pytest.mark.parametrize("case", EVERY)
async def test_a_price_among_the_options_is_what_the_ledger_books(opened: Opened, tmp_path: Path) -> None:
    async with AsyncModel(opened.connect(), ledger=str(tmp_path / "ledger.db"), price="0.002") as asking:
        collected = await asking.ask([pictures()[0]], views="mirror")
        assert len(collected.votes) == 1
        assert asking.engine.spend().micros == asking.asked.micros == 2 * 2_000


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
async def test_a_batch_keeps_its_order(opened: Opened) -> None:
    classifier = opened.connect()
    truth = opened.case.truth(pictures())
    assert await ask(classifier, 12) == truth
    backwards = [classifier.prepare(image) for image in reversed(pictures())]
    assert [answer.label for answer in meant(classifier, await classifier.label(backwards))] == truth[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
async def test_many_calls_at_once_get_their_own_answers(opened: Opened) -> None:
    classifier = opened.connect()
    prepared = [classifier.prepare(image) for image in pictures()]
    picks = [i * 5 % len(prepared) for i in range(opened.case.crowd)]
    said = await asyncio.gather(*(classifier.label([prepared[i]]) for i in picks))
    truth = opened.case.truth(pictures())
    heard = meant(classifier, [answer for (answer,) in said])
    assert [answer.label for answer in heard] == [truth[i] for i in picks]


@pytest.mark.parametrize("case", EVERY)
async def test_the_same_description_has_the_same_fingerprint(opened: Opened) -> None:
    assert opened.connect().fingerprint == opened.connect().fingerprint


@pytest.mark.parametrize("case", EVERY)
async def test_the_fingerprint_changes_with_all_that_could_change_answers(opened: Opened) -> None:
    made = [opened.connect(**changes) for changes in ({}, *opened.case.telling)]
    prints = [(each.fingerprint, reading(each)) for each in made]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("case", EVERY)
async def test_the_fingerprint_stays_when_only_the_manner_of_asking_changes(opened: Opened) -> None:
    before = opened.connect().fingerprint
    assert {opened.connect(**changes).fingerprint for changes in opened.case.silent} <= {before}


@pytest.mark.parametrize("case", SERVED)
async def test_the_fingerprint_knows_nothing_of_the_key(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened.connect().fingerprint
    monkeypatch.setenv(KEY, "another key")
    assert opened.connect().fingerprint == before


@pytest.mark.parametrize(("case", "fault"), FAILING)
async def test_a_failure_is_of_its_kind_and_the_next_question_is_answered(opened: Opened, fault: Fault) -> None:
    classifier = opened.connect(**fault.settings)
    opened.replica.fault = fault
    with pytest.raises(fault.kind) as caught:
        await ask(classifier)
    assert {name: getattr(caught.value, name) for name in fault.shows} == fault.shows
    assert "\n" not in str(caught.value)
    assert len(opened.replica.asked) == 1, "a connector sends each question once; asking again is the engine's affair"
    opened.replica.fault = None
    assert await ask(classifier) == opened.case.truth(pictures()[:1])


@pytest.mark.parametrize("case", SERVED)
async def test_a_refusal_repeats_the_words_of_the_server(opened: Opened) -> None:
    opened.replica.fault = next(fault for fault in FAULTS if fault.name == "422")
    with pytest.raises(PermanentError, check=coded("classifier-refused")):
        await ask(opened.connect())


@pytest.mark.parametrize("case", SERVED)
async def test_a_refused_key_is_named_by_its_variable(opened: Opened) -> None:
    opened.replica.fault = next(fault for fault in FAULTS if fault.name == "401")
    with pytest.raises(PermanentError, check=coded("credentials-refused")):
        await ask(opened.connect())


@pytest.mark.parametrize("case", SERVED)
async def test_a_server_that_is_not_there_was_surely_not_asked(opened: Opened) -> None:
    classifier = opened.case.connect("http://127.0.0.1:9", {})
    async with aclosing(_Closing(classifier)):
        with pytest.raises(TransientError) as caught:
            await ask(classifier)
    assert caught.value.sent is False


class _Closing:
    def __init__(self, classifier: AnyClassifier) -> None:
        self.aclose = classifier.close


@pytest.mark.parametrize("case", SERVED)
async def test_a_missing_key_is_told_before_anything_is_sent(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY)
    with pytest.raises(PermanentError, check=coded("credentials-missing")):
        await ask(opened.connect())
    assert opened.replica.asked == []


@pytest.mark.parametrize("case", SERVED)
async def test_preparing_a_picture_asks_nothing(opened: Opened) -> None:
    opened.connect().prepare(pictures()[0])
    assert opened.replica.asked == []


@pytest.mark.parametrize("case", SERVED)
async def test_the_key_reaches_the_server_and_nothing_else(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for fault in (ECHO, *FAULTS):
        classifier = opened.connect(**fault.settings)
        opened.replica.fault = fault
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await ask(classifier)
        shown += [*_texts(caught.value), repr(classifier), classifier.fingerprint, repr(classifier.limits)]
    assert _sent_key(opened.replica)
    text = "\n".join([*shown, caplog.text])
    assert not [form for form in _forms(SECRET) if form in text]


def _sent_key(replica: Replica) -> bool:
    request = replica.asked[0]
    body: bytes = request._read_bytes or b""
    sent = " ".join([*request.query.values(), *request.headers.values(), body.decode("latin-1")])
    return any(form in sent for form in _forms(SECRET))


def _forms(secret: str) -> set[str]:
    encoded = base64.b64encode(secret.encode()).decode()
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), encoded.rstrip("="), secret[:6]}


def _texts(error: BaseException) -> list[str]:
    """All that anyone could print of an exception: its text, its chain, its attributes and its traceback."""
    own = [str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]
    linked = [other for other in (error.__cause__, error.__context__) if other is not None]
    return own + [text for other in linked for text in _texts(other)]


@pytest.mark.parametrize("case", SERVED)
async def test_a_cancelled_question_leaves_no_socket_open(opened: Opened) -> None:
    classifier = opened.connect()
    opened.replica.fault = HANG
    question = asyncio.create_task(ask(classifier))
    await opened.replica.reached.wait()
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert await opened.replica.quiet()


@pytest.mark.parametrize("case", SERVED)
async def test_closing_leaves_no_socket_open_and_can_be_followed_by_more_questions(opened: Opened) -> None:
    classifier = opened.connect()
    await asyncio.gather(*(ask(classifier) for _ in range(8)))
    assert opened.replica.sockets > 0
    await classifier.close()
    assert await opened.replica.quiet()
    assert await ask(classifier) == opened.case.truth(pictures()[:1])
