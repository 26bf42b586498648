"""Finds and groups dead letters, suggests a fix, and replays, ignores or purges them.

Actions on whole groups are bulk jobs; see `boathook.service.operating.bulk_jobs`.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from boathook.db import dead_letter_groups as store
from boathook.db import delivery_commands
from boathook.db.database import Connection, Database
from boathook.db.dead_letter_groups import MAX_LETTERS
from boathook.db.dead_letter_groups import DeadLetterCursor as DeadLetterCursor  # noqa: PLC0414 - re-exported
from boathook.db.dead_letter_groups import DeadLetterGroup as DeadLetterGroup  # noqa: PLC0414 - re-exported
from boathook.db.dead_letter_groups import DeadLetterPage as DeadLetterPage  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import AuditContext, ReplaySchedule, Selection
from boathook.db.delivery_commands import Key as Key  # noqa: PLC0414 - re-exported
from boathook.db.queries import event_chain, listings
from boathook.db.queries.listings import DeliveryRow, ListFilter
from boathook.domain import ids
from boathook.domain.errors import InvalidState
from boathook.domain.model import State
from boathook.domain.plurals import format_count, plural
from boathook.domain.policy import CONNECTION_LOST
from boathook.service.limits import check_note, check_rate
from boathook.service.operating.listings import find_delivery
from boathook.service.unit_of_work import AppContext, UnitOfWork

_MAX_LENGTH: Final = 300
_NOT_DEAD: Final = "not_dead"
_STATUS: Final = re.compile(r"HTTP_(\d{3})")

_ENDS: Final = {
    "TIMEOUT": "with a timeout",
    "LEASE_LOST": "because its worker stopped",
    "HANDLER_MISUSE": "because the handler uses boathook incorrectly",
    "APPLICATION_NOT_FOUND": "because the handler publishes to an application that does not exist",
    CONNECTION_LOST: "because its connection to PostgreSQL was lost",
    "DNS": "because the endpoint's host name could not be resolved",
    "CONNECT": "because the endpoint's host could not be reached",
    "TLS": "because the TLS connection to the endpoint failed",
    "PROXY": "because the proxy could not be used",
    "BLOCKED": "because the endpoint's address is not allowed",
    "URL": "because the endpoint's URL is invalid",
    "SEND": "because the connection to the endpoint broke",
    "READ": "because the endpoint closed the connection before it responded",
    "GONE": "because the receiver unsubscribed",
    "ABORTED": "because the endpoint permanently rejected this message",
}

_ADVICE: Final = {
    "TIMEOUT": "Find out what it waited for. Speed up the handler or the receiver, or raise its timeout, then replay "
    "one dead letter first.",
    "LEASE_LOST": "Something ended the worker while it ran: check its log and its memory limit. Replay one dead "
    "letter and watch it.",
    "HANDLER_MISUSE": "Fix the handler as the message says, deploy it, then replay.",
    "APPLICATION_NOT_FOUND": "Create the application, or correct its name in the handler, then replay.",
    CONNECTION_LOST: "Nothing of it was stored. Once PostgreSQL is stable again, replay.",
    "SECRET_UNREADABLE": "Restore the encryption key of the secret, or give the endpoint a new secret, then replay.",
    "GONE": "The receiver unsubscribed. If that was a mistake, enable the endpoint and replay; otherwise ignore it "
    "with a note.",
    "ABORTED": "The receiver rejects this message. Ask its owner why; ignore it with a note if that is correct.",
    "DESTINATION_UNAVAILABLE": "Install the package with the kind of destination and add it to outbound.destinations.",
    "CONTENT_GONE": "The message's content was deleted, so it cannot be sent. Ignore it with a note.",
    "CANCELED": "It was canceled. Replay it only if that was a mistake; otherwise ignore it with a note.",
    "BLOCKED": "Only public addresses are allowed. Correct the endpoint's URL, or add its network to outbound.allow.",
    "URL": "Correct the endpoint's URL, then replay.",
    "DNS": "Check the endpoint's URL and your resolver. Once the name resolves, replay.",
    "TLS": "Ask the receiver to renew or repair its certificate, then replay.",
}
_UNREACHED: Final = frozenset({"CONNECT", "PROXY", "SEND", "READ"})


def describe_failure(recipient: str, attempts: int, code: str | None, error: str | None) -> str:
    """Return what failed as one sentence, without a full stop."""
    times = {0: "failed before the first attempt", 1: "failed at its only attempt"}.get(
        attempts, f"failed {attempts} times"
    )
    return f"{recipient} {times}, {_end(code or 'UNKNOWN', attempts, error or '')}"


def _end(code: str, attempts: int, error: str) -> str:
    last = "last " if attempts > 1 else ""
    words = " ".join(error.split())
    words = words if len(words) <= _MAX_LENGTH else f"{words[: _MAX_LENGTH - 1]}…"
    if status_match := _STATUS.fullmatch(code):
        return f"{last}with HTTP status {status_match[1]}"
    if code in _ENDS:
        return last + _ENDS[code]
    if not words:
        return f"{last}with {code}"
    return f"{last}with {words}" if words.startswith(code) else f"{last}with {code}: {words}"


def describe_group(group: DeadLetterGroup) -> str:
    """Return one sentence about the common failure of a group, without the parts that differ."""
    reason = _end(group.code, 1, group.shape)
    deliveries = f"{format_count(group.number, MAX_LETTERS)} {plural(group.number, 'delivery')}"
    return f"{deliveries} to {group.recipient} failed {reason}"


def advise(recipient: str, code: str | None) -> str:
    """Return what to do next about a dead letter."""
    code = code or ""
    if code in _ADVICE:
        return _ADVICE[code]
    if status_match := _STATUS.fullmatch(code):
        return _advise_on_status(int(status_match[1]))
    if code in _UNREACHED:
        return "Check whether the receiver is up and reachable from here. Then replay one dead letter, then all."
    if recipient.startswith("endpoint:"):
        return "Read the receiver's response, ask its owner to fix the problem, then replay."
    return "Read the traceback, fix the handler or its data, deploy it, then replay one dead letter first."


def _advise_on_status(status: int) -> str:
    if status in {401, 403}:
        return "The receiver rejects the credentials: compare the endpoint's secret with its own, then replay."
    if status == 404:
        return "The endpoint's URL does not exist: correct it, then replay."
    if status == 429:
        return "Too many requests: lower the endpoint's rate, then replay at that rate."
    if 300 <= status < 400:
        return "Redirects are not followed: set the endpoint's URL to the redirect's target, then replay."
    if status >= 500:
        return (
            "The receiver failed: ask its owner what went wrong. When it works again, replay one dead letter, then all."
        )
    return "The receiver rejects this request: compare what it expects with the event's type and body, then replay."


def escalation_reasons(group: DeadLetterGroup) -> list[str]:
    """Return the reasons why a group needs a fix instead of another replay; empty if there are none."""
    reasons = []
    if group.again:
        reasons.append(f"{_count(group.again)} failed again after a replay")
    if group.since_replay and group.replayed_at is not None:
        since = group.replayed_at.strftime("%Y-%m-%d %H:%M UTC")
        reasons.append(f"{_count(group.since_replay)} failed since {group.replayed_by} replayed them all on {since}")
    return reasons


def delivery_escalation_reason(replays: int) -> str:
    """Return the reason why a dead letter needs a fix instead of another replay; empty if there is none."""
    if not replays:
        return ""
    times = "a replay" if replays == 1 else f"{replays} replays"
    return f"it failed again after {times}"


def _count(number: int) -> str:
    return f"{format_count(number, MAX_LETTERS)} {plural(number, 'dead letter')}"


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of matching groups, with their types, and counts over all matching groups."""

    rows: Sequence[DeadLetterGroup]
    groups: int
    letters: int
    escalated: int
    """Groups that need a fix instead of another replay."""
    is_cut: bool
    """Whether there may be more groups than were read."""


