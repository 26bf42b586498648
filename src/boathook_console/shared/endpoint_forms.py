"""Converts an endpoint's form into an API request, validates it with the API's models, and refills the form.

So an endpoint is validated in one place only, and each error is shown at its field. The form shows event types as a
tree: ``invoice.paid`` and ``invoice.sent`` are below ``invoice.*``.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData

from boathook.domain.errors import AlreadyExists, InvalidMessage, InvalidValue, LimitReached
from boathook.domain.messages import PUBLIC_NAMES
from boathook.domain.policy import RETRY_PRESETS
from boathook.service.field_values import parse_field, parse_texts, show_text
from boathook.service.fields import Field, fields_of
from boathook.service.sending.destinations import DestinationForm
from boathook.service.sending.endpoint_fields import NewEndpoint
from boathook.service.sending.endpoints import Endpoint
from boathook.service.sending.event_types import EventType

Model = TypeVar("Model", bound=BaseModel)

CUSTOM_RETRY: Final = "own"
"""The choice of a custom retry schedule."""
KEEP: Final = "keep"
_FORM_FIELDS: Final = {
    ("auth", "basic", "username"): "basicUsername",
    ("auth", "basic", "password"): "basicPassword",
    ("auth", "basic"): "basicUsername",
    ("auth", "oauth2", "tokenUrl"): "oauthTokenUrl",
    ("auth", "oauth2", "clientId"): "oauthClientId",
    ("auth", "oauth2", "clientSecret"): "oauthClientSecret",
    ("auth", "oauth2", "scope"): "oauthScope",
    ("auth", "mtls", "key"): "mtlsKey",
    ("auth", "mtls"): "mtlsCertificate",
    ("auth",): "authKind",
    ("retrySchedule",): "retryWaits",
}
"""The form field of a request field, if the names differ."""


class InvalidForm(Exception):
    """A form with invalid values.

    Args:
        problems: the error of each field; errors without a field have the empty name.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(problems)
        self.problems = problems


FormError = InvalidForm | InvalidValue | InvalidMessage | AlreadyExists | LimitReached
FORM_ERRORS: Final = (InvalidForm, InvalidValue, InvalidMessage, AlreadyExists, LimitReached)
"""The errors that are shown in a form."""


class FormReader(msgspec.Struct):
    """Reads the fields of a form, and collects errors."""

    form: FormData
    problems: dict[str, str] = msgspec.field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a field's text."""
        return str(self.form.get(name, "")).strip()

    def texts(self, name: str) -> list[str]:
        """Return the selected values of a field."""
        return [str(text) for text in self.form.getlist(name) if text]

    def words(self, name: str) -> list[str]:
        """Return the words of a field, separated by commas or white space."""
        return self.text(name).replace(",", " ").split()

    def number(self, name: str) -> int | float | None:
        """Return a field's number; None if it is empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text) if text.lstrip("+-").isdecimal() else float(text)
        except ValueError:
            self.problems[name] = "enter a number or leave it empty"
            return None

    def pairs(self, name: str, separator: str) -> dict[str, str]:
        """Return the names and values of a field, one pair per line."""
        pairs: dict[str, str] = {}
        for line in self.text(name).splitlines():
            key, found_separator, value = line.partition(separator)
            if line.strip() and (not found_separator or not key.strip()):
                self.problems[name] = f"enter one per line, such as name{separator} value"
            elif line.strip():
                pairs[key.strip()] = value.strip()
        return pairs

    def json(self, name: str) -> Any:
        """Return a field's JSON value; None if it is empty."""
        text = self.text(name)
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as error:
            self.problems[name] = f"invalid JSON: {error}"
            return None

    def table(self, table: type[msgspec.Struct]) -> dict[str, Any]:
        """Return the values of a table's fields that are in a section of a form, by their public names."""
        fields = {field.name: field.public_name for field in form_fields(table)}
        values, problems = parse_texts(table, {name: self.text(name) for name in fields.values()})
        self.problems |= {str(problem.where[0]): problem.text for problem in problems}
        return {fields[name]: value for name, value in values.items()}

    def validate(self, model: type[Model], document: Mapping[str, Any]) -> Model:
        """Validate the document with the API's model. Raises InvalidForm."""
        try:
            read = model.model_validate(document)
        except ValidationError as error:
            problems = {
                _field_of(detail["loc"]): detail["msg"].removeprefix("Value error, ") for detail in error.errors()
            }
            raise InvalidForm(problems | self.problems) from None
        if self.problems:
            raise InvalidForm(self.problems)
        return read


def form_fields(table: type[msgspec.Struct]) -> list[Field]:
    """Return the fields of a table that are in a section of a form."""
    return [field for field in fields_of(table) if field.rule.section]


