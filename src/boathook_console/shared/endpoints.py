"""Pages of endpoints: list, create, edit, enable, disable, delete and test them, their secrets, and replays to them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from msgspec.structs import asdict
from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound, SecretUnreadable
from boathook.domain.windows import after_message
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import endpoints as operations
from boathook.service.catalogue import recovery
from boathook.service.catalogue.endpoints import EndpointNamed
from boathook.service.catalogue.recovery import Span, StartedTask
from boathook.service.operating import recipient_stats, tasks
from boathook.service.operating.recipient_stats import DEFAULT_RANGE, STATS_RANGES
from boathook.service.operating.tasks import Task, TaskOperation, TaskState
from boathook.service.schemas.endpoints import EndpointIn, EndpointPatch
from boathook.service.sending import attempts, destinations, endpoint_secrets, endpoints, event_types, messages
from boathook.service.sending.applications import Application, PageRequest
from boathook.service.sending.attempts import AttemptRow
from boathook.service.sending.destinations import DestinationForm
from boathook.service.sending.endpoint_fields import NewEndpoint
from boathook.service.sending.endpoints import Backlog, Endpoint
from boathook.service.sending.event_types import EventType
from boathook.service.unit_of_work import UnitOfWork
from boathook_console.shared import query_params
from boathook_console.shared.attempt_charts import attempt_values, read_range
from boathook_console.shared.context import ApplicationScope, Pages
from boathook_console.shared.endpoint_forms import (
    FORM_ERRORS,
    NEW_ENDPOINT_VALUES,
    RETRY_PRESET_NAMES,
    FormReader,
    auth_document,
    build_tree,
    destination_document,
    destination_values,
    endpoint_document,
    endpoint_values,
    form_fields,
    form_problems,
    has_url,
    submitted_values,
    tree_values,
)
from boathook_console.shared.endpoint_lists import health_sentence, name_disabler
from boathook_console.shared.verification_examples import VERIFICATION_EXAMPLES, VerificationExample

pages = Pages()
_GRACE_PERIODS: Final = (("0", "0 seconds"), ("3600", "one hour"), ("86400", "one day"), ("604800", "one week"))
"""How long an old secret can stay valid: seconds, and the label in the form."""

_MAX_SHOWN: Final = 100
_MAX_TYPES: Final = 500
_MAX_RECENT: Final = 10
_MAIN_FIELDS: Final = frozenset({"", "url", "destination", "eventTypes"})
"""The fields of a form that are always visible, and errors without a field; the others are below Advanced."""


@pages.get("/endpoints", Permission.ENDPOINT_VIEW)
async def list_endpoints(scope: ApplicationScope) -> Response:
    """Show an application's endpoints, newest first."""
    async with scope.work() as (work, application):
        rows, more = await list_rows(scope, work, application)
    return scope.page("endpoints/list.html", application=application, rows=rows, more=more)


async def list_rows(
    scope: ApplicationScope, work: UnitOfWork, application: Application
) -> tuple[list[Mapping[str, Any]], str]:
    """Return a page of an application's endpoints with their status, and the cursor of the next page."""
    text = scope.context.query.get("before", "")
    try:
        cursor = ids.read(ids.ENDPOINT, text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "before") from None
    page_rows = await endpoints.list_page(work, application, PageRequest(cursor, False, _MAX_SHOWN))
    now, settings = datetime.now(UTC), scope.context.app_context.settings
    statuses = await recipient_stats.read_endpoint_statuses(work, page_rows)
    rows: list[Mapping[str, Any]] = [
        {
            "endpoint": endpoint,
            "health": statuses[endpoint.id].health,
            "sentence": health_sentence(endpoint, statuses[endpoint.id], now, settings=settings),
        }
        for endpoint in page_rows
    ]
    return rows, page_rows[-1].shown_id if len(page_rows) == _MAX_SHOWN else ""


@pages.get("/endpoints/new", Permission.ENDPOINT_MANAGE)
async def show_form_for_new(scope: ApplicationScope) -> Response:
    """Show the form for a new endpoint."""
    async with scope.work() as (work, application):
        types, forms = await _list_types(scope, work), destinations.list_forms(work)
    return _form(scope, application, None, types, NEW_ENDPOINT_VALUES, forms)


