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
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet.late_changes import LATE, Decisions, ObjectState, RecordedChange, decide
from boathook_fleet.log import Kind, Phase, add_error, to_jsonb
from boathook_fleet.parse import Change, Unknown
from boathook_fleet.tables import TABLES, Table
from boathook_fleet.words import Action, Entity

SQL: Final = load_statements(__file__)
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
        """Return it in the format for browsers, as `feed_since` does."""
        names = ("version", "entity", "id", "action", "at", "branch", "actor", "description")
        return {name: getattr(self, name) for name in names} | {"at": self.at.isoformat()}


ORDER: Final = "stamp, action = 'delete', accepted_at, event_id"
"""The order in which changes happened: by the sender's clock, then by acceptance.

At equal timestamps a deletion is the last: it may have the timestamp of the update before it, which may arrive after
it.
"""
GUARD: Final = "where kept.stamp is null or kept.stamp <= excluded.stamp"
"""Never overwrites newer values with older ones, even if the log has been cleaned up."""
_UNPARSED: Final = " union all ".join(
    f"select '{entity}' as entity, id, unparsed_fields, updated_at from fleet.{table.name}"  # noqa: S608 names of our own
    " where unparsed_fields <> '{}'"
    for entity, table in TABLES.items()
)


async def note_change(
    tx: Transaction, arrival: Arrival, change: Change, stamp: datetime, unparsed: Mapping[str, Any] = _NOTHING
) -> bool:
    """Append a change and mark its object; return whether the mark must be announced.

    The change is ordered by *stamp*; no column can be read from its fields in *unparsed*.
    """
    data = {name: value for name, value in change.data.items() if name not in unparsed}
    table = TABLES[change.entity]
    branch_query = f"select branch_id from fleet.{table.name} where id = $4"  # noqa: S608 names of our own
    await tx.execute(
        SQL["note"].format(known_branch=branch_query if BRANCH in table.references else "null"),
        arrival.event_id, arrival.source, change.entity, change.id, change.action, stamp, arrival.accepted_at,
        change.branch, change.actor, change.description, json.dumps(data), json.dumps(dict(change.before)),
        json.dumps(dict(unparsed)), change.stamp is not None, table.values(data).get(BRANCH),
    )  # fmt: skip
    await tx.execute("delete from fleet.unknown where event_id = $1", arrival.event_id)
    return bool(await tx.fetchval(SQL["mark"], change.entity, change.id, stamp, REMIND_S))


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


async def keep_unknown(tx: Transaction, arrival: Arrival, unknown: Unknown, body: bytes) -> None:
    """Store a request that was not understood, so that operators can see it."""
    sample = body[:_SAMPLE].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    await tx.execute(
        SQL["keep_unknown"], arrival.event_id, arrival.source, arrival.type, unknown.reason, sample, arrival.accepted_at
    )


async def apply_changes(
    tx: Transaction, entity: Entity, identifier: str, zone: tzinfo = UTC
) -> tuple[FeedEntry | None, Decisions]:
    """Write an object's state after its changes, whose times without a zone are the local time of *zone*.

    Return what was written, or None if no change waits or all are older than the stored state, and which of the changes
    were found late.
    """
    mark = await tx.fetchrow(SQL["take"], entity, identifier)
    if mark is None:
        return None, Decisions()
    table = TABLES[entity]
    former = await tx.fetchrow(f"select * from fleet.{table.name} where id = $1", identifier)  # noqa: S608 names of our own
    decisions, is_rebuilt = await _decide(tx, former, entity, identifier, mark["oldest"])
    oldest = _FIRST if is_rebuilt else mark["oldest"]
    newest = await tx.fetchrow(
        SQL["replay"].format(table=table.name, order=ORDER), entity, identifier, oldest, is_rebuilt
    )
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
        version=await add_to_feed(tx, entity, identifier, *fields), entity=entity, id=identifier, action=fields[0],
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
    open_changes = await tx.fetch(SQL["list_open"].format(order=ORDER), entity, identifier, oldest)
    if not open_changes:
        return Decisions(), False
    former_changes = 0 if row is None else row["changes"]
    is_overtaken = await tx.fetchval(SQL["is_overtaken"], entity, identifier, open_changes[0]["stamp"])
    log = (
        await tx.fetch(SQL["list_log"].format(order=ORDER), entity, identifier, former_changes, MAX_LOG)
        if is_overtaken
        else []
    )
    if log:
        open_changes, recent, state = log, log, ObjectState(data={}, exists=False, is_deleted=False)
    else:
        since = min(change["accepted_at"] for change in open_changes) - LATE
        recent = await tx.fetch(SQL["list_recent"], entity, identifier, since, MAX_LOG)
        state = ObjectState(
            data=json.loads(row["data"]) if row else {},
            exists=row is not None and row["stamp"] is not None,
            is_deleted=row is not None and row["deleted_at"] is not None,
        )
    decisions = decide(state, list(map(_recorded, open_changes)), list(map(_recorded, recent)))
    await tx.execute(SQL["decide"], decisions.late, decisions.in_time)
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
            await tx.execute(SQL["make_stub"].format(table=TABLES[entity].name), values[column])


