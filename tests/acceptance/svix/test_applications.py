"""Applications and endpoints in the API, over plain HTTP."""

import base64
import secrets
from typing import Any

import pytest

from tests.acceptance.svix.server import UNREACHABLE_URL, Api, unique_name


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"updatedAt", *names}}


def check_paging(api: Api, path: str, ascending: list[str], *, name: str = "id", is_ascending: bool) -> None:
    """Assert that a list can be read in any steps, both ways and back again."""
    count = len(ascending)
    for order in ("ascending", "descending"):
        wanted = ascending if order == "ascending" else ascending[::-1]
        for limit in (1, 6, count, 50):
            page = api.get(path, limit=limit, order=order)
            assert [row[name] for row in page["data"]] == wanted[:limit]
            assert page["done"] is (limit >= count)
            assert page["iterator"] == page["data"][-1][name]
        assert [row[name] for row in api.pages(path, limit=3, order=order)] == wanted
        page = api.get(path, limit=4, order=order)
        second = api.get(path, limit=4, order=order, iterator=page["iterator"])
        assert [row[name] for row in second["data"]] == wanted[4:8]
        back = api.get(path, limit=4, order=order, iterator=second["prevIterator"])
        assert [row[name] for row in back["data"]] == wanted[:4]
    assert [row[name] for row in api.get(path)["data"]] == (ascending if is_ascending else ascending[::-1])
    empty = api.get(path, iterator=(ascending if is_ascending else ascending[::-1])[-1])
    assert (empty["data"], empty["iterator"], empty["done"]) == ([], None, True)
    for bad in ("nonsense", f"xyz_{'0' * 27}", "app_not-an-id"):
        api.get(path, iterator=bad, expect=422)
    for limit in (0, 251, 300):
        api.get(path, limit=limit, expect=422)
    api.get(path, limit="many", expect=422)


