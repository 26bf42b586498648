"""Bearer tokens of operators: what they allow, when they end, and what keeps them from outliving their operator."""

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from boathook.db import operator_tokens as stored_tokens
from boathook.db.operators import ClientInfo
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.errors import AccessUnknown, InvalidState, InvalidValue, LimitReached, NotAllowed, NotFound
from boathook.domain.model import MountRole, Role
from boathook.service import limits
from boathook.service.access import login_rate, operator_tokens, operators
from boathook.service.access.authorization import OperatorTokenCaller, Permission, Principal
from boathook.service.access.keys import hash_token
from boathook.service.caller import HOST
from boathook.service.catalogue import operators as operator_actions
from boathook.service.catalogue.operators import OperatorNamed
from boathook.service.unit_of_work import new_id
from boathook_outage_publishing.access_copy import AccessCopy
from tests.postgres.api_client import KEY, ApiClient, make_operator_token, make_token, open_api_client
from tests.postgres.portal_client import open_console

ACCOUNT = "/console/account"
NEW = {"name": "Acme", "uid": "acme"}


@pytest.fixture(autouse=True)
def _own_rates(monkeypatch):
    monkeypatch.setattr(operator_tokens, "rates", login_rate.OperatorTokenRates())


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        yield client


async def client_of(api: ApiClient, operator: str = "anna", role: Role = Role.ADMIN, **more) -> ApiClient:
    return api.as_token(await make_operator_token(api.context, operator, role, **more))


# What a token allows


async def test_a_token_acts_as_its_operator_and_the_audit_has_its_id(api, db):
    client = await client_of(api, role=Role.OPERATOR)
    await client.ask(201, "POST", "/app", NEW)
    assert [row["name"] for row in (await client.ask(200, "GET", "/app"))["data"]] == ["Acme"]
    async with api.context.work() as work:
        (token,) = await operator_tokens.list_of(work, await operators.get(work, "anna"))
    actor = await db.fetchval("select actor from boathook.audit where action = 'application.create'")
    assert actor == f"operator:anna/{token.shown_id}"
    assert ids.read(ids.OPERATOR_TOKEN, actor.partition("/")[2]) == token.id


async def test_a_viewers_token_only_reads(api):
    client = await client_of(api, role=Role.VIEWER)
    await client.ask(200, "GET", "/app")
    assert (await client.ask(403, "POST", "/app", NEW))["code"] == "insufficient access"


async def test_a_token_of_a_lower_role_has_no_more_than_this(api):
    client = await client_of(api, role=Role.ADMIN, token_role=Role.VIEWER)
    await client.ask(403, "POST", "/app", NEW)


async def test_a_token_never_exceeds_the_present_role_of_its_operator(api):
    client = await client_of(api, role=Role.OPERATOR)
    await client.ask(201, "POST", "/app", NEW)
    await set_role(api, Role.VIEWER)
    await client.ask(403, "POST", "/app", {"name": "Other"})
    await client.ask(200, "GET", "/app")
    await set_role(api, Role.ADMIN)
    await client.ask(201, "POST", "/app", {"name": "Other"})
    caller = await caller_of(api, client)
    assert (caller.role, caller.may(Permission.KEY_MANAGE)) == (Role.OPERATOR, False), "the token keeps its own role"


async def set_role(api: ApiClient, role: Role) -> None:
    async with api.context.work(actor="test") as work:
        if role is not Role.ADMIN:
            await operators.create(work, "another admin", Role.ADMIN)
        await operators.set_role(work, "anna", role)


async def caller_of(api: ApiClient, client: ApiClient) -> OperatorTokenCaller:
    async with api.context.reading() as connection:
        text = client.headers["authorization"].removeprefix("Bearer ")
        caller = await operator_tokens.authenticate(connection, text, "127.0.0.1")
    assert caller is not None
    return caller


@pytest.mark.parametrize("permission", [Permission.ACCOUNT, Permission.OPERATOR_ACCESS_MANAGE])
def test_an_admins_token_creates_nothing_that_could_outlive_it(permission: Permission):
    holder = OperatorTokenCaller(token_id=new_id(), operator_id=new_id(), operator="anna", role=Role.ADMIN)
    assert not holder.may(permission)
    assert holder.may(Permission.OPERATOR_MANAGE)


HOLDERS = (
    OperatorTokenCaller(token_id=new_id(), operator_id=new_id(), operator="anna", role=Role.ADMIN),
    Principal(new_id(), "default"),
)