def _upsert(table: Table, guard: str) -> str:
    names = [column.name for column in table.columns]
    places = ", ".join(f"${number}" for number in range(7, 7 + len(names)))
    renewed = ", ".join(f"{name} = excluded.{name}" for name in names)
    return SQL["upsert"].format(table=table.name, names=", ".join(names), places=places, renewed=renewed, guard=guard)


async def add_to_feed(tx: Transaction, entity: Entity, identifier: str, *fields: Any) -> int:
    """Store what was written, from its action to its description; return its version."""
    # The last lock taken, held until the commit: versions become visible in order, so a reader misses none.
    await tx.execute("select pg_advisory_xact_lock(hashtext('fleet.feed'))")
    return int(await tx.fetchval(SQL["add_to_feed"], entity, identifier, *fields))


async def newest_version(tx: Transaction) -> int:
    """Return the latest version, or 0 if there is none."""
    return int(await tx.fetchval("select coalesce(max(version), 0) from fleet.feed"))


async def feed_since(tx: Transaction, version: int, *, limit: int) -> list[dict[str, Any]]:
    """Return the latest change of each object that changed after *version*, in the order of commits."""
    rows = await tx.fetch(SQL["list_feed"], version, limit)
    return [row | {"at": row["at"].isoformat()} for row in map(dict, rows)]


async def list_things(tx: Transaction, entity: Entity, *, limit: int, after: str = "") -> list[dict[str, Any]]:
    """Return objects of one kind by id, including stubs and deleted ones."""
    names = ", ".join(column.name for column in TABLES[entity].columns)
    rows = await tx.fetch(SQL["list_objects"].format(table=TABLES[entity].name, names=names), after, limit)
    return [{**row, "unparsed_fields": json.loads(row["unparsed_fields"])} for row in rows]


async def list_unknown(tx: Transaction, *, limit: int) -> list[dict[str, Any]]:
    """Return requests that were not understood, newest first."""
    rows = await tx.fetch("select * from fleet.unknown order by accepted_at desc limit $1", limit)
    return [dict(row) for row in rows]


async def list_unparsed(tx: Transaction, *, limit: int) -> list[dict[str, Any]]:
    """Return objects with fields that were not understood, latest first, with these fields."""
    rows = await tx.fetch(f"select * from ({_UNPARSED}) as each order by updated_at desc limit $1", limit)  # noqa: S608 as above
    return [{**row, "unparsed_fields": json.loads(row["unparsed_fields"])} for row in rows]


async def count_unparsed(tx: Transaction) -> int:
    """Return the number of objects with fields that were not understood."""
    return int(await tx.fetchval(f"select count(*) from ({_UNPARSED}) as each"))  # noqa: S608 as above


async def read_totals(tx: Transaction) -> dict[str, Any]:
    """Return the number of objects of each kind, with their changes and upserts."""
    rows = {table.name: await tx.fetchrow(SQL["read_totals"].format(table=table.name)) for table in TABLES.values()}
    return {"things": {name: dict(row or {}) for name, row in rows.items()}}
