"""Batches of four providers: each item has one effect under its own key in any batch."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from boathook.testing import Keys, make_keys, signed_request
from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.raw_http import RawResponse, send_signed, write_config
from tests.support import until

HOME = "https://hooks.example.com"
SECRETS = {"gocardless": "a secret", "hubspot": "a client secret", "adyen": "44782DEF547AAA06C910C43932B1EB0C71FC68D9"}

HANDLERS = """
import json
from boathook import Boathook, Event, Transaction

hook = Boathook()

for source in ("sendgrid", "adyen", "gocardless", "hubspot"):
    @hook.on(source, "*", name=f"keep_{source}")
    async def keep(event: Event, tx: Transaction) -> None:
        await tx.execute(
            "insert into shop.effect (event_key, handler, attempt) values ($1, $2, $3)",
            json.dumps(event.item, sort_keys=True), event.type, event.attempt)
"""


def sendgrid(number: int) -> dict[str, Any]:
    return {"email": "a@example.com", "event": "delivered", "sg_event_id": f"sg-{number}", "timestamp": 1_763_700_000}


def adyen(number: int) -> dict[str, Any]:
    return {
        "NotificationRequestItem": {
            "eventCode": "AUTHORISATION",
            "success": "true",
            "pspReference": f"PSP{number}",
            "originalReference": "",
            "merchantAccountCode": "Shop",
            "merchantReference": f"order-{number}",
            "amount": {"currency": "EUR", "value": 1000},
            "additionalData": {"hmacSignature": ""},
            "eventDate": "2026-01-01T00:00:00+01:00",
        }
    }


def gocardless(number: int) -> dict[str, Any]:
    return {"id": f"EV{number}", "resource_type": "payments", "action": "confirmed", "links": {"payment": "PM1"}}


def hubspot(number: int) -> dict[str, Any]:
    return {
        "eventId": number,
        "subscriptionId": 7,
        "occurredAt": 1_763_700_000_000,
        "objectId": 123,
        "subscriptionType": "contact.creation",
        "attemptNumber": 0,
    }


BATCHES: dict[str, tuple[Callable[[int], dict[str, Any]], Callable[[list[Any]], Any], str]] = {
    "sendgrid": (sendgrid, lambda items: items, "delivered"),
    "adyen": (adyen, lambda items: {"live": "false", "notificationItems": items}, "AUTHORISATION"),
    "gocardless": (gocardless, lambda items: {"events": items, "meta": {"webhook_id": "WB1"}}, "payments.confirmed"),
    "hubspot": (hubspot, lambda items: items, "contact.creation"),
}


@pytest.fixture(scope="module")
def keys() -> Keys:
    return make_keys("sendgrid")


@pytest.fixture
def running(boathook: Callable[..., BoathookProcess], keys: Keys) -> BoathookProcess:
    one = boathook(start=False)
    (one.folder / "shop.py").write_text(HANDLERS)
    secrets = {**SECRETS, "sendgrid": keys.public}
    sources = "".join(
        f'[sources.{name}]\nsecrets = ["{secret}"]\npublic_url = "{HOME}"\n' for name, secret in secrets.items()
    )
    write_config(one, sources, app="shop:hook", roles='["gateway", "worker"]')
    return one.start()


def send(running: BoathookProcess, keys: Keys, source: str, items: list[Any]) -> RawResponse:
    body = json.dumps(BATCHES[source][1](items)).encode()
    secret = keys.private if source == "sendgrid" else SECRETS[source]
    return send_signed(running, signed_request(source, secret, body, url=f"{HOME}/in/{source}", timestamp=time.time()))


def effects(running: BoathookProcess, type: str) -> list[dict[str, Any]]:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        sql = "select event_key, attempt from shop.effect where handler = %s order by id"
        found = connection.execute(sql, [type]).fetchall()
    assert all(attempt == 1 for _, attempt in found)
    return [json.loads(text) for text, _ in found]


def reached(running: BoathookProcess, type: str, count: int) -> bool:
    return len(effects(running, type)) >= count


def pending_count(running: BoathookProcess) -> int:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        return int(connection.execute("select count(*) from boathook.delivery").fetchone()[0])


def identity(source: str, item: dict[str, Any]) -> Any:
    match source:
        case "sendgrid":
            return item["sg_event_id"]
        case "adyen":
            return item["NotificationRequestItem"]["pspReference"]
        case "gocardless":
            return item["id"]
        case _:
            return item["eventId"]


def test_repeated_items_have_no_second_effect_and_new_ones_have_one(running: BoathookProcess, keys: Keys):
    for source, (item, _, type) in BATCHES.items():
        first = send(running, keys, source, [item(1), item(2), item(3)])
        again = send(running, keys, source, [item(1), item(2), item(3)])
        more = send(running, keys, source, [item(2), item(4), item(1), item(3)])
        assert {first.status, again.status, more.status} == {200}
        until(partial(reached, running, type, 4))
        if source != "adyen":
            assert [one.json["duplicate"] for one in (first, again, more)] == [False, True, False]
        else:
            assert {one.body for one in (first, again, more)} == {b"[accepted]"}
    until(lambda: pending_count(running) == 0)
    for source, (item, _, type) in BATCHES.items():
        found = effects(running, type)
        assert sorted(identity(source, one) for one in found) == sorted(identity(source, item(n)) for n in (1, 2, 3, 4))
        assert all(one.keys() == item(1).keys() for one in found)
    assert running.cli("check").returncode == 0


def test_one_forged_item_rejects_the_batch(running: BoathookProcess, keys: Keys):
    body = json.dumps(BATCHES["adyen"][1]([adyen(1), adyen(2)])).encode()
    signed = signed_request("adyen", SECRETS["adyen"], body, url=f"{HOME}/in/adyen")
    dearer = signed.body.replace(b'"pspReference":"PSP2"', b'"pspReference":"PSP3"')
    assert dearer != signed.body
    forged = type(signed)(signed.method, signed.url, signed.headers, dearer)
    assert send_signed(running, forged).status == 401
    assert pending_count(running) == 0
    assert effects(running, "AUTHORISATION") == []
    assert send_signed(running, signed).status == 200
    until(partial(reached, running, "AUTHORISATION", 2))
