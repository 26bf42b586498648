"""Messages over the API: published, read, listed, sent again, forgotten."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from boathook.api.messages import MessageOut
from boathook.db import integrity, messages
from boathook.db.applications import Application, find
from boathook.db.database import Database
from boathook.domain import ids
from boathook.service.unit_of_work import AppContext
from tests.postgres.api_client import ApiClient, make_token, open_api_client
from tests.postgres.message_factory import MessageFactory, ago

PAID = {"eventType": "invoice.paid", "payload": {"n": 1}}


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        yield client


@pytest.fixture
async def app(api) -> str:
    return (await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"}))["id"]


async def endpoint(api: ApiClient, **fields: Any) -> str:
    body = {"url": "http://127.0.0.1:18080/hook"} | fields
    return (await api.ask(201, "POST", "/app/acme/endpoint", body))["id"]


async def open_deliveries(api: ApiClient) -> list[Any]:
    return await api.context.database.fetch("select * from boathook.delivery order by event_id, ordinal")


async def balances(api: ApiClient) -> bool:
    """Whether the store is consistent."""
    return (await integrity.check_integrity(api.context.database, dedup_days=30, is_deep=True)).violations == ()


async def test_a_message_is_published_and_read_back(api, app):
    one = await endpoint(api)
    made = await api.ask(
        202, "POST", "/app/acme/msg/", PAID | {"eventId": "inv-1", "channels": ["eu"], "tags": ["t"], "unknown": 1}
    )
    assert MessageOut.model_validate(made).event_id == "inv-1"
    assert made["id"].startswith("msg_")
    assert made["payload"] == {"n": 1}
    assert made["channels"] == ["eu"]
    assert made["tags"] == ["t"]
    assert await api.ask(200, "GET", f"/app/acme/msg/{made['id']}") == made
    assert await api.ask(200, "GET", f"/app/{app}/msg/inv-1/") == made
    hidden = await api.ask(200, "GET", "/app/acme/msg/inv-1?with_content=false")
    assert hidden == made | {"payload": {}}
    (owed,) = await open_deliveries(api)
    assert owed["recipient"] == f"endpoint:{one}"


async def test_the_payload_is_kept_byte_for_byte(api, app):
    raw = b'{"eventType":"a.b","payload": { "z":1,  "a" : 1.50, "\\u00e9":"x" } }'
    response = await api.post("/app/acme/msg", content=raw)
    assert response.status_code == 202
    body = await api.context.database.fetchval("select body from boathook.event")
    assert body == b'{ "z":1,  "a" : 1.50, "\\u00e9":"x" }'


async def test_a_payload_that_is_no_object_is_refused(api, app):
    for payload in ("[1]", '"x"', "1", "null", "true"):
        response = await api.post("/app/acme/msg", content=f'{{"eventType": "a.b", "payload": {payload}}}')
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"] == ["body", "payload"]


async def test_unknown_message_fields_are_reported(api, app):
    params = {"rawPayload": "x", "headers": {"x-team": "a"}}
    answer = await api.ask(422, "POST", "/app/acme/msg", PAID | {"transformationsParams": params})
    assert answer["detail"][0]["loc"] == ["body", "transformationsParams", "headers"]
    answer = await api.ask(422, "POST", "/app/acme/msg", PAID | {"transformationsParams": {"retries": 1}})
    assert answer["detail"][0]["loc"] == ["body", "transformationsParams", "retries"]
    fields = {"priority": 1, "application": {"name": "Acme", "uid": "acme", "plan": "pro"}}
    taken = await api.post("/app/acme/msg", json=PAID | fields, headers={"idempotency-key": "k"})
    assert (taken.status_code, taken.headers["boathook-ignored"]) == (202, "priority, application.plan")
    again = await api.post("/app/acme/msg", json=PAID | fields, headers={"idempotency-key": "k"})
    assert again.headers["boathook-ignored"] == "priority, application.plan"
    assert "boathook-ignored" not in (await api.post("/app/acme/msg", json=PAID)).headers


async def test_a_raw_payload_is_sent_as_it_is(api, app):
    body = {"eventType": "a.b", "payload": {}, "transformationsParams": {"rawPayload": "not: json"}}
    made = await api.ask(202, "POST", "/app/acme/msg", body)
    assert made["payload"] == {"rawPayload": "not: json"}
    assert await api.context.database.fetchval("select body from boathook.event") == b"not: json"
    assert await api.ask(200, "GET", f"/app/acme/msg/{made['id']}") == made


async def test_data_is_another_name_of_the_payload(api, app):
    made = await api.ask(202, "POST", "/app/acme/msg", {"eventType": "a.b", "data": {"n": 2}})
    assert made["payload"] == {"n": 2}


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"eventType": "a b"}, ["body", "eventType"]),
    ({"eventId": "msg_x"}, ["body", "eventId"]),
    ({"eventId": "a\x00"}, ["body", "eventId"]),
    ({"channels": [str(n) for n in range(11)]}, ["body", "channels"]),
    ({"channels": []}, ["body", "channels"]),
    ({"tags": ["a b"]}, ["body", "tags"]),
    ({"tags": list("abcdef")}, ["body", "tags"]),
    ({"payloadRetentionPeriod": 91}, ["body", "payloadRetentionPeriod"]),
    ({"payloadRetentionHours": 1, "payloadRetentionPeriod": 1}, ["body"]),
    ({"deliverAt": "2999-01-01T00:00:00Z"}, ["body", "deliverAt"]),
]


async def test_wrong_values_are_named(api, app):
    for more, loc in WRONG:
        answer = await api.ask(422, "POST", "/app/acme/msg", PAID | more)
        assert answer["detail"][0]["loc"] == loc, more


async def test_an_event_id_is_unique_per_application(api, app):
    await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": "e"})
    for body in (PAID, PAID | {"payload": {"n": 2}}):
        answer = await api.ask(409, "POST", "/app/acme/msg", body | {"eventId": "e"})
        assert answer["code"] == "conflict"
    await api.ask(201, "POST", "/app", {"name": "Other", "uid": "other"})
    await api.ask(202, "POST", "/app/other/msg", PAID | {"eventId": "e"})


async def test_an_idempotency_key_publishes_once_and_costs_no_row(api, app):
    await endpoint(api)
    headers = {"idempotency-key": "auto_1"}
    body = PAID | {"deliverAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    first = await api.ask(202, "POST", "/app/acme/msg", body, headers=headers)
    again = await api.post("/app/acme/msg", json=body, headers=headers)
    assert again.status_code == 202
    assert again.json() == first
    assert again.headers["idempotent-replayed"] == "true"
    stored = await api.ask(200, "GET", f"/app/acme/msg/{first['id']}")
    assert stored["deliverAt"] == first["deliverAt"] is not None
    assert len(await open_deliveries(api)) == 1
    clash = await api.ask(409, "POST", "/app/acme/msg", PAID | {"payload": {"n": 2}}, headers=headers)
    assert clash["code"] == "idempotency_key_reused"
    assert await api.context.database.fetchval("select count(*) from boathook.idempotency") == 0
    await api.ask(201, "POST", "/app", {"name": "Other", "uid": "other"})
    assert (await api.ask(202, "POST", "/app/other/msg", PAID, headers=headers))["id"] != first["id"]


MESSAGE = {
    "eventType": "a.b",
    "payload": {"amount": 1.5, "names": ["b", "a"]},
    "channels": ["x", "y"],
    "tags": ["t", "u"],
}
SAME_MESSAGE = [
    '{"payload":{"names":["b","a"],"amount":1.5},"tags":["u","t"],"channels":["y","x"],"eventType":"a.b"}',
    '{"eventType":"a.b", "data":{ "amount" : 1.50, "names":["b" , "a"]}, "channels":["x","y"], "tags":["t","u"]}',
    '{"eventType":"a.b","payload":{"amount":15e-1,"names":["\\u0062","a"]},"channels":["x","y","x"],"tags":["t","u"],"eventId":null}',
]
OTHER_PAYLOADS = [
    {"amount": 1.5, "names": ["a", "b"]},
    {"amount": "1.5", "names": ["b", "a"]},
    {"amount": 1.5, "names": ["b", "a"], "more": None},
]


@pytest.mark.parametrize("with_content", ["", "?with_content=false", "?with_content=true"])
async def test_an_equivalent_message_counts_as_a_repeat(api, app, with_content):
    headers = {"idempotency-key": "auto_1"}
    first = await api.ask(202, "POST", "/app/acme/msg", MESSAGE, headers=headers)
    for text in SAME_MESSAGE:
        again = await api.ask(202, "POST", f"/app/acme/msg{with_content}", content=text.encode(), headers=headers)
        assert again["id"] == first["id"], text
    for payload in OTHER_PAYLOADS:
        await api.ask(409, "POST", "/app/acme/msg", MESSAGE | {"payload": payload}, headers=headers)
    await api.ask(409, "POST", "/app/acme/msg", MESSAGE | {"channels": ["x"]}, headers=headers)


async def test_a_refused_message_leaves_its_idempotency_key_free(api, app):
    headers = {"idempotency-key": "auto_1"}
    await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": "e"})
    for _ in range(2):
        await api.ask(409, "POST", "/app/acme/msg", PAID | {"eventId": "e"}, headers=headers)
    await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": "f"}, headers=headers)


async def test_an_application_is_made_with_its_first_message(api):
    await api.ask(404, "POST", "/app/new/msg", PAID)
    for application, kind in (({"name": "New"}, "missing"), ({"name": "New", "uid": "x"}, "mismatch")):
        answer = await api.ask(422, "POST", "/app/new/msg", PAID | {"application": application})
        assert answer["detail"][0]["type"] == f"application_uid_{kind}"
    await api.ask(202, "POST", "/app/new/msg", PAID | {"application": {"name": "New", "uid": "new"}})
    await api.ask(202, "POST", "/app/new/msg", PAID | {"application": {"name": "Renamed", "uid": "new"}})
    assert (await api.ask(200, "GET", "/app/new"))["name"] == "New"
    answer = await api.ask(422, "POST", "/app/b%20d/msg", PAID)
    assert answer["detail"][0]["loc"] == ["path", "app_id_or_uid"]


async def test_messages_too_large_are_refused(api, app):
    answer = await api.ask(413, "POST", "/app/acme/msg", PAID | {"payload": {"x": "y" * 3_000_000}})
    assert answer["code"] == "payload_too_large"


async def test_schemas_are_enforced_if_configured(db):
    async with open_api_client(db, outbound__validate_payloads=True) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        schema = {"type": "object", "required": ["id"]}
        await api.ask(201, "POST", "/event-type", {"name": "a.b", "description": "", "schemas": {"1": schema}})
        answer = await api.ask(422, "POST", "/app/acme/msg", {"eventType": "a.b", "payload": {}})
        assert answer["detail"][0]["loc"] == ["body", "payload"]
        await api.ask(202, "POST", "/app/acme/msg", {"eventType": "a.b", "payload": {"id": 1}})
        await api.ask(202, "POST", "/app/acme/msg", {"eventType": "unknown", "payload": {}})


async def test_a_payload_is_shown_until_its_time_is_over(api, app):
    made = await api.ask(202, "POST", "/app/acme/msg", PAID | {"payloadRetentionPeriod": 5})
    until = await api.context.database.fetchval("select content_until from boathook.event")
    assert timedelta(days=4.9) < until - datetime.now(UTC) < timedelta(days=5.1)
    await api.context.database.execute("update boathook.event set content_until = now() - interval '1 s'")
    assert (await api.ask(200, "GET", f"/app/acme/msg/{made['id']}"))["payload"] == {"expired": True}


async def test_an_expunged_message_cannot_be_sent_again(api, app):
    one = await endpoint(api)
    made = await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": "e"})
    await api.ask(204, "DELETE", "/app/acme/msg/e/content")
    assert (await api.ask(200, "GET", "/app/acme/msg/e"))["payload"] == {"expired": True}
    (owed,) = await open_deliveries(api)
    assert (owed["state"], owed["code"]) == ("dead", "EXPUNGED")
    answer = await api.ask(400, "POST", f"/app/acme/msg/{made['id']}/endpoint/{one}/resend", {})
    assert answer["code"] == "missing_payload"
    await api.ask(404, "DELETE", "/app/acme/msg/f/content")
    assert await balances(api)


async def test_several_messages_are_expunged_at_once(api, app):
    first = await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": "e"})
    second = await api.ask(202, "POST", "/app/acme/msg", PAID)
    kept = await api.ask(202, "POST", "/app/acme/msg", PAID)
    names = ["e", second["id"], "nobody", "msg_nobody", "a\x00"]
    answer = await api.ask(200, "POST", "/app/acme/msg/bulk-expunge", {"ids": names})
    found = ["expunged", "expunged", "not-found", "not-found", "not-found"]
    assert answer == {"results": dict(zip(names, found, strict=True))}
    rest = await api.context.database.fetch("select id from boathook.event where expunged_at is null")
    assert [ids.show(ids.MESSAGE, row["id"]) for row in rest] == [kept["id"]]
    assert first["id"] not in answer["results"]


async def test_a_manual_resend_makes_one_attempt(api, app):
    one = await endpoint(api, eventTypes=["other.*"], orderBy="n")
    made = await api.ask(202, "POST", "/app/acme/msg", PAID)
    assert await open_deliveries(api) == []
    path = f"/app/acme/msg/{made['id']}/endpoint/{one}/resend"
    assert (await api.post(path)).json() == {}
    await api.ask(202, "POST", path, {})
    first, second = await open_deliveries(api)
    assert (first["ordinal"], second["ordinal"]) == (0, 1)
    assert all(row["is_manual"] and row["is_replay"] and not row["is_blocked"] for row in (first, second))
    await api.ask(404, "POST", f"/app/acme/msg/nobody/endpoint/{one}/resend")
    await api.ask(404, "POST", f"/app/acme/msg/{made['id']}/endpoint/nobody/resend")
    await api.ask(200, "PATCH", f"/app/acme/endpoint/{one}", {"disabled": True})
    assert (await api.ask(400, "POST", path))["code"] == "endpoint_disabled"
    assert await balances(api)


async def test_an_example_ignores_the_endpoints_filters(api, app):
    one = await endpoint(api, eventTypes=["other.*"], channels=["eu"])
    await endpoint(api)
    path = f"/app/acme/endpoint/{one}/send-example"
    made = await api.ask(200, "POST", path, {"eventType": "svix.ping"})
    assert made["payload"] == {}
    assert (await api.ask(200, "GET", f"/app/acme/msg/{made['id']}"))["payload"] == {"success": True}
    (owed,) = await open_deliveries(api)
    assert (owed["recipient"], owed["is_manual"]) == (f"endpoint:{one}", True)
    assert (await api.ask(404, "POST", path, {"eventType": "a.b"}))["code"] == "not_found"
    schemas = {"1": {"examples": [{"n": 1}, {"n": 2}]}}
    await api.ask(201, "POST", "/event-type", {"name": "a.b", "description": "", "schemas": schemas})
    await api.ask(201, "POST", "/event-type", {"name": "bare", "description": ""})
    bodies = [
        ({"eventType": "a.b"}, {"n": 1}),
        ({"eventType": "a.b", "exampleIndex": 1}, {"n": 2}),
        ({"eventType": "bare", "payload": {"n": 3}}, {"n": 3}),
    ]
    for body, payload in bodies:
        made = await api.ask(200, "POST", path, body)
        assert (await api.ask(200, "GET", f"/app/acme/msg/{made['id']}"))["payload"] == payload
    for body in ({"eventType": "bare"}, {"eventType": "a.b", "exampleIndex": 2}):
        assert (await api.ask(400, "POST", path, body))["code"] == "invalid_scheme"
    await api.ask(200, "PATCH", f"/app/acme/endpoint/{one}", {"disabled": True})
    assert (await api.ask(400, "POST", path, {"eventType": "svix.ping"}))["code"] == "endpoint_disabled"
    assert await balances(api)


async def test_the_precheck_reports_whether_there_are_recipients(api, app):
    one = await endpoint(api, eventTypes=["invoice.*"], channels=["eu"])

    async def is_active(**body: Any) -> bool:
        return (await api.ask(200, "POST", "/app/acme/msg/precheck/active", body))["active"]

    assert await is_active(eventType="invoice.paid", channels=["eu", "us"])
    assert not await is_active(eventType="invoice.paid", channels=["us"])
    assert not await is_active(eventType="invoice.paid")
    assert not await is_active(eventType="user.made", channels=["eu"])
    await api.ask(200, "PATCH", f"/app/acme/endpoint/{one}", {"disabled": True})
    assert not await is_active(eventType="invoice.paid", channels=["eu"])


async def test_messages_are_paged_forward_and_back(api, app):
    names = [(await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": f"e{n}"}))["eventId"] for n in range(7)]
    seen: list[str] = []
    page = await api.ask(200, "GET", "/app/acme/msg?limit=3")
    while True:
        seen += [row["eventId"] for row in page["data"]]
        if page["done"]:
            break
        page = await api.ask(200, "GET", f"/app/acme/msg?limit=3&iterator={page['iterator']}")
    assert sorted(seen) == names
    assert len(page["data"]) == 1
    back = await api.ask(200, "GET", f"/app/acme/msg?limit=3&iterator={page['prevIterator']}")
    assert [row["eventId"] for row in back["data"]] == seen[3:6]
    assert back["done"] is False
    first = await api.ask(200, "GET", f"/app/acme/msg?limit=3&iterator={back['prevIterator']}")
    assert [row["eventId"] for row in first["data"]] == seen[:3]
    assert first["done"] is True
    empty = await api.ask(200, "GET", f"/app/acme/msg?limit=3&iterator={page['iterator']}")
    assert empty == {"data": [], "iterator": None, "done": True}


QUERIES = ["limit=0", "limit=251", "iterator=ep_x", "iterator=msg_x", "before=x", "channel=%00", "event_types=a%20b"]


async def test_queries_that_break_rules_are_refused(api, app):
    for query in QUERIES:
        answer = await api.ask(422, "GET", f"/app/acme/msg?{query}")
        assert answer["detail"][0]["loc"][0] == "query", query


SPELLINGS = [
    "event_types=a.x,b.x",
    "event_types=a.x&event_types=b.x",
    "event_types[]=a.x&event_types[]=b.x",
    "event_types[0]=a.x&event_types[1]=b.x",
]


async def test_types_are_named_in_four_spellings(api, app):
    for type in ("a.x", "b.x", "c.x"):
        await api.ask(202, "POST", "/app/acme/msg", {"eventType": type, "payload": {}})
    for query in SPELLINGS:
        page = await api.ask(200, "GET", f"/app/acme/msg?{query}")
        assert {row["eventType"] for row in page["data"]} == {"a.x", "b.x"}, query


async def test_messages_are_filtered_by_channel_tag_and_time(api, app):
    factory = await factory_of(api)
    old, middle, young = [
        ids.show(ids.MESSAGE, await factory.message(ago(days=days), channels=[f"c{days}"], tags=[f"t{days}"]))
        for days in (100, 9, 3)
    ]

    async def shown(query: str) -> list[str]:
        return [row["id"] for row in (await api.ask(200, "GET", f"/app/acme/msg?{query}"))["data"]]

    assert await shown("") == [young, middle]
    assert await shown("channel=c9") == [middle]
    assert await shown("tag=t3") == [young]
    times = {days: ago(days=days).strftime("%Y-%m-%dT%H:%M:%SZ") for days in (1, 5, 20, 95, 120)}
    assert await shown(f"before={times[5]}") == [middle]
    assert await shown(f"before={times[95]}") == [old]
    assert await shown(f"after={times[20]}") == [young, middle]
    assert await shown(f"after={times[20]}&limit=1") == [middle]
    assert await shown(f"after={times[20]}&before={times[5]}") == [middle]
    assert await shown(f"after={times[5].rstrip('Z')}") == [young]
    assert await shown(f"iterator={middle}") == []
    assert await shown(f"iterator=-{middle}") == [young]


async def factory_of(api: ApiClient) -> MessageFactory:
    """Return a message factory for the application "acme"."""
    async with api.context.database.acquire() as connection:
        found = await find(connection, "default", "acme")
    assert isinstance(found, Application)
    factory = MessageFactory(api.context.database)
    factory.application_id = found.id
    return factory


async def test_messages_are_visible_only_to_their_application(api, app):
    await api.ask(201, "POST", "/app", {"name": "Other", "uid": "other"})
    made = await api.ask(202, "POST", "/app/acme/msg", PAID | {"eventId": "e"})
    await api.ask(404, "GET", f"/app/other/msg/{made['id']}")
    await api.ask(404, "GET", "/app/other/msg/e")
    assert (await api.ask(200, "GET", "/app/other/msg"))["data"] == []
    answer = await api.ask(200, "POST", "/app/other/msg/bulk-expunge", {"ids": [made["id"], "e"]})
    assert set(answer["results"].values()) == {"not-found"}
    application_client = api.as_token(await make_token(api.context, application="acme"))
    assert await application_client.ask(200, "GET", f"/app/acme/msg/{made['id']}") == made
    await application_client.ask(403, "POST", "/app/acme/msg", PAID)
    await application_client.ask(404, "GET", "/app/other/msg")
    foreign_client = api.as_token(await make_token(api.context, "elsewhere"))
    await foreign_client.ask(404, "GET", f"/app/{app}/msg/{made['id']}")


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_reading_100_000_messages_by_index(api: ApiClient, app: str, db: Database):
    """A page costs as much as a page, not as much as the history; the statement's plan says how it is read."""
    context: AppContext = api.context
    await context.database.execute(
        """insert into boathook.event (id, application, type, dedup_key, grade, origin, headers, content_type, body,
               body_sha256, fanout)
           select (left(boathook.min_id(now() - n * interval '1 second')::text, 24) || lpad(to_hex(n), 12, '0'))::uuid,
               'app_other', 't', n::text, 'none', 'published', '{}', 'application/json', '{}', sha256('{}'), 0
           from generate_series(1, 100000) as n"""
    )
    await context.database.execute("analyze boathook.event")
    made = await api.ask(202, "POST", "/app/acme/msg", PAID)
    sql = messages.fill_statement(messages.SQL["list_messages"])
    window = (ids.first_of(ago(days=90)), ids.first_of(datetime.now(UTC) + timedelta(hours=1)))
    plan = await context.database.fetchval(
        "explain (analyze, format json) " + sql, app, *window, True, None, None, None, 51
    )
    assert "Seq Scan" not in [node["Node Type"] for node in nodes(json.loads(plan)[0]["Plan"]) if node["Actual Rows"]]
    assert [row["id"] for row in (await api.ask(200, "GET", "/app/acme/msg"))["data"]] == [made["id"]]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a plan's nodes."""
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes(child))]
