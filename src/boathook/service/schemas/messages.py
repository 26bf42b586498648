"""Request models of applications, event types and messages."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, model_validator

from boathook.domain.endpoints import check_tags
from boathook.domain.messages import (
    MAX_RETENTION_DAYS,
    MAX_RETENTION_H,
    Message,
    check_deliver_at,
    check_message_id,
    content_until,
)
from boathook.service.common_fields import Flag
from boathook.service.schemas.derived import check_of, form_of, with_fields
from boathook.service.schemas.fields import (
    DEPRECATED,
    Channels,
    Input,
    Part,
    StrictInt,
    Timestamp,
    TypeName,
    not_null_field,
    renamed_alias,
)
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.event_types import NewEventType
from boathook.service.sending.messages import JSON_TYPE

FlagName = Annotated[str, check_of(Flag), form_of(Flag)]
Schemas = Annotated[
    dict[str, Any],
    Field(description="JSON Schemas, draft 7, of the payload, by version.", examples=[{"1": {"type": "object"}}]),
]


@with_fields(NewEventType, types={"schemas": Schemas})
class EventTypeUpdate(Input):
    """The values of an event type; omitted ones return to their defaults."""

    feature_flag: FlagName | None = Field(default=None, json_schema_extra=DEPRECATED)

    def value(self) -> NewEventType:
        """Return the value for the service functions."""
        values = dict(self)
        flag = values.pop("feature_flag")
        names = NewEventType.__struct_fields__
        return NewEventType(
            **{name: values[name] for name in names if name != "feature_flags"},
            feature_flags=_flags(flag, values["feature_flags"]),
        )


class EventTypeIn(EventTypeUpdate):
    """An event type."""

    name: TypeName = Field(examples=["invoice.paid"])


@with_fields(NewEventType, is_partial=True, types={"schemas": Schemas})
class EventTypePatch(Input):
    """Changes to an event type; null clears schemas, featureFlags and groupName."""

    feature_flag: FlagName | None = not_null_field(json_schema_extra=DEPRECATED)

    def value(self) -> dict[str, Any]:
        """Return the value for the service functions."""
        values = self.given()
        flag = values.pop("feature_flag", None)
        if "feature_flags" in values or "feature_flag" in self.model_fields_set:
            values["feature_flags"] = _flags(flag, values.get("feature_flags"))
        return values


def _flags(flag: str | None, flags: list[str] | None) -> list[str] | None:
    if flags is not None:
        return flags
    return None if flag is None else [flag]


@with_fields(NewApplication)
class ApplicationIn(Input):
    """An application."""

    def value(self) -> NewApplication:
        """Return the value for the service functions."""
        return NewApplication(**dict(self))


@with_fields(NewApplication, is_partial=True, documented=("name", "uid"))
class ApplicationPatch(Input):
    """Changes to an application; null clears uid and throttleRate."""


_MAX_MEDIA_TYPE: Final = 256
_WORD: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE: Final = re.compile(rf'{_WORD}/{_WORD}(?: *; *{_WORD}=(?:{_WORD}|"[ !#-\[\]-~]*"))*', re.ASCII)
MessageUid = Annotated[str, AfterValidator(check_message_id)]
DeliverAt = Annotated[Timestamp, AfterValidator(check_deliver_at)]
Days = Annotated[StrictInt, Field(ge=1, le=MAX_RETENTION_DAYS)]
Hours = Annotated[StrictInt, Field(ge=1, le=MAX_RETENTION_H)]
Tags = Annotated[list[str], AfterValidator(lambda names: list(check_tags(names)) if names else [])]


def _content_type(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if name.lower() != "content-type":
            raise ValueError(f"only content-type may be given, not {name}; other headers belong to the endpoint")
        if len(value) > _MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(value):
            raise ValueError("write a content type such as text/plain; charset=utf-8")
    if len(headers) > 1:
        raise ValueError("content-type is given twice")
    return headers


class TransformationsParams(Part):
    """The raw body of a message and its content type."""

    raw_payload: str | None = Field(default=None, description="Sent unchanged instead of the payload.")
    headers: Annotated[dict[str, str], AfterValidator(_content_type)] | None = Field(
        default=None, description="The body's content type.", examples=[{"content-type": "text/plain"}]
    )

    @property
    def content_type(self) -> str:
        """The body's content type."""
        return next(iter((self.headers or {}).values()), JSON_TYPE)


class MessageIn(Input):
    """A message."""

    event_type: TypeName = Field(examples=["invoice.paid"])
    payload: Any = Field(
        default=None,
        validation_alias=renamed_alias("payload", "data"),
        examples=[{"id": "inv_17", "amount": 4200}],
        description="A JSON object, sent byte for byte as it is given; `data` is another name for it.",
        json_schema_extra={"type": "object"},
    )
    event_id: MessageUid | None = Field(default=None, examples=["order-17"], description="Unique for the application.")
    channels: Channels | None = Field(default=None, examples=[["project_1337"]])
    tags: Tags | None = Field(default=None, examples=[["billing"]])
    deliver_at: DeliverAt | None = Field(default=None, description="Delivery time; at most 24 hours ahead.")
    payload_retention_period: Days | None = Field(default=None, description="Days the payload is kept.")
    payload_retention_hours: Hours | None = Field(default=None, description="Hours the payload is kept.")
    transformations_params: TransformationsParams | None = None
    application: ApplicationIn | None = Field(
        default=None, description="Creates the application if it does not exist; its uid must match the path."
    )

    @model_validator(mode="after")
    def _check(self) -> "MessageIn":
        content_until(self.payload_retention_period, self.payload_retention_hours)
        return self

    def value(self, application: str, payload: bytes) -> Message:
        """Return the message to an application; its payload is the one in the body byte for byte, or a raw one."""
        params = self.transformations_params
        return Message(
            application=application,
            type=self.event_type,
            payload=payload,
            content_type=JSON_TYPE if params is None else params.content_type,
            id=self.event_id,
            channels=tuple(self.channels or ()),
            tags=tuple(self.tags or ()),
            deliver_at=self.deliver_at,
            content_until=content_until(self.payload_retention_period, self.payload_retention_hours),
        )
