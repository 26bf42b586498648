"""What holds for every route: tokens, errors, the size of requests, and requests that come twice."""

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from boathook.api import idempotency as idempotency_keys
from boathook.api import route
from boathook.db import idempotency
from boathook.db.database import Database
from boathook.service.access import keys
from boathook.service.access.authorization import Principal
from boathook.service.caller import HOST
from boathook.service.catalogue.keys import KeyNamed, KeyScope, NewKey, create, revoke
from boathook.service.unit_of_work import new_id
from tests.postgres.api_client import ApiClient, make_context, make_token, open_api_client
from tests.support import eventually


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        yield client


# Tokens


NO_TOKENS = ["", "Bearer", "Bearer ", "Bearer nonsense", "Basic abc", "Bearer a.b.c", "Bearer \x7f"]


async def test_without_a_valid_token_the_answer_is_401(api):
    for value in NO_TOKENS:
        error = await api.ask(401, "GET", "/app", headers={"authorization": value})
        assert error == {"code": "authentication_failed", "detail": "Invalid token"}


async def test_a_token_is_opaque_and_only_its_hash_is_kept(api, db):
    token = await make_token(api.context)
    assert token.startswith("bhk_")
    assert "." not in token
    assert len(token) > 40
    assert [row["token_sha256"] for row in await db.fetch("select token_sha256 from boathook.api_key")].count(
        keys.hash_token(token)
    ) == 1


async def test_a_revoked_or_expired_token_is_refused_at_once(api):
    async with api.context.work(caller=HOST) as work:
        made = await create(work, NewKey(scope=KeyScope.ORGANIZATION))
    await api.as_token(made.token).ask(200, "GET", "/app")
    async with api.context.work(caller=HOST) as work:
        await revoke(work, KeyNamed(id=made.id))
    await api.as_token(made.token).ask(401, "GET", "/app")
    old = await make_token(api.context, lifetime_seconds=60)
    await api.as_token(old).ask(200, "GET", "/app")
    hashed = keys.hash_token(old)
    database = api.context.database
    await database.execute("update boathook.api_key set expires_at = now() where token_sha256 = $1", hashed)
    await api.as_token(old).ask(401, "GET", "/app")


async def test_an_application_token_is_limited_to_its_application(api):
    await api.ask(201, "POST", "/app", {"name": "Other", "uid": "other"})
    own = api.as_token(await make_token(api.context, application="acme"))
    await own.ask(200, "GET", "/app/acme")
    assert (await own.ask(404, "GET", "/app/other"))["code"] == "not_found"
    for method, path, body in (
        ("GET", "/app", None),
        ("POST", "/app", {"name": "x"}),
        ("PUT", "/app/acme", {"name": "x"}),
        ("PATCH", "/app/acme", {"name": "x"}),
        ("DELETE", "/app/acme", None),
        ("POST", "/event-type", {"name": "a", "description": "a"}),
        ("POST", "/auth/app-portal-access/acme", {}),
    ):
        assert (await own.ask(403, method, path, body))["code"] == "insufficient access"
    await own.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:8999/"})
    await own.ask(404, "GET", "/app/other/endpoint")


# The portal


async def test_a_portal_session_has_a_token_of_the_application(api):
    for path, body in (("/auth/app-portal-access/acme", {}), ("/auth/dashboard-access/acme", None)):
        access = await api.ask(200, "POST", path, body)
        assert access["url"].startswith("http://api.test/portal#key=")
        assert access["token"] in access["url"]
        await api.as_token(access["token"]).ask(200, "GET", "/app/acme")
    await api.ask(404, "POST", "/auth/app-portal-access/nobody", {})


async def test_keys_of_portals_are_listed_for_their_organization(api):
    await api.ask(200, "POST", "/auth/app-portal-access/acme", {})
    for organization, number in (("default", 1), ("other", 0)):
        async with api.context.work(organization) as work:
            assert len(await keys.list_portal(work, limit=10)) == number


async def test_portal_access_may_make_the_application(api):
    path = "/auth/app-portal-access/new"
    error = await api.ask(422, "POST", path, {"application": {"name": "New"}})
    assert error["detail"][0]["type"] == "application_uid_missing"
    error = await api.ask(422, "POST", path, {"application": {"name": "New", "uid": "newer"}})
    assert error["detail"][0]["type"] == "application_uid_mismatch"
    access = await api.ask(200, "POST", path, {"application": {"name": "New", "uid": "new"}})
    assert (await api.as_token(access["token"]).ask(200, "GET", "/app/new"))["name"] == "New"


