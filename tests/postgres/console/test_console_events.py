"""The pages of events: search, live tail, saved views, export and bulk replay, and the page of one event."""

import csv
import io
import json

import pytest

from boathook.db.database import Database
from boathook.db.route_registry import register
from boathook.delivery.tasks import run_tasks
from boathook.domain import ids
from boathook.domain.model import Role, Route
from boathook.handlers.outbox import Outbox
from boathook.service.catalogue import events
from boathook.service.operating import search
from tests.postgres.db.test_integrity import Store
from tests.postgres.db.test_routing import to
from tests.postgres.message_factory import ago
from tests.postgres.operating.test_search import put
from tests.postgres.portal_client import ConsoleApp, PageClient, open_console

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"


@pytest.fixture
async def console(db: Database):
    async with open_console(db, tracing__link="https://traces.example/{trace_id}") as console:
        yield console


@pytest.fixture
async def anna(console: ConsoleApp) -> PageClient:
    return await console.operator()


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


async def test_the_time_is_first_and_filters_can_be_removed(store: Store, anna: PageClient):
    event = await put(store, "evt_1", type=HOSTILE, body=b'{"to":{"id":"cus_1"}}', to=("handler:a",))
    page = await anna.get_page("/console/events?since=1h&q=to.id+%3D+cus_1&type=%3Cscript%3E*")
    assert ids.show(ids.EVENT, event) in page
    row = page[page.index("<tbody>") :]
    assert row.index("data-exact") < row.index("&lt;script&gt;alert(1)")
    assert "<script>alert" not in page
    assert 'aria-label="Remove Search: to.id = cus_1"' in page
    assert 'href="/console/events?q=to.id+%3D+cus_1&amp;since=1h" aria-label="Remove Type: &lt;script&gt;*"' in page
    assert 'since=1h" aria-current="true">1 h</a>' in page
    assert 'since=1h&amp;custom=yes#f-since">Custom</a>' in page
    assert "<details open>\n<summary>Filters" in await anna.get_page("/console/events?custom=yes")
    assert ids.show(ids.EVENT, event) not in await anna.get_page("/console/events?where=to.id+%3D+cus_2")
    assert "write a path and a value" in await anna.get_page("/console/events?where=cus_2", 400)


async def test_events_are_listed_by_the_time_that_they_are_searched_by(store: Store, anna: PageClient):
    received = ago(hours=3)
    await put(store, "spooled", at=received)
    await store.db.execute("update boathook.event set accepted_at = accepted_at + interval '2 hours'")
    page = await anna.get_page("/console/events")
    assert f'datetime="{received.isoformat()[:19]}' in page


async def test_the_live_tail_has_the_rows_of_new_matches_only(store: Store, anna: PageClient):
    old = await put(store, "old", at=ago(hours=1))
    new = await put(store, "new")
    await put(store, "other", type="other.type")
    since = ago(seconds=5).isoformat().replace("+", "%2B")
    rows = await anna.get_page(f"/console/events/tail?type=payment.*&after={since}")
    assert f'data-id="{ids.show(ids.EVENT, new)}"' in rows
    assert rows.count("<tr") == 1
    assert "<html" not in rows
    assert "old" in await anna.get_page("/console/events/tail?after=1970-01-01")
    await anna.get_page("/console/events/tail?after=never", 400)
    assert f"/console/events/{ids.show(ids.EVENT, old)}" in await anna.get_page("/console/events")


async def test_filters_are_completed(store: Store, console: ConsoleApp, anna: PageClient):
    await put(store, "one", type=HOSTILE)
    await console.tenant("acme")
    assert "&lt;script&gt;" in await anna.get_page("/console/events/suggestions/type?type=SCRIPT")
    assert 'value="acme"' in await anna.get_page("/console/events/suggestions/application?application=ac")
    await anna.get_page("/console/events/suggestions/key", 404)


async def test_a_view_is_saved_shown_to_its_operator_only_and_deleted(
    console: ConsoleApp, anna: PageClient, monkeypatch
):
    search = {"type": "payment.*", "since": "1h", "name": HOSTILE}
    await anna.submit_form("/console/events/views", search, on="/console/events")
    page = await anna.get_page("/console/events")
    assert 'href="/console/events?type=payment.%2A&amp;since=1h">&lt;script&gt;alert(1)' in page
    assert "<script>alert" not in page
    ben = await console.operator("ben", Role.VIEWER)
    assert "payment.%2A" not in await ben.get_page("/console/events")
    await ben.submit_form("/console/events/views", {**search, "name": "mine"}, on="/console/events")
    monkeypatch.setattr("boathook.service.operating.search.MAX_VIEWS", 1)
    await anna.submit_form("/console/events/views", {**search, "type": "other"}, on="/console/events")
    await anna.submit_form("/console/events/views", {**search, "name": "second"}, on="/console/events")
    assert "an operator can save 1 views" in await anna.get_page("/console/events")
    for wrong in ({**search, "name": ""}, {"name": "everything"}, {**search, "state": "asleep"}):
        await anna.submit_form("/console/events/views", wrong, on="/console/events")
    page = await anna.get_page("/console/events")
    assert page.count("?type=other&amp;since=1h") == 1
    await anna.submit_form("/console/events/views/delete", {"name": HOSTILE}, on="/console/events")
    assert "?type=other" not in await anna.get_page("/console/events")
    await anna.submit_form("/console/events/views/delete", {"name": HOSTILE}, on="/console/events", status=404)
    assert "mine</a>" in await ben.get_page("/console/events")


