"""The event catalogue compared with the bodies that are really sent, and the list of events since a time."""

import copy
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import jsonschema
import pytest

from boathook_cashdesk import catalogue
from boathook_cashdesk.entities import Action, Entity, event_type
from boathook_cashdesk.receiver import Receiver
from boathook_cashdesk.wire import TYPES, Format
from tests.apps.cashdesk.server import Cabinet, CashdeskServer, Client, wait_until_delivered
from tests.apps.cashdesk.test_wire import everything

FORMATS: tuple[Format, ...] = ("dreamkas", "boathook")
RELEASED = {"1": "aafe7d0c0896aece"}
"""The catalogue of each version. A change that a receiver could notice gets the next version in `events.json`."""


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no other fields than it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    known = {name: closed(part) for name, part in schema.items()}
    return known | {"additionalProperties": False} if "properties" in schema and "type" in schema else known


def type_of(body: dict[str, Any], format: Format) -> str:
    kinds = (
        {name: entity for entity, name in TYPES.items()} if format == "dreamkas" else {kind: kind for kind in Entity}
    )
    return event_type(Entity(kinds[body["type"]]), Action(body["action"]))


def faults(body: dict[str, Any], format: Format, schemas: dict[str, Any]) -> list[str]:
    """Return how a body differs from the catalogue."""
    schema = closed(schemas[type_of(body, format)])
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    return [error.message for error in validator.iter_errors(body)]


async def sell_as_dreamkas(shop: Client) -> None:
    """Request a receipt with every field that Dreamkas' clients have."""
    shift = await shop.shift()
    tags = [{"tag": 1212, "value": 4}, {"tag": 1214, "value": "4"}]
    position = {"name": "course", "type": "SERVICE", "quantity": 1, "price": 500, "priceSum": 500, "tax": "NDS_22"}
    sale = {
        "deviceId": shift["device_id"],
        "externalId": "course-1",
        "type": "SALE",
        "taxMode": "SIMPLE",
        "positions": [position | {"tags": tags}],
        "payments": [{"sum": 500, "type": "CASHLESS"}],
        "attributes": {"email": "anna@shop.example", "phone": "+79990000000"},
        "total": {"priceSum": 500},
    }
    await shop.do("POST", "receipts", sale)


async def send_everything(cabinet: Cabinet, receiver: Receiver) -> tuple[Client, list[dict[str, Any]]]:
    shop = await cabinet.client()
    await shop.webhook(receiver, "/a")
    await everything(shop)
    await sell_as_dreamkas(shop)
    await wait_until_delivered(cabinet, shop.user)
    return shop, [json.loads(body) for body in receiver.bodies["/a"]]


async def read_all(shop: Client, query: str) -> tuple[list[dict[str, Any]], str]:
    """Return the events of all pages, and the time from which to ask the next time."""
    events: list[dict[str, Any]] = []
    after = ""
    while True:
        page = await shop.do("GET", f"events?{query}{after}")
        events += page["data"]
        if page["next"] is None:
            return events, page["until"]
        after = f"&after={page['next']}"


