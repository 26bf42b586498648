"""Operator actions on deliveries and rejected requests, against a real database."""

import asyncio
import hashlib
import hmac
import itertools
import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from boathook.config import load
from boathook.db import delivery_commands, integrity
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.queries import listings
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import ListFilter
from boathook.db.route_registry import register
from boathook.domain import ids
from boathook.domain.errors import (
    DatabaseError,
    DuplicateMessage,
    InvalidMessage,
    InvalidValue,
    NotFound,
    ValueRejected,
)
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Duplicate, Receipt, Route
from boathook.service.caller import HOST
from boathook.service.catalogue import dead_letters as actions
from boathook.service.catalogue import deliveries, rejections, selection
from boathook.service.operating import listings as service_listings
from boathook.service.operating import operations
from boathook.service.operating.event_query import EventQuery
from tests.endpoint_factory import add_application
from tests.postgres.api_client import make_context
from tests.postgres.db.test_integrity import Store
from tests.postgres.operating.dead_letter_actions import ignore_dead, purge_dead, replay_dead
from tests.postgres.operating.event_actions import list_events, replay_events
from tests.support import eventually

ACTION = AuditContext(actor="test", note="because")
ALL = Selection(ListFilter())
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


async def mark_dead(store: Store, *names: str, to: str = "a", **more) -> list:
    """Accept events and let their one delivery die."""
    found = []
    for name in names:
        event = await store.accept(name, to, **more)
        await store.fail(event, is_last=True)
        found.append((event, 0))
    return found


async def delivery(store: Store, key):
    return await store.db.fetchrow("select * from boathook.delivery where event_id = $1 and ordinal = $2", *key)


async def audit(store: Store, action: str) -> list[str]:
    return [row.subject for row in await listings.list_audit(store.db, ListFilter(limit=1000), action=action)]


async def assert_balanced(store: Store) -> integrity.Balance:
    found = await store.verify()
    assert found.violations == ()
    return found.balance


async def retry(store: Store, key: Any) -> deliveries.DeliveredAgain:
    async with make_context(store.db).work(actor="test", caller=HOST) as work:
        return await deliveries.retry(work, deliveries.DeliveryNamed(id=ids.show_delivery(*key), note="because"))


class TestRetryNow:
    async def test_a_delivery_that_waits_for_its_next_attempt_is_due(self, store: Store):
        event = await store.accept("one", "a")
        await store.fail(event)
        await store.db.execute("update boathook.delivery set due_at = now() + interval '1 hour'")
        key = (event, 0)
        before = await delivery(store, key)
        done = await retry(store, key)
        assert (done.pending, done.is_due) == (ids.show_delivery(*key), True)
        after = await delivery(store, key)
        assert after["due_at"] < before["due_at"]
        assert {**after, "due_at": None} == {**before, "due_at": None}, "nothing else changes"
        assert await audit(store, "delivery.retry") == [ids.show_delivery(*key)]
        await store.end(event)
        assert (await assert_balanced(store)).succeeded == 1

    async def test_a_running_attempt_is_left_alone(self, store: Store):
        event = await store.accept("one", "a")
        await store.claim(event)
        before = await delivery(store, (event, 0))
        done = await retry(store, (event, 0))
        assert (done.pending, done.is_due) == (None, False)
        assert "an attempt" in done.message
        assert await delivery(store, (event, 0)) == before
        assert await audit(store, "delivery.retry") == []


