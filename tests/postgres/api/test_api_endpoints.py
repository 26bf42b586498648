import asyncio
import base64
from typing import Any

import pytest

from boathook.db.secret_box import SecretBox
from boathook.delivery.signer import make_ed25519_secret, make_secret, read_signer
from boathook.domain import ids
from boathook.service.catalogue import endpoints as operations
from boathook.service.unit_of_work import new_id
from tests.postgres.api_client import ApiClient, make_context, make_token, open_api_client
from tests.support import LOCK_WAITED_FOR, eventually

URL = "http://127.0.0.1:8999/hook"
HERE = "/app/acme/endpoint"


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        yield client


async def make_types(api, *names):
    for name in names:
        await api.ask(201, "POST", "/event-type", {"name": name, "description": "it happened"})


async def make_endpoint(api, **fields):
    return await api.ask(201, "POST", HERE, {"url": URL, **fields})


async def revisions(db):
    row = await db.fetchrow(
        "select e.revision, a.routes_version from boathook.endpoint e join boathook.application a on a.id = e.application_id"
    )
    return row["revision"], row["routes_version"]


# Made, changed, deleted


async def test_defaults_on_creation(api):
    made = await api.ask(201, "POST", f"{HERE}/", {"url": "HTTPS://Example.COM"})
    assert made["url"] == "https://example.com/"
    assert made["version"] == 1
    assert made["description"] == ""
    assert made["disabled"] is False
    for name in ("uid", "eventTypes", "filterTypes", "channels", "throttleRate", "rateLimit", "filter", "orderBy",
                 "concurrency", "retrySchedule", "timeoutSeconds"):  # fmt: skip
        assert made[name] is None, name
    assert made["metadata"] == {}
    assert made["auth"] == []
    assert await api.ask(200, "GET", f"{HERE}/{made['id']}") == made


async def test_each_field_changes_alone_and_null_clears(api):
    await make_types(api, "a.b", "c.d")
    before = await make_endpoint(api, uid="crm", description="x", throttleRate=3, channels=["eu"], eventTypes=["a.b"])
    path = f"{HERE}/{before['id']}"
    types = {"eventTypes": ["a.b", "c.*"], "filterTypes": ["a.b", "c.*"]}
    for change, shown in (
        ({"description": "y"}, {"description": "y"}),
        ({"uid": "new"}, {"uid": "new"}),
        ({"uid": None}, {"uid": None}),
        ({"url": "http://127.0.0.1:8998"}, {"url": "http://127.0.0.1:8998/"}),
        ({"rateLimit": 4}, {"throttleRate": 4, "rateLimit": 4}),
        ({"throttleRate": None}, {"throttleRate": None, "rateLimit": None}),
        ({"version": 2}, {"version": 2}),
        ({"disabled": True}, {"disabled": True}),
        ({"disabled": False}, {"disabled": False}),
        ({"eventTypes": ["a.b", "c.*"]}, types),
        ({"eventTypes": None}, {"eventTypes": None, "filterTypes": None}),
        ({"filterTypes": ["c.d"]}, {"eventTypes": ["c.d"], "filterTypes": ["c.d"]}),
        ({"filterTypes": []}, {"eventTypes": None, "filterTypes": None}),
        ({"channels": ["us", "eu"]}, {"channels": ["us", "eu"]}),
        ({"channels": None}, {"channels": None}),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "1"}}),
        ({"metadata": {}}, {"metadata": {}}),
        ({"filter": {"body": {"n": {"gt": 1}}}}, {"filter": {"body": {"n": {"gt": 1}}}}),
        ({"filter": None}, {"filter": None}),
        ({"orderBy": "customer.id"}, {"orderBy": "customer.id"}),
        ({"orderBy": "*"}, {"orderBy": "*"}),
        ({"orderBy": None}, {"orderBy": None}),
        ({"concurrency": 2}, {"concurrency": 2}),
        ({"retrySchedule": "svix"}, {"retrySchedule": "svix"}),
        ({"retrySchedule": [5, 60.5]}, {"retrySchedule": [5.0, 60.5]}),
        ({"retrySchedule": None}, {"retrySchedule": None}),
        ({"timeoutSeconds": 7.5}, {"timeoutSeconds": 7.5}),
        ({"auth": {"basic": {"username": "u", "password": "p"}}}, {"auth": ["basic"]}),
        ({"auth": None}, {"auth": []}),
    ):
        after = await api.ask(200, "PATCH", path, change)
        assert after == {**before, **shown, "updatedAt": after["updatedAt"]}, change
        before = after


