"""The app's own HTTP routes: dead letters, metrics, objects, live updates, and the self-test."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from boathook import BoathookError
from boathook_app_tools.terminal import plain
from boathook_fleet import branches, dead_letters, fetching, live, records, status
from boathook_fleet.app import hook
from boathook_fleet.log import count_errors, list_errors
from boathook_fleet.parse import Change, parse
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Entity

BASE: Final = "/api/rentprog"
_DEAD: Final = "/webhook/dead"
"""The path of dead letters, below `BASE`."""
SELFTEST: Final = "/webhooks/_selftest"
MAX_LIMIT: Final = 500
_EXAMPLE: Final = {"event": "car_update", "payload": '{"id"=>1, "mileage"=>[88120, 88954], "company_id"=>4310}'}

Endpoint = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):
    """The request has an invalid parameter; the message says what to write."""


async def list_dead(request: Request) -> Response:
    """List dead letters, newest events first."""
    limit = _whole(request, "limit", 50, 1, MAX_LIMIT)
    filters = {key: _text(request, key) for key in ("source", "type", "after")}
    if filters["after"] is not None and not dead_letters.is_id(filters["after"]):
        raise BadRequest("after must be the id of a dead letter, such as the `next` of the page before")
    rows = await dead_letters.list_dead(hook, **filters, limit=limit)
    return _json({"data": rows, "next": rows[-1]["id"] if len(rows) == limit else None})


async def show_dead(request: Request) -> Response:
    """Return one dead letter with its attempts."""
    return _json(await dead_letters.show_dead(hook, request.path_params["id"]))


async def replay(request: Request) -> Response:
    """Replay one dead letter; with ``dry_run=true``, only say what would come of it."""
    id = request.path_params["id"]
    if _flag(request, "dry_run"):
        return _json({"ok": True, "id": id, "dry_run": True, "result": await dead_letters.dry_run(hook, id)})
    await dead_letters.replay(hook, id)
    return _json({"ok": True, "id": id, "result": "replayed"}, 202)


async def ignore(request: Request) -> Response:
    """Settle one dead letter as ignored."""
    id = request.path_params["id"]
    note = (_text(request, "note") or "").strip() or "deleted by the owner"
    await dead_letters.ignore(hook, id, note[:500])
    return _json({"ok": True, "id": id, "result": "ignored"})


async def clean_up(request: Request) -> Response:
    """Settle old dead letters as ignored."""
    days = _number(request, "days", hook.settings.dead_days, 0, 36_500)
    ignored = await dead_letters.ignore_old(hook, days=days)
    return _json({"ok": True, "days": days, "ignored": len(ignored), "ids": ignored})


async def metrics(_request: Request) -> Response:
    """Return the app's metrics, including counts of its own tables."""
    async with hook.transaction() as tx:
        counts = await records.read_totals(tx) | await status.read_counts(tx)
    return _json(await _described() | counts)


async def history(request: Request) -> Response:
    """Return the metrics of the last minutes, oldest first."""
    minutes = _whole(request, "minutes", 60, 1, 10_080)
    return _json({"minutes": await status.list_minutes(minutes=minutes)})


async def errors(request: Request) -> Response:
    """List the error log, newest first, with the counts of the last hour."""
    limit = _whole(request, "limit", 50, 1, MAX_LIMIT)
    filters = {key: _text(request, key) for key in ("phase", "kind", "code")}
    async with hook.transaction() as tx:
        rows = await list_errors(tx, **filters, limit=limit)
        return _json({"data": rows, "last_hour": await count_errors(tx, minutes=60)})


def _rows(read: Callable[..., Awaitable[list[dict[str, Any]]]]) -> Endpoint:
    async def list_rows(request: Request) -> Response:
        limit = _whole(request, "limit", 50, 1, MAX_LIMIT)
        async with hook.transaction() as tx:
            return _json({"data": await read(tx, limit=limit)})

    return list_rows