class TestReplayOfDeadLetters:
    async def test_resets_attempts_and_keeps_the_error(self, store: Store):
        (key,) = await mark_dead(store, "one")
        assert await replay_dead(store.db, ALL, ACTION) == 1
        row = await delivery(store, key)
        assert (row["state"], row["attempts"], row["attempts_before"], row["replays"], row["crashes"]) == (
            "pending",
            1,
            1,
            1,
            0,
        )
        assert (row["code"], row["error"], row["dead_at"]) == ("BROKEN", "it broke", None)
        assert row["enqueued_at"] == row["due_at"]
        assert await audit(store, "dead.replay") == [ids.show_delivery(*key)]
        await store.end(key[0])
        assert (await assert_balanced(store)).succeeded == 1

    async def test_repeating_it_changes_nothing_more(self, store: Store):
        await mark_dead(store, "one", "two")
        assert await replay_dead(store.db, ALL, ACTION) == 2
        before = await store.db.fetch("select * from boathook.delivery order by 1, 2")
        assert await replay_dead(store.db, ALL, ACTION) == 0
        assert await store.db.fetch("select * from boathook.delivery order by 1, 2") == before
        assert len(await audit(store, "dead.replay")) == 2

    async def test_two_operators_at_once_share_the_work(self, store: Store):
        await mark_dead(store, *(f"e{number}" for number in range(40)))
        done = await asyncio.gather(*(replay_dead(store.db, ALL, ACTION) for _ in range(4)))
        assert sum(done) == 40
        assert await store.one("select bool_and(replays = 1) from boathook.delivery")
        assert len(await audit(store, "dead.replay")) == 40

    async def test_a_replayed_letter_that_dies_again_is_not_replayed_twice(self, store: Store, monkeypatch):
        (key,) = await mark_dead(store, "one")
        monkeypatch.setattr(selection, "BATCH", 1)
        lock_next = delivery_commands.lock_dead
        replayed: list[Any] = []

        async def dead_again_before(*args: Any, **kwargs: Any) -> Any:
            for event, ordinal in replayed:
                await store.fail(event, ordinal, is_last=True)
            replayed[:] = await lock_next(*args, **kwargs)
            return list(replayed)

        monkeypatch.setattr(delivery_commands, "lock_dead", dead_again_before)
        assert await replay_dead(store.db, ALL, ACTION) == 1
        row = await delivery(store, key)
        assert (row["state"], row["replays"], row["attempts"]) == ("dead", 1, 2)

    async def test_a_rate_spreads_due_times(self, store: Store, monkeypatch):
        monkeypatch.setattr(selection, "BATCH", 3)
        await mark_dead(store, *(f"e{number}" for number in range(8)))
        seen: list[int] = []
        assert await replay_dead(store.db, ALL, ACTION, rate=2, report=seen.append) == 8
        due = [row[0] for row in await store.db.fetch("select due_at from boathook.delivery order by due_at")]
        gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(due)]
        assert gaps[1:] == pytest.approx([0.5] * 6, abs=0.05)
        assert seen == [3, 6, 8]
        assert await store.one("select bool_and(enqueued_at = due_at) from boathook.delivery"), (
            "its time starts when it is due"
        )

    async def test_a_line_is_replayed_in_accept_order(self, store: Store):
        await mark_dead(store, "one", "two", order_key="c", to="ordered")
        third = await store.accept("three", "ordered", order_key="c")
        assert await replay_dead(store.db, ALL, ACTION) == 2
        rows = await store.db.fetch("select event_id, is_blocked from boathook.delivery order by seq")
        assert [row["is_blocked"] for row in rows] == [False, True, False], (
            "the third was free before they were replayed"
        )
        await store.end(rows[0]["event_id"])
        assert not (await delivery(store, (rows[1]["event_id"], 0)))["is_blocked"]
        assert rows[2]["event_id"] == third
        await assert_balanced(store)

    async def test_filters_by_source_type_recipient_code_and_time_of_death(self, store: Store):
        await mark_dead(store, "one")
        await mark_dead(store, "two", to="b")
        later = datetime.now(UTC) + timedelta(hours=1)
        for wanted in (
            ListFilter(source="github"), ListFilter(application="acme"), ListFilter(type="invoice.*"), ListFilter(type="payment_paid"),
            ListFilter(code="OTHER"), ListFilter(since=later), ListFilter(until=later - timedelta(days=1)), ListFilter(recipient="z*"),
        ):  # fmt: skip
            assert await delivery_commands.count_dead(store.db, Selection(wanted)) == []
            assert await replay_dead(store.db, Selection(wanted), ACTION) == 0
        wanted = ListFilter(
            source="stripe", type="pay*.paid", recipient="b", code="BROKEN", since=later - timedelta(days=1)
        )
        (group,) = await delivery_commands.count_dead(store.db, Selection(wanted))
        assert (group.number, group.recipient, group.code) == (1, "b", "BROKEN")
        assert await replay_dead(store.db, Selection(wanted), ACTION) == 1

    async def test_a_failing_audit_rolls_back_the_change(self, store: Store, monkeypatch):
        (key,) = await mark_dead(store, "one")
        monkeypatch.setitem(
            delivery_commands.SQL,
            "record_actions",
            "select 1 / 0 where $1 || $2 || $4 is not null and $3::text[] is not null",
        )
        with pytest.raises(DatabaseError):
            await replay_dead(store.db, ALL, ACTION)
        assert (await delivery(store, key))["state"] == "dead"


