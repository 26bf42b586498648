"""Publication, routing and retries of the cabinet's webhooks, on a real server."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from boathook_cashdesk import actions, hook
from boathook_cashdesk.entities import EVENT_TYPES, Action, Entity
from boathook_cashdesk.forms import ProductForm
from boathook_cashdesk.receiver import Receiver
from boathook_cashdesk.simulator import Change
from tests.apps.cashdesk.server import ALL, NONE, Cabinet, CashdeskServer, Client, wait_until_delivered
from tests.support import eventually, sampled

DELAYS = [timedelta(seconds=seconds) for seconds in (5, 60, 3_600, 3 * 3_600, 24 * 3_600)]


@asynccontextmanager
async def receiving(script: Callable[[str, int], int]) -> AsyncIterator[Receiver]:
    async with Receiver(script).open() as receiver:
        yield receiver


class Boom(Exception):
    """What goes wrong in the middle of a business action."""


async def test_publication_is_inside_the_business_transaction(cabinet: Cabinet, receiver: Receiver):
    """A rolled back change is not published; a committed one is."""
    shop = await cabinet.client()
    await shop.webhook(receiver, "/a")
    async with cabinet.bound_app():
        with pytest.raises(Boom):
            await add_and_fail(shop)
        await add(shop, "done")
    await eventually(lambda: receiver.heard["/a"])
    await wait_until_delivered(cabinet, shop.user)
    assert [payload["data"]["name"] for payload in cabinet.payloads(shop.user)] == ["done"]
    assert receiver.heard["/a"].total() == 1


async def add_and_fail(shop: Client) -> None:
    async with hook.transaction() as tx:
        await actions.add(tx, shop.user, Entity.PRODUCTS, ProductForm(name="undone", price=1))
        assert await tx.fetchval("select count(*) from cashdesk.products where user_id = $1", shop.user.id) == 1
        raise Boom


async def test_an_event_published_in_its_own_transaction_survives_a_rollback(cabinet: Cabinet):
    """Mutant: the event of a rolled back change is delivered."""
    shop = await cabinet.client()
    async with cabinet.bound_app():
        with pytest.raises(Boom):
            await publish_apart_and_fail(shop)
    assert [payload["data"]["name"] for payload in cabinet.payloads(shop.user)] == ["undone"]
    assert (await shop.do("GET", "products"))["data"] == []


async def publish_apart_and_fail(shop: Client) -> None:
    async with hook.transaction() as tx:
        await tx.execute(
            "insert into cashdesk.products (user_id, name, price, vat) values ($1, 'undone', 1, '0')", shop.user.id
        )
        async with hook.transaction() as other:
            payload = {"action": "CREATE", "type": "PRODUCT", "data": {"name": "undone"}}
            await hook.publish(other, application=shop.user.application, type="products.CREATE", payload=payload)
        raise Boom


async def test_refused_requests_change_and_publish_nothing(cabinet: Cabinet):
    shop = await cabinet.client()
    await shop.shift()
    known = len(cabinet.payloads(shop.user))
    for path, body in [
        ("products", {"name": "tea", "price": -1}),
        ("receipts", {"shift_id": 1, "items": [{"product_id": 2**40, "quantity": 1}]}),
        ("shifts", {"device_id": 2**40, "cashier": "x"}),
    ]:
        assert (await shop.ask("POST", path, body)).status_code == 400
    assert len(cabinet.payloads(shop.user)) == known


async def test_an_event_has_the_state_at_its_time(cabinet: Cabinet):
    """A receiver that was down gets each change with its own state, not the latest one."""
    is_there = False
    bodies: list[Any] = []

    async with receiving(lambda _path, _number: 204 if is_there else 503) as receiver:
        shop = await cabinet.client()
        webhook = await shop.webhook(receiver, "/a", {Entity.PRODUCTS: True})
        tea = await shop.product("tea", 100)
        for price in (200, 300):
            await shop.do("PATCH", f"products/{tea['id']}", {"price": price})
        await shop.do("DELETE", f"products/{tea['id']}")
        await eventually(lambda: receiver.requests["/a"] >= 1)
        is_there = True
        await hurried(cabinet, shop, lambda: len(receiver.heard["/a"]) == 4)
        for row in (await shop.do("GET", f"webhooks/{webhook['id']}/deliveries?state=succeeded"))["data"]:
            one = await shop.do("GET", f"webhooks/{webhook['id']}/deliveries/{row['id']}")
            bodies.append(json.loads(one["body"]))
    told = sorted((body["data"]["revision"], body["action"], body["data"]["price"]) for body in bodies)
    assert told == [(1, "CREATE", 100), (2, "UPDATE", 200), (3, "DELETE", 300), (3, "UPDATE", 300)]


async def hurried(cabinet: Cabinet, shop: Client, is_done: Callable[[], object], timeout: float = 300) -> None:
    """Wait until *is_done* while all that waits for a retry is made due again and again, breakers included."""

    def look() -> object:
        make_due(cabinet, shop)
        return is_done()

    await eventually(look, timeout=timeout, every=0.2)


def make_due(cabinet: Cabinet, shop: Client) -> None:
    recipients = (
        "select 'endpoint:' || boathook.show_id('ep', e.id) from boathook.endpoint e"
        " join boathook.application a on a.id = e.application_id where a.uid = %s"
    )
    cabinet.rows(
        f"with due as (update boathook.delivery set due_at = now() where state = 'pending' and recipient in ({recipients})"
        " returning 1) select count(*) from due",
        shop.user.application,
    )
    cabinet.rows("select pg_notify('boathook_due', '')")


@pytest.mark.parametrize("wanted", sampled(Entity, keep=2))
async def test_types_choose_the_events(cabinet: Cabinet, receiver: Receiver, wanted: Entity):
    """During a business day each webhook gets all events of its types and no others."""
    shop = await cabinet.client()
    await shop.webhook(receiver, "/one", {wanted: True})
    await shop.webhook(receiver, "/rest", ALL | {wanted: False})
    await shop.webhook(receiver, "/all")
    await shop.webhook(receiver, "/none", NONE)
    await business_day(shop, cabinet)
    await wait_until_delivered(cabinet, shop.user)
    everything = set(receiver.heard["/all"])
    assert {change.entity for change in everything} == set(Entity)
    assert set(receiver.heard["/one"]) == {change for change in everything if change.entity is wanted}
    assert set(receiver.heard["/rest"]) == {change for change in everything if change.entity is not wanted}
    assert receiver.requests["/none"] == 0
    assert receiver.forged.total() == 0


async def business_day(shop: Client, cabinet: Cabinet) -> None:
    """Make everything happen that can: 18 types of events."""
    tea, spare = await shop.product(), await shop.product()
    await shop.do("DELETE", f"products/{spare['id']}")
    shift = await shop.shift()
    unused = await shop.do("POST", "devices", {"serial": "unused", "model": "M", "name": "D"})
    await shop.do("PATCH", f"devices/{unused['id']}", {"name": "E"})
    mistaken = await shop.do("POST", "shifts", {"device_id": unused["id"], "cashier": "Anna"})
    await shop.do("DELETE", f"shifts/{mistaken['id']}")
    await shop.do("DELETE", f"devices/{unused['id']}")
    cash = await shop.do("POST", "encashments", {"shift_id": shift["id"], "kind": "deposit", "amount": 5})
    await shop.do("PATCH", f"encashments/{cash['id']}", {"amount": 6})
    await shop.do("DELETE", f"encashments/{cash['id']}")
    await shop.do("PATCH", f"products/{tea['id']}", {"price": 10_000_000})
    sale = await shop.do(
        "POST", "receipts", {"shift_id": shift["id"], "items": [{"product_id": tea["id"], "quantity": 1}]}
    )
    await ended(shop, sale, "FAILED")
    await shop.do("DELETE", f"receipts/{sale['receipt']['id']}")
    await shop.do("POST", f"shifts/{shift['id']}/close")


async def ended(shop: Client, sale: Any, state: str) -> tuple[Any, Any]:
    """Wait for the end of a receipt's operation; return both as they are then."""

    async def look() -> Any:
        operation = await shop.do("GET", f"operations/{sale['operation']['id']}")
        return operation if operation["state"] != "PENDING" else None

    operation = await eventually(look)
    receipt = await shop.do("GET", f"receipts/{sale['receipt']['id']}")
    assert (operation["state"], receipt["state"]) == (state, state)
    return receipt, operation


