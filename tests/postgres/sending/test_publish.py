"""Plain messages over the API: stored in groups, answered as the route behind answers, each once or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from boathook.api.app import Api, build_app
from boathook.db import integrity
from boathook.db.database import Database
from boathook.db.message_group import GroupRolledBack, insert_group
from boathook.domain import ids
from boathook.domain.errors import DatabaseError
from boathook.domain.messages import Message
from boathook.service.sending import applications, group_publisher, messages
from boathook.service.sending.applications import NewApplication
from tests.postgres.api_client import ApiClient, make_token, open_api_client
from tests.support import eventually

PLAIN = {"eventType": "invoice.paid", "payload": {"n": 1}}
PATH = "/app/acme/msg"


@pytest.fixture
async def api(db: Database) -> AsyncIterator[ApiClient]:
    async with open_api_client(db) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        await endpoint(client)
        yield client


async def endpoint(api: ApiClient, **fields: Any) -> str:
    body = {"url": "http://127.0.0.1:18080/hook"} | fields
    return (await api.ask(201, "POST", "/app/acme/endpoint", body))["id"]


def behind(api: ApiClient) -> ApiClient:
    """Return a client of the same API without the fast publish route."""
    client = ApiClient(api.context, "", Api(api.context, build_app()))
    client.headers["authorization"] = api.headers["authorization"]
    return client


@pytest.fixture
def alone(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that were left to the toolkit's routes."""
    left: list[str] = []
    others = api.app._answer._others

    async def note(scope: Any, receive: Any, send: Any) -> None:
        left.append(scope["path"])
        await others(scope, receive, send)

    monkeypatch.setattr(api.app._answer, "_others", note)
    return left


async def stored(db: Database) -> int:
    return await db.fetchval("select count(*) from boathook.event where origin = 'published'")


async def balances(db: Database) -> bool:
    return (await integrity.check_integrity(db, dedup_days=30, is_deep=True)).violations == ()


REQUESTS: list[dict[str, Any]] = [
    PLAIN,
    PLAIN | {"eventId": "inv-1"},
    PLAIN | {"channels": ["eu", "us", "eu"], "tags": ["t", "t"]},
    PLAIN | {"channels": None, "tags": [], "eventId": None},
    PLAIN | {"payloadRetentionPeriod": 5},
    PLAIN | {"payloadRetentionHours": 5},
    PLAIN | {"payload": {"text": 'ü\u0000"\\ \U0001f600', "n": 1.50, "deep": [[{}]]}},
]


@pytest.mark.parametrize("body", REQUESTS, ids=",".join)
async def test_the_fast_path_responds_like_the_full_route(
    api: ApiClient, db: Database, alone: list[str], body: Any
) -> None:
    raw = json.dumps(body, indent=1, ensure_ascii=False).encode()
    plain = await api.post(PATH, content=raw)
    assert (plain.status_code, alone) == (202, [])
    await db.execute("delete from boathook.dedup")
    other = await behind(api).post(PATH, content=raw)
    made, expected = plain.json(), other.json()
    assert list(made) == list(expected)
    changing = {"id", "timestamp"}
    assert {key: made[key] for key in made if key not in changing} == {
        key: expected[key] for key in expected if key not in changing
    }
    assert sorted(plain.headers.items() - {("content-length", plain.headers["content-length"])}) == sorted(
        other.headers.items() - {("content-length", other.headers["content-length"])}
    )
    columns = """select source, application, type, grade, origin, headers::text as headers, content_type, body,
        body_sha256, fanout, channels, tags, deliver_at, date_trunc('hour', content_until) as content_until, items
        from boathook.event order by id"""
    one, two = await db.fetch(columns)
    assert dict(one) == dict(two)
    owed = await db.fetch("select recipient, state, order_key, is_manual, is_replay from boathook.delivery")
    assert len(owed) == 2
    assert dict(owed[0]) == dict(owed[1])


