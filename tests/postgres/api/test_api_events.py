"""Events, deliveries, dead letters, rejections and conflicts in the API: lists, details, replays, ownership."""

import base64
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from msgspec.structs import replace

from boathook.api.app import openapi_document
from boathook.db import dead_letter_groups
from boathook.db.database import Database
from boathook.db.queries import event_search, listings
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.domain.model import Duplicate
from boathook.handlers.outbox import Outbox
from boathook.service.catalogue import events as event_operations
from boathook.service.catalogue import selection
from boathook.service.operating import listings as service_listings
from boathook.service.receiving import conflicts
from boathook.service.unit_of_work import UnitOfWork
from tests.endpoint_factory import add_application, add_endpoint, publish
from tests.postgres.api_client import ApiClient, make_token, open_api_client
from tests.postgres.db.test_integrity import Store, new_event
from tests.postgres.operating.test_operations import quarantine

SOURCE = {"sources": {"shop": {"provider": "github", "secrets": ["right"]}}}


@pytest.fixture
async def api(db: Database) -> AsyncIterator[ApiClient]:
    async with open_api_client(db, **SOURCE) as client:
        yield client


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


def name_of(event_id: UUID, ordinal: int | None = None) -> str:
    return ids.show(ids.EVENT, event_id) if ordinal is None else ids.show_delivery(event_id, ordinal)


async def die(store: Store, key: str, to: str = "handler:mail") -> UUID:
    """Accept an event and let its one delivery die."""
    event = await store.accept(key, to)
    await store.fail(event, is_last=True)
    return event


async def read_all(api: ApiClient, path: str, **params: Any) -> list[dict[str, Any]]:
    """Return the rows of every page."""
    rows, iterator = [], params.pop("iterator", None)
    while True:
        page = await api.ask(200, "GET", path, params=params | ({"iterator": iterator} if iterator else {}))
        rows += page["data"]
        if page["done"]:
            return rows
        assert page["iterator"] != iterator
        iterator = page["iterator"]


async def audit(store: Store, subject: str) -> list[tuple[str, str, str | None]]:
    rows = await listings.list_audit(store.db, listings.ListFilter(), subject=subject)
    return [(row.action, row.actor.partition("_")[0], row.note) for row in rows]


# Events


async def test_events_are_listed_newest_first_in_pages(api: ApiClient, store: Store):
    made = [await store.accept(f"e{number}", "handler:a") for number in range(5)]
    await store.end(made[0])
    rows = await read_all(api, "/event", limit=2)
    assert [row["id"] for row in rows] == [name_of(event) for event in reversed(made)]
    newest, oldest = rows[0], rows[-1]
    assert (newest["source"], newest["application"], newest["type"]) == ("stripe", None, "payment.paid")
    assert (newest["dedupKey"], newest["size"], newest["origin"]) == ("e4", 2, "received")
    assert (newest["deliveryCounts"], oldest["deliveryCounts"]) == ({"pending": 1}, {"succeeded": 1})
    page = await api.ask(200, "GET", "/event?limit=5")
    assert (page["done"], page["iterator"], "prevIterator" in page) == (True, name_of(made[0]), False)
    assert (await api.ask(200, "GET", f"/event?iterator={page['iterator']}"))["data"] == []


async def test_events_are_filtered_as_in_the_explorer(api: ApiClient, store: Store):
    await store.accept("plain", "handler:a", body=b'{"customer": "cus_1"}')
    other = await store.accept("other", "handler:a", body=b'{"customer": "cus_2", "note": "Refund"}')
    died = await die(store, "died")
    ours = await add_application(store.db, "acme")
    sent = (await publish(store.db, Outbox(), ours)).event_id

    async def found(**params: Any) -> list[str]:
        return [row["id"] for row in await read_all(api, "/event", **params)]

    assert await found(application="acme") == await found(type="invoice.*") == [name_of(sent)]
    assert await found(source="stripe", key="other") == [name_of(other)]
    assert await found(where="customer = cus_2") == await found(text="refund") == [name_of(other)]
    assert await found(state="dead") == [name_of(died)]
    assert await found(source="nobody") == await found(after="2990-01-01T00:00:00Z") == []
    assert len(await found(before="2990-01-01T00:00:00Z", after="0001-01-01T00:00:00Z")) == 4