async def test_only_dead_letters_are_changed(store: Store):
    (dead,) = await mark_dead(store, "dead")
    pending, done = await store.accept("pending", "a"), await store.accept("done", "a")
    await store.end(done)
    names = [ids.show_delivery(*key) for key in (dead, (pending, 0), (done, 0), (done, 7))]
    async with make_context(store.db).work(caller=HOST) as work:
        found = await actions.replay(work, actions.Replay(ids=names, dry_run=True))
    assert (found.matching, found.done) == (1, 0)
    assert [(skipped.id, skipped.code) for skipped in found.skipped] == [
        (names[1], "pending"), (names[2], "ended"), (names[3], "not_found"),
    ]  # fmt: skip
    assert f"is succeeded, not a dead letter; to run it again, replay its event {ids.show('evt', done)}" in (
        found.skipped[1].why
    )
    for move in (replay_dead, ignore_dead, purge_dead):
        assert await move(store.db, Selection(ListFilter(), [(pending, 0), (done, 0)]), ACTION) == 0


async def test_ignoring_ends_a_dead_letter_with_its_note(store: Store):
    (key,) = await mark_dead(store, "one")
    with pytest.raises(InvalidValue, match="write a note"):
        await ignore_dead(store.db, ALL, AuditContext(actor="test", note=" "))
    assert await ignore_dead(store.db, ALL, ACTION) == 1
    assert await ignore_dead(store.db, ALL, ACTION) == 0
    row = await listings.get_delivery(store.db, *key)
    assert (row.state, row.note, row.attempts) == ("ignored", "because", 1)
    assert await audit(store, "dead.ignore") == [row.id]
    await assert_balanced(store)


async def test_a_delivery_and_its_attempts_are_read_in_one_snapshot(store: Store, monkeypatch):
    event = await store.accept("one", "a")
    read = listings.get_delivery

    async def read_just_before_an_attempt(*args: Any) -> Any:
        row = await read(*args)
        await store.fail(event)
        return row

    monkeypatch.setattr(listings, "get_delivery", read_just_before_an_attempt)
    found = await service_listings.get_delivery(store.db, (event, 0))
    assert (found.row.state, found.attempts) == ("pending", [])
    assert len(await listings.list_attempts(store.db, event, 0)) == 1


async def test_purging_is_counted_and_leaves_the_event(store: Store):
    keys = await mark_dead(store, "one", "two", "three")
    assert await purge_dead(store.db, Selection(ListFilter(), keys[:2]), ACTION) == 2
    assert await store.one("select count(*) from boathook.attempt") == 1
    assert await store.one("select count(*) from boathook.event") == 3
    with pytest.raises(NotFound):
        await listings.get_delivery(store.db, *keys[0])
    balance = await assert_balanced(store)
    assert (balance.purged, balance.dead, balance.dropped) == (2, 1, {"dead letter, purged": 2})