class TestApplications:
    def test_are_created_read_replaced_and_deleted(self, api):
        made = api.post("/app", {"name": "Shop"}, expect=201)
        assert made["metadata"] == {}
        assert made["uid"] is made["throttleRate"] is made["rateLimit"] is None
        assert api.get(f"/app/{made['id']}") == made
        put = api.put(f"/app/{made['id']}", {"name": "Other", "throttleRate": 5, "metadata": {"a": "b"}})
        assert (put["name"], put["throttleRate"], put["rateLimit"], put["metadata"]) == ("Other", 5, 5, {"a": "b"})
        api.delete(f"/app/{made['id']}")
        assert api.get(f"/app/{made['id']}", expect=404)["code"] == "not_found"
        api.patch(f"/app/{made['id']}", {"name": "x"}, expect=404)
        api.delete(f"/app/{made['id']}", expect=404)

    @pytest.mark.parametrize(
        ("change", "read"),
        [
            ({"name": "Renamed"}, {"name": "Renamed"}),
            ({"throttleRate": 9}, {"throttleRate": 9, "rateLimit": 9}),
            ({"rateLimit": 8}, {"throttleRate": 8, "rateLimit": 8}),
            ({"throttleRate": None}, {"throttleRate": None, "rateLimit": None}),
            ({"uid": None}, {"uid": None}),
            ({"metadata": {"c": "d"}}, {"metadata": {"c": "d"}}),
            ({"metadata": {}}, {"metadata": {}}),
        ],
        ids=lambda value: "-".join(f"{name}={entry}" for name, entry in value.items()),
    )
    def test_a_patch_changes_one_field_and_leaves_the_others(self, api, change, read):
        body = {"name": "Shop", "uid": unique_name(), "throttleRate": 5, "metadata": {"a": "b"}}
        made = api.post("/app", body, expect=201)
        patched = api.patch(f"/app/{made['id']}", change)
        assert without(patched) == without(made | read)
        assert api.get(f"/app/{made['id']}") == patched

    def test_putting_an_unknown_one_creates_it(self, api):
        uid = unique_name()
        made = api.put(f"/app/{uid}", {"name": "Fresh"}, expect=201)
        assert api.put(f"/app/{uid}", {"name": "Fresh again", "uid": uid}, expect=200)["id"] == made["id"]
        assert api.get(f"/app/{uid}")["name"] == "Fresh again"

    def test_lists_are_read_in_pages_both_ways(self, server):
        api = Api(server.base, server.make_key(f"pages-{unique_name()}"))
        made = [api.post("/app", {"name": f"app {n}"}, expect=201)["id"] for n in range(10)]
        check_paging(api, "/app", made, is_ascending=True)

    def test_a_uid_belongs_to_one_at_a_time(self, api, own):
        uid = unique_name()
        first = api.post("/app", {"name": "x", "uid": uid}, expect=201)
        second = api.post("/app", {"name": "y", "uid": unique_name()}, expect=201)
        assert api.post("/app", {"name": "x", "uid": uid}, expect=409)["code"] == "conflict"
        api.put(f"/app/{second['id']}", {"name": "y", "uid": uid}, expect=409)
        api.patch(f"/app/{second['id']}", {"uid": uid}, expect=409)
        assert own.post("/app", {"name": "elsewhere", "uid": uid}, expect=201)["uid"] == uid
        other = unique_name()
        api.patch(f"/app/{first['id']}", {"uid": other})
        api.get(f"/app/{uid}", expect=404)
        assert api.get(f"/app/{other}")["id"] == first["id"]
        api.delete(f"/app/{other}")
        assert api.post("/app", {"name": "x", "uid": other}, expect=201)["id"] != first["id"]

    @pytest.mark.parametrize("uid", ["app_x", "with space", "ä", "x" * 257, ""])
    def test_a_bad_uid_is_refused(self, api, uid):
        assert api.post("/app", {"name": "x", "uid": uid}, expect=422)["detail"][0]["loc"] == ["body", "uid"]

    def test_get_if_exists_returns_the_stored_one_unchanged(self, api):
        uid = unique_name()
        made = api.ask("POST", "/app?get_if_exists=true", expect=201, json={"name": "One", "uid": uid})
        again = api.ask("POST", "/app?get_if_exists=true", expect=200, json={"name": "Two", "uid": uid})
        assert again == made

    def test_an_idempotency_key_replays_the_response_and_refuses_another_body(self, api):
        key = {"idempotency-key": unique_name()}
        first = api.post("/app", {"name": "Once"}, expect=201, headers=key)
        assert api.post("/app", {"name": "Once"}, expect=201, headers=key) == first
        other = api.http.post("/app", json={"name": "Twice"}, headers=key)
        assert other.status_code in {409, 422}
        assert "dempotency" in other.text

    @pytest.mark.parametrize(
        "body", [{}, {"name": ""}, {"name": 5}, {"name": "a\x00b"}, {"name": "x", "throttleRate": 0}, {"name": "x", "throttleRate": 65536}, [], "x"]
    )  # fmt: skip
    def test_bad_bodies_are_refused_with_the_place(self, api, body):
        for entry in api.post("/app", body, expect=422)["detail"]:
            assert entry["loc"][0] == "body"
            assert entry["msg"]
            assert entry["type"]

    def test_bodies_are_read_as_json_without_a_content_type(self, api):
        made = api.ask("POST", "/app/", expect=201, content=b'{"name":"plain"}', headers={"content-type": "text/plain"})
        assert made["name"] == "plain"
        broken = api.ask("POST", "/app", expect=422, content=b'{"name":')
        assert broken["detail"][0]["type"] == "value_error.jsondecode"
        api.ask("POST", "/app", expect=413, content=b'{"name":"' + b"x" * 8_000_000 + b'"}')


