"""The delivery log: received callbacks, as registered, completed or failed, and five operations on them.

The operations are list, show, replay, give up and clean up. The state of a delivery is boathook's own; the app adds its
track and result.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from msgspec.structs import asdict

from boathook_music.app import APPLICATION, SOURCE, hook

_ABOUT: Final = """
    select event_id, delivery_id, task_id, stage, code, message, state as result, note
    from music.callback where event_id = any($1) order by task_id
"""
_FORGET: Final = """
    with gone as (
        delete from music.callback where received_at < now() - $1 * interval '1 day' returning 1
    ) select count(*) from gone
"""


class DeliveryStatus(StrEnum):
    """The state of a delivery."""

    REGISTERED = "registered"
    """Received, and being handled or retried."""
    COMPLETED = "completed"
    FAILED = "failed"
    """Given up; an operator should check it."""


class Kind(StrEnum):
    """The subject of a delivery."""

    CALLBACK = "callback"
    FILE = "file"
    """A file to be stored."""


_STATES: Final[Mapping[DeliveryStatus, tuple[str, ...]]] = {
    DeliveryStatus.REGISTERED: ("pending", "leased"),
    DeliveryStatus.COMPLETED: ("succeeded", "ignored"),
    DeliveryStatus.FAILED: ("dead",),
}
_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_STANDINGS: Final = {state: standing for standing, states in _STATES.items() for state in states}


async def listed(
    *,
    standing: DeliveryStatus | None = None,
    kind: Kind = Kind.CALLBACK,
    after: str | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return deliveries, newest first; *after* is the id of the last one seen. Raises InvalidValue."""
    whose: dict[str, Any] = {"source": SOURCE} if kind is Kind.CALLBACK else {"application": APPLICATION}
    rows: list[Any] = []
    for state in (None,) if standing is None else _STATES[standing]:
        rows += await hook.operations.deliveries(**whose, state=state, after=after, limit=limit)
    # Ids ascend with time.
    rows.sort(key=lambda row: (row.event_id, row.id), reverse=True)
    return await _with_tracks(rows[:limit])


async def shown(id: str) -> dict[str, Any]:
    """Return a delivery with its attempts, headers and body. Raises NotFound, InvalidValue."""
    found = await hook.operations.delivery(id)
    row = (await _with_tracks([found["delivery"]]))[0]
    attempts = [asdict(attempt) for attempt in found["attempts"]]
    body = found["body"].decode("utf-8", "replace")
    return {**row, "attempts": attempts, "headers": dict(found["headers"]), "body": body}


async def replay(ids: Sequence[str], *, note: str | None = None) -> list[str]:
    """Retry failed deliveries; return the ids of those that had failed."""
    return await hook.operations.replay(ids, note=note)


async def give_up(ids: Sequence[str], *, note: str) -> list[str]:
    """Settle failed deliveries permanently, with a note; return the ids of those that had failed."""
    return await hook.operations.ignore(ids, note=note)


async def clean_up(days: float) -> int:
    """Delete the results of callbacks older than *days*, including those that wait for a track; return their number.

    The events themselves are kept as configured in ``[retention]``.
    """
    async with hook.transaction() as tx:
        return int(await tx.fetchval(_FORGET, days))


async def _with_tracks(rows: Sequence[Any]) -> list[dict[str, Any]]:
    if not rows:
        return []
    async with hook.transaction() as tx:
        about = await tx.fetch(_ABOUT, [_uuid(row.event_id) for row in rows])
    by_event: dict[UUID, list[dict[str, Any]]] = {}
    for one in about:
        by_event.setdefault(one["event_id"], []).append({key: value for key, value in one.items() if key != "event_id"})
    return [_row(row, by_event.get(_uuid(row.event_id), [])) for row in rows]


def _row(row: Any, tracks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = tracks[0] if tracks else {}
    return {
        "id": row.id,
        "standing": _STANDINGS[row.state].value,
        "delivery_id": first.get("delivery_id"),
        "task_id": first.get("task_id"),
        "stage": first.get("stage", row.type),
        "result": first.get("result"),
        "attempts": row.attempts,
        "code": row.code,
        "received_at": _moment(_uuid(row.event_id)),
        "note": row.note or first.get("note") or None,
        "due_at": row.due_at,
        "ended_at": row.ended_at,
        "tracks": [dict(one) for one in tracks],
        "event_id": row.event_id,
        "state": row.state,
    }


def _moment(event_id: UUID) -> datetime:
    """Return when an event was accepted: an id begins with the milliseconds since 1970."""
    return datetime.fromtimestamp((event_id.int >> 80) / 1000, UTC)


def _uuid(shown: str) -> UUID:
    """Return an id as the database stores it: the part after its prefix is Crockford's base 32."""
    number = 0
    for digit in shown.rpartition("_")[2]:
        number = number << 5 | _DIGITS.index(digit)
    return UUID(int=number)
