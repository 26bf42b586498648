"""The audit log: search, and export as CSV or JSON."""

import csv
import io
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.domain.errors import InvalidValue
from boathook.pages import query_params
from boathook.service import audit
from boathook.service.audit import AuditCursor, AuditPage, AuditRow
from boathook.service.authorization import Permission

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
_CSV_HEADER: Final = ",".join(AuditRow.__slots__).encode() + b"\r\n"
_MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}


@routes.get("/audit", Permission.AUDIT_VIEW)
async def list_rows(context: ConsoleContext) -> Response:
    """Show audit entries, newest first."""
    params = query_params.get_texts(context.query, _FILTER_FIELDS)
    found, error = AuditPage([], None, is_full=False), ""
    try:
        found = await _search(context, _read_cursor(context), _PAGE)
    except InvalidValue as problem:
        error = str(problem)
    cursor = found.place and f"{found.place.at.isoformat()}~{found.place.id}"
    return context.page(
        "audit/list.html",
        rows=[(row, subject_url(row)) for row in found.rows],
        wishes=params,
        error=error,
        actions=await audit.list_actions(context.app_context),
        head=await audit.read_head(context.app_context),
        looked_back_to=found.place and found.place.at,
        is_full=found.is_full,
        more=query_params.build_url(AUDIT_PATH, params, before=cursor) if cursor else "",
        files={kind: query_params.build_url(f"{AUDIT_PATH}/download/{kind}", params) for kind in _MEDIA_TYPES},
    )


@routes.get("/audit/download/{kind}", Permission.AUDIT_VIEW)
async def download(context: ConsoleContext) -> Response:
    """Stream all matching entries as a file."""
    kind = context.path["kind"]
    if kind not in _MEDIA_TYPES:
        raise InvalidValue("unknown file format; use csv or jsonl", "kind")
    first = await _search(context, None, _BATCH)
    headers = {"content-disposition": f'attachment; filename="boathook-audit.{kind}"'}
    write = _as_csv if kind == "csv" else _as_json
    return StreamingResponse(_lines(context, first, write), media_type=_MEDIA_TYPES[kind], headers=headers)


async def _lines(
    context: ConsoleContext, found: AuditPage, write: Callable[[Sequence[AuditRow]], bytes]
) -> AsyncIterator[bytes]:
    taken = 0
    yield _CSV_HEADER if write is _as_csv else b""
    yield write(found.rows)
    while found.place is not None and (taken := taken + len(found.rows)) < _MAX_EXPORTED_ROWS:
        found = await _search(context, found.place, _BATCH)
        if found.rows:
            yield write(found.rows)


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
    return await audit.search(
        context.app_context,
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


def _as_csv(rows: Sequence[AuditRow]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerows([_escape_formula(str(value or "")) for value in asdict(row).values()] for row in rows)
    return text.getvalue().encode()


def _escape_formula(text: str) -> str:
    """Prevent a spreadsheet from interpreting a text as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _as_json(rows: Sequence[AuditRow]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
