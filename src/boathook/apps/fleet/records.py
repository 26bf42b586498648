"""Stores changes, and applies them to cars, clients, bookings, branches, employees and messages.

A change is recorded first, once for each event: a row in ``fleet.change``, and a mark of its object in ``fleet.dirty``.
Only the first mark is announced. Applying removes the mark, replays the object's changes in the order of their
timestamps, starting from the oldest one not yet applied, and writes the object once: a burst of a thousand changes is
one upsert. Both lock the mark's row, so that a change recorded concurrently is either applied or marks the object
again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from boathook import Transaction
from boathook.apps.fleet.parse import Change, Unknown
from boathook.apps.fleet.tables import TABLES, Table
from boathook.apps.fleet.words import Action, Entity

REMIND_S: Final = 60.0
"""Seconds after which the next change announces an existing mark again, because its announcement may be dead."""
_SAMPLE: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The event that brought a change."""

    event_id: UUID
    source: str
    type: str
    accepted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """The report about one upsert."""

    version: int
    entity: Entity
    id: str
    action: str
    at: datetime
    branch: str | None
    actor: str | None
    description: str
    changes: int
    """The number of changes in the upsert."""

    def to_json(self) -> dict[str, Any]:
        """Return it in the format for browsers."""
        return feed_json(
            {
                "version": self.version,
                "entity": self.entity,
                "entity_id": self.id,
                "action": self.action,
                "at": self.at,
                "branch": self.branch,
                "actor": self.actor,
                "description": self.description,
            }
        )


def feed_json(row: Any) -> dict[str, Any]:
    """Return a row of ``fleet.feed`` in the format for browsers."""
    return {
        "version": row["version"],
        "entity": row["entity"],
        "id": row["entity_id"],
        "action": row["action"],
        "at": row["at"].isoformat(),
        "branch": row["branch"],
        "actor": row["actor"],
        "description": row["description"],
    }


NOTE: Final = """
insert into fleet.change
    (event_id, source, entity, entity_id, action, stamp, accepted_at, branch, actor, description, data)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
on conflict (event_id) do nothing
"""

# An update instead of doing nothing: it waits for a concurrent apply, and makes later ones wait.
MARK: Final = """
insert into fleet.dirty as mark (entity, entity_id, oldest, changes, announced_at)
values ($1, $2, $3, 1, now())
on conflict (entity, entity_id) do update set
    oldest = least(mark.oldest, excluded.oldest),
    changes = mark.changes + 1,
    announced_at = case
        when mark.announced_at < now() - make_interval(secs => $4) then now() else mark.announced_at
    end
returning announced_at = now()
"""

TAKE: Final = "delete from fleet.dirty where entity = $1 and entity_id = $2 returning oldest, changes"

ORDER: Final = "stamp, action = 'delete', accepted_at, event_id"
"""The order in which changes happened: by the sender's clock, then by acceptance.

At equal timestamps a deletion is the last: it may have the timestamp of the update before it, which may arrive after
it.
"""

# Of a repeated key, jsonb keeps the last value: the fields after all changes in order.
REPLAY: Final = """
with part as materialized (
    select *, row_number() over (order by {order}) as place from fleet.change
    where entity = $1 and entity_id = $2 and stamp >= $3
)
select newest.action, newest.stamp, newest.branch, newest.actor, newest.description,
    coalesce((select data from fleet.{table} where id = $2), '{{}}') || coalesce(
        (select jsonb_object_agg(field.key, field.value order by part.place) from part, jsonb_each(part.data) as field),
        '{{}}'
    ) as data
from part as newest order by place desc limit 1
"""

GUARD: Final = "where kept.stamp is null or kept.stamp <= excluded.stamp"
"""Never overwrites newer values with older ones, even if the log has been cleaned up."""


async def note_change(tx: Transaction, arrival: Arrival, change: Change, stamp: datetime) -> bool:
    """Append a change and mark its object; return whether the mark must be announced."""
    await tx.execute(
        NOTE, arrival.event_id, arrival.source, change.entity, change.id, change.action, stamp, arrival.accepted_at,
        change.branch, change.actor, change.description, json.dumps(change.data),
    )  # fmt: skip
    await tx.execute("delete from fleet.unknown where event_id = $1", arrival.event_id)
    return bool(await tx.fetchval(MARK, change.entity, change.id, stamp, REMIND_S))


async def keep_unknown(tx: Transaction, arrival: Arrival, unknown: Unknown, body: bytes) -> None:
    """Store a request that was not understood, so that operators can see it."""
    sample = body[:_SAMPLE].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    await tx.execute(
        "insert into fleet.unknown (event_id, source, type, reason, sample, accepted_at)"
        " values ($1, $2, $3, $4, $5, $6) on conflict (event_id) do update set reason = excluded.reason",
        arrival.event_id, arrival.source, arrival.type, unknown.reason, sample, arrival.accepted_at,
    )  # fmt: skip


