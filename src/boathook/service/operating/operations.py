"""Actions on deliveries and events: replay, ignore, purge, route and send.

Each records an audit row in the transaction of the change. Large jobs run in bounded batches, so they neither hold
locks for long nor keep a transaction open. They may be interrupted and repeated at any point: completed work is not
repeated.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from boathook.config import Settings
from boathook.db import delivery_commands
from boathook.db.audit import record
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext as AuditContext  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import Key as Key  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import ReplayOutcomes as ReplayOutcomes  # noqa: PLC0414 - re-exported
from boathook.db.delivery_commands import Selection as Selection  # noqa: PLC0414 - re-exported
from boathook.db.due_notifier import notify_due
from boathook.db.queries import listings
from boathook.db.queries.listings import DeliveryRow
from boathook.db.queries.listings import ListFilter as ListFilter  # noqa: PLC0414 - re-exported
from boathook.db.route_registry import read_routes
from boathook.domain import ids
from boathook.domain.endpoints import RECIPIENT
from boathook.domain.health import Health, HealthState
from boathook.domain.messages import Message, read_object
from boathook.domain.model import Accepted, Receipt, State
from boathook.handlers.collector import collecting_due
from boathook.handlers.outbox import Outbox, receipt_of
from boathook.service.limits import check_action
from boathook.service.sending.event_types import check_payload

BATCH: Final = 500
_FOLLOW_INTERVAL_S: Final = 1.0
_FRESH_S: Final = 60.0
"""Maximum age of a host's sample that says whether a circuit breaker is open."""

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
    obstacle = await find_obstacle(database, delivery.recipient)
    if obstacle:
        return f"{name} is pending, but {obstacle}"
    if pending.paused_until is not None:
        return f"{name} is sent now as a probe, as its endpoint is paused; if that fails, the pause goes on"
    if delivery.state == State.PENDING:
        return f"{name} is due now"
    if name == delivery.id:
        return f"{name} is pending again, with its full number of attempts"
    return f"{delivery.recipient} has a new delivery, {name}"


async def find_obstacle(database: Database | Connection, recipient: str) -> str:
    """Return why no worker runs a handler now; empty if none is known."""
    if recipient.startswith(RECIPIENT):
        return ""
    if all(route.recipient != recipient for route in (await read_routes(database)).routes):
        return f"no app declares {recipient}; it waits until one does"
    # Imported only here, as the help of commands would take longer with the statistics.
    from boathook.db.metric_samples import read_latest
    from boathook.observability.metric_snapshot import combine_hosts
    from boathook.service.operating.recipient_stats import read_breakers, read_pause

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


async def send(database: Database, settings: Settings, action: AuditContext, message: Message) -> Receipt:
    """Publish one message whose payload is the bytes of a JSON object, stored unchanged.

    Raises:
        ApplicationNotFound: there is no such application, and no handler for one of this name.
        InvalidMessage: a field is invalid, or the payload is not a JSON object or violates its event type's schema.
        DuplicateMessage: the application has a message with this id, but another payload.
    """
    action = check_action(action)
    document = read_object(message.payload)
    async with database.transaction() as connection:
        if settings.outbound.validate_payloads:
            await check_payload(connection, organization=message.organization, type=message.type, payload=document)
        with collecting_due() as collector:
            published = await Outbox.of(settings.retention).publish(connection, message)
        receipt = receipt_of(message, published)
        if isinstance(receipt, Accepted):
            await record(connection, action.actor, "event.send", ids.show(ids.EVENT, receipt.event_id), action.note)
    if due := collector.take():
        await notify_due(database, due)
    return receipt
