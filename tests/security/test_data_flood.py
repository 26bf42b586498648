"""A flood of forged requests leaves only the bounded quarantine, and does not change the dedup memory."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess
from tests.security import isolated_gateway
from tests.security.isolated_gateway import SPY, forged, genuine

RATE = 10
"""The default of retention.rejections_rate."""
FORGED, REAL, LARGE = 10_000, 1_000, 200
PER_ROW = 16_384
"""Bytes of log one kept rejection of a kilobyte may cost, with the whole pages written after a checkpoint."""
NOISE = 1 << 20
"""Bytes of log that PostgreSQL writes without any request."""
MEMORY = 32 << 20
BY_ITSELF = {"metric_sample"}
"""The table that the supervisor writes six times a minute: `boathook.server.sampler`."""
SAMPLES = 8
"""Per minute, at most: those, what was left over, and the last one at the end."""


@dataclass(frozen=True)
class Measured:
    """The cost of a flood and of the genuine events after it."""

    seconds: float
    statuses: set[int]
    body_parses: int
    hints: int
    log_lines: int
    """Lines of the log with a text of the bodies."""
    rows: dict[str, int]
    wal_bytes: int
    grown: int
    taken: int
    row_changes: dict[str, tuple[int, int, int]]

    @property
    def most_kept(self) -> int:
        return int(RATE * (self.seconds + 2)) + RATE

    def violations(self, real: int) -> list[str]:
        found = []
        if self.statuses != {401}:
            found.append(f"answers {self.statuses}")
        if self.body_parses:
            found.append(f"looks: {self.body_parses}")
        if self.hints > self.rows["boathook.rejection"]:
            found.append(f"hints: {self.hints}")
        if self.log_lines:
            found.append(f"told: {self.log_lines} lines")
        if self.rows["boathook.rejection"] > self.most_kept:
            found.append(f"quarantine: {self.rows['boathook.rejection']} rows")
        own = {"boathook.rejection", *(f"boathook.{name}" for name in BY_ITSELF)}
        if others := {name: rows for name, rows in self.rows.items() if rows and name not in own}:
            found.append(f"rows: {others}")
        most = SAMPLES * (1 + self.seconds / 60)
        if any(self.rows[f"boathook.{name}"] > most for name in BY_ITSELF):
            found.append(f"samples: {self.rows}")
        if self.wal_bytes > NOISE + PER_ROW * self.most_kept:
            found.append(f"log: {self.wal_bytes} bytes")
        if self.grown > MEMORY:
            found.append(f"memory: {self.grown} bytes")
        if self.taken != real:
            found.append(f"poisoned: {real - self.taken} of {real}")
        strange = {
            name: change[1:] for name, change in self.row_changes.items() if any(change[1:]) and name not in BY_ITSELF
        }
        if strange:
            found.append(f"changed: {strange}")
        for table in ("dedup", "event"):
            inserted = sum(change[0] for name, change in self.row_changes.items() if name.startswith(table))
            if inserted > real:
                found.append(f"inserted into {table}: {inserted}")
        return found


def flooded(running: BoathookProcess, forgeries: int, real: int) -> Measured:
    """Flood the gateway with the ids of genuine events, send those, stop it, and read its writes."""
    url = running.database_url
    before = isolated_gateway.counts(url)
    requests = [forged(f"evt_{n % real}", n // real) for n in range(forgeries)]
    requests += [forged("evt_large", n, 65_536) for n in range(LARGE)]
    isolated_gateway.reset_row_changes(url)
    wal_bytes, memory, started = (
        isolated_gateway.wal_bytes(url),
        isolated_gateway.memory_bytes(running),
        time.monotonic(),
    )
    answers = isolated_gateway.post_all(running, requests)
    seconds = time.monotonic() - started
    grown, body_parses = isolated_gateway.memory_bytes(running) - memory, isolated_gateway.body_parses(running)
    hints = isolated_gateway.body_parses(running, "hints")
    log_lines = sum("evt_" in line or "xxx" in line for line in running.log().splitlines())
    metric = "boathook_rejections_dropped_total"
    assert metric in httpx.get(f"{running.base}/metrics").text
    logged = isolated_gateway.wal_bytes(url) - wal_bytes
    after = isolated_gateway.counts(url)
    taken = isolated_gateway.post_all(running, [genuine(f"evt_{n}") for n in range(real)])
    assert running.stop() == 0
    return Measured(
        seconds=seconds,
        statuses={answer.status for answer in answers},
        body_parses=body_parses,
        hints=hints,
        log_lines=log_lines,
        rows={name: after[name] - before.get(name, 0) for name in after},
        wal_bytes=logged,
        grown=grown,
        taken=sum(one.status == 200 and one.json.get("duplicate") is False for one in taken),
        row_changes=isolated_gateway.row_changes(url),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with isolated_gateway.own_postgres() as url:
        yield url


@pytest.mark.extended("is a flood; the tests of the quarantine's limits stay")
def test_ten_thousand_forged_requests_leave_only_the_quarantine(server: str, tmp_path: Path, record_property):
    with isolated_gateway.gateway(tmp_path, server) as running:
        measured = flooded(running, FORGED, REAL)
        assert isolated_gateway.body_parses(running) >= REAL, "the spy sees the looks into genuine bodies"
    record_property("measured", str(measured))
    assert measured.rows["boathook.rejection"] > 0
    assert measured.violations(REAL) == []


UNBOUNDED = """
from boathook.ingest import quarantine
class Generous(quarantine.Quarantine):
    def __init__(self, write, *, per_second):
        super().__init__(write, per_second=1e9)
quarantine.Quarantine = Generous
"""

TRUSTING = """
import json
from boathook.ingest import pipeline
seen, process = set(), pipeline.IngestPipeline.process
def trusting(self, request, body):
    key = json.loads(body)["id"]
    if key in seen:
        request.respond(pipeline.Response(200, b'{"ok":true,"duplicate":true}', "duplicate"))
        return None
    rest = process(self, request, body)
    seen.add(key)
    return rest
pipeline.IngestPipeline.process = trusting
"""

CURIOUS = """
from boathook.verification import verifier
judge = verifier.Verifier.verify
def curious(self, request, now, decode=None):
    self._extractor.extract(request.body)
    return judge(self, request, now, decode)
verifier.Verifier.verify = curious
"""


@pytest.mark.parametrize(
    ("mutant", "seen"),
    [
        pytest.param(UNBOUNDED, "quarantine: ", marks=pytest.mark.extended("another mutant of the same test stays")),
        (TRUSTING, "poisoned: "),
        pytest.param(CURIOUS, "looks: ", marks=pytest.mark.extended("another mutant of the same test stays")),
    ],
    ids=["no rate", "key before proof", "look before proof"],
)
@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_the_safeguard_the_flood_is_detected(server: str, tmp_path: Path, mutant: str, seen: str):
    with isolated_gateway.gateway(tmp_path, server, site=SPY + mutant) as running:
        found = flooded(running, 1_200, 300).violations(300)
    assert [one for one in found if one.startswith(seen)], found
