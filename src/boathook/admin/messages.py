"""What can be done with messages: publish them, send them again, try an endpoint out, forget what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, assert_never
from uuid import UUID

import msgspec

from boathook.admin import endpoints
from boathook.admin.desk import Work, new_id
from boathook.admin.schemas import check_message
from boathook.domain import ids
from boathook.domain.errors import InvalidMessage, InvalidValue, NotFound, NotPossible, Taken
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Clash, Duplicate, Repeated
from boathook.handlers.outbox import Message
from boathook.journal import event_types, messages, resends
from boathook.journal.applications import Application
from boathook.journal.audit import note
from boathook.journal.endpoints import Endpoint
from boathook.journal.messages import Example, MessageRow
from boathook.journal.moves import Action
from boathook.journal.resends import Owe

_PING: Final = "svix.ping"
_PONG: Final = b'{"success":true}'
JSON_TYPE: Final = "application/json"
REUSED: Final = "idempotency_key_reused"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message about to be published."""

    type: str
    body: bytes
    """Exactly what is sent."""
    content_type: str = JSON_TYPE
    uid: str | None = None
    channels: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    deliver_at: datetime | None = None
    content_until: datetime | None = None
    """When its content may be forgotten; None: with the message."""
    idempotency: tuple[bytes, bytes, bytes] | None = None
    """Hashes: of the idempotency key, and of the request it came with, as it is written and as it is understood."""


async def create(work: Work, application: Application, new: NewMessage) -> tuple[MessageRow, bool]:
    """Publish a message; return it, and whether an earlier request with its idempotency key had done so already.

    Raises:
        Taken: its id belongs to another message, or its idempotency key to another request.
        InvalidMessage: it does not fit its event type's schema, and those are enforced.
    """
    if work.desk.settings.outbound.validate_payloads:
        payload = _parsed(new.body)
        await check_message(work.connection, organization=work.organization, type=new.type, payload=payload)
    outcome = await work.desk.outbox.publish(work.connection, _to_publish(work, application, new))
    match outcome:
        case Accepted():
            return _row(new, outcome.event_id), False
        case Repeated():
            # The request means the same, so what it made looks the same.
            return _row(new, outcome.event_id), True
        case Duplicate():
            raise Taken(f"a message of this application has the eventId {new.uid} already")
        case Clash():
            raise Taken("this Idempotency-Key came with another request before", kind=REUSED)
        case _:
            assert_never(outcome)


def _to_publish(work: Work, application: Application, new: NewMessage) -> Message:
    key, fingerprint, canonical = new.idempotency or (None, None, None)
    return Message(
        organization=work.organization,
        application=application.shown_id,
        type=new.type,
        payload=new.body,
        content_type=new.content_type,
        id=new.uid,
        channels=new.channels,
        tags=new.tags,
        deliver_at=new.deliver_at,
        content_until=new.content_until,
        idempotency=key,
        fingerprint=fingerprint,
        canonical=canonical,
    )


