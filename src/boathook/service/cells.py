"""Lists the cells, assigns sources to them, and moves a source from one cell to another.

A move in this order loses no event and repeats none:

1. The old cell, then each other one, gets the assignment to the new cell. From the commit on, no gateway there stores
   the source's events; they wait in spools, as the new cell does not accept them yet.
2. The source's dedup keys are copied, so that the new cell recognizes what the old one has stored.
3. The new cell gets the assignment, and the spools drain into it.

If it is interrupted, the events wait until it is repeated.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from boathook.config import Settings
from boathook.config.tables import CellSettings
from boathook.db import cells, dedup, route_registry, source_secrets, stored_sources
from boathook.db.database import Database
from boathook.domain.cells import Assignment
from boathook.domain.errors import ConfigError, DatabaseError, FetchFailed, InvalidState, NotFound
from boathook.ingest.cells import CellStore
from boathook.ingest.sources import paths_of
from boathook.service.database import open_database
from boathook.service.remote import RemoteClient
from boathook.service.unit_of_work import UnitOfWork

_COPY_TIMEOUT_S: Final = 3_600.0
_READ_TIMEOUT_S: Final = 3.0
_MAX_METRICS: Final = 8 << 20
_ACCEPTED: Final = ("boathook_events_accepted_total", "boathook_cell_events_received_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """The state of a cell, as its gateways report it."""

    name: str
    url: str
    is_own: bool
    accepts_new: bool
    problem: str = ""
    """Why it does not work, or cannot be asked; empty if it works."""
    accepted_per_s: float = 0.0
    """Events that its gateways accepted per second lately, from senders and from other cells."""
    oldest_due_s: float = 0.0
    """How long the oldest due delivery has been waiting."""
    dead: int = 0
    """Failed deliveries."""
    waiting: int = 0
    """Events that wait in its spools, for its PostgreSQL or for another cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCell:
    """The cell of a source."""

    source: str
    cell: str
    is_assigned: bool
    """Whether it was assigned; else it follows from the cells that accept new sources."""
    revision: int = 0
    disagreeing: tuple[str, ...] = ()
    """Cells that know an older assignment, or none."""
    paths: tuple[str, ...] = ()
    """The paths of its URL."""

    @property
    def is_moving(self) -> bool:
        """Whether a move to its cell is not complete: that cell does not know the keys of known events yet."""
        return self.cell in self.disagreeing and self.revision > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move that is complete."""

    source: str
    origin: str
    target: str
    keys: int
    """Dedup keys that were copied."""
    unreached: tuple[str, ...]
    """Cells whose database could not be reached. The first refusal of the old cell shows them the assignment."""
    handlers_missing: bool
    """Whether the new cell has no handler for the source, but the old one has."""


def require_cells(settings: Settings) -> None:
    """Raise ConfigError unless this installation is one of several cells."""
    if not settings.cells.name:
        raise ConfigError("there are no cells: cells.name is not set; see docs/how-to/cells.md")


async def read_statuses(settings: Settings) -> list[CellStatus]:
    """Read the state of all cells from their gateways, each within a few seconds."""
    require_cells(settings)
    members = settings.cells.members.items()
    return await asyncio.gather(*(_read_status(settings, name, cell) for name, cell in members))


async def _read_status(settings: Settings, name: str, cell: CellSettings) -> CellStatus:
    base = cell.url.rstrip("/")
    plain = CellStatus(name=name, url=base, is_own=name == settings.cells.name, accepts_new=cell.accepts_new)
    client = RemoteClient(settings)
    try:
        ready, metrics = await asyncio.gather(
            client.request("GET", f"{base}/readyz", timeout_s=_READ_TIMEOUT_S, max_bytes=_MAX_METRICS),
            client.request("GET", f"{base}/metrics.json", timeout_s=_READ_TIMEOUT_S, max_bytes=_MAX_METRICS),
        )
        problems = [*json.loads(ready.body)["problems"]]
        figures = json.loads(metrics.body)["metrics"]
        return replace(
            plain,
            problem="; ".join(problems),
            accepted_per_s=sum(one.get("per_second", 0.0) for name in _ACCEPTED for one in _series(figures, name)),
            oldest_due_s=max((one["value"] for one in _series(figures, "boathook_oldest_due_seconds")), default=0.0),
            dead=int(_total(figures, "boathook_backlog", state="dead")),
            waiting=int(_total(figures, "boathook_spool_events") + _total(figures, "boathook_cell_events_waiting")),
        )
    except FetchFailed as error:
        return replace(plain, problem=f"its gateways do not answer: {error}")
    except (ValueError, KeyError, TypeError):
        return replace(plain, problem="its URL answers, but not as a gateway of boathook does")


def _series(figures: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = figures.get(name, {}).get("series", [])
    return found


def _total(figures: Mapping[str, Any], name: str, **labels: str) -> float:
    return sum(
        float(one["value"])
        for one in _series(figures, name)
        if all(one.get("labels", {}).get(label) == value for label, value in labels.items())
    )


async def probe(settings: Settings, name: str) -> None:
    """Post no events to a cell, as a gateway would post some: this proves that secret, clock and URL are right.

    Raises:
        CellUnavailable: the cell does not accept posts of this one; the message says why.
    """
    client = RemoteClient(settings)

    async def post(
        url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        answer = await client.request("POST", url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes)
        return answer.status, answer.body

    async def ignore(_assignment: Assignment) -> None:
        return

    url = settings.cells.members[name].url
    store = CellStore(name, url, settings.cells_secret(), post=post, on_refusal=ignore)
    await store.append((), within_s=_READ_TIMEOUT_S)


async def list_known(work: UnitOfWork) -> dict[str, str]:
    """Return the cell of each source, by what this cell knows."""
    settings = work.app_context.settings
    assignments = await cells.read_assignments(work.connection)
    directory = settings.cells.directory
    names = sorted({*settings.sources, *assignments})
    return {source: directory.find(source, assignments) for source in names}


async def list_sources(settings: Settings) -> list[SourceCell]:
    """Return the cell of each source, by what all cells know.

    Raises:
        ConfigError: a cell has no `database`.
        DatabaseError: the database of a cell cannot be read.
    """
    async with _open_cells(settings) as (databases, _):
        return await _list_sources(settings, databases)


async def _list_sources(settings: Settings, databases: Mapping[str, Database]) -> list[SourceCell]:
    known = {name: await cells.read_assignments(database) for name, database in databases.items()}
    paths = {name: source.paths for name, source in settings.configured_sources.items()}
    for database in databases.values():
        paths = {row.name: row.paths for row in await stored_sources.list_all(database)} | paths
    names = set(paths).union(*known.values())
    directory = settings.cells.directory
    found = []
    for source in sorted(names):
        urls = paths_of(source, paths.get(source, ()))
        assigned = [one[source] for one in known.values() if source in one]
        if not assigned:
            found.append(SourceCell(source=source, cell=directory.find(source, {}), is_assigned=False, paths=urls))
            continue
        latest = max(assigned, key=lambda one: one.revision)
        others = tuple(name for name, one in known.items() if one.get(source) != latest)
        found.append(
            SourceCell(
                source=source,
                cell=latest.cell,
                is_assigned=True,
                revision=latest.revision,
                disagreeing=others,
                paths=urls,
            )
        )
    return found


async def assign_sources(settings: Settings) -> list[SourceCell]:
    """Assign the sources that have no cell, and store all assignments in all cells; return what this has changed.

    Raises:
        ConfigError: a cell has no `database`.
        DatabaseError: the database of a cell cannot be reached.
    """
    async with _open_cells(settings) as (databases, _):
        found = await _list_sources(settings, databases)
        changed = [one for one in found if not one.is_assigned or one.disagreeing]
        for name, database in databases.items():
            # Only the move itself may complete a move: it copies the keys of known events before.
            given = [one for one in changed if not (one.is_moving and one.cell == name)]
            assignments = [Assignment(source=one.source, cell=one.cell, revision=one.revision or 1) for one in given]
            if assignments:
                await cells.assign(database, assignments)
    return changed


async def move_source(settings: Settings, source: str, target: str) -> Move:
    """Move a source to another cell, while its senders go on. Safe to repeat, and to be repeated after an error.

    Raises:
        NotFound: there is no such cell or source.
        InvalidState: the source is being moved by another command.
        ConfigError: a cell has no `database`.
        DatabaseError: the old or the new cell's database cannot be reached.
    """
    require_cells(settings)
    if target not in settings.cells.members:
        raise NotFound(f"there is no cell {target}; there are {', '.join(settings.cells.members)}")
    async with _open_cells(settings, may_lack=True) as (databases, unreached):
        present = {one.source: one for one in await _list_sources(settings, databases)}.get(source)
        if present is None:
            raise NotFound(f"there is no source {source} in any cell; `boathook cells routes` lists them")
        is_repeated = present.cell == target
        revision = max(1, present.revision) if is_repeated else present.revision + 1
        moved = Assignment(source=source, cell=target, revision=revision)
        # Which cell has stored the latest events is unknown if an earlier move was interrupted.
        is_unclear = is_repeated or bool(present.disagreeing)
        needed = set(settings.cells.members) if is_unclear else {present.cell, target}
        for name in needed & unreached.keys():
            raise unreached[name]
        senders = sorted(databases.keys() - {target}, key=lambda name: name != present.cell)
        keys = 0
        for name in senders:
            changed = await cells.assign(databases[name], [moved])
            if name == present.cell and not changed:
                raise InvalidState(
                    f"another move of {source} is running, or has ended; see `boathook cells routes`", "moving"
                )
        for name in senders:
            await _copy_stored_source(databases[name], databases[target], source)
            keys += await dedup.copy_keys(databases[name], databases[target], source, name)
        await cells.assign(databases[target], [moved])
        handlers_missing = not is_repeated and await _lacks_handlers(databases, present.cell, target, source)
    return Move(
        source=source,
        origin=present.cell,
        target=target,
        keys=keys,
        unreached=tuple(unreached),
        handlers_missing=handlers_missing,
    )


async def _copy_stored_source(origin: Database, target: Database, source: str) -> None:
    """Copy a stored source and the secrets that operators have added, unless the target has later ones.

    Both stay encrypted, so all cells must have the same encryption keys.
    """
    stored = [one for one in await stored_sources.list_all(origin) if one.name == source]
    async with origin.acquire() as connection:
        secrets = await source_secrets.list_by_source(connection, source)
    async with target.transaction() as connection:
        await stored_sources.insert_later(connection, stored)
        await source_secrets.insert_later(connection, secrets)


async def _lacks_handlers(databases: Mapping[str, Database], origin: str, target: str, source: str) -> bool:
    async def count(cell: str) -> int:
        routes = (await route_registry.read_routes(databases[cell])).routes
        return sum(one.source == source for one in routes)

    return bool(await count(origin)) and not await count(target)


@contextlib.asynccontextmanager
async def _open_cells(
    settings: Settings, *, may_lack: bool = False
) -> AsyncIterator[tuple[dict[str, Database], dict[str, DatabaseError]]]:
    """Yield the databases of all cells by name, and why others cannot be reached, if they *may_lack*."""
    require_cells(settings)
    databases: dict[str, Database] = {}
    unreached: dict[str, DatabaseError] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, cell in settings.cells.members.items():
            key = f"cells.members.{name}.database"
            if cell.database:
                url = settings.resolve(cell.database, key)
            elif name == settings.cells.name:
                url = settings.database_url()
            else:
                raise ConfigError(f"{key}: is not set; this command needs the databases of all cells")
            there = settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})
            opening = open_database(there, purpose="cells", statement_timeout_s=_COPY_TIMEOUT_S)
            try:
                databases[name] = await stack.enter_async_context(opening)
                await cells.claim(databases[name], name)
            except DatabaseError as error:
                unreached[name] = DatabaseError(f"cell {name}: {error}")
                if not may_lack:
                    raise unreached[name] from error
        yield databases, unreached


def to_nginx(found: Sequence[SourceCell], settings: Settings) -> list[str]:
    """Return locations for nginx that pass the requests of each source to its cell, so that no gateway has to."""
    lines = []
    for one in found:
        base = settings.cells.members[one.cell].url.rstrip("/")
        lines += [f"location = {path} {{ proxy_pass {base}; proxy_set_header Host $host; }}" for path in one.paths]
    return lines
