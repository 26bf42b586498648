"""The cabinet's API: who may do what, with every object and every webhook, and what bad requests are answered."""

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from boathook_cashdesk.app import webhooks
from boathook_cashdesk.entities import Entity
from boathook_cashdesk.receiver import Receiver
from tests.apps.cashdesk.server import ALL, NONE, Cabinet, Client, wait_until_delivered
from tests.support import eventually

MILLISECOND = timedelta(milliseconds=1)
URL = "https://shop.example/hooks"


def database_time(cabinet: Cabinet) -> datetime:
    [(now,)] = cabinet.rows("select clock_timestamp()")
    return now


class UserObjects:
    """Something of every kind, owned by one user."""

    def __init__(self, shop: Client) -> None:
        self.shop = shop
        self.ids: dict[str, int] = {}
        self.delivery = ""

    async def build(self, receiver: Receiver) -> "UserObjects":
        shop = self.shop
        webhook = await shop.webhook(receiver, f"/{uuid4().hex}", {Entity.PRODUCTS: True})
        product, shift = await shop.product(), await shop.shift()
        cash = await shop.do("POST", "encashments", {"shift_id": shift["id"], "kind": "deposit", "amount": 1})
        items = [{"product_id": product["id"], "quantity": 1}]
        sale = await shop.do("POST", "receipts", {"shift_id": shift["id"], "items": items})
        self.ids = {
            "products": product["id"],
            "devices": shift["device_id"],
            "shifts": shift["id"],
            "encashments": cash["id"],
            "receipts": sale["receipt"]["id"],
            "operations": sale["operation"]["id"],
            "webhooks": webhook["id"],
        }

        async def look() -> Any:
            return (await shop.do("GET", f"webhooks/{webhook['id']}/deliveries"))["data"]

        owed: Any = await eventually(look)
        self.delivery = owed[0]["id"]
        return self


CHANGES: dict[str, Any] = {
    "products": {"name": "stolen", "price": 1},
    "devices": {"serial": "stolen", "model": "M", "name": "D"},
    "shifts": {"cashier": "thief"},
    "encashments": {"amount": 1, "comment": "stolen"},
    "webhooks": {"url": URL, "types": {"products": True}},
}


def requests_about(objects: UserObjects) -> list[tuple[str, str, Any]]:
    """Every request that names an object of the estate, deletions last."""
    ids = objects.ids
    asked: list[tuple[str, str, Any]] = [("GET", f"{kind}/{id}", None) for kind, id in ids.items()]
    asked += [(method, f"{kind}/{ids[kind]}", body) for kind, body in CHANGES.items() for method in ("PUT", "PATCH")]
    webhook = f"webhooks/{ids['webhooks']}"
    asked += [("GET", f"{webhook}/{what}", None) for what in ("secret", "attempts", "deliveries")]
    asked += [
        ("GET", f"{webhook}/deliveries/{objects.delivery}", None),
        ("POST", f"{webhook}/replay", {"delivery": objects.delivery}),
        ("POST", f"{webhook}/test", None),
        ("POST", f"shifts/{ids['shifts']}/close", None),
    ]
    return asked + [("DELETE", f"{kind}/{id}", None) for kind, id in ids.items()]


@pytest.fixture
async def both_users(cabinet: Cabinet, receiver: Receiver) -> tuple[UserObjects, UserObjects]:
    """Two users' estates."""
    first, second = await cabinet.client("first"), await cabinet.client("second")
    return await UserObjects(first).build(receiver), await UserObjects(second).build(receiver)


async def test_another_users_objects_are_404_everywhere(cabinet: Cabinet, both_users: tuple[UserObjects, UserObjects]):
    """The owner gets another status for each of these requests, so that 404 is meaningful."""
    mine, theirs = both_users
    await wait_until_delivered(cabinet, mine.shop.user)
    await wait_until_delivered(cabinet, theirs.shop.user)
    before = cabinet.payloads(theirs.shop.user)
    for method, path, body in requests_about(theirs):
        answer = await mine.shop.ask(method, path, body)
        assert answer.status_code == 404, f"{method} {path}: {answer.status_code} {answer.text}"
    assert cabinet.payloads(theirs.shop.user) == before
    for method, path, body in requests_about(theirs):
        answer = await theirs.shop.ask(method, path, body)
        assert answer.status_code not in {400, 401, 404, 405}, f"{method} {path}: {answer.status_code} {answer.text}"


