import pytest

from tests.postgres.api import Api, make_token, opened_api


@pytest.fixture
async def api(db):
    async with opened_api(db) as client:
        yield client


async def test_an_application_is_made_and_found_by_id_and_uid(api):
    made = await api.ask(201, "POST", "/app/", {"name": "Acme", "uid": "acme", "rateLimit": 7, "unknown": 1})
    assert made["id"].startswith("app_") and len(made["id"]) == 31
    assert made["throttleRate"] == made["rateLimit"] == 7
    assert made["metadata"] == {} and made["createdAt"].endswith("Z") and len(made["createdAt"]) == 27
    assert await api.ask(200, "GET", f"/app/{made['id']}/") == made == await api.ask(200, "GET", "/app/acme")