async def test_matches_are_exported_as_json_lines_and_csv(
    store: Store, console: ConsoleApp, anna: PageClient, monkeypatch
):
    await put(store, "=cmd()", at=ago(minutes=3), body=b'{"n":1}', to=("handler:a",))
    await put(store, "binary", at=ago(minutes=2), body=b"\xff\x00")
    await put(store, "other", at=ago(minutes=1), type="other.type")
    answer = await anna.submit_form(
        "/console/events/download/jsonl", {"type": "payment.*"}, on="/console/events", status=200
    )
    assert answer.headers["content-disposition"] == 'attachment; filename="boathook-events.jsonl"'
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [(row["dedup_key"], row["body"], row["body_base64"]) for row in rows] == [
        ("binary", None, "/wA="),
        ("=cmd()", '{"n":1}', None),
    ]
    assert rows[1]["deliveries"] == {"pending": 1}
    answer = await anna.submit_form(
        "/console/events/download/csv", {"type": "payment.*"}, on="/console/events", status=200
    )
    table = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["dedup_key"], row["deliveries"]) for row in table] == [("binary", ""), ("'=cmd()", "1 pending")]
    monkeypatch.setattr("boathook.service.operating.search.MAX_EXPORTED", 2)
    lines = (
        await anna.submit_form("/console/events/download/jsonl", {}, on="/console/events", status=200)
    ).text.splitlines()
    assert len(lines) == 3
    assert "more than 2 events; continue with Before = " in json.loads(lines[-1])["truncated"]
    answer = await anna.submit_form("/console/events/download/csv", {}, on="/console/events", status=200)
    assert "truncated: more than 2 events" in answer.text.splitlines()[-1]
    await anna.submit_form("/console/events/download/xml", {}, on="/console/events", status=400)
    await anna.submit_form("/console/events/download/csv", {"state": "asleep"}, on="/console/events", status=400)
    audit = await store.db.fetch("select actor, note from boathook.audit where action = 'event.export' order by id")
    assert tuple(audit[0]) == ("console:anna", "jsonl: type=payment.%2A")
    viewer = await console.operator("ben", Role.VIEWER)
    await viewer.submit_form("/console/events/download/csv", {}, on="/console/account", status=403)
    assert "/download/" not in await viewer.get_page("/console/events")


async def test_a_truncated_export_continues_where_it_ended(store: Store, anna: PageClient, monkeypatch):
    # They were spooled, so all of them have been accepted now; two have the same millisecond.
    first, second, third = ago(minutes=3), ago(minutes=2), ago(minutes=1)
    stored = [await put(store, str(n), at=at) for n, at in enumerate((first, second, second, third, third))]
    monkeypatch.setattr(search, "MAX_EXPORTED", 3)

    async def export(before: str) -> list[dict[str, str]]:
        form = {"until": before} if before else {}
        page = await anna.submit_form("/console/events/download/jsonl", form, on="/console/events", status=200)
        return [json.loads(line) for line in page.text.splitlines()]

    *rows, end = await export("")
    rows += await export(end["truncated"].rpartition(" = ")[2])
    assert {row["id"] for row in rows} == {ids.show(ids.EVENT, one) for one in stored}


async def test_an_export_that_ends_at_its_size_is_complete(store: Store, anna: PageClient, monkeypatch):
    await put(store, "large", body=b'{"n":1}')
    monkeypatch.setattr(search, "MAX_EXPORTED_BYTES", 1)
    page = await anna.submit_form("/console/events/download/jsonl", {}, on="/console/events", status=200)
    assert "truncated" not in page.text