class TestReplayOfEvents:
    async def test_adds_deliveries_for_recipients_without_a_pending_one(self, store: Store):
        event = await store.accept("one", "ended", "dead", "pending", "leased")
        await store.end(event, 0)
        await store.fail(event, 1, is_last=True)
        await store.claim(event, 3)
        done = await replay_events(store.db, [event], ACTION)
        assert (done.events, done.added, done.revived) == (1, 1, 1)
        rows = await listings.list_deliveries_of(store.db, event)
        assert [(row.recipient, row.state, row.is_replay) for row in rows] == [
            ("ended", "succeeded", False), ("dead", "pending", False), ("pending", "pending", False),
            ("leased", "leased", False), ("ended", "pending", True),
        ]  # fmt: skip
        again = await replay_events(store.db, [event], ACTION)
        assert (again.added, again.revived) == (0, 0), "all of them are owed now"
        await store.end(event, 4)
        assert (await assert_balanced(store)).replayed == 1

    async def test_a_named_run_is_finished_by_repeating_it(self, store: Store, monkeypatch):
        monkeypatch.setattr("boathook.service.catalogue.events.BATCH", 2)
        events = [await store.accept(f"e{number}", "a") for number in range(5)]
        for event in events:
            await store.end(event)
        run = AuditContext(actor="test", note="the fix")
        interrupted = delivery_commands.replay_events
        calls = []

        async def break_down(*args, **kwargs):
            calls.append(1)
            if len(calls) == 2:
                raise DatabaseError("the connection is gone")
            return await interrupted(*args, **kwargs)

        monkeypatch.setattr(delivery_commands, "replay_events", break_down)
        with pytest.raises(DatabaseError):
            await replay_events(store.db, EventQuery(), run, is_once=True)
        for event in events[:2]:
            await store.end(event, 1)
        assert (await replay_events(store.db, EventQuery(), run, is_once=True)).added == 3
        assert (await replay_events(store.db, EventQuery(), run, is_once=True)).added == 0
        assert await store.one("select count(*) from boathook.delivery") == 3
        await assert_balanced(store)

    async def two_at_once(self, store: Store, monkeypatch) -> list:
        """Replay one event twice, the first not committing before the second waits for it."""
        record = delivery_commands.record_each

        async def once_the_other_waits(*args, **kwargs):
            if args[2] == delivery_commands.REPLAY_EVENT:
                await eventually(lambda: store.one(WAITING))
                monkeypatch.setattr(delivery_commands, "record_each", record)
            await record(*args, **kwargs)

        monkeypatch.setattr(delivery_commands, "record_each", once_the_other_waits)
        event = await store.accept("one", "a")
        await store.end(event)
        replays = (replay_events(store.db, [event], ACTION) for _ in range(2))
        return await asyncio.gather(*replays, return_exceptions=True)

    async def test_two_at_once_add_one_delivery(self, store: Store, monkeypatch):
        done = await self.two_at_once(store, monkeypatch)
        assert sorted(part.added for part in done) == [0, 1]

    async def test_without_the_lock_two_at_once_would_collide(self, store: Store, monkeypatch):
        monkeypatch.setitem(delivery_commands.SQL, "lock_replays", "select $1::uuid[]")
        done = await self.two_at_once(store, monkeypatch)
        assert [type(part) for part in done if isinstance(part, Exception)] == [ValueRejected]

    async def test_a_replayed_event_of_an_order_key_joins_the_end_of_its_line(self, store: Store):
        first = await store.accept("one", "ordered", order_key="c")
        await store.end(first)
        await store.accept("two", "ordered", order_key="c")
        await replay_events(store.db, [first], ACTION)
        rows = await store.db.fetch("select is_replay, is_blocked from boathook.delivery order by seq")
        assert [tuple(row) for row in rows] == [(False, False), (True, True)]
        await store.end(await store.one("select id from boathook.event where dedup_key = 'two'"))
        assert await store.claim(first, 1) is not None
        await assert_balanced(store)

    async def test_an_unknown_event_is_refused(self, store: Store):
        with pytest.raises(NotFound):
            await replay_events(store.db, [ids.make(1, 1)], ACTION)


