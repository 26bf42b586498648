"""Makes events of verified requests: their ids, the hashes that tell duplicates, the deliveries they are owed.

A request that brings items is one event, but each item has a hash and deliveries of its own. The hashes of items, of
whole events and of replayed material have scopes of their own, so that none can pass for another.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.domain import ids, json_document
from boathook.domain.errors import TooManyDeliveries
from boathook.domain.filters import Router
from boathook.domain.model import MAX_DELIVERIES, NewBatchItem, NewDelivery, NewEvent, Origin
from boathook.domain.verification import BatchItem, Verified
from boathook.ingest.spool_records import UNROUTED

FORM_CONTENT_TYPE: Final = "application/x-www-form-urlencoded"
_POOL: Final = 4_080
_ENTROPY_BYTES: Final = 10

_write_json = msgspec.json.encode
_read_json = msgspec.json.decode


class RandomBits:
    """Random bits for ids, fetched from the system four hundred at a time."""

    def __init__(self) -> None:
        self._pool = b""
        self._next = 0

    def draw(self) -> int:
        """Return 80 random bits."""
        if self._next >= len(self._pool):
            self._pool, self._next = os.urandom(_POOL), 0
        start = self._next
        self._next = start + _ENTROPY_BYTES
        return int.from_bytes(self._pool[start : self._next], "big")


def scoped_hash(scope: str, key: bytes) -> UUID:
    """Return the first 128 bits of SHA-256 over a scope, NUL and a key: a row's identity in dedup memory."""
    return UUID(int=int.from_bytes(sha256(b"%s\x00%s" % (scope.encode(), key)).digest()[:16], "big"))


def dedup_hashes(source: str, key: str) -> tuple[UUID, UUID, UUID]:
    """Return under what dedup memory may have a key of *source*: as an event's, as a batch's, as an item's."""
    scopes = (source, f"{source}\x00batch", f"{source}\x00item")
    whole, batch, item = (scoped_hash(scope, _key_bytes(key)) for scope in scopes)
    return whole, batch, item


class EventBuilder:
    """Turns verified requests into events by the routes last read.

    Args:
        read_router: reads the routes and compiles them.
    """

    def __init__(self, router: Router, read_router: Callable[[], Awaitable[Router]]) -> None:
        self.router = router
        self._read_router = read_router
        self._entropy = RandomBits()

    def new_id(self, now: float) -> UUID:
        """Return an id made at *now*, in seconds since 1970."""
        return ids.make(int(now * 1000), self._entropy.draw())

    def event(self, source: str, verified: Verified, body: bytes, content_type: str, now: float) -> NewEvent:
        """Return the event that a verified request of *source* brings, with its deliveries.

        What a request by GET brings is stored as the form that it is.

        Raises:
            TooManyDeliveries: it is a batch of more than an event can hold.
        """
        material = verified.replay_material
        if verified.query is not None:
            body, content_type = verified.query, FORM_CONTENT_TYPE
        digest = sha256(body).digest()
        router = self.router
        return NewEvent(
            id=self.new_id(now),
            source=source,
            application=None,
            type=verified.type,
            dedup_key=verified.dedup_key,
            key_hash=_key_hash(source, verified),
            replay_hash=None if material is None else scoped_hash(f"{source}\x00replay", material),
            grade=verified.grade,
            origin=Origin.RECEIVED,
            headers=_write_json(verified.kept_headers).decode(),
            content_type=content_type,
            body=body,
            body_sha256=digest,
            deliveries=_route_request(router, source, verified, body),
            routes_version=router.version,
            volatile=verified.volatile,
            items=tuple([_new_item(source, item) for item in verified.items]) if verified.items else (),
        )

    async def reroute(self, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Return *events* with the deliveries that the routes as they are now owe them.

        The routes are read anew where all of the events were routed by those last read, and where none were read yet.

        Raises:
            TooManyDeliveries: they owe one of the events more than it can hold.
            DatabaseUnavailable: they cannot be read.
        """
        if self.router.version == UNROUTED or all(event.routes_version == self.router.version for event in events):
            self.router = await self._read_router()
        router = self.router
        return [replace(one, deliveries=_reroute_event(router, one), routes_version=router.version) for one in events]


def _reroute_event(router: Router, event: NewEvent) -> tuple[NewDelivery, ...]:
    headers: dict[str, str] = _read_json(event.headers)
    if not event.items:
        return router.route(
            source=event.source, application=event.application, type=event.type, headers=headers, body=event.body
        )
    document = json_document.parse(event.body)
    items = ((item.type, json_document.get_path(document, item.path.split("."))) for item in event.items)
    return _route_items(router, str(event.source), headers, items)


def _route_request(router: Router, source: str, verified: Verified, body: bytes) -> tuple[NewDelivery, ...]:
    headers = verified.kept_headers
    if not verified.items:
        return router.route(source=source, application=None, type=verified.type, headers=headers, body=body)
    if len(verified.items) > MAX_DELIVERIES:
        raise TooManyDeliveries(f"the batch has {len(verified.items)} items; an event can have {MAX_DELIVERIES}")
    return _route_items(router, source, headers, ((item.type, item.document) for item in verified.items))


def _route_items(
    router: Router, source: str, headers: Mapping[str, str], items: Iterable[tuple[str, Any]]
) -> tuple[NewDelivery, ...]:
    owed = router.route_items(source=source, headers=headers, items=items)
    if len(owed) > MAX_DELIVERIES:
        raise TooManyDeliveries(f"the batch has more than the {MAX_DELIVERIES} deliveries an event can have")
    return owed


def _key_hash(source: str, verified: Verified) -> UUID:
    """Return what tells one event from another, and a batch from a request that brings one event."""
    scope = f"{source}\x00batch" if verified.items else source
    return scoped_hash(scope, _key_bytes(verified.dedup_key))


def _new_item(source: str, item: BatchItem) -> NewBatchItem:
    return NewBatchItem(
        path=item.path,
        type=item.type,
        dedup_key=item.dedup_key,
        key_hash=scoped_hash(f"{source}\x00item", _key_bytes(item.dedup_key)),
        digest=item.digest,
    )


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
