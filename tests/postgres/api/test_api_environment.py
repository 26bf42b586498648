"""Event types taken out and put in, and operational webhooks, over the API."""

import itertools
import json
from typing import Any

import pytest

from tests.postgres.api_client import ApiClient, make_token, open_api_client


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        yield client


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "webhooks": {
        "pet.new": {
            "post": {
                "description": "A pet was born",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"$ref": "#/components/schemas/Pet"},
                            "example": {"name": "Rex"},
                        }
                    }
                },
            }
        },
        "pet.gone": {"$ref": "#/components/pathItems/gone"},
    },
    "components": {
        "schemas": {
            "Pet": {"type": "object", "properties": {"owner": {"$ref": "#/components/schemas/Owner"}}},
            "Owner": {"type": "object", "properties": {"pets": {"items": {"$ref": "#/components/schemas/Pet"}}}},
        },
        "pathItems": {"gone": {"post": {"summary": "A pet is gone", "deprecated": True}}},
    },
}


async def names(api: ApiClient) -> dict[str, bool]:
    page = await api.ask(200, "GET", "/event-type?include_archived=true")
    return {row["name"]: row["archived"] for row in page["data"]}


async def test_webhooks_of_an_openapi_document_become_event_types(api):
    path = "/event-type/import/openapi"
    await api.ask(201, "POST", "/event-type", {"name": "old", "description": "Old"})
    dry = await api.ask(200, "POST", path, {"spec": DOCUMENT, "dryRun": True, "replaceAll": True})
    assert dry["data"]["modified"] == ["pet.new", "pet.gone"]
    assert [one["deprecated"] for one in dry["data"]["to_modify"]] == [False, True]
    assert await names(api) == {"old": False}
    done = await api.ask(200, "POST", path, {"specRaw": json.dumps(DOCUMENT), "replaceAll": True})
    assert done["data"]["modified"] == ["pet.new", "pet.gone"]
    assert await names(api) == {"old": True, "pet.gone": False, "pet.new": False}
    made = await api.ask(200, "GET", "/event-type/pet.new")
    assert made["description"] == "A pet was born"
    schema = made["schemas"]["1"]
    assert schema["$ref"] == "#/definitions/schemas.Pet"
    assert set(schema["definitions"]) == {"schemas.Pet", "schemas.Owner"}
    assert schema["examples"] == [{"name": "Rex"}]
    await api.ask(204, "DELETE", "/event-type/pet.gone")
    again = await api.ask(200, "POST", path, {"spec": DOCUMENT})
    assert again["data"]["modified"] == ["pet.gone"]
    assert (await names(api))["pet.gone"] is False