class TestListings:
    async def test_are_listed_newest_first_in_pages(self, store: Store):
        events = [ids.show("evt", await store.accept(f"e{number}", "a", "b")) for number in range(5)]
        seen: list[str] = []
        below = None
        while page := await list_events(store.db, EventFilter(below=below), limit=2):
            seen += [row.id for row in page]
            below = ids.read_event(page[-1].id)
        assert seen == sorted(events, reverse=True)
        found, after = [], None
        while rows := await listings.list_deliveries(store.db, ListFilter(limit=3, after=after)):
            found += [row.id for row in rows]
            after = rows[-1].id
        assert len(found) == len(set(found)) == 10

    async def test_deliveries_are_found_by_state_in_both_tables(self, store: Store):
        await store.end(await store.accept("done", "a"))
        await mark_dead(store, "dead")
        await store.accept("pending", "a")
        for state in ("succeeded", "dead", "pending"):
            (row,) = await listings.list_deliveries(store.db, ListFilter(state=state))
            assert row.state == state
        assert [row.code for row in await listings.list_dead_letters(store.db, ListFilter())] == ["BROKEN"]

    async def test_like_patterns_are_escaped(self):
        assert listings.like_pattern("100%_*") == "100\\%\\_%"


SETTINGS = {"sources": {"shop": {"provider": "github", "secrets": ["right"]}}}


async def quarantine(store: Store, body: bytes, secret: str, *, size: int | None = None, source: str = "shop"):
    """Store a rejection, as by a gateway that had another secret then."""
    name = ids.make(time.time_ns() // 1_000_000, int(hashlib.sha256(body).hexdigest()[:8], 16))
    signature = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "x-hub-signature-256": signature,
        "x-github-event": "push",
        "x-github-delivery": f"d-{body!r}",
        "content-type": "application/json",
    }
    await store.db.execute(
        "insert into boathook.rejection values ($1, $2, 401, 'signature_mismatch', '', '127.0.0.1', 'POST', 'http://h/in/shop', $3, 'application/json', $4, $5)",
        name, source, json.dumps(headers), body, size or len(body),
    )  # fmt: skip
    return name


class TestReverify:
    async def judge(self, store: Store, *names, settings=SETTINGS):
        """Verify these rejections again, or all in two batches; return what became of each."""
        context = make_context(store.db, **settings)
        named = [ids.show(ids.REJECTION, name) for name in names]
        if named:
            async with context.work(caller=HOST) as work:
                results = (await rejections.reverify(work, rejections.Reverify(ids=named))).results
        else:
            drive = rejections.reverify.drive(partial(context.work, caller=HOST), rejections.Reverify(all=True))
            results = [result async for acted in drive for result in acted.results]
        return [(result.outcome, result.event_id) for result in results]

    async def test_accepts_and_routes_what_the_current_secret_verifies(self, store: Store):
        await register(store.db, "shop:hook", [Route(recipient="handler:push", app="shop:hook", source="shop")])
        await quarantine(store, b'{"n": 1}', "right")
        await quarantine(store, b'{"n": 2}', "forged")
        outcomes = await self.judge(store)
        assert sorted(outcome for outcome, _ in outcomes) == ["accepted", "refused"]
        (row,) = await listings.list_deliveries(store.db, ListFilter())
        assert (row.recipient, row.type, row.source) == ("handler:push", "push", "shop")
        assert await store.one("select body from boathook.event") == b'{"n": 1}'
        (accepted,) = await listings.list_rejections(store.db, ListFilter(state="accepted"))
        assert accepted.event_id == row.event_id
        assert await audit(store, "rejection.accept") == [accepted.id]
        assert [outcome for outcome, _ in await self.judge(store)] == ["refused"], "what was accepted is done"
        await assert_balanced(store)

    async def test_a_rejection_received_again_is_a_duplicate(self, store: Store):
        first = await quarantine(store, b"{}", "right")
        second = await quarantine(store, b"{}", "right")
        (one,) = await self.judge(store, first)
        (other,) = await self.judge(store, second)
        assert (one[0], other[0], one[1]) == ("accepted", "duplicate", other[1])
        assert await self.judge(store, first) == [("duplicate", one[1])]

    async def test_a_cut_body_or_deleted_source_cannot_be_reverified(self, store: Store):
        cut = await quarantine(store, b"{}", "right", size=9)
        gone = await quarantine(store, b"[]", "right", source="elsewhere")
        assert await self.judge(store, cut, gone) == [("impossible", None), ("impossible", None)]
        assert await store.one("select count(*) from boathook.event") == 0

    async def test_time_is_that_of_receipt(self, store: Store):
        """A week-old Stripe signature is valid if the request was received a week ago, and not today."""
        week_ago = int(time.time()) - 7 * 86_400
        body = b'{"id": "evt_1", "type": "payment.paid"}'
        signature = hmac.new(b"right", f"{week_ago}.".encode() + body, hashlib.sha256).hexdigest()
        names = [ids.make(week_ago * 1000, 1), ids.make(int(time.time() * 1000), 2)]
        for name in names:
            await store.db.execute(
                "insert into boathook.rejection values ($1, 'stripe', 401, 'x', '', '::1', 'POST', 'http://h/in/stripe', $2, 'application/json', $3, $4)",
                name, json.dumps({"stripe-signature": f"t={week_ago},v1={signature}"}), body, len(body),
            )  # fmt: skip
        settings = {"sources": {"stripe": {"provider": "stripe", "secrets": ["right"]}}}
        outcomes = await self.judge(store, *names, settings=settings)
        assert [outcome for outcome, _ in outcomes] == ["accepted", "refused"]


