"""What can be done with attempts: look at them, count them, forget what was answered."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.admin import endpoints, messages
from boathook.admin.desk import Work
from boathook.domain import ids
from boathook.domain.errors import NotFound, NotPossible
from boathook.domain.windows import range_of
from boathook.journal import attempts
from boathook.journal.applications import Application
from boathook.journal.attempts import AttemptRow, Counts
from boathook.journal.audit import note

_LONGEST_COUNT: Final = timedelta(days=28)
_GRACE: Final = timedelta(minutes=5)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


async def get(work: Work, application: Application, message: str, reference: str) -> AttemptRow:
    """Return an attempt at a message. Raises NotFound."""
    found = await messages.get(work, application, message)
    identifier = _read(reference)
    row = await attempts.find(work.connection, application.shown_id, found.id, identifier) if identifier else None
    if row is None:
        raise NotFound(f"there is no attempt {reference}")
    return row


async def expunge(work: Work, application: Application, message: str, reference: str) -> None:
    """Forget what an endpoint answered to an attempt. Raises NotFound."""
    row = await get(work, application, message, reference)
    await attempts.expunge(work.connection, application.shown_id, row.message.id, row.id)
    await note(work.connection, work.actor, "attempt.expunge", ids.show(ids.ATTEMPT, row.id))


def _read(reference: str) -> UUID | None:
    try:
        return ids.read(ids.ATTEMPT, reference) if reference.startswith(f"{ids.ATTEMPT}_") else None
    except ValueError:
        return None


async def count(
    work: Work, application: Application, endpoint: str, since: datetime | None, until: datetime | None
) -> Counts:
    """Count the attempts that an endpoint saw, and what it is still owed, of a span of at most 28 days.

    Args:
        since: by default 28 days before *until*.
        until: by default now.

    Raises:
        NotFound: there is no such endpoint.
        NotPossible: the span is longer, ends before it begins, or lies in the future.
    """
    now = datetime.now(UTC)
    end = until or now
    if end > now + _GRACE:
        raise NotPossible("until lies in the future", "invalid_range")
    start = since or max(end, _EARLIEST + _LONGEST_COUNT) - _LONGEST_COUNT
    if end - start > _LONGEST_COUNT + _GRACE or start > end:
        raise NotPossible("write a time of at most 28 days that ends after it begins", "invalid_range")
    found = await endpoints.get(work, application, endpoint)
    return await attempts.count(work.connection, application.id, found.id, range_of(start, end))
