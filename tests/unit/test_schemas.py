"""JSON Schemas of event types: valid and invalid payloads, and schemas that could hang or fetch."""

import socket
from typing import Any

import pytest

from boathook.verification import json_schema
from boathook.verification.json_schema import check_schema, validate
from tests.support import too_dear

INVOICE = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "pattern": "^in_[0-9]+$"},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
    },
    "additionalProperties": False,
    "patternProperties": {"^x-": {"type": "string"}},
    "definitions": {"line": {"type": "object", "properties": {"price": {"type": "number"}}}},
}


def judge(payload, schema=INVOICE):
    return validate(payload, {"1": schema})


def test_a_payload_that_fits():
    check_schema(INVOICE)
    assert judge({"id": "in_1", "lines": [{"price": 1.5}], "x-note": "hello"}) is None


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        ({}, "'id' is a required property"),
        ({"id": "other"}, "id: 'other' does not match"),
        ({"id": "in_1", "lines": [{"price": 1}, {"price": "x"}]}, "lines.1.price: 'x' is not of type 'number'"),
        ({"id": "in_1", "more": 1}, "'more' is not allowed"),
        ({"id": "in_1", "x-note": 1}, "x-note: 1 is not of type 'string'"),
        ([], "[] is not of type 'object'"),
    ],
)
def test_an_error_names_its_path(payload, fault):
    assert fault in judge(payload)


def test_the_newest_version_counts_in_natural_order():
    versions = {"9": {"type": "string"}, "10": {"type": "number"}, "2": {}}
    assert validate(1, versions) is None
    assert validate("x", versions) is not None
    assert validate(1, {"v1": {"type": "number"}, "v1.10": {"type": "string"}, "v1.9": {}}) is not None
    assert validate("anything", None) is None
    assert validate("anything", {}) is None


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "nonsense"}, "type: "),
        ({"properties": {"a": {"minimum": "x"}}}, "properties.a.minimum: "),
        ("text", "is not of type"),
        ({"$ref": "https://example.com/schema.json"}, r"\$ref 'https://example.com/schema.json' leads out"),
        ({"properties": {"a": {"$ref": "#/definitions/none"}}}, "leads out of the schema or nowhere"),
        ({"pattern": "(?=a)b"}, "look-around"),
        ({"pattern": r"(a)\1"}, "back-references"),
        ({"patternProperties": {"(": {}}}, r"pattern '\('"),
        ({"items": {"pattern": "(a{1000}){1000}"}}, "too large"),
        ({"pattern": "a" * 1_001}, "at most 1,000 characters"),
        ({"description": "x" * 300_000}, "at most 262,144 bytes"),
        ({"x": float("inf")} | {"type": object()}, "cannot be written as JSON"),
        ({"propertys": {"a": {}}}, "did you mean 'properties'"),
        ({"allOf": [{"properties": {"a": {"requierd": ["b"]}}}]}, "did you mean 'required'"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:20],
)
def test_a_wrong_schema_is_refused_with_its_place(schema, fault):
    with pytest.raises(ValueError, match=fault):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"propertys": {"type": "string"}}},
        {"enum": [{"propertys": 1}], "example": {"requierd": 1}, "nullable": True, "x-types": 1},
        {"$defs": {}, "prefixItems": [], "unevaluatedItems": False, "dependentRequired": {}, "deprecated": True},
    ],
    ids=["name of a property", "annotations and values", "later drafts"],
)
def test_only_a_keyword_can_be_misspelt(schema):
    check_schema(schema)


def nested(depth):
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def test_a_deep_schema_is_refused():
    with pytest.raises(ValueError, match="nests"):
        check_schema(nested(100))


def doubling(depth):
    """Each definition refers twice to the next, so the work doubles with each."""
    last = {f"d{depth}": {"type": "string"}}
    twice = {f"d{n}": {"anyOf": [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/definitions/d0", "definitions": twice | last}


HOSTILE = {
    "doubling": (doubling(30), 1),
    "endless": ({"$ref": "#"}, 1),
    "regex": ({"pattern": "^(a+)+$"}, "a" * 50_000 + "!"),
    "property names": (
        {"patternProperties": {"^(a+)+$": True}, "additionalProperties": False},
        {"a" * 50_000 + "!": 1},
    ),
    "unique": ({"uniqueItems": True}, [{"n": n} for n in range(20_000)]),
    "long": ({"items": {"pattern": "x"}}, ["a" * 1_000_000] * 3),
    "numbers": ({"multipleOf": 0.1}, 1e308 * 10),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_makes_a_payload_dear(name):
    schema, payload = HOSTILE[name]
    check_schema(schema)
    judge(1, schema)
    assert too_dear(lambda: judge(payload, schema), most=5_000) is None
    assert judge(payload, schema) is not None


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_without_the_budget_the_work_doubles_and_doubles(monkeypatch):
    """The mutant: steps that cost nothing let a schema of a few lines run for ever."""
    spent: list[int] = []
    monkeypatch.setattr(json_schema, "_count_steps", spent.append)
    assert judge(1, doubling(12)) is not None
    few = len(spent)
    spent.clear()
    assert judge(1, doubling(13)) is not None
    assert len(spent) > 1.9 * few


def test_nothing_is_fetched(monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: asked.append(address))
    remote = {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}}
    with pytest.raises(ValueError, match="leads out"):
        check_schema(remote)
    # A place that no keyword names is not looked into beforehand, and does not lead out either.
    sneaky = {"$ref": "#/elsewhere/b", "elsewhere": {"b": {"$ref": "http://127.0.0.1:1/schema.json"}}}
    assert "cannot be checked" in judge(1, sneaky)
    assert asked == []


def test_a_long_value_is_cut():
    fault = judge({"id": "x" * 100_000})
    assert len(fault) <= 300


@pytest.mark.parametrize(("value", "step"), [(19.99, 0.01), (0.3, 0.1), (-1.1, 0.1), (10**40, 10), (0, 7), (1e22, 10)])
def test_multiple_of_is_exact_in_decimals(value, step):
    assert judge(value, {"multipleOf": step}) is None


@pytest.mark.parametrize(("value", "step"), [(19.995, 0.01), (0.35, 0.1), (10**40 + 1, 10), (1e-9, 1)])
def test_a_non_multiple_is_refused(value, step):
    assert "is not a multiple of" in judge(value, {"multipleOf": step})


def test_a_long_value_hides_neither_where_nor_why():
    fault = judge({"a": {"b": "x" * 5_000}}, {"properties": {"a": {"properties": {"b": {"type": "number"}}}}})
    assert len(fault) <= 300
    assert fault.startswith("a.b: 'xxx")
    assert fault.endswith("xxx' is not of type 'number'")
