"""Batches: each item's path, type, key and digest, and that no key of an item is another's by accident."""

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from boathook.domain.verification import Reason, Rejected, Verified
from boathook.providers.recipe import BatchItems, BodyFormat, EventId, EventType
from boathook.providers.request_reader import Header, Json
from boathook.verification import dedup_keys
from tests.support import too_dear
from tests.unit.recipe_factory import SIGNED, recipe, source
from tests.unit.verifier_factory import NOW, request

KEY = "geheim"
LIST = recipe(
    SIGNED,
    id=EventId(selectors=(Json("batch_id"),)),
    type=EventType(selectors=(Json("kind"),)),
    items=BatchItems(
        paths=("events.*",),
        id=EventId(selectors=(Json("id"),)),
        type=EventType(selectors=((Json("resource"), Json("action")),)),
    ),
    body=BodyFormat.ANY,
)


def judge(made, document: object, now: float = NOW, **headers: str):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    proof = {"x-sig": hmac.new(KEY.encode(), body, "sha256").hexdigest()}
    return source(made, KEY).verify(request(body, proof | headers), now)


def keys(verdict) -> list[str]:
    assert isinstance(verdict, Verified), verdict
    return [item.dedup_key for item in verdict.items]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_batch_is_split_into_items():
    document = {
        "batch_id": "b1",
        "kind": "usual",
        "events": [
            {"id": "e1", "resource": "payment", "action": "paid", "n": 1.5},
            {"id": 2, "resource": "payment", "action": "paid"},
            {"id": "e3", "action": "odd"},
        ],
    }
    verdict = judge(LIST, document)
    assert [(item.path, item.type, item.dedup_key) for item in verdict.items] == [
        ("events.0", "payment.paid", "item:e1"),
        ("events.1", "payment.paid", "item:2"),
        ("events.2", "usual", "item:e3"),
    ]
    assert [item.document for item in verdict.items] == document["events"]
    assert verdict.items[1].digest == hashlib.sha256(b'{"action":"paid","id":2,"resource":"payment"}').digest()
    body = json.dumps(document).encode()
    assert verdict.dedup_key == "sha256:" + sha("usual\0" + body.decode())
    assert (verdict.type, verdict.replay_material) == ("batch", None)
    assert judge(LIST, {"events": document["events"][:2]}).type == "payment.paid"


@pytest.mark.parametrize(
    "document", [{"batch_id": "b1"}, {"batch_id": "b1", "events": []}, {"batch_id": "b1", "events": [None]}]
)
def test_a_batch_without_items_is_a_plain_event(document):
    verdict = judge(LIST, document)
    assert (verdict.items, verdict.dedup_key) == ((), "b1")


def test_a_non_json_body_is_a_plain_event_unless_json_is_required():
    assert judge(LIST, b"not json").items == ()
    refused = judge(replace(LIST, body=BodyFormat.JSON), b"not json")
    assert (refused.status, refused.reason) == (400, Reason.BODY_MALFORMED)


def test_several_paths_with_several_stars():
    deep = replace(
        LIST,
        items=BatchItems(
            paths=("entry.*.changes.*", "entry.*.messaging.*"),
            id=EventId(selectors=(Json("id"), Json("mid"))),
            type=EventType(selectors=(Json("field"),), first_key_except=("id", "mid", "sender")),
        ),
    )
    document = {
        "entry": [
            {"changes": [{"id": "c1", "field": "feed"}, {"id": "c2", "field": "leads"}]},
            {"messaging": [{"mid": "m1", "sender": 1, "delivery": {}}], "changes": []},
        ]
    }
    verdict = judge(deep, document)
    assert [(item.path, item.type, item.dedup_key) for item in verdict.items] == [
        ("entry.0.changes.0", "feed", "item:c1"),
        ("entry.0.changes.1", "leads", "item:c2"),
        ("entry.1.messaging.0", "delivery", "item:m1"),
    ]


def test_an_array_as_the_whole_body_and_a_header_as_the_type():
    whole = replace(
        LIST,
        items=BatchItems(
            paths=("*",), id=EventId(selectors=(Json("id"),)), type=EventType(selectors=(Header("x-topic"),))
        ),
    )
    verdict = judge(whole, [{"id": "a"}, {"id": "b"}], **{"x-topic": "t"})
    assert [(item.path, item.type) for item in verdict.items] == [("0", "t"), ("1", "t")]
    assert verdict.type == "t"


# Keys.

NAMELESS = replace(LIST, items=BatchItems(paths=("events.*",)), type=EventType())


