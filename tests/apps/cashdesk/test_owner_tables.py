"""The import of a cabinet's own webhooks."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boathook_cashdesk.receiver import Receiver
from tests.apps.cashdesk.server import CashdeskServer
from tests.apps.owner_database import create_tables, fingerprint, kill_in_batch, run_import
from tests.support import eventually

DDL = Path(__file__).with_name("owner_tables.sql")
TABLES = ("cashdesk.users", "cashdesk.webhooks", "cashdesk.imported_row", "boathook.endpoint", "boathook.application")
URL = "https://shop.example/hooks"


@pytest.fixture
def desk(tmp_path, admin_url, pg_template) -> Iterator[CashdeskServer]:
    """An app with its tables and the owner's; its server does not run."""
    with CashdeskServer.prepared(tmp_path, admin_url, pg_template) as server:
        server.cli("migrate")
        create_tables(server, DDL, "old", user_id="integer")
        yield server


def add(server: CashdeskServer, user: Any, *, url: str | None = URL, types: int = 1, is_active: bool = True) -> int:
    [row] = server.rows(
        'insert into old."Webhook" (url, subscribes, "userId", "isActive") values (%s, %s, %s, %s) returning id',
        url, types, user, is_active,
    )  # fmt: skip
    return row["id"]


def test_webhooks_are_imported_once_each_with_an_endpoint(desk):
    for user in (17, 17, 18):
        add(desk, user, types=0b100101)
    add(desk, 18, types=0)
    add(desk, 18, is_active=False)
    first = run_import(desk, "--schema", "old", "--batch", "2")
    assert first["Webhook"] == {"rows": 5, "imported": 5}
    assert desk.rows("select name, owner_id from cashdesk.users order by owner_id") == [
        {"name": "user 17", "owner_id": 17}, {"name": "user 18", "owner_id": 18},
    ]  # fmt: skip
    listed = [json.loads(line) for line in desk.cli("cashdesk", "webhooks", "list", "--json").stdout.splitlines()]
    assert [row["url"] for row in listed] == [URL] * 5
    assert [kind for kind, is_selected in listed[0]["types"].items() if is_selected] == [
        "products",
        "shifts",
        "operations",
    ]
    assert desk.rows("select count(*) as n from boathook.endpoint") == [{"n": 5}]
    before = fingerprint(desk, *TABLES)
    assert run_import(desk, "--schema", "old")["Webhook"] == {"rows": 5, "unchanged": 5}
    assert fingerprint(desk, *TABLES) == before


def test_users_may_have_uuids(desk):
    create_tables(desk, DDL, "other", user_id="uuid")
    owner = uuid.uuid4()
    desk.rows('insert into other."Webhook" (url, subscribes, "userId") values (%s, 1, %s)', URL, owner)
    assert run_import(desk, "--schema", "other")["Webhook"] == {"rows": 1, "imported": 1}
    assert desk.rows("select owner_uuid from cashdesk.users") == [{"owner_uuid": owner}]


def test_a_dry_run_changes_nothing(desk):
    add(desk, 17)
    before = fingerprint(desk, *TABLES)
    assert run_import(desk, "--schema", "old", "--dry-run")["Webhook"] == {"rows": 1, "imported": 1}
    assert fingerprint(desk, *TABLES) == before


@pytest.mark.parametrize("after", [1, 4])
def test_a_kill_loses_and_doubles_nothing(desk, after):
    for user in range(6):
        add(desk, user // 2)
    kill_in_batch(desk, "--schema", "old", "--batch", "3", after=after)
    [count] = desk.rows("select count(*) as n from cashdesk.imported_row")
    assert run_import(desk, "--schema", "old", "--batch", "3")["Webhook"].get("imported", 0) == 6 - count["n"]
    for table, number in {"cashdesk.webhooks": 6, "boathook.endpoint": 6, "cashdesk.users": 3}.items():
        assert desk.rows(f"select count(*) as n from {table}") == [{"n": number}], table


def test_bad_rows_are_named_with_key_and_column(desk):
    wrong = {
        add(desk, None): "userId", add(desk, 1, url=None): "url", add(desk, 1, url="ftp://shop.example"): "url",
        add(desk, 1, types=64): "subscribes", add(desk, 1, types=-1): "subscribes",
        add(desk, 1, url="https://user:secret@shop.example/"): "url",
    }  # fmt: skip
    add(desk, 1)
    done = run_import(desk, "--schema", "old", code=1)
    assert {int(key): column for (_, key), (column, _) in done["rejected"].items()} == wrong
    assert done["Webhook"] == {"rows": 7, "imported": 1, "rejected": 6}


def test_a_changed_webhook_changes_its_endpoint(desk):
    add(desk, 17)
    run_import(desk, "--schema", "old")
    desk.rows('update old."Webhook" set url = %s', "https://shop.example/other")
    assert run_import(desk, "--schema", "old")["Webhook"] == {"rows": 1, "updated": 1}
    assert desk.rows("select url from boathook.endpoint") == [{"url": "https://shop.example/other"}]


def test_an_unknown_schema_is_refused(desk):
    desk.rows('alter table old."Webhook" rename column "isActive" to is_active')
    done = desk.cli("cashdesk", "import", "--schema", "old", check=False)
    assert done.returncode == 1
    assert "the column Webhook.isActive is missing" in done.stderr.replace("\n", " ")


async def test_an_imported_webhook_receives_events(desk):
    async with Receiver().open() as receiver:
        add(desk, 17, url=f"{receiver.base}/shop")
        run_import(desk, "--schema", "old")
        token = json.loads(desk.cli("cashdesk", "users", "renew", "user 17", "--json").stdout)["token"]
        # The server is waited for in a thread, because the receiver runs in this one.
        await asyncio.to_thread(desk.start)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=desk.base, timeout=300, headers=headers) as http:
            [webhook] = (await http.get("/cabinet/api/webhooks")).json()["data"]
            secret = await http.get(f"/cabinet/api/webhooks/{webhook['id']}/secret")
            receiver.secrets["/shop"] = secret.json()["secret"]
            answer = await http.post("/cabinet/api/products", json={"name": "Tea", "price": 100, "vat": "20"})
        assert answer.status_code == 201, answer.text
        await eventually(lambda: receiver.heard["/shop"])
        assert receiver.heard["/shop"].total() == 1
