"""What PostgreSQL makes of events that have waited in a spool: for weeks, past their memory, or offered once more."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from boathook.domain import ids
from boathook.domain.model import Accepted, NewDelivery, NewEvent
from boathook.inbound.draining import Brought, Refused, RoutedStore
from boathook.inbound.records import encode
from boathook.journal.database import Database
from boathook.journal.events import EventStore
from boathook.spool.segment import Record
from tests.postgres.test_events import count, event
from tests.support import LOCK_WAITED_FOR, eventually

DAY_S = 86_400


async def routed(events: list[NewEvent]) -> list[NewEvent]:
    return [replace(one, deliveries=(NewDelivery("handler:x"),), routes_version=1) for one in events]


async def bring(store: EventStore, *events: NewEvent) -> list[Brought | Refused]:
    records = [Record(number, encode(one)) for number, one in enumerate(events, 1)]
    return [result async for result in RoutedStore(store, routed).bring(records)]


async def test_an_event_that_has_waited_for_longer_than_any_partition_is_kept_is_owed_like_any_other(db: Database):
    store = EventStore(db)
    old = replace(event("k"), id=ids.make(int((time.time() - 400 * DAY_S) * 1000), 7))
    (result,) = await bring(store, old)
    assert isinstance(result, Brought)
    assert (await store.get(old.id)).dedup_key == "k"
    assert await count(db, "delivery") == 1


async def test_one_that_is_stored_and_forgotten_meanwhile_is_not_taken_for_impossible(db: Database):
    store = EventStore(db)
    first, other = event("k"), event("l")
    await store.append([first])
    results: list[Any] = []
    for forget in ("update boathook.dedup set expires_at = now() - interval '1 day'", "delete from boathook.dedup"):
        await db.execute(forget)
        results = await bring(store, first, other)
        assert all(isinstance(result, Brought) for result in results)
    assert results[0] == Brought(results[0].event, Accepted(first.id, is_new=False))
    assert (await count(db, "event"), await count(db, "delivery")) == (2, 2)


async def test_a_partition_that_is_made_at_that_moment_is_no_reason_to_put_an_event_aside(db: Database):
    store = EventStore(db)
    old = replace(event("k"), id=ids.make(int((time.time() - 400 * DAY_S) * 1000), 7))
    monday = ids.made_at(old.id).replace(hour=0, minute=0, second=0, microsecond=0)
    first, last = (ids.first_of(monday + timedelta(days=days)) for days in (-1, 6))
    async with db.transaction() as keeper:
        await keeper.execute("lock table boathook.event_default in access exclusive mode")
        await keeper.execute("create table boathook.event_now (like boathook.event including all)")
        bringing = asyncio.create_task(bring(store, old))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
        attach = (
            f"alter table boathook.event attach partition boathook.event_now for values from ('{first}') to ('{last}')"
        )
        await keeper.execute(attach)
    (result,) = await bringing
    assert isinstance(result, Brought)
    assert (await store.get(old.id)).dedup_key == "k"
