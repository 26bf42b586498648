from typing import Any

import pytest

from tests.postgres.api_client import ApiClient, make_token, open_api_client


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        yield client


async def make(api, name, **fields):
    return await api.ask(201, "POST", "/event-type/", {"name": name, "description": "it happened", **fields})


async def test_an_event_type_is_made_with_both_generations_of_its_fields(api):
    made = await make(api, "invoice.paid", featureFlag="beta", groupName="invoices", schemas={"1": {"type": "object"}})
    assert made["featureFlag"] == "beta"
    assert made["featureFlags"] == ["beta"]
    assert made["schemas"] == {"1": {"type": "object"}}
    assert (made["archived"], made["deprecated"], made["groupName"]) == (False, False, "invoices")
    assert await api.ask(200, "GET", "/event-type/invoice.paid") == made
    both = await make(api, "b", featureFlag="old", featureFlags=["new", "newer"])
    assert both["featureFlags"] == ["new", "newer"]
    assert both["featureFlag"] == "new"


async def test_each_field_changes_alone_and_null_clears(api):
    before = await make(api, "a", schemas={"1": {}}, featureFlags=["x"], groupName="g")
    for change, shown in (
        ({"description": "other"}, {"description": "other"}),
        ({"archived": True}, {"archived": True}),
        ({"archived": False}, {"archived": False}),
        ({"deprecated": True}, {"deprecated": True}),
        ({"schemas": {"2": {}}}, {"schemas": {"2": {}}}),
        ({"schemas": None}, {"schemas": None}),
        ({"featureFlag": "y"}, {"featureFlag": "y", "featureFlags": ["y"]}),
        ({"featureFlag": None}, {"featureFlag": None, "featureFlags": None}),
        ({"featureFlags": ["z"]}, {"featureFlag": "z", "featureFlags": ["z"]}),
        ({"featureFlags": None}, {"featureFlag": None, "featureFlags": None}),
        ({"groupName": None}, {"groupName": None}),
    ):
        after = await api.ask(200, "PATCH", "/event-type/a", change)
        assert after == {**before, **shown, "updatedAt": after["updatedAt"]}, change
        before = after


async def test_put_creates_under_the_paths_name_and_replaces(api):
    assert (await api.ask(201, "PUT", "/event-type/a.b", {"description": "x", "schemas": {"1": {}}}))["name"] == "a.b"
    after = await api.ask(200, "PUT", "/event-type/a.b", {"description": "y"})
    assert (after["description"], after["schemas"]) == ("y", None)
    await api.ask(422, "PUT", "/event-type/a%20b", {"description": "x"})


async def test_an_archived_type_is_hidden_until_created_again(api):
    await make(api, "a", schemas={"1": {}})
    assert (await api.ask(409, "POST", "/event-type", {"name": "a", "description": "x"}))["code"] == "event_type_exists"
    await api.ask(204, "DELETE", "/event-type/a")
    assert (await api.ask(200, "GET", "/event-type"))["data"] == []
    assert len((await api.ask(200, "GET", "/event-type?include_archived=true"))["data"]) == 1
    assert (await api.ask(200, "GET", "/event-type/a"))["archived"] is True
    back = await api.ask(201, "POST", "/event-type", {"name": "a", "description": "new"})
    assert (back["archived"], back["description"], back["schemas"]) == (False, "new", None)


async def test_an_expunged_type_is_not_found(api):
    await make(api, "a")
    await api.ask(204, "DELETE", "/event-type/a?expunge=true")
    await api.ask(404, "GET", "/event-type/a")
    await api.ask(404, "DELETE", "/event-type/a")
    await api.ask(404, "PATCH", "/event-type/a", {"description": "x"})


async def test_the_list_is_ordered_by_name_with_optional_schemas(api):
    for name in ("b", "a.c", "B", "a-b", "a"):
        await make(api, name, schemas={"1": {}})
    names = ["B", "a", "a-b", "a.c", "b"]

    async def page(query):
        answer = await api.ask(200, "GET", f"/event-type?{query}")
        return [row["name"] for row in answer["data"]], answer["iterator"], answer.get("prevIterator"), answer["done"]

    assert await page("limit=2") == (["B", "a"], "a", "-B", False)
    assert await page("limit=3&iterator=a") == (["a-b", "a.c", "b"], "b", "-a-b", True)
    assert await page("limit=2&iterator=-a.c") == (["a", "a-b"], "a-b", "-a", False)
    assert (await page("order=descending"))[0] == names[::-1]
    await api.ask(422, "GET", "/event-type?iterator=a%20b")
    assert (await api.ask(200, "GET", "/event-type"))["data"][0]["schemas"] is None
    assert (await api.ask(200, "GET", "/event-type?with_content=true"))["data"][0]["schemas"] == {"1": {}}


BROKEN: list[dict[str, Any]] = [
        {"name": "a b"}, {"name": ""}, {"name": "a" * 257}, {"description": None}, {"schemas": {"1": 7}},
        {"schemas": {"1": {"type": "nothing"}}}, {"schemas": []}, {"featureFlags": [7]}, {"archived": "no"},
    ]  # fmt: skip


async def test_invalid_fields_are_422(api):
    for fields in BROKEN:
        error = await api.ask(422, "POST", "/event-type", {"name": "a", "description": "x", **fields})
        assert error["detail"][0]["loc"][:2] == ["body", next(iter(fields))]


async def test_organizations_have_catalogs_of_their_own(api):
    await make(api, "a")
    other = ApiClient(api.context, await make_token(api.context, "other"))
    await other.ask(404, "GET", "/event-type/a")
    await other.ask(404, "DELETE", "/event-type/a")
    await make(other, "a")
    assert len((await other.ask(200, "GET", "/event-type"))["data"]) == 1
