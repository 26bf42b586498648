"""Senders: signed deliveries, limits across all senders, and failures with their consequences."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook

from boathook.db import delivery_commands, endpoints, resends
from boathook.db import endpoint_deliveries as fake_store
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, ReplaySchedule, Selection
from boathook.db.endpoint_deliveries import EndpointDeliveryStore
from boathook.db.integrity import check_integrity
from boathook.db.messages import MessageFilter
from boathook.db.queries.listings import ListFilter
from boathook.delivery import endpoint_queues
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidTransition
from boathook.domain.policy import RetryDefaults, RetryPolicy
from boathook.domain.windows import range_of
from boathook.service.unit_of_work import new_id
from tests import delivery_actions
from tests.sender_harness import (
    Reply,
    Request,
    Sink,
    StoredEndpoint,
    add_application,
    add_deliveries,
    add_endpoint,
    add_secret,
    running_sender,
)
from tests.support import eventually, logged
from tests.worker_harness import delivery_states, wait_for_states


async def test_a_message_arrives_signed_and_is_recorded(db: Database) -> None:
    async with Sink(lambda _: Reply(200, {"content-type": "text/plain"}, b"thanks")).open() as sink:
        endpoint = await add_endpoint(db, f"{sink.base}/in", headers={"X-Api-Key": "hush", "X-Tag": "a"})
        async with running_sender(db):
            (event,) = await add_deliveries(db, endpoint, body=b'{"n":  1}')
            await wait_for_states(db, succeeded=1)
    (request,) = sink.requests
    assert request.body == b'{"n":  1}'
    assert request.headers["webhook-id"] == ids.show(ids.MESSAGE, event)
    Webhook(endpoint.secret).verify(request.body, dict(request.headers))
    (row,) = await db.fetch("select * from boathook.attempt")
    assert (row["outcome"], row["status"], row["number"], row["response"]) == ("succeeded", 200, 1, b"thanks")
    assert (row["recipient"], row["url"], row["is_manual"]) == (endpoint.recipient, f"{sink.base}/in", False)
    recorded = dict(json.loads(row["request_headers"]))
    assert (recorded["X-Api-Key"], recorded["X-Tag"]) == ("[redacted]", "[custom]")
    assert row["id"].version == 7


async def test_a_message_whose_content_was_deleted_is_not_sent(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        (event,) = await add_deliveries(db, endpoint, is_announced=False)
        await _delete_contents(db, [event])
        async with running_sender(db):
            await wait_for_states(db, dead=1)
    assert not sink.requests
    assert await db.fetchval("select code from boathook.delivery") == "CONTENT_GONE"


async def test_many_messages_to_many_endpoints_arrive_once_each(db: Database) -> None:
    async with Sink().open() as sink:
        endpoints = [await add_endpoint(db, f"{sink.base}/{n}") for n in range(5)]
        events = await add_deliveries(db, endpoints, 100)
        async with running_sender(db, sender_id="s1"), running_sender(db, sender_id="s2"):
            await wait_for_states(db, succeeded=500)
    assert len(sink.requests) == 500
    for n in range(5):
        assert {request.headers["webhook-id"] for request in sink.to(f"/{n}")} == {
            ids.show(ids.MESSAGE, event) for event in events
        }


async def test_failures_are_retried_by_the_endpoints_schedule(db: Database) -> None:
    replies = iter([Reply(500), Reply(308, {"location": "/elsewhere"}), Reply(200)])
    async with Sink(lambda _: next(replies)).open() as sink:
        endpoint = await add_endpoint(db, f"{sink.base}/in")
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, succeeded=1)
    assert [request.path for request in sink.requests] == ["/in"] * 3, "a redirect was followed"
    rows = await db.fetch("select status, code, outcome from boathook.attempt order by number")
    assert [tuple(row) for row in rows] == [
        (500, "HTTP_500", "failed"),
        (308, "HTTP_308", "failed"),
        (200, None, "succeeded"),
    ]


async def test_out_of_attempts_is_dead(db: Database) -> None:
    async with Sink(lambda _: Reply(500, body=b"no")).open() as sink:
        endpoint = await add_endpoint(db, sink.base, retry=RetryPolicy(delays_s=(0.01, 0.01), jitter=0.0))
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, dead=1)
    assert len(sink.requests) == 3
    (row,) = await db.fetch("select code, attempts from boathook.delivery")
    assert tuple(row) == ("HTTP_500", 3)


async def test_retry_after_stretches_the_wait(db: Database) -> None:
    async with Sink(lambda _: Reply(429, {"retry-after": "1800"})).open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await eventually(lambda: sink.requests)

            async def waits() -> bool:
                return bool(
                    await db.fetchval(
                        "select extract(epoch from due_at - now()) between 30 and 61"  # its max age is a minute
                        " from boathook.delivery where state = 'pending'"
                    )
                )

            await eventually(waits)


async def test_a_410_disables_the_endpoint_and_the_rest_waits(db: Database) -> None:
    async with Sink(lambda _: Reply(410)).open() as sink:
        endpoint = await add_endpoint(db, sink.base, concurrency=1)
        async with running_sender(db):
            await add_deliveries(db, endpoint, 3)

            async def is_disabled() -> bool:
                return (await _disabled(db, endpoint)) == "gone"

            await eventually(is_disabled)
            await _two_rounds(db)
            before = len(sink.requests)
            await _two_rounds(db)
    # The next request may be under way while the result of the first is being written; it is the last.
    assert before <= 2
    assert len(sink.requests) == before
    assert (await delivery_states(db))["dead"] == before
    row = await db.fetchrow(
        "select p.revision, a.routes_version from boathook.endpoint p join boathook.application a"
        " on a.id = p.application_id"
    )
    assert tuple(row) == (2, 2)


async def _disabled(db: Database, endpoint: StoredEndpoint) -> str | None:
    because: str | None = await db.fetchval("select disabled_because from boathook.endpoint where id = $1", endpoint.id)
    return because


async def _two_rounds(db: Database) -> None:
    """Wait until another endpoint's messages went through twice, so that a sender has looked at everything."""
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        for number in (1, 2):
            await add_deliveries(db, endpoint)
            await eventually(partial(_has, sink, number))


