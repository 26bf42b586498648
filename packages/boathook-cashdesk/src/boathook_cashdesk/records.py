"""The requests that were sent to a webhook, with their responses, as shown to its owner."""

from typing import Any, Final

from boathook import BoathookError, Transaction
from boathook_cashdesk import webhooks
from boathook_cashdesk.app import hook
from boathook_cashdesk.cabinet_errors import Missing
from boathook_cashdesk.users import User
from boathook_cashdesk.webhooks import Webhook

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
            "started_at": row.started_at.isoformat(),
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
            "started_at": row.started_at.isoformat(),
            "ended_at": row.ended_at.isoformat(),
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
        raise Missing(f"your webhook {id} has no delivery {name!r}")
    return found


def _recipient(webhook: Webhook) -> str:
    return f"endpoint:{webhook.endpoint}"


def _delivery(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "type": row.type,
        "state": row.state,
        "attempts": row.attempts,
        "due_at": row.due_at and row.due_at.isoformat(),
        "code": row.code,
        "note": row.note,
        "ended_at": row.ended_at and row.ended_at.isoformat(),
    }


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")
