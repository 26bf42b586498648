"""Stores changes, and applies them to cars, clients, bookings, branches, employees and messages.

A change is recorded first, once for each event: a row in ``fleet.change``, and a mark of its object in ``fleet.dirty``.
Only the first mark is announced. Applying removes the mark, replays the object's changes in the order of their
timestamps, starting from the oldest one not yet applied, and writes the object once: a burst of a thousand changes is
one upsert. Both lock the mark's row, so that a change recorded concurrently is either applied or marks the object
again.

What no column can be read from is kept apart, in ``unparsed`` of the change and ``unparsed_fields`` of the object, so
it overwrites nothing. Changes without a stamp of their sender are decided about first, see `late_changes`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from boathook import Transaction
from boathook_fleet.late_changes import LATE, Decisions, ObjectState, RecordedChange, decide
from boathook_fleet.log import Kind, Phase, add_error, to_jsonb
from boathook_fleet.parse import Change, Unknown
from boathook_fleet.tables import TABLES, Table
from boathook_fleet.words import Action, Entity

REMIND_S: Final = 60.0
"""Seconds after which the next change announces an existing mark again, because its announcement may be dead."""
_SAMPLE: Final = 2_000
MAX_LOG: Final = 1_000
"""Maximum changes of an object that are looked at when one is decided."""
BRANCH: Final = "branch_id"
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


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
    former: Mapping[str, Any] | None
    """The row before, with all columns; None if nothing was known of the object."""
    values: Mapping[str, Any]
    """The values of the columns now."""

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
insert into fleet.change (
    event_id, source, entity, entity_id, action, stamp, accepted_at, branch, actor, description, data, before, unparsed,
    is_stamped, is_late, branch_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, case when $14 then false end,
    coalesce($15, ({known_branch})))
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

# Of a repeated key, jsonb keeps the last value: the fields after all changes in order. A late creation fills in what
# nothing else has set; other late changes set nothing.
REPLAY: Final = """
with part as materialized (
    select *, row_number() over (order by is_late is not true, {order}) as place from fleet.change
    where entity = $1 and entity_id = $2 and stamp >= $3 and (is_late is not true or action = 'create')
),
field as (
    select f.key, f.value, part.place, coalesce(part.is_late, false) as is_late from part, jsonb_each(part.data) as f
),
mark as (
    select key, null::jsonb as value, place from field where not is_late
    union all
    select f.key, f.value, part.place from part, jsonb_each(part.unparsed) as f where part.is_late is not true
),
kept as (
    select data, unparsed_fields, deleted_at from fleet.{table} where id = $2 and not $4
)
select newest.action, newest.stamp, newest.branch, newest.actor, newest.description,
    case when newest.is_late then (select deleted_at from kept) when newest.action = 'delete' then newest.stamp end
        as deleted_at,
    coalesce((select jsonb_object_agg(key, value order by place) from field where is_late), '{{}}')
        || coalesce((select data from kept), '{{}}')
        || coalesce((select jsonb_object_agg(key, value order by place) from field where not is_late), '{{}}') as data,
    coalesce((select unparsed_fields from kept), '{{}}')
        || coalesce((select jsonb_object_agg(key, value order by place) from mark), '{{}}') as marks
from part as newest order by place desc limit 1
"""

_RECORDED: Final = "select event_id, action, stamp, accepted_at, data, before, is_stamped, is_late from fleet.change"
OPEN: Final = f"{_RECORDED} where entity = $1 and entity_id = $2 and stamp >= $3 and is_late is null order by {ORDER}"
RECENT: Final = f"""
{_RECORDED} where entity = $1 and entity_id = $2 and accepted_at >= $3 order by accepted_at desc limit {MAX_LOG}
"""
# Whether a change was decided that comes behind one which was noted only now, because its delivery had to be repeated.
OVERTAKEN: Final = """
select exists (
    select from fleet.change
    where entity = $1 and entity_id = $2 and not is_stamped and is_late is not null and stamp > $3)
