"""Repeated requests: equal ones have the same canonical form, and different ones do not."""

import json
import random
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from boathook.api import idempotency, messages, publish
from boathook.api.route import ApiRoute
from boathook.service.access.authorization import Principal
from tests.support import examples

CREATE = next(
    route for route in messages.routes.routes if isinstance(route, ApiRoute) and route.name == "create_message"
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
PAYLOADS = st.dictionaries(st.text("xyz", max_size=2), DOCUMENTS, max_size=4)


def form(text: str, query: bytes = b"") -> bytes:
    """Return the canonical form of a request to create a message."""
    request = Request({"type": "http", "method": "POST", "path": "/", "query_string": query, "headers": []})
    return CREATE.canonicalizer.canonical(request, text.encode())


def shuffled(value: Any, dice: random.Random) -> Any:
    """Return a document with its object keys in random order."""
    if isinstance(value, dict):
        keys = list(value)
        dice.shuffle(keys)
        return {key: shuffled(value[key], dice) for key in keys}
    return [shuffled(one, dice) for one in value] if isinstance(value, list) else value


@settings(max_examples=examples(300))
@given(PAYLOADS, st.randoms(use_true_random=False))
def test_a_request_has_one_form_however_it_is_written(payload: dict[str, Any], dice: random.Random):
    body = {"eventType": "a.b", "payload": payload, "channels": ["x", "y"]}
    anew = json.dumps(
        shuffled(body, dice) | {"channels": ["y", "x"]},
        indent=dice.choice([None, 1]),
        ensure_ascii=dice.choice([True, False]),
    )
    assert form(anew, b"with_content=false") == form(json.dumps(body))


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "eventId": st.none() | st.text("abc", min_size=1, max_size=3),
        "channels": st.none() | st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=4),
        "tags": st.none() | st.lists(st.text("abc", min_size=1, max_size=2), max_size=4),
        "payloadRetentionPeriod": st.none() | st.integers(1, 90),
    },
)


@settings(max_examples=examples(300))
@given(PAYLOADS, FIELDS)
def test_the_group_path_reads_a_plain_request_alike(payload: Any, fields: dict[str, Any]):
    body = json.dumps({"eventType": "a.b", "payload": payload} | fields)
    principal = Principal(UUID(int=1), "default")
    read = publish.read_message(body.encode(), publish.PlainRequest("acme", "", "/", "key"), principal, UUID(int=2))
    request = Request(
        {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"idempotency-key", b"key")]}
    )
    assert read.idempotency == idempotency.read_key(request, principal, body.encode(), CREATE.canonicalizer)


@settings(max_examples=examples(300))
@given(PAYLOADS, PAYLOADS)
def test_another_payload_has_another_form(one: dict[str, Any], other: dict[str, Any]):
    is_same = exact(one) == exact(other)
    assert (form(message(one)) == form(message(other))) is is_same


def message(payload: Any) -> str:
    return json.dumps({"eventType": "a.b", "payload": payload})


def exact(value: Any) -> Any:
    """Return a document such that two are equal where JSON means the same by them."""
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exact(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return type(value), value
    return Decimal(repr(value))


SAME_NUMBERS = [("1", "1.0"), ("100", "1e2"), ("0.1", "1e-1"), ("-0", "0"), ("1.50", "15E-1"), ("1e22", "1" + "0" * 22)]
OTHER_NUMBERS = [
    ("1", "true"),
    ("1", '"1"'),
    ("0.1", "0.10000000000000000555"),
    ("12345678901234567.89", "12345678901234567.88"),
    ("18446744073709551617", "18446744073709551618"),
    ("9007199254740993.0", "9007199254740992.0"),
]


@pytest.mark.parametrize(("one", "other"), SAME_NUMBERS)
def test_a_number_is_the_same_however_it_is_written(one: str, other: str):
    assert form(f'{{"eventType":"a","payload":{{"n":{one}}}}}') == form(
        f'{{"eventType":"a","payload":{{"n":{other}}}}}'
    )


@pytest.mark.parametrize(("one", "other"), OTHER_NUMBERS)
def test_numbers_that_differ_in_any_digit_differ(one: str, other: str):
    assert form(f'{{"eventType":"a","payload":{{"n":{one}}}}}') != form(
        f'{{"eventType":"a","payload":{{"n":{other}}}}}'
    )


def test_read_as_floats_numbers_that_differ_would_be_the_same(monkeypatch: pytest.MonkeyPatch):
    """The mutant: another message would be dropped as a duplicate."""
    monkeypatch.setattr(idempotency, "EXACT", msgspec.json.Decoder())
    one, other = OTHER_NUMBERS[3]
    assert form(f'{{"eventType":"a","payload":{{"n":{one}}}}}') == form(
        f'{{"eventType":"a","payload":{{"n":{other}}}}}'
    )


def test_a_default_value_equals_an_omitted_field():
    assert form('{"eventType":"a","payload":{},"channels":null,"eventId":null}') == form(
        '{"eventType":"a","payload":{}}'
    )


@pytest.mark.parametrize(
    "text", ['{"eventType":"a b","payload":{}}', "[" * 5_000, '{"eventType":"a","payload":{"n":1e999}}']
)
def test_an_invalid_request_is_compared_as_written(text: str):
    assert form(text)
