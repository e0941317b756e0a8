"""Amazon Rekognition and SageMaker, through boto3 (extra `aws`).

    connector = "rekognition"
    labels = ["Dog", "Cat"]               # only these count; all that Rekognition knows if left out
    min_confidence = 0.0                  # in per cent
    price = "0.001"

    connector = "rekognition"
    detect = "moderation"                 # DetectModerationLabels; a label and those above it are tags each

    connector = "rekognition"
    model = "arn:aws:rekognition:eu-west-1:123456789012:project/birds/version/birds.1/1234567890123"

    connector = "sagemaker"
    endpoint = "my-endpoint"
    label = "[].label"                    # JMESPath into the JSON reply, as for the HTTP connector: label, score,
    score = "[].score"                    # answer, labels, rename, empty

Rekognition's own labels are tags, of which several may be true of a picture (`answer = "tags"`); those of a Custom
Labels model are one label a picture unless its description says otherwise.

Keys and region come from the usual sources of AWS programs (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION, a role);
`region` sets the region. Limits of size are checked before a query is paid for. botocore's retries are switched off.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator
from yarl import URL

from looktwice.classifiers.base import NO_LABEL, Answer, AnswerKind, Classifier, Names, Pixels, Settings, fingerprint
from looktwice.classifiers.registry import described, folder_of, read_labels
from looktwice.classifiers.replies import NAMING, READING, Garbled, Paths, Reader
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import Encoding, HttpSettings, kind_of
from looktwice.classifiers.transport import retry_after
from looktwice.errors import ClassifierError, MissingExtra, PermanentError, QuotaError, TransientError
from looktwice.images import PHOTO

if TYPE_CHECKING:
    from types import ModuleType

DETECT_LIMITS: Mapping[str, object] = {"min_side": 80, "max_side": 10_000, "max_bytes": 5_242_880}
CUSTOM_LIMITS: Mapping[str, object] = {"min_side": 64, "max_side": 4096, "max_bytes": 4_000_000}
SAGEMAKER_LIMITS: Mapping[str, object] = {"max_bytes": 6_291_456}
"""The limits for pictures that are sent in the request."""

OPERATIONS = {
    ("labels", False): ("detect_labels", "Labels", ""),
    ("labels", True): ("detect_custom_labels", "CustomLabels", "ProjectVersionArn"),
    ("moderation", False): ("detect_moderation_labels", "ModerationLabels", ""),
    ("moderation", True): ("detect_moderation_labels", "ModerationLabels", "ProjectVersion"),
}
"""The operation, the field of its reply and that of the model, by `detect` and whether there is a model."""

TRANSIENT = {
    "InternalDependencyException",
    "InternalFailure",
    "InternalServerError",
    "ModelNotReadyException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}
THROTTLED = {
    "ProvisionedThroughputExceededException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
}
"""Error codes that mean a status of 429, which AWS often sends with 400."""
QUOTA = {"LimitExceededException", "ServiceQuotaExceededException", "SubscriptionRequiredException", "OptInRequired"}
CODE = re.compile(r"[A-Z][A-Za-z]{2,60}")
ADVICE = {
    "AccessDeniedException": "give these credentials the right to call it",
    "ExpiredTokenException": "sign in again",
    "ImageTooLargeException": 'set encoding = { format = "jpeg", shrink = true }',
    "InvalidSignatureException": "look at AWS_SECRET_ACCESS_KEY",
    "ResourceNotFoundException": "check the name, the region and the account",
    "ResourceNotReadyException": "start this version of the model first",
    "UnrecognizedClientException": "look at AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN",
}


class Account(HttpSettings):
    """Settings that all services of AWS share."""

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
    """DetectLabels, or DetectCustomLabels with a model; DetectModerationLabels, with an adapter if there is a model."""

    detect: Literal["labels", "moderation"] = "labels"
    model: str | None = Field(default=None, description="ARN of a version of a Custom Labels model or an adapter")
    answer: AnswerKind | None = Field(default=None, description="`label` or `tags`; `label` for a Custom Labels model")
    min_confidence: float | None = Field(default=None, ge=0, le=100, description="in per cent")
    labels: tuple[str, ...] | str | None = Field(default=None, description="all others are passed over")
    empty: str = Field(default=NO_LABEL, description="the label of an answer without one")

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, values: dict[str, object]) -> dict[str, object]:
        custom = values.get("model") and values.get("detect") != "moderation"
        return _within(CUSTOM_LIMITS if custom else DETECT_LIMITS, values)


class SageMaker(Account, Paths):
    """InvokeEndpoint with an encoded picture."""

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
    """An AWS service, called with one request per picture in a thread."""

    _service: Service
    _encoding: Encoding

    def prepare(self, pixels: Pixels) -> bytes:
        return self._encoding.encode(self._encoding.fit(pixels))

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        return list(await asyncio.gather(*(self._service.run(self._ask, file) for file in batch)))

    async def close(self) -> None:
        self._service.close()

    @abstractmethod
    def _ask(self, file: bytes) -> Answer: ...


class RekognitionClassifier(AwsClassifier):
    """Rekognition's labels, its moderation labels, or those of a Custom Labels model."""

    def __init__(self, description: Rekognition, labels: tuple[str, ...] | None) -> None:
        self._description = description
        self._encoding = description.encoding
        self._service = Service("rekognition", description)
        self._operation, self._field, model = OPERATIONS[description.detect, description.model is not None]
        self._arguments = {model: description.model, "MinConfidence": description.min_confidence}
        self.answer_kind: AnswerKind = description.answer or ("label" if self._field == "CustomLabels" else "tags")
        self._reader = Reader(Paths(label="[].Name", score="[].Confidence", answer=self.answer_kind), None)
        self.labels = labels
        self.names = Names(empty=description.empty)
        self.limits = description.limits(PHOTO, encoding=self._encoding)
        self.fingerprint = fingerprint("rekognition", _parts(description, self._service.region))
        self.reading = fingerprint("json", {"labels": labels, "answer": self.answer_kind})

    def _ask(self, file: bytes) -> Answer:
        given = {name: value for name, value in self._arguments.items() if value is not None}
        reply = self._service.call(self._operation, {"Image": {"Bytes": file}, **given})
        if self._field not in reply:
            raise garbled(f"the reply of Rekognition has no {self._field}")
        return self.reread(json.dumps(reply[self._field], default=str).encode(), 200)

    def reread(self, reply: bytes, status: int | None) -> Answer:
        listed = json.loads(reply)
        counted = [one for one in listed if self.labels is None or one.get("Name") in self.labels]
        try:
            found = self._reader.read(counted)
        except Garbled as why:
            problem = str(why)
        else:
            shares = [(word, None if score is None else score / 100) for word, score in (found[:2], *found.options)]
            return self._service.secrets().answer(*shares[0], status, reply, tuple(shares[1:]))
        raise garbled(f"the reply of Rekognition {self._service.secrets().line(problem)}")


