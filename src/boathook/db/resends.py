"""Sends messages to an endpoint again: failed ones, ones that it never had, or ones that a filter selects.

A message that was sent before gets one attempt, like a manual resend: a receiver that is still down costs one request
for each message, not its whole retry schedule. A message that was never sent gets its retry schedule.

Each step processes a bounded number of messages in the caller's transaction and returns where the next one continues.
Messages are locked first, in order, so that two concurrent steps never send one twice.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from boathook.db import delivery_commands
from boathook.db.database import Connection, Record
from boathook.db.delivery_commands import AuditContext
from boathook.db.due_notifier import notify_due
from boathook.db.endpoints import probe
from boathook.db.messages import MessageFilter, MessageStatus, fill_statement
from boathook.db.ordering import unblock
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.windows import Window

_TEXTS: Final = load(__file__)
SQL = {name: fill_statement(text.replace("{revivable}", _TEXTS["select_revivable"])) for name, text in _TEXTS.items()}
PAGE: Final = 500
BODY_PAGE: Final = 50
"""Messages in a step that reads their bodies, which may be large."""


class ResendKind(StrEnum):
    """The selection of messages that are sent again."""

    MISSING = "missing"
    """Messages without a delivery to the recipient."""
    ENDED = "ended"
    """Messages whose deliveries to the recipient have all ended."""
    ALL = "all"


class ResendResult(msgspec.Struct, frozen=True):
    """The result of one step."""

    number: int
    """Number of messages with a new delivery, or that would have one if they are only counted."""
    place: UUID | None
    """The last processed message, after which the next step continues; None at the end."""


class ResendFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the messages of an endpoint that are sent again; None matches everything."""

    wanted: MessageFilter
    status: MessageStatus | None = None
    status_class: int | None = None
    """The lowest status of the last response's class, such as 400; 0: no HTTP response."""


async def recover(
    connection: Connection, recipient: str, window: Window, died_by: datetime, action: AuditContext
) -> ResendResult:
    """Make the next failed messages of a window pending for one attempt, of those that were dead at *died_by*.

    Messages that succeeded meanwhile or have an open delivery are skipped, and so are canceled ones.
    """
    event_ids = await _page_dead(connection, recipient, window, died_by)
    await connection.execute(SQL["lock_messages"], event_ids)
    revived = await _replay_dead(connection, recipient, event_ids, died_by, has_canceled=False, action=action)
    return ResendResult(revived, _place(event_ids, PAGE))


async def count_failed(connection: Connection, recipient: str, window: Window, died_by: datetime) -> ResendResult:
    """Count what `recover` would do."""
    event_ids = await _page_dead(connection, recipient, window, died_by)
    number = await _count_revivable(connection, recipient, event_ids, died_by, has_canceled=False)
    return ResendResult(number, _place(event_ids, PAGE))


async def _page_dead(connection: Connection, recipient: str, window: Window, died_by: datetime) -> list[UUID]:
    rows = await connection.fetch(SQL["page_dead"], recipient, window.low, window.high, died_by, PAGE)
    return [row["event_id"] for row in rows]


async def resend_missing(
    connection: Connection, application: str, recipient: str, window: Window, router: Router, action: AuditContext, *,
    reads_body: bool,
) -> ResendResult:  # fmt: skip
    """Deliver the next messages of a window to a recipient that *router* matches and that never had them.

    Args:
        router: has only the recipient's routes.
        reads_body: whether one of them has a filter or an order.
    """
    missing, place = await _page_missing(connection, application, recipient, window, router, reads_body=reads_body)
    number = await resend(connection, recipient, missing, ResendKind.MISSING, action=action)
    return ResendResult(number, place)


async def count_missing(
    connection: Connection, application: str, recipient: str, window: Window, router: Router, *, reads_body: bool
) -> ResendResult:
    """Count what `resend_missing` would do."""
    missing, place = await _page_missing(connection, application, recipient, window, router, reads_body=reads_body)
    return ResendResult(len(missing), place)


async def _page_missing(
    connection: Connection, application: str, recipient: str, window: Window, router: Router, *, reads_body: bool
) -> tuple[list[tuple[UUID, str | None]], UUID | None]:
    """Return the missing messages among the next ones, each with its order key, and the place after these."""
    limit = BODY_PAGE if reads_body else PAGE
    arguments = (application, window.low, window.high, limit, recipient, reads_body)
    rows = await connection.fetch(SQL["page_candidates"], *arguments)
    missing = [(row["id"], key) for row in rows if not row["is_known"] for key in _keys(router, application, row)]
    return missing, _place([row["id"] for row in rows], limit)