@pages.post("/endpoints", Permission.ENDPOINT_MANAGE)
async def create_endpoint(scope: ApplicationScope) -> Response:
    """Create an endpoint."""
    reader = FormReader(scope.context.form)
    try:
        async with scope.work() as (work, application):
            document = endpoint_document(reader) | {
                "auth": auth_document(reader) or None,
                "headers": reader.pairs("headers", ":"),
                "secret": reader.text("secret") or None,
                "disabled": bool(reader.text("disabled")),
                **destination_document(reader, destinations.list_forms(work)),
            }
            body = reader.validate(EndpointIn, document)
            new = operations.EndpointCreate(application=application.shown_id, **asdict(body.value()))
            endpoint = await operations.create(work, new)
    except FORM_ERRORS as error:
        return await _show_form_problems(scope, None, form_problems(error, reader.text("destination")))
    return scope.to(f"/endpoints/{endpoint.id}", "Endpoint created. It receives messages published from now on.")


@pages.get("/endpoints/{endpoint}", Permission.ENDPOINT_VIEW)
async def show_endpoint(scope: ApplicationScope) -> Response:
    """Show an endpoint: its status, statistics and actions."""
    now, range_name = datetime.now(UTC), read_range(scope.context.query, DEFAULT_RANGE)
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        stats = await recipient_stats.read_endpoint(work, endpoint, STATS_RANGES[range_name], now)
        recent = await attempts.search(work, endpoint, limit=_MAX_RECENT)
        types = await list_type_names(scope, work)
        encrypted = _secret_names(work, endpoint)
    sentence = health_sentence(
        endpoint,
        stats.status,
        now,
        settings=scope.context.app_context.settings,
        disabler=name_disabler(stats.disabled_by, is_portal=scope.is_portal),
    )
    return scope.page(
        "endpoints/show.html",
        application=application,
        endpoint=endpoint,
        destination=None if destinations.has_url(endpoint) else endpoint.destination_fields,
        health=stats.status.health,
        sentence=sentence,
        graces=_GRACE_PERIODS,
        retry=_retry_words(endpoint),
        day_ago=f"{now - timedelta(days=1):%Y-%m-%dT%H:%M}",
        secrets=stats.secrets,
        backlog=stats.backlog,
        breakers={"": stats.status.failures.open_until is not None},
        failures=stats.failures,
        recent=recent.rows,
        types=types,
        verification_examples=_verification_examples(scope),
        **attempt_values(stats.attempts, range_name),
        **encrypted,
    )


def _verification_examples(scope: ApplicationScope) -> tuple[VerificationExample, ...]:
    """Return the examples, whose libraries read the headers of Standard Webhooks only."""
    prefixes = scope.context.app_context.settings.outbound.header_prefixes
    return VERIFICATION_EXAMPLES if "webhook" in prefixes else ()


def _secret_names(work: UnitOfWork, endpoint: Endpoint) -> Mapping[str, Any]:
    """Return the names of encrypted headers and credentials; the values are not shown."""
    try:
        kinds, names = sorted(endpoints.decrypt_auth(work, endpoint)), sorted(endpoints.decrypt_headers(work, endpoint))
    except SecretUnreadable as error:
        return {"auth": [], "header_names": [], "unreadable": str(error)}
    return {"auth": kinds, "header_names": names, "unreadable": ""}


def _retry_words(endpoint: Endpoint) -> str:
    if endpoint.retry is None:
        return ""
    return endpoint.retry_name or ", ".join(f"{wait:g} s" for wait in endpoint.retry.delays_s or ())


