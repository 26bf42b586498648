"""Pages of rejected requests, and of conflicts: requests with the same key or body as an event, but not both."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.line_diff import side_by_side
from boathook.domain.verification import HEAD_REASONS, Reason
from boathook.service import body_view
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import conflicts as conflict_actions
from boathook.service.catalogue import rejections as actions
from boathook.service.catalogue.values import name_fields
from boathook.service.operating import listings
from boathook.service.operating.listings import ListFilter, RejectionRow
from boathook.service.receiving import conflicts
from boathook.service.receiving.request_groups import RequestGroup, RequestKind, describe_group, list_groups
from boathook.service.receiving.reverification import diagnose
from boathook.service.receiving.sources import read_traffic
from boathook_console.event_detail import attachment, render_body
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()

_CONFLICT_FIELDS: Final = ("source", "application", "differs", "since", "until")
_DIFFERENCES: Final = (("", "any"), ("body", "body"), ("key", "key"))


class _DescribedGroup(msgspec.Struct, frozen=True):
    """A group of rejections or conflicts with its description."""

    row: RequestGroup
    sentence: str
    url: str
    """Its page, with its requests."""
    diagnosis: Mapping[str, str] = msgspec.field(default_factory=dict)
    """On the group's own page: what its newest request shows, the likely cause, and the fix, by their titles."""


async def _read_groups(context: ConsoleContext, kind: RequestKind, filters: ListFilter) -> dict[str, Any]:
    """Return the groups that match a filter, as values of a page."""
    groups_page = await list_groups(context.app_context.database, kind, filters)
    return {"groups": [_describe(kind, row) for row in groups_page.rows], "is_cut": groups_page.is_cut}


async def _find_group(context: ConsoleContext, kind: RequestKind, filters: ListFilter) -> _DescribedGroup | None:
    """Return the group whose requests a filter selects, with its diagnosis; None if it does not select one group."""
    if filters.code is None:
        return None
    groups = (await list_groups(context.app_context.database, kind, filters)).rows
    if len(groups) != 1:
        return None
    return replace(_describe(kind, groups[0]), diagnosis=await _DIAGNOSES[kind](context, groups[0]))


def _describe(kind: RequestKind, group: RequestGroup) -> _DescribedGroup:
    parameters = {"source": group.source or "", "application": group.application or ""}
    if kind is RequestKind.REJECTION:
        url = query_params.build_url(f"{REJECTIONS_PATH}/requests", parameters, reason=group.cause, state="open")
    else:
        url = query_params.build_url(f"{BASE}/conflicts/requests", parameters, differs=group.cause)
    return _DescribedGroup(group, describe_group(group), url)


async def _diagnose_rejections(context: ConsoleContext, group: RequestGroup) -> Mapping[str, str]:
    app_context = context.app_context
    diagnosis = (await diagnose(app_context.database, app_context.settings, _read_id(group.newest_id))).diagnosis
    return {
        "Newest request": diagnosis.seen,
        "Match": diagnosis.hint,
        "Likely cause": diagnosis.cause,
        "Fix": diagnosis.remedy,
    }


async def _diagnose_conflicts(context: ConsoleContext, group: RequestGroup) -> Mapping[str, str]:
    newest = await conflicts.compare_conflict(context.app_context.database, ids.read(ids.CONFLICT, group.newest_id))
    cause, remedy = conflicts.explain(group.cause)
    return {"Newest conflict": newest.verdict, "Likely cause": cause, "Fix": remedy}


_DIAGNOSES: Final = {RequestKind.REJECTION: _diagnose_rejections, RequestKind.CONFLICT: _diagnose_conflicts}


@routes.get("/conflicts", Permission.CONFLICT_VIEW)
async def list_conflict_groups(context: ConsoleContext) -> Response:
    """Show conflicts in groups by cause."""
    fields = query_params.get_texts(context.query, ("source", "application"))
    filters = ListFilter(source=fields["source"] or None, application=fields["application"] or None)
    sources = query_params.source_options(context.app_context.settings.sources, fields["source"])
    groups = await _read_groups(context, RequestKind.CONFLICT, filters)
    return context.page("conflicts/groups.html", fields=fields, sources=sources, **groups)


