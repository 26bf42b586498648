"""Attacks on the spool: foreign files, failing and hanging disks, clocks set back, and events stored weeks late."""

import asyncio
import errno
import os
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.domain import ids
from boathook.domain.errors import SpoolUnavailable, ValueRejected
from boathook.domain.model import Accepted, Duplicate, NewDelivery, NewEvent
from boathook.ingest import intake as intake_module
from boathook.ingest.event_writer import EventWriter, Refused, Stored
from boathook.ingest.health import HealthEndpoints
from boathook.ingest.intake import Intake, Mode
from boathook.ingest.spool_records import encode
from boathook.observability import log
from boathook.observability.live_metrics import LiveMetrics
from boathook.server import supervisor
from boathook.spool import inspection
from boathook.spool import spool as spool_module
from boathook.spool.disk import Disk
from boathook.spool.segment import Record
from boathook.spool.segment_store import SegmentStore, SpoolLimits
from boathook.spool.spool import Spool
from tests.postgres.db.test_events import count
from tests.postgres.db.test_events import event as stored_event
from tests.support import LOCK_WAITED_FOR, eventually
from tests.unit.test_intake import event
from tests.unit.test_intake_modes import FakeStore, back
from tests.unit.test_spool import SMALL, Failing, drained


class FaultyDisk(Disk):
    """A disk on which chosen calls fail."""

    def __init__(self) -> None:
        self.unreadable: list[int] = []
        """Errors of the next reads."""
        self.is_read_only = False
        self.answers = threading.Event()
        self.answers.set()

    def read(self, path: Path) -> bytes:
        self.answers.wait()
        if self.unreadable:
            raise OSError(self.unreadable.pop(0), "told to fail")
        return super().read(path)

    def rename(self, old: Path, new: Path) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "read-only file system")
        super().rename(old, new)

    def lock(self, folder: Path):
        self.answers.wait()
        return super().lock(folder)


def write_dead_spool(root: Path, name: str, *payloads: bytes) -> Path:
    shelf = SegmentStore(root, SMALL, name=name)
    shelf.write(payloads)
    shelf.close()
    return root / name


def events_of(*keys: str) -> list[bytes]:
    return [encode(event(key)) for key in keys]


class TestForeignFiles:
    """Other files in a spool's folder, from a mount point or created by a user."""

    @pytest.fixture(autouse=True)
    def _foreign(self, tmp_path: Path) -> None:
        (tmp_path / "README").write_text("hands off")
        (tmp_path / ".nfs0001").write_text("")
        (tmp_path / "lost+found").mkdir()

    def test_foreign_files_do_not_prevent_spooling_or_draining(self, tmp_path: Path):
        write_dead_spool(tmp_path, "1", b"old")
        shelf = SegmentStore(tmp_path, SMALL, name="2")
        assert shelf.adopt() == 1
        shelf.write([b"new"])
        assert drained(shelf) == [b"old", b"new"]
        shelf.tidy(0)
        assert shelf.count_set_aside() == (0, 0)
        assert [folder.life for folder in inspection.list_folders(tmp_path)] == ["1", "2"]
        assert (tmp_path / "lost+found").exists()

    def test_an_unreadable_folder_does_not_prevent_adopting_others(self, tmp_path: Path):
        class OfRoot(Disk):
            def names(self, folder: Path) -> list[str]:
                if folder.name == "1":
                    raise PermissionError(errno.EACCES, "permission denied")
                return super().names(folder)

        write_dead_spool(tmp_path, "1", b"of root")
        write_dead_spool(tmp_path, "2", b"ours")
        shelf = SegmentStore(tmp_path, SMALL, OfRoot(), name="3")
        with pytest.raises(PermissionError):
            shelf.adopt()
        shelf.write([b"new"])
        assert drained(shelf) == [b"ours", b"new"]
        shelf.tidy(2e10)