async def test_put_resets_omitted_fields_but_not_the_secret(api):
    await make_types(api, "a.b")
    made = await make_endpoint(api, uid="crm", eventTypes=["a.b"], channels=["eu"], throttleRate=3, disabled=True,
                               description="x", metadata={"a": "1"}, orderBy="*")  # fmt: skip
    path = f"{HERE}/{made['id']}"
    secret = await api.ask(200, "GET", f"{path}/secret")
    after = await api.ask(200, "PUT", path, {"url": URL, "secret": make_secret()})
    assert after == {**await make_endpoint(api), "id": made["id"], "createdAt": made["createdAt"],
                     "updatedAt": after["updatedAt"]}  # fmt: skip
    assert await api.ask(200, "GET", f"{path}/secret") == secret


async def test_put_creates_with_the_uid_of_the_path(api):
    made = await api.ask(201, "PUT", f"{HERE}/crm", {"url": URL})
    assert made["uid"] == "crm"
    for _ in range(2):
        assert (await api.ask(200, "PUT", f"{HERE}/crm", {"url": URL}))["id"] == made["id"]
    assert (await api.ask(200, "PUT", f"{HERE}/crm", {"url": URL, "uid": "crm"}))["id"] == made["id"]


async def test_an_endpoint_that_another_request_is_creating_is_replaced(api, db):
    async with db.transaction() as connection:
        made = new_id()
        await connection.execute(
            "insert into boathook.endpoint (id, application_id, url, uid) select $1, id, $2, 'crm' from boathook.application",
            made, URL,
        )  # fmt: skip
        asked = asyncio.create_task(api.request("PUT", f"{HERE}/crm", json={"url": URL, "description": "new"}))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
    answer = await asked
    assert (answer.status_code, answer.json()["description"]) == (200, "new")
    assert answer.json()["id"] == ids.show(ids.ENDPOINT, made)


async def test_endpoints_of_two_applications_are_apart(api):
    await api.ask(201, "POST", "/app", {"name": "Other", "uid": "other"})
    made = await make_endpoint(api, uid="crm")
    other = await api.ask(201, "POST", "/app/other/endpoint", {"url": URL, "uid": "crm"})
    assert other["id"] != made["id"]
    path = f"/app/other/endpoint/{made['id']}"
    for method, tail, body in (
        ("GET", "", None), ("PATCH", "", {}), ("DELETE", "", None), ("GET", "/secret", None), ("GET", "/headers", None),
        ("PUT", "/headers", {"headers": {}}), ("PATCH", "/headers", {"headers": {}}), ("POST", "/secret/rotate", {}),
    ):  # fmt: skip
        await api.ask(404, method, path + tail, body)
    foreign = ApiClient(api.context, await make_token(api.context, "other"))
    await foreign.ask(404, "GET", f"{HERE}/{made['id']}")


async def test_a_uid_is_unique_until_released(api):
    made = await make_endpoint(api, uid="u")
    assert (await api.ask(409, "POST", HERE, {"url": URL, "uid": "u"}))["code"] == "conflict"
    await make_endpoint(api, uid="v")
    await api.ask(409, "PATCH", f"{HERE}/v", {"uid": "u"})
    await api.ask(204, "DELETE", f"{HERE}/{made['id']}")
    await api.ask(404, "GET", f"{HERE}/u")
    await api.ask(200, "PATCH", f"{HERE}/v", {"uid": "u"})


