"""Lists the cells, assigns sources to them, and moves a source or an application from one cell to another.

A move of a source in this order loses no event and repeats none:

1. The old cell, then each other one, gets the assignment to the new cell. From the commit on, no gateway there stores
   the source's events; they wait in spools, as the new cell does not accept them yet.
2. The source's dedup keys are copied, so that the new cell recognizes what the old one has stored.
3. The new cell gets the assignment, and the spools drain into it.

A move of an application does the same, in another order, as its row is its assignment:

1. The new cell gets the row, which names the old cell. So a uid that is taken there is found before anything stops.
2. The row in the old cell gets the name of the new one. From then on, nothing is stored there for the application.
3. What belongs to it is copied, and in the same transaction its row in the new cell names no cell any more.

If a move is interrupted, events and messages wait until it is repeated.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db import route_registry, source_secrets, stored_sources
from boathook.db.database import Database, try_advisory_lock
from boathook.domain import ids
from boathook.domain.errors import ConfigError, DatabaseError, InvalidState, NotFound
from boathook.domain.homes import Assignment
from boathook.handlers.outbox import is_application_id as is_application_id  # noqa: PLC0414 - re-exported
from boathook.ingest.sources import paths_of
from boathook.service.database import open_database
from boathook.service.unit_of_work import UnitOfWork
from boathook_cells import keys, store
from boathook_cells.settings import require_cells
from boathook_cells.store import CellApplication

_COPY_TIMEOUT_S: Final = 3_600.0


class SourceCell(msgspec.Struct, frozen=True, kw_only=True):
    """The cell of a source."""

    source: str
    cell: str
    is_assigned: bool
    """Whether it was assigned; else it follows from the cells that accept new sources."""
    revision: int = 0
    disagreeing: tuple[str, ...] = ()
    """Cells that have an older assignment, or none."""
    paths: tuple[str, ...] = ()
    """The paths of its URL."""

    @property
    def is_moving(self) -> bool:
        """Whether a move to its cell is not complete: that cell does not have the keys of stored events yet."""
        return self.cell in self.disagreeing and self.revision > 1


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A move that is complete."""

    source: str
    origin: str
    target: str
    keys: int
    """Dedup keys that were copied."""
    unreached: tuple[str, ...]
    """Cells whose database could not be reached. They learn the assignment from the old cell's rejection."""
    handlers_missing: bool
    """Whether the new cell has no handler for the source, but the old one has."""


class ApplicationHome(msgspec.Struct, frozen=True, kw_only=True):
    """An application that has moved, or is being moved."""

    application: str
    organization: str
    uid: str | None
    name: str
    cell: str
    """The cell that it belongs to now."""
    left: tuple[str, ...]
    """The cells that it has moved from, with its earlier messages."""
    is_moving: bool
    """Whether the move to its cell is not complete."""


class ApplicationMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of an application that is complete."""

    application: str
    origin: str
    """The cell that it has moved from; its own one if it was there already."""
    target: str
    keys: int
    """Dedup keys of messages that were copied."""
    copied: Mapping[str, int]
    """Rows that were copied, by table; empty if the application was there already."""
    open_deliveries: int
    """Deliveries in the old cell that have not ended."""


def _require_cell(settings: Settings, name: str) -> None:
    members = require_cells(settings).members
    if name not in members:
        raise NotFound(f"there is no cell {name}; there are {', '.join(members)}")


async def list_known(work: UnitOfWork) -> dict[str, str]:
    """Return the cell of each source, as recorded in this cell."""
    settings = work.app_context.settings
    assignments = await store.read_assignments(work.connection)
    directory = require_cells(settings).directory
    names = sorted({*settings.sources, *assignments})
    return {source: directory.find(source, assignments) for source in names}


async def list_sources(settings: Settings) -> list[SourceCell]:
    """Return the cell of each source, as recorded in all cells.

    Raises:
        ConfigError: a cell has no `database`.
        DatabaseError: the database of a cell cannot be read.
    """
    async with _open_cells(settings) as (databases, _):
        return await _list_sources(settings, databases)


async def _list_sources(settings: Settings, databases: Mapping[str, Database]) -> list[SourceCell]:
    assignments = {name: await store.read_assignments(database) for name, database in databases.items()}
    paths = {name: source.paths for name, source in settings.configured_sources.items()}
    for database in databases.values():
        paths = {row.name: row.paths for row in await stored_sources.list_all(database)} | paths
    names = set(paths).union(*assignments.values())
    directory = require_cells(settings).directory
    sources = []
    for source in sorted(names):
        urls = paths_of(source, paths.get(source, ()))
        assigned = [cell_assignments[source] for cell_assignments in assignments.values() if source in cell_assignments]
        if not assigned:
            sources.append(SourceCell(source=source, cell=directory.find(source, {}), is_assigned=False, paths=urls))
            continue
        latest = max(assigned, key=lambda assignment: assignment.revision)
        others = tuple(name for name, cell_assignments in assignments.items() if cell_assignments.get(source) != latest)
        sources.append(
            SourceCell(
                source=source,
                cell=latest.home,
                is_assigned=True,
                revision=latest.revision,
                disagreeing=others,
                paths=urls,
            )
        )
    return sources


async def assign_sources(settings: Settings) -> list[SourceCell]:
    """Assign the sources that have no cell, and store all assignments in all cells; return what this has changed.

    Raises:
        ConfigError: a cell has no `database`.
        DatabaseError: the database of a cell cannot be reached.
    """
    async with _open_cells(settings) as (databases, _):
        sources = await _list_sources(settings, databases)
        changed = [source for source in sources if not source.is_assigned or source.disagreeing]
        for name, database in databases.items():
            # Only the move itself may complete a move: it copies the keys of known events before.
            accepted = [source for source in changed if not (source.is_moving and source.cell == name)]
            assignments = [
                Assignment(source=source.source, home=source.cell, revision=source.revision or 1) for source in accepted
            ]
            if assignments:
                await store.assign(database, assignments)
    return changed


async def move_source(settings: Settings, source: str, target: str) -> Move:
    """Move a source to another cell while its senders continue. Safe to repeat; repeat it after an error.

    Raises:
        NotFound: there is no such cell or source.
        InvalidState: the source is being moved by another command.
        ConfigError: a cell has no `database`.
        DatabaseError: the old or the new cell's database cannot be reached.
    """
    _require_cell(settings, target)
    async with _open_cells(settings, may_lack=True) as (databases, unreached):
        present = {row.source: row for row in await _list_sources(settings, databases)}.get(source)
        if present is None:
            raise NotFound(f"there is no source {source} in any cell; `boathook cells routes` lists them")
        is_repeated = present.cell == target
        revision = max(1, present.revision) if is_repeated else present.revision + 1
        moved = Assignment(source=source, home=target, revision=revision)
        # Which cell has stored the latest events is unknown if an earlier move was interrupted.
        is_unclear = is_repeated or bool(present.disagreeing)
        needed = set(require_cells(settings).members) if is_unclear else {present.cell, target}
        for name in needed & unreached.keys():
            raise unreached[name]
        senders = sorted(databases.keys() - {target}, key=lambda name: name != present.cell)
        copied = 0
        for name in senders:
            changed = await store.assign(databases[name], [moved])
            if name == present.cell and not changed:
                raise InvalidState(
                    f"another move of {source} is running, or has ended; see `boathook cells routes`", "moving"
                )
        for name in senders:
            await _copy_stored_source(databases[name], databases[target], source)
            copied += await keys.copy_keys(databases[name], databases[target], source, name)
        await store.assign(databases[target], [moved])
        handlers_missing = not is_repeated and await _lacks_handlers(databases, present.cell, target, source)
    return Move(
        source=source,
        origin=present.cell,
        target=target,
        keys=copied,
        unreached=tuple(unreached),
        handlers_missing=handlers_missing,
    )


async def list_moved_applications(settings: Settings) -> list[ApplicationHome]:
    """Return the applications that have moved from one cell to another, or are being moved.

    Raises:
        ConfigError: a cell has no `database`.
        DatabaseError: the database of a cell cannot be read.
    """
    async with _open_cells(settings) as (databases, _):
        rows = {name: await store.list_moved_applications(database) for name, database in databases.items()}
        moved: dict[UUID, dict[str, CellApplication]] = {}
        for name, applications in rows.items():
            for application in applications:
                moved.setdefault(application.id, {})[name] = application
        homes = {name: await store.read_applications(database, moved) for name, database in databases.items()}
    return [_home_of(id, by_cell, homes) for id, by_cell in sorted(moved.items())]


def _home_of(
    id: UUID, by_cell: Mapping[str, CellApplication], by_home: Mapping[str, Mapping[UUID, CellApplication]]
) -> ApplicationHome:
    latest = max(by_cell.values(), key=lambda application: application.revision)
    home = next(
        (name for name, applications in by_home.items() if id in applications and applications[id].home is None), None
    )
    return ApplicationHome(
        application=latest.shown_id,
        organization=latest.organization,
        uid=latest.uid,
        name=latest.name,
        cell=home or str(latest.home),
        left=tuple(name for name in by_cell if name != latest.home),
        is_moving=home is None,
    )


async def move_application(settings: Settings, application: str, target: str) -> ApplicationMove:
    """Move an application to another cell, while messages are published to it. Safe to repeat after an error.

    Raises:
        NotFound: there is no such cell or application.
        AlreadyExists: another application of the new cell has its uid.
        InvalidState: another command is moving it, or no or several cells have it, or the cells run different versions.
        ConfigError: a cell has no `database`.
        DatabaseError: the database of a cell cannot be reached.
    """
    _require_cell(settings, target)
    id = ids.read(ids.APPLICATION, application)
    # All, as any of them may have it or its earlier messages.
    async with _open_cells(settings) as (databases, _):
        origin = await _find_origin(databases, id, target)
        async with try_advisory_lock(databases[origin], f"cells:{application}") as connection:
            if connection is None:
                raise InvalidState(f"another command is moving {application}", "moving")
            return await _move_application(settings, databases, id, target)


async def _read_applications(databases: Mapping[str, Database], id: UUID) -> dict[str, CellApplication]:
    """Return an application as recorded in each cell that has it or had it."""
    records = {name: (await store.read_applications(database, [id])).get(id) for name, database in databases.items()}
    return {name: record for name, record in records.items() if record is not None}


async def _find_origin(databases: Mapping[str, Database], id: UUID, target: str) -> str:
    """Return the cell that an application is moved from; the new one if it is there already.

    Raises:
        NotFound: no cell has ever had it.
        InvalidState: no cell or several cells have it, because one was restored from a backup.
    """
    records = await _read_applications(databases, id)
    if not records:
        raise NotFound(f"there is no application {ids.show(ids.APPLICATION, id)} in any cell")
    homes = [name for name, record in records.items() if record.home is None]
    latest = max(homes or records, key=lambda name: records[name].revision)
    if len(homes) > 1 and latest != target:
        raise InvalidState(
            f"{' and '.join(homes)} accept messages for it, as one was restored; move it to {latest}, which is later",
            "divided",
        )
    others = [name for name in homes or records if name != target]
    if not homes and not others:
        raise InvalidState(f"its old cell {records[target].home} has lost it; restore that cell's database", "lost")
    return target if homes == [target] else max(others, key=lambda name: records[name].revision)


async def _move_application(
    settings: Settings, databases: Mapping[str, Database], id: UUID, target: str
) -> ApplicationMove:
    # Again, as another command may have moved it before this one got the lock.
    origin, there = await _find_origin(databases, id, target), databases[target]
    application = ids.show(ids.APPLICATION, id)
    if origin == target:
        return ApplicationMove(
            application=application, origin=target, target=target, keys=0, copied={}, open_deliveries=0
        )
    columns = await store.read_columns(databases[origin], there)
    document = await store.export_application(databases[origin], id)
    is_there = not await store.reserve_application(there, id, document, columns, origin)
    revision = await store.close_application(databases[origin], id, target)
    copied_keys = 0
    for name in (await _read_applications(databases, id)).keys() - {target}:
        with_gone = name == origin and settings.retention.dedup_days > settings.retention.events_days
        copied_keys += await keys.copy_message_keys(databases[name], there, application, name, with_gone=with_gone)
    document = await store.export_application(databases[origin], id)
    copied = {} if is_there else await store.open_application(there, id, document, columns, revision)
    return ApplicationMove(
        application=application,
        origin=origin,
        target=target,
        keys=copied_keys,
        copied=copied,
        open_deliveries=await store.count_open_deliveries(databases[origin], id),
    )


async def _copy_stored_source(origin: Database, target: Database, source: str) -> None:
    """Copy a stored source and the secrets that operators have added, unless the target has later ones.

    Both stay encrypted, so all cells must have the same encryption keys.
    """
    rows = [row for row in await stored_sources.list_all(origin) if row.name == source]
    async with origin.acquire() as connection:
        secrets = await source_secrets.list_by_source(connection, source)
    async with target.transaction() as connection:
        await stored_sources.insert_later(connection, rows)
        await source_secrets.insert_later(connection, secrets)


async def _lacks_handlers(databases: Mapping[str, Database], origin: str, target: str, source: str) -> bool:
    async def count(cell: str) -> int:
        routes = (await route_registry.read_routes(databases[cell])).routes
        return sum(route.source == source for route in routes)

    return bool(await count(origin)) and not await count(target)


@contextlib.asynccontextmanager
async def _open_cells(
    settings: Settings, *, may_lack: bool = False
) -> AsyncIterator[tuple[dict[str, Database], dict[str, DatabaseError]]]:
    """Yield the databases of all cells by name, and why others cannot be reached, if they *may_lack*."""
    cells = require_cells(settings)
    databases: dict[str, Database] = {}
    unreached: dict[str, DatabaseError] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, cell in cells.members.items():
            key = f"cells.members.{name}.database"
            if cell.database:
                url = settings.resolve(cell.database, key)
            elif name == cells.name:
                url = settings.database_url()
            else:
                raise ConfigError(f"{key}: is not set; this command needs the databases of all cells")
            there = settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})
            opening = open_database(there, purpose="cells", statement_timeout_s=_COPY_TIMEOUT_S)
            try:
                databases[name] = await stack.enter_async_context(opening)
                await store.claim(databases[name], name)
            except DatabaseError as error:
                unreached[name] = DatabaseError(f"cell {name}: {error}")
                if not may_lack:
                    raise unreached[name] from error
        yield databases, unreached


def to_nginx(sources: Sequence[SourceCell], settings: Settings) -> list[str]:
    """Return locations for nginx that pass the requests of each source to its cell, so that no gateway has to."""
    members, lines = require_cells(settings).members, []
    for source in sources:
        base = members[source.cell].url.rstrip("/")
        lines += [f"location = {path} {{ proxy_pass {base}; proxy_set_header Host $host; }}" for path in source.paths]
    return lines