class TestReading:
    @pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EIO])
    def test_a_temporarily_unreadable_segment_is_retried(self, tmp_path: Path, error: int):
        write_dead_spool(tmp_path, "1", b"x")
        disk = FaultyDisk()
        shelf = SegmentStore(tmp_path, SMALL, disk, name="2")
        shelf.adopt()
        disk.unreadable = [error] * 3
        for _ in range(3):
            with pytest.raises(OSError, match="told to fail"):
                shelf.oldest()
        assert drained(shelf) == [b"x"]

    def test_a_persistently_unreadable_segment_is_set_aside(self, tmp_path: Path):
        write_dead_spool(tmp_path, "1", b"rotten")
        write_dead_spool(tmp_path, "2", b"good")
        disk = FaultyDisk()
        shelf = SegmentStore(tmp_path, SMALL, disk, name="3")
        shelf.adopt()
        disk.unreadable = [errno.EIO] * 5
        for _ in range(4):
            with pytest.raises(OSError, match="told to fail"):
                shelf.oldest()
        assert drained(shelf) == [b"good"]
        assert [path.suffix for path in (tmp_path / "1").iterdir()] == [".bad"]

    def test_a_lack_of_descriptors_never_sets_a_segment_aside(self, tmp_path: Path):
        write_dead_spool(tmp_path, "1", b"x")
        disk = FaultyDisk()
        shelf = SegmentStore(tmp_path, SMALL, disk, name="2")
        shelf.adopt()
        disk.unreadable = [errno.EMFILE] * 50
        for _ in range(50):
            with pytest.raises(OSError, match="told to fail"):
                shelf.oldest()
        assert drained(shelf) == [b"x"]


class TestFolders:
    def test_folders_are_drained_in_order_despite_a_clock_set_back(self, tmp_path: Path):
        before = SegmentStore(tmp_path, SMALL, name="00000000000000000900")
        before.write([b"first"])
        before.close()
        after = SegmentStore(tmp_path, SMALL, name="00000000000000000005")
        after.write([b"second"])
        after.close()
        last = SegmentStore(tmp_path, SMALL, name="00000000000000000950")
        last.adopt()
        assert drained(last) == [b"first", b"second"]

    def test_mutant_named_by_the_clock_alone_they_are_not(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(SegmentStore, "_next_folder_name", lambda self: self._name)
        write_dead_spool(tmp_path, "00000000000000000900", b"first")
        write_dead_spool(tmp_path, "00000000000000000005", b"second")
        last = SegmentStore(tmp_path, SMALL, name="00000000000000000950")
        last.adopt()
        assert drained(last) == [b"second", b"first"]

    def test_a_removed_folder_is_recreated(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL, name="1")
        shelf.write([b"x" * 3000])
        (segment,) = (tmp_path / "1").iterdir()
        segment.unlink()
        (tmp_path / "1").rmdir()
        with pytest.raises(SpoolUnavailable):
            shelf.write([b"y" * 3000])
        shelf.write([b"z"])
        found = []
        while (one := shelf.oldest()) is not None:
            found += [record.payload for record in one.contents.records]
            try:
                shelf.finish(one)
            except FileNotFoundError:
                assert one.path == segment
        assert found == [b"z"]

    def test_a_folder_that_cannot_be_scanned_is_released(self, tmp_path: Path):
        class Blind(Disk):
            def size(self, path: Path) -> int:
                raise OSError(errno.EIO, "input/output error")

        write_dead_spool(tmp_path, "1", b"x")
        with pytest.raises(OSError, match="input/output"):
            SegmentStore(tmp_path, SMALL, Blind(), name="2").adopt()
        other = SegmentStore(tmp_path, SMALL, name="3")
        assert other.adopt() == 1

    def test_a_failing_disk_is_not_filled_with_segments_that_hold_nothing(self, tmp_path: Path, monkeypatch):
        disk = Failing()
        shelf = SegmentStore(tmp_path, SMALL, disk)
        shelf.write([b"safe"])
        disk.sync_fails = 20
        for _ in range(20):
            monkeypatch.setattr(shelf, "backoff_until", 0.0)
            with pytest.raises(SpoolUnavailable):
                shelf.write([b"nobody knows"])
        assert len(list(tmp_path.glob("*/*"))) == 1
        monkeypatch.setattr(shelf, "backoff_until", 0.0)
        shelf.write([b"safe too"])
        assert {b"safe", b"safe too"} <= set(drained(shelf))

    def test_a_spool_smaller_than_a_segment_fills_up_to_its_limit(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SpoolLimits(segment_bytes=1 << 20, max_bytes=4096, max_disk_used=1.0))
        shelf.write([b"x" * 3000])
        with pytest.raises(SpoolUnavailable, match="full"):
            shelf.write([b"y" * 3000])
        assert drained(shelf) == [b"x" * 3000]

    def test_check_writable_fails_without_file_locks(self, tmp_path: Path):
        class Network(Disk):
            def lock(self, folder: Path):
                raise OSError(errno.ENOLCK, "no locks available")

        SegmentStore(tmp_path, SMALL).check_writable()
        with pytest.raises(OSError, match="no locks"):
            SegmentStore(tmp_path, SMALL, Network()).check_writable()
        assert list(tmp_path.iterdir()) == []

    def test_closing_after_a_failed_sync_keeps_other_descriptors_open(self, tmp_path: Path, monkeypatch):
        file = Disk().create(tmp_path / "x", 10)

        def fail(_descriptor: int) -> None:
            raise OSError(errno.EIO, "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match="input/output"):
                file.close(5)
        other = os.open(tmp_path, os.O_RDONLY)  # gets the number that has become free
        file.close()
        os.fstat(other)
        os.close(other)


class TestDraining:
    async def test_an_outage_may_last_for_thousands_of_tries(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(intake_module, "DRAIN_BACKOFF_S", (0.0,))
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL)), within_s=0.2)
        await intake.start()
        fake_store.is_away = True
        await intake.accept(event("a"))
        await eventually(lambda: fake_store.offers > 1_200)
        fake_store.is_away = False
        await back(intake)
        assert fake_store.order == ["a"]
        await intake.drain()

    def test_the_drain_backoff_is_capped(self):
        assert max(intake_module.DRAIN_BACKOFF_S) == intake_module.DRAIN_BACKOFF_S[-1] <= 1.0

    async def test_a_disk_that_becomes_read_only_keeps_nothing_from_the_database(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(intake_module, "ADOPT_INTERVAL_S", 0.02)
        write_dead_spool(tmp_path, "1", *events_of("a", "b"))
        disk, fake_store = FaultyDisk(), FakeStore()
        disk.is_read_only = True
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL, disk, name="2")), within_s=0.2)
        await intake.start()
        await back(intake)
        receipt = await intake.accept(event("c"))
        assert isinstance(receipt, Accepted)
        assert not receipt.is_spooled
        offers = fake_store.offers
        await asyncio.sleep(0.1)
        assert intake.mode is Mode.DIRECT
        assert fake_store.offers == offers  # and it is not offered again and again
        await intake.drain()
        disk.is_read_only = False
        later = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL, disk, name="3")), within_s=0.2)
        await later.start()
        await back(later)
        assert fake_store.order == ["a", "b", "c"]
        assert [path.suffix for path in (tmp_path / "1").iterdir()] == [".done"]
        await later.drain()

    async def test_mutant_an_unskipped_segment_is_retried_forever(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(intake_module, "ADOPT_INTERVAL_S", 0.02)
        monkeypatch.setattr(SegmentStore, "_left_in", lambda _, folder: sorted(folder.glob("*.seg")))
        write_dead_spool(tmp_path, "1", *events_of("a"))
        disk, fake_store = FaultyDisk(), FakeStore()
        disk.is_read_only = True
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL, disk, name="2")), within_s=0.2)
        await intake.start()
        await back(intake)
        offers = fake_store.offers
        await eventually(lambda: fake_store.offers > offers)
        await intake.drain()

    async def test_segments_that_are_removed_block_nothing(self, tmp_path: Path):
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL, name="1")), within_s=0.2)
        await intake.start()
        fake_store.is_away = True
        await intake.accept(event("lost"))
        for path in (tmp_path / "1").iterdir():
            path.unlink()
        fake_store.is_away = False
        await back(intake)
        await intake.accept(event("b"))
        assert fake_store.order == ["b"]
        await intake.drain()


