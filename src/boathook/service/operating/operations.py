"""Actions on deliveries and events: replay, ignore, purge, route and send.

Each records an audit row in the transaction of the change. Large jobs run in bounded batches, so they neither hold
locks for long nor keep a transaction open. They may be interrupted and repeated at any point: completed work is not
repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db import delivery_commands
from boathook.db import rerouting as routing
from boathook.db.audit import record
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext as AuditContext  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import Key as Key  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import ReplayOutcomes as ReplayOutcomes  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import ReplayResult as ReplayResult  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import ReplaySchedule
from boathook.db.delivery_commands import Selection as Selection  # noqa: PLC0414 - re-exported
from boathook.db.due_notifier import notify_due
from boathook.db.metric_samples import read_latest
from boathook.db.queries import listings
from boathook.db.queries.listings import DeliveryRow
from boathook.db.queries.listings import ListFilter as ListFilter  # noqa: PLC0414 - re-exported
from boathook.db.rerouting import RerouteResult
from boathook.db.route_registry import read_routes
from boathook.domain import ids
from boathook.domain.endpoints import RECIPIENT
from boathook.domain.errors import InvalidMessage
from boathook.domain.health import Health, HealthState
from boathook.domain.json_document import describe_fault
from boathook.domain.model import Accepted, Receipt, State
from boathook.handlers.collector import collecting_due
from boathook.handlers.outbox import Message as Message  # noqa: PLC0414 - re-exported
from boathook.handlers.outbox import Outbox, receipt_of
from boathook.observability.metric_snapshot import combine_hosts
from boathook.service.limits import check_action, check_note, check_rate
from boathook.service.operating.listings import check_event
from boathook.service.operating.recipient_stats import read_breakers, read_pause
from boathook.service.sending.event_types import check_message
from boathook.service.unit_of_work import UnitOfWork

BATCH: Final = 500
_FOLLOW_INTERVAL_S: Final = 1.0
_FRESH_S: Final = 60.0
"""Maximum age of a host's sample that says whether a circuit breaker is open."""

ProgressCallback = Callable[[int], None]
"""Called with the number processed so far."""


count_events = delivery_commands.count_events
count_dead = delivery_commands.count_dead
read_clock = delivery_commands.read_clock


async def describe_replay(database: Database | Connection, delivery: DeliveryRow, replayed: Key | None) -> str:
    """Return what a replay of one delivery did, and what its attempt waits for.

    Args:
        database: the database.
        delivery: the delivery before the replay.
        replayed: the delivery that is pending now, None if an attempt is running.
    """
    if replayed is None:
        return f"an attempt of {delivery.id} is running; nothing changed"
    name = ids.show_delivery(*replayed)
    pending = await listings.get_delivery(database, *replayed)
    obstacle = await _find_obstacle(database, delivery.recipient)
    if obstacle:
        return f"{name} is pending, but {obstacle}"
    if pending.paused_until is not None:
        return f"{name} is sent now as a probe, as its endpoint is paused; if that fails, the pause goes on"
    if delivery.state == State.PENDING:
        return f"{name} is due now"
    if name == delivery.id:
        return f"{name} is pending again, with its full number of attempts"
    return f"{delivery.recipient} has a new delivery, {name}"


async def _find_obstacle(database: Database | Connection, recipient: str) -> str:
    """Return why no worker runs a handler now; empty if none is known."""
    if recipient.startswith(RECIPIENT):
        return ""
    if all(route.recipient != recipient for route in (await read_routes(database)).routes):
        return f"no app declares {recipient}; it waits until one does"
    samples = await read_latest(database, within_s=_FRESH_S)
    latest = combine_hosts(sample.snapshot for sample in samples)
    names = [name for name, is_open in read_breakers(latest).get(recipient, {}).items() if is_open]
    if names:
        pause = Health(HealthState.PAUSED, read_pause(latest, recipient)).pause_text(datetime.now(UTC))
        return f"the circuit breaker of {', '.join(sorted(names))} is open: {pause}; it runs once a probe may"
    return ""


async def follow_replay(
    database: Database, action: AuditContext, *, since: datetime, group: UUID | None = None
) -> AsyncIterator[ReplayOutcomes]:
    """Yield what has become of the dead letters that *action* has replayed since a time, until all have ended.

    Args:
        database: the database.
        action: the actor and the note of the replay.
        since: the server's time before the replay.
        group: the group that was replayed, if one was.
    """
    until = await delivery_commands.read_clock(database)
    while True:
        outcomes = await delivery_commands.read_outcomes(
            database, action, delivery_commands.REPLAY_DEAD, since=since, until=until, group=group
        )
        yield outcomes
        if not outcomes.is_open:
            return
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


