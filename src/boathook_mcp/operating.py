"""Tools about endpoints, sources, rejections, alerts and statistics, and the search for objects by name."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.service.access.authorization import Permission
from boathook.service.fields import Input, Rule
from boathook.service.operating import alerts, listings, live_stats, object_search, recipient_stats
from boathook.service.operating.event_query import MAX_TEXT_LENGTH, EventQuery
from boathook.service.operating.listings import ListFilter
from boathook.service.operating.recipient_stats import DEFAULT_RANGE, STATS_RANGES, EndpointStatus
from boathook.service.operating.search import find_page, read_id
from boathook.service.receiving import sources
from boathook.service.receiving.sources import SourceView
from boathook.service.sending import applications, endpoints
from boathook.service.sending.applications import Application, PageRequest
from boathook.service.sending.endpoints import Endpoint
from boathook_mcp import inputs
from boathook_mcp.outside import outside, show_body, show_headers, show_url
from boathook_mcp.session import Reach, Session
from boathook_mcp.tool import compact, tool

_MAX_ENDPOINTS: Final = 50
_MAX_FOUND: Final = 10
_DAY: Final = STATS_RANGES[DEFAULT_RANGE]


class CheckEndpoints(Input, frozen=True, kw_only=True):
    """The endpoints to check."""

    application: inputs.Application = ""
    endpoint: Annotated[inputs.Name, Rule(help="Endpoint id, for details; a uid needs the application.")] = ""


@tool(Permission.ENDPOINT_VIEW, of_application=Permission.ENDPOINT_VIEW)
async def check_endpoints(session: Session, request: CheckEndpoints) -> dict[str, Any]:
    """Check the health of endpoints over the last 24 hours.

    Of all that are disabled, paused or failing; of every one of an application, with its event types; or of a single
    one, with attempts, backlog and latest failures.
    """
    async with session.reading() as reach:
        if request.endpoint:
            return await _check_endpoint(reach, request)
        application = await reach.find_application(request.application)
        if application is None:
            rows = await recipient_stats.list_unhealthy_endpoints(reach.work, limit=_MAX_ENDPOINTS)
            return {
                "unhealthy_endpoints": [
                    compact(
                        id=ids.show(ids.ENDPOINT, row.id),
                        application=ids.show(ids.APPLICATION, row.application_id),
                        application_name=row.application_name,
                        disabled_because=row.disabled_because,
                        disabled_at=row.disabled_at,
                        **_show_status(status),
                        untrusted=outside(url=show_url(row.url)),
                    )
                    for row, status in rows
                ]
            }
        page = await endpoints.list_page(
            reach.work, application, PageRequest(None, is_ascending=True, limit=_MAX_ENDPOINTS)
        )
        statuses = await recipient_stats.read_endpoint_statuses(reach.work, page)
        return {
            "application": application.shown_id,
            "endpoints": [_show_endpoint(endpoint) | _show_status(statuses[endpoint.id]) for endpoint in page],
        }


async def _check_endpoint(reach: Reach, request: CheckEndpoints) -> dict[str, Any]:
    application = await reach.find_application(request.application)
    if application is None:
        application = await applications.get(reach.work, await endpoints.find_owner(reach.work, request.endpoint))
    endpoint = await endpoints.get(reach.work, application, request.endpoint)
    stats = await recipient_stats.read_endpoint(reach.work, endpoint, _DAY, datetime.now(UTC))
    return compact(
        **_show_endpoint(endpoint),
        application=application.shown_id,
        **_show_status(stats.status),
        disabled_by=None if reach.application is not None else stats.disabled_by,
        attempts=compact(
            succeeded=stats.attempts.succeeded,
            failed=stats.attempts.failed,
            p50_ms=stats.attempts.p50_ms,
            p95_ms=stats.attempts.p95_ms,
        ),
        pending=stats.backlog.pending,
        dead=stats.backlog.dead,
        oldest_due_at=stats.backlog.oldest_due_at,
        latest_failures=[
            compact(
                delivery=failure.shown_id,
                state=failure.state,
                attempts=failure.attempts,
                at=failure.at,
                code=failure.code,
                untrusted=outside(type=failure.type, error=failure.error),
            )
            for failure in stats.failures
        ],
    )


def _show_endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return compact(
        id=endpoint.shown_id,
        uid=endpoint.uid,
        event_types=endpoint.event_types,
        channels=endpoint.channels,
        has_content_filter=endpoint.filter is not None or None,
        messages_per_second=endpoint.throttle_rate,
        disabled_because=endpoint.disabled_because,
        disabled_at=endpoint.disabled_at,
        created_at=endpoint.created_at,
        untrusted=outside(url=show_url(endpoint.url), description=endpoint.description),
    )


def _show_status(status: EndpointStatus) -> dict[str, Any]:
    return compact(
        health=status.health.state,
        paused_until=status.health.paused_until,
        failures_in_a_row=status.failures.failures or None,
        failing_since=status.failures.failing_since,
    )


class ListSources(Input, frozen=True, kw_only=True):
    """The sources to list."""

    source: inputs.Source = ""


@tool(Permission.SOURCE_VIEW, is_of_deployment=True)
async def list_sources(session: Session, request: ListSources) -> dict[str, Any]:
    """List sources (where webhooks arrive), or one: provider, paths, health, and what was rejected.

    Health and rejections are those of the last 24 hours, with the latest reason; list_rejections has the requests.
    """
    async with session.reading() as reach:
        work = reach.work
        views = [await sources.get(work, request.source)] if request.source else await sources.list_all(work)
        latest = await sources.read_latest(work, [view.name for view in views])
        health = await recipient_stats.read_source_health(
            work.connection, session.app_context.settings, _DAY, datetime.now(UTC)
        )
    rows = []
    for view in views:
        event, rejected = latest.events.get(view.name), latest.rejections.get(view.name)
        rows.append(
            _show_source(view)
            | compact(
                health=health[view.name].state if view.name in health else None,
                latest_event=None if event is None else {"id": ids.show(ids.EVENT, event.id), "at": event.accepted_at},
            )
        )
        if rejected is not None and rejected.id is not None:
            rows[-1]["rejections"] = compact(
                last_24_hours=rejected.lately,
                latest=ids.show(ids.REJECTION, rejected.id),
                latest_at=rejected.refused_at,
                latest_reason=rejected.reason,
                untrusted=outside(detail=rejected.detail),
            )
    return {"sources": rows}


def _show_source(view: SourceView) -> dict[str, Any]:
    return compact(
        name=view.name,
        provider=view.provider,
        paths=list(view.paths),
        proof=view.grade,
        is_unsigned=view.is_unsigned or None,
        problem=view.trouble or view.stored_problem,
        added_secrets=view.added_secrets or None,
    )


class ListRejections(Input, frozen=True, kw_only=True):
    """The rejected requests to list."""

    id: Annotated[inputs.Name, Rule(help="One rejection (rej_...), with headers and body.")] = ""
    source: inputs.Source = ""
    reason: Annotated[inputs.Name, Rule(help="Reason.", example="signature_mismatch")] = ""
    state: Annotated[Literal["", "open", "accepted"], Rule(help="accepted: it became an event later.")] = ""
    since: inputs.Since = None
    until: inputs.Until = None
    limit: inputs.Limit = 20


@tool(Permission.REJECTION_VIEW, is_of_deployment=True)
async def list_rejections(session: Session, request: ListRejections) -> dict[str, Any]:
    """List requests that sources rejected, newest first, each with its reason and what exactly was wrong.

    Or show one of them with its headers and body. Rejected requests are unverified: anybody may have sent them.
    """
    async with session.reading() as reach:
        if request.id:
            row, content = await listings.get_rejection(reach.work.connection, _read_rejection_id(request.id))
            body = show_body(content.body, len(content.body))
            return {
                **_show_rejection(row),
                "content": {"untrusted": {"headers": show_headers(content.headers), "body": body}},
            }
        query = ListFilter(
            source=request.source or None,
            code=request.reason or None,
            state=request.state or None,
            since=request.since,
            until=request.until,
            limit=request.limit,
        )
        rows = await listings.list_rejections(reach.work.connection, query)
        return {"rejections": [_show_rejection(row) for row in rows]}


def _read_rejection_id(text: str) -> Any:
    try:
        return ids.read(ids.REJECTION, text)
    except ValueError as error:
        raise InvalidValue(str(error), "id") from None


def _show_rejection(row: listings.RejectionRow) -> dict[str, Any]:
    return compact(
        id=row.id,
        source=row.source,
        rejected_at=row.refused_at,
        status=row.status,
        reason=row.reason,
        became_event=row.event_id,
        untrusted=outside(
            detail=row.detail,
            client=row.client_address,
            method=row.method,
            url=show_url(row.url),
            content_type=row.content_type,
            body_size=row.body_size,
        ),
    )


class ListAlerts(Input, frozen=True, kw_only=True):
    """The alerts."""


@tool(Permission.ALERT_VIEW)
async def list_alerts(session: Session, _request: ListAlerts) -> dict[str, Any]:
    """List the alerts that are firing or pending, with summary and advice, and the silences."""
    settings = session.app_context.settings
    async with session.reading() as reach:
        overview = await alerts.read_overview(reach.work.connection, settings)
    rules = settings.notifications.rules
    return {
        "firing": [_show_alert(alerts.alert_view(alert, rules)) for alert in overview.firing],
        **compact(
            pending=[_show_alert(alerts.alert_view(alert, rules)) for alert in overview.pending],
            silences=[
                {"rule": silence.rule, "subject": silence.subject, "until": silence.until}
                for silence in overview.silences
                if silence.until > overview.now
            ],
            warning="the rules were not evaluated for a minute: no keeper runs" if overview.is_stale else None,
        ),
    }


def _show_alert(view: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "rule", "severity", "state", "advice", "value", "worst", "fired_at", "recovered_at")
    texts = outside(subject=view["subject"], name=view["name"], summary=view["summary"], details=view["details"])
    return compact(**{name: view[name] for name in names}, is_silenced=view["is_silenced"] or None, untrusted=texts)


class ReadStats(Input, frozen=True, kw_only=True):
    """The statistics."""


@tool(Permission.OVERVIEW_VIEW)
async def read_stats(session: Session, _request: ReadStats) -> dict[str, Any]:
    """Read live statistics of all hosts.

    Rates per second, latencies in seconds, backlog, spool, the busiest sources and recipients, and how many dead
    letters, rejections and alerts are open.
    """
    stats = live_stats.summarize(await live_stats.read_host_samples(session.app_context.database))
    async with session.reading() as reach:
        counts = await live_stats.count_open(reach.work.connection)
    names = (
        "accepted", "duplicates", "rejected", "bad_signatures", "faults", "succeeded", "failed", "sent", "ack_p50",
        "ack_p99", "send_p50", "send_p99", "oldest_due_s", "spool_records", "is_spooling", "breakers_open",
        "failing_endpoints", "disabled_endpoints", "unhandled",
    )  # fmt: skip
    return {
        "at": stats.at,
        **{name: getattr(stats, name) for name in names},
        "backlog": stats.backlog,
        "open": counts,
        "sources": stats.sources[:_MAX_FOUND],
        "recipients": stats.recipients[:_MAX_FOUND],
        "hosts": [host.name for host in stats.hosts],
    }


class Search(Input, frozen=True, kw_only=True):
    """The words to search for."""

    words: Annotated[
        str, Rule(help="A name, uid, URL, id, or an event's key.", min_length=1, max_length=MAX_TEXT_LENGTH)
    ]


@tool(Permission.EVENT_VIEW, of_application=Permission.MESSAGE_VIEW)
async def search(session: Session, request: Search) -> dict[str, Any]:
    """Find what a name, uid, URL, id or key belongs to.

    Finds applications (customers), endpoints, sources, handlers and events. Start here with a customer's name to get
    the application for other tools.
    """
    async with session.reading() as reach:
        if reach.application is not None:
            return await _search_own(reach, reach.application, request.words)
        # Events are searched below, with their owner compared: this search looks ids and keys up for operators.
        matches = await object_search.find_objects(
            reach.work,
            request.words,
            lambda permission: permission is not Permission.EVENT_VIEW and session.may(permission),
        )
        is_of_deployment = session.caller.tenant in {None, DEFAULT_ORGANIZATION}
        return compact(
            kind_of_id=_kind_of(request.words),
            applications=[compact(id=match.id, name=match.name, uid=match.uid) for match in matches.applications],
            endpoints=[
                compact(
                    id=match.id,
                    application=match.application_id,
                    application_name=match.application_name,
                    untrusted=outside(url=show_url(match.url)),
                )
                for match in matches.endpoints
            ],
            sources=list(matches.sources) if is_of_deployment else [],
            handlers=list(matches.handlers),
            events=await _search_events(reach, request.words, ""),
        )


async def _search_own(reach: Reach, application: Application, words: str) -> dict[str, Any]:
    page = await endpoints.list_page(
        reach.work, application, PageRequest(None, is_ascending=True, limit=_MAX_ENDPOINTS)
    )
    folded = words.casefold()
    return compact(
        kind_of_id=_kind_of(words),
        endpoints=[
            _show_endpoint(endpoint)
            for endpoint in page
            if any(
                folded in text.casefold()
                for text in (endpoint.shown_id, endpoint.uid or "", endpoint.url, endpoint.description)
            )
        ],
        events=await _search_events(reach, words, application.shown_id),
    )


def _kind_of(words: str) -> str | None:
    """Return what kind of object an id identifies, whether it exists or not."""
    match = read_id(words)
    return None if match is None else ids.NOUNS.get(match.id.partition("_")[0])


async def _search_events(reach: Reach, words: str, application: str) -> Sequence[dict[str, Any]]:
    page = await find_page(
        reach.work.connection,
        EventQuery(words=words, application=application),
        limit=_MAX_FOUND,
        organization=reach.tenant,
    )
    return [
        compact(
            id=match.event.id,
            received_at=match.event.received_at,
            source=match.event.source,
            application=match.event.application,
            untrusted=outside(type=match.event.type, key=match.event.dedup_key),
        )
        for match in page.events
        if await reach.owns(match.event.application)
    ]
