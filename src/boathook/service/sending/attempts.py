"""Lists, reads and counts attempts, and deletes their responses."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.db import attempts
from boathook.db.applications import Application
from boathook.db.attempts import AttemptCounts as AttemptCounts  # noqa: PLC0414 - re-exported
from boathook.db.attempts import AttemptPageRequest, OutcomeFilter
from boathook.db.attempts import AttemptRow as AttemptRow  # noqa: PLC0414 - re-exported
from boathook.db.messages import ALL_MESSAGES
from boathook.db.queries import endpoint_stats
from boathook.db.queries.endpoint_stats import AttemptSummary, SentRequest
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.domain.windows import Window, range_of
from boathook.service.sending import endpoints, messages
from boathook.service.sending.endpoints import Endpoint
from boathook.service.sending.messages import MessageFilter, MessageStatus, Page, ScanPage, scan_until_full
from boathook.service.unit_of_work import UnitOfWork

_MAX_COUNT_RANGE: Final = timedelta(days=28)
_GRACE: Final = timedelta(minutes=5)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


async def list_page(
    work: UnitOfWork,
    application: Application,
    window: Window,
    message_filter: MessageFilter = ALL_MESSAGES,
    *,
    message: str | None = None,
    endpoint: str | None = None,
    status: MessageStatus | None = None,
    status_class: int | None = None,
    limit: int,
    has_response: bool = True,
    has_payload: bool = False,
) -> Page[AttemptRow]:
    """Return a page of the attempts for a message, an endpoint, or both, newest first.

    Args:
        work: the unit of work.
        application: the application.
        window: the position and order of the page.
        message_filter: only attempts of matching messages.
        message: the message's id or uid.
        endpoint: the endpoint's id or uid.
        status: only attempts with this status; attempts end only with success or failure.
        status_class: only attempts with a response status of this class, such as 400; 0 for those without a response.
        limit: the maximum number of attempts.
        has_response: include the responses.
        has_payload: include the messages' payloads.

    Raises:
        NotFound: there is no such message or endpoint.
    """
    of_message = None if message is None else await messages.get(work, application, message)
    of_endpoint = None if endpoint is None else await endpoints.get(work, application, endpoint)
    if status not in {None, MessageStatus.SUCCESS, MessageStatus.FAIL}:
        return Page([], True)
    is_success = None if status is None else status is MessageStatus.SUCCESS
    return await attempts.list_page(
        work.connection,
        application.shown_id,
        AttemptPageRequest(
            window=window,
            wanted=message_filter,
            ended=OutcomeFilter(is_success=is_success, status_class=status_class),
            limit=limit,
            has_response=has_response,
            has_payload=has_payload,
        ),
        message_id=None if of_message is None else of_message.id,
        endpoint_id=None if of_endpoint is None else of_endpoint.id,
    )


async def search(
    work: UnitOfWork,
    endpoint: Endpoint,
    *,
    is_success: bool | None = None,
    status_class: int | None = None,
    type: str | None = None,
    before: UUID | None = None,
    limit: int,
) -> ScanPage[AttemptSummary]:
    """Return the matching attempts of an endpoint, newest first, scanning for a bounded time.

    Args:
        work: the unit of work.
        endpoint: the endpoint.
        is_success: only successful or only failed attempts.
        status_class: as for `list_page`.
        type: a pattern of the message's type; ``*`` matches any characters.
        before: where the previous page ended.
        limit: the maximum number of attempts.
    """
    return await scan_until_full(
        lambda position, limit_left: endpoint_stats.scan_attempts(
            work.connection,
            endpoint.id,
            position,
            is_success=is_success,
            status_class=status_class,
            type=type,
            limit=limit_left,
        ),
        before,
        limit,
    )


async def find_request(work: UnitOfWork, attempt: AttemptRow) -> SentRequest | None:
    """Return the request that an attempt sent; None if it is no longer stored."""
    return await endpoint_stats.find_request(work.connection, attempt.message.id, attempt.id)


async def get(work: UnitOfWork, application: Application, message: str, reference: str) -> AttemptRow:
    """Return an attempt of a message. Raises NotFound."""
    message_row = await messages.get(work, application, message)
    identifier = _read(reference)
    row = await attempts.find(work.connection, application.shown_id, message_row.id, identifier) if identifier else None
    if row is None:
        raise NotFound(f"there is no attempt {reference}")
    return row


def _read(reference: str) -> UUID | None:
    try:
        return ids.read(ids.ATTEMPT, reference) if reference.startswith(f"{ids.ATTEMPT}_") else None
    except ValueError:
        return None


async def count(
    work: UnitOfWork, application: Application, endpoint: str, since: datetime | None, until: datetime | None
) -> AttemptCounts:
    """Count the attempts of an endpoint in a range of at most 28 days, and its pending deliveries.

    Args:
        work: the unit of work.
        application: the application.
        endpoint: the endpoint's id or uid.
        since: defaults to 28 days before *until*.
        until: defaults to now.

    Raises:
        NotFound: there is no such endpoint.
        InvalidState: the range is too long, ends before it begins, or is in the future.
    """
    now = datetime.now(UTC)
    end = until or now
    if end > now + _GRACE:
        raise InvalidState("until is in the future", "invalid_range")
    start = since or max(end, _EARLIEST + _MAX_COUNT_RANGE) - _MAX_COUNT_RANGE
    if end - start > _MAX_COUNT_RANGE + _GRACE or start > end:
        raise InvalidState("use a range of at most 28 days that ends after its start", "invalid_range")
    endpoint_row = await endpoints.get(work, application, endpoint)
    return await attempts.count(work.connection, application.id, endpoint_row.id, range_of(start, end))
