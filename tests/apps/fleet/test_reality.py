"""The requests that RentProg really sends, `tests/reality/rentprog`: parsed, and handled by a real server."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from boathook_fleet.parse import Change, Unknown, read
from boathook_fleet.settings import FleetSettings
from boathook_fleet.tables import TABLES
from boathook_fleet.timestamp_formats import read_timestamp
from boathook_fleet.words import Action, Entity
from tests import reality
from tests.apps.fleet.server import FleetServer, new_id, started
from tests.support import until

EXAMPLES = reality.examples("rentprog")
TBILISI = ZoneInfo("Asia/Tbilisi")
UNKNOWN = {"car_moved_ruby.json"}
"""Events that the team which receives them does not know either."""


def parsed(name: str) -> Change:
    change = read(EXAMPLES[name], TBILISI)
    assert isinstance(change, Change), change
    return change


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_each_example_is_read_completely(name: str):
    if name in UNKNOWN:
        assert isinstance(read(EXAMPLES[name]), Unknown)
        return
    change = parsed(name)
    entity, action = name.split("_")[:2]
    assert (str(change.entity), change.action) == (entity, "delete" if action == "destroy" else action)
    assert change.stamp is None, "RentProg names no time"
    table = TABLES[change.entity]
    assert table.unparsed(change.data, TBILISI) == {}
    lists = [value for value in change.data.values() if isinstance(value, list)]
    assert lists == [], "a pair was taken for a value"


@pytest.mark.parametrize(
    ("name", "columns", "before"),
    [
        ("car_update_ruby.json", {"mileage": 88_954, "branch_id": "4310"}, {"mileage": 88_120}),
        ("car_update_branch_ruby.json", {"branch_id": "5872"}, {"company_id": 4310}),
        ("car_create_ruby.json", {"number": "QA417AQ", "model": "Kia Sportage", "branch_id": "4310"}, {}),
        ("booking_update_ruby.json", {"state": "Активная"}, {"state": "Новая"}),
        ("booking_update_text.json", {"state": "Активная"}, {"state": "Новая"}),
        ("booking_update_object.json", {"state": "Завершена"}, {"state": "Активная"}),
        (
            "booking_update_responsible_ruby.json",
            {"employee_id": "19044"},
            {"responsible": None, "responsible_id": None},
        ),
        ("booking_update_total_ruby.json", {"price": Decimal("295.50")}, {"total": 310.0}),
        (
            "booking_update_dates_ruby.json",
            {
                "starts_at": datetime(2027, 1, 25, 5, 0, tzinfo=UTC),
                "ends_at": datetime(2027, 1, 26, 17, 0, tzinfo=UTC),
            },
            {"start_date": "25-01-2027 10:00", "end_date": "27-01-2027 9:30", "updated_from_api": True},
        ),
        (
            "booking_create_object.json",
            {
                "starts_at": datetime(2027, 1, 25, 6, 0, tzinfo=UTC),
                "ends_at": datetime(2027, 1, 27, 5, 30, tzinfo=UTC),
                "price": Decimal("310.00"),
                "car_id": "71842",
                "client_id": "390518",
            },
            {},
        ),
        ("client_update_ruby.json", {"name": "Nino Example"}, {"name": "Nino", "phone": "+995500000001"}),
    ],
)
def test_an_update_has_the_values_after_and_before(name: str, columns: dict[str, Any], before: dict[str, Any]):
    change = parsed(name)
    values = TABLES[change.entity].values(change.data, TBILISI)
    assert {column: values[column] for column in columns} == columns
    assert dict(change.before) == before


@pytest.mark.parametrize(
    ("written", "hour", "zone"),
    [
        ("25-01-2027 10:00", 6, TBILISI),
        ("25-01-2027 9:30", 5, TBILISI),
        ("25.01.2027 10:00", 6, TBILISI),
        ("2027-01-25 10:00:00", 6, TBILISI),
        ("2027-01-25T10:00:00Z", 10, TBILISI),
        ("25-01-2027 10:00", 10, UTC),
    ],
)
def test_times_without_a_zone_are_those_of_the_company(written: str, hour: int, zone: Any):
    at = read_timestamp(written, zone)
    assert at is not None
    assert (at.date().isoformat(), at.hour) == ("2027-01-25", hour)


@pytest.mark.parametrize("written", ["25-13-2027 10:00", "32-01-2027", "25-01.2027 10:00", "25-01-2027 10", "9:30"])
def test_what_is_no_time_is_none(written: str):
    assert read_timestamp(written, TBILISI) is None


def test_a_pair_is_one_only_in_an_update():
    created = read(b'{"event":"car_create","payload":{"id":1,"photos":["a","b"]}}')
    assert isinstance(created, Change)
    assert created.data["photos"] == ["a", "b"]
    wrapped = read(b'{"event":"car_create","payload":{"id":1,"changes":{"state":[null,"new"]}}}')
    assert isinstance(wrapped, Change)
    assert (wrapped.data["state"], wrapped.before) == ("new", {"state": None})


def test_an_unknown_time_zone_is_refused():
    assert FleetSettings.model_validate({"time_zone": "Asia/Tbilisi"}).zone == TBILISI
    for name in ("Asia/Nowhere", "", "../etc/passwd", "/etc/localtime"):
        with pytest.raises(ValueError, match="is not a time zone of this machine"):
            FleetSettings.model_validate({"time_zone": name})


@pytest.mark.parametrize(
    ("data", "unparsed"),
    [
        ({"mileage": [1, 2, 3]}, {"mileage": [1, 2, 3]}),
        ({"mileage": "many"}, {"mileage": "many"}),
        ({"mileage": None, "state": "", "vin": "  "}, {}),
        ({"branch_id": {"name": "x"}, "company_id": 5}, {}),
        ({"name": "Kia", "model": {"x": 1}}, {}),
        ({"unheard_of": [1, 2, 3]}, {}),
    ],
)
def test_a_field_that_no_column_understands_is_found(data: dict[str, Any], unparsed: dict[str, Any]):
    assert TABLES[Entity.CAR].unparsed(data, TBILISI) == unparsed


# On a server.


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template):
    fleet = 'time_zone = "Asia/Tbilisi"\nwindow_s = 0.05\n'
    with started(tmp_path_factory.mktemp("reality"), admin_url, pg_template, fleet=fleet) as running:
        yield running


def send(server: FleetServer, event: str, ruby: str, **headers: str) -> bool:
    """Send an event as RentProg does; return whether it is answered as a duplicate."""
    body = json.dumps({"event": event, "payload": ruby}, ensure_ascii=False).encode()
    answer = httpx.post(
        f"{server.base}/api/rentprog/webhook", params={"token": "fleet-test-token"}, content=body,
        headers={"content-type": "application/json", **headers}, timeout=300,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["duplicate"])


def settled(server: FleetServer) -> None:
    until(lambda: server.is_idle() and not server.rows("select from fleet.dirty"))


def test_updates_with_pairs_change_what_they_name(server: FleetServer):
    car = new_id()
    send(server, "car_create", f'{{"id"=>{car}, "number"=>"AA001AA", "mileage"=>101191, "company_id"=>9247}}')
    send(server, "car_update", f'{{"id"=>{car}, "mileage"=>[101191, 102035], "company_id"=>9247}}')
    row = server.known("cars", car, lambda row: row["mileage"] == 102_035)
    assert (row["number"], row["branch_id"]) == ("AA001AA", "9247")
    send(server, "car_update", f'{{"company_id"=>[9247, 11163], "id"=>{car}}}')
    row = server.known("cars", car, lambda row: row["branch_id"] == "11163")
    assert (row["number"], row["mileage"]) == ("AA001AA", 102_035)


def test_a_state_that_goes_to_and_fro_keeps_its_last_change(server: FleetServer):
    booking = new_id()
    send(
        server, "booking_create",
        f'{{"id"=>{booking}, "car_id"=>1, "client_id"=>7, "state"=>"Новая", "start_date"=>"25-01-2027 10:00",'
        ' "end_date"=>"27-01-2027 9:30", "price"=>4500.0}',
    )  # fmt: skip
    states = [("Новая", "Активная"), ("Активная", "Новая"), ("Новая", "Активная")]
    answers = [send(server, "booking_update", f'{{"state"=>["{a}", "{b}"], "id"=>{booking}}}') for a, b in states]
    assert answers == [False] * 3
    assert send(server, "booking_update", f'{{"state"=>["Новая", "Активная"], "id"=>{booking}}}'), "a repetition"
    row = server.known("bookings", booking, lambda row: row["changes"] == 4)
    assert row["state"] == "Активная"
    assert (row["starts_at"].isoformat(), row["ends_at"].isoformat()) == (
        "2027-01-25T06:00:00+00:00", "2027-01-27T05:30:00+00:00"
    )  # fmt: skip
    send(server, "booking_destroy", f'{{"id"=>{booking}}}')
    server.known("bookings", booking, lambda row: row["deleted_at"] is not None)


def test_a_state_that_comes_back_by_plain_values_is_kept(server: FleetServer):
    car = new_id()
    for number, state in enumerate(("free", "rented", "free")):
        headers = {
            "x-event-id": f"e{number}",
            "x-delivery-id": f"d{number}",
            "x-timestamp": str(1_796_000_000 + number),
        }
        assert not send(server, "car_update", f'{{"id"=>{car}, "state"=>"{state}"}}', **headers)
    assert server.known("cars", car, lambda row: row["changes"] == 3)["state"] == "free"
    kept = server.rows(
        "select headers from boathook.event where source = 'rentprog' and convert_from(body, 'UTF8') like %s",
        f"%{car}%",
    )
    assert {row["headers"]["x-event-id"] for row in kept} == {"e0", "e1", "e2"}


def test_a_late_repetition_does_not_bring_an_older_state_back(server: FleetServer):
    car = new_id()
    create = f'{{"id"=>{car}, "number"=>"AA002AA", "mileage"=>100, "company_id"=>9247}}'
    first = f'{{"id"=>{car}, "mileage"=>[100, 200], "company_id"=>9247}}'
    send(server, "car_create", create)
    send(server, "car_update", first)
    send(server, "car_update", f'{{"id"=>{car}, "mileage"=>[200, 300], "company_id"=>9247}}')
    server.known("cars", car, lambda row: row["mileage"] == 300)
    assert not send(server, "car_update", first), "it is not the newest, so it is an event"
    assert not send(server, "car_create", create)
    settled(server)
    assert server.known("cars", car)["mileage"] == 300
    listed = server.listing("fleet", "errors", "--code", "OUT_OF_ORDER")
    assert len([row for row in listed if row["entity_id"] == str(car)]) == 2
    send(server, "car_destroy", f'{{"id"=>{car}, "company_id"=>9247}}')
    server.known("cars", car, lambda row: row["deleted_at"] is not None)
    send(server, "car_update", first)
    settled(server)
    assert server.known("cars", car)["deleted_at"] is not None, "a repetition revived what was deleted"


def test_what_is_not_understood_overwrites_nothing_and_is_reported(server: FleetServer):
    booking = new_id()
    send(server, "booking_create", f'{{"id"=>{booking}, "state"=>"Новая", "start_date"=>"25-01-2027 10:00"}}')
    server.known("bookings", booking)
    send(server, "booking_update", f'{{"id"=>{booking}, "state"=>["a", "b", "c"], "start_date"=>["x", "завтра"]}}')
    row = server.known("bookings", booking, lambda row: row["unparsed_fields"])
    assert (row["state"], row["starts_at"].isoformat()) == ("Новая", "2027-01-25T06:00:00+00:00")
    assert row["unparsed_fields"] == {"state": ["a", "b", "c"], "start_date": "завтра"}
    (listed,) = [row for row in server.listing("fleet", "unparsed", "list") if row["id"] == str(booking)]
    assert (listed["entity"], listed["unparsed_fields"]) == ("booking", row["unparsed_fields"])
    shown = server.client.get("/api/rentprog/unparsed").json()["data"]
    assert str(booking) in {row["id"] for row in shown}
    assert server.client.get("/api/rentprog/metrics").json()["unparsed"] >= 1
    metric = 'fleet_unparsed_fields_total{entity="booking",field="state"}'
    until(lambda: metric in httpx.get(f"{server.base}/metrics", timeout=300).text)
    send(server, "booking_update", f'{{"id"=>{booking}, "state"=>["c", "Активная"]}}')
    row = server.known("bookings", booking, lambda row: row["state"] == "Активная")
    assert row["unparsed_fields"] == {"start_date": "завтра"}, "what is understood later is no longer listed"


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - UNKNOWN))
def test_each_example_is_handled(server: FleetServer, name: str):
    change = parsed(name)
    send(server, *json.loads(EXAMPLES[name]).values()) if isinstance(
        json.loads(EXAMPLES[name])["payload"], str
    ) else server.post(EXAMPLES[name])
    row = server.known(TABLES[change.entity].name, change.id)
    assert row["unparsed_fields"] == {}
    assert change.action in set(Action)


def test_the_window_in_force_is_shown_to_the_second(tmp_path, pg_url):
    folder = tmp_path / "window"
    folder.mkdir()
    short = FleetServer(folder, pg_url)
    try:
        short.start(WEBHOOK_DEDUP_TTL_SEC="1")
        assert _shown_window(short) == 1
        car = new_id()
        body = f'{{"id"=>{car}, "state"=>"a"}}'
        assert not send(short, "car_update", body)
        expires_s = short.rows(
            "select extract(epoch from expires_at - boathook.id_time(event_id)) as seconds from boathook.dedup"
            " where newest_key is not null"
        )[0]["seconds"]
        assert expires_s == 1
        until(lambda: not send(short, "car_update", body))
    finally:
        short.kill_all()


def test_the_window_of_the_source_itself_is_what_is_shown(tmp_path, pg_url):
    """A key under `[sources.rentprog]` takes precedence over the app's."""
    folder = tmp_path / "own"
    folder.mkdir()
    own = FleetServer(folder, pg_url, extra="[sources.rentprog]\ndedup_window_s = 77\n")
    try:
        own.start(WEBHOOK_DEDUP_TTL_SEC="60")
        until(lambda: _shown_window(own) == 77)
    finally:
        own.kill_all()


def _shown_window(server: FleetServer) -> float:
    return float(server.client.get("/webhooks/_selftest").json()["dedup"]["ttl"])
