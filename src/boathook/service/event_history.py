"""One event, read: its headers and bytes, and what became of it."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from boathook.db.audit import record
from boathook.db.batches import JsonSlicer
from boathook.db.queries import event_history, listings
from boathook.db.queries.event_history import AttemptDetail as AttemptDetail  # noqa: PLC0414 - what these functions return
from boathook.db.queries.event_history import EventHistory as EventHistory  # noqa: PLC0414 - what these functions return
from boathook.db.queries.event_history import RecipientSideEffect as RecipientSideEffect  # noqa: PLC0414 - what these functions return
from boathook.db.queries.event_history import StoredReply as StoredReply  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import AuditRow as AuditRow  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import DeliveryRow as DeliveryRow  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import EventRow as EventRow  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import StoredRequest as StoredRequest  # noqa: PLC0414 - what these functions return
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service.unit_of_work import AppContext, UnitOfWork

_MAX_ITEM_DEPTH: Final = 50


async def read_event(
    app_context: AppContext, event_id: UUID, *, max_bytes: int | None = None
) -> tuple[EventRow, StoredRequest]:
    """Return an event with its headers and its body, or up to *max_bytes* of that. Raises NotFound."""
    if max_bytes is None:
        return await listings.get_event(app_context.database, event_id)
    return await event_history.read_event_preview(app_context.database, event_id, max_bytes)


async def cut_item(body: bytes, path: str) -> bytes:
    """Return the bytes at a dotted path of a JSON body. Raises NotFound."""
    # It may take a while, and others wait for the same event loop.
    found = body if path.count(".") > _MAX_ITEM_DEPTH else await asyncio.to_thread(JsonSlicer(body).cut, path)
    if found is body:
        raise NotFound(f"unknown item {path[:100]}")
    return found


async def read_history(
    app_context: AppContext, event_id: UUID, *, first: int = 0, only: int | None = None
) -> EventHistory:
    """Return what became of an event.

    Args:
        first: the number of the first delivery to be shown.
        only: the number of the only one.
    """
    return await event_history.read_history(app_context.database, event_id, first=first, only=only)


async def find_endpoint_url(app_context: AppContext, deliveries: Sequence[DeliveryRow]) -> str | None:
    """Return the URL of the first endpoint among the recipients; None where there is none, or it is gone."""
    recipient = next((one.recipient for one in deliveries if one.recipient.startswith("endpoint:")), None)
    return None if recipient is None else await event_history.find_url(app_context.database, recipient)


async def record_reveal(work: UnitOfWork, event_id: UUID) -> None:
    """Record in the audit that somebody was shown all headers of an event."""
    await record(work.connection, work.actor, "event.reveal_headers", ids.show(ids.EVENT, event_id))