async def test_a_delivery_of_anothers_webhook_is_404_under_ones_own(both_users: tuple[UserObjects, UserObjects]):
    mine, theirs = both_users
    webhook = f"webhooks/{mine.ids['webhooks']}"
    for method, path, body in [
        ("GET", f"{webhook}/deliveries/{theirs.delivery}", None),
        ("POST", f"{webhook}/replay", {"delivery": theirs.delivery}),
    ]:
        assert (await mine.shop.ask(method, path, body)).status_code == 404
    assert (await mine.shop.ask("GET", f"{webhook}/deliveries/{mine.delivery}")).status_code == 200


async def test_another_users_objects_cannot_be_pointed_at(
    cabinet: Cabinet, both_users: tuple[UserObjects, UserObjects]
):
    mine, theirs = both_users
    items = [{"product_id": mine.ids["products"], "quantity": 1}]
    stolen = [{"product_id": theirs.ids["products"], "quantity": 1}]
    for path, body, field in [
        ("shifts", {"device_id": theirs.ids["devices"], "cashier": "x"}, "device_id"),
        ("encashments", {"shift_id": theirs.ids["shifts"], "kind": "deposit", "amount": 1}, "shift_id"),
        ("receipts", {"shift_id": theirs.ids["shifts"], "items": items}, "shift_id"),
        ("receipts", {"shift_id": mine.ids["shifts"], "items": stolen}, "items.0.product_id"),
    ]:
        answer = await mine.shop.ask("POST", path, body)
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


async def test_lists_hold_ones_own_only(both_users: tuple[UserObjects, UserObjects]):
    mine, _ = both_users
    for kind, id in mine.ids.items():
        rows = (await mine.shop.do("GET", kind))["data"]
        assert [row["id"] for row in rows] == [id]


async def test_events_go_only_to_the_clients_own_webhooks(cabinet: Cabinet, receiver: Receiver):
    first, second = await cabinet.client(), await cabinet.client()
    await first.webhook(receiver, "/first")
    await second.webhook(receiver, "/second")
    await first.product()
    await wait_until_delivered(cabinet, first.user)
    assert (receiver.heard["/first"].total(), receiver.requests["/second"]) == (1, 0)


