"""The app of docs/reference/apps.md runs in a real boathook as the page describes."""

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess
from tests.databases import with_database
from tests.guards.documents import ROOT, blocks
from tests.support import until

SECRET = "parcels-test-secret"
PAGE = ROOT / "docs/reference/apps.md"


def shown(language: str) -> list[str]:
    """Return the page's code block in a language."""
    return [block.text for block in blocks(PAGE) if block.language == language]


def write_app(folder: Path) -> None:
    """Write the files that the page shows."""
    [code], [sql] = shown("python"), shown("sql")
    migrations = folder / "parcels" / "migrations"
    migrations.mkdir(parents=True)
    (folder / "parcels" / "__init__.py").write_text(code)
    (migrations / "0001_first.sql").write_text(sql)


class Parcels(BoathookProcess):
    """A boathook configured as the page shows, without a user app."""

    own = ""

    def __init__(self, folder: Path, database_url: str) -> None:
        write_app(folder)
        super().__init__(folder, database_url, roles="gateway,worker,keeper,console")
        self.environment["PARCELS_SECRET"] = SECRET

    def _configuration(self, extra: str) -> str:
        return super()._configuration(extra or shown("toml")[1])

    def configure(self, extra: str) -> None:
        (self.folder / "boathook.toml").write_text(self._configuration(extra))

    def scan(self, parcel: str, state: str = "moving", *, at: float = 0, secret: str = SECRET) -> int:
        """Send one scan as the carrier; return the status."""
        scan = {"scan": f"{parcel}-{state}-{at}", "type": f"parcel.{state}", "parcel": parcel, "at": at or time.time()}
        body = json.dumps(scan).encode()
        mac = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x-signature": mac, "content-type": "application/json"}
        return httpx.post(f"{self.base}/webhooks/carrier", content=body, headers=headers, timeout=300).status_code

    def query(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return connection.execute(sql, arguments).fetchall()

    def state_of(self, parcel: str) -> str | None:
        rows = self.query("select state from parcels.parcel where id = %s", parcel)
        return rows[0][0] if rows else None

    def counted(self) -> float:
        """Return the app's counter for moving parcels, over all processes."""
        lines = httpx.get(f"{self.base}/metrics", timeout=300).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith('parcels_scans_total{state="moving"}'))


@pytest.fixture(scope="module")
def fresh_url(admin_url: str, pg_template: str) -> Iterator[Callable[[str], str]]:
    """Make databases for this file's boathooks."""
    made: list[str] = []

    def make(name: str) -> str:
        made.append(f"apps_{name}_{time.time_ns()}")
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(f"create database {made[-1]} template {pg_template}")
        return with_database(admin_url, made[-1])

    yield make
    with psycopg.connect(admin_url, autocommit=True) as admin:
        for name in made:
            admin.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def parcels(tmp_path_factory: pytest.TempPathFactory, fresh_url: Callable[[str], str]) -> Iterator[Parcels]:
    """A boathook shared by all tests that do not kill it."""
    running = Parcels(tmp_path_factory.mktemp("parcels"), fresh_url("parcels"))
    running.start()
    yield running
    assert running.stop() == 0


@pytest.fixture
def own_server(tmp_path: Path, fresh_url: Callable[[str], str]) -> Iterator[Parcels]:
    """A boathook for one test."""
    running = Parcels(tmp_path, fresh_url("mortal"))
    yield running
    running.kill_all()