UNUSUAL: list[tuple[int, Any, dict[str, str]]] = [
    (202, PLAIN | {"colour": "red"}, {}),
    (202, PLAIN | {"deliverAt": None}, {}),
    (202, PLAIN | {"transformationsParams": {"rawPayload": "x"}}, {}),
    (202, {"eventType": "invoice.paid", "data": {}}, {}),
    (202, PLAIN, {"origin": "https://example.com"}),
    (422, PLAIN | {"eventType": "a b"}, {}),
    (422, PLAIN | {"payload": [1]}, {}),
    (422, PLAIN | {"channels": []}, {}),
    (422, PLAIN | {"payloadRetentionPeriod": 91}, {}),
    (422, PLAIN | {"payloadRetentionPeriod": 9, "payloadRetentionHours": 9}, {}),
    (422, PLAIN | {"eventId": "msg_1"}, {}),
    (401, PLAIN, {"authorization": "Bearer bhk_nobody"}),
    (401, PLAIN, {"authorization": "Basic eDp5"}),
]


@pytest.mark.parametrize(("status", "body", "headers"), UNUSUAL)
async def test_unusual_requests_are_left_to_the_full_route(
    api: ApiClient, alone: list[str], status: int, body: Any, headers: dict[str, str]
) -> None:
    answer = await api.post(PATH, json=body, headers=headers)
    other = await behind(api).post(PATH, json=body, headers=headers)
    assert answer.status_code == other.status_code == status
    assert alone == ["/api/v1/app/acme/msg"]
    if status >= 400:
        assert answer.json() == other.json()


async def test_a_body_in_parts_and_a_path_with_a_slash_are_taken(api: ApiClient, db: Database) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for byte in json.dumps(PLAIN | {"colour": 1}).encode():
            yield bytes([byte])

    assert (await api.post(f"{PATH}/", json=PLAIN)).status_code == 202
    raw = json.dumps(PLAIN).encode()
    assert (await api.post(PATH, content=parts(), headers={"content-length": str(len(raw) + 13)})).status_code == 202
    assert (await api.post(PATH, content=parts())).status_code == 202
    assert await stored(db) == 3


async def test_an_unknown_application_is_not_found(api: ApiClient, db: Database) -> None:
    other = await api.ask(404, "POST", "/app/nobody/msg", PLAIN)
    assert other["code"] == "not_found"
    operational = ids.show(ids.APPLICATION, group_publisher_id())
    await db.execute(
        "insert into boathook.application (id, organization, name, is_operational) values ($1, 'default', 'o', true)",
        ids.read(ids.APPLICATION, operational),
    )
    await api.ask(404, "POST", f"/app/{operational}/msg", PLAIN)
    foreign = api.as_token(await make_token(api.context, "elsewhere"))
    await foreign.ask(404, "POST", PATH, PLAIN)
    own = api.as_token(await make_token(api.context, application="acme"))
    await own.ask(403, "POST", PATH, PLAIN)
    assert await stored(db) == 0


def group_publisher_id() -> UUID:
    return ids.make(1_700_000_000_000, 5)


async def test_messages_at_the_same_time_share_a_commit(api: ApiClient, db: Database, alone: list[str]) -> None:
    await api.ask(202, "POST", PATH, PLAIN)
    answers = await asyncio.gather(*[api.ask(202, "POST", PATH, PLAIN | {"payload": {"n": n}}) for n in range(60)])
    assert sorted(answer["payload"]["n"] for answer in answers) == list(range(60))
    bodies = {
        ids.show(ids.MESSAGE, row["id"]): json.loads(row["body"]) for row in await db.fetch("table boathook.event")
    }
    assert all(bodies[answer["id"]] == answer["payload"] for answer in answers)
    commits = await db.fetchval("select count(distinct xmin::text) from boathook.event")
    assert commits < 30
    assert alone == []
    assert await balances(db)