async def test_every_kind_has_create_update_and_delete(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    await shop.webhook(receiver, "/a")
    await business_day(shop, cabinet)
    await wait_until_delivered(cabinet, shop.user)
    heard = {f"{change.entity}.{change.action}" for change in receiver.heard["/a"]}
    assert heard == set(EVENT_TYPES)


async def test_a_failed_receipt_has_the_reason(cabinet: Cabinet):
    shop = await cabinet.client()
    sale = await shop.sale(price=600_000)
    receipt, operation = await ended(shop, sale, "FAILED")
    assert receipt["sign"] is None
    assert receipt["document"] is None
    assert operation["error"].startswith("TOTAL_TOO_LARGE")


async def test_an_inactive_webhook_gets_nothing(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    await shop.webhook(receiver, "/off", active=False)
    on = await shop.webhook(receiver, "/on")
    await shop.product("one")
    await wait_until_delivered(cabinet, shop.user)
    await shop.do("PATCH", f"webhooks/{on['id']}", {"active": False})
    await shop.product("two")
    await wait_until_delivered(cabinet, shop.user)
    assert (receiver.requests["/off"], receiver.requests["/on"]) == (0, 1)
    await shop.do("PATCH", f"webhooks/{on['id']}", {"active": True})
    await shop.product("three")
    await wait_until_delivered(cabinet, shop.user)
    assert (receiver.requests["/off"], receiver.requests["/on"]) == (0, 2)


async def test_a_delivery_follows_its_delays_and_is_then_dropped(cabinet: Cabinet):
    """Each failure is followed by the next wait; the sixth is the last. The record stays, and can be sent again."""
    answers = iter([500, 404, 302, 503, 429, 500])

    async with receiving(lambda _path, _number: next(answers, 204)) as receiver:
        shop = await cabinet.client()
        webhook = await shop.webhook(receiver, "/a")
        await shop.product()
        for number, delay in enumerate(DELAYS, start=1):
            waited: Any = await eventually(partial(waiting_after, cabinet, shop, number))
            # The failure and the wait are stamped by two clocks, and the second a moment later.
            assert -timedelta(seconds=0.1) <= waited - delay < timedelta(seconds=30)
            cabinet.rows(
                "with due as (update boathook.delivery d set due_at = now() where d.event_id = any (%s) returning 1)"
                " select count(*) from due",
                events_of(cabinet, shop),
            )
            cabinet.rows("select pg_notify('boathook_due', '')")
        dropped: Any = await eventually(partial(deliveries, shop, webhook, "dead"))
        assert receiver.requests["/a"] == 6
        assert [one["attempts"] for one in dropped] == [6]
        record = await shop.do("GET", f"webhooks/{webhook['id']}/deliveries/{dropped[0]['id']}")
        assert len(record["tries"]) == 6
        assert json.loads(record["body"])["data"]["name"] == "tea"
        attempts = (await shop.do("GET", f"webhooks/{webhook['id']}/attempts"))["data"]
        assert [one["status"] for one in attempts] == [500, 429, 503, 302, 404, 500]
        answer = await shop.do("POST", f"webhooks/{webhook['id']}/replay", {"delivery": dropped[0]["id"]})
        assert answer == {"replayed": True}
        await eventually(lambda: receiver.heard["/a"])


def events_of(cabinet: Cabinet, shop: Client) -> list[Any]:
    return [
        id
        for (id,) in cabinet.rows(
            "select id from boathook.event where application = any (boathook.application_names(%s))",
            shop.user.application,
        )
    ]


def waiting_after(cabinet: Cabinet, shop: Client, number: int) -> Any:
    """Return how long the shop's only delivery has to wait after its *number*-th failure; None before that."""
    rows = cabinet.rows(
        "select d.due_at - a.ended_at from boathook.delivery d"
        " join boathook.attempt a on a.event_id = d.event_id and a.ordinal = d.ordinal and a.number = d.attempts"
        " where d.event_id = any (%s) and d.state = 'pending' and d.attempts = %s",
        events_of(cabinet, shop), number,
    )  # fmt: skip
    return rows[0][0] if rows else None


async def deliveries(shop: Client, webhook: Any, state: str) -> list[Any]:
    return list((await shop.do("GET", f"webhooks/{webhook['id']}/deliveries?state={state}"))["data"])


def endpoint_of(cabinet: Cabinet, webhook: Any) -> tuple[Any, ...]:
    rows = cabinet.rows(
        "select url, event_types, is_disabled, timeout_s, retry::text from boathook.endpoint"
        " where uid = %s and deleted_at is null",
        f"webhook-{webhook['id']}",
    )
    assert len(rows) <= 1
    return rows[0] if rows else ()


async def test_an_attempt_may_take_20_s(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    url, types, is_disabled, timeout_s, retry = endpoint_of(cabinet, await shop.webhook(receiver, "/a"))
    assert (url, is_disabled, timeout_s) == (f"{receiver.base}/a", False, 20.0)
    assert json.loads(retry)["delays_s"] == [delay.total_seconds() for delay in DELAYS]
    assert {type for type in types if not type.startswith("test.")} == {f"{entity}.*" for entity in Entity}


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_any_2xx_is_success(cabinet: Cabinet, status: int):
    async with receiving(lambda _path, _number: status) as receiver:
        shop = await cabinet.client()
        webhook = await shop.webhook(receiver, "/a")
        await shop.product()
        done: Any = await eventually(partial(deliveries, shop, webhook, "succeeded"))
        assert len(done) == 1
        assert receiver.requests["/a"] == 1


async def test_a_410_disables_a_webhook_until_it_is_saved(cabinet: Cabinet):
    async with receiving(lambda _path, number: 410 if number == 1 else 204) as receiver:
        shop = await cabinet.client()
        webhook = await shop.webhook(receiver, "/a")
        path = f"webhooks/{webhook['id']}"
        await shop.product()

        async def is_off() -> bool:
            return not (await shop.do("GET", path))["sending"]

        await eventually(is_off)
        assert (await shop.do("GET", path))["active"] is True
        assert (await shop.do("PATCH", path, {"active": True}))["sending"] is True
        await shop.product("after")
        await eventually(lambda: receiver.heard["/a"])


async def test_webhook_and_endpoint_change_together(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    webhook = await shop.webhook(receiver, "/a", NONE)
    assert endpoint_of(cabinet, webhook)[2] is True, "a webhook for nothing must not get everything"
    await shop.do("PATCH", f"webhooks/{webhook['id']}", {"types": {"shifts": True}})
    assert endpoint_of(cabinet, webhook)[1:3] == (["shifts.*", f"test.webhook-{webhook['id']}.*"], False)
    refused = await shop.ask(
        "PATCH", f"webhooks/{webhook['id']}", {"url": "http://10.0.0.1/", "types": {"shifts": False}}
    )
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "url")
    assert (await shop.do("GET", f"webhooks/{webhook['id']}"))["types"]["shifts"] is True
    await shop.do("DELETE", f"webhooks/{webhook['id']}")
    assert endpoint_of(cabinet, webhook) == ()


async def test_an_application_that_was_deleted_is_created_again(cabinet: Cabinet, receiver: Receiver):
    """A user goes on working; the webhook sends again once it is saved."""
    shop = await cabinet.client()
    webhook = await shop.webhook(receiver, "/a")
    path = f"webhooks/{webhook['id']}"
    await shop.product("before")
    await eventually(lambda: receiver.heard["/a"].total() == 1)
    cabinet.running.cli("applications", "delete", shop.user.application, "--yes")
    await shop.product("while deleted")
    assert [payload["data"]["name"] for payload in cabinet.payloads(shop.user)] == ["while deleted"]
    assert (await shop.do("GET", path))["sending"] is False
    assert (await shop.do("PATCH", path, {"active": True}))["sending"] is True
    receiver.secrets["/a"] = (await shop.do("GET", f"{path}/secret"))["secret"]
    await shop.product("after")
    await eventually(lambda: receiver.heard["/a"].total() == 2)
    await eventually(lambda: receiver.heard["/a"])


async def test_the_endpoint_lookup_is_cached_also_when_empty(cabinet: Cabinet, receiver: Receiver):
    """A user without webhooks needs one route lookup; a new webhook gets the next event."""
    shop = await cabinet.client()
    async with cabinet.bound_app():
        async with hook.transaction() as tx:
            await actions.add(tx, shop.user, Entity.PRODUCTS, ProductForm(name="first", price=1))
        for _ in range(3):
            assert await lookups(lambda: add(shop, "again")) == 0
        webhook = await shop.webhook(receiver, "/a")
        assert await lookups(lambda: add(shop, "heard")) == 1
        assert await lookups(lambda: add(shop, "heard too")) == 0
        await shop.do("DELETE", f"webhooks/{webhook['id']}")
        assert await lookups(lambda: add(shop, "unheard")) == 1
        assert await lookups(lambda: add(shop, "unheard too")) == 0
    await wait_until_delivered(cabinet, shop.user)
    assert receiver.heard["/a"].total() <= 2


async def test_a_new_webhook_gets_the_next_event(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    async with cabinet.bound_app():
        await add(shop, "before")
        await shop.webhook(receiver, "/a")
        await add(shop, "after")
    await eventually(lambda: receiver.heard["/a"])
    await wait_until_delivered(cabinet, shop.user)
    told = [payload["data"]["id"] for payload in cabinet.payloads(shop.user) if payload["data"]["name"] == "after"]
    assert receiver.heard["/a"] == {Change(Entity.PRODUCTS, Action.CREATE, told[0], 1): 1}


async def add(shop: Client, name: str) -> None:
    async with hook.transaction() as tx:
        await actions.add(tx, shop.user, Entity.PRODUCTS, ProductForm(name=name, price=1))


async def lookups(do: Callable[[], Awaitable[None]]) -> int:
    """Return how often routes are read while *do* publishes, by the statements it sends."""
    from boathook.handlers import transaction

    seen: list[str] = []
    original = transaction.Transaction._call

    async def counting(self: Any, call: Any, arguments: Any) -> Any:
        seen.append(call.function)
        return await original(self, call, arguments)

    transaction.Transaction._call = counting  # type: ignore[method-assign]
    try:
        await do()
    finally:
        transaction.Transaction._call = original  # type: ignore[method-assign]
    assert "boathook.publish_message" in seen, "nothing was counted"
    return seen.count("boathook.routes_for")


@pytest.mark.extended("waits for the breaker; tests/postgres/delivery/test_sender.py stays")
async def test_an_endpoint_that_is_down_is_not_hammered(cabinet: Cabinet):
    """A shop that is down gets few of 200 requests, and another shop gets all of its own."""
    async with receiving(lambda path, _number: 503 if path == "/down" else 204) as receiver:
        down, well = await cabinet.client("down"), await cabinet.client("well")
        await down.webhook(receiver, "/down")
        await well.webhook(receiver, "/well")
        async with cabinet.bound_app():
            for number in range(200):
                await add(down, f"p{number}")
                await add(well, f"p{number}")
        await eventually(lambda: len(receiver.heard["/well"]) == 200)
        assert pending_deliveries(cabinet, down) == 200
        # Every one of them is due again 5 s after a failure, or held back by the pause: the breaker opens after ten.
        assert receiver.requests["/down"] < 60
        before = receiver.requests["/down"]
        make_due(cabinet, down)
        await add_and_await(cabinet, well, receiver)
        assert receiver.requests["/down"] - before < 10, "all are due, but only a probe goes out now and then"


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_without_a_breaker_it_is_hammered(running: CashdeskServer):
    """Mutant: without the pause everything that is due goes out, and the first test's bound is passed."""
    cabinet = Cabinet(running.start(BOATHOOK_OUTBOUND_BREAKER_AFTER="0"))
    async with receiving(lambda _path, _number: 503) as receiver:
        down = await cabinet.client("down")
        await down.webhook(receiver, "/down")
        async with cabinet.bound_app():
            for number in range(200):
                await add(down, f"p{number}")
        await hurried(cabinet, down, lambda: receiver.requests["/down"] > 300)
    assert running.stop() == 0


def pending_deliveries(cabinet: Cabinet, shop: Client) -> int:
    rows = cabinet.rows(
        "select count(*) from boathook.delivery where event_id = any (%s) and state <> 'dead'", events_of(cabinet, shop)
    )
    return int(rows[0][0])


async def add_and_await(cabinet: Cabinet, shop: Client, receiver: Receiver) -> None:
    known = len(receiver.heard["/well"])
    async with cabinet.bound_app():
        for number in range(20):
            await add(shop, f"q{number}")
    await eventually(lambda: len(receiver.heard["/well"]) == known + 20)


class TestFiscalisation:
    async def test_is_an_operation_whose_end_is_published(self, cabinet: Cabinet, receiver: Receiver):
        shop = await cabinet.client()
        await shop.webhook(receiver, "/a", {Entity.RECEIPTS: True, Entity.OPERATIONS: True})
        sale = await shop.sale()
        assert (sale["receipt"]["state"], sale["operation"]["state"]) == ("PENDING", "PENDING")
        receipt, operation = await ended(shop, sale, "DONE")
        assert len(receipt["sign"]) == 10
        assert receipt["document"] == 1
        assert operation["finished_at"] is not None
        await wait_until_delivered(cabinet, shop.user)
        assert receiver.heard["/a"] == {
            Change(entity, action, id, revision): 1
            for entity, id in ((Entity.RECEIPTS, receipt["id"]), (Entity.OPERATIONS, operation["id"]))
            for action, revision in ((Action.CREATE, 1), (Action.UPDATE, 2))
        }

    async def test_documents_of_a_device_have_no_gaps(self, cabinet: Cabinet):
        shop = await cabinet.client()
        product, shift = await shop.product(), await shop.shift()
        body = {"shift_id": shift["id"], "items": [{"product_id": product["id"], "quantity": 1}]}
        sales = [await shop.do("POST", "receipts", body) for _ in range(8)]
        documents = [(await ended(shop, sale, "DONE"))[0]["document"] for sale in sales]
        assert sorted(documents) == list(range(1, 9))

    async def test_the_same_receipt_twice_is_one(self, cabinet: Cabinet):
        shop = await cabinet.client()
        product, shift = await shop.product(), await shop.shift()
        items = [{"product_id": product["id"], "quantity": 1}]
        body = {"shift_id": shift["id"], "items": items, "external_id": "till-1/17"}
        first, second = [await shop.do("POST", "receipts", body) for _ in range(2)]
        assert first["receipt"]["id"] == second["receipt"]["id"]
        other = await shop.ask("POST", "receipts", body | {"payment": "card"})
        assert other.status_code == 409
        await ended(shop, first, "DONE")
        assert len([one for one in cabinet.payloads(shop.user) if one["type"] == "RECEIPT"]) == 2

    async def test_keeps_the_prices_at_its_time(self, cabinet: Cabinet):
        shop = await cabinet.client()
        product, shift = await shop.product(price=70), await shop.shift()
        body = {"shift_id": shift["id"], "items": [{"product_id": product["id"], "quantity": 3}]}
        sale = await shop.do("POST", "receipts", body)
        await shop.do("PATCH", f"products/{product['id']}", {"price": 99})
        receipt, _ = await ended(shop, sale, "DONE")
        assert (receipt["total"], receipt["items"][0]["price"]) == (210, 70)

    async def test_a_purchase_needs_no_products(self, cabinet: Cabinet):
        """The purchase as a shop has it: items by name, price and quantity."""
        shop = await cabinet.client()
        shift = await shop.shift()
        items = [{"name": "tea", "price": 70, "quantity": 3}, {"name": "cake", "price": 5, "quantity": 1, "vat": "10"}]
        body = {"shift_id": shift["id"], "items": items, "external_id": "order-1"}
        sale = await shop.do("POST", "receipts", body)
        receipt, _ = await ended(shop, sale, "DONE")
        assert receipt["total"] == 215
        assert [item["vat"] for item in receipt["items"]] == ["none", "10"]
        assert [item["product_id"] for item in receipt["items"]] == [None, None]
        assert (await shop.do("POST", "receipts", body))["receipt"]["id"] == receipt["id"]
        for change in ({"price": 71}, {"name": "coffee"}, {"quantity": 4}, {"vat": "20"}):
            other = body | {"items": [items[0] | change, items[1]]}
            assert (await shop.ask("POST", "receipts", other)).status_code == 409
        assert (await shop.ask("POST", "receipts", body | {"items": items[:1]})).status_code == 409

    async def test_what_an_item_says_replaces_the_products(self, cabinet: Cabinet):
        shop = await cabinet.client()
        product, shift = await shop.product("tea", 70), await shop.shift()
        items = [{"product_id": product["id"], "price": 50, "quantity": 2}]
        sale = await shop.do("POST", "receipts", {"shift_id": shift["id"], "items": items})
        assert (sale["receipt"]["total"], sale["receipt"]["items"][0]["name"]) == (100, "tea")

    @pytest.mark.parametrize("missing", ["name", "price"])
    async def test_an_item_without_a_product_needs_a_name_and_a_price(self, cabinet: Cabinet, missing: str):
        shop = await cabinet.client()
        shift = await shop.shift()
        item = {"name": "tea", "price": 70, "quantity": 3}
        del item[missing]
        answer = await shop.ask("POST", "receipts", {"shift_id": shift["id"], "items": [item]})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, f"items.0.{missing}")

    async def test_an_open_receipt_keeps_its_shift_open(self, cabinet: Cabinet):
        shop = await cabinet.client()
        sale = await shop.sale()
        closing = f"shifts/{sale['receipt']['shift_id']}/close"
        first = await shop.ask("POST", closing)
        await ended(shop, sale, "DONE")
        if first.status_code == 409:
            assert "not fiscalised" in first.json()["error"]["message"]
            await shop.do("POST", closing)
        again = await shop.ask("POST", closing)
        assert again.status_code == 409


async def test_the_books_balance(cabinet: Cabinet):
    cabinet.verify()
