"""The spool on a real file system: durable records are read in order, and damage differs from a torn end."""

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain.errors import SpoolUnavailable
from boathook.spool import disk as disk_module
from boathook.spool.disk import Disk, File, Lock
from boathook.spool.segment import FRAME_BYTES, HEADER_BYTES, SegmentContents, SegmentEncoder, read_segment
from boathook.spool.segment_store import Segment, SegmentStore, SpoolLimits
from boathook.spool.spool import Spool

GOLDEN = (
    "626873706f6f6c313031323334353637070000000000000084a73e7e30313233343536370400000007000000000000000000"
    "000000000000c88649f77061696430313233343536370000000007000000000000000700000000000000e16ae9f8"
)
SMALL = SpoolLimits(segment_bytes=4096, max_bytes=1 << 20, max_disk_used=1.0)


def written(*groups: Sequence[bytes], seal: bool = False) -> bytes:
    """Return a segment with these groups written durably one after another."""
    framer, sequence, synced = SegmentEncoder(1), 1, 0
    data = framer.header
    for group in groups:
        for payload in group:
            data += framer.frame(sequence, payload, synced)
            sequence += 1
        synced = sequence - 1
    return data + (framer.seal(synced) if seal else b"")


def payloads(data: bytes) -> list[bytes]:
    return [record.payload for record in read_segment(data).records]


def drained(shelf: SegmentStore) -> list[bytes]:
    """Drain a spool and return its records."""
    found = []
    while (segment := shelf.oldest()) is not None:
        found += [record.payload for record in segment.contents.records]
        shelf.finish(segment)
    return found


class TestSegments:
    def test_written_records_are_read_back(self):
        contents = read_segment(written([b"a", b"bb"], [b"c"], seal=True))
        assert [(record.sequence, record.payload) for record in contents.records] == [(1, b"a"), (2, b"bb"), (3, b"c")]
        assert (contents.lost, contents.torn, contents.is_sealed) == (0, 0, True)

    def test_unused_preallocated_space_is_not_damage(self):
        contents = read_segment(written([b"a"]) + bytes(5000))
        assert [record.payload for record in contents.records] == [b"a"]
        assert (contents.lost, contents.torn, contents.is_sealed) == (0, 0, False)

    @given(st.integers(0, 200), st.booleans())
    def test_a_torn_tail_is_skipped(self, cut: int, is_padded: bool):
        whole, torn = written([b"first" * 5]), written([b"first" * 5], [b"second" * 20])
        framer_differs = read_segment(torn[: len(whole) + cut] + (bytes(512) if is_padded else b""))
        assert framer_differs.lost == 0
        assert framer_differs.records[0].payload == b"first" * 5

    def test_a_corrupt_record_counts_as_lost_and_later_ones_are_read(self):
        data = bytearray(written([b"a" * 50], [b"b" * 50], [b"c" * 50]))
        data[HEADER_BYTES + FRAME_BYTES + 60 + FRAME_BYTES] ^= 1
        contents = read_segment(bytes(data))
        assert [record.payload[:1] for record in contents.records] == [b"a", b"c"]
        assert contents.lost == 1

    def test_a_hole_in_the_last_group_is_not_counted_as_lost(self):
        data = bytearray(written([b"a" * 50], [b"b" * 50, b"c" * 50]))
        data[HEADER_BYTES + FRAME_BYTES + 60 + FRAME_BYTES] ^= 1
        contents = read_segment(bytes(data))
        assert [record.payload[:1] for record in contents.records] == [b"a", b"c"]
        assert contents.lost == 0

    def test_lost_last_records_of_a_sealed_segment_are_counted(self):
        data = bytearray(written([b"a" * 50], [b"b" * 50], seal=True))
        data[HEADER_BYTES + FRAME_BYTES + 60 + FRAME_BYTES] ^= 1
        assert read_segment(bytes(data)).lost == 1

    def test_a_body_that_holds_a_record_of_another_segment_is_no_record(self):
        forged = SegmentEncoder(1).frame(99, b"never accepted", 98)
        data = bytearray(written([b"x" * 10 + forged + b"x" * 10], [b"last"]))
        data[HEADER_BYTES + FRAME_BYTES] ^= 1  # the record around it rots, so the reader has to search
        assert payloads(bytes(data)) == [b"last"]

    def test_mutant_a_known_marker_lets_senders_forge_a_record(self):
        framer = SegmentEncoder(1, marker=b"constant")
        forged = SegmentEncoder(1, marker=b"constant").frame(2, b"never accepted", 0)
        data = bytearray(framer.header + framer.frame(1, b"x" * 10 + forged, 0))
        data[HEADER_BYTES + FRAME_BYTES] ^= 1
        assert payloads(bytes(data)) == [b"never accepted"]

    @pytest.mark.parametrize(
        "data", [b"", b"bhspool1", bytes(9000), os.urandom(9000)], ids=["none", "short", "nul", "?"]
    )
    def test_an_invalid_file_has_no_records(self, data: bytes):
        contents = read_segment(data)
        assert (contents.records, contents.is_readable) == ((), False)

    @given(st.lists(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5), max_size=6), st.randoms())
    def test_a_flipped_bit_loses_at_most_one_record_and_invents_none(
        self, groups: list[list[bytes]], dice: random.Random
    ):
        data = bytearray(written(*groups, seal=True))
        honest = [payload for group in groups for payload in group]
        place = dice.randrange(HEADER_BYTES, len(data))
        data[place] ^= 1 << dice.randrange(8)
        contents = read_segment(bytes(data))
        kept = [record.payload for record in contents.records]
        assert len(kept) >= len(honest) - 1
        assert all(payload in honest for payload in kept)
        if len(kept) < len(honest):
            assert contents.lost == 1