async def resend_matching(
    connection: Connection, application: str, recipient: str, window: Window, choice: ResendFilter, asked_at: datetime,
    action: AuditContext,
) -> ResendResult:  # fmt: skip
    """Send each of the next selected messages of a window to a recipient again, whether it succeeded or failed.

    Each gets one attempt. Messages with an open delivery are skipped; a dead letter is revived.
    """
    page = await _page_matching(connection, application, recipient, window, choice)
    await connection.execute(SQL["lock_messages"], page.selected)
    revived = await _replay_dead(connection, recipient, page.dead, asked_at, has_canceled=True, action=action)
    added = await resend(connection, recipient, page.succeeded, ResendKind.ENDED, is_manual=True, action=action)
    return ResendResult(revived + added, page.place)


async def count_matching(
    connection: Connection, application: str, recipient: str, window: Window, choice: ResendFilter, asked_at: datetime
) -> ResendResult:
    """Count what `resend_matching` would do."""
    page = await _page_matching(connection, application, recipient, window, choice)
    number = await _count_revivable(connection, recipient, page.dead, asked_at, has_canceled=True)
    if page.succeeded:
        number += await connection.fetchval(SQL["count_with_content"], [key for key, _ in page.succeeded])
    return ResendResult(number, page.place)


class _MatchingPage(msgspec.Struct, frozen=True):
    """The selected messages among the next ones of an application."""

    selected: list[UUID]
    dead: list[UUID]
    succeeded: list[tuple[UUID, str | None]]
    """Each with its order key."""
    place: UUID | None


async def _page_matching(
    connection: Connection, application: str, recipient: str, window: Window, choice: ResendFilter
) -> _MatchingPage:
    arguments = (*choice.wanted.arguments(), choice.status, choice.status_class)
    rows = await connection.fetch(
        SQL["page_pending"], application, window.low, window.high, PAGE, recipient, *arguments
    )
    selected = [row for row in rows if row["is_wanted"]]
    dead = [row["id"] for row in selected if row["status"] in {MessageStatus.FAIL, MessageStatus.CANCELED}]
    succeeded = [(row["id"], row["order_key"]) for row in selected if row["status"] == MessageStatus.SUCCESS]
    return _MatchingPage([row["id"] for row in selected], dead, succeeded, _place([row["id"] for row in rows], PAGE))


async def resend(
    connection: Connection,
    recipient: str,
    messages: Sequence[tuple[UUID, str | None]],
    which: ResendKind,
    *,
    is_manual: bool = False,
    action: AuditContext,
) -> int:
    """Deliver messages, each with its order key, to a recipient again; return the number.

    Args:
        is_manual: each gets only one attempt.
    """
    if not messages:
        return 0
    keys = [key for key, _ in messages]
    await connection.execute(SQL["lock_messages"], keys)
    orders = [order for _, order in messages]
    rows = await connection.fetch(SQL["owe_messages"], recipient, keys, orders, which.value, is_manual)
    await _unblock_and_record(connection, recipient, rows, action, delivery_commands.REPLAY_EVENT)
    return len(rows)


async def _replay_dead(
    connection: Connection, recipient: str, event_ids: Sequence[UUID], died_by: datetime, *, has_canceled: bool,
    action: AuditContext,
) -> int:  # fmt: skip
    if not event_ids:
        return 0
    await connection.execute(SQL["lock_dead"], recipient, event_ids)
    rows = await connection.fetch(SQL["revive_dead"], recipient, event_ids, died_by, has_canceled)
    await _unblock_and_record(connection, recipient, rows, action, delivery_commands.REPLAY_DEAD)
    return len(rows)


async def _count_revivable(
    connection: Connection, recipient: str, event_ids: Sequence[UUID], died_by: datetime, *, has_canceled: bool
) -> int:
    if not event_ids:
        return 0
    number: int = await connection.fetchval(SQL["count_revivable"], recipient, event_ids, died_by, has_canceled)
    return number


async def _unblock_and_record(
    connection: Connection, recipient: str, rows: Sequence[Record], action: AuditContext, name: str
) -> None:
    """Unblock the new deliveries, record them in the audit, and notify the workers."""
    await unblock(connection, [(recipient, row["order_key"]) for row in rows])
    first = (rows[0]["event_id"], rows[0]["ordinal"]) if len(rows) == 1 else None
    await probe(connection, [recipient] if rows else (), first)
    subjects = [_subject(name, row) for row in rows]
    await delivery_commands.record_each(connection, action, name, subjects)
    if rows:
        await notify_due(connection)


def _keys(router: Router, application: str, row: Record) -> list[str | None]:
    """Return the order keys of a message's deliveries to the router's recipient; empty if there are none."""
    deliveries = router.route(
        source=None,
        application=application,
        type=row["type"],
        headers=msgspec.json.decode(row["headers"]),
        body=row["body"] or b"",
        channels=tuple(row["channels"] or ()),
    )
    return [] if row["is_gone"] else [delivery.order_key for delivery in deliveries]


def _subject(name: str, row: Record) -> str:
    if name == delivery_commands.REPLAY_DEAD:
        return ids.show_delivery(row["event_id"], row["ordinal"])
    return ids.show(ids.EVENT, row["event_id"])


def _place(event_ids: Sequence[UUID], limit: int) -> UUID | None:
    return event_ids[-1] if len(event_ids) == limit else None