async def test_an_event_is_shown_with_its_content_and_deliveries(api: ApiClient, store: Store):
    text = await store.accept("text", "handler:a", "handler:b", body='{"größe": 1}'.encode())
    await store.db.execute(
        """update boathook.event set headers = '{"x-auth-token": "quiet", "x-plain": "loud"}' where id = $1""", text
    )
    shown = await api.ask(200, "GET", f"/event/{name_of(text)}")
    assert (shown["body"], shown["bodyBase64"]) == ('{"größe": 1}', None)
    assert shown["headers"]["x-plain"] == "loud"
    assert "quiet" not in str(shown)
    assert [row["id"] for row in shown["deliveries"]] == [name_of(text, 0), name_of(text, 1)]
    assert shown["deliveryCounts"] == {"pending": 2}
    binary = await store.accept("binary", body=b"\xff\x00")
    shown = await api.ask(200, "GET", f"/event/{name_of(binary)}")
    assert (shown["body"], base64.b64decode(shown["bodyBase64"])) == (None, b"\xff\x00")
    sent = (await publish(store.db, Outbox(), await add_application(store.db))).event_id
    message = ids.show(ids.MESSAGE, sent)
    assert (await api.ask(200, "GET", f"/event/{message}"))["id"] == name_of(sent)
    for unknown in ("nothing", name_of(UUID(int=7)), name_of(text, 0)):
        await api.ask(404, "GET", f"/event/{unknown}")


async def test_an_event_with_many_deliveries_shows_the_first_of_them(api: ApiClient, store: Store, monkeypatch):
    monkeypatch.setattr("boathook.service.operating.listings.MAX_EMBEDDED", 2)
    event = await store.accept("wide", *(f"handler:h{number}" for number in range(5)))
    shown = await api.ask(200, "GET", f"/event/{name_of(event)}")
    assert [row["id"] for row in shown["deliveries"]] == [name_of(event, 0), name_of(event, 1)]
    await store.accept("besides", "handler:h0")
    await store.db.execute("update boathook.delivery set ordinal = 32767 where event_id = $1 and ordinal = 4", event)
    rows = await read_all(api, "/delivery", event=name_of(event), limit=2, order="ascending")
    assert [row["id"] for row in rows] == [name_of(event, number) for number in (0, 1, 2, 3, 32_767)]


async def test_a_replay_adds_deliveries_and_retries_dead_letters(api: ApiClient, store: Store):
    event = await store.accept("one", "handler:a", "handler:b", "handler:c")
    await store.end(event)
    await store.fail(event, 1, is_last=True)
    path = f"/event/{name_of(event)}/replay"
    key = {"idempotency-key": "once"}
    first = await api.ask(202, "POST", path, {"note": "fixed"}, headers=key)
    assert first == {"added": 1, "revived": 1}
    rows = await store.db.fetch("select ordinal, state from boathook.delivery order by ordinal")
    assert [tuple(row) for row in rows] == [(1, "pending"), (2, "pending"), (3, "pending")]
    assert await audit(store, name_of(event)) == [("event.replay", "api:key", "fixed")]
    await store.end(event, 3)
    assert await api.ask(202, "POST", path, {"note": "fixed"}, headers=key) == first, "a repeated request adds nothing"
    assert await store.one("select count(*) from boathook.delivery") == 2
    assert await api.ask(202, "POST", path) == {"added": 1, "revived": 0}
    await api.ask(404, "POST", f"/event/{name_of(UUID(int=7))}/replay")
    assert (await store.verify()).violations == ()


# Bulk jobs


