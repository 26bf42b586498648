"""Attacks on the cashdesk app: it responds with its own errors and keeps working."""

import asyncio
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from boathook.db.operators import ClientInfo
from boathook_cashdesk import fiscal, hook, ledger
from boathook_cashdesk.actions import FISCALISE, OWN
from boathook_cashdesk.app import sign_in
from boathook_cashdesk.entities import Entity
from boathook_cashdesk.receiver import Receiver
from tests.apps.cashdesk.conftest import cabinet, receiver, running
from tests.apps.cashdesk.server import ALL, Cabinet, CashdeskServer, Client, wait_until_delivered
from tests.support import eventually

__all__ = ["cabinet", "receiver", "running"]

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
async def test_a_cross_origin_login_is_refused(cabinet: Cabinet, origin: str | None):
    shop = await cabinet.client()
    headers = {} if origin is None else {"origin": origin}
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        answer = await http.post("/cabinet/sign-in", data={"token": shop.token}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def log_in(http: httpx.AsyncClient, token: str, **headers: str) -> int:
    """Return the status of a login; the client keeps the session, if any."""
    return (await http.post("/cabinet/sign-in", data={"token": token}, headers=headers)).status_code


async def is_in(http: httpx.AsyncClient) -> bool:
    """Whether the page shows webhooks rather than the login form."""
    return "Sign out" in (await http.get("/cabinet/")).text


@pytest.mark.parametrize("by", ["name", "id"])
async def test_a_renewed_token_replaces_the_old_one_and_ends_its_sessions(cabinet: Cabinet, by: str):
    name = f"renewed by {by}"
    shop, other = await cabinet.client(name), await cabinet.client()
    headers = {"origin": cabinet.running.base}
    async with (
        httpx.AsyncClient(base_url=cabinet.running.base, headers=headers) as http,
        httpx.AsyncClient(base_url=cabinet.running.base, headers=headers) as others,
    ):
        assert (await log_in(http, shop.token), await log_in(others, other.token)) == (303, 303)
        assert await is_in(http)
        whom = name if by == "name" else str(shop.user.id)
        [line] = cabinet.running.cli("cashdesk", "users", "renew", whom, "--json").stdout.splitlines()
        renewed = json.loads(line)
        assert (renewed["id"], renewed["name"]) == (shop.user.id, name)
        assert not await is_in(http)
        assert (await shop.ask("GET", "me")).status_code == 401
        assert (await shop.ask("GET", "me", token=renewed["token"])).json()["id"] == shop.user.id
        assert (await log_in(http, shop.token), await log_in(http, renewed["token"])) == (401, 303)
        assert await is_in(others)
        assert (await other.ask("GET", "me")).status_code == 200


async def test_a_token_is_renewed_only_for_an_unambiguous_user(cabinet: Cabinet):
    namesakes = [await cabinet.client("namesake"), await cabinet.client("namesake")]
    unclear = cabinet.running.cli("cashdesk", "users", "renew", "namesake", check=False)
    assert unclear.returncode == 1
    assert f"name the id, one of {namesakes[0].user.id}, {namesakes[1].user.id}" in unclear.stderr
    unknown = cabinet.running.cli("cashdesk", "users", "renew", "9" * 30, check=False)
    assert (unknown.returncode, "there is no user 999" in unknown.stderr) == (1, True)
    assert [(await client.ask("GET", "me")).status_code for client in namesakes] == [200, 200]


async def test_a_login_concurrent_with_a_token_renewal_leaves_no_session(cabinet: Cabinet):
    shop = await cabinet.client()

    async def renew() -> None:
        async with hook.transaction() as tx:
            await sign_in.renew_token(tx, shop.user)

    async with cabinet.bound_app():
        async with hook.transaction() as tx:
            assert await sign_in.log_in_with_token(tx, shop.token, ClientInfo("192.0.2.1", ""))
            renewing = asyncio.create_task(renew())
            await eventually(
                lambda: cabinet.rows(
                    "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                )
            )
        await renewing
    assert cabinet.rows("select from cashdesk.sessions where user_id = %s", shop.user.id) == []


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("shop.example:443", "https://shop.example", 303),
        ("shop.example", "https://shop.example:443", 303),
        ("shop.example:80", "http://SHOP.example", 303),
        ("shop.example:443", "http://shop.example", 403),
        ("shop.example", "https://shop.example:8443", 403),
        ("shop.example", "https://shop.example/path", 403),
        ("shop.example", "https://shop.example@other.example", 403),
    ],
)
async def test_the_default_port_may_be_explicit_in_the_origin(cabinet: Cabinet, host: str, origin: str, status: int):
    shop = await cabinet.client()
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        assert await log_in(http, shop.token, host=host, origin=origin) == status


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_public_url_with_the_usual_port_is_the_same_without_it(running: CashdeskServer):
    file = running.folder / "boathook.toml"
    file.write_text(file.read_text().replace("[cashdesk]", '[cashdesk]\npublic_url = "https://cabinet.example:443"'))
    running.start()
    shop = await Cabinet(running).client()
    async with httpx.AsyncClient(base_url=running.base) as http:
        answers = {
            origin: await log_in(http, shop.token, origin=origin)
            for origin in (
                "https://cabinet.example",
                "https://cabinet.example:443",
                "http://cabinet.example",
                running.base,
            )
        }
    assert list(answers.values()) == [303, 303, 403, 403]


