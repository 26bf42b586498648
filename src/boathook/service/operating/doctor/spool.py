"""Diagnoses the spool: durability, free space, and events that need an operator."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.domain.errors import BoathookError
from boathook.domain.model import NewEvent
from boathook.domain.plurals import counted
from boathook.ingest.sources import follow_sources
from boathook.service.elsewhere import elsewhere_of
from boathook.service.operating.doctor.handlers import CheckStatus, Finding
from boathook.service.receiving.spool import FolderSummary, events_of, root_of, summarize_folder
from boathook.spool.inspection import SegmentState, SpoolFolder, list_folders
from boathook.spool.segment_store import SegmentStore, SpoolLimits

_MIB: Final = 1 << 20
_IN_MEMORY: Final = {"tmpfs", "ramfs"}
_LOCATION_CHECK: Final = "spool"
_PENDING_CHECK: Final = "spooled"
_DRAINED_CHECK: Final = "drained"
_MAX_COMPARED: Final = 1_000


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about the spool of this host."""
    root = root_of(settings)
    if not settings.spool.enabled:
        text = "is off: while PostgreSQL is unavailable, every request is answered 503"
        yield Finding(_LOCATION_CHECK, CheckStatus.WARN, text, "set spool.enabled = true")
    else:
        yield _place(settings, root)
    try:
        summaries = [summarize_folder(folder) for folder in list_folders(root)]
    except OSError as error:
        fix = "change its owner to the user that runs boathook"
        yield Finding(_PENDING_CHECK, CheckStatus.FAIL, f"{error.filename} cannot be read: {error.strerror}", fix)
    else:
        yield _contents(summaries)


async def compare(settings: Settings, database: Database) -> Finding:
    """Check that the database has the events drained last; one restored from a backup may lack them."""
    try:
        drained = _drained_last(list_folders(root_of(settings)))
    except OSError as error:
        return Finding(
            _DRAINED_CHECK, CheckStatus.WARN, f"{error.filename} cannot be read: {error.strerror}", "fix its disk"
        )
    elsewhere = elsewhere_of(settings)
    if elsewhere is not None:
        drained = await elsewhere.select_own(database, drained)
    store = EventStore(database)
    follow_sources(store, settings)
    missing = await store.find_unstored(drained)
    if missing:
        text = f"of {counted(len(drained), 'event')} drained last, the database lacks {len(missing)}: was it restored?"
        return Finding(
            _DRAINED_CHECK, CheckStatus.WARN, text, "run `boathook spool drain --again` on every host with gateways"
        )
    return Finding(
        _DRAINED_CHECK, CheckStatus.OK, f"the database has what was drained last: {counted(len(drained), 'event')}"
    )


def _drained_last(folders: Sequence[SpoolFolder]) -> list[NewEvent]:
    """Return the last drained events of each process that the spool keeps, without those PostgreSQL has refused."""
    refused = {
        refused_event.event.id
        for refused_event in events_of(folders, {SegmentState.REFUSED})
        if refused_event.event is not None
    }
    latest: list[NewEvent] = []
    for folder in folders:
        drained = [segment for segment in folder.segments if segment.state is SegmentState.DONE]
        last = events_of([replace(folder, segments=tuple(drained[-1:]))], {SegmentState.DONE})
        # Items of a batch have keys; the batch itself has none.
        single_events = [spooled.event for spooled in last if spooled.event is not None and not spooled.event.items]
        latest += single_events[-_MAX_COMPARED:]
    return [event for event in latest if event.id not in refused]


def _place(settings: Settings, root: Path) -> Finding:
    spool, nearest = settings.spool, _nearest(root)
    try:
        if nearest == root:
            SegmentStore(root, SpoolLimits()).check_writable()
        elif not os.access(nearest, os.W_OK):
            raise PermissionError(13, f"{nearest} cannot be written to")
    except (OSError, BoathookError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        fix = "change server.data_dir, or the folder's owner"
        return Finding(_LOCATION_CHECK, CheckStatus.FAIL, f"{root} does not sync events: {reason}", fix)
    if (kind := kind_of(nearest)) in _IN_MEMORY:
        text = f"{nearest} is in memory ({kind}): a power cut loses the events in it"
        return Finding(_LOCATION_CHECK, CheckStatus.WARN, text, "set server.data_dir to a folder on a disk")
    usage = shutil.disk_usage(nearest)
    free_bytes = max(0, int(usage.total * spool.max_disk_used) - (usage.total - usage.free))
    max_bytes = spool.max_bytes * settings.server.gateways
    if free_bytes < min(max_bytes, spool.segment_bytes):
        text = f"accepts no events: the disk of {nearest} is as full as spool.max_disk_used allows"
        return Finding(_LOCATION_CHECK, CheckStatus.WARN, text, "free space, or raise spool.max_disk_used")
    if free_bytes < max_bytes:
        text = f"has room for {free_bytes // _MIB:,} MiB of events, but the settings allow {max_bytes // _MIB:,}"
        return Finding(_LOCATION_CHECK, CheckStatus.WARN, text, "free space, or lower spool.max_bytes")
    return Finding(
        _LOCATION_CHECK,
        CheckStatus.OK,
        f"{nearest} syncs events, and has room for {max_bytes // _MIB:,} MiB of them",
    )


def _contents(summaries: list[FolderSummary]) -> Finding:
    lost, bad = (
        sum(summary.lost for summary in summaries),
        sum(summary.segments[SegmentState.BAD] for summary in summaries),
    )
    refused = sum(summary.refused for summary in summaries)
    abandoned_events = sum(summary.waiting for summary in summaries if not summary.is_held)
    held_events = sum(summary.waiting for summary in summaries if summary.is_held)
    if bad or lost or refused:
        text = f"events rejected by PostgreSQL: {refused}; damaged segments: {bad}, events lost in them: {lost}"
        return Finding(_PENDING_CHECK, CheckStatus.WARN, text, "`boathook spool status` shows how to fix each")
    if abandoned_events:
        text = f"events left by processes that have ended: {abandoned_events}"
        return Finding(_PENDING_CHECK, CheckStatus.WARN, text, "start a gateway here, or run `boathook spool drain`")
    if held_events:
        fix = "check that PostgreSQL accepts events: `boathook_database_unavailable` shows since when it does not"
        return Finding(_PENDING_CHECK, CheckStatus.WARN, f"events waiting for PostgreSQL: {held_events}", fix)
    return Finding(_PENDING_CHECK, CheckStatus.OK, "nothing waits")


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))


def kind_of(folder: Path) -> str:
    """Return the file system type of a folder; empty if the system does not report it."""
    mount_point, kind = Path(), ""
    with contextlib.suppress(OSError, ValueError):
        resolved = folder.resolve()
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, point, filesystem, *_ = line.split(" ")
            mounted = Path(point.replace("\\040", " "))
            if resolved.is_relative_to(mounted) and len(mounted.parts) >= len(mount_point.parts):
                mount_point, kind = mounted, filesystem
    return kind