class SageMakerClassifier(AwsClassifier):
    """A model behind a SageMaker endpoint."""

    def __init__(self, description: SageMaker, labels: tuple[str, ...] | None) -> None:
        self._description = description
        self._encoding = description.encoding.named(description.content_type)
        self._reader = Reader(description, labels)
        self._service = Service("sagemaker-runtime", description)
        self._arguments = {
            "EndpointName": description.endpoint,
            "Accept": "application/json",
            "TargetVariant": description.variant,
            "TargetModel": description.model,
            "InferenceComponentName": description.component,
        }
        self.names = Names(labels, description.rename, description.empty)
        self.labels = self.names.labels
        self.answer_kind = description.answer
        self.limits = description.limits(PHOTO, encoding=self._encoding)
        self.fingerprint = fingerprint("sagemaker", _parts(description, self._service.region))
        self.reading = fingerprint("json", description.model_dump(include=set(READING)))

    def _ask(self, file: bytes) -> Answer:
        kind = self._description.content_type or f"image/{kind_of(file)}"
        given = {name: value for name, value in self._arguments.items() if value is not None}
        arguments = {**given, "ContentType": kind, "Body": file}
        return self.reread(self._service.body(self._service.call("invoke_endpoint", arguments)["Body"]), 200)

    def reread(self, reply: bytes, status: int | None) -> Answer:
        try:
            found = self._reader.read(json.loads(reply))
        except (Garbled, ValueError, RecursionError) as why:
            problem = str(why) if isinstance(why, Garbled) else "is not JSON"
        else:
            return self._service.secrets().answer(found.word, found.score, status, reply, found.options)
        words = self._service.secrets().line(f"{problem}: {reply.decode('utf-8', 'replace')}")
        raise garbled(f"the reply of SageMaker endpoint {self._description.endpoint!r} {words}")


def connect_rekognition(address: str, settings: Settings) -> Classifier[bytes]:
    """`rekognition:`, `rekognition:ARN` of a Custom Labels model, or the settings of a TOML file."""
    description = described(Rekognition, {"model": address or None, **settings})
    return RekognitionClassifier(description, _labels(description.labels, settings))


def connect_sagemaker(address: str, settings: Settings) -> Classifier[bytes]:
    """`sagemaker:endpoint`, whose reply is {"label": …}, or the settings of a TOML file."""
    description = described(SageMaker, {"endpoint": address, **settings})
    return SageMakerClassifier(description, _labels(description.labels, settings))


def _labels(labels: tuple[str, ...] | str | None, settings: Settings) -> tuple[str, ...] | None:
    return read_labels(labels, folder_of(settings)) if isinstance(labels, str) else labels


def _parts(description: Account, region: str) -> dict[str, object]:
    parts = description.model_dump(
        exclude={*HttpSettings.model_fields, *NAMING, *READING, "encoding", "region", "error"}
    )
    return {**parts, "region": region, "encoding": description.encoding.parts()}


