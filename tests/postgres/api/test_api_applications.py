import asyncio
import json

import pytest

from boathook.domain import ids
from boathook.service.unit_of_work import new_id
from tests.postgres.api_client import ApiClient, make_token, open_api_client
from tests.support import LOCK_WAITED_FOR, eventually


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        yield client


async def test_an_application_is_made_and_found_by_id_and_uid(api):
    made = await api.ask(201, "POST", "/app/", {"name": "Acme", "uid": "acme", "rateLimit": 7, "unknown": 1})
    assert made["id"].startswith("app_")
    assert len(made["id"]) == 31
    assert made["throttleRate"] == made["rateLimit"] == 7
    assert made["metadata"] == {}
    assert made["createdAt"].endswith("Z")
    assert len(made["createdAt"]) == 27
    assert await api.ask(200, "GET", f"/app/{made['id']}/") == made == await api.ask(200, "GET", "/app/acme")


async def test_the_new_name_of_a_field_wins_over_the_old_one(api):
    made = await api.ask(201, "POST", "/app", {"name": "Acme", "rateLimit": 7, "throttleRate": 9})
    assert made["rateLimit"] == 9


async def test_each_field_changes_alone_and_null_clears(api):
    start = {"name": "Acme", "uid": "acme", "throttleRate": 7, "metadata": {"a": "1"}}
    before = await api.ask(201, "POST", "/app", start)
    path = f"/app/{before['id']}"
    for change, shown in (
        ({"name": "Other"}, {"name": "Other"}),
        ({"uid": "other"}, {"uid": "other"}),
        ({"uid": None}, {"uid": None}),
        ({"throttleRate": 8}, {"throttleRate": 8, "rateLimit": 8}),
        ({"rateLimit": None}, {"throttleRate": None, "rateLimit": None}),
        ({"metadata": {"b": "2"}}, {"metadata": {"b": "2"}}),
        ({"metadata": None}, {"metadata": {}}),
    ):
        after = await api.ask(200, "PATCH", path, change)
        assert after == {**before, **shown, "updatedAt": after["updatedAt"]}, change
        before = after
    assert await api.ask(200, "PATCH", path, {}) == {
        **before,
        "updatedAt": (await api.ask(200, "GET", path))["updatedAt"],
    }


async def test_put_replaces_or_creates_with_the_uid_of_the_path(api):
    made = await api.ask(201, "PUT", "/app/acme", {"name": "Acme", "throttleRate": 3})
    assert made["uid"] == "acme"
    again = await api.ask(200, "PUT", "/app/acme", {"name": "Acme 2"})
    assert (again["id"], again["uid"], again["throttleRate"]) == (made["id"], "acme", None)
    assert (await api.ask(200, "PUT", "/app/acme", {"name": "Acme 2"}))["id"] == made["id"]
    assert (await api.ask(200, "PUT", f"/app/{made['id']}", {"name": "Acme"}))["uid"] is None
    other = await api.ask(201, "PUT", "/app/acme", {"name": "Acme", "uid": "mine"})
    assert other["uid"] == "mine"
    unknown = "app_" + "0" * 27
    assert (await api.ask(201, "PUT", f"/app/{unknown}", {"name": "Acme"}))["uid"] is None


async def test_get_if_exists_returns_the_existing_unchanged(api):
    made = await api.ask(201, "POST", "/app?get_if_exists=true", {"name": "Acme", "uid": "acme"})
    assert await api.ask(200, "POST", "/app?get_if_exists=true", {"name": "Other", "uid": "acme"}) == made


ACME = {"name": "Acme", "uid": "acme"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/app?get_if_exists=true", ACME, 200),
        ("PUT", "/app/acme", ACME, 200),
        ("POST", "/app/acme/msg", {"eventType": "a.b", "payload": {}, "application": ACME}, 202),
        ("POST", "/auth/app-portal-access/acme", {"application": ACME}, 200),
    ],
)
async def test_an_application_that_another_request_is_creating_is_found(api, db, method, path, body, status):
    async with db.transaction() as connection:
        made = new_id()
        await connection.execute(
            "insert into boathook.application (id, organization, name, uid) values ($1, 'default', 'Acme', 'acme')",
            made,
        )
        asked = asyncio.create_task(api.request(method, path, json=body))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
    assert (await asked).status_code == status
    (row,) = (await api.ask(200, "GET", "/app"))["data"]
    assert row["id"] == ids.show(ids.APPLICATION, made)


async def test_a_uid_is_unique_until_released(api):
    first = await api.ask(201, "POST", "/app", {"name": "1", "uid": "u"})
    error = await api.ask(409, "POST", "/app", {"name": "2", "uid": "u"})
    assert error["code"] == "conflict"
    second = await api.ask(201, "POST", "/app", {"name": "2", "uid": "v"})
    await api.ask(409, "PUT", "/app/v", {"name": "2", "uid": "u"})
    await api.ask(409, "PATCH", "/app/v", {"uid": "u"})
    await api.ask(200, "PATCH", "/app/u", {"uid": "w"})
    await api.ask(404, "GET", "/app/u")
    await api.ask(200, "PATCH", f"/app/{second['id']}", {"uid": "u"})
    await api.ask(204, "DELETE", f"/app/{first['id']}")
    await api.ask(201, "POST", "/app", {"name": "3", "uid": "w"})


