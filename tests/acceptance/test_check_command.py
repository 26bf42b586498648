"""`boathook check` beside a busy boathook, without the database, and with events in the spool."""

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from boathook.spool.segment import SegmentEncoder
from boathook.spool.segment_store import REJECTED_FOLDER
from tests.acceptance.conftest import BoathookProcess, free_port, payload, signed
from tests.acceptance.test_cli import Cli

KINDS = ("payment.paid", "flaky.call", "order.placed", "ignored.thing", "broken.thing", "nobody.cares")
CHECKS = 5


class Stream(threading.Thread):
    """Sends signed events of all kinds, one after the other, until stopped."""

    def __init__(self, running: BoathookProcess) -> None:
        super().__init__(daemon=True)
        self.running = running
        self.is_over = threading.Event()
        self.taken = 0

    def run(self) -> None:
        with httpx.Client(base_url=self.running.base, timeout=300) as client:
            for number, kind in zip(itertools.count(), itertools.cycle(KINDS), strict=False):
                if self.is_over.is_set():
                    return
                # Every seventh repeats the one before it.
                key = f"evt{number - (number % 7 == 6)}"
                body, headers = signed(payload(key, kind, customer=f"c{number % 3}", n=number))
                self.taken += client.post("/webhooks/stripe", content=body, headers=headers).is_success


@pytest.mark.extended("waits for intervals and deadlines of the product")
@pytest.mark.parametrize("options", [(), ("--deep",)], ids=["plain", "deep"])
def test_check_reports_no_violation_beside_a_busy_boathook(
    boathook: Callable[..., BoathookProcess], options: tuple[str, ...]
):
    running = boathook()
    stream = Stream(running)
    stream.start()
    counts = []
    for _ in range(CHECKS):
        done = running.cli("check", "--json", *options, check=False)
        found = json.loads(done.stdout)
        assert (done.returncode, found["imbalances"]) == (0, [])
        assert found["balance"]["missing"] == 0
        counts.append(found["balance"]["events"])
    stream.is_over.set()
    stream.join(300)
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= stream.taken


@pytest.fixture
def cli(tmp_path: Path, pg_url: str) -> Cli:
    return Cli(tmp_path, pg_url)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A data folder whose spool has three waiting events, a rejected one and a damaged segment."""
    root = tmp_path / "data" / "spool"
    for folder, number in ((root / "0001", 3), (root / REJECTED_FOLDER, 1)):
        folder.mkdir(parents=True)
        framer = SegmentEncoder(1)
        frames = b"".join(framer.frame(sequence, b"an event", 0) for sequence in range(1, number + 1))
        # A segment that is written to is longer than what is in it.
        (folder / "00000000000000000001.seg").write_bytes(framer.header + frames + bytes(4_096))
        (folder / "00000000000000000000.done").write_bytes(framer.header + frames)
    (root / "0001" / "00000000000000000009.bad").write_bytes(b"?")
    return root.parent


def test_events_in_this_hosts_spool_are_reported(cli: Cli, spool: Path):
    (found,) = cli.objects("check", "--config", str(with_data(cli, spool)))
    assert found["balanced"] is True
    assert found["spool"] == {"events": 3, "refused": 1, "damaged": 1}
    text = cli.run("check", "--config", str(with_data(cli, spool))).stdout
    assert (
        " ".join(next(line for line in text.splitlines() if "spool" in line).split())
        == "waiting in this host's spool 3"
    )


def test_without_the_database_only_the_spool_is_reported(cli: Cli, spool: Path):
    file = with_data(cli, spool)
    settings = file.read_text()
    url = next(line for line in settings.splitlines() if line.startswith("url"))
    file.write_text(settings.replace(url, f'url = "postgresql://boathook@127.0.0.1:{free_port()}/none"'))
    done = cli.run("check", code=2)
    assert done.stdout == ""
    assert "the check could not run" in done.stderr
    assert "3 events in this host's spool" in done.stderr


def with_data(cli: Cli, folder: Path) -> Path:
    """Let the settings name this data folder; return their file."""
    file = cli.folder / "boathook.toml"
    if "[server]" not in file.read_text():
        file.write_text(f'[server]\ndata_dir = "{folder}"\n' + file.read_text())
    return file
