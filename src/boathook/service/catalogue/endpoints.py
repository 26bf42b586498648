"""Operations on endpoints: their settings, secrets, tests, pauses, and sending messages to them again.

A key or a portal token of one application may run them on the endpoints of its own application only.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec.structs import asdict

from boathook.db import event_types
from boathook.domain import ids
from boathook.domain.endpoints import check_type
from boathook.domain.errors import NotFound
from boathook.domain.redaction import RedactedStruct
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Body, Http, In, Operation, Out, Scope, operation
from boathook.service.catalogue.values import Result, flags_of
from boathook.service.fields import Change, Input, Rule, with_changes
from boathook.service.limits import SecretGrace
from boathook.service.sending import applications, destinations, endpoint_secrets, endpoints, messages
from boathook.service.sending.endpoint_fields import NewEndpoint, NewSignedEndpoint
from boathook.service.sending.endpoint_secrets import DEFAULT_GRACE
from boathook.service.sending.endpoints import Backlog
from boathook.service.sending.endpoints import Endpoint as StoredEndpoint
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Endpoint"
_ALL: Final = "/app/{application}/endpoint"
_ONE: Final = f"{_ALL}/{{id}}"
_Application = Annotated[
    str, Rule(help="Application: id, its beginning, or uid.", short_option="-a", prefix=ids.APPLICATION)
]
_Reference = Annotated[str, Rule(help="Id or uid.", argument="ENDPOINT", prefix=ids.ENDPOINT)]
_Backlog = Annotated[Backlog, Rule(help="What happens to pending deliveries.")]


ExampleIndex = Annotated[int, Rule(help="Index of the example in the event type's schema.", minimum=0)]


class Endpoint(Result, frozen=True, kw_only=True):
    """An endpoint after a change."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.ENDPOINT)]
    uid: str | None = None
    url: str
    is_disabled: bool = msgspec.field(name="disabled")


class EndpointSettings(Endpoint, frozen=True, kw_only=True):
    """An endpoint with its settings, without secrets, headers and credentials."""

    description: str
    throttle_rate: int | None = None
    event_types: Sequence[str] | None = None
    channels: Sequence[str] | None = None
    filter: Mapping[str, Any] | None = None
    order_by: str | None = None
    concurrency: int | None = None
    retry: str | Sequence[float] | None = msgspec.field(default=None, name="retrySchedule")
    timeout_s: float | None = msgspec.field(default=None, name="timeoutSeconds")
    metadata: Mapping[str, str]
    destination: Mapping[str, Any]
    created_at: datetime | None
    updated_at: datetime | None


class EndpointPut(Result, frozen=True, kw_only=True):
    """An endpoint that was replaced or created."""

    endpoint: EndpointSettings
    is_created: bool


class EndpointDeleted(Result, frozen=True, kw_only=True):
    """An endpoint that is gone."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.ENDPOINT)]
    deleted: bool = True


class EndpointKey(Result, frozen=True, kw_only=True):
    """What receivers verify signatures with."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"key"})

    key: Annotated[str, Rule(help="whsec_ and a shared secret, or whpk_ and a public key.")]


class Sent(Result, frozen=True, kw_only=True):
    """A message that was sent as a test."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.MESSAGE)]
    type: str = msgspec.field(name="eventType")


class Resent(Result, frozen=True, kw_only=True):
    """A message that is due at an endpoint again."""


class EndpointCreate(NewSignedEndpoint, frozen=True, kw_only=True):
    """An endpoint to create."""

    application: _Application


class EndpointReplacement(NewEndpoint, RedactedStruct, frozen=True, kw_only=True):
    """The values of an endpoint to create or replace."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"auth", "destination"})

    application: _Application
    id: Annotated[str, Rule(help="Id or uid.", argument="ENDPOINT")]
    backlog: _Backlog = Backlog.SEND


