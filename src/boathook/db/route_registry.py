"""The registry of routes: which recipient gets which events, versioned so that outdated routes are never used."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db.database import Connection, Database, Record, translate_errors
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.homes import Assignment
from boathook.domain.model import DEFAULT_ORGANIZATION, Route
from boathook.observability.log import get_logger

SQL = load(__file__)


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """The active routes at one version."""

    version: int
    routes: tuple[Route, ...]
    assignments: tuple[Assignment, ...] = ()
    """The homes of the sources that have been assigned to one."""


class RoutedApplication(msgspec.Struct, frozen=True, kw_only=True):
    """The application with a name."""

    id: UUID
    uid: str | None
    name: str
    """Its public id, under which its events are stored."""
    version: str
    """Version of its endpoints, like `Routing.registry`."""
    is_operational: bool = False
    """Whether it receives the organization's operational events; the API does not show it."""
    home: str | None = None
    """The installation that it has moved to; None if it is here. Its only route then leads there."""
    revision: int = 0
    """Of two installations that disagree about its home, the one with the higher revision is right."""


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """The routes for messages published for one name."""

    registry: str
    """Version of the handlers' routes; compared only for equality."""
    application: RoutedApplication | None
    """None if no application has this id, uid or imported id."""
    routes: tuple[Route, ...]


READ_ROUTES = SQL["read_routes"]
"""The statement whose single value `decode_routes` parses; it needs only a connection."""

_BACKFILL_NOTE: Final = "asked for by since= at its first registration"
_RANDOM_BITS: Final = 74

_ROUTES = msgspec.json.Decoder(Routes)
_ROUTE = msgspec.json.Decoder(Route)
_ROUTING = msgspec.json.Decoder(Routing)


def decode_routes(document: str | bytes) -> Routes:
    """Decode the JSON document that `READ_ROUTES` returns."""
    return _ROUTES.decode(document)


def decode_routing(document: Any) -> Routing:
    """Decode the result of `boathook.routes_for`, as JSON text or as decoded by a driver."""
    return _ROUTING.decode(document) if isinstance(document, str | bytes) else msgspec.convert(document, Routing)


async def read_routing(connection: Connection, organization: str, application: str) -> Routing:
    """Return the routes for messages of an organization's application, given by id, uid or name."""
    return decode_routing(await connection.fetchval(SQL["read_routing"], organization, application))


async def find_operational(connection: Connection, organization: str) -> UUID | None:
    """Return the application for an organization's operational events, if it has an enabled endpoint."""
    application: UUID | None = await connection.fetchval(SQL["find_operational"], organization)
    return application


async def read_schemas(connection: Connection, organization: str, type: str) -> Mapping[str, Any] | None:
    """Return the JSON Schemas of an event type by version; None if the type is unknown or has none."""
    document: str | None = await connection.fetchval(SQL["read_schemas"], organization, type)
    schemas: Mapping[str, Any] | None = msgspec.json.decode(document) if document else None
    return schemas


async def read_routes(database: Database | Connection) -> Routes:
    """Return the active routes."""
    return decode_routes(await database.fetchval(READ_ROUTES))


async def read_router(database: Database, *, within_s: float | None = None) -> Router:
    """Return the active routes, compiled.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable, or did not respond within *within_s* seconds.
    """
    async with database.acquire(within_s=within_s) as connection:
        with translate_errors():
            return await read_router_in(connection)


async def read_router_in(connection: Connection) -> Router:
    """Return the active routes as the transaction sees them, compiled."""
    active_routes = decode_routes(await connection.fetchval(READ_ROUTES))
    return Router(active_routes.routes, active_routes.version, assignments=active_routes.assignments)


async def is_registered(connection: Connection, recipient: str) -> bool:
    """Return whether an active route names this recipient."""
    is_active: bool = await connection.fetchval(SQL["is_registered"], recipient)
    return is_active


async def list_owners(database: Database) -> list[str]:
    """Return the apps that have declared active routes: modules, or ``module:attribute``."""
    return [row["app"] for row in await database.fetch(SQL["list_owners"])]