@pytest.mark.parametrize("caller", HOLDERS, ids=["operator token", "organization key"])
async def test_no_token_and_no_key_creates_operator_tokens(api, caller):
    async with api.context.work(actor="test") as work:
        await operators.create(work, "anna", Role.ADMIN)
    async with api.context.work(actor="test", caller=caller) as work:
        with pytest.raises(NotAllowed, match="no key and no token creates operator tokens"):
            await operator_tokens.create(work, "anna", "ci")


async def test_a_token_opens_neither_the_console_nor_a_mount(api):
    text = await make_operator_token(api.context)
    assert not OperatorTokenCaller(token_id=new_id(), operator_id=new_id(), operator="anna", role=Role.ADMIN).may(
        Permission.APP_READ
    )
    async with api.context.work() as work:
        assert await operators.find_session(work, text, timedelta(hours=1)) is None


# When it ends


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ("update boathook.operator_token set used_at = now()", 200),
        ("update boathook.operator_token set expires_at = now()", 401),
        ("update boathook.operator_token set revoked_at = now()", 401),
        ("update boathook.operator set disabled_at = now()", 401),
        ("delete from boathook.operator", 401),
    ],
)
async def test_a_token_ends_with_its_time_its_revocation_or_its_operator(api, db, change: str, status: int):
    client = await client_of(api)
    await client.ask(200, "GET", "/app")
    await db.execute(change)
    await client.ask(status, "GET", "/app")


async def test_a_token_of_a_disabled_operator_does_not_come_back(api):
    client = await client_of(api)
    async with api.context.work(actor="test", caller=HOST) as work:
        await operators.create(work, "ben", Role.ADMIN)
        await operator_actions.disable(work, OperatorNamed(name="anna"))
        await operator_actions.enable(work, OperatorNamed(name="anna"))
    await client.ask(401, "GET", "/app")


async def test_a_revoked_token_is_in_the_audit_and_revoked_once(api, db):
    client = await client_of(api)
    async with api.context.work(actor="cli:root") as work:
        (token,) = await operator_tokens.list_of(work, await operators.get(work, "anna"))
        with pytest.raises(NotFound):
            await operator_tokens.revoke(work, token.id, new_id())
        await operator_tokens.revoke(work, token.id, token.operator_id)
        with pytest.raises(NotFound):
            await operator_tokens.revoke(work, token.id)
    await client.ask(401, "GET", "/app")
    rows = await db.fetch(
        "select actor, action, subject, note from boathook.audit where action like 'operator_token.%'"
    )
    assert [(row["actor"], row["action"], row["subject"]) for row in rows] == [
        ("test", "operator_token.create", token.shown_id),
        ("cli:root", "operator_token.revoke", token.shown_id),
    ]
    assert rows[0]["note"].startswith("anna: ci, admin, until 2")


# Creating


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"role": Role.ADMIN}, "role"),
        ({"lifetime": timedelta(days=90, seconds=1)}, "lifetime"),
        ({"lifetime": timedelta(0)}, "lifetime"),
        ({"name": " "}, "name"),
        ({"name": "x" * (200 + 1)}, "name"),
    ],
)
async def test_invalid_values_name_their_field(api, values, field: str):
    async with api.context.work() as work:
        await operators.create(work, "ben", Role.OPERATOR)
        with pytest.raises(InvalidValue) as error:
            await operator_tokens.create(work, "ben", **{"name": "ci", **values})
    assert error.value.where == (field,)


async def test_the_longest_lifetime_is_ninety_days_for_the_database_too(api, db):
    await make_operator_token(api.context, lifetime=timedelta(days=90))
    with pytest.raises(Exception, match="operator_token_lifetime"):
        await db.execute("update boathook.operator_token set expires_at = expires_at + interval '1 second'")


async def test_a_disabled_operator_gets_no_token_and_an_enabled_one_twenty(api):
    async with api.context.work(caller=HOST) as work:
        await operators.create(work, "anna", Role.ADMIN)
        await operators.create(work, "ben", Role.VIEWER)
        await operator_actions.disable(work, OperatorNamed(name="ben"))
        with pytest.raises(InvalidState, match="ben is disabled"):
            await operator_tokens.create(work, "ben", "ci")
        last = await operator_tokens.create(work, "anna", "ci")
        for _ in range(limits.MAX_OPERATOR_TOKENS - 1):
            await operator_tokens.create(work, "anna", "ci")
        with pytest.raises(LimitReached, match="anna has 20 valid tokens"):
            await operator_tokens.create(work, "anna", "ci")
        await operator_tokens.revoke(work, last.token.id)
        await operator_tokens.create(work, "anna", "ci")


