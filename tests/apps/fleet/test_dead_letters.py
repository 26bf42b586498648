"""Dead letters of the fleet app: alerted, logged, decided by operators through the app's routes, or retried."""

import json

import httpx
import pytest

from tests.apps.fleet.server import POISON, FleetServer, new_id, started
from tests.support import until

DEAD = "/api/rentprog/webhook/dead"
HEALED = "drop trigger poison on fleet.cars"


def settings(*, retry: str) -> str:
    return f"dead_retry_s = {retry}\nwindow_s = 0.05\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template):
    """A boathook that cannot write five of its cars, and has given that up."""
    folder = tmp_path_factory.mktemp("fleet")
    with started(folder, admin_url, pg_template, fleet=settings(retry="[3600.0]")) as running:
        running.rows(POISON)
        for _ in range(5):
            running.send_event("car_create", {"id": new_id(), "poison": "yes"})
        until(lambda: len(dead(running)) == 5)
        yield running


def dead(server: FleetServer) -> list[dict]:
    answer = server.client.get(DEAD)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def car_of(server: FleetServer, dead_letter: dict) -> str:
    """Return the car of a dead letter."""
    shown = json.loads(server.cli("dead", "show", dead_letter["id"], "--json").stdout)
    return json.loads(shown["event"]["body"])["id"]


@pytest.mark.extended("waits for many retries of an app; tests/postgres/operating/test_dead_groups.py stays")
def test_dead_letters_are_listed_with_their_reason_and_plan(server: FleetServer):
    dead_letters = dead(server)
    assert {dead_letter["recipient"] for dead_letter in dead_letters} == {"handler:fleet.apply"}
    assert all("poisoned" in dead_letter["note"] and dead_letter["code"] for dead_letter in dead_letters)
    planned = until(lambda: [dead_letter for dead_letter in dead(server) if dead_letter["next_replay_at"]])
    assert planned[0]["replays_by_itself"] == 0
    listed = server.listing("fleet", "dead", "list")
    assert {row["id"] for row in listed} == {dead_letter["id"] for dead_letter in dead(server)}


def test_the_list_is_paged_and_filtered(server: FleetServer):
    first = server.client.get(DEAD, params={"limit": 2}).json()
    second = server.client.get(DEAD, params={"limit": 2, "after": first["next"]}).json()
    assert len(first["data"]) == len(second["data"]) == 2
    assert not {row["id"] for row in first["data"]} & {row["id"] for row in second["data"]}
    assert server.client.get(DEAD, params={"type": "entity.*"}).json()["data"]
    for found in ({"source": "rentprog"}, {"type": "car_create"}, {"source": "rentprog", "type": "car_*", "limit": 2}):
        assert len(server.client.get(DEAD, params=found).json()["data"]) == found.get("limit", len(dead(server))), found
    for other in ({"source": "umnico"}, {"type": "car_update"}, {"source": "umnico", "type": "car_create"}):
        assert server.client.get(DEAD, params=other).json() == {"data": [], "next": None}, other
    listed = server.listing("fleet", "dead", "list", "--source", "rentprog", "--type", "car_create")
    assert [row["id"] for row in listed] == [row["id"] for row in dead(server)]
    for wrong in ({"limit": "x"}, {"limit": "0"}, {"after": "nothing"}, {"after": "dlv_zzzzzzzzzzzzzzzzzzzzzzzzzzz_0"}):
        assert server.client.get(DEAD, params=wrong).status_code == 400, wrong


def test_a_dead_letter_has_its_first_request(server: FleetServer):
    for row in dead(server):
        request = row["request"]
        assert (request["source"], request["type"]) == ("rentprog", "car_create")
        assert request["payload"] == {
            "event": "car_create",
            "payload": {"id": int(car_of(server, row)), "poison": "yes"},
        }
        event = json.loads(server.cli("events", "show", request["event_id"], "--json").stdout)
        assert json.loads(event["body"]) == request["payload"]


def test_a_dead_letter_is_shown_with_its_attempts(server: FleetServer):
    row = dead(server)[0]
    shown = server.client.get(f"{DEAD}/{row['id']}").json()
    tries = shown.pop("tries")
    assert [attempt["number"] for attempt in tries] == [1, 2, 3, 4, 5]
    assert "poisoned" in tries[-1]["error"]
    assert shown == row
    assert json.loads(server.cli("fleet", "dead", "show", row["id"]).stdout)["request"] == row["request"]


