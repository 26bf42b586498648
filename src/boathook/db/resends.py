"""Messages owed to an endpoint once more: what died there, what it was never owed, or whatever is asked for.

What was sent before is sent once, as a resend by hand is: a receiver that is still down costs one request for each
message, and not its whole retry schedule. What was never sent has its schedule.

Each step deals with a bounded number of messages in the caller's transaction and says where the next one goes on.
Messages that are to be owed again are locked first, in order, so two such steps at once never owe one twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from boathook.db import delivery_commands
from boathook.db.database import Connection, Record
from boathook.db.delivery_commands import AuditContext
from boathook.db.messages import MessageFilter, MessageStatus, fill_statement
from boathook.db.ordering import unblock
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.windows import Window

SQL = {name: fill_statement(text) for name, text in load(__file__).items()}
PAGE: Final = 500
BODY_PAGE: Final = 50
"""Messages in a step that reads their bodies, which may be large."""


class ResendKind(StrEnum):
    """Which messages are owed once more."""

    MISSING = "missing"
    """Those that the recipient was never owed."""
    ENDED = "ended"
    """Those of which every delivery there came to an end."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ResendResult:
    """What one step did."""

    number: int
    """Messages owed once more."""
    place: UUID | None
    """The last message looked at, where the next step goes on; None at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendFilter:
    """Which of the messages that an endpoint was owed are sent there again; None lets everything through."""

    wanted: MessageFilter
    status: MessageStatus | None = None
    status_class: int | None = None
    """The lowest status of a hundred that the last attempt was answered with; 0: it had no HTTP answer."""


async def recover(
    connection: Connection, recipient: str, window: Window, died_by: datetime, action: AuditContext
) -> ResendResult:
    """Make the next failed messages of a window pending for one attempt, of those that were dead at *died_by*.

    Messages that succeeded in the meantime are left alone, those of which something is still owed, and canceled ones.
    """
    rows = await connection.fetch(SQL["page_dead"], recipient, window.low, window.high, died_by, PAGE)
    found = [row["event_id"] for row in rows]
    await connection.execute(SQL["lock_messages"], found)
    revived = await _replay_dead(connection, recipient, found, died_by, has_canceled=False, action=action)
    return ResendResult(revived, _place(found, PAGE))


async def resend_missing(
    connection: Connection, application: str, recipient: str, window: Window, router: Router, action: AuditContext, *,
    reads_body: bool,
) -> ResendResult:  # fmt: skip
    """Owe a recipient the next messages of a window that *router* gives it and that it was never owed.

    Args:
        router: knows the one recipient's routes only.
        reads_body: whether one of them has a filter or an order.
    """
    limit = BODY_PAGE if reads_body else PAGE
    arguments = (application, window.low, window.high, limit, recipient, reads_body)
    rows = await connection.fetch(SQL["page_candidates"], *arguments)
    wanted = [(row["id"], key) for row in rows if not row["is_known"] for key in _keys(router, application, row)]
    number = await resend(connection, recipient, wanted, ResendKind.MISSING, action=action)
    return ResendResult(number, _place([row["id"] for row in rows], limit))


async def resend_matching(
    connection: Connection, application: str, recipient: str, window: Window, choice: ResendFilter, asked_at: datetime,
    action: AuditContext,
) -> ResendResult:  # fmt: skip
    """Owe a recipient one attempt at each of the next chosen messages of a window, whether it succeeded or failed.

    What is still owed is on its way and left alone; of a dead message its dead letter is revived.
    """
    arguments = (*choice.wanted.arguments(), choice.status, choice.status_class)
    rows = await connection.fetch(SQL["page_owed"], application, window.low, window.high, PAGE, recipient, *arguments)
    chosen = {row["id"]: row for row in rows if row["is_wanted"]}
    await connection.execute(SQL["lock_messages"], list(chosen))
    dead = [key for key, row in chosen.items() if row["status"] in {MessageStatus.FAIL, MessageStatus.CANCELED}]
    revived = await _replay_dead(connection, recipient, dead, asked_at, has_canceled=True, action=action)
    ended = [(key, row["order_key"]) for key, row in chosen.items() if row["status"] == MessageStatus.SUCCESS]
    added = await resend(connection, recipient, ended, ResendKind.ENDED, is_manual=True, action=action)
    return ResendResult(revived + added, _place([row["id"] for row in rows], PAGE))


async def resend(
    connection: Connection,
    recipient: str,
    messages: Sequence[tuple[UUID, str | None]],
    which: ResendKind,
    *,
    is_manual: bool = False,
    action: AuditContext,
) -> int:
    """Owe messages, each with its order key, to a recipient once more; return how many were.

    Args:
        is_manual: each gets one attempt and no more.
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
    connection: Connection, recipient: str, found: Sequence[UUID], died_by: datetime, *, has_canceled: bool,
    action: AuditContext,
) -> int:  # fmt: skip
    if not found:
        return 0
    await connection.execute(SQL["lock_dead"], recipient, found)
    rows = await connection.fetch(SQL["revive_dead"], recipient, found, died_by, has_canceled)
    await _unblock_and_record(connection, recipient, rows, action, delivery_commands.REPLAY_DEAD)
    return len(rows)


async def _unblock_and_record(
    connection: Connection, recipient: str, rows: Sequence[Record], action: AuditContext, name: str
) -> None:
    """Put what was made pending into its lines, record it, and tell the workers."""
    await unblock(connection, [(recipient, row["order_key"]) for row in rows])
    subjects = [_subject(name, row) for row in rows]
    await delivery_commands.record_each(connection, action, name, subjects)
    if rows:
        await delivery_commands.notify_due(connection)


def _keys(router: Router, application: str, row: Record) -> list[str | None]:
    """Return the order key of what a message owes the router's one recipient; nothing where it owes nothing."""
    owed = router.route(
        source=None,
        application=application,
        type=row["type"],
        headers=msgspec.json.decode(row["headers"]),
        body=row["body"] or b"",
        channels=tuple(row["channels"] or ()),
    )
    return [] if row["is_gone"] else [one.order_key for one in owed]


def _subject(name: str, row: Record) -> str:
    if name == delivery_commands.REPLAY_DEAD:
        return ids.show_delivery(row["event_id"], row["ordinal"])
    return ids.show(ids.EVENT, row["event_id"])


def _place(found: Sequence[UUID], limit: int) -> UUID | None:
    return found[-1] if len(found) == limit else None