class TestSegmentStores:
    def test_events_are_drained_in_order_over_many_segments(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        sent = [b"%d:" % number + os.urandom(700) for number in range(40)]
        for start in range(0, 40, 4):
            shelf.write(sent[start : start + 4])
        assert shelf.records == 40
        assert drained(shelf) == sent
        assert shelf.is_empty

    def test_an_oversized_event_gets_its_own_segment(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        sent = [b"a", os.urandom(50_000), b"c"]
        shelf.write(sent)
        assert drained(shelf) == sent

    def test_a_dead_process_spool_is_drained_first(self, tmp_path: Path):
        dead = SegmentStore(tmp_path, SMALL, name="1")
        dead.write([b"old"])
        assert dead.own is not None
        dead.own.lock.release()  # as the system does when a process dies; nothing was sealed
        shelf = SegmentStore(tmp_path, SMALL, name="2")
        shelf.write([b"new"])
        assert shelf.adopt() == 1
        assert drained(shelf) == [b"old", b"new"]

    def test_a_live_process_folder_is_not_adopted(self, tmp_path: Path):
        alive = SegmentStore(tmp_path, SMALL, name="1")
        alive.write([b"mine"])
        other = SegmentStore(tmp_path, SMALL, name="2")
        assert other.adopt() == 0
        assert drained(other) == []
        assert drained(alive) == [b"mine"]

    def test_mutant_without_the_lock_a_live_folder_is_adopted(self, tmp_path: Path):
        class Careless(Disk):
            def lock(self, folder: Path):
                class Nothing:
                    def release(self) -> None:
                        """No process holds it."""

                return Nothing()

        SegmentStore(tmp_path, SMALL, name="1").write([b"mine"])
        other = SegmentStore(tmp_path, SMALL, Careless(), name="2")
        assert other.adopt() == 1

    def test_a_full_spool_refuses_and_takes_again_once_drained(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SpoolLimits(segment_bytes=4096, max_bytes=8192, max_disk_used=1.0))
        taken: list[int] = []

        def fill() -> None:
            for number in range(100):
                shelf.write([bytes(1000)])
                taken.append(number)

        with pytest.raises(SpoolUnavailable, match="full"):
            fill()
        assert len(taken) == 6
        assert len(drained(shelf)) == 6
        shelf.write([b"again"])
        assert drained(shelf) == [b"again"]

    def test_a_disk_that_is_too_full_for_it_is_refused(self, tmp_path: Path):
        with pytest.raises(SpoolUnavailable, match="max_disk_used"):
            SegmentStore(tmp_path, SpoolLimits(max_disk_used=0.000001)).write([b"x"])

    def test_drained_segments_are_kept_for_a_while_then_removed(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SpoolLimits(segment_bytes=4096, keep_s=100, max_disk_used=1.0), name="1")
        shelf.write([b"x"])
        drained(shelf)
        (kept,) = tmp_path.glob("*/*.done")
        changed = kept.stat().st_mtime
        shelf.tidy(changed + 99)
        assert kept.exists()
        shelf.tidy(changed + 101)
        assert not kept.exists()

    def test_an_empty_folder_is_removed_if_it_is_old_and_not_held(self, tmp_path: Path):
        folder, shelf = tmp_path / "1", SegmentStore(tmp_path, SMALL, name="2")
        folder.mkdir()
        made = folder.stat().st_mtime
        shelf.tidy(made + 59)
        assert folder.exists(), "its process may be about to lock it"
        lock = Disk().lock(folder)
        assert lock is not None
        shelf.tidy(made + 61)
        assert folder.exists()
        lock.release()
        shelf.tidy(made + 61)
        assert not folder.exists()

    def test_a_rejected_event_is_saved_once(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        shelf.write([b"good", b"bad"])
        segment = shelf.oldest()
        assert segment is not None
        for _ in range(2):
            shelf.refuse(segment, 2, b"bad")
        (kept,) = (tmp_path / "refused").iterdir()
        assert payloads(kept.read_bytes()) == [b"bad"]

    def test_a_rejected_event_is_saved_whole_or_not_at_all(self, tmp_path: Path):
        class Dying(Disk):
            """Its process dies before a file gets its name."""

            def rename(self, old: Path, new: Path) -> None:
                raise OSError("died")

        segment = Segment(tmp_path / "1/1.seg", SegmentContents(records=()))
        dying, later = SegmentStore(tmp_path, SMALL, Dying()), SegmentStore(tmp_path, SMALL)
        with pytest.raises(OSError, match="died"):
            dying.refuse(segment, 2, b"bad")
        assert later.count_set_aside() == (0, 0)
        later.refuse(segment, 2, b"bad")
        assert later.count_set_aside() == (1, 0)

    def test_segments_drained_just_before_the_lock_are_not_adopted(self, tmp_path: Path):
        class Late(Disk):
            """Locks a folder once its last holder has drained it."""

            def lock(self, folder: Path) -> Lock | None:
                for path in folder.glob("*.seg"):
                    path.rename(path.with_suffix(".done"))
                return super().lock(folder)

        dead = SegmentStore(tmp_path, SMALL, name="1")
        dead.write([b"x"])
        dead.close()
        other = SegmentStore(tmp_path, SMALL, Late(), name="2")
        assert other.adopt() == 0
        assert other.is_empty

    def test_a_damaged_segment_is_kept_for_operators(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        shelf.write([b"a" * 100])
        shelf.write([b"b" * 100])
        shelf.seal()
        (path,) = tmp_path.glob("*/*.seg")
        data = bytearray(path.read_bytes())
        data[HEADER_BYTES + FRAME_BYTES] ^= 1
        path.write_bytes(data)
        assert drained(shelf) == [b"b" * 100]
        assert [one.suffix for one in tmp_path.glob("*/*")] == [".bad"]

    def test_folders_and_files_are_private(self, tmp_path: Path):
        SegmentStore(tmp_path / "spool", SMALL).write([b"x"])
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "spool").rglob("*")}
        assert modes == {0o700, 0o600}


class Failing(Disk):
    """A disk whose next calls fail."""

    def __init__(self) -> None:
        self.sync_fails = 0
        self.synced: list[Path] = []
        self.error = errno.EIO

    def create(self, path: Path, size: int, head: bytes = b"") -> File:
        disk, real = self, super().create(path, size, head)

        class Fragile(File):
            def write(self, data: bytes) -> None:
                real.write(data)

            def sync(self) -> None:
                disk.synced.append(path)
                if disk.sync_fails:
                    disk.sync_fails -= 1
                    raise OSError(disk.error, os.strerror(disk.error))
                real.sync()

            def close(self, size: int | None = None) -> None:
                real.close(size)

        return Fragile(-1)


class TestFailingDisks:
    def test_a_segment_whose_sync_failed_is_never_synced_again(self, tmp_path: Path):
        disk = Failing()
        shelf = SegmentStore(tmp_path, SMALL, disk)
        shelf.write([b"safe"])
        disk.sync_fails = 1
        with pytest.raises(SpoolUnavailable):
            shelf.write([b"nobody knows"])
        broken = disk.synced[-1]
        disk.synced.clear()
        shelf.write([b"safe too"])
        assert broken not in disk.synced
        assert {b"safe", b"safe too"} <= set(drained(shelf))

    def test_mutant_a_second_sync_of_a_segment_is_detected(self, tmp_path: Path):
        disk = Failing()
        file = disk.create(tmp_path / "x", 10)
        disk.sync_fails = 1
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        assert len(disk.synced) == 2

    def test_two_sync_failures_cause_a_backoff(self, tmp_path: Path, monkeypatch):
        disk = Failing()
        shelf = SegmentStore(tmp_path, SMALL, disk)
        disk.sync_fails = 2
        for _ in range(2):
            with pytest.raises(SpoolUnavailable):
                shelf.write([b"x"])
        assert shelf.is_failing
        disk.synced.clear()
        with pytest.raises(SpoolUnavailable, match="not used for some seconds"):
            shelf.write([b"x"])
        assert disk.synced == []
        monkeypatch.setattr(shelf, "backoff_until", 0.0)
        shelf.write([b"again"])
        assert not shelf.is_failing

    def test_a_full_disk_is_no_failing_one(self, tmp_path: Path):
        disk = Failing()
        disk.error = errno.ENOSPC
        shelf = SegmentStore(tmp_path, SMALL, disk)
        disk.sync_fails = 3
        for _ in range(3):
            with pytest.raises(SpoolUnavailable):
                shelf.write([b"x"])
        assert not shelf.is_failing


class Leaving(Disk):
    """A disk whose next creation fails, and whose file cannot be removed either."""

    def __init__(self) -> None:
        self.creations_fail = 0

    def create(self, path: Path, size: int, head: bytes = b"") -> File:
        file = super().create(path, size, head)
        if self.creations_fail:
            self.creations_fail -= 1
            file.close()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return file


class TestSequences:
    def test_that_of_a_file_that_could_not_be_made_is_not_used_again(self, tmp_path: Path):
        disk = Leaving()
        shelf = SegmentStore(tmp_path, SMALL, disk)
        disk.creations_fail = 1
        with pytest.raises(SpoolUnavailable):
            shelf.write([b"refused"])
        shelf.write([b"taken"])
        assert sorted(path.stem.lstrip("0") for path in tmp_path.glob("*/*.seg")) == ["1", "2"]
        assert drained(shelf) == [b"taken"]
        shelf.close()
        following = SegmentStore(tmp_path, SMALL)
        following.adopt()
        assert drained(following) == []
        assert following.count_set_aside() == (0, 0)

    def test_of_a_failed_write_is_not_reused(self, tmp_path: Path):
        disk = Failing()
        shelf = SegmentStore(tmp_path, SMALL, disk)
        shelf.write([b"first"])
        disk.sync_fails = 1
        with pytest.raises(SpoolUnavailable):
            shelf.write([b"nobody knows", b"nor this"])
        shelf.write([b"last"])
        shelf.seal()
        records = [one for path in tmp_path.glob("*/*.seg") for one in read_segment(path.read_bytes()).records]
        assert len({one.sequence for one in records}) == len(records)
        assert max(records, key=lambda one: one.sequence).payload == b"last"


class Synced:
    """The durable state of a disk: names and bytes at the latest syncs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[Path, set[str]] = {}
        self.contents: dict[Path, bytes] = {}
        for call in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, call, partial(self._note, getattr(os, call)))

    def _note(self, sync: Callable[[int], None], descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.names[path] = {one.name for one in path.iterdir()}
        else:
            self.contents[path] = path.read_bytes()

    def is_found(self, path: Path, root: Path) -> bool:
        """Return whether a file below *root*, which is there already, would be found after a power cut."""
        ways = [path, *path.parents]
        return all(one.name in self.names.get(one.parent, ()) for one in ways[: ways.index(root)])

    def payloads(self, root: Path, ending: str) -> list[bytes]:
        """Return the events in files of this ending that would be found after a power cut."""
        found = [path for path in sorted(self.contents) if path.suffix == ending and self.is_found(path, root)]
        return [payload for path in found for payload in payloads(self.contents[path])]


def is_shelf_durable(folder: Path, synced: Synced) -> bool:
    """Return whether each operation of a segment store is durable when it returns."""
    shelf = SegmentStore(folder / "data" / "spool", SMALL)
    taken = []
    for number in range(4):
        taken.append(b"%d" % number * 1500)
        shelf.write([taken[-1]])
        if synced.payloads(folder, ".seg") != taken:
            return False
    segment = shelf.oldest()
    assert segment is not None
    shelf.refuse(segment, 1, b"refused")
    is_kept = any(one.name.startswith(segment.path.parent.name) for one in synced.contents)
    shelf.finish(segment)
    done = segment.path.with_suffix(".done")
    refused = next((folder / "data/spool/refused").iterdir())
    return is_kept and synced.is_found(done, folder) and synced.is_found(refused, folder)


class TestDurableNames:
    """A file's bytes are worth nothing after a power cut where its folder, or one above it, does not know its name."""

    def test_a_segment_is_found_by_its_path_when_its_events_are_taken(self, tmp_path: Path, monkeypatch):
        assert is_shelf_durable(tmp_path, Synced(monkeypatch))

    def test_mutant_without_a_sync_of_folders_it_is_not(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(disk_module, "sync_folder", lambda _folder: None)
        assert not is_shelf_durable(tmp_path, Synced(monkeypatch))

    def test_mutant_without_a_sync_of_the_segments_folder_it_is_not(self, tmp_path: Path, monkeypatch):
        sync = disk_module.sync_folder
        monkeypatch.setattr(
            disk_module, "sync_folder", lambda folder: None if any(folder.glob("*.seg")) else sync(folder)
        )
        assert not is_shelf_durable(tmp_path, Synced(monkeypatch))

    @pytest.mark.parametrize("above", ["", "data", "data/spool"])
    def test_mutant_without_a_sync_of_a_folder_above_it_is_not(self, tmp_path: Path, monkeypatch, above: str):
        sync = disk_module.sync_folder
        monkeypatch.setattr(
            disk_module, "sync_folder", lambda folder: None if folder == tmp_path / above else sync(folder)
        )
        assert not is_shelf_durable(tmp_path, Synced(monkeypatch))


def descriptors() -> int:
    """Return how many files this process holds open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class TestRealDisk:
    def test_space_is_preallocated_and_enospc_raised(self, tmp_path: Path, monkeypatch):
        disk = Disk()
        disk.create(tmp_path / "roomy", 9_000, b"head").close()
        assert disk.size(tmp_path / "roomy") == 9_000

        def refuse(number: int, *_values: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", lambda *_values: refuse(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            disk.create(tmp_path / "full", 9_000)
        assert disk.names(tmp_path) == ["roomy"]
        monkeypatch.setattr(os, "posix_fallocate", lambda *_values: refuse(errno.EOPNOTSUPP))
        disk.create(tmp_path / "plain", 9_000).close()

    def test_a_file_that_was_closed_holds_no_descriptor_and_is_closed_once(self, tmp_path: Path):
        file = Disk().create(tmp_path / "x", 10)
        before = descriptors()
        file.close()
        file.close()
        assert descriptors() == before - 1

    def test_a_folder_that_another_holds_costs_no_descriptor(self, tmp_path: Path):
        held = Disk().lock(tmp_path)
        assert held is not None
        before = descriptors()
        assert Disk().lock(tmp_path) is None
        assert descriptors() == before
        held.release()


class Sticky(Disk):
    """A disk on which nothing can be renamed."""

    def rename(self, old: Path, new: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class Filling(Disk):
    """A disk that is full until something on it is removed."""

    def __init__(self) -> None:
        self.share = 0.5

    def used(self, folder: Path) -> float:
        return self.share

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.share = 0.5


class TestOverTime:
    def test_a_clock_set_back_keeps_the_folder_order(self, tmp_path: Path):
        earlier = SegmentStore(tmp_path, SMALL, name="500")
        earlier.write([b"earlier"])
        earlier.close()
        later = SegmentStore(tmp_path, SMALL, name="100")
        later.write([b"later"])
        later.close()
        following = SegmentStore(tmp_path, SMALL, name="900")
        assert following.adopt() == 2
        assert drained(following) == [b"earlier", b"later"]

    def test_drained_segments_make_room_on_a_full_disk(self, tmp_path: Path):
        disk = Filling()
        shelf = SegmentStore(tmp_path, SpoolLimits(segment_bytes=4096, max_bytes=1 << 20, max_disk_used=0.9), disk)
        shelf.write([b"old"])
        assert drained(shelf) == [b"old"]
        disk.share = 0.9
        shelf.write([b"new"])
        assert not list(tmp_path.glob("*/*.done"))
        assert drained(shelf) == [b"new"]

    def test_size_counts_open_and_sealed_segments(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        shelf.write([b"a" * 1000])
        shelf.seal()
        sealed = shelf.size
        shelf.write([b"b" * 500])
        assert sealed > 1000
        assert shelf.size > sealed + 500
        assert shelf.records == 2

    def test_a_removed_folder_is_recreated(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        shelf.write([b"gone"])
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        with pytest.raises(SpoolUnavailable):
            shelf.write([b"x" * 5000])
        shelf.write([b"kept"])
        assert b"kept" in [
            one.payload for path in tmp_path.glob("*/*.seg") for one in read_segment(path.read_bytes()).records
        ]

    def test_a_finished_segment_is_sealed(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL)
        shelf.write([b"all"])
        segment = shelf.oldest()
        assert segment is not None
        assert segment.contents.is_sealed

    def test_rejected_events_are_not_drained_by_the_next_process(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL, name="1")
        shelf.write([b"poison"])
        segment = shelf.oldest()
        assert segment is not None
        shelf.refuse(segment, 1, b"poison")
        shelf.finish(segment)
        shelf.close()
        following = SegmentStore(tmp_path, SMALL, name="2")
        assert following.adopt() == 0
        assert drained(following) == []
        assert following.count_set_aside() == (1, 0)

    def test_a_segment_that_cannot_be_renamed_is_not_drained_twice(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL, Sticky(), name="1")
        shelf.write([b"once"])
        segment = shelf.oldest()
        assert segment is not None
        with pytest.raises(OSError, match="Read-only"):
            shelf.finish(segment)
        assert shelf.own is not None
        shelf.own.lock.release()
        shelf.own = None
        shelf._name = "2"
        assert shelf.adopt() == 0
        assert shelf.oldest() is None

    def test_check_writable_leaves_no_probe_file(self, tmp_path: Path):
        shelf = SegmentStore(tmp_path, SMALL, name="1")
        (tmp_path / "1.probe").touch()
        shelf.check_writable()
        assert list(tmp_path.iterdir()) == []


class TestFormat:
    def test_the_bytes_on_disk_are_those_of_earlier_versions(self):
        """What an older boathook has written is drained by a newer one."""
        framer = SegmentEncoder(7, b"01234567")
        data = framer.header + framer.frame(7, b"paid", 0) + framer.seal(7)
        assert data.hex() == GOLDEN
        assert [(one.sequence, one.payload) for one in read_segment(bytes.fromhex(GOLDEN)).records] == [(7, b"paid")]


class Powered(Disk):
    """A disk that records before each sync the possible states of a file after a power cut."""

    def __init__(self, *, is_head_synced: bool = True) -> None:
        self.left: list[bytes] = []
        self._is_head_synced = is_head_synced

    def create(self, path: Path, size: int, head: bytes = b"") -> File:
        disk, real = self, super().create(path, size, head)
        durable = path.read_bytes() if self._is_head_synced else bytes(size)

        class Paged(File):
            def write(self, data: bytes) -> None:
                real.write(data)

            def sync(self) -> None:
                nonlocal durable
                disk.left += torn(durable, path.read_bytes())
                real.sync()
                durable = path.read_bytes()

            def close(self, size: int | None = None) -> None:
                real.close(size)

        return Paged(-1)


PAGE = 512


def torn(then: bytes, now: bytes) -> list[bytes]:
    """Return every mixture of the pages that differ."""
    found = [then]
    for start in range(0, len(now), PAGE):
        page = now[start : start + PAGE]
        if page != then[start : start + PAGE]:
            found += [one[:start] + page + one[start + PAGE :] for one in found]
    return found


class TestPowerCuts:
    def cut(self, folder: Path, disk: Powered) -> list[Segment]:
        """Write two segments, cutting the power before each sync, and return what each cut leaves."""
        shelf = SegmentStore(folder, SMALL, disk)
        for size in (1200, 700, 1900, 900):
            shelf.write([b"a" * size, b"b" * 100])
        assert len(list(folder.glob("*/*.seg"))) == 2
        return [Segment(folder, read_segment(data)) for data in disk.left]

    def test_a_power_cut_leaves_torn_but_not_damaged_segments(self, tmp_path: Path):
        left = self.cut(tmp_path, Powered())
        assert any(one.contents.torn for one in left)
        assert not any(one.is_damaged for one in left)

    def test_mutant_a_header_that_waits_for_the_first_sync_can_be_torn_off(self, tmp_path: Path):
        assert any(one.is_damaged for one in self.cut(tmp_path, Powered(is_head_synced=False)))


class TestGroups:
    async def test_concurrent_appends_share_a_sync(self, tmp_path: Path):
        disk = Failing()
        spool = Spool(SegmentStore(tmp_path, SpoolLimits(max_disk_used=1.0), disk))
        await spool.start()
        await asyncio.gather(*[spool.append(b"%d" % number) for number in range(1, 501)])
        assert spool.depth.records == 500
        assert len(disk.synced) < 10
        await spool.stop()

    async def test_an_append_fails_with_its_sync_and_the_next_succeeds(self, tmp_path: Path):
        disk = Failing()
        spool = Spool(SegmentStore(tmp_path, SMALL, disk))
        await spool.start()
        disk.sync_fails = 1
        with pytest.raises(SpoolUnavailable):
            await spool.append(b"x")
        await spool.append(b"y")
        await spool.stop()

    async def test_appends_over_the_queue_limit_or_before_open_are_refused(self, tmp_path: Path):
        spool = Spool(SegmentStore(tmp_path, SMALL), queue=2)
        with pytest.raises(SpoolUnavailable, match="too many"):
            await spool.append(b"early")
        await spool.start()
        waiting = [spool.append(b"%d" % number) for number in range(3)]
        assert not spool.is_empty
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in told] == [bool, bool, SpoolUnavailable]
        await spool.stop()
        with pytest.raises(SpoolUnavailable, match="too many"):
            await spool.append(b"late")

    async def test_a_disk_failing_check_writable_is_reported(self, tmp_path: Path):
        disk = Failing()
        spool = Spool(SegmentStore(tmp_path, SMALL, disk))
        await spool.check_writable()
        disk.sync_fails = 1
        with pytest.raises(SpoolUnavailable, match="Input/output"):
            await spool.check_writable()
        await spool.stop()

    async def test_undrained_events_are_left_for_the_next_process(self, tmp_path: Path):
        spool = Spool(SegmentStore(tmp_path, SMALL, name="1"))
        assert not await spool.start()
        await spool.append(b"left")
        await spool.stop()
        later = Spool(SegmentStore(tmp_path, SMALL, name="2"))
        assert await later.start()
        segment = await later.oldest()
        assert isinstance(segment, Segment)
        assert [record.payload for record in segment.contents.records] == [b"left"]
        await later.stop()
