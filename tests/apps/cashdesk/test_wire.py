"""The format of the cabinet's webhooks and API, compared with the corpus of Dreamkas' documented requests."""

import json
from typing import Any

import pytest

from boathook_cashdesk.entities import Action, Entity
from boathook_cashdesk.forms import ReceiptForm, read
from boathook_cashdesk.receiver import Receiver
from boathook_cashdesk.simulator import Change, read_change
from boathook_cashdesk.wire import TEST_TYPE, TYPES, change_body
from boathook_pages import InvalidForm
from tests import reality
from tests.apps.cashdesk.server import Cabinet, CashdeskServer, Client, wait_until_delivered
from tests.reality.producers import ADDITIONS
from tests.support import eventually

CORPUS = reality.examples("dreamkas")
BODIES = {name: json.loads(body) for name, body in CORPUS.items() if b'"action"' in body}
URL = "https://shop.example/hooks"


def test_types_are_those_of_the_corpus():
    assert set(TYPES.values()) == {body["type"] for body in BODIES.values()}
    assert {body["action"] for body in BODIES.values()} <= set(Action)


async def everything(shop: Client) -> None:
    """Change objects of every kind, with each of their values."""
    product = await shop.do(
        "POST", "products", {"name": "tea", "price": 35_000, "vat": "20", "barcode": "4600000000015"}
    )
    shift = await shop.shift()
    for kind in ("deposit", "withdrawal"):
        await shop.do("POST", "encashments", {"shift_id": shift["id"], "kind": kind, "amount": 5})
    items = [{"product_id": product["id"], "quantity": 2}]
    for number, (kind, payment, quantity) in enumerate(
        (("sale", "card", 2), ("refund", "cash", 2), ("sale", "cash", 40))
    ):
        items = [{"product_id": product["id"], "quantity": quantity}]
        sale = {"shift_id": shift["id"], "items": items, "kind": kind, "payment": payment, "external_id": f"o-{number}"}
        await shop.do("POST", "receipts", sale)

    async def are_fiscalised() -> bool:
        return all(row["state"] != "PENDING" for row in (await shop.do("GET", "operations"))["data"])

    await eventually(are_fiscalised)
    await shop.do("POST", f"shifts/{shift['id']}/close")
    await shop.do("PATCH", f"devices/{shift['device_id']}", {"name": "Till 1"})
    await shop.do("DELETE", f"products/{product['id']}")


