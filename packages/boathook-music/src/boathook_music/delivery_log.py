"""The delivery log: boathook's deliveries of callbacks and files, with the track and the result of each."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from msgspec.structs import asdict

from boathook_app_tools.statements import load_statements
from boathook_music.app import APPLICATION, SOURCE, hook

SQL: Final = load_statements(__file__)
_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"


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


_STATES: Final = {
    DeliveryStatus.REGISTERED: ("pending", "leased"),
    DeliveryStatus.COMPLETED: ("succeeded", "ignored"),
    DeliveryStatus.FAILED: ("dead",),
}
_STATUSES: Final = {state: status for status, states in _STATES.items() for state in states}


async def listed(
    *,
    status: DeliveryStatus | None = None,
    kind: Kind = Kind.CALLBACK,
    after: str | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return deliveries, newest first; *after* is the id of the last one seen. Raises InvalidValue."""
    whose: dict[str, Any] = {"source": SOURCE} if kind is Kind.CALLBACK else {"application": APPLICATION}
    rows: list[Any] = []
    for state in _STATES[status] if status else (None,):
        rows += await hook.operations.deliveries(**whose, state=state, after=after, limit=limit)
    # Ids ascend with time.
    rows.sort(key=lambda row: (row.event_id, row.id), reverse=True)
    return await _with_tracks(rows[:limit])


async def shown(id: str) -> dict[str, Any]:
    """Return a delivery with its attempts, headers and body. Raises NotFound, InvalidValue."""
    found = await hook.operations.delivery(id)
    (row,) = await _with_tracks([found["delivery"]])
    attempts = [asdict(attempt) for attempt in found["attempts"]]
    body = found["body"].decode("utf-8", "replace")
    return {**row, "attempts": attempts, "headers": dict(found["headers"]), "body": body}


async def clean_up(days: float) -> int:
    """Delete the results of callbacks older than *days*, including those that wait for a track; return their number.

    The events themselves are kept as configured in ``[retention]``.
    """
    async with hook.transaction() as tx:
        return int(await tx.fetchval(SQL["forget_callbacks"], days))


async def _with_tracks(rows: Sequence[Any]) -> list[dict[str, Any]]:
    tracks: dict[UUID, list[Mapping[str, Any]]] = {_uuid(row.event_id): [] for row in rows}
    async with hook.transaction() as tx:
        for record in await tx.fetch(SQL["list_callbacks"], list(tracks)):
            values = dict(record)
            tracks[values.pop("event_id")].append(values)
    return [_row(row, _uuid(row.event_id), tracks[_uuid(row.event_id)]) for row in rows]


def _row(row: Any, event_id: UUID, tracks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = tracks[0] if tracks else {}
    return {
        "id": row.id,
        "standing": _STATUSES[row.state].value,
        **{name: first.get(name) for name in ("delivery_id", "task_id")},
        "stage": first.get("stage", row.type),
        "result": first.get("result"),
        "attempts": row.attempts,
        "code": row.code,
        # An id begins with the milliseconds since 1970.
        "received_at": datetime.fromtimestamp((event_id.int >> 80) / 1000, UTC),
        "note": row.note or first.get("note") or None,
        **{name: getattr(row, name) for name in ("due_at", "ended_at")},
        "tracks": list(tracks),
        **{name: getattr(row, name) for name in ("event_id", "state")},
    }


def _uuid(shown: str) -> UUID:
    """Return an id as the database stores it: the part after its prefix is Crockford's base 32."""
    number = 0
    for digit in shown.rpartition("_")[2]:
        number = number << 5 | _DIGITS.index(digit)
    return UUID(int=number)