@with_changes(NewEndpoint)
class EndpointChange(Change, RedactedStruct, frozen=True, kw_only=True):
    """Changes to an endpoint."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"auth", "destination"})

    application: _Application
    id: _Reference
    backlog: _Backlog = Backlog.SEND


class EndpointNamed(Input, frozen=True, kw_only=True):
    """The endpoint that is meant."""

    application: _Application
    id: _Reference


class Enabling(EndpointNamed, frozen=True, kw_only=True):
    """The endpoint to enable."""

    backlog: _Backlog = Backlog.SEND


class Rotation(EndpointNamed, frozen=True, kw_only=True):
    """The endpoint that gets a new secret."""

    key: Annotated[
        str | None, Rule(help="The new secret; by default one is generated.", option="--secret", is_secret=True)
    ] = None  # fmt: skip
    grace_s: Annotated[
        SecretGrace,
        Rule(help="Seconds that the old secret stays valid.", name="gracePeriodSeconds", option="--grace"),
    ] = int(DEFAULT_GRACE.total_seconds())


class Example(EndpointNamed, frozen=True, kw_only=True):
    """The example to send."""

    type: Annotated[
        str, Rule(help="Event type whose example is sent; svix.ping needs none.", name="eventType", check=check_type)
    ] = messages.PING  # fmt: skip
    index: Annotated[ExampleIndex, Rule(name="exampleIndex")] = 0


class Resend(Input, frozen=True, kw_only=True):
    """The message to send again, and where."""

    application: _Application
    message: Annotated[str, Rule(help="The message's id or uid.", prefix=ids.MESSAGE)]
    id: _Reference


def _declare(
    name: str, permission: Permission, http: Http | None, *, command: str = "", **more: Any
) -> Callable[[Body[In, Out]], Operation[In, Out]]:
    """Declare an operation on the endpoints of one application; *command* is its example, after ``boathook``."""
    example = f"boathook endpoints {command}".replace("ENDPOINT", "-a acme ep_01h455vb4pex5vsknk084sn02q4")
    examples = (example,) if command else ()
    return operation(name, permission, Scope.APPLICATION, http, tag=TAG, examples=examples, **more)


@_declare(
    "endpoint.create", Permission.ENDPOINT_MANAGE, Http("POST", _ALL, 201, is_derived=False),
    undo="delete it", says="{id}",
)  # fmt: skip
async def create(work: UnitOfWork, new: EndpointCreate) -> EndpointSettings:
    """Create an endpoint; messages published from now on are sent to it."""
    owner, values = await applications.get(work, new.application), asdict(new)
    del values["application"]
    secret, headers = values.pop("secret"), values.pop("headers")
    return settings_of(await endpoints.create(work, owner, NewEndpoint(**values), secret=secret, headers=headers))


@_declare(
    "endpoint.put", Permission.ENDPOINT_MANAGE, Http("PUT", _ONE, is_derived=False), undo="put its former values"
)  # fmt: skip
async def put(work: UnitOfWork, new: EndpointReplacement) -> EndpointPut:
    """Replace an endpoint's fields, or create it with the uid from the path. Its secret and headers stay."""
    owner, values = await applications.get(work, new.application), asdict(new)
    del values["application"]
    reference, backlog = values.pop("id"), values.pop("backlog")
    row, is_created = await endpoints.put(work, owner, reference, NewEndpoint(**values), backlog=backlog)
    return EndpointPut(endpoint=settings_of(row), is_created=is_created)


@_declare(
    "endpoint.update", Permission.ENDPOINT_MANAGE, Http("PATCH", _ONE, is_derived=False),
    undo="set the former values", says="{id} updated",
)  # fmt: skip
async def update(work: UnitOfWork, change: EndpointChange) -> EndpointSettings:
    """Change the given settings only."""
    owner = await applications.get(work, change.application)
    return settings_of(await endpoints.update(work, owner, change.id, change.values, backlog=change.backlog))


@_declare("endpoint.get", Permission.ENDPOINT_VIEW, Http("GET", _ONE, is_derived=False))
async def get(work: UnitOfWork, target: EndpointNamed) -> Endpoint:
    """Show what identifies an endpoint, and whether it is disabled."""
    return view(await endpoints.get(work, await applications.get(work, target.application), target.id))


@_declare(
    "endpoint.enable", Permission.ENDPOINT_MANAGE, Http("PATCH", _ONE, is_derived=False, body={"disabled": False}),
    undo="disable it", says="{id} enabled", command="enable ENDPOINT --backlog cancel",
)  # fmt: skip
async def enable(work: UnitOfWork, target: Enabling) -> Endpoint:
    """Enable an endpoint and reset its failure count."""
    owner = await applications.get(work, target.application)
    return view(await endpoints.update(work, owner, target.id, {"is_disabled": False}, backlog=target.backlog))


@_declare(
    "endpoint.disable", Permission.ENDPOINT_MANAGE, Http("PATCH", _ONE, is_derived=False, body={"disabled": True}),
    undo="enable it", says="{id} disabled", command="disable ENDPOINT",
)  # fmt: skip
async def disable(work: UnitOfWork, target: EndpointNamed) -> Endpoint:
    """Disable an endpoint; its pending deliveries are kept."""
    owner = await applications.get(work, target.application)
    return view(await endpoints.update(work, owner, target.id, {"is_disabled": True}))