async def test_a_list_is_newest_first_and_paged_both_ways(api):
    made = [(await make_endpoint(api))["id"] for _ in range(5)]

    async def ids(query):
        page = await api.ask(200, "GET", f"{HERE}?{query}")
        return [row["id"] for row in page["data"]], page["done"]

    assert await ids("limit=3") == ([made[4], made[3], made[2]], False)
    assert await ids(f"limit=3&iterator={made[2]}") == ([made[1], made[0]], True)
    assert await ids(f"limit=3&iterator=-{made[1]}") == ([made[4], made[3], made[2]], True)
    assert await ids("limit=2&order=ascending") == (made[:2], False)
    await api.ask(422, "GET", f"{HERE}?iterator=app_{'0' * 27}")


async def test_each_change_raises_the_revision_and_route_changes_the_routes(api, db):
    await make_types(api, "a.b")
    path = f"{HERE}/{(await make_endpoint(api))['id']}"
    assert await revisions(db) == (1, 2)
    expected = (1, 2)
    for method, tail, body, alters in (
        ("PATCH", "", {"description": "x"}, False),
        ("PATCH", "", {"url": "http://127.0.0.1:1234/"}, False),
        ("PUT", "/headers", {"headers": {"x-a": "1"}}, False),
        ("PATCH", "/headers", {"headers": {"x-a": "2"}}, False),
        ("POST", "/secret/rotate", {}, False),
        ("PATCH", "", {"eventTypes": ["a.b"]}, True),
        ("PATCH", "", {"channels": ["eu"]}, True),
        ("PATCH", "", {"filter": {"body": {"n": 1}}}, True),
        ("PATCH", "", {"orderBy": "*"}, True),
        ("PATCH", "", {"disabled": True}, True),
        ("PATCH", "", {"disabled": False}, True),
        ("DELETE", "", None, True),
    ):
        await api.request(method, path + tail, json=body)
        expected = (expected[0] + 1, expected[1] + alters)
        assert await revisions(db) == expected, (method, tail, body)


# What may not be


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"url": ""}, "url"),
    ({"url": "ftp://example.com"}, "url"),
    ({"url": "http://exa mple.com"}, "url"),
    ({"url": "http://10.0.0.1/"}, "url"),
    ({"url": "http://169.254.169.254/latest"}, "url"),
    ({"url": "http://0x0a.1/"}, "url"),
    ({"url": "http://167772161/"}, "url"),
    ({"url": "http://[::ffff:10.0.0.1]/"}, "url"),
    ({"url": "http://[fe80::1]/"}, "url"),
    ({"url": "http://example.com:5432/"}, "url"),
    ({"eventTypes": ["no.such", "nor.this", "any.*"]}, "eventTypes"),
    ({"eventTypes": ["a b"]}, "eventTypes"),
    ({"channels": []}, "channels"),
    ({"channels": ["a b"]}, "channels"),
    ({"channels": [str(number) for number in range(11)]}, "channels"),
    ({"uid": "ep_x"}, "uid"),
    ({"secret": "whsec_" + base64.b64encode(b"x" * 23).decode()}, "secret"),
    ({"secret": "whsec_" + base64.b64encode(b"x" * 76).decode()}, "secret"),
    ({"secret": "secret_" + base64.b64encode(b"x" * 24).decode()}, "secret"),
    ({"secret": "whsk_" + base64.b64encode(b"x" * 31).decode()}, "secret"),
    ({"headers": {"content-length": "1"}}, "headers"),
    ({"headers": {"webhook-id": "1"}}, "headers"),
    ({"headers": {"X-A": "1", "x-a": "2"}}, "headers"),
    ({"filter": {"body": {"n": {"like": 1}}}}, "filter"),
    ({"orderBy": "a..b"}, "orderBy"),
    ({"retrySchedule": "sometimes"}, "retrySchedule"),
    ({"retrySchedule": [-1]}, "retrySchedule"),
    ({"concurrency": 0}, "concurrency"),
    ({"timeoutSeconds": 0}, "timeoutSeconds"),
    ({"auth": {"basic": {"username": "a:b", "password": "x"}}}, "auth"),
    ({"auth": {"oauth2": {"tokenUrl": "http://10.0.0.1/", "clientId": "a", "clientSecret": "b"}}}, "auth"),
    ({"auth": {"mtls": {"certificate": "x", "key": "y"}}}, "auth"),
    ({"url": "http://u:p@example.com/", "auth": {"basic": {"username": "a", "password": "x"}}}, "auth"),
    ({"disabled": "yes"}, "disabled"),
]