def test_a_dry_run_tells_the_result_and_changes_nothing(server: FleetServer):
    row = dead(server)[0]
    path, car = f"{DEAD}/{row['id']}/replay", car_of(server, row)
    failing = server.client.post(path, params={"dry_run": "true"}).json()
    assert failing["dry_run"] is True
    assert failing["result"].startswith("it fails: DatabaseError: the cars are poisoned")
    server.rows("alter table fleet.cars disable trigger poison")
    try:
        assert server.cli("fleet", "dead", "replay", row["id"], "--dry-run").stdout.startswith("it works: car")
    finally:
        server.rows("alter table fleet.cars enable trigger poison")
    assert server.thing("cars", car) is None
    assert row["id"] in {letter["id"] for letter in dead(server)}
    logged = server.listing("fleet", "errors", "--phase", "replay", "--kind", "dry_run")
    assert [found["event_id"] for found in logged] == [row["request"]["event_id"]] * 2
    assert server.client.post(path, params={"dry_run": "yes"}).status_code == 400
    unknown = server.cli("fleet", "dead", "replay", "dlv_00000000000000000000000000_0", "--dry-run", check=False)
    assert unknown.returncode != 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", DEAD),
        ("GET", f"{DEAD}/x"),
        ("POST", f"{DEAD}/x/replay"),
        ("POST", f"{DEAD}/cleanup"),
        ("DELETE", f"{DEAD}/x"),
    ],
)
def test_decisions_require_a_token(method: str, path: str, server: FleetServer):
    assert httpx.request(method, server.base + path, timeout=300).status_code == 401


def test_a_replayed_dead_letter_is_handled_and_then_cannot_be_replayed_again(server: FleetServer):
    dead_letter = dead(server)[0]
    car = car_of(server, dead_letter)
    server.send_event("car_update", {"id": int(car), "poison": "no"})
    answer = server.client.post(f"{DEAD}/{dead_letter['id']}/replay")
    assert (answer.status_code, answer.json()["result"]) == (202, "replayed")
    assert server.known("cars", car)["data"]["poison"] == "no"
    until(
        lambda: (
            server.client.post(f"{DEAD}/{dead_letter['id']}/replay")
            .json()
            .get("detail", "")
            .endswith("nothing to decide")
        )
    )
    again = server.client.post(f"{DEAD}/{dead_letter['id']}/replay")
    assert (again.status_code, again.json()["error"]) == (409, "not_dead")
    assert "succeeded" in again.json()["detail"] or "ignored" in again.json()["detail"]


def test_a_deleted_dead_letter_is_ignored_with_a_note_and_keeps_its_record(server: FleetServer):
    dead_letter = dead(server)[0]
    answer = server.client.delete(f"{DEAD}/{dead_letter['id']}", params={"note": "a test car"})
    assert (answer.status_code, answer.json()["result"]) == (200, "ignored")
    assert dead_letter["id"] not in {row["id"] for row in dead(server)}
    assert server.client.delete(f"{DEAD}/{dead_letter['id']}").status_code == 409
    shown = json.loads(server.cli("deliveries", "show", dead_letter["id"], "--json").stdout)
    assert (shown["state"], shown["note"]) == ("ignored", "a test car")
    assert shown["attempts_made"]


@pytest.mark.parametrize(
    "id", ["dlv_00000000000000000000000000_0", "dlv_000000000000000000000000000_0", "nonsense", "evt_1"]
)
def test_an_unknown_dead_letter_is_404(id: str, server: FleetServer):
    trial = server.client.post(f"{DEAD}/{id}/replay", params={"dry_run": "true"})
    answers = server.client.post(f"{DEAD}/{id}/replay"), server.client.delete(f"{DEAD}/{id}")
    for answer in (trial, server.client.get(f"{DEAD}/{id}"), *answers):
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


def test_a_delivery_that_is_not_dead_is_409(server: FleetServer):
    (delivery,) = server.listing("deliveries", "list", "--recipient", "handler:fleet.note", "--limit", "1")
    answer = server.client.post(f"{DEAD}/{delivery['id']}/replay")
    assert (answer.status_code, answer.json()["detail"].split()[2]) == (409, "succeeded,")


def test_errors_are_logged_though_their_transaction_is_undone(server: FleetServer):
    rows = server.listing("fleet", "errors", "--phase", "upsert")
    assert len(rows) >= 25, "five attempts for each of five cars"
    assert {row["entity"] for row in rows} == {"car"}
    assert "poisoned" in rows[0]["error"]
    assert (rows[0]["kind"], rows[0]["code"]) == ("err", "RaiseError")
    assert rows[0]["payload"]["payload"]["poison"] == "yes"
    meta = rows[0]["meta"]
    assert (meta["source"], meta["type"], meta["attempt"] > 0) == ("rentprog", "car_create", True)
    shown = server.client.get("/api/rentprog/errors", params={"kind": "err", "code": "RaiseError", "limit": 500}).json()
    assert [row["id"] for row in shown["data"]] == [row["id"] for row in rows]
    assert (
        server.client.get("/api/rentprog/errors", params={"kind": "dry_run", "code": "RaiseError"}).json()["data"] == []
    )