async def register(database: Database, app: str, routes: Sequence[Route]) -> None:
    """Make *routes* the active routes of *app*, and retire its former ones; routes of other apps stay.

    If nothing changes, nothing is written, so that the version does not increase with every start. A recipient that
    another app declared before is taken over, so that a moved module keeps its deliveries; the audit records it. A new
    recipient whose routes request past events gets a task that reroutes them.
    """
    numbered_routes = _number(routes)
    async with database.transaction() as connection:
        await connection.execute(SQL["lock_route_version"])
        rows = await connection.fetch(SQL["read_routes_of"], app, [route.recipient for route in routes])
        former_routes = {(row["recipient"], row["position"]): row for row in rows}
        changed = {key: route for key, route in numbered_routes.items() if not _is_same(former_routes.get(key), route)}
        retired = [key for key, row in former_routes.items() if row["is_active"] and key not in numbered_routes]
        await _note_takeovers(connection, app, former_routes)
        if changed:
            await connection.execute(SQL["save_routes"], _encode(changed))
        if retired:
            await connection.execute(SQL["retire_routes"], *map(list, zip(*retired, strict=True)))
        await schedule_backfill(connection, app, routes, {recipient for recipient, _ in former_routes})


def _number(routes: Sequence[Route]) -> dict[tuple[str, int], Route]:
    numbered: dict[tuple[str, int], Route] = {}
    counts: dict[str, int] = {}
    for route in routes:
        position = counts.get(route.recipient, 0)
        counts[route.recipient] = position + 1
        numbered[route.recipient, position] = route
    return numbered


async def schedule_backfill(
    connection: Connection, app: str, routes: Sequence[Route], former_recipients: Collection[str]
) -> None:
    """Schedule the rerouting of past events for handlers that are registered for the first time and request them.

    All events that were routed without them are committed by now, because appending locks the version's row.
    """
    past_seconds: dict[str, float] = {}
    for route in routes:
        if route.since_s is not None and route.recipient not in former_recipients:
            past_seconds[route.recipient] = max(route.since_s, past_seconds.get(route.recipient, 0.0))
    for recipient, since_s in past_seconds.items():
        now: datetime = await connection.fetchval(SQL["read_clock"])
        task_id = ids.make(int(now.timestamp() * 1000), secrets.randbits(_RANDOM_BITS))
        since = now - timedelta(seconds=since_s)
        request = {"to": recipient, "since": since.isoformat(), "actor": app, "note": _BACKFILL_NOTE, "is_first": True}
        await connection.execute(
            SQL["insert_route_task"], task_id, DEFAULT_ORGANIZATION, msgspec.json.encode(request).decode()
        )
        await connection.execute(SQL["note_past"], app, recipient, f"since {since.isoformat(timespec='seconds')}")
        get_logger("registry").info("handler_backfill_scheduled", recipient=recipient, since=since.isoformat())


def _is_same(row: Record | None, route: Route) -> bool:
    return row is not None and bool(row["is_active"]) and _ROUTE.decode(row["route"]) == _normalize(route)


def _normalize(route: Route) -> Route:
    """Return *route* as it is read from the database, so that the two can be compared."""
    return _ROUTE.decode(msgspec.json.encode(replace(route, since_s=None)))


def _encode(routes: dict[tuple[str, int], Route]) -> str:
    rows: list[dict[str, Any]] = [
        msgspec.to_builtins(route) | {"position": position} for (_, position), route in routes.items()
    ]
    return msgspec.json.encode(rows).decode()


async def _note_takeovers(connection: Connection, app: str, former_routes: dict[tuple[str, int], Record]) -> None:
    owners = {row["recipient"]: row["app"] for row in former_routes.values() if row["app"] != app and row["is_active"]}
    for recipient, owner in owners.items():
        get_logger("registry").warning("route_taken_over", recipient=recipient, app=app, before=owner)
        await connection.execute(SQL["note_takeover"], app, recipient, f"declared by {owner} before")
