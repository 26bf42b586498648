"""Request and response models of endpoints."""

from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import AfterValidator, Field

from boathook.domain.policy import RETRY_PRESETS
from boathook.service import limits
from boathook.service.schemas.fields import (
    DEPRECATED,
    Description,
    EndpointUid,
    Input,
    Metadata,
    Output,
    Part,
    PlainDescription,
    Rate,
    StrictBool,
    StrictBoolOrNull,
    StrictInt,
    Text,
    Timestamp,
    form,
    not_null_field,
    null_as,
    renamed_alias,
)
from boathook.service.sending.endpoints import Backlog, NewEndpoint

Seconds = Annotated[
    float, AfterValidator(limits.check_timeout), form(minimum=limits.MIN_TIMEOUT_S, maximum=limits.MAX_TIMEOUT_S)
]
Version = Annotated[
    StrictInt, AfterValidator(limits.check_api_version), form(minimum=1, maximum=limits.MAX_API_VERSION)
]
ConcurrencyLimit = Annotated[
    StrictInt, AfterValidator(limits.check_concurrency), form(minimum=1, maximum=limits.MAX_CONCURRENCY)
]
UserName = Annotated[
    str, AfterValidator(limits.check_user_name), form(pattern="^[^:]*$", maxLength=limits.MAX_USER_NAME)
]
Password = Annotated[str, AfterValidator(limits.check_password), form(maxLength=limits.MAX_PASSWORD)]
Credential = Annotated[str, AfterValidator(limits.check_credential), form(minLength=1, maxLength=limits.MAX_PASSWORD)]
Schedule = Annotated[
    Text | list[float],
    Field(
        description=f"A preset ({', '.join(RETRY_PRESETS)}) or the delays between attempts in seconds.",
        examples=["standard-webhooks", [5, 60, 3600]],
    ),
]
_TYPES = Field(
    default=None,
    validation_alias=renamed_alias("eventTypes", "filterTypes"),
    description="Names of event types, or patterns with *; null or none is all.",
    examples=[["invoice.paid", "user.*"]],
)
_FILTER = Field(
    default=None,
    description="Conditions on the payload and its headers.",
    examples=[{"body": {"amount": {"gte": 100}}}],
)


class BasicIn(Part):
    """A user name and password."""

    username: UserName
    password: Password


