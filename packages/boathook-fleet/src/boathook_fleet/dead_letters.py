"""Dead letters of this app: list them, decide about them, and retry them automatically.

A handler's own attempts come first, by its retry policy. Dead letters are then replayed by a schedule of hours, because
their cause seldom ends quickly. After that they are left to operators.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, assert_never

from msgspec.structs import asdict

from boathook import Boathook, BoathookError, Transaction
from boathook_app_tools.ids import read_uuid
from boathook_app_tools.statements import load_statements
from boathook_fleet.log import Kind, Phase, log_error, to_jsonb
from boathook_fleet.parse import Change, Unknown, effective_timestamp, read
from boathook_fleet.records import Arrival, apply_changes, note_change
from boathook_fleet.tables import TABLES

MAX_RETRIED: Final = 5_000
"""Maximum dead letters processed in one run."""
_OLDEST_DAYS: Final = 7_300.0
"""An upper bound; no id can contain a time before 1970."""
_PAGE: Final = 200
_ID: Final = re.compile(r"dlv_0[0-7][0-9a-hjkmnp-tv-z]{25}_[0-9]{1,4}")
"""128 bits in Crockford's base 32, and the position among its event's deliveries."""
_NO_PLAN: Final = {"replays_by_itself": 0, "next_replay_at": None, "given_up_at": None}
SQL: Final = load_statements(__file__)


class NoDeadLetter(BoathookError):
    """This app has no such dead letter."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no dead letter {id!r} here")


class NotDead(BoathookError):
    """The delivery is in another state, in which operators cannot decide about it."""

    def __init__(self, id: str, state: str) -> None:
        super().__init__(f"{id} is {state}, not dead, so there is nothing to decide")


def is_id(text: str) -> bool:
    """Return whether *text* has the format of a dead letter's id."""
    return bool(_ID.fullmatch(text))


