"""Describes tables of fields as JSON Schemas, for the API's document and for tools."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import structs

from boathook.service.fields import Field, Rule, fields_of, is_a


def json_schema(table: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of the objects that `read_json` reads, complete in itself."""
    components = json_schemas([table], "#/$defs/{name}")
    schema = components.pop(table.__name__)
    return {**schema, "$defs": components} if components else schema


def json_schemas(tables: Sequence[type[msgspec.Struct]], ref_template: str) -> dict[str, Any]:
    """Return the JSON Schemas of tables, and of what they contain, by name; *ref_template* is of their references."""
    _, components = msgspec.json.schema_components(tables, ref_template=ref_template)
    for table in _nested(tables):
        schema = components[table.__name__]
        by_name = {info.name: info.encode_name for info in structs.fields(table)}
        fields = fields_of(table)
        schema["properties"] = {
            field.public_name: describe(schema["properties"][by_name[field.name]], field) for field in fields
        }
        schema["required"] = [field.public_name for field in fields if field.is_required]
    return components


def _nested(tables: Iterable[type[msgspec.Struct]]) -> Iterator[type[msgspec.Struct]]:
    """Yield tables, and those that their fields contain, once each."""
    waiting, seen = list(tables), set()
    while waiting:
        table = waiting.pop()
        if table in seen:
            continue
        seen.add(table)
        yield table
        types = [part for field in fields_of(table) for part in (field.type, *get_args(field.type))]
        waiting += [type for type in types if is_a(type, msgspec.Struct)]


def describe(schema: Mapping[str, Any], field: Field) -> dict[str, Any]:
    """Return the JSON Schema of a field's type with what its rule says."""
    rule, described = field.rule, dict(schema)
    if "$ref" in described and rule.help:
        described["allOf"] = [{"$ref": described.pop("$ref")}]
    branch = next((part for part in described.get("anyOf", ()) if part.get("type") != "null"), described)
    branch |= keywords_of(rule, "Items" if field.is_list else "Length")
    if field.is_list:
        branch["items"] = {**branch.get("items", {}), **keywords_of(field.item_rule)}
    if field.description:
        described["description"] = field.description
    if rule.example is not None:
        described["examples"] = [rule.example, *rule.more_examples]
    if rule.is_deprecated:
        described["deprecated"] = True
    return described


def keywords_of(rule: Rule, size: str = "Length") -> dict[str, Any]:
    """Return the keywords of JSON Schema for a rule; *size* is ``Length``, or ``Items`` for a list."""
    keywords = {
        "minimum": rule.minimum,
        "maximum": rule.maximum,
        f"min{size}": rule.min_length,
        f"max{size}": rule.max_length,
        "pattern": f"^{rule.pattern}$" if rule.pattern else None,
        "enum": list(rule.choices) or None,
    }
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in keywords.items()
        if value is not None
    }