class TestLoading:
    def test_its_table_is_made_and_its_handler_books_a_post(self, parcels: Parcels):
        assert parcels.scan("booked") == 200
        until(lambda: parcels.state_of("booked") == "moving")

    def test_a_forged_request_is_refused(self, parcels: Parcels):
        assert parcels.scan("forged", secret="wrong") == 401
        assert parcels.state_of("forged") is None

    def test_an_older_scan_does_not_undo_a_later_one(self, parcels: Parcels):
        now = time.time()
        assert parcels.scan("turned", "delivered", at=now) == 200
        assert parcels.scan("turned", "moving", at=now - 60) == 200
        until(lambda: parcels.listing("deliveries", "list", "--state", "ignored"))
        assert parcels.state_of("turned") == "delivered"

    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_its_chore_publishes_lost_parcels_to_its_handler(self, parcels: Parcels):
        assert parcels.scan("lost", at=time.time() - 15 * 86_400) == 200
        until(lambda: parcels.state_of("lost") == "lost")
        until(lambda: parcels.query("select 1 from parcels.complaint where parcel = 'lost'"))

    def test_its_page_needs_a_key(self, parcels: Parcels):
        parcels.scan("shown")
        until(lambda: parcels.state_of("shown") == "moving")
        until(lambda: httpx.get(f"{parcels.base}/parcels").status_code == 401)
        [key] = parcels.listing("keys", "create", "--scope", "organization")
        shown = httpx.get(f"{parcels.base}/parcels", headers={"authorization": f"Bearer {key['token']}"}, timeout=300)
        assert {"id": "shown", "state": "moving"} in shown.json()

    def test_its_counter_is_shown(self, parcels: Parcels):
        # What tests before this one scanned may be shown a moment later, too.
        before = parcels.counted()
        parcels.scan("counted")
        until(lambda: parcels.counted() > before)

    def test_its_counter_is_shown_as_json_too(self, parcels: Parcels):
        def shown() -> dict[str, Any] | None:
            metrics = httpx.get(f"{parcels.base}/metrics.json", timeout=300).json()["metrics"]
            return metrics.get("parcels_scans_total")

        # A gateway imports the app after it has begun to take requests in.
        assert until(shown)["kind"] == "counter"


class TestTheCommandLine:
    def test_has_its_commands(self, parcels: Parcels):
        parcels.scan("listed")
        until(lambda: parcels.state_of("listed") == "moving")
        lines = parcels.cli("parcels", "list").stdout.splitlines()
        assert {"id": "listed", "state": "moving"} in map(json.loads, lines)

    def test_shows_them_in_the_help(self, parcels: Parcels):
        assert "Where parcels are." in parcels.cli("--help").stdout
        assert "boathook parcels list" in parcels.cli("parcels", "list", "--help").stdout

    def test_lists_the_app(self, parcels: Parcels):
        [one] = parcels.listing("apps")
        assert one == {
            "name": "parcels",
            "entry": "parcels",
            "loaded": True,
            "sources": ["carrier"],
            "handlers": ["parcels.complain", "parcels.track"],
            "chores": ["find_lost"],
            "mounts": ["/parcels"],
            "commands": True,
            "migrations": ["0001_first"],
            "pending": [],
        }
        assert "applied" in parcels.cli("apps").stdout

    def test_its_source_is_listed(self, parcels: Parcels):
        [one] = parcels.listing("sources", "list")
        assert (one["name"], one["secrets"], one["grade"]) == ("carrier", 1, "body signed")
        assert "1 source on 2 paths, 2 handlers, 1 app" in parcels.cli("config", "check").stdout.replace("\n", " ")

    def test_shows_its_settings_but_no_secret(self, parcels: Parcels):
        [shown] = parcels.listing("config", "show")
        assert shown["parcels"] == {"secret": "env:PARCELS_SECRET", "lost_after_days": 14.0}
        assert shown["sources"]["carrier"]["secrets"] == ["env:PARCELS_SECRET"]

    def test_checks_pass(self, parcels: Parcels):
        verdicts = {row["check"]: row["verdict"] for row in parcels.listing("doctor")}
        assert (verdicts["apps"], verdicts["schema"], verdicts["source carrier"]) == ("ok", "ok", "ok")
        assert parcels.cli("check").returncode == 0
        assert "current" in parcels.cli("migrate", "--check").stdout


