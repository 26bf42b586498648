"""The fields of an endpoint: one row a field, for every interface."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from boathook.domain.endpoints import check_channels
from boathook.domain.filters import WHOLE, compile_filter
from boathook.domain.json_document import split_path
from boathook.domain.policy import read_retry
from boathook.domain.redaction import RedactedStruct
from boathook.service.common_fields import Description, EndpointUid, Metadata, ThrottleRate
from boathook.service.fields import Rule

_MAX_TYPES: Final = 500
_MAX_NAME: Final = 256
"""Characters of an event type, and of the path that orders messages."""
_TYPE_MARKS: Final = str.maketrans("-_.*", "xxxx")


def _check_types(names: Sequence[str]) -> None:
    for name in names:
        if not 1 <= len(name) <= _MAX_NAME or not (name.isascii() and name.translate(_TYPE_MARKS).isalnum()):
            raise ValueError(f"{name!r} is not an event type: use letters, digits, - _ . and * for any characters")
    if len(names) > _MAX_TYPES:
        raise ValueError(f"write at most {_MAX_TYPES} of them, or a pattern such as invoice.*")


def _check_order(path: str) -> None:
    if path != WHOLE:
        split_path(path)
        if len(path) > _MAX_NAME:
            raise ValueError(f"write {_MAX_NAME:,} characters at most")


class NewEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The values of an endpoint to create or replace."""

    url: Annotated[
        str | None,
        Rule(
            help="URL that receives messages.",
            description=None,
            label="URL",
            section="address",
            min_length=1,
            example="https://example.com/hook",
        ),
    ] = None
    """Endpoints of kinds that have no URLs have None."""
    description: Annotated[Description, Rule(section="identity")] = ""
    uid: Annotated[EndpointUid | None, Rule(section="identity")] = None
    """The application's own id for it, unique there."""
    throttle_rate: Annotated[
        ThrottleRate | None,
        Rule(
            help="Maximum messages per second.",
            description="Maximum messages per second; null uses the application's rate.",
            label="Rate", option="--rate", metavar="RATE", section="delivery",
        ),
    ] = None  # fmt: skip
    is_disabled: Annotated[bool, Rule(name="disabled")] = False
    event_types: Annotated[
        Sequence[str] | None,
        Rule(
            help="Only messages of this type; * matches any characters.",
            description="Names of event types, or patterns with *; null or none is all.",
            former_name="filterTypes", option="--type", metavar="TYPE", example=["invoice.paid", "user.*"],
            check=_check_types,
        ),
    ] = None  # fmt: skip
    """None: all."""
    metadata: Annotated[Metadata, Rule(section="notes")] = msgspec.field(default_factory=dict)
    channels: Annotated[
        Sequence[str] | None,
        Rule(
            help="Only messages of one of these channels.", description=None,
            option="--channel", metavar="CHANNEL", section="messages", example=["eu", "us"], check=check_channels,
        ),
    ] = None  # fmt: skip
    """Only messages that share one of them; None: all."""
    api_version: Annotated[int, Rule(name="version", minimum=1, maximum=2_147_483_647, is_deprecated=True)] = 1
    """Only for clients of Svix; nothing reads it."""
    filter: Annotated[
        Mapping[str, Any] | None,
        Rule(
            help="Only messages whose body matches.",
            description="Conditions on the payload and its headers.",
            section="messages", example={"body": {"amount": {"gte": 100}}}, check=compile_filter,
        ),
    ] = None  # fmt: skip
    """See `boathook.domain.filters`."""
    order_by: Annotated[
        str | None,
        Rule(
            help="Send messages with the same value at this payload path in order; * for all.",
            description="A payload path: messages with the same value are sent in order; * orders all messages.",
            metavar="PATH", section="delivery", example="customer.id", more_examples=("*",), check=_check_order,
        ),
    ] = None  # fmt: skip
    concurrency: Annotated[
        int | None, Rule(help="Maximum concurrent requests.", minimum=1, maximum=1_000, section="delivery")
    ] = None
    """None: the configured default."""
    retry: Annotated[
        str | Sequence[float] | None,
        Rule(
            help="A preset such as svix, or delays such as '5, 60, 3600'.", description=None,
            form="a preset such as svix, or delays in seconds such as 5, 60, 3600",
            name="retrySchedule", metavar="NAME|SECONDS", check=read_retry,
        ),
    ] = None  # fmt: skip
    """A preset's name, or delays in seconds."""
    timeout_s: Annotated[
        float | None,
        Rule(
            help="Maximum seconds per attempt.", description=None,
            name="timeoutSeconds", option="--timeout", metavar="SECONDS", unit="seconds", minimum=1, maximum=60,
            label="Timeout", section="delivery",
        ),
    ] = None  # fmt: skip
    auth: Annotated[
        Mapping[str, Any] | None,
        Rule(help="Credentials: basic, oauth2 or mtls.", is_secret=True),
    ] = None
    """Any of ``basic``, ``oauth2`` and ``mtls``."""
    destination: Annotated[
        Mapping[str, Any] | None,
        Rule(
            help="Where messages go instead of a URL: a kind of destination and its fields.",
            description="A kind of destination and its fields, for endpoints without a URL; null: the URL.",
            is_secret=True, example={"kind": "http"},
        ),
    ] = None  # fmt: skip
    """``kind``, and the fields that the kind declares."""


class NewSignedEndpoint(NewEndpoint, RedactedStruct, frozen=True, kw_only=True):
    """The values of an endpoint to create, with its secret and headers, which a replacement keeps."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"auth", "destination", "headers", "secret"})

    secret: Annotated[
        str | None,
        Rule(
            help="The signing secret; by default one is generated.",
            description="whsec_ and base64 of 24 to 75 bytes, or whsk_ and base64 of an Ed25519 private key.",
            is_secret=True, example="whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        ),
    ] = None  # fmt: skip
    headers: Annotated[Mapping[str, str] | None, Rule(help="Sent with each message.", is_secret=True)] = None
