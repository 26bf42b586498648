"""Pages of applications and endpoints, for operators, through their HTTP forms against a real database."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from boathook.db.audit import record
from boathook.db.queries import endpoint_stats as sights
from boathook.delivery.tasks import run_tasks
from boathook.domain import ids
from boathook.domain.model import Role
from boathook.service.caller import HOST
from boathook.service.catalogue import event_types
from boathook.service.catalogue.event_types import EventTypeCreate
from boathook.service.sending import endpoints, messages
from boathook.service.sending.endpoint_secrets import set_headers
from boathook.service.unit_of_work import new_id
from tests.postgres.portal_client import ConsoleApp, PageClient, open_console
from tests.sender_harness import Reply, Sink, running_sender
from tests.support import eventually


@pytest.fixture
async def console(db):
    async with open_console(db) as console:
        yield console


@pytest.fixture
async def anna(console: ConsoleApp) -> PageClient:
    return await console.operator()


async def made(pages: PageClient, path: str, form: dict, on: str) -> str:
    return str((await pages.submit_form(path, form, on=on)).headers["location"])


async def audit(db) -> list[tuple[str, str]]:
    rows = await db.fetch("select actor, action from boathook.audit where action <> 'operator.sign_in' order by id")
    return [(row["actor"], row["action"]) for row in rows]


async def test_the_audit_has_the_values_before_and_after(console, anna, db):
    home = await made(anna, "/console/applications", {"name": "Acme", "uid": "acme"}, "/console/applications/new")
    await anna.submit_form(f"{home}/edit", {"name": "Acme Ltd", "uid": "acme", "throttleRate": "50", "metadata": ""})
    page = await anna.get_page("/console/audit?action=application.update")
    assert "name: &#34;Acme&#34; -&gt; &#34;Acme Ltd&#34;; throttle_rate: none -&gt; 50" in page
    tenant = await console.tenant("tenant")
    async with console.context.work(actor="test") as work:
        await endpoints.update(
            work, tenant.application, tenant.endpoint.shown_id, {"url": "https://me:pw@example.com/x?token=s3cret"}
        )
        await set_headers(work, tenant.application, tenant.endpoint.shown_id, {"x-access": "s3cret"})
    notes = await db.fetch("select note from boathook.audit where action = 'endpoint.updated' order by id")
    assert notes[0]["note"].endswith('-> "https://example.com/x"; auth changed')
    assert notes[1]["note"] == "headers changed"


async def test_one_action_on_many_subjects_is_one_entry_of_the_audit(anna, db):
    async with db.transaction() as connection:
        for number in range(50):
            await record(connection, "console:anna", "dead.ignore", f"dlv_{number}", "refunded by hand")
    await db.execute(
        "insert into boathook.audit (actor, action, subject) values ('console:anna', 'dead.ignore', 'dlv_x')"
    )
    page = await anna.get_page("/console/audit?action=dead.ignore")
    assert page.count("<tr><td") == 2
    assert "50 subjects" in page
    assert "dlv_49" in page


async def test_an_application_is_made_found_changed_and_deleted_by_forms(console, anna, db):
    home = await made(
        anna, "/console/applications", {"name": "Acme & Sons", "uid": "acme"}, "/console/applications/new"
    )
    page = await anna.get_page(home)
    assert "Acme &amp; Sons" in page
    assert "acme" in page
    found = await anna.get_page("/console/applications?q=SONS")
    assert home in found
    assert home not in await anna.get_page("/console/applications?q=nobody")
    await anna.submit_form(
        f"{home}/edit", {"name": "Acme", "uid": "acme", "throttleRate": "50", "metadata": "plan = pro"}
    )
    row = await db.fetchrow("select name, throttle_rate, metadata::text from boathook.application where uid = 'acme'")
    assert (row["name"], row["throttle_rate"], json.loads(row["metadata"])) == ("Acme", 50, {"plan": "pro"})
    await anna.submit_form(f"{home}/delete", {"typed": "acme inc"}, on=home)
    await anna.get_page(home)  # it was not its name
    await anna.submit_form(f"{home}/delete", {"typed": "Acme"}, on=home)
    await anna.get_page(home, 404)
    assert [action for actor, action in await audit(db) if actor == "console:anna"] == [
        "application.create",
        "application.update",
        "application.delete",
    ]


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ({"name": ""}, "f-name"),
        ({"name": "x", "uid": "a b"}, "f-uid"),
        ({"name": "x", "throttleRate": "fast"}, "f-throttleRate"),
        ({"name": "x", "throttleRate": "0"}, "f-throttleRate"),
        ({"name": "x", "metadata": "no sign"}, "f-metadata"),
    ],
)
async def test_an_invalid_application_value_is_shown_at_its_field(console, anna, db, form, word):
    answer = await anna.submit_form("/console/applications", form, on="/console/applications/new", status=400)
    assert re.search(rf'id="{word}"[^>]*aria-invalid="true"', answer.text)
    assert await db.fetchval("select count(*) from boathook.application") == 0


FULL = {
    "url": "http://127.0.0.1:8999/hooks",
    "description": "the crm",
    "uid": "crm",
    "eventTypes": ["invoice.paid"],
    "patterns": "user.*",
    "channels": "eu, us",
    "filter": '{"body": {"amount": {"gte": 100}}}',
    "orderBy": "customer.id",
    "throttleRate": "10",
    "concurrency": "2",
    "timeoutSeconds": "7.5",
    "retryPreset": "own",
    "retryWaits": "5, 60, 3600",
    "metadata": "team = billing",
    "headers": "X-Shop: north\nAuthorization: Bearer abc",
    "authKind": "basic",
    "basicUsername": "me",
    "basicPassword": "canary-password",
    "mtlsKind": "none",
}


async def with_endpoint(console: ConsoleApp, anna: PageClient, **changes: str) -> tuple[str, str]:
    """Return the page of an application and that of its endpoint, just made."""
    async with console.context.work(actor="test", caller=HOST) as work:
        await event_types.create(work, EventTypeCreate(name="invoice.paid", description="paid"))
    home = await made(anna, "/console/applications", {"name": "Acme"}, "/console/applications/new")
    return home, await made(anna, f"{home}/endpoints", {**FULL, **changes}, f"{home}/endpoints/new")


async def test_an_endpoint_is_created_and_shown_without_secrets(console, anna, db):
    _, there = await with_endpoint(console, anna)
    page = await anna.get_page(there)
    for word in ("the crm", "invoice.paid, user.*", "eu, us", "customer.id", "5 s, 60 s, 3600 s", "7.5 s", "billing"):
        assert word in page, word
    assert "Authorization, X-Shop" in page
    for secret in ("north", "Bearer abc", "canary-password", "whsec_"):
        assert secret not in page, secret
    row = await db.fetchrow("select * from boathook.endpoint")
    assert (row["throttle_rate"], row["concurrency"], row["timeout_s"]) == (10, 2, 7.5)
    assert json.loads(row["filter"]) == {"body": {"amount": {"gte": 100}}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://169.254.169.254/"}, "url"),
        ({"uid": "a b"}, "uid"),
        ({"filter": "{"}, "filter"),
        ({"filter": '{"nonsense": 1}'}, "filter"),
        ({"timeoutSeconds": "600"}, "timeoutSeconds"),
        ({"concurrency": "many"}, "concurrency"),
        ({"retryWaits": "soon"}, "retryWaits"),
        ({"headers": "Host: evil"}, "headers"),
        ({"headers": "no colon"}, "headers"),
        ({"authKind": "oauth2", "oauthTokenUrl": "gopher://x", "oauthClientId": "a", "oauthClientSecret": "b"}, "oauthTokenUrl"),
        ({"mtlsKind": "set", "mtlsCertificate": "none", "mtlsKey": "none"}, "mtlsCertificate"),
    ],
)  # fmt: skip
async def test_an_invalid_endpoint_value_is_shown_without_secrets(console, anna, db, changes, field):
    async with console.context.work(actor="test", caller=HOST) as work:
        await event_types.create(work, EventTypeCreate(name="invoice.paid", description="paid"))
    home = await made(anna, "/console/applications", {"name": "Acme"}, "/console/applications/new")
    answer = await anna.submit_form(f"{home}/endpoints", {**FULL, **changes}, on=f"{home}/endpoints/new", status=400)
    assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', answer.text), answer.text
    assert ('<details class="card advanced" open>' in answer.text) is (field != "url")
    assert "canary-password" not in answer.text
    assert "Bearer abc" not in answer.text
    assert 'value="the crm"' in answer.text
    assert await db.fetchval("select count(*) from boathook.endpoint") == 0


async def test_a_selected_event_type_group_is_stored_as_its_pattern(console, anna, db):
    async with console.context.work(actor="test", caller=HOST) as work:
        for name in ("invoice.paid", "invoice.sent", "user.made"):
            await event_types.create(work, EventTypeCreate(name=name, description=f"the {name}"))
    home = await made(anna, "/console/applications", {"name": "Acme"}, "/console/applications/new")
    form = {"url": FULL["url"], "eventTypes": ["invoice.*", "invoice.paid", "user.made"], "patterns": "other.*"}
    there = await made(anna, f"{home}/endpoints", form, f"{home}/endpoints/new")
    assert await db.fetchval("select event_types from boathook.endpoint") == ["invoice.*", "user.made", "other.*"]
    page = await anna.get_page(f"{there}/edit")
    assert re.findall(r'value="([^"]+)" checked', page) == ["invoice.*", "user.made"]
    assert 'value="other.*"' in page
    assert '<details class="card advanced">' in page


async def test_secrets_stay_unless_replaced(console, anna, db):
    _, there = await with_endpoint(console, anna)
    before = await db.fetchrow("select encrypted_headers, encrypted_auth from boathook.endpoint")
    form = {**FULL, "headers": "", "authKind": "keep", "mtlsKind": "keep", "url": "http://127.0.0.1:8999/other"}
    await anna.submit_form(f"{there}/edit", form)
    after = await db.fetchrow("select url, encrypted_headers, encrypted_auth from boathook.endpoint")
    assert after["url"].endswith("/other")
    assert (after["encrypted_headers"], after["encrypted_auth"]) == tuple(before.values())
    await anna.submit_form(
        f"{there}/edit", {**form, "removeHeaders": "X-Shop", "headers": "X-Team: b", "authKind": "none"}
    )
    page = await anna.get_page(there)
    assert "Authorization, X-Team" in page
    assert await db.fetchval("select encrypted_auth is null from boathook.endpoint")


async def test_an_endpoint_with_undecryptable_credentials_can_be_repaired(console, anna, db):
    _, there = await with_endpoint(console, anna)
    await db.execute("update boathook.endpoint set encrypted_auth = decode(repeat('00', 40), 'hex')")
    page = await anna.get_page(there)
    assert 'class="notice bad"' in page
    form = {**FULL, "headers": "", "authKind": "keep", "mtlsKind": "keep", "description": "moved"}
    await anna.submit_form(f"{there}/edit", form)
    assert "moved" in await anna.get_page(there)
    await anna.submit_form(f"{there}/edit", {**form, "authKind": "none", "mtlsKind": "none"})
    assert 'class="notice bad"' not in await anna.get_page(there)


async def test_secrets_are_shown_only_to_operators_and_audited(console, anna, db):
    _, there = await with_endpoint(console, anna)
    secret = re.search(r"whsec_[\w+/=]+", (await anna.submit_form(f"{there}/secret", on=there, status=200)).text)
    assert secret
    headers = (await anna.submit_form(f"{there}/headers", on=there, status=200)).text
    assert "north" in headers
    assert "Bearer abc" not in headers
    actions = [action for actor, action in await audit(db) if actor == "console:anna"]
    assert actions[-2:] == ["endpoint.secret.show", "endpoint.headers.show"]
    viewer = await console.operator("vera", Role.VIEWER)
    assert "Show the secret" not in await viewer.get_page(there)
    answer = await viewer.submit_form(f"{there}/secret", on=there, status=403)
    assert "whsec_" not in answer.text


async def test_a_rotated_secret_also_signs_until_its_grace_ends(console, anna, db):
    _, there = await with_endpoint(console, anna)
    await anna.submit_form(f"{there}/rotate", {"grace": "3600"}, on=there)
    assert "also used until" in await anna.get_page(there)
    rows = await db.fetch("select expires_at - now() as left from boathook.endpoint_secret order by id")
    assert timedelta(minutes=59) < rows[0]["left"] <= timedelta(hours=1)
    assert rows[1]["left"] is None
    await anna.submit_form(f"{there}/rotate", {"grace": "-1"}, on=there, status=400)
    assert await db.fetchval("select count(*) from boathook.endpoint_secret") == 2


async def test_disabling_shows_the_operator_and_enabling_restores_health(console, anna, db):
    _, there = await with_endpoint(console, anna)
    await anna.submit_form(f"{there}/disable", on=there)
    assert "Disabled by anna, in the console. Pending deliveries are kept." in await anna.get_page(there)
    assert "disabled" in await anna.get_page("/console/applications/unhealthy")
    await anna.submit_form(f"{there}/enable", {"backlog": "send"}, on=there)
    assert "No attempts in the range." in await anna.get_page(there)


@pytest.mark.parametrize(
    ("because", "sentence"),
    [("gone", "Disabled: the endpoint responded 410 Gone"), ("failing", "Disabled: every attempt failed for 5 days")],
)
async def test_the_reason_for_disabling_is_shown(console, anna, db, because, sentence):
    _, there = await with_endpoint(console, anna)
    await db.execute(
        "update boathook.endpoint set is_disabled = true, disabled_because = $1, disabled_at = now()", because
    )
    assert sentence in await anna.get_page(there)


async def test_failures_in_a_row_and_a_pause_are_shown(console, anna, db):
    _, there = await with_endpoint(console, anna)
    endpoint = ids.read(ids.ENDPOINT, there.rpartition("/")[2])
    await db.execute(
        "insert into boathook.endpoint_health (endpoint_id, failures, failing_since) values ($1, 3, now())", endpoint
    )
    assert "The last 3 attempts failed, since " in await anna.get_page(there)
    await db.execute("update boathook.endpoint_health set failures = 12, open_until = now() + interval '1 minute'")
    page = await anna.get_page(there)
    assert "12 consecutive failures" in page
    assert "next probe in" in page
    assert "paused" in await anna.get_page("/console/applications/unhealthy")


async def pause(db, there: str) -> None:
    await db.execute(
        "insert into boathook.endpoint_health (endpoint_id, failures, open_until, pauses)"
        " values ($1, 9, now() + interval '1 hour', 1)",
        ids.read(ids.ENDPOINT, there.rpartition("/")[2]),
    )


@pytest.mark.parametrize("change", ["resume", "url", "secret"])
async def test_a_pause_ends_when_an_operator_resumes_or_changes_the_endpoint(console, anna, db, change):
    _, there = await with_endpoint(console, anna)
    assert "/resume" not in await anna.get_page(there)
    await pause(db, there)
    page = await anna.get_page(there)
    assert "paused, next probe in 3" in page
    if change == "resume":
        await anna.submit_form(f"{there}/resume", on=there)
        assert ("console:anna", "endpoint.resumed") in await audit(db)
    elif change == "url":
        await anna.submit_form(f"{there}/edit", {**FULL, "url": "https://other.example/in"}, on=f"{there}/edit")
    else:
        await anna.submit_form(f"{there}/rotate", {"grace": "3600"}, on=there)
    assert not await db.fetchval("select count(*) from boathook.endpoint_health")
    assert ">paused<" not in await anna.get_page("/console/applications/unhealthy")


async def test_an_endpoint_is_deleted_when_its_name_is_written_out(console, anna, db):
    home, there = await with_endpoint(console, anna)
    await anna.submit_form(f"{there}/delete", {"typed": "something"}, on=there)
    await anna.get_page(there)
    answer = await anna.submit_form(f"{there}/delete", {"typed": "crm"}, on=there)
    assert answer.headers["location"] == home
    await anna.get_page(there, 404)


async def test_an_endpoint_is_found_without_its_application(console, anna):
    _, there = await with_endpoint(console, anna)
    answer = await anna.get(f"/console/endpoints/{there.rpartition('/')[2]}")
    assert answer.headers["location"] == there
    await anna.get_page("/console/endpoints/ep_none", 404)


async def test_a_test_shows_the_response_once_received(console, anna, db):
    sink = Sink(lambda _request: Reply(418, body=b"<b>short and stout</b>"))
    async with sink.open():
        _, there = await with_endpoint(console, anna, url=f"{sink.base}/hooks", authKind="none", filter="", orderBy="")
        watch = await made(anna, f"{there}/test", {"type": "svix.ping"}, there)
        assert "Sending since" in await anna.get_page(watch)
        async with running_sender(db, keys=["a key of at least sixteen characters"]):
            await sink_got(sink, 1)
            page = await shown(anna, watch, "short and stout")
    assert "&lt;b&gt;short and stout&lt;/b&gt;" in page
    assert "<b>short" not in page
    fragment = (await anna.get(watch, headers={"hx-request": "true"})).text
    assert "<html" not in fragment
    assert "418" in fragment


async def sink_got(sink: Sink, number: int) -> None:
    await eventually(lambda: len(sink.requests) >= number)


async def shown(pages: PageClient, path: str, word: str) -> str:
    async def look() -> str:
        page = await pages.get_page(path)
        return page if word in page else ""

    return await eventually(look)


async def test_a_message_is_published_shown_and_resent(console, anna, db):
    sink = Sink()
    async with sink.open():
        home, there = await with_endpoint(
            console, anna, url=f"{sink.base}/hooks", authKind="none", filter="", orderBy="", channels=""
        )
        form = {"eventType": "invoice.paid", "payload": '{"amount":  5}', "eventId": "inv-1"}
        message = await made(anna, f"{home}/publish", form, f"{home}/publish")
        async with running_sender(db, keys=["a key of at least sixteen characters"]):
            await sink_got(sink, 1)
            assert sink.requests[0].body == b'{"amount":  5}'
            page = await shown(anna, message, "succeeded")
            assert "204" in page
            name = there.rpartition("/")[2]
            await anna.submit_form(f"{message}/resend", {"endpoint": name}, on=message)
            await sink_got(sink, 2)
    listed = await shown(anna, f"{there}/attempts", "manual")
    detail = re.search(rf'href="({re.escape(there)}/attempts/[^"]+)"', listed)
    assert detail
    page = await anna.get_page(detail[1])
    assert "webhook-signature" in page
    assert "Authorization" in page
    assert "Bearer abc" not in page
    assert (await anna.get(f"{message}/payload")).content == b'{"amount":  5}'
    assert (await anna.get(f"{home}/messages?id=inv-1")).headers["location"] == message
    again = await anna.submit_form(f"{home}/publish", form, on=f"{home}/publish", status=400)
    assert "has the eventId inv-1 already" in again.text
    broken = await anna.submit_form(f"{home}/publish", {**form, "payload": "[1]"}, on=f"{home}/publish", status=400)
    assert "write a JSON object" in broken.text


async def test_failed_messages_are_recovered_by_a_task_with_progress(console, anna, db):
    home, there = await with_endpoint(console, anna, authKind="none", filter="", orderBy="", channels="")
    form = {"eventType": "invoice.paid", "payload": '{"n": 1}'}
    await made(anna, f"{home}/publish", form, f"{home}/publish")
    await db.execute("update boathook.delivery set state = 'dead', code = 'HTTP_500', dead_at = now(), attempts = 1")
    since = f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M}"
    counted = {"since": since, "dry_run": "yes"}
    for action, text in (
        ("recover", "It would attempt 1 message once more."),
        ("replay-missing", "It would send 0 messages that the endpoint was never sent."),
    ):
        assert await made(anna, f"{there}/{action}", counted, there) == there
        assert text in await anna.get_page(there)
    assert await db.fetchval("select count(*) from boathook.task") == 0
    task = await made(anna, f"{there}/recover", {"since": since}, there)
    assert 'max="100" value="0"' in await anna.get_page(task)
    await anna.submit_form(f"{there}/recover", {"since": "yesterday"}, on=there, status=400)
    await run_tasks(db, console.context.outbox)
    page = await anna.get_page(task)
    assert "finished" in page
    assert "1 messages queued again" in page
    assert await db.fetchval("select state from boathook.delivery") == "pending"


async def put_attempts(db, endpoint: str, number: int, *, failed_at: int) -> None:
    """Store so many attempts, all of which succeeded but the one at this place, the oldest being 0."""
    first = new_id()
    await db.execute(
        """
        with made as (
            select n, overlay($1::text placing lpad(to_hex(n), 4, '0') from 20)::uuid as id from generate_series(0, $2 - 1) n
        ),
        event as (
            insert into boathook.event (id, application, type, dedup_key, grade, origin, headers, content_type, body,
                body_sha256, fanout)
            select id, 'app_x', 'thing.done', 'evt_' || n, 'none', 'published', '{}', 'application/json', '{}', sha256('{}'), 1
            from made
        )
        insert into boathook.attempt (event_id, ordinal, number, outcome, worker, started_at, ended_at, id, recipient, url,
            status, duration_ms, is_manual)
        select id, 0, 1, case when n = $4 then 'failed' else 'succeeded' end, 'w', now() - interval '1 minute', now(), id,
            $3, 'http://x/', case when n = $4 then 500 else 200 end, 10 + n % 91, false
        from made
        """,
        str(first), number, f"endpoint:{endpoint}", failed_at,
    )  # fmt: skip


async def test_a_rare_attempt_is_found_by_bounded_scans(console, anna, db, monkeypatch):
    _, there = await with_endpoint(console, anna)
    await put_attempts(db, there.rpartition("/")[2], 5_000, failed_at=0)
    monkeypatch.setattr(messages, "BUDGET_S", 0.0)
    page = await anna.get_page(f"{there}/attempts?result=failed")
    looks = 1
    while "500" not in re.sub(r"\s+", " ", page.partition("<tbody>")[2]):
        more = re.search(r'rel="next" href="([^"]+)"', page)
        assert more, "it was not found"
        assert "Searched back to" in page
        page = await anna.get_page(f"{there}/attempts{more[1].replace('&amp;', '&')}")
        looks += 1
    assert looks == 3  # 2,000 at a time
    assert sights.SCAN_ROWS == 2_000


async def test_the_figures_of_an_endpoint_are_those_of_its_attempts(console, anna, db):
    _, there = await with_endpoint(console, anna)
    name = there.rpartition("/")[2]
    await put_attempts(db, name, 1_000, failed_at=7)
    now = datetime.now(UTC)
    async with db.acquire() as connection:
        found = await sights.measure_attempts(
            connection, ids.read(ids.ENDPOINT, name), now, timedelta(days=1), timedelta(hours=1)
        )
    assert (found.succeeded, found.failed, found.cut_at) == (999, 1, None)
    durations = sorted(10 + n % 91 for n in range(1_000))
    assert (found.p50_ms, found.p95_ms) == (durations[499], durations[949])
    assert found.p99_ms == durations[989]
    bounds = sights.LATENCY_BOUNDS_MS
    assert found.latencies[bounds.index(10.0)] == durations.count(10)
    assert found.latencies[bounds.index(25.0)] == sum(10 < one <= 25 for one in durations)
    assert sum(found.latencies) == 1_000
    assert (round(found.rate, 4), found.error_share) == (round(1_000 / 86_400, 4), 0.001)
    assert sum(one.succeeded for one in found.stretches) == 999
    assert 24 <= len(found.stretches) <= 25
    page = await anna.get_page(there)
    assert "1 failed, 999 succeeded" in page
    assert 'class="bad"' in page
    assert "closed</span>" in page
    for span, title in (("hour", "1 h"), ("day", "24 h"), ("week", "7 d")):
        assert f"000 in {title}" in await anna.get_page(f"{there}?span={span}")