class TestWithoutTheApp:
    def test_a_command_of_an_unloaded_app_says_how_to_load_it(self, own_server: Parcels):
        own_server.configure("[parcels]\nsecret = 'abc'")
        done = own_server.cli("billing", "users", "add", "a@example.com", check=False)
        assert done.returncode == 2
        assert 'add load = ["billing"] under [apps] in boathook.toml' in done.stderr

    def test_an_unknown_command_is_reported(self, own_server: Parcels):
        done = own_server.cli("no-such-thing", check=False)
        assert done.returncode == 2
        assert "No such command" in done.stderr

    @pytest.mark.parametrize("words", [["--help"], ["config", "show"], ["sources", "list"], ["events", "list"]])
    def test_one_that_cannot_be_loaded_breaks_no_other_command(self, own_server: Parcels, words: list[str]):
        (own_server.folder / "parcels" / "__init__.py").write_text("1 / 0")
        done = own_server.cli(*words)
        assert done.stderr.startswith("boathook: apps.load: importing parcels fails: ZeroDivisionError")
        assert done.stderr.count("boathook:") == 1, done.stderr

    def test_commands_report_why_the_app_cannot_be_imported(self, own_server: Parcels):
        (own_server.folder / "parcels" / "__init__.py").write_text("1 / 0")
        for words in (["parcels", "list"], ["serve"], ["migrate"], ["config", "check"], ["apps"]):
            done = own_server.cli(*words, check=False)
            assert done.returncode == 2, words
            assert "apps.load: importing parcels fails: ZeroDivisionError" in done.stderr
        findings = {row["check"]: row for row in map(json.loads, own_server.cli("doctor", "--json", check=False).stdout.splitlines())}  # fmt: skip
        assert findings["apps"]["verdict"] == "fail"

    def test_a_command_before_migration_says_to_migrate(self, own_server: Parcels):
        done = own_server.cli("parcels", "list", check=False)
        assert (
            done.returncode,
            "database migrations are missing: parcels/0001_first; run `boathook migrate`" in done.stderr,
        ) == (2, True)
        assert "lacks parcels/0001_first" in own_server.cli("migrate", "--check", check=False).stdout
        assert own_server.cli("migrate").stdout == "applied parcels/0001_first\n"
        assert own_server.cli("parcels", "list").stdout == ""


def test_a_changed_migration_prevents_serve(own_server: Parcels):
    own_server.cli("migrate")
    file = own_server.folder / "parcels" / "migrations" / "0001_first.sql"
    file.write_text(file.read_text() + "-- later thoughts\n")
    done = own_server.cli("serve", check=False)
    assert done.returncode == 1
    assert "parcels/0001_first was changed after it had been applied" in done.stderr


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_worker_that_is_killed_loses_nothing_and_does_nothing_twice(own_server: Parcels):
    own_server.start()
    for number in range(20):
        assert own_server.scan(f"killed-{number}") == 200
        if number == 10:
            own_server.kill("worker")
    until(lambda: len(own_server.query("select 1 from parcels.parcel where state = 'moving'")) == 20)
    assert own_server.cli("check").returncode == 0


@pytest.mark.extended("starts several servers of its own")
def test_its_counters_survive_a_restart(own_server: Parcels):
    own_server.start()
    for number in range(3):
        own_server.scan(f"before-{number}")
    until(lambda: own_server.counted() == 3)
    assert own_server.stop() == 0
    own_server.start()
    own_server.scan("after")
    until(lambda: own_server.counted() == 4)


@pytest.mark.extended("starts several servers of its own")
def test_removing_it_ends_its_routes_and_keeps_its_tables(own_server: Parcels):
    own_server.start()
    own_server.scan("kept")
    until(lambda: own_server.state_of("kept") == "moving")
    assert own_server.stop() == 0

    own_server.configure("[parcels]\nsecret = 'still here'")
    own_server.start()
    assert own_server.scan("removed") == 404
    [left] = own_server.listing("apps")
    assert (left["entry"], left["loaded"]) == ("parcels", False)
    assert "handlers retired" in own_server.cli("apps", "forget", "parcels", "--yes").stdout
    assert own_server.listing("apps") == []
    assert own_server.query("select id from parcels.parcel") == [("kept",)]
    assert own_server.stop() == 0
