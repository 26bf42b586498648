"""The audit: who did what to what, searched, and taken away as CSV or JSON."""

import csv
import io
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain.errors import InvalidValue
from boathook.journal import audit, ledger
from boathook.journal.audit import Found, Place, Wanted
from boathook.journal.ledger import AuditRow, Filter

routes = Routes()
AUDIT: Final = f"{BASE}/audit"
_PAGE: Final = 100
_BATCH: Final = 1_000
_MOST_TAKEN: Final = 1_000_000
_WISHES: Final = ("actor", "action", "subject", "since", "until")
_PAGES: Final = {
    "evt": "events",
    "msg": "events",
    "dlv": "dead",
    "grp": "dead/groups",
    "rej": "rejections",
    "qtask": "jobs",
    "app": "applications",
    "cfl": "conflicts",
}
_HEAD: Final = ",".join(AuditRow.__slots__).encode() + b"\r\n"
_KINDS: Final = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}


@routes.get("/audit", Permission.AUDIT_VIEW)
async def list_rows(visit: Visit) -> Response:
    """Show who did what, newest first."""
    wishes = asking.words(visit.query, _WISHES)
    found, error = Found([], None, is_full=False), ""
    try:
        found = await _search(visit, _place(visit), _PAGE)
    except InvalidValue as problem:
        error = str(problem)
    place = found.place and f"{found.place.at.isoformat()}~{found.place.id}"
    return visit.page(
        "audit/list.html",
        rows=[(row, page_of(row)) for row in found.rows],
        wishes=wishes,
        error=error,
        actions=await audit.list_actions(visit.desk.database),
        head=await audit.read_head(visit.desk.database),
        looked_back_to=found.place and found.place.at,
        is_full=found.is_full,
        more=asking.link(AUDIT, wishes, before=place) if place else "",
        files={kind: asking.link(f"{AUDIT}/download/{kind}", wishes) for kind in _KINDS},
    )


@routes.get("/audit/download/{kind}", Permission.AUDIT_VIEW)
async def download(visit: Visit) -> Response:
    """Send all that fits as a file, as it is read."""
    kind = visit.path["kind"]
    if kind not in _KINDS:
        raise InvalidValue("a file is csv or jsonl", "kind")
    first = await _search(visit, None, _BATCH)
    headers = {"content-disposition": f'attachment; filename="boathook-audit.{kind}"'}
    write = _as_csv if kind == "csv" else _as_json
    return StreamingResponse(_lines(visit, first, write), media_type=_KINDS[kind], headers=headers)


async def _lines(visit: Visit, found: Found, write: Callable[[Sequence[AuditRow]], bytes]) -> AsyncIterator[bytes]:
    taken = 0
    yield _HEAD if write is _as_csv else b""
    yield write(found.rows)
    while found.place is not None and (taken := taken + len(found.rows)) < _MOST_TAKEN:
        found = await _search(visit, found.place, _BATCH)
        if found.rows:
            yield write(found.rows)


def page_of(row: AuditRow) -> str:
    """Return the page of what a row is about; empty where there is none."""
    prefix, _, rest = row.subject.partition("_")
    if row.action.startswith("store.verify"):
        return f"{BASE}/verify/{row.subject}"
    if prefix in _PAGES and rest:
        return f"{BASE}/{_PAGES[prefix]}/{row.subject}"
    return f"{BASE}/sources/{row.subject}" if row.action.startswith("source.") and row.subject.isidentifier() else ""


async def _search(visit: Visit, before: Place | None, limit: int) -> Found:
    database, query = visit.desk.database, visit.query
    since, until = asking.moment(query, "since"), asking.moment(query, "until")
    actor, action, subject = (asking.word(query, name) for name in ("actor", "action", "subject"))
    if subject is None:
        return await audit.search(
            database, Wanted(actor=actor, action=action, since=since, until=until), before=before, limit=limit
        )
    after = None if before is None else str(before.id)
    wanted = Filter(since=since, until=until, after=after, limit=limit)
    rows = await ledger.list_audit(database, wanted, subject=subject, action=action)
    last = Place(rows[-1].at, rows[-1].id) if len(rows) == limit else None
    return Found([row for row in rows if actor in {None, row.actor}], last, is_full=last is not None)


def _place(visit: Visit) -> Place | None:
    at, _, number = (asking.word(visit.query, "before") or "").partition("~")
    if not number:
        return None
    try:
        return Place(datetime.fromisoformat(at), int(number))
    except ValueError:
        raise InvalidValue("this is no place in the audit", "before") from None


def _as_csv(rows: Sequence[AuditRow]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerows([_harmless(str(value or "")) for value in asdict(row).values()] for row in rows)
    return text.getvalue().encode()


def _harmless(text: str) -> str:
    """Keep a spreadsheet from taking a text for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _as_json(rows: Sequence[AuditRow]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