async def test_only_the_hash_of_a_token_is_stored_and_its_repr_hides_it(api, db):
    async with api.context.work() as work:
        await operators.create(work, "anna", Role.ADMIN)
        created = await operator_tokens.create(work, "anna", "ci")
    assert created.text.startswith("bho_")
    assert "." not in created.text
    assert len(created.text) > 40
    assert created.text not in repr(created)
    row = dict(await db.fetchrow("select * from boathook.operator_token"))
    assert row["token_sha256"] == hash_token(created.text)
    assert created.text not in repr(row)


async def test_the_last_use_is_recorded_once_a_minute(api, db):
    client = await client_of(api)
    assert await used_at(db) is None
    await client.ask(200, "GET", "/app")
    first = await used_at(db)
    assert first is not None
    await client.ask(200, "GET", "/app")
    assert await used_at(db) == first
    await db.execute("update boathook.operator_token set used_at = now() - interval '61 seconds'")
    await client.ask(200, "GET", "/app")
    assert await used_at(db) >= first


async def used_at(db):
    return await db.fetchval("select used_at from boathook.operator_token")


async def test_a_request_does_not_wait_for_another_that_records_its_use(api, db):
    client = await client_of(api)
    async with db.transaction() as other:
        await other.execute("update boathook.operator_token set used_at = used_at")
        await client.ask(200, "GET", "/app")


# Rates


async def test_many_wrong_tokens_of_an_address_are_not_looked_up(api, monkeypatch):
    valid = await client_of(api)
    await valid.ask(200, "GET", "/app")
    lookups = []
    find = stored_tokens.find

    async def counted_find(connection, sha256):
        lookups.append(sha256)
        return await find(connection, sha256)

    monkeypatch.setattr(stored_tokens, "find", counted_find)
    expired = api.as_token("bho_expired")
    for _ in range(100):
        await expired.ask(401, "GET", "/app")
    assert len(lookups) == 100, "a job with an old token is one wrong token"
    statuses = [(await api.as_token(f"bho_{number}").get("/app")).status_code for number in range(100)]
    tries = statuses.index(429)
    assert 50 < tries < 70
    assert set(statuses[:tries]) == {401}
    assert statuses[tries:].count(401) <= 1, "the bucket is refilled slowly"
    assert len(lookups) < 175
    answer = await api.as_token("bho_once_more").get("/app")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "rate_limited", "12")
    await valid.ask(200, "GET", "/app")
    await api.ask(200, "GET", "/app")


