"""Applies a server's set-up with the service functions, in one transaction for each application."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec.structs import asdict, replace

from boathook.db import applications as stored
from boathook.db.applications import Application, PageRequest
from boathook.db.endpoints import Endpoint
from boathook.db.event_types import EventType
from boathook.domain.errors import BoathookError, ConfigError, FetchFailed, InvalidValue
from boathook.service.caller import HOST
from boathook.service.catalogue import event_types
from boathook.service.catalogue.event_types import EventTypeCreate, EventTypeNamed
from boathook.service.sending import applications, openapi_import
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.event_types import NewEventType
from boathook.service.unit_of_work import AppContext, UnitOfWork
from boathook_svix_import import report
from boathook_svix_import.endpoints import EndpointImporter, Options, list_imported
from boathook_svix_import.fields import Converted, read_application, read_event_type
from boathook_svix_import.reader import OPERATIONAL, JsonObject, RemoteEndpoint, SvixClient, application_path
from boathook_svix_import.report import (
    EXPECTED_ERRORS,
    ImportIssue,
    Kind,
    Outcome,
    Report,
    changed_fields,
    draft_report,
)

_PAGE = 1_000
_OPERATIONAL = "operational webhooks"


class _RolledBack(Exception):
    """Rolls back the transaction of a dry run."""


class SvixImporter:
    """Imports one environment of a server into one organization.

    Args:
        app_context: the application context.
        reader: reads the server.
        options: the options of the import.
        progress: called with the number of applications done.
    """

    def __init__(
        self,
        app_context: AppContext,
        reader: SvixClient,
        options: Options,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._app_context = app_context
        self._reader = reader
        self._options = options
        self._progress = progress
        self._endpoints: set[str] = set()
        """Ids of all endpoints on the server."""
        self._report = Report()
        self._remote_ids: Mapping[str, str] = {}
        """Ids on the server of the applications of earlier imports."""
        self._recognized = 0
        """Number of applications of earlier imports that the server still has."""

    async def run(self) -> Report:
        """Import everything, and return the report; an error that stopped the import is in its failures.

        Raises:
            BoathookError: it could not start.
        """
        try:
            await self._import_all()
        except BoathookError as error:
            if self._report.is_empty:
                raise
            self._report.fail("the import stopped", error)
        return self._report

    async def _import_all(self) -> None:
        missing_types = await self._import_event_types()
        missing = await self._import_applications()
        is_same = self._is_same_environment(missing)
        await self._import_operational(is_same=is_same)
        if is_same:
            await self._end_applications(missing)
            await self._end_event_types(missing_types)
        await self._report_environment()
        for id in sorted(self._options.secrets.keys() - self._endpoints):
            self._report.fail(f"endpoint {id}", InvalidValue("the server has no such endpoint", "--secrets"))

    @contextlib.asynccontextmanager
    async def _work(self) -> AsyncIterator[UnitOfWork]:
        """Open a transaction, which a dry run rolls back."""
        with contextlib.suppress(_RolledBack):
            async with self._app_context.work(self._options.organization, self._options.actor, HOST) as work:
                yield work
                if self._options.is_dry_run:
                    raise _RolledBack

    @contextlib.asynccontextmanager
    async def _object(self, label: str) -> AsyncIterator[tuple[UnitOfWork, Report]]:
        """Open a transaction and its report, which counts once committed; an error discards both."""
        draft = Report()
        try:
            async with self._work() as work:
                yield work, draft
        except EXPECTED_ERRORS as error:
            self._report.fail(label, error)
        else:
            self._report.add(draft)

    async def _import_event_types(self) -> list[str]:
        """Import all event types; return those of earlier imports that the server no longer has."""
        wires = await self._reader.event_types()
        async with self._object("event types") as (work, draft):
            types_by_name = {
                event_type.name: event_type for event_type in await openapi_import.export_event_types(work)
            }
            imported = await report.imported_event_types(work, list(types_by_name))
            for wire in wires:
                label = f"event type {wire['name']}"
                async with draft_report(work, draft, label) as type_draft:
                    await _put_event_type(work, type_draft, label, wire, types_by_name.get(wire["name"]))
                    if wire["name"] not in imported:
                        await report.record_event_type_import(work, wire["name"])
        missing = {name for name in imported if not types_by_name[name].is_archived} - {wire["name"] for wire in wires}
        return [name for name in sorted(missing) if not await self._reader.has_event_type(name)]

    async def _end_event_types(self, names: Sequence[str]) -> None:
        async with self._object("event types") as (work, draft):
            for name in names:
                if self._options.deletes:
                    await event_types.archive(work, EventTypeNamed(name=name))
                    draft.record(Kind.EVENT_TYPE, Outcome.DELETED, f"event type {name}")
                else:
                    draft.gone.append(f"event type {name}")

    async def _import_applications(self) -> dict[str, Application]:
        """Import all applications; return those of earlier imports that the server no longer has, by its ids."""
        imported = await self._known_applications()
        self._remote_ids = {application.shown_id: id for id, application in imported.items()}
        seen: set[str] = set()
        async for wire in self._reader.applications():
            seen.add(wire["id"])
            self._progress(len(seen))
            await self._import_application(wire, imported.get(wire["id"]))
        missing = {}
        for id in sorted(imported.keys() - seen):
            # A list that changes while it is read may have skipped one.
            skipped = await self._reader.application(id)
            if skipped is None:
                missing[id] = imported[id]
            else:
                await self._import_application(skipped, imported[id])
        return missing

    async def _known_applications(self) -> dict[str, Application]:
        imported: dict[str, Application] = {}
        async with self._work() as work:
            position, rows = None, None
            while rows is None or len(rows) == _PAGE:
                rows = await applications.list_page(work, PageRequest(position, is_ascending=True, limit=_PAGE))
                imported |= await report.imported_applications(work, rows)
                position = rows[-1].id if rows else None
        return imported

    async def _import_application(self, wire: JsonObject, imported: Application | None) -> None:
        self._recognized += imported is not None
        label, path = f"application {wire.get('uid') or wire['id']}", application_path(wire["id"])
        try:
            moved = read_application(wire)
            remotes = await self._reader.endpoints(path)
            if remotes is None:
                return  # deleted since it was listed
            missing = await self._missing_endpoints(imported, path, remotes)
        except (InvalidValue, FetchFailed) as error:
            if isinstance(error, FetchFailed) and not _is_object_error(error):
                raise
            self._report.fail(label, error)
            return
        async with self._object(label) as (work, draft):
            application = await self._put_application(work, draft, label, wire["id"], moved, imported)
            await self._import_endpoints(work, draft, application, label, remotes, missing)

    async def _put_application(
        self,
        work: UnitOfWork,
        draft: Report,
        label: str,
        id: str,
        moved: Converted[NewApplication],
        imported: Application | None,
    ) -> Application:
        new = moved.value
        existing = await self._find_application(work, id, new.uid, imported)
        changed = changed_fields(existing, new)
        application = existing or await applications.create(work, new)
        if changed:
            changes = {name: getattr(new, name) for name in changed}
            application = await applications.update(work, application.shown_id, changes)
        if imported is None or imported.id != application.id:
            await report.record_import(work, Kind.APPLICATION, application.shown_id, id)
        if application.imported_id != id:
            await stored.set_imported_id(work.connection, application.id, id)
        draft.record_write(Kind.APPLICATION, label, is_new=existing is None, fields=changed)
        draft.add_not_moved(label, moved.not_moved)
        return application

    async def _find_application(
        self, work: UnitOfWork, id: str, uid: str | None, imported: Application | None
    ) -> Application | None:
        same_id = await stored.find(work.connection, work.organization, id)
        if same_id is not None and same_id.shown_id == id:
            raise ConfigError(
                "--from and --token are those of the organization that receives the import; use another one"
            )
        existing = (
            None if imported is None else await stored.find(work.connection, work.organization, imported.shown_id)
        )
        if existing is None and uid is not None:
            existing = await stored.find(work.connection, work.organization, uid)
            earlier = None if existing is None else self._remote_ids.get(existing.shown_id)
            if earlier not in {None, id} and not self._options.deletes:
                raise InvalidValue(
                    f"the application of this uid was imported as {earlier} before, and is {id} on the server; "
                    "is this another environment? If it was created again there, add --delete",
                    "uid",
                )
        return existing

    async def _import_operational(self, *, is_same: bool) -> None:
        """Import the endpoints of operational webhooks."""
        remotes = await self._reader.endpoints(OPERATIONAL)
        if remotes is None:
            return
        async with self._work() as work:
            imported = await applications.find_operational(work)
        missing = await self._missing_endpoints(imported, OPERATIONAL, remotes) if is_same else []
        if not remotes and not missing:
            return
        async with self._object(_OPERATIONAL) as (work, draft):
            application = await applications.ensure_operational(work)
            await self._import_endpoints(work, draft, application, _OPERATIONAL, remotes, missing)

    async def _missing_endpoints(
        self, application: Application | None, path: str, remotes: list[RemoteEndpoint]
    ) -> list[Endpoint]:
        """Return the endpoints of earlier imports that the server no longer has; add skipped ones to *remotes*."""
        if application is None:
            return []
        async with self._work() as work:
            imported = await list_imported(work, application)
        missing = []
        for id in sorted(imported.keys() - {remote.id for remote in remotes}):
            skipped = await self._reader.endpoint(path, id)
            if skipped is None:
                missing.append(imported[id])
            else:
                remotes.append(skipped)
        return missing

    async def _import_endpoints(
        self,
        work: UnitOfWork,
        draft: Report,
        application: Application,
        label: str,
        remotes: Sequence[RemoteEndpoint],
        missing: Sequence[Endpoint],
    ) -> None:
        self._endpoints.update(remote.id for remote in remotes)
        importing = EndpointImporter(work, draft, application, label, self._options)
        await importing.write(remotes)
        await importing.delete_missing(missing)

    def _is_same_environment(self, missing: Mapping[str, Application]) -> bool:
        """Return whether the server is the one imported before; otherwise deletions are not applied."""
        if self._recognized or not missing:
            return True
        reason = (
            f"the server has none of the {len(missing):,} applications imported before, so nothing was deleted; "
            "is this the token of another environment?"
        )
        self._report.failed.append(ImportIssue("the server", "--token", reason))
        return False

    async def _end_applications(self, missing: Mapping[str, Application]) -> None:
        for application in missing.values():
            label = f"application {application.uid or application.shown_id}"
            async with self._object(label) as (work, draft):
                if self._options.deletes:
                    await applications.delete(work, application.shown_id)
                    draft.record(Kind.APPLICATION, Outcome.DELETED, label)
                else:
                    draft.gone.append(label)

    async def _report_environment(self) -> None:
        """Report the parts of the environment that cannot be imported."""
        environment = await self._reader.environment()
        settings = {
            f"settings.{name}": "boathook has no such setting" for name, value in environment.settings.items() if value
        }
        connectors = {
            f"connector {connector.get('name')}": "boathook has no connectors" for connector in environment.connectors
        }
        sources = {
            f"ingest source {source.get('name')}": "write it into boathook.toml as [sources.NAME]"
            for source in environment.sources
        }
        self._report.add_not_moved("environment", settings | connectors | sources)


async def _put_event_type(
    work: UnitOfWork, draft: Report, label: str, wire: JsonObject, existing: EventType | None
) -> None:
    moved = read_event_type(wire)
    new, lost = moved.value, dict(moved.not_moved)
    try:
        await _save_event_type(work, wire["name"], new, existing)
    except InvalidValue as error:
        if error.where[:1] != ("schemas",) or new.schemas is None:
            raise
        # Import the event type without its invalid schema.
        new = replace(new, schemas=None)
        lost[".".join(map(str, error.where))] = str(error)
        await _save_event_type(work, wire["name"], new, existing)
    draft.record_write(Kind.EVENT_TYPE, label, is_new=existing is None, fields=changed_fields(existing, new))
    draft.add_not_moved(label, lost)


async def _save_event_type(work: UnitOfWork, name: str, new: NewEventType, existing: EventType | None) -> None:
    if existing is None or changed_fields(existing, new):
        await event_types.put(work, EventTypeCreate(name=name, **asdict(new)))


def _is_object_error(error: FetchFailed) -> bool:
    """Return whether a request failed because of its own object, so that others may succeed."""
    return error.status is not None and 400 <= error.status < 500 and error.status != 429
