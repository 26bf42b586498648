"""Reads the contents of a spool for operators, and imports them into the database on request."""

import contextlib
import fcntl
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.config.packages import packages_with_data, resolve
from boathook.config.tables import SpoolSettings
from boathook.db.database import Database, check_safety
from boathook.db.due_notifier import notify_due
from boathook.db.events import EventStore
from boathook.db.route_registry import read_router
from boathook.domain import ids
from boathook.domain.errors import SpoolUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent
from boathook.handlers.outbox import Outbox
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.spool_importer import ImportReport as ImportReport  # noqa: PLC0414 - re-exported
from boathook.ingest.spool_importer import ImportScope as ImportScope  # noqa: PLC0414 - re-exported
from boathook.ingest.spool_importer import ProgressCallback as ProgressCallback  # noqa: PLC0414 - re-exported
from boathook.ingest.spool_importer import SpoolImporter
from boathook.ingest.spool_records import UNROUTED, UnreadableRecord, decode
from boathook.service import id_prefixes
from boathook.service.database import with_stored_sources
from boathook.service.elsewhere import NamedSpool as NamedSpool  # noqa: PLC0414 - re-exported
from boathook.service.elsewhere import reject_elsewhere
from boathook.service.sending.message_store import MessageStore
from boathook.spool import inspection
from boathook.spool.inspection import SegmentInfo, SpoolFolder, read_contents
from boathook.spool.inspection import SegmentState as SegmentState  # noqa: PLC0414 - re-exported
from boathook.spool.segment import Record, SegmentContents
from boathook.spool.segment_store import SpoolLimits

UNSTORED_STATES: Final = frozenset({SegmentState.WAITING, SegmentState.REFUSED})
"""States of segments whose events are not in PostgreSQL."""
_STATES: Final = {
    ImportScope.AGAIN: {SegmentState.DONE, SegmentState.BAD},
    ImportScope.REFUSED: {SegmentState.REFUSED},
    ImportScope.WAITING: {SegmentState.WAITING},
}


class SpooledEvent(msgspec.Struct, frozen=True):
    """One record of a segment."""

    location: SegmentInfo
    record: Record
    event: NewEvent | None
    """None if this version cannot decode it."""


class FolderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one folder."""

    life: str
    path: str
    is_held: bool
    """Whether a process holds it: a gateway, or a drain."""
    waiting: int
    """Events still to be drained to PostgreSQL."""
    refused: int
    """Events that PostgreSQL refuses to store."""
    lost: int
    """Events that were durable and can no longer be read."""
    torn_bytes: int
    """Bytes of an incomplete write when the process ended; none of these events was acknowledged."""
    segments: dict[SegmentState, int]
    """Number of segments in each state."""
    bytes: int
    """Size of the segments that are not done."""
    oldest_at: datetime | None
    """When the oldest waiting or refused event was accepted."""


def events_of(folders: Collection[SpoolFolder], states: Collection[SegmentState]) -> Iterator[SpooledEvent]:
    """Yield the events of segments in these states, from the oldest folder first.

    Raises:
        OSError: a segment cannot be read.
    """
    for folder in folders:
        for segment in folder.segments:
            contents = read_contents(segment) if segment.state in states else None
            for record in () if contents is None else contents.records:
                yield SpooledEvent(segment, record, _decode(record))


def summarize_folder(folder: SpoolFolder) -> FolderSummary:
    """Return the totals of a folder; drained segments are not read.

    Raises:
        OSError: a segment cannot be read.
    """
    segments = [
        (segment, read_contents(segment)) for segment in folder.segments if segment.state is not SegmentState.DONE
    ]
    readable = [(segment, contents) for segment, contents in segments if contents is not None]
    return FolderSummary(
        life=folder.life,
        path=str(folder.path),
        is_held=folder.is_held,
        waiting=sum(len(contents.records) for segment, contents in readable if segment.state is SegmentState.WAITING),
        refused=sum(len(contents.records) for segment, contents in readable if segment.state is SegmentState.REFUSED),
        lost=sum(contents.lost for _, contents in readable),
        # The tail of a segment that is being written is about to become a record.
        torn_bytes=0 if folder.is_held else sum(contents.torn for _, contents in readable),
        segments={state: sum(segment.state is state for segment in folder.segments) for state in SegmentState},
        bytes=sum(segment.size for segment, _ in readable),
        oldest_at=min(
            (at for segment, contents in readable if (at := _first_at(segment, contents)) is not None), default=None
        ),
    )


def _first_at(segment: SegmentInfo, contents: SegmentContents) -> datetime | None:
    if segment.state not in UNSTORED_STATES:
        return None
    first = next((event for record in contents.records if (event := _decode(record)) is not None), None)
    return None if first is None else ids.created_at(first.id)


def _decode(record: Record) -> NewEvent | None:
    try:
        return decode(record.payload)
    except UnreadableRecord:
        return None


class SpoolCounts(msgspec.Struct, frozen=True):
    """The contents of a spool."""

    events: int = 0
    """Accepted events not known to be drained; some of a segment that is being drained may be in PostgreSQL already."""
    refused: int = 0
    """Events set aside because PostgreSQL refused them."""
    damaged: int = 0
    """Segments with durable data that can no longer be read."""


def root_of(settings: Settings) -> Path:
    """Return the folder of this host's spool."""
    return settings.server.data_dir / "spool"


