"""OpenAPI documents: what would crash a process, or take long, is refused before anything is built from it."""

import json
import signal
from typing import Any

import pytest

from boathook.domain.errors import InvalidValue
from boathook.domain.json_document import MAX_DEPTH
from boathook.service.sending import openapi_import
from boathook.service.sending.openapi_import import (
    MAX_REFERENCE,
    MAX_YAML,
    MAX_YAML_TOKENS,
    read_document,
    read_webhooks,
)
from tests.support import exit_code

HOSTILE = {
    "complex keys": "? " * 50_000,
    "complex keys, short": "? " * (MAX_YAML // 2),
    "brackets": "[" * 250_000,
    "brackets, short": "[" * MAX_YAML,
    "brackets with ends": "[" * 30_000 + "]" * 30_000,
    "braces": "{a: " * (MAX_YAML // 4),
    "dashes": "- " * (MAX_YAML // 2),
    "an alias": "a: &a [1]\nb: *a\n",
    "tokens": "[" + "a," * (MAX_YAML_TOKENS + 1) + "]",
    "a number of many digits": f"webhooks: {'9' * 60_000}",
    "a number in sixties": f"webhooks: 1{':1' * 30_000}",
    "tags": "[" + "!!python/object/apply:os.system {}," * 1_000 + "]",
    "json": json.dumps({"webhooks": {"a": json.loads("[" * 900 + "]" * 900)}}),
    "json, deeper": '{"webhooks":' * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_refused(name):
    assert exit_code(lambda: read_webhooks(HOSTILE[name]), cpu_s=10, refusal=InvalidValue) == 22


def test_mutant_without_the_walk_over_events_the_process_crashes(monkeypatch):
    monkeypatch.setattr(openapi_import, "check_yaml", lambda _text: None)
    monkeypatch.setattr(openapi_import, "MAX_YAML", 1_000_000)
    assert exit_code(lambda: read_webhooks(HOSTILE["complex keys"]), cpu_s=60) == -signal.SIGSEGV


def nested(depth: int) -> str:
    return "a: " + "[" * (depth - 1) + "]" * (depth - 1)


def test_documents_within_the_limits_are_read():
    assert read_document(nested(MAX_DEPTH))
    assert read_document("a: [" + "1," * (MAX_YAML_TOKENS - 10) + "]")
    assert read_document("a: " + "x" * (MAX_YAML - 3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (nested(MAX_DEPTH + 1), "nests at most 128 deep"),
        ("a: [" + "1," * MAX_YAML_TOKENS + "]", "at most 20,000 keys and values"),
        ("a: " + "x" * MAX_YAML, "at most 65,536 characters"),
        ("a: &a 1\nb: *a", "aliases"),
    ],
)
def test_a_refusal_names_the_field_and_the_bound(text, words):
    with pytest.raises(InvalidValue, match=words) as refused:
        read_document(text)
    assert refused.value.where == ("specRaw",)


def webhook(schema: Any, **more: Any) -> dict[str, Any]:
    return {"post": {"requestBody": {"content": {"application/json": {"schema": schema, **more}}}}}


def deep(depth: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"properties": {"a": value}}
    return value


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"webhooks": {"a": webhook(deep(200))}}, "128 deep"),
        ({"webhooks": {"a": webhook({}, example=deep(200))}}, "128 deep"),
        ({"webhooks": {"a": {"$ref": "#/" + "a" * MAX_REFERENCE}}}, "a reference has at most"),
        (
            {
                "webhooks": {f"a{n}": webhook({"$ref": "#/components/schemas/S"}) for n in range(900)},
                "components": {"schemas": {"S": {"description": "x" * 100_000}}},
            },
            "too large",
        ),
        ({"webhooks": {"a": webhook({"pattern": "(?<=a)b"})}}, "look-around"),
    ],
)
def test_a_parsed_document_is_bounded_too(document, words):
    with pytest.raises(InvalidValue, match=words):
        read_webhooks(document)


def test_schemas_that_take_long_to_check_together_are_refused(monkeypatch):
    monkeypatch.setattr(openapi_import, "MAX_CHECK_S", 0.0)
    with pytest.raises(InvalidValue, match="too long to check"):
        read_webhooks({"webhooks": {"a": webhook({"type": "object"})}})
