"""Compares and accepts conflicts: requests that match an event in key or body, but not in both.

An accepted conflict becomes a new event with the bytes, headers and type that were stored, under a key of its own. Its
row stays locked until the event is committed, so that it becomes one event, even if two operators accept it at once.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db import delivery_commands
from boathook.db.batches import JsonSlicer
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext, LockedConflict
from boathook.db.events import store_in
from boathook.db.queries import event_history, event_search
from boathook.db.queries import listings as rows
from boathook.db.queries.event_history import ConflictDetail as ConflictDetail  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import EventRow, StoredRequest
from boathook.db.route_registry import read_router_in
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound, TooManyDeliveries, ValueRejected
from boathook.domain.filters import Router
from boathook.domain.json_document import is_too_deep
from boathook.domain.line_diff import DiffLine, SkippedLines, collapse_equal, compare
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, NewEvent, Origin, ProofStrength, Receipt
from boathook.handlers.outbox import receipt_of
from boathook.ingest.event_builder import EventBuilder, dedup_hashes, scoped_hash
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.sources import dedup_days_by_source
from boathook.ingest.spool_records import UNROUTED
from boathook.service import body_view
from boathook.service.body_view import BodyFormat
from boathook.service.elsewhere import reject_elsewhere
from boathook.service.unit_of_work import UnitOfWork, check_owner, new_id
from boathook.verification.dedup_keys import KEY_PREFIX

_MAX_EVENT_BYTES: Final = 64 << 20


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A conflicting request and the event that came first."""

    conflict: ConflictDetail
    event: EventRow | None
    """None if retention has deleted it."""
    first: StoredRequest | None
    """The event's headers, and its body or that of the item that the conflict is about."""
    item_path: str | None
    """The path of that item; None if the conflict is about the whole event."""
    verdict: str
    """The difference, in one sentence."""
    lines: Sequence[DiffLine | SkippedLines] | None
    """Line diff of the bodies; None if they are equal, one is missing, or nearly everything differs."""
    is_cut: bool
    """Whether a body was too long to compare completely."""


class AcceptedConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A conflict with the event that it became."""

    conflict_id: str
    event_id: str
    is_new: bool
    """Whether this call accepted it; else it had been accepted before."""


get = event_history.get_conflict


async def accept(work: UnitOfWork, conflict_id: UUID, *, note: str = "") -> AcceptedConflict:
    """Make a conflict that the caller may reach a new event, routed by the current routes; once only.

    Raises:
        NotFound: there is no such conflict, or its application was deleted.
        InvalidState: its body is damaged or must not be kept any longer, or it cannot be stored as an event.
    """
    work.app_context.database.require_safety()
    conflict = await delivery_commands.lock_conflict(work.connection, conflict_id, work.caller.tenant)
    if conflict is None:
        raise event_history.no_conflict(conflict_id)
    name = ids.show(ids.CONFLICT, conflict_id)
    if conflict.accepted_as is not None:
        event_id = ids.show(ids.EVENT, conflict.accepted_as)
        return AcceptedConflict(conflict_id=name, event_id=event_id, is_new=False)
    await _check_content(work.connection, conflict, name)
    receipt = await (_publish(work, conflict) if conflict.source is None else _store(work, conflict))
    if not isinstance(receipt, Accepted):
        raise InvalidState(f"another event has the key {name}", "key_taken")
    action = AuditContext(actor=work.actor, note=note or None)
    await delivery_commands.mark_conflict_accepted(work.connection, conflict_id, receipt.event_id, action)
    return AcceptedConflict(conflict_id=name, event_id=ids.show(ids.EVENT, receipt.event_id), is_new=True)


async def _check_content(connection: Connection, conflict: LockedConflict, name: str) -> None:
    # Hashing a large body may take long; keep it off the event loop.
    digest = await asyncio.to_thread(hashlib.sha256, conflict.body)
    if digest.digest() != conflict.body_sha256:
        raise InvalidState(f"the stored body of {name} is not the one that arrived; ask the sender for it", "damaged")
    if conflict.content_until and conflict.content_until <= await delivery_commands.read_clock(connection):
        raise InvalidState(f"the payload of {name} was to be kept until {conflict.content_until} only", "content_gone")


async def _store(work: UnitOfWork, conflict: LockedConflict) -> Receipt:
    settings, key = work.app_context.settings, ids.show(ids.CONFLICT, conflict.id)
    builder = EventBuilder(Router((), UNROUTED), lambda: read_router_in(work.connection))
    event = NewEvent(
        id=new_id(),
        source=conflict.source,
        application=None,
        type=conflict.type,
        dedup_key=key,
        key_hash=scoped_hash(f"{conflict.source}\x00conflict", key.encode()),
        replay_hash=None,
        grade=ProofStrength(conflict.grade),
        origin=Origin.ACCEPTED_CONFLICT,
        headers=conflict.headers,
        content_type=conflict.content_type,
        body=conflict.body,
        body_sha256=conflict.body_sha256,
        routes_version=UNROUTED,
    )
    store = store_in(
        work.connection, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_by_source(settings)
    )
    writer = EventWriter(store, builder.reroute, elsewhere=reject_elsewhere(settings, lambda: builder.router))
    await builder.refresh()
    try:
        (receipt,) = await writer.append(await builder.reroute([event]))
    except (TooManyDeliveries, ValueRejected) as error:
        raise InvalidState(f"{key} cannot be stored as an event: {error}", "not_storable") from None
    return receipt


async def _publish(work: UnitOfWork, conflict: LockedConflict) -> Receipt:
    message = Message(
        application=str(conflict.application),
        type=conflict.type,
        payload=conflict.body,
        organization=await rows.find_owner(work.connection, conflict.application),
        id=ids.show(ids.CONFLICT, conflict.id),
        channels=conflict.channels or (),
        tags=conflict.tags or (),
        content_until=conflict.content_until,
        headers=json.loads(conflict.headers),
        content_type=conflict.content_type,
        origin=Origin.ACCEPTED_CONFLICT,
        is_accepted=True,
    )
    published = await work.app_context.outbox.publish(work.connection, message)
    return receipt_of(message, published)


async def compare_conflict(database: Database, conflict_id: UUID) -> Comparison:
    """Return a conflict compared with its event. Raises NotFound if there is no such conflict."""
    return await _compare_with_event(database, await event_history.get_conflict(database, conflict_id))


async def read_comparison(work: UnitOfWork, conflict_id: UUID) -> Comparison:
    """Return a conflict with an event of the organization, compared with it. Raises NotFound."""
    conflict = await event_history.get_conflict(work.connection, conflict_id)
    await check_owner(work, conflict.row.id, conflict.row.application)
    return await _compare_with_event(work.connection, conflict)


async def _compare_with_event(database: Database | Connection, conflict: ConflictDetail) -> Comparison:
    event_id = ids.read(ids.EVENT, conflict.row.event_id)
    try:
        event, first = await event_history.read_event_preview(database, event_id, _MAX_EVENT_BYTES)
    except NotFound:
        return Comparison(
            conflict=conflict, event=None, first=None, item_path=None, lines=None, is_cut=False,
            verdict="The event that came first is not stored any more, so there is nothing to compare this with.",
        )  # fmt: skip
    item_path = await _item_of(database, conflict, event_id)
    body = first.body if item_path is None else JsonSlicer(first.body).cut(item_path)
    # Comparing may take long; keep it off the event loop.
    return await asyncio.to_thread(compare_bodies, conflict, event, StoredRequest(first.headers, body), item_path)


def compare_bodies(
    conflict: ConflictDetail, event: EventRow, first: StoredRequest, item_path: str | None
) -> Comparison:
    """Return the comparison of a conflict with its event; slow for large bodies."""
    left, right = first.body, conflict.stored.body
    lines, difference = (None, "") if event.expunged_at else _compare(left, right)
    return Comparison(
        conflict=conflict,
        event=event,
        first=first,
        item_path=item_path,
        verdict=_explain(conflict, event, difference),
        lines=None if lines is None else collapse_equal(lines),
        is_cut=max(len(left), len(right)) > body_view.MAX_BYTES,
    )


def explain(differs: str) -> tuple[str, str]:
    """Return the likely cause of conflicts that differ in ``body`` or ``key``, and what to do about it."""
    return _CAUSES[differs]


_CAUSES: Final = {
    "body": (
        "The sender uses one id for two events, or builds the body again for each retry.",
        "Ask the sender which of them counts; name what differs in each retry in `volatile`. Accept a new event.",
    ),
    "key": (
        "The same signed content arrived with a different id, and the source refuses repeated bodies.",
        "Find out who sent it. It was not delivered again; accept it if the sender means another event.",
    ),
}


def _compare(left: bytes, right: bytes) -> tuple[list[DiffLine] | None, str]:
    """Return the line diff, and a short description of the difference."""
    if left == right:
        return None, "the stored parts are equal"
    formatted = body_view.to_lines(left), body_view.to_lines(right)
    if formatted[0] == formatted[1] and max(len(left), len(right)) <= body_view.MAX_BYTES:
        # Formatted alike, the bodies differ only in white space.
        return compare(
            *(body_view.to_lines(body, BodyFormat.RAW) for body in (left, right))
        ), "only white space differs"
    return compare(*formatted), _how_they_differ(left, right)


def unified_diff(comparison: Comparison) -> str:
    """Return the diff as text: lines marked with - are only in the event, with + only in the conflict."""
    return "\n".join(
        f"… {line.number} equal lines" if isinstance(line, SkippedLines) else f"{line.mark} {line.text}"
        for line in comparison.lines or ()
    )


async def _item_of(database: Database | Connection, conflict: ConflictDetail, event_id: UUID) -> str | None:
    """Return the path of the item with the conflict's key, while dedup memory has it."""
    key, source = conflict.row.dedup_key, conflict.row.source
    if source is None or not key.startswith(KEY_PREFIX):
        return None
    key_matches = await event_search.find_keys(database, dedup_hashes(source, key))
    return next(
        (key_match.item_path for key_match in key_matches if key_match.event_id == event_id and key_match.item_path),
        None,
    )


