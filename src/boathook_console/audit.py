"""The audit log: search, and export as CSV or JSON."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response

from boathook.domain.errors import InvalidValue
from boathook.service.access.authorization import Permission
from boathook.service.operating import listings
from boathook.service.operating.listings import AuditCursor, AuditPage, AuditRow
from boathook_console import exports
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()
AUDIT_PATH: Final = f"{BASE}/audit"
_PAGE: Final = 100
_BATCH: Final = 1_000
_MAX_EXPORTED_ROWS: Final = 1_000_000
_FILTER_FIELDS: Final = ("actor", "action", "subject", "since", "until")
_PATH_BY_PREFIX: Final = {
    "evt": "events",
    "msg": "events",
    "dlv": "dead",
    "grp": "dead/groups",
    "rej": "rejections",
    "qtask": "jobs",
    "app": "applications",
    "cfl": "conflicts",
}


class _AuditEntry(msgspec.Struct, frozen=True):
    """What one action did, to one subject or to many."""

    rows: Sequence[AuditRow]

    @property
    def first(self) -> AuditRow:
        """The first row, which has what all have in common."""
        return self.rows[0]

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """The subjects with the URLs of their pages."""
        return [(row.subject, subject_url(row)) for row in self.rows]


def _action_of(row: AuditRow) -> tuple[object, ...]:
    """Return what the rows of one action have in common: rows of one transaction have the same time."""
    return row.at, row.actor, row.action, row.note


@routes.get("/audit", Permission.AUDIT_VIEW)
async def list_rows(context: ConsoleContext) -> Response:
    """Show audit entries, newest first."""
    params = query_params.get_texts(context.query, _FILTER_FIELDS)
    audit_page, error = AuditPage([], None, is_full=False), ""
    try:
        audit_page = await _search(context, _read_cursor(context), _PAGE)
    except InvalidValue as problem:
        error = str(problem)
    cursor = audit_page.place and f"{audit_page.place.at.isoformat()}~{audit_page.place.id}"
    return context.page(
        "audit/list.html",
        entries=[_AuditEntry(list(rows)) for _, rows in groupby(audit_page.rows, _action_of)],
        wishes=params,
        error=error,
        actions=await listings.list_audited_actions(context.app_context.database),
        head=await listings.read_audit_head(context.app_context.database),
        looked_back_to=audit_page.place and audit_page.place.at,
        is_full=audit_page.is_full,
        more=query_params.build_url(AUDIT_PATH, params, before=cursor) if cursor else "",
        files={kind: query_params.build_url(f"{AUDIT_PATH}/download/{kind}", params) for kind in exports.MEDIA_TYPES},
    )


@routes.get("/audit/download/{kind}", Permission.AUDIT_VIEW)
async def download(context: ConsoleContext) -> Response:
    """Stream all matching entries as a file."""
    kind = context.path["kind"]
    exports.check_kind(kind)
    first = await _search(context, None, _BATCH)
    return exports.stream_file("boathook-audit", kind, _lines(context, first, kind))


async def _lines(context: ConsoleContext, audit_page: AuditPage, kind: str) -> AsyncIterator[bytes]:
    exported = 0
    if kind == "csv":
        yield exports.to_csv([AuditRow.__struct_fields__])
    yield _write(audit_page.rows, kind)
    while audit_page.place is not None and (exported := exported + len(audit_page.rows)) < _MAX_EXPORTED_ROWS:
        audit_page = await _search(context, audit_page.place, _BATCH)
        if audit_page.rows:
            yield _write(audit_page.rows, kind)


def _write(rows: Sequence[AuditRow], kind: str) -> bytes:
    return exports.to_csv(asdict(row).values() for row in rows) if kind == "csv" else exports.to_json_lines(rows)


def subject_url(row: AuditRow) -> str:
    """Return the URL of an entry's subject; empty if it has no page."""
    prefix, _, rest = row.subject.partition("_")
    if row.action.startswith("store.verify"):
        return f"{BASE}/verify/{row.subject}"
    if prefix in _PATH_BY_PREFIX and rest:
        return f"{BASE}/{_PATH_BY_PREFIX[prefix]}/{row.subject}"
    return f"{BASE}/sources/{row.subject}" if row.action.startswith("source.") and row.subject.isidentifier() else ""


async def _search(context: ConsoleContext, before: AuditCursor | None, limit: int) -> AuditPage:
    query = context.query
    return await listings.search_audit(
        context.app_context.database,
        actor=query_params.get_text(query, "actor"),
        action=query_params.get_text(query, "action"),
        subject=query_params.get_text(query, "subject"),
        since=query_params.get_time(query, "since"),
        until=query_params.get_time(query, "until"),
        before=before,
        limit=limit,
    )


def _read_cursor(context: ConsoleContext) -> AuditCursor | None:
    at, _, number = (query_params.get_text(context.query, "before") or "").partition("~")
    if not number:
        return None
    try:
        return AuditCursor(datetime.fromisoformat(at), int(number))
    except ValueError:
        raise InvalidValue("invalid page position; use the links of the audit page", "before") from None