class TestEndpoints:
    def test_have_defaults(self, app):
        made = app.api.post(f"{app.path}/endpoint", {"url": "HTTP://Example.COM"}, expect=201)
        assert without(made, "id", "createdAt") | {"url": "http://example.com/"} == without(made, "id", "createdAt")
        wanted: dict[str, Any] = {
            "uid": None,
            "description": "",
            "disabled": False,
            "version": 1,
            "throttleRate": None,
            "rateLimit": None,
        }
        wanted |= {"eventTypes": None, "filterTypes": None, "channels": None, "metadata": {}}
        assert {name: made[name] for name in wanted} == wanted

    @pytest.mark.parametrize(
        ("change", "read"),
        [
            ({"description": "Other"}, {"description": "Other"}),
            ({"throttleRate": 9}, {"throttleRate": 9, "rateLimit": 9}),
            ({"throttleRate": None}, {"throttleRate": None, "rateLimit": None}),
            ({"uid": None}, {"uid": None}),
            ({"url": "http://example.org/x"}, {"url": "http://example.org/x"}),
            ({"version": 3}, {"version": 3}),
            ({"disabled": True}, {"disabled": True}),
            ({"eventTypes": ["patch.*"]}, {"eventTypes": ["patch.*"], "filterTypes": ["patch.*"]}),
            ({"eventTypes": None}, {"eventTypes": None, "filterTypes": None}),
            ({"filterTypes": []}, {"eventTypes": None, "filterTypes": None}),
            ({"channels": ["red"]}, {"channels": ["red"]}),
            ({"channels": None}, {"channels": None}),
            ({"metadata": {}}, {"metadata": {}}),
        ],
        ids=lambda value: "-".join(f"{name}={entry}" for name, entry in value.items()),
    )
    def test_a_patch_changes_one_field_and_leaves_the_others(self, app, change, read):
        body = {
            "uid": unique_name(),
            "description": "One",
            "throttleRate": 5,
            "metadata": {"a": "b"},
            "channels": ["blue"],
        }
        made = app.endpoint(UNREACHABLE_URL, eventTypes=["some.*"], **body)
        patched = app.api.patch(f"{app.path}/endpoint/{made['id']}", change)
        assert without(patched, "disabledAt", "disabledBecause") == without(
            made | read, "disabledAt", "disabledBecause"
        )

    def test_of_two_applications_are_isolated(self, server, app):
        other = server.application()
        uid = unique_name()
        endpoint = app.endpoint(UNREACHABLE_URL, uid=uid)
        for reference in (endpoint["id"], uid):
            path = f"{other.path}/endpoint/{reference}"
            app.api.get(path, expect=404)
            app.api.patch(path, {"description": "x"}, expect=404)
            app.api.delete(path, expect=404)
            app.api.get(f"{path}/secret", expect=404)
        assert app.api.get(f"{app.path}/endpoint/{uid}") == app.api.get(f"{app.path}/endpoint/{endpoint['id']}")
        other.endpoint(UNREACHABLE_URL, uid=uid)
        app.api.post(f"{app.path}/endpoint", {"url": UNREACHABLE_URL, "uid": uid}, expect=409)
        app.api.delete(f"{app.path}/endpoint/{uid}")
        app.api.get(f"{app.path}/endpoint/{endpoint['id']}", expect=404)
        assert app.endpoint(UNREACHABLE_URL, uid=uid)["id"] != endpoint["id"]

    def test_put_replaces_all_but_the_secret_or_creates(self, app):
        uid = unique_name()
        path = f"{app.path}/endpoint/{uid}"
        made = app.api.put(path, {"url": UNREACHABLE_URL, "channels": ["blue"], "eventTypes": ["put.*"]}, expect=201)
        secret = app.secret(made)
        put = app.api.put(path, {"url": UNREACHABLE_URL, "uid": uid})
        assert put["id"] == made["id"]
        assert put["channels"] is put["eventTypes"] is put["filterTypes"] is None
        assert app.secret(made) == secret

    def test_lists_are_read_in_pages_both_ways(self, app):
        made = [app.endpoint(UNREACHABLE_URL, disabled=True)["id"] for _ in range(10)]
        check_paging(app.api, f"{app.path}/endpoint", made, is_ascending=False)

    def test_an_empty_list_of_types_means_all(self, app):
        assert app.endpoint(UNREACHABLE_URL, filterTypes=[])["eventTypes"] is None
        assert app.endpoint(UNREACHABLE_URL, eventTypes=[])["filterTypes"] is None

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("url", "ftp://example.com/"),
            ("url", "example.com"),
            ("url", ""),
            ("channels", []),
            ("channels", ["with space"]),
            ("eventTypes", ["never.declared"]),
            ("uid", "ep_1"),
            ("throttleRate", 0),
            ("version", 0),
            ("description", "a\x01b"),
        ],
    )
    def test_bad_fields_are_refused(self, app, field, value):
        refused = app.api.post(f"{app.path}/endpoint", {"url": UNREACHABLE_URL} | {field: value}, expect=422)
        assert refused["detail"][0]["loc"][:2] == ["body", field]

    def test_both_names_of_a_field_may_be_given(self, app):
        assert app.endpoint(UNREACHABLE_URL, throttleRate=7, rateLimit=9)["rateLimit"] == 7


