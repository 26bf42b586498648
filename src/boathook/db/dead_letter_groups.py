"""Groups of dead letters with the same cause: same recipient, same code, and errors that differ only in values.

The group of a dead letter is not stored. It is computed from recipient, code and error, and indexed for dead letters
only, so other deliveries have no cost.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db.database import Connection, Database, Record
from boathook.db.delivery_commands import Key
from boathook.db.queries import listings
from boathook.db.queries.listings import (
    DeliveryRow,
    ListFilter,
    delivery_row,
    like_pattern,
    scanned_row,
    with_first_events,
)
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__, fragments_of=(listings.__file__,))

MAX_GROUPS: Final = 300
"""Groups in one list."""
MAX_LETTERS: Final = 100_000
"""Dead letters of a group that are counted."""
SCAN_ROWS: Final = 2_000
"""Dead letters scanned by one query."""
OWN_SCAN_ROWS: Final = 200
"""The same if each has to be compared with an organization, which takes longer."""
SCAN_BUDGET_S: Final = 0.1
"""Queries continue until a page is full or this much time has passed."""
_MAX_TYPED: Final = 50
"""Dead letters of a group whose event types are read."""
_MAX_PREVIEWED: Final = 5_000
MAX_RECENT: Final = 20_000
_SAMPLE_SIZE: Final = 500
"""How many of the latest dead letters are grouped if there are too many groups to list."""

REPLAY_GROUP: Final = "dead.replay-group"
IGNORE_GROUP: Final = "dead.ignore-group"
PURGE_GROUP: Final = "dead.purge-group"


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same cause."""

    key: UUID
    recipient: str
    code: str
    shape: str
    """Their error without the values that differ."""
    error: str
    """The error of the newest dead letter."""
    attempts: int
    """The attempts of the newest dead letter."""
    event_id: UUID
    """The event of the newest dead letter; its ordinal follows."""
    ordinal: int
    number: int
    """Number of dead letters; counted up to `MAX_LETTERS`."""
    again: int
    """How many of them failed again after a replay."""
    oldest: datetime
    newest: datetime
    replayed_at: datetime | None
    """When the whole group was last replayed."""
    replayed_by: str | None
    since_replay: int
    """Dead letters that failed since then and were not replayed themselves."""
    hourly: tuple[int, ...]
    """How many of them failed in each of the last 24 hours, oldest hour first."""
    types: tuple[str, ...] = ()
    """Event types of the latest dead letters."""

    @property
    def id(self) -> str:
        """The group's public id."""
        return ids.show(ids.DEAD_GROUP, self.key)


class ReplayPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that would prevent a group's dead letters from running if they were replayed."""

    is_open: bool
    """Whether the recipient accepts deliveries: an endpoint may be deleted or disabled."""
    has_route: bool
    """Whether a handler of this name is still registered."""
    expunged: int
    """Dead letters whose content was deleted, among those examined."""


class DeadLetterCursor(msgspec.Struct, frozen=True):
    """The cursor of a dead letter search: it continues with those that died before this one."""

    dead_at: datetime
    key: Key


class DeadLetterPage(msgspec.Struct, frozen=True):
    """The result of a search for dead letters."""

    rows: Sequence[DeliveryRow]
    place: DeadLetterCursor | None
    """Where the search continues; None if there is nothing older."""
    is_full: bool
    """Whether it ended because the page is full, not because of the time limit."""


async def list_groups(
    database: Database | Connection,
    *,
    recipient: str | None = None,
    code: str | None = None,
    organization: str | None = None,
) -> tuple[list[DeadLetterGroup], bool]:
    """Return the groups that match a recipient pattern and a code, largest first, and whether there may be more.

    Only dead letters of *organization* count, unless it is None; so it is for all that follow.

    If there are too many groups to list, those of the latest dead letters are included. Types are not read, see
    `with_types`.
    """
    rows = await database.fetch(SQL["walk_groups"], UUID(int=0), MAX_GROUPS)
    is_cut = len(rows) == MAX_GROUPS
    if is_cut:
        rows += await database.fetch(SQL["list_recent"], like_pattern(recipient), code, MAX_RECENT, _SAMPLE_SIZE)
    groups = await _describe(database, {row["key"] for row in rows}, recipient, code, organization)
    return sorted(groups, key=lambda group: (-group.number, group.key)), is_cut


async def find_group(
    database: Database | Connection, key: UUID, organization: str | None = None
) -> DeadLetterGroup | None:
    """Return one group with its types; None if no dead letter belongs to it any more."""
    groups = await with_types(database, await _describe(database, [key], None, None, organization), organization)
    return groups[0] if groups else None


