"""Type patterns, filters and the router: what each recipient wants."""

import hashlib
import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain import filters
from boathook.domain.filters import MAX_CONDITIONS, FilterInput, Pattern, Router, compile_filter
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.model import NewDelivery, Route

BODY = {
    "type": "invoice.paid",
    "livemode": True,
    "count": 1,
    "nothing": None,
    "data": {"object": {"amount": 250, "currency": "eur", "tags": ["vip", 7], "customer": "cus_1"}},
}
SUBJECT = FilterInput(BODY, {"x-github-event": "push"})


@pytest.mark.parametrize(
    ("pattern", "type", "fits"),
    [
        ("*", "", True),
        ("*", "anything.at.all", True),
        ("invoice.paid", "invoice.paid", True),
        ("invoice.paid", "invoice.paid.x", False),
        ("invoice.*", "invoice.paid", True),
        ("invoice.*", "invoice", False),
        ("*.paid", "invoice.paid", True),
        ("*.*", "a.b", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("a?c", "abc", False),
        ("[ab]", "a", False),
        ("**", "x", True),
        ("a*x*x*b", "axb", False),
    ],
)
def test_patterns(pattern, type, fits):
    assert Pattern(pattern).matches(type) is fits


@given(st.text(alphabet="ab*.", min_size=1, max_size=8), st.text(alphabet="ab.", max_size=12))
def test_patterns_agree_with_a_regular_expression(pattern, type):
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), type, re.DOTALL)
    assert Pattern(pattern).matches(type) is (expected is not None)


def test_a_hostile_pattern_costs_little():
    started = time.thread_time()
    assert not Pattern("*a" * 200 + "*b").matches("a" * 100_000)
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    ("filter", "passes"),
    [
        ({"body": {"type": "invoice.paid"}}, True),
        ({"body": {"$.type": "invoice.paid"}}, True),
        ({"body": {"type": "other"}}, False),
        ({"body": {"count": 1}}, True),
        ({"body": {"count": 1.0}}, True),
        ({"body": {"count": True}}, False),
        ({"body": {"livemode": True}}, True),
        ({"body": {"livemode": 1}}, False),
        ({"body": {"nothing": None}}, True),
        ({"body": {"absent": None}}, False),
        ({"body": {"data.object.amount": {"gt": 100}}}, True),
        ({"body": {"data.object.amount": {"gt": 250}}}, False),
        ({"body": {"data.object.amount": {"gte": 250, "lt": 251}}}, True),
        ({"body": {"data.object.amount": {"lte": 249}}}, False),
        ({"body": {"data.object.amount": {"gt": "100"}}}, False),
        ({"body": {"data.object.currency": {"gt": "e"}}}, True),
        ({"body": {"livemode": {"gt": 0}}}, False),
        ({"body": {"data.object.currency": {"ne": "usd"}}}, True),
        ({"body": {"absent": {"ne": "usd"}}}, True),
        ({"body": {"data.object.currency": {"in": ["usd", "eur"]}}}, True),
        ({"body": {"data.object.currency": {"in": []}}}, False),
        ({"body": {"data.object.currency": {"nin": ["usd", "eur"]}}}, False),
        ({"body": {"nothing": {"exists": True}}}, True),
        ({"body": {"absent": {"exists": True}}}, False),
        ({"body": {"absent": {"exists": False}}}, True),
        ({"body": {"data.object.tags": {"contains": "vip"}}}, True),
        ({"body": {"data.object.tags": {"contains": 7}}}, True),
        ({"body": {"data.object.tags": {"contains": "no"}}}, False),
        ({"body": {"data.object.tags.0": "vip"}}, True),
        ({"body": {"data.object.tags.9": {"exists": True}}}, False),
        ({"body": {"type": {"contains": "oice"}}}, True),
        ({"body": {"type": {"contains": 1}}}, False),
        ({"body": {"count": {"contains": 1}}}, False),
        ({"body": {"type": {"starts_with": "inv", "ends_with": "aid"}}}, True),
        ({"body": {"count": {"starts_with": "1"}}}, False),
        ({"headers": {"X-GitHub-Event": "push"}}, True),
        ({"headers": {"x-other": {"exists": False}}}, True),
        ({"body": {"count": 1}, "headers": {"x-github-event": "pull"}}, False),
        ({"any": [{"body": {"count": 2}}, {"headers": {"x-github-event": "push"}}]}, True),
        ({"any": [{"body": {"count": 2}}, {"body": {"count": 3}}]}, False),
        ({"all": [{"body": {"count": 1}}, {"body": {"livemode": True}}]}, True),
        ({"not": {"body": {"count": 1}}}, False),
        ({"not": {"any": [{"body": {"count": 2}}]}, "body": {"count": 1}}, True),
    ],
)
def test_filters(filter, passes):
    assert compile_filter(filter)(SUBJECT) is passes