@pytest.mark.parametrize("token", ["", "cdk_wrong", "bhk_x", "é", "x" * 10_000])
async def test_without_a_valid_token_the_api_answers_401(cabinet: Cabinet, token: str):
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        for path in ("me", "webhooks", "webhooks/1", "products", "products/1"):
            headers = {"authorization": f"Bearer {token}".strip().encode()[:8_000]}
            answer = await http.get(f"/cabinet/api/{path}", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "unknown_token"


async def test_tokens_are_kept_as_hashes_only(cabinet: Cabinet):
    shop = await cabinet.client()
    assert cabinet.rows("select 1 from cashdesk.users u where u::text like %s", f"%{shop.token[4:]}%") == []
    assert shop.token not in cabinet.running.log()


class TestWebhooks:
    async def test_are_made_read_changed_and_deleted(self, cabinet: Cabinet):
        shop = await cabinet.client()
        made = await shop.do("POST", "webhooks", {"url": URL, "types": {"products": True, "receipts": False}})
        assert made["types"] == {entity: entity == "products" for entity in Entity}
        assert (made["url"], made["isActive"], made["sending"]) == (URL, True, True)
        path = f"webhooks/{made['id']}"
        assert await shop.do("GET", path) == made
        patched = await shop.do("PATCH", path, {"types": {"shifts": True}})
        assert patched["types"] == NONE | {"products": True, "shifts": True}
        put = await shop.do("PUT", path, {"url": f"{URL}/2", "types": {"devices": True}, "active": False})
        assert (put["url"], put["types"], put["active"]) == (f"{URL}/2", NONE | {"devices": True}, False)
        assert put["sending"] is False
        assert (await shop.do("GET", "webhooks"))["data"] == [put]
        await shop.do("DELETE", path)
        assert (await shop.ask("GET", path)).status_code == 404
        assert (await shop.ask("DELETE", path)).status_code == 404

    @pytest.mark.parametrize("mask", [0, 1, 2, 4, 8, 16, 32, 21, 42, 62, 63])
    async def test_types_are_kept_as_a_bit_mask(self, cabinet: Cabinet, mask: int):
        shop = await cabinet.client()
        made = await shop.do("POST", "webhooks", {"url": URL, "types": webhooks.types_of(mask)})
        assert cabinet.rows("select types from cashdesk.webhooks where id = %s", made["id"]) == [(mask,)]
        assert made["types"] == webhooks.types_of(mask)
        assert made["sending"] is (mask != 0)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"types": {"produkts": True}}, "types.produkts"),
            ({"types": {"products": 1}}, "types.products"),
            ({"types": 63}, "types"),
            ({"active": "yes"}, "active"),
            ({"aktive": True}, "aktive"),
            ({"url": ""}, "url"),
            ({"url": None}, "url"),
            ({"url": "shop.example"}, "url"),
            ({"url": "ftp://shop.example/"}, "url"),
            ({"url": "http://169.254.169.254/latest/meta-data"}, "url"),
            ({"url": "http://10.1.2.3/"}, "url"),
            ({"url": "https://user:pw@shop.example/"}, "url"),
        ],
    )
    async def test_an_invalid_field_is_400_with_its_name(self, cabinet: Cabinet, change: Any, field: str):
        shop = await cabinet.client()
        whole = {"url": URL, "types": {}} | change
        made = await shop.do("POST", "webhooks", {"url": URL, "types": {}})
        for method, path, body in [
            ("POST", "webhooks", whole),
            ("PUT", f"webhooks/{made['id']}", whole),
            ("PATCH", f"webhooks/{made['id']}", change),
        ]:
            answer = await shop.ask(method, path, body)
            assert (answer.status_code, answer.json()["error"].get("field")) == (400, field), answer.text
        assert await shop.do("GET", "webhooks") == {"data": [made]}

    async def test_are_so_many_and_no_more_also_at_once(self, cabinet: Cabinet):
        shop = await cabinet.client()
        answers = await asyncio.gather(*(shop.ask("POST", "webhooks", {"url": URL, "types": {}}) for _ in range(12)))
        assert sorted(answer.status_code for answer in answers) == [201] * 5 + [409] * 7
        assert {answer.json()["error"]["code"] for answer in answers if answer.status_code == 409} == {"limit_reached"}
        first = (await shop.do("GET", "webhooks"))["data"][0]
        await shop.do("DELETE", f"webhooks/{first['id']}")
        await shop.do("POST", "webhooks", {"url": URL, "types": {}})

    async def test_changes_at_once_lose_nothing(self, cabinet: Cabinet):
        shop = await cabinet.client()
        made = await shop.do("POST", "webhooks", {"url": URL, "types": {}})
        await asyncio.gather(
            *(shop.do("PATCH", f"webhooks/{made['id']}", {"types": {entity: True}}) for entity in Entity)
        )
        assert (await shop.do("GET", f"webhooks/{made['id']}"))["types"] == ALL

    async def test_a_test_goes_to_this_webhook_only(self, cabinet: Cabinet, receiver: Receiver):
        shop = await cabinet.client()
        one, _ = await shop.webhook(receiver, "/one", {Entity.SHIFTS: True}), await shop.webhook(receiver, "/two")
        await shop.do("POST", f"webhooks/{one['id']}/test")
        await wait_until_delivered(cabinet, shop.user)
        assert (receiver.tests["/one"], receiver.requests["/two"]) == (1, 0)
        await shop.do("PATCH", f"webhooks/{one['id']}", {"active": False})
        assert (await shop.ask("POST", f"webhooks/{one['id']}/test")).status_code == 409

    async def test_show_the_request_and_the_response(self, cabinet: Cabinet):
        async with Receiver(lambda _path, number: 418 if number == 1 else 204).open() as receiver:
            shop = await cabinet.client()
            webhook = await shop.webhook(receiver, "/a")
            before = database_time(cabinet)
            await shop.product()

            async def look() -> Any:
                return (await shop.do("GET", f"webhooks/{webhook['id']}/attempts"))["data"]

            attempts: Any = await eventually(look)
        (attempt,) = attempts
        assert (attempt["status"], attempt["success"], attempt["type"]) == (418, False, "products.CREATE")
        assert attempt["url"] == f"{receiver.base}/a"
        started_at = datetime.fromisoformat(attempt["started_at"])
        assert before - MILLISECOND <= started_at <= database_time(cabinet)
        (delivery,) = (await shop.do("GET", f"webhooks/{webhook['id']}/deliveries"))["data"]
        (shown,) = (await shop.do("GET", f"webhooks/{webhook['id']}/deliveries/{delivery['id']}"))["tries"]
        assert timedelta(0) <= datetime.fromisoformat(shown["started_at"]) - started_at < MILLISECOND

    async def test_secrets_are_each_their_own(self, cabinet: Cabinet):
        shop = await cabinet.client()
        made = [await shop.do("POST", "webhooks", {"url": URL, "types": {}}) for _ in range(2)]
        told = {(await shop.do("GET", f"webhooks/{one['id']}/secret"))["secret"] for one in made}
        assert len(told) == 2
        assert all(secret.startswith("whsec_") for secret in told)
        assert not any("secret" in one for one in made)


