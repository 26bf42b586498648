"""What strangers, operators and bad luck do to a cabinet: it answers in its own words, and goes on."""

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from boathook.apps.cashdesk import fiscal, hook, ledger
from boathook.apps.cashdesk.actions import FISCALISE, OWN
from boathook.apps.cashdesk.entities import Entity
from boathook.apps.cashdesk.receiver import Receiver
from tests.apps.cashdesk.stand import ALL, Cabinet, Client, settled
from tests.support import eventually

URL = "http://127.0.0.1:9999/hooks"
ENDLESS = "9" * 5_000


@pytest.mark.parametrize("path", [f"api/webhooks/{ENDLESS}", f"api/products/{ENDLESS}", f"webhooks/{ENDLESS}"])
async def test_an_id_of_thousands_of_digits_is_404(cabinet: Cabinet, path: str):
    shop = await cabinet.client()
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        answer = await http.get(f"/cabinet/{path}", headers={"authorization": f"Bearer {shop.token}"})
    assert answer.status_code == 404


async def test_a_delivery_of_impossible_number_is_404(cabinet: Cabinet):
    shop = await cabinet.client()
    made = await shop.do("POST", "webhooks", {"url": URL, "types": {}})
    name = f"dlv_01h455vb4pex5vsknk084sn02q4_{2**31}"
    assert (await shop.ask("GET", f"webhooks/{made['id']}/deliveries/{name}")).status_code == 404
    assert (await shop.ask("POST", f"webhooks/{made['id']}/replay", {"delivery": name})).status_code == 404


@pytest.mark.parametrize("origin", [None, "null", "http://[", "http://shop.example", "//"])
async def test_a_login_from_elsewhere_is_refused(cabinet: Cabinet, origin: str | None):
    shop = await cabinet.client()
    headers = {} if origin is None else {"origin": origin}
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        answer = await http.post("/cabinet/", data={"token": shop.token}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_the_way_to_the_page_names_no_host(cabinet: Cabinet):
    """Behind a proxy the gateway does not know by which scheme and name it was asked for."""
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        answer = await http.get("/cabinet")
    assert (answer.status_code, answer.headers["location"]) == (303, "/cabinet/")


@pytest.mark.parametrize("name", ["Чай\N{NO-BREAK SPACE}зелёный", "👨\N{ZERO WIDTH JOINER}👩 tea", "e\u0301clair"])
async def test_names_may_be_of_any_language(cabinet: Cabinet, name: str):
    shop = await cabinet.client()
    assert (await shop.do("POST", "products", {"name": name, "price": 1}))["name"] == name


async def test_webhooks_deleted_while_others_look_are_there_or_not(cabinet: Cabinet):
    shop = await cabinet.client()
    statuses: Counter[int] = Counter()

    async def ask(method: str, path: str, document: object = None) -> None:
        statuses[(await shop.ask(method, path, document)).status_code] += 1

    for _ in range(12):
        made = await shop.do("POST", "webhooks", {"url": URL, "types": {"products": True}})
        path = f"webhooks/{made['id']}"
        asked = [ask("GET", path), ask("GET", "webhooks"), ask("GET", f"{path}/attempts"), ask("GET", f"{path}/secret")]
        changed = [ask("PATCH", path, {"active": False}), ask("POST", f"{path}/test")]
        await asyncio.gather(ask("DELETE", path), *asked, *changed, ask("DELETE", path))
    assert set(statuses) <= {200, 202, 204, 404, 409}, statuses


async def test_one_that_was_switched_off_is_activated_from_the_list(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    webhook = await shop.webhook(receiver, "/a")
    uid = f"webhook-{webhook['id']}"
    cabinet.running.cli("endpoints", "disable", "--application", shop.user.application, uid)
    async with httpx.AsyncClient(base_url=cabinet.running.base, headers={"origin": cabinet.running.base}) as http:
        await http.post("/cabinet/", data={"token": shop.token})
        page = (await http.get("/cabinet/")).text
        fields = dict(re.findall(r'name="(csrf|active)" value="(\w+)"', page))
        assert (fields["active"], ">Activate<" in page) == ("yes", True)
        await http.post(f"/cabinet/webhooks/{webhook['id']}/active", data=fields)
        assert ">Deactivate<" in (await http.get("/cabinet/")).text
    assert (await shop.do("GET", f"webhooks/{webhook['id']}"))["sending"] is True


@pytest.mark.parametrize("what", ["endpoint", "application"])
async def test_what_an_operator_deleted_is_made_anew_by_saving(cabinet: Cabinet, receiver: Receiver, what: str):
    shop = await cabinet.client()
    webhook = await shop.webhook(receiver, "/a", ALL)
    path = f"webhooks/{webhook['id']}"
    owner = shop.user.application
    if what == "endpoint":
        cabinet.running.cli("endpoints", "delete", "--application", owner, f"webhook-{webhook['id']}", "--yes")
    else:
        cabinet.running.cli("applications", "delete", owner, "--yes")
    assert (await shop.do("GET", "webhooks"))["data"][0]["sending"] is False
    assert await shop.do("GET", f"{path}/attempts") == {"data": []}
    assert (await shop.ask("GET", f"{path}/secret")).status_code == 409
    assert (await shop.ask("POST", f"{path}/test")).status_code == 409
    assert (await shop.do("PATCH", path, {"active": True}))["sending"] is True
    receiver.secrets["/a"] = (await shop.do("GET", f"{path}/secret"))["secret"]
    await shop.product()
    await eventually(lambda: receiver.heard["/a"])
    await shop.do("DELETE", path)


async def given_up(cabinet: Cabinet, shop: Client) -> int:
    """Leave a receipt as a worker does that dies at its last attempt; return the receipt's id."""
    shift = await shop.shift()
    item = {"product_id": 1, "quantity": 1, "name": "tea", "price": 100, "vat": "none"}
    values = {"shift_id": shift["id"], "items": [item], "kind": "sale", "payment": "cash", "total": 100}
    async with cabinet.lent(), hook.transaction() as tx:
        receipt = await ledger.create(tx, shop.user, Entity.RECEIPTS, values | {"state": "PENDING"})
        assert receipt is not None
        wanted = {"receipt_id": receipt["id"], "kind": FISCALISE, "state": "PENDING"}
        operation = await ledger.create(tx, shop.user, Entity.OPERATIONS, wanted)
        assert operation is not None
        body = {"user": shop.user.id, "operation": operation["id"]}
        later = datetime.now(UTC) + timedelta(hours=1)
        await hook.publish(tx, application=OWN, type=FISCALISE, payload=body, deliver_at=later)
    died = cabinet.rows(
        "update boathook.delivery set state = 'dead', died_at = now(), code = 'WORKER_LOST', attempts = 10"
        " where state = 'pending' and recipient = 'handler:cashdesk.fiscalise' and due_at > now() + interval '59 minutes' returning 1"
    )
    assert died == [(1,)]
    return int(receipt["id"])


async def test_a_receipt_whose_worker_died_at_the_last_attempt_comes_to_an_end(cabinet: Cabinet):
    shop = await cabinet.client()
    id = await given_up(cabinet, shop)
    async with cabinet.lent():
        await fiscal.resume()
    await settled(cabinet, shop.user)
    assert (await shop.do("GET", f"receipts/{id}"))["state"] == "DONE"
    assert any(chore.function is fiscal.resume for chore in hook.manifest.chores)
