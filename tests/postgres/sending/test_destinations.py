"""Endpoints whose destination is not a URL: a kind of one module, through every interface and the whole delivery."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import svix.webhooks

from boathook.api.app import openapi_document
from boathook.config.destinations import installed_kinds
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.secret_box import SecretBox
from boathook.service.sending import endpoint_secrets
from tests import file_destination
from tests.postgres.api_client import KEY, ApiClient, make_operator_token, open_api_client
from tests.postgres.portal_client import ConsoleApp, open_console
from tests.sender_harness import running_sender
from tests.support import eventually
from tests.worker_harness import attempts, wait_for_states

HERE = "/app/acme/endpoint"
KINDS = ["http", "file", "plain_file", "echo"]
FILE = {"kind": "file", "path": "orders.jsonl"}
TOKEN = "t0ken-of-the-reader"


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    with file_destination.installed(tmp_path / "site"):
        yield


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data" / "outbox").mkdir(parents=True)
    return tmp_path / "data"


@pytest.fixture
async def tenant(db: Database) -> AsyncIterator[ApiClient]:
    """Yield a client with the token of an organization, which has the application ``acme``."""
    async with open_api_client(db, outbound__destinations=KINDS) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        yield client


@pytest.fixture
async def api(tenant: ApiClient) -> ApiClient:
    """Return a client with the token of an operator."""
    return tenant.as_token(await make_operator_token(tenant.context))


def sender(db: Database, data_dir: Path, **outbound: Any) -> Any:
    return running_sender(
        db, keys=(KEY,), server={"data_dir": str(data_dir)}, outbound={"destinations": KINDS, **outbound}
    )


async def make(api: ApiClient, status: int = 201, **fields: Any) -> Any:
    return await api.ask(status, "POST", HERE, {"destination": FILE, **fields})


async def publish(api: ApiClient) -> str:
    message = {"eventType": "order.paid", "payload": {"order": 7}}
    return str((await api.ask(202, "POST", "/app/acme/msg", message))["id"])


def lines(data_dir: Path, name: str = "orders.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data_dir / "outbox" / name).read_text().splitlines()]


# Delivery


async def test_messages_are_signed_delivered_and_recorded(db, api, tenant, data_dir):
    made = await make(api, destination={**FILE, "token": TOKEN})
    assert made["destination"] == FILE
    assert made["url"] == "file:outbox/orders.jsonl"
    message = await publish(tenant)
    async with sender(db, data_dir):
        await wait_for_states(db, succeeded=1)
    [line] = lines(data_dir)
    assert (line["id"], json.loads(line["body"]), line["token"]) == (message, {"order": 7}, TOKEN)
    secret = (await tenant.ask(200, "GET", f"{HERE}/{made['id']}/secret"))["key"]
    svix.webhooks.Webhook(secret).verify(line["body"], line["headers"])
    [attempt] = (await tenant.ask(200, "GET", f"/app/acme/attempt/endpoint/{made['id']}"))["data"]
    assert (attempt["url"], attempt["status"]) == ("file:outbox/orders.jsonl", 0)
    assert re.fullmatch(r"\d+ bytes", attempt["response"])
    assert await tenant.ask(200, "GET", f"{HERE}/{made['id']}") == made


async def test_a_kind_without_signatures_takes_no_secret(db, api, tenant, data_dir):
    plain = {**FILE, "kind": "plain_file"}
    refused = await make(api, 422, destination=plain, secret="whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")
    assert refused["detail"][0]["loc"] == ["body", "secret"]
    assert "not signed" in refused["detail"][0]["msg"]
    made = await make(api, destination=plain)
    refused = await api.ask(422, "POST", f"{HERE}/{made['id']}/secret/rotate", {})
    assert "not signed" in refused["detail"][0]["msg"]
    await publish(tenant)
    async with sender(db, data_dir):
        await wait_for_states(db, succeeded=1)
    assert lines(data_dir)[0]["headers"] == {}


async def test_failures_are_retried_and_final_ones_are_dead_letters_that_can_be_replayed(db, api, tenant, data_dir):
    await make(api, destination={**FILE, "path": "later/orders.jsonl"}, retrySchedule=[0.05] * 50)
    await publish(tenant)
    async with sender(db, data_dir):
        await eventually(lambda: attempts(db))
        assert (await attempts(db))[0] == (1, "failed", "FileNotFoundError")
        (data_dir / "outbox" / "later").mkdir()
        await wait_for_states(db, succeeded=1)
    folder = data_dir / "outbox" / "orders.jsonl"
    folder.mkdir()
    made = await make(api)
    async with sender(db, data_dir):
        await publish(tenant)
        await wait_for_states(db, succeeded=2, dead=1)
        assert await db.fetchval("select error from boathook.delivery") == "orders.jsonl is a folder"
        folder.rmdir()
        letter = (await tenant.ask(200, "GET", "/dead-letter"))["data"][0]
        assert letter["code"] == "NOT_A_FILE"
        await tenant.ask(202, "POST", f"/dead-letter/{letter['id']}/replay", {})
        await wait_for_states(db, succeeded=3)
    assert len(lines(data_dir)) == 1
    assert await tenant.ask(200, "GET", f"{HERE}/{made['id']}") == made


async def test_an_attempt_without_a_result_fails_after_the_timeout(db, api, tenant, data_dir):
    await make(api, destination={"kind": "echo", "path": "slow.jsonl"}, retrySchedule=[])
    await publish(tenant)
    async with sender(db, data_dir, timeout_s=0.05):
        await wait_for_states(db, dead=1)
    assert await attempts(db) == [(1, "failed", "TIMEOUT")]


async def test_secrets_are_redacted_in_responses_and_errors(db, api, tenant, data_dir):
    await make(api, destination={"kind": "echo", "path": "right.jsonl", "token": TOKEN})
    await make(api, destination={"kind": "echo", "path": "wrong.jsonl", "token": TOKEN}, retrySchedule=[])
    await publish(tenant)
    async with sender(db, data_dir):
        await wait_for_states(db, succeeded=1, dead=1)
    rows = await db.fetch("select outcome, status, error, response from boathook.attempt order by outcome desc")
    assert (rows[0]["status"], bytes(rows[0]["response"])) == (7, b"token=[redacted]")
    assert rows[1]["error"] == "the token [redacted] is wrong"
    assert len(rows[1]["response"]) == 4_096


async def test_an_endpoint_of_a_kind_that_is_no_longer_allowed_fails_and_stays_enabled(db, api, tenant, data_dir):
    made = await make(api, retrySchedule=[0.02])
    await publish(tenant)
    async with sender(db, data_dir, destinations=["http"]):
        await wait_for_states(db, dead=1)
    assert [code for _, _, code in await attempts(db)] == ["DESTINATION_UNAVAILABLE"] * 2
    assert (await tenant.ask(200, "GET", f"{HERE}/{made['id']}"))["disabled"] is False


# What is stored


async def test_secret_fields_are_encrypted_and_neither_shown_nor_audited(db, api, tenant):
    made = await make(api, destination={**FILE, "token": TOKEN})
    path = f"{HERE}/{made['id']}"
    row = await db.fetchrow("select * from boathook.endpoint")
    assert json.loads(row["destination_fields"]) == {"path": "orders.jsonl"}
    assert TOKEN not in str(dict(row))
    stored = row["encrypted_destination"]
    context = f"endpoint_destination:{made['id']}"
    assert json.loads(SecretBox([KEY]).open(stored, context)) == {"token": TOKEN}

    changed = await api.ask(200, "PATCH", path, {"destination": {**FILE, "maxMb": 5}})
    assert changed["destination"] == {**FILE, "maxMb": 5}
    kept = await db.fetchval("select encrypted_destination from boathook.endpoint")
    assert kept == stored
    await api.ask(200, "PATCH", path, {"destination": {**FILE, "token": None}})
    assert await db.fetchval("select encrypted_destination from boathook.endpoint") is None
    notes = [row["note"] or "" for row in await db.fetch("select note from boathook.audit order by id")]
    assert any("destination changed" in note for note in notes)
    assert any("maxMb" in note for note in notes)
    assert TOKEN not in str(notes)


async def test_secrets_are_encrypted_again_with_a_new_key(db, api, tenant):
    await make(api, destination={**FILE, "token": TOKEN})
    box = SecretBox(["another key of sixteen characters", KEY])
    report = await endpoint_secrets.reencrypt(db, box, AuditContext(actor="test"))
    assert (report.number, report.old, report.unreadable) == (2, 2, {})
    assert (await endpoint_secrets.examine(db, SecretBox(["another key of sixteen characters"]))).unreadable == {}


async def test_other_changes_leave_the_destination_as_it_is(api, tenant):
    made = await make(api)
    path = f"{HERE}/{made['id']}"
    for method in ("PUT", "PATCH"):
        changed = await tenant.ask(200, method, path, {"url": made["url"], "description": method})
        assert (changed["destination"], changed["url"], changed["description"]) == (FILE, made["url"], method)


async def test_an_endpoint_may_change_its_kind(db, api, tenant):
    url = "http://127.0.0.1:8999/hook"
    basic = {"basic": {"username": "a", "password": "b"}}
    made = await api.ask(201, "POST", HERE, {"url": url, "auth": basic, "headers": {"x-a": "b"}})
    path = f"{HERE}/{made['id']}"
    assert made["destination"] == {"kind": "http"}
    changed = await api.ask(200, "PATCH", path, {"destination": FILE})
    assert (changed["url"], changed["auth"]) == ("file:outbox/orders.jsonl", [])
    assert await db.fetchval("select encrypted_headers from boathook.endpoint") is None
    refused = await api.ask(422, "PATCH", path, {"destination": None})
    assert refused["detail"][0]["loc"] == ["body", "url"]
    changed = await tenant.ask(200, "PATCH", path, {"destination": None, "url": url})
    assert (changed["url"], changed["destination"]) == (url, {"kind": "http"})


# Who may choose


async def test_a_tenant_chooses_only_what_the_operator_allows(db, api, tenant):
    refused = await make(tenant, 422)
    assert refused["detail"] == [
        {"loc": ["body", "destination", "kind"], "msg": "write one of http", "type": "value_error"}
    ]
    made = await tenant.ask(201, "POST", HERE, {"url": "http://127.0.0.1:8999/hook"})
    await tenant.ask(422, "PATCH", f"{HERE}/{made['id']}", {"destination": FILE})
    await tenant.ask(422, "PUT", f"{HERE}/files", {"destination": FILE})
    owned = await make(api)
    await tenant.ask(422, "PATCH", f"{HERE}/{owned['id']}", {"destination": {**FILE, "path": "other.jsonl"}})
    assert (await tenant.ask(200, "GET", f"{HERE}/{owned['id']}"))["destination"] == FILE
    assert await db.fetchval("select count(*) from boathook.endpoint where destination <> 'http'") == 1


async def test_a_tenant_may_choose_a_kind_that_is_allowed_for_tenants(db):
    async with open_api_client(
        db, outbound__destinations=KINDS, outbound__tenant_destinations=["http", "file"]
    ) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        assert (await make(client))["destination"] == FILE
        refused = await make(client, 422, destination={**FILE, "kind": "echo"})
        assert refused["detail"][0]["msg"] == "write one of http, file"


async def test_the_portal_has_no_choice_of_kinds_and_does_not_take_one(db):
    async with open_console(db, outbound__destinations=KINDS) as console:
        tenant = await console.tenant("acme")
        pages = await console.portal_session(tenant)
        assert 'name="destination' not in await pages.get_page("/portal/endpoints/new")
        form = {"destination": "file", "destination.file.path": "orders.jsonl"}
        answer = await pages.submit_form("/portal/endpoints", form, on="/portal/endpoints/new", status=400)
        assert "write one of http" in answer.text
        assert await db.fetchval("select count(*) from boathook.endpoint where destination <> 'http'") == 0


# Wrong fields

WRONG = [
    ({"kind": "fiel"}, ("kind",), "write one of http, file, plain_file, echo"),
    ({}, ("kind",), "write one of http, file, plain_file, echo"),
    ({"kind": "file"}, ("path",), "it is required"),
    ({"kind": "file", "path": "../x"}, ("path",), "write a path such as acme/orders.jsonl"),
    ({**FILE, "maxMb": 1_001}, ("maxMb",), "write a number from 1 to 1,000"),
    ({**FILE, "maxMb": "many"}, ("maxMb",), "write a whole number"),
    ({**FILE, "token": "sh0rt7"}, ("token",), "write 8 to 200 characters"),
    ({**FILE, "colour": "red"}, ("colour",), "the kind file has no such field; it has path, maxMb, token"),
    ({"kind": "http", "path": "x"}, ("path",), "the kind http has no such field; it has none"),
    ({**FILE, "path": "private/x.jsonl"}, (), "files in outbox/private are not for endpoints"),
]


@pytest.mark.parametrize(("destination", "where", "text"), WRONG)
async def test_a_wrong_field_is_named_by_the_api(db, api, destination, where, text):
    refused = await make(api, 422, destination=destination)
    assert (tuple(refused["detail"][0]["loc"][2:]), refused["detail"][0]["msg"]) == (where, text)
    assert await db.fetchval("select count(*) from boathook.endpoint") == 0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"url": "http://127.0.0.1:8999/hook"}, "url"),
        ({"auth": {"basic": {"username": "a", "password": "b"}}}, "auth"),
        ({"headers": {"x-a": "b"}}, "headers"),
    ],
)
async def test_what_a_kind_does_not_have_is_refused_not_dropped(api, fields, name):
    refused = await make(api, 422, **fields)
    assert refused["detail"][0]["loc"] == ["body", name]
    assert refused["detail"][0]["msg"].startswith("destinations of the kind file have no ")
    made = await make(api)
    await api.ask(422, "PATCH", f"{HERE}/{made['id']}/headers", {"headers": {"x-a": "b"}})


async def test_an_endpoint_without_url_and_destination_is_refused(api):
    refused = await api.ask(422, "POST", HERE, {})
    assert (refused["detail"][0]["loc"], refused["detail"][0]["msg"]) == (["body", "url"], "it is required")


# The console


@pytest.fixture
async def console(db: Database) -> AsyncIterator[ConsoleApp]:
    async with open_console(db, outbound__destinations=KINDS) as console:
        yield console


async def test_the_console_creates_shows_and_changes_one(db, console):
    await console.tenant("acme")
    anna = await console.operator()
    home = "/console/applications/acme"
    form = {"destination": "file", "destination.file.path": "a/b.jsonl", "destination.file.token": TOKEN}
    page = await anna.get_page(f"{home}/endpoints/new")
    assert 'name="destination.file.maxMb"' in page
    assert "Size of a full file." in page
    there = (await anna.submit_form(f"{home}/endpoints", form, on=f"{home}/endpoints/new")).headers["location"]
    shown = await anna.get_page(there)
    assert "file:outbox/a/b.jsonl" in shown
    edit = await anna.get_page(f"{there}/edit")
    assert 'value="a/b.jsonl"' in edit
    assert TOKEN not in shown + edit
    await anna.submit_form(f"{there}/edit", {**form, "destination.file.token": "", "destination.file.maxMb": "9"})
    row = await db.fetchrow("select * from boathook.endpoint where destination = 'file'")
    assert json.loads(row["destination_fields"]) == {"path": "a/b.jsonl", "maxMb": 9}
    assert row["encrypted_destination"] is not None


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"destination.file.path": ""}, "it is required"),
        ({"destination.file.path": "../x"}, "write a path such as acme/orders.jsonl"),
        ({"destination.file.path": "x.jsonl", "destination.file.maxMb": "many"}, "write a whole number"),
        ({"destination.file.path": "x.jsonl", "destination.file.maxMb": "0"}, "write a number from 1 to 1,000"),
        ({"destination.file.path": "x.jsonl", "destination.file.token": "sh0rt7"}, "write 8 to 200 characters"),
        ({"destination.file.path": "x.jsonl", "url": "http://127.0.0.1:8999/x"}, "have no URL; omit it"),
        ({"destination.file.path": "private/x.jsonl"}, "files in outbox/private are not for endpoints"),
    ],
)
async def test_the_form_shows_what_is_wrong_at_its_field(console, form, text):
    await console.tenant("acme")
    anna, home = await console.operator(), "/console/applications/acme"
    answer = await anna.submit_form(
        f"{home}/endpoints", {"destination": "file", **form}, on=f"{home}/endpoints/new", status=400
    )
    assert text in answer.text
    assert "sh0rt7" not in answer.text


async def test_the_portal_shows_an_operators_destination_and_keeps_it(db, console):
    tenant = await console.tenant("acme")
    anna, home = await console.operator(), "/console/applications/acme"
    form = {"destination": "file", "destination.file.path": "orders.jsonl"}
    there = (await anna.submit_form(f"{home}/endpoints", form, on=f"{home}/endpoints/new")).headers["location"]
    pages, path = await console.portal_session(tenant), f"/portal/endpoints/{there.rpartition('/')[2]}"
    assert "file:outbox/orders.jsonl" in await pages.get_page(path)
    assert "which only operators change" in await pages.get_page(f"{path}/edit")
    await pages.submit_form(f"{path}/edit", {"description": "mine"})
    row = await db.fetchrow("select * from boathook.endpoint where destination = 'file'")
    assert (row["description"], row["url"]) == ("mine", "file:outbox/orders.jsonl")


# The document


def test_the_document_has_the_fields_of_each_kind():
    schemas = openapi_document(KINDS)["components"]["schemas"]
    assert schemas["Destination.file"]["required"] == ["kind", "path"]
    assert schemas["Destination.file"]["properties"]["maxMb"]["maximum"] == 1_000
    for name in ("EndpointIn", "EndpointUpdate", "EndpointPatch"):
        variants = schemas[name]["properties"]["destination"]["oneOf"]
        assert {"$ref": "#/components/schemas/Destination.file"} in variants


def test_installed_kinds_are_listed():
    assert installed_kinds() == sorted(KINDS)
