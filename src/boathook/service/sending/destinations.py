"""Reads and shows the destinations of endpoints: a kind, and the values of the fields that the kind declares.

Values are stored by their public names: secrets encrypted, the others as they are.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from boathook.config.destinations import DestinationKind, find_kind
from boathook.config.packages import resolve
from boathook.db.endpoints import Endpoint
from boathook.domain.endpoints import DEFAULT_DESTINATION
from boathook.domain.errors import InvalidValue
from boathook.service.access.authorization import Permission
from boathook.service.field_schemas import json_schema
from boathook.service.field_values import read_json, write_json
from boathook.service.fields import AbstractTable, Field, Input, fields_of
from boathook.service.unit_of_work import UnitOfWork

Values = dict[str, Any]

_FIELD: Final = "destination"
_KIND: Final = "kind"
_WORDS: Final = {"url": "URL", "auth": "credentials", "headers": "headers"}
"""Fields that endpoints of some kinds only have."""


class DestinationFields(Input, frozen=True, kw_only=True, metaclass=AbstractTable):
    """The table of the fields that endpoints of one kind have; see `boathook.service.fields`.

    Fields whose rule has ``is_secret`` are encrypted at rest, never shown, and redacted from responses. A field that an
    update omits gets its default, but a secret keeps its value.
    """

    @property
    @abstractmethod
    def address(self) -> str:
        """The destination as lists, attempts and the ``url`` of the API show it, without secrets."""
        ...

    def check_with(self, settings: Any) -> None:
        """Check the values against the `Settings`. Raises ValueError, or InvalidValue with the field's name."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return stored values. Raises InvalidValue."""
        return read_json(cls, document)


class DestinationForm(msgspec.Struct, frozen=True):
    """A kind that a caller may choose, for forms and documents."""

    name: str
    label: str
    table: type[DestinationFields] | None
    has_url: bool

    @property
    def choice(self) -> tuple[str, str]:
        """Its name and label, for a choice in a form."""
        return self.name, self.label

    @property
    def fields(self) -> Sequence[Field]:
        """Its fields in order."""
        return () if self.table is None else fields_of(self.table)


def list_forms(work: UnitOfWork) -> list[DestinationForm]:
    """Return the kinds that the caller may choose."""
    return [describe(name) for name in _allowed(work)]


def describe(name: str) -> DestinationForm:
    """Return a kind in `outbound.destinations` with its fields."""
    kind = _require(name)
    return DestinationForm(name, kind.label, _table_of(kind), "url" in kind.endpoint_fields)


def document_destinations(document: dict[str, Any], names: Sequence[str]) -> None:
    """Add the fields of kinds to the schemas of an OpenAPI document that have destinations."""
    tables = {name: form.table for name in names if (form := describe(name)).table is not None}
    if not tables:
        return
    schemas = document["components"]["schemas"]
    described = [schema["properties"][_FIELD] for schema in schemas.values() if _FIELD in schema.get("properties", {})]
    variants: list[Any] = [
        {"type": "object", "properties": {_KIND: {"const": DEFAULT_DESTINATION}}, "required": [_KIND]}
    ]
    for name, table in tables.items():
        schema = json_schema(table)
        schema["properties"] = {_KIND: {"const": name}, **schema["properties"]}
        schema["required"] = [_KIND, *schema["required"]]
        schemas[f"Destination.{name}"] = schema
        variants.append({"$ref": f"#/components/schemas/Destination.{name}"})
    for field in described:
        for key in ("type", "anyOf", "additionalProperties"):
            field.pop(key, None)
        field["oneOf"] = [*variants, {"type": "null"}]


def read_change(work: UnitOfWork, before: Endpoint, values: Mapping[str, Any]) -> tuple[Values, Values]:
    """Return the columns of an endpoint's destination that change, and the values of its other fields.

    Args:
        work: the unit of work.
        before: the endpoint as it is, or a new one.
        values: the changed values by their names in `NewEndpoint`.

    Raises:
        InvalidValue: the caller may not choose the kind, one of its fields is wrong, or the kind has no such field.
    """
    rest = {name: value for name, value in values.items() if name != _FIELD}
    columns = {}
    if _FIELD in values:
        document = values[_FIELD]
        columns = _read(work, before, {_KIND: DEFAULT_DESTINATION} if document is None else document)
    elif not rest.keys() & _WORDS.keys():
        return {}, rest
    name = columns.get("destination", before.destination)
    kind = _require(name)
    if rest.get("auth"):
        require_field(name, "auth")
    if "url" in kind.endpoint_fields:
        is_new = not before.url or name != before.destination
        if (is_new or "url" in rest) and not rest.get("url"):
            raise InvalidValue("it is required", "url", kind="missing")
        return columns, rest
    address = columns.get("url", before.url)
    if (rest.pop("url", None) or address) != address:
        raise InvalidValue(f"destinations of the kind {name} have no URL; omit it", "url")
    rest.pop("auth", None)
    return columns | {"encrypted_auth": None, "encrypted_headers": None}, rest