class TestObjects:
    async def test_an_id_larger_than_any_is_unknown(self, cabinet: Cabinet):
        shop = await cabinet.client()
        answer = await shop.ask("PUT", "devices/9999999999999999999", {"serial": "A1", "model": "M", "name": "D"})
        assert answer.status_code == 404

    async def test_devices_have_a_serial_number_of_their_own(self, cabinet: Cabinet):
        shop, other = await cabinet.client(), await cabinet.client()
        body = {"serial": "A1", "model": "M", "name": "D"}
        await shop.do("POST", "devices", body)
        assert (await shop.ask("POST", "devices", body)).status_code == 409
        second = await shop.do("POST", "devices", body | {"serial": "A2"})
        assert (await shop.ask("PATCH", f"devices/{second['id']}", {"serial": "A1"})).status_code == 409
        await other.do("POST", "devices", body)

    async def test_a_device_has_one_open_shift(self, cabinet: Cabinet):
        shop = await cabinet.client()
        shift = await shop.shift()
        body = {"device_id": shift["device_id"], "cashier": "Boris"}
        assert (await shop.ask("POST", "shifts", body)).status_code == 409
        assert (await shop.ask("DELETE", f"devices/{shift['device_id']}")).status_code == 409
        await shop.do("POST", f"shifts/{shift['id']}/close")
        again = await shop.do("POST", "shifts", body)
        answers = await asyncio.gather(*(shop.ask("POST", f"shifts/{again['id']}/close") for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]

    async def test_a_closed_shift_stays_as_it_is(self, cabinet: Cabinet):
        shop = await cabinet.client()
        shift, product = await shop.shift(), await shop.product()
        cash = await shop.do("POST", "encashments", {"shift_id": shift["id"], "kind": "withdrawal", "amount": 7})
        assert (await shop.ask("DELETE", f"shifts/{shift['id']}")).status_code == 409
        await shop.do("POST", f"shifts/{shift['id']}/close")
        items = [{"product_id": product["id"], "quantity": 1}]
        for method, path, body in [
            ("PATCH", f"shifts/{shift['id']}", {"cashier": "x"}),
            ("DELETE", f"shifts/{shift['id']}", None),
            ("PATCH", f"encashments/{cash['id']}", {"amount": 1}),
            ("DELETE", f"encashments/{cash['id']}", None),
            ("POST", "encashments", {"shift_id": shift["id"], "kind": "deposit", "amount": 1}),
            ("POST", "receipts", {"shift_id": shift["id"], "items": items}),
        ]:
            assert (await shop.ask(method, path, body)).status_code == 409, f"{method} {path}"

    async def test_pages_of_a_list_follow_one_another(self, cabinet: Cabinet):
        shop = await cabinet.client()
        made = [(await shop.product(f"p{number}"))["id"] for number in range(5)]
        first = (await shop.do("GET", "products?limit=2"))["data"]
        rest = (await shop.do("GET", f"products?after={first[-1]['id']}"))["data"]
        assert [row["id"] for row in first + rest] == made
        for query in ("limit=x", "limit=-1", "after=9999999999999999999999", "limit=1000"):
            assert (await shop.ask("GET", f"products?{query}")).status_code == 400

    async def test_concurrent_changes_have_their_own_revisions(self, cabinet: Cabinet):
        shop = await cabinet.client()
        tea = await shop.product()
        await asyncio.gather(*(shop.do("PATCH", f"products/{tea['id']}", {"price": price}) for price in range(1, 11)))
        told = [payload["data"]["revision"] for payload in cabinet.payloads(shop.user)]
        assert sorted(told) == list(range(1, 12))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "products", b"", 400),
        ("POST", "products", b"{", 400),
        ("POST", "products", b"[]", 400),
        ("POST", "products", b"\xff\xfe", 400),
        ("POST", "products", b"[" * 50_000, 400),
        ("POST", "products", b'{"name": "a\\u0000", "price": 1}', 400),
        ("POST", "products", b'{"name": "\\ud800", "price": 1}', 400),
        ("POST", "products", b'{"name": "a", "price": 1e400}', 400),
        ("POST", "products", b'{"name": "a", "price": NaN}', 400),
        ("POST", "products", b'{"name": "a", "price": 99999999999999999999}', 400),
        ("POST", "products", b'{"name": "' + b"x" * 300_000 + b'"}', 413),
        ("PATCH", "products/1", b"[]", 404),
        ("GET", "products/99999999999999999999999999", b"", 404),
        ("GET", "webhooks/99999999999999999999999999", b"", 404),
        ("DELETE", "webhooks/9223372036854775808", b"", 404),
        ("GET", "products/x", b"", 404),
        ("GET", "nothing", b"", 404),
        ("PUT", "receipts/1", b"{}", 405),
        ("POST", "operations", b"{}", 405),
        ("DELETE", "webhooks", b"", 405),
        ("GET", "webhooks/1/deliveries?state=x", b"", 400),
    ],
)
async def test_bad_requests_are_answered_4xx_as_json(
    cabinet: Cabinet, method: str, path: str, body: bytes, status: int
):
    shop = await cabinet.client()
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        headers = {"authorization": f"Bearer {shop.token}"}
        answer = await http.request(method, f"/cabinet/api/{path}", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


async def test_an_unknown_delivery_is_404(cabinet: Cabinet):
    shop = await cabinet.client()
    made = await shop.do("POST", "webhooks", {"url": URL, "types": {}})
    nul = await shop.ask("GET", f"webhooks/{made['id']}/deliveries/%00")
    assert nul.status_code == 400, "no mount gets a path with NUL"
    for name in ("x", "dlv_x", "dlv_01h455vb4pex5vsknk084sn02q4_0"):
        assert (await shop.ask("GET", f"webhooks/{made['id']}/deliveries/{name}")).status_code == 404
        assert (await shop.ask("POST", f"webhooks/{made['id']}/replay", {"delivery": "dlv_x"})).status_code == 404


async def test_the_log_contains_no_secrets(cabinet: Cabinet):
    shop = await cabinet.client()
    made = await shop.do("POST", "webhooks", {"url": URL, "types": {}})
    secret = (await shop.do("GET", f"webhooks/{made['id']}/secret"))["secret"]
    log = cabinet.running.log()
    assert secret not in log
    assert shop.token not in log
    assert "Traceback" not in log
    assert json.loads(log.splitlines()[-1])


async def test_the_commands_list_users_and_webhooks(cabinet: Cabinet):
    added = json.loads(cabinet.running.cli("cashdesk", "users", "add", "Tea & <b>Co</b>", "--json").stdout)
    shop = Client(cabinet.running.base, None, added["token"])
    made = await shop.do("POST", "webhooks", {"url": URL, "types": {"devices": True}})
    users = {row["id"]: row for row in cabinet.running.listing("cashdesk", "users", "list")}
    assert (users[added["id"]]["name"], users[added["id"]]["webhooks"]) == ("Tea & <b>Co</b>", 1)
    webhooks = {row["id"]: row for row in cabinet.running.listing("cashdesk", "webhooks", "list")}
    assert webhooks[made["id"]]["types"] == NONE | {"devices": True}
    assert webhooks[made["id"]]["user_id"] == added["id"]
    refused = cabinet.running.cli("cashdesk", "users", "add", "", check=False)
    assert refused.returncode != 0
    assert "name:" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.smoke
def test_simulated_shops_get_all_their_webhooks(cabinet: Cabinet):
    done = cabinet.running.cli(
        "cashdesk", "simulate", "--url", cabinet.running.base, "--count", "60", "--shops", "3", "--seed", "11", "--json"
    )
    result = json.loads(done.stdout)
    assert (result["differences"], result["unexpected"], result["sent"]) == ([], 0, 3 * 60)
    assert result["effects"]["webhooks delivered"] > 60
    cabinet.verify()