async def test_the_bodies_sent_are_those_of_the_catalogue(cabinet: Cabinet, receiver: Receiver):
    _, sent = await send_everything(cabinet, receiver)
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        document = (await http.get(f"/cabinet/events/{catalogue.VERSION}/openapi.json")).json()
        assert (await http.get("/cabinet/events/0/openapi.json")).status_code == 404
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", catalogue.VERSION)
    schemas = {
        name: operation["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name, operation in document["webhooks"].items()
    }
    assert schemas == catalogue.schemas("dreamkas")
    assert {type_of(body, "dreamkas") for body in sent} >= {event_type(entity, Action.CREATE) for entity in Entity}
    assert [fault for body in sent for fault in faults(body, "dreamkas", schemas)] == []
    stored = cabinet.rows("select name, schemas::text from boathook.event_type where name = 'receipts.CREATE'")
    assert "fiscalDocumentSign" in stored[0][1]


async def test_mutant_a_body_that_differs_is_found(cabinet: Cabinet, receiver: Receiver):
    _, sent = await send_everything(cabinet, receiver)
    schemas = catalogue.schemas("dreamkas")
    for body in sent:
        for field in body["data"]:
            without = copy.deepcopy(body)
            del without["data"][field]
            assert faults(without, "dreamkas", schemas), field
            assert faults(copy.deepcopy(body) | {"data": body["data"] | {field: [[]]}}, "dreamkas", schemas), field
        assert faults(body | {"data": body["data"] | {"surplus": 1}}, "dreamkas", schemas)


@pytest.mark.extended("starts a server with the other format")
async def test_the_bodies_of_the_other_format_are_those_of_the_catalogue(running: CashdeskServer, receiver: Receiver):
    running.set_key("cashdesk", 'format = "boathook"')
    running.start()
    shop, sent = await send_everything(Cabinet(running), receiver)
    schemas = catalogue.schemas("boathook")
    assert {type_of(body, "boathook") for body in sent} >= {event_type(entity, Action.CREATE) for entity in Entity}
    assert [fault for body in sent for fault in faults(body, "boathook", schemas)] == []
    events, _ = await read_all(shop, f"since={shop_start(shop)}")
    assert len(events) == len(sent)


def shop_start(_shop: Client) -> str:
    return (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("format", FORMATS)
def test_each_schema_is_valid(format: Format):
    for schema in catalogue.schemas(format).values():
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft7Validator.check_schema(schema)
    assert len(catalogue.openapi(format)["webhooks"]) == 18


def fingerprint() -> str:
    text = json.dumps({format: catalogue.schemas(format) for format in FORMATS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_changed_catalogue_has_another_version():
    assert RELEASED[catalogue.VERSION] == fingerprint()


def test_mutant_a_changed_catalogue_is_found(monkeypatch: pytest.MonkeyPatch):
    changed = copy.deepcopy(catalogue.FIELDS)
    changed["dreamkas"]["devices"]["properties"]["name"] = {"type": "integer"}
    monkeypatch.setattr(catalogue, "FIELDS", changed)
    assert RELEASED[catalogue.VERSION] != fingerprint()


async def test_a_shop_catches_up_with_what_it_missed(cabinet: Cabinet, receiver: Receiver):
    """The same ids and bodies as the webhooks, also in pages, and nothing of another shop."""
    other = await cabinet.client()
    await other.product()
    shop = await cabinet.client()
    webhook = await shop.webhook(receiver, "/a")
    await everything(shop)
    await shop.do("POST", f"webhooks/{webhook['id']}/test")
    await wait_until_delivered(cabinet, shop.user)
    since = shop_start(shop)
    events, until = await read_all(shop, f"since={since}&limit=3")
    attempts = (await shop.do("GET", f"webhooks/{webhook['id']}/attempts?limit=200"))["data"]
    assert {event["id"] for event in events} == {a["message"] for a in attempts if not a["type"].startswith("test.")}
    received = [body.decode() for body in receiver.bodies["/a"] if json.loads(body)["type"] != "WEBHOOK"]
    raw = (await shop.ask("GET", f"events?since={since}&limit=200")).text
    assert all(f'"body":{body}' in raw for body in received)
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert len(events) == len(received)
    products, _ = await read_all(shop, f"since={since}&types=products,devices")
    assert {event["type"].partition(".")[0] for event in products} == {"products", "devices"}
    assert (await read_all(shop, f"since={datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}"))[0] == []
    assert datetime.fromisoformat(until) < datetime.now(UTC) - timedelta(minutes=1)
    again, _ = await read_all(shop, f"since={until.replace('+', '%2B')}")
    assert {event["id"] for event in again} <= {event["id"] for event in events}


async def test_a_shop_without_events_or_with_a_deleted_application_gets_none(cabinet: Cabinet):
    shop = await cabinet.client()
    assert (await read_all(shop, f"since={shop_start(shop)}"))[0] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "since"), ("since=yesterday", "since"), ("since=2027-01-31T12:00:00", "since"),
        ("since=2001-01-31T12:00:00Z", "since"), ("since=now&types=", "since"),
        ("since={now}&types=produkts", "types"), ("since={now}&types=", "types"), ("since={now}&after=5", "after"),
        ("since={now}&limit=x", "limit"),
    ],
)  # fmt: skip
async def test_a_wrong_query_is_400_with_the_name_of_the_field(cabinet: Cabinet, query: str, field: str):
    shop = await cabinet.client()
    answer = await shop.ask("GET", "events?" + query.format(now=shop_start(shop)))
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


async def test_messages_are_in_the_language_of_the_client_or_the_user(cabinet: Cabinet):
    shop = await cabinet.client()
    headers = {"authorization": f"Bearer {shop.token}", "accept-language": "ru-RU,ru;q=0.9"}
    async with httpx.AsyncClient(base_url=cabinet.running.base, headers=headers) as http:
        for path, body, message in [
            ("devices", {"serial": "A", "model": "M"}, "name: заполните это поле"),
            ("products", {"name": "a\x00", "price": 1}, "name: управляющие символы недопустимы"),
            ("products", {"name": "tea", "price": -1}, "price: значение должно быть не меньше 0"),
            ("webhooks", {"url": "https://a.example/", "types": {"deviceRegistrations": True}},
             "types.deviceRegistrations: таких событий здесь нет; уберите поле или напишите false"),
        ]:  # fmt: skip
            assert (await http.post(f"/cabinet/api/{path}", json=body)).json()["error"]["message"] == message
        assert "Среди ваших объектов products" in (await http.get("/cabinet/api/products/99")).text
        page = await http.get("/cabinet/sign-in")
    assert ('<html lang="ru">' in page.text, "Личный кабинет" in page.text) == (True, True)
