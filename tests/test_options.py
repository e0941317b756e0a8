"""How a classifier is asked: amounts of money, limits and settings that make no sense are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
from support.errors import coded

from looktwice.classifiers.base import Limits
from looktwice.engine.budget import MICRO, Budget, Spend, micros
from looktwice.errors import BudgetError, LookTwiceError
from looktwice.model.options import AskOptions

PRICED = Limits(price_micros=1500)


@pytest.mark.parametrize(("money", "amount"), [("0.0015", 1500), (2, 2_000_000), (0.1, 100_000), ("0", 0)])
def test_money_is_counted_in_whole_millionths(money: str | float, amount: int) -> None:
    assert micros(money) == amount


@pytest.mark.parametrize("money", ["much", "", "NaN", "Infinity", "-1", "0.00000015", "1e999999"])
def test_what_is_no_amount_of_money_is_refused(money: str) -> None:
    with pytest.raises(BudgetError, check=coded("budget-invalid")):
        micros(money)


def test_a_limit_is_a_total_or_so_much_more_than_is_spent() -> None:
    spent = Spend(queries=40, picos=60_000 * MICRO)
    assert AskOptions(budget="500", money="0.5").resolved_budget(spent) == Budget(500, 500_000)
    assert AskOptions(budget="+500", money="+0.5").resolved_budget(spent) == Budget(
        540, 560_000, stated=("+500", "+0.5")
    )
    assert AskOptions(budget="+500").resolved_budget(Spend()) == Budget(500, stated=("+500", ""))


@pytest.mark.parametrize(
    "wish",
    [
        {"budget": "many"},
        {"budget": "-3"},
        {"budget": "+-3"},
        {"money": "-0.5"},
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, check=coded("budget-invalid")):
        AskOptions(**wish).resolved_budget(Spend())


def test_a_limit_in_money_needs_a_price() -> None:
    with pytest.raises(BudgetError, check=coded("budget-invalid")):
        AskOptions(money=1).resolved_budget(Spend(), has_price=False)


@pytest.mark.parametrize(
    "setting",
    [
        {"rate": 0},
        {"concurrency": 0},
        {"canaries": "three"},
        {"per_day": 2.5},
        {"concurrency": 2.5},
        {"longest_wait": float("nan")},
        {"scores": "maybe"},
    ],
)
def test_a_setting_out_of_its_range_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(LookTwiceError, check=coded("option-invalid")):
        AskOptions(**setting)
