"""Test harness for handlers: stores events with their deliveries, and runs a worker inside the test process."""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from boathook.config import Settings, load
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.route_registry import read_routes, register
from boathook.delivery.dispatcher import Dispatcher
from boathook.delivery.handler_executor import make_worker
from boathook.delivery.handler_queues import HandlerAttempt
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent, Origin, ProofStrength
from boathook.domain.replies import STOP_STATUSES
from boathook.handlers.api import Boathook
from tests.support import eventually

QUICK_RETRY = "1, 2, 4, 8"
"""`worker.retry` of these settings: a delivery that always fails is dead within seconds."""


def settings_for(
    url: str, *, sources: Mapping[str, Any] | None = None, tables: Mapping[str, Any] | None = None,
    **worker: Any,
) -> Settings:  # fmt: skip
    """Return settings for the database *url* with a short poll interval and quick retries, and other *tables*."""
    own = {"poll_interval_s": 0.05, "retry": QUICK_RETRY, **worker}
    return load(None, {"database": {"url": url}, "worker": own, "sources": sources or {}, **(tables or {})})


async def accept_events(db: Database, *bodies: Any, source: str = "shop", type: str = "thing.done") -> list[UUID]:
    """Store one event for each body, routed as the gateway does, and return the event ids."""
    routes = await read_routes(db)
    router = Router(routes.routes, routes.version)
    events = []
    for body in bodies:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        identifier = ids.make(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(9)))
        events.append(
            NewEvent(
                id=identifier,
                source=source,
                application=None,
                type=type,
                dedup_key=str(identifier),
                key_hash=UUID(bytes=hashlib.sha256(identifier.bytes).digest()[:16]),
                replay_hash=None,
                grade=ProofStrength.BODY,
                origin=Origin.RECEIVED,
                headers='{"x-sent-by":"test"}',
                content_type="application/json",
                body=raw,
                body_sha256=hashlib.sha256(raw).digest(),
                deliveries=router.route(source=source, application=None, type=type, headers={}, body=raw),
                routes_version=router.version,
            )
        )
    await EventStore(db, dedup_days=30).append(events)
    return [event.id for event in events]


@contextlib.asynccontextmanager
async def running_worker(
    db: Database,
    hook: Boathook,
    *,
    worker_id: str = "w1",
    only_suspects: bool = False,
    predecessors: Sequence[str] = (),
    drain_s: float = 5.0,
    inline: Sequence[str] = (),
    sources: Mapping[str, Any] | None = None,
    tables: Mapping[str, Any] | None = None,
    **worker: Any,
) -> AsyncIterator[Dispatcher[HandlerAttempt]]:
    """Register the hook's routes and run a worker until the block ends; an error in the worker fails the test."""
    settings = settings_for(db.url, sources=sources, tables=tables, **worker)
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"drain_s": drain_s})})
    await register(db, "test", hook.routes("test", retries=settings.retry_defaults()))
    own = await Database.open(db.url, purpose="worker", size=2, is_queue=True)
    handlers = await Database.open(db.url, purpose="handlers", size=settings.database.worker_connections)
    stop = asyncio.Event()
    one = make_worker(
        settings, hook, own=own, handlers=handlers, worker_id=worker_id, only_suspects=only_suspects,
        inline=dict.fromkeys(inline, STOP_STATUSES),
    )  # fmt: skip
    task = asyncio.create_task(one.run(stop, lambda: None, predecessors=predecessors))
    try:
        yield one
    finally:
        stop.set()
        try:
            await asyncio.wait_for(task, 300)
        finally:
            await handlers.close()
            await own.close()


async def delivery_states(db: Database) -> dict[str, int]:
    """Count all deliveries by state."""
    rows = await db.fetch(
        "select state, count(*) as n from (select state from boathook.delivery"
        " union all select state from boathook.delivery_archive) as d group by state"
    )
    return {row["state"]: row["n"] for row in rows}


async def wait_for_states(db: Database, **expected: int) -> None:
    """Wait until the deliveries are in the *expected* states, given as a count for each; fail if others die."""

    async def is_so() -> bool:
        found = await delivery_states(db)
        if found.get("dead", 0) > expected.get("dead", 0):
            pytest.fail(str(found))
        assert found == expected, found
        return True

    await eventually(is_so)


async def attempts(db: Database) -> list[tuple[int, str, str | None]]:
    """Return every attempt's number, outcome and code, in order."""
    rows = await db.fetch("select number, outcome, code from boathook.attempt order by started_at, number")
    return [tuple(row) for row in rows]