async def test_a_pending_delivery_is_retried_now(store: Store, anna: PageClient):
    event = await store.accept("one", "handler:a")
    await store.fail(event)
    await store.db.execute("update boathook.delivery set due_at = now() + interval '1 hour'")
    page = f"/console/events/{ids.show(ids.EVENT, event)}"
    assert "Retry now" in await anna.get_page(page)
    answer = await anna.submit_form(f"{page}/replay", {"delivery": "0"}, on=page)
    text = await anna.get_page(answer.headers["location"])
    assert "is pending, but no app declares handler:a; it waits until one does" in text
    assert await store.one("select due_at <= now() from boathook.delivery")
    await register(store.db, "shop:hook", [Route(recipient="handler:a", app="shop:hook", source="shop")])
    await store.db.execute("update boathook.delivery set due_at = now() + interval '1 hour'")
    answer = await anna.submit_form(f"{page}/replay", {"delivery": "0"}, on=page)
    assert "is due now" in await anna.get_page(answer.headers["location"])
    assert await store.one("select due_at <= now() from boathook.delivery")


async def test_search_results_are_replayed_after_a_preview(store: Store, anna: PageClient, monkeypatch):
    for n in range(3):
        event = await put(store, f"key-{n}", body=b'{"n":%d}' % n, to=("handler:a",))
        await store.end(event)
    assert "Replay 3 events?" in await anna.get_page("/console/events/replay?type=payment.*")
    assert "No filter is set" in await anna.get_page("/console/events/replay")
    where = "/console/events/replay?where=n+%3D+1"
    assert "Replay 1 event?" in await anna.get_page(where)
    monkeypatch.setattr(events, "MAX_SEARCHED", 2)
    page = await anna.get_page("/console/events/replay?type=payment.*&text=n")
    assert "Replay at least 2 events?" in page
    assert "There may be more" in page
    form = {"where": "n = 1", "note": "fixed"}
    answer = await anna.submit_form("/console/events/replay", {**form, "rate": "x"}, on=where, status=400)
    assert "write a number" in answer.text
    job = (await anna.submit_form("/console/events/replay", form, on=where)).headers["location"]
    await run_tasks(store.db, Outbox())
    assert "fixed" in await anna.get_page(job)
    assert await store.db.fetchval("select count(*) from boathook.delivery where is_replay") == 1
    await anna.submit_form("/console/events/replay", {}, on=where, status=400)


class TestAnEvent:
    async def test_folds_equal_attempts_and_shows_the_newest_error(self, store: Store, anna: PageClient):
        event = await put(store, "one", to=("handler:a",))
        for _ in range(3):
            await store.fail(event)
        page = await anna.get_page(f"/console/events/{ids.show(ids.EVENT, event)}")
        assert "attempts 1 to 3 of delivery 0" in page
        assert "3 attempts with the same result" in page
        assert "Newest error" in page
        assert page.index('id="content"') < page.index('id="failure"') < page.index('id="deliveries"')
        await store.end(event)
        assert "Newest error" not in await anna.get_page(f"/console/events/{ids.show(ids.EVENT, event)}")

    async def test_names_the_dependency_that_failed(self, store: Store, anna: PageClient):
        event = await put(store, "one", to=("handler:a",))
        await store.fail(event)
        path = f"/console/events/{ids.show(ids.EVENT, event)}"
        assert "Dependency" not in await anna.get_page(path)
        await store.db.execute("update boathook.attempt set dependency = 'crm & co'")
        page = await anna.get_page(path)
        assert page.count('Dependency <span class="mono">crm &amp; co</span>') == 2, "the newest error and the timeline"
        await store.fail(event, is_last=True)
        await store.db.execute("update boathook.attempt set dependency = 'crm'")
        assert 'Dependency <span class="mono">crm</span>' in await anna.get_page(
            f"/console/dead/{ids.show_delivery(event, 0)}"
        )

    async def test_links_its_trace_and_copies_its_curl_command(self, store: Store, anna: PageClient):
        event = await put(store, "one")
        url = f"/console/events/{ids.show(ids.EVENT, event)}"
        assert f'href="https://traces.example/{event.int:032x}"' in await anna.get_page(url)
        parent = "0af7651916cd43dd8448eb211c80319c"
        await store.db.execute(
            "update boathook.event set headers = $1", json.dumps({"traceparent": f"00-{parent}-b7ad6b7169203331-01"})
        )
        page = await anna.get_page(url)
        assert f'href="https://traces.example/{parent}"' in page
        assert '<button type="button" data-copy>Copy as curl</button><code hidden>curl' in page

    async def test_offers_routing_to_a_later_handler(self, store: Store, anna: PageClient):
        event = await put(store, "one", body=b'{"n":1}', to=("handler:a",))
        await register(store.db, "shop", [to("a"), to("later")])
        url = f"/console/events/{ids.show(ids.EVENT, event)}"
        page = await anna.get_page(url)
        assert "Route to handler:later" in page
        assert "Route to handler:a<" not in page
        await anna.submit_form(f"{url}/route", {"to": "handler:later"}, on=url)
        assert "Route to handler:later" not in await anna.get_page(url)
        assert await store.db.fetchval("select count(*) from boathook.delivery where recipient = 'handler:later'") == 1