def test_conditions_on_a_body_that_is_no_json_fail():
    subject = FilterInput(UNREADABLE, {})
    conditions: tuple[Any, ...] = ({"ne": 1}, {"exists": False}, {"nin": []}, None)
    for condition in conditions:
        assert not compile_filter({"body": {"a": condition}})(subject)


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({}, "filter: write a mapping"),
        ([], "filter: write a mapping"),
        ({"bdy": {}}, r"filter\.bdy: there is no such part"),
        ({"body": {}}, r"filter\.body: write a mapping"),
        ({"body": []}, r"filter\.body: write a mapping"),
        ({"body": {"a..b": 1}}, r"filter\.body\['a\.\.b'\]: 'a\.\.b' is not a dotted path"),
        ({"body": {"a": {"regex": ".*"}}}, r"filter\.body\['a'\]\.regex: there is no such operator; write one of eq"),
        ({"body": {"a": {}}}, r"filter\.body\['a'\]: write a value or operators"),
        ({"body": {"a": [1]}}, r"filter\.body\['a'\]: write text, a number"),
        ({"body": {"a": {"in": "abc"}}}, r"\.in: write a list"),
        ({"body": {"a": {"in": [[1]]}}}, r"\.in: write text, a number"),
        ({"body": {"a": {"gt": True}}}, r"\.gt: write a number or text"),
        ({"body": {"a": {"gt": float("nan")}}}, r"\.gt: write a number or text"),
        ({"body": {"a": {"lt": float("inf")}}}, r"\.lt: write a number or text"),
        ({"body": {"a": {"in": [1, float("-inf")]}}}, r"\.in: write text, a number"),
        ({"body": {"a": {"exists": 1}}}, r"\.exists: write true or false"),
        ({"body": {"a": {"starts_with": 1}}}, r"\.starts_with: write text"),
        ({"any": []}, r"filter\.any: write a list of filters"),
        ({"any": [{"body": {"a": {"lt": None}}}]}, r"filter\.any\[0\]\.body\['a'\]\.lt"),
        ({"not": [1]}, r"filter\.not: write a mapping"),
        ({"headers": {1: "x"}}, r"filter\.headers: 1 is not a name"),
        ({"body": {f"k{n}": n for n in range(MAX_CONDITIONS + 1)}}, "at most 200 conditions"),
    ],
)
def test_a_wrong_filter_is_refused_with_its_place(filter, message):
    with pytest.raises(ValueError, match=message):
        compile_filter(filter)


def test_a_filter_nested_without_end_is_refused():
    filter: dict[str, Any] = {"body": {"a": 1}}
    for _ in range(2_000):
        filter = {"not": filter}
    with pytest.raises(ValueError, match="at most 10 deep"):
        compile_filter(filter)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "contains"]), st.integers() | st.text(max_size=3))
def test_no_operator_raises_for_any_body(document, operator, operand):
    for path in ("a", "a.b", "a.0.c", "b.1"):
        assert compile_filter({"body": {path: {operator: operand}}})(FilterInput(document, {})) in {True, False}


@given(JSON, st.none() | st.booleans() | st.integers() | st.text(max_size=3))
def test_ne_is_always_the_opposite_of_eq(document, operand):
    subject = FilterInput(document, {})
    equal, different = (compile_filter({"body": {"a.b": {name: operand}}})(subject) for name in ("eq", "ne"))
    assert equal is not different


def route(recipient="handler:one", **changes):
    return Route(recipient=recipient, app="tests", **changes)


def ask(router, body=b"{}", **changes):
    event = {"source": "stripe", "application": None, "type": "invoice.paid", "headers": {}} | changes
    return router.route(body=body, **event)


def test_a_recipient_gets_one_delivery_for_several_matching_routes():
    router = Router([route(types=("invoice.*",)), route(), route("handler:two", types=("charge.*", "*.paid"))], 7)
    assert ask(router) == (NewDelivery("handler:one"), NewDelivery("handler:two"))
    assert ask(router, type="charge.made") == (NewDelivery("handler:one"), NewDelivery("handler:two"))
    assert ask(router, type="other") == (NewDelivery("handler:one"),)
    assert router.version == 7