def message(**fields: Any) -> Message:
    return Message(**{"application": "acme", "type": "invoice.paid", "payload": b"{}", **fields})


async def send(store: Store, *, validate: bool = False, **fields: Any) -> Receipt:
    settings = load(None, {"database": {"url": store.db.url}, "outbound": {"validate_payloads": validate}})
    return await operations.send(store.db, settings, ACTION, message(**fields))


class TestSend:
    async def test_publishes_the_payload_unchanged_to_its_recipients(self, store: Store):
        await register(
            store.db,
            "shop:hook",
            [Route(recipient="handler:mail", app="shop:hook", application="acme", types=("invoice.*",))],
        )
        body = b'{"n":  1.0}'
        receipt = await send(store, payload=body)
        assert isinstance(receipt, Accepted)
        assert await store.one("select body from boathook.event") == body
        assert [row.recipient for row in await listings.list_deliveries(store.db, ListFilter())] == ["handler:mail"]
        assert await audit(store, "event.send") == [ids.show("evt", receipt.event_id)]
        await assert_balanced(store)

    async def test_one_id_is_one_message(self, store: Store):
        await add_application(store.db, "acme")
        first, again = await send(store, id="k"), await send(store, id="k")
        assert isinstance(first, Accepted)
        assert again == Duplicate(first.event_id)
        with pytest.raises(DuplicateMessage, match="already has the id 'k'"):
            await send(store, id="k", payload=b'{"n":2}')
        await assert_balanced(store)

    async def test_an_invalid_json_payload_is_refused(self, store: Store):
        with pytest.raises(InvalidMessage, match="payload: it is not JSON: Expecting property name"):
            await send(store, payload=b"{")

    async def test_an_unknown_application_is_refused_with_a_hint(self, store: Store):
        with pytest.raises(NotFound, match=r"no application 'acme'.*boathook applications create"):
            await send(store)

    async def test_a_payload_violating_its_schema_is_refused_if_validated(self, store: Store):
        acme = await add_application(store.db, "acme")
        schemas = {"2": {"type": "object"}, "10": {"properties": {"n": {"type": "number"}}}}
        await store.db.execute(
            "insert into boathook.event_type (organization, name, description, schemas) values ('default', $1, '', $2)",
            "invoice.paid", json.dumps(schemas),
        )  # fmt: skip
        wrong, right = b'{"n": "one"}', b'{"n": 1}'
        with pytest.raises(
            InvalidMessage,
            match=r"payload: it does not match the schema of invoice.paid: n: 'one' is not of type 'number'",
        ):
            await send(store, application=acme, payload=wrong, validate=True)
        assert isinstance(await send(store, application=acme, payload=right, validate=True), Accepted)
        assert isinstance(await send(store, application=acme, payload=wrong, validate=True, type="other"), Accepted)
        assert isinstance(await send(store, application=acme, payload=wrong), Accepted)
