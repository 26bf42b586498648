"""Request models of messages."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, model_validator

from boathook.domain import ids
from boathook.domain.endpoints import check_tags, check_uid
from boathook.service.messages import JSON_TYPE
from boathook.service.schemas.applications import ApplicationIn
from boathook.service.schemas.fields import Channels, Input, Part, StrictInt, Timestamp, TypeName, renamed_alias

_FURTHEST: Final = timedelta(hours=24, minutes=1)
_LONGEST_MEDIA_TYPE: Final = 256
_WORD: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE: Final = re.compile(rf'{_WORD}/{_WORD}(?: *; *{_WORD}=(?:{_WORD}|"[ !#-\[\]-~]*"))*', re.ASCII)
MessageUid = Annotated[str, AfterValidator(lambda uid: check_uid(uid, ids.MESSAGE))]
Days = Annotated[StrictInt, Field(ge=1, le=90)]
Hours = Annotated[StrictInt, Field(ge=1, le=2160)]
Tags = Annotated[list[str], AfterValidator(lambda names: list(check_tags(names)) if names else [])]


def _content_type(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if name.lower() != "content-type":
            raise ValueError(f"only content-type may be given, not {name}; other headers belong to the endpoint")
        if len(value) > _LONGEST_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(value):
            raise ValueError("write a content type such as text/plain; charset=utf-8")
    if len(headers) > 1:
        raise ValueError("content-type is given twice")
    return headers


class TransformationsParams(Part):
    """How a message's body is made."""

    raw_payload: str | None = Field(default=None, description="Sent unchanged instead of the payload.")
    headers: Annotated[dict[str, str], AfterValidator(_content_type)] | None = Field(
        default=None, description="The body's content type.", examples=[{"content-type": "text/plain"}]
    )

    @property
    def content_type(self) -> str:
        """How the body is labelled."""
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
    deliver_at: Timestamp | None = Field(default=None, description="Delivery time; at most 24 hours ahead.")
    payload_retention_period: Days | None = Field(default=None, description="Days the payload is kept.")
    payload_retention_hours: Hours | None = Field(default=None, description="Hours the payload is kept.")
    transformations_params: TransformationsParams | None = None
    application: ApplicationIn | None = Field(
        default=None, description="Creates the application if it does not exist; its uid must match the path."
    )

    @model_validator(mode="after")
    def _check(self) -> "MessageIn":
        if self.payload_retention_hours is not None and self.payload_retention_period is not None:
            raise ValueError("write payloadRetentionPeriod or payloadRetentionHours, not both")
        if self.deliver_at is not None and self.deliver_at > datetime.now(UTC) + _FURTHEST:
            raise ValueError("deliverAt lies more than 24 hours ahead")
        return self

    @property
    def content_until(self) -> datetime | None:
        """When the payload may be forgotten."""
        days, hours = self.payload_retention_period, self.payload_retention_hours
        if days is None and hours is None:
            return None
        return datetime.now(UTC) + timedelta(days=days or 0, hours=hours or 0)