async def test_invalid_fields_are_named(api):
    for fields, where in BROKEN:
        error = await api.ask(422, "POST", HERE, {"url": URL, **fields})
        assert error["detail"][0]["loc"][:2] == ["body", where]


async def test_missing_event_types_are_named(api):
    await make_types(api, "a.b", "old")
    await api.ask(204, "DELETE", "/event-type/old")
    error = await api.ask(422, "POST", HERE, {"url": URL, "eventTypes": ["a.b", "no.such", "old"]})
    assert "no.such, old" in error["detail"][0]["msg"]


async def test_https_can_be_required(db):
    async with open_api_client(db, outbound__require_https=True) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        error = await api.ask(422, "POST", HERE, {"url": "http://example.com/"})
        assert "https" in error["detail"][0]["msg"]
        await api.ask(201, "POST", HERE, {"url": "https://example.com/"})


async def test_localhost_is_refused_unless_loopback_is_allowed(db):
    names = ("localhost:8000", "LOCALHOST:8000", "shop.localhost", "localhost.")
    async with open_api_client(db, outbound__allow=["10.0.0.0/8"]) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        for host in names:
            error = await api.ask(422, "POST", HERE, {"url": f"http://{host}/hook"})
            assert "127.0.0.1 may not be reached" in error["detail"][0]["msg"]
        await api.ask(201, "POST", HERE, {"url": "http://localhost.example.com/hook"})
    for network in ("127.0.0.0/8", "::1/128"):
        async with open_api_client(db, outbound__allow=[network]) as api:
            for host in names:
                await api.ask(201, "POST", HERE, {"url": f"http://{host}/hook"})


# Secrets


async def test_a_secret_is_generated_or_given_and_shown_in_public_form(api, db):
    for secret in (
        make_secret(),
        "whsec_" + base64.b64encode(b"x" * 24).decode(),
        "whsec_" + base64.b64encode(b"x" * 75).decode(),
        make_ed25519_secret(),
    ):
        made = await make_endpoint(api, secret=secret)
        shown = (await api.ask(200, "GET", f"{HERE}/{made['id']}/secret"))["key"]
        assert shown == read_signer(secret).public
        assert shown.startswith("whpk_") is secret.startswith("whsk_")
        assert await db.fetchval("select count(*) from boathook.endpoint_secret where position($1 in encrypted) > 0",
                                 secret.encode()) == 0  # fmt: skip


async def test_secrets_are_of_the_type_that_the_settings_name(db):
    async with open_api_client(db, outbound__signature_type="ed25519") as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        made = [
            f"{HERE}/{(await make_endpoint(api))['id']}",
            f"/operational-webhook/endpoint/{(await api.ask(201, 'POST', '/operational-webhook/endpoint', {'url': URL}))['id']}",
        ]
        for path in made:
            assert (await api.ask(200, "GET", f"{path}/secret"))["key"].startswith("whpk_")
        assert (await api.ask(200, "POST", f"{made[0]}/secret/rotate"))["key"].startswith("whpk_")
        given = make_secret()
        assert (await api.ask(200, "POST", f"{made[0]}/secret/rotate", {"key": given}))["key"] == given