class TestAnswers:
    async def test_concurrent_duplicates_in_the_spool_get_the_stored_id(self, tmp_path: Path):
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL)), within_s=0.2)
        await intake.start()
        fake_store.is_away = True
        await intake.accept(event("before"))
        first = event("a")
        copy = replace(first, id=uuid4())
        one, two = await asyncio.gather(intake.accept(first), intake.accept(copy))
        assert isinstance(one, Accepted)
        assert two == Duplicate(first.id)
        assert await intake.accept(copy) == Duplicate(first.id)
        fake_store.is_away = False
        await back(intake)
        assert fake_store.stored["a"].id == first.id
        await intake.drain()

    async def test_duplicates_in_an_outage_get_the_first_id_and_take_no_space(self, tmp_path: Path):
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL)), within_s=0.2)
        await intake.start()
        fake_store.is_away = True
        first = await intake.accept(event("a"))
        for tries in (3, 5):
            await eventually(partial(_has_tried, fake_store, tries))
            copy = replace(event("a"), id=uuid4())
            assert await intake.accept(copy) == Duplicate(first.event_id)
        assert intake.buffer is not None
        assert intake.buffer.waiting_events == 1
        await intake.drain()

    async def test_a_cancelled_caller_does_not_block_others(self, tmp_path: Path):
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL)), within_s=0.2)
        await intake.start()
        fake_store.hangs.clear()
        under_way = asyncio.create_task(intake.accept(event("first")))
        await eventually(lambda: fake_store.offers == 1)
        gone = asyncio.create_task(intake.accept(replace(event("x"), dedup_key="\ud800")))
        waiting = asyncio.create_task(intake.accept(event("c")))
        await asyncio.sleep(0)
        gone.cancel()
        receipts = await asyncio.wait_for(asyncio.gather(under_way, waiting), 300)
        assert all(isinstance(receipt, Accepted) and receipt.is_spooled for receipt in receipts)
        fake_store.hangs.set()
        await back(intake)
        await intake.drain()

    @pytest.mark.parametrize("key", ["\ud800", "a\x00b"], ids=["surrogate", "nul"])
    async def test_unstorable_text_is_refused_in_an_outage_too(self, tmp_path: Path, key: str):
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL)), within_s=0.2)
        await intake.start()
        fake_store.is_away = True
        await intake.accept(event("before"))
        with pytest.raises(ValueRejected):
            await intake.accept(replace(event("x"), dedup_key=key))
        await intake.drain()

    async def test_a_database_failing_within_a_split_batch_keeps_the_order(self, tmp_path: Path, monkeypatch):
        fake_store = FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL)), within_s=0.2)
        fake_store.refused = {"bad"}
        append, calls = fake_store.append, 0

        async def fail_on_the_first_half(batch, *, within_s=None):
            nonlocal calls
            calls += 1
            fake_store.is_away = calls == 2
            return await append(batch, within_s=within_s)

        monkeypatch.setattr(fake_store, "append", fail_on_the_first_half)
        keys = ["a", "b", "bad", "c"]
        asked = [asyncio.create_task(intake.accept(event(key))) for key in keys]
        await asyncio.sleep(0)
        await intake.start()
        await asyncio.gather(*asked, return_exceptions=True)
        await back(intake)
        assert fake_store.order == ["a", "b", "c"]
        await intake.drain()