class Service:
    """One AWS service, asked in threads of its own; usable again after `close`."""

    def __init__(self, name: str, account: Account) -> None:
        self._name = name
        self._account = account
        self._session = _boto3().Session(region_name=account.region)
        self._lock = threading.Lock()
        self._secrets = Secrets()
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None
        if not self._session.region_name:
            raise PermanentError('AWS needs a region; set region = "…" in the description, or AWS_REGION')
        self.region: str = self._session.region_name

    async def run(self, ask: Callable[[bytes], Answer], file: bytes) -> Answer:
        """Send one query in a thread."""
        with self._lock:
            self._threads = self._threads or ThreadPoolExecutor(self._account.concurrency, "looktwice-aws")
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask, file)

    def call(self, operation: str, arguments: Mapping[str, object]) -> Mapping[str, Any]:
        """Call the service; raises the ClassifierError for the failure."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            reply: Mapping[str, Any] = getattr(self._opened(), operation)(**arguments)
        except (BotoCoreError, ClientError, ResponseParserError, ValueError) as error:
            failure = self._failure(error)
        except (AttributeError, KeyError, TypeError, RecursionError):
            failure = garbled(f"{self._name} sent what botocore cannot read")
        else:
            return reply
        # Raised outside the handler, so that no exception of botocore, which may hold keys, is attached.
        raise failure

    def body(self, stream: Any) -> bytes:
        """Read a stream, up to the limit."""
        from botocore.exceptions import BotoCoreError

        most = self._account.max_reply_bytes
        try:
            data: bytes = stream.read(most + 1)
        except (BotoCoreError, OSError) as error:
            failure: ClassifierError = TransientError(
                f"the reply of {self._name} broke off: {type(error).__name__}", code="classifier-timeout"
            )
        else:
            if len(data) <= most:
                return data
            stream.close()
            failure = PermanentError(
                f"{self._name} sent a reply of more than {most} bytes; raise max_reply_bytes if it should",
                code="reply-malformed",
            )
        raise failure

    def close(self) -> None:
        """Close connections; calls in flight end at their timeout at the latest."""
        with self._lock:
            client, threads, self._client, self._threads = self._client, self._threads, None, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        if client is not None:
            client.close()

    def _opened(self) -> Any:
        from botocore.config import Config

        with self._lock:
            if self._client is None:
                config = Config(
                    connect_timeout=self._account.connect_timeout,
                    read_timeout=self._account.timeout,
                    max_pool_connections=self._account.concurrency,
                    retries={"total_max_attempts": 1},
                )
                self._client = self._session.client(self._name, endpoint_url=self._account.endpoint_url, config=config)
            return self._client

    def _failure(self, error: Exception) -> ClassifierError:
        from botocore import exceptions as known
        from botocore.parsers import ResponseParserError

        if isinstance(error, known.NoCredentialsError):
            return PermanentError(
                f"{self._name} needs credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                code="credentials-missing",
            )
        if isinstance(error, known.ClientError):
            return self._refused(error)
        words = self.secrets().line(str(error))
        if isinstance(error, (known.EndpointConnectionError, known.ConnectTimeoutError, known.ProxyConnectionError)):
            return TransientError(
                f"{self._name} cannot be reached: {words}; is the region right?",
                sent=False,
                code="classifier-unreachable",
            )
        if isinstance(error, known.HTTPClientError):
            return TransientError(
                f"{self._name} did not reply: {words}; raise timeout if it needs longer", code="classifier-timeout"
            )
        if isinstance(error, ResponseParserError):
            return garbled(f"{self._name} sent what is not a reply: {words}")
        return PermanentError(f"{self._name} cannot be asked: {words}; check the description")

    def _refused(self, error: Any) -> ClassifierError:
        details = error.response.get("Error", {})
        code, status = details.get("Code", ""), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        # botocore splits a code at punctuation, which could leave part of a key in it.
        name = code if CODE.fullmatch(code) else "an error"
        detail = self.secrets().line(f"{name} ({status}): {details.get('Message') or 'nothing more'}")
        words = f"{self._name} answered {detail}"
        if code in QUOTA or status == 402:
            advice = "the account needs a higher limit; go on with the same command afterwards"
            return QuotaError(f"{words}; {advice}", status=status, billed=self._account.bills_refusals)
        behind = error.response.get("OriginalStatusCode", status)
        status = 429 if code in THROTTLED else status
        if code in TRANSIENT or status in (408, 429) or behind >= 500:
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            wait, billed = retry_after(headers), self._account.bills(status)
            return TransientError(f"{words}; try later", status=status, retry_after=wait, billed=billed)
        advice = ADVICE.get(code, "compare the description with the manual of the service")
        return PermanentError(f"{words}; {advice}", status=status, billed=self._account.bills(status))

    def secrets(self) -> Secrets:
        """The current credentials; those of a role change over time."""
        found = self._session.get_credentials()
        keys = found.get_frozen_credentials() if found else None
        with self._lock:
            for value in filter(None, (keys.access_key, keys.secret_key, keys.token) if keys else ()):
                self._secrets.hide(value, "one of the AWS credentials")
        return self._secrets


def garbled(message: str) -> TransientError:
    """The error for an invalid reply."""
    return TransientError(
        f"{message}; is this the right endpoint and label path?", status=200, garbled=True, code="reply-malformed"
    )


def _boto3() -> ModuleType:
    try:
        import boto3
    except ImportError:
        raise MissingExtra("AWS classifiers", "aws") from None
    return boto3