async def test_null_is_the_default_on_creation_and_replacement(api):
    nothing = dict.fromkeys(("version", "description", "disabled", "metadata", "throttleRate", "uid", "secret"))
    made = await api.ask(201, "POST", HERE, {"url": URL} | nothing)
    put = await api.ask(200, "PUT", f"{HERE}/{made['id']}", {"url": URL} | nothing)
    for shown in (made, put):
        assert (shown["version"], shown["description"], shown["disabled"]) == (1, "", False)
    await api.ask(422, "PATCH", f"{HERE}/{made['id']}", {"version": None})


async def test_a_rotated_secret_signs_along_for_its_grace(api, db):
    path = f"{HERE}/{(await make_endpoint(api))['id']}/secret"
    first = await api.ask(200, "GET", path)
    second = await api.ask(200, "POST", f"{path}/rotate", {})
    assert second["key"] != first["key"]
    assert await api.ask(200, "GET", path) == second
    given = make_ed25519_secret()
    third = await api.ask(200, "POST", f"{path}/rotate", {"key": given, "gracePeriodSeconds": 0})
    assert third["key"] == read_signer(given).public
    seconds = await db.fetch(
        "select extract(epoch from expires_at - now())::float8 from boathook.endpoint_secret order by id"
    )
    assert 86_300 < seconds[0][0] <= 86_400
    assert seconds[1][0] <= 0
    assert seconds[2][0] is None
    await api.ask(422, "POST", f"{path}/rotate", {"key": "whsec_x"})
    await api.ask(422, "POST", f"{path}/rotate", {"gracePeriodSeconds": 604_801})


async def test_at_most_ten_former_secrets_sign(api, db):
    path = f"{HERE}/{(await make_endpoint(api))['id']}/secret/rotate"
    for _ in range(10):
        await api.ask(200, "POST", path)
    assert (await api.ask(400, "POST", path, {}))["code"] == "limit_reached"
    await db.execute(
        "update boathook.endpoint_secret set expires_at = now() where id = (select min(id) from boathook.endpoint_secret)"
    )
    await api.ask(200, "POST", path, {})
    assert await db.fetchval("select count(*) from boathook.endpoint_secret") == 11


AGENTS = [
        ("svix-libs/2.0.0/java", 204), ("svix-libs/1.65.0/kotlin", 204), ("svix-libs/2.6.1/csharp", 204),
        ("svix-libs/2.7.0/java", 200), ("svix-libs/2.10.0/kotlin", 200), ("svix-libs/1.62.0/python", 200),
        ("svix-libs/2.5.0/javascript", 200), ("", 200),
    ]  # fmt: skip


async def test_rotation_status_depends_on_the_clients_user_agent(api):
    for agent, status in AGENTS:
        path = f"{HERE}/{(await make_endpoint(api))['id']}/secret/rotate"
        await api.ask(status, "POST", path, {}, headers={"user-agent": agent})


async def test_an_undecryptable_secret_is_reported(api, db):
    made = await make_endpoint(api, headers={"x-a": "1"})
    foreign_client = make_context(db)
    object.__setattr__(foreign_client, "secret_box", SecretBox(["another key of sixteen characters"]))
    other = ApiClient(foreign_client, await make_token(api.context))
    for path in ("secret", "headers"):
        error = await other.ask(500, "GET", f"{HERE}/{made['id']}/{path}")
        assert error["code"] == "server_error"
        assert "encryption_keys" in error["detail"]


# Headers