async def list_groups(
    database: Database | Connection,
    *,
    recipient: str | None = None,
    code: str | None = None,
    organization: str | None = None,
    first: int = 0,
    limit: int = 0,
) -> GroupPage:
    """Return groups, the largest first.

    Args:
        database: the database.
        recipient: only groups of recipients that match this pattern.
        code: only groups with this error code.
        organization: only dead letters of this organization; None: of all.
        first: how many groups to skip.
        limit: maximum number of groups; 0 means all.
    """
    all_groups, is_cut = await store.list_groups(database, recipient=recipient, code=code, organization=organization)
    page_groups = all_groups[first : first + limit] if limit else all_groups[first:]
    return GroupPage(
        rows=await store.with_types(database, page_groups, organization),
        groups=len(all_groups),
        letters=sum(group.number for group in all_groups),
        escalated=sum(bool(escalation_reasons(group)) for group in all_groups),
        is_cut=is_cut,
    )


find_group = store.find_group
search = store.search_dead_letters
preview_replay = store.preview_replay


async def list_letters(
    database: Database | Connection, group: DeadLetterGroup, *, after: Key | None = None, limit: int
) -> Sequence[DeliveryRow]:
    """Return the dead letters of a group, most recent failure first.

    Args:
        database: the database.
        group: the group.
        after: the last dead letter of the previous page; if it no longer exists, the first page is returned.
        limit: maximum number of dead letters.
    """
    position = None
    if after is not None:
        earlier_rows = await listings.list_deliveries_of(database, *after)
        position = earlier_rows[0] if earlier_rows else None
    return await store.list_dead_letters(database, group.key, after=position, limit=limit)