DELIVERY = group_publisher.DELIVERY_WEIGHT


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"_MAX_MESSAGES": 2}, 2),
        ({"_MAX_WEIGHT": 2 * (DELIVERY + len(b'{"n":1}'))}, 2),
        ({"_MAX_WEIGHT": 2 * DELIVERY}, 1),
        ({"_MAX_WEIGHT": 3 * len(b'{"n":1}'), "DELIVERY_WEIGHT": 0}, 3),
    ],
)
async def test_a_commit_is_bounded_by_its_messages_deliveries_and_bytes(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], size: int
) -> None:
    for limit, value in limits.items():
        monkeypatch.setattr(group_publisher, limit, value)
    client = ApiClient(api.context, api.headers["authorization"].removeprefix("Bearer "))
    await client.ask(202, "POST", PATH, PLAIN)
    sizes = []

    async def note(database: Database, rows: Any, **options: Any) -> Any:
        sizes.append(len(rows))
        return await insert_group(database, rows, **options)

    monkeypatch.setattr(group_publisher, "insert_group", note)
    await asyncio.gather(*[client.ask(202, "POST", PATH, PLAIN) for _ in range(12)])
    assert (sum(sizes), max(sizes)) == (12, size)


async def test_a_new_endpoint_gets_later_messages(api: ApiClient, db: Database) -> None:
    for number in range(2, 6):
        await endpoint(api, **{"channels": ["eu"]} if number % 2 else {})
        made = await api.ask(202, "POST", PATH, PLAIN | {"channels": ["eu"]})
        event_id = ids.read(ids.MESSAGE, made["id"])
        assert await db.fetchval("select count(*) from boathook.delivery where event_id = $1", event_id) == number


async def test_channels_decide(api: ApiClient, db: Database) -> None:
    await endpoint(api, channels=["eu"])
    owed = []
    for body in (PLAIN, PLAIN | {"channels": ["eu"]}, PLAIN | {"channels": ["us"]}):
        made = ids.read(ids.MESSAGE, (await api.ask(202, "POST", PATH, body))["id"])
        owed.append(await db.fetchval("select count(*) from boathook.delivery where event_id = $1", made))
    assert owed == [1, 2, 1]


async def test_a_deleted_application_accepts_no_messages(api: ApiClient, db: Database) -> None:
    await api.ask(202, "POST", PATH, PLAIN)
    await api.ask(204, "DELETE", "/app/acme")
    await api.ask(404, "POST", PATH, PLAIN)
    again = await api.ask(201, "POST", "/app", {"name": "Other", "uid": "acme"})
    await api.ask(202, "POST", PATH, PLAIN)
    assert await db.fetchval("select count(*) from boathook.event where application = $1", again["id"]) == 1


async def test_an_event_id_is_for_one_message(api: ApiClient, db: Database) -> None:
    answers = await asyncio.gather(*[api.post(PATH, json=PLAIN | {"eventId": "inv-1"}) for _ in range(20)])
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 19
    assert await stored(db) == 1


async def test_an_idempotency_key_works_across_both_publish_paths(
    api: ApiClient, db: Database, alone: list[str]
) -> None:
    head = {"idempotency-key": "k"}
    first = await api.post(PATH, json=PLAIN, headers=head)
    assert (first.status_code, alone) == (202, [])
    assert "idempotent-replayed" not in first.headers
    for client in (api, behind(api)):
        again = await client.post(f"{PATH}/", content=json.dumps(PLAIN, indent=2), headers=head)
        assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
        assert again.headers["idempotent-replayed"] == "true"
        clash = await client.post(PATH, json=PLAIN | {"payload": {"n": 2}}, headers=head)
        assert (clash.status_code, clash.json()["code"]) == (409, "idempotency_key_reused")
    other = await behind(api).post(PATH, json=PLAIN, headers={"idempotency-key": "k2"})
    assert (await api.post(PATH, json=PLAIN, headers={"idempotency-key": "k2"})).json()["id"] == other.json()["id"]
    answers = await asyncio.gather(*[api.post(PATH, json=PLAIN, headers={"idempotency-key": "k3"}) for _ in range(20)])
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await stored(db) == 3
    assert await balances(db)


