"""Amazon Rekognition and SageMaker, by requests that botocore signs (extra `aws`).

    connector = "rekognition"
    labels = ["Dog", "Cat"]               # only these are used; all Rekognition labels if left out
    min_confidence = 0.0                  # in per cent
    price = "0.001"

    connector = "rekognition"
    detect = "moderation"                 # DetectModerationLabels; a label and its parent labels are all tags

    connector = "rekognition"
    model = "arn:aws:rekognition:eu-west-1:123456789012:project/birds/version/birds.1/1234567890123"

    connector = "sagemaker"
    endpoint = "my-endpoint"
    label = "[].label"                    # JMESPath into the JSON reply, as for the HTTP connector: label, score,
    score = "[].score"                    # answer, labels, rename, empty

Rekognition's own labels are tags: several may apply to one picture (`answer = "tags"`). A Custom Labels model returns
one label per picture unless its description sets `answer`.

Credentials and region are read from the usual AWS sources (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION, a role);
`region` overrides the region. Size limits are checked before a query is paid for.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from pydantic import Field, field_validator, model_validator
from yarl import URL

from looktwice.classifiers.base import NO_LABEL, Answer, AnswerKind, Classifier, Names, Pixels, Settings, fingerprint
from looktwice.classifiers.registry import described, labels_of
from looktwice.classifiers.replies import NAMING, READING, Paths, Reader
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import Encoding, HttpSettings, kind_of
from looktwice.classifiers.transport import Reply, Transport
from looktwice.errors import MissingExtra, PermanentError
from looktwice.images import PHOTO

if TYPE_CHECKING:
    from types import ModuleType

DETECT_LIMITS: Mapping[str, object] = {"min_side": 80, "max_side": 10_000, "max_bytes": 5_242_880}
CUSTOM_LIMITS: Mapping[str, object] = {"min_side": 64, "max_side": 4096, "max_bytes": 4_000_000}
SAGEMAKER_LIMITS: Mapping[str, object] = {"max_bytes": 6_291_456}
"""The limits for pictures that are sent in the request."""

OPERATIONS = {
    ("labels", False): ("DetectLabels", "Labels", ""),
    ("labels", True): ("DetectCustomLabels", "CustomLabels", "ProjectVersionArn"),
    ("moderation", False): ("DetectModerationLabels", "ModerationLabels", ""),
    ("moderation", True): ("DetectModerationLabels", "ModerationLabels", "ProjectVersion"),
}
"""The operation, the reply field and the model parameter, by `detect` and whether a model is set."""

STATUSES = {
    "AccessDeniedException": 403,
    "ExpiredTokenException": 401,
    "ImageTooLargeException": 413,
    "InternalDependencyException": 503,
    "InternalFailure": 503,
    "InternalServerError": 503,
    "InvalidSignatureException": 401,
    "LimitExceededException": 402,
    "ModelNotReadyException": 503,
    "OptInRequired": 402,
    "ProvisionedThroughputExceededException": 429,
    "RequestTimeout": 503,
    "RequestTimeoutException": 503,
    "ResourceNotFoundException": 404,
    "ServiceQuotaExceededException": 402,
    "ServiceUnavailable": 503,
    "ServiceUnavailableException": 503,
    "SlowDown": 429,
    "SubscriptionRequiredException": 402,
    "ThrottledException": 429,
    "Throttling": 429,
    "ThrottlingException": 429,
    "TooManyRequestsException": 429,
    "UnrecognizedClientException": 401,
}
"""The HTTP status that corresponds to each AWS error; AWS itself often sends these errors with status 400."""
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class Account(HttpSettings):
    """Settings common to all AWS services."""

    region: str | None = Field(default=None, description="AWS_REGION or the profile's if left out")
    endpoint_url: str | None = Field(default=None, description="of a private endpoint")
    encoding: Encoding

    @field_validator("endpoint_url")
    @classmethod
    def _writes_no_secret(cls, text: str | None) -> str | None:
        url = URL(text or "")
        if url.user or url.password or url.raw_query_string:
            raise ValueError("it contains a user, password or query; set credentials with AWS_PROFILE or similar")
        return text


class Rekognition(Account):
    """The settings of DetectLabels, DetectCustomLabels (with a model) or DetectModerationLabels (with an adapter)."""

    detect: Literal["labels", "moderation"] = "labels"
    model: str | None = Field(default=None, description="version ARN of a Custom Labels model or of an adapter")
    answer: AnswerKind | None = Field(default=None, description="`label` or `tags`; `label` for a Custom Labels model")
    min_confidence: float | None = Field(default=None, ge=0, le=100, description="in per cent")
    labels: tuple[str, ...] | str | None = Field(default=None, description="all others are ignored")
    empty: str = Field(default=NO_LABEL, description="the label of an answer without one")

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, values: dict[str, object]) -> dict[str, object]:
        custom = values.get("model") and values.get("detect") != "moderation"
        return _within(CUSTOM_LIMITS if custom else DETECT_LIMITS, values)


class SageMaker(Account, Paths):
    """The settings of InvokeEndpoint, which receives an encoded picture."""

    endpoint: str = Field(min_length=1)
    variant: str | None = None
    model: str | None = Field(default=None, description="of a multi-model endpoint")
    component: str | None = Field(default=None, description="an inference component")
    content_type: str | None = Field(default=None, description="image/png or image/jpeg if left out")

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, values: dict[str, object]) -> dict[str, object]:
        return _within(SAGEMAKER_LIMITS, values)


def _within(limits: Mapping[str, object], values: dict[str, object]) -> dict[str, object]:
    """Add the limits of the service unless the encoding sets its own."""
    given = values.get("encoding", {})
    return {**values, "encoding": {**limits, **given}} if isinstance(given, Mapping) else values


class AwsClassifier(ABC):
    """An AWS service that receives one signed request per picture."""

    def __init__(self, description: Account, service: str, path: str, headers: Mapping[str, str]) -> None:
        self._session = _botocore().Session()
        self.region = description.region or os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        if not self.region:
            raise PermanentError('AWS needs a region; set region = "…" in the description, or AWS_REGION')
        # This client sends nothing: it only resolves the address, also from AWS_ENDPOINT_URL and profiles.
        client = self._session.create_client(service, self.region, endpoint_url=description.endpoint_url)
        self._encoding = description.encoding
        self._url = client.meta.endpoint_url.rstrip("/") + path
        self._signing_name = client.meta.service_model.signing_name
        client.close()
        self._sent_headers = headers
        self._lock = threading.Lock()
        self._secrets = Secrets()
        self._transport = Transport(description, self._secrets, _restated)
        self._endpoint = self._transport.endpoint("POST", self._url, {})

    def prepare(self, pixels: Pixels) -> bytes:
        return self._encoding.encode(self._encoding.fit(pixels))

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        requests = map(self._request, batch)
        # Signed in a thread, because signing hashes the body and may fetch new credentials.
        return [
            self._answer(await self._endpoint.send(body, await asyncio.to_thread(self._signed, body, headers)))
            for body, headers in requests
        ]

    def reread(self, reply: bytes, status: int | None) -> Answer:
        return self._answer(Reply(status or 200, {}, reply))

    async def close(self) -> None:
        await self._transport.close()

    @abstractmethod
    def _request(self, file: bytes) -> tuple[bytes, Mapping[str, str]]:
        """The request body for an encoded picture, and the headers specific to this request."""

    @abstractmethod
    def _answer(self, reply: Reply) -> Answer:
        """The answer in a reply."""

    def _signed(self, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request, signed with the current credentials; the credentials of a role change over time."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        problem = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        with self._lock:
            try:
                credentials = self._session.get_credentials()
                keys = credentials and credentials.get_frozen_credentials()
            except BotoCoreError as error:
                keys, problem = None, self._secrets.line(str(error))
            for name, value in zip(VARIABLES, keys or (), strict=False):
                if value:
                    self._secrets.add(name, value)
        if not (keys and keys.access_key and keys.secret_key):
            raise PermanentError(f"AWS needs credentials: {problem}", code="credentials-missing", sent=False)
        request = AWSRequest("POST", self._url, {**self._sent_headers, **headers}, body)
        SigV4Auth(keys, self._signing_name, self.region).add_auth(request)
        return dict(request.headers.items())


class RekognitionClassifier(AwsClassifier):
    """Rekognition's labels or moderation labels, or the labels of a Custom Labels model."""

    def __init__(self, description: Rekognition, labels: tuple[str, ...] | None) -> None:
        operation, self._field, model = OPERATIONS[description.detect, description.model is not None]
        target = {"x-amz-target": f"RekognitionService.{operation}", "content-type": "application/x-amz-json-1.1"}
        super().__init__(description, "rekognition", "/", target)
        arguments = {model: description.model, "MinConfidence": description.min_confidence}
        self._arguments = {name: value for name, value in arguments.items() if value is not None}
        self.answer_kind: AnswerKind = description.answer or ("label" if self._field == "CustomLabels" else "tags")
        self._reader = Reader(Paths(label="[].Name", score="[].Confidence", answer=self.answer_kind), None)
        self.labels = labels
        self.names = Names(empty=description.empty)
        self.limits = description.limits(PHOTO, encoding=self._encoding)
        self.fingerprint = fingerprint("rekognition", _parts(description, self.region))
        self.reading = fingerprint("json", {"labels": labels, "answer": self.answer_kind})

    def _request(self, file: bytes) -> tuple[bytes, Mapping[str, str]]:
        image = {"Bytes": base64.b64encode(file).decode()}
        return json.dumps({"Image": image, **self._arguments}).encode(), {}

    def _answer(self, reply: Reply) -> Answer:
        content = self._endpoint.parse(reply)
        listed = content.get(self._field) if isinstance(content, dict) else None
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise self._endpoint.garbled(f"has no list of {self._field}", reply)
        counted = [each for each in listed if self.labels is None or each.get("Name") in self.labels]
        word, score, options = self._endpoint.read(reply, lambda: self._reader.read(counted))
        best, *shares = [(name, None if value is None else value / 100) for name, value in ((word, score), *options)]
        return self._secrets.answer(*best, reply.status, reply.body, tuple(shares))


