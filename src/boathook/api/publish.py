"""Publishes messages on a fast path that bypasses FastAPI for plain requests.

A request is plain if its body has only a type, a payload and the most common optional fields, and its token belongs to
the organization. Such a message is stored by group commit, and the response is identical to that of
`messages.create_message`, byte for byte. All other requests are passed on unchanged, and so are all errors: this module
rejects nothing, unless PostgreSQL is unavailable: then a plain message is published by `BufferedPublisher`.
"""

import re
from typing import Annotated, Any, ClassVar, Final, cast
from uuid import UUID

import msgspec

from boathook.api.errors import to_response
from boathook.api.idempotency import canonical_of_values, make_key
from boathook.domain import ids
from boathook.domain.endpoints import parse_reference
from boathook.domain.errors import DatabaseUnavailable, InvalidMessage, TooManyDeliveries
from boathook.domain.messages import MAX_RETENTION_DAYS, MAX_RETENTION_H, Message, content_until, read_object
from boathook.domain.model import IdempotencyKey
from boathook.domain.redaction import RedactedStruct
from boathook.http.asgi import IS_AUTHENTICATED, Asgi, Receive, Send
from boathook.http.asgi import Message as AsgiMessage
from boathook.observability.log import get_logger
from boathook.service.access.authorization import Principal
from boathook.service.schemas.fields import format_timestamp
from boathook.service.sending.buffered_publisher import BufferedPublisher
from boathook.service.sending.group_publisher import GroupPublisher
from boathook.service.sending.messages import JSON_TYPE
from boathook.service.unit_of_work import AppContext, new_id

_PATH: Final = re.compile(r"/api/v1/app/([a-zA-Z0-9\-_.]{1,256})/msg")
_MAX_BODY: Final = 65_536
"""Maximum bytes of a body; parsing a larger one would block other requests for too long."""
_UNUSUAL: Final = frozenset({b"origin", b"transfer-encoding", b"expect"})
_Days = Annotated[int, msgspec.Meta(ge=1, le=MAX_RETENTION_DAYS)]
_Hours = Annotated[int, msgspec.Meta(ge=1, le=MAX_RETENTION_H)]
_Channels = Annotated[list[str], msgspec.Meta(min_length=1)]


class _Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The fields of a plain request; `MessageIn` has all fields."""

    event_type: str
    payload: msgspec.Raw
    event_id: str | None = None
    channels: _Channels | None = None
    tags: list[str] | None = None
    payload_retention_period: _Days | None = None
    payload_retention_hours: _Hours | None = None


_BODY: Final = msgspec.json.Decoder(_Body)


class _Answer(msgspec.Struct, rename="camel"):
    """The fields of `messages.MessageOut`, in their order."""

    id: str
    event_id: str | None
    event_type: str
    payload: msgspec.Raw
    channels: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    deliver_at: None
    timestamp: str


_FIELDS: Final = tuple(name for name in _Body.__struct_fields__ if name != "payload")
_ENCODER: Final = msgspec.json.Encoder()
_LOG = get_logger("api")


class PlainRequest(RedactedStruct, frozen=True):
    """The parts of a request's head that are needed."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    reference: str
    token: str
    path: str
    idempotency_key: str


class _Published(msgspec.Struct, frozen=True):
    """The response to a plain request."""

    body: bytes
    is_repeated: bool = False
    """Whether an earlier request with its idempotency key had published the message."""


