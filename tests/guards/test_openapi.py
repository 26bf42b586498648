"""The OpenAPI document says what every list and every answer holds, so that clients generated from it are typed."""

from collections.abc import Iterator
from typing import Any

import pytest

from boathook.api import pages
from boathook.api.app import openapi_document as document


def arrays(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return every array that a document speaks of, by where."""
    if isinstance(node, dict):
        if node.get("type") == "array":
            yield path, node.get("items")
        for name, value in node.items():
            yield from arrays(value, f"{path}/{name}")
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from arrays(value, f"{path}/{place}")


def answers(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the schema of every good answer that has a body."""
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                if status.startswith("2") and status != "204" and "content" in answer:
                    yield f"{method} {path}", answer["content"]["application/json"]["schema"]


def untyped(spec: dict[str, Any]) -> list[str]:
    """Return where a document has an untyped list or response."""
    schemas = spec["components"]["schemas"]
    wrong = [path for path, items in arrays(spec) if not items or not {"type", "$ref", "anyOf"} & items.keys()]
    for name, schema in answers(spec):
        found = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if "properties" not in found and name != "post /api/v1/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend":
            wrong.append(name)
        if "data" in found.get("properties", {}) and "iterator" in found["properties"]:
            items = found["properties"]["data"].get("items", {})
            wrong += [] if "$ref" in items else [f"{name} data"]
    return wrong


def test_every_list_and_every_answer_is_typed():
    spec = document()
    assert untyped(spec) == []
    lists = [schema for name, schema in spec["components"]["schemas"].items() if name.startswith("ListOf")]
    assert len(lists) >= 8
    for schema in lists:
        assert schema["required"] == ["data", "iterator", "done"]
        assert set(schema["properties"]) == {"data", "iterator", "prevIterator", "done"}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_a_page_that_writes_itself_would_be_untyped():
    """The mutant: one list that says of itself that it is any object."""
    spec = document()
    name = next(name for name in spec["components"]["schemas"] if name.startswith("ListOf"))
    spec["components"]["schemas"][name] = {"type": "object", "additionalProperties": True}
    assert untyped(spec)


def test_a_page_omits_a_missing_prev_iterator():
    empty = pages.ListOf[int](data=[], iterator=None, done=True)
    assert empty.model_dump(by_alias=True) == {"data": [], "iterator": None, "done": True}
    full = pages.ListOf[int](data=[1], iterator="b", prev_iterator="-a", done=True)
    assert full.model_dump(by_alias=True)["prevIterator"] == "-a"