@pytest.mark.parametrize("path", ["nothing", "webhooks/nothing", "static/nothing.css", "apis"])
async def test_an_unknown_page_gets_a_404_page_or_json(cabinet: Cabinet, path: str):
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        page = await http.get(f"/cabinet/{path}", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        program = await http.get(f"/cabinet/{path}", headers={"accept": "application/json"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page." in page.text
    assert "console.css" in page.text
    assert (program.status_code, program.json()["error"]["code"]) == (404, "not_found")
    for answer in (page, program):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_the_api_answers_in_json_for_any_accept_header(cabinet: Cabinet):
    async with httpx.AsyncClient(base_url=cabinet.running.base, headers={"accept": "text/html"}) as http:
        for path in ("api", "api/nothing"):
            assert (await http.get(f"/cabinet/{path}")).json()["error"]["code"] == "not_found"


async def test_the_page_needs_no_slash_at_the_end(cabinet: Cabinet):
    """A redirect would name a host, which the gateway does not know behind a proxy."""
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        plain, slashed = [await http.get(path) for path in ("/cabinet", "/cabinet/")]
    assert (plain.status_code, plain.headers["location"]) == (303, "/cabinet/sign-in")
    assert plain.headers["location"] == slashed.headers["location"]


@pytest.mark.parametrize("name", ["Чай\N{NO-BREAK SPACE}зелёный", "👨\N{ZERO WIDTH JOINER}👩 tea", "e\u0301clair"])
async def test_names_may_be_of_any_language(cabinet: Cabinet, name: str):
    shop = await cabinet.client()
    assert (await shop.do("POST", "products", {"name": name, "price": 1}))["name"] == name


async def test_webhooks_deleted_concurrently_are_found_or_not(cabinet: Cabinet):
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
        await http.post("/cabinet/sign-in", data={"token": shop.token})
        page = (await http.get("/cabinet/")).text
        fields = dict(re.findall(r'name="(csrf|active)" value="(\w+)"', page))
        assert (fields["active"], ">Activate<" in page) == ("yes", True)
        await http.post(f"/cabinet/webhooks/{webhook['id']}/active", data=fields)
        assert ">Deactivate<" in (await http.get("/cabinet/")).text
    assert (await shop.do("GET", f"webhooks/{webhook['id']}"))["sending"] is True


@pytest.mark.parametrize("what", ["endpoint", "application"])
async def test_saving_recreates_what_an_operator_deleted(cabinet: Cabinet, receiver: Receiver, what: str):
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
    async with cabinet.bound_app(), hook.transaction() as tx:
        receipt = await ledger.create(tx, shop.user, Entity.RECEIPTS, values | {"state": "PENDING"})
        assert receipt is not None
        wanted = {"receipt_id": receipt["id"], "kind": FISCALISE, "state": "PENDING"}
        operation = await ledger.create(tx, shop.user, Entity.OPERATIONS, wanted)
        assert operation is not None
        body = {"user": shop.user.id, "operation": operation["id"]}
        later = datetime.now(UTC) + timedelta(hours=1)
        await hook.publish(tx, application=OWN, type=FISCALISE, payload=body, deliver_at=later)
    died = cabinet.rows(
        "update boathook.delivery set state = 'dead', dead_at = now(), code = 'WORKER_LOST', attempts = 10"
        " where state = 'pending' and recipient = 'handler:cashdesk.fiscalise' and due_at > now() + interval '59 minutes' returning 1"
    )
    assert died == [(1,)]
    return int(receipt["id"])


async def test_a_receipt_with_an_ignored_dead_letter_ends_as_failed(cabinet: Cabinet):
    shop = await cabinet.client()
    id = await given_up(cabinet, shop)
    shift = (await shop.do("GET", f"receipts/{id}"))["shift_id"]
    async with cabinet.bound_app():
        [dead] = await hook.operations.deliveries(recipient=fiscal.RECIPIENT, state="dead")
        assert await hook.operations.ignore([dead.id], note="the drive is broken") == [dead.id]
        assert (await shop.ask("POST", f"shifts/{shift}/close")).status_code == 409
        await fiscal.end_ignored()
        await fiscal.end_ignored()
    receipt = await shop.do("GET", f"receipts/{id}")
    assert (receipt["state"], receipt["error"].partition(":")[0]) == ("FAILED", "IGNORED")
    [operation] = (await shop.do("GET", "operations"))["data"]
    assert (operation["state"], operation["finished_at"] is not None) == ("FAILED", True)
    told = cabinet.payloads(shop.user)[-2:]
    assert [(body["type"], body["action"]) for body in told] == [("RECEIPT", "UPDATE"), ("OPERATION", "UPDATE")]
    assert (told[1]["data"]["status"], told[1]["data"]["data"]["error"]["code"]) == ("ERROR", "IGNORED")
    await shop.do("POST", f"shifts/{shift}/close")
    assert any(chore.function is fiscal.end_ignored for chore in hook.manifest.chores)


async def test_a_receipt_whose_worker_died_at_the_last_attempt_is_resumed(cabinet: Cabinet):
    shop = await cabinet.client()
    id = await given_up(cabinet, shop)
    async with cabinet.bound_app():
        await fiscal.resume()
    await wait_until_delivered(cabinet, shop.user)
    assert (await shop.do("GET", f"receipts/{id}"))["state"] == "DONE"
    assert any(chore.function is fiscal.resume for chore in hook.manifest.chores)