class PublishRoute:
    """Publishes plain messages in groups, and passes every other request on to the inner application."""

    def __init__(self, app_context: AppContext, others: Asgi, buffered: BufferedPublisher | None = None) -> None:
        # A publisher should not wait for a hanging PostgreSQL longer than a sender to a source does.
        within_s = None if buffered is None else app_context.settings.spool.fallback_after_s
        self._publisher = GroupPublisher(app_context, within_s)
        self._others = others
        self._buffered = buffered
        # The schema of a payload must be validated in the message's own transaction.
        self._is_open = not app_context.settings.outbound.validate_payloads
        self._elsewhere = app_context.elsewhere
        self._max_body = min(_MAX_BODY, app_context.settings.outbound.max_message)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = self._read_head(scope) if self._is_open and scope["type"] == "http" else None
        if request is None:
            await self._others(scope, receive, send)
            return
        body, receive = await _read_body(receive)
        try:
            answer = None if body is None else await self._publish(scope, request, body)
        except Exception as error:  # noqa: BLE001 - every response is JSON
            await cast("Asgi", to_response(error, self._elsewhere))(scope, receive, send)
            return
        if answer is None:
            await self._others(scope, receive, send)
            return
        head = [
            (b"content-length", b"%d" % len(answer.body)),
            (b"content-type", b"application/json"),
            (b"vary", b"Origin"),
        ]
        if answer.is_repeated:
            head.insert(0, (b"idempotent-replayed", b"true"))
        await send({"type": "http.response.start", "status": 202, "headers": head})
        await send({"type": "http.response.body", "body": answer.body})

    def _read_head(self, scope: dict[str, Any]) -> PlainRequest | None:
        path = scope["path"]
        path_match = _PATH.fullmatch(path) if scope["method"] == "POST" and not scope["query_string"] else None
        if path_match is None or parse_reference(ids.APPLICATION, path_match[1]) is None:
            return None
        values: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            values.setdefault(name, value)
        if not _UNUSUAL.isdisjoint(values):
            return None
        length = values.get(b"content-length", b"")
        if not length.isdigit() or int(length) > self._max_body:
            return None
        scheme, _, token = values.get(b"authorization", b"").decode("latin-1").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        return PlainRequest(path_match[1], token, path, values.get(b"idempotency-key", b"").decode("latin-1"))

    async def _publish(self, scope: dict[str, Any], request: PlainRequest, body: bytes) -> _Published | None:
        identifier = new_id()
        if self._buffered is None:
            return await self._publish_directly(scope, request, body, identifier)
        if not request.idempotency_key:
            return await self._publish_anywhere(self._buffered, scope, request, body, identifier)
        # Of two at once, one may be stored without an answer; the other must not get its own id from the buffer first.
        async with self._buffered.single((request.token, request.path, request.idempotency_key)):
            return await self._publish_anywhere(self._buffered, scope, request, body, identifier)

    async def _publish_anywhere(
        self,
        buffered: BufferedPublisher,
        scope: dict[str, Any],
        request: PlainRequest,
        body: bytes,
        identifier: UUID,
    ) -> _Published | None:
        if not buffered.is_needed:
            try:
                return await self._publish_directly(scope, request, body, identifier)
            except DatabaseUnavailable as error:
                # It may have been stored. The message keeps its id, so it is not stored twice.
                _LOG.debug("published_without_database", error=str(error))
        return await self._publish_buffered(buffered, scope, request, body, identifier)

    async def _publish_directly(
        self, scope: dict[str, Any], request: PlainRequest, body: bytes, identifier: UUID
    ) -> _Published | None:
        token = await self._publisher.find_token(request.token)
        if token is None:
            return None
        scope[IS_AUTHENTICATED] = True
        try:
            message = read_message(body, request, token.principal, identifier)
            prepared = await self._publisher.prepare(token, message)
        except (ValueError, RecursionError, InvalidMessage, TooManyDeliveries):
            return None
        if prepared is None or not await self._publisher.commit(prepared):
            return None
        if self._buffered is not None and message.idempotency is not None:
            self._buffered.remember(message.idempotency, identifier)
        return _Published(_answer(identifier, message))

    @staticmethod
    async def _publish_buffered(
        buffered: BufferedPublisher, scope: dict[str, Any], request: PlainRequest, body: bytes, identifier: UUID
    ) -> _Published | None:
        principal = await buffered.find_principal(request.token)
        scope[IS_AUTHENTICATED] = True
        try:
            message = read_message(body, request, principal, identifier)
            published, is_repeated = await buffered.publish(message)
        except (ValueError, RecursionError, InvalidMessage):
            return None
        return _Published(_answer(published, message), is_repeated)


async def _read_body(receive: Receive) -> tuple[bytes | None, Receive]:
    """Read a body; return it, or None if the client disconnected, and a function that replays the messages."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    is_whole = messages[-1]["type"] == "http.request"
    body = b"".join(message["body"] for message in messages) if is_whole else None
    buffered = iter(messages)

    async def again() -> AsgiMessage:
        return next(buffered, None) or await receive()

    return body, again


def read_message(body: bytes, request: PlainRequest, principal: Principal, identifier: UUID) -> Message:
    """Return the message of a plain body. Raises ValueError or InvalidMessage if it is not plain or breaks a rule."""
    fields = _BODY.decode(body)
    payload = bytes(fields.payload)
    read_object(payload)
    return Message(
        organization=principal.organization,
        application=request.reference,
        type=fields.event_type,
        payload=payload,
        content_type=JSON_TYPE,
        id=fields.event_id,
        channels=fields.channels or (),
        tags=fields.tags or (),
        content_until=content_until(fields.payload_retention_period, fields.payload_retention_hours),
        idempotency=_idempotency(fields, request, principal) if request.idempotency_key else None,
        event_id=identifier,
    )


def _idempotency(fields: _Body, request: PlainRequest, principal: Principal) -> IdempotencyKey:
    """Return the same key as `idempotency.read_key`: a repeated request may take the other path."""
    values = {name: value for name in _FIELDS if (value := getattr(fields, name)) is not None}
    canonical = canonical_of_values(values, bytes(fields.payload))
    return make_key(principal, request.idempotency_key, f"POST {request.path}", canonical)


def _answer(identifier: UUID, message: Message) -> bytes:
    return _ENCODER.encode(
        _Answer(
            ids.show(ids.MESSAGE, identifier),
            message.id,
            message.type,
            msgspec.Raw(message.payload),
            tuple(dict.fromkeys(message.channels)) or None,
            tuple(dict.fromkeys(message.tags)) or None,
            None,
            format_timestamp(ids.created_at(identifier)),
        )
    )