class TestHangingDisks:
    async def test_a_stuck_disk_refuses_events_until_it_recovers(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(spool_module, "TICK_S", 0.01)
        disk, fake_store = FaultyDisk(), FakeStore()
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, SMALL, disk)), within_s=0.2)
        await intake.start()
        assert intake.accepts_without_database
        fake_store.is_away = True
        disk.answers.clear()
        first = asyncio.create_task(intake.accept(event("a")))
        await eventually(lambda: intake.buffer is not None and intake.buffer.is_stuck)
        with pytest.raises(SpoolUnavailable):
            await asyncio.wait_for(intake.accept(event("b")), 1)
        assert intake.is_rejecting
        disk.answers.set()
        receipt = await first
        assert isinstance(receipt, Accepted)
        assert receipt.is_spooled
        await intake.accept(event("c"))
        assert intake.accepts_without_database
        fake_store.is_away = False
        await back(intake)
        assert fake_store.order == ["a", "c"]
        await intake.drain()

    @pytest.mark.parametrize("counts_late_ticks", [False, True], ids=["sound", "mutant"])
    async def test_a_suspended_process_does_not_report_a_stuck_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts_late_ticks: bool
    ):
        monkeypatch.setattr(spool_module, "STUCK_AFTER_TICKS", 1)
        monkeypatch.setattr(spool_module, "TICK_S", 0.2)
        if counts_late_ticks:
            tick = Spool._tick
            monkeypatch.setattr(Spool, "_tick", lambda spool, _due: tick(spool, float("inf")))
        disk = FaultyDisk()
        spool = Spool(SegmentStore(tmp_path, SMALL, disk))
        await spool.start()
        disk.answers.clear()
        written = spool.append(b"a")
        await asyncio.sleep(0)
        time.sleep(1)  # noqa: ASYNC251 - the whole process stands still
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the tick that was due has run between the two
        assert spool.is_stuck is counts_late_ticks
        disk.answers.set()
        await written
        await spool.stop()


