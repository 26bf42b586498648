"""The values that bodies and queries are made of, and the base classes of what goes in and out."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from boathook.domain import ids
from boathook.domain.endpoints import check_channels, check_type, check_uid

_MOST_METADATA: Final = 4_096
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d", re.ASCII)
_NAME: Final = r"^[a-zA-Z0-9\-_.]{1,256}$"


class Input(BaseModel):
    """A body: camelCase names; what is not known is ignored."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")

    def given(self) -> dict[str, Any]:
        """Return the fields that the body has, by their Python names; null is None."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Output(BaseModel):
    """An answer: camelCase names."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


OLD: Final[dict[str, Any]] = {"deprecated": True}
"""Marks a field of older clients in the OpenAPI document; pydantic's own mark would warn with every use."""


def unset(default: Callable[[], Any] = str, **options: Any) -> Any:
    """Declare a field that may be left out, but not be null; see `Input.given`."""
    return Field(default_factory=default, **options)


def either(new: str, old: str) -> AliasChoices:
    """Return the two names of a field; the new one wins."""
    return AliasChoices(new, old)


def _utc(moment: datetime) -> datetime:
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("it lies outside the years 1 to 9999 in UTC") from None


def _written_out(value: object) -> object:
    # Numbers would be taken for seconds since 1970, which no document of ours says.
    if not isinstance(value, datetime) and not (isinstance(value, str) and _MOMENT.match(value)):
        raise ValueError("write a moment such as 2026-01-31T12:00:00Z")
    return value


def show_moment(moment: datetime) -> str:
    """Write a moment as RFC 3339 in UTC, with microseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


Moment = Annotated[
    datetime,
    BeforeValidator(_written_out),
    AfterValidator(_utc),
    PlainSerializer(show_moment, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time", "examples": ["2026-01-31T12:00:00.000000Z"]}),
]
"""A moment; without an offset it is in UTC."""


def _plain(text: str) -> str:
    if any(char <= "\x08" for char in text):
        raise ValueError("it must not hold control characters")
    return text


Text = Annotated[str, AfterValidator(_plain)]
Name = Annotated[Text, Field(min_length=1)]
Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Rate = Annotated[int, Field(strict=True, ge=1, le=65_535)]
TypeName = Annotated[str, AfterValidator(check_type), Field(json_schema_extra={"pattern": _NAME})]


_UID_FORM: Final = Field(json_schema_extra={"pattern": _NAME})
ApplicationUid = Annotated[str, AfterValidator(partial(check_uid, prefix=ids.APPLICATION)), _UID_FORM]
EndpointUid = Annotated[str, AfterValidator(partial(check_uid, prefix=ids.ENDPOINT)), _UID_FORM]


def _small(metadata: Mapping[str, str]) -> Mapping[str, str]:
    if len(msgspec.json.encode(metadata)) > _MOST_METADATA:
        raise ValueError(f"metadata has at most {_MOST_METADATA} bytes as JSON")
    if any("\x00" in key or "\x00" in value for key, value in metadata.items()):
        raise ValueError("it must not hold control characters")
    return metadata


def _or_empty(value: object) -> object:
    return {} if value is None else value


Metadata = Annotated[
    dict[str, str], BeforeValidator(_or_empty, json_schema_input_type=dict[str, str] | None), AfterValidator(_small)
]

Channels = Annotated[list[str], AfterValidator(lambda names: list(check_channels(names)))]
"""1 to 10 of them."""
