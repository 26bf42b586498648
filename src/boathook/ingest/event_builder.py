"""Builds events from verified requests: ids, deduplication hashes and deliveries.

A batch is one event, but each of its items has its own hash and deliveries. Hashes of items, events and replay material
use separate scopes, so they cannot collide.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

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
    """A source of random bits for ids that reads the system's entropy in chunks of about four hundred ids."""

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
    """Return the first 128 bits of SHA-256 over the scope, NUL and the key: a row's identity in dedup memory."""
    return UUID(int=int.from_bytes(sha256(b"%s\x00%s" % (scope.encode(), key)).digest()[:16], "big"))


def dedup_hashes(source: str, key: str) -> tuple[UUID, UUID, UUID]:
    """Return the hashes a key of *source* may have in dedup memory: as an event, as a batch, as an item."""
    scopes = (source, f"{source}\x00batch", f"{source}\x00item")
    whole, batch, item = (scoped_hash(scope, _key_bytes(key)) for scope in scopes)
    return whole, batch, item


class EventBuilder:
    """Builds events from verified requests, routed by the routes last read.

    Args:
        router: the routes to start with.
        read_router: reads and compiles the current routes.
    """

    def __init__(self, router: Router, read_router: Callable[[], Awaitable[Router]]) -> None:
        self.router = router
        self._read_router = read_router
        self._reads = 0
        self._latest_read = 0
        self._entropy = RandomBits()

    def new_id(self, now: float) -> UUID:
        """Return an id for the time *now*, in seconds since 1970."""
        return ids.make(int(now * 1000), self._entropy.draw())

    def event(
        self,
        source: str,
        verified: Verified,
        body: bytes,
        content_type: str,
        now: float,
        event_id: UUID | None = None,
    ) -> NewEvent:
        """Return the event of a verified request of *source*, with its deliveries.

        The content of a GET request is its query string, stored as a form. A thread must pass the id, made by `new_id`
        in the event loop.

        Raises:
            TooManyDeliveries: the request is a batch with more items or deliveries than an event can have.
        """
        about = verified.dedup_object
        # Bodies about one object may come again, so they are not recognized by themselves.
        material = verified.replay_material if about is None else None
        if verified.query is not None:
            body, content_type = verified.query, FORM_CONTENT_TYPE
        digest = sha256(body).digest()
        router = self.router
        return NewEvent(
            id=self.new_id(now) if event_id is None else event_id,
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
            object_hash=None if about is None else scoped_hash(f"{source}\x00object", _key_bytes(about)),
        )

    async def refresh(self) -> None:
        """Read the routes again, unless a read that began later ends first. Raises DatabaseUnavailable."""
        self._reads += 1
        read = self._reads
        router = await self._read_router()
        if read > self._latest_read:
            self._latest_read = read
            self.router = router

    async def reroute(self, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Return *events* with their deliveries under the current routes.

        Reads the routes again if all events were routed by those last read, and if none were read yet.

        Raises:
            TooManyDeliveries: an event would have more deliveries than allowed.
            DatabaseUnavailable: the routes cannot be read.
        """
        if self.router.version == UNROUTED or all(event.routes_version == self.router.version for event in events):
            await self.refresh()
        router = self.router
        return [
            replace(event, deliveries=_reroute_event(router, event), routes_version=router.version) for event in events
        ]


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
    deliveries = router.route_items(source=source, headers=headers, items=items)
    if len(deliveries) > MAX_DELIVERIES:
        raise TooManyDeliveries(f"the batch has more than the {MAX_DELIVERIES} deliveries an event can have")
    return deliveries


def _key_hash(source: str, verified: Verified) -> UUID:
    """Return the hash that identifies an event; batches and single events use separate scopes."""
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
