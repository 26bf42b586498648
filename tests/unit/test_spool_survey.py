"""Inspecting a spool takes nothing from its process; importing brings what no live process holds, once and in order."""

import asyncio
import contextlib
import fcntl
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable, SpoolUnavailable, ValueRejected
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.spool_importer import SpoolImporter
from boathook.ingest.spool_records import encode
from boathook.service.receiving.spool import events_of, summarize_folder
from boathook.spool import disk as disk_module
from boathook.spool import inspection
from boathook.spool.disk import Disk
from boathook.spool.inspection import SegmentState, list_folders
from boathook.spool.segment_store import (
    DAMAGED_SUFFIX,
    DONE_SUFFIX,
    PENDING_SUFFIX,
    REJECTED_FOLDER,
    SegmentStore,
    SpoolLimits,
)
from tests.unit import test_intake

SMALL = SpoolLimits(segment_bytes=4096, max_disk_used=1.0)


def event(key: str, body: bytes = b"{}") -> NewEvent:
    """Return an event accepted just now."""
    return replace(test_intake.event(key, body), id=ids.make(time.time_ns() // 1_000_000, random.getrandbits(74)))


class Database:
    """A store that rejects chosen events, and may fail after a number of batches."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.stored: dict[str, NewEvent] = {}
        self.refused: set[str] = set()
        self.batches_left = 1_000_000

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        if self.batches_left == 0:
            raise DatabaseUnavailable("away")
        self.batches_left -= 1
        if self.refused & {one.dedup_key for one in batch}:
            raise ValueRejected("a constraint")
        return [self._store(one) for one in batch]

    def _store(self, one: NewEvent) -> Receipt:
        if (first := self.stored.get(one.dedup_key)) is None:
            self.stored[one.dedup_key] = one
            self.order.append(one.dedup_key)
            return Accepted(one.id)
        return Accepted(one.id, is_new=False) if first.id == one.id else Duplicate(first.id, first.body != one.body)


@pytest.fixture
def database() -> Database:
    return Database()


def written(root: Path, *keys: str, name: str = "1") -> SegmentStore:
    """Return the segment store of a running process that has written these events."""
    shelf = SegmentStore(root, SMALL, name=name)
    shelf.write([encode(event(key)) for key in keys])
    return shelf


def dead(root: Path, *keys: str, name: str = "1") -> Path:
    """Leave a folder as a process leaves it that is killed: nothing sealed, nothing held."""
    shelf = written(root, *keys, name=name)
    assert shelf.own is not None
    shelf.own.lock.release()
    return root / name


def importer(root: Path, database: Database, *, batch: int = 3) -> SpoolImporter:
    return SpoolImporter(root, EventWriter(database), batch=batch)


def suffixes(folder: Path) -> list[str]:
    return [path.suffix for path in sorted(folder.iterdir())]


class TestInspection:
    def test_each_folder_reports_its_lock_and_contents(self, tmp_path: Path):
        dead(tmp_path, "a", "b", name="1")
        alive = written(tmp_path, "c", name="2")
        first, second = [summarize_folder(folder) for folder in list_folders(tmp_path)]
        assert (first.life, first.is_held, first.waiting) == ("1", False, 2)
        assert (second.life, second.is_held, second.waiting) == ("2", True, 1)
        assert first.segments == {
            SegmentState.WAITING: 1,
            SegmentState.DONE: 0,
            SegmentState.BAD: 0,
            SegmentState.REFUSED: 0,
        }
        assert (first.lost, first.torn_bytes) == (0, 0)
        alive.close()

    def test_oldest_at_is_the_first_events_time(self, tmp_path: Path):
        dead(tmp_path, "a")
        (folder,) = list_folders(tmp_path)
        (only,) = events_of([folder], {SegmentState.WAITING})
        assert only.event is not None
        assert summarize_folder(folder).oldest_at == ids.created_at(only.event.id)

    def test_inspection_blocks_neither_writing_nor_adoption(self, tmp_path: Path):
        dead(tmp_path, "a", name="1")
        alive = written(tmp_path, "b", name="2")
        for _ in range(20):
            list(map(summarize_folder, list_folders(tmp_path)))
        alive.write([encode(event("c"))])
        assert alive.adopt() == 1
        assert alive.records >= 3
        alive.close()

    def test_a_folder_is_adopted_while_it_is_inspected(self, tmp_path: Path, monkeypatch):
        folder = dead(tmp_path, "a")
        with inspecting(folder) as stop:
            monkeypatch.setattr("boathook.spool.disk.time.sleep", lambda _seconds: stop())
            lock = Disk().lock(folder)
        assert lock is not None
        lock.release()

    def test_mutant_without_lock_retries_inspection_blocks_adoption(self, tmp_path: Path, monkeypatch):
        folder = dead(tmp_path, "a")
        monkeypatch.setattr(disk_module, "LOCK_TRIES", 1)
        with inspecting(folder):
            assert Disk().lock(folder) is None

    def test_a_folder_without_segments_is_not_listed(self, tmp_path: Path, monkeypatch):
        (tmp_path / "1").mkdir()
        monkeypatch.setattr(inspection, "_is_held", lambda _folder: pytest.fail("it was asked about"))
        assert list_folders(tmp_path) == []

    def test_segments_drained_during_inspection_are_skipped(self, tmp_path: Path):
        dead(tmp_path, "a")
        folders = list_folders(tmp_path)
        shelf = SegmentStore(tmp_path, SMALL, name="2")
        shelf.adopt()
        segment = shelf.oldest()
        assert segment is not None
        shelf.finish(segment)
        assert list(events_of(folders, {SegmentState.WAITING})) == []
        assert summarize_folder(folders[0]).waiting == 0

    def test_where_there_is_no_spool_there_is_nothing(self, tmp_path: Path):
        assert list_folders(tmp_path / "nowhere") == []

    def test_rejected_events_report_their_original_folder(self, tmp_path: Path):
        refuse(tmp_path, "a")
        (one,) = (
            lying
            for folder in list_folders(tmp_path)
            for lying in folder.segments
            if lying.state is SegmentState.REFUSED
        )
        assert one.life == "1"

    def test_an_undecodable_record_is_still_listed(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL, name="1")
        shelf.write([b"\x09of a later boathook", encode(event("a"))])
        shelf.close()
        unreadable, readable = events_of(list_folders(tmp_path), {SegmentState.WAITING})
        assert unreadable.event is None
        assert readable.event is not None


@contextlib.contextmanager
def inspecting(folder: Path):
    """Hold the lock that an inspection holds briefly, until the yielded function is called, or to the end."""
    descriptors = [os.open(folder, os.O_RDONLY)]
    fcntl.flock(descriptors[0], fcntl.LOCK_SH)

    def stop() -> None:
        while descriptors:
            os.close(descriptors.pop())

    try:
        yield stop
    finally:
        stop()


def refuse(root: Path, key: str) -> Path:
    """Leave one event among the refused, and return its file."""
    shelf = written(root, key)
    segment = shelf.oldest()
    assert segment is not None
    record = segment.contents.records[0]
    shelf.refuse(segment, record.sequence, record.payload)
    shelf.finish(segment)
    shelf.close()
    (file,) = (root / REJECTED_FOLDER).iterdir()
    return file


class TestImport:
    async def test_dead_process_spools_are_imported_in_order(self, tmp_path: Path, database: Database):
        dead(tmp_path, "a", "b", "c", "d", name="1")
        dead(tmp_path, "e", "f", name="2")
        import_report = await importer(tmp_path, database).drain()
        assert database.order == list("abcdef")
        assert (import_report.accepted, import_report.segments, import_report.is_whole) == (6, 2, True)
        assert (suffixes(tmp_path / "1"), suffixes(tmp_path / "2")) == ([DONE_SUFFIX], [DONE_SUFFIX])

    async def test_a_live_process_spool_is_not_imported(self, tmp_path: Path, database: Database):
        alive = written(tmp_path, "a")
        import_report = await importer(tmp_path, database).drain()
        assert (import_report.segments, database.order, suffixes(tmp_path / "1")) == (0, [], [PENDING_SUFFIX])
        alive.close()

    async def test_mutant_without_locks_a_drain_takes_the_segment_a_gateway_writes_to(
        self, tmp_path: Path, database: Database, monkeypatch
    ):
        alive = written(tmp_path, "a")
        monkeypatch.setattr(disk_module, "try_lock", lambda _descriptor: True)
        await importer(tmp_path, database).drain()
        alive.write([encode(event("b"))])
        assert suffixes(tmp_path / "1") == [DONE_SUFFIX], "what the gateway has just written will be brought by nobody"
        assert "b" not in database.order

    async def test_a_folder_is_held_while_it_is_drained(self, tmp_path: Path, database: Database, monkeypatch):
        folder = dead(tmp_path, "a", "b")
        held: list[object] = []
        store = database.append

        async def inspect_and_store(batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
            held.append(await asyncio.to_thread(Disk().lock, folder))
            return await store(batch, within_s=within_s)

        monkeypatch.setattr(database, "append", inspect_and_store)
        await importer(tmp_path, database, batch=1).drain()
        assert held == [None, None]
        lock = Disk().lock(folder)
        assert lock is not None, "and let go in the end"
        lock.release()

    @pytest.mark.parametrize("seed", range(5))
    async def test_repeated_outages_import_each_event_once(self, seed: int, tmp_path: Path, database: Database):
        dice = random.Random(seed)
        keys = [str(number) for number in range(120)]
        for life in range(4):
            dead(tmp_path, *keys[life * 30 : life * 30 + 30], name=str(life))
        while True:
            database.batches_left = dice.randrange(1, 8)
            try:
                await importer(tmp_path, database, batch=dice.randrange(1, 9)).drain()
                break
            except DatabaseUnavailable:
                continue
        assert database.order == keys
        assert all(
            suffixes(tmp_path / str(life)) == [DONE_SUFFIX] * len(suffixes(tmp_path / str(life))) for life in range(4)
        )

    async def test_a_rejected_event_is_kept_and_the_rest_imported(self, tmp_path: Path, database: Database):
        dead(tmp_path, *"abcde")
        database.refused = {"c"}
        import_report = await importer(tmp_path, database).drain()
        assert database.order == list("abde")
        assert (import_report.accepted, import_report.refused, import_report.is_whole) == (4, 1, False)
        assert [
            one.event.dedup_key for one in events_of(list_folders(tmp_path), {SegmentState.REFUSED}) if one.event
        ] == ["c"]

    async def test_retry_refused_marks_accepted_files_as_done(self, tmp_path: Path, database: Database):
        file = refuse(tmp_path, "a")
        database.refused = {"a"}
        assert (await importer(tmp_path, database).retry_refused()).refused == 1
        assert file.exists()
        database.refused = set()
        import_report = await importer(tmp_path, database).retry_refused()
        assert (import_report.accepted, import_report.is_whole, file.exists()) == (1, True, False)
        assert file.with_suffix(DONE_SUFFIX).exists()
        assert (await importer(tmp_path, database).retry_refused()).segments == 0

    async def test_reimport_counts_missing_and_existing_events(self, tmp_path: Path, database: Database):
        dead(tmp_path, *"abcd")
        await importer(tmp_path, database).drain()
        restored = Database()
        restored.stored = {key: one for key, one in database.stored.items() if key in "ab"}
        import_report = await importer(tmp_path, restored).reimport_drained()
        assert (import_report.accepted, import_report.there, restored.order) == (2, 2, ["c", "d"])
        assert suffixes(tmp_path / "1") == [DONE_SUFFIX], "nothing is moved"
        assert (await importer(tmp_path, restored).reimport_drained()).accepted == 0

    async def test_reimport_includes_drained_segments_of_a_live_process(self, tmp_path: Path):
        alive = written(tmp_path, "a")
        segment = alive.oldest()
        assert segment is not None
        alive.finish(segment)
        alive.write([encode(event("b"))])
        restored = Database()
        assert (await importer(tmp_path, restored).reimport_drained()).accepted == 1
        assert restored.order == ["a"], "what it has not drained yet it will bring itself"
        alive.close()

    async def test_duplicates_and_conflicts_are_counted_separately(self, tmp_path: Path, database: Database):
        shelf = SegmentStore(tmp_path, SMALL, name="1")
        shelf.write([encode(event("a")), encode(event("a")), encode(event("a", b"[]"))])
        shelf.close()
        import_report = await importer(tmp_path, database).drain()
        assert (import_report.accepted, import_report.duplicate, import_report.conflict) == (1, 1, 1)

    async def test_lost_events_are_counted_and_their_segment_kept_for_operators(
        self, tmp_path: Path, database: Database
    ):
        shelf = SegmentStore(tmp_path, SMALL, name="1")
        for key in ("first", "second", "third"):
            shelf.write([encode(event(key))])
        shelf.close()
        (file,) = (tmp_path / "1").iterdir()
        data = bytearray(file.read_bytes())
        data[data.index(b"second")] ^= 1
        file.write_bytes(data)
        import_report = await importer(tmp_path, database).drain()
        assert (database.order, import_report.lost, import_report.is_whole) == (["first", "third"], 1, False)
        assert suffixes(tmp_path / "1") == [DAMAGED_SUFFIX]
        (folder,) = list_folders(tmp_path)
        assert (summarize_folder(folder).lost, summarize_folder(folder).segments[SegmentState.BAD]) == (1, 1)

    async def test_old_drained_segments_are_not_removed_by_an_inspection(self, tmp_path: Path, database: Database):
        dead(tmp_path, "a")
        await importer(tmp_path, database).drain()
        (file,) = (tmp_path / "1").iterdir()
        os.utime(file, (0, 0))
        await importer(tmp_path, database).drain()
        assert file.exists()

    async def test_a_disk_failure_is_reported(self, tmp_path: Path, database: Database, monkeypatch):
        refuse(tmp_path, "a")

        def fail(_self: Disk, _old: Path, _new: Path) -> None:
            raise OSError(30, "Read-only file system", str(_old))

        monkeypatch.setattr(Disk, "rename", fail)
        with pytest.raises(SpoolUnavailable, match="Read-only file system"):
            await importer(tmp_path, database).retry_refused()