class OAuth2In(Part):
    """OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    token_url: Text
    client_id: Credential
    client_secret: Credential
    scope: Text | None = None


class MtlsIn(Part):
    """A client certificate with its key, as PEM texts."""

    certificate: Text
    key: Text


class AuthIn(Part):
    """Authentication of requests to the endpoint; stored encrypted and never returned."""

    basic: BasicIn | None = None
    oauth2: OAuth2In | None = None
    mtls: MtlsIn | None = None

    def value(self) -> dict[str, Any]:
        """Return the value for the service functions."""
        return self.model_dump(by_alias=True, exclude_none=True)


class EndpointBasics(Input):
    """The fields of every kind of endpoint."""

    url: Text = Field(min_length=1, examples=["https://example.com/hook"])
    description: Description = ""
    uid: EndpointUid | None = Field(default=None, examples=["crm"])
    throttle_rate: Rate | None = Field(
        default=None,
        validation_alias=renamed_alias("throttleRate", "rateLimit"),
        description="Maximum messages per second; null uses the application's rate.",
    )
    is_disabled: StrictBoolOrNull = Field(default=False, validation_alias="disabled")
    event_types: list[str] | None = _TYPES
    metadata: Metadata = Field(default_factory=dict)

    def value(self) -> NewEndpoint:
        """Return the value for the service functions."""
        names = set(NewEndpoint.__struct_fields__) & type(self).model_fields.keys() - {"auth"}
        return NewEndpoint(**{name: getattr(self, name) for name in names})


class EndpointUpdate(EndpointBasics):
    """The values of an endpoint; omitted ones return to their defaults. Secret, headers and auth stay."""

    channels: list[str] | None = Field(default=None, examples=[["eu", "us"]])
    api_version: Annotated[Version, null_as(1, Version | None)] = Field(
        default=1, validation_alias="version", json_schema_extra=DEPRECATED
    )
    filter: dict[str, Any] | None = _FILTER
    order_by: Text | None = Field(
        default=None,
        description="A payload path: messages with the same value are sent in order; * orders all messages.",
        examples=["customer.id", "*"],
    )
    concurrency: ConcurrencyLimit | None = Field(default=None, description="Maximum concurrent requests.")
    retry: Schedule | None = Field(default=None, validation_alias="retrySchedule")
    timeout_s: Seconds | None = Field(default=None, validation_alias="timeoutSeconds")
    auth: AuthIn | None = None
    backlog: Annotated[Backlog, null_as(Backlog.SEND, Backlog | None)] = Field(
        default=Backlog.SEND, description="What happens to pending messages when this enables the endpoint."
    )

    def value(self) -> NewEndpoint:
        """Return the value for the service functions."""
        return replace(super().value(), auth=None if self.auth is None else self.auth.value())


class EndpointIn(EndpointUpdate):
    """An endpoint."""

    secret: Text | None = Field(
        default=None,
        description="whsec_ and base64 of 24 to 75 bytes, or whsk_ and base64 of an Ed25519 private key.",
        examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
    )
    headers: dict[str, str] | None = Field(default=None, description="Sent with each message.")


class EndpointPatch(Input):
    """Changes to an endpoint; null clears fields that may be empty."""

    url: Text = not_null_field(min_length=1)
    description: PlainDescription = not_null_field()
    uid: EndpointUid | None = not_null_field()
    throttle_rate: Rate | None = not_null_field(validation_alias=renamed_alias("throttleRate", "rateLimit"))
    is_disabled: StrictBool = not_null_field(bool, validation_alias="disabled")
    event_types: list[str] | None = not_null_field(list, validation_alias=renamed_alias("eventTypes", "filterTypes"))
    channels: list[str] | None = not_null_field(list)
    metadata: Metadata = not_null_field(dict)
    api_version: Version = not_null_field(int, validation_alias="version", json_schema_extra=DEPRECATED)
    filter: dict[str, Any] | None = not_null_field(dict)
    order_by: Text | None = not_null_field()
    concurrency: ConcurrencyLimit | None = not_null_field(int)
    retry: Schedule | None = not_null_field(validation_alias="retrySchedule")
    timeout_s: Seconds | None = not_null_field(float, validation_alias="timeoutSeconds")
    auth: AuthIn | None = not_null_field(lambda: None)
    backlog: Backlog = Field(
        default=Backlog.SEND, description="What happens to pending messages when this enables the endpoint."
    )

    def value(self) -> dict[str, Any]:
        """Return the value for the service functions."""
        values = self.given()
        values.pop("backlog", None)
        if self.auth is not None:
            values["auth"] = self.auth.value()
        return values


class EndpointBasicsOut(Output):
    """The fields of every kind of endpoint."""

    id: str = Field(examples=["ep_01h455vb4pex5vsknk084sn02q4"])
    uid: str | None = Field(examples=["crm"])
    url: str = Field(examples=["https://example.com/hook"])
    description: str
    disabled: bool
    throttle_rate: int | None
    rate_limit: int | None = Field(json_schema_extra=DEPRECATED)
    event_types: list[str] | None
    filter_types: list[str] | None = Field(json_schema_extra=DEPRECATED)
    created_at: Timestamp
    updated_at: Timestamp


class EndpointOut(EndpointBasicsOut):
    """An endpoint."""

    version: int = Field(json_schema_extra=DEPRECATED)
    channels: list[str] | None
    metadata: dict[str, str]
    filter: dict[str, Any] | None
    order_by: str | None
    concurrency: int | None
    retry_schedule: str | list[float] | None
    timeout_seconds: float | None
    auth: list[str] = Field(
        description="Kinds of authentication that requests to the endpoint use.", examples=[["mtls"]]
    )
