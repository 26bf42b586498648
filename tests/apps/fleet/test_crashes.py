"""Processes die at every step of handling simulated traffic, and the tables end as the simulator says."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
import pytest

from boathook_app_tools.simulation import SimulatedRequest
from boathook_fleet.simulator import Sender, Simulation
from tests.apps.fleet.server import TOKEN, UMNICO, FleetServer, differences, started
from tests.crash_schedule import CrashSchedule
from tests.support import until

pytestmark = pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")

GATEWAY = ("accept.before_commit", "accept.after_commit", "accept.before_reply")
WORKER = (
    "claim.after_commit",
    "handler.before_effect",
    "handler.after_effect",
    "handler.before_commit",
    "handler.after_commit",
)
FAILING = ("retry.before_schedule", "retry.after_schedule", "dead.before_move", "dead.after_move")
BROKEN = """
create function fleet.refuse() returns trigger language plpgsql as $$ begin raise exception 'no clients today'; end $$;
create trigger broken before insert or update on fleet.clients for each row execute function fleet.refuse();
"""
MENDED = "drop trigger if exists broken on fleet.clients"


@pytest.fixture
def server(tmp_path, admin_url, pg_template) -> Iterator[FleetServer]:
    folder = tmp_path / "fleet"
    folder.mkdir()
    with FleetServer.prepared(folder, admin_url, pg_template, fleet="window_s = 0.05") as running:
        yield running


def story(seed: int) -> Simulation:
    return Simulation(Sender(token=TOKEN, umnico_token=UMNICO), histories=24, seed=seed, burst=20)


def more_events_than(server: FleetServer, number: int) -> bool:
    return bool(server.rows("select count(*) from boathook.event")[0]["count"] > number)


def send_all(server: FleetServer, simulation: Simulation) -> None:
    """Send everything, again and again like a sender does who gets no answer, until each is answered as expected."""

    def send(request: SimulatedRequest) -> None:
        deadline = time.monotonic() + 60
        while (status := server.send(request)) != request.expect:
            assert status in {0, 503}, f"{status}, not {request.expect}"
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def send_history(history: Sequence[SimulatedRequest]) -> None:
        for request in history:
            send(request)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send_history, simulation.histories))


def judge(server: FleetServer, simulation: Simulation) -> None:
    until(server.is_idle)
    assert server.differences(simulation.expected()) == []
    (counted,) = server.rows("select (select count(*) from fleet.change) as changes, (select count(*) from fleet.unknown) as unknown,"
                            " (select count(*) from fleet.dirty) as dirty")  # fmt: skip
    expected = simulation.expected()
    assert counted == {"changes": expected.changes, "unknown": expected.unknown, "dirty": 0}
    written = server.rows("select sum(changes) as changes from (" + " union all ".join(
        f"select changes from fleet.{name}" for name in ("cars", "clients", "bookings", "branches", "employees", "messages")
    ) + ") as things")  # fmt: skip
    assert written[0]["changes"] == expected.changes - expected.late, "a change was applied twice, or not at all"
    assert server.cli("check").returncode == 0


@pytest.mark.parametrize("points", [GATEWAY, WORKER], ids=["accepting", "handling"])
def test_the_tables_are_right_after_crashes_in(points: tuple[str, ...], server: FleetServer, tmp_path: Path):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(points, 3))
    server.start(**crashes.environment)
    simulation = story(seed=len(points))
    send_all(server, simulation)
    judge(server, simulation)
    assert crashes.pending() == set(), "nobody died there"


def test_the_tables_are_right_after_crashes_in_failures(server: FleetServer, tmp_path: Path):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(FAILING, 2))
    server.start(**crashes.environment)
    server.rows(BROKEN)
    simulation = story(seed=4)
    send_all(server, simulation)
    crashes.wait()
    server.rows(MENDED)
    until(server.is_idle)
    server.cli("dead", "replay", "--all", "--yes")
    judge(server, simulation)


def test_the_tables_are_correct_after_repeated_kills(server: FleetServer):
    server.start()
    simulation = story(seed=99)
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send_all, server, simulation)
        for number in (20, 60):
            until(partial(more_events_than, server, number))
            server.kill_all()
            server.start()
        sending.result(90)
    judge(server, simulation)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, admin_url, pg_template) -> Iterator[tuple[str, Simulation]]:
    """A database after a complete history was sent and handled."""
    with started(tmp_path_factory.mktemp("fleet"), admin_url, pg_template) as running:
        simulation = story(seed=5)
        send_all(running, simulation)
        judge(running, simulation)
        yield running.database_url, simulation


@pytest.mark.parametrize(
    "damage",
    [
        "update fleet.cars set data = data || '{\"mileage\": -1}' where id = (select min(id) from fleet.cars)",
        "update fleet.clients set deleted_at = null where deleted_at is not null",
        "delete from fleet.messages",
        "update fleet.bookings set stamp = null where stamp is not null",
    ],
)
def test_mutant_the_comparison_detects_damage(damage: str, finished: tuple[str, Simulation]):
    url, simulation = finished
    with psycopg.connect(url) as connection:
        assert differences(connection, simulation.expected()) == []
        connection.execute(damage)
        assert differences(connection, simulation.expected()) != []
        connection.rollback()
