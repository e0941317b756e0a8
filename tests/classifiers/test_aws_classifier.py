"""Rekognition and SageMaker: labels and failures by a replica that checks signatures, requests beside boto3's."""

from __future__ import annotations

import asyncio
import base64
import builtins
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import boto3
import numpy as np
import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from conformance.replica import (
    FAULTS,
    Fault,
    Replica,
    label_of_file,
    labels_of,
    logits_of_file,
    meant,
    model,
    pictures,
    shares_of,
)
from support.errors import coded

from looktwice.classifiers.aws import connect_rekognition, connect_sagemaker
from looktwice.classifiers.base import (
    NO_LABEL,
    Answer,
    AnyClassifier,
    Classifier,
    Pixels,
    Settings,
    answer_kind,
    reading,
)
from looktwice.classifiers.registry import Connect, connect
from looktwice.classifiers.settings import Encoding
from looktwice.errors import ClassifierError, ImageError, MissingExtra, PermanentError, QuotaError, TransientError
from looktwice.images.decode import decode

ARN = "arn:aws:rekognition:eu-west-1:123456789012:project/fashion/version/fashion.1/1234567890123"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


pytestmark = pytest.mark.usefixtures("aws_descriptions")


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that exists nowhere, and no files or machines to look for another."""
    values = {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def big(image: Pixels) -> Pixels:
    """A picture large enough for Rekognition, which the classifier behind the replica sees as before."""
    return image.repeat(4, axis=0).repeat(4, axis=1)


async def ask(classifier: Classifier[bytes], count: int = 1) -> list[Answer]:
    return meant(classifier, await classifier.label([classifier.prepare(big(image)) for image in pictures()[:count]]))


def truth(count: int) -> list[str]:
    return labels_of([big(image) for image in pictures()[:count]])


MODERATED = [
    {"Confidence": 92.5, "Name": "Weapons", "ParentName": "Violence", "TaxonomyLevel": 2},
    {"Confidence": 92.5, "Name": "Violence", "ParentName": "", "TaxonomyLevel": 1},
    {"Confidence": 61.0, "Name": "Drinking", "ParentName": "Alcohol", "TaxonomyLevel": 2},
    {"Confidence": 64.0, "Name": "Alcohol", "ParentName": "", "TaxonomyLevel": 1},
]
"""A reply in the form of the manual: labels of several levels, those above a label among them."""


async def check_signature(request: web.Request) -> None:
    """As AWS does: sign what arrived, with the headers that the request says it signed."""
    header = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=(?P<key>\w+)/\d+/(?P<region>[\w-]+)/(?P<service>\w+)/aws4_request, "
        r"SignedHeaders=(?P<names>[\w;-]+), Signature=(?P<signature>\w+)",
        request.headers["authorization"],
    )
    assert header
    names = header["names"].split(";")
    assert {"content-type", "host", "x-amz-date"} <= {*names}
    headers = {name: request.headers[name] for name in names}
    again = AWSRequest("POST", str(request.url), headers, await request.read())
    again.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(Credentials(header["key"], SECRET), header["service"], header["region"])
    text = signer.string_to_sign(again, signer.canonical_request(again))
    assert (header["key"], header["region"]) == ("AKIAIOSFODNN7EXAMPLE", "eu-west-1")
    assert signer.signature(text, again) == header["signature"]


def routes() -> web.RouteTableDef:
    """Both services at one address."""
    table = web.RouteTableDef()

    @table.post("/")
    async def rekognition(request: web.Request) -> web.Response:
        await check_signature(request)
        asked = json.loads(await request.read())
        file = base64.b64decode(asked["Image"]["Bytes"])
        operation = request.headers["x-amz-target"].partition(".")[2]
        tag = {"Name": label_of_file(file), "Confidence": 91.5}
        less = [{"Name": name, "Confidence": 40.0} for name in ("Clothing", "Apparel")]
        body = {
            "DetectLabels": {"Labels": [*less, tag]},
            "DetectCustomLabels": {"CustomLabels": [*less, tag]},
            "DetectModerationLabels": {"ModerationLabels": MODERATED, "ModerationModelVersion": "7.0"},
        }
        return web.json_response(body[operation], content_type="application/x-amz-json-1.1")

    @table.post("/endpoints/fashion/invocations")
    async def sagemaker(request: web.Request) -> web.Response:
        await check_signature(request)
        assert (request.content_type, request.headers["accept"]) == ("image/png", "application/json")
        return web.json_response(logits_of_file(await request.read()))

    return table


CONNECTORS: dict[str, tuple[Connect, Settings]] = {
    "rekognition": (connect_rekognition, {}),
    "custom labels": (connect_rekognition, {"model": ARN}),
    "sagemaker": (connect_sagemaker, {"endpoint": "fashion", "score": "@", "labels": model().labels}),
}


@asynccontextmanager
async def opened(
    connector: str, /, table: web.RouteTableDef | None = None, **settings: object
) -> AsyncIterator[tuple[AnyClassifier, Replica]]:
    async with Replica().running(table or routes()) as replica:
        connect_to, told = CONNECTORS[connector]
        classifier = connect_to("", {"endpoint_url": replica.url, **told, **settings})
        try:
            yield classifier, replica
        finally:
            await classifier.close()


@pytest.mark.parametrize("connector", CONNECTORS)
async def test_labels_are_those_of_the_model_behind_it_in_the_order_of_the_pictures(connector: str) -> None:
    async with opened(connector) as (classifier, _):
        assert [answer.label for answer in await ask(classifier, 12)] == truth(12)


@pytest.mark.parametrize("connector", CONNECTORS)
async def test_many_calls_at_once_get_their_own_answers(connector: str) -> None:
    async with opened(connector, concurrency=6) as (classifier, _):
        prepared = [classifier.prepare(big(image)) for image in pictures()]
        said = await asyncio.gather(*(classifier.label([prepared[i % 12]]) for i in range(36)))
        heard = meant(classifier, [answer for (answer,) in said])
        assert [answer.label for answer in heard] == [truth(12)[i % 12] for i in range(36)]


@pytest.mark.parametrize("connector", ["rekognition", "custom labels"])
async def test_the_services_own_claims_are_kept_in_per_cent(connector: str) -> None:
    async with opened(connector) as (classifier, _):
        (answer,) = await ask(classifier)
    assert answer.score == 91.5
    assert [score for _, score in answer.options] == [91.5, 40.0, 40.0]


@pytest.mark.parametrize("settings", [{}, {"model": ARN}, {"min_confidence": 10}])
async def test_moderation_labels_of_every_level_are_tags(settings: Settings) -> None:
    async with opened("rekognition", None, detect="moderation", **settings) as (classifier, _):
        (answer,) = await ask(classifier)
    assert answer_kind(classifier) == "tags"
    assert answer.options == (("Weapons", 92.5), ("Violence", 92.5), ("Alcohol", 64.0), ("Drinking", 61.0))


async def test_what_is_asked_of_moderation_is_in_the_request() -> None:
    asked = list[tuple[str, dict[str, object]]]()
    table = web.RouteTableDef()

    @table.post("/")
    async def moderate(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        asked.append((request.headers["x-amz-target"], {key: body[key] for key in body if key != "Image"}))
        return web.json_response({"ModerationLabels": []}, content_type="application/x-amz-json-1.1")

    for settings in ({}, {"model": ARN, "min_confidence": 10.0}):
        async with opened("rekognition", table, detect="moderation", **settings) as (classifier, _):
            (answer,) = await ask(classifier)
            assert (answer.label, answer.options) == (NO_LABEL, ())
    operation = "RekognitionService.DetectModerationLabels"
    assert asked == [(operation, {}), (operation, {"MinConfidence": 10.0, "ProjectVersion": ARN})]


@pytest.mark.parametrize(
    ("connector", "settings", "kind"),
    [
        ("rekognition", {}, "tags"),
        ("rekognition", {"answer": "label"}, "label"),
        ("custom labels", {}, "label"),
        ("custom labels", {"answer": "tags"}, "tags"),
        ("sagemaker", {}, "label"),
        ("sagemaker", {"answer": "tags"}, "tags"),
    ],
)
def test_rekognitions_own_labels_are_tags_unless_described_otherwise(
    connector: str, settings: Settings, kind: str
) -> None:
    connect_to, told = CONNECTORS[connector]
    assert answer_kind(connect_to("", {**told, **settings})) == kind


async def test_an_endpoint_that_gives_logits_has_the_probabilities_of_the_model() -> None:
    async with opened("sagemaker") as (classifier, _):
        (answer,) = await ask(classifier)
    shares = shares_of(Encoding().encode(big(pictures()[0])))
    assert answer.score == pytest.approx(shares[answer.label])
    assert [score for _, score in answer.options] == pytest.approx(sorted(shares.values(), reverse=True))


async def test_only_described_labels_count() -> None:
    async with opened("rekognition", labels=["Apparel", "Clothing"]) as (classifier, _):
        assert (await ask(classifier))[0].label == "Clothing", "the first of equals"


@pytest.mark.parametrize(("settings", "label"), [({}, NO_LABEL), ({"empty": "∅ nothing"}, "∅ nothing")])
@pytest.mark.parametrize("connector", ["rekognition", "custom labels"])
async def test_an_empty_list_is_no_label_unless_one_is_described(
    connector: str, settings: dict[str, str], label: str
) -> None:
    async with opened(connector, None, labels=["Zebra"], **settings) as (classifier, _):
        assert (await ask(classifier))[0].label == label


SPARED = {"429 without quota", "other JSON", "a number", "null"}
"""Words of other services, and what is a reply of some other service, see below."""


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name not in SPARED], ids=lambda fault: fault.name)
@pytest.mark.parametrize("connector", ["rekognition", "sagemaker"])
async def test_a_failure_is_of_its_kind_is_asked_once_and_the_next_question_is_answered(
    connector: str, fault: Fault
) -> None:
    async with opened(connector, None, **fault.settings) as (classifier, replica):
        replica.fault = fault
        with pytest.raises(fault.kind) as caught:
            await ask(classifier)
        assert {name: getattr(caught.value, name) for name in fault.shows} == fault.shows
        assert "\n" not in str(caught.value)
        assert len(replica.asked) == 1
        replica.fault = None
        assert [answer.label for answer in await ask(classifier)] == truth(1)


def refusing(status: int, code: str, **more: object) -> web.RouteTableDef:
    """A service that refuses in its own words."""
    table = web.RouteTableDef()

    @table.post("/{rest:.*}")
    async def refuse(request: web.Request) -> web.Response:
        await request.read()
        body = {"__type": code, "message": f"no: {request.headers['authorization']} {SECRET}", **more}
        return web.json_response(body, status=status, headers={"x-amzn-errortype": code})

    return table


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ThrottlingException", 400, TransientError),
        ("ProvisionedThroughputExceededException", 400, TransientError),
        ("InternalServerError", 500, TransientError),
        ("LimitExceededException", 400, QuotaError),
        ("AccessDeniedException", 400, PermanentError),
        ("InvalidImageFormatException", 400, PermanentError),
        ("ImageTooLargeException", 400, PermanentError),
        ("ResourceNotReadyException", 400, PermanentError),
        ("ResourceNotFoundException", 400, PermanentError),
        ("UnrecognizedClientException", 400, PermanentError),
    ],
)
async def test_errors_of_rekognition_are_of_their_kind_and_show_no_key(
    code: str, status: int, kind: type[ClassifierError]
) -> None:
    async with opened("custom labels", refusing(status, code)) as (classifier, replica):
        with pytest.raises(kind) as caught:
            await ask(classifier)
        assert len(replica.asked) == 1
    assert SECRET not in str(caught.value)
    assert "AKIAIOSFODNN7EXAMPLE" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("code", "status", "behind", "kind"),
    [
        ("ModelError", 424, 500, TransientError),
        ("ModelError", 424, 400, PermanentError),
        ("ModelNotReadyException", 429, None, TransientError),
        ("ServiceUnavailable", 503, None, TransientError),
        ("ValidationError", 400, None, PermanentError),
    ],
)
async def test_errors_of_sagemaker_are_of_their_kind(
    code: str, status: int, behind: int | None, kind: type[ClassifierError]
) -> None:
    more = {} if behind is None else {"OriginalStatusCode": behind, "OriginalMessage": "the container's words"}
    async with opened("sagemaker", refusing(status, code, **more)) as (classifier, _):
        with pytest.raises(kind):
            await ask(classifier)


@pytest.mark.parametrize("body", ["<html>", "17", "{}", "[]"])
async def test_what_is_not_a_list_of_labels_is_garbled(body: str) -> None:
    table = web.RouteTableDef()

    @table.post("/")
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=body, content_type="application/x-amz-json-1.1")

    async with opened("rekognition", table) as (classifier, _):
        with pytest.raises(TransientError) as caught:
            await ask(classifier)
    assert caught.value.garbled


@pytest.mark.parametrize("body", ["<html>", '{"other": 1}', "[]", '["cat"]', "[" * 100_000])
async def test_a_reply_of_a_model_that_does_not_fit_its_description_is_garbled(body: str) -> None:
    table = web.RouteTableDef()

    @table.post("/endpoints/fashion/invocations")
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=body)

    async with opened("sagemaker", table, score="predictions") as (classifier, _):
        with pytest.raises(TransientError) as caught:
            await ask(classifier)
    assert caught.value.garbled


async def test_a_huge_reply_of_a_model_is_not_read_to_its_end() -> None:
    table = web.RouteTableDef()

    @table.post("/endpoints/fashion/invocations")
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b" " * 300_000)

    async with opened("sagemaker", table, max_reply_bytes=100_000) as (classifier, _):
        with pytest.raises(PermanentError, check=coded("reply-malformed")):
            await ask(classifier)


async def test_a_service_that_is_not_there_was_surely_not_asked() -> None:
    classifier = connect_rekognition("", {"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(TransientError) as caught:
        await ask(classifier)
    await classifier.close()
    assert caught.value.sent is False


async def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    classifier = connect_rekognition("", {})
    with pytest.raises(PermanentError, check=coded("credentials-missing")):
        await ask(classifier)
    await classifier.close()


def test_a_missing_region_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect("rekognition:")


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name == "botocore.session":
            raise ImportError(name)
        return original(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, check=coded("extra-missing")):
        connect_rekognition("", {})


@pytest.mark.parametrize(("connector", "least"), [("rekognition", 80), ("custom labels", 64)])
def test_small_pictures_are_enlarged(connector: str, least: int) -> None:
    connect_to, told = CONNECTORS[connector]
    small = np.zeros((least - 1, 300, 3), np.uint8)
    body = json.loads(connect_to("", told).prepare(small))
    assert decode(base64.b64decode(body["Image"]["Bytes"]), "sent").pixels.shape[0] == least


@pytest.mark.parametrize(
    ("connector", "most"), [("rekognition", 5_242_880), ("custom labels", 4_000_000), ("sagemaker", 6_291_456)]
)
def test_large_files_are_refused_before_they_are_paid_for_or_shrunk_as_jpeg(connector: str, most: int) -> None:
    connect_to, told = CONNECTORS[connector]
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), np.uint8)
    with pytest.raises(ImageError, check=coded("image-unfit")):
        connect_to("", {**told, "encoding": {"format": "png"}}).prepare(noise)
    shrunk = connect_to("", {**told, "encoding": {"format": "jpeg"}}).prepare(noise)
    file = shrunk if connector == "sagemaker" else base64.b64decode(json.loads(shrunk)["Image"]["Bytes"])
    assert len(file) <= most


TELLING: dict[str, list[Settings]] = {
    "rekognition": [
        {"model": ARN},
        {"detect": "moderation"},
        {"answer": "label"},
        {"region": "us-east-1"},
        {"min_confidence": 10},
        {"labels": ["Dog"]},
        {"endpoint_url": "https://vpce.example"},
        {"encoding": {"format": "jpeg"}},
    ],
    "sagemaker": [
        {"endpoint": "other"},
        {"variant": "b"},
        {"model": "b.tar.gz"},
        {"component": "c"},
        {"score": "scores"},
        {"label": "label"},
        {"content_type": "application/x-image"},
        {"region": "us-east-1"},
    ],
}


@pytest.mark.parametrize("connector", TELLING)
def test_the_fingerprint_changes_with_all_that_could_change_answers_and_nothing_else(
    connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_to, told = CONNECTORS[connector]
    made = [connect_to("", {**told, **changes}) for changes in ({}, *TELLING[connector])]
    prints = [each.fingerprint for each in made]
    # What is read from a reply has a digest of its own, since the reply is kept.
    assert len({(each.fingerprint, reading(each)) for each in made}) == len(made)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    quiet: list[Settings] = [{"timeout": 5.0}, {"concurrency": 3}, {"price": "0.1"}, {"region": "eu-west-1"}]
    named: list[Settings] = [{"empty": "none"}]
    if connector == "sagemaker":
        named += [{"labels": ["a"]}, {"rename": {"a": "b"}}]
    assert {connect_to("", {**told, **changes}).fingerprint for changes in (*quiet, *named)} == {prints[0]}


async def test_closing_leaves_no_socket_open_and_can_be_followed_by_more_questions() -> None:
    async with opened("rekognition") as (classifier, replica):
        await ask(classifier, 8)
        assert replica.sockets > 0
        await classifier.close()
        assert await replica.quiet()
        assert [answer.label for answer in await ask(classifier)] == truth(1)


SERVICES = {"rekognition": "rekognition", "custom labels": "rekognition", "sagemaker": "sagemaker-runtime"}


@pytest.mark.parametrize("connector", CONNECTORS)
async def test_requests_are_those_of_boto3(connector: str) -> None:
    async with opened(connector) as (classifier, replica):
        await ask(classifier)
        file = Encoding().encode(big(pictures()[0]))
        client = boto3.client(SERVICES[connector], endpoint_url=replica.url)
        match connector:
            case "rekognition":
                await asyncio.to_thread(client.detect_labels, Image={"Bytes": file})
            case "custom labels":
                await asyncio.to_thread(client.detect_custom_labels, Image={"Bytes": file}, ProjectVersionArn=ARN)
            case _:
                arguments = {"EndpointName": "fashion", "Body": file, "ContentType": "image/png"}
                await asyncio.to_thread(client.invoke_endpoint, Accept="application/json", **arguments)
        client.close()
        ours, theirs = [await sent(request) for request in replica.asked]
        assert ours == theirs


async def sent(request: web.Request) -> tuple[str, list[str | None], object]:
    """The parts of a request that decide its reply."""
    body = await request.read()
    names = ("content-type", "x-amz-target") if request.path == "/" else ("content-type", "accept")
    return (
        request.path,
        [request.headers.get(name) for name in names],
        json.loads(body) if request.path == "/" else body,
    )


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("region", ["eu-west-1", "cn-north-1"])
async def test_a_service_is_asked_where_boto3_asks_it(
    connector: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nobody is there: nothing leaves this machine
    monkeypatch.setenv("AWS_REGION", region)
    connect_to, told = CONNECTORS[connector]
    classifier = connect_to("", {**told, "trust_env": True})
    with pytest.raises(TransientError) as caught:
        await ask(classifier)
    await classifier.close()
    assert boto3.client(SERVICES[connector], region_name=region).meta.endpoint_url in str(caught.value)


GUIDE = (Path(__file__).parents[2] / "docs" / "model-servers.md").read_text("utf-8")


@pytest.mark.parametrize(
    "text", re.findall(r"```toml\n(connector = \"(?:rekognition|sagemaker)\".*?)```", GUIDE, re.DOTALL)
)
def test_the_descriptions_in_the_guide_connect(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    assert connect(tmp_path / "mine.toml").prepare(big(pictures()[0]))