@pages.get("/endpoints/{endpoint}/edit", Permission.ENDPOINT_MANAGE)
async def show_form(scope: ApplicationScope) -> Response:
    """Show the form of an endpoint."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        types, forms = await _list_types(scope, work), destinations.list_forms(work)
        encrypted = _secret_names(work, endpoint)
    values = endpoint_values(endpoint, frozenset(tree_values(build_tree(types)))) | destination_values(endpoint, forms)
    if not destinations.has_url(endpoint):
        values["url"] = ""
    return _form(scope, application, endpoint, types, values, forms, encrypted=encrypted)


@pages.post("/endpoints/{endpoint}/edit", Permission.ENDPOINT_MANAGE)
async def change_endpoint(scope: ApplicationScope) -> Response:
    """Update an endpoint."""
    reference = scope.context.path["endpoint"]
    reader = FormReader(scope.context.form)
    try:
        async with scope.work() as (work, application):
            endpoint = await endpoints.lock(work, application, reference)
            auth = auth_document(reader, partial(endpoints.decrypt_auth, work, endpoint))
            document = endpoint_document(reader) | ({} if auth is None else {"auth": auth or None})
            forms = destinations.list_forms(work)
            document |= destination_document(reader, forms)
            if not document["url"] and not has_url(reader, forms):
                del document["url"]
            headers, removed = reader.pairs("headers", ":"), reader.texts("removeHeaders")
            changes = reader.validate(EndpointPatch, document).value()
            await operations.update(work, operations.EndpointChange(**named(scope, application), **changes))
            if headers or removed:
                await endpoint_secrets.change_headers(work, application, reference, headers, removed)
    except FORM_ERRORS as error:
        return await _show_form_problems(scope, reference, form_problems(error, reader.text("destination")))
    return scope.to(f"/endpoints/{endpoint.shown_id}", "Changes saved.")


async def _show_form_problems(scope: ApplicationScope, reference: str | None, problems: Mapping[str, str]) -> Response:
    """Show the form again, with each error at its field."""
    async with scope.work() as (work, application):
        endpoint = None if reference is None else await endpoints.get(work, application, reference)
        encrypted = None if endpoint is None else _secret_names(work, endpoint)
        types, forms = await _list_types(scope, work), destinations.list_forms(work)
    values = {**NEW_ENDPOINT_VALUES, **submitted_values(scope.context.form)}
    return _form(scope, application, endpoint, types, values, forms, problems, status=400, encrypted=encrypted)


def _form(
    scope: ApplicationScope,
    application: Application,
    endpoint: Endpoint | None,
    types: Sequence[EventType],
    values: Mapping[str, Any],
    forms: Sequence[DestinationForm],
    problems: Mapping[str, str] | None = None,
    *,
    status: int = 200,
    encrypted: Mapping[str, Any] | None = None,
) -> Response:
    return scope.page(
        "endpoints/form.html",
        status,
        application=application,
        endpoint=endpoint,
        tree=build_tree(types),
        presets=RETRY_PRESET_NAMES,
        fields=form_fields(NewEndpoint),
        values=values,
        problems=problems or {},
        is_advanced_wrong=any(name.partition(".")[0] not in _MAIN_FIELDS for name in problems or {}),
        destinations=forms,
        is_fixed=endpoint is not None and endpoint.destination not in {form.name for form in forms},
        encrypted=encrypted or {"auth": [], "header_names": [], "unreadable": ""},
    )


async def list_type_names(scope: ApplicationScope, work: UnitOfWork) -> list[str]:
    """Return the event types that the visitor may see and endpoints can subscribe to."""
    return [event_type.name for event_type in await _list_types(scope, work)]


async def _list_types(scope: ApplicationScope, work: UnitOfWork) -> list[EventType]:
    return await event_types.list_page(work, limit=_MAX_TYPES, flags=scope.flags)


def named(scope: ApplicationScope, application: Application) -> dict[str, Any]:
    """Return the application and the endpoint of a page as the inputs of operations have them."""
    return {"application": application.shown_id, "id": scope.context.path["endpoint"]}


@pages.post("/endpoints/{endpoint}/disable", Permission.ENDPOINT_MANAGE)
async def disable_endpoint(scope: ApplicationScope) -> Response:
    """Disable an endpoint; its pending deliveries are kept."""
    async with scope.work() as (work, application):
        disabled = await operations.disable(work, EndpointNamed(**named(scope, application)))
    scope.context.app_context.notify_due()
    return scope.to(f"/endpoints/{disabled.id}", "Endpoint disabled. Pending deliveries are kept.")


@pages.post("/endpoints/{endpoint}/enable", Permission.ENDPOINT_MANAGE)
async def enable_endpoint(scope: ApplicationScope) -> Response:
    """Enable an endpoint and reset its failure count."""
    backlog = Backlog.CANCEL if scope.field("backlog") == "cancel" else Backlog.SEND
    async with scope.work() as (work, application):
        enabled = await operations.enable(work, operations.Enabling(**named(scope, application), backlog=backlog))
    scope.context.app_context.notify_due()
    return scope.to(f"/endpoints/{enabled.id}", "Endpoint enabled and its failure count reset.")


@pages.post("/endpoints/{endpoint}/resume", Permission.ENDPOINT_MANAGE)
async def resume_endpoint(scope: ApplicationScope) -> Response:
    """End the pause of an endpoint and reset its failure count."""
    async with scope.work() as (work, application):
        resumed = await operations.resume(work, EndpointNamed(**named(scope, application)))
    scope.context.app_context.notify_due()
    return scope.to(f"/endpoints/{resumed.id}", "Endpoint resumed and its failure count reset.")


@pages.post("/endpoints/{endpoint}/delete", Permission.ENDPOINT_MANAGE)
async def delete_endpoint(scope: ApplicationScope) -> Response:
    """Delete an endpoint after the user has typed its id or uid."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        if scope.field("typed").strip() not in {endpoint.shown_id, endpoint.uid or endpoint.shown_id}:
            name = endpoint.uid or endpoint.shown_id
            return scope.to(f"/endpoints/{endpoint.shown_id}", f"Nothing was deleted: type {name} to confirm.", "bad")
        await operations.delete(work, EndpointNamed(**named(scope, application)))
    return scope.to("/endpoints" if scope.is_portal else "", f"{endpoint.shown_id} is deleted.")