@routes.get("/conflicts/requests", Permission.CONFLICT_VIEW)
async def list_conflicts(context: ConsoleContext) -> Response:
    """Show conflicts, newest first; those of one cause with its diagnosis."""
    fields = query_params.get_texts(context.query, _CONFLICT_FIELDS)
    sources = query_params.source_options(context.app_context.settings.sources, fields["source"])
    common_values: dict[str, Any] = {"fields": fields, "sources": sources, "differences": _DIFFERENCES}
    try:
        filters = ListFilter(
            source=fields["source"] or None,
            application=fields["application"] or None,
            code=fields["differs"] or None,
            since=query_params.get_time(context.query, "since"),
            until=query_params.get_time(context.query, "until"),
            after=_read_cursor(context.query.get("after", "")),
            limit=_PAGE + 1,
        )
        rows = await listings.list_conflicts(context.app_context.database, filters)
    except InvalidValue as error:
        errors = {str(error.where[0]): str(error)}
        return context.page("conflicts/list.html", 400, errors=errors, rows=[], older=None, group=None, **common_values)
    here = f"{BASE}/conflicts/requests"
    older = query_params.build_url(here, fields, after=rows[_PAGE - 1].id) if len(rows) > _PAGE else None
    group = await _find_group(context, RequestKind.CONFLICT, filters)
    return context.page("conflicts/list.html", errors={}, rows=rows[:_PAGE], older=older, group=group, **common_values)


@routes.get("/conflicts/{id}", Permission.CONFLICT_VIEW)
async def show_conflict(context: ConsoleContext) -> Response:
    """Show a conflict next to the original event."""
    comparison = await conflicts.compare_conflict(context.app_context.database, _conflict_id(context))
    is_unified = context.query.get("view") == "unified"
    conflict = comparison.conflict
    return context.page(
        "conflicts/show.html",
        found=comparison,
        row=conflict.row,
        is_unified=is_unified,
        pairs=side_by_side(comparison.lines or ()),
        later=await render_body(
            conflict.stored.body[: body_view.MAX_BYTES], conflict.row.size, None, conflict.content_type
        ),
        earlier=comparison.first
        and await render_body(comparison.first.body[: body_view.MAX_BYTES], len(comparison.first.body), None, ""),
        headers=body_view.mask(dict(conflict.stored.headers)),
        first_headers=body_view.mask(dict(comparison.first.headers)) if comparison.first else {},
    )


@routes.post("/conflicts/{id}/accept", Permission.CONFLICT_ACCEPT)
async def accept_conflict(context: ConsoleContext) -> Response:
    """Make a conflict a new event, once."""
    url = f"{BASE}/conflicts/{context.path['id']}"
    name = ids.show(ids.CONFLICT, _conflict_id(context))
    try:
        async with context.work() as work:
            accepted = await conflict_actions.accept(
                work, conflict_actions.Accept(ids=[name], note=context.field("note"))
            )
    except InvalidValue as error:
        return context.to(url, name_fields(str(error)), "bad")
    (acceptance,) = accepted.results
    if acceptance.outcome == "missing":
        raise NotFound(acceptance.detail)
    if acceptance.event_id is None:
        return context.to(url, acceptance.detail, "bad")
    return context.to(
        url, f"{'Accepted' if acceptance.outcome == 'accepted' else 'It was accepted before'} as {acceptance.event_id}."
    )


@routes.get("/conflicts/{id}/body", Permission.CONFLICT_VIEW)
async def download(context: ConsoleContext) -> Response:
    """Download the body of the conflicting request."""
    conflict = await conflicts.get(context.app_context.database, _conflict_id(context))
    return attachment(conflict.stored.body, f"{conflict.row.id}.bin")


def _conflict_id(context: ConsoleContext) -> UUID:
    try:
        return ids.read(ids.CONFLICT, context.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None


def _read_cursor(text: str) -> str | None:
    try:
        return ids.show(ids.CONFLICT, ids.read(ids.CONFLICT, text)) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "since") from None


REJECTIONS_PATH: Final = f"{BASE}/rejections"
_PAGE: Final = 50
_FILTER_FIELDS: Final = ("source", "reason", "state", "since", "until")
_REASONS: Final = (("", "any"), *((str(reason), str(reason).replace("_", " ")) for reason in Reason))
_STATES: Final = (("", "all"), ("open", "not accepted"), ("accepted", "accepted later"))


@routes.get("/rejections", Permission.REJECTION_VIEW)
async def list_rejection_groups(context: ConsoleContext) -> Response:
    """Show rejected requests in groups by cause."""
    params = query_params.get_texts(context.query, ("source", "reason"))
    filters = ListFilter(source=params["source"] or None, code=params["reason"] or None)
    sources = query_params.source_options(context.app_context.settings.sources, params["source"])
    groups = await _read_groups(context, RequestKind.REJECTION, filters)
    traffic = read_traffic(context.state.live_metrics)
    listed = {group.row.source for group in groups["groups"]}
    counted = {name: traffic[name].refused for name in sorted(listed & traffic.keys()) if traffic[name].refused}
    return context.page(
        "rejections/groups.html", wishes=params, reasons=_REASONS, sources=sources, counted=counted, **groups
    )


