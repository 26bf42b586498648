"""The real and the fake database on which operation sequences are played."""

import json
from typing import Any

from boathook.db.database import Database
from tests.simulation.operation_sequences import PAST, SOON
from tests.simulation.server import Server
from tests.simulation.tables import Transaction

_DUE = """
with ready as (
    select event_id, ordinal from boathook.delivery
    where state = 'pending' and due_at < now() + interval '1 hour' for update skip locked
)
update boathook.delivery d set due_at = timestamptz '2020-01-01 00:00Z' + make_interval(secs => d.seq)
from ready r where d.event_id = r.event_id and d.ordinal = r.ordinal
"""
_LAPSE = """
with held as (
    select event_id, ordinal from boathook.delivery where state = 'leased' order by seq for update skip locked
)
update boathook.delivery d set lease_until = timestamptz '2020-01-01 00:00Z' + make_interval(secs => d.seq)
from held h where d.event_id = h.event_id and d.ordinal = h.ordinal
"""
_DUMP = """
select json_build_object(
    'delivery', (select coalesce(json_agg(json_build_array(
        event_id, ordinal, recipient, state, rank() over (order by seq), order_key, is_blocked, is_replay, attempts, attempts_before,
        crashes, replays, fence, leased_by, code, error, free_retries, woken_by, due_at > now() + interval '1 hour',
        dead_at is not null, lease_until is not null, attempts_before > 0 and enqueued_at > now() + interval '1 hour') order by event_id, ordinal), '[]') from (
            select d.*, row_number() over (order by seq) from boathook.delivery d) d),
    'attempt', (select coalesce(json_agg(json_build_array(event_id, ordinal, number, outcome, code) order by event_id, ordinal, number), '[]') from boathook.attempt),
    'delivery_archive', (select coalesce(json_agg(json_build_array(
        event_id, ordinal, recipient, state, order_key, attempts, replays, note, is_replay) order by event_id, ordinal), '[]') from boathook.delivery_archive),
    'event', (select coalesce(json_agg(json_build_array(id, dedup_key, fanout, encode(body, 'hex'), same_body_as) order by id), '[]') from boathook.event),
    'dedup', (select coalesce(json_agg(json_build_array(key, replay_key, event_id) order by key), '[]') from boathook.dedup),
    'conflict', (select coalesce(json_agg(json_build_array(event_id, differs, dedup_key, seen) order by event_id, differs, dedup_key, body_sha256), '[]') from boathook.conflict),
    'side_effect', (select coalesce(json_agg(json_build_array(event_id, recipient, name, result) order by event_id, recipient, name), '[]') from boathook.side_effect),
    'audit', (select coalesce(json_agg(json_build_array(actor, action, subject, note) order by action, subject, id), '[]') from boathook.audit)
)
"""


class RealDatabase:
    """A real PostgreSQL database."""

    wait_s = 0.2

    def __init__(self, database: Database) -> None:
        self.database = database

    async def arrange(self) -> None:
        await self.database.execute(_DUE)

    async def lapse(self) -> None:
        await self.database.execute(_LAPSE)

    async def route(self) -> None:
        await self.database.execute("update boathook.route_version set version = version + 1")

    async def version(self) -> int:
        version: int = await self.database.fetchval("select version from boathook.route_version")
        return version

    async def dump(self) -> dict[str, Any]:
        # A window function cannot stand inside an aggregate, so places in line are counted beforehand.
        sql = _DUMP.replace("rank() over (order by seq)", "row_number")
        found: dict[str, Any] = json.loads(await self.database.fetchval(sql))
        return found


class FakeDatabase:
    """The fake database."""

    wait_s = 1.0

    def __init__(self, server: Server, database: Database) -> None:
        self._server = server
        self.database = database

    def _change(self, state: str, **columns: Any) -> None:
        transaction = Transaction(self._server.tables)
        from datetime import timedelta

        for row in list(self._server.tables.committed["delivery"].values()):
            is_ready = row.state == state and (state == "leased" or row.due_at < transaction.now + SOON)
            if is_ready and transaction.lock_or_skip("delivery", row.key) is not None:
                transaction.move(row, **{name: PAST + timedelta(seconds=row.seq) for name in columns})
        transaction.commit()

    async def arrange(self) -> None:
        self._change("pending", due_at=True)

    async def lapse(self) -> None:
        self._change("leased", lease_until=True)

    async def route(self) -> None:
        self._server.tables.routes_version += 1

    async def version(self) -> int:
        return self._server.tables.routes_version

    async def dump(self) -> dict[str, Any]:
        tables, soon = self._server.tables.committed, self._server.clock() + SOON
        places = {seq: place for place, seq in enumerate(sorted(row.seq for row in tables["delivery"].values()), 1)}
        return {
            "delivery": [
                [
                    str(r.event_id), r.ordinal, r.recipient, r.state, places[r.seq], r.order_key, r.is_blocked, r.is_replay,
                    r.attempts, r.attempts_before, r.crashes, r.replays, r.fence, r.leased_by, r.code, r.error, r.free_retries,
                    r.woken_by, r.due_at > soon, r.dead_at is not None, r.lease_until is not None,
                    r.attempts_before > 0 and r.enqueued_at > soon,
                ]
                for _, r in sorted(tables["delivery"].items())
            ],
            "attempt": [[str(key[0]), *key[1:], one.outcome, one.code] for key, one in sorted(tables["attempt"].items())],
            "delivery_archive": [
                [str(key[0]), key[1], o.recipient, o.state, o.order_key, o.attempts, o.replays, o.note, o.is_replay]
                for key, o in sorted(tables["delivery_archive"].items())
            ],
            "event": [
                [str(key), one.event.dedup_key, one.fanout, one.event.body.hex(), one.same_body_as and str(one.same_body_as)]
                for key, one in sorted(tables["event"].items())
            ],
            "dedup": [
                [str(key), None if one.replay_key is None else str(one.replay_key), str(one.event_id)]
                for key, one in sorted(tables["dedup"].items())
            ],
            "conflict": [[str(key[0]), *key[1:3], seen] for key, seen in sorted(tables["conflict"].items())],
            "side_effect": [[str(key[0]), *key[1:], json.loads(result)] for key, result in sorted(tables["side_effect"].items())],
            "audit": [list(one) for one in sorted(self._server.tables.audit, key=lambda one: one[1:3])],
        }  # fmt: skip