def test_source_and_application_decide_first():
    router = Router([route("any"), route("stripe", source="stripe"), route("acme", application="acme")], 1)
    assert [d.recipient for d in ask(router)] == ["any", "stripe"]
    assert [d.recipient for d in ask(router, source="github")] == ["any"]
    assert [d.recipient for d in ask(router, source=None, application="acme")] == ["acme"]
    assert ask(router, source=None, application="other") == ()


def test_the_matching_route_gives_the_order_key():
    router = Router(
        [
            route(filter={"body": {"vip": True}}, order_by="account"),
            route(order_by="data.object.customer"),
        ],
        1,
    )
    assert ask(router, json.dumps({"vip": True, "account": "A", "data": {"object": {"customer": "C"}}}).encode()) == (
        NewDelivery("handler:one", "A"),
    )
    assert ask(router, json.dumps({"account": "A", "data": {"object": {"customer": "C"}}}).encode()) == (
        NewDelivery("handler:one", "C"),
    )


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"k":"v"}', "v"),
        (b'{"k":12}', "12"),
        (b'{"k":1.5}', "1.5"),
        (b'{"k":true}', "true"),
        (b'{"k":null}', None),
        (b'{"k":{}}', None),
        (b"{}", None),
        (b"not json", None),
        (b"[1]", None),
        (b'{"k":"a\\u0000b"}', "sha256:" + hashlib.sha256(b"a\0b").hexdigest()),
        (b'{"k":"' + b"x" * 301 + b'"}', "sha256:" + hashlib.sha256(b"x" * 301).hexdigest()),
    ],
)
def test_order_keys(body, key):
    (delivery,) = ask(Router([route(order_by="k")], 1), body)
    assert delivery.order_key == key


def test_the_body_is_parsed_once_and_only_if_a_fitting_route_asks():
    calls = []

    def counting(body):
        calls.append(body)
        return parse(body)

    router = Router(
        [route(), route("b", source="github", filter={"body": {"a": 1}}), route("c", source="github", order_by="a")],
        1,
        counting,
    )
    ask(router)
    assert calls == []
    assert [d.recipient for d in ask(router, b'{"a":1}', source="github")] == ["handler:one", "b", "c"]
    assert len(calls) == 1


def to_acme(recipient, **changes):
    return route(recipient, application="acme", **changes)


def test_a_route_with_channels_matches_any_of_them():
    router = Router(
        [
            to_acme("all"),
            to_acme("eu", channels=("eu", "vip")),
            to_acme("us", channels=("us",)),
            to_acme("empty", channels=()),
        ],
        1,
    )

    def reached(*channels):
        return [d.recipient for d in ask(router, source=None, application="acme", channels=channels)]

    assert reached() == ["all", "empty"]
    assert reached("eu") == ["all", "eu", "empty"]
    assert reached("us", "vip") == ["all", "eu", "us", "empty"]
    assert reached("other") == ["all", "empty"]
    assert reached() == ["all", "empty"]


def test_channels_and_filters_both_count_and_only_filters_need_the_body():
    calls = []

    def counting(body):
        calls.append(body)
        return parse(body)

    router = Router([to_acme("eu", channels=("eu",))], 1, counting)
    assert ask(router, source=None, application="acme", channels=("eu",)) == (NewDelivery("eu"),)
    assert calls == []
    router = Router([to_acme("eu", channels=("eu",), filter={"body": {"a": 1}})], 1, counting)
    assert ask(router, b'{"a":1}', source=None, application="acme", channels=("eu",)) == (NewDelivery("eu"),)
    assert ask(router, b'{"a":2}', source=None, application="acme", channels=("eu",)) == ()
    assert ask(router, b'{"a":1}', source=None, application="acme", channels=("us",)) == ()


@pytest.mark.parametrize("body", [b"{}", b"no json", b'{"*":"x"}'])
def test_a_star_orders_everything(body):
    router = Router([route(order_by="*"), route("b", order_by="*", filter={"not": {"body": {"x": 1}}})], 1)
    assert ask(router, body) == (NewDelivery("handler:one", "*"), NewDelivery("b", "*"))


