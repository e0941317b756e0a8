"""What the service says: verdicts and refusals as JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi.responses import Response
from pydantic import BaseModel, Field

from looktwice.errors import LookTwiceError
from looktwice.verdicts.look import Verdict, adjective

PROBLEM = "application/problem+json"


class VoteReply(BaseModel):
    """What the classifier said about one view."""

    view: str = Field(examples=["mirror"])
    label: str | None = Field(description="null where the view was not asked, or no label could be read")


class VerdictReply(BaseModel):
    """What to think of one picture."""

    name: str
    label: str
    confidence: float = Field(ge=0, le=1, description="the probability that the label is right")
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1, description="low and high are the 95 % interval of the confidence")
    decision: Literal["accept", "review"] | None = Field(
        description="null for bursts of familiar photos, which have no guarantee"
    )
    base: str = Field(description="what the classifier said about the picture itself")
    votes: list[VoteReply]
    queries: int
    prediction_set: list[str | None] | None = Field(
        description="the labels that it may have, the most probable first, and null for any other label; null in place "
        "of the list where the service was started without --coverage, and for bursts"
    )
    evidence: Literal["labels", "scores"] = Field(description="what the confidence rests on")
    score: float | None = Field(description="the classifier's own score, as it came; null where it gives none")
    familiarity: float | None = Field(
        ge=0,
        le=1,
        description="how much the picture is like the labelled ones: a p-value; null where the profile cannot tell",
    )
    unfamiliar_because: str | None = Field(
        description="what stands out about a picture that is not like them, so that its confidence means nothing; "
        "null where it is like them, or the profile cannot tell"
    )
    sentence: str

    @classmethod
    def of(cls, verdict: Verdict, name: str) -> VerdictReply:
        """The verdict under the name that the client gave its picture."""
        return cls.model_construct(  # checked values already, and a hundred times as many as requests of other kinds
            name=name,
            label=verdict.label,
            confidence=verdict.confidence,
            low=verdict.low,
            high=verdict.high,
            decision=verdict.decision,
            base=verdict.base,
            votes=[VoteReply.model_construct(view=view, label=label) for view, label in verdict.votes],
            queries=verdict.queries,
            prediction_set=None if verdict.prediction_set is None else list(verdict.prediction_set),
            evidence=verdict.evidence,
            score=verdict.score,
            familiarity=verdict.familiarity,
            unfamiliar_because=verdict.unfamiliar_because,
            sentence=verdict.sentence(),
        )


class Problem(BaseModel):
    """Why there is no verdict, as RFC 9457 has it; `code` is for programs, `detail` for people."""

    title: str
    status: int
    code: str = Field(examples=["picture"])
    detail: str


class UnscoredReply(BaseModel):
    """A picture among several that has no verdict, and why."""

    name: str
    problem: Problem


class LooksReply(BaseModel):
    """One verdict or problem a picture, in their order."""

    verdicts: list[VerdictReply | UnscoredReply]


class Refusal(LookTwiceError):
    """A request that gets no verdict; `code` is one of CODES."""

    def __init__(self, code: str, detail: str, retry_after: float | None = None, allow: str | None = None) -> None:
        super().__init__(detail)
        self.code, self.retry_after, self.allow = code, retry_after, allow
        self.status = CODES[code]

    def problem(self) -> Problem:
        """The same as JSON."""
        title = HTTPStatus(self.status).phrase
        return Problem(title=title, status=self.status, code=self.code, detail=str(self))

    def response(self) -> Response:
        """The same as a reply."""
        headers = {"connection": "close"} if self.code == "slow" else {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after)))
        if self.allow:
            headers["allow"] = self.allow
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(self.problem().model_dump_json(), self.status, headers, PROBLEM)


CODES = {
    "request": 400,
    "token": 401,
    "origin": 403,
    "missing": 404,
    "method": 405,
    "slow": 408,
    "size": 413,
    "type": 415,
    "host": 421,
    "picture": 422,
    "unfamiliar": 422,
    "busy": 429,
    "budget": 429,
    "internal": 500,
    "classifier": 502,
    "unavailable": 503,
    "time": 504,
}
"""Every code of a refusal, and its HTTP status."""


def caption(view: str) -> str:
    """What a view looks like, for people."""
    return adjective(view) or view
