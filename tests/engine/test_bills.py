"""Bills by the token: estimates beforehand, reserves in flight, and what the vendors' replicas charged."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.vendors import (
    HOUSES,
    LABELS,
    PATHS,
    PRICES,
    ServiceSettings,
    app_of,
    crops,
    description,
    patches,
    served,
    squares,
    tiles,
)
from support.engines import spend_of
from support.errors import code_in, coded
from support.workshop import run

from looktwice import Model
from looktwice.classifiers.base import Tokens, Weight
from looktwice.classifiers.prices import Table, example, read_table, tokens_of
from looktwice.engine.budget import MICRO
from looktwice.engine.ledger.maintenance import stats, verify
from looktwice.engine.query import Progress
from looktwice.errors import BudgetError, PermanentError
from looktwice.views import Panel

SIZES = ((90, 120), (384, 384), (512, 700), (768, 1100), (1024, 1500), (2000, 1200))


@pytest.fixture(params=[*HOUSES])
def house(request: pytest.FixtureRequest) -> ServiceSettings:
    """Each vendor."""
    return HOUSES[request.param]()


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


@pytest.fixture
def classifier(house: ServiceSettings, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "model.toml"
    with served(app_of(house)) as address:
        path.write_text(description(house, address))
        yield path


def pictures(count: int, seed: int = 0, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shades = rng.integers(0, 256, count)
    return [
        np.clip(rng.integers(-9, 9, (*sizes[place % len(sizes)], 3)) + shade, 0, 255).astype(np.uint8)
        for place, shade in enumerate(shades)
    ]


# --- the vendors' own examples


@pytest.mark.parametrize(
    "size", [(1024, 1024), (2048, 4096), (1800, 2400), (960, 540), (384, 200), (3000, 100), (1, 1)]
)
def test_the_rules_for_pictures_count_as_the_vendors_examples_do(size: tuple[int, int]) -> None:
    width, height = size
    models = Table.model_validate(read_models()).models
    assert models["gpt-4o"].image.tokens(height, width) == tiles(width, height)
    assert models["gpt-5-mini"].image.tokens(height, width) == patches(width, height)
    assert models["gemini-*"].image.tokens(height, width) == crops(width, height)
    if max(size) <= 1568:
        assert models["claude-*"].image.tokens(height, width) == squares(width, height)


def read_models() -> object:
    import tomllib

    return tomllib.loads(PRICES)


def test_the_published_figures() -> None:
    models = Table.model_validate(read_models()).models
    assert models["gpt-4o"].image.tokens(4096, 2048) == 1105
    assert models["gpt-4o"].image.tokens(1024, 1024) == 765
    assert models["gpt-5-mini"].image.tokens(2400, 1800) == math.ceil(1452 * 1.62)
    assert models["gpt-5-mini"].image.tokens(1024, 1024) == math.ceil(1024 * 1.62)
    assert models["gemini-*"].image.tokens(540, 960) == 6 * 258
    assert models["claude-*"].image.tokens(1000, 1000) == 36 * 36


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}, Tokens(9, 2, 4)),
        ({"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}, Tokens(9, 2, 4)),
        (
            {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1},
            Tokens(14, 2, 4, 1),
        ),
        ({"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 30}, Tokens(9, 32)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 10}}, None),
        ({"eval_count": 3}, None),
    ],
)
def test_tokens_are_read_under_the_names_of_each_vendor(usage: dict[str, object], tokens: Tokens | None) -> None:
    assert tokens_of(usage) == tokens


def test_the_table_that_is_printed_can_be_read_and_names_the_day_of_its_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(example())
    table = read_table(path)
    assert table.checked
    assert table.tariff("claude-opus-5-5").image.tokens(1080, 1920) == 2691
    assert table.tariff("gpt-6-luna").image.tokens(512, 512) == 308
    assert table.tariff("gemini-3.8-flash").image.tokens(3024, 4032) == 1120
    assert table.tariff("claude-sonnet-4-5-20250929") is table.models["claude-sonnet-4*"]
    assert run("prices").stdout == example()
    with pytest.raises(PermanentError, check=coded("price-missing")):
        table.tariff("gpt-99")


@pytest.mark.parametrize(
    "change",
    [
        ("2.50", "2.5000001"),
        ("tile = 170", "tiles = 170"),
        ("[models", "[[models"),
    ],
)
def test_a_wrong_table_is_told_in_one_line(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES.replace(*change, 1))
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        read_table(path)
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        read_table(tmp_path / "no.toml")


def test_a_reserve_needs_a_limit_of_the_answer_and_covers_what_is_put_in_a_cache() -> None:
    tariff = Table.model_validate(read_models()).tariff("claude-sonnet-4-5")
    weight = Weight(400, 600, 750, 1000, None, 5, None)
    with pytest.raises(PermanentError, check=coded("price-missing")):
        tariff.most(weight)
    most = tariff.most(weight._replace(most_output=32))
    assert tariff.picos(most) == (600 + 36 * 27) * 3_750_000 + 32 * 15_000_000
    assert tariff.picos(most, batched=True) == tariff.picos(most) // 2


# --- runs


@pytest.mark.slow
def test_the_estimate_is_near_the_bill_and_the_books_match_it_to_the_millionth(
    house: ServiceSettings, classifier: Path, prices: Path, tmp_path: Path
) -> None:
    runs: list[Progress] = []
    with Model(classifier, ledger=str(tmp_path / "ledger.db"), prices=prices, progress=runs.append) as model:
        asked = pictures(12)
        estimate = model.estimate(asked, views="mirror")
        assert house.calls == 0
        model.ask(asked, views="mirror")
    spent = runs[-1]
    assert house.calls == 24 == estimate.queries
    assert estimate.micros == pytest.approx(float(house.bill), rel=0.1)
    assert house.bill <= estimate.most_micros
    spend = spend_of(tmp_path / "ledger.db", model_fingerprint(classifier))
    assert spend.micros == math.ceil(house.bill) == spent.micros
    [day] = stats(tmp_path / "ledger.db")
    assert day.picos == spend.picos == house.bill * MICRO
    assert (day.input_tokens, day.output_tokens) == (spent.input_tokens, spent.output_tokens)
    assert verify(tmp_path / "ledger.db") == []


def test_words_that_come_first_are_cached_and_billed_as_such(
    house: ServiceSettings, classifier: Path, prices: Path, tmp_path: Path
) -> None:
    labels = [*LABELS, *(f"animal number {number}" for number in range(300))]
    told = classifier.read_text().replace(json.dumps(LABELS), json.dumps(labels))
    classifier.write_text(f'{told}picture = "last"\n')
    with Model(classifier, ledger=str(tmp_path / "ledger.db"), prices=prices) as model:
        model.ask(pictures(12, sizes=((90, 120),)), views=Panel(()))
    [day] = stats(tmp_path / "ledger.db")
    assert day.cached_tokens > 8 * 1024
    assert spend_of(tmp_path / "ledger.db", model_fingerprint(classifier)).picos == house.bill * MICRO


def model_fingerprint(classifier: Path) -> str:
    from looktwice.classifiers.registry import connect

    return connect(classifier).fingerprint


@pytest.mark.slow
def test_money_is_never_overrun_and_nearly_all_of_it_is_used(
    house: ServiceSettings, classifier: Path, prices: Path, tmp_path: Path
) -> None:
    asked = pictures(60, sizes=((384, 384),))
    with Model(classifier, ledger="off", prices=prices) as model:
        quote = model.estimate(asked, views=Panel(()))
    money = Decimal(quote.micros // 3).scaleb(-6)
    with Model(classifier, ledger=str(tmp_path / "ledger.db"), prices=prices, money=money) as model:
        collected = model.ask(asked, views=Panel(()))
    assert {each.code for each in collected.unscored} == {"budget-spent"}
    reserve = Decimal(quote.most_micros // 60)
    assert money * 10**6 - reserve < house.bill <= money * 10**6, "the rest covers no further reserve"


@pytest.mark.slow
@pytest.mark.parametrize("count", [-1_000_000, 10**30], ids=["negative", "beyond all bounds"])
@pytest.mark.parametrize("vendor", ["openai", "anthropic", "gemini"])
def test_a_count_of_tokens_that_cannot_be_true_costs_the_reserve(
    vendor: str, count: int, tmp_path: Path, prices: Path
) -> None:
    """A negative bill would let the money be exceeded, and one that no column can hold would lose the answers."""
    house = HOUSES[vendor]()

    async def lie(request: web.Request) -> web.Response:
        reply = house.answer(await request.json())
        [name] = {"usage", "usageMetadata"} & reply.keys()
        told = reply[name]
        assert isinstance(told, dict)
        lies = {key: count for key, value in told.items() if isinstance(value, int)}
        return web.json_response({**reply, name: {**told, **lies}})

    app, path = web.Application(client_max_size=1 << 30), tmp_path / "model.toml"
    app.router.add_post(PATHS[vendor], lie)
    with served(app) as address:
        path.write_text(description(house, address))
        with Model(path, ledger=str(tmp_path / "ledger.db"), prices=prices, canaries=0) as asked:
            most = asked.estimate(pictures(12), views=Panel(())).most_micros
            assert len(asked.ask(pictures(12), views=Panel(())).votes) == 12
    assert spend_of(tmp_path / "ledger.db", model_fingerprint(path)).micros == most >= house.bill
    assert verify(tmp_path / "ledger.db") == []


@pytest.mark.parametrize("house", ["openai"], indirect=True)
def test_the_command_line_estimates_asks_within_the_money_and_shows_the_bill(
    house: ServiceSettings, classifier: Path, prices: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "p.npz", images=np.stack(pictures(4, sizes=((96, 96),))), labels=np.zeros(4, np.int64))
    ledger = tmp_path / "ledger.db"
    told = run("check", classifier, "--ledger", ledger, "--prices", prices)
    assert told.returncode == 0, told.stderr
    assert "expected" in told.stdout
    assert spend_of(ledger, model_fingerprint(classifier)).picos == house.bill * MICRO
    table = run("ledger", "stats", "--ledger", ledger, COLUMNS="240").stdout
    assert "tokens in (cached)" in table
    assert f"{house.bill / 10**6:.4f}" in table
    wrong = run("check", classifier, "--ledger", ledger, "--prices", prices, "--price", "1")
    assert code_in(wrong.stderr) == "option-conflict"


def test_a_table_is_only_for_models_that_are_billed_by_the_token(prices: Path) -> None:
    with pytest.raises(BudgetError, check=coded("budget-invalid")), Model(lambda image: "cat", prices=prices) as model:
        model.estimate(pictures(1), views=Panel(()))


SCRIPT = """
import sys, numpy as np
from looktwice import Model
from looktwice.views import Panel
images = [np.full((64, 64, 3), shade, np.uint8) for shade in range(int(sys.argv[4]))]
with Model(sys.argv[1], ledger=sys.argv[2], prices=sys.argv[3], canaries=0) as model:
    print(len(model.ask(images, views=Panel(())).unscored))
"""


@pytest.mark.parametrize("house", ["openai"], indirect=True)
def test_after_kills_the_books_cover_the_bill_and_each_answer_counts_as_it_was_billed(
    house: ServiceSettings, classifier: Path, prices: Path, tmp_path: Path
) -> None:
    ledger, total = tmp_path / "ledger.db", 160
    order = [sys.executable, "-c", SCRIPT, str(classifier), str(ledger), str(prices), str(total)]
    for part in (20, 60, 110):
        process = subprocess.Popen(order)
        while house.calls < part and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert subprocess.run(order, capture_output=True, text=True, check=True).stdout == "0\n"
    assert verify(ledger) == []
    [day] = stats(ledger)
    assert day.answered == total
    assert house.calls - total <= day.queries - total, "what was in flight at each kill"
    with closing(sqlite3.connect(ledger)) as db:
        once = "SELECT COUNT(*), SUM(picos) FROM queries WHERE label IS NOT NULL AND sends = 1"
        ((answers, picos),) = db.execute(once).fetchall()
    assert picos <= house.bill * MICRO <= day.picos
    assert picos == pytest.approx(float(house.bill * MICRO) * answers / house.calls, rel=0.02)
