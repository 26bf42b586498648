"""Dead letters that failed alike: of one recipient, with one code, with errors that differ in values only.

Which group a letter belongs to is not stored. It follows from its recipient, code and error, and stands in an index
that holds dead letters alone, so other deliveries pay nothing for it.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from boathook.db.database import Connection, Database, Record
from boathook.db.delivery_commands import Key
from boathook.db.queries.listings import DeliveryRow, ListFilter, delivery_row, like_pattern
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)

MAX_GROUPS: Final = 300
"""Groups that a look takes in."""
MAX_LETTERS: Final = 100_000
"""Letters that are counted of a group."""
SCAN_ROWS: Final = 2_000
"""Letters that one look goes through."""
SCAN_BUDGET_S: Final = 0.1
"""Looks follow each other until a page is full or so much time is used up."""
_MAX_TYPED: Final = 50
"""Letters of a group whose types are looked up."""
_MAX_PREVIEWED: Final = 5_000
_MAX_RECENT: Final = 20_000
_SAMPLE_SIZE: Final = 500
"""Of the letters that died last, where there are too many groups to look at all."""

REPLAY_GROUP: Final = "dead.replay-group"
IGNORE_GROUP: Final = "dead.ignore-group"
PURGE_GROUP: Final = "dead.purge-group"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters that failed alike."""

    key: UUID
    recipient: str
    code: str
    shape: str
    """Their error without what differs each time."""
    error: str
    """The newest letter's."""
    attempts: int
    """The newest letter's."""
    event_id: UUID
    """The newest letter's, which has this ordinal too."""
    ordinal: int
    number: int
    """How many there are; counted up to `MAX_LETTERS`."""
    again: int
    """How many of them died again after a replay."""
    oldest: datetime
    newest: datetime
    replayed_at: datetime | None
    """When the group was replayed last, as a whole."""
    replayed_by: str | None
    since_replay: int
    """Letters that died since then and were not replayed themselves."""
    types: tuple[str, ...] = ()
    """Of the letters that died last."""

    @property
    def id(self) -> str:
        """The group's id as people see it."""
        return ids.show(ids.DEAD_GROUP, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPreview:
    """What would keep a group's letters from running if they were replayed."""

    is_open: bool
    """Whether the recipient takes deliveries: an endpoint may be gone or disabled."""
    has_route: bool
    """Whether a handler of this name is registered still."""
    expunged: int
    """Letters whose content was deleted, among those looked at."""


@dataclass(frozen=True, slots=True)
class DeadLetterCursor:
    """Where a look at letters goes on: with those that died before this one."""

    dead_at: datetime
    key: Key


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """What a search for letters came to."""

    rows: Sequence[DeliveryRow]
    place: DeadLetterCursor | None
    """Where it goes on; None where there is nothing older."""
    is_full: bool
    """Whether it ended because the page is full, and not because its time was over."""


async def list_groups(
    database: Database | Connection, *, recipient: str | None = None, code: str | None = None
) -> tuple[list[DeadLetterGroup], bool]:
    """Return groups whose recipient is like a pattern and whose code is this, and whether there may be more of them.

    The largest come first. Where there are too many to look at all, those of what died last are among them. Their types
    are not looked up, see `with_types`.
    """
    rows = await database.fetch(SQL["walk_groups"], UUID(int=0), MAX_GROUPS)
    is_cut = len(rows) == MAX_GROUPS
    if is_cut:
        rows += await database.fetch(SQL["list_recent"], like_pattern(recipient), code, _MAX_RECENT, _SAMPLE_SIZE)
    groups = await _describe(database, {row["key"] for row in rows}, recipient, code)
    return sorted(groups, key=lambda one: (-one.number, one.key)), is_cut


async def find_group(database: Database | Connection, key: UUID) -> DeadLetterGroup | None:
    """Return one group with its types; None where no dead letter belongs to it any more."""
    groups = await with_types(database, await _describe(database, [key], None, None))
    return groups[0] if groups else None


async def group_of(database: Database | Connection, key: Key) -> UUID | None:
    """Return which group a delivery belongs to; None where it is not dead."""
    found: UUID | None = await database.fetchval(SQL["find_group"], *key)
    return found


async def with_types(database: Database | Connection, groups: Sequence[DeadLetterGroup]) -> list[DeadLetterGroup]:
    """Return groups with the types of their newest letters."""
    rows = await database.fetch(SQL["list_types"], [group.key for group in groups], _MAX_TYPED)
    types = {row["key"]: tuple(row["types"]) for row in rows}
    return [replace(group, types=types.get(group.key, ())) for group in groups]


async def list_dead_letters(
    database: Database | Connection, key: UUID, *, after: DeliveryRow | None = None, limit: int
) -> list[DeliveryRow]:
    """Return the next letters of a group, those that died last first."""
    place = (None, None, None) if after is None else (after.ended_at, *ids.read_delivery(after.id))
    return [delivery_row(row) for row in await database.fetch(SQL["page_letters"], key, *place, limit)]


async def search_dead_letters(
    database: Database, wanted: ListFilter, *, before: DeadLetterCursor | None
) -> DeadLetterPage:
    """Return the next letters that are wanted, those that died last first, in a bounded time."""
    rows: list[DeliveryRow] = []
    ends = time.monotonic() + SCAN_BUDGET_S
    chosen = (wanted.source, wanted.application, like_pattern(wanted.type), like_pattern(wanted.recipient), wanted.code)
    while True:
        place = (None, None, None) if before is None else (before.dead_at, *before.key)
        left = wanted.limit - len(rows)
        arguments = (*chosen, wanted.since, wanted.until, *place, SCAN_ROWS, left)
        looked = await database.fetch(SQL["look_at_letters"], *arguments)
        fitting = [row for row in looked if row["fits"]]
        rows += [_letter(row) for row in fitting]
        if len(fitting) == left:
            return DeadLetterPage(rows, _place(fitting[-1]), is_full=True)
        if not looked or looked[-1]["number"] < SCAN_ROWS:
            return DeadLetterPage(rows, None, is_full=False)
        before = _place(looked[-1])
        if time.monotonic() > ends:
            return DeadLetterPage(rows, before, is_full=False)


async def preview_replay(database: Database | Connection, group: DeadLetterGroup) -> ReplayPreview:
    """Return what would keep a group's letters from running."""
    rows = await database.fetch(SQL["foresee_replay"], group.key, group.recipient, _MAX_PREVIEWED)
    return ReplayPreview(**dict(rows[0]))


async def lock_group(
    connection: Connection, key: UUID, died_by: datetime, *, limit: int, is_to_revive: bool = False
) -> list[Key]:
    """Lock the next letters of a group that died by a moment; *is_to_revive* leaves out those that cannot be."""
    rows = await connection.fetch(SQL["lock_group"], key, died_by, limit, is_to_revive)
    return [(row["event_id"], row["ordinal"]) for row in rows]


async def _describe(
    database: Database | Connection, keys: Iterable[UUID], recipient: str | None, code: str | None
) -> list[DeadLetterGroup]:
    chosen = list(keys)
    shown = [ids.show(ids.DEAD_GROUP, key) for key in chosen]
    arguments = (chosen, like_pattern(recipient), code, MAX_LETTERS, REPLAY_GROUP, shown)
    rows = await database.fetch(SQL["describe_groups"], *arguments)
    return [_group(row) for row in rows]


def _letter(row: Record) -> DeliveryRow:
    return delivery_row({name: value for name, value in row.items() if name not in {"fits", "number"}})


def _place(row: Record) -> DeadLetterCursor:
    return DeadLetterCursor(row["ended_at"], (row["event_id"], row["ordinal"]))


def _group(row: Record) -> DeadLetterGroup:
    return DeadLetterGroup(**dict(row) | {"error": row["error"] or ""})
