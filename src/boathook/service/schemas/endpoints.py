"""Request and response models of endpoints."""

from typing import Annotated, Any, Final

from msgspec.structs import asdict, replace
from pydantic import Field

from boathook.domain.policy import RETRY_PRESETS
from boathook.service.common_fields import Credential, Password, UserName
from boathook.service.schemas.derived import check_of, form_of, with_fields
from boathook.service.schemas.fields import (
    DEPRECATED,
    Input,
    Output,
    Part,
    Text,
    Timestamp,
    not_null_field,
    null_as,
)
from boathook.service.sending.endpoint_fields import NewEndpoint, NewSignedEndpoint
from boathook.service.sending.endpoints import Backlog

Schedule = Annotated[
    Text | list[float],
    Field(
        description=f"A preset ({', '.join(RETRY_PRESETS)}) or the delays between attempts in seconds.",
        examples=["standard-webhooks", [5, 60, 3600]],
    ),
]


CredentialText = Annotated[str, check_of(Credential), form_of(Credential)]


class BasicIn(Part):
    """A user name and password."""

    username: Annotated[str, check_of(UserName), form_of(UserName)]
    password: Annotated[str, check_of(Password), form_of(Password)]


class OAuth2In(Part):
    """OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    token_url: Text
    client_id: CredentialText
    client_secret: CredentialText
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


_BASICS: Final = ("url", "description", "uid", "throttle_rate", "is_disabled", "event_types", "metadata")


@with_fields(NewEndpoint, _BASICS, required=("url",))
class EndpointBasics(Input):
    """The fields of every kind of endpoint."""

    def value(self) -> NewEndpoint:
        """Return the value for the service functions."""
        names = set(NewEndpoint.__struct_fields__) & type(self).model_fields.keys() - {"auth"}
        return NewEndpoint(**{name: getattr(self, name) for name in names})


@with_fields(NewEndpoint, types={"retry": Schedule}, replaced=("url",))
class EndpointUpdate(EndpointBasics):
    """The values of an endpoint; omitted ones return to their defaults. Secret, headers and auth stay."""

    auth: AuthIn | None = None
    backlog: Annotated[Backlog, null_as(Backlog.SEND, Backlog | None)] = Field(
        default=Backlog.SEND, description="What happens to pending messages when this enables the endpoint."
    )

    def value(self) -> NewEndpoint:
        """Return the value for the service functions."""
        return replace(super().value(), auth=None if self.auth is None else self.auth.value())


@with_fields(NewSignedEndpoint, ("secret", "headers"))
class EndpointIn(EndpointUpdate):
    """An endpoint."""

    def value(self) -> NewSignedEndpoint:
        """Return the value for the service functions."""
        own = dict(self)
        return NewSignedEndpoint(**asdict(super().value()), secret=own["secret"], headers=own["headers"])


@with_fields(NewEndpoint, types={"retry": Schedule}, is_partial=True, required=("url",))
class EndpointPatch(Input):
    """Changes to an endpoint; null clears fields that may be empty."""

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
    destination: dict[str, Any] = Field(
        description="The kind of destination and its fields, without secrets.", examples=[{"kind": "http"}]
    )
    auth: list[str] = Field(
        description="Kinds of authentication that requests to the endpoint use.", examples=[["mtls"]]
    )
