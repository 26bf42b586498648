"""Updates of unknown objects wait for the whole object, which is fetched from RentProg's API at its rate."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from boathook import HTTP_DEFAULTS, BoathookError
from boathook_fleet import fetching, hook, rentprog_api
from boathook_fleet.parse import Change
from boathook_fleet.records import Arrival, apply_changes, note_change
from boathook_fleet.rentprog_api import RateReached, RentProgApi, UnusableResponse
from boathook_fleet.settings import FleetSettings
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Action, Entity
from tests import reality
from tests.apps.fleet.server import FleetServer, RentProg, new_id, started
from tests.apps.fleet.test_mutants import transaction, url  # noqa: F401 - url is a fixture
from tests.support import until

EXAMPLES = {name: json.loads(body) for name, body in reality.examples("rentprog_api").items()}
Reply = tuple[int, dict[str, str], bytes]
AT = datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.fixture(scope="module")
def rentprog() -> Iterator[RentProg]:
    with RentProg() as api:
        yield api


def settings(rentprog: RentProg, **api: float) -> str:
    keys = {"read_per_minute": 6e4, "search_per_minute": 6e4, "login_per_minute": 6e4, "wait_s": 600.0, **api}
    branches = "".join(f'[fleet.branches.{id}]\ntoken = "{token}"\n' for id, token in rentprog.companies.items())
    lines = "".join(f"{name} = {value}\n" for name, value in keys.items())
    return f'window_s = 0.05\n[fleet.api]\nurl = "{rentprog.url}"\n{lines}{branches}'


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template, rentprog: RentProg) -> Iterator[FleetServer]:
    with started(tmp_path_factory.mktemp("fetch"), admin_url, pg_template, fleet=settings(rentprog)) as running:
        yield running


def fetched(server: FleetServer, id: int) -> dict[str, Any]:
    return until(
        lambda: server.rows("select * from fleet.fetch where entity_id = %s and finished_at is not null", str(id))
    )[0]


def test_an_update_of_an_unknown_booking_is_applied_to_the_whole_one(server: FleetServer, rentprog: RentProg):
    booking = new_id()
    whole = EXAMPLES["booking.json"] | {"id": booking, "state": "Новая", "deposit": None}
    rentprog.objects["5872", "booking", str(booking)] = whole
    server.send_event("booking_update", f'{{"id"=>{booking}, "state"=>["Новая", "Активная"], "deposit"=>[50, 100]}}')
    row = server.known("bookings", booking)
    assert row["state"] == "Активная", "the response is older than the update"
    assert row["data"]["deposit"] == 100, "an empty field has replaced a value"
    assert (row["car_id"], str(row["price"])) == ("71842", "310.00")
    assert (row["changes"], row["upserts"]) == (2, 1), "the update did not wait"
    assert fetched(server, booking)["result"] == "ok"


def test_what_an_object_has_since_its_update_wins(server: FleetServer, rentprog: RentProg):
    car = new_id()
    rentprog.objects["4310", "car", str(car)] = EXAMPLES["car.json"] | {"id": car, "mileage": 500}
    server.send_event("car_update", f'{{"id"=>{car}, "mileage"=>[300, 400], "company_id"=>4310}}')
    row = server.known("cars", car)
    assert (row["mileage"], row["number"], row["branch_id"]) == (500, "QB206BQ", "4310")
    server.send_event("car_update", f'{{"id"=>{car}, "mileage"=>[500, 600]}}')
    server.known("cars", car, lambda row: row["mileage"] == 600)
    assert len(server.rows("select from fleet.fetch where entity_id = %s", str(car))) == 1


def test_an_object_that_no_company_has_gets_its_update(server: FleetServer):
    client = new_id()
    server.send_event("client_update", {"id": client, "phone": ["1", "+995500000003"]})
    assert server.known("clients", client)["phone"] == "+995500000003"
    assert fetched(server, client)["result"] == "miss"
    (logged,) = server.rows("select * from fleet.error_log where entity_id = %s", str(client))
    assert (logged["phase"], logged["kind"], logged["code"]) == ("fetch", "warn", "NOT_FOUND")


def test_a_created_object_is_not_fetched(server: FleetServer, rentprog: RentProg):
    car, before = new_id(), len(rentprog.requests)
    server.send_event("car_create", {"id": car, "mileage": 1})
    server.send_event("car_update", f'{{"id"=>{car}, "mileage"=>[1, 2]}}')
    server.known("cars", car, lambda row: row["mileage"] == 2)
    assert len(rentprog.requests) == before


def test_an_outdated_token_is_renewed(server: FleetServer, rentprog: RentProg):
    car, logins = new_id(), rentprog.logins
    rentprog.objects["4310", "car", str(car)] = {"id": car, "vin": "X"}
    rentprog.troubles.append(web.Response(status=401))
    server.send_event("car_update", f'{{"id"=>{car}, "mileage"=>[1, 2], "company_id"=>4310}}')
    assert server.known("cars", car)["vin"] == "X"
    assert rentprog.logins > logins
    assert "company-one-secret" not in server.log()
    assert "request-token" not in server.log()


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_updates_are_applied_without_an_api_and_completed_by_it(tmp_path, admin_url, pg_template):
    with RentProg() as away:
        away.is_down = True
        with started(tmp_path, admin_url, pg_template, fleet=settings(away, wait_s=2.0)) as server:
            car = new_id()
            away.objects["4310", "car", str(car)] = {"id": car, "vin": "X", "mileage": 2}
            server.send_event("car_update", f'{{"id"=>{car}, "mileage"=>[1, 2]}}')
            assert server.known("cars", car)["vin"] is None
            assert server.client.get("/webhooks/_selftest").json()["queue"]["fetch_full_backlog"] == 1
            away.is_down = False
            assert server.known("cars", car, lambda row: row["vin"] is not None)["mileage"] == 2
            assert server.client.get("/webhooks/_selftest").json()["queue"]["fetch_full_backlog"] == 0


# Order, in the tables.


async def update(tx: Any, minute: int, before: int, after: int) -> None:
    arrival = Arrival(event_id=uuid.uuid4(), source="rentprog", type="x", accepted_at=AT + timedelta(minutes=minute))
    change = Change(
        entity=Entity.CAR, action=Action.UPDATE, id="1", data={"mileage": after}, before={"mileage": before}
    )
    await note_change(tx, arrival, change, arrival.accepted_at)


async def mileage(url: str, *updates: tuple[int, int, int], response: int | None) -> int:  # noqa: F811
    """Return the mileage after updates of some minutes, and an object that is fetched in minute 5."""
    async with transaction(url) as tx:
        for given in updates:
            await update(tx, *given)
        at = AT + timedelta(minutes=5)
        await fetching.note_object(tx, uuid.uuid4(), Entity.CAR, "1", {"id": 1, "mileage": response}, at, UTC)
        await apply_changes(tx, Entity.CAR, "1")
        value: int = await tx.fetchval("select mileage from fleet.cars where id = '1'")
        return value


CASES = [
    ([(4, 1, 2)], 2, 2),
    ([(4, 1, 2)], 1, 2),
    ([(4, 1, 2)], 3, 3),
    ([(4, 1, 2)], None, 2),
    ([(6, 1, 2)], 1, 2),
    ([(3, 1, 2), (4, 2, 3)], 2, 3),
]


@pytest.mark.parametrize(("updates", "response", "mileage_after"), CASES)
async def test_the_order_of_updates_and_response(updates, response, mileage_after, url: str):  # noqa: F811
    assert await mileage(url, *updates, response=response) == mileage_after


async def test_mutant_an_older_response_wins_over_its_update(url: str, monkeypatch):  # noqa: F811
    monkeypatch.setitem(fetching.SQL, "waiting", "select '{}' as before where $1 = '' and $2 = '' and $3 < now()")
    assert await mileage(url, (4, 1, 2), response=1) == 1


async def test_mutant_an_empty_field_replaces_a_value(url: str, monkeypatch):  # noqa: F811
    monkeypatch.setattr(fetching, "is_empty", lambda _value: False)
    assert await mileage(url, (4, 1, 2), response=None) is None


async def request(url: str, wait_s: float = 60.0) -> tuple[bool, bool]:  # noqa: F811
    settings = FleetSettings.model_validate({"api": {"wait_s": wait_s}, "branches": {"1": {"token": "x"}}})
    async with transaction(url) as tx:
        return await fetching.request_object(tx, Entity.CAR, "1", settings)


async def test_an_object_is_requested_once_and_its_updates_wait_no_longer_than_allowed(url: str):  # noqa: F811
    async with transaction(url) as tx:
        await update(tx, 1, 1, 2)
    assert await request(url) == (True, True)
    assert await request(url) == (True, False)
    async with transaction(url) as tx:
        await tx.execute("update fleet.fetch set apply_at = now()")
        assert await fetching.end_waits(tx) == [(Entity.CAR, "1")]
        assert await fetching.end_waits(tx) == []
    assert await request(url) == (False, False)


async def test_what_is_known_is_not_requested(url: str):  # noqa: F811
    async with transaction(url) as tx:
        await update(tx, 1, 1, 2)
        await apply_changes(tx, Entity.CAR, "1")
    assert await request(url) == (False, False)


# The rate.


async def turns(url: str, number: int) -> list[float]:  # noqa: F811
    """Take turns that are 1000 seconds apart, all at the same time; return how long each waits, in thousands."""

    async def take() -> float:
        async with transaction(url) as tx:
            return float(await tx.fetchval(rentprog_api.SQL["take_turn"], "read", 1_000.0, 1e6))

    return sorted(round(wait_s / 1_000.0, 1) for wait_s in await asyncio.gather(*(take() for _ in range(number))))


async def test_workers_share_the_rate(url: str):  # noqa: F811
    assert await turns(url, 8) == [float(turn) for turn in range(8)]


async def test_mutant_without_a_row_all_workers_go_at_once(url: str, monkeypatch):  # noqa: F811
    monkeypatch.setitem(rentprog_api.SQL, "take_turn", "select $2::float8 * 0 where $1 <> '' and $3::float8 > 0")
    assert await turns(url, 8) == [0.0] * 8


async def test_a_turn_that_is_far_ahead_is_not_taken(url: str):  # noqa: F811
    async with transaction(url) as tx:
        take = rentprog_api.SQL["take_turn"]
        assert await tx.fetchval(take, "read", 100.0, 30.0) == 0
        assert await tx.fetchval(take, "read", 100.0, 30.0) is None
        assert 90 < await tx.fetchval(rentprog_api.SQL["next_turn"], "read") <= 100
        assert await tx.fetchval(take, "search", 100.0, 30.0) == 0, "each kind has its own rate"


# The client.


class Web:
    """Answers with scripted responses."""

    def __init__(self, *responses: Reply) -> None:
        self._responses = list(responses)

    async def request(self, _method: str, _url: str, **_options: Any) -> Any:
        status, headers, body = self._responses.pop(0)

        def raise_for_status() -> None:
            if status >= 400:
                raise BoathookError(f"status {status}")

        return SimpleNamespace(
            status=status, headers=headers, body=body, origin="https://rentprog.net", raise_for_status=raise_for_status
        )


def client(url: str, *responses: Reply) -> RentProgApi:  # noqa: F811
    api = {"read_per_minute": 6e4, "search_per_minute": 6e4, "login_per_minute": 6e4}
    stub: Any = SimpleNamespace(
        settings=FleetSettings.model_validate({"api": api, "branches": {"1": {"token": "x"}}}),
        transaction=lambda: transaction(url), http=Web(*responses), resolve=lambda text, _key: text,
    )  # fmt: skip
    return RentProgApi(stub)


TOKEN: Reply = (200, {}, reality.examples("rentprog_api")["token.json"])


@pytest.mark.parametrize(
    ("headers", "pause_s"), [({"retry-after": "120"}, 120.0), ({}, 60.0), ({"retry-after": "x"}, 60.0)]
)
async def test_429_pauses_all_workers(headers, pause_s, url: str):  # noqa: F811
    with pytest.raises(RateReached) as reached:
        await client(url, TOKEN, (429, headers, b"")).fetch(Entity.CAR, "71907", None)
    assert (reached.value.retry.after, reached.value.retry.dependency) == (pause_s, "rentprog")
    with pytest.raises(RateReached) as other:
        await client(url, TOKEN).fetch(Entity.CAR, "71907", None)
    assert pause_s - 30 < (other.value.retry.after or 0) <= pause_s


@pytest.mark.parametrize("name", ["car.json", "search_cars.json"])
@pytest.mark.parametrize("wrapper", ["{}", '{{"data": {}}}', '{{"car": {}}}'])
async def test_an_object_is_found_in_a_response(name: str, wrapper: str, url: str):  # noqa: F811
    body = wrapper.format(reality.examples("rentprog_api")[name].decode()).encode()
    fields = await client(url, TOKEN, (200, {}, body)).fetch(Entity.CAR, "71907", None)
    assert fields is not None
    assert fields["number"] == "QB206BQ"


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000, b'{"id": "\xff"}'], ids=lambda body: body[:9])
async def test_a_response_that_is_not_json_is_an_error_that_may_pass(body: bytes, url: str):  # noqa: F811
    with pytest.raises(UnusableResponse):
        await client(url, TOKEN, (200, {}, body)).fetch(Entity.CAR, "1", None)


@pytest.mark.parametrize(
    "document", [[], {}, None, 5, [5], {"data": None}, {"data": [[]]}, {"id": None}, {"error": "x"}]
)
async def test_a_response_without_the_object_is_none(document: Any, url: str):  # noqa: F811
    responses: list[Reply] = [(200, {}, json.dumps(document).encode())] * 3
    assert await client(url, TOKEN, *responses).fetch(Entity.CAR, "1", None) is None


@pytest.mark.parametrize("answer", [{}, {"token": 5}, {"token": "a\nb"}, ["x"]])
async def test_a_login_without_a_token_is_an_error_that_may_pass(answer: Any, url: str):  # noqa: F811
    with pytest.raises(UnusableResponse):
        await client(url, (200, {}, json.dumps(answer).encode())).fetch(Entity.CAR, "1", None)


async def test_a_token_is_used_until_it_ends(url: str, monkeypatch):  # noqa: F811
    car: Reply = (200, {}, reality.examples("rentprog_api")["car.json"])
    api = client(url, TOKEN, car, car, TOKEN, car)
    for _ in range(2):
        assert await api.fetch(Entity.CAR, "71907", None)
    monkeypatch.setattr(time, "time", lambda: datetime(2027, 1, 25, 23, 33, 35, tzinfo=UTC).timestamp())
    assert await api.fetch(Entity.CAR, "71907", None)


@pytest.mark.parametrize("name", ["car", "client", "booking"])
def test_the_documented_objects_are_read_completely(name: str):
    assert TABLES[Entity(name)].unparsed(EXAMPLES[f"{name}.json"], UTC) == {}


@pytest.mark.parametrize(
    "table",
    [
        {"api": {"wait_s": -1}},
        {"api": {"read_per_minute": 0}},
        {"branches": {"1": {"key": "x"}}},
        {"branches": {"tbilisi": {}}},
    ],
)
def test_invalid_settings_are_refused(table: dict[str, Any]):
    with pytest.raises(ValidationError):
        FleetSettings.model_validate(table)


def test_the_handler_retries_what_may_pass_behind_a_breaker_of_the_api():
    handler = hook.handlers["fleet.fetch"]
    assert handler.retry_on == HTTP_DEFAULTS
    assert handler.breaker is not None
    assert (handler.breaker.dependency, handler.breaker.errors) == ("rentprog", HTTP_DEFAULTS)
    assert all(rule(UnusableResponse("x")) for rule in HTTP_DEFAULTS if not isinstance(rule, type))


def test_the_tokens_are_in_no_repr():
    assert "secret" not in repr(FleetSettings.model_validate({"branches": {"1": {"token": "secret"}}}))