async def _get(scope: ApplicationScope, work: UnitOfWork, application: Application) -> Endpoint:
    return await endpoints.get(work, application, scope.context.path["endpoint"])


@pages.post("/endpoints/{endpoint}/secret", Permission.ENDPOINT_SECRET_VIEW)
async def reveal_secret(scope: ApplicationScope) -> Response:
    """Show the verification secret; the access is recorded in the audit log."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        revealed = await operations.reveal_secret(work, EndpointNamed(**named(scope, application)))
    return scope.page("endpoints/secret.html", application=application, endpoint=endpoint, secret=revealed.key)


@pages.post("/endpoints/{endpoint}/headers", Permission.ENDPOINT_HEADERS_VIEW)
async def reveal_headers(scope: ApplicationScope) -> Response:
    """Show the headers sent with each message, without credentials; the access is recorded in the audit log."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        headers = await endpoint_secrets.reveal_headers(work, application, endpoint.shown_id)
    return scope.page("endpoints/headers.html", application=application, endpoint=endpoint, headers=headers)


@pages.post("/endpoints/{endpoint}/rotate", Permission.ENDPOINT_SECRET_ROTATE)
async def rotate_secret(scope: ApplicationScope) -> Response:
    """Rotate the secret of an endpoint; messages are also signed with the old one during the grace period."""
    grace = scope.field("grace")
    if grace not in dict(_GRACE_PERIODS):
        raise InvalidValue(f"choose one of {', '.join(dict(_GRACE_PERIODS))} seconds", "grace")
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        await operations.rotate_secret(work, operations.Rotation(**named(scope, application), grace_s=int(grace)))
    along = "" if grace == "0" else f" The old secret stays valid for {dict(_GRACE_PERIODS)[grace]}."
    return scope.to(f"/endpoints/{endpoint.shown_id}", f"Secret rotated.{along}")


_TASK_TITLES: Final = {
    TaskOperation.RECOVER: "Recover failed messages",
    TaskOperation.REPLAY_MISSING: "Replay missing messages",
    TaskOperation.BULK_REPLAY: "Resend messages",
}
_MAX_SHOWN_BYTES: Final = 4_096