def other_spools(settings: Settings) -> list[NamedSpool]:
    """Return the spools of this host whose events do not wait for its PostgreSQL."""
    packages = dict.fromkeys((*settings.packages, *packages_with_data(settings.server.data_dir)))
    return [spool for package in packages if package.spools for spool in resolve(package.spools)(settings)]


def limits_of(settings: SpoolSettings) -> SpoolLimits:
    """Return the limits of a process's spool."""
    return SpoolLimits(
        max_bytes=settings.max_bytes,
        segment_bytes=settings.segment_bytes,
        max_disk_used=settings.max_disk_used,
        keep_s=settings.retention_h * 3600,
    )


def is_served(data_dir: Path) -> bool:
    """Return whether a server that uses *data_dir* runs on this host."""
    return any(map(_is_locked, data_dir.glob("serve-*.lock")))


def _is_locked(file: Path) -> bool:
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def count(root: Path) -> SpoolCounts:
    """Count the contents of a spool, one segment at a time, without changes or locks. Raises OSError."""
    counts: Counter[SegmentState] = Counter()
    for segment in (segment for folder in inspection.list_folders(root) for segment in folder.segments):
        match segment.state:
            case SegmentState.WAITING | SegmentState.REFUSED:
                contents = inspection.read_contents(segment)
                counts[segment.state] += len(contents.records) if contents else 0
            case SegmentState.BAD:
                counts[segment.state] += 1
            case SegmentState.DONE:
                pass
    return SpoolCounts(counts[SegmentState.WAITING], counts[SegmentState.REFUSED], counts[SegmentState.BAD])


def summarize(root: Path) -> list[FolderSummary]:
    """Return the totals of each folder of a spool, oldest first. Raises SpoolUnavailable."""
    with _explain_read_errors():
        return [summarize_folder(folder) for folder in inspection.list_folders(root)]


def list_events(root: Path, states: Collection[SegmentState]) -> Iterator[SpooledEvent]:
    """Yield the events of segments in these states, from the oldest folder first. Raises SpoolUnavailable."""
    with _explain_read_errors():
        yield from events_of(inspection.list_folders(root), states)


