"""The JSON Schema of boathook.toml, by which editors complete and check it.

The types come from the classes of settings, defaults and descriptions from where the page on settings has them. Every
key is optional in a file, and a table of an app may contain anything. Draft 7 is what plug-ins of editors support.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from boathook.config import SCHEMA_URL, Settings, all_sections
from boathook.config.channels import ChannelTable, find_kind, kinds_of_channels
from boathook.config.loader import SOURCE_NAME
from boathook.config.packages import PackageTable, names_offered, own_packages, resolve, tables_of
from boathook.config.tables import OWN_CHOICES
from boathook.providers import RECIPES

NOT_FOR_EDITORS: Final = frozenset({"title", "format", "discriminator"})
"""Keywords that pydantic adds and JSON Schema does not know, or that repeat a key's name."""
_ORIGIN: Final = "^https?://[^/*]+$"
PROVIDER_NAMES: Final = sorted({name for recipe in RECIPES for name in (recipe.name, *recipe.aliases)})


def schema(sections: Mapping[str, Mapping[str, str]], tables_of_names: Mapping[str, Mapping[str, str]]) -> str:
    """Return the JSON Schema as a document.

    Args:
        sections: what each key of each table does.
        tables_of_names: what each key does of a table that a name ends, such as `[sources.NAME]`, by its class.
    """
    found = _clean(Settings.model_json_schema(ref_template="#/definitions/{model}"))
    definitions, tables = found["$defs"], found["properties"]
    del definitions[PackageTable.__name__]
    for package in own_packages():
        for name, model in tables_of(package).items():
            _add_table(definitions, tables, name, model)
    _add_channels(definitions)
    values = all_sections()
    for key, own in OWN_CHOICES.items():
        name, _, choice = key.partition(".")
        definitions[_model_of(tables[name])]["properties"][choice]["enum"] = [own, *names_offered(key)]
    for name, keys in values.items():
        _describe(definitions[_model_of(tables[name])], sections[name], keys)
    for name, texts in tables_of_names.items():
        for key, field in definitions[name]["properties"].items():
            field["description"] = texts[key]
    _complete_source(definitions["SourceSettings"], tables_of_names["SourceSettings"])
    definitions["MountSettings"]["properties"]["origins"]["items"]["pattern"] = _ORIGIN
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": SCHEMA_URL,
        "title": "boathook.toml",
        "description": "Settings of boathook. A table that is not listed here belongs to an app.",
        "type": "object",
        "properties": {name: tables[name] for name in values}
        | {"sources": {**tables["sources"], "propertyNames": {"pattern": f"^{SOURCE_NAME.pattern}$"}}}
        | {"mounts": {**tables["mounts"], "propertyNames": {"pattern": "^/"}}},
        "additionalProperties": {"type": "object"},
        "definitions": definitions,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _add_table(definitions: dict[str, Any], tables: dict[str, Any], name: str, model: type[PackageTable]) -> None:
    """Add the keys of a package to a section of boathook's, or a section of its own."""
    found = _clean(model.model_json_schema(ref_template="#/definitions/{model}"))
    definitions |= found.pop("$defs", {})
    if name in tables:
        definitions[_model_of(tables[name])]["properties"] |= found["properties"]
    else:
        definitions[model.__name__] = found
        tables[name] = {"$ref": f"#/definitions/{model.__name__}"}


def _add_channels(definitions: dict[str, Any]) -> None:
    """Add the keys of each kind of alert channel."""
    del definitions[ChannelTable.__name__]
    references = {}
    for name in kinds_of_channels():
        kind = find_kind(name)
        assert kind is not None
        model: type[ChannelTable] = resolve(kind.table)
        definitions[model.__name__] = _clean(model.model_json_schema(ref_template="#/definitions/{model}"))
        references[model.__name__] = {"$ref": f"#/definitions/{model.__name__}"}
    channels = definitions["NotificationSettings"]["properties"]["channels"]
    channels["additionalProperties"] = {"oneOf": list(references.values())}


def _clean(node: Any, *, is_named: bool = False) -> Any:
    """Return a schema without `NOT_FOR_EDITORS`; below properties and definitions, such words are names."""
    match node:
        case dict():
            return {
                key: _clean(value, is_named=key in {"properties", "$defs"} and not is_named)
                for key, value in node.items()
                if is_named or key not in NOT_FOR_EDITORS
            }
        case list():
            return [_clean(part) for part in node]
        case _:
            return node


def _model_of(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _describe(table: dict[str, Any], texts: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Add descriptions and defaults to a table's keys, none of which a file must have."""
    table.pop("required")
    for key, field in table["properties"].items():
        field.update(description=texts[key], default=values[key])


def _complete_source(table: dict[str, Any], texts: Mapping[str, str]) -> None:
    """Add what the types of a source's keys do not say: its providers, its schema, and the key for one secret."""
    table.pop("required")
    fields = table["properties"]
    schema = {"anyOf": [{"type": "object"}, {"type": "string", "minLength": 1}]}
    for key, type in (("provider", {"type": "string", "enum": PROVIDER_NAMES}), ("schema", schema)):
        fields[key] = {**type, "description": texts[key]}
    fields["secret"] = {**fields["secrets"]["items"], "description": "One secret; `secrets` takes several."}
