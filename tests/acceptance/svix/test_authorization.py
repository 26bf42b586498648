"""Authorization, the visibility of event types, and responses without a resource."""

from typing import Any

import httpx
import pytest

from tests.acceptance.svix.server import (
    UNREACHABLE_URL,
    Api,
    Application,
    open_database,
    open_server,
    unique_name,
    wait_for_api,
)


class TestAuthentication:
    def test_a_token_of_an_application_opens_that_application_only(self, app, server):
        other = server.application()
        portal = app.api.post(f"/auth/app-portal-access/{app.id}", {})
        portal_client = Api(server.base, portal["token"])
        assert portal_client.get(app.path)["id"] == app.id
        assert portal_client.get(other.path, expect=404)["code"] == "not_found"
        portal_client.get("/app", expect=403)
        portal_client.post("/app", {"name": "x"}, expect=403)
        portal_client.put(app.path, {"name": "x"}, expect=403)
        portal_client.delete(app.path, expect=403)
        endpoint = portal_client.post(f"{app.path}/endpoint", {"url": UNREACHABLE_URL}, expect=201)
        assert portal_client.get(f"{app.path}/endpoint/{endpoint['id']}/secret")["key"].startswith("whsec_")

    def test_the_old_dashboard_needs_no_body(self, app, server):
        access = app.api.post(f"/auth/dashboard-access/{app.id}")
        assert access["url"]
        assert Api(server.base, access["token"]).get(app.path)["id"] == app.id

    def test_nonsense_opens_nothing(self, server):
        for headers in (
            {},
            {"authorization": "Bearer nonsense"},
            {"authorization": "Basic eDp5"},
            {"authorization": "Bearer"},
        ):
            answer = httpx.get(f"{server.base}/api/v1/app", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["code"] == "authentication_failed"
            assert answer.json()["detail"]

    def test_portal_access_creates_the_application_if_asked(self, api):
        uid = unique_name()
        api.post(f"/auth/app-portal-access/{uid}", {}, expect=404)
        api.post(f"/auth/app-portal-access/{uid}", {"application": {"name": "Implied", "uid": uid}})
        assert api.get(f"/app/{uid}")["name"] == "Implied"

    def test_capabilities_are_kept_to(self, app, server):
        viewer = app.api.post(f"/auth/app-portal-access/{app.id}", {"capabilities": ["ViewBase"]})
        portal_client = Api(server.base, viewer["token"])
        endpoint = app.endpoint(UNREACHABLE_URL, disabled=True)
        portal_client.get(f"{app.path}/endpoint/{endpoint['id']}")
        portal_client.get(f"{app.path}/endpoint/{endpoint['id']}/secret", expect=403)
        portal_client.post(f"{app.path}/endpoint", {"url": UNREACHABLE_URL}, expect=403)

    def test_sessions_end_one_by_one(self, app, server):
        portal_clients = {
            name: Api(server.base, app.api.post(f"/auth/app-portal-access/{app.id}", {"sessionId": name})["token"])
            for name in ("one", "two")
        }
        app.api.post(f"/auth/app/{app.id}/expire-all", {"expiry": 0, "sessionIds": ["one"]}, expect=204)
        portal_clients["one"].get(app.path, expect=401)
        portal_clients["two"].get(app.path)


class TestEventTypes:
    @pytest.mark.parametrize(
        ("change", "read"),
        [
            ({"description": "Other"}, {"description": "Other"}),
            ({"archived": True}, {"archived": True}),
            ({"deprecated": True}, {"deprecated": True}),
            ({"schemas": {"1": {"type": "object"}}}, {"schemas": {"1": {"type": "object"}}}),
            ({"schemas": None}, {"schemas": None}),
            ({"featureFlag": "beta"}, {"featureFlag": "beta", "featureFlags": ["beta"]}),
            ({"featureFlag": None}, {"featureFlag": None, "featureFlags": None}),
            ({"groupName": "group"}, {"groupName": "group"}),
        ],
        ids=lambda value: "-".join(f"{name}={entry}" for name, entry in value.items()),
    )
    def test_a_patch_changes_one_field_and_leaves_the_others(self, own, change, read):
        body = {
            "name": unique_name(),
            "description": "One",
            "schemas": {"1": {"type": "array"}},
            "featureFlag": "alpha",
        }
        made = own.post("/event-type", body, expect=201)
        patched = own.patch(f"/event-type/{made['name']}", change)
        keep = lambda row: {name: value for name, value in row.items() if name not in {"updatedAt", "featureFlags"}}  # noqa: E731
        assert keep(patched) == keep(made | read)

    def test_putting_creates_under_the_name_of_the_path(self, own):
        name = unique_name()
        assert own.put(f"/event-type/{name}", {"description": "x"}, expect=201)["name"] == name
        assert own.put(f"/event-type/{name}", {"description": "y"}, expect=200)["description"] == "y"

    def test_archived_types_are_listed_on_request_and_can_be_recreated(self, own):
        name = unique_name()
        own.post("/event-type", {"name": name, "description": "x"}, expect=201)
        assert own.post("/event-type", {"name": name, "description": "x"}, expect=409)["code"] == "event_type_exists"
        own.delete(f"/event-type/{name}")
        assert own.get(f"/event-type/{name}")["archived"] is True
        assert name not in [row["name"] for row in own.pages("/event-type", limit=250)]
        assert name in [row["name"] for row in own.pages("/event-type", limit=250, include_archived=True)]
        assert own.post("/event-type", {"name": name, "description": "back"}, expect=201)["archived"] is False
        own.ask("DELETE", f"/event-type/{name}?expunge=true", expect=204)
        own.get(f"/event-type/{name}", expect=404)

    def test_schemas_are_shown_on_request_and_validated(self, own):
        name = unique_name()
        schemas = {"1": {"type": "object"}}
        own.post("/event-type", {"name": name, "description": "x", "schemas": schemas}, expect=201)
        listed = {row["name"]: row for row in own.pages("/event-type", limit=250)}
        assert listed[name]["schemas"] is None
        listed = {row["name"]: row for row in own.pages("/event-type", limit=250, with_content=True)}
        assert listed[name]["schemas"] == schemas
        own.post(
            "/event-type",
            {"name": unique_name(), "description": "x", "schemas": {"1": {"type": "nonsense"}}},
            expect=422,
        )

    def test_feature_flags_hide_them_from_portals_without(self, server):
        api = Api(server.base, server.make_key(f"flags-{unique_name()}"))
        app = Application(api)
        kinds: dict[str, dict[str, Any]] = {
            "open.one": {},
            "beta.one": {"featureFlag": "beta"},
            "alpha.one": {"featureFlags": ["alpha"]},
        }
        for name, fields in kinds.items():
            api.post("/event-type", {"name": name, "description": "x"} | fields, expect=201)
        seen = {}
        for flags in ((), ("beta",), ("alpha", "beta")):
            token = api.post(f"/auth/app-portal-access/{app.id}", {"featureFlags": list(flags)})["token"]
            portal_client = Api(server.base, token)
            seen[flags] = [row["name"] for row in portal_client.get("/event-type")["data"]]
            portal_client.get("/event-type/alpha.one", expect=200 if "alpha" in flags else 404)
        assert seen == {
            (): ["open.one"],
            ("beta",): ["beta.one", "open.one"],
            ("alpha", "beta"): ["alpha.one", "beta.one", "open.one"],
        }
        assert len(api.get("/event-type")["data"]) == 3

    def test_lists_are_read_in_pages(self, server):
        api = Api(server.base, server.make_key(f"types-{unique_name()}"))
        names = sorted(unique_name() for _ in range(7))
        for name in names:
            api.post("/event-type", {"name": name, "description": "x"}, expect=201)
        assert [row["name"] for row in api.pages("/event-type", limit=3)] == names
        second = api.get("/event-type", limit=3, iterator=names[2])
        assert [row["name"] for row in second["data"]] == names[3:6]
        assert [
            row["name"] for row in api.get("/event-type", limit=3, iterator=second["prevIterator"])["data"]
        ] == names[:3]


class TestTheRest:
    @pytest.mark.parametrize("path", ["/health", "/health/", "/health/ping", "/health/ping/"])
    def test_health_needs_no_token_and_has_no_body(self, server, path):
        for method in ("GET", "HEAD"):
            answer = httpx.request(method, f"{server.base}/api/v1{path}")
            assert (answer.status_code, answer.content) == (204, b"")

    @pytest.mark.parametrize(("method", "path", "status"), [
        ("GET", "/nothing/here", 404), ("DELETE", "/app", 405), ("POST", "/health", 405), ("GET", "/app/%00/endpoint", 422),
    ])  # fmt: skip
    def test_every_error_is_json(self, api, method, path, status):
        answer = api.http.request(method, path)
        assert answer.status_code in {status, 404}
        assert answer.json()["detail"]

    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_the_ingest_api_that_is_not_there_is_refused_as_svix_refuses(self, server, method):
        answer = httpx.request(method, f"{server.base}/ingest/api/v1/source", json={} if method == "POST" else None)
        assert answer.status_code == 404
        assert answer.json().keys() == {"code", "detail"}
        assert "/api/v1/source" in answer.json()["detail"]

    def test_browsers_of_any_origin_may_ask(self, server):
        headers = {
            "origin": "https://portal.example",
            "access-control-request-method": "PATCH",
            "access-control-request-headers": "authorization",
        }
        answer = httpx.options(f"{server.base}/api/v1/app", headers=headers)
        assert answer.status_code in {200, 204}
        assert answer.headers["access-control-allow-origin"] in {"*", "https://portal.example"}
        assert (
            "PATCH" in answer.headers["access-control-allow-methods"]
            or answer.headers["access-control-allow-methods"] == "*"
        )

    def test_operational_endpoints_are_kept_like_others(self, own):
        body = {
            "url": UNREACHABLE_URL,
            "uid": unique_name(),
            "filterTypes": ["endpoint.disabled"],
            "disabled": True,
            "metadata": {"a": "b"},
        }
        made = own.post("/operational-webhook/endpoint", body, expect=201)
        path = f"/operational-webhook/endpoint/{made['id']}"
        assert made["eventTypes"] == ["endpoint.disabled"]
        assert own.get(path) == made
        own.post(
            "/operational-webhook/endpoint", {"url": UNREACHABLE_URL, "eventTypes": ["endpoint.invented"]}, expect=422
        )
        own.put(f"{path}/headers", {"headers": {"X-A": "1"}}, expect=204)
        assert own.get(f"{path}/headers")["headers"] == {"X-A": "1"}
        first = own.get(f"{path}/secret")["key"]
        own.http.post(f"{path}/secret/rotate", json={}).raise_for_status()
        assert own.get(f"{path}/secret")["key"] != first
        own.delete(path)
        own.get(path, expect=404)
        assert made["id"] not in [row["id"] for row in own.pages("/app", limit=250)]


KEYS = """
    [outbound]
    allow = ["127.0.0.0/8"]
    require_https = true
    encryption_keys = ["env:ENDPOINT_KEY"]
"""


@pytest.fixture(scope="module")
def strict(admin_url, pg_template, tmp_path_factory):
    """A boathook that takes https only, with a key for secrets that can be lost."""
    environment = {"ENDPOINT_KEY": "the key of yesterday"}
    with (
        open_database(admin_url, pg_template) as url,
        open_server(tmp_path_factory.mktemp("strict"), url, KEYS, **environment) as opened,
    ):
        yield opened


class TestHttpsOnly:
    @pytest.mark.extended("starts several servers of its own")
    def test_plain_http_is_refused(self, strict):
        app = strict.application()
        refused = app.api.post(f"{app.path}/endpoint", {"url": "http://example.com/"}, expect=422)
        assert refused["detail"][0]["loc"] == ["body", "url"]
        endpoint = app.endpoint("https://example.com/", disabled=True)
        path = f"{app.path}/endpoint/{endpoint['id']}"
        app.api.patch(path, {"url": "http://example.com/"}, expect=422)
        app.api.put(path, {"url": "http://example.com/"}, expect=422)


class TestLostKeys:
    @pytest.mark.extended("starts several servers of its own")
    def test_a_secret_that_cannot_be_read_is_an_error_that_names_the_cause(self, strict):
        app = strict.application()
        endpoint = app.endpoint("https://example.com/", disabled=True, headers={"X-Api-Key": "k"})
        path = f"{app.path}/endpoint/{endpoint['id']}"
        secret = app.secret(endpoint)
        strict.running.stop()
        strict.running.start(ENDPOINT_KEY="the key of tomorrow")
        wait_for_api(strict.running)
        for part in ("secret", "headers"):
            refused = app.api.get(f"{path}/{part}", expect=500)
            assert refused["code"]
            assert "encryption_keys" in refused["detail"]
        strict.running.stop()
        strict.running.start()
        wait_for_api(strict.running)
        assert app.secret(endpoint) == secret
