"""The doctor's findings about the spool: its disk, and records waiting for an operator."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from boathook import config
from boathook.service.operating.doctor import CheckStatus, Finding, spool
from boathook.spool.segment_store import SegmentStore
from tests.unit.test_spool_survey import dead, refuse, written


class Usage(NamedTuple):
    """Free and total bytes of a disk."""

    total: int
    used: int
    free: int


GIB = 1 << 30
Look = Callable[..., dict[str, Finding]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch) -> Look:
    """Examine the spool under this test's folder, on a large disk that is not in memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spool, "kind_of", lambda _folder: "ext4")

    def examine(free: int = 900, **settings: object) -> dict[str, Finding]:
        usage = Usage(1000 * GIB, (1000 - free) * GIB, free * GIB)
        monkeypatch.setattr("shutil.disk_usage", lambda _folder: usage)
        overrides = {"server.data_dir": "data"} | {f"spool.{key}": value for key, value in settings.items()}
        return {finding.check: finding for finding in spool.examine(config.load(None, overrides))}

    return examine


def test_an_unused_spool_is_ok_and_not_created(look: Look, tmp_path: Path):
    found = look()
    assert {check: finding.verdict for check, finding in found.items()} == {
        "spool": CheckStatus.OK,
        "spooled": CheckStatus.OK,
    }
    assert not (tmp_path / "data").exists(), "a folder that another user makes could not be written to by a gateway"


def test_a_used_spool_is_checked_for_writing(look: Look, tmp_path: Path, monkeypatch):
    (tmp_path / "data/spool").mkdir(parents=True)
    assert look()["spool"].verdict is CheckStatus.OK
    assert list((tmp_path / "data/spool").iterdir()) == []

    def fail(_self: SegmentStore) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(SegmentStore, "check_writable", fail)
    found = look()["spool"]
    assert (found.verdict, "Input/output error" in found.found) == (CheckStatus.FAIL, True)


def test_warns_of_a_disabled_in_memory_or_full_spool(look: Look, monkeypatch):
    assert "503" in look(enabled=False)["spool"].found
    assert "has room for 0 MiB" not in look()["spool"].found
    assert look(free=100, max_disk_used=0.9)["spool"].found.startswith("accepts no events")
    assert (
        "has room for 1,024 MiB of events, but the settings allow 4,096"
        in look(free=101, max_bytes=4 * GIB)["spool"].found
    )
    monkeypatch.setattr(spool, "kind_of", lambda _folder: "tmpfs")
    assert "a power cut loses" in look()["spool"].found


def test_reports_waiting_orphaned_and_rejected_events(look: Look, tmp_path: Path):
    root = tmp_path / "data/spool"
    alive = written(root, "a", name="2")
    assert look()["spooled"].found == "events waiting for PostgreSQL: 1"
    dead(root, "b", "c", name="1")
    assert look()["spooled"].found == "events left by processes that have ended: 2"
    alive.close()
    refuse(tmp_path / "other", "d")
    (tmp_path / "other/refused").rename(root / "refused")
    found = look()["spooled"]
    assert (found.verdict, found.found) == (
        CheckStatus.WARN, "events rejected by PostgreSQL: 1; damaged segments: 0, events lost in them: 0"
    )  # fmt: skip


def test_the_file_system_type_is_detected():
    assert spool.kind_of(Path("/proc")) == "proc"