async def test_bodies_are_as_documented(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    webhook = await shop.webhook(receiver, "/a")
    await everything(shop)
    await shop.do("POST", f"webhooks/{webhook['id']}/test")
    await wait_until_delivered(cabinet, shop.user)
    bodies = receiver.bodies["/a"]
    assert reality.undocumented("dreamkas", bodies) == ADDITIONS
    sent = [json.loads(body) for body in bodies]
    assert all(list(body) == ["action", "type", "data"] for body in sent)
    assert {body["type"] for body in sent} == {*TYPES.values(), TEST_TYPE}
    assert {body["action"] for body in sent} == {*Action, "TEST"}
    for field in ("type", "status"):
        documented = {body["data"][field] for body in BODIES.values() if field in body["data"]}
        assert {body["data"][field] for body in sent if field in body["data"]} <= documented


async def test_a_sale_is_reported_as_documented(cabinet: Cabinet, receiver: Receiver):
    """What the receivers of the corpus read: money in kopecks, thousandths, texts of numbers, times in UTC."""
    shop = await cabinet.client()
    await shop.webhook(receiver, "/a")
    product = await shop.do("POST", "products", {"name": "tea", "price": 35_000, "vat": "20"})
    shift = await shop.shift()
    items = [{"product_id": product["id"], "quantity": 2}]
    sale = {"shift_id": shift["id"], "items": items, "payment": "card", "external_id": "order-1007"}
    await shop.do("POST", "receipts", sale)
    await wait_until_delivered(cabinet, shop.user)
    receipt = only(receiver, "RECEIPT", "UPDATE")
    assert receipt["payments"] == [{"type": "CASHLESS", "amount": 70_000}]
    position = {"name": "tea", "type": "COUNTABLE", "quantity": 2_000, "price": 35_000, "tax": "NDS_20"}
    assert receipt["positions"] == [{"id": product["id"], **position}]
    assert (receipt["type"], receipt["amount"], receipt["shiftId"]) == ("SALE", 70_000, shift["id"])
    assert (receipt["deviceId"], receipt["cashier"]) == (shift["device_id"], {"name": "Anna"})
    assert (receipt["fiscalDocumentNumber"], len(receipt["fiscalDocumentSign"])) == ("1", 10)
    operation = only(receiver, "OPERATION", "UPDATE")
    assert (operation["externalId"], operation["status"]) == ("order-1007", "SUCCESS")
    assert operation["data"] == {"receiptId": receipt["id"]}
    example = BODIES["operation_update.json"]["data"]
    assert len(operation["completedAt"]) == len(example["completedAt"])
    assert operation["completedAt"].endswith("Z")


async def test_a_failed_receipt_is_reported_by_its_operation(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    await shop.webhook(receiver, "/a")
    await shop.sale(price=600_000)
    await wait_until_delivered(cabinet, shop.user)
    operation = only(receiver, "OPERATION", "UPDATE")
    assert (operation["status"], operation["data"]["error"]["code"]) == ("ERROR", "TOTAL_TOO_LARGE")
    assert only(receiver, "RECEIPT", "UPDATE")["fiscalDocumentSign"] is None


def only(receiver: Receiver, type: str, action: str) -> Any:
    """Return the data of the only body of a type and an action."""
    sent = [json.loads(body) for body in receiver.bodies["/a"]]
    [data] = [body["data"] for body in sent if (body["type"], body["action"]) == (type, action)]
    return data


@pytest.mark.parametrize("name", ["webhook_fields_request.json", "webhook_request.json"])
async def test_webhooks_are_created_as_documented(cabinet: Cabinet, name: str):
    shop, asked = await cabinet.client(), json.loads(CORPUS[name])
    answer = await shop.ask("POST", "webhooks", asked)
    fields = asked.get("fields", asked)
    made = answer.json()
    assert (answer.status_code, made["url"], made["isActive"]) == (201, URL, True)
    assert made["types"].items() <= fields["types"].items()
    assert json.loads(CORPUS["webhook_created.json"]).keys() <= made.keys()


async def test_a_webhook_of_each_form_gets_the_change(cabinet: Cabinet, receiver: Receiver):
    """The documented form, the same without ``fields``, and that of earlier versions."""
    shop, types = await cabinet.client(), {"products": True}
    forms: list[Any] = [
        {"fields": {"url": f"{receiver.base}/fields", "types": types, "isActive": True}},
        {"url": f"{receiver.base}/plain", "types": types, "isActive": True},
        {"url": f"{receiver.base}/earlier", "types": types, "active": True},
    ]
    for form in forms:
        made = await shop.do("POST", "webhooks", form)
        secret = await shop.do("GET", f"webhooks/{made['id']}/secret")
        receiver.secrets[made["url"].removeprefix(receiver.base)] = secret["secret"]
    tea = await shop.do("POST", "products", {"name": "Чай", "price": 35_000, "vat": "20"})
    await wait_until_delivered(cabinet, shop.user)
    assert receiver.bodies.keys() == {"/fields", "/plain", "/earlier"}
    for [body] in receiver.bodies.values():
        sent = json.loads(body)
        assert (sent["action"], sent["type"], sent["data"]["id"]) == ("CREATE", "PRODUCT", tea["id"])
        assert (sent["data"]["name"], sent["data"]["price"]) == ("Чай", 35_000)


async def test_types_are_accepted_as_printed(cabinet: Cabinet):
    shop = await cabinet.client()
    printed = CORPUS["types_printed.txt"].decode()
    types = json.loads(printed.replace("},\n}", "}\n}"))["types"]
    made = await shop.do("POST", "webhooks", {"url": URL, "types": types, "isActive": True})
    assert made["types"] == types


async def test_webhooks_are_changed_within_fields(cabinet: Cabinet):
    shop = await cabinet.client()
    made = await shop.do("POST", "webhooks", {"url": URL, "types": {"products": True}})
    path = f"webhooks/{made['id']}"
    patched = await shop.do("PATCH", path, {"fields": {"isActive": False}})
    assert (patched["isActive"], patched["sending"], patched["types"]) == (False, False, made["types"])
    assert (await shop.do("PATCH", path, {"fields": {"types": {"shifts": True}}}))["isActive"] is False
    assert (await shop.do("PATCH", path, {"active": True}))["isActive"] is True
    put = await shop.do("PUT", path, {"fields": {"url": URL, "types": {"shifts": True}, "isActive": False}})
    assert (put["isActive"], put["types"]["products"]) == (False, False)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"fields": {"url": URL, "types": {"produkts": True}}}, "fields.types.produkts"),
        ({"fields": {"url": URL, "types": {}, "isActive": "yes"}}, "fields.isActive"),
        ({"fields": {"url": URL, "types": {}}, "url": URL}, "fields"),
        ({"fields": [URL]}, "fields"),
        ({"url": URL, "types": {"deviceRegistrations": True}}, "types.deviceRegistrations"),
        ({"url": URL, "types": {}, "isActive": True, "active": False}, "active"),
    ],
)
async def test_an_invalid_field_is_named_with_its_place(cabinet: Cabinet, body: Any, field: str):
    answer = await (await cabinet.client()).ask("POST", "webhooks", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_body_of_either_format_reports_its_change():
    state = {"id": 4, "name": "Till 1", "revision": 2}
    for format in ("dreamkas", "boathook"):
        body = change_body(format, Entity.DEVICES, Action.UPDATE, state, {})
        assert read_change(json.loads(json.dumps(body))) == Change(Entity.DEVICES, Action.UPDATE, 4, 2)


async def test_the_earlier_format_is_a_setting(running: CashdeskServer):
    running.set_key("cashdesk", 'format = "boathook"')
    cabinet = Cabinet(running.start())
    async with Receiver().open() as receiver:
        shop = await cabinet.client()
        await shop.webhook(receiver, "/a")
        tea = await shop.product("tea", 100)
        await wait_until_delivered(cabinet, shop.user)
        [body] = [json.loads(body) for body in receiver.bodies["/a"]]
    assert list(body) == ["id", "type", "action", "at", "object"]
    assert (body["type"], body["action"], body["object"]) == ("products", "CREATE", tea)
    assert running.stop() == 0


async def test_a_receipt_is_requested_as_dreamkas_clients_do(cabinet: Cabinet):
    shop = await cabinet.client()
    shift = await shop.shift()
    request = json.loads(CORPUS["receipt_request.json"]) | {"deviceId": shift["device_id"]}
    made = await shop.do("POST", "receipts", request)
    receipt = made["receipt"]
    assert {name: receipt[name] for name in ("shift_id", "kind", "payment", "total", "external_id")} == {
        "shift_id": shift["id"], "kind": "sale", "payment": "card", "total": 70_000, "external_id": "order-1007",
    }  # fmt: skip
    line = {"product_id": None, "name": "Чай чёрный", "price": 35_000, "quantity": 2, "vat": "20"}
    assert receipt["items"] == [line]

    async def is_fiscalised() -> bool:
        return (await shop.do("GET", f"receipts/{receipt['id']}"))["state"] == "DONE"

    await eventually(is_fiscalised)
    await shop.do("POST", f"shifts/{shift['id']}/close")
    assert (await shop.do("POST", "receipts", request))["receipt"]["id"] == receipt["id"], "it is known by its id"
    other = await shop.ask("POST", "receipts", request | {"externalId": "order-1008"})
    assert (other.status_code, "no shift is open" in other.text) == (409, True)
    unknown = await shop.ask("POST", "receipts", request | {"externalId": "order-1009", "deviceId": 10**9})
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (400, "device_id")
    neither = await shop.ask("POST", "receipts", {"items": [{"name": "tea", "price": 1, "quantity": 1}]})
    assert (neither.status_code, neither.json()["error"]["field"]) == (400, "shift_id")


async def test_the_fields_of_54_fz_reach_the_receipt(cabinet: Cabinet):
    shop = await cabinet.client()
    shift = await shop.shift()
    request = json.loads(CORPUS["receipt_request_tags.json"]) | {"deviceId": shift["device_id"]}
    receipt = (await shop.do("POST", "receipts", request))["receipt"]
    assert (receipt["tax_mode"], receipt["email"], receipt["phone"]) == ("SIMPLE", "vera@example.com", "+70000000000")
    [item] = receipt["items"]
    assert (item["vat"], item["tags"]) == ("22", [{"tag": 1212, "value": 4}, {"tag": 1214, "value": 4}])
    again = (await shop.do("POST", "receipts", request))["receipt"]
    assert again["id"] == receipt["id"]


REQUEST = json.loads(CORPUS["receipt_request.json"])
POSITION = REQUEST["positions"][0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"positions": [POSITION | {"priceSum": 69_999}]}, "positions.0.priceSum"),
        ({"positions": [POSITION | {"quantity": 1.5}]}, "positions.0.quantity"),
        ({"positions": [POSITION | {"type": "SCALABLE"}]}, "positions.0.type"),
        ({"positions": [POSITION | {"tax": "NDS_18"}]}, "positions.0.tax"),
        ({"positions": []}, "positions"),
        ({"total": {"priceSum": 1}}, "total.priceSum"),
        ({"payments": [{"sum": 1, "type": "CASH"}]}, "payments.0.sum"),
        ({"payments": [{"sum": 70_000, "type": "CREDIT"}]}, "payments.0.type"),
        ({"payments": REQUEST["payments"] * 2}, "payments"),
        ({"type": "OUTFLOW"}, "type"),
        ({"deviceId": "329"}, "deviceId"),
        ({"buyer": "Anna"}, "buyer"),
    ],
)
def test_an_error_in_a_request_of_dreamkas_names_its_field(changes: dict[str, Any], field: str):
    for document in (REQUEST | changes, json.dumps(REQUEST | changes).encode()):
        with pytest.raises(InvalidForm) as caught:
            read(ReceiptForm, document)
        assert caught.value.field == field