async def test_headers_are_set_changed_and_removed(api):
    path = f"{HERE}/{(await make_endpoint(api, headers={'X-Start': '0'}))['id']}/headers"
    assert await api.ask(200, "GET", path) == {"headers": {"X-Start": "0"}, "sensitive": []}
    await api.ask(204, "PUT", path, {"headers": {"X-Foo": "1", "Authorization": "Bearer x", "Cookie": "y"}})
    assert await api.ask(200, "GET", path) == {"headers": {"X-Foo": "1"}, "sensitive": ["Authorization", "Cookie"]}
    await api.ask(204, "PATCH", path, {"headers": {"x-foo": "2", "authorization": None}, "deleteHeaders": ["COOKIE"]})
    assert await api.ask(200, "GET", path) == {"headers": {"x-foo": "2"}, "sensitive": []}
    await api.ask(204, "PUT", path, {"headers": {}})
    assert await api.ask(200, "GET", path) == {"headers": {}, "sensitive": []}


FORBIDDEN = ["content-length", "some:thing", "a\x00b", "svix-id", "x-svix-a", "x-amzn-a", "webhook-id", ""]


async def test_forbidden_headers_are_refused(api):
    for name in FORBIDDEN:
        path = f"{HERE}/{(await make_endpoint(api))['id']}/headers"
        for method in ("PUT", "PATCH"):
            await api.ask(422, method, path, {"headers": {name: "x"}})
        await api.ask(422, "PATCH", path, {"headers": {"x-a": "a\r\nb"}})
        await api.ask(422, "PATCH", path, {"headers": {"x-a": "x" * 4_097}})


async def test_credentials_are_stored_encrypted(api, db):
    auth = {"oauth2": {"tokenUrl": "https://example.com/token", "clientId": "id", "clientSecret": "hush-hush"}}
    made = await make_endpoint(api, auth=auth)
    assert made["auth"] == ["oauth2"]
    named = await api.ask(201, "POST", HERE, {"url": "https://user:hush-hush@example.com/x"})
    assert named["url"] == "https://example.com/x"
    assert named["auth"] == ["basic"]
    rows = await db.fetch("select e::text from boathook.endpoint e")
    assert not any("hush-hush" in row[0] or b"hush-hush".hex() in row[0] for row in rows)
    kept = await api.ask(200, "PUT", f"{HERE}/{made['id']}", {"url": URL})
    assert kept["auth"] == ["oauth2"]


# What the organization is told, and what waited


async def test_each_change_publishes_an_operational_event(api, db):
    await db.execute(
        "insert into boathook.application (id, organization, name, is_operational) values (gen_random_uuid(), 'default', 'operational', true)"
    )
    await db.execute(
        "insert into boathook.endpoint (id, application_id, url) select gen_random_uuid(), id, 'http://127.0.0.1:8999/' from boathook.application where is_operational"
    )
    made = await make_endpoint(api, uid="crm")
    path = f"{HERE}/{made['id']}"
    await api.ask(200, "PATCH", path, {"disabled": True})
    await api.ask(200, "PATCH", path, {"disabled": False})
    await api.ask(200, "POST", f"{path}/secret/rotate", {})
    await api.ask(409, "POST", HERE, {"url": URL, "uid": "crm"})
    await api.ask(204, "DELETE", path)
    told = await db.fetch(
        "select type, convert_from(body, 'utf8')::json #>> '{data,endpointId}' as id from boathook.event order by id"
    )
    assert [row["type"] for row in told] == [
        "endpoint.created", "endpoint.updated", "endpoint.disabled", "endpoint.updated", "endpoint.enabled",
        "endpoint.updated", "endpoint.deleted",
    ]  # fmt: skip
    assert {row["id"] for row in told} == {made["id"]}
    actions = [
        row["action"]
        for row in await db.fetch("select action from boathook.audit where subject = $1 order by id", made["id"])
    ]
    assert actions == [row["type"] for row in told]


