"""Field types of bodies and queries, and the base classes of requests and responses."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache, partial
from inspect import isclass
from itertools import islice
from typing import Annotated, Any, Final, Self, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from boathook.domain.endpoints import check_channels, check_type
from boathook.service.fields import Rule, check_text

_MAX_IGNORED_FIELDS: Final = 20
_MAX_FIELD_NAME_LENGTH: Final = 100
_MOMENT: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)"
    r"(?: ?(?P<zone>UTC|[Zz]|[+-]\d\d:?\d\d)| (?P<offset>\d\d:?\d\d))?",
    re.ASCII,
)
"""RFC 3339; also as Rust's chrono formats it, with UTC, and with an offset whose plus became a space in a query."""
NAME_PATTERN: Final = r"^[a-zA-Z0-9\-_.]{1,256}$"


class Input(BaseModel):
    """A request body: camelCase names; unknown fields are ignored and named in the response."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")

    def given(self) -> dict[str, Any]:
        """Return the fields that the body contains, by their Python names; null is None."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Part(Input):
    """An object within a body. Unknown fields are errors, because all of its fields together define its meaning."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class Output(BaseModel):
    """A response: camelCase names."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def of(cls, row: object, **more: Any) -> Self:
        """Return the response with the values in *more*, and otherwise those that *row* has under the same names."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields.keys() - more.keys()}, **more)


def ignored_fields(annotation: Any, document: Any) -> list[str]:
    """Return the fields of a body that its model does not have, such as ``application.colour``; at most twenty."""
    return [
        ascii(name)[1:-1][:_MAX_FIELD_NAME_LENGTH]
        for name in islice(_unknown(annotation, document, ""), _MAX_IGNORED_FIELDS)
    ]


def _unknown(annotation: Any, document: Any, location: str) -> Iterator[str]:
    model = _model_in(annotation)
    if model is None:
        return
    if isinstance(document, list):
        for index, item in enumerate(document):
            yield from _unknown(model, item, f"{location}[{index}]")
    elif isinstance(document, dict):
        annotations = _annotations(model)
        for name, value in document.items():
            path = f"{location}.{name}" if location else name
            if name in annotations:
                yield from _unknown(annotations[name], value, path)
            else:
                yield path


@cache
def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field, of its list items, or of one of its alternatives."""
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


@cache
def _annotations(model: type[BaseModel]) -> dict[str, Any]:
    """Return the types of a model's fields, by every name they may have in a body."""
    return {name: field.annotation for key, field in model.model_fields.items() for name in _names(key, field)}


def _names(key: str, field: FieldInfo) -> list[str]:
    alias = field.validation_alias or field.alias or key
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [str(alias)]


DEPRECATED: Final[dict[str, Any]] = {"deprecated": True}
"""Marks a field of older clients in the OpenAPI document; pydantic's own marker would warn on each use."""


def not_null_field(default: Callable[[], Any] = str, **options: Any) -> Any:
    """Declare a field that may be omitted, but not be null; see `Input.given`."""
    return Field(default_factory=default, **options)


def null_as(default: object, type: Any) -> BeforeValidator:
    """Convert null to *default*: some clients send it for a field that their user omitted."""
    return BeforeValidator(lambda value: default if value is None else value, json_schema_input_type=type)


def renamed_alias(new: str, old: str) -> AliasChoices:
    """Return the two names of a field; the new one takes precedence."""
    return AliasChoices(new, old)


def _utc(timestamp: datetime) -> datetime:
    try:
        return timestamp.replace(tzinfo=UTC) if timestamp.tzinfo is None else timestamp.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be within the years 1 to 9999 in UTC") from None


def _normalize_timestamp(value: object) -> object:
    if isinstance(value, datetime):
        return value
    # Numbers would be parsed as seconds since 1970, which our API does not document.
    matched = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        raise ValueError("invalid time; use a form such as 2026-01-31T12:00:00Z")
    zone = f"+{matched['offset']}" if matched["offset"] else matched["zone"] or ""
    return matched["time"] + zone.replace("UTC", "Z")


def format_timestamp(at: datetime) -> str:
    """Format a time as RFC 3339 in UTC, with microseconds."""
    # strftime writes years before 1000 without leading zeros.
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


Timestamp = Annotated[
    datetime,
    BeforeValidator(_normalize_timestamp),
    AfterValidator(_utc),
    PlainSerializer(format_timestamp, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time", "examples": ["2026-01-31T12:00:00.000000Z"]}),
]
"""A time; UTC if it has no offset."""


Text = Annotated[str, AfterValidator(partial(check_text, Rule()))]
StrictInt = Annotated[int, Field(strict=True)]
StrictBool = Annotated[bool, Field(strict=True)]
TypeName = Annotated[str, AfterValidator(check_type), Field(json_schema_extra={"pattern": NAME_PATTERN})]


StrictBoolOrNull = Annotated[StrictBool, null_as(False, bool | None)]
Channels = Annotated[list[str], AfterValidator(lambda names: list(check_channels(names)))]
"""1 to 10 channels."""