"""
# The whole log of an object; nothing if it has been cleaned up, or is too long.
LOG: Final = (
    f"select * from ({_RECORDED} where entity = $1 and entity_id = $2) as log"  # noqa: S608 names of our own
    " where $3 = (select count(*) from fleet.change where entity = $1 and entity_id = $2 and not is_late)"
    f" and {MAX_LOG} >= (select count(*) from fleet.change where entity = $1 and entity_id = $2) order by {ORDER}"
)

GUARD: Final = "where kept.stamp is null or kept.stamp <= excluded.stamp"
"""Never overwrites newer values with older ones, even if the log has been cleaned up."""


async def note_change(
    tx: Transaction, arrival: Arrival, change: Change, stamp: datetime, unparsed: Mapping[str, Any] = _NOTHING
) -> bool:
    """Append a change and mark its object; return whether the mark must be announced.

    Args:
        tx: the transaction.
        arrival: the event that brought the change.
        change: the change.
        stamp: the time that orders it.
        unparsed: those of its fields that no column can be read from.
    """
    data = {name: value for name, value in change.data.items() if name not in unparsed}
    table = TABLES[change.entity]
    known = f"select branch_id from fleet.{table.name} where id = $4"  # noqa: S608 names of our own
    await tx.execute(
        NOTE.format(known_branch=known if BRANCH in table.references else "null"),
        arrival.event_id, arrival.source, change.entity, change.id, change.action, stamp, arrival.accepted_at,
        change.branch, change.actor, change.description, json.dumps(data), json.dumps(dict(change.before)),
        json.dumps(dict(unparsed)), change.stamp is not None, table.values(data).get(BRANCH),
    )  # fmt: skip
    await tx.execute("delete from fleet.unknown where event_id = $1", arrival.event_id)
    return bool(await tx.fetchval(MARK, change.entity, change.id, stamp, REMIND_S))


async def keep_announcement(tx: Transaction, event_id: UUID, arrival: Arrival, body: bytes) -> None:
    """Store which request the event *event_id* announces, for the case that the writing fails."""
    await tx.execute(
        "insert into fleet.announced (event_id, source_event_id, source, type, payload) values ($1, $2, $3, $4, $5)",
        event_id, arrival.event_id, arrival.source, arrival.type, to_jsonb(body),
    )  # fmt: skip


async def take_announcement(tx: Transaction, event_id: UUID) -> dict[str, Any] | None:
    """Delete and return the request that an event announces; a failure of the transaction keeps it."""
    row = await tx.fetchrow("delete from fleet.announced where event_id = $1 returning *", event_id)
    return None if row is None else {**row, "payload": json.loads(row["payload"])}


async def find_announced(tx: Transaction, event_ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Return the requests that events announce, by the events' ids."""
    rows = await tx.fetch("select * from fleet.announced where event_id = any($1)", list(event_ids))
    return {row["event_id"]: {**row, "payload": json.loads(row["payload"])} for row in rows}


async def keep_unknown(tx: Transaction, arrival: Arrival, unknown: Unknown, body: bytes) -> None:
    """Store a request that was not understood, so that operators can see it."""
    sample = body[:_SAMPLE].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    await tx.execute(
        "insert into fleet.unknown (event_id, source, type, reason, sample, accepted_at)"
        " values ($1, $2, $3, $4, $5, $6) on conflict (event_id) do update set reason = excluded.reason",
        arrival.event_id, arrival.source, arrival.type, unknown.reason, sample, arrival.accepted_at,
    )  # fmt: skip


