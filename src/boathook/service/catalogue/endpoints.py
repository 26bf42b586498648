"""Operations on endpoints: their secrets, tests, pauses, and sending messages to them again.

A key or a portal token of one application may run them on the endpoints of its own application only.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Final

import msgspec

from boathook.db import event_types
from boathook.domain import ids
from boathook.domain.endpoints import check_type
from boathook.domain.errors import NotFound
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Body, Http, In, Operation, Out, Scope, operation
from boathook.service.catalogue.values import Result, flags_of
from boathook.service.fields import Input, Rule
from boathook.service.limits import SecretGrace
from boathook.service.sending import applications, endpoint_secrets, endpoints, messages
from boathook.service.sending.endpoint_secrets import DEFAULT_GRACE
from boathook.service.sending.endpoints import Backlog
from boathook.service.sending.endpoints import Endpoint as StoredEndpoint
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Endpoint"
_ONE: Final = "/app/{application}/endpoint/{id}"


ExampleIndex = Annotated[int, Rule(help="Index of the example in the event type's schema.", minimum=0)]


class Endpoint(Result, frozen=True, kw_only=True):
    """An endpoint after a change."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.ENDPOINT)]
    uid: str | None = None
    url: str
    is_disabled: bool = msgspec.field(name="disabled")


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


class EndpointNamed(Input, frozen=True, kw_only=True):
    """The endpoint that is meant."""

    application: Annotated[
        str, Rule(help="Application: id, its beginning, or uid.", short_option="-a", prefix=ids.APPLICATION)
    ]  # fmt: skip
    id: Annotated[str, Rule(help="Id or uid.", argument="ENDPOINT", prefix=ids.ENDPOINT)]


class Enabling(EndpointNamed, frozen=True, kw_only=True):
    """The endpoint to enable."""

    backlog: Annotated[Backlog, Rule(help="What happens to pending deliveries.")] = Backlog.SEND


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

    application: Annotated[
        str, Rule(help="Application: id, its beginning, or uid.", short_option="-a", prefix=ids.APPLICATION)
    ]  # fmt: skip
    message: Annotated[str, Rule(help="The message's id or uid.", prefix=ids.MESSAGE)]
    id: Annotated[str, Rule(help="Id or uid.", argument="ENDPOINT", prefix=ids.ENDPOINT)]


def _declare(
    name: str, permission: Permission, http: Http | None, *, command: str = "", **more: Any
) -> Callable[[Body[In, Out]], Operation[In, Out]]:
    """Declare an operation on the endpoints of one application; *command* is its example, after ``boathook``."""
    example = f"boathook endpoints {command}".replace("ENDPOINT", "-a acme ep_01h455vb4pex5vsknk084sn02q4")
    examples = (example,) if command else ()
    return operation(name, permission, Scope.APPLICATION, http, tag=TAG, examples=examples, **more)


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


def view(row: StoredEndpoint) -> Endpoint:
    """Return an endpoint as operations return it."""
    return Endpoint(id=row.shown_id, uid=row.uid, url=row.url, is_disabled=row.is_disabled)
