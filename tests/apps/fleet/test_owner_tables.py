"""The import of a car rental's own tables, and the views under their names."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.apps.fleet.server import POISON, FleetServer, new_id
from tests.apps.owner_database import create_tables, fingerprint, kill_in_batch, run_import
from tests.support import until

DDL = Path(__file__).with_name("owner_tables.sql")
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLES = ("rentprog_cars", "rentprog_clients", "rentprog_bookings", "rentprog_webhook_events", "rentprog_webhook_dead")


@pytest.fixture
def rental(tmp_path, admin_url, pg_template) -> Iterator[FleetServer]:
    """An app whose server runs, and the owner's tables."""
    with FleetServer.prepared(
        tmp_path, admin_url, pg_template, fleet="window_s = 0.05\ndead_retry_s = [3600.0]\n"
    ) as server:
        server.start()
        create_tables(server, DDL, "old")
        yield server


def fill(server: FleetServer, objects: int) -> None:
    server.rows(
        "insert into old.rentprog_cars select n, 'AA' || n, 'Prius', 1000 + n, 'free', 9247, %s from generate_series(1, %s) n",
        T0, objects,
    )  # fmt: skip
    server.rows(
        "insert into old.rentprog_clients select n, 'Client ' || n, '+995' || n from generate_series(1, %s) n", objects
    )
    server.rows(
        "insert into old.rentprog_bookings select n, 'Новая', %s, %s, 120.50, n, n, %s from generate_series(1, %s) n",
        T0, T0, T0, objects,
    )  # fmt: skip
    server.rows(
        "insert into old.rentprog_webhook_events (received_at, entity, action, branch, actor_id, description, payload)"
        " select %s, 'car', 'update', 'tbilisi', '17', 'changed', '{\"id\": 1}' from generate_series(1, %s)",
        T0, objects,
    )  # fmt: skip
    server.rows(
        "insert into old.rentprog_webhook_dead(created_at,payload,error,status,event_id,event_name) values"
        " (%s, '{\"id\": 5}', 'boom', 'worker_fail', '77', 'car_update')",
        T0,
    )


def applied(server: FleetServer) -> None:
    until(lambda: not server.rows("select from fleet.dirty"), timeout=60)
    until(server.is_idle, timeout=60)


def test_objects_are_imported_once_and_applied_as_changes(rental):
    fill(rental, 4)
    first = run_import(rental, "--schema", "old", "--batch", "3")
    assert {table: first[table] for table in TABLES} == {
        **{table: {"rows": 4, "imported": 4} for table in TABLES}, "rentprog_webhook_dead": {"rows": 1, "imported": 1},
    }  # fmt: skip
    assert any(note.startswith("1 dead letters with the status worker_fail are history") for note in first["notes"])
    applied(rental)
    car = rental.thing("cars", 2)
    assert (car["number"], car["mileage"], car["state"], car["branch_id"], car["stamp"]) == (
        "AA2",
        1002,
        "free",
        "9247",
        T0,
    )
    assert car["data"]["model"] == "Prius"
    assert rental.thing("clients", 3)["name"] == "Client 3"
    booking = rental.thing("bookings", 1)
    assert (booking["state"], booking["starts_at"], booking["price"]) == ("Новая", T0, Decimal("120.50"))
    assert (booking["car_id"], booking["client_id"]) == ("1", "1")
    tables = ("fleet.change", "fleet.cars", "fleet.bookings", "fleet.imported_events", "fleet.imported_row")
    before = fingerprint(rental, *tables)
    again = run_import(rental, "--schema", "old")
    assert again["rentprog_cars"] == {"rows": 4, "unchanged": 4}
    assert fingerprint(rental, *tables) == before
    # The next event of RentProg changes what was imported.
    rental.send_event("car_update", '{"id"=>2, "mileage"=>[1002, 1500], "company_id"=>9247}')
    assert rental.known("cars", 2, lambda row: row["mileage"] == 1500)["number"] == "AA2"
    # A change in the former table is brought later, but does not undo a newer event.
    rental.rows("update old.rentprog_cars set number = 'BB' || id, mileage = 7 where id in (2, 3)")
    assert run_import(rental, "--schema", "old")["rentprog_cars"] == {"rows": 4, "unchanged": 2, "updated": 2}
    assert rental.known("cars", 3, lambda row: row["number"] == "BB3")["mileage"] == 7
    applied(rental)
    assert rental.thing("cars", 2)["mileage"] == 1500


@pytest.mark.parametrize("after", [3, 11])
def test_a_kill_loses_and_doubles_nothing(rental, after):
    fill(rental, 4)
    kill_in_batch(rental, "--schema", "old", "--batch", "3", after=after)
    [count] = rental.rows("select count(*) as n from fleet.imported_row")
    rest = run_import(rental, "--schema", "old", "--batch", "3")
    assert sum(rest[table].get("imported", 0) for table in TABLES) == 17 - count["n"]
    applied(rental)
    for table in ("cars", "clients", "bookings", "imported_events"):
        assert rental.rows(f"select count(*) as n from fleet.{table}") == [{"n": 4}]
    assert rental.rows("select count(*) as n from fleet.change where source = 'import'") == [{"n": 12}]


