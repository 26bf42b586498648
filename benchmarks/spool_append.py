"""The spool by itself: records appended by many writers, against a bare loop that makes the same groups durable."""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from boathook.domain.errors import ConfigError
from boathook.spool.disk import Disk, File
from boathook.spool.segment_store import SegmentStore, SpoolLimits
from boathook.spool.spool import Spool

WRITERS: Final = 64
SIZE: Final = 1_024
_ROUNDS: Final = 3
_MAX_BYTES: Final = 8 << 30


class _RecordingFile(File):
    """A file that keeps the sizes of what is written."""

    def __init__(self, file: File, sizes: list[int]) -> None:
        super().__init__(-1)
        self._file = file
        self._sizes = sizes

    def write(self, data: bytes) -> None:
        self._sizes.append(len(data))
        self._file.write(data)

    def sync(self) -> None:
        self._file.sync()

    def close(self, size: int | None = None) -> None:
        self._file.close(size)


class _RecordingDisk(Disk):
    """The disk of this machine, and what was written to it at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def create(self, path: Path, size: int, head: bytes = b"") -> File:
        return _RecordingFile(super().create(path, size, head), self.sizes)


def append_rates(folder: Path, seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Append to a spool, and write and sync groups of the same sizes, in turn; return records a second of both."""
    appended, bare = [], []
    for number in range(_ROUNDS):
        report(f"round {number + 1} of {_ROUNDS}: {WRITERS} writers at a spool, and a bare loop")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            disk = _RecordingDisk()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                count, took = runner.run(_append(Path(place), disk, seconds))
            appended.append(count / took)
            bare.append(count / _write_bare(Path(place) / "bare", disk.sizes))
    return {
        "append_to_bare": round(median(a / b for a, b in zip(appended, bare, strict=True)), 3),
        "appended_per_s": round(median(appended)),
        "bare_per_s": round(median(bare)),
        "writers": WRITERS,
    }


async def _append(root: Path, disk: Disk, seconds: float) -> tuple[int, float]:
    """Return how many records were appended, and in how many seconds."""
    spool = Spool(SegmentStore(root, SpoolLimits(max_bytes=_MAX_BYTES, max_disk_used=1.0), disk))
    await spool.start()
    began = time.perf_counter()
    end = began + seconds

    async def work(payload: bytes) -> int:
        count = 0
        while time.perf_counter() < end:
            await spool.append(payload)
            count += 1
        return count

    counts = await asyncio.gather(*[work(os.urandom(SIZE)) for _ in range(WRITERS)])
    took = time.perf_counter() - began
    if spool.depth.records != sum(counts):
        raise ConfigError(f"the spool holds {spool.depth.records} of {sum(counts)} records")
    await spool.stop()
    return sum(counts), took


def _write_bare(path: Path, sizes: list[int]) -> float:
    """Return the seconds it takes to write groups of these sizes into a file with room for them, each synced."""
    data = os.urandom(max(sizes))
    file = Disk().create(path, sum(sizes))
    began = time.perf_counter()
    for size in sizes:
        file.write(data[:size])
        file.sync()
    took = time.perf_counter() - began
    file.close()
    return took