async def test_a_key_locked_by_a_long_transaction_blocks_no_other_message(api: ApiClient, db: Database) -> None:
    await api.ask(202, "POST", PATH, PLAIN)
    async with db.transaction() as connection:
        await behind_in(api, connection)
        held = asyncio.create_task(api.ask(409, "POST", PATH, PLAIN | {"eventId": "held"}))
        await asyncio.wait_for(asyncio.gather(*[api.ask(202, "POST", PATH, PLAIN) for _ in range(5)]), 20)
        assert not held.done()
    await held


async def behind_in(api: ApiClient, connection: Any) -> None:
    await api.context.outbox.publish(connection, Message(application="acme", type="x", payload={}, id="held"))


async def test_a_group_takes_its_keys_in_their_order(api: ApiClient, db: Database) -> None:
    """Otherwise two groups with the same keys could wait for each other."""
    publisher = group_publisher.GroupPublisher(api.context)
    token = await publisher.find_token(await make_token(api.context))
    assert token is not None
    rows = []
    for name in "abcd":
        message = Message(application="acme", organization=token.principal.organization, type="x", payload={}, id=name)
        prepared = await publisher.prepare(token, message)
        assert prepared is not None
        rows.append(prepared.row)
    rows.sort(key=lambda row: row.event.key_hash, reverse=True)
    insert = """insert into boathook.dedup (key, event_id, body_sha256, expires_at)
        values ($1, boathook.min_id(now()), sha256(''), now() + interval '1 day')"""
    waiting = "select array_agg(pid) from pg_stat_activity where $1::int = any (pg_blocking_pids(pid))"
    async with db.transaction() as connection:
        await connection.execute(insert, rows[0].event.key_hash)
        pid = await connection.fetchval("select pg_backend_pid()")
        group = asyncio.create_task(insert_group(db, rows, lock_timeout=None))

        async def waits_for(blocker: int) -> bool:
            return await db.fetchval(waiting, blocker) is not None

        await eventually(lambda: waits_for(pid))
        (group_pid,) = await db.fetchval(waiting, pid)
        lowest = asyncio.create_task(db.execute(insert, rows[-1].event.key_hash))

        async def is_settled() -> bool:
            return lowest.done() or await waits_for(group_pid)

        await eventually(is_settled)
        assert not lowest.done(), "the group waits for its highest key before it has the lowest"
        await connection.execute("delete from boathook.dedup")
    assert await group == [None] * 4
    with pytest.raises(DatabaseError, match="duplicate key"):
        await lowest


async def _publish_while_revoked(api: ApiClient, db: Database) -> int:
    """Publish without a pause while the token is revoked; return how many were stored after that had committed."""
    answers: list[int] = []
    is_over = False

    async def keep_publishing() -> None:
        while not is_over:
            answers.append((await api.post(PATH, json=PLAIN)).status_code)

    publishers = [asyncio.create_task(keep_publishing()) for _ in range(8)]
    await eventually(lambda: answers.count(202) >= 30)
    await db.execute("update boathook.api_key set revoked_at = now()")
    before = await stored(db)
    begun = len(answers)
    await eventually(lambda: len(answers) >= begun + 30)
    is_over = True
    await asyncio.gather(*publishers)
    assert await balances(db)
    return await stored(db) - before


async def test_a_token_that_was_revoked_stores_nothing(api: ApiClient, db: Database) -> None:
    assert await _publish_while_revoked(api, db) == 0
    assert (await api.post(PATH, json=PLAIN)).status_code == 401


