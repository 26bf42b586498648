"""Attempts as an application's owner sees them: each request to an endpoint, and its response."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.messages import (
    ALL_MESSAGES,
    MessageFilter,
    MessageRow,
    Page,
    endpoint_id_of,
    size_limited_statement,
    to_message,
    to_size_limited_page,
)
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.windows import Window

SQL = load(__file__)
EXPUNGED: Final = b"EXPUNGED"
"""Replaces a response that was deleted on request."""


class OutcomeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters attempts by their result; None matches everything."""

    is_success: bool | None = None
    status_class: int | None = None
    """The lowest status of a class, such as 400; 0 for attempts without an HTTP response."""


ANY_OUTCOME: Final = OutcomeFilter()


class AttemptPageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the attempts of a page and their columns."""

    window: Window
    wanted: MessageFilter = ALL_MESSAGES
    """Filters by the attempts' messages."""
    ended: OutcomeFilter = ANY_OUTCOME
    limit: int
    has_response: bool = True
    has_payload: bool = False

    def arguments(self) -> tuple[object, ...]:
        """Return the statement arguments that follow the application."""
        return (
            self.has_response, self.has_payload, self.window.low, self.window.high, *self.wanted.arguments(),
            self.ended.is_success, self.ended.status_class, self.limit + 1,
        )  # fmt: skip


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request to an endpoint."""

    id: UUID
    message: MessageRow
    endpoint_id: UUID
    url: str
    status: int
    """Status of the HTTP response; 0 if there was none."""
    duration_ms: int
    """Until the response's headers arrived."""
    is_success: bool
    is_manual: bool
    response: bytes | None
    """The response body, capped; None if it was not requested or there was none."""
    error: str | None
    """The error, in one line."""

    @property
    def started_at(self) -> datetime:
        """When the request was sent, to the millisecond; its id holds it."""
        return ids.created_at(self.id)


class AttemptCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts at an endpoint by result, and its unfinished deliveries."""

    success: int
    fail: int
    pending: int
    """Deliveries without an attempt so far."""
    sending: int
    """Deliveries with attempts that are not finished."""
    canceled: int


async def list_page(
    connection: Connection,
    application: str,
    listing: AttemptPageRequest,
    *,
    message_id: UUID | None = None,
    endpoint_id: UUID | None = None,
) -> Page[AttemptRow]:
    """Return a page of the attempts at a message, at an endpoint, or of a message at an endpoint, newest first."""
    is_upward = listing.window.is_upward
    recipient = None if endpoint_id is None else recipient_of(ids.show(ids.ENDPOINT, endpoint_id))
    name = "list_of_endpoint" if message_id is None else "list_of_message"
    selection = [recipient] if message_id is None else [message_id, recipient]
    sql = _fill(name, is_upward=is_upward)
    rows = await connection.fetch(sql, application, *listing.arguments(), *selection)
    return to_size_limited_page(rows, _attempt, listing.limit, is_reversed=is_upward)


async def find(connection: Connection, application: str, message_id: UUID, attempt_id: UUID) -> AttemptRow | None:
    """Return one attempt at an application's message."""
    sql = SQL["find_attempt"].replace("{columns}", SQL["read_columns"])
    row = await connection.fetchrow(sql, application, True, False, message_id, attempt_id)
    return None if row is None else _attempt(row)


async def expunge(connection: Connection, application: str, message_id: UUID, attempt_id: UUID) -> bool:
    """Delete the response to an attempt; return whether the attempt exists."""
    if await find(connection, application, message_id, attempt_id) is None:
        return False
    await connection.execute(SQL["expunge_error"], message_id, attempt_id)
    await connection.execute(SQL["expunge_attempt"], application, message_id, attempt_id)
    return True


async def count(connection: Connection, application_id: UUID, endpoint_id: UUID, window: Window) -> AttemptCounts:
    """Count the attempts at an application's endpoint in a window, and its unfinished deliveries of that time."""
    arguments = (application_id, recipient_of(ids.show(ids.ENDPOINT, endpoint_id)), window.low, window.high)
    finished = await connection.fetchrow(SQL["count_attempts"], *arguments)
    pending = await connection.fetchrow(SQL["count_pending"], *arguments)
    assert finished is not None
    assert pending is not None
    return AttemptCounts(**dict(finished), **dict(pending))


def _fill(name: str, *, is_upward: bool = False) -> str:
    sql = SQL[name].replace("{columns}", SQL["read_columns"]).replace("{fitting}", SQL["keep_fitting"])
    return size_limited_statement(sql, is_upward=is_upward)


def _attempt(row: Record) -> AttemptRow:
    return AttemptRow(
        id=row["id"],
        message=to_message(dict(row) | {"id": row["event_id"]}),
        endpoint_id=endpoint_id_of(row["recipient"]),
        url=row["url"] or "",
        status=row["status"] or 0,
        duration_ms=row["duration_ms"] or 0,
        is_success=row["outcome"] == "succeeded",
        is_manual=bool(row["is_manual"]),
        response=row["response"],
        error=row["error"],
    )