async def test_a_token_may_send_a_limited_number_of_requests(api, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(login_rate, "time", clock)
    monkeypatch.setattr(operator_tokens, "rates", rates := login_rate.OperatorTokenRates())
    client, other = await client_of(api), await client_of(api, "ben")
    await client.ask(200, "GET", "/app")
    sha256 = hash_token(client.headers["authorization"].removeprefix("Bearer "))
    for _ in range(499):
        rates.count_request(sha256)
    assert (await client.ask(429, "GET", "/app"))["code"] == "rate_limited"
    await other.ask(200, "GET", "/app")
    clock.monotonic = lambda: 1001.0
    await client.ask(200, "GET", "/app")


# In the console


async def test_an_operator_creates_uses_and_revokes_an_own_token(db):
    async with open_console(db) as console:
        pages = await console.operator("vera", Role.VIEWER)
        page = await pages.get_page(ACCOUNT)
        assert "No tokens yet." in page
        assert '<option value="operator"' not in page, "a token has no higher role than its operator"
        form = {"name": "laptop", "role": "viewer", "lifetime": "90"}
        answer = await pages.submit_form(f"{ACCOUNT}/tokens", form, on=ACCOUNT, status=200)
        text = re.search(r"bho_[\w-]{43}", answer.text)[0]
        assert answer.headers["cache-control"] == "no-store"
        api = ApiClient(console.context, text)
        await api.ask(200, "GET", "/app")
        page = await pages.get_page(ACCOUNT)
        assert text not in page
        revoke = re.search(r"/console/account/tokens/otk_\w+/revoke", page)[0]
        other = await console.operator("ben", Role.VIEWER)
        await other.submit_form(revoke, on=ACCOUNT, status=404)
        await api.ask(200, "GET", "/app")
        await pages.submit_form(revoke, on=ACCOUNT)
        await api.ask(401, "GET", "/app")
        await pages.submit_form(f"{ACCOUNT}/tokens/nothing/revoke", on=ACCOUNT, status=404)
        form["role"] = "admin"
        answer = await pages.submit_form(f"{ACCOUNT}/tokens", form, on=ACCOUNT, status=400)
        assert "vera is viewer; a token has no higher role than its operator" in answer.text
        answer = await pages.submit_form(f"{ACCOUNT}/tokens", {**form, "lifetime": "365"}, on=ACCOUNT, status=400)
        assert "choose one of these" in answer.text


async def test_an_operator_with_a_password_enters_it_for_a_token(db):
    password = "correct horse battery staple"
    async with open_console(db) as console:
        pages = await console.operator("vera", Role.VIEWER)
        async with console.context.work(actor="test") as work:
            await operators.set_password(work, "vera", password)
            session = await operators.start_session(
                work, await operators.get(work, "vera"), timedelta(hours=1), ClientInfo("127.0.0.1", "test")
            )
        pages.cookies.set("boathook", session.token)
        form = {"name": "laptop", "role": "viewer", "lifetime": "90", "confirmed": "wrong"}
        answer = await pages.submit_form(f"{ACCOUNT}/tokens", form, on=ACCOUNT, status=400)
        assert "the current password is wrong" in answer.text
        assert await db.fetchval("select count(*) from boathook.operator_token") == 0
        await pages.submit_form(f"{ACCOUNT}/tokens", {**form, "confirmed": password}, on=ACCOUNT, status=200)


async def test_an_admin_creates_and_revokes_tokens_of_others(db):
    async with open_console(db) as console:
        admin = await console.operator("anna")
        await console.operator("ci b", Role.OPERATOR)
        path = "/console/operators/ci%20b/tokens"
        assert path in await admin.get_page("/console/operators")
        form = {"name": "deploy", "role": "operator", "lifetime": "7"}
        answer = await admin.submit_form(path, form, status=200)
        assert f'href="{path}"' in answer.text
        api = ApiClient(console.context, re.search(r"bho_[\w-]{43}", answer.text)[0])
        await api.ask(201, "POST", "/app", NEW)
        page = await admin.get_page(path)
        (revoke,) = re.findall(r"/console/operators/ci%20b/tokens/otk_\w+/revoke", page)
        await admin.submit_form(revoke.replace("ci%20b", "anna"), on=path, status=404)
        await admin.submit_form(revoke, on=path)
        await api.ask(401, "GET", "/app")
        answer = await admin.submit_form(path, {**form, "name": ""}, status=400)
        assert "write 1 to 200 characters" in answer.text
        actors = await db.fetch("select actor from boathook.audit where action like 'operator_token.%'")
        assert {row["actor"] for row in actors} == {"console:anna"}


# Beside API keys


async def test_a_response_is_repeated_to_the_same_operator_only(api):
    headers = {"idempotency-key": "once"}
    path, body = "/app/acme/endpoint", {"url": "http://127.0.0.1:8999/"}
    await api.ask(201, "POST", "/app", NEW)
    anna, ben, viewer = [await client_of(api, name, Role.OPERATOR) for name in ("anna", "ben", "vera")]
    created = await anna.ask(201, "POST", path, body, headers=headers)
    again = await anna.ask(201, "POST", path, body, headers=headers)
    assert again == created
    others = [await client.ask(201, "POST", path, body, headers=headers) for client in (ben, viewer, api)]
    assert len({created["id"], *(other["id"] for other in others)}) == 4


async def test_a_copy_of_the_keys_does_not_decide_about_a_token(api, db, tmp_path: Path):
    text = await make_operator_token(api.context)
    key = await make_token(api.context)
    copy = AccessCopy(tmp_path / "copy.bin", SecretBox([KEY]), 3600.0)
    copy._database = db
    await copy.read()
    assert (await copy.find_principal(key)).organization == "default"
    with pytest.raises(AccessUnknown):
        await copy.find_principal(text)


async def test_a_token_publishes_messages(api):
    client = await client_of(api, role=Role.OPERATOR)
    await client.ask(201, "POST", "/app", NEW)
    message = {"eventType": "thing.done", "payload": {"a": 1}}
    created = await client.ask(202, "POST", "/app/acme/msg", message)
    assert (await client.ask(200, "GET", f"/app/acme/msg/{created['id']}"))["eventType"] == "thing.done"


@pytest.mark.parametrize("role", MountRole)
async def test_a_key_of_a_mount_is_no_operators_token(api, role: MountRole):
    client = api.as_token(await make_token(api.context, mount="/yard", role=role))
    await client.ask(403, "GET", "/app")