async def search_own(work: UnitOfWork, filters: ListFilter, before: DeadLetterCursor | None = None) -> DeadLetterPage:
    """Return the next matching dead letters of the organization, as `search` does."""
    return await store.search_dead_letters(work.connection, filters, before=before, organization=work.organization)


async def group_of(app_context: AppContext, key: Key) -> str | None:
    """Return the id of the group a dead letter belongs to; None if it is no longer a dead letter."""
    group = await store.group_of(app_context.database, key)
    return None if group is None else ids.show(ids.DEAD_GROUP, group)


async def replay_selected(
    work: UnitOfWork, keys: Sequence[Key], *, died_before: datetime, note: str = "", rate: float | None = None
) -> Sequence[Key]:
    """Make those of these dead letters pending again that died before a time, in the unit of work; return them.

    Deliveries in another state, and those that cannot be replayed, are skipped. The caller has checked who owns them.

    Raises:
        InvalidValue: the note or the rate is invalid.
    """
    action, rate = AuditContext(actor=work.actor, note=check_note(note) or None), check_rate(rate)
    pace = ReplaySchedule(await delivery_commands.read_clock(work.connection), 1 / rate if rate else 0.0)
    selection = Selection(ListFilter(until=died_before), keys)
    return await delivery_commands.replay_dead(work.connection, selection, action, pace=pace, limit=len(keys))


async def replay_first(work: UnitOfWork, key: Key, *, note: str = "") -> DeliveryRow:
    """Handle the first event of a dead letter's chain again, and ignore the dead letter; return the new delivery.

    The handler of the first event gets it again, as by a replay of that delivery, and publishes again what it now
    should. The dead letter is what it published before, so it is settled with a note that says so.

    Raises:
        NotFound: the organization has no such delivery, or retention has dropped the first event.
        InvalidState: it is not a dead letter, no handler published its event, or the first event's content was deleted.
        InvalidTransition: a delivery of the first event to that handler is still open.
        InvalidValue: the note is invalid.
    """
    note = check_note(note)
    await _require_dead(work, key)
    first, *rest = await event_chain.read_chain(work.connection, key[0])
    if not rest or first.delivery_id is None:
        raise InvalidState("its event is the first one, so replay it itself", "not_chained")
    action = AuditContext(actor=work.actor, note=note or None)
    first_key = ids.read_delivery(first.delivery_id)
    added = await delivery_commands.replay_delivery(work.connection, first_key, action)
    text = f"replayed from its first event {first.event_id} as {ids.show_delivery(*added)}"
    ignored = AuditContext(actor=work.actor, note=f"{text}: {note}" if note else text)
    if not await delivery_commands.ignore_dead(work.connection, Selection(ListFilter(), [key]), ignored, limit=1):
        raise InvalidState("another request is changing it", _NOT_DEAD)
    return await find_delivery(work, added)


async def _require_dead(work: UnitOfWork, key: Key) -> None:
    row = await find_delivery(work, key)
    if row.state != State.DEAD:
        raise InvalidState(f"{row.id} is {row.state}, not a dead letter", _NOT_DEAD)