async def replay_events(
    database: Database,
    filters: ListFilter | Sequence[UUID],
    action: AuditContext,
    *,
    rate: float | None = None,
    is_once: bool = False,
    report: ProgressCallback | None = None,
) -> ReplayResult:
    """Deliver events again to every recipient without a pending delivery; dead letters are replayed instead.

    Args:
        database: the database.
        filters: the events, or a filter, which selects only events accepted before this call. Of a batch whose own type
            does not match, only the matching items are delivered again.
        action: the actor and note for the audit.
        rate: maximum number of deliveries that become due per second.
        is_once: skip what an earlier replay with the same note has processed, so that an interrupted one can be
            completed by repeating it.
        report: called with the number of events processed so far.
    """
    action, rate = check_action(action), check_rate(rate)
    start = await delivery_commands.read_clock(database)
    wanted_type = filters.type if isinstance(filters, ListFilter) else None
    total = ReplayResult()
    async for batch in _event_batches(database, filters, start):
        pace = ReplaySchedule(start, 1 / rate if rate else 0.0, total.added + total.revived)
        part = await delivery_commands.replay_events(
            database, batch, action, pace=pace, type=wanted_type, is_once=is_once
        )
        total = ReplayResult(total.events + part.events, total.added + part.added, total.revived + part.revived)
        if report is not None:
            report(total.events)
    return total


async def replay_event(work: UnitOfWork, event_id: UUID, *, note: str = "") -> ReplayResult:
    """Replay one event of the organization, as `replay_events` does, in the unit of work.

    Raises:
        NotFound: the organization has no such event.
        InvalidValue: the note is invalid.
        InvalidTransition: the event cannot have more deliveries.
    """
    action = AuditContext(actor=work.actor, note=check_note(note) or None)
    await check_event(work, event_id)
    pace = ReplaySchedule(await delivery_commands.read_clock(work.connection))
    return await delivery_commands.replay_events_in(work.connection, [event_id], action, pace=pace)


async def route_events(
    database: Database,
    filters: ListFilter | Sequence[UUID],
    action: AuditContext,
    *,
    to: str | None = None,
    rate: float | None = None,
    is_dry_run: bool = False,
    report: ProgressCallback | None = None,
) -> RerouteResult:
    """Deliver events to the handlers that match them now and never had a delivery of them.

    Repeating it adds nothing, so an interrupted run is completed by repeating it.

    Args:
        database: the database.
        filters: the events, or a filter, which selects only events accepted before this call.
        action: the actor and note for the audit.
        to: the name of the only handler to deliver to; None selects all that match.
        rate: maximum number of deliveries that become due per second.
        is_dry_run: roll back all changes and only return the counts.
        report: called with the number of events processed so far.

    Raises:
        NotFound: one of the events, or the handler, does not exist.
        InvalidTransition: an event would have more deliveries than allowed.
    """
    action, rate = check_action(action), check_rate(rate)
    start = await delivery_commands.read_clock(database)
    to = None if to is None else await routing.check_handler(database, to)
    wanted_type = filters.type if isinstance(filters, ListFilter) else None
    total = RerouteResult()
    async for batch in _event_batches(database, filters, start):
        pace = ReplaySchedule(start, 1 / rate if rate else 0.0, total.added)
        total += await routing.reroute_events(
            database, batch, action, pace=pace, to=to, type=wanted_type, is_dry_run=is_dry_run
        )
        if report is not None:
            report(total.events)
    return total


async def _event_batches(
    database: Database, filters: ListFilter | Sequence[UUID], start: datetime
) -> AsyncIterator[Sequence[UUID]]:
    if not isinstance(filters, ListFilter):
        for event_id in filters:
            await listings.get_event(database, event_id)
        for first in range(0, len(filters), BATCH):
            yield filters[first : first + BATCH]
        return
    bounded = replace(filters, until=min(start, filters.until or start))
    after = None
    while batch := await delivery_commands.page_events(database, bounded, after=after, limit=BATCH):
        yield batch
        after = batch[-1]


async def send(database: Database, settings: Settings, action: AuditContext, message: Message) -> Receipt:
    """Publish one message whose payload is the bytes of a JSON document, stored unchanged.

    Raises:
        ApplicationNotFound: there is no such application, and no handler for one of this name.
        InvalidMessage: a field is invalid, or the payload is not JSON or violates its event type's schema.
        DuplicateMessage: the application has a message with this id, but another payload.
    """
    action = check_action(action)
    document = read_payload(message)
    async with database.transaction() as connection:
        if settings.outbound.validate_payloads:
            await check_message(connection, organization=message.organization, type=message.type, payload=document)
        with collecting_due() as collector:
            published = await Outbox.of(settings.retention).publish(connection, message)
        receipt = receipt_of(message, published)
        if isinstance(receipt, Accepted):
            await record(connection, action.actor, "event.send", ids.show(ids.EVENT, receipt.event_id), action.note)
    if due := collector.take():
        await notify_due(database, due)
    return receipt


def read_payload(message: Message) -> Any:
    """Return the JSON document of a payload. Raises InvalidMessage."""
    try:
        return msgspec.json.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidMessage(describe_fault(message.payload), "payload") from None