def _explain(conflict: ConflictDetail, event: EventRow, difference: str) -> str:
    if event.expunged_at is not None:
        return "The event's content was deleted, so the bodies cannot be compared."
    if conflict.row.differs == "key":
        return (
            f"The signed content is the same, the key is not: {conflict.row.dedup_key} arrived with the content that"
            f" was accepted as {event.dedup_key}. A signed request replayed with a different id looks like this."
        )
    fate = "The first one was delivered, this one was kept and not delivered."
    if conflict.row.accepted_as:
        fate = f"This one was accepted as {conflict.row.accepted_as}."
    return f"The key is the same, the body is not: {difference}. {fate}"


def _how_they_differ(left: bytes, right: bytes) -> str:
    values = _values(left)
    if values is not None and values == _values(right):
        return "the values are the same, only their order differs"
    return f"the event has {len(left):,} bytes, the conflict {len(right):,}"


def _values(body: bytes) -> Any:
    """Return a JSON body's values without the order of keys, numbers as written; None if it is not JSON."""
    if len(body) > body_view.MAX_BYTES or is_too_deep(body):
        return None
    try:
        return json.loads(body, parse_float=_number, parse_int=_number, object_pairs_hook=_sorted)
    except (ValueError, RecursionError):
        return None


def _number(digits: str) -> tuple[str, str]:
    return ("number", digits)


def _sorted(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    return ("object", sorted(pairs, key=lambda pair: pair[0]))