def test_the_error_log_is_indexed_by_phase_kind_and_time(server: FleetServer):
    found = server.rows("select indexdef from pg_indexes where schemaname = 'fleet' and tablename = 'error_log'")
    columns = {row["indexdef"].partition("btree ")[2] for row in found}
    assert {"(phase, kind, created_at)", "(kind, created_at)", "(created_at)"} <= columns


def test_only_what_is_not_written_has_an_announcement(server: FleetServer):
    car = new_id()
    server.send_event("car_create", {"id": car})
    server.known("cars", car)
    announced = {row["payload"]["payload"]["id"] for row in server.rows("select payload from fleet.announced")}
    assert announced >= {int(car_of(server, row)) for row in dead(server)}
    assert car not in announced


def test_the_metrics_count_the_dead(server: FleetServer):
    until(lambda: server.client.get("/webhooks/_selftest").json()["queue"]["dead"] > 0)


@pytest.mark.parametrize(
    "query",
    [
        f"{DEAD}?type=",
        f"{DEAD}?source=",
        "/api/rentprog/errors?kind=",
        "/api/rentprog/errors?code=",
        "/api/rentprog/cars?after=",
    ],
)
def test_a_query_with_nul_is_400(query: str, server: FleetServer):
    answer = server.client.get(f"{query}%00")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


@pytest.mark.parametrize("days", [10_000, 36_500])
def test_a_cleanup_with_a_huge_age_finds_nothing(days: int, server: FleetServer):
    answer = server.client.post(f"{DEAD}/cleanup", params={"days": days})
    assert (answer.status_code, answer.json().get("ignored")) == (200, 0)
    assert server.cli("fleet", "dead", "cleanup", "--days", "1e12").stdout.startswith("0 dead letters")


def test_the_cleanup_ignores_old_dead_letters_and_erases_nothing(server: FleetServer):
    before = dead(server)
    assert before
    kept = server.client.post(f"{DEAD}/cleanup", params={"days": 1}).json()
    assert (kept["ignored"], len(dead(server))) == (0, len(before))
    assert server.client.post(f"{DEAD}/cleanup", params={"days": "soon"}).status_code == 400
    done = server.client.post(f"{DEAD}/cleanup", params={"days": 0}).json()
    assert sorted(done["ids"]) == sorted(dead_letter["id"] for dead_letter in before)
    assert dead(server) == []
    shown = json.loads(server.cli("deliveries", "show", before[0]["id"], "--json").stdout)
    assert shown["state"] == "ignored"
    assert "cleaned up" in shown["note"]
    assert server.cli("check").returncode == 0


@pytest.fixture(scope="module")
def hasty(tmp_path_factory, admin_url, pg_template):
    """A boathook that cannot write poisoned cars and replays dead letters at once, but only once."""
    folder = tmp_path_factory.mktemp("fleet")
    with started(folder, admin_url, pg_template, fleet=settings(retry="[0.2]")) as running:
        running.rows(POISON)
        yield running


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_dead_letter_is_replayed_by_schedule_then_left_to_operators(hasty: FleetServer):
    car = new_id()
    hasty.send_event("car_create", {"id": car, "poison": "yes"})
    (plan,) = until(lambda: hasty.rows("select * from fleet.dead_retry where given_up_at is not null"))
    assert (plan["replays"], plan["next_at"]) == (1, None)
    until(lambda: "fleet.dead_letter_given_up" in {row["rule"] for row in hasty.listing("alerts", "list")})
    shown = json.loads(hasty.cli("dead", "show", plan["delivery_id"], "--json").stdout)
    assert len(shown["attempts_made"]) == 10, "five attempts of the handler's, five of the replay's"


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_dead_letter_whose_cause_is_fixed_is_replayed_automatically(hasty: FleetServer):
    car = new_id()
    hasty.send_event("car_create", {"id": car, "poison": "yes"})
    until(lambda: len(dead(hasty)) == 2)
    hasty.rows(HEALED)
    assert hasty.known("cars", car)["data"]["poison"] == "yes"
    until(lambda: len(dead(hasty)) == 1)
    assert hasty.cli("check").returncode == 0
