"""The history of one event: its deliveries and their attempts, side effects, reply, conflicts and operator actions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database, Record
from boathook.db.queries import listings
from boathook.db.queries.listings import (
    AuditRow,
    ConflictRow,
    DeliveryRow,
    EventRow,
    StoredRequest,
    conflict_row,
    delivery_row,
    event_row,
    stored_request,
)
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.errors import NotFound

SQL = load(__file__, fragments_of=(listings.__file__,))

MAX_DELIVERIES_SHOWN: Final = 100
"""Deliveries shown on a page."""
MAX_ATTEMPTS_SHOWN: Final = 200
"""Attempts at these that are shown, the latest ones."""
MAX_RESPONSE_BYTES: Final = 4_096
"""Bytes shown of a response."""
_MAX_NOTES: Final = 100
_MAX_SIDE_EFFECTS: Final = 100
_MAX_CONFLICTS: Final = 20


class AttemptDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, at a handler or an endpoint."""

    ordinal: int
    """The ordinal of its delivery."""
    number: int
    outcome: str
    code: str | None
    error: str | None
    traceback: str | None
    dependency: str | None
    """The service that a handler called and that failed, if it is known."""
    worker: str
    started_at: datetime
    ended_at: datetime
    url: str | None
    """The URL of an endpoint; this and the following are for endpoints only."""
    status: int | None
    """Status of the HTTP response; 0 or None if there was none."""
    duration_ms: int | None
    request_headers: Mapping[str, str]
    response: bytes | None
    """The first bytes of the response."""
    response_size: int | None
    """Stored size of the response in bytes."""
    is_manual: bool

    @property
    def took_s(self) -> float:
        """Duration in seconds."""
        return (self.ended_at - self.started_at).total_seconds()


class RecipientSideEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A completed side effect with its stored result."""

    recipient: str
    name: str
    result: str
    """As JSON text."""
    done_at: datetime


class StoredReply(msgspec.Struct, frozen=True, kw_only=True):
    """A handler's reply to the waiting sender."""

    recipient: str
    status: int
    content_type: str
    body: bytes
    """The first bytes of the body."""
    size: int
    created_at: datetime


class EventHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of an event without its content, within limits."""

    deliveries: Sequence[DeliveryRow]
    next_ordinal: int | None
    """The ordinal of the first delivery that is not included."""
    attempts: Sequence[AttemptDetail]
    """Attempts at these deliveries, latest first."""
    has_more_attempts: bool
    effects: Sequence[RecipientSideEffect]
    answer: StoredReply | None
    notes: Sequence[AuditRow]
    """Operator actions on the event and these deliveries, latest first."""
    conflicts: Sequence[ConflictRow]


class ConflictDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A conflict with its content."""

    row: ConflictRow
    stored: StoredRequest
    content_type: str


async def read_event_preview(
    database: Database | Connection, event_id: UUID, limit: int
) -> tuple[EventRow, StoredRequest]:
    """Return an event with its headers and up to *limit* bytes of its body. Raises NotFound."""
    row = await database.fetchrow(SQL["read_head"], event_id, limit)
    if row is None:
        raise NotFound(f"there is no event {ids.show(ids.EVENT, event_id)}; retention may have dropped it")
    return event_row(row), stored_request(row, "head")


async def read_history(database: Database, event_id: UUID, *, first: int = 0, only: int | None = None) -> EventHistory:
    """Return the history of an event.

    Args:
        first: ordinal of the first delivery to include.
        only: ordinal of the only delivery to include.
    """
    start, limit = (first, MAX_DELIVERIES_SHOWN) if only is None else (only, 1)
    rows = await database.fetch(SQL["list_some"], event_id, start, limit + 1)
    rows = [row for row in rows if only is None or row["ordinal"] == only]
    ordinals = [row["ordinal"] for row in rows[:limit]]
    attempts = await database.fetch(
        SQL["list_attempts"], event_id, ordinals, MAX_ATTEMPTS_SHOWN + 1, MAX_RESPONSE_BYTES
    )
    effects = await database.fetch(SQL["list_done"], event_id, _MAX_SIDE_EFFECTS)
    answer = await database.fetchrow(SQL["get_reply"], event_id, MAX_RESPONSE_BYTES)
    subjects = [
        ids.show(ids.EVENT, event_id),
        ids.show(ids.MESSAGE, event_id),
        *(ids.show_delivery(event_id, ordinal) for ordinal in ordinals),
    ]
    notes = await database.fetch(SQL["list_notes"], subjects, _MAX_NOTES, event_id)
    conflicts = await database.fetch(SQL["list_conflicts"], event_id, _MAX_CONFLICTS)
    return EventHistory(
        deliveries=[delivery_row(row) for row in rows[:limit]],
        next_ordinal=rows[limit]["ordinal"] if len(rows) > limit else None,
        attempts=[_attempt(row) for row in attempts[:MAX_ATTEMPTS_SHOWN]],
        has_more_attempts=len(attempts) > MAX_ATTEMPTS_SHOWN,
        effects=[RecipientSideEffect(**dict(row)) for row in effects],
        answer=None if answer is None else StoredReply(**dict(answer)),
        notes=[AuditRow(**dict(row)) for row in notes],
        conflicts=[conflict_row(row) for row in conflicts],
    )


async def list_attempts(database: Database | Connection, event_id: UUID, ordinal: int) -> list[AttemptDetail]:
    """Return the latest attempts of one delivery, in order."""
    rows = await database.fetch(SQL["list_attempts"], event_id, [ordinal], MAX_ATTEMPTS_SHOWN, MAX_RESPONSE_BYTES)
    return [_attempt(row) for row in reversed(rows)]


async def get_conflict(database: Database | Connection, conflict_id: UUID) -> ConflictDetail:
    """Return a conflict with its headers and bytes. Raises NotFound."""
    row = await database.fetchrow(SQL["get_conflict"], conflict_id)
    if row is None:
        raise no_conflict(conflict_id)
    values = {name: row[name] for name in row.keys() if name not in {"headers", "body", "content_type"}}  # noqa: SIM118
    return ConflictDetail(
        row=conflict_row(values), stored=stored_request(row, "body"), content_type=row["content_type"]
    )


def no_conflict(conflict_id: UUID) -> NotFound:
    """Return the error for an unknown conflict."""
    return NotFound(f"there is no conflict {ids.show(ids.CONFLICT, conflict_id)}; retention may have dropped it")


async def find_url(database: Database, recipient: str) -> str | None:
    """Return the URL of a recipient's endpoint; None if it is not an endpoint or was deleted."""
    url: str | None = await database.fetchval(SQL["find_url"], recipient)
    return url


def _attempt(row: Record) -> AttemptDetail:
    # The headers are stored as pairs, in the order in which they were sent.
    headers = row["request_headers"]
    return AttemptDetail(
        **dict(row) | {"request_headers": {} if headers is None else dict(msgspec.json.decode(headers))}
    )