class TestLeftovers:
    """A spool that is switched off, or a host without a gateway, drains nothing."""

    @pytest.mark.parametrize(("enabled", "roles"), [(False, ("gateway",)), (True, ("worker", "keeper"))])
    def test_a_spool_nobody_drains_is_reported_at_start(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], enabled: bool, roles: tuple[str, ...]
    ):
        shown = self._tell(tmp_path, capfd, enabled=enabled, roles=roles)
        assert "spool_left" not in shown
        write_dead_spool(tmp_path / "spool", "1", b"x")
        assert "boathook spool drain" in self._tell(tmp_path, capfd, enabled=enabled, roles=roles)

    def test_a_gateway_with_a_spool_drains_it_without_a_warning(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ):
        write_dead_spool(tmp_path / "spool", "1", b"x")
        assert self._tell(tmp_path, capfd, enabled=True, roles=("gateway", "worker")) == ""

    def _tell(self, folder: Path, capfd: pytest.CaptureFixture[str], *, enabled: bool, roles: tuple[str, ...]) -> str:
        settings = SimpleNamespace(has_spool=enabled, server=SimpleNamespace(roles=roles, data_dir=folder))
        supervisor.warn_of_undrained_spool(cast("Settings", settings))
        log.flush()
        return capfd.readouterr().err


class TestProbes:
    async def test_a_gateway_with_a_full_spool_is_not_ready(self, tmp_path: Path):
        fake_store = FakeStore()
        full = SpoolLimits(segment_bytes=4096, max_bytes=4096, max_disk_used=1.0)
        intake = Intake(fake_store, buffer=Spool(SegmentStore(tmp_path, full)), within_s=0.2)
        probes = HealthEndpoints(LiveMetrics(None, ""), is_draining=lambda: False, intake=intake)
        await intake.start()
        fake_store.is_away = True
        await intake.accept(event("a"))
        assert await status_of(probes, "/readyz") == 200
        with pytest.raises(SpoolUnavailable):
            await intake.accept(event("b", bytes(4096)))
        assert await status_of(probes, "/readyz") == 503
        fake_store.is_away = False
        await back(intake)
        assert not intake.is_rejecting
        await intake.drain()


async def status_of(probes: HealthEndpoints, path: str) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {}

    await probes({"path": path, "method": "GET"}, receive, send)
    return int(sent[0]["status"])


def _has_tried(fake_store: FakeStore, times: int) -> bool:
    return fake_store.offers >= times


DAY_S = 86_400


async def routed(events: list[NewEvent]) -> list[NewEvent]:
    return [replace(one, deliveries=(NewDelivery("handler:x"),), routes_version=1) for one in events]


async def bring(store: EventStore, *events: NewEvent) -> list[Stored | Refused]:
    records = [Record(number, encode(one)) for number, one in enumerate(events, 1)]
    return [result async for result in EventWriter(store, routed).bring(records)]


async def test_an_event_older_than_all_partitions_is_stored_and_delivered(db: Database):
    store = EventStore(db)
    old = replace(stored_event("k"), id=ids.make(int((time.time() - 400 * DAY_S) * 1000), 7))
    (result,) = await bring(store, old)
    assert isinstance(result, Stored)
    assert (await store.get(old.id)).dedup_key == "k"
    assert await count(db, "delivery") == 1


async def test_an_event_stored_before_with_an_expired_key_is_accepted(db: Database):
    store = EventStore(db)
    first, other = stored_event("k"), stored_event("l")
    await store.append([first])
    results: list[Any] = []
    for forget in ("update boathook.dedup set expires_at = now() - interval '1 day'", "delete from boathook.dedup"):
        await db.execute(forget)
        results = await bring(store, first, other)
        assert all(isinstance(result, Stored) for result in results)
    assert results[0] == Stored(results[0].record, results[0].event, Accepted(first.id, is_new=False))
    assert (await count(db, "event"), await count(db, "delivery")) == (2, 2)


async def test_a_partition_created_concurrently_rejects_no_event(db: Database):
    store = EventStore(db)
    old = replace(stored_event("k"), id=ids.make(int((time.time() - 400 * DAY_S) * 1000), 7))
    monday = ids.created_at(old.id).replace(hour=0, minute=0, second=0, microsecond=0)
    first, last = (ids.first_of(monday + timedelta(days=days)) for days in (-1, 6))
    async with db.transaction() as keeper:
        await keeper.execute("lock table boathook.event_default in access exclusive mode")
        await keeper.execute("create table boathook.event_now (like boathook.event including all)")
        bringing = asyncio.create_task(bring(store, old))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
        attach = (
            f"alter table boathook.event attach partition boathook.event_now for values from ('{first}') to ('{last}')"
        )
        await keeper.execute(attach)
    (result,) = await bringing
    assert isinstance(result, Stored)
    assert (await store.get(old.id)).dedup_key == "k"
