"""The API on the gateway's port: there when PostgreSQL is, and in nobody's way before."""

from functools import partial

import httpx
import pytest

from boathook import config
from boathook.journal.database import DUE_CHANNEL
from boathook.server.console import Console
from boathook.telemetry.exporters import History
from tests.postgres.api import make_desk, make_token
from tests.support import eventually


@pytest.fixture
async def opened(tmp_path):
    """Open a console on a database."""
    consoles = []

    def start(url: str) -> tuple[Console, httpx.AsyncClient]:
        console = Console(config.load(None, {"database.url": url, "server.data_dir": str(tmp_path)}), History(None))
        consoles.append(console)
        return console, httpx.AsyncClient(transport=httpx.ASGITransport(console), base_url="http://api.test")

    yield start
    for console in consoles:
        await console.close()


async def test_it_answers_503_until_it_is_up_and_again_when_it_is_closed(opened, pg_url, db):
    console, client = opened(pg_url)
    headers = {"authorization": f"Bearer {await make_token(make_desk(db))}"}
    early = await client.get("/api/v1/app", headers=headers)
    assert early.status_code == 503
    assert early.json()["code"] == "unavailable"
    assert early.headers["retry-after"]
    console.open()

    async def answers(status: int) -> bool:
        return (await client.get("/api/v1/app", headers=headers)).status_code == status

    await eventually(partial(answers, 200), timeout=30)
    await console.close()
    assert await answers(503)


async def test_without_postgresql_it_goes_on_trying_and_answers_503(opened):
    console, client = opened("postgresql://127.0.0.1:1/none")
    console.open()
    for _ in range(3):
        assert (await client.get("/api/v1/app")).status_code == 503


async def test_other_paths_are_not_found(opened, pg_url):
    _, client = opened(pg_url)
    answer = await client.get("/elsewhere")
    assert (answer.status_code, answer.json()["error"]) == (404, "not found")


async def test_messages_are_announced_once_they_are_committed(opened, pg_url, db):
    console, client = opened(pg_url)
    client.headers["authorization"] = f"Bearer {await make_token(make_desk(db))}"
    heard: list[str] = []
    await db.listen(DUE_CHANNEL, heard.append)
    console.open()

    async def is_heard() -> bool:
        await db.execute("select pg_notify($1, 'test')", DUE_CHANNEL)
        return (
            "test" in heard and (await client.post("/api/v1/app", json={"name": "A", "uid": "acme"})).status_code < 500
        )

    await eventually(is_heard, timeout=30)
    assert (await client.post("/api/v1/app/acme/msg", json={"eventType": "a b", "payload": {}})).status_code == 422
    assert "" not in heard
    assert (await client.post("/api/v1/app/acme/msg", json={"eventType": "a.b", "payload": {}})).status_code == 202
    await eventually(lambda: "" in heard)