async def apply_changes(
    tx: Transaction, entity: Entity, identifier: str, zone: tzinfo = UTC
) -> tuple[FeedEntry | None, Decisions]:
    """Write an object's state after its changes, whose times without a zone are the local time of *zone*.

    Return what was written, or None if no change waits or all are older than the stored state, and which of the changes
    were found late.
    """
    mark = await tx.fetchrow(TAKE, entity, identifier)
    if mark is None:
        return None, Decisions()
    table = TABLES[entity]
    former = await tx.fetchrow(f"select * from fleet.{table.name} where id = $1", identifier)  # noqa: S608 names of our own
    decisions, is_rebuilt = await _decide(tx, former, entity, identifier, mark["oldest"])
    oldest = _FIRST if is_rebuilt else mark["oldest"]
    newest = await tx.fetchrow(REPLAY.format(table=table.name, order=ORDER), entity, identifier, oldest, is_rebuilt)
    if newest is None:
        return None, decisions
    data = json.loads(newest["data"])
    unparsed = {name: value for name, value in json.loads(newest["marks"]).items() if value is not None}
    values = table.values(data, zone)
    await _make_stubs(tx, table, values)
    former_changes = 0 if former is None else former["changes"]
    applied = len(decisions.in_time) - former_changes if is_rebuilt else mark["changes"] - len(decisions.late)
    written = await tx.fetchval(
        _upsert(table, "" if is_rebuilt else GUARD), identifier, json.dumps(data), newest["stamp"],
        newest["deleted_at"], applied, json.dumps(unparsed), *values.values(),
    )  # fmt: skip
    if not written:
        return None, decisions
    fields = (newest["action"], newest["stamp"], newest["branch"], newest["actor"], newest["description"])
    entry = FeedEntry(
        version=await _add_to_feed(tx, entity, identifier, *fields), entity=entity, id=identifier, action=fields[0],
        at=fields[1], branch=fields[2], actor=fields[3], description=fields[4], changes=applied,
        former=None if former is None or former["stamp"] is None else dict(former), values=values,
    )  # fmt: skip
    return entry, decisions


async def _decide(
    tx: Transaction, row: Any, entity: Entity, identifier: str, oldest: datetime
) -> tuple[Decisions, bool]:
    """Decide about the changes without a stamp of their sender that are not applied yet, and log what is unusual.

    If one of them comes before changes that are decided, all are decided again. Return the decisions, and whether that
    is the case; *row* is the object's.
    """
    open_changes = await tx.fetch(OPEN, entity, identifier, oldest)
    if not open_changes:
        return Decisions(), False
    former_changes = 0 if row is None else row["changes"]
    is_overtaken = await tx.fetchval(OVERTAKEN, entity, identifier, open_changes[0]["stamp"])
    log = await tx.fetch(LOG, entity, identifier, former_changes) if is_overtaken else []
    if log:
        open_changes, known, state = log, log, ObjectState(data={}, exists=False, is_deleted=False)
    else:
        since = min(change["accepted_at"] for change in open_changes) - LATE
        known = await tx.fetch(RECENT, entity, identifier, since)
        state = ObjectState(
            data=json.loads(row["data"]) if row else {},
            exists=row is not None and row["stamp"] is not None,
            is_deleted=row is not None and row["deleted_at"] is not None,
        )
    decisions = decide(state, list(map(_recorded, open_changes)), list(map(_recorded, known)))
    await tx.execute(
        "update fleet.change set is_late = event_id = any($1) where event_id = any($1 || $2::uuid[])",
        decisions.late, decisions.in_time,
    )  # fmt: skip
    undecided = {change["event_id"]: change for change in open_changes if change["is_late"] is None}

    async def warn(code: str, event_id: UUID, text: str) -> None:
        change = undecided[event_id]
        payload = f'{{"data": {change["data"]}, "before": {change["before"]}}}'.encode()
        await add_error(
            tx, Phase.UPSERT, code, text, kind=Kind.WARN, payload=payload, meta={"action": change["action"]},
            event_id=event_id, entity=entity, entity_id=identifier,
        )  # fmt: skip

    for event_id in filter(undecided.get, decisions.late):
        await warn("OUT_OF_ORDER", event_id, "it repeats what was applied before, or comes before it; not applied")
    for event_id in filter(undecided.get, decisions.gaps):
        names = ", ".join(decisions.gaps[event_id])
        text = f"the values before it are not ours: {names}; applied, but a change in between is missing"
        await warn("MISSED_CHANGE", event_id, text)
    return decisions, bool(log)