@routes.get("/rejections/requests", Permission.REJECTION_VIEW)
async def list_rejections(context: ConsoleContext) -> Response:
    """Show rejected requests, newest first; those of one cause with its diagnosis."""
    params = query_params.get_texts(context.query, _FILTER_FIELDS)
    rows: Sequence[RejectionRow] = ()
    group = None
    error = ""
    try:
        filters = _read_filter(context)
        rows = await listings.list_rejections(context.app_context.database, filters)
        if filters.state != "accepted":
            group = await _find_group(context, RequestKind.REJECTION, filters)
    except InvalidValue as problem:
        error = str(problem)
    here = f"{REJECTIONS_PATH}/requests"
    return context.page(
        "rejections/list.html",
        group=group,
        rows=rows,
        wishes=params,
        error=error,
        more=query_params.build_url(here, params, after=rows[-1].id) if len(rows) == _PAGE else "",
        reasons=_REASONS,
        states=_STATES,
        sources=query_params.source_options(context.app_context.settings.sources, params["source"]),
    )


@routes.get("/rejections/{id}", Permission.REJECTION_VIEW)
async def show_rejection(context: ConsoleContext) -> Response:
    """Show one rejected request with its diagnosis and its body."""
    app_context = context.app_context
    refusal = await diagnose(app_context.database, app_context.settings, _id(context))
    body = refusal.stored.body
    view, content_type = context.query.get("view"), refusal.row.content_type
    content = await render_body(body[: body_view.MAX_BYTES], len(body), view, content_type)
    return context.page(
        "rejections/show.html",
        row=refusal.row,
        diagnosis=refusal.diagnosis,
        headers=sorted(body_view.mask(dict(refusal.stored.headers)).items()),
        content=content,
        kept=len(body),
        is_head=refusal.row.reason in HEAD_REASONS,
    )


@routes.get("/rejections/{id}/body", Permission.REJECTION_VIEW)
async def download_body(context: ConsoleContext) -> Response:
    """Download the stored body."""
    row, stored_request = await listings.get_rejection(context.app_context.database, _id(context))
    return attachment(stored_request.body, f"{row.id}.bin")


@routes.post("/rejections/{id}/reverify", Permission.REJECTION_REVERIFY)
async def reverify_one(context: ConsoleContext) -> Response:
    """Verify one request again; accept it if it is valid."""
    url = f"{REJECTIONS_PATH}/{context.path['id']}"
    async with context.work() as work:
        acted = await actions.reverify(work, actions.Reverify(ids=[ids.show(ids.REJECTION, _id(context))]))
    (result,) = acted.results
    if result.outcome == "missing":
        raise NotFound(result.detail)
    if result.event_id is None:
        return context.to(url, f"Still {result.outcome}: {result.detail}", "bad")
    return context.to(url, f"Verified: {result.outcome} as {result.event_id}.")


@routes.post("/rejections/reverify", Permission.REJECTION_REVERIFY)
async def reverify_source(context: ConsoleContext) -> Response:
    """Start a job that verifies all rejected requests of a source again."""
    source = query_params.get_text(context.form, "source")
    if source is None:
        return context.to(REJECTIONS_PATH, "Choose a source.", "bad")
    async with context.work() as work:
        acted = await actions.reverify(work, actions.Reverify(source=source))
    if acted.job is None:
        url = query_params.build_url(REJECTIONS_PATH, {"source": source})
        return context.to(url, "Nothing to verify: all stored rejections of this source are already accepted.")
    return context.to(f"{BASE}/jobs/{acted.job}")


def _id(context: ConsoleContext) -> UUID:
    return _read_id(context.path["id"])


def _read_id(reference: str) -> UUID:
    try:
        return ids.read(ids.REJECTION, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None


def _read_filter(context: ConsoleContext) -> ListFilter:
    state = query_params.get_text(context.query, "state")
    after = query_params.get_text(context.query, "after")
    return ListFilter(
        source=query_params.get_text(context.query, "source"),
        code=query_params.get_text(context.query, "reason"),
        state=state if state in {"open", "accepted"} else None,
        since=query_params.get_time(context.query, "since"),
        until=query_params.get_time(context.query, "until"),
        after=None if after is None else ids.show(ids.REJECTION, _read_id(after)),
        limit=_PAGE,
    )