YAML = """
openapi: 3.1.0
x-webhooks:
  pet.new:
    post:
      summary: A pet was born
      requestBody:
        content:
          application/json:
            schema: {type: object, required: [name]}
      responses:
        200: {description: fine}
"""
BOMB = "a: &a [1]\n" + "\n".join(f"{b}: &{b} [*{a},*{a},*{a}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True))


async def test_documents_may_be_yaml_and_must_be_sound(api):
    path = "/event-type/import/openapi"
    done = await api.ask(200, "POST", path, {"specRaw": YAML})
    assert done["data"] == {"modified": ["pet.new"], "to_modify": None}
    loop = {"webhooks": {"a": {"$ref": "#/webhooks/a"}}}
    wrong = [
        {},
        {"spec": {}, "specRaw": "{}"},
        {"spec": {}},
        {"spec": {"webhooks": {"a b": {}}}},
        {"spec": loop},
        {"spec": {"webhooks": {"a": {"$ref": "#/nowhere"}}}},
        {"specRaw": "[1]"},
        {"specRaw": "a: ["},
        {"specRaw": BOMB},
        {"specRaw": "x" * 600_000},
    ]
    for body in wrong:
        answer = await api.ask(422, "POST", path, body)
        assert answer["detail"][0]["loc"][0] == "body"


def unfolding(width: int, depth: int) -> str:
    """Return a sound document of few bytes with a list that unfolds to *width* to the power of *depth* values."""
    names = [f"x-{place}" for place in range(depth)]
    lists = [f"{name}: &{name} [{', '.join([f'*{inner}'] * width)}]" for inner, name in itertools.pairwise(names)]
    return YAML + f"x-0: &x-0 [{', '.join('1' * width)}]\n" + "\n".join(lists) + "\n"


async def test_a_document_that_is_sound_but_for_its_aliases_is_refused(api):
    path = "/event-type/import/openapi"
    assert len(unfolding(10, 6)) < 2_000
    answer = await api.ask(422, "POST", path, {"specRaw": unfolding(10, 6), "dryRun": True})
    assert answer["detail"][0]["loc"] == ["body", "specRaw"]
    written_out = YAML + "x-0: [1, 1]\nx-1: [[1, 1], [1, 1]]\n"
    assert (await api.ask(200, "POST", path, {"specRaw": written_out, "dryRun": True}))["data"]["modified"]


async def test_an_export_can_be_imported_into_another_organization(api):
    flags = {"featureFlags": ["beta"], "groupName": "pets", "schemas": {"1": {"type": "object"}}}
    await api.ask(201, "POST", "/event-type", {"name": "pet.new", "description": "A pet"} | flags)
    await api.ask(201, "POST", "/event-type", {"name": "pet.old", "description": "Old", "archived": True})
    taken = await api.ask(200, "POST", "/environment/export")
    assert taken["settings"] == {}, "PHP's client takes nothing else"
    assert taken["connectors"] == []
    assert taken["version"] == 1
    other = api.as_token(await make_token(api.context, "other"))
    for _ in range(2):
        await other.ask(204, "POST", "/environment/import", taken)
    again = await other.ask(200, "POST", "/environment/export")
    stamps = {"createdAt": None, "updatedAt": None}
    assert [row | stamps for row in again["eventTypes"]] == [row | stamps for row in taken["eventTypes"]]


async def test_operational_webhooks_are_endpoints_of_the_organization(api):
    path = "/operational-webhook/endpoint"
    assert await api.ask(200, "GET", path) == {"data": [], "iterator": None, "done": True}
    await api.ask(404, "GET", f"{path}/main")
    body = {"url": "http://127.0.0.1:18080/ops", "uid": "main", "eventTypes": ["endpoint.created"]}
    made = await api.ask(201, "POST", path, body | {"headers": {"x-a": "b"}})
    assert await api.ask(200, "GET", f"{path}/main") == made
    assert made["eventTypes"] == made["filterTypes"] == ["endpoint.created"]
    assert (await api.ask(200, "GET", path))["data"] == [made]
    assert (await api.ask(200, "GET", "/app"))["data"] == []
    assert (await api.ask(200, "GET", f"{path}/main/headers"))["headers"] == {"x-a": "b"}
    await api.ask(204, "PUT", f"{path}/main/headers", {"headers": {}})
    secret = await api.ask(200, "GET", f"{path}/main/secret")
    await api.ask(204, "POST", f"{path}/main/secret/rotate", {"gracePeriodSeconds": 0})
    assert await api.ask(200, "GET", f"{path}/main/secret") != secret
    await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
    await api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/"})
    rows = await api.context.database.fetch("select recipient from boathook.delivery")
    assert [row["recipient"] for row in rows] == [f"endpoint:{made['id']}"]
    changed = await api.ask(200, "PUT", f"{path}/main", {"url": "http://127.0.0.1:18080/ops", "uid": "main"})
    assert changed["eventTypes"] is None
    await api.ask(422, "PUT", f"{path}/main", body | {"eventTypes": ["invoice.paid"]})
    foreign_client = api.as_token(await make_token(api.context, "other"))
    await foreign_client.ask(404, "GET", f"{path}/{made['id']}")
    application_client = api.as_token(await make_token(api.context, application="acme"))
    await application_client.ask(403, "GET", path)
    await api.ask(204, "DELETE", f"{path}/main")
    await api.ask(404, "DELETE", f"{path}/main")
