"""The rules of the owner's description, one test for each, through HTTP on a real server."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from boathook_fleet.settings import PRESET
from tests.apps.fleet.server import ALIAS, PATH, TOKEN, UMNICO, FleetServer, new_id, started
from tests.support import until

T = [f"2026-11-21T10:{minute:02}:00Z" for minute in range(10)]


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template):
    preset = {"WEBHOOK_JSON_LIMIT": "64kb", "WEBHOOK_ACK_SLA_MS": "400", "WEBHOOK_DEDUP_TTL_SEC": "86400",
              "WEBHOOK_ASYNC_CONCURRENCY": "6", "WEBHOOK_BATCH_WINDOW_MS": "200", "WEBHOOK_RATE_RPS": "900",
              "WEBHOOK_RATE_BURST": "3000"}  # fmt: skip
    assert preset.keys() <= PRESET.keys()
    with started(tmp_path_factory.mktemp("fleet"), admin_url, pg_template, environment=preset) as running:
        yield running


@pytest.mark.parametrize("path", [PATH, ALIAS, "/in/rentprog"])
def test_the_webhook_and_its_alias_take_events(path: str, server: FleetServer):
    car = new_id()
    answer = server.send_event("car_create", {"id": car, "number": "A1", "updated_at": T[0]}, path=path).json()
    assert answer["ok"] is True
    assert answer["duplicate"] is False
    assert server.known("cars", car)["number"] == "A1"


def test_cars_clients_bookings_branches_and_employees_are_upserted(server: FleetServer):
    car, client, booking, branch, employee = (new_id() for _ in range(5))
    server.send_event("branch_create", {"id": branch, "name": "Сочи", "address": "ул. Мира, 1"})
    server.send_event(
        "employee_create", {"id": employee, "name": "Анна", "email": "a@example.com", "branch_id": branch}
    )
    server.send_event(
        "car_create", {"id": car, "number": "X123YZ77", "model": "Kia Rio", "mileage": "12 500", "vin": "X1"}
    )
    server.send_event("client_create", {"id": client, "name": "Иван", "phone": "+7 900", "branch": {"id": branch}})
    server.send_event(
        "booking_create",
        {"id": booking, "car_id": car, "client": {"id": client}, "user_id": employee, "branch_id": branch,
         "state": "new", "total": "12500.50", "currency": "RUB", "start_date": "21.11.2026 10:00",
         "end_date": "2026-11-24 13:00:00 +0300", "updated_at": T[0]},
    )  # fmt: skip
    server.send_event("booking_update", {"id": booking, "state": "active", "updated_at": T[1]})
    row = server.known("bookings", booking, lambda row: row["state"] == "active")
    named = {key: row[f"{key}_id"] for key in ("car", "client", "employee", "branch")}
    assert named == {"car": str(car), "client": str(client), "employee": str(employee), "branch": str(branch)}
    assert (str(row["price"]), row["currency"], row["data"]["total"]) == ("12500.50", "RUB", "12500.50")
    assert (row["starts_at"].isoformat(), row["ends_at"].isoformat()) == (
        "2026-11-21T10:00:00+00:00", "2026-11-24T10:00:00+00:00"
    )  # fmt: skip
    assert server.known("cars", car)["mileage"] == 12_500
    assert server.known("clients", client)["branch_id"] == str(branch)
    assert server.known("employees", employee)["name"] == "Анна"
    assert server.known("branches", branch)["name"] == "Сочи"


def test_an_event_is_normalised_to_all_change_fields(server: FleetServer):
    booking = new_id()
    told = {"model": "Booking", "action": "updated", "user": {"name": "Анна"}, "description": "Продлено на день",
            "attributes": {"id": booking, "branch_id": 4, "updated_at": T[3]}}  # fmt: skip
    assert server.post(told).status_code == 200
    server.known("bookings", booking)
    (change,) = server.rows("select * from fleet.change where entity_id = %s", str(booking))
    picked = [change[key] for key in ("source", "entity", "action", "branch", "actor", "description")]
    assert picked == ["rentprog", "booking", "update", "4", "Анна", "Продлено на день"]
    assert change["stamp"].isoformat() == "2026-11-21T10:03:00+00:00"


def test_older_shapes_are_understood(server: FleetServer):
    car = new_id()
    server.send_event("car_update", f'{{"id"=>{car}, "state"=>"free", :mileage=>7, "updated_at"=>"{T[1]}"}}')
    server.post({"entity": "car", "action": "changed", "data": {"car": {"id": car, "note": None, "updated_at": T[2]}}})
    row = server.known("cars", car, lambda row: "note" in row["data"])
    assert (row["state"], row["mileage"]) == ("free", 7)


def test_messages_of_umnico_are_kept(server: FleetServer):
    message = f"m{new_id()}"
    told = {"type": "message.incoming", "accountId": 1, "leadId": 2,
            "message": {"messageId": message, "datetime": 1763700000000, "message": {"text": "Добрый день"}}}  # fmt: skip
    assert server.post(told, path="/api/umnico/webhook").status_code == 401, "RentProg's token is not Umnico's"
    assert server.post(told, path="/api/umnico/webhook", token=UMNICO).status_code == 200
    row = server.known("messages", message)
    assert (row["text"], row["lead_id"]) == ("Добрый день", "2")


def test_things_that_are_only_named_are_made_as_stubs(server: FleetServer):
    booking, car = new_id(), new_id()
    server.send_event("booking_create", {"id": booking, "car_id": car, "updated_at": T[0]})
    server.known("bookings", booking)
    stub = server.thing("cars", car)
    assert stub is not None
    assert stub["stamp"] is None
    server.send_event("car_create", {"id": car, "number": "B2", "updated_at": T[0]})
    assert server.known("cars", car)["number"] == "B2"


def test_events_out_of_order_end_in_the_newest_state(server: FleetServer):
    car = new_id()
    server.send_event("car_update", {"id": car, "state": "rented", "updated_at": T[5]})
    server.known("cars", car)
    server.send_event("car_update", {"id": car, "state": "free", "vin": "late", "updated_at": T[2]})
    row = server.known("cars", car, lambda row: row["changes"] == 2)
    assert row["state"] == "rented", "an older update overwrote a newer one"
    assert row["vin"] == "late", "what nothing newer says is filled in"
    assert row["stamp"].isoformat() == "2026-11-21T10:05:00+00:00"


def test_a_late_update_counts_at_its_place_among_the_others(server: FleetServer):
    car = new_id()
    server.send_event("car_update", {"id": car, "mileage": 1, "state": "one", "updated_at": T[1]})
    server.known("cars", car, lambda row: row["changes"] == 1)
    server.send_event("car_update", {"id": car, "state": "three", "updated_at": T[3]})
    server.known("cars", car, lambda row: row["changes"] == 2)
    server.send_event("car_update", {"id": car, "mileage": 2, "state": "two", "updated_at": T[2]})
    row = server.known("cars", car, lambda row: row["changes"] == 3)
    assert (row["mileage"], row["state"]) == (2, "three")


def test_a_deleted_thing_is_not_revived_by_a_late_update(server: FleetServer):
    client = new_id()
    server.send_event("client_create", {"id": client, "name": "Иван", "updated_at": T[1]})
    server.send_event("client_delete", {"id": client, "deleted_at": T[5]})
    server.known("clients", client, lambda row: row["deleted_at"] is not None)
    server.send_event("client_update", {"id": client, "phone": "+7", "updated_at": T[3]})
    row = server.known("clients", client, lambda row: row["changes"] == 3)
    assert row["deleted_at"] is not None
    assert row["name"] == "Иван", "a deleted thing keeps what was known of it"
    server.send_event("client_update", {"id": client, "name": "Иван П.", "updated_at": T[7]})
    assert server.known("clients", client, lambda row: row["deleted_at"] is None)["name"] == "Иван П."


def test_a_deletion_beats_a_later_update_with_the_same_timestamp(server: FleetServer):
    car = new_id()
    server.send_event("car_delete", {"id": car, "updated_at": T[1]})
    server.known("cars", car, lambda row: row["deleted_at"] is not None)
    server.send_event("car_update", {"id": car, "state": "rented", "updated_at": T[1]})
    row = server.known("cars", car, lambda row: row["changes"] == 2)
    assert row["deleted_at"] is not None, "what the sender deleted came back"


def test_a_repeated_request_is_one_change(server: FleetServer):
    car = new_id()
    payload = {"id": car, "mileage": 1, "updated_at": T[1]}
    first = server.send_event("car_update", payload).json()
    again = server.send_event("car_update", payload, path=ALIAS).json()
    assert (first["duplicate"], again["duplicate"], again["event_id"]) == (False, True, first["event_id"])
    assert server.known("cars", car)["changes"] == 1


def test_a_forged_request_is_refused_and_the_real_one_accepted(server: FleetServer):
    car = new_id()
    told = {"event": "car_create", "payload": {"id": car, "number": "C3"}}
    assert server.post(told, token="guessed").status_code == 401
    answer = server.post(told)
    assert (answer.status_code, answer.json()["duplicate"]) == (200, False)
    assert server.known("cars", car)["number"] == "C3"


def test_invalid_json_is_refused(server: FleetServer):
    assert server.post(b'{"event": ').status_code == 400


def test_unknown_shapes_are_kept_and_visible(server: FleetServer):
    marker = f"unheard-of {new_id()}"
    answer = server.post({"event": "invoice_paid", "payload": {"note": marker}})
    assert answer.status_code == 200, "what we do not understand is no fault of the sender's"

    def listed():
        return [row for row in server.client.get("/api/rentprog/unknown").json()["data"] if marker in row["sample"]]

    (row,) = until(listed)
    assert row["source"] == "rentprog"
    assert row["type"] == "invoice_paid"
    assert "names no car" in row["reason"]
    assert any(marker in row["sample"] for row in server.listing("fleet", "unknown", "list"))
    assert any(error["event_id"] == row["event_id"] for error in server.listing("fleet", "errors", "--phase", "parse"))
    shown = json.loads(server.cli("events", "show", row["event_id"], "--json").stdout)
    assert shown["deliveries"][0]["state"] == "ignored"


@pytest.mark.extended("tries hostile input once more; the tables of hostile input stay")
@pytest.mark.parametrize(
    "text", ["nul \0 in it", "half \ud83d of a pair", "<script>alert(1)</script>", "'; drop table x --"]
)
def test_unusual_texts_are_stored(text: str, server: FleetServer):
    client = new_id()
    assert (
        server.post({"event": "client_create", "payload": {"id": client, "name": text, text: [text]}}).status_code
        == 200
    )
    assert server.known("clients", client)["name"].startswith(text[:3])


@pytest.mark.extended("needs thousands of rows, objects or connections")
def test_a_burst_of_updates_of_one_car_takes_few_upserts(server: FleetServer):
    car, number = new_id(), 1_000
    bodies = [
        json.dumps(
            {"event": "car_update", "payload": {"id": car, "mileage": n, "updated_at": f"2026-11-21T11:00:00.{n:06}Z"}}
        )
        for n in range(number)
    ]
    order = [bodies[(position * 617) % number] for position in range(number)]  # every one, none in its place
    headers = {"content-type": "application/json"}
    with (
        httpx.Client(base_url=server.base, params={"token": TOKEN}, headers=headers, timeout=300) as client,
        ThreadPoolExecutor(16) as threads,
    ):
        assert set(threads.map(lambda body: client.post(PATH, content=body).status_code, order)) == {200}
    row = until(lambda: (found := server.thing("cars", car)) and found["changes"] == number and found)
    print(f"{row['upserts']} upserts for {number} updates")  # noqa: T201
    assert row["mileage"] == number - 1, "the last state is not the newest"
    assert row["upserts"] <= number / 5, f"{row['upserts']} upserts for {number} updates"


def test_ingest_errors_are_logged_by_phase_and_kind(server: FleetServer):
    def count() -> int:
        found = server.listing("fleet", "errors", "--phase", "ack")
        return sum(row["number"] for row in found)

    before = count()
    assert server.post({"event": "car_update", "payload": {"id": 1}}, token="wrong").status_code == 401
    until(lambda: count() > before)
    (row, *_) = server.listing("fleet", "errors", "--phase", "ack")
    assert (row["kind"], bool(row["code"]), row["payload"]) == ("warn", True, None)
    assert "rentprog" in row["error"]
    shown = server.client.get("/api/rentprog/errors", params={"phase": "ack"}).json()
    assert shown["last_hour"]["ack"] >= 1
    assert {"ack", "parse", "normalise", "upsert", "fetch", "live", "replay"} == set(shown["last_hour"])


SELFTEST_FIELDS = {
    "jsonLimit", "rateRps", "redis", "queue", "readiness", "dedup", "version",
}  # fmt: skip
FIGURES = {
    "webhook_ok_1m", "webhook_err_1m", "webhook_ack_avg_ms_1m", "webhook_ack_p50_ms_1m", "webhook_ack_p95_ms_1m",
}  # fmt: skip


def test_the_selftest_is_public_and_shows_no_secret(server: FleetServer):
    server.send_event("car_create", {"id": new_id()})

    def told():
        answer = httpx.get(f"{server.base}/webhooks/_selftest", timeout=300)
        figures = answer.json().get("metrics", {})
        return answer if figures.get("webhook_ok_1m", 0) > 0 and figures["webhook_ack_p95_ms_1m"] is not None else None

    answer = until(told)
    shown = answer.json()
    assert answer.status_code == 200
    assert shown.keys() >= SELFTEST_FIELDS
    assert shown["ok"] is True
    assert shown["checks"] == {"parser": True, "database": True}
    assert shown["redis"] == "absent"
    assert set(shown["queue"]) == {"inflight", "pending", "dead", "fetch_full_backlog"}
    readiness = shown["readiness"]
    assert readiness.pop("server_inflight") >= 0
    assert readiness == {"ok": True, "problems": [], "shutting_down": False}
    assert shown["dedup"].keys() == {"backend", "ttl", "memorySize", "hits", "hits_1m"}
    assert shown["dedup"]["backend"] == "postgresql"
    figures = shown["metrics"]
    assert figures.keys() >= FIGURES
    assert 0 < figures["webhook_ack_p50_ms_1m"] <= figures["webhook_ack_p95_ms_1m"]
    assert figures["webhook_ack_avg_ms_1m"] > 0
    assert not re.search("fleet-test-token|umnico-test-token", answer.text)


def test_legacy_environment_variables_apply(server: FleetServer):
    shown = server.client.get("/webhooks/_selftest").json()
    assert shown["jsonLimit"] == "64kb"
    assert shown["metrics"]["webhook_ack_sla_ms"] == 400
    assert shown["dedup"]["ttl"] == 86_400
    assert shown["async_concurrency"] == 6
    assert shown["batch_window_ms"] == 200
    assert (shown["rateRps"], shown["rate_burst"]) == (900, 3_000)
    big = {"event": "car_create", "payload": {"id": new_id(), "note": "x" * 70_000}}
    assert server.post(big).status_code == 413
    assert server.post({"event": "car_create", "payload": {"id": new_id(), "note": "x" * 50_000}}).status_code == 200


def send_with_id(server: FleetServer, request_id: str, token: str = TOKEN) -> httpx.Response:
    headers = {"content-type": "application/json", "x-request-id": request_id}
    body = json.dumps({"event": "car_create", "payload": {"id": new_id()}})
    return httpx.post(f"{server.base}{PATH}", params={"token": token}, content=body, headers=headers, timeout=300)


def test_the_senders_request_id_is_answered_logged_and_stored(server: FleetServer):
    taken = send_with_id(server, "req-1/a:b")
    assert taken.json()["request_id"] == taken.headers["x-request-id"] == "req-1/a:b"
    event = json.loads(server.cli("events", "show", taken.json()["event_id"], "--json").stdout)
    assert "req-1/a:b" in json.dumps(event["headers"])
    refused = send_with_id(server, "req-2", token="wrong")
    assert (refused.status_code, refused.json()["request_id"]) == (401, "req-2")
    server.wait_logged('"request_id":"req-1/a:b"')
    server.wait_logged('"request_id":"req-2"')


@pytest.mark.parametrize("request_id", ['x"y', "a b", "x" * 101, "\\", "<b>"])
def test_another_request_id_is_replaced_by_one_of_our_own(server: FleetServer, request_id: str):
    response = send_with_id(server, request_id)
    assert response.status_code == 200
    assert response.json()["request_id"].startswith("req_")


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_the_rate_limit_answers_429(pg_url, tmp_path):
    folder = tmp_path / "limited"
    folder.mkdir()
    slow = FleetServer(folder, pg_url)  # gateways on one database share the rate
    try:
        slow.start(WEBHOOK_RATE_RPS="1", WEBHOOK_RATE_BURST="2")
        answers = [slow.post({"event": "car_create", "payload": {"id": new_id()}}) for _ in range(4)]
        assert [answer.status_code for answer in answers][:2] == [200, 200]
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
    finally:
        slow.kill_all()


def test_an_invalid_variable_prevents_the_start_and_is_named(server: FleetServer, monkeypatch):
    monkeypatch.setitem(server.environment, "WEBHOOK_JSON_LIMIT", "lots")
    done = server.cli("config", "check", check=False)
    assert done.returncode != 0
    assert "WEBHOOK_JSON_LIMIT" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_app_metrics_require_a_token_and_count_its_tables(server: FleetServer):
    assert httpx.get(f"{server.base}/api/rentprog/metrics", timeout=300).status_code == 401
    shown = server.client.get("/api/rentprog/metrics").json()
    assert shown.keys() >= SELFTEST_FIELDS | FIGURES
    assert set(shown["things"]) == {"cars", "clients", "bookings", "branches", "employees", "messages"}
    assert shown["things"]["cars"].keys() == {"things", "changes", "upserts"}
    assert {"changes_1m", "dirty", "unknown", "errors_1m"} <= shown.keys()


def test_the_history_of_the_figures_is_kept_by_the_minute(server: FleetServer):
    server.send_event("car_create", {"id": new_id()})

    def told() -> list[dict]:
        found = server.client.get("/api/rentprog/metrics/history").json()["minutes"]
        return [minute for minute in found if minute["webhook_ok_1m"] and minute["webhook_ack_p95_ms_1m"]]

    minutes = until(told)
    assert minutes[-1].keys() >= {"minute", "webhook_ok_1m", "queue", "errors_1m"}
    assert server.client.get("/api/rentprog/metrics/history?minutes=0").status_code == 400
    week = server.client.get("/api/rentprog/metrics/history?minutes=10080").json()["minutes"]
    assert week[-1].keys() == minutes[-1].keys()
    assert server.client.get("/api/rentprog/metrics/history?minutes=10081").status_code == 400
    assert "minutes" in server.client.get("/metrics/history").json(), "boathook's own history is where it always was"


def test_things_are_listed_by_http_and_by_command(server: FleetServer):
    cars = [new_id() for _ in range(3)]
    for car in cars:
        server.send_event("car_create", {"id": car, "number": f"N{car}"})
    for car in cars:
        server.known("cars", car)
    page = server.client.get("/api/rentprog/cars", params={"limit": 2}).json()
    assert len(page["data"]) == 2
    assert page["next"] == page["data"][-1]["id"]
    more = server.client.get("/api/rentprog/cars", params={"limit": 2, "after": page["next"]}).json()["data"]
    assert not {row["id"] for row in more} & {row["id"] for row in page["data"]}
    listed = {row["id"]: row for row in server.listing("fleet", "cars", "--limit", "1000")}
    assert {listed[str(car)]["number"] for car in cars} == {f"N{car}" for car in cars}
    for name in ("clients", "bookings", "branches", "employees", "messages"):
        assert "data" in server.client.get(f"/api/rentprog/{name}").json()
    assert "number" in server.cli("fleet", "cars").stdout


@pytest.mark.smoke
def test_the_simulation_of_the_command_line_ends_in_the_right_tables(server: FleetServer):
    (done,) = server.listing("fleet", "simulate", "--url", server.base, "--count", "40", "--seed", "7")
    assert (done["differences"], done["unexpected"]) == ([], 0)
    assert done["effects"]["things kept"] > 0
    assert done["answers"].keys() == {"200", "400", "401"}
    assert server.cli("check").returncode == 0


def test_the_app_has_counters_in_boathooks_metrics(server: FleetServer):
    def counted() -> bool:
        text = httpx.get(f"{server.base}/metrics", timeout=300).text
        return all(
            re.search(rf"^{name}{{.*}} [1-9]", text, re.MULTILINE)
            for name in ("fleet_changes_total", "fleet_upserts_total", "fleet_unknown_total")
        )

    until(counted)