def _has(sink: Sink, number: int) -> bool:
    return len(sink.requests) == number


async def test_a_change_counts_for_the_next_attempt(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, f"{sink.base}/old")
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, succeeded=1)
            await db.execute(
                "update boathook.endpoint set url = $2, revision = revision + 1 where id = $1",
                endpoint.id, f"{sink.base}/new",
            )  # fmt: skip
            await add_deliveries(db, endpoint)
            await wait_for_states(db, succeeded=2)
    assert [request.path for request in sink.requests] == ["/old", "/new"]


async def test_the_previous_secret_also_signs(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await add_secret(db, endpoint, "whsec_" + "b" * 32, expires_in_s=60)
        await add_secret(db, endpoint, "whsec_" + "c" * 32, expires_in_s=-1)
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, succeeded=1)
    (request,) = sink.requests
    signatures = request.headers["webhook-signature"].split(" ")
    assert len(signatures) == 2
    for position, secret in enumerate((endpoint.secret, "whsec_" + "b" * 32)):
        Webhook(secret).verify(request.body, {**request.headers, "webhook-signature": signatures[position]})


async def test_an_undecryptable_secret_fails_only_the_attempt(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        async with running_sender(db, keys=["another key that is long enough"]):
            await add_deliveries(db, endpoint)

            async def has_failed() -> bool:
                return bool(await db.fetchval("select count(*) > 1 from boathook.attempt"))

            await eventually(has_failed)
        async with running_sender(db, sender_id="s2"):
            await wait_for_states(db, succeeded=1)
    rows = await db.fetch("select code, status, outcome from boathook.attempt order by number")
    assert {tuple(row) for row in rows[:-1]} == {("SECRET_UNREADABLE", 0, "failed")}
    assert len(sink.requests) == 1


async def test_an_access_token_is_fetched_and_refetched_after_a_401(db: Database) -> None:
    def script(request: Request) -> Reply:
        if request.path == "/token":
            return Reply(
                200, body=json.dumps({"access_token": f"t{len(sink.to('/token'))}", "expires_in": 3600}).encode()
            )
        return Reply(200) if request.headers["authorization"] == "Bearer t2" else Reply(401)

    async with Sink(script).open() as sink:
        client = {"tokenUrl": f"{sink.base}/token", "clientId": "us", "clientSecret": "hush"}
        endpoint = await add_endpoint(db, f"{sink.base}/in", auth={"oauth2": client})
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, succeeded=1)
            await add_deliveries(db, endpoint, 3)
            await wait_for_states(db, succeeded=4)
    assert len(sink.to("/token")) == 2
    recorded = await db.fetch("select request_headers from boathook.attempt")
    assert not any("Bearer t" in row["request_headers"] for row in recorded)


async def test_without_an_access_token_nothing_is_sent(db: Database) -> None:
    async with Sink(lambda _: Reply(500)).open() as sink:
        client = {"tokenUrl": f"{sink.base}/token", "clientId": "us", "clientSecret": "hush"}
        endpoint = await add_endpoint(db, f"{sink.base}/in", auth={"oauth2": client}, retry=RetryPolicy(delays_s=()))
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, dead=1)
    assert sink.to("/in") == []
    assert await db.fetchval("select code from boathook.attempt") == "OAUTH"


