"""Writes the routes of docs/reference/api.md from the OpenAPI document that the API serves."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi.routing import APIRoute

from boathook.api.app import ROUTERS, openapi_document

HEAD: Final = """\
## Routes

{generated}

A running boathook serves the same as an OpenAPI document at `/api/v1/openapi.json`. A star marks required fields.
"""

Schemas = Mapping[str, dict[str, Any]]


def page(written: str, generated: str) -> str:
    """Return the page: what is *written* by hand of it, then every route."""
    document = openapi_document()
    parts = [written.partition("## Routes\n")[0], HEAD.format(generated=generated)]
    seen = ""
    for path, method, operation in sorted(_operations(document), key=lambda one: one[2]["tags"][0]):
        if operation["tags"][0] != seen:
            seen = operation["tags"][0]
            parts.append(f"\n### {seen}\n")
        parts += _operation(path, method, operation, document["components"]["schemas"])
    return "".join(parts)


def routes() -> set[tuple[str, str]]:
    """Return method and path of every route that the document should tell of."""
    found = (route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute))
    return {(method, route.path) for route in found if route.include_in_schema for method in route.methods or ()}


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method.upper(), operation


def _operation(path: str, method: str, operation: dict[str, Any], schemas: Schemas) -> Iterator[str]:
    yield f"\n#### {operation['summary']}\n\n`{method} {path}`\n\n{operation.get('description', '').strip()}\n"
    rows = [_parameter(one) for one in operation.get("parameters", ()) if one["in"] != "header"]
    rows += _body(operation, schemas)
    if rows:
        yield "\n| in | name | type | what it is |\n|---|---|---|---|\n"
        yield from rows
    yield f"\nAnswers {', '.join(_answers(operation))}.\n"


def _parameter(one: dict[str, Any]) -> str:
    return _row(one["in"], one["name"], one["schema"], is_required=one.get("required", False))


def _body(operation: dict[str, Any], schemas: Schemas) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return []
    # A body that may be left out may be null too.
    given = next(one for one in content["schema"].get("anyOf", [content["schema"]]) if one.get("type") != "null")
    schema = _followed(given, schemas)
    required = schema.get("required", ())
    fields = schema.get("properties", {})
    return [_row("body", name, field, is_required=name in required) for name, field in fields.items()]


def _followed(schema: dict[str, Any], schemas: Schemas) -> dict[str, Any]:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _row(where: str, name: str, schema: dict[str, Any], *, is_required: bool) -> str:
    star = " \\*" if is_required else ""
    return f"| {where} | `{name}`{star} | {_type(schema)} | {_meaning(schema)} |\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        kinds = [_type(one) for one in choices if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _meaning(schema: dict[str, Any]) -> str:
    text = str(schema.get("description", ""))
    default = schema.get("default")
    if default not in (None, "", [], {}):
        text += f" `{json.dumps(default)}` where absent."
    if examples := schema.get("examples"):
        text += f" Such as `{json.dumps(examples[0])}`."
    return text.strip().replace("|", "\\|").replace("\n", " ")


def _answers(operation: dict[str, Any]) -> Iterator[str]:
    for status, answer in sorted(operation["responses"].items()):
        if status.startswith("2"):
            schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
            yield f"{status} with {_type(schema)}" if schema else f"{status} without a body"