async def selftest(_request: Request) -> Response:
    """Return whether the app works, with metrics but without secrets; needs no authentication."""
    try:
        described, has_database = await _described(), True
    except BoathookError:
        described, has_database = status.describe(await status.read_figures(hook), hook.settings), False
    checks = {"parser": isinstance(parse(_EXAMPLE), Change), "database": has_database}
    document = status.selftest(described, checks)
    return _json(document, 200 if document["ok"] else 503)


async def serve_live(socket: WebSocket) -> None:
    """Send changes to a browser."""
    await live.serve_live(hook, socket)


async def _described() -> dict[str, Any]:
    figures = await status.read_figures(hook)
    async with hook.transaction() as tx:
        backlog = await fetching.count_open(tx)
        states = await branches.read_branches(tx, hook.settings)
    return status.describe(figures, hook.settings, fetch_backlog=backlog, branches=states)


def _lister(entity: Entity) -> Endpoint:
    async def list_them(request: Request) -> Response:
        limit, after = _whole(request, "limit", 50, 1, MAX_LIMIT), _text(request, "after") or ""
        async with hook.transaction() as tx:
            rows = await records.list_things(tx, entity, limit=limit, after=after)
        return _json({"data": rows, "next": rows[-1]["id"] if len(rows) == limit else None})

    return list_them


def _json(content: Any, status_code: int = 200) -> JSONResponse:
    return JSONResponse(plain(content), status_code, {"cache-control": "no-store"})


def _refuse(status_code: int, error: str, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"ok": False, "error": error, "detail": detail}, status_code, headers)


async def _show_error(_request: Request, error: Exception) -> Response:
    match error:
        case BadRequest():
            return _refuse(400, "bad_request", str(error))
        case dead_letters.NoDeadLetter():
            return _refuse(404, "not_found", str(error))
        case dead_letters.NotDead():
            return _refuse(409, "not_dead", str(error))
        case _:
            return _refuse(503, "unavailable", str(error), {"retry-after": "1"})


def _text(request: Request, name: str) -> str | None:
    text = request.query_params.get(name)
    if text is not None and "\0" in text:
        raise BadRequest(f"{name} must be text without NUL")
    return text


def _flag(request: Request, name: str) -> bool:
    text = _text(request, name) or "false"
    if text not in {"true", "false"}:
        raise BadRequest(f"{name} must be true or false")
    return text == "true"


def _whole(request: Request, name: str, usual: int, low: int, high: int) -> int:
    number = _number(request, name, usual, low, high)
    if not float(number).is_integer():
        raise BadRequest(f"{name} must be a whole number")
    return int(number)


def _number(request: Request, name: str, usual: float, low: float, high: float) -> float:
    try:
        number = float(request.query_params.get(name, usual))
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise BadRequest(f"{name} must be a number from {low} to {high}")
    return number


def _starlette(*routes: Route | WebSocketRoute) -> Starlette:
    return Starlette(routes=routes, exception_handlers={BadRequest: _show_error, BoathookError: _show_error})


hook.mount(
    BASE,
    _starlette(
        Route(_DEAD, list_dead, methods=["GET"]),
        Route(f"{_DEAD}/cleanup", clean_up, methods=["POST"]),
        Route(f"{_DEAD}/{{id}}/replay", replay, methods=["POST"]),
        Route(f"{_DEAD}/{{id}}", show_dead, methods=["GET"]),
        Route(f"{_DEAD}/{{id}}", ignore, methods=["DELETE"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/metrics/history", history, methods=["GET"]),
        Route("/errors", errors, methods=["GET"]),
        Route("/unknown", _rows(records.list_unknown), methods=["GET"]),
        Route("/unparsed", _rows(records.list_unparsed), methods=["GET"]),
        *(Route(f"/{table.name}", _lister(entity)) for entity, table in TABLES.items()),
        WebSocketRoute("/live", serve_live),
    ),
)
hook.mount(SELFTEST, _starlette(Route("/", selftest)), is_open=True)