async def test_a_deleted_application_is_not_found(api):
    await api.ask(201, "POST", "/app", {"name": "1", "uid": "u"})
    token = await make_token(api.context, application="u")
    await api.as_token(token).ask(200, "GET", "/app/u")
    await api.ask(204, "DELETE", "/app/u")
    for method in ("GET", "DELETE", "PATCH"):
        await api.ask(404, method, "/app/u", {} if method == "PATCH" else None)
    await api.as_token(token).ask(401, "GET", "/app/u")


BROKEN = [
    ({}, ["body", "name"]),
    ({"name": ""}, ["body", "name"]),
    ({"name": "a\x01"}, ["body", "name"]),
    ({"name": 7}, ["body", "name"]),
    ({"name": "a", "uid": "app_1"}, ["body", "uid"]),
    ({"name": "a", "uid": "ä"}, ["body", "uid"]),
    ({"name": "a", "throttleRate": 0}, ["body", "throttleRate"]),
    ({"name": "a", "throttleRate": 65_536}, ["body", "throttleRate"]),
    ({"name": "a", "metadata": {"a": 1}}, ["body", "metadata", "a"]),
    ({"name": "a", "metadata": {"a": "x" * 4_096}}, ["body", "metadata"]),
    ([], ["body"]),
]


async def test_invalid_fields_are_named(api):
    for body, where in BROKEN:
        error = await api.ask(422, "POST", "/app", body)
        assert error["detail"][0]["loc"] == where
        assert error["detail"][0]["type"] == "value_error"
        assert error["detail"][0]["msg"]


NO_JSON = [b"{", b"[" * 100_000, b'{"name": "\\ud800"}', b'{"name": NaN}', b"\xff"]


async def test_invalid_json_is_reported(api):
    for body in NO_JSON:
        error = await api.ask(422, "POST", "/app", content=body)
        assert error["detail"][0]["type"] == "value_error.jsondecode"


async def test_a_body_is_read_as_json_with_any_content_type(api):
    for type in ("text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data; boundary=x"):
        body = json.dumps({"name": "Acme"}).encode()
        await api.ask(201, "POST", "/app", content=body, headers={"content-type": type} if type else {})


async def test_a_list_is_paged_both_ways_in_both_orders(api):
    made = [(await api.ask(201, "POST", "/app", {"name": str(number)}))["id"] for number in range(10)]

    async def ids(query: str) -> tuple[list[str], dict]:
        page = await api.ask(200, "GET", f"/app?{query}")
        return [row["id"] for row in page["data"]], page

    for limit in (1, 6, 10, 50):
        seen, query = [], f"limit={limit}"
        while True:
            rows, page = await ids(query)
            seen += rows
            assert page["iterator"] == rows[-1]
            assert page["prevIterator"] == f"-{rows[0]}"
            if page["done"]:
                break
            query = f"limit={limit}&iterator={page['iterator']}"
        assert seen == made
    assert (await ids("order=descending"))[0] == made[::-1]

    rows, page = await ids(f"limit=3&iterator=-{made[7]}")
    assert rows == made[4:7]
    assert not page["done"]
    rows, page = await ids(f"limit=7&iterator=-{made[7]}")
    assert rows == made[:7]
    assert page["done"]
    rows, page = await ids(f"limit=3&order=descending&iterator=-{made[2]}")
    assert rows == [made[5], made[4], made[3]]
    assert not page["done"]

    rows, page = await ids(f"iterator={made[-1]}")
    assert page == {"data": [], "iterator": None, "done": True}


BAD_PAGES = ["limit=251", "limit=0", "limit=x", "iterator=ep_1", "iterator=app_1", "iterator=-", "iterator=app_" + "z" * 27,
              "iterator=%00", "order=up"]  # fmt: skip


async def test_a_bad_page_is_422(api):
    for query in BAD_PAGES:
        error = await api.ask(422, "GET", f"/app?{query}")
        assert error["detail"][0]["loc"][0] == "query"


async def test_a_list_can_exclude_by_missing_or_disabled_endpoints(api):
    for uid in ("none", "all", "some"):
        await api.ask(201, "POST", "/app", {"name": uid, "uid": uid})
    await api.ask(201, "POST", "/app/all/endpoint", {"url": "http://127.0.0.1:8999/"})
    await api.ask(201, "POST", "/app/some/endpoint", {"url": "http://127.0.0.1:8999/", "disabled": True})

    async def uids(query: str) -> list[str]:
        return [row["uid"] for row in (await api.ask(200, "GET", f"/app?{query}"))["data"]]

    assert await uids("exclude_apps_with_no_endpoints=true") == ["all", "some"]
    assert await uids("exclude_apps_with_disabled_endpoints=true") == ["none", "all"]


async def test_organizations_do_not_see_each_other(api):
    other = ApiClient(api.context, await make_token(api.context, "other"))
    made = await api.ask(201, "POST", "/app", {"name": "1", "uid": "u"})
    await other.ask(404, "GET", f"/app/{made['id']}")
    await other.ask(404, "GET", "/app/u")
    await other.ask(404, "PATCH", f"/app/{made['id']}", {"name": "2"})
    await other.ask(404, "DELETE", f"/app/{made['id']}")
    assert (await other.ask(200, "GET", "/app"))["data"] == []
    assert (await other.ask(201, "POST", "/app", {"name": "2", "uid": "u"}))["id"] != made["id"]
    assert await api.ask(200, "GET", "/app/u") == made


async def test_unlikely_references_are_not_found(api):
    for reference in ("app_", "app_1", "%00", "a%20b", "%ff", "x" * 300, "app_" + "z" * 27):
        await api.ask(404, "GET", f"/app/{reference}")
