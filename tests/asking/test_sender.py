"""When a sender could do with more questions."""

import asyncio
from collections.abc import Sequence

import numpy as np

from looktwice.asking.jobs import Job
from looktwice.asking.ledger.memory import Unrecorded
from looktwice.asking.ledger.protocol import Budget, Entry
from looktwice.asking.outcome import Cause, Failure
from looktwice.asking.pace import Pace
from looktwice.asking.sender import Sender
from looktwice.classifiers.base import Answer, Terms
from looktwice.errors import PassingError
from looktwice.views import Mirror, Question


class Choosy:
    """A classifier that answers some questions and sends the others away for a minute."""

    fingerprint = "test:choosy"
    labels = None
    terms = Terms(batch=1, concurrency=2)

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    async def label(self, batch: Sequence[str]) -> list[Answer]:
        if batch == ["refused"]:
            raise PassingError("slow down", status=429, retry_after=60.0, billed=False)
        return [Answer("cat") for _ in batch]

    async def close(self) -> None: ...


def job(number: int, kind: str) -> Job:
    digest, view = f"{number:032}", Mirror()
    return Job(Question(digest, view, 0, 0), Entry(bytes([number]), digest, str(view), 0, 0), prepared=kind)


async def settled(one: Job) -> Answer | Failure:
    came = asyncio.get_running_loop().create_future()
    one.listen(came.set_result)
    return await came


def test_a_sender_is_starved_while_a_question_rests_and_little_else_is_due() -> None:
    async def work() -> None:
        sender = Sender(Choosy(), Choosy.terms, Unrecorded(), Pace(), Budget(), None)
        waiting = asyncio.create_task(sender.until_starved())
        sender.send([first := job(1, "answered")])
        assert isinstance(await settled(first), Answer)
        assert not sender.starved
        assert not waiting.done()

        sender.send([resting := job(2, "refused")])
        await asyncio.wait_for(waiting, 30)
        assert sender.starved
        assert resting.answer is None

        sender.stop(Failure(Cause.STOPPED, "enough"))
        assert isinstance(await settled(resting), Failure)
        await sender.finish()
        assert not sender.starved

    asyncio.run(work())