def _parsed(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidMessage("payload: it is not JSON, and the event type's schema wants JSON") from None


def _row(new: NewMessage, identifier: UUID) -> MessageRow:
    return MessageRow(
        id=identifier,
        type=new.type,
        uid=new.uid,
        channels=new.channels or None,
        tags=new.tags or None,
        deliver_at=new.deliver_at,
        body=new.body,
        is_gone=False,
    )


async def get(work: Work, application: Application, reference: str) -> MessageRow:
    """Return a message by its id or its eventId. Raises NotFound."""
    # PostgreSQL knows no NUL in text, so no message has it in its name either.
    is_text = "\x00" not in reference
    found = await messages.find(work.connection, application.shown_id, reference) if is_text else None
    if found is None:
        raise NotFound(f"there is no message {reference}")
    return found


async def get_live_endpoint(work: Work, application: Application, reference: str) -> Endpoint:
    """Return an endpoint that may be sent to. Raises NotFound, and NotPossible where it is disabled."""
    found = await endpoints.get(work, application, reference)
    if found.is_disabled:
        raise NotPossible("the endpoint is disabled; enable it first, then send again", "endpoint_disabled")
    return found


async def resend(work: Work, application: Application, message: str, endpoint: str) -> None:
    """Owe a message to an endpoint for one more attempt, whatever the endpoint listens to.

    Raises:
        NotFound: there is no such message or endpoint.
        NotPossible: the endpoint is disabled, or the message's content is gone.
    """
    target = await get_live_endpoint(work, application, endpoint)
    found = await get(work, application, message)
    action = Action(actor=work.actor, note=f"resent to {target.shown_id}")
    number = 0
    if not found.is_gone:
        # It goes at once, past its order key's line, which may be waiting for this very message.
        one = [(found.id, None)]
        number = await resends.owe(work.connection, target.recipient, one, Owe.ALL, is_manual=True, action=action)
    if number == 0:
        raise NotPossible("the message's content is gone, so it cannot be sent again", "missing_payload")


async def send_example(
    work: Work,
    application: Application,
    endpoint: str,
    type: str,
    *,
    payload: bytes | None = None,
    index: int = 0,
) -> MessageRow:
    """Send an endpoint one message to try it out, whatever it listens to.

    Args:
        type: an event type, or ``svix.ping``, which needs none.
        payload: what is sent; None: the example of this *index* in the event type's schema.

    Raises:
        NotFound: there is no such endpoint or event type.
        NotPossible: the endpoint is disabled, or the event type has no such example.
    """
    target = await get_live_endpoint(work, application, endpoint)
    body = payload if payload is not None else await _example(work, type, index)
    identifier = new_id()
    example = Example(application=application.shown_id, endpoint_id=target.id, type=type, body=body)
    await messages.insert_example(work.connection, identifier, example)
    await note(work.connection, work.actor, "endpoint.send_example", target.shown_id)
    return _row(NewMessage(type=type, body=body), identifier)


async def _example(work: Work, type: str, index: int) -> bytes:
    if type == _PING:
        return _PONG
    found = await event_types.find(work.connection, work.organization, type)
    if found is None:
        raise NotFound(f"there is no event type {type}")
    given = _newest(found.schemas or {}).get("examples")
    if not isinstance(given, list) or not 0 <= index < len(given) or not isinstance(given[index], Mapping):
        raise NotPossible(f"the schema of {type} has no such example; add one to its examples", "invalid_scheme")
    return msgspec.json.encode(given[index])


def _newest(schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the highest version number; other names come before numbers."""
    if not schemas:
        return {}
    newest = max(schemas, key=lambda version: (int(version) if version.isdecimal() else -1, version))
    return schemas[newest] if isinstance(schemas[newest], Mapping) else {}


async def is_listened_to(work: Work, application: Application, type: str, channels: Sequence[str]) -> bool:
    """Return whether a live endpoint listens to this type and these channels; filters on contents are not asked."""
    routes = await messages.list_listeners(work.connection, application.id)
    owed = Router(routes, 0).route(
        source=None, application=application.shown_id, type=type, headers={}, body=b"", channels=tuple(channels)
    )
    return bool(owed)


async def expunge(work: Work, application: Application, reference: str) -> None:
    """Forget a message's content for good. Raises NotFound."""
    found = await get(work, application, reference)
    await messages.expunge(work.connection, application.shown_id, [found.id])
    await note(work.connection, work.actor, "message.expunge", found.shown_id)


async def expunge_some(work: Work, application: Application, references: Sequence[str]) -> Mapping[str, bool]:
    """Forget the contents of several messages for good; return of each whether there is such a message."""
    found = await messages.find_some(work.connection, application.shown_id, references)
    await messages.expunge(work.connection, application.shown_id, list(found.values()))
    for identifier in found.values():
        await note(work.connection, work.actor, "message.expunge", ids.show(ids.MESSAGE, identifier))
    return {reference: reference in found for reference in references}


def object_of(payload: bytes) -> bytes:
    """Return a JSON value's bytes, exactly as they came, if they are an object. Raises InvalidValue."""
    body = payload.strip()
    if not body.startswith(b"{"):
        raise InvalidValue("write a JSON object", "payload")
    return body