async def test_mutant_without_the_token_recheck_a_revoked_token_publishes(api: ApiClient, db: Database) -> None:
    source = await db.fetchval("select pg_get_functiondef('boathook.publish_messages'::regproc)")
    mutated = source.replace("when t.token is not null and not exists", "when false and not exists")
    assert mutated != source
    await db.execute(mutated)
    assert await _publish_while_revoked(api, db) > 0


async def _publish_during_revocation(api: ApiClient, db: Database) -> tuple[int, bool]:
    """Publish while a revocation has not committed; return the status, and whether the request waited for it."""
    await api.ask(202, "POST", PATH, PLAIN)
    async with db.transaction() as connection:
        await connection.execute("update boathook.api_key set revoked_at = now()")
        pid = await connection.fetchval("select pg_backend_pid()")
        waiting = "select exists (select from pg_stat_activity where $1::int = any (pg_blocking_pids(pid)))"
        publishing = asyncio.create_task(api.post(PATH, json=PLAIN))

        async def is_settled() -> bool:
            return publishing.done() or await db.fetchval(waiting, pid)

        await eventually(is_settled)
        has_waited = not publishing.done()
    return (await publishing).status_code, has_waited


async def test_publishing_waits_for_a_revocation_of_its_token(api: ApiClient, db: Database) -> None:
    assert await _publish_during_revocation(api, db) == (401, True)
    assert await stored(db) == 1


async def test_mutant_without_the_lock_on_the_token_it_publishes(api: ApiClient, db: Database) -> None:
    source = await db.fetchval("select pg_get_functiondef('boathook.publish_messages'::regproc)")
    mutated = source.replace("token_sha256 = any (t_tokens) order by id for share", "false")
    assert mutated != source
    await db.execute(mutated)
    assert await _publish_during_revocation(api, db) == (202, False)


async def test_an_expired_token_stores_nothing(api: ApiClient, db: Database) -> None:
    await api.ask(202, "POST", PATH, PLAIN)
    await db.execute("update boathook.api_key set expires_at = now()")
    await api.ask(401, "POST", PATH, PLAIN)
    assert await stored(db) == 1


@pytest.mark.parametrize(("point", "number"), [("publish.before_commit", 0), ("publish.after_commit", 1)])
async def test_a_request_failing_around_its_commit_is_stored_once(
    api: ApiClient, db: Database, monkeypatch: pytest.MonkeyPatch, point: str, number: int
) -> None:
    def fail(passed: str) -> None:
        if passed == point:
            raise RuntimeError("the process dies here")

    head = {"idempotency-key": "k"}
    with monkeypatch.context() as patch:
        patch.setattr(group_publisher, "failpoint", fail)
        assert (await api.post(PATH, json=PLAIN, headers=head)).status_code == 500
    assert await stored(db) == number
    again = await api.post(PATH, json=PLAIN, headers=head)
    assert again.status_code == 202
    assert again.headers.get("idempotent-replayed") == ("true" if number else None)
    assert await stored(db) == 1
    assert await balances(db)


async def test_a_message_that_breaks_the_group_fails_alone(
    api: ApiClient, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse_one(database: Database, rows: Any, **options: Any) -> Any:
        if any(b"poison" in row.event.body for row in rows):
            raise GroupRolledBack("one of them is refused")
        return await insert_group(database, rows, **options)

    monkeypatch.setattr(group_publisher, "insert_group", refuse_one)
    bodies = [PLAIN | {"payload": {"n": n, "text": "poison" * (n == 5)}} for n in range(20)]
    await asyncio.gather(*[api.ask(202, "POST", PATH, body) for body in bodies])
    assert await stored(db) == 20


async def test_a_message_is_published_in_the_organization_of_its_unit_of_work(api: ApiClient, db: Database) -> None:
    async with api.context.work("elsewhere", "test") as work:
        theirs = await applications.create(work, NewApplication(name="theirs"))
        message = Message(application="whatever it names", type="a", payload=b"{}")
        await messages.create(work, theirs, message)
    assert await db.fetchval("select application from boathook.event") == theirs.shown_id