class TestSecrets:
    def test_rotate_to_a_given_key_or_a_new_one(self, app):
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        path = f"{app.path}/endpoint/{endpoint['id']}/secret/rotate"
        first = app.secret(endpoint)
        app.api.post(path, {}, expect=200)
        second = app.secret(endpoint)
        given = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
        assert app.api.post(path, {"key": given}, expect=200) == {"key": given}
        assert len({first, second, app.secret(endpoint), given}) == 3

    @pytest.mark.parametrize(("agent", "status"), [
        ("svix-libs/2.9.1/python", 200), ("svix-libs/1.62.0/python", 200), ("svix-libs/2.0.0/java", 204),
        ("svix-libs/2.0.0/kotlin", 204), ("svix-libs/2.0.0/csharp", 204), ("curl/8", 200),
    ])  # fmt: skip
    def test_rotation_status_depends_on_the_clients_user_agent(self, app, agent, status):
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        path = f"{app.path}/endpoint/{endpoint['id']}/secret/rotate"
        app.api.post(path, {}, expect=status, headers={"user-agent": agent})

    @pytest.mark.parametrize("size", [24, 75])
    def test_short_and_long_keys_are_kept(self, app, size):
        given = f"whsec_{base64.b64encode(secrets.token_bytes(size)).decode()}"
        assert app.secret(app.endpoint(UNREACHABLE_URL, secret=given)) == given

    @pytest.mark.parametrize(
        "secret",
        [
            f"whsec_{base64.b64encode(b'x' * 23).decode()}",
            f"whsec_{base64.b64encode(b'x' * 76).decode()}",
            f"whsek_{base64.b64encode(b'x' * 24).decode()}",
            f"whsk_{base64.b64encode(b'x' * 31).decode()}",
            "whsec_not base64",
        ],
    )
    def test_unfit_keys_are_refused(self, app, secret):
        app.api.post(f"{app.path}/endpoint", {"url": UNREACHABLE_URL, "secret": secret}, expect=422)
        endpoint = app.endpoint(UNREACHABLE_URL)
        app.api.post(f"{app.path}/endpoint/{endpoint['id']}/secret/rotate", {"key": secret}, expect=422)

    def test_ten_old_keys_are_the_most(self, app, server):
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        path = f"{app.path}/endpoint/{endpoint['id']}/secret/rotate"
        for _ in range(10):
            app.api.post(path, {}, expect=200)
        assert app.api.post(path, {}, expect=400)["code"] == "limit_reached"
        server.query(
            "with oldest as (select min(s.id) as id from boathook.endpoint_secret s join boathook.endpoint e "
            "on e.id = s.endpoint_id join boathook.application a on a.id = e.application_id where a.name = %s) "
            "update boathook.endpoint_secret set expires_at = now() - interval '1 second' "
            "where id = (select id from oldest) returning id",
            app.row["name"],
        )
        app.api.post(path, {}, expect=200)

    def test_are_stored_encrypted(self, app, server):
        secret = app.secret(app.endpoint(UNREACHABLE_URL, disabled=True))
        key = base64.b64decode(secret.removeprefix("whsec_"))
        rows = server.query("select encrypted from boathook.endpoint_secret")
        assert rows
        assert not any(secret.encode() in encrypted or key in encrypted for (encrypted,) in rows)


class TestHeaders:
    def test_are_put_and_patched(self, app):
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        path = f"{app.path}/endpoint/{endpoint['id']}/headers"
        assert app.api.get(path) == {"headers": {}, "sensitive": []}
        app.api.put(path, {"headers": {"X-One": "1", "X-Two": "2"}}, expect=204)
        app.api.patch(path, {"headers": {"X-One": None, "X-Three": "3"}}, expect=204)
        assert app.api.get(path) == {"headers": {"X-Two": "2", "X-Three": "3"}, "sensitive": []}
        app.api.patch(path, {"headers": {}, "deleteHeaders": ["x-two"]}, expect=204)
        app.api.patch(path, {"headers": {"authorization": "Basic abc", "X-Api-Key": "k"}}, expect=204)
        shown = app.api.get(path)
        assert shown["headers"] == {"X-Three": "3"}
        assert sorted(shown["sensitive"]) == ["X-Api-Key", "authorization"]

    @pytest.mark.parametrize(
        "name", ["content-length", "some:thing", "nul\0", "svix-id", "x-svix-id", "x-amzn-x", "webhook-id", "Host"]
    )
    def test_that_would_steer_others_are_refused(self, app, name):
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        path = f"{app.path}/endpoint/{endpoint['id']}/headers"
        app.api.put(path, {"headers": {name: "x"}}, expect=422)
        app.api.patch(path, {"headers": {name: "x"}}, expect=422)
        app.api.post(f"{app.path}/endpoint", {"url": UNREACHABLE_URL, "headers": {name: "x"}}, expect=422)

    @pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "x" * 4097, "a\0b"])
    def test_values_that_would_break_out_are_refused(self, app, value):
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        app.api.patch(f"{app.path}/endpoint/{endpoint['id']}/headers", {"headers": {"X-A": value}}, expect=422)