async def test_the_events_of_a_filter_are_replayed_in_the_background(api: ApiClient, store: Store):
    for number in range(3):
        await store.end(await store.accept(f"b{number}", "handler:a", body=b'{"n": %d}' % number))
    await die(store, "dead")
    asked = {"where": "n = 1", "rate": 50, "note": "fixed"}
    counted = await api.ask(202, "POST", "/event/bulk-replay", {**asked, "dryRun": True})
    assert (counted["dryRun"], counted["matching"], counted["isExact"], counted["job"]) == (True, 1, True, None)
    started = await api.ask(202, "POST", "/event/bulk-replay", asked, headers={"idempotency-key": "once"})
    job = await api.ask(200, "GET", f"/bulk-job/{started['job']}")
    assert (job["state"], job["total"], job["rate"], job["note"]) == ("running", 1, 50, "fixed")
    assert await api.ask(202, "POST", "/event/bulk-replay", asked, headers={"idempotency-key": "once"}) == started
    other = await api.ask(202, "POST", "/event/bulk-replay", {"state": "dead"})
    assert [row["id"] for row in await read_all(api, "/bulk-job", limit=1)] == [other["job"], job["id"]]
    await runner.run_tasks(store.db, Outbox(), budget_s=30)
    done = await api.ask(200, "GET", f"/bulk-job/{job['id']}")
    assert (done["state"], done["done"], done["added"]) == ("finished", 1, 1)
    assert done["outcome"].startswith("1 replayed: 0 succeeded")
    assert await store.db.fetchval("select string_agg(state, ' ' order by event_id) from boathook.delivery") == (
        "pending pending"
    )
    assert (await api.ask(400, "POST", f"/bulk-job/{job['id']}/stop"))["code"] == "ended"
    for method, path in (("GET", ""), ("POST", "/stop")):
        await api.ask(404, method, f"/bulk-job/nothing{path}")
    assert (await store.verify()).violations == ()


async def test_a_bulk_job_is_stopped(api: ApiClient, store: Store):
    await store.end(await store.accept("one", "handler:a"))
    job = await api.ask(202, "POST", "/event/bulk-replay", {"source": "stripe"})
    assert (await api.ask(200, "POST", f"/bulk-job/{job['job']}/stop"))["state"] == "stopped"
    await runner.run_tasks(store.db, Outbox(), budget_s=30)
    assert await store.one("select count(*) from boathook.delivery") == 0


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "ids"]),
        ({"note": "x"}, ["body", "ids"]),
        ({"ids": ["x"]}, ["body", "ids"]),
        ({"ids": ["evt_01h455vb4pex5vsknk084sn02q4"], "all": True}, ["body", "ids"]),
        ({"source": "a", "run": "x", "note": "y"}, ["body", "run"]),
        ({"state": "asleep"}, ["body", "state"]),
        ({"source": "a", "rate": 0}, ["body", "rate"]),
        ({"source": "a", "note": "x" * 2_001}, ["body", "note"]),
        ({"source": "a", "after": "2026-02-01T00:00:00Z", "before": "2026-01-01T00:00:00Z"}, ["body", "until"]),
        ({"source": 7}, ["body", "source"]),
    ],
)
async def test_a_bulk_replay_needs_a_filter_and_valid_values(api: ApiClient, store: Store, body, loc):
    assert (await api.ask(422, "POST", "/event/bulk-replay", body))["detail"][0]["loc"] == loc
    assert await store.one("select count(*) from boathook.task") == 0


async def replayed_by_b(api: ApiClient, store: Store) -> set[str]:
    """Let organization b replay every event there is by a filter; return the events that were."""
    await die(store, "inbound")
    for name in ("default", "b"):
        await tenant_of(store, name)
    token = api.as_token(await make_token(api.context, "b"))
    job = await token.ask(202, "POST", "/event/bulk-replay", {"type": "*"})
    await api.ask(404, "GET", f"/bulk-job/{job['job']}")
    await api.ask(404, "POST", f"/bulk-job/{job['job']}/stop")
    await runner.run_tasks(store.db, Outbox(), budget_s=30)
    rows = await store.db.fetch("select event_id from boathook.delivery where state = 'pending'")
    return {name_of(row["event_id"]) for row in rows}


async def test_a_bulk_replay_covers_its_own_organization(api: ApiClient, store: Store):
    replayed = await replayed_by_b(api, store)
    b = api.as_token(await make_token(api.context, "b"))
    assert replayed == {row["id"] for row in await read_all(b, "/event")}
    assert len(replayed) == 1


async def test_without_the_owner_check_a_bulk_replay_covers_all(api: ApiClient, store: Store, monkeypatch):
    """The mutant: the job compares no owner."""
    selection = event_search.EventFilter.selection
    monkeypatch.setattr(event_search.EventFilter, "selection", lambda one: selection(one) | {"organization": None})
    assert len(await replayed_by_b(api, store)) == 3


# Deliveries


