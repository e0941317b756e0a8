"""Refusals as JSON, and the replies that hold verdicts or refusals."""

from __future__ import annotations

from http import HTTPStatus

from fastapi.responses import Response
from pydantic import BaseModel, Field

from looktwice.errors import LookTwiceError
from looktwice.model import AnyVerdict

PROBLEM = "application/problem+json"
RETRY_AFTER = 60.0
"""Retry-After in seconds if the service is unavailable until a person acts."""


class Problem(BaseModel):
    """An RFC 9457 problem document; `code` and `error` are for programs, `detail` for people."""

    title: str
    status: int
    code: str = Field(examples=["picture"])
    detail: str
    error: str | None = Field(default=None, examples=["image-too-large"])
    """The code of the error behind it, if there is one."""


class UnscoredReply(BaseModel):
    """The problem of one picture among several."""

    name: str
    problem: Problem


class LooksReply(BaseModel):
    """One verdict or problem per picture, in order."""

    verdicts: list[AnyVerdict | UnscoredReply]


class Refusal(LookTwiceError):
    """A request without a verdict; `code` is one of CODES."""

    def __init__(
        self,
        code: str,
        detail: str,
        retry_after: float | None = None,
        allow: str | None = None,
        error: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.error = error
        self.code, self.retry_after, self.allow = code, retry_after, allow
        self.status = CODES[code]

    def problem(self) -> Problem:
        """The problem document."""
        title = HTTPStatus(self.status).phrase
        return Problem(title=title, status=self.status, code=self.code, detail=str(self), error=self.error)

    def response(self) -> Response:
        """The HTTP reply."""
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
