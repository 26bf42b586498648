"""Platform services for apps in a real boathook: chores, metrics, health and operators."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.acceptance.raw_http import RawResponse, boathook_on_new_database, send_request, write_config
from tests.support import until

GARAGE = """
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from boathook import Boathook, Event, Retry, Transaction

class Settings(BaseModel):
    provider: str = "none"

hook = Boathook("garage", settings=Settings)
washed = hook.counter("garage_washed_total", "Cars washed.", "kind")
chores = hook.counter("garage_rounds_total", "Rounds of the keeper.")
hook.mirror(
    "webhook_requests_total", "Requests.", of="boathook_requests_total", where={"source": "stripe"},
    labels={"http_code": "status"}, constants={"provider": lambda: hook.settings.provider},
)

@hook.sources
def sources(settings):
    return {"stripe": {"provider": "stripe", "secrets": ["whsec_acceptance"], "paths": ["/webhooks/stripe"]}}

@hook.on("stripe", "car.*")
async def wash(event: Event, tx: Transaction):
    washed.add(kind=event.type)
    if not await tx.fetchval("select exists (select from garage_open)"):
        return Retry(after=800, code="GARAGE_CLOSED")

@hook.every(0.2)
async def look_round():
    chores.add()

async def health(request):
    return JSONResponse(await hook.platform.health())

async def open_garage(request):
    async with hook.transaction() as tx:
        await tx.execute("insert into garage_open values (1)")
        rows = await hook.operations.deliveries(state="pending", recipient="handler:garage.wash")
        for event_id in sorted(row.event_id for row in rows):
            await hook.operations.wake(tx, event_id)
    return JSONResponse({"woken": len(rows)})

hook.mount("/garage", Starlette(routes=[Route("/health", health), Route("/open", open_garage)]), is_open=True)
"""


@pytest.fixture(scope="module")
def garage(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("garage")) as running:
        write_config(
            running,
            '[apps]\nload = ["garage"]\n[garage]\nprovider = "tilda"\n',
            app="",
            roles='["gateway", "worker", "console", "keeper"]',
            server="gateways = 1\nworkers = 1\nlinger_s = 0.1\ndrain_s = 5\n",
        )
        (running.folder / "garage.py").write_text(GARAGE)
        with psycopg.connect(running.database_url, autocommit=True) as connection:
            connection.execute("create table garage_open (n int)")
        running.start()
        until(lambda: send_request(running, "GET", "/garage/health").status == 200)
        yield running
        assert running.stop() == 0, running.log()[-3000:]


def metrics(running: BoathookProcess) -> list[str]:
    return send_request(running, "GET", "/metrics").body.decode().splitlines()


def send(running: BoathookProcess, key: str) -> RawResponse:
    body, headers = signed(payload(key, "car.moved"))
    return send_request(running, "POST", "/webhooks/stripe", headers, body)


def waiting(running: BoathookProcess, code: str) -> int:
    return len([row for row in running.listing("deliveries", "list") if row["code"] == code])


def number(running: BoathookProcess, series: str) -> float:
    return sum(float(line.removeprefix(series)) for line in metrics(running) if line.startswith(f"{series} "))


def test_a_chore_is_done_by_the_keeper_and_counted(garage: BoathookProcess):
    until(lambda: number(garage, "garage_rounds_total") >= 2)
    until(lambda: number(garage, 'boathook_chores_total{app="garage",chore="look_round",outcome="done"}') >= 2)


def test_a_waiting_event_is_handled_when_the_app_wakes_it(garage: BoathookProcess):
    assert send(garage, "evt_wake").status == 200
    until(lambda: waiting(garage, "GARAGE_CLOSED"))
    assert json.loads(send_request(garage, "GET", "/garage/open").body)["woken"] >= 1
    until(lambda: not waiting(garage, "GARAGE_CLOSED"))


def test_metrics_of_handlers_and_mirrors_of_the_gateways_own_are_shown(garage: BoathookProcess):
    assert send(garage, "evt_metrics").status == 200
    until(lambda: number(garage, 'garage_washed_total{kind="car.moved"}') >= 1)
    until(lambda: number(garage, 'webhook_requests_total{http_code="200",provider="tilda"}') >= 1)


def test_health_shows_all_processes_with_rates_and_no_problem(garage: BoathookProcess):
    assert send(garage, "evt_health").status == 200

    def found() -> Any:
        told = json.loads(send_request(garage, "GET", "/garage/health").body)
        assert told["problems"] == []
        return (
            told["metrics"]["garage_rounds_total"]["series"]
            and told["metrics"]["webhook_requests_total"]["series"]
            and told["metrics"]["boathook_events_accepted_total"]["series"][0]["per_second"] > 0
        )

    until(found)
