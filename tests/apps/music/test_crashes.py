"""Processes die at every failpoint, and in the end each file of each song is stored once."""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from boathook.observability.failpoints import FAILPOINTS
from boathook_app_tools.simulation import SimulatedRequest
from boathook_music.file_server import content_of
from boathook_music.simulator import ExpectedState, Registration, Reseller, Simulator
from tests.apps.music.server import SECRET, MusicServer, SlowStudio, clip, unique
from tests.crash_schedule import CrashSchedule
from tests.support import until

pytestmark = pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")

RELEVANT = {
    steps: [point for point in FAILPOINTS if point.startswith(beginnings)]
    for steps, beginnings in {
        "accepting": ("accept.",), "handling": ("claim.", "handler."), "failing": ("retry.", "dead."),
    }.items()
}  # fmt: skip


@pytest.fixture
def make(tmp_path: Path, admin_url: str, pg_template: str) -> Iterator[MusicServer]:
    with MusicServer.prepared(tmp_path, admin_url, pg_template) as server:
        yield server


def send_all(server: MusicServer, simulator: Simulator) -> None:
    """Send everything with retries until success or rejection."""
    for one in simulator.steps:
        match one:
            case Registration(task_id=task_id, title=title):
                server.rows("insert into music.track (task_id, title) values (%s, %s)", task_id, title)
            case SimulatedRequest():
                until(partial(heard, server, one))


def heard(server: MusicServer, request: SimulatedRequest) -> bool:
    try:
        status = server.post(request.body, dict(request.headers), request.path).status_code
    except httpx.TransportError:
        return False
    return 200 <= status < 300 or status == 401


def damage(server: MusicServer, books: ExpectedState) -> list[str]:
    """Return the differences of tables and folder from the expected state."""
    found = {row["task_id"]: row["status"] for row in server.rows("select task_id, status from music.track")}
    waiting = {row["task_id"] for row in server.rows("select task_id from music.callback where state = 'waiting'")}
    wrong = [] if found == dict(books.tracks) else ["tracks"]
    wrong += [] if waiting == books.waiting else ["waiting"]
    root = server.folder / "data" / "music"
    rows = {(row["task_id"], row["clip_id"], row["kind"]): row for row in server.rows("select * from music.file")}
    if rows.keys() != books.files.keys():
        wrong.append("files")
    for name, sha256 in books.files.items():
        row = rows.get(name)
        if row is not None and row["state"] != ("failed" if sha256 is None else "stored"):
            wrong.append(f"{name} is {row['state']}")
        elif row is not None and sha256 is not None:
            place = root / row["key"]
            if not place.is_file() or hashlib.sha256(place.read_bytes()).hexdigest() != sha256:
                wrong.append(f"{name} is not whole")
    keys = {row["key"] for row in rows.values() if row["key"]}
    # What a killed process has left half written is removed by the daily cleanup.
    stored = (one for one in root.rglob("*") if one.is_file() and not one.name.startswith(".storing-"))
    there = {str(one.relative_to(root)) for one in stored}
    return wrong + [f"{key} is too much or too little" for key in keys ^ there]


def decide(server: MusicServer, books: ExpectedState) -> None:
    deadline = time.monotonic() + 90
    while wrong := damage(server, books):
        assert time.monotonic() < deadline, wrong
        time.sleep(0.3)
    assert server.cli("check").returncode == 0
    assert not list((server.folder / "data" / "music-incoming").iterdir())


@pytest.mark.parametrize("steps", RELEVANT)
def test_files_are_stored_once_after_kills(steps, make, file_server, tmp_path):
    hits = 1 if steps == "failing" else 2
    crashes = CrashSchedule(tmp_path, dict.fromkeys(RELEVANT[steps], hits))
    assert crashes.hits
    make.start(**crashes.environment)
    simulator = Simulator(
        Reseller(secret=SECRET, files=file_server.url, at=time.time()), songs=18, seed=100 + [*RELEVANT].index(steps)
    )
    send_all(make, simulator)
    crashes.wait()
    decide(make, simulator.expected())


def test_workers_die_in_the_middle_of_downloads(make, file_server):
    make.start()
    tasks = [unique() for _ in range(2)]
    for task in tasks:
        make.rows("insert into music.track (task_id) values (%s)", task)
        make.send_callback(
            task, "complete", clips=[{**clip(f"{task}-1", file_server.url, "/slow/"), "image_url": None}]
        )
    names = [f"/slow/{task}-1.mp3" for task in tasks]
    incoming = make.folder / "data" / "music-incoming"
    halves = [len(content_of(name)) // 2 for name in names]

    def are_half_there() -> bool:
        return sorted(one.stat().st_size for one in incoming.glob("*.part")) == sorted(halves)

    until(are_half_there)
    make.kill("worker")
    file_server.go_on.set()
    for task, name, half in zip(tasks, names, halves, strict=True):
        files = make.await_files(task, "stored", timeout=300)
        assert make.stored(files[f"{task}-1", "audio"]["key"]) == content_of(name)
        ranges = [asked for path, asked in file_server.asked if path == name]
        assert ranges[0] is None
        assert ranges[-1] == f"bytes={half}-", "what had come before was fetched again"
    assert make.cli("check").returncode == 0


def server_has(server: MusicServer, callbacks: int) -> bool:
    return len(server.rows("select from music.callback")) >= callbacks


def test_everything_is_killed_and_restarted(make, file_server):
    make.start()
    simulator = Simulator(Reseller(secret=SECRET, files=file_server.url, at=time.time()), songs=24, seed=3)
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(send_all, make, simulator)
        for share in (6, 3):
            least = len(simulator.steps) // share
            until(partial(server_has, make, least))
            make.kill_all()
            make.start()
        playing.result()
    decide(make, simulator.expected())


def test_the_comparison_detects_damage(make, file_server: SlowStudio):
    make.start()
    simulator = Simulator(Reseller(secret=SECRET, files=file_server.url, at=time.time()), songs=2, seed=5)
    send_all(make, simulator)
    books = simulator.expected()
    decide(make, books)
    (row, *_) = make.rows("select key from music.file where state = 'stored'")
    place = make.folder / "data" / "music" / row["key"]
    whole = place.read_bytes()
    place.write_bytes(whole[:-1])
    assert any("not whole" in one for one in damage(make, books))
    place.write_bytes(whole)
    place.with_suffix(".wav").write_bytes(b"a second one")
    assert any("too much" in one for one in damage(make, books))
    place.with_suffix(".wav").unlink()
    assert damage(make, books) == []
    make.rows("update music.track set status = 'first'")
    assert "tracks" in damage(make, books)