def _recorded(row: Any) -> RecordedChange:
    return RecordedChange(
        event_id=row["event_id"],
        action=Action(row["action"]),
        accepted_at=row["accepted_at"],
        data=json.loads(row["data"]),
        before=json.loads(row["before"]),
        is_stamped=row["is_stamped"],
        is_late=row["is_late"],
    )


async def _make_stubs(tx: Transaction, table: Table, values: Mapping[str, Any]) -> None:
    """Create stub rows for referenced objects, so that references are valid before the objects' own events arrive."""
    for column, entity in table.references.items():
        if values[column] is not None:
            await tx.execute(
                f"insert into fleet.{TABLES[entity].name} (id) values ($1) on conflict do nothing",  # noqa: S608
                values[column],
            )


def _upsert(table: Table, guard: str) -> str:
    names = [column.name for column in table.columns]
    places = ", ".join(f"${number}" for number in range(7, 7 + len(names)))
    own = ("data", "unparsed_fields", "stamp", "deleted_at", "updated_at")
    renewed = ", ".join(f"{name} = excluded.{name}" for name in (*names, *own))
    return (
        f"insert into fleet.{table.name} as kept"  # noqa: S608 names of our own
        f" (id, data, stamp, deleted_at, changes, unparsed_fields, upserts, updated_at, {', '.join(names)})"
        f" values ($1, $2, $3, $4, $5, $6, 1, now(), {places}) on conflict (id) do update set {renewed},"
        f" changes = kept.changes + excluded.changes, upserts = kept.upserts + 1 {guard} returning true"
    )


_ADD_TO_FEED: Final = """
insert into fleet.feed as known (entity, entity_id, version, action, at, branch, actor, description)
values ($1, $2, nextval('fleet.feed_version'), $3, $4, $5, $6, $7)
on conflict (entity, entity_id) do update set
    version = excluded.version, action = excluded.action, at = excluded.at, branch = excluded.branch,
    actor = excluded.actor, description = excluded.description
returning version
"""


async def _add_to_feed(tx: Transaction, entity: Entity, identifier: str, *fields: Any) -> int:
    """Store what was written, from its action to its description; return its version."""
    # The last lock taken, held until the commit: versions become visible in order, so a reader misses none.
    await tx.execute("select pg_advisory_xact_lock(hashtext('fleet.feed'))")
    return int(await tx.fetchval(_ADD_TO_FEED, entity, identifier, *fields))


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
        f"select id, {names}, stamp, deleted_at, stamp is null as is_stub, changes, upserts, unparsed_fields"  # noqa: S608 names of our own
        f" from fleet.{table.name} where id > $1 order by id limit $2",
        after, limit,
    )  # fmt: skip
    return [{**row, "unparsed_fields": json.loads(row["unparsed_fields"])} for row in rows]


async def list_unknown(tx: Transaction, *, limit: int) -> list[dict[str, Any]]:
    """Return requests that were not understood, newest first."""
    rows = await tx.fetch("select * from fleet.unknown order by accepted_at desc limit $1", limit)
    return [dict(row) for row in rows]


_UNPARSED: Final = " union all ".join(
    f"select '{entity}' as entity, id, unparsed_fields, updated_at from fleet.{table.name}"  # noqa: S608 names of our own
    " where unparsed_fields <> '{}'"
    for entity, table in TABLES.items()
)


async def list_unparsed(tx: Transaction, *, limit: int) -> list[dict[str, Any]]:
    """Return objects with fields that were not understood, latest first, with these fields."""
    rows = await tx.fetch(f"select * from ({_UNPARSED}) as each order by updated_at desc limit $1", limit)  # noqa: S608 as above
    return [{**row, "unparsed_fields": json.loads(row["unparsed_fields"])} for row in rows]


async def count_unparsed(tx: Transaction) -> int:
    """Return the number of objects with fields that were not understood."""
    return int(await tx.fetchval(f"select count(*) from ({_UNPARSED}) as each"))  # noqa: S608 as above


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
