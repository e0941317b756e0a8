"""One reply answers every question that can be put to it: reading it in another way costs no query."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web
from conformance.vendors import served
from support.engines import counted, engine_on, rows_of
from support.workshop import write_pictures

from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import AnyClassifier
from looktwice.classifiers.registry import connect
from looktwice.engine.query import Cause, Unscored
from looktwice.views import Panel

CATEGORIES = [f"category{number}" for number in range(10)]


def described(folder: Path, **settings: str) -> AnyClassifier:
    path = folder / "classifier.toml"
    path.write_text(
        "\n".join(['connector = "http"', *(f"{key} = {json.dumps(value)}" for key, value in settings.items())])
    )
    return connect(path)


async def test_ten_categories_of_one_reply_are_one_bill(tmp_path: Path) -> None:
    requests = 0

    async def moderate(_: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.json_response(
            {name: {"verdict": f"{name} no", "score": 0.1 * place} for place, name in enumerate(CATEGORIES)}
        )

    app = web.Application()
    app.router.add_post("/moderate", moderate)
    pictures = write_pictures(tmp_path / "pictures.npz", 6)
    with served(app) as url:
        for category in CATEGORIES:
            classifier = described(
                tmp_path, url=f"{url}/moderate", label=f"{category}.verdict", score=f"{category}.score"
            )
            async with engine_on(classifier, tmp_path / "ledger.db") as engine:
                rows = await rows_of(engine, pictures, Panel(()))
            assert {row.base for row in rows if isinstance(row, Row)} == {f"{category} no"}
    assert requests == 6
    assert counted(tmp_path / "ledger.db") == (6, 6)


async def test_a_stored_reply_that_does_not_fit_the_new_path_is_told_and_not_bought_again(tmp_path: Path) -> None:
    requests = 0

    async def classify(_: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.Response(text=json.dumps({"label": "ant"}), content_type="application/json")

    app = web.Application()
    app.router.add_post("/classify", classify)
    pictures = write_pictures(tmp_path / "pictures.npz", 2)
    with served(app) as url:
        for path in ("label", "elsewhere"):
            classifier = described(tmp_path, url=f"{url}/classify", label=path)
            async with engine_on(classifier, tmp_path / "ledger.db") as engine:
                rows = await rows_of(engine, pictures, Panel(()))
    assert requests == 2
    assert {row.cause for row in rows if isinstance(row, Unscored)} == {Cause.CLASSIFIER}


@pytest.mark.parametrize("changed", [{"label": "other"}, {"score": "s"}, {"reply": "text"}])
def test_what_is_read_is_not_part_of_the_fingerprint(tmp_path: Path, changed: dict[str, str]) -> None:
    settings = {"url": "http://localhost/x", "label": "label"}
    one, two = described(tmp_path, **settings), described(tmp_path, **{**settings, **changed})
    assert one.fingerprint == two.fingerprint
    assert one.reading != two.reading  # type: ignore[attr-defined]