async def test_deliveries_are_paged_both_ways(api: ApiClient, store: Store):
    events = [await store.accept(f"d{number}", "a", "b") for number in range(2)]
    made = [name_of(event, ordinal) for event in events for ordinal in (0, 1)]
    first = await api.ask(200, "GET", "/delivery?limit=3")
    assert [row["id"] for row in first["data"]] == made[:0:-1]
    assert first["done"] is False
    second = await api.ask(200, "GET", f"/delivery?limit=3&iterator={first['iterator']}")
    assert ([row["id"] for row in second["data"]], second["done"]) == ([made[0]], True)
    back = await api.ask(200, "GET", f"/delivery?limit=3&iterator={second['prevIterator']}")
    assert [row["id"] for row in back["data"]] == made[:0:-1]
    assert [row["id"] for row in await read_all(api, "/delivery", limit=3, order="ascending")] == made


@pytest.mark.parametrize("budget_s", [0.0, 60.0])
async def test_a_scan_cut_short_resumes_at_its_position(api, store, monkeypatch, budget_s):
    """Of deliveries all over the history, a page may be empty, and no row is missed or doubled, in both directions."""
    monkeypatch.setattr(listings, "SCAN_ROWS", 2)
    monkeypatch.setattr(listings, "SCAN_BUDGET_S", budget_s)
    made = []
    for number in range(9):
        event = await store.accept(f"s{number}", "handler:rare" if number in {0, 1, 7} else "handler:b", "handler:c")
        made += [name_of(event, 0)] if number in {0, 1, 7} else []
        if number % 2:
            await store.end(event)
    for order, expected in (("descending", made[::-1]), ("ascending", made)):
        rows = await read_all(api, "/delivery", recipient="handler:rare", order=order, limit=2)
        assert [row["id"] for row in rows] == expected
        assert len(await read_all(api, "/delivery", order=order, limit=5)) == 18
    found, page = [], await api.ask(200, "GET", f"/delivery?recipient=handler:rare&iterator=-{made[0]}")
    found += page["data"]
    while not page["done"]:
        page = await api.ask(200, "GET", f"/delivery?recipient=handler:rare&iterator={page['prevIterator']}")
        found = page["data"] + found
    assert [row["id"] for row in found] == made[:0:-1]


async def test_deliveries_are_filtered_and_shown_with_their_attempts(api: ApiClient, store: Store):
    tried = await store.accept("tried", "handler:mail", "handler:crm")
    await store.fail(tried)
    done = await store.accept("done", "handler:mail")
    await store.end(done, state="ignored", note="not for us")

    async def found(**params: Any) -> list[str]:
        return [row["id"] for row in await read_all(api, "/delivery", **params)]

    assert await found(state="ignored") == await found(state="ignored", type="payment.*") == [name_of(done, 0)]
    assert await found(recipient="handler:m*") == [name_of(done, 0), name_of(tried, 0)]
    assert await found(code="BROKEN") == [name_of(tried, 0)]
    assert await found(event=name_of(done)) == [name_of(done, 0)]
    assert await found(source="x") == await found(application="x") == await found(before="2001-01-01T00:00:00Z") == []
    await store.db.execute("update boathook.attempt set dependency = 'crm' where event_id = $1", tried)
    shown = await api.ask(200, "GET", f"/delivery/{name_of(tried, 0)}")
    assert (shown["state"], shown["attempts"], shown["code"], shown["note"]) == ("pending", 1, "BROKEN", "it broke")
    (attempt,) = shown["attemptsMade"]
    assert (attempt["number"], attempt["outcome"], attempt["traceback"]) == (1, "failed", "trace")
    assert attempt["dependency"] == "crm"
    await api.ask(404, "GET", f"/delivery/{name_of(tried, 9)}")
    await api.ask(404, "GET", f"/delivery/{name_of(tried)}")


@pytest.mark.parametrize("is_mutant", [False, True])
async def test_a_delivery_and_its_attempts_are_read_in_one_snapshot(
    api: ApiClient, store: Store, monkeypatch, is_mutant: bool
):
    """An attempt that fails between both reads is in neither. The mutant reads without a snapshot."""
    event = await store.accept("one", "a")
    read = service_listings.find_delivery

    async def read_just_before_an_attempt(*args: Any) -> Any:
        row = await read(*args)
        await store.fail(event)
        return row

    monkeypatch.setattr(service_listings, "find_delivery", read_just_before_an_attempt)
    if is_mutant:
        monkeypatch.setattr(UnitOfWork, "snapshot", lambda _work: contextlib.nullcontext())
    shown = await api.ask(200, "GET", f"/delivery/{name_of(event, 0)}")
    assert (shown["attempts"], len(shown["attemptsMade"])) == (0, 1 if is_mutant else 0)


