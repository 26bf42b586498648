import pytest

from tests.postgres.api import Api, make_token, opened_api

URL = "http://127.0.0.1:8999/hook"


@pytest.fixture
async def api(db):
    async with opened_api(db) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        yield client


async def make_types(api, *names):
    for name in names:
        await api.ask(201, "POST", "/event-type", {"name": name, "description": "it happened"})


async def test_defaults_on_creation(api):
    made = await api.ask(201, "POST", "/app/acme/endpoint/", {"url": "HTTPS://Example.COM"})
    assert made["url"] == "https://example.com/"
    assert made["version"] == 1 and made["description"] == "" and made["disabled"] is False
    assert made["eventTypes"] is None is made["filterTypes"] and made["channels"] is None and made["uid"] is None
    assert made["metadata"] == {} and made["auth"] == [] and made["retrySchedule"] is None
    assert await api.ask(200, "GET", f"/app/acme/endpoint/{made['id']}") == made
    secret = await api.ask(200, "GET", f"/app/acme/endpoint/{made['id']}/secret")
    assert secret["key"].startswith("whsec_")


async def test_event_types(api):
    await make_types(api, "a.b")
    assert (await api.ask(200, "GET", "/event-type"))["data"][0]["name"] == "a.b"
    made = await api.ask(201, "POST", "/app/acme/endpoint", {"url": URL, "filterTypes": ["a.b", "c.*"]})
    assert made["eventTypes"] == ["a.b", "c.*"]


async def test_portal(api):
    out = await api.ask(200, "POST", "/auth/app-portal-access/acme", {})
    portal = api.as_token(out["token"])
    assert (await portal.ask(200, "GET", "/app/acme"))["uid"] == "acme"
    await portal.ask(403, "GET", "/app")
    await portal.ask(204, "POST", "/auth/logout")
    await portal.ask(401, "GET", "/app/acme")


async def test_health(api):
    await api.ask(204, "GET", "/health")
    await api.ask(204, "GET", "/health/ping/")
    document = await api.ask(200, "GET", "/openapi.json")
    assert "/api/v1/app" in document["paths"]
