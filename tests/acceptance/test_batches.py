"""Batches over real sockets: each item has one effect despite repeats and kills."""

import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.test_exactly_once import rows, settled
from tests.crash_schedule import CrashSchedule
from tests.support import until

SOURCE = """
[sources.bank]
provider = "gocardless"
secrets = ["a-secret-of-the-bank"]
"""

BANK = """
from boathook import Boathook, Event, RetryPolicy, Transaction

hook = Boathook()

@hook.on("bank", "payments.*")
async def pay(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.effect (event_key, handler) values ($1, $2)", event.item["id"], event.type)

@hook.on("bank", "mandates.*", retry=RetryPolicy(first_s=0.05, max_attempts=1))
async def mandate(event: Event, tx: Transaction) -> None:
    raise RuntimeError("no such customer")
"""


def action(key: str, resource: str = "payments", **more: Any) -> dict[str, Any]:
    return {"id": key, "resource_type": resource, "action": "confirmed", **more}


@pytest.fixture
def bank(boathook: Callable[..., BoathookProcess]) -> Callable[..., BoathookProcess]:
    def make(**environment: str) -> BoathookProcess:
        running = boathook(start=False, extra=SOURCE)
        (running.folder / "shop.py").write_text(BANK)
        return running.start(**environment)

    return make


def post(running: BoathookProcess, *actions: dict[str, Any]) -> dict[str, Any]:
    """Send actions the way GoCardless does, until they are taken."""
    body = json.dumps({"events": actions, "meta": {"webhook_id": "WB1"}}).encode()
    signature = hmac.new(b"a-secret-of-the-bank", body, hashlib.sha256).hexdigest()
    headers = {"webhook-signature": signature, "content-type": "application/json"}

    def taken() -> dict[str, Any] | None:
        try:
            answer = httpx.post(f"{running.base}/in/bank", content=body, headers=headers, timeout=300)
        except httpx.TransportError:
            return None
        return dict(answer.json()) if answer.status_code == 200 else None

    return until(taken)


def effects(url: str) -> list[tuple[str, str]]:
    return rows(url, "select event_key, handler from shop.effect order by event_key")


def test_a_repeated_batch_with_a_new_item_delivers_only_that(bank: Callable[..., BoathookProcess], pg_url: str):
    running = bank()
    first = post(running, action("EV1"), action("EV2"))
    again = post(running, action("EV1"), action("EV2"))
    more = post(running, action("EV2"), action("EV3"), action("EV1"))
    odd = post(running, action("EV3", details="changed"), action("EV4"))
    assert (first["duplicate"], again["duplicate"], again["event_id"]) == (False, True, first["event_id"])
    assert (more["duplicate"], odd["duplicate"], odd["conflict"]) == (False, False, True)
    until(lambda: effects(pg_url) == [(f"EV{n}", "payments.confirmed") for n in (1, 2, 3, 4)])
    until(lambda: settled(running))
    assert running.cli("check").returncode == 0
    assert running.stop() == 0


@pytest.mark.extended("starts several servers of its own")
def test_operators_can_list_and_find_items(bank: Callable[..., BoathookProcess], pg_url: str):
    running = bank()
    event_id = post(running, action("EV1"), action("MD1", "mandates"))["event_id"]
    until(lambda: rows(pg_url, "select count(*) from boathook.delivery where state = 'dead'") == [(1,)])
    until(lambda: settled(running))
    shown = json.loads(running.cli("events", "show", event_id, "--json").stdout)
    assert [(one["item_path"], one["type"], one["state"]) for one in shown["deliveries"]] == [
        ("events.0", "payments.confirmed", "succeeded"),
        ("events.1", "mandates.confirmed", "dead"),
    ]
    (dead,) = running.listing("dead", "list", "--type", "mandates.*")
    assert running.listing("deliveries", "list", "--type", "mandates.*") == [dead]
    assert [one["id"] for one in running.listing("events", "list", "--type", "mandates.*")] == [event_id]
    assert "handl" in running.cli("dead", "list").stdout, "what is cut for room is not left out"
    running.environment["COLUMNS"] = "160"
    for listing in (("dead", "list"), ("deliveries", "list"), ("events", "show", event_id)):
        (line,) = [one for one in running.cli(*listing).stdout.splitlines() if one.startswith(dead["id"])]
        assert "  events.1  " in line
        assert "mandates.confirmed" in line
    told = running.cli("dead", "show", dead["id"]).stdout
    assert "item         events.1" in told
    assert "mandates.confirmed" in told


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_killed_processes_neither_lose_nor_double_an_item(
    bank: Callable[..., BoathookProcess], pg_url: str, tmp_path: Path
):
    crashes = CrashSchedule(
        tmp_path, dict.fromkeys(["accept.before_commit", "accept.after_commit", "handler.after_effect"], 1)
    )
    running = bank(**crashes.environment)
    post(running, action("EV1"), action("EV2"))
    post(running, action("EV3"), action("EV2"), action("EV1"))
    until(lambda: effects(pg_url) == [(f"EV{n}", "payments.confirmed") for n in (1, 2, 3)])
    until(lambda: settled(running))
    assert crashes.pending() == set()
    assert running.cli("check").returncode == 0
