"""How a classifier is asked: amounts of money, limits and settings that make no sense are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from looktwice.classifiers.base import Terms
from looktwice.engine.budget import MICRO, Budget, Spend, micros
from looktwice.engine.options import AskOptions
from looktwice.errors import BudgetError, LookTwiceError

PRICED = Terms(price_micros=1500)


@pytest.mark.parametrize(("money", "amount"), [("0.0015", 1500), (2, 2_000_000), (0.1, 100_000), ("0", 0)])
def test_money_is_counted_in_whole_millionths(money: str | float, amount: int) -> None:
    assert micros(money) == amount


@pytest.mark.parametrize("money", ["much", "", "NaN", "Infinity", "-1", "0.00000015", "1e999999"])
def test_what_is_no_amount_of_money_is_refused(money: str) -> None:
    with pytest.raises(BudgetError, match="not an amount of money"):
        micros(money)


def test_a_limit_is_a_total_or_so_much_more_than_is_spent() -> None:
    spent = Spend(queries=40, picos=60_000 * MICRO)
    assert AskOptions(budget="500", money="0.5").limits(PRICED, spent) == Budget(500, 500_000)
    assert AskOptions(budget="+500", money="+0.5").limits(PRICED, spent) == Budget(
        540, 560_000, stated=("+500", "+0.5")
    )
    assert AskOptions(budget="+500").limits(PRICED, Spend()) == Budget(500, stated=("+500", ""))


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"budget": "many"}, "'many' is not a number; write 500 for a total"),
        ({"budget": "-3"}, "a budget of '-3' is negative"),
        ({"budget": "+-3"}, r"a budget of '\+-3' is negative"),
        ({"money": "-0.5"}, "not an amount of money"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(BudgetError, match=words):
        AskOptions(**wish).limits(PRICED, Spend())


def test_a_limit_in_money_needs_a_price() -> None:
    with pytest.raises(BudgetError, match="needs the price of a query"):
        AskOptions(money=1).limits(Terms(), Spend())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"rate": 0}, "rate is 0; give a number of at least 0.001"),
        ({"concurrency": 0}, "concurrency is 0; give a whole number of at least 1"),
        ({"canaries": "three"}, "canaries is 'three'; give a whole number"),
        ({"per_day": 2.5}, "per_day is 2.5; give a whole number"),
        ({"concurrency": 2.5}, "concurrency is 2.5; give a whole number"),
        ({"longest_wait": float("nan")}, "longest_wait is nan; give a number"),
        ({"scores": "maybe"}, "scores is 'maybe'; give use or ignore"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(LookTwiceError, match=words):
        AskOptions(**setting)
