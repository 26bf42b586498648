"""What becomes of a payment, from plain values."""

from dataclasses import replace
from decimal import Decimal

import pytest
from pydantic import ValidationError

from boathook_billing.payload import Notice, Status
from boathook_billing.rules import Blocked, Extend, NoChange, Payment, Problem, Reverse, Shop
from boathook_billing.settings import BillingSettings, Plan

MONTH = Plan(id="month", price=Decimal(990), currency="RUB", days=30)
YEAR = Plan(id="year", price=Decimal(9900), currency="RUB", days=365)
SHOP = Shop((MONTH, YEAR), "RUB")
PAID = Payment(
    id=1,
    status=Status.SUCCEEDED,
    user_id=7,
    email="anna@example.com",
    plan_id="month",
    amount=Decimal("990.00"),
    currency="RUB",
    problem=None,
    is_late=False,
    is_applied=False,
    is_reversed=False,
)


def notice(status: Status) -> Notice:
    return Notice(external_payment_id="p1", status=status)


def decide(told: Status = Status.SUCCEEDED, /, shop: Shop = SHOP, **changes):
    return shop.decide(notice(told), replace(PAID, **changes))


def test_a_success_extends_by_its_plan():
    assert decide() == Extend(MONTH)


@pytest.mark.parametrize("status", [Status.RECEIVED, Status.FAILED])
def test_non_success_is_ignored_in_any_payment_status(status):
    for later in Status:
        assert SHOP.decide(notice(status), replace(PAID, status=later)) == NoChange("NON_SUCCESS_STATUS")


def test_an_applied_payment_is_not_applied_again():
    assert decide(is_applied=True) == NoChange("ALREADY_APPLIED")


def test_a_success_after_its_refund_is_not_applied():
    assert decide(status=Status.REFUNDED) == NoChange("ALREADY_REFUNDED")


def test_a_refund_reverses_an_applied_payment_once():
    assert decide(Status.REFUNDED, status=Status.REFUNDED, is_applied=True) == Reverse()
    again = decide(Status.REFUNDED, status=Status.REFUNDED, is_applied=True, is_reversed=True)
    assert again == NoChange("ALREADY_REVERSED")


def test_a_refund_of_an_unapplied_payment_changes_nothing():
    assert decide(Status.REFUNDED, status=Status.REFUNDED) == NoChange("NEVER_APPLIED")


def problem(**changes):
    verdict = decide(**changes)
    return verdict.problem if isinstance(verdict, Blocked) else None


def test_a_payment_without_user_waits_and_one_without_email_too():
    assert problem(user_id=None) is Problem.USER_MISSING
    assert problem(user_id=None, email=None) is Problem.UNLINKED_PAYMENT
    assert problem(email=None) is None


def test_a_wrong_amount_or_currency_is_final():
    assert problem(amount=Decimal("989.99")) is Problem.AMOUNT_MISMATCH
    assert problem(amount=Decimal("990.01"), user_id=None) is Problem.AMOUNT_MISMATCH
    assert problem(currency="USD") is Problem.AMOUNT_MISMATCH
    assert not Problem.AMOUNT_MISMATCH.is_waiting


def test_a_payment_that_names_no_currency_is_in_that_of_the_settings():
    assert problem(currency=None) is None
    assert problem(currency=None, shop=Shop(SHOP.plans, "USD")) is Problem.AMOUNT_MISMATCH


def test_a_payment_without_a_plan_gets_the_plan_of_its_price():
    assert decide(plan_id=None, amount=Decimal(9900)) == Extend(YEAR)
    assert problem(plan_id=None, amount=Decimal(1)) is Problem.AMOUNT_MISMATCH
    assert problem(plan_id=None, amount=None) is Problem.PLAN_UNKNOWN
    same_price = Plan(id="promo", price=Decimal(990), currency="RUB", days=60)
    assert problem(plan_id=None, shop=Shop((MONTH, same_price), "RUB")) is Problem.PLAN_UNKNOWN


def test_a_plan_that_is_not_sold_is_final():
    assert problem(plan_id="gone") is Problem.PLAN_UNKNOWN
    assert problem(shop=Shop((), "RUB")) is Problem.PLAN_UNKNOWN


def test_a_missing_amount_counts_as_the_price_unless_required():
    assert decide(amount=None) == Extend(MONTH)
    assert problem(amount=None, shop=replace(SHOP, require_amount=True)) is Problem.AMOUNT_MISMATCH


def test_only_a_success_that_is_not_applied_has_a_problem():
    lost = replace(PAID, user_id=None)
    assert SHOP.problem_of(lost) is Problem.USER_MISSING
    assert SHOP.problem_of(replace(lost, status=Status.FAILED)) is None
    assert SHOP.problem_of(replace(lost, status=Status.REFUNDED)) is None
    assert SHOP.problem_of(replace(PAID, is_applied=True)) is None


def settings(**changes) -> BillingSettings:
    return BillingSettings.model_validate({"secret": "env:S", **changes})


def test_prices_are_exact_and_currencies_have_a_default():
    plans = [{"id": "a", "price": 0.1, "days": 1}, {"id": "b", "price": "9.90", "days": 1, "currency": "usd"}]
    first, second = settings(plans=plans, currency="eur").offers
    assert (first.price, first.currency) == (Decimal("0.1"), "EUR")
    assert (second.price, second.currency) == (Decimal("9.90"), "USD")


@pytest.mark.parametrize(
    "wrong",
    [
        {"plans": [{"id": "a", "price": "1", "days": 1}] * 2},
        {"plans": [{"id": "a", "price": "-1", "days": 1}]},
        {"plans": [{"id": "a", "price": "NaN", "days": 1}]},
        {"plans": [{"id": "a", "price": "1", "days": 0}]},
        {"proof": "trust"},
        {"proof": "secret", "encoding": "base64"},
        {"form": "tilda"},
        {"secret": ""},
        {"path": "webhooks"},
        {"time_zone": "Mars/Olympus"},
        {"sekret": "x"},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        settings(**wrong)
