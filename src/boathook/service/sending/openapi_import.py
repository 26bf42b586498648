"""Exports event types, and reads them from the webhooks of an OpenAPI document (OpenAPI 3.1.0, section 4.8.1).

A document is untrusted input: it is parsed without aliases, without fetching anything, and within bounds.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from boathook.db.event_types import EventType
from boathook.domain.endpoints import check_type
from boathook.domain.errors import InvalidValue
from boathook.domain.json_document import MAX_DEPTH, is_too_deep
from boathook.service.sending import event_types
from boathook.service.sending.event_types import check_schemas
from boathook.service.unit_of_work import UnitOfWork

MAX_TYPES: Final = 1_000
MAX_YAML: Final = 65_536
"""Maximum characters of a YAML document; parsing them blocks other threads for at most about 0.1 s."""
MAX_YAML_TOKENS: Final = 20_000
"""Maximum keys, values, and starts and ends of mappings and lists in a YAML document."""
MAX_REFERENCE: Final = 1_024
"""Maximum characters of one ``$ref``."""
MAX_CHECK_S: Final = 10.0
"""Maximum CPU seconds to check all schemas of a document."""
_MAX_STEPS: Final = 100_000
_STEP_BYTES: Final = 100
"""Bytes of a schema that count as one step."""
_FIRST: Final = "1"
"""The default version of a schema."""
_COMPONENTS: Final = "#/components/"
_METHODS: Final = ("post", "put", "patch", "get", "delete")


class WebhookType(msgspec.Struct, frozen=True, kw_only=True):
    """An event type as described by a document."""

    name: str
    description: str
    is_deprecated: bool
    schema: Mapping[str, Any] | None
    """JSON Schema of the payload, including everything it refers to."""


def read_document(text: str) -> Mapping[str, Any]:
    """Read a document from JSON or YAML.

    Raises:
        InvalidValue: it is neither, uses aliases, or is too large.
    """
    raw = text.encode("utf-8", "replace")
    try:
        document = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, ValueError):
        document = read_yaml(text)
    else:
        if is_too_deep(raw):
            raise _too_deep()
    if not isinstance(document, Mapping):
        raise InvalidValue("write an OpenAPI document as JSON or YAML", "specRaw")
    return document


def read_yaml(text: str) -> Any:
    """Return a YAML document as JSON's types; raise InvalidValue where it is too long or is none."""
    if len(text) > MAX_YAML:
        raise InvalidValue(f"YAML has at most {MAX_YAML:,} characters; write larger documents as JSON", "specRaw")
    try:
        check_yaml(text)
        # Converts dates, and keys that are numbers, to text, as in JSON.
        return msgspec.json.decode(msgspec.json.encode(yaml.load(text, _LOADER)))  # noqa: S506 - both loaders are safe
    except (yaml.YAMLError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidValue(f"it is neither JSON nor YAML: {str(error).splitlines()[0]}", "specRaw") from None


def check_yaml(text: str) -> None:
    """Reject YAML that would take long, or crash, to construct, by its events and without building a tree.

    libyaml constructs by unlimited recursion in C: its stack overflows before Python's limit applies.

    Raises:
        InvalidValue: it nests too deep, has too many tokens, or uses aliases.
        yaml.YAMLError: it is not YAML.
    """
    depth = 0
    for count, event in enumerate(yaml.parse(text, _LOADER)):
        if isinstance(event, yaml.AliasEvent):
            # A few nested aliases could expand to more than the available memory.
            raise InvalidValue("remove aliases such as *name", "specRaw")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _too_deep()
        if count >= MAX_YAML_TOKENS:
            raise InvalidValue(
                f"YAML has at most {MAX_YAML_TOKENS:,} keys and values; write larger documents as JSON", "specRaw"
            )


_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _too_deep() -> InvalidValue:
    return InvalidValue(f"the document nests at most {MAX_DEPTH} deep", "specRaw")


def read_webhooks(document: str | Mapping[str, Any]) -> list[WebhookType]:
    """Return the event types that a document defines as webhooks; the document is text or parsed.

    This is too slow for an event loop.

    Raises:
        InvalidValue: as `read_document` and `read_types` do, or a schema is invalid.
    """
    types = read_types(read_document(document) if isinstance(document, str) else document)
    began = time.thread_time()
    for webhook_type in types:
        check_schemas(schemas_of(webhook_type) or {}, "spec", "webhooks", webhook_type.name)
        if time.thread_time() - began > MAX_CHECK_S:
            raise InvalidValue("the schemas take too long to check; write fewer patterns, or several documents", "spec")
    return types


def read_types(document: Mapping[str, Any]) -> list[WebhookType]:
    """Return the event types that a document defines as webhooks.

    Raises:
        InvalidValue: there are none or too many, a name is not valid for an event type, or a reference is broken.
    """
    webhooks = document.get("webhooks") or document.get("x-webhooks")
    if not isinstance(webhooks, Mapping):
        raise InvalidValue("the document has neither webhooks nor x-webhooks", "spec")
    if len(webhooks) > MAX_TYPES:
        raise InvalidValue(f"a document has at most {MAX_TYPES} webhooks, not {len(webhooks)}", "spec", "webhooks")
    reader = _ReferenceResolver(document)
    return [_read_type(reader, str(name), item) for name, item in webhooks.items()]


def _read_type(reader: "_ReferenceResolver", name: str, item: Any) -> WebhookType:
    try:
        check_type(name)
    except ValueError as error:
        raise InvalidValue(str(error), "spec", "webhooks", name) from None
    item = reader.follow(item)
    operation = next((reader.follow(item[method]) for method in _METHODS if method in item), {})
    candidates = (operation.get("description"), operation.get("summary"), item.get("description"), item.get("summary"))
    return WebhookType(
        name=name,
        description=next((text for text in candidates if isinstance(text, str) and text), name),
        is_deprecated=operation.get("deprecated") is True,
        schema=_read_schema(reader, operation),
    )


def _read_schema(reader: "_ReferenceResolver", operation: Mapping[str, Any]) -> Mapping[str, Any] | None:
    content = reader.follow(reader.follow(operation.get("requestBody")).get("content"))
    media = reader.follow(next((content[kind] for kind in content if kind.partition(";")[0].endswith("json")), None))
    if not isinstance(media.get("schema"), Mapping):
        return None
    schema: Mapping[str, Any] = reader.with_definitions(media["schema"])
    examples = [media["example"]] if "example" in media else []
    examples += [
        example["value"]
        for example in map(reader.follow, reader.follow(media.get("examples")).values())
        if "value" in example
    ]
    if examples and "examples" not in schema:
        schema = {**schema, "examples": examples}
    reader.check_size(schema)
    return schema


def schemas_of(type: WebhookType) -> dict[str, Any] | None:
    """Return an event type's schemas by version, as they are stored."""
    return None if type.schema is None else {_FIRST: dict(type.schema)}


class _ReferenceResolver:
    """Resolves references inside one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._steps = 0

    def follow(self, value: Any) -> Mapping[str, Any]:
        """Return the mapping that *value* is or refers to; empty if it is neither."""
        while isinstance(value, Mapping) and isinstance(value.get("$ref"), str):
            self._count()
            value = self._find(value["$ref"])
        return value if isinstance(value, Mapping) else {}

    def with_definitions(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a schema with all parts of the document that it refers to as its definitions."""
        definitions: dict[str, Any] = {}
        root: dict[str, Any] = self._rewrite_references(schema, definitions)
        while missing := [name for name, part in definitions.items() if part is None]:
            for name in missing:
                definitions[name] = self._rewrite_references(self._find(name), definitions)
        if definitions:
            root["definitions"] = {
                **root.get("definitions", {}),
                **{_key(name): part for name, part in definitions.items()},
            }
        return root

    def _rewrite_references(self, value: Any, definitions: dict[str, Any], depth: int = 0) -> Any:
        self._count()
        if depth > MAX_DEPTH:
            raise InvalidValue(f"a schema nests at most {MAX_DEPTH} deep", "spec")
        match value:
            case {"$ref": str(name)} if name.startswith(_COMPONENTS):
                definitions.setdefault(name, None)
                return {"$ref": f"#/definitions/{_key(name)}"}
            case dict():
                return {key: self._rewrite_references(part, definitions, depth + 1) for key, part in value.items()}
            case list():
                return [self._rewrite_references(part, definitions, depth + 1) for part in value]
            case _:
                return value

    def check_size(self, schema: Mapping[str, Any]) -> None:
        """Count a combined schema, because a shared part is repeated in each schema that refers to it."""
        written = msgspec.json.encode(schema)
        self._count(len(written) // _STEP_BYTES)
        if is_too_deep(written):
            raise InvalidValue(f"a schema, with its examples, nests at most {MAX_DEPTH} deep", "spec")

    def _find(self, name: str) -> Any:
        if len(name) > MAX_REFERENCE:
            raise InvalidValue(f"a reference has at most {MAX_REFERENCE:,} characters", "spec")
        value: Any = self._document
        for part in name.removeprefix("#/").split("/") if name.startswith("#/") else [name]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, Mapping) or key not in value:
                raise InvalidValue(f"the reference {name} does not exist in the document", "spec")
            value = value[key]
        return value

    def _count(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise InvalidValue("the document's webhooks are too large, or their references are circular", "spec")


def _key(name: str) -> str:
    return name.removeprefix(_COMPONENTS).replace("/", ".")


EXPORT_VERSION: Final = 1
"""Format version of an exported environment."""

_PAGE: Final = 250


async def export_event_types(work: UnitOfWork) -> list[EventType]:
    """Return all of an organization's event types by name, including archived ones."""
    exported: list[EventType] = []
    while True:
        position = exported[-1].name if exported else None
        page = await event_types.list_page(work, place=position, limit=_PAGE, with_archived=True)
        exported += page
        if len(page) < _PAGE:
            return exported


async def read_openapi(document: str | Mapping[str, Any]) -> list[WebhookType]:
    """Return the event types that an OpenAPI document defines as webhooks, parsing it in a thread.

    Raises:
        InvalidValue: it is not such a document, is too large, or a schema is invalid.
    """
    return await asyncio.to_thread(read_webhooks, document)