def find_event(root: Path, reference: str, states: Collection[SegmentState]) -> SpooledEvent | None:
    """Return one event of a segment in these states, by its id or the beginning of it; None if there is none.

    Raises:
        InvalidValue: *reference* is not the beginning of an id, or that of several events.
        SpoolUnavailable: the spool cannot be read.
    """
    first, last = id_prefixes.read_range(ids.EVENT, reference)
    events_by_id: dict[UUID, SpooledEvent] = {}
    for event in list_events(root, states):
        if event.event is not None and first <= event.event.id <= last:
            events_by_id.setdefault(event.event.id, event)
            if first == last or len(events_by_id) > id_prefixes.MAX_CANDIDATES:
                break
    id_prefixes.check_unique(reference, [ids.show(ids.EVENT, id) for id in events_by_id])
    return next(iter(events_by_id.values()), None)


def preview_import(root: Path, scopes: Sequence[ImportScope]) -> list[ImportReport]:
    """Return the report of an import, as if all events were new. Raises SpoolUnavailable."""
    with _explain_read_errors():
        folders = inspection.list_folders(root)
        return [_preview(folders, scope) for scope in scopes]


def import_size(root: Path, scopes: Sequence[ImportScope]) -> int:
    """Return how many bytes an import would read. Raises SpoolUnavailable."""
    with _explain_read_errors():
        folders = inspection.list_folders(root)
        return sum(size for scope in scopes for size in _sizes(folders, scope))


async def import_events(
    database: Database, settings: Settings, root: Path, scopes: Sequence[ImportScope], progress: ProgressCallback
) -> list[ImportReport]:
    """Store each event of a spool once that no live process will drain; return a report for each scope.

    Args:
        database: stores the events.
        settings: contain the commit size and the retention of dedup keys.
        root: the spool.
        scopes: which events, in this order.
        progress: called with the number of bytes processed.

    Raises:
        UnsafeDatabase: the database could lose committed data.
        DatabaseError: the database does not accept the events; the import can be repeated.
        SpoolUnavailable: a segment cannot be read.
    """
    # Imported here because it imports the verification of all providers.
    from boathook.ingest.sources import follow_sources

    # A segment is finished once PostgreSQL has its events: that must be as durable as for a gateway's 2xx.
    await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
    settings = await with_stored_sources(settings, database)
    store = EventStore(database, dedup_days=settings.retention.dedup_days)
    follow_sources(store, settings)
    builder = EventBuilder(Router((), UNROUTED), lambda: read_router(database))
    elsewhere = reject_elsewhere(settings, lambda: builder.router)
    importer = SpoolImporter(
        root,
        EventWriter(store, builder.reroute, MessageStore(lambda: database, Outbox.of(settings.retention)), elsewhere),
        batch=settings.database.ingest_batch_size,
        report=progress,
    )
    runs = {
        ImportScope.AGAIN: importer.reimport_drained,
        ImportScope.REFUSED: importer.retry_refused,
        ImportScope.WAITING: importer.drain,
    }
    reports = [await runs[scope]() for scope in scopes]
    await notify_due(database)
    return reports


def _preview(folders: Collection[SpoolFolder], scope: ImportScope) -> ImportReport:
    report = ImportReport(what=scope)
    reached = folders if scope is ImportScope.AGAIN else [folder for folder in folders if not folder.is_held]
    report.accepted = sum(1 for _ in events_of(reached, _STATES[scope]))
    report.segments = sum(1 for _ in _sizes(folders, scope))
    return report


def _sizes(folders: Collection[SpoolFolder], scope: ImportScope) -> Iterator[int]:
    for folder in folders:
        if scope is not ImportScope.WAITING or not folder.is_held:
            yield from (segment.size for segment in folder.segments if segment.state in _STATES[scope])


@contextlib.contextmanager
def _explain_read_errors() -> Iterator[None]:
    """Convert OSError to SpoolUnavailable with the file's name."""
    try:
        yield
    except OSError as error:
        fix = "run this as the user that runs boathook" if isinstance(error, PermissionError) else "look at the disk"
        raise SpoolUnavailable(f"{error.filename} cannot be read: {error.strerror}; {fix}") from None
