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
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import jmespath
from pydantic import Field

from looktwice.classifiers.base import NO_LABEL, AnswerKind, Classifier, Settings
from looktwice.classifiers.http import HttpClassifier, HttpDescription
from looktwice.classifiers.registry import described, labels_of
from looktwice.classifiers.replies import Paths
from looktwice.classifiers.settings import Encoding, HttpSettings, given, within
from looktwice.classifiers.transport import Reply
from looktwice.errors import MissingExtra, PermanentError

if TYPE_CHECKING:
    from types import ModuleType

DETECT_LIMITS = {"min_side": 80, "max_bytes": 5_242_880}
CUSTOM_LIMITS = {"min_side": 64, "max_bytes": 4_000_000}
SAGEMAKER_LIMITS = {"max_bytes": 6_291_456}
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

    region: str | None = Field(default=None, description="by default AWS_REGION, or the region of the AWS profile")
    endpoint_url: str | None = Field(default=None, description="the address of a private endpoint")
    encoding: Encoding


class Rekognition(Account):
    """The settings of DetectLabels, DetectCustomLabels (with a model) or DetectModerationLabels (with an adapter)."""

    detect: Literal["labels", "moderation"] = "labels"
    model: str | None = Field(default=None, description="version ARN of a Custom Labels model or of an adapter")
    answer: AnswerKind | None = Field(default=None, description="`label` or `tags`; `label` for a Custom Labels model")
    min_confidence: float | None = Field(
        default=None, ge=0, le=100, description="the lowest confidence of a label, in per cent"
    )
    labels: tuple[str, ...] | str | None = Field(default=None, description="the labels to use; others are ignored")
    empty: str = Field(default=NO_LABEL, description="the label to use if an answer has none")


class SageMaker(Account, Paths):
    """The settings of InvokeEndpoint, which receives an encoded picture."""

    endpoint: str = Field(min_length=1)
    variant: str | None = None
    model: str | None = Field(default=None, description="the model of a multi-model endpoint")
    component: str | None = Field(default=None, description="the name of an inference component")
    content_type: str | None = Field(default=None, description="by default image/png or image/jpeg")


class AwsClassifier(HttpClassifier):
    """An AWS service that receives one signed request per picture."""

    def __init__(
        self, account: Account, labels: tuple[str, ...] | None, service: str, path: str, **request: object
    ) -> None:
        self._session = _botocore().Session()
        self.region = account.region or os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        if not self.region:
            raise PermanentError('AWS needs a region; set region = "…" in the description, or AWS_REGION')
        # This client sends nothing: it only resolves the address, also from AWS_ENDPOINT_URL and profiles.
        client = self._session.create_client(service, self.region, endpoint_url=account.endpoint_url)
        self._url = client.meta.endpoint_url.rstrip("/") + path
        self._signing_name = client.meta.service_model.signing_name
        client.close()
        self._lock = threading.Lock()
        shared = account.model_dump(include={*HttpDescription.model_fields})
        super().__init__(described(HttpDescription, {**shared, "url": self._url, **request}), labels)
        self._transport.restated = _restated

    async def headers(self, body: bytes) -> Mapping[str, str]:
        headers = {**self._description.headers, **await super().headers(body)}
        # Signed in a thread, because signing hashes the body and may fetch new credentials.
        return await asyncio.to_thread(self._signed, body, headers)

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
        request = AWSRequest("POST", self._url, dict(headers), body)
        SigV4Auth(keys, self._signing_name, self.region).add_auth(request)
        return dict(request.headers.items())


def connect_rekognition(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `rekognition:`, `rekognition:ARN` (a Custom Labels model), or the settings of a TOML file."""
    settings = {"model": address or None, **settings}
    custom = settings["model"] and settings.get("detect") != "moderation"
    account = described(Rekognition, within(CUSTOM_LIMITS if custom else DETECT_LIMITS, settings))
    labels = labels_of(account.labels, settings)
    operation, field, model = OPERATIONS[account.detect, account.model is not None]
    listed = json.dumps(labels).replace("`", "\\`")
    entries = f"{field}[]" if labels is None else f"{field}[?contains(`{listed}`, Name)]"
    arguments = {model: account.model, "MinConfidence": account.min_confidence}
    template = {"Image": {"Bytes": "{image_base64}"}, **given(arguments)}
    return AwsClassifier(
        account,
        labels,
        "rekognition",
        "/",
        headers={"x-amz-target": f"RekognitionService.{operation}", "content-type": "application/x-amz-json-1.1"},
        body={"kind": "json", "template": template},
        label=f"{entries}.Name",
        score=f"{entries}.Confidence",
        answer=account.answer or ("label" if custom else "tags"),
    )


def connect_sagemaker(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `sagemaker:endpoint`, which must reply with {"label": …}, or the settings of a TOML file."""
    account = described(SageMaker, within(SAGEMAKER_LIMITS, {"endpoint": address, **settings}))
    headers = {
        "accept": "application/json",
        "content-type": account.content_type,
        "x-amzn-sagemaker-target-variant": account.variant,
        "x-amzn-sagemaker-target-model": account.model,
        "x-amzn-sagemaker-inference-component": account.component,
    }
    path = f"/endpoints/{quote(account.endpoint, safe='')}/invocations"
    labels = labels_of(account.labels, settings)
    return AwsClassifier(account, labels, "sagemaker-runtime", path, headers=given(headers))


def _restated(reply: Reply) -> Reply:
    """Set the HTTP status for the AWS error code of a refusal; a server error of a SageMaker model becomes 503."""
    told: object = None
    with suppress(ValueError, RecursionError):
        told = json.loads(reply.body)
    kind, behind = jmespath.search("[__type, OriginalStatusCode]", told) or (None, None)
    name = (reply.headers.get("x-amzn-errortype") or str(kind)).partition(":")[0].rpartition("#")[2]
    failed = isinstance(behind, int) and behind >= 500
    return reply._replace(status=STATUSES.get(name, 503 if failed else reply.status))


def _botocore() -> ModuleType:
    try:
        import botocore.session
    except ImportError:
        raise MissingExtra("AWS classifiers", "aws") from None
    return botocore.session
