"""What an organization has set up, taken out and put in: its event types, also from an OpenAPI document."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from boathook.db.event_types import EventType
from boathook.service import event_types
from boathook.service.event_types import NewEventType
from boathook.service.openapi_import import WebhookType, read_webhooks, schemas_of
from boathook.service.unit_of_work import UnitOfWork

EXPORT_VERSION: Final = 1
"""Of the form in which an environment is taken out."""
_PAGE: Final = 250


async def export_event_types(work: UnitOfWork) -> list[EventType]:
    """Return all of an organization's event types, archived ones too, by name."""
    found: list[EventType] = []
    while True:
        place = found[-1].name if found else None
        page = await event_types.list_page(work, place=place, limit=_PAGE, with_archived=True)
        found += page
        if len(page) < _PAGE:
            return found


async def import_event_types(work: UnitOfWork, types: Sequence[tuple[str, NewEventType]]) -> None:
    """Give event types these values; those that are not there are made, others stay. Raises InvalidValue."""
    for name, new in types:
        await event_types.put(work, name, new)


async def read_openapi(document: str | Mapping[str, Any]) -> list[WebhookType]:
    """Return the event types that an OpenAPI document's webhooks are, reading it in a thread.

    Raises:
        InvalidValue: it is no such document, is too large, or a schema is none.
    """
    return await asyncio.to_thread(read_webhooks, document)


async def import_openapi(
    work: UnitOfWork, named: Sequence[WebhookType], *, is_dry_run: bool = False, is_whole: bool = False
) -> list[WebhookType]:
    """Make or change the event types that an OpenAPI document's webhooks are; archived ones come back.

    Args:
        work: the transaction.
        named: what `read_openapi` has read.
        is_dry: change nothing.
        is_whole: archive the event types that the document does not name.

    Returns:
        Those that are new or were otherwise before.

    Raises:
        InvalidValue: a schema is none.
    """
    known = {one.name: one for one in await export_event_types(work)}
    changed = [one for one in named if not _is_same(known.get(one.name), one)]
    if is_dry_run:
        return changed
    for one in changed:
        await event_types.put(work, one.name, _values(known.get(one.name), one))
    if is_whole:
        names = {one.name for one in named}
        for name, type in known.items():
            if name not in names and not type.is_archived:
                await event_types.delete(work, name)
    return changed


def _values(known: EventType | None, new: WebhookType) -> NewEventType:
    return NewEventType(
        description=new.description,
        is_deprecated=new.is_deprecated,
        schemas=schemas_of(new),
        feature_flags=None if known is None else known.feature_flags,
        group_name=None if known is None else known.group_name,
    )


def _is_same(known: EventType | None, new: WebhookType) -> bool:
    if known is None or known.is_archived:
        return False
    before = (known.description, known.is_deprecated, known.schemas)
    return before == (new.description, new.is_deprecated, schemas_of(new))
