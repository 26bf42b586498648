"""The handlers: record each event, write each changed object once, fetch unknown objects."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never
from uuid import UUID

from boathook import HTTP_DEFAULTS, Boathook, Breaker, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook_fleet import alerts, fetching
from boathook_fleet.app import gettext, hook
from boathook_fleet.live import publish_change
from boathook_fleet.log import Kind, Phase, add_error, logged
from boathook_fleet.owner_events import publish_price
from boathook_fleet.parse import Change, Unknown, effective_timestamp, read
from boathook_fleet.records import (
    Arrival,
    apply_changes,
    keep_announcement,
    keep_unknown,
    note_change,
    take_announcement,
)
from boathook_fleet.rentprog_api import DEPENDENCY, RateReached, RentProgApi
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Entity

CHANGED: Final = "entity.changed"
MISSING: Final = "object.missing"
RETRY: Final = RetryPolicy(first_s=0.5, max_attempts=5, max_age_s=900.0)
"""For short failures only; longer ones are handled by the retry schedule of dead letters, see `dead_letters`."""
FETCH_RETRY: Final = RetryPolicy(first_s=5.0, max_delay_s=600.0, max_attempts=500, max_age_s=86_400.0)
FETCHES: Final = 2
"""Objects fetched at the same time, by all workers."""


changes = hook.counter("fleet_changes_total", "Changes noted.", "entity", "action")
unknown = hook.counter("fleet_unknown_total", "Requests that could not be parsed.", "source")
unparsed = hook.counter("fleet_unparsed_fields_total", "Fields that were not understood.", "entity", "field")
late = hook.counter("fleet_late_changes_total", "Changes not applied, because they are older.", "entity")
missed = hook.counter("fleet_missed_changes_total", "Changes before which another one is missing.", "entity")
upserts = hook.counter("fleet_upserts_total", "Things written, each for all of its changes since.", "entity")
fetched = hook.counter("fleet_fetched_total", "Whole objects requested from RentProg.", "entity", "result")
api: Final = RentProgApi(hook)


def concurrency() -> int:
    """Return the setting, once it is known."""
    return int(hook.settings.concurrency)


@hook.on("rentprog", retry=RETRY, concurrency=concurrency)
@hook.on("umnico")
async def note(event: Event, tx: Transaction) -> Ignore | None:
    """Record an event as a change of an object, or as not understood."""
    arrival = Arrival(event_id=event.id, source=event.source or "", type=event.type, accepted_at=event.accepted_at)
    async with logged(hook, Phase.NORMALISE, event_id=event.id, payload=event.body, meta=_meta(event)):
        match read(event.body, hook.settings.zone):
            case Unknown(reason) as parsed:
                await keep_unknown(tx, arrival, parsed, event.body)
                await add_error(
                    tx, Phase.PARSE, "UNKNOWN_SHAPE", reason, kind=Kind.WARN, event_id=event.id,
                    payload=event.body, meta=_meta(event),
                )  # fmt: skip
                unknown.add(source=arrival.source)
                return Ignore(f"it could not be parsed: {reason}")
            case Change() as parsed:
                odd = TABLES[parsed.entity].unparsed(parsed.data, hook.settings.zone)
                stamp = effective_timestamp(parsed, event.accepted_at)
                if await note_change(tx, arrival, parsed, stamp, odd):
                    announcement = await announce(hook, tx, parsed.entity, parsed.id)
                    await keep_announcement(tx, announcement, arrival, event.body)
                for field in odd:
                    await _report_unparsed(tx, event, parsed, field)
                    unparsed.add(entity=parsed.entity, field=field)
                changes.add(entity=parsed.entity, action=parsed.action)
                return None
            case never:
                assert_never(never)


async def _report_unparsed(tx: Transaction, event: Event, change: Change, field: str) -> None:
    text = f"{change.entity} {change.id}: {field} was not understood; the former value stays"
    await add_error(
        tx, Phase.PARSE, "UNPARSED_FIELD", text, kind=Kind.WARN, payload=event.body, meta=_meta(event),
        event_id=event.id, entity=change.entity, entity_id=change.id,
    )  # fmt: skip
    subject = f"{change.entity} {change.id}"
    sentence = gettext("%(field)s of %(where)s was not understood; the former value stays", field=field, where=subject)
    await alerts.unparsed.fire(tx, f"{change.entity}.{field}", text=sentence)


@hook.on(None, CHANGED, application=hook.name, order_by="thing", retry=RETRY, concurrency=concurrency)
async def apply(event: Event, tx: Transaction) -> Ignore | None:
    """Write an object for all of its changes since, or have it fetched first."""
    entity, identifier = Entity(event.json["entity"]), event.json["id"]
    is_waiting, is_new = await fetching.request_object(tx, entity, identifier, hook.settings)
    if is_new:
        await hook.publish(tx, application=hook.name, type=MISSING, payload=event.json)
    if is_waiting:
        return Ignore("it is unknown, so it is fetched first")
    request = await take_announcement(tx, event.id)
    async with logged(hook, Phase.UPSERT, entity=entity, entity_id=identifier, **_about(event, request)):
        return await _write(tx, entity, identifier)


async def _write(tx: Transaction, entity: Entity, identifier: str) -> Ignore | None:
    entry, decisions = await apply_changes(tx, entity, identifier, hook.settings.zone)
    late.add(len(decisions.late), entity=entity)
    missed.add(len(decisions.gaps), entity=entity)
    if entry is None:
        return Ignore("no pending change is newer than the stored object")
    await publish_change(hook, tx, entry)
    await publish_price(hook, tx, entry)
    upserts.add(entity=entity)
    return None


@hook.on(
    None, MISSING, application=hook.name, retry=FETCH_RETRY, retry_on=HTTP_DEFAULTS, concurrency=FETCHES,
    breaker=Breaker(dependency=DEPENDENCY, errors=HTTP_DEFAULTS), timeout=300.0,
)  # fmt: skip
async def fetch(event: Event, tx: Transaction) -> Retry | None:
    """Fetch an unknown object from RentProg, and apply its updates."""
    entity, identifier, at = Entity(event.json["entity"]), event.json["id"], datetime.now(UTC)
    context = {"event_id": event.id, "payload": event.body, "entity": entity, "entity_id": identifier}
    async with logged(hook, Phase.FETCH, **context):
        try:
            fields = await api.fetch(entity, identifier, await fetching.branch_of(tx, entity, identifier))
        except RateReached as reached:
            fetched.add(entity=entity, result="rate_limited")
            return reached.retry
        result = "miss" if fields is None else "ok"
        await fetching.finish_request(tx, entity, identifier, result)
        if fields is None:
            text = "no company of fleet.branches has it; its updates are applied without it"
            await add_error(tx, Phase.FETCH, "NOT_FOUND", text, kind=Kind.WARN, **context)
        else:
            await fetching.note_object(tx, event.id, entity, identifier, fields, at, hook.settings.zone)
        fetched.add(entity=entity, result=result)
        await _write(tx, entity, identifier)
        return None


async def announce(hook: Boathook, tx: Transaction, entity: Entity, id: str) -> UUID:
    """Have the changes of an object applied soon, by an event whose id is returned."""
    receipt = await hook.publish(
        tx,
        application=hook.name,
        type=CHANGED,
        payload={"entity": entity, "id": id, "thing": f"{entity}:{id}"},
        deliver_at=datetime.now(UTC) + timedelta(seconds=hook.settings.window_s),
    )
    return receipt.event_id


def _meta(event: Event) -> dict[str, Any]:
    fields = {"source": event.source, "type": event.type, "attempt": event.attempt, "request_id": event.request_id}
    return {name: value for name, value in fields.items() if value is not None}


def _about(event: Event, request: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the error log has of a change that is not written, whose first request may be known."""
    if request is None:
        return {"event_id": event.id, "payload": event.body, "meta": _meta(event)}
    origin = {"source": request["source"], "type": request["type"]}
    body = json.dumps(request["payload"]).encode()
    return {"event_id": request["source_event_id"], "payload": body, "meta": _meta(event) | origin}