def require_field(destination: str, name: str) -> None:
    """Check that endpoints of a kind have one of ``url``, ``auth`` and ``headers``. Raises InvalidValue."""
    if name not in _require(destination).endpoint_fields:
        raise InvalidValue(f"destinations of the kind {destination} have no {_WORDS[name]}; omit it", name)


def require_signature(destination: str, *location: str) -> None:
    """Check that messages to endpoints of a kind are signed. Raises InvalidValue."""
    if not _require(destination).is_signed:
        raise InvalidValue(f"messages to destinations of the kind {destination} are not signed; omit it", *location)


def show(endpoint: Endpoint) -> Values:
    """Return the kind of an endpoint's destination and its fields, without secrets."""
    return {_KIND: endpoint.destination, **endpoint.destination_fields}


def has_url(endpoint: Endpoint) -> bool:
    """Return whether an endpoint's destination is a URL."""
    kind = find_kind(endpoint.destination)
    return kind is not None and "url" in kind.endpoint_fields


def is_other(before: Endpoint, after: Endpoint) -> bool:
    """Return whether messages go elsewhere after a change."""
    return (before.destination, before.destination_fields, before.encrypted_destination) != (
        after.destination, after.destination_fields, after.encrypted_destination
    )  # fmt: skip


def _allowed(work: UnitOfWork) -> Sequence[str]:
    """Return the kinds that the caller may choose."""
    outbound = work.app_context.settings.outbound
    return outbound.destinations if work.caller.may(Permission.DESTINATION_CHOOSE) else outbound.tenant_destinations


def _require(name: str) -> DestinationKind:
    kind = find_kind(name)
    if kind is None:
        raise InvalidValue(f"no installed package has the kind {name!r} of destinations", _FIELD, _KIND)
    return kind


def _table_of(kind: DestinationKind) -> type[DestinationFields] | None:
    table: type[DestinationFields] | None = None if kind.fields is None else resolve(kind.fields)
    return table


def _read(work: UnitOfWork, before: Endpoint, document: Mapping[str, Any]) -> Values:
    name, allowed = document.get(_KIND), _allowed(work)
    if not isinstance(name, str) or name not in allowed:
        raise InvalidValue(f"write one of {', '.join(allowed)}", _FIELD, _KIND)
    table = _table_of(_require(name))
    values = {key: value for key, value in document.items() if key != _KIND}
    names = [] if table is None else [field.public_name for field in fields_of(table)]
    for key in values:
        if key not in names:
            raise InvalidValue(f"the kind {name} has no such field; it has {', '.join(names) or 'none'}", _FIELD, key)
    if table is None:
        return _columns(name, {}, None)
    secrets_before = decrypt_secrets(work, before) if before.destination == name else {}
    try:
        fields = read_json(table, secrets_before | values)
        fields.check_with(work.app_context.settings)
    except InvalidValue as error:
        raise _located(error) from None
    except ValueError as error:
        raise InvalidValue(str(error), _FIELD) from None
    plain, hidden = _split(fields)
    secrets = None
    if hidden:
        text = json.dumps(hidden, separators=(",", ":"))
        secrets = work.app_context.secret_box.encrypt(text, _context(before))
        if hidden == secrets_before:
            secrets = before.encrypted_destination
    return {**_columns(name, plain, secrets), "url": fields.address}


def _columns(name: str, fields: Values, secrets: bytes | None) -> Values:
    return {"destination": name, "destination_fields": fields, "encrypted_destination": secrets}


def _split(fields: DestinationFields) -> tuple[Values, Values]:
    """Return the values that may be shown, and the secrets."""
    secret_names = {field.public_name for field in fields_of(type(fields)) if field.rule.is_secret}
    document = write_json(fields)
    return (
        {name: value for name, value in document.items() if name not in secret_names},
        {name: value for name, value in document.items() if name in secret_names},
    )


def _located(error: InvalidValue) -> InvalidValue:
    """Return an error of a kind's field as one of the endpoint's."""
    located, *others = (InvalidValue(str(each), _FIELD, *each.where, kind=each.kind) for each in (error, *error.others))
    located.others = tuple(others)
    return located


def decrypt_secrets(work: UnitOfWork, endpoint: Endpoint) -> Values:
    """Return the secrets among the fields of an endpoint's destination. Raises SecretUnreadable."""
    encrypted = endpoint.encrypted_destination
    if encrypted is None:
        return {}
    return dict(json.loads(work.app_context.secret_box.open(encrypted, _context(endpoint))))


def _context(endpoint: Endpoint) -> str:
    return f"endpoint_destination:{endpoint.shown_id}"