# Dead letters


async def test_a_dead_letter_has_a_failure_summary_and_advice(api: ApiClient, store: Store):
    made = [await die(store, f"x{number}") for number in range(3)]
    assert [row["id"] for row in await read_all(api, "/dead-letter", limit=1)] == [
        name_of(one, 0) for one in made[::-1]
    ]
    assert await read_all(api, "/dead-letter", recipient="endpoint:*") == []
    shown = await api.ask(200, "GET", f"/dead-letter/{name_of(made[0], 0)}")
    assert shown["sentence"] == "handler:mail failed at its only attempt, with BROKEN: it broke"
    assert shown["advice"].startswith("Read the traceback")
    assert shown["attemptsMade"][0]["error"] == "it broke"
    alive = await store.accept("alive", "handler:mail")
    await api.ask(404, "GET", f"/dead-letter/{name_of(alive, 0)}")


@pytest.mark.parametrize("budget_s", [0.0, 60.0])
async def test_dead_letters_are_paged_by_failure_time_while_some_leave(api, store, monkeypatch, budget_s):
    monkeypatch.setattr(dead_letter_groups, "OWN_SCAN_ROWS", 2)
    monkeypatch.setattr(dead_letter_groups, "SCAN_BUDGET_S", budget_s)
    events = [await store.accept(f"y{number}", "handler:rare" if number % 2 else "handler:b") for number in range(6)]
    for event in reversed(events):
        await store.fail(event, is_last=True)
    page = await api.ask(200, "GET", "/dead-letter?limit=2")
    assert [row["id"] for row in page["data"]] == [name_of(events[0], 0), name_of(events[1], 0)]
    for row in page["data"]:
        await api.ask(202, "POST", f"/dead-letter/{row['id']}/replay")
    rest = await read_all(api, "/dead-letter", limit=2, iterator=page["iterator"])
    assert [row["id"] for row in rest] == [name_of(event, 0) for event in events[2:]]
    rare = await read_all(api, "/dead-letter", limit=1, recipient="handler:rare")
    assert [row["id"] for row in rare] == [name_of(events[3], 0), name_of(events[5], 0)]
    assert await read_all(api, "/dead-letter", before="2001-01-01T00:00:00Z") == []


async def test_a_dead_letter_is_replayed_once(api: ApiClient, store: Store):
    event, other = await die(store, "one"), await die(store, "other")
    path = f"/dead-letter/{name_of(event, 0)}"
    replayed = await api.ask(202, "POST", f"{path}/replay", {"note": "fixed"}, headers={"idempotency-key": "k"})
    assert (replayed["state"], replayed["replays"], replayed["endedAt"]) == ("pending", 1, None)
    assert await api.ask(202, "POST", f"{path}/replay", {"note": "fixed"}, headers={"idempotency-key": "k"}) == replayed
    assert (await api.ask(400, "POST", f"{path}/replay"))["code"] == "not_dead"
    await api.ask(404, "GET", path)
    assert [row["id"] for row in await read_all(api, "/dead-letter")] == [name_of(other, 0)]
    assert await audit(store, name_of(event, 0)) == [("dead.replay", "api:key", "fixed")]
    await store.end(event)
    assert (await api.ask(400, "POST", f"{path}/replay"))["code"] == "not_dead"
    assert (await store.verify()).violations == ()


async def test_a_dead_letter_is_ignored_with_a_note(api: ApiClient, store: Store):
    event = await die(store, "one")
    path = f"/dead-letter/{name_of(event, 0)}/ignore"
    for body in ({}, {"note": ""}, {"note": "  "}, {"note": "x" * 2_001}):
        refused = await api.ask(422, "POST", path, body)
        assert refused["detail"][0]["loc"] == ["body", "note"]
    assert await store.one("select state from boathook.delivery") == "dead"
    ignored = await api.ask(200, "POST", path, {"note": "refunded by hand"})
    assert (ignored["state"], ignored["note"]) == ("ignored", "refunded by hand")
    assert await audit(store, name_of(event, 0)) == [("dead.ignore", "api:key", "refunded by hand")]
    assert (await api.ask(400, "POST", path, {"note": "again"}))["code"] == "not_dead"
    assert (await store.verify()).violations == ()


