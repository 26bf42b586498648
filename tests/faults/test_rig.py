"""The parts of the fault rig work; a fault that does not happen proves nothing."""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.conftest import open_folder
from tests.faults.rig.environment import MUTANTS, Environment
from tests.faults.rig.history import Answered, Arrived, Marked, Sent, Silent
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.proxy import Proxy
from tests.faults.rig.receivers import Behaviour
from tests.faults.rig.recorder import ROOT, Recorder
from tests.faults.rig.senders import Load, generate_events, make_event, shuffled
from tests.support import until


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends everything back."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while some := connection.recv(65_536):
                    connection.sendall(some)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listening:
        yield listening.getsockname()
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire() -> Iterator[Proxy]:
    with echo() as target, Proxy(target) as proxy:
        yield proxy


@pytest.fixture
def client(wire: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", wire.port), timeout=5) as connection:
        assert ask(connection, b"hello") == b"hello"
        yield connection


def ask(client: socket.socket, what: bytes) -> bytes:
    client.sendall(what)
    got = b""
    while len(got) < len(what):
        got += client.recv(65_536)
    return got


class TestProxy:
    def test_latency_counts_both_ways(self, wire: Proxy, client: socket.socket):
        wire.set(latency_s=0.1, jitter_s=0.01)
        began = time.monotonic()
        assert ask(client, b"ping") == b"ping"
        assert time.monotonic() - began >= 0.2

    def test_a_stall_passes_nothing_until_healed(self, wire: Proxy, client: socket.socket):
        wire.set(is_stalled=True)
        client.sendall(b"ping")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(10)
        wire.heal()
        client.settimeout(5)
        assert client.recv(10) == b"ping"

    @pytest.mark.parametrize("way", ["up", "down"])
    def test_half_open_keeps_the_connection(self, wire: Proxy, client: socket.socket, way):
        wire.set(deaf=way)
        client.sendall(b"ping")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(10)
        wire.heal()
        client.settimeout(5)
        assert client.recv(10) == b"ping"

    def test_reset_is_a_reset(self, wire: Proxy, client: socket.socket):
        assert wire.reset() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(10)

    def test_newcomers_can_be_refused(self, wire: Proxy, client: socket.socket):
        wire.set(is_refusing=True)
        with (
            pytest.raises(ConnectionResetError),  # at once, or when it is used
            socket.create_connection(("127.0.0.1", wire.port), timeout=5) as other,
        ):
            other.recv(10)
        assert ask(client, b"still") == b"still"

    def test_slices_and_bit_rate(self, wire: Proxy, client: socket.socket):
        wire.set(slice_bytes=1, bytes_per_s=1_000)
        began = time.monotonic()
        assert ask(client, b"x" * 100) == b"x" * 100
        assert time.monotonic() - began >= 0.1

    def test_an_end_is_passed_on(self, wire: Proxy, client: socket.socket):
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b""


def test_the_recorder_records_all_requests_and_responses(tmp_path: Path):
    with Recorder(tmp_path) as outside:
        address = outside.receiver.removeprefix("http://")
        outside.answer("/in/stripe", Behaviour(status=503))
        outside.mark("fault: refused")
        outside.send(Load(hosts=(address,), first_wait_s=0.02), make_event("evt_1", "move.made", "a00", "a01", 1))
        until(lambda: outside.count().arrived >= 2)
        outside.answer("/in/stripe", Behaviour(status=200))
        assert outside.settle()
        outside.shut_door()
        outside.send(Load(hosts=(address,), is_patient=False), make_event("evt_2", "move.made", "a00", "a01", 2))
        assert outside.settle()
        outside.open_door()
        outside.send(Load(hosts=(address,)), make_event("evt_3", "move.made", "a00", "a01", 3))
        assert outside.settle()
        facts = outside.history()
    sent = {fact.number: fact for fact in facts if isinstance(fact, Sent)}
    answers = [(sent[fact.number].key, fact.status) for fact in facts if isinstance(fact, Answered)]
    assert isinstance(facts[0], Marked)
    assert [status for key, status in answers if key == "evt_1"][-1] == 200
    assert [status for key, status in answers if key == "evt_1"].count(503) >= 2
    assert [sent[fact.number].key for fact in facts if isinstance(fact, Silent)] == ["evt_2"]
    assert ("evt_3", 200) in answers
    assert len({fact.sha for fact in sent.values() if fact.key == "evt_1"}) == 1
    assert sum(isinstance(fact, Arrived) for fact in facts) == len(answers)


def test_settling_fails_while_events_are_unanswered(tmp_path: Path):
    with Recorder(tmp_path) as outside:
        outside.answer("/in/stripe", Behaviour(status=500))
        address = outside.receiver.removeprefix("http://")
        outside.send(Load(hosts=(address,)), make_event("evt_1", "move.made", "a00", "a01", 1))
        assert not outside.settle(timeout_s=0.5)


def test_a_load_repeats_itself_by_its_seed():
    load = Load(hosts=("x",), count=50, seed=7, kinds={"move.made": 1.0, "flaky.job": 1.0})
    assert list(generate_events(load)) == list(generate_events(load))
    assert list(generate_events(load)) != list(generate_events(Load(hosts=("x",), count=50, seed=8)))
    assert len({event.key for event in generate_events(load)}) == 50


def test_shuffling_keeps_every_event():
    import random

    load = Load(hosts=("x",), count=50)
    mixed = list(shuffled(generate_events(load), 20, random.Random(1)))
    assert mixed != list(generate_events(load))
    assert {event.key for event in mixed} == {event.key for event in generate_events(load)}


class TestOwnServer:
    @pytest.fixture
    def server(self, cluster_template: Path) -> Iterator[OwnServer]:
        one = OwnServer(template=cluster_template)
        yield one
        one.close()

    @pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
    def test_a_frozen_server_does_not_answer_and_resumes(self, server: OwnServer):
        with psycopg.connect(server.url, autocommit=True) as db:
            server.freeze()
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(server.url, connect_timeout=2)
            server.thaw()
            assert db.execute("select 1").fetchone() == (1,)

    @pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
    def test_a_killed_server_restarts_with_committed_rows(self, server: OwnServer):
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("create table kept as select 1 as n")
        server.kill_all()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)
        server.restart()
        assert ask_rows(server, "select n from kept") == [(1,)]
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)
        server.restart()
        assert ask_rows(server, "select n from kept") == [(1,)]


def ask_rows(server: OwnServer, sql: str) -> list[tuple]:
    with psycopg.connect(server.url, autocommit=True) as db:
        return db.execute(sql).fetchall()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
def test_an_environment_uses_its_folder_and_continues_with_another_server(tmp_path: Path, cluster_template: Path):
    place = open_folder()
    with Environment(tmp_path, template=cluster_template, place=place) as env:
        assert env.server.data.is_relative_to(place)
        env.use(OwnServer(template=cluster_template))
        assert not env.server.data.is_relative_to(place)
        assert env.ask("select count(*) from bank.account") == [(20,)]
        assert env.judge().is_sound
    assert not place.exists()


def _patches() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("mutants", MUTANTS / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: target for name, (target, _) in module.PATCHES.items()}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize(("name", "module"), _patches().items())
def test_each_mutant_finds_what_it_patches(name: str, module: str):
    path = os.pathsep.join([str(MUTANTS), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        env={**os.environ, "PYTHONPATH": path, "BOATHOOK_MUTANT": name},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_mutant_of_missing_code_fails_loudly(tmp_path: Path):
    code = "import sitecustomize, types; sitecustomize.replace(types, 'gone', lambda real: real)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(MUTANTS)}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 70
    assert "mend the patch" in done.stderr
