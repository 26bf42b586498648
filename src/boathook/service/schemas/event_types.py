"""Request models of event types."""

from typing import Annotated, Any

from pydantic import Field

from boathook.service.event_types import NewEventType
from boathook.service.schemas.fields import (
    DEPRECATED,
    Input,
    StrictBool,
    StrictBoolOrNull,
    Text,
    TypeName,
    not_null_field,
)

FlagName = Annotated[Text, Field(min_length=1, max_length=256)]
Group = Annotated[Text, Field(max_length=256)]
Schemas = Annotated[
    dict[str, Any],
    Field(description="JSON Schemas, draft 7, of the payload, by version.", examples=[{"1": {"type": "object"}}]),
]


class EventTypeUpdate(Input):
    """What an event type shall be like; what is left out returns to its default."""

    description: Text = Field(examples=["An invoice was paid"])
    is_archived: StrictBoolOrNull = Field(default=False, validation_alias="archived")
    is_deprecated: StrictBoolOrNull = Field(default=False, validation_alias="deprecated")
    schemas: Schemas | None = None
    feature_flag: FlagName | None = Field(default=None, json_schema_extra=DEPRECATED)
    feature_flags: list[FlagName] | None = Field(
        default=None, description="Portal users without one of these flags do not see the event type."
    )
    group_name: Group | None = Field(default=None, examples=["invoices"])

    def value(self) -> NewEventType:
        """Return what actions take."""
        return NewEventType(
            description=self.description,
            is_archived=self.is_archived,
            is_deprecated=self.is_deprecated,
            schemas=self.schemas,
            feature_flags=_flags(self.feature_flag, self.feature_flags),
            group_name=self.group_name,
        )


class EventTypeIn(EventTypeUpdate):
    """An event type."""

    name: TypeName = Field(examples=["invoice.paid"])


class EventTypePatch(Input):
    """What of an event type shall change; null clears schemas, featureFlags and groupName."""

    description: Text = not_null_field()
    is_archived: StrictBool = not_null_field(bool, validation_alias="archived")
    is_deprecated: StrictBool = not_null_field(bool, validation_alias="deprecated")
    schemas: Schemas | None = not_null_field(dict)
    feature_flag: FlagName | None = not_null_field(json_schema_extra=DEPRECATED)
    feature_flags: list[FlagName] | None = not_null_field(list)
    group_name: Group | None = not_null_field()

    def value(self) -> dict[str, Any]:
        """Return what actions take."""
        values = self.given()
        flag = values.pop("feature_flag", None)
        if "feature_flags" in values or "feature_flag" in self.model_fields_set:
            values["feature_flags"] = _flags(flag, values.get("feature_flags"))
        return values


def _flags(flag: str | None, flags: list[str] | None) -> list[str] | None:
    if flags is not None:
        return flags
    return None if flag is None else [flag]