async def test_a_dead_letter_of_a_disabled_endpoint_is_not_replayed(api: ApiClient, store: Store):
    application = await add_application(store.db)
    await add_endpoint(store.db, application)
    event = (await publish(store.db, Outbox(), application)).event_id
    await store.fail(event, is_last=True)
    await store.db.execute(
        "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now()"
    )
    path = f"/dead-letter/{name_of(event, 0)}/replay"
    assert (await api.ask(400, "POST", path))["code"] == "endpoint_disabled"
    assert await store.one("select state from boathook.delivery") == "dead"
    await store.db.execute(
        "update boathook.endpoint set is_disabled = false, disabled_because = null, disabled_at = null"
    )
    assert (await api.ask(202, "POST", path))["state"] == "pending"


# Rejections and conflicts


async def test_rejections_are_listed_and_verified_again(api: ApiClient, store: Store):
    good = ids.show(ids.REJECTION, await quarantine(store, b'{"n": 1}', "right"))
    bad = ids.show(ids.REJECTION, await quarantine(store, b'{"n": 2}', "forged"))
    gone = ids.show(ids.REJECTION, await quarantine(store, b"{}", "right", source="gone"))
    rows = await read_all(api, "/rejection", limit=1)
    assert {row["id"] for row in rows} == {good, bad, gone}
    assert [row["id"] for row in await read_all(api, "/rejection", limit=2, order="ascending")] == [
        row["id"] for row in rows[::-1]
    ]
    assert [row["id"] for row in await read_all(api, "/rejection", source="gone")] == [gone]
    assert await read_all(api, "/rejection", reason="token_missing") == []
    shown = await api.ask(200, "GET", f"/rejection/{good}")
    assert (shown["reason"], shown["status"], shown["body"], shown["size"]) == (
        "signature_mismatch",
        401,
        '{"n": 1}',
        8,
    )
    assert shown["headers"]["x-github-event"] == "push"
    assert not shown["headers"]["x-hub-signature-256"].startswith("sha256=")

    done = await api.ask(200, "POST", f"/rejection/{good}/reverify")
    assert (done["id"], done["outcome"], done["detail"]) == (good, "accepted", "push")
    event = await api.ask(200, "GET", f"/event/{done['eventId']}")
    assert (event["source"], event["body"], event["proof"]) == ("shop", '{"n": 1}', done["proof"])
    assert await audit(store, good) == [("rejection.accept", "api:key", None)]
    again = await api.ask(200, "POST", f"/rejection/{good}/reverify")
    assert (again["outcome"], again["eventId"]) == ("duplicate", done["eventId"])
    for name, outcome in ((bad, "refused"), (gone, "impossible")):
        assert (await api.ask(200, "POST", f"/rejection/{name}/reverify"))["outcome"] == outcome
    assert [row["id"] for row in await read_all(api, "/rejection", state="accepted")] == [good]
    assert {row["id"] for row in await read_all(api, "/rejection", state="open")} == {bad, gone}
    assert await store.one("select count(*) from boathook.event") == 1
    for unknown in ("nothing", ids.show(ids.REJECTION, UUID(int=7))):
        await api.ask(404, "GET", f"/rejection/{unknown}")
        await api.ask(404, "POST", f"/rejection/{unknown}/reverify")


async def test_a_source_that_cannot_be_used_is_named(api: ApiClient, store: Store, tmp_path):
    name = ids.show(ids.REJECTION, await quarantine(store, b"{}", "right", source="broken"))
    broken = api.context.settings.sources["shop"].model_copy(update={"secrets": [f"file:{tmp_path}/none"]})
    api.context.settings = api.context.settings.with_sources({"broken": broken})
    refused = await api.ask(400, "POST", f"/rejection/{name}/reverify")
    assert refused["code"] == "unusable_source"
    assert "broken" in refused["detail"]