def test_a_dry_run_changes_nothing(rental):
    fill(rental, 2)
    dry = run_import(rental, "--schema", "old", "--dry-run")
    assert dry["rentprog_cars"] == {"rows": 2, "imported": 2}
    assert rental.rows("select from fleet.change union all select from fleet.imported_row") == []
    assert rental.rows("select from boathook.event") == []


def test_bad_rows_and_values_are_named(rental):
    rental.rows("alter table old.rentprog_cars alter column id type text, add column rentprog_id text")
    rental.rows("insert into old.rentprog_cars (id, rentprog_id) values ('1', %s), ('2', '65311')", "x" * 201)
    rental.rows("alter table old.rentprog_cars alter column mileage type text using 'many'")
    rental.rows("insert into old.rentprog_webhook_events (received_at) values (null)")
    rental.rows("insert into old.rentprog_webhook_dead (created_at) values (null)")
    done = run_import(rental, "--schema", "old", code=1)
    assert {(table, key): column for (table, key), (column, _) in done["rejected"].items()} == {
        ("rentprog_cars", "1"): "rentprog_id", ("rentprog_webhook_events", "1"): "received_at",
        ("rentprog_webhook_dead", "1"): "created_at",
    }  # fmt: skip
    applied(rental)
    car = rental.thing("cars", 65311)
    assert (car["mileage"], car["unparsed_fields"]) == (None, {"mileage": "many"})


def test_an_unknown_schema_is_refused(rental):
    rental.rows("drop table old.rentprog_clients")
    rental.rows("alter table old.rentprog_webhook_dead drop column retry_count")
    done = rental.cli("fleet", "import", "--schema", "old", check=False)
    assert done.returncode == 1
    said = done.stderr.replace("\n", " ")
    assert "the table rentprog_clients is missing" in said
    assert "the column rentprog_webhook_dead.retry_count is missing" in said


DOCUMENTED_QUERIES = {
    "2.3.1": "select * from rentprog_webhook_dead where status = 'worker_fail' order by created_at",
    "5.1.1": "select payload, error, status, event_id, event_name, retry_count, last_retry_at from rentprog_webhook_dead"
    " where id = '1'",
    "3.3": "select entity, action, branch, actor_id, description, payload from rentprog_webhook_events"
    " where received_at <= now() order by received_at",
}


def shown(server: FleetServer, sql: str, schema: str) -> list[dict[str, Any]]:
    rows = server.rows(sql.replace("from rentprog", f"from {schema}.rentprog"))
    return [{name: str(value) if name == "id" else value for name, value in row.items()} for row in rows]


def test_the_views_answer_the_documents_queries(rental):
    fill(rental, 2)
    run_import(rental, "--schema", "old")
    rental.cli("fleet", "views", "create")
    for name, sql in DOCUMENTED_QUERIES.items():
        rows = shown(rental, sql, "public")
        assert rows == shown(rental, sql, "old"), name
        assert rows


def test_the_views_show_received_events_and_dead_letters(rental):
    rental.rows(POISON)
    rental.cli("fleet", "views", "create")
    good, bad = new_id(), new_id()
    rental.send_event("car_create", {"id": good, "number": "AA1"})
    rental.send_event("car_create", {"id": bad, "poison": "yes"})
    rental.known("cars", good)
    [dead] = until(lambda: rental.rows("select * from public.rentprog_webhook_dead"), timeout=60)
    assert (dead["status"], dead["event_name"], dead["retry_count"]) == ("worker_fail", "car_create", 0)
    assert dead["payload"]["payload"]["id"] == bad
    assert "the cars are poisoned" in dead["error"]
    listed = json.loads(rental.cli("fleet", "dead", "list", "--json").stdout)
    assert dead["id"] == listed["id"]
    events = rental.rows("select * from public.rentprog_webhook_events order by received_at")
    assert [(row["entity"], row["action"]) for row in events] == [("car", "create")] * 2
    assert events[0]["payload"]["payload"] == {"id": good, "number": "AA1"}
    rental.rows("drop trigger poison on fleet.cars")
    rental.cli("fleet", "dead", "replay", dead["id"])
    rental.known("cars", bad)
    until(lambda: not rental.rows("select from public.rentprog_webhook_dead"), timeout=60)


def test_views_never_replace_what_is_there(rental):
    done = rental.cli("fleet", "views", "create", "--schema", "old", check=False)
    assert done.returncode == 1
    assert "table rentprog_webhook_dead, table rentprog_webhook_events" in done.stderr.replace("\n", " ")
