"""Pages that list an endpoint's attempts and an application's messages; an endpoint's status."""

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from starlette.responses import Response

from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.health import HealthState
from boathook.domain.plurals import counted
from boathook.domain.windows import after_message
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import endpoints as operations
from boathook.service.operating.recipient_stats import EndpointStatus
from boathook.service.sending import attempts, endpoints, messages
from boathook.service.sending.applications import Application
from boathook.service.sending.endpoints import Endpoint
from boathook.service.sending.messages import MessageRow, ScanPage
from boathook.service.unit_of_work import UnitOfWork
from boathook_console.shared.context import ApplicationScope, Pages


def health_sentence(
    endpoint: Endpoint, status: EndpointStatus, now: datetime, *, settings: Settings, disabler: str | None = None
) -> str:
    """Return what the health of an endpoint means.

    Args:
        disabler: the display name of the user who disabled it.
    """
    failures = status.failures
    since = "" if failures.failing_since is None else f" since {_format_time(failures.failing_since)}"
    failed = f"The last {_format_attempts(failures.failures)} failed{since and ','}{since}"
    match status.health.state:
        case HealthState.DISABLED:
            return _why_disabled(endpoint, settings, disabler)
        case HealthState.PAUSED:
            return f"{counted(failures.failures, 'consecutive failure')}{since}; {status.health.pause_text(now)}."
        case HealthState.FAILING:
            return f"{failed}; it is tried on."
        case HealthState.IDLE:
            return f"No attempts in the range. {failed}." if failures.failures else "No attempts in the range."
        case _:
            return "Healthy."


def _why_disabled(endpoint: Endpoint, settings: Settings, disabler: str | None) -> str:
    match endpoint.disabled_because:
        case "gone":
            return "Disabled: the endpoint responded 410 Gone."
        case "failing":
            days = settings.outbound.disable_after_days
            return f"Disabled: every attempt failed for {days:g} days."
        case _:
            return f"Disabled by {disabler or 'an operator'}. Pending deliveries are kept."


def name_disabler(actor: str | None, *, is_portal: bool) -> str | None:
    """Return the display name of an actor for the reader."""
    origin, _, user = (actor or "").partition(":")
    if is_portal:
        return "a portal user" if origin == "portal" else "the operator" if actor else None
    names = {
        "console": f"{user}, in the console",
        "cli": f"{user}, on the command line",
        "portal": f"a portal user ({user})",
        "api": f"the API ({user})",
        "operator": f"{user.rpartition('/')[0]}, by a token",
    }
    return names.get(origin, actor)


def _format_attempts(number: int) -> str:
    return "attempt" if number == 1 else counted(number, "attempt")


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


pages = Pages()

_PAGE: Final = 50
_STATUS_CLASSES: Final = {"none": 0, "2xx": 200, "3xx": 300, "4xx": 400, "5xx": 500}
_MAX_SHOWN_BYTES: Final = 65_536
"""Maximum bytes of a payload on a page; the whole payload can be downloaded."""


def _pagination(found_page: ScanPage[Any], scope: ApplicationScope, prefix: str) -> dict[str, Any]:
    """Return the template values for the next page of a list."""
    if found_page.place is None:
        return {"more": "", "looked_until": None, "is_full": True}
    parameters = [(name, value) for name, value in scope.context.query.multi_items() if name != "before"]
    query = urlencode([*parameters, ("before", ids.show(prefix, found_page.place))])
    until: datetime = ids.created_at(found_page.place)
    return {"more": f"?{query}", "looked_until": until, "is_full": len(found_page.rows) >= _PAGE}


def _read_cursor(scope: ApplicationScope, prefix: str) -> UUID | None:
    text = scope.context.query.get("before", "")
    try:
        return ids.read(prefix, text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "before") from None


def _query_text(scope: ApplicationScope, name: str) -> str | None:
    text = scope.context.query.get(name, "").strip()
    if "\x00" in text:
        raise InvalidValue("it must not contain control characters", name)
    return text or None


@pages.get("/endpoints/{endpoint}/attempts", Permission.MESSAGE_VIEW)
async def list_attempts(scope: ApplicationScope) -> Response:
    """Show an endpoint's attempts, newest first."""
    result, answered, type = (_query_text(scope, name) for name in ("result", "answer", "type"))
    async with scope.work() as (work, application):
        endpoint = await endpoints.get(work, application, scope.context.path["endpoint"])
        found_page = await attempts.search(
            work,
            endpoint,
            is_success={"succeeded": True, "failed": False}.get(result or ""),
            status_class=_STATUS_CLASSES.get(answered or ""),
            type=type,
            before=_read_cursor(scope, ids.ATTEMPT),
            limit=_PAGE,
        )
    selection = {"result": result or "", "answer": answered or "", "type": type or ""}
    return scope.page(
        "endpoints/attempts.html",
        application=application,
        endpoint=endpoint,
        rows=found_page.rows,
        wanted=selection,
        **_pagination(found_page, scope, ids.ATTEMPT),
    )