async def test_conflicts_are_listed_and_compared_with_their_events(api: ApiClient, store: Store):
    event = await store.accept("same", body=b'{"n": 1}')
    await store.accept("other", body=b"{}")
    for number in (2, 3):
        conflict = replace(new_event("same", body=b'{"n": %d}' % number), headers='{"x-auth-token": "quiet"}')
        assert await store.events.append([conflict]) == [Duplicate(event, conflict=True)]
    rows = await read_all(api, "/conflict", limit=1)
    assert [(row["eventId"], row["differs"], row["seen"]) for row in rows] == [(name_of(event), "body", 1)] * 2
    assert [row["id"] for row in await read_all(api, "/conflict", limit=1, order="ascending")] == [
        row["id"] for row in rows[::-1]
    ]
    assert await read_all(api, "/conflict", differs="key") == await read_all(api, "/conflict", source="x") == []
    shown = await api.ask(200, "GET", f"/conflict/{rows[0]['id']}")
    assert shown["body"] == '{"n": 3}'
    assert "the body is not" in shown["verdict"]
    assert '-   "n": 1' in shown["difference"]
    assert '+   "n": 3' in shown["difference"]
    assert "quiet" not in str(shown)
    await api.ask(404, "GET", "/conflict/nothing")


# Whose they are


async def tenant_of(store: Store, organization: str) -> str:
    """Let an organization have a message that died at its endpoint and a conflict with it; return the event's id."""
    application = await add_application(store.db, "acme", organization)
    await add_endpoint(store.db, application)
    event = (await publish(store.db, Outbox(), application, organization=organization, id=organization)).event_id
    await store.fail(event, is_last=True)
    await store.db.execute(
        """
        insert into boathook.conflict (id, event_id, application, dedup_key, type, grade, differs, headers, content_type, body,
            body_sha256)
        select id, id, application, dedup_key, type, grade, 'body', '{}', 'text/plain', 'x', 'x' from boathook.event where id = $1
        """,
        event,
    )
    return ids.show(ids.EVENT, event)


LISTS = (
    "/event",
    "/event?application=acme",
    "/event?state=dead",
    "/delivery",
    "/delivery?application=acme",
    "/dead-letter",
    "/conflict",
)


def _other(theirs: dict[str, str], name: str) -> str:
    return next(event for owner, event in theirs.items() if owner != name)


async def leaks(api: ApiClient, store: Store) -> list[str]:
    """Return the responses that show or change another organization's data."""
    inbound = name_of(await die(store, "inbound"))
    theirs = {"default": await tenant_of(store, "default"), "b": await tenant_of(store, "b")}
    tokens = {name: api.as_token(await make_token(api.context, name)) for name in theirs}
    found = []
    for name, token in tokens.items():
        own, foreign = theirs[name], _other(theirs, name)
        for path in LISTS:
            rows = str(await read_all(token, path))
            assert own[4:] in rows, f"{name} misses its own in {path}"
            found += [f"{name}: {path}"] if foreign[4:] in rows or (name == "b" and inbound[4:] in rows) else []
    for name, token in tokens.items():
        foreign = _other(theirs, name)
        for event in (foreign, inbound) if name == "b" else (foreign,):
            delivery = f"{event.replace('evt', 'dlv')}_0"
            asked = [
                ("GET", f"/event/{event}", None), ("GET", f"/delivery/{delivery}", None),
                ("GET", f"/dead-letter/{delivery}", None), ("GET", f"/conflict/{event.replace('evt', 'cfl')}", None),
                ("POST", f"/event/{event}/replay", {}), ("POST", f"/dead-letter/{delivery}/replay", {}),
                ("POST", f"/dead-letter/{delivery}/ignore", {"note": "x"}),
            ]  # fmt: skip
            for method, path, body in asked:
                answer = await token.request(method, path, json=body)
                found += [] if answer.status_code == 404 else [f"{name}: {method} {path}"]
            if (await token.get("/delivery", params={"event": event})).json()["data"]:
                found.append(f"{name}: /delivery?event")
    return found


async def test_each_organization_has_its_own(api: ApiClient, store: Store):
    assert await leaks(api, store) == []
    assert await store.one("select count(*) from boathook.delivery where state = 'dead'") == 3