async def group_of(database: Database | Connection, key: Key) -> UUID | None:
    """Return the group of a delivery; None if it is not a dead letter."""
    group_id: UUID | None = await database.fetchval(SQL["find_group"], *key)
    return group_id


async def with_types(
    database: Database | Connection, groups: Sequence[DeadLetterGroup], organization: str | None = None
) -> list[DeadLetterGroup]:
    """Return groups with the types of their latest dead letters."""
    rows = await database.fetch(SQL["list_types"], [group.key for group in groups], _MAX_TYPED, organization)
    types = {row["key"]: tuple(row["types"]) for row in rows}
    return [replace(group, types=types.get(group.key, ())) for group in groups]


async def list_dead_letters(
    database: Database | Connection, key: UUID, *, after: DeliveryRow | None = None, limit: int
) -> list[DeliveryRow]:
    """Return the next dead letters of a group, latest first."""
    cursor = (None, None, None) if after is None else (after.ended_at, *ids.read_delivery(after.id))
    rows = await database.fetch(SQL["page_letters"], key, *cursor, limit)
    return await with_first_events(database, [delivery_row(row) for row in rows])


async def search_dead_letters(
    database: Database | Connection,
    filters: ListFilter,
    *,
    before: DeadLetterCursor | None,
    organization: str | None = None,
) -> DeadLetterPage:
    """Return the next matching dead letters, of one organization or of all, latest first, within a time limit."""
    rows: list[DeliveryRow] = []
    ends = time.monotonic() + SCAN_BUDGET_S
    step = SCAN_ROWS if organization is None else OWN_SCAN_ROWS
    filter_arguments = (
        filters.source,
        filters.application,
        like_pattern(filters.type),
        like_pattern(filters.recipient),
        filters.code,
    )
    while True:
        cursor = (None, None, None) if before is None else (before.dead_at, *before.key)
        rows_left = filters.limit - len(rows)
        arguments = (*filter_arguments, filters.since, filters.until, *cursor, step, rows_left, organization)
        scanned = await database.fetch(SQL["look_at_letters"], *arguments)
        fitting = [row for row in scanned if row["fits"]]
        rows += [scanned_row(row) for row in fitting]
        if len(fitting) == rows_left:
            return DeadLetterPage(await with_first_events(database, rows), _place(fitting[-1]), is_full=True)
        is_over = not scanned or scanned[-1]["number"] < step
        before = None if is_over else _place(scanned[-1])
        if is_over or time.monotonic() > ends:
            return DeadLetterPage(await with_first_events(database, rows), before, is_full=False)


async def preview_replay(
    database: Database | Connection, group: DeadLetterGroup, organization: str | None = None
) -> ReplayPreview:
    """Return what would prevent a group's dead letters from running."""
    rows = await database.fetch(SQL["foresee_replay"], group.key, group.recipient, _MAX_PREVIEWED, organization)
    return ReplayPreview(**dict(rows[0]))


async def lock_group(
    connection: Connection,
    key: UUID,
    died_by: datetime,
    *,
    limit: int,
    is_to_revive: bool = False,
    organization: str | None = None,
) -> list[Key]:
    """Lock the next dead letters of a group that died by a time; *is_to_revive* skips those that cannot be replayed."""
    rows = await connection.fetch(SQL["lock_group"], key, died_by, limit, is_to_revive, organization)
    return [(row["event_id"], row["ordinal"]) for row in rows]


async def _describe(
    database: Database | Connection,
    keys: Iterable[UUID],
    recipient: str | None,
    code: str | None,
    organization: str | None,
) -> list[DeadLetterGroup]:
    group_ids = list(keys)
    group_names = [ids.show(ids.DEAD_GROUP, key) for key in group_ids]
    arguments = (group_ids, like_pattern(recipient), code, MAX_LETTERS, REPLAY_GROUP, group_names, organization)
    rows = await database.fetch(SQL["describe_groups"], *arguments)
    return [_group(row) for row in rows]


def _place(row: Record) -> DeadLetterCursor:
    return DeadLetterCursor(row["ended_at"], (row["event_id"], row["ordinal"]))


def _group(row: Record) -> DeadLetterGroup:
    values = dict(row)
    hourly = hourly_counts(values.pop("hours"), values.pop("numbers"))
    return DeadLetterGroup(**values | {"error": row["error"] or "", "hourly": hourly})


def hourly_counts(hours: Sequence[int] | None, numbers: Sequence[int] | None) -> tuple[int, ...]:
    """Return a count for each of the last 24 hours, oldest first, from counts by hour: 1 is the oldest, 0 before it."""
    counts = [0] * 24
    for hour, number in zip(hours or (), numbers or (), strict=True):
        # A time that was set by a clock ahead of the database's lies after the last hour.
        if hour:
            counts[min(hour, len(counts)) - 1] += number
    return tuple(counts)