def test_an_item_without_an_id_is_keyed_by_its_canonical_content():
    spaced = b'{"events": [ {"b": 1, "a": [1.0, "\\u0416"]} ]}'
    tight = '{"events":[{"a":[1.0,"Ж"],"b":1}]}'.encode()
    other = b'{"events":[{"a":[1.0,"x"],"b":1}]}'
    assert keys(judge(NAMELESS, spaced)) == keys(judge(NAMELESS, tight)) != keys(judge(NAMELESS, other))
    assert keys(judge(NAMELESS, tight)) == ["item:sha256:" + sha('unknown\0{"a":[1.0,"\\u0416"],"b":1}')]


def test_an_items_key_is_never_that_of_a_whole_request():
    item = judge(LIST, {"events": [{"id": "e1"}]}).items[0]
    for identifier in (item.dedup_key, "e1", "id:" + item.dedup_key):
        assert judge(LIST, {"batch_id": identifier}).dedup_key != item.dedup_key
    made_to_look_like = "sha256:" + sha('unknown\0{"a":1}')
    nameless = keys(judge(NAMELESS, {"events": [{"a": 1}]}))
    assert keys(judge(LIST, {"events": [{"id": made_to_look_like}]})) != nameless


def test_mutant_without_its_prefix_an_item_could_take_a_requests_key(monkeypatch):
    item = judge(LIST, {"events": [{"id": "e1"}]}).items[0]
    assert judge(LIST, {"batch_id": "e1"}).dedup_key != item.dedup_key
    monkeypatch.setattr(dedup_keys, "KEY_PREFIX", "")
    item = judge(LIST, {"events": [{"id": "e1"}]}).items[0]
    assert judge(LIST, {"batch_id": "e1"}).dedup_key == item.dedup_key


def test_identical_items_are_merged_and_conflicting_ones_kept():
    same = {"id": "e1", "n": 1}
    verdict = judge(LIST, {"events": [same, {"id": "e2"}, dict(reversed(same.items()))]})
    assert [item.path for item in verdict.items] == ["events.0", "events.1"]
    verdict = judge(LIST, {"events": [same, {"id": "e1", "n": 2}]})
    assert keys(verdict) == ["item:e1", "item:e1"]
    assert verdict.items[0].digest != verdict.items[1].digest


def test_volatile_fields_change_neither_digest_nor_key():
    counted = replace(LIST, volatile=("events.*.attempt", "events.*.meta.sent_at", "other"))
    one, again = (
        judge(counted, {"events": [{"id": "e1", "n": 1, "attempt": attempt, "meta": {"sent_at": attempt, "x": 1}}]})
        for attempt in (0, 1)
    )
    assert one.items[0].digest == again.items[0].digest
    assert again.items[0].document["attempt"] == 1
    changed = judge(counted, {"events": [{"id": "e1", "n": 2, "attempt": 0, "meta": {"x": 1}}]})
    assert changed.items[0].digest != one.items[0].digest
    nameless = replace(NAMELESS, volatile=("events.*.attempt",))
    assert len({*map(str, (keys(judge(nameless, {"events": [{"a": 1, "attempt": n}]})) for n in (0, 1)))}) == 1


def test_surrounding_fields_are_part_of_an_items_key():
    around = replace(
        NAMELESS,
        items=BatchItems(paths=("entry.*.changes.*", "entry.*.notes.*"), around={"entry.*.changes.*": ("id", "time")}),
    )
    change = {"field": "name"}

    def key(entry: object) -> str:
        return keys(judge(around, {"entry": [entry]}))[0]

    first = key({"id": "p1", "time": 1, "changes": [change]})
    assert first == key({"id": "p1", "time": 1, "changes": [change], "more": 2})
    assert first != key({"id": "p1", "time": 2, "changes": [change]})
    assert first != key({"id": "p2", "time": 1, "changes": [change]})
    assert key({"id": "p1", "time": 1, "notes": [change]}) == key({"id": "p2", "time": 2, "notes": [change]})
    both = judge(around, {"entry": [{"time": 1, "changes": [change]}, {"time": 2, "changes": [change]}]})
    assert len(both.items) == 2


def test_repeatable_events_without_an_id_are_keyed_by_time():
    repeating = replace(
        NAMELESS, id=EventId(is_repeatable=True), items=BatchItems(paths=("events.*",), id=EventId(is_repeatable=True))
    )
    document = {"events": [{"a": 1}, {"a": 1}]}
    first, again, later = judge(repeating, document), judge(repeating, document), judge(repeating, document, NOW + 1)
    assert keys(first) == keys(again)
    assert len(set(keys(first) + keys(later))) == 4
    assert first.dedup_key != later.dedup_key
    plain = replace(repeating, items=None)
    first, later = judge(plain, document), judge(plain, document, NOW + 1)
    assert first.dedup_key != later.dedup_key
    assert first.replay_material is None
    named = replace(plain, id=EventId(selectors=(Json("id"),), is_repeatable=True))
    assert judge(named, {"id": "e"}).dedup_key == judge(named, {"id": "e"}, NOW + 1).dedup_key == "e"