@pytest.mark.parametrize(
    ("method", "place", "body", "is_reset"),
    [
        ("PATCH", "", {"url": "http://127.0.0.1:8999/moved"}, True),
        ("PATCH", "", {"auth": {"basic": {"username": "a", "password": "b"}}}, True),
        ("PATCH", "/headers", {"headers": {"X-Api-Key": "new"}}, True),
        ("PATCH", "/headers", {"headers": {"X-Api-Key": None}}, True),
        ("PUT", "/headers", {"headers": {"X-Api-Key": "new"}}, True),
        ("POST", "/secret/rotate", {}, True),
        ("PATCH", "/headers", {"headers": {"X-Api-Key": "old"}}, False),
        ("PATCH", "", {"description": "x", "eventTypes": ["a.b"]}, False),
    ],
)
async def test_a_change_after_which_requests_may_succeed_ends_a_pause(api, db, method, place, body, is_reset):
    await api.ask(201, "POST", "/event-type", {"name": "a.b", "description": ""})
    path = f"{HERE}/{(await make_endpoint(api))['id']}"
    await api.ask(204, "PUT", f"{path}/headers", {"headers": {"X-Api-Key": "old"}})
    await db.execute("insert into boathook.endpoint_health (endpoint_id, failures) select id, 7 from boathook.endpoint")
    await api.ask(204 if place == "/headers" else 200, method, path + place, body)
    assert await db.fetchval("select count(*) from boathook.endpoint_health") == int(not is_reset)


@pytest.mark.parametrize(
    ("patches", "runs", "changes"),
    [
        ([{"disabled": True}], ["endpoint.disable"], ["updated", "disabled"]),
        ([{"disabled": True}, {"disabled": False, "backlog": "cancel"}], ["endpoint.disable", "endpoint.enable cancel"],
         ["updated", "disabled", "updated", "enabled"]),
        ([{"disabled": True, "uid": "new"}], ["endpoint.disable"], ["updated", "updated", "disabled"]),
        ([{"disabled": False, "uid": "new"}], [], ["updated"]),
        ([{"uid": "new"}], [], ["updated"]),
    ],
)  # fmt: skip
async def test_a_patch_enables_and_disables_by_the_operations(api, db, monkeypatch, patches, runs, changes):
    ran: list[str] = []
    for operation in (operations.enable, operations.disable):

        async def noted(work: Any, input: Any, operation: Any = operation, body: Any = operation._body) -> Any:
            ran.append(" ".join([operation.name, *filter(None, [getattr(input, "backlog", None)])]))
            return await body(work, input)

        monkeypatch.setattr(operation, "_body", noted)
    made = await make_endpoint(api, uid="old")
    for patch in patches:
        answer = await api.ask(200, "PATCH", f"{HERE}/old", patch)
        assert answer == await api.ask(200, "GET", f"{HERE}/{made['id']}")
        assert {name: answer[name] for name in patch if name != "backlog"} == {
            name: value for name, value in patch.items() if name != "backlog"
        }
    assert ran == runs
    rows = await db.fetch("select action from boathook.audit where subject = $1 order by id", made["id"])
    assert [row["action"] for row in rows] == [f"endpoint.{change}" for change in ("created", *changes)]


@pytest.mark.parametrize(("backlog", "state"), [("send", "pending"), ("cancel", "dead"), (None, "pending")])
async def test_enabling_an_endpoint_sends_or_cancels_its_backlog(api, db, backlog, state):
    made = await make_endpoint(api)
    path = f"{HERE}/{made['id']}"
    await db.execute(
        "insert into boathook.delivery (event_id, ordinal, recipient) values (gen_random_uuid(), 0, $1)",
        f"endpoint:{made['id']}",
    )
    await db.execute("insert into boathook.endpoint_health (endpoint_id, failures) select id, 7 from boathook.endpoint")
    await api.ask(200, "PATCH", path, {"disabled": True})
    await api.ask(200, "PATCH", path, {"disabled": False, "backlog": backlog} if backlog else {"disabled": False})
    row = await db.fetchrow("select state, code from boathook.delivery")
    assert (row["state"], row["code"]) == (state, "CANCELED" if state == "dead" else None)
    assert await db.fetchval("select coalesce(max(failures), 0) from boathook.endpoint_health") == 0