async def apply_changes(tx: Transaction, entity: Entity, identifier: str) -> FeedEntry | None:
    """Write an object's state after its changes; return None if none waits, or all are older than the stored state."""
    mark = await tx.fetchrow(TAKE, entity, identifier)
    if mark is None:
        return None
    table = TABLES[entity]
    newest = await tx.fetchrow(REPLAY.format(table=table.name, order=ORDER), entity, identifier, mark["oldest"])
    if newest is None:
        return None
    data = json.loads(newest["data"])
    values = table.values(data)
    await _make_stubs(tx, table, values)
    is_deleted = newest["action"] == Action.DELETE
    written = await tx.fetchval(
        _upsert(table), identifier, json.dumps(data), newest["stamp"], newest["stamp"] if is_deleted else None,
        mark["changes"], *values.values(),
    )  # fmt: skip
    return await _add_to_feed(tx, entity, identifier, newest, mark["changes"]) if written else None


async def _make_stubs(tx: Transaction, table: Table, values: Mapping[str, Any]) -> None:
    """Create stub rows for referenced objects, so that references are valid before the objects' own events arrive."""
    for column, entity in table.references.items():
        if values[column] is not None:
            await tx.execute(
                f"insert into fleet.{TABLES[entity].name} (id) values ($1) on conflict do nothing",  # noqa: S608
                values[column],
            )


def _upsert(table: Table) -> str:
    names = [column.name for column in table.columns]
    places = ", ".join(f"${number}" for number in range(6, 6 + len(names)))
    renewed = ", ".join(f"{name} = excluded.{name}" for name in (*names, "data", "stamp", "deleted_at", "updated_at"))
    return (
        f"insert into fleet.{table.name} as kept"  # noqa: S608 names of our own
        f" (id, data, stamp, deleted_at, changes, upserts, updated_at, {', '.join(names)})"
        f" values ($1, $2, $3, $4, $5, 1, now(), {places}) on conflict (id) do update set {renewed},"
        f" changes = kept.changes + excluded.changes, upserts = kept.upserts + 1 {GUARD} returning true"
    )


_ADD_TO_FEED: Final = """
insert into fleet.feed as known (entity, entity_id, version, action, at, branch, actor, description)
values ($1, $2, nextval('fleet.feed_version'), $3, $4, $5, $6, $7)
on conflict (entity, entity_id) do update set
    version = excluded.version, action = excluded.action, at = excluded.at, branch = excluded.branch,
    actor = excluded.actor, description = excluded.description
returning version
"""


async def _add_to_feed(tx: Transaction, entity: Entity, identifier: str, newest: Any, changes: int) -> FeedEntry:
    # The last lock taken, held until the commit: versions become visible in order, so a reader misses none.
    await tx.execute("select pg_advisory_xact_lock(hashtext('fleet.feed'))")
    fields = (newest["action"], newest["stamp"], newest["branch"], newest["actor"], newest["description"])
    version = await tx.fetchval(_ADD_TO_FEED, entity, identifier, *fields)
    return FeedEntry(
        version=version, entity=entity, id=identifier, action=fields[0], at=fields[1], branch=fields[2],
        actor=fields[3], description=fields[4], changes=changes,
    )  # fmt: skip


async def newest_version(tx: Transaction) -> int:
    """Return the latest version, or 0 if there is none."""
    return int(await tx.fetchval("select coalesce(max(version), 0) from fleet.feed"))


async def feed_since(tx: Transaction, version: int, *, limit: int) -> list[dict[str, Any]]:
    """Return the latest change of each object that changed after *version*, in the order of commits."""
    rows = await tx.fetch("select * from fleet.feed where version > $1 order by version limit $2", version, limit)
    return [feed_json(row) for row in rows]


async def list_things(tx: Transaction, entity: Entity, *, limit: int, after: str = "") -> list[dict[str, Any]]:
    """Return objects of one kind by id, including stubs and deleted ones."""
    table = TABLES[entity]
    names = ", ".join(column.name for column in table.columns)
    rows = await tx.fetch(
        f"select id, {names}, stamp, deleted_at, stamp is null as is_stub, changes, upserts"  # noqa: S608 names of our own
        f" from fleet.{table.name} where id > $1 order by id limit $2",
        after, limit,
    )  # fmt: skip
    return [dict(row) for row in rows]


async def list_unknown(tx: Transaction, *, limit: int) -> list[dict[str, Any]]:
    """Return requests that were not understood, newest first."""
    rows = await tx.fetch("select * from fleet.unknown order by accepted_at desc limit $1", limit)
    return [dict(row) for row in rows]


async def read_totals(tx: Transaction) -> dict[str, Any]:
    """Return the number of objects of each kind, with their changes and upserts."""
    rows = {}
    for table in TABLES.values():
        row = await tx.fetchrow(
            "select count(*) as things, coalesce(sum(changes), 0)::bigint as changes,"  # noqa: S608 names of our own
            f" coalesce(sum(upserts), 0)::bigint as upserts from fleet.{table.name}"
        )
        assert row is not None
        rows[table.name] = dict(row)
    return {"things": rows}
