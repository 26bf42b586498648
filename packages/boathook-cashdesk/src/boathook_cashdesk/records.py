"""The requests that were sent to a webhook, with their responses, as shown to its owner."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from boathook import BoathookError, Transaction
from boathook_cashdesk import webhooks
from boathook_cashdesk.app import User, gettext, hook
from boathook_cashdesk.cabinet_errors import BadField, Missing
from boathook_cashdesk.webhooks import Webhook

KEPT: Final = timedelta(days=90)
"""How far back events can be listed."""
STATES: Final = ("pending", "leased", "succeeded", "dead", "ignored")
"""The states that can be selected; a delivery dropped after its last attempt is ``dead``."""


async def attempts(tx: Transaction, user: User, id: int, limit: int) -> list[dict[str, Any]]:
    """Return the latest requests to a webhook with their responses, newest first. Raises Missing."""
    webhook = await webhooks.get(tx, user, id)
    try:
        rows = await hook.operations.attempts(tx, user.application, webhook.uid, limit=limit)
    except BoathookError as error:
        if error.name != "NotFound":
            raise
        return []
    return [
        {
            "message": row.message.shown_id,
            "type": row.message.type,
            "url": row.url,
            "success": row.is_success,
            "status": row.status or None,
            "started_at": row.started_at,
            "duration_ms": row.duration_ms,
            "error": row.error,
            "response": _text(row.response),
        }
        for row in rows
    ]


async def deliveries(tx: Transaction, user: User, id: int, state: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the deliveries to a webhook in any state, newest first. Raises Missing."""
    webhook = await webhooks.get(tx, user, id)
    rows = await hook.operations.deliveries(recipient=_recipient(webhook), state=state, limit=limit)
    return [_delivery(row) for row in rows]


async def delivery(tx: Transaction, user: User, id: int, name: str) -> dict[str, Any]:
    """Return one delivery with the sent body and all its attempts. Raises Missing."""
    found = await _own(tx, user, id, name)
    tries = [
        {
            "number": row.number,
            "outcome": row.outcome,
            "code": row.code,
            "error": row.error,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
        }
        for row in found["attempts"]
    ]
    return _delivery(found["delivery"]) | {"body": _text(found["body"]), "tries": tries}


async def replay(tx: Transaction, user: User, id: int, name: str) -> bool:
    """Replay a dropped delivery; return whether it was dropped. Raises Missing."""
    await _own(tx, user, id, name)
    return bool(await hook.operations.replay([name], note=f"asked for by user {user.id} of the cabinet"))


async def _own(tx: Transaction, user: User, id: int, name: str) -> dict[str, Any]:
    """Return a delivery if it belongs to this webhook."""
    webhook = await webhooks.get(tx, user, id)
    try:
        found = await hook.operations.delivery(name)
    except BoathookError as error:
        if error.name not in {"NotFound", "InvalidValue"}:
            raise
        found = None
    if found is None or found["delivery"].recipient != _recipient(webhook):
        raise Missing(gettext("Your webhook %(id)s has no delivery %(name)s.", id=id, name=name))
    return found


def _recipient(webhook: Webhook) -> str:
    return f"endpoint:{webhook.endpoint}"


def _delivery(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "type": row.type,
        "state": row.state,
        "attempts": row.attempts,
        "due_at": row.due_at,
        "code": row.code,
        "note": row.note,
        "ended_at": row.ended_at,
    }


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")


async def events(
    tx: Transaction, user: User, since: datetime, after: str | None, types: Sequence[str], limit: int
) -> list[Any]:
    """Return the user's events since a time, oldest first: rows with id, type, time and payload. Raises BadField."""
    try:
        return list(
            await hook.operations.messages(tx, user.application, since=since, after=after, types=types, limit=limit)
        )
    except BoathookError as error:
        if error.name == "NotFound":
            return []
        if error.name != "InvalidValue":
            raise
        raise BadField("after", gettext("write the id of the last event of the page before")) from None