@_declare(
    "endpoint.resume", Permission.ENDPOINT_MANAGE, Http("POST", f"{_ONE}/resume", is_derived=False),
    undo=None, says="{id} resumed", command="resume ENDPOINT",
)  # fmt: skip
async def resume(work: UnitOfWork, target: EndpointNamed) -> Endpoint:
    """End the pause of an endpoint and reset its failure count; its due deliveries go out at once."""
    return view(await endpoints.resume(work, await applications.get(work, target.application), target.id))


@_declare(
    "endpoint.delete", Permission.ENDPOINT_MANAGE, Http("DELETE", _ONE, 204, is_derived=False),
    undo=None, must_confirm=True, says="{id} deleted",
    warns="delete the endpoint {subject.id} at {subject.url}", command="delete ENDPOINT --yes",
)  # fmt: skip
async def delete(work: UnitOfWork, target: EndpointNamed) -> EndpointDeleted:
    """Delete an endpoint; its pending deliveries become dead letters. Delivery history is kept."""
    await endpoints.delete(work, await applications.get(work, target.application), target.id)
    return EndpointDeleted(id=target.id)


@_declare(
    "endpoint.reveal_secret", Permission.ENDPOINT_SECRET_VIEW, None,
    undo=None, secret="key", command="secret ENDPOINT",  # noqa: S106 - the name of a field
)  # fmt: skip
async def reveal_secret(work: UnitOfWork, target: EndpointNamed) -> EndpointKey:
    """Print the verification secret or public key of an endpoint. The access is recorded in the audit log."""
    owner = await applications.get(work, target.application)
    return EndpointKey(key=await endpoint_secrets.reveal_secret(work, owner, target.id))


@_declare(
    "endpoint.rotate_secret", Permission.ENDPOINT_SECRET_ROTATE,
    Http("POST", f"{_ONE}/secret/rotate", is_derived=False),
    undo=None, secret="key", command="rotate-secret ENDPOINT --grace 172800",  # noqa: S106 - the same
)  # fmt: skip
async def rotate_secret(work: UnitOfWork, rotation: Rotation) -> EndpointKey:
    """Rotate the signing secret and print the new verification secret. The old one stays valid for a while."""
    owner, grace = await applications.get(work, rotation.application), timedelta(seconds=rotation.grace_s)
    key = await endpoint_secrets.rotate_secret(work, owner, rotation.id, secret=rotation.key, grace=grace)
    return EndpointKey(key=key)


@_declare(
    "endpoint.test", Permission.ENDPOINT_TEST, Http("POST", f"{_ONE}/send-example", is_derived=False),
    undo=None, says="{id}", command="test ENDPOINT",
)  # fmt: skip
async def test(work: UnitOfWork, example: Example) -> Sent:
    """Send a test message to one endpoint and print the message id."""
    owner, flags = await applications.get(work, example.application), flags_of(work.caller)
    if flags is not None and example.type != messages.PING:
        row = await event_types.find(work.connection, work.organization, example.type, flags)
        if row is None or row.is_archived:
            raise NotFound(f"unknown event type {example.type}")
    sent = await messages.send_example(work, owner, example.id, example.type, index=example.index)
    return Sent(id=sent.shown_id, type=sent.type)


@_declare(
    "endpoint.resend", Permission.MESSAGE_RESEND,
    Http("POST", "/app/{application}/msg/{message}/endpoint/{id}/resend", 202, is_derived=False),
    undo=None, says="sent again", command="resend-message ENDPOINT --message msg_01h455vb4pex5vsknk084sn02q4",
)  # fmt: skip
async def resend(work: UnitOfWork, resending: Resend) -> Resent:
    """Attempt one message at an endpoint once more, whatever event types the endpoint receives."""
    await messages.resend(work, await applications.get(work, resending.application), resending.message, resending.id)
    return Resent()


def settings_of(row: StoredEndpoint) -> EndpointSettings:
    """Return an endpoint with its settings as operations return it."""
    return EndpointSettings(
        id=row.shown_id,
        uid=row.uid,
        url=row.url,
        is_disabled=row.is_disabled,
        description=row.description,
        throttle_rate=row.throttle_rate,
        event_types=row.event_types,
        channels=row.channels,
        filter=row.filter,
        order_by=row.order_by,
        concurrency=row.concurrency,
        retry=shown_retry(row),
        timeout_s=row.timeout_s,
        metadata=row.metadata,
        destination=destinations.show(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def shown_retry(row: StoredEndpoint) -> str | Sequence[float] | None:
    """Return the name of an endpoint's retry schedule, or its delays; None for the default one."""
    return row.retry_name if row.retry is None or row.retry_name is not None else list(row.retry.delays_s or ())


def view(row: StoredEndpoint) -> Endpoint:
    """Return an endpoint as operations return it."""
    return Endpoint(id=row.shown_id, uid=row.uid, url=row.url, is_disabled=row.is_disabled)