def table_values(table: type[msgspec.Struct], record: object) -> dict[str, str]:
    """Return the form values of a record's fields that are in a section of a form."""
    return {field.public_name: show_text(field, getattr(record, field.name)) for field in form_fields(table)}


def form_problems(error: FormError, kind: str = "") -> Mapping[str, str]:
    """Return the errors of a form or of its action by field; *kind* is the destination's that was chosen in it."""
    match error:
        case InvalidForm():
            return error.problems
        case InvalidValue():
            return {_field_of(each.where, kind): str(each) for each in (*reversed(error.others), error)}
        case InvalidMessage():
            return {PUBLIC_NAMES.get(error.field, error.field): error.reason}
        case AlreadyExists():
            return {"uid": str(error)}
        case LimitReached():
            return {"": str(error)}


def _field_of(location: Sequence[str | int], kind: str = "") -> str:
    parts = tuple(str(part) for part in location)
    if parts[:1] == ("destination",) and parts[1:] not in {(), ("kind",)}:
        return destination_field(kind, parts[1])
    for length in range(len(parts), 0, -1):
        if parts[:length] in _FORM_FIELDS:
            return _FORM_FIELDS[parts[:length]]
    return parts[0] if parts else ""


def endpoint_document(reader: FormReader) -> dict[str, Any]:
    """Return the values of an endpoint's form, without credentials, by the API's names."""
    return {
        **reader.table(NewEndpoint),
        "eventTypes": [*without_covered(reader.texts("eventTypes")), *reader.words("patterns")] or None,
        "retrySchedule": _retry_of(reader),
    }


def _retry_of(reader: FormReader) -> str | list[float] | None:
    choice = reader.text("retryPreset")
    if choice != CUSTOM_RETRY:
        return choice or None
    try:
        return [float(word) for word in reader.words("retryWaits")]
    except ValueError:
        reader.problems["retryWaits"] = "enter seconds, such as 5, 60, 3600"
        return None


def destination_document(reader: FormReader, forms: Sequence[DestinationForm]) -> dict[str, Any]:
    """Return the destination of an endpoint's form; empty if the form has no choice of kinds.

    A secret that is left empty keeps its value.
    """
    name = reader.text("destination")
    if not name:
        return {}
    document: dict[str, Any] = {"kind": name}
    for field in next((form.fields for form in forms if form.name == name), ()):
        shown_name = destination_field(name, field.public_name)
        text = reader.text(shown_name)
        try:
            document |= {field.public_name: parse_field(field, text)} if text else {}
        except ValueError as error:
            reader.problems[shown_name] = str(error)
    return {"destination": document}


def has_url(reader: FormReader, forms: Sequence[DestinationForm]) -> bool:
    """Return whether the endpoint of a form has a URL: its kind has, or the form has no choice but the URL."""
    name = reader.text("destination")
    if not name:
        return "url" in reader.form
    return next((form.has_url for form in forms if form.name == name), True)


def destination_field(kind: str, name: str) -> str:
    """Return the name of a kind's field in a form."""
    return f"destination.{kind}.{name}"


def destination_values(endpoint: Endpoint, forms: Sequence[DestinationForm]) -> dict[str, str]:
    """Return the form values of an endpoint's destination, without secrets."""
    fields = next((form.fields for form in forms if form.name == endpoint.destination), ())
    values = endpoint.destination_fields
    return {"destination": endpoint.destination} | {
        destination_field(endpoint.destination, field.public_name): show_text(
            field, values.get(field.public_name, field.default)
        )
        for field in fields
        if not field.rule.is_secret
    }


def auth_document(reader: FormReader, read_current: Callable[[], Mapping[str, Any]] = dict) -> dict[str, Any] | None:
    """Return the endpoint's authentication settings; None if they are unchanged.

    Args:
        read_current: returns the current settings; called only if just a part of them changes.
    """
    kind, pair = reader.text("authKind") or KEEP, reader.text("mtlsKind") or KEEP
    if kind == pair == KEEP:
        return None
    present = read_current() if KEEP in {kind, pair} else {}
    document = {name: value for name, value in present.items() if (pair if name == "mtls" else kind) == KEEP}
    if kind == "basic":
        document["basic"] = {"username": reader.text("basicUsername"), "password": reader.text("basicPassword")}
    if kind == "oauth2":
        document["oauth2"] = {
            "tokenUrl": reader.text("oauthTokenUrl"),
            "clientId": reader.text("oauthClientId"),
            "clientSecret": reader.text("oauthClientSecret"),
        } | ({"scope": scope} if (scope := reader.text("oauthScope")) else {})
    if pair == "set":
        document["mtls"] = {"certificate": reader.text("mtlsCertificate"), "key": reader.text("mtlsKey")}
    return document


