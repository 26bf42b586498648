"""Publishing: an event of our own, stored in the publisher's transaction together with what it is owed."""

import hashlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.domain import ids
from boathook.domain.errors import RegistryChanged
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, Receipt
from boathook.handlers.sessions import call, call_sync
from boathook.journal.calls import ACTIVE_ROUTES, PUBLISH, Arguments
from boathook.journal.registry import decode_routes
from boathook.telemetry import emit

_MEMORY: Final = "30 days"
_MOST_ROUNDS: Final = 5


class Draft(msgspec.Struct, frozen=True):
    """An event about to be published."""

    id: UUID
    application: str
    type: str
    dedup_key: str
    content_type: str
    headers: Mapping[str, str]
    body: bytes

    def arguments(self, router: Router) -> Arguments:
        """Return the arguments of `PUBLISH`, with the recipients that *router* finds."""
        deliveries = router.route(
            source=None, application=self.application, type=self.type, headers=self.headers, body=self.body
        )
        return (
            str(router.version),
            str(self.id),
            self.application,
            self.type,
            self.dedup_key,
            str(message_key(self.application, self.dedup_key)),
            msgspec.json.encode(self.headers).decode(),
            self.content_type,
            "\\x" + self.body.hex(),
            msgspec.json.encode(
                [{"recipient": one.recipient, "order_key": one.order_key} for one in deliveries]
            ).decode(),
            _MEMORY,
        )


def message_key(application: str, dedup_key: str) -> UUID:
    """Return the identity in dedup memory of a message with this key for this application."""
    digest = hashlib.sha256(f"application\x00{application}\x00{dedup_key}".encode()).digest()
    return UUID(bytes=digest[:16])


class Outbox:
    """Routes published events by the routes it read last, and reads them again when they are outdated.

    The routes are read through the publisher's own session, so publishing needs no connection of its own and no
    set-up, in a worker or anywhere else.
    """

    def __init__(self) -> None:
        self._router = Router((), -1)
        self.published = 0
        """Events stored so far; their transactions may still roll back."""

    async def publish(
        self, session: Any, application: str, type: str, payload: Any, id: str | None, headers: Mapping[str, str] | None
    ) -> Receipt:
        """Store one event through an async session."""
        draft = _draft(application, type, payload, id, headers)
        for _ in range(_MOST_ROUNDS):
            answer = await call(session, PUBLISH, draft.arguments(self._router))
            if answer != "outdated":
                return self._receipt(draft, answer)
            self._learn(await call(session, ACTIVE_ROUTES, ()))
        raise RegistryChanged("the routes kept changing while this event was published; try again")

    def publish_sync(
        self, session: Any, application: str, type: str, payload: Any, id: str | None, headers: Mapping[str, str] | None
    ) -> Receipt:
        """Store one event through a sync session."""
        draft = _draft(application, type, payload, id, headers)
        for _ in range(_MOST_ROUNDS):
            answer = call_sync(session, PUBLISH, draft.arguments(self._router))
            if answer != "outdated":
                return self._receipt(draft, answer)
            self._learn(call_sync(session, ACTIVE_ROUTES, ()))
        raise RegistryChanged("the routes kept changing while this event was published; try again")

    def _receipt(self, draft: Draft, answer: str) -> Receipt:
        verdict, _, first = answer.partition(" ")
        if verdict == "duplicate":
            return Duplicate(UUID(first))
        self.published += 1
        emit.count("boathook_published_total")
        return Accepted(draft.id)

    def _learn(self, document: Any) -> None:
        # Some drivers parse a JSON value by themselves.
        text = document if isinstance(document, str | bytes) else msgspec.json.encode(document)
        routes = decode_routes(text)
        self._router = Router(routes.routes, routes.version)


def _draft(application: str, type: str, payload: Any, id: str | None, headers: Mapping[str, str] | None) -> Draft:
    identifier = ids.make(time.time_ns() // 1_000_000, secrets.randbits(74))
    is_raw = isinstance(payload, bytes | bytearray | memoryview)
    return Draft(
        id=identifier,
        application=application,
        type=type,
        dedup_key=ids.show(ids.EVENT, identifier) if id is None else id,
        content_type="application/octet-stream" if is_raw else "application/json",
        headers={name.lower(): value for name, value in (headers or {}).items()},
        body=bytes(payload) if is_raw else msgspec.json.encode(payload),
    )