def test_thousands_of_routes_of_others_cost_nothing():
    many = [route(f"s{n}", source=f"s{n}") for n in range(2_000)] + [
        route(f"a{n}", application=f"a{n}") for n in range(2_000)
    ]
    router, judged = Router([*many, route("any")], 1), []
    fits = filters.CompiledRoute.fits

    def counting(line, type):
        judged.append(line.recipient)
        return fits(line, type)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters.CompiledRoute, "fits", counting)
        assert [d.recipient for d in ask(router, source="s7")] == ["s7", "any"]
        assert [d.recipient for d in ask(router, source=None, application="a7")] == ["a7"]
    assert judged == ["s7", "any", "a7"]


ROUTES = st.lists(
    st.tuples(
        st.sampled_from([(None, None), ("s", None), ("t", None), (None, "acme"), (None, "other")]),
        st.sampled_from([None, ("eu",), ("us", "eu")]),
        st.sampled_from([("*",), ("a.*",), ("b",)]),
    ),
    max_size=8,
)


@given(
    ROUTES,
    st.sampled_from([("s", None), ("u", None), (None, "acme"), (None, "none")]),
    st.sets(st.sampled_from(["eu", "us"])),
)
def test_the_route_index_matches_the_same_routes(routes, origin, channels):
    made = [
        route(f"r{place}", source=source, application=application, channels=wanted, types=types)
        for place, ((source, application), wanted, types) in enumerate(routes)
    ]

    def wants(one):
        named = (one.source, one.application)
        is_from = named == origin or (named == (None, None) and origin[0] is not None)
        return is_from and one.types != ("b",) and (one.channels is None or channels & set(one.channels))

    router = Router(made, 1)
    for _ in range(2):
        found = ask(router, source=origin[0], application=origin[1], type="a.b", channels=tuple(channels))
        assert [d.recipient for d in found] == [one.recipient for one in made if wants(one)]


def test_memory_for_types_is_bounded(monkeypatch):
    monkeypatch.setattr(filters, "MAX_PLANS", 10)
    router = Router([route(types=("t*",))], 1)
    for number in range(100):
        assert ask(router, type=f"t{number}")
        assert not ask(router, type=f"x{number}")
    assert len(router._known) <= 10


@pytest.mark.parametrize("changes", [{"types": ("",)}, {"filter": {"nope": 1}}, {"order_by": "a..b"}])
def test_a_wrong_route_is_named(changes):
    with pytest.raises(ValueError, match="route to handler:one: "):
        Router([route(**changes)], 1)


HOSTILE = [
    b"",
    b"\xff\xfe",
    b"NaN",
    b'{"a":NaN}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 5_000 + b"}",
    b'{"a":"\\ud800"}',
    b'{"a":"\\u0000"}',
    b'{"a":1,"a":2}',
    b"[" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'"' * 1_001,
    b'["' + b"[" * 1_000 + b'"]',
    b'["\\"' + b"[" * 1_000 + b'"]',
]


def test_router_knows_which_types_match_and_which_read_the_body():
    router = Router([route(source="a", types=("x.*",)), route("b", source="a", types=("y",), order_by="id")], 1)
    asked = [{"source": source, "application": None, "type": type} for source in "ab" for type in ("x.1", "y", "z")]
    assert [router.fits(**one) for one in asked] == [True, True, False, False, False, False]
    assert [router.reads_body(**one) for one in asked] == [False, True, False, False, False, False]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:12]))
def test_hostile_bodies_are_routed_without_an_exception(body):
    router = Router([route(), route("b", filter={"body": {"a": {"gt": 1}}}), route("c", order_by="a")], 1)
    assert ask(router, body)[0] == NewDelivery("handler:one")


def test_depth_is_counted_outside_strings_only():
    assert parse(b"[" * 128 + b"]" * 128) is not UNREADABLE
    assert parse(b"[" * 129 + b"]" * 129) is UNREADABLE
    assert parse(b'["' + b"[" * 1_000 + b'"]') is not UNREADABLE
    assert parse(b'["\\"' + b"[" * 1_000 + b'"]') is not UNREADABLE
    assert parse(b"[" + b"[]," * 1_000 + b"[]]") is not UNREADABLE


def test_of_a_repeated_key_the_last_counts():
    assert parse(b'{"a":1,"a":2}') == {"a": 2}


@given(JSON)
def test_json_round_trips(document):
    assert parse(json.dumps(document).encode()) == document
