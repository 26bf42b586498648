"""Numbers that a float cannot hold: different ones are different events, and none is published as null."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.db import events
from boathook.db.pubsub import notify_call
from boathook.domain import json_document
from boathook.domain.errors import InvalidMessage
from boathook.domain.json_document import encode, parse, parse_exactly, parse_with_exact
from boathook.domain.messages import Message, read_object
from boathook.domain.verification import Verified
from boathook.handlers.outbox import Outbox
from boathook.testing import event
from tests.unit.test_dedup_keys import LIST, judge
from tests.unit.verifier_factory import NOW, signed, verifier

DIFFERENT = [
    ("1e309", "1e310"),
    ("-1e309", "-1E+310"),
    ("1e-400", "1e-401"),
    ("9007199254740992.0", "9007199254740993.0"),
    ("0.1", "0.10000000000000001"),
    ("19.990000000000000000001", "19.99"),
    ("1e99999999999999999999", "1e99999999999999999998"),
]
EQUAL = [("1.5", "1.50"), ("1e2", "100.0"), ("0.1", "0.10"), ("1E-2", "0.01")]


def key(body: str, **settings: Any) -> str:
    verdict = verifier("hmac", **settings).verify(signed("hmac", body.encode()), NOW)
    assert isinstance(verdict, Verified), verdict
    return verdict.dedup_key


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_numbers_are_different_keys(one: str, other: str) -> None:
    named = [key(f'{{"a": {number}}}', dedup_fields=("a",)) for number in (one, other)]
    assert len(set(named)) == 2
    assert f'fields:["{one}"]' in named or one in {"0.1", "9007199254740992.0"}
    hashed = [key(f'{{"a": {number}, "at": {at}}}', volatile=("at",)) for at, number in enumerate((one, other))]
    assert len(set(hashed)) == 2


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_numbers_are_one_key_as_before(one: str, other: str) -> None:
    keys = {key(f'{{"a": {number}}}', dedup_fields=("a",)) for number in (one, other)}
    assert keys == {f'fields:["{float(one)}"]'}
    assert len({key(f'{{"a": {one}, "at": {at}}}', volatile=("at",)) for at in (1, 2)}) == 1


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_items_of_a_batch_differ_in_their_numbers(one: str, other: str) -> None:
    verdict = judge(LIST, f'{{"events": [{{"id": "e", "n": {one}}}, {{"n": {other}}}, {{"n": {one}}}]}}'.encode())
    assert isinstance(verdict, Verified)
    assert len({item.digest for item in verdict.items}) == 3
    assert len({item.dedup_key for item in verdict.items}) == 3
    # Filters read the same numbers as handlers.
    assert [item.document["n"] for item in verdict.items] == [float(one), float(other), float(one)]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_a_number_that_differs_is_a_conflict(one: str, other: str) -> None:
    bodies = [f'{{"a": {number}, "at": {at}}}'.encode() for at, number in enumerate((one, other))]
    assert not events.is_equal_ignoring(("at",), *bodies)
    assert events.is_equal_ignoring(("a", "at"), *bodies)


def test_as_floats_these_numbers_would_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_document, "_is_exact", lambda _digits, _number: True)
    for one, other in DIFFERENT:
        assert len({key(f'{{"a": {number}}}', dedup_fields=("a",)) for number in (one, other)}) == 1


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 20))
def test_what_a_float_holds_is_read_as_one(number: float, decimals: int) -> None:
    for text in (repr(number), f"{round(number, min(decimals, 3)):.3f}" if abs(number) < 1e9 else repr(number)):
        document, exact = parse_with_exact(text.encode())
        assert document == exact == parse(text.encode()) == parse_exactly(text.encode()) == float(text)


@pytest.mark.parametrize("body", [b"{", b"NaN", b"[" * 200, b"\xff"])
def test_what_is_unreadable_stays_so(body: bytes) -> None:
    assert parse_with_exact(body) == (json_document.UNREADABLE, json_document.UNREADABLE)
    assert parse_exactly(body) is json_document.UNREADABLE


# What is published


class Amount(msgspec.Struct):
    value: float


NOT_JSON: list[tuple[Any, str]] = [
    (math.inf, "it is inf"),
    (-math.inf, "it is -inf"),
    (math.nan, "it is nan"),
    ({"a": None, "items": [{"price": 1.0}, {"price": math.inf}]}, r"items\.1\.price is inf"),
    ((1, {"x": math.nan}), r"1\.x is nan"),
    ({"a": Amount(math.inf)}, r"a\.value is inf"),
    ({"raw": msgspec.Raw(b"null"), "a": math.inf}, "a is inf"),
]


@pytest.mark.parametrize(("value", "problem"), NOT_JSON)
def test_a_number_that_json_does_not_have_is_refused_at_every_entrance(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        encode(value)
    with pytest.raises(InvalidMessage, match=rf"^payload: it cannot be written as JSON: {problem}"):
        Outbox().draft(Message(application="acme", type="a", payload=value))
    with pytest.raises(InvalidMessage, match=rf"^live message on cars: .*{problem}"):
        notify_call("cars", value)
    with pytest.raises(ValueError, match=problem):
        event(application="acme", type="a", json=value)


def test_the_loss_is_seen_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_document, "_check_finite", lambda _value: None)
    assert encode({"price": math.inf}) == b'{"price":null}'


@pytest.mark.parametrize("text", ["1e309", '{"a": [1e309]}', "NaN", '{"a": -Infinity}'])
def test_the_command_line_refuses_the_same_in_a_text(text: str) -> None:
    with pytest.raises(InvalidMessage, match=r"^payload: "):
        read_object(text.encode())


@pytest.mark.parametrize(
    "value", [None, {"a": None, "b": [None, 1.5, "inf"]}, {"raw": msgspec.Raw(b'{"a":null}')}, "null", {"n": {None}}]
)
def test_null_itself_is_published(value: Any) -> None:
    assert encode(value) == msgspec.json.encode(value)
    draft = Outbox().draft(Message(application="acme", type="a", payload=value))
    assert draft.body == msgspec.json.encode(value)
    json.loads(draft.body)