def test_the_type_is_part_of_a_key_made_of_bytes():
    apart = recipe(SIGNED, type=EventType(selectors=(Header("x-topic"),), is_part_of_replay_key=True))
    created, paid = (judge(apart, {"id": 1}, **{"x-topic": topic}) for topic in ("created", "paid"))
    assert created.dedup_key != paid.dedup_key
    assert created.replay_material != paid.replay_material
    assert created == judge(apart, {"id": 1}, **{"x-topic": "created"})
    together = replace(apart, type=EventType(selectors=(Header("x-topic"),)))
    created, paid = (judge(together, {"id": 1}, **{"x-topic": topic}) for topic in ("created", "paid"))
    assert created.dedup_key != paid.dedup_key
    assert created.replay_material == paid.replay_material


# Types that no place names.


@pytest.mark.parametrize(
    ("body", "type"),
    [
        (b'{"update_id":1,"message":{"text":"x"}}', "message"),
        (b'{"message":{"update_id":1},"update_id":2}', "message"),
        (b'{"update_id":1}', "unknown"),
        (b'{"":1,"b":2}', "b"),
        (b"[1]", "unknown"),
        (b'{"\\ud800":1}', "\N{REPLACEMENT CHARACTER}"),
        (b'{"x":1e999}', "x"),
        (b'{"x":' + b"[" * 200 + b"]" * 200 + b"}", "unknown"),
        (b"not json", "unknown"),
    ],
)
def test_the_type_may_be_the_first_key_except_some(body, type):
    made = recipe(SIGNED, type=EventType(first_key_except=("update_id",)), body=BodyFormat.ANY)
    assert judge(made, body).type == type


def test_a_type_may_be_read_by_a_function_that_may_fail():
    def read(reader):
        return reader.document["kinds"][0]

    made = recipe(SIGNED, type=EventType(selectors=(Json("kind"),), read=read), body=BodyFormat.ANY)
    assert judge(made, {"kind": "k", "kinds": ["x"]}).type == "k"
    assert judge(made, {"kinds": ["x"]}).type == "x"
    for body in (b"{}", b"[]", b"", b'{"kinds":7}'):
        assert judge(made, body).type == "unknown"


# Bounds.


def test_more_than_ten_thousand_items_are_refused():
    most = judge(NAMELESS, {"events": list(range(dedup_keys.MAX_ITEMS))})
    assert len(most.items) == dedup_keys.MAX_ITEMS == 10_000
    verdict = judge(NAMELESS, {"events": list(range(dedup_keys.MAX_ITEMS + 1))})
    assert isinstance(verdict, Rejected)
    assert (verdict.status, verdict.reason) == (413, Reason.BODY_TOO_LARGE)
    assert "more than 10000 items" in verdict.detail


def test_a_large_batch_takes_milliseconds():
    document = {"events": [{"id": f"e{number}", "data": "x" * 100} for number in range(1_000)]}
    assert too_dear(lambda: judge(LIST, document), most=100) is None


# Properties.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(VALUES, max_size=8))
def test_items_are_distinguished_exactly_by_content(values):
    verdict = judge(NAMELESS, {"events": values})
    written = {json.dumps(value, sort_keys=True) for value in values if value is not None}
    assert {json.dumps(item.document, sort_keys=True) for item in verdict.items} == written
    assert len(verdict.items) == len(written)
    for item in verdict.items:
        content = json.dumps(item.document, sort_keys=True, separators=(",", ":"))
        assert item.digest.hex() == sha(content)
        assert item.dedup_key == "item:sha256:" + sha(f"unknown\0{content}")
        assert item.dedup_key.isprintable()


@given(st.lists(st.text(max_size=30), max_size=6))
def test_items_with_different_ids_have_different_storable_keys(names):
    verdict = judge(LIST, {"events": [{"id": name} for name in names]})
    if verdict.items:
        assert len({item.dedup_key for item in verdict.items}) == len(set(names))
        assert all(item.dedup_key.isprintable() and item.dedup_key.encode() for item in verdict.items)


@given(st.text(max_size=40))
def test_provider_ids_never_equal_generated_keys(name):
    for own in ("sha256:", "fields:", "item:", "moment:", "id:"):
        assert not dedup_keys.make_dedup_key(own + name).startswith(own) or own == "id:"
    assert dedup_keys.make_dedup_key(name) != dedup_keys.make_dedup_key("id:" + name)
