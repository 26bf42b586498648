"""Provider payloads are read exactly, and invalid ones are distinguished from unusual ones."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook_billing.payload import SCHEMA, Notice, Status, read_notice, read_status

WHOLE = {
    "event_id": "e1",
    "external_payment_id": "p1",
    "status": "succeeded",
    "email": "anna@example.com",
    "amount": 990.5,
    "currency": "rub",
    "plan_id": "month",
    "paid_at": "2026-01-31T12:00:00Z",
}
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def body(**changes) -> bytes:
    return json.dumps({**WHOLE, **changes}).encode()


def test_a_full_payload_is_read():
    assert read_notice(body()) == Notice(
        external_payment_id="p1",
        status=Status.SUCCEEDED,
        email="anna@example.com",
        amount=Decimal("990.5"),
        currency="RUB",
        plan_id="month",
        paid_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        event_id="e1",
        reported_status="succeeded",
    )


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("SUCCEEDED", Status.SUCCEEDED),
        ("Success", Status.SUCCEEDED),
        (" paid ", Status.SUCCEEDED),
        ("approved", Status.SUCCEEDED),
        ("pending", Status.RECEIVED),
        ("in progress", Status.RECEIVED),
        ("Declined", Status.FAILED),
        ("cancelled", Status.FAILED),
        ("chargeback", Status.REFUNDED),
        ("REFUNDED", Status.REFUNDED),
    ],
)
def test_a_status_is_read_in_any_spelling(word, status):
    assert read_status(word) is status


def test_an_unknown_status_promises_no_money():
    assert read_status("success_maybe") is Status.RECEIVED


@pytest.mark.parametrize("amount", [990, 990.0, "990", "990.00", "990,00"])
def test_amounts_are_exact_however_they_are_written(amount):
    assert read_notice(body(amount=amount)).amount == Decimal(990)


def test_an_amount_is_never_a_float():
    assert read_notice(b'{"external_payment_id":"p","status":"paid","amount":0.1}').amount == Decimal("0.1")


@pytest.mark.parametrize(
    ("written", "is_price"),
    [("990." + "0" * 20_000, True), ("990." + "0" * 20_000 + "1", False), ("989." + "9" * 20_000, False)],
    ids=("endless noughts", "a trifle more", "a trifle less"),
)
def test_an_amount_with_many_digits_is_exact_and_storable(written, is_price):
    told = f'{{"external_payment_id":"p","status":"paid","amount":{written}}}'.encode()
    amount = read_notice(told).amount
    assert (amount == Decimal("990.00")) is is_price
    assert len(str(amount)) < 60


def test_a_tiny_amount_is_one_that_can_be_stored():
    amount = read_notice(b'{"external_payment_id":"p","status":"paid","amount":1e-20000}').amount
    assert amount is not None
    assert 0 < amount < Decimal("1e-20")


def test_ids_may_be_whole_numbers():
    assert read_notice(body(external_payment_id=4711, plan_id=7)).external_payment_id == "4711"


def test_an_empty_email_is_none():
    assert read_notice(body(email="  ")).email is None


def test_a_time_without_zone_is_utc_and_an_invalid_one_none():
    assert read_notice(body(paid_at="2026-01-31 12:00")).paid_at == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert read_notice(body(paid_at="2026-02-30T12:00:00Z")).paid_at is None


@pytest.mark.parametrize("beyond", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_outside_the_utc_calendar_is_none(beyond):
    assert CHECK.is_valid({**WHOLE, "paid_at": beyond})
    assert read_notice(body(paid_at=beyond)).paid_at is None


def test_a_success_reported_long_after_payment_is_late():
    told, allowed = read_notice(body()), timedelta(hours=24)
    assert told.paid_at is not None
    assert not told.is_late(told.paid_at + timedelta(hours=24), allowed)
    assert told.is_late(told.paid_at + timedelta(days=7), allowed)
    assert not read_notice(body(status="refunded")).is_late(told.paid_at + timedelta(days=7), allowed)
    assert not read_notice(body(paid_at=None)).is_late(told.paid_at + timedelta(days=7), allowed)


BROKEN = [
    [],
    "paid",
    {},
    {"status": "paid"},
    {"external_payment_id": "p"},
    {**WHOLE, "external_payment_id": ""},
    {**WHOLE, "external_payment_id": " "},
    {**WHOLE, "external_payment_id": None},
    {**WHOLE, "external_payment_id": ["p"]},
    {**WHOLE, "external_payment_id": 1.5},
    {**WHOLE, "external_payment_id": True},
    {**WHOLE, "external_payment_id": "p" * 301},
    {**WHOLE, "external_payment_id": 10**31},
    {**WHOLE, "status": ""},
    {**WHOLE, "status": 1},
    {**WHOLE, "status": None},
    {**WHOLE, "amount": -1},
    {**WHOLE, "amount": "-1"},
    {**WHOLE, "amount": "a lot"},
    {**WHOLE, "amount": True},
    {**WHOLE, "amount": 1e16},
    {**WHOLE, "amount": {"value": 990}},
    {**WHOLE, "paid_at": "yesterday"},
    {**WHOLE, "paid_at": "2026-13-01T00:00:00Z"},
    {**WHOLE, "paid_at": 1_760_000_000},
    {**WHOLE, "email": 7},
    {**WHOLE, "email": ["anna@example.com"]},
    {**WHOLE, "currency": "r" * 11},
    {**WHOLE, "event_id": {}},
    {**WHOLE, "event_id": " "},
]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_the_schema_refuses_a_broken_payload(broken):
    assert not CHECK.is_valid(broken)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"email": None, "amount": None, "currency": None, "plan_id": None, "paid_at": None, "event_id": None},
        {"external_payment_id": 7, "event_id": 8, "amount": "990,00"},
        {"amount": 0},
        {"paid_at": "2026-01-31"},
        {"paid_at": "2026-01-31T12:00:00.123456+03:00"},
        {"invented": {"by": ["the", "provider"]}},
    ],
    ids=str,
)
def test_the_schema_accepts_unusual_but_clear_values(changes):
    assert CHECK.is_valid({**WHOLE, **changes})
    read_notice(body(**changes))


TEXTS = st.text(max_size=310)
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS, st.lists(TEXTS))


@given(st.fixed_dictionaries(dict.fromkeys(WHOLE, ANYTHING)))
def test_everything_the_schema_accepts_can_be_read_and_stored(told):
    if not CHECK.is_valid(told):
        return
    notice = read_notice(json.dumps(told).encode())
    for text in (notice.external_payment_id, notice.email, notice.plan_id, notice.currency):
        assert text is None or (text and "\x00" not in text and text.encode())
    assert notice.amount is None or (notice.amount.is_finite() and notice.amount >= 0)


def test_an_invalid_body_raises_with_a_message():
    for wrong in (b"", b"not json", b"[]", b'{"status":"paid"}', b"\xff"):
        with pytest.raises(ValueError, match=r".+"):
            read_notice(wrong)


@pytest.mark.parametrize("phone", [{"number": "1"}, 79_000_000_000, None, ["+7"]])
def test_a_field_called_phone_that_is_no_text_is_as_any_other_field(phone):
    body = json.dumps({"external_payment_id": "p", "status": "paid", "phone": phone}).encode()
    assert read_notice(body).phone is None


@pytest.mark.parametrize("wrong", [{"refund_amount": -1}, {"refund_amount": "much"}, {"refund_id": {}}], ids=str)
def test_a_wrong_field_of_a_refund_is_refused(wrong):
    body = {"external_payment_id": "p", "status": "refunded", **wrong}
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(body)
    with pytest.raises(ValueError, match="refund_"):
        read_notice(json.dumps(body).encode())
