"""Refused requests: listed, explained, and judged again once their source was corrected."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from boathook.db.delivery_commands import AuditContext
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter, StoredRequest
from boathook.db.queries.listings import RejectionRow as RejectionRow  # noqa: PLC0414 - what these functions return
from boathook.domain import ids
from boathook.service.unit_of_work import AppContext

if TYPE_CHECKING:
    from boathook.service.diagnosis import DiagnosedRejection
    from boathook.service.reverification import ReverifyResult

# What judges requests takes long to import, and most pages do without it; so it is imported where it is used.


async def list_page(
    app_context: AppContext,
    *,
    source: str | None = None,
    reason: str | None = None,
    state: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: UUID | None = None,
    limit: int,
) -> Sequence[RejectionRow]:
    """Return refused requests, newest first.

    Args:
        state: ``open`` for those that are no event, ``accepted`` for those that were judged again and are one.
        after: the last one of the page before.
    """
    wanted = ListFilter(
        source=source, code=reason, state=state, since=since, until=until, after=_shown(after), limit=limit
    )
    return await listings.list_rejections(app_context.database, wanted)


async def get(app_context: AppContext, rejection_id: UUID) -> tuple[RejectionRow, StoredRequest]:
    """Return a refused request with its headers and bytes. Raises NotFound."""
    return await listings.get_rejection(app_context.database, rejection_id)


async def diagnose(app_context: AppContext, rejection_id: UUID) -> "DiagnosedRejection":
    """Return a refused request with why it was refused; nothing is stored. Raises NotFound."""
    from boathook.service import diagnosis

    return await diagnosis.diagnose(app_context.database, app_context.settings, rejection_id)


async def reverify(app_context: AppContext, rejection_id: UUID, *, actor: str) -> "ReverifyResult":
    """Judge a refused request again by its source's present secrets; accept it if it holds.

    Raises:
        NotFound: there is no such request.
        ConfigError: its source cannot be set up.
    """
    (result,) = [one async for one in _reverify(app_context, [rejection_id], actor)]
    return result


def reverify_source(
    app_context: AppContext, source: str, *, actor: str, until: datetime | None = None, after: UUID | None = None
) -> "AsyncGenerator[ReverifyResult, None]":
    """Judge all open requests of a source again, newest first, and yield what each led to. Raises ConfigError.

    Args:
        after: where an earlier run ended.
    """
    return _reverify(app_context, ListFilter(source=source, until=until, after=_shown(after)), actor)


def _reverify(
    app_context: AppContext, chosen: ListFilter | Sequence[UUID], actor: str
) -> "AsyncGenerator[ReverifyResult, None]":
    from boathook.service import reverification

    return reverification.reverify(app_context.database, app_context.settings, chosen, AuditContext(actor=actor))


def _shown(rejection_id: UUID | None) -> str | None:
    return None if rejection_id is None else ids.show(ids.REJECTION, rejection_id)
