"""boathook inside a FastAPI application: the example of the documentation, on its own event loop."""

import importlib
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from boathook import ConfigError
from boathook.fastapi import Webhooks
from boathook.observability import meters
from boathook.testing import sign
from tests.endpoint_factory import add_application
from tests.support import eventually

EXAMPLES = Path(__file__).parents[3] / "examples"
SECRET = "whsec_in_process"
SETTINGS = f"""
[database]
url = "env:SHOP_DATABASE_URL"
[server]
app = "shop_fastapi:hook"
data_dir = "data"
[sources.stripe]
secrets = ["{SECRET}"]
paths = ["/webhooks/stripe"]
"""


@pytest.fixture
def folder(tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DATABASE_URL", pg_url)
    (tmp_path / "boathook.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "shop_fastapi", raising=False)
    return importlib.import_module("shop_fastapi")


@asynccontextmanager
async def running(app) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application, as its server runs it."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client,
    ):
        yield client


def paid(order: str, key: str = "evt_1") -> bytes:
    body = {"id": key, "type": "payment_intent.succeeded", "data": {"object": {"metadata": {"order": order}}}}
    return json.dumps(body).encode()


async def test_the_example_receives_handles_and_publishes_in_one_process(example, db):
    await add_application(db, "acme")
    async with running(example.app) as client:
        first, again = [await client.post("/orders", json={"id": "o1", "amount": 500}) for _ in range(2)]
        assert (first.status_code, again.status_code) == (201, 409)
        published = await db.fetch("select type from boathook.event where origin = 'published'")
        assert [row["type"] for row in published] == ["order.created"], "exactly what was committed"

        body = paid("o1")
        for path in ("/in/stripe", "/webhooks/stripe"):
            answer = await client.post(path, content=body, headers=sign("stripe", SECRET, body))
            assert (answer.status_code, answer.json()["duplicate"]) == (200, path != "/in/stripe")
        forged = await client.post("/in/stripe", content=body, headers=sign("stripe", "whsec_other", body))
        assert (forged.status_code, (await client.get("/in/stripe")).status_code) == (401, 405)

        async def is_paid() -> bool:
            return (await client.get("/orders/o1")).json()["is_paid"] is True

        await eventually(is_paid)
        with pytest.raises(ConfigError, match="runs already"):
            async with example.webhooks.lifespan():
                pass
    with pytest.raises(ConfigError, match="does not run"):
        _ = example.webhooks.running


@pytest.mark.usefixtures("db")
async def test_started_again_in_the_same_process_it_counts_each_event_once(example, folder):
    meters.reset()
    body, counted = paid("o1"), []
    for _ in range(3):
        async with running(example.app) as client:
            await client.post("/in/stripe", content=body, headers=sign("stripe", SECRET, body))
        series = json.loads((folder / "data/metrics/app-0.json").read_bytes())["series"]
        counted.append(series["boathook_events_accepted_total"] + series["boathook_duplicates_total"])
    assert counted == [[[["stripe"], n], [["stripe"], m]] for n, m in ((1, 0), (1, 1), (1, 2))]


async def test_a_router_with_a_prefix_that_leaves_deliveries_to_others(example, db):
    app = FastAPI()
    app.include_router(Webhooks(delivers=False).router, prefix="/shop")
    async with running(app) as client:
        body = paid("o2", "evt_2")
        answer = await client.post("/shop/in/stripe", content=body, headers=sign("stripe", SECRET, body))
        assert answer.status_code == 200
    states = await db.fetch("select state::text as state, attempts from boathook.delivery")
    assert [(row["state"], row["attempts"]) for row in states] == [("pending", 0)]


def test_without_postgresql_it_takes_events_into_the_spool(example, folder, monkeypatch):
    """With FastAPI's test client, which omits optional parts of ASGI."""
    monkeypatch.setenv("SHOP_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    app = FastAPI()
    app.include_router(Webhooks().router)
    with TestClient(app) as client:
        body = paid("o3", "evt_3")
        assert client.post("/in/stripe", content=body, headers=sign("stripe", SECRET, body)).status_code == 200
    assert [path.suffix for path in (folder / "data/spool").glob("*/*")] == [".seg"]


def test_a_wrong_setting_is_named_where_the_router_is_made(folder: Path):
    (folder / "boathook.toml").write_text("[server]\nbindd = 1\n")
    with pytest.raises(ConfigError, match=re.escape("server.bindd")):
        Webhooks()
