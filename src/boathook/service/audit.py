"""Searches the audit, lists the rows of one subject, and reads the head of its hash chain."""

from collections.abc import Sequence
from datetime import datetime

from boathook.db import audit
from boathook.db.audit import AuditCursor as AuditCursor  # noqa: PLC0414 - re-exported
from boathook.db.audit import AuditFilter
from boathook.db.audit import AuditPage as AuditPage  # noqa: PLC0414 - re-exported
from boathook.db.audit import ChainHead as ChainHead  # noqa: PLC0414 - re-exported
from boathook.db.queries import listings
from boathook.db.queries.listings import AuditRow as AuditRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import ListFilter
from boathook.service.unit_of_work import AppContext


async def search(
    app_context: AppContext,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: AuditCursor | None = None,
    limit: int,
) -> AuditPage:
    """Return the next matching rows, newest first, scanning for a bounded time.

    Args:
        app_context: the application context.
        actor: only rows of this actor.
        action: a pattern; ``*`` matches any characters.
        subject: only rows of this subject.
        since: only rows from this time on.
        until: only rows before this time.
        before: where the previous page ended.
        limit: the maximum number of rows.
    """
    if subject is None:
        wanted = AuditFilter(actor=actor, action=action, since=since, until=until)
        return await audit.search(app_context.database, wanted, before=before, limit=limit)
    # A subject has few rows, which are found by index.
    window = ListFilter(since=since, until=until, after=None if before is None else str(before.id), limit=limit)
    rows = await listings.list_audit(app_context.database, window, subject=subject, action=action)
    last = AuditCursor(rows[-1].at, rows[-1].id) if len(rows) == limit else None
    return AuditPage([row for row in rows if actor in {None, row.actor}], last, is_full=last is not None)


async def list_of_subject(app_context: AppContext, subject: str, *, limit: int) -> Sequence[AuditRow]:
    """Return the audit rows of one subject, newest first."""
    return await listings.list_audit(app_context.database, ListFilter(limit=limit), subject=subject)


async def list_actions(app_context: AppContext) -> Sequence[str]:
    """Return the recently recorded actions."""
    return await audit.list_actions(app_context.database)


async def read_head(app_context: AppContext) -> ChainHead | None:
    """Return the head of the hash chain; None if no row is sealed yet."""
    return await audit.read_head(app_context.database)