async def test_deliveries_of_a_disabled_endpoint_wait_until_enabled(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await db.execute(
            "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now()"
        )
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await _two_rounds(db)
            assert not sink.requests
            await db.execute(
                "update boathook.endpoint set is_disabled = false, disabled_because = null, disabled_at = null"
            )
            await eventually(lambda: sink.requests)
            await wait_for_states(db, succeeded=3)


async def test_a_stale_fence_changes_nothing(db: Database) -> None:
    gate = asyncio.Event()
    async with Sink(lambda _: Reply(200, gate=gate)).open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        async with running_sender(db) as one:
            await add_deliveries(db, endpoint)
            await eventually(lambda: sink.requests)
            await db.execute("update boathook.delivery set fence = fence + 1, leased_by = 'another'")
            gate.set()
            await eventually(lambda: not one.held)
    assert await db.fetchval("select count(*) from boathook.attempt") == 0
    assert await delivery_states(db) == {"leased": 1}


async def test_without_the_fence_it_would(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""
    blind = fake_store.SQL["settle_endpoint_deliveries"].replace("and fence = u.fence", "")
    monkeypatch.setitem(fake_store.SQL, "settle_endpoint_deliveries", blind)
    gate = asyncio.Event()
    async with Sink(lambda _: Reply(200, gate=gate)).open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await eventually(lambda: sink.requests)
            await db.execute("update boathook.delivery set fence = fence + 1, leased_by = 'another'")
            gate.set()
            await wait_for_states(db, succeeded=1)


# Limits over all senders


async def most_at_once(db: Database, sink: Sink) -> int:
    """Return how many requests were under way at once to an endpoint that takes two."""
    async with sink.open():
        endpoint = await add_endpoint(db, f"{sink.base}/in", concurrency=2)
        async with running_sender(db, sender_id="s1"), running_sender(db, sender_id="s2"):
            await add_deliveries(db, endpoint, 30)
            await wait_for_states(db, succeeded=30)
        return sink.most["/in"]


async def test_concurrency_holds_over_two_senders(db: Database) -> None:
    assert await most_at_once(db, Sink(lambda _: Reply(after_s=0.05))) == 2


async def test_without_the_bound_of_leases_it_would_not(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""
    unbound = fake_store.SQL["claim_endpoint_deliveries"].replace("w.most is not null and", "false and")
    monkeypatch.setitem(fake_store.SQL, "claim_endpoint_deliveries", unbound)
    third = asyncio.Event()

    def answer_when_three_are_under_way(_request: Request) -> Reply:
        if sink.most["/in"] > 2:
            third.set()
        return Reply(gate=third)

    sink = Sink(answer_when_three_are_under_way)
    assert await most_at_once(db, sink) > 2


async def rate_of(db: Database) -> float:
    """Return the requests a second that 40 messages took at an endpoint limited to 20 a second."""
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, f"{sink.base}/in", throttle_rate=20)
        await add_deliveries(db, endpoint, 40)
        async with running_sender(db, sender_id="s1"), running_sender(db, sender_id="s2"):
            await wait_for_states(db, succeeded=40)
        times = [request.at for request in sink.requests]
        return len(times) / (max(times) - min(times))


async def test_a_rate_holds_over_two_senders(db: Database) -> None:
    assert await rate_of(db) < 26


async def test_without_tokens_it_would_not(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""

    async def lavish(_self: object, wanted: Any) -> dict[Any, tuple[int, float]]:
        return {key: (number, 0.0) for key, number, _ in wanted}

    async def careless(_self: object, _unused: Any) -> None:
        pass

    monkeypatch.setattr(EndpointDeliveryStore, "take_tokens", lavish)
    monkeypatch.setattr(EndpointDeliveryStore, "return_tokens", careless)
    assert await rate_of(db) > 26


async def test_an_applications_rate_is_that_of_its_endpoints(db: Database) -> None:
    async with Sink().open() as sink:
        application = await add_application(db, throttle_rate=50)
        endpoint = await add_endpoint(db, sink.base, application=application)
        await add_deliveries(db, endpoint, 20)
        began = time.monotonic()
        async with running_sender(db):
            await wait_for_states(db, succeeded=20)
        assert time.monotonic() - began > 0.2


# Breakers


async def probes_while_down(db: Database) -> tuple[int, int]:
    """Return the requests made while an endpoint was down, and the attempts that were used up for it."""
    is_down = True

    def script(_request: Request) -> Reply:
        return Reply(503, after_s=0.05) if is_down else Reply()

    async with Sink(script).open() as sink:
        endpoint = await add_endpoint(db, f"{sink.base}/in", concurrency=4)
        await add_deliveries(db, endpoint, 20)
        outbound = {"breaker_after": 5, "breaker_pause_s": 0.3, "breaker_max_pause_s": 0.3}
        async with (
            running_sender(db, sender_id="s1", outbound=outbound),
            running_sender(db, sender_id="s2", outbound=outbound),
        ):
            await eventually(lambda: len(sink.requests) >= 12)
            sink.most.clear()
            await eventually(lambda: len(sink.requests) >= 14)
            at_once = sink.most["/in"]
            is_down = False
            await wait_for_states(db, succeeded=20)
        attempts = await db.fetchval("select count(*) from boathook.attempt where outcome = 'failed'")
        row = await db.fetchrow("select failures, pauses, open_until, failing_since from boathook.endpoint_health")
        assert tuple(row) == (0, 0, None, None), "it healed without a trace"
        return at_once, attempts


async def test_an_open_breaker_allows_one_probe_across_senders(db: Database) -> None:
    with logged() as lines:
        at_once, failed = await probes_while_down(db)
    assert at_once == 1
    assert failed <= 16
    changes = [line for line in lines if line["event"] in {"endpoint_paused", "endpoint_resumed"}]
    assert [line["event"] for line in changes] == ["endpoint_paused", "endpoint_resumed"], "once for both senders"
    assert changes[0]["endpoint"] == changes[1]["endpoint"]
    assert "next_probe_at" in changes[0]


async def test_without_a_breaker_all_attempts_would_be_used_up(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""
    blind = fake_store.SQL["claim_endpoint_deliveries"].replace("where h.open_until is null or w.is_probe", "")
    monkeypatch.setitem(fake_store.SQL, "claim_endpoint_deliveries", blind)

    def never_rests(queue: endpoint_queues.EndpointQueue, _now: float, _clock: datetime) -> float:
        queue.open_until = None
        return 0

    monkeypatch.setattr(endpoint_queues, "_rest_s", never_rests)
    at_once, failed = await probes_while_down(db)
    assert at_once > 1 or failed > 16


async def test_a_probe_is_held_for_the_timeout_of_its_endpoint(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_queues, "PROBE_HOLD_S", 0.2)
    async with Sink(lambda _: Reply(503, after_s=2.0)).open() as sink:
        endpoint = await add_endpoint(db, f"{sink.base}/in", timeout_s=10)
        await _open_breaker(db, endpoint)
        await add_deliveries(db, endpoint, 2)
        outbound = {"breaker_pause_s": 60, "timeout_s": 0.3}
        async with (
            running_sender(db, sender_id="s1", outbound=outbound),
            running_sender(db, sender_id="s2", outbound=outbound),
        ):

            async def is_paused_again() -> bool:
                return bool(await db.fetchval("select pauses = 2 from boathook.endpoint_health"))

            await eventually(is_paused_again)
    assert len(sink.requests) == 1


async def test_a_message_without_content_is_no_probe(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await _open_breaker(db, endpoint)
        await _delete_contents(db, await add_deliveries(db, endpoint, 2, is_announced=False))
        await add_deliveries(db, endpoint, is_announced=False)
        async with running_sender(db, outbound={"timeout_s": 3_600}):
            await wait_for_states(db, dead=2, succeeded=1)
    assert len(sink.requests) == 1


async def test_messages_without_content_do_not_count_as_failures(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await _delete_contents(db, await add_deliveries(db, endpoint, 3, is_announced=False))
        async with running_sender(
            db, outbound={"breaker_after": 3, "breaker_pause_s": 3_600, "breaker_max_pause_s": 3_600}
        ):
            await wait_for_states(db, dead=3)
            await add_deliveries(db, endpoint)
            await wait_for_states(db, dead=3, succeeded=1)
    assert not await db.fetch("select from boathook.endpoint_health where failures > 0 or failing_since is not null")


BY_HAND = AuditContext(actor="test")


async def _retry_by_hand(db: Database, endpoint: StoredEndpoint, kind: str) -> UUID:
    """Make one of several due messages of an endpoint due by hand; return the message."""
    *_, event = await add_deliveries(db, endpoint, 3)
    if kind == "retry":
        assert await delivery_actions.retry_delivery(db, (event, 0), BY_HAND)
        return event
    if kind in ("dead-replay", "recover"):
        await db.execute(
            "update boathook.delivery set state = 'dead', code = 'HTTP_503', dead_at = now(), attempts = 1"
            " where event_id = $1",
            event,
        )
    if kind == "dead-replay":
        selection = Selection(ListFilter(), [(event, 0)])
        pace = ReplaySchedule(await delivery_commands.read_clock(db))
        assert await delivery_actions.replay_dead(db, selection, BY_HAND, pace=pace, limit=1) == [(event, 0)]
        return event
    async with db.transaction() as connection:
        if kind == "recover":
            now = datetime.now(UTC)
            window = range_of(now - timedelta(days=1), now)
            step = await resends.recover(connection, endpoint.recipient, window, now, BY_HAND)
            assert step.number == 1
        else:
            (event,) = await add_deliveries(db, await add_endpoint(db, "http://127.0.0.1:9/"), is_announced=False)
            one = [(event, None)]
            assert await resends.resend(
                connection, endpoint.recipient, one, resends.ResendKind.ALL, is_manual=True, action=BY_HAND
            )
    return event


@pytest.mark.parametrize("kind", ["retry", "dead-replay", "recover", "resend"])
async def test_what_is_retried_by_hand_is_sent_at_once_to_a_paused_endpoint(db: Database, kind: str) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await _open_breaker(db, endpoint, for_s=3_600)
        async with running_sender(db):
            event = await _retry_by_hand(db, endpoint, kind)
            await eventually(lambda: sink.requests)
            assert sink.requests[0].headers["webhook-id"] == ids.show(ids.MESSAGE, event)
            await eventually(lambda: len(sink.requests) >= 3)  # it succeeded, which ends the pause


async def test_without_the_probe_a_retry_by_hand_waits(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setitem(endpoints.SQL, "allow_probes", "select $1::text[]")
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await _open_breaker(db, endpoint, for_s=3_600)
        async with running_sender(db):
            await _retry_by_hand(db, endpoint, "retry")
            await _two_rounds(db)
    assert not sink.requests


async def test_a_failed_probe_by_hand_keeps_the_pause(db: Database) -> None:
    async with Sink(lambda _: Reply(503)).open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await _open_breaker(db, endpoint, for_s=3_600)
        async with running_sender(db, outbound={"breaker_pause_s": 3_600, "breaker_max_pause_s": 3_600}):
            await _retry_by_hand(db, endpoint, "retry")

            async def is_paused_again() -> bool:
                return bool(await db.fetchval("select pauses = 2 from boathook.endpoint_health"))

            await eventually(is_paused_again)
            await _two_rounds(db)
    assert len(sink.requests) == 1


async def test_a_retry_that_cannot_go_is_refused(db: Database) -> None:
    endpoint = await add_endpoint(db, "http://127.0.0.1:9/")
    first, second = await add_deliveries(db, endpoint, 2, order_key="a")
    with pytest.raises(InvalidTransition, match="waits for an earlier delivery of its order key"):
        await delivery_actions.retry_delivery(db, (second, 0), BY_HAND)
    await db.execute(
        "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now()"
    )
    with pytest.raises(InvalidState, match="enable the endpoint first"):
        await delivery_actions.retry_delivery(db, (first, 0), BY_HAND)


async def _open_breaker(db: Database, endpoint: StoredEndpoint, for_s: float = 0) -> None:
    """Store that an endpoint has failed and may be probed after a while."""
    await db.execute(
        "insert into boathook.endpoint_health (endpoint_id, failures, open_until, pauses)"
        " values ($1, 9, now() + make_interval(secs => $2), 1)",
        endpoint.id,
        for_s,
    )


async def _delete_contents(db: Database, events: list[UUID]) -> None:
    await db.execute("update boathook.event set body = '', expunged_at = now() where id = any ($1)", events)


async def test_one_success_among_failures_keeps_the_breaker_closed(db: Database) -> None:
    replies = iter([Reply(500), Reply(500), Reply(200), Reply(500), Reply(500), *[Reply(200)] * 9])
    async with Sink(lambda _: next(replies)).open() as sink:
        endpoint = await add_endpoint(db, sink.base, concurrency=1)
        async with running_sender(db, outbound={"breaker_after": 3, "breaker_pause_s": 60}):
            await add_deliveries(db, endpoint, 6)
            await wait_for_states(db, succeeded=6)


# Disabling


async def test_nothing_but_failures_for_days_disable_an_endpoint(db: Database) -> None:
    async with Sink(lambda _: Reply(500)).open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        await db.execute(
            "insert into boathook.endpoint_health (endpoint_id, failures, failing_since, last_failed_at)"
            " values ($1, 3, now() - interval '6 days', now() - interval '1 day')",
            endpoint.id,
        )
        async with running_sender(db):
            await add_deliveries(db, endpoint)

            async def is_disabled() -> bool:
                return (await _disabled(db, endpoint)) == "failing"

            await eventually(is_disabled)
    assert await db.fetchval("select count(*) from boathook.endpoint_health where failures > 1") == 0


async def test_failures_far_apart_begin_a_new_count(db: Database) -> None:
    async with Sink(lambda _: Reply(500)).open() as sink:
        endpoint = await add_endpoint(db, sink.base, retry=RetryPolicy(delays_s=()))
        await db.execute(
            "insert into boathook.endpoint_health (endpoint_id, failures, failing_since, last_failed_at)"
            " values ($1, 3, now() - interval '60 days', now() - interval '11 days')",
            endpoint.id,
        )
        async with running_sender(db):
            await add_deliveries(db, endpoint)
            await wait_for_states(db, dead=1)

            async def is_anew() -> bool:
                return bool(
                    await db.fetchval("select failing_since > now() - interval '1 day' from boathook.endpoint_health")
                )

            await eventually(is_anew)
    assert await _disabled(db, endpoint) is None


async def test_without_disabling_an_endpoint_fails_since_its_first_failure(db: Database) -> None:
    async with Sink(lambda _: Reply(500)).open() as sink:
        endpoint = await add_endpoint(db, sink.base, retry=RetryPolicy(delays_s=()))
        await db.execute(
            "insert into boathook.endpoint_health (endpoint_id, failures, failing_since, last_failed_at)"
            " values ($1, 3, now() - interval '60 days', now() - interval '11 days')",
            endpoint.id,
        )
        async with running_sender(db, outbound={"disable_after_days": 0}):
            await add_deliveries(db, endpoint)

            async def is_counted() -> bool:
                return bool(await db.fetchval("select failures = 4 from boathook.endpoint_health"))

            await eventually(is_counted)
    assert await db.fetchval("select failing_since < now() - interval '59 days' from boathook.endpoint_health")
    assert await _disabled(db, endpoint) is None


async def test_an_internal_error_does_not_disable_the_endpoint(db: Database) -> None:
    endpoint = await add_endpoint(db, "http://127.0.0.1:9/", retry=RetryPolicy(delays_s=()))
    await db.execute(
        "insert into boathook.endpoint_health (endpoint_id, failures, failing_since, last_failed_at)"
        " values ($1, 3, now() - interval '6 days', now() - interval '1 day')",
        endpoint.id,
    )
    await db.execute("update boathook.endpoint_health set failing_since = null")
    async with running_sender(db, keys=["another key that is long enough"]):
        await add_deliveries(db, endpoint)
        await wait_for_states(db, dead=1)

        async def is_counted() -> bool:
            return bool(
                await db.fetchval("select failures = 4 and failing_since is null from boathook.endpoint_health")
            )

        await eventually(is_counted)
    assert await _disabled(db, endpoint) is None


# Order


async def test_order_keys_keep_their_order_over_two_senders(db: Database) -> None:
    seen: list[str] = []

    def script(request: Request) -> Reply:
        if len(seen) % 4 == 1 and request.headers["webhook-id"] not in failed:
            failed.add(request.headers["webhook-id"])
            return Reply(500)
        seen.append(request.headers["webhook-id"])
        return Reply()

    failed: set[str] = set()
    async with Sink(script).open() as sink:
        endpoint = await add_endpoint(db, sink.base, retry=RetryPolicy(delays_s=(0.01,) * 9, jitter=0.0))
        events = await add_deliveries(db, endpoint, 20, order_key="*")
        async with running_sender(db, sender_id="s1"), running_sender(db, sender_id="s2"):
            await wait_for_states(db, succeeded=20)
    assert seen == [ids.show(ids.MESSAGE, event) for event in events]
    assert failed


# Fairness


async def quick_took_s(db: Database, slow: int) -> float:
    """Return how long 60 messages to a quick endpoint took while some slow ones had a backlog."""
    is_over = asyncio.Event()
    async with Sink(lambda request: Reply(after_s=1.2 if request.path == "/slow" else 0.0)).open() as sink:
        slow_ones = [await add_endpoint(db, f"{sink.base}/slow") for _ in range(slow)]
        quick = await add_endpoint(db, f"{sink.base}/quick")
        outbound = {"concurrency": 16}
        async with running_sender(db, outbound=outbound, server={"drain_s": 0.1}):
            if slow_ones:
                await add_deliveries(db, slow_ones, 8)
                await eventually(lambda: len(sink.to("/slow")) >= 4)
            began = time.monotonic()
            for _ in range(6):
                await add_deliveries(db, quick, 10)
            await eventually(lambda: len(sink.to("/quick")) == 60)
            is_over.set()
            return time.monotonic() - began


async def test_slow_endpoints_cost_the_others_nothing(db: Database) -> None:
    alone = await quick_took_s(db, 0)
    beside = await quick_took_s(db, 6)
    assert beside < 3 * alone + 0.5, "the slow ones take longer than a second"


async def test_without_shares_they_would(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(
        endpoint_queues.EndpointQueues, "_may_start", lambda self, queue, now: self._places > self.running
    )
    monkeypatch.setattr(endpoint_queues.EndpointQueues, "_slots", lambda self, queue, ahead, now: 30)
    monkeypatch.setattr(endpoint_queues.EndpointQueues, "release", lambda self: [])
    assert await quick_took_s(db, 6) > 1.5


# By hand


async def test_a_manual_resend_gets_one_attempt_and_affects_no_other(db: Database) -> None:
    async with Sink(lambda _: Reply(500)).open() as sink:
        endpoint = await add_endpoint(
            db, sink.base, retry=RetryPolicy(delays_s=(3600.0,), jitter=0.0, max_age_s=7200.0)
        )
        (event,) = await add_deliveries(db, endpoint)
        async with running_sender(db):
            await eventually(lambda: len(sink.requests) == 1)
            await _resend(db, event, endpoint)
            await wait_for_states(db, pending=1, dead=1)
    assert len(sink.requests) == 2


async def test_a_successful_resend_ends_the_scheduled_retry(db: Database) -> None:
    replies = iter([Reply(500), Reply(200)])
    async with Sink(lambda _: next(replies)).open() as sink:
        endpoint = await add_endpoint(
            db, sink.base, retry=RetryPolicy(delays_s=(3600.0,), jitter=0.0, max_age_s=7200.0)
        )
        (event,) = await add_deliveries(db, endpoint)
        async with running_sender(db):
            await eventually(lambda: len(sink.requests) == 1)
            await wait_for_states(db, pending=1)
            await _resend(db, event, endpoint)
            await wait_for_states(db, succeeded=1, ignored=1)
    rows = await db.fetch("select action, subject from boathook.audit")
    assert [tuple(row) for row in rows] == [("delivery.overtake", ids.show_delivery(event, 0))]
    assert (await check_integrity(db, dedup_days=30)).violations == ()


async def _resend(db: Database, event: Any, endpoint: StoredEndpoint) -> None:
    await db.execute(
        "insert into boathook.delivery (event_id, ordinal, recipient, is_replay, is_manual) values ($1, 1, $2, true, true)",
        event, endpoint.recipient,
    )  # fmt: skip


SPAN = (datetime(2020, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC))
BY_HAND = AuditContext(actor="test", note="sent again")


async def attempts_at_a_receiver_that_stays_down(db: Database, kind: str) -> list[tuple[int, bool]]:
    """Exhaust five messages, send them again as *kind* does, and return each attempt's number and trigger."""
    await listen(db)
    async with Sink(lambda _: Reply(503)).open() as sink:
        endpoint = await add_endpoint(
            db, sink.base, application=await add_application(db),
            retry=RetryPolicy(delays_s=(0.01, 0.01), jitter=0.0),
        )  # fmt: skip
        async with running_sender(db, outbound={"breaker_after": 0}):
            await add_deliveries(db, endpoint, 5)
            await until_dead(db, 5, replays=0)
            async with db.transaction() as connection:
                if kind == "recover":
                    step = await resends.recover(
                        connection, endpoint.recipient, range_of(*SPAN), datetime.now(UTC), BY_HAND
                    )
                else:
                    name = ids.show(ids.APPLICATION, endpoint.application)
                    choice = resends.ResendFilter(wanted=MessageFilter())
                    step = await resends.resend_matching(
                        connection, name, endpoint.recipient, range_of(*SPAN), choice, datetime.now(UTC), BY_HAND
                    )
            assert step.number == 5
            await until_dead(db, 5, replays=1)
    made = "select number, is_manual from boathook.attempt where recipient = $1 order by number"
    rows = await db.fetch(made, endpoint.recipient)
    return [(row["number"], row["is_manual"]) for row in rows]


async def until_dead(db: Database, number: int, *, replays: int) -> None:
    async def are_dead() -> bool:
        dead = "select count(*) from boathook.delivery where state = 'dead' and replays = $1"
        return await db.fetchval(dead, replays) == number

    await eventually(are_dead)


@pytest.mark.parametrize("kind", ["recover", "bulk-replay"])
async def test_bulk_resends_get_one_attempt_each(db: Database, kind: str) -> None:
    attempts = await attempts_at_a_receiver_that_stays_down(db, kind)
    assert attempts == [(1, False)] * 5 + [(2, False)] * 5 + [(3, False)] * 5 + [(4, True)] * 5
    told = [name for name, _ in await operational_messages(db)]
    assert told == ["message.attempt.exhausted"] * 5, "once each, by the schedule alone"


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("kind", ["recover", "bulk-replay"])
async def test_with_a_new_schedule_the_failures_would_multiply(
    db: Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""
    statement = resends.SQL["revive_dead"]
    assert "is_manual = true" in statement
    monkeypatch.setitem(resends.SQL, "revive_dead", statement.replace("is_manual = true", "is_manual = false"))
    assert len(await attempts_at_a_receiver_that_stays_down(db, kind)) == 30
    assert len(await operational_messages(db)) == 10


async def test_replayed_dead_letters_get_their_full_schedule(db: Database) -> None:
    endpoint = await add_endpoint(db, "http://127.0.0.1:9/never", application=await add_application(db))
    await add_deliveries(db, endpoint, is_manual=True)
    await db.execute("update boathook.delivery set state = 'dead', dead_at = now(), code = 'HTTP_500', attempts = 1")
    pace = ReplaySchedule(await delivery_commands.read_clock(db))
    assert len(await delivery_actions.replay_dead(db, Selection(ListFilter()), BY_HAND, pace=pace, limit=10)) == 1
    (row,) = await db.fetch("select state, is_manual, attempts_before from boathook.delivery")
    assert tuple(row) == ("pending", False, 1)


# Operational events


async def listen(db: Database, organization: str = "default") -> StoredEndpoint:
    application = await add_application(db, organization=organization, is_operational=True)
    return await add_endpoint(db, "http://127.0.0.1:9/never", application=application, concurrency=1)


async def operational_messages(db: Database) -> list[tuple[str, dict[str, Any]]]:
    rows = await db.fetch(
        "select body from boathook.event where type like '%.%.%' or type like 'endpoint.%' order by id"
    )
    documents = [json.loads(row["body"]) for row in rows]
    return [(document["type"], document["data"]) for document in documents]


async def test_operational_webhooks_report_failing_recovered_and_exhausted(db: Database) -> None:
    await listen(db)
    bad = iter([*[Reply(500)] * 5, Reply(200), *[Reply(500)] * 9])
    async with Sink(lambda _: next(bad)).open() as sink:
        application = await add_application(db, uid="acme")
        endpoint = await add_endpoint(
            db, sink.base, application=application, retry=RetryPolicy(delays_s=(0.01,) * 5, jitter=0.0)
        )
        async with running_sender(db, outbound={"breaker_after": 0}):
            (event,) = await add_deliveries(db, endpoint)

            async def is_recovered() -> bool:
                return [kind for kind, _ in await operational_messages(db)] == [
                    "message.attempt.failing",
                    "message.attempt.recovered",
                ]

            await eventually(is_recovered)
            await add_deliveries(db, endpoint)

            async def is_exhausted() -> bool:
                return (await operational_messages(db))[-1][0] == "message.attempt.exhausted"

            await eventually(is_exhausted)
    kind, data = (await operational_messages(db))[0]
    assert kind == "message.attempt.failing"
    assert data["appId"] == ids.show(ids.APPLICATION, application)
    assert data["appUid"] == "acme"
    assert data["endpointId"] == ids.show(ids.ENDPOINT, endpoint.id)
    assert data["msgId"] == ids.show(ids.MESSAGE, event)
    assert data["lastAttempt"]["responseStatusCode"] == 500
    assert data["lastAttempt"]["id"].startswith("atmpt_")


async def test_an_operational_webhook_reports_a_disabled_endpoint(db: Database) -> None:
    await listen(db)
    async with Sink(lambda _: Reply(410)).open() as sink:
        endpoint = await add_endpoint(db, sink.base, uid="till-1")
        async with running_sender(db):
            await add_deliveries(db, endpoint)

            async def is_told() -> bool:
                return any(kind == "endpoint.disabled" for kind, _ in await operational_messages(db))

            await eventually(is_told)
    data = next(data for kind, data in await operational_messages(db) if kind == "endpoint.disabled")
    assert (data["endpointUid"], data["trigger"]) == ("till-1", "automatic")
    assert data["failSince"].endswith("Z")


async def test_a_failing_operational_endpoint_triggers_no_messages(db: Database) -> None:
    """Otherwise its failures would publish messages to itself forever."""
    endpoint = await listen(db)
    async with running_sender(db, outbound={"breaker_after": 0}):
        await add_deliveries(db, endpoint)

        async def is_dead() -> bool:
            return (await delivery_states(db)) == {"dead": 1}

        await eventually(is_dead)
    assert await operational_messages(db) == []


# Chores


async def test_the_keeper_dead_letters_unsendable_deliveries(db: Database) -> None:
    deleted = await add_endpoint(db, "http://127.0.0.1:9/")
    disabled = await add_endpoint(db, "http://127.0.0.1:9/")
    await add_deliveries(db, deleted, 3, order_key="*")
    await add_deliveries(db, disabled, 2)
    await db.execute("update boathook.endpoint set deleted_at = now() where id = $1", deleted.id)
    await db.execute(
        "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now() where id = $1",
        disabled.id,
    )
    assert await fake_store.dead_letter_undeliverable(db, max_age_s=60.0) == 3
    await db.execute(
        "update boathook.delivery set enqueued_at = now() - interval '2 minutes' where recipient = $1",
        disabled.recipient,
    )
    assert await fake_store.dead_letter_undeliverable(db, max_age_s=600.0) == 2, "its own maximum age is a minute"
    rows = await db.fetch(
        "select code, count(*) from boathook.delivery where state = 'dead' group by code order by code"
    )
    assert [tuple(row) for row in rows] == [("ENDPOINT_DELETED", 3), ("EXPIRED", 2)]
    assert (await check_integrity(db, dedup_days=30)).violations == ()


async def test_a_vanished_senders_work_is_taken_over(db: Database) -> None:
    async with Sink().open() as sink:
        endpoint = await add_endpoint(db, sink.base, retry=RetryPolicy(delays_s=()))
        await add_deliveries(db, endpoint, 3)
        await db.execute(
            "update boathook.delivery set state = 'leased', attempts = 1, fence = 1, leased_by = 'dead',"
            " lease_until = now() + interval '1 hour'"
        )
        async with running_sender(db, predecessors=["dead"]):
            await wait_for_states(db, succeeded=3)
    assert len(sink.requests) == 3
    lost = await db.fetchval("select count(*) from boathook.attempt where outcome = 'lost' and code = 'LEASE_LOST'")
    assert lost == 3, "lost attempts are recorded, though they use up none of the schedule"


async def test_leases_outlast_slow_requests(db: Database) -> None:
    async with Sink(lambda _: Reply(after_s=1.2)).open() as sink:
        endpoint = await add_endpoint(db, sink.base)
        async with running_sender(db, worker={"lease_s": 0.5}):
            await add_deliveries(db, endpoint)
            await eventually(lambda: sink.requests)
            keeper = journal_reaper(db)
            await wait_for_states(db, succeeded=1)
            keeper.cancel()
    assert len(sink.requests) == 1


def journal_reaper(db: Database) -> "asyncio.Task[None]":
    from boathook.db.deliveries import DeliveryStore

    async def reap() -> None:
        while True:
            await DeliveryStore(db, RetryDefaults()).reap()
            await asyncio.sleep(0.05)

    return asyncio.create_task(reap())


async def test_stopping_finishes_requests_and_releases_the_rest(db: Database) -> None:
    async with Sink(lambda _: Reply(after_s=0.3)).open() as sink:
        endpoint = await add_endpoint(db, sink.base, concurrency=2)
        await add_deliveries(db, endpoint, 10)
        async with running_sender(db):
            await eventually(lambda: len(sink.requests) >= 2)
        found = await delivery_states(db)
    assert found["succeeded"] == len(sink.requests)
    assert found["pending"] == 10 - found["succeeded"]
    assert "leased" not in found
    assert await db.fetchval("select sum(attempts) from boathook.delivery") == 0


async def test_discovery_walks_many_endpoints_in_pages(db: Database) -> None:
    application = await add_application(db)
    endpoints = [StoredEndpoint(new_id(), application, "") for _ in range(30)]
    await db.execute(
        "insert into boathook.endpoint (id, application_id, url) select id, $2, 'https://example.com' from unnest($1::uuid[]) as u (id)",
        [endpoint.id for endpoint in endpoints], application,
    )  # fmt: skip
    await add_deliveries(db, endpoints, 2)
    await db.execute(
        "update boathook.delivery set due_at = now() + interval '1 hour' where recipient = $1", endpoints[0].recipient
    )
    store, found, after, later = EndpointDeliveryStore(db, worker="s1"), [], "", []
    while True:
        page = await store.find_due(after, 7)
        found += [due.id for due in page.due]
        later += [page.next_due_at] if page.next_due_at else []
        after = page.after
        if not after:
            break
    assert sorted(found) == sorted(endpoint.id for endpoint in endpoints[1:])
    assert len(later) == 1