SECRET_FIELDS: Final = frozenset({"secret", "basicPassword", "oauthClientSecret", "mtlsKey", "headers"})
"""Fields that are not refilled after an error: secrets must be entered again."""
_MULTI_VALUE_FIELDS: Final = frozenset({"eventTypes", "removeHeaders"})


def submitted_values(form: FormData) -> dict[str, Any]:
    """Return the submitted values to refill a form, without secrets."""
    values: dict[str, Any] = {name: str(form[name]) for name in form if name not in SECRET_FIELDS | {"csrf"}}
    return values | {name: [str(text) for text in form.getlist(name)] for name in _MULTI_VALUE_FIELDS}


def endpoint_values(endpoint: Endpoint, type_names: Collection[str]) -> dict[str, Any]:
    """Return the form values of an existing endpoint.

    Args:
        type_names: event types and groups with a checkbox; all others are written as patterns.
    """
    types = list(endpoint.event_types or ())
    preset = endpoint.retry_name or (CUSTOM_RETRY if endpoint.retry else "")
    waits = (endpoint.retry.delays_s or ()) if endpoint.retry and preset == CUSTOM_RETRY else ()
    return {
        **table_values(NewEndpoint, endpoint),
        "eventTypes": [name for name in types if name in type_names],
        "patterns": " ".join(name for name in types if name not in type_names),
        "retryPreset": preset,
        "retryWaits": ", ".join(f"{wait:g}" for wait in waits),
        "removeHeaders": [],
        "authKind": KEEP,
        "mtlsKind": KEEP,
    }


NEW_ENDPOINT_VALUES: Final[Mapping[str, Any]] = {
    "eventTypes": [],
    "removeHeaders": [],
    "authKind": "none",
    "mtlsKind": "none",
}
"""The form values of a new endpoint."""
RETRY_PRESET_NAMES: Final = tuple(RETRY_PRESETS)


class TypeNode(msgspec.Struct, frozen=True):
    """An event type, or a group of event types with a common prefix."""

    value: str
    """The name of the event type, or the pattern that matches the group."""
    description: str = ""
    is_deprecated: bool = False
    children: tuple["TypeNode", ...] = ()
    """The nodes of a group; empty for an event type."""

    @property
    def size(self) -> int:
        """The number of event types in it."""
        return sum(child.size for child in self.children) if self.children else 1

    @property
    def words(self) -> str:
        """The text that a search looks in, in lower case."""
        return " ".join((self.value, self.description, *(child.words for child in self.children))).lower()


MAX_LEVELS: Final = 8
"""Maximum depth of groups; types that would be deeper are listed in the group of the last level."""


def build_tree(types: Iterable[EventType]) -> tuple[TypeNode, ...]:
    """Return the nodes of event types; a prefix that only one type has makes no group."""
    return _nodes(sorted(types, key=lambda event_type: event_type.name.split(".")), 1, MAX_LEVELS)


def _nodes(types: Iterable[EventType], depth: int, levels: int) -> tuple[TypeNode, ...]:
    """Return the nodes of types whose names have their first *depth* - 1 parts in common."""
    groups = (tuple(some) for _, some in groupby(types, key=lambda event_type: _prefix(event_type.name, depth)))
    return tuple(node for some in groups for node in _group(some, depth, levels))


def _group(types: tuple[EventType, ...], depth: int, levels: int) -> tuple[TypeNode, ...]:
    if len(types) == 1 or not levels:
        return tuple(
            TypeNode(event_type.name, event_type.description, event_type.is_deprecated) for event_type in types
        )
    while len({_prefix(event_type.name, depth + 1) for event_type in types}) == 1:
        depth += 1
    return (TypeNode(f"{_prefix(types[0].name, depth)}*", children=_nodes(types, depth + 1, levels - 1)),)


def _prefix(name: str, depth: int) -> str:
    """Return the first *depth* parts of a name with a dot at their end; the whole name if it has no more parts."""
    parts = name.split(".")
    return name if len(parts) <= depth else ".".join(parts[:depth]) + "."


def tree_values(nodes: Iterable[TypeNode]) -> Iterator[str]:
    """Yield every value of a tree: the patterns of its groups and the names of its types."""
    for node in nodes:
        yield node.value
        yield from tree_values(node.children)


def without_covered(values: Sequence[str]) -> list[str]:
    """Return selected values without those below a selected group, whose pattern matches them."""
    groups = tuple(value.removesuffix("*") for value in values if value.endswith(".*"))
    return [value for value in values if not any(value != f"{group}*" and value.startswith(group) for group in groups)]