@pages.get("/endpoints/{endpoint}/attempts/{message}/{attempt}", Permission.MESSAGE_VIEW)
async def show_attempt(scope: ApplicationScope) -> Response:
    """Show the request and the response of an attempt."""
    path = scope.context.path
    async with scope.work() as (work, application):
        endpoint = await endpoints.get(work, application, path["endpoint"])
        row = await attempts.get(work, application, path["message"], path["attempt"])
        request = await attempts.find_request(work, row)
    if row.endpoint_id != endpoint.id or request is None:
        raise InvalidValue("this attempt belongs to another endpoint", "attempt")
    return scope.page(
        "endpoints/attempt.html",
        application=application,
        endpoint=endpoint,
        row=row,
        attempt_id=path["attempt"],
        at=row.started_at,
        request=request,
        headers=request.headers,
        answer=_text_of(row.response),
        payload=_payload_of(row.message),
    )


@pages.get("/messages", Permission.MESSAGE_VIEW)
async def list_messages(scope: ApplicationScope) -> Response:
    """Show an application's messages, newest first."""
    type, channel, wanted_id = (_query_text(scope, name) for name in ("type", "channel", "id"))
    async with scope.work() as (work, application):
        if wanted_id is not None:
            return await _find_message(scope, work, application, wanted_id)
        before = _read_cursor(scope, ids.MESSAGE)
        found_page = await messages.search(work, application, type=type, channel=channel, before=before, limit=_PAGE)
    return scope.page(
        "applications/messages.html",
        application=application,
        rows=found_page.rows,
        wanted={"type": type or "", "channel": channel or "", "id": ""},
        **_pagination(found_page, scope, ids.MESSAGE),
    )


async def _find_message(
    scope: ApplicationScope, work: UnitOfWork, application: Application, reference: str
) -> Response:
    message = await messages.get(work, application, reference)
    return scope.to(f"/messages/{message.shown_id}")


@pages.get("/messages/{message}", Permission.MESSAGE_VIEW)
async def show_message(scope: ApplicationScope) -> Response:
    """Show a message, its status at each endpoint, and its attempts."""
    async with scope.work() as (work, application):
        message = await messages.get(work, application, scope.context.path["message"])
        destinations = await messages.list_destinations(work, application, message.shown_id, limit=_PAGE)
        window = after_message(message.id, datetime.now(UTC))
        tries = await attempts.list_page(
            work, application, window, message=message.shown_id, limit=_PAGE, has_response=False
        )
    return scope.page(
        "applications/message.html",
        application=application,
        message=message,
        at=ids.created_at(message.id),
        payload=_payload_of(message),
        size=len(message.body or b""),
        destinations=destinations.rows,
        attempts=[(ids.show(ids.ATTEMPT, row.id), ids.show(ids.ENDPOINT, row.endpoint_id), ids.created_at(row.id), row)
                  for row in tries.rows],
        event=ids.show(ids.EVENT, message.id),
        endpoint_name=lambda endpoint_id: ids.show(ids.ENDPOINT, endpoint_id),
    )  # fmt: skip


@pages.get("/messages/{message}/payload", Permission.MESSAGE_VIEW)
async def download_payload(scope: ApplicationScope) -> Response:
    """Download a message's payload, byte for byte."""
    async with scope.work() as (work, application):
        message = await messages.get(work, application, scope.context.path["message"])
    headers = {"content-disposition": f'attachment; filename="{message.shown_id}.json"'}
    return Response(message.body or b"", media_type="application/octet-stream", headers=headers)


@pages.post("/messages/{message}/resend", Permission.MESSAGE_RESEND)
async def resend(scope: ApplicationScope) -> Response:
    """Resend a message to one endpoint."""
    async with scope.work() as (work, application):
        message = await messages.get(work, application, scope.context.path["message"])
        resend = operations.Resend(
            application=application.shown_id, message=message.shown_id, id=scope.field("endpoint")
        )
        await operations.resend(work, resend)
    return scope.to(f"/messages/{message.shown_id}", "Message queued again.")


def _payload_of(message: MessageRow) -> str | None:
    """Return a payload as formatted text; None if it was deleted."""
    if message.is_gone or message.body is None:
        return None
    body = message.body[:_MAX_SHOWN_BYTES]
    if len(message.body) <= _MAX_SHOWN_BYTES:
        try:
            return msgspec.json.format(body, indent=2).decode()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    return _text_of(body)


def _text_of(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")