class SageMakerClassifier(AwsClassifier):
    """A model behind a SageMaker endpoint."""

    def __init__(self, description: SageMaker, labels: tuple[str, ...] | None) -> None:
        headers = {
            "accept": "application/json",
            "x-amzn-sagemaker-target-variant": description.variant,
            "x-amzn-sagemaker-target-model": description.model,
            "x-amzn-sagemaker-inference-component": description.component,
        }
        given = {name: value for name, value in headers.items() if value is not None}
        path = f"/endpoints/{quote(description.endpoint, safe='')}/invocations"
        super().__init__(description, "sagemaker-runtime", path, given)
        self._content_type = description.content_type
        self._encoding = description.encoding.named(description.content_type)
        self._reader = Reader(description, labels)
        self.names = Names(labels, description.rename, description.empty)
        self.labels = self.names.labels
        self.answer_kind = description.answer
        self.limits = description.limits(PHOTO, encoding=self._encoding)
        self.fingerprint = fingerprint("sagemaker", _parts(description, self.region))
        self.reading = fingerprint("json", description.model_dump(include=set(READING)))

    def _request(self, file: bytes) -> tuple[bytes, Mapping[str, str]]:
        return file, {"content-type": self._content_type or f"image/{kind_of(file)}"}

    def _answer(self, reply: Reply) -> Answer:
        content = self._endpoint.parse(reply)
        word, score, options = self._endpoint.read(reply, lambda: self._reader.read(content))
        return self._secrets.answer(word, score, reply.status, reply.body, options)