async def test_capabilities_limit_a_portal_session(api):
    endpoint = (await api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:8999/"}))["id"]
    path = f"/app/acme/endpoint/{endpoint}"

    async def statuses(**body) -> list[int]:
        access = await api.ask(200, "POST", "/auth/app-portal-access/acme", body)
        application_client = api.as_token(access["token"])
        requests = (("GET", path, None), ("PATCH", path, {"description": "x"}), ("GET", f"{path}/secret", None),
                    ("POST", f"{path}/secret/rotate", {"gracePeriodSeconds": 0}))  # fmt: skip
        return [
            (await application_client.request(method, path, json=body)).status_code for method, path, body in requests
        ]

    assert await statuses() == [200, 200, 200, 200]
    assert await statuses(readOnly=True) == [200, 403, 403, 403]
    assert await statuses(capabilities=["ViewBase", "ManageEndpoint"]) == [200, 200, 403, 403]
    assert await statuses(capabilities=["ViewEndpointSecret"]) == [200, 403, 200, 403]
    assert await statuses(capabilities=["ManageEndpointSecret"]) == [200, 403, 403, 200]
    await api.ask(422, "POST", "/auth/app-portal-access/acme", {"capabilities": ["Everything"]})


async def test_a_portal_session_sees_event_types_by_flags(api):
    await api.ask(201, "POST", "/event-type", {"name": "free", "description": "x"})
    await api.ask(201, "POST", "/event-type", {"name": "beta", "description": "x", "featureFlag": "beta"})

    async def seen(flags: list[str]) -> list[str]:
        access = await api.ask(200, "POST", "/auth/app-portal-access/acme", {"featureFlags": flags})
        application_client = api.as_token(access["token"])
        await application_client.ask(200 if "beta" in flags else 404, "GET", "/event-type/beta")
        return [row["name"] for row in (await application_client.ask(200, "GET", "/event-type"))["data"]]

    assert await seen([]) == await seen(["other"]) == ["free"]
    assert await seen(["beta", "other"]) == ["beta", "free"]
    assert len((await api.ask(200, "GET", "/event-type"))["data"]) == 2


async def test_tokens_end_by_logout_and_by_expire_all(api, db):
    async def application_client(**body) -> ApiClient:
        return api.as_token((await api.ask(200, "POST", "/auth/app-portal-access/acme", body))["token"])

    first, second, third = (
        await application_client(),
        await application_client(sessionId="s"),
        await application_client(sessionId="t"),
    )
    await first.ask(204, "POST", "/auth/logout")
    await first.ask(401, "GET", "/app/acme")
    assert await db.fetchval("select count(*) from boathook.audit where action = 'key.revoke'") == 1
    await api.ask(403, "POST", "/auth/logout")
    await api.ask(204, "POST", "/auth/app/acme/expire-all", {"sessionIds": ["s"]})
    await second.ask(401, "GET", "/app/acme")
    soon = "update boathook.api_key set expires_at = now() + interval '1 minute' where session_id = 't' returning expires_at"
    expires_at = await db.fetchval(soon)
    await api.ask(204, "POST", "/auth/app/acme/expire-all", {"expiry": 3_600})
    assert await db.fetchval("select expires_at from boathook.api_key where session_id = 't'") == expires_at, "no later"
    await third.ask(200, "GET", "/app/acme")
    await api.ask(204, "POST", "/auth/app/acme/expire-all")
    await third.ask(401, "GET", "/app/acme")
    await api.ask(200, "GET", "/app/acme")


# Errors


async def test_every_error_is_json(api):
    assert (await api.ask(404, "GET", "/nothing"))["code"] == "not_found"
    error = await api.request("DELETE", "/app")
    assert error.status_code == 405
    assert error.json()["code"] == "method_not_allowed"
    assert {method.strip() for method in error.headers["allow"].split(",")} == {"GET", "POST"}


async def test_an_internal_error_is_json_without_its_cause(api, monkeypatch):
    async def fail(*_args, **_options):
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(route, "authenticate", fail)
    error = await api.request("GET", "/app")
    assert error.status_code == 500
    assert error.json()["code"] == "server_error"
    assert "secret inside" not in error.text


async def test_without_the_database_the_answer_is_503(pg_url):
    database = await Database.open(pg_url, purpose="test", size=2)
    client = ApiClient(make_context(database), "bhk_x")
    await database.close()
    error = await client.request("GET", "/app")
    assert error.status_code == 503
    assert error.json()["code"] == "unavailable"
    assert error.headers["retry-after"]
    error = await client.request("GET", "/health")
    assert error.status_code == 503
    assert error.json()


async def test_a_request_that_is_too_large_is_413(db):
    async with open_api_client(db, outbound__max_message=1_000) as api:

        async def drops():
            for _ in range(20):
                yield b" " * 100

        for body in (b"x" * 1_001, drops()):
            assert (await api.ask(413, "POST", "/app", content=body))["code"] == "payload_too_large"


async def test_browsers_may_call_from_anywhere(api):
    headers = {"origin": "https://shop.example", "access-control-request-method": "POST",
               "access-control-request-headers": "authorization, svix-req-id"}  # fmt: skip
    answer = await api.request("OPTIONS", "/app", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-max-age"] == "600"
    assert "svix-req-id" in answer.headers["access-control-allow-headers"]


async def test_health_needs_no_token(api):
    for path in ("/health", "/health/", "/health/ping", "/health/ping/"):
        for method in ("GET", "HEAD"):
            answer = await ApiClient(api.context, "").request(method, path)
            assert answer.status_code == 204
            assert answer.content == b""


async def test_the_document_describes_every_operation(api):
    document = await api.ask(200, "GET", "/openapi.json")
    operations = [(path, operation) for path, item in document["paths"].items() for operation in item.values() if path]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        assert operation["operationId"].startswith("v1."), path
        assert operation["summary"], path
        assert ("security" in operation) is not path.startswith("/api/v1/health"), path
        good = [answer for status, answer in operation["responses"].items() if status[0] == "2"]
        assert good, path
        assert all("content" in answer or "204" in operation["responses"] for answer in good), path
        for status, answer in operation["responses"].items():
            if status >= "4":
                model = {"422": "ProblemsOut", "421": "WrongCellOut"}.get(status, "ErrorOut")
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith(f"/{model}")


# Requests that come twice


def with_key(key: str) -> dict:
    return {"headers": {"idempotency-key": key}}


async def test_the_same_request_with_its_key_is_done_once(api):
    body = {"name": "Once"}
    first = await api.ask(201, "POST", "/app", body, **with_key("k"))
    again = await api.request("POST", "/app", json=body, **with_key("k"))
    assert again.status_code == 201
    assert again.json() == first
    assert again.headers["idempotent-replayed"] == "true"
    assert (await api.ask(201, "POST", "/app", body, **with_key("l")))["id"] != first["id"]
    assert len((await api.ask(200, "GET", "/app"))["data"]) == 3


async def test_an_answer_without_a_body_is_repeated_too(api):
    path = "/auth/app/acme/expire-all"
    await api.ask(204, "POST", path, {}, **with_key("k"))
    await api.ask(204, "POST", path, {}, **with_key("k"))


async def test_an_idempotency_key_reused_for_another_request_is_refused(api):
    await api.ask(201, "POST", "/app", {"name": "Once"}, **with_key("k"))
    error = await api.ask(409, "POST", "/app", {"name": "Twice"}, **with_key("k"))
    assert error["code"] == "idempotency_key_reused"
    await api.ask(409, "POST", "/app?get_if_exists=true", {"name": "Once"}, **with_key("k"))
    await api.ask(201, "POST", "/event-type", {"name": "a", "description": "a"}, **with_key("k"))


ENDPOINT = {"url": "https://example.com/a", "description": "x", "eventTypes": ["a", "b"], "timeoutSeconds": 5}
SAME_ENDPOINT = [
    '{"description":"x","url":"https://example.com/a","eventTypes":["b","a"],"timeoutSeconds":5.0}',
    '{ "url" : "https://example.com/a", "description" : "x", "filterTypes": ["a", "b", "a"], "timeoutSeconds": 50e-1}',
    '{"url":"https:\\/\\/example.com/a","description":"\\u0078","eventTypes":["a","b"],"timeoutSeconds":5,"metadata":null}',
    '{"url":"https://example.com/a","description":"x","eventTypes":["a","b"],"timeoutSeconds":5,"disabled":false}',
]
OTHER_ENDPOINT = [
    ENDPOINT | {"eventTypes": ["a"]},
    ENDPOINT | {"timeoutSeconds": 6},
    ENDPOINT | {"metadata": {"a": "b"}},
    {name: value for name, value in ENDPOINT.items() if name != "description"},
]


async def test_an_equivalent_request_counts_as_a_repeat(api):
    for name in "ab":
        await api.ask(201, "POST", "/event-type", {"name": name, "description": name})
    first = await api.ask(201, "POST", "/app/acme/endpoint", ENDPOINT, **with_key("k"))
    for text in SAME_ENDPOINT:
        assert await api.ask(201, "POST", "/app/acme/endpoint", content=text.encode(), **with_key("k")) == first, text
    for body in OTHER_ENDPOINT:
        await api.ask(409, "POST", "/app/acme/endpoint", body, **with_key("k"))
    made = await api.ask(201, "POST", "/app?get_if_exists=true", {"name": "x", "uid": "x"}, **with_key("l"))
    assert made == await api.ask(
        201, "POST", "/app/?get_if_exists=1&other=2", {"uid": "x", "name": "x"}, **with_key("l")
    )


async def test_compared_as_they_are_written_they_would_differ(api, monkeypatch):
    """The mutant: the canonical form of a request is its bytes."""
    monkeypatch.setattr(idempotency_keys.RequestCanonicalizer, "canonical", lambda _self, _request, body: body)
    await api.ask(201, "POST", "/app", content=b'{"name":"Once"}', **with_key("k"))
    await api.ask(409, "POST", "/app", content=b'{"name": "Once"}', **with_key("k"))


async def test_an_idempotency_key_is_scoped_to_its_organization(api):
    other = ApiClient(api.context, await make_token(api.context, "other"))
    first = await api.ask(201, "POST", "/app", {"name": "Mine"}, **with_key("k"))
    assert (await other.ask(201, "POST", "/app", {"name": "Mine"}, **with_key("k")))["id"] != first["id"]


def test_an_idempotency_key_counts_for_callers_with_the_same_permissions():
    application = new_id()
    callers = [
        Principal(new_id(), "default"),
        Principal(new_id(), "other"),
        Principal(new_id(), "default", application),
        Principal(new_id(), "default", new_id()),
        Principal(new_id(), "default", application, capabilities=frozenset({"ViewBase"})),
        Principal(new_id(), "default", application, capabilities=frozenset({"ViewBase", "ManageEndpoint"})),
    ]

    def key_of(caller: Principal) -> bytes:
        return idempotency_keys.make_key(caller, "k", "POST /api/v1/app/acme/endpoint", b"{}").key

    assert len({key_of(caller) for caller in callers}) == len(callers)
    assert [key_of(replace(caller, key_id=new_id())) for caller in callers] == [key_of(caller) for caller in callers]


async def test_a_refused_request_leaves_its_key_free(api):
    await api.ask(409, "POST", "/app", {"name": "x", "uid": "acme"}, **with_key("k"))
    await api.ask(422, "POST", "/app", {"name": ""}, **with_key("k"))
    await api.ask(201, "POST", "/app", {"name": "x"}, **with_key("k"))


async def test_an_idempotency_key_expires(api, db):
    first = await api.ask(201, "POST", "/app", {"name": "Once"}, **with_key("k"))
    await db.execute("update boathook.idempotency set expires_at = now() - interval '1 second'")
    second = await api.ask(201, "POST", "/app", {"name": "Once"}, **with_key("k"))
    assert second["id"] != first["id"]


async def test_the_stored_response_is_encrypted(api, db):
    access = await api.ask(200, "POST", "/auth/app-portal-access/acme", {}, **with_key("k"))
    row = await db.fetchrow("select status, encrypted_response from boathook.idempotency")
    assert row["status"] == 200
    assert access["token"].encode() not in row["encrypted_response"]


async def race(pg_url) -> tuple[list, int]:
    """Ask two servers for the same, both requests in flight at once; return their answers and how often it was done."""
    one, two = [await Database.open(pg_url, purpose="test", size=4) for _ in range(2)]
    contexts = [make_context(one), make_context(two)]
    token = await make_token(contexts[0])
    try:
        async with ApiClient(contexts[0], token) as a, ApiClient(contexts[1], token) as b:
            async with one.transaction() as blocker:
                # Both need it after the key, so neither is done while this is held.
                await blocker.execute("lock table boathook.audit in access exclusive mode")
                pending = [
                    asyncio.create_task(api.request("POST", "/app", json={"name": "Once"}, **with_key("k")))
                    for api in (a, b)
                ]
                await eventually(partial(_waiting, two))
                assert not any(task.done() for task in pending)
            answers = await asyncio.gather(*pending)
        return answers, await two.fetchval("select count(*) from boathook.application")
    finally:
        await one.close()
        await two.close()


async def _waiting(database: Database) -> bool:
    return (
        await database.fetchval(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        == 2
    )


async def test_two_servers_do_a_request_once_though_both_have_it_in_flight(pg_url):
    answers, number = await race(pg_url)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert number == 1
    assert answers[0].json() == answers[1].json()
    assert sorted("idempotent-replayed" in answer.headers for answer in answers) == [False, True]


async def test_without_the_claim_both_would_do_it(pg_url, monkeypatch):
    async def claim(_connection, _key, _request_sha256):
        return None

    monkeypatch.setattr(idempotency, "claim", claim)
    answers, number = await race(pg_url)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert number == 2
