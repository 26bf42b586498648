"""Attempts over the API: listed by endpoint and by message, counted, forgotten; and tasks that send again."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from boathook.api.attempts import EndpointMessageOut, MessageAttemptOut, MessageEndpointOut
from boathook.db import attempts, messages
from boathook.db.applications import find
from boathook.delivery.tasks import run_tasks
from boathook.domain import ids
from tests.postgres.api_client import ApiClient, make_token, open_api_client
from tests.postgres.message_factory import MessageFactory, ago, recipient

FAR = timedelta(days=1)


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        yield client


@pytest.fixture
async def factory(api) -> MessageFactory:
    async with api.context.database.acquire() as connection:
        application = await find(connection, "default", "acme")
    factory = MessageFactory(api.context.database)
    factory.application_id = application.id
    return factory


def ep(endpoint_id: UUID) -> str:
    return ids.show(ids.ENDPOINT, endpoint_id)


def msg(message_id: UUID) -> str:
    return ids.show(ids.MESSAGE, message_id)


def atmpt(attempt_id: UUID) -> str:
    return ids.show(ids.ATTEMPT, attempt_id)


async def listed(api: ApiClient, path: str) -> list[str]:
    return [row["id"] for row in (await api.ask(200, "GET", path))["data"]]


async def test_an_attempt_is_shown_with_its_response(api, factory):
    endpoint_id = await factory.endpoint(uid="main")
    one = await factory.message(ago(hours=3), recipients=(endpoint_id,), dedup_key="order-17")
    refused = await factory.attempt(one, moment=ago(hours=3), status=0, response=b"", error="connection refused")
    garbled = await factory.attempt(one, moment=ago(hours=2), status=500, response=b"\xff\x00", is_manual=True)
    fine = await factory.attempt(one, moment=ago(hours=1), status=200, response=b"ok", outcome="succeeded")
    page = await api.ask(200, "GET", "/app/acme/attempt/endpoint/main?with_msg=true")
    shown = {row["id"]: MessageAttemptOut.model_validate(row) for row in page["data"]}
    assert list(shown) == [atmpt(fine), atmpt(garbled), atmpt(refused)]
    told = [(row.status, row.response_status_code, row.response, row.trigger_type) for row in shown.values()]
    assert told == [(0, 200, "ok", 0), (2, 500, "/wA=", 1), (2, 0, "connection refused", 0)]
    assert [row.status_text for row in shown.values()] == ["success", "fail", "fail"]
    assert page["data"][0]["msg"]["eventId"] == "order-17"
    assert page["data"][0]["responseDurationMs"] == 12
    alone = await api.ask(200, "GET", f"/app/acme/msg/order-17/attempt/{atmpt(fine)}/")
    assert alone == {name: value for name, value in page["data"][0].items() if name != "msg"}
    assert (await api.ask(200, "GET", "/app/acme/attempt/endpoint/main?with_content=false"))["data"][0][
        "response"
    ] == "{}"
    for path in ("/app/acme/msg/order-17/attempt/x", f"/app/acme/msg/nobody/attempt/{atmpt(fine)}"):
        await api.ask(404, "GET", path)


async def test_an_expunged_response_is_deleted(api, factory):
    endpoint_id = await factory.endpoint()
    one = await factory.message(ago(hours=3), recipients=(endpoint_id,))
    first = await factory.attempt(one, moment=ago(hours=3), response=b"secret", error="HTTP 500: secret")
    path = f"/app/acme/msg/{msg(one)}/attempt/{atmpt(first)}"
    await api.ask(204, "DELETE", f"{path}/content")
    assert (await api.ask(200, "GET", path))["response"] == "EXPUNGED"
    assert [row["error"] for row in await factory.pending_deliveries(endpoint_id)] == [None]
    await api.ask(404, "DELETE", f"/app/acme/msg/{msg(one)}/attempt/atmpt_x/content")


async def test_28_attempts_are_paged_forward_and_back(api, factory):
    endpoint_id = await factory.endpoint()
    made: list[str] = []
    for place in range(7):
        one = await factory.message(ago(hours=20 - place), recipients=(endpoint_id,))
        made += [atmpt(await factory.attempt(one, moment=ago(hours=10, minutes=-5 * place - n))) for n in range(4)]
    made.reverse()
    path = f"/app/acme/attempt/endpoint/{ep(endpoint_id)}?limit=10"
    seen: list[list[str]] = []
    page = await api.ask(200, "GET", path)
    while True:
        seen.append([row["id"] for row in page["data"]])
        if page["done"]:
            break
        page = await api.ask(200, "GET", f"{path}&iterator={page['iterator']}")
    assert seen == [made[:10], made[10:20], made[20:]]
    back = await api.ask(200, "GET", f"{path}&iterator={page['prevIterator']}")
    assert ([row["id"] for row in back["data"]], back["done"]) == (made[10:20], False)
    back = await api.ask(200, "GET", f"{path}&iterator={back['prevIterator']}")
    assert ([row["id"] for row in back["data"]], back["done"]) == (made[:10], True)
    back = await api.ask(200, "GET", f"{path}&iterator={back['prevIterator']}")
    assert back == {"data": [], "iterator": None, "done": True}
    times = [row["timestamp"] for row in (await api.ask(200, "GET", path))["data"]]
    between = await listed(api, f"{path}&before={times[3]}&after={times[7]}")
    assert between == made[4:8]


async def test_attempts_are_filtered(api, factory):
    endpoint_id, other = await factory.endpoint(uid="main"), await factory.endpoint(uid="other")
    one = await factory.message(ago(hours=5), recipients=(endpoint_id, other), type="a.x", channels=["eu"], tags=["t"])
    two = await factory.message(ago(hours=4), recipients=(endpoint_id,), type="b.x")
    three = await factory.message(ago(hours=3), recipients=(endpoint_id,), type="c.x")
    first = await factory.attempt(one, moment=ago(hours=5), status=503)
    elsewhere = await factory.attempt(one, 1, moment=ago(hours=4.5), status=404)
    second = await factory.attempt(two, moment=ago(hours=4), status=0)
    third = await factory.attempt(three, moment=ago(hours=3), status=201, outcome="succeeded")
    expected = {
        "": [third, second, first],
        "status=0": [third],
        "status=2": [second, first],
        "status=1": [],
        "status=3": [],
        "status_code_class=200": [third],
        "status_code_class=500": [first],
        "status_code_class=0": [second],
        "status_code_class=300": [],
        "channel=eu": [first],
        "tag=t": [first],
        "event_types=a.x,b.x": [second, first],
        "event_types=a.x&event_types=b.x": [second, first],
        "event_types[]=a.x&event_types[]=b.x": [second, first],
        "event_types[0]=a.x&event_types[1]=b.x": [second, first],
        "status=2&channel=eu&event_types=a.x": [first],
    }
    for query, found in expected.items():
        assert await listed(api, f"/app/acme/attempt/endpoint/main?{query}") == [atmpt(key) for key in found], query
    by_message = {
        "": [elsewhere, first],
        "endpoint_id=other": [elsewhere],
        f"endpoint_id={ep(endpoint_id)}": [first],
        "status_code_class=400": [elsewhere],
        "status=0": [],
        "channel=us": [],
        "event_types=a.x": [elsewhere, first],
        f"iterator={atmpt(elsewhere)}": [first],
        f"iterator=-{atmpt(first)}": [elsewhere],
    }
    for path in (f"/app/acme/attempt/msg/{msg(one)}", f"/app/acme/msg/{msg(one)}/attempt"):
        for query, found in by_message.items():
            assert await listed(api, f"{path}?{query}") == [atmpt(key) for key in found], query
    assert await listed(api, f"/app/acme/msg/{msg(one)}/endpoint/other/attempt") == [atmpt(elsewhere)]
    for query in ("status=5", "status=x", "status_code_class=1", "iterator=msg_x", "limit=300"):
        await api.ask(422, "GET", f"/app/acme/attempt/endpoint/main?{query}")
    await api.ask(404, "GET", f"/app/acme/attempt/msg/{msg(one)}?endpoint_id=nobody")


async def every_state(factory: MessageFactory, endpoint_id: UUID) -> dict[str, UUID]:
    """Publish a message of each status."""
    far = datetime.now(UTC) + FAR
    made = {
        name: await factory.message(ago(hours=9), recipients=(endpoint_id,)) for name in ("success", "fail", "canceled")
    }
    made |= {
        name: await factory.message(ago(hours=8), recipients=(endpoint_id,), due=far) for name in ("pending", "sending")
    }
    await factory.attempt(made["success"], moment=ago(hours=8), status=500)
    await factory.attempt(made["success"], moment=ago(hours=7), status=200, outcome="succeeded")
    await factory.attempt(made["fail"], moment=ago(hours=7), outcome="dead")
    await factory.attempt(made["sending"], moment=ago(hours=7))
    await factory.mark_dead(made["canceled"], code="CANCELED")
    return made


NUMBERS = {"success": 0, "pending": 1, "fail": 2, "sending": 3, "canceled": 4}


async def test_an_endpoints_messages_are_listed_by_status(api, factory):
    endpoint_id, other = await factory.endpoint(uid="main"), await factory.endpoint()
    made = await every_state(factory, endpoint_id)
    await factory.message(ago(hours=1), recipients=(other,))
    path = "/app/acme/endpoint/main/msg"
    page = await api.ask(200, "GET", f"{path}?expanded_statuses=true")
    shown = {row["id"]: EndpointMessageOut.model_validate(row) for row in page["data"]}
    assert set(shown) == {msg(one) for one in made.values()}
    assert list(shown) == sorted(shown, reverse=True)
    for name, message_id in made.items():
        row = shown[msg(message_id)]
        assert (row.status, row.status_text) == (NUMBERS[name], name)
        assert (row.next_attempt is not None) is (name in {"pending", "sending"})
        assert await listed(api, f"{path}?status={NUMBERS[name]}") == [msg(message_id)]
    before = (await api.ask(200, "GET", f"{path}?status=4"))["data"]
    assert [(row["status"], row["statusText"]) for row in before] == [(0, "success")]
    assert await listed(api, f"{path}?channel=none") == []
    first = await api.ask(200, "GET", f"{path}?limit=2")
    second = await api.ask(200, "GET", f"{path}?limit=2&iterator={first['iterator']}")
    third = await api.ask(200, "GET", f"{path}?limit=2&iterator={second['iterator']}")
    assert [row["id"] for part in (first, second, third) for row in part["data"]] == list(shown)
    assert [part["done"] for part in (first, second, third)] == [False, False, True]
    back = await api.ask(200, "GET", f"{path}?limit=2&iterator={third['prevIterator']}")
    assert back["data"] == second["data"]
    open_ones = await api.ask(200, "GET", f"{path}?status=3&iterator=-{msg(made['success'])}")
    assert open_ones["done"] is True


async def test_a_messages_endpoints_are_listed_though_one_is_deleted(api, factory):
    endpoints = [await factory.endpoint(uid=f"u{n}", channels=["eu"]) for n in range(3)]
    one = await factory.message(ago(hours=2), recipients=tuple(reversed(endpoints)))
    await factory.attempt(one, 0, moment=ago(hours=1), outcome="succeeded", status=200)
    await factory.attempt(one, 1, moment=ago(hours=1))
    await api.ask(204, "DELETE", "/app/acme/endpoint/u2")
    path = f"/app/acme/msg/{msg(one)}/endpoint"
    page = await api.ask(200, "GET", path)
    shown = [MessageEndpointOut.model_validate(row) for row in page["data"]]
    assert [row.id for row in shown] == [ep(one) for one in endpoints]
    assert [row.status_text for row in shown] == ["pending", "sending", "success"]
    assert page["data"][0]["version"] == 1
    assert page["done"] is True
    first = await api.ask(200, "GET", f"{path}?limit=2")
    assert ([row["id"] for row in first["data"]], first["done"]) == ([ep(one) for one in endpoints[:2]], False)
    second = await api.ask(200, "GET", f"{path}?limit=2&iterator={first['iterator']}")
    assert ([row["id"] for row in second["data"]], second["done"]) == ([ep(endpoints[2])], True)
    back = await api.ask(200, "GET", f"{path}?limit=1&iterator={second['prevIterator']}")
    assert ([row["id"] for row in back["data"]], back["done"]) == ([ep(endpoints[1])], False)


async def test_attempts_are_counted(api, factory):
    endpoint_id = await factory.endpoint(uid="main")
    path = "/app/acme/endpoint/main/stats"
    zero = {"success": 0, "pending": 0, "sending": 0, "fail": 0, "canceled": 0}
    assert await api.ask(200, "GET", path) == zero
    await every_state(factory, endpoint_id)
    old = await factory.message(ago(days=20), recipients=(endpoint_id,))
    await factory.attempt(old, moment=ago(days=20), outcome="dead")
    assert await api.ask(200, "GET", path) == {"success": 1, "pending": 1, "sending": 1, "fail": 4, "canceled": 1}
    recent = f"since={ago(days=1).strftime('%Y-%m-%dT%H:%M:%S')}"
    assert (await api.ask(200, "GET", f"{path}?{recent}"))["fail"] == 3
    early = f"since={ago(days=25).strftime('%Y-%m-%dT%H:%M:%SZ')}&until={ago(days=1).strftime('%Y-%m-%dT%H:%M:%SZ')}"
    assert await api.ask(200, "GET", f"{path}?{early}") == zero | {"fail": 1}
    alone = await api.ask(200, "GET", "/app/acme/endpoint/main/attempt-stats")
    assert alone == {"success": 1, "fail": 4, "canceled": 1}
    stamp = "%Y-%m-%dT%H:%M:%SZ"
    wrong = [
        f"since={ago(days=29).strftime(stamp)}",
        f"until={ago(days=-1).strftime(stamp)}",
        f"since={ago(days=1).strftime(stamp)}&until={ago(days=2).strftime(stamp)}",
        "until=0001-01-01T00:00:00Z&since=9999-12-31T23:59:59Z",
    ]
    for query in wrong:
        assert (await api.ask(400, "GET", f"{path}?{query}"))["code"] == "invalid_range"
    await api.ask(200, "GET", f"{path}?until=0001-01-01T00:00:00Z")


async def test_failed_messages_are_recovered_in_the_background(api, factory):
    endpoint_id = await factory.endpoint(uid="main")
    made = await every_state(factory, endpoint_id)
    path = "/app/acme/endpoint/main"
    since = {"since": ago(days=1).isoformat()}
    shown = {"dryRun": True, "hasMore": False}
    for name, kind, number in (("recover", "endpoint.recover", 1), ("replay-missing", "endpoint.replay", 0)):
        counted = await api.ask(200, "POST", f"{path}/{name}", since | {"dryRun": True})
        assert counted == shown | {"task": kind, "matching": number}
    for filters, number in (({}, 3), ({"status": 0}, 1), ({"eventTypes": ["no.such"]}, 0)):
        counted = await api.ask(200, "POST", f"{path}/bulk-replay", since | filters | {"dryRun": True})
        assert counted == shown | {"task": "endpoint.bulk-replay", "matching": number}
    await api.ask(422, "POST", f"{path}/recover", since | {"dryRun": "yes"})
    assert (await api.ask(200, "GET", "/background-task"))["data"] == []
    task = await api.ask(202, "POST", f"{path}/recover", since)
    assert (task["task"], task["status"]) == ("endpoint.recover", "running")
    assert task["id"].startswith("qtask_")
    assert set(task) == {"id", "task", "status", "updatedAt"}
    await run_tasks(api.context.database, api.context.outbox)
    ended = await api.ask(200, "GET", f"/background-task/{task['id']}")
    assert (ended["status"], ended["data"]) == ("finished", {"messagesSent": 1})
    assert await listed(api, f"{path}/msg?status=2") == []
    assert msg(made["fail"]) in await listed(api, f"{path}/msg?status=3")


async def test_recovery_has_its_bounds(api, factory):
    await factory.endpoint(uid="main")
    path = "/app/acme/endpoint/main"
    for name in ("recover", "replay-missing", "bulk-replay"):
        late = await api.ask(422, "POST", f"{path}/{name}", {"since": ago(days=100).isoformat()})
        assert late["detail"][0]["loc"] == ["body", "since"]
        backwards = {"since": ago(days=1).isoformat(), "until": ago(days=2).isoformat()}
        assert (await api.ask(422, "POST", f"{path}/{name}", backwards))["detail"][0]["loc"] == ["body", "until"]
        await api.ask(422, "POST", f"{path}/{name}", {})
        await api.ask(404, "POST", f"/app/acme/endpoint/nobody/{name}", {"since": ago(days=1).isoformat()})
    late = await api.ask(422, "POST", f"{path}/recover", {"since": ago(days=15).isoformat()})
    assert late["detail"][0]["loc"] == ["body", "since"]
    await api.ask(202, "POST", f"{path}/recover", {"since": ago(days=14).replace(tzinfo=None).isoformat()})
    await api.ask(200, "PATCH", path, {"disabled": True})
    answer = await api.ask(400, "POST", f"{path}/recover", {"since": ago(days=1).isoformat()})
    assert answer["code"] == "endpoint_disabled"


async def test_tasks_are_listed_and_belong_to_their_organization(api, factory):
    await factory.endpoint(uid="main")
    body = {"since": ago(days=1).isoformat()}
    made = [(await api.ask(202, "POST", "/app/acme/endpoint/main/replay-missing", body))["id"] for _ in range(4)]
    bulk = body | {"eventTypes": ["a.x"], "channel": "eu", "tag": "t", "status": 2, "statusCodeClass": 500}
    made.append((await api.ask(202, "POST", "/app/acme/endpoint/main/bulk-replay", bulk))["id"])
    made.append((await api.ask(202, "POST", "/app/acme/msg/expunge-all-contents"))["id"])
    made.append((await api.ask(202, "PUT", "/stats/usage/event-types"))["id"])
    usage = body | {"until": ago(hours=1).isoformat()}
    counted = await api.ask(202, "POST", "/stats/usage/app", usage | {"appIds": ["acme", "nobody"]})
    assert counted["unresolvedAppIds"] == ["nobody"]
    made.append(counted["id"])
    answer = await api.ask(422, "POST", "/stats/usage/app", usage | {"appIds": ["nobody"]})
    assert answer["detail"][0]["loc"] == ["body", "appIds"]
    assert await listed(api, "/background-task") == made[::-1]
    assert await listed(api, "/background-task?order=ascending") == made
    first = await api.ask(200, "GET", "/background-task?limit=5")
    second = await api.ask(200, "GET", f"/background-task?limit=5&iterator={first['iterator']}")
    assert [row["id"] for row in first["data"] + second["data"]] == made[::-1]
    back = await api.ask(200, "GET", f"/background-task?limit=5&iterator={second['prevIterator']}")
    assert back["data"] == first["data"]
    assert await listed(api, f"/background-task?order=ascending&iterator={made[5]}") == made[6:]
    assert await listed(api, f"/background-task?order=ascending&limit=2&iterator=-{made[5]}") == made[3:5]
    assert await listed(api, "/background-task?task=endpoint.bulk-replay") == [made[4]]
    await run_tasks(api.context.database, api.context.outbox, budget_s=30)
    assert await listed(api, "/background-task?status=running") == []
    assert await listed(api, "/background-task?status=finished") == made[::-1]
    types = (await api.ask(200, "GET", f"/background-task/{made[6]}"))["data"]["event_types"]
    assert [row["hasCatchAllEndpoint"] for row in types] == [True]
    assert (await api.ask(200, "GET", f"/background-task/{made[7]}"))["data"]["appStats"][0]["appUid"] == "acme"
    for query in ("status=x", "task=x", "iterator=x"):
        await api.ask(422, "GET", f"/background-task?{query}")
    foreign_client = api.as_token(await make_token(api.context, "elsewhere"))
    await foreign_client.ask(404, "GET", f"/background-task/{made[0]}")
    assert await listed(foreign_client, "/background-task") == []
    await api.as_token(await make_token(api.context, application="acme")).ask(403, "GET", "/background-task")


async def test_attempts_are_visible_only_to_their_application(api, factory):
    endpoint_id = await factory.endpoint(uid="main")
    one = await factory.message(ago(hours=2), recipients=(endpoint_id,))
    first = await factory.attempt(one, moment=ago(hours=1))
    await api.ask(201, "POST", "/app", {"name": "Other", "uid": "other"})
    await api.ask(201, "POST", "/app/other/endpoint", {"url": "http://127.0.0.1:18080/", "uid": "theirs"})
    for path in (
        f"attempt/endpoint/{ep(endpoint_id)}",
        f"attempt/msg/{msg(one)}",
        f"msg/{msg(one)}/attempt/{atmpt(first)}",
        f"msg/{msg(one)}/endpoint",
        f"endpoint/{ep(endpoint_id)}/msg",
        f"endpoint/{ep(endpoint_id)}/stats",
    ):
        await api.ask(200, "GET", f"/app/acme/{path}")
        await api.ask(404, "GET", f"/app/other/{path}")
    await api.ask(404, "POST", f"/app/other/msg/{msg(one)}/endpoint/theirs/resend")
    await api.ask(404, "POST", f"/app/acme/msg/{msg(one)}/endpoint/theirs/resend")
    await api.ask(404, "DELETE", f"/app/other/msg/{msg(one)}/attempt/{atmpt(first)}/content")
    await api.ask(404, "POST", f"/app/other/endpoint/{ep(endpoint_id)}/recover", {"since": ago(days=1).isoformat()})


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_pages_of_100_000_attempts_are_read_by_index(api, factory):
    endpoint_id, other = await factory.endpoint(uid="main"), await factory.endpoint()
    moment = f"'{ago().isoformat()}'::timestamptz - n * interval '2 seconds'"
    make_id = f"(left(boathook.min_id({moment})::text, 24) || lpad(to_hex(n), 12, '0'))::uuid"
    who = "case when n % 2 = 0 then $1 else $2 end"
    parts = [recipient(endpoint_id), recipient(other)]
    await factory.db.execute(
        f"""insert into boathook.event (id, application, type, dedup_key, grade, origin, headers, content_type, body,
               body_sha256, fanout)
           select {make_id}, $1, 't', n::text, 'none', 'published', '{{}}', 'application/json', '{{}}', sha256('{{}}'), 1
           from generate_series(1, 100000) as n""",
        factory.name,
    )
    await factory.db.execute(
        f"""insert into boathook.delivery_archive (event_id, ordinal, recipient, state, is_replay, attempts, replays, ended_at)
           select {make_id}, 0, {who}, 'succeeded', false, 1, 0, now() from generate_series(1, 100000) as n""",
        *parts,
    )
    await factory.db.execute(
        f"""insert into boathook.attempt (event_id, ordinal, number, outcome, worker, started_at, ended_at, id, recipient,
               url, status, duration_ms, response, is_manual)
           select {make_id}, 0, 1, 'succeeded', 'w', now(), now(), {make_id}, {who}, 'http://x/', 200, 1, 'ok', false
           from generate_series(1, 100000) as n""",
        *parts,
    )
    for table in ("event", "delivery_archive", "attempt", "delivery"):
        await factory.db.execute(f"analyze boathook.{table}")
    span = (ids.first_of(ago(days=90)), ids.first_of(datetime.now(UTC) + timedelta(hours=1)))
    nothing = (None, None, None)
    statements: dict[str, tuple[str, tuple[Any, ...]]] = {
        "attempts": (
            attempts._fill("list_of_endpoint"),
            (factory.name, True, False, *span, *nothing, None, None, 51, parts[0]),
        ),
        "owed": (
            messages.fill_statement(messages.endpoint_messages_statement(None)),
            (factory.name, *span, True, *nothing, 51, parts[0], None),
        ),
        "open": (
            messages.fill_statement(messages.endpoint_messages_statement(messages.MessageStatus.FAIL)),
            (factory.name, *span, True, *nothing, 51, parts[0], 2),
        ),
    }
    for name, (sql, arguments) in statements.items():
        plan = json.loads(await factory.db.fetchval(f"explain (analyze, buffers, format json) {sql}", *arguments))[0][
            "Plan"
        ]
        touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        assert plan["Actual Rows"] == (51 if name != "open" else 0), name
        assert touched < 5_000, (name, touched)
    page = await api.ask(200, "GET", "/app/acme/endpoint/main/msg")
    assert len(page["data"]) == 50
