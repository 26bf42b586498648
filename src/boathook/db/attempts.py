"""Attempts as an application's owner sees them: every request that was sent to an endpoint, and what it answered."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

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
"""What stands in place of a response that was forgotten on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFilter:
    """Which attempts a list is about, by how they ended; None lets everything through."""

    is_success: bool | None = None
    status_class: int | None = None
    """The lowest status of a hundred, such as 400; 0 for attempts without an HTTP answer."""


ANY_OUTCOME: Final = OutcomeFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPageRequest:
    """Which attempts a page shows, and what of them."""

    window: Window
    wanted: MessageFilter = ALL_MESSAGES
    """By their messages."""
    ended: OutcomeFilter = ANY_OUTCOME
    limit: int
    has_response: bool = True
    has_payload: bool = False

    def arguments(self) -> tuple[object, ...]:
        """Return it as the arguments of statements that follow the application."""
        return (
            self.has_response, self.has_payload, self.window.low, self.window.high, *self.wanted.arguments(),
            self.ended.is_success, self.ended.status_class, self.limit + 1,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One request that was sent."""

    id: UUID
    message: MessageRow
    endpoint_id: UUID
    url: str
    status: int
    """Of the HTTP answer; 0 where there was none."""
    duration_ms: int
    """Until the answer's headers were there."""
    is_success: bool
    is_manual: bool
    response: bytes | None
    """The answer's body, capped; None where it was not asked for or there was none."""
    error: str | None
    """What went wrong, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """How the attempts at an endpoint ended, and how much it is still owed."""

    success: int
    fail: int
    pending: int
    """Deliveries not tried yet."""
    sending: int
    """Deliveries tried, and still being tried."""
    canceled: int


async def list_page(
    connection: Connection,
    application: str,
    listing: AttemptPageRequest,
    *,
    message_id: UUID | None = None,
    endpoint_id: UUID | None = None,
) -> Page[AttemptRow]:
    """Return a page of the attempts at one message, at one endpoint, or at one message there, newest first."""
    is_upward = listing.window.is_upward
    recipient = None if endpoint_id is None else recipient_of(ids.show(ids.ENDPOINT, endpoint_id))
    name = "list_of_endpoint" if message_id is None else "list_of_message"
    place = [recipient] if message_id is None else [message_id, recipient]
    sql = _fill(name, is_upward=is_upward)
    rows = await connection.fetch(sql, application, *listing.arguments(), *place)
    return to_size_limited_page(rows, _attempt, listing.limit, is_reversed=is_upward)


async def find(connection: Connection, application: str, message_id: UUID, attempt_id: UUID) -> AttemptRow | None:
    """Return one attempt at an application's message."""
    sql = SQL["find_attempt"].replace("{columns}", SQL["read_columns"])
    row = await connection.fetchrow(sql, application, True, False, message_id, attempt_id)
    return None if row is None else _attempt(row)


async def expunge(connection: Connection, application: str, message_id: UUID, attempt_id: UUID) -> bool:
    """Forget what an endpoint answered to an attempt; return whether there is such an attempt."""
    if await find(connection, application, message_id, attempt_id) is None:
        return False
    await connection.execute(SQL["expunge_error"], message_id, attempt_id)
    await connection.execute(SQL["expunge_attempt"], application, message_id, attempt_id)
    return True


async def count(connection: Connection, application_id: UUID, endpoint_id: UUID, window: Window) -> AttemptCounts:
    """Count the attempts that an endpoint of an application saw in a window, and what it is still owed of that time."""
    arguments = (application_id, recipient_of(ids.show(ids.ENDPOINT, endpoint_id)), window.low, window.high)
    ended = await connection.fetchrow(SQL["count_attempts"], *arguments)
    owed = await connection.fetchrow(SQL["count_owed"], *arguments)
    assert ended is not None
    assert owed is not None
    return AttemptCounts(**dict(ended), **dict(owed))


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