@pages.post("/endpoints/{endpoint}/test", Permission.ENDPOINT_TEST)
async def send_test(scope: ApplicationScope) -> Response:
    """Send the example of an event type to an endpoint, and redirect to the result."""
    type = scope.field("type") or messages.PING
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        sent = await operations.test(work, operations.Example(**named(scope, application), type=type))
    scope.context.app_context.notify_due()
    return scope.to(f"/endpoints/{endpoint.shown_id}/tests/{sent.id}")


@pages.get("/endpoints/{endpoint}/tests/{message}", Permission.MESSAGE_VIEW)
async def show_test(scope: ApplicationScope) -> Response:
    """Show the result of a test, once it is available."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        message = await messages.get(work, application, scope.context.path["message"])
        window = after_message(message.id, datetime.now(UTC))
        latest = await attempts.list_page(
            work, application, window, message=message.shown_id, endpoint=endpoint.shown_id, limit=1
        )
    row = latest.rows[0] if latest.rows else None
    template = "endpoints/test_result.html" if scope.context.is_fragment else "endpoints/test.html"
    return scope.page(
        template,
        application=application,
        endpoint=endpoint,
        message=message,
        row=row,
        attempt_id=None if row is None else ids.show(ids.ATTEMPT, row.id),
        answer=_snippet(row),
        at=ids.created_at(message.id),
    )


def _snippet(row: AttemptRow | None) -> str:
    return "" if row is None or not row.response else row.response[:_MAX_SHOWN_BYTES].decode("utf-8", "replace")


@pages.post("/endpoints/{endpoint}/recover", Permission.MESSAGE_RESEND)
async def recover(scope: ApplicationScope) -> Response:
    """Retry an endpoint's failed messages since a given time."""
    async with scope.work() as (work, application):
        task = await recovery.recover(work, _span(scope, application))
    return _to_task(scope, task)


@pages.post("/endpoints/{endpoint}/replay-missing", Permission.MESSAGE_RESEND)
async def replay_missing(scope: ApplicationScope) -> Response:
    """Send an endpoint the matching messages since a given time that it was never sent."""
    async with scope.work() as (work, application):
        task = await recovery.replay_missing(work, _span(scope, application))
    return _to_task(scope, task)


def _span(scope: ApplicationScope, application: Application) -> Span:
    since = query_params.get_time(scope.context.form, "since")
    if since is None:
        raise InvalidValue("enter a UTC time such as 2026-01-31T12:00", "since")
    return Span(
        application=application.shown_id,
        endpoint=scope.context.path["endpoint"],
        since=since.astimezone(UTC),
        dry_run=bool(scope.field("dry_run")),
    )


def _to_task(scope: ApplicationScope, task: StartedTask) -> Response:
    page = f"/endpoints/{scope.context.path['endpoint']}"
    if task.dry_run:
        return scope.to(page, f"{task.message[:1].upper()}{task.message[1:]}.")
    return scope.to(f"{page}/tasks/{task.id}")


@pages.get("/endpoints/{endpoint}/tasks/{task}", Permission.ENDPOINT_VIEW)
async def show_task(scope: ApplicationScope) -> Response:
    """Show the progress of a task."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        task = await tasks.get(work, scope.context.path["task"])
    if task.endpoint_id != endpoint.id:
        raise NotFound(f"there is no task {scope.context.path['task']}")
    template = "endpoints/task_progress.html" if scope.context.is_fragment else "endpoints/task.html"
    return scope.page(
        template,
        application=application,
        endpoint=endpoint,
        task=task,
        title=_TASK_TITLES.get(task.kind, task.kind.value),
        is_running=task.state is TaskState.RUNNING,
        percent=_percent_done(task),
    )


def _percent_done(task: Task) -> int:
    """Return the processed percentage of a task's time range."""
    if task.state is TaskState.FINISHED:
        return 100
    if "after" not in task.place:
        return 0
    since, until = (datetime.fromisoformat(task.request[name]) for name in ("since", "until"))
    reached = ids.created_at(ids.read(ids.MESSAGE, task.place["after"]))
    return round(100 * min(1.0, max(0.0, (reached - since) / max(until - since, timedelta(milliseconds=1)))))