def connect_rekognition(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `rekognition:`, `rekognition:ARN` (a Custom Labels model), or the settings of a TOML file."""
    description = described(Rekognition, {"model": address or None, **settings})
    return RekognitionClassifier(description, labels_of(description.labels, settings))


def connect_sagemaker(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `sagemaker:endpoint`, which must reply with {"label": …}, or the settings of a TOML file."""
    description = described(SageMaker, {"endpoint": address, **settings})
    return SageMakerClassifier(description, labels_of(description.labels, settings))


def _parts(description: Account, region: str) -> dict[str, object]:
    parts = description.model_dump(
        exclude={*HttpSettings.model_fields, *NAMING, *READING, "encoding", "region", "error"}
    )
    return {**parts, "region": region, "encoding": description.encoding.parts()}


def _restated(reply: Reply) -> Reply:
    """Set the HTTP status for the AWS error code of a refusal; a server error of a SageMaker model becomes 503."""
    try:
        told: Any = json.loads(reply.body)
    except (ValueError, RecursionError):
        told = None
    told = told if isinstance(told, dict) else {}
    code = reply.headers.get("x-amzn-errortype") or str(told.get("__type", ""))
    behind = told.get("OriginalStatusCode")
    failed = isinstance(behind, int) and behind >= 500
    name = code.partition(":")[0].rpartition("#")[2]
    return reply._replace(status=STATUSES.get(name, 503 if failed else reply.status))


def _botocore() -> ModuleType:
    try:
        import botocore.session
    except ImportError:
        raise MissingExtra("AWS classifiers", "aws") from None
    return botocore.session