async def test_without_the_owner_check_lists_show_all(api: ApiClient, store: Store, monkeypatch: pytest.MonkeyPatch):
    """The mutant: neither lists nor single reads compare the owner."""

    def unlimited(read: Any) -> Any:
        return lambda *args, **more: read(*args, **more | {"organization": None})

    monkeypatch.setattr(listings, "list_conflicts", unlimited(listings.list_conflicts))
    monkeypatch.setattr(dead_letter_groups, "search_dead_letters", unlimited(dead_letter_groups.search_dead_letters))
    sql = listings.SQL["scan_deliveries"]
    changed = re.sub(r"where -- The owner.*?= \$13", "where $13::text is not null", sql, flags=re.DOTALL)
    assert changed != sql
    monkeypatch.setitem(listings.SQL, "scan_deliveries", changed)
    scan = event_search.search
    monkeypatch.setattr(
        event_search,
        "search",
        lambda database, wanted, **more: scan(database, replace(wanted, organization=None), **more),
    )
    monkeypatch.setattr(service_listings, "check_owner", AsyncMock())
    monkeypatch.setattr(selection, "tenant_of", lambda _work: None)
    monkeypatch.setattr(event_operations, "compile_filter", lambda _work, query: query.compile())
    monkeypatch.setattr(conflicts, "check_owner", AsyncMock())
    found = await leaks(api, store)
    for name in ("default", "b"):
        for path in LISTS:
            assert f"{name}: {path}" in found
        for part in (
            "GET /event/",
            "GET /delivery/",
            "GET /dead-letter/",
            "GET /conflict/",
            "POST /event/",
            "POST /dead",
        ):
            assert any(line.startswith(f"{name}: {part}") for line in found), part


async def test_rejections_belong_to_the_default_organization(api: ApiClient, store: Store):
    name = ids.show(ids.REJECTION, await quarantine(store, b"{}", "right"))
    other = api.as_token(await make_token(api.context, "b"))
    await other.ask(404, "GET", "/rejection")
    await other.ask(404, "GET", f"/rejection/{name}")
    await other.ask(404, "POST", f"/rejection/{name}/reverify")
    assert await store.one("select count(*) from boathook.event") == 0


async def test_application_tokens_are_forbidden(api: ApiClient, store: Store):
    await tenant_of(store, "default")
    token = api.as_token(await make_token(api.context, application="acme"))
    for path in (*LISTS, "/rejection", "/event/x", "/delivery/x", "/dead-letter/x", "/rejection/x", "/conflict/x"):
        await token.ask(403, "GET", path)
    await token.ask(403, "GET", "/bulk-job")
    for path in (
        "/event/bulk-replay",
        "/bulk-job/x/stop",
        "/event/x/replay",
        "/dead-letter/x/replay",
        "/dead-letter/x/ignore",
        "/rejection/x/reverify",
    ):
        await token.ask(403, "POST", path, {"note": "x"})


# Bad input


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/event?state=asleep", "state"),
        ("/event?where=nothing", "where"),
        ("/event?key=%00", "key"),
        ("/event?after=2026-02-01T00:00:00Z&before=2026-01-01T00:00:00Z", "before"),
        ("/event?after=yesterday", "after"),
        ("/event?iterator=-evt_01h455vb4pex5vsknk084sn02q4", "iterator"),
        ("/event?limit=251", "limit"),
        ("/delivery?source=%00", "source"),
        ("/delivery?state=asleep", "state"),
        ("/delivery?event=dlv_1", "event"),
        ("/delivery?iterator=evt_01h455vb4pex5vsknk084sn02q4", "iterator"),
        ("/delivery?order=sideways", "order"),
        ("/dead-letter?recipient=%00", "recipient"),
        ("/dead-letter?iterator=dlv_01h455vb4pex5vsknk084sn02q4_0", "iterator"),
        ("/dead-letter?iterator=dlv_01h455vb4pex5vsknk084sn02q4_0.123456789012345678", "iterator"),
        ("/dead-letter?iterator=evt_01h455vb4pex5vsknk084sn02q4.1", "iterator"),
        ("/rejection?reason=%00", "reason"),
        ("/rejection?state=closed", "state"),
        ("/rejection?iterator=cfl_1", "iterator"),
        ("/conflict?differs=both", "differs"),
        ("/conflict?application=" + "a" * 257, "application"),
    ],
)
async def test_a_wrong_parameter_is_named(api: ApiClient, path: str, field: str):
    assert (await api.ask(422, "GET", path))["detail"][0]["loc"] == ["query", field]


def test_the_openapi_document_has_the_routes():
    paths = openapi_document()["paths"]
    for path in ("/event", "/delivery", "/dead-letter", "/rejection", "/conflict"):
        assert set(paths[f"/api/v1{path}"]) == {"get"}
    for path in ("/event/{event_id}/replay", "/dead-letter/{delivery_id}/replay", "/dead-letter/{delivery_id}/ignore"):
        assert set(paths[f"/api/v1{path}"]) == {"post"}