async def list_dead(
    hook: Boathook,
    *,
    source: str | None = None,
    type: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return dead letters behind the id *after*, newest events first, each with its plan and first request.

    Only those whose first request came from *source*, and has *type*, or whose own event has; ``*`` matches any text.
    """
    rows = await hook.operations.dead_letters(recipient=_ours(hook), source=source, type=type, after=after, limit=limit)
    return [await _described(hook, await hook.operations.delivery(row.id)) for row in rows]


async def show_dead(hook: Boathook, id: str) -> dict[str, Any]:
    """Return a dead letter as `list_dead` does, with its attempts as ``tries``. Raises NoDeadLetter."""
    detail = await _find(hook, id)
    if detail["delivery"].state != "dead":
        raise NoDeadLetter(id)
    return await _described(hook, detail) | {"tries": [asdict(attempt) for attempt in detail["attempts"]]}


async def _described(hook: Boathook, detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a delivery with its plan, and the request of a sender that its chain of events began with."""
    row, first = asdict(detail["delivery"]), detail["chain"][0]
    del row["first"]
    async with hook.transaction() as tx:
        plan = await tx.fetchrow(SQL["read_plan"], row["id"])
    body = detail["body"] if detail["first_body"] is None else detail["first_body"]
    request = None
    if first.source is not None:
        names = {"event_id": read_uuid(first.event_id), "source": first.source, "type": first.type}
        request = names | {"payload": json.loads(to_jsonb(body))}
    return row | (_NO_PLAN if plan is None else dict(plan)) | {"request": request}


async def replay(hook: Boathook, id: str) -> None:
    """Replay a dead letter. Raises NoDeadLetter, NotDead."""
    await _require_dead(hook, id)
    if not await hook.operations.replay([id], note="replayed by the owner"):
        raise NotDead(id, "being handled")


async def ignore(hook: Boathook, id: str, note: str) -> None:
    """Settle a dead letter as ignored; its record is kept. Raises NoDeadLetter, NotDead."""
    await _require_dead(hook, id)
    if not await hook.operations.ignore([id], note=note):
        raise NotDead(id, "being handled")


async def _require_dead(hook: Boathook, id: str) -> None:
    state = (await _find(hook, id))["delivery"].state
    if state != "dead":
        raise NotDead(id, state)


async def _find(hook: Boathook, id: str) -> dict[str, Any]:
    """Return a delivery of this app, as `Operations.delivery` does. Raises NoDeadLetter."""
    try:
        detail = await hook.operations.delivery(id) if is_id(id) else None
    except BoathookError as error:
        if error.name not in {"NotFound", "InvalidValue"}:
            raise
        detail = None
    if detail is None or not detail["delivery"].recipient.startswith(f"handler:{hook.name}."):
        raise NoDeadLetter(id)
    return detail


class _Undo(Exception):
    """Ends the transaction of a dry run."""


async def dry_run(hook: Boathook, id: str) -> str:
    """Handle the first request of a dead letter in a transaction that is undone; log and return the result.

    Raises:
        NoDeadLetter: there is none.
    """
    request = (await show_dead(hook, id))["request"]
    if request is None:
        return "it has no request of a sender, so it can only be replayed"
    body, result = json.dumps(request["payload"]).encode(), ""
    arrival = Arrival(
        event_id=request["event_id"], source=request["source"], type=request["type"], accepted_at=datetime.now(UTC)
    )
    try:
        async with hook.transaction() as tx:
            result = await _handle(tx, arrival, body, hook.settings.zone)
            raise _Undo
    except _Undo:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it fails with is the result
        result = f"it fails: {type(error).__name__}: {error}"
    meta = {"source": arrival.source, "type": arrival.type, "delivery": id}
    await log_error(
        hook, Phase.REPLAY, "DRY_RUN", result, kind=Kind.DRY_RUN, payload=body, meta=meta, event_id=arrival.event_id
    )
    return result


async def _handle(tx: Transaction, arrival: Arrival, body: bytes, zone: tzinfo) -> str:
    match read(body, zone):
        case Unknown(reason):
            return f"it is not understood: {reason}"
        case Change() as change:
            unparsed = TABLES[change.entity].unparsed(change.data, zone)
            await note_change(tx, arrival, change, effective_timestamp(change, arrival.accepted_at), unparsed)
            entry, _ = await apply_changes(tx, change.entity, change.id, zone)
            if entry is None:
                return "nothing is left to write"
            return f"it works: {entry.description}" + (f"; not understood: {', '.join(unparsed)}" if unparsed else "")
        case never:
            assert_never(never)


async def ignore_old(hook: Boathook, *, days: float) -> list[str]:
    """Settle as ignored all deliveries that have been dead for more than *days*; return their ids."""
    until = datetime.now(UTC) - timedelta(days=min(days, _OLDEST_DAYS))
    old = [row.id async for row in _all_dead(hook, until=until) if row.ended_at and row.ended_at < until]
    return await hook.operations.ignore(old, note=f"cleaned up: dead for more than {days:g} days") if old else []


async def process_dead_letters(hook: Boathook) -> list[str]:
    """Schedule and replay dead letters; return those that are left to operators from now on."""
    dead = [row async for row in _all_dead(hook)]
    waits = list(hook.settings.dead_retry_s)
    async with hook.transaction() as tx:
        given_up = await tx.fetch(SQL["take_in"], [row.id for row in dead], [row.recipient for row in dead], waits)
        # Counted before the replay: a crash in between loses one replay, not the count.
        due = await tx.fetch(SQL["take_due"])
    if due:
        await hook.operations.replay([row["delivery_id"] for row in due], note="replayed automatically")
    return [row["delivery_id"] for row in given_up]


def _ours(hook: Boathook) -> str:
    return f"handler:{hook.name}.*"


async def _all_dead(hook: Boathook, until: datetime | None = None) -> AsyncIterator[Any]:
    after, seen = None, 0
    while seen < MAX_RETRIED:
        page = await hook.operations.deliveries(
            recipient=_ours(hook), state="dead", until=until, after=after, limit=_PAGE
        )
        for row in page:
            yield row
        if len(page) < _PAGE:
            return
        after, seen = page[-1].id, seen + len(page)
