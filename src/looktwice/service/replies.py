"""What the service says: verdicts and refusals as JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from looktwice.errors import LookTwiceError

PROBLEM = "application/problem+json"
RETRY_AFTER = 60.0
"""Seconds after which to try again if a service is unavailable until somebody does something."""


EXAMPLE: JsonDict = {
    "name": "shirt.png",
    "digest": "5cf9e8a0",
    "label": "Shirt",
    "confidence": 0.74,
    "low": 0.61,
    "high": 0.84,
    "decision": "review",
    "held": False,
    "base": "Shirt",
    "votes": [{"view": "mirror", "label": "Shirt"}, {"view": "zoom:1.15", "label": "Coat"}],
    "agree": 1,
    "queries": 3,
    "prediction_set": ["Shirt", "Coat", None],
    "evidence": "labels",
    "score": None,
    "familiarity": 0.63,
    "unfamiliar_because": None,
    "sentence": "1 of 2 views agree; the enlarged one says Coat; such answers are right 74 % of the time.",
}


class VoteReply(BaseModel):
    """What the classifier said about one view."""

    view: str = Field(examples=["mirror"])
    label: str | None = Field(description="null where the view was not asked, or no label could be read")


class VerdictReply(BaseModel):
    """What to think of one picture: the schema of `Verdict.to_dict`."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    name: str
    digest: str = Field(description="of the pixels; empty for bursts")
    label: str
    confidence: float = Field(ge=0, le=1, description="the probability that the label is right")
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1, description="low and high are the 95 % interval of the confidence")
    decision: Literal["accept", "review"] | None = Field(
        description="null for bursts of familiar photos, which have no guarantee"
    )
    held: bool = Field(
        description="whether it must not be accepted, whatever the decision, because the pictures have changed"
    )
    base: str = Field(description="what the classifier said about the picture itself")
    votes: list[VoteReply]
    agree: int = Field(description="how many views say what the verdict says")
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
        retry_after = RETRY_AFTER if self.retry_after is None and self.status == 503 else self.retry_after
        if retry_after is not None:
            headers["retry-after"] = str(max(1, round(retry_after)))
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
    "headers": 431,
    "busy": 429,
    "budget": 429,
    "internal": 500,
    "classifier": 502,
    "unavailable": 503,
    "time": 504,
}
"""Every code of a refusal, and its HTTP status."""
