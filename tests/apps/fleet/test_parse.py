"""The parser reads payloads of all sender versions, and never raises."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boathook_fleet.parse import MAX_DEPTH, Change, Unknown, clean, effective_timestamp, parse, read
from boathook_fleet.ruby import read_hash
from boathook_fleet.tables import TABLES
from boathook_fleet.timestamp_formats import read_timestamp
from boathook_fleet.words import Action, Entity, find_action, find_entity

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
CAR = {"id": 5, "number": "X123YZ77", "updated_at": "2026-11-21T10:00:00Z"}


@pytest.mark.parametrize(
    "document",
    [
        {"event": "car_update", "payload": CAR},
        {"event": "car.updated", "payload": CAR},
        {"event": "CarUpdated", "data": CAR},
        {"type": "update_car", "payload": json.dumps(CAR)},
        {"event": "car_update", "payload": '{"id"=>5, :number=>"X123YZ77", "updated_at"=>"2026-11-21T10:00:00Z"}'},
        {"event": "car_update", "payload": '{id: 5, number: "X123YZ77", updated_at: "2026-11-21T10:00:00Z"}'},
        {"entity": "car", "action": "updated", "data": CAR},
        {"entity": "cars", "action": "changed", "data": {"car": CAR}},
        {
            "model": "Car",
            "action": "update",
            "id": 5,
            "attributes": {key: CAR[key] for key in ("number", "updated_at")},
        },
        {"action": "update", "car": CAR},
        {"event": "update", "entity": "vehicle", "payload": CAR},
        {"event": "car_update", **CAR},
        {"event": "Автомобиль изменён", "payload": CAR},
        {"event": "car_update", "payload": {**CAR, "number": "old", "changes": {"number": ["old", "X123YZ77"]}}},
    ],
)
def test_every_payload_shape_parses_to_the_same_change(document):
    said = parse(document)
    assert isinstance(said, Change), said
    assert (said.entity, said.action, said.id, said.stamp) == (Entity.CAR, Action.UPDATE, "5", AT)
    assert dict(said.data) == CAR


@pytest.mark.parametrize(
    ("text", "entity", "action", "id"),
    [
        ("Изменена бронь №17", "booking", "update", "17"),
        ("Создано бронирование # 12 на 3 дня", "booking", "create", "12"),
        ("Удалён автомобиль 5", "car", "delete", "5"),
        ("Сотрудник Анна обновила клиента id: 44", "employee", "update", "44"),
        ("Booking 17 was updated by Anna", "booking", "update", "17"),
        ("New client #3 added", "client", "create", "3"),
        ("Branches removed: 8", "branch", "delete", "8"),
    ],
)
def test_a_description_in_russian_or_english_is_understood(text, entity, action, id):
    said = parse({"description": text})
    assert isinstance(said, Change), said
    assert (said.entity, said.action, said.id, said.description) == (entity, action, id, text)
    assert not said.data


def test_actor_branch_and_description_are_normalised():
    said = parse(
        {
            "event": "booking_create",
            "user": {"name": "Анна", "id": 3},
            "payload": {"id": 1, "branch": {"id": 4, "name": "Сочи"}, "description": "Через сайт"},
        }
    )
    assert (said.actor, said.branch, said.description) == ("Анна", "Сочи", "Через сайт")


def test_a_message_of_umnico_is_understood():
    said = read(
        b'{"type":"message.incoming","accountId":1,"leadId":2,"message":{"messageId":"m1","datetime":1763700000000,'
        b'"message":{"text":"hello"}}}'
    )
    assert (said.entity, said.action, said.id) == (Entity.MESSAGE, Action.CREATE, "m1")
    assert TABLES[Entity.MESSAGE].values(said.data)["text"] == "hello"
    assert TABLES[Entity.MESSAGE].values(said.data)["lead_id"] == "2"


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        None,
        7,
        "car_update",
        {"event": "invoice_paid", "payload": {"id": 1}},
        {"event": "car_update", "payload": {"state": "free"}},
        {"event": "car", "payload": {"id": 1}},
        {"event": "car_update", "payload": {}},
        {"event": "car_update", "payload": {"id": "x" * 201}},
        {"event": "car_update", "payload": {"id": True}},
        {"event": "car_update", "payload": {"id": "a\nb"}},
    ],
)
def test_an_unknown_shape_is_a_value_with_a_reason(document):
    said = parse(document)
    assert isinstance(said, Unknown), said
    assert said.reason


def test_the_deletion_is_not_stamped_by_the_last_update_before_it():
    payload = {"id": 1, "updated_at": "2026-11-01T00:00:00Z", "deleted_at": "2026-11-21T10:00:00Z"}
    assert parse({"event": "car_delete", "payload": payload}).stamp == AT
    assert (
        parse({"event": "car_delete", "timestamp": AT.timestamp(), "payload": {**CAR, "deleted_at": None}}).stamp == AT
    )


def test_a_clock_that_is_ahead_counts_as_the_present():
    said = parse({"event": "car_update", "payload": {"id": 1, "updated_at": "2099-01-01T00:00:00Z"}})
    assert effective_timestamp(said, AT) == AT
    assert effective_timestamp(parse({"event": "car_update", "payload": {"id": 1, "x": 2}}), AT) == AT


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2026-11-21T10:00:00Z", AT),
        ("2026-11-21T13:00:00+03:00", AT),
        ("2026-11-21 13:00:00 +0300", AT),
        ("2026-11-21 10:00:00 UTC", AT),
        ("Sat, 21 Nov 2026 10:00:00 UTC +00:00", AT),
        ("Sat, 21 Nov 2026 13:00:00 MSK +03:00", AT),
        ("21.11.2026 10:00", AT),
        (AT.timestamp(), AT),
        (str(int(AT.timestamp() * 1_000)), AT),
        ("yesterday", None),
        (True, None),
        (-1, None),
        (float("nan"), None),
        (1e300, None),
        ("9999-12-31T23:59:59-12:00", None),
    ],
)
def test_timestamps_are_read_in_every_format(written, at):
    assert read_timestamp(written) == at


def test_nothing_in_a_ruby_hash_is_evaluated():
    assert read_hash('{"a"=>system("touch /tmp/x"), "b"=>`ls`}') in (None, {"a": 'system("touch /tmp/x")', "b": "`ls`"})
    assert read_hash('{"a"=>"#{1 + 1}"}') == {"a": "#{1 + 1}"}
    assert read_hash("{" * 100_000) is None
    assert read_hash("{" + '"a"=>{' * 200 + "}" * 201) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["event", "type", "payload", "data", "entity", "model", "action", "id", "car", "message", "changes", "description",
     "updated_at", "branch", "user", "object", "deleted_at", "car_id"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["car_update", "booking_delete", "client", "create", "Изменена бронь №17", '{"id"=>1}', "{", "{}"]
)
NEAR = st.recursive(
    JSON | WORDS, lambda inner: st.dictionaries(KEYS, inner, max_size=6) | st.lists(inner, max_size=3), max_leaves=20
)


@given(NEAR)
@example({"event": "car_update", "payload": {"id": 1, "a\0": "\0\ud800", "n": float("inf"), "big": 10**5000}})
@example({"event": "car_update", "payload": '{"id"=>1, "x"=>"\\ud800"}'})
def test_no_document_makes_the_parser_fail(document):
    said = parse(document)
    assert isinstance(said, Change | Unknown)
    if isinstance(said, Change):
        assert said.id
        assert len(said.id) <= 200
        text = json.dumps(dict(said.data), allow_nan=False)
        assert "\\u0000" not in text
        text.encode()
        json.dumps(dict(said.data), ensure_ascii=False).encode()  # no half of a pair is left
        TABLES[said.entity].values(said.data)
        effective_timestamp(said, AT)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_make_the_parser_fail(body):
    assert isinstance(read(body), Change | Unknown)


@given(st.text(alphabet='{}[]"=>:,nil \\u0de#<A1.', max_size=60))
def test_no_text_makes_the_reader_of_ruby_fail(text):
    assert read_hash(text) is None or isinstance(read_hash(text), dict)


@pytest.mark.own_process
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"1" * 5_000])
def test_hostile_bodies_are_unknown(body):
    assert isinstance(read(body), Unknown)


@pytest.mark.own_process
def test_a_too_deeply_nested_payload_is_unknown():
    value: object = 1
    for _ in range(MAX_DEPTH + 2):
        value = [value]
    assert isinstance(parse({"event": "car_update", "payload": {"id": 1, "x": value}}), Unknown)
    with pytest.raises(RecursionError):
        clean(value)


def test_values_of_the_wrong_kind_are_left_out_of_the_columns():
    car = TABLES[Entity.CAR].values(
        {"number": ["x"], "mileage": "1e99", "branch_id": "b" * 500, "state": {"name": "ok"}}
    )
    assert car == {"number": None, "model": None, "vin": None, "state": "ok", "mileage": None, "branch_id": None}
    booking = TABLES[Entity.BOOKING].values({"total": "NaN", "price": 12.345, "car": {"id": 9}, "from": "never"})
    assert str(booking["price"]) == "12.34"
    assert booking["car_id"] == "9"
    assert booking["starts_at"] is None


@pytest.mark.parametrize("word", ["carpet_updated", "newest", "modified_by_nobody_at_all"])
def test_a_word_starting_like_an_entity_is_not_one(word):
    assert find_entity(word) is None


@pytest.mark.parametrize(("word", "action"), [("cancelled", "update"), ("destroyed", "delete"), ("modified", "update")])
def test_endings_do_not_hide_an_action(word, action):
    assert find_action(word) == action


@pytest.mark.parametrize(
    ("total", "price"),
    [("999999999999.99", "999999999999.99"), ("999999999999.996", None), ("-999999999999.996", None)],
)
def test_a_price_that_rounds_beyond_its_column_is_left_out(total: str, price: str | None):
    assert TABLES[Entity.BOOKING].values({"total": total})["price"] == (price and Decimal(price))
