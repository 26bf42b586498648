"""Requests of many items: the bytes kept once, each item delivered once, however often and with which other items it is sent."""

import asyncio
import hashlib
import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boathook.db import batches, delivery_commands, integrity
from boathook.db.database import Database
from boathook.db.deliveries import ClaimLimit, DeliveryStore
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.events import EventStore
from boathook.db.queries import event_search, listings
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import ListFilter
from boathook.db.route_registry import read_routes, register
from boathook.domain.errors import InvalidTransition, RoutesChanged
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Claim, Duplicate, NewEvent, ProofStrength, Receipt, Route
from boathook.domain.policy import RetryDefaults
from boathook.domain.verification import BatchItem, Verified
from boathook.handlers.api import Boathook
from boathook.handlers.event import Event
from boathook.handlers.transaction import Transaction
from boathook.ingest.event_builder import EventBuilder, scoped_hash
from boathook.ingest.intake import Intake
from tests import delivery_actions
from tests.postgres.db.test_events import conflicts, count, event, holds_what_is_behind
from tests.postgres.operating.event_actions import list_events
from tests.support import LOCK_WAITED_FOR, eventually, examples
from tests.worker_harness import running_worker, wait_for_states

ACTION = AuditContext(actor="test", note="because")
Thing = dict[str, Any]


def thing(key: str, type: str = "mail.opened", **more: Any) -> Thing:
    return {"id": key, "type": type, **more}


def written(things: Sequence[Thing]) -> bytes:
    """Write a batch the way a sender might, with spaces that no parser keeps."""
    return b'{ "events" : [%s] }' % b" , ".join(json.dumps(one).encode() for one in things)


def verified(things: Sequence[Thing]) -> Verified:
    body = written(things)
    items = tuple(
        BatchItem(
            path=f"events.{place}",
            type=one["type"],
            dedup_key=f"item:{one['id']}",
            digest=hashlib.sha256(json.dumps(one, sort_keys=True).encode()).digest(),
            document=one,
        )
        for place, one in enumerate(things)
    )
    return Verified(
        grade=ProofStrength.BODY,
        type="batch",
        dedup_key=f"sha256:{hashlib.sha256(body).hexdigest()}",
        replay_material=None,
        volatile=(),
        kept_headers={"x-sent-by": "test"},
        timestamp=None,
        items=items,
    )


class Sender:
    """Sends batches to a source through the real routes and a store of its own, as one gateway does."""

    def __init__(self, db: Database, source: str = "mail", **memory: Any) -> None:
        self.db = db
        self.source = source
        self.store = EventStore(db, **memory)
        self.arrivals = EventBuilder(Router((), -1), self._read_router)

    async def _read_router(self) -> Router:
        routes = await read_routes(self.db)
        return Router(routes.routes, routes.version)

    async def event(self, *things: Thing) -> NewEvent:
        found = verified(things)
        made = self.arrivals.event(self.source, found, written(things), "application/json", time.time())
        (again,) = await self.arrivals.reroute([made])
        return again

    async def send(self, *things: Thing) -> Receipt:
        (receipt,) = await self.store.append([await self.event(*things)])
        return receipt


def to(recipient: str, **more: Any) -> Route:
    return Route(recipient=recipient, app="test", **{"source": "mail", **more})


@pytest.fixture
async def sender(db: Database) -> Sender:
    await register(db, "test", [to("a")])
    return Sender(db)


async def pending_deliveries(db: Database) -> list[tuple[str, int, str, str]]:
    """Return recipient, ordinal, path and type of pending deliveries, in order."""
    rows = await db.fetch("select recipient, ordinal, item_path, item_type from boathook.delivery order by seq")
    return [tuple(row) for row in rows]


async def assert_balanced(db: Database) -> None:
    assert (await integrity.check_integrity(db, dedup_days=30, is_deep=True)).violations == ()


async def test_a_batch_is_one_event_with_its_exact_bytes_and_a_delivery_for_each_item(sender: Sender):
    receipt = await sender.send(thing("1"), thing("2", "mail.bounced"))
    assert receipt == Accepted(receipt.event_id)
    found = await sender.store.get(receipt.event_id)
    assert found.body == written([thing("1"), thing("2", "mail.bounced")])
    assert await pending_deliveries(sender.db) == [
        ("a", 0, "events.0", "mail.opened"),
        ("a", 1, "events.1", "mail.bounced"),
    ]
    await assert_balanced(sender.db)


async def test_the_same_batch_again_stores_nothing(sender: Sender):
    first = await sender.send(thing("1"), thing("2"))
    assert await sender.send(thing("1"), thing("2")) == Duplicate(first.event_id)
    assert await sender.send(thing("2"), thing("1")) == Duplicate(first.event_id)
    assert (await count(sender.db, "event"), await count(sender.db, "delivery")) == (1, 2)


async def test_a_batch_with_one_new_item_delivers_that_one(sender: Sender):
    await sender.send(thing("1"), thing("2"))
    things = [thing("2"), thing("3", "mail.clicked"), thing("1")]
    second = await sender.send(*things)
    assert isinstance(second, Accepted)
    rows = await sender.db.fetch("select * from boathook.delivery where event_id = $1", second.event_id)
    assert [(row["ordinal"], row["item_path"], row["item_type"]) for row in rows] == [(0, "events.1", "mail.clicked")]
    assert await sender.db.fetchval("select fanout from boathook.event where id = $1", second.event_id) == 1
    assert (await sender.store.get(second.event_id)).body == written(things)
    await assert_balanced(sender.db)


async def test_without_the_fresh_join_an_item_is_delivered_twice(sender: Sender, monkeypatch: pytest.MonkeyPatch):
    """The mutant: an item of two batches is delivered for both, which the check detects."""
    monkeypatch.setitem(
        batches.SQL, "append_batch", batches.SQL["append_batch"].replace("join fresh f on f.key = i.key", "")
    )
    await sender.send(thing("1"))
    await sender.send(thing("1"), thing("2"))
    assert [path for _, _, path, _ in await pending_deliveries(sender.db)] == ["events.0", "events.0", "events.1"]
    found = await integrity.check_integrity(sender.db, dedup_days=30)
    assert [one.check for one in found.violations] == ["every event has its dedup key"]


async def test_an_item_repeated_in_one_batch_is_delivered_once(sender: Sender):
    assert isinstance(await sender.send(thing("1"), thing("1"), thing("2")), Accepted)
    assert [path for _, _, path, _ in await pending_deliveries(sender.db)] == ["events.0", "events.2"]
    await assert_balanced(sender.db)


async def test_each_item_is_routed_by_its_own_type_and_content(db: Database):
    loud = {"body": {"size": {"gt": 10}}, "headers": {"x-sent-by": "test"}}
    await register(
        db, "test", [to("all"), to("bounces", types=("mail.b*",)), to("large", filter=loud), to("other", source="x")]
    )
    await Sender(db).send(thing("1", size=5), thing("2", "mail.bounced", size=50), thing("3"))
    assert [(recipient, ordinal, path) for recipient, ordinal, path, _ in await pending_deliveries(db)] == [
        ("all", 0, "events.0"),
        ("all", 1, "events.1"),
        ("bounces", 2, "events.1"),
        ("large", 3, "events.1"),
        ("all", 4, "events.2"),
    ]


async def test_a_batch_without_recipients_is_stored_and_deduplicated(db: Database):
    sender = Sender(db)
    first = await sender.send(thing("1"))
    assert await sender.send(thing("1")) == Duplicate(first.event_id)
    assert (await count(db, "event"), await count(db, "delivery")) == (1, 0)
    await assert_balanced(db)


async def test_an_item_with_another_content_is_a_conflict_and_not_delivered(sender: Sender):
    first = await sender.send(thing("1", n=1))
    for _ in range(2):
        assert await sender.send(thing("1", n=2.50)) == Duplicate(first.event_id, conflict=True)
    assert await conflicts(sender.db) == [("item:1", "body", 2)]
    assert await sender.db.fetchval("select body from boathook.conflict") == json.dumps(thing("1", n=2.50)).encode()
    assert (await count(sender.db, "event"), await count(sender.db, "delivery")) == (1, 1)
    await assert_balanced(sender.db)


async def test_a_conflict_is_reported_and_only_the_new_item_delivered(sender: Sender):
    await sender.send(thing("1", n=1), thing("2"))
    receipt = await sender.send(thing("1", n=2), thing("2"), thing("3"))
    assert receipt == Accepted(receipt.event_id, conflict=True)
    rows = await sender.db.fetch("select item_path from boathook.delivery where event_id = $1", receipt.event_id)
    assert [row["item_path"] for row in rows] == ["events.2"]
    assert await conflicts(sender.db) == [("item:1", "body", 1)]
    await assert_balanced(sender.db)


async def test_two_contents_of_one_key_in_a_batch_are_a_conflict(sender: Sender):
    receipt = await sender.send(thing("1", n=1), thing("1", n=2), thing("1", n=2))
    assert receipt == Accepted(receipt.event_id, conflict=True)
    assert [path for _, _, path, _ in await pending_deliveries(sender.db)] == ["events.0"]
    assert await conflicts(sender.db) == [("item:1", "body", 2)]
    await assert_balanced(sender.db)


async def test_the_intake_caches_duplicates_but_not_conflicts(sender: Sender):
    intake = Intake(sender.store)
    await intake.start()
    first = await intake.accept(await sender.event(thing("1", n=1)))
    mixed = [thing("1", n=2), thing("2")]
    second = await intake.accept(await sender.event(*mixed))
    assert second == Accepted(second.event_id, conflict=True)
    assert await intake.accept(await sender.event(*mixed)) == Duplicate(first.event_id, conflict=True)
    assert await intake.accept(await sender.event(thing("2"), thing("1", n=1))) == Duplicate(second.event_id)
    assert await intake.accept(await sender.event(thing("2"), thing("3"))) != Duplicate(second.event_id)
    await intake.drain()
    assert await conflicts(sender.db) == [("item:1", "body", 2)]
    assert await count(sender.db, "delivery") == 3


async def test_an_item_with_an_expired_key_is_delivered_again(db: Database):
    await register(db, "test", [to("a", source="short")])
    sender = Sender(db, "short", dedup_days_of={"short": 0.0})
    await sender.send(thing("1"), thing("2"))
    assert isinstance(await sender.send(thing("2"), thing("3")), Accepted)
    assert [path for _, _, path, _ in await pending_deliveries(db)] == ["events.0", "events.1", "events.0", "events.1"]
    assert await count(db, "dedup") == 3


async def test_only_items_with_expired_keys_are_delivered_again(sender: Sender):
    await sender.send(thing("1"), thing("2"), thing("3"))
    await sender.db.execute(
        "update boathook.dedup set expires_at = now() - interval '1 s' where item_path = 'events.1';"
        "update boathook.event set accepted_at = now() - interval '31 days'"
    )
    assert isinstance(await sender.send(thing("1"), thing("2"), thing("3")), Accepted)
    assert [path for _, _, path, _ in await pending_deliveries(sender.db)] == [
        "events.0",
        "events.1",
        "events.2",
        "events.1",
    ]
    await assert_balanced(sender.db)


async def test_a_retry_after_an_unknown_outcome_changes_nothing(sender: Sender):
    await sender.send(thing("1"))
    new = await sender.event(thing("1"), thing("2"))
    assert [await sender.store.append([new]) for _ in range(2)] == [[Accepted(new.id)]] * 2
    assert [path for _, _, path, _ in await pending_deliveries(sender.db)] == ["events.0", "events.1"]
    await assert_balanced(sender.db)


async def test_the_second_try_waits_for_the_first_that_is_still_under_way(sender: Sender):
    """A gateway retries while PostgreSQL is still committing its first attempt."""
    new = await sender.event(thing("1"), thing("2"))
    async with sender.db.transaction() as connection:
        stored = await batches.append_batch(connection, new, sender.store._memory)
        second = asyncio.create_task(sender.store.append([new]))
        await eventually(lambda: sender.db.fetchval(LOCK_WAITED_FOR))
        assert not second.done()
    assert [stored] == await second == [Accepted(new.id)]
    assert (await count(sender.db, "event"), await count(sender.db, "delivery")) == (1, 2)


async def test_a_retry_after_a_rollback_is_stored(sender: Sender):
    new = await sender.event(thing("1"), thing("2"))

    async def killed() -> None:
        async with sender.db.transaction() as connection:
            await batches.append_batch(connection, new, sender.store._memory)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await killed()
    assert await count(sender.db, "dedup") == 0
    assert await sender.store.append([new]) == [Accepted(new.id)]
    assert await count(sender.db, "delivery") == 2


async def test_outdated_routes_store_nothing_of_a_batch(sender: Sender):
    new = await sender.event(thing("1"))
    await register(sender.db, "test", [to("b")])
    with pytest.raises(RoutesChanged):
        await sender.store.append([new])
    assert (await count(sender.db, "event"), await count(sender.db, "dedup")) == (0, 0)


async def test_plain_events_and_batches_travel_together_in_order(sender: Sender):
    await register(sender.db, "test", [to("a", order_by="line")])
    version = (await read_routes(sender.db)).version
    first = await sender.event(thing("1", line="x"))
    plain = event("item:1", source="mail", version=version)
    again = await sender.event(thing("1", line="x"))
    second = await sender.event(thing("2", line="x"), thing("1", line="x"))
    same_key = event("item:1", source="mail", version=version)
    receipts = await sender.store.append([first, plain, again, second, same_key])
    assert receipts == [
        Accepted(first.id),
        Accepted(plain.id),
        Duplicate(first.id),
        Accepted(second.id),
        Duplicate(plain.id),
    ]
    rows = await sender.db.fetch("select event_id, is_blocked from boathook.delivery order by seq")
    assert [(row["event_id"], row["is_blocked"]) for row in rows] == [
        (first.id, False),
        (plain.id, False),
        (second.id, True),
    ]
    await assert_balanced(sender.db)


async def test_ordered_items_of_one_batch_run_one_after_another(db: Database):
    await register(db, "test", [to("a", order_by="who")])
    await Sender(db).send(*(thing(str(n), who="ann" if n % 2 else "bob") for n in range(6)))
    deliveries = DeliveryStore(db, RetryDefaults())
    seen: list[str] = []
    for _ in range(6):
        work = await deliveries.claim([ClaimLimit("a", 9)], worker="w", lease_s=30)
        seen += [str(one.claim.item_path) for one in work]
        for one in work:
            await settle(db, one.claim)
    assert [path for path in seen if int(path[-1]) % 2] == ["events.1", "events.3", "events.5"]
    assert [path for path in seen if int(path[-1]) % 2 == 0] == ["events.0", "events.2", "events.4"]
    assert seen[:2] == ["events.0", "events.1"], "two lines, of which each begins at once"
    await assert_balanced(db)


async def settle(db: Database, claim: Claim, state: str = "succeeded") -> None:
    sql = "select boathook.settle($1, $2, $3, $4, null, 'w', now())"
    await db.execute(sql, claim.event_id, claim.ordinal, claim.fence, state)


async def mark_dead(db: Database, claim: Claim) -> None:
    sql = "select boathook.record_failure($1, $2, $3, null, 'failed', 'BROKEN', 'it broke', null, 'w', now())"
    await db.execute(sql, claim.event_id, claim.ordinal, claim.fence)


async def take(db: Database, recipient: str = "a") -> list[Claim]:
    return [
        one.claim
        for one in await DeliveryStore(db, RetryDefaults()).claim([ClaimLimit(recipient, 99)], worker="w", lease_s=30)
    ]


async def holds_the_item_behind(sender: Sender) -> bool:
    return await holds_what_is_behind(
        sender.db,
        lambda *keys: sender.send(*map(thing, keys)),
        lambda key: scoped_hash(f"{sender.source}\x00item", f"item:{key}".encode()),
    )


async def test_item_keys_are_locked_in_sorted_order(sender: Sender):
    assert not await holds_the_item_behind(sender)


async def test_mutant_item_keys_locked_in_batch_order_are_held_while_waiting(sender: Sender, monkeypatch):
    unsorted = batches.SQL["append_batch"].replace("from item order by key", "from item")
    assert unsorted != batches.SQL["append_batch"]
    monkeypatch.setitem(batches.SQL, "append_batch", unsorted)
    assert await holds_the_item_behind(sender)


async def test_overlapping_concurrent_batches_deliver_each_item_once(pg_url: str, sender: Sender):
    """Eight writers on two pools, forty items in random batches: no deadlock, one delivery each."""
    seed = time.time_ns()
    print(f"seed {seed}")  # noqa: T201 - repeats the run
    dice = random.Random(seed)
    other = Sender(await Database.open(pg_url, purpose="other", size=5))
    version = (await read_routes(sender.db)).version

    async def write(one: Sender) -> None:
        for _ in range(12):
            things = [thing(str(n)) for n in dice.sample(range(40), dice.randint(1, 15))]
            plain = event(f"plain{dice.randrange(20)}", source="mail", owed=(), version=version)
            await one.store.append([plain, await one.event(*things)])
            await one.send(*(thing(str(n)) for n in range(40)))

    await asyncio.gather(*(write(one) for one in (sender, other) * 4))
    rows = await sender.db.fetch(
        "select e.body, d.item_path from boathook.delivery d join boathook.event e on e.id = d.event_id"
    )
    names = [json.loads(row["body"])["events"][int(row["item_path"][7:])]["id"] for row in rows]
    assert sorted(names, key=int) == [str(n) for n in range(40)]
    await assert_balanced(sender.db)
    await other.db.close()


_EXAMPLES = itertools.count()


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rounds=st.lists(
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=3), min_size=1, max_size=5
    )
)
async def test_any_sequence_of_overlapping_batches_delivers_each_item_once(db: Database, rounds: list[list[list[int]]]):
    """Batches of one round are sent at once, rounds after one another; every example has a source of its own."""
    source = f"s{next(_EXAMPLES)}"
    await register(db, "test", [to("a", source=source), to("b", source=source)])
    one, two = Sender(db, source), Sender(db, source)
    for number, together in enumerate(rounds):
        senders = itertools.cycle((one, two) if number % 2 else (two, one))
        await asyncio.gather(*(next(senders).send(*(thing(str(n)) for n in keys)) for keys in together))
    rows = await db.fetch(
        "select e.id, e.fanout, e.body, d.recipient, d.ordinal, d.item_path"
        " from boathook.event e join boathook.delivery d on d.event_id = e.id where e.source = $1 order by 1, 5",
        source,
    )
    delivered = [(row["recipient"], json.loads(row["body"])["events"][int(row["item_path"][7:])]["id"]) for row in rows]
    sent = {str(n) for together in rounds for keys in together for n in keys}
    assert sorted(delivered) == sorted((recipient, key) for recipient in "ab" for key in sent)
    for _, group in itertools.groupby(rows, lambda row: row["id"]):
        ordinals = [(row["ordinal"], row["fanout"]) for row in group]
        assert ordinals == [(n, len(ordinals)) for n in range(len(ordinals))]


@pytest.fixture
async def shop(db: Database) -> Database:
    await db.execute("create table deed (who text, what text, done text)")
    return db


async def test_two_handlers_get_each_item_separately(shop: Database):
    hook = Boathook()

    @hook.on("mail")
    async def first(event: Event, tx: Transaction) -> None:
        done = await event.once("mail", lambda: f"{event.item['id']} done")
        assert event.json["events"][int(str(event.item_path)[7:])] is event.item
        await tx.execute("insert into deed values ('first', $1, $2)", event.type, done)

    @hook.on("mail", "mail.bounced")
    def second(event: Event, tx: Any) -> None:
        key = event.once_sync("key", lambda idempotency_key: idempotency_key)
        tx.execute("insert into deed values ('second', $1, $2)", event.item["id"], key)

    async with running_worker(shop, hook):
        sender = Sender(shop)
        await sender.send(thing("1"), thing("2", "mail.bounced"))
        await sender.send(thing("2", "mail.bounced"), thing("3", "mail.bounced"))
        await wait_for_states(shop, succeeded=5)
    deeds = {tuple(row) for row in await shop.fetch("select * from deed where who = 'first'")}
    assert deeds == {
        ("first", "mail.opened", "1 done"),
        ("first", "mail.bounced", "2 done"),
        ("first", "mail.bounced", "3 done"),
    }
    keys = await shop.fetch("select what, done from deed where who = 'second' order by what")
    assert [row["what"] for row in keys] == ["2", "3"]
    assert len({row["done"] for row in keys}) == 2
    assert await count(shop, "side_effect") == 5
    await assert_balanced(shop)


async def test_items_of_one_event_have_separate_side_effects(shop: Database):
    hook = Boathook()
    calls: list[str] = []

    @hook.on("mail")
    async def note(event: Event) -> None:
        await event.once("mail", lambda: calls.append(event.idempotency_key("mail")))

    async with running_worker(shop, hook):
        receipt = await Sender(shop).send(thing("1"), thing("2"))
        await wait_for_states(shop, succeeded=2)
    assert len(calls) == len(set(calls)) == 2
    for path in ("events.0", "events.1"):
        (effect,) = await listings.list_side_effects(shop, receipt.event_id, "handler:note", path)
        assert (effect.name, effect.result) == ("mail", "null")


async def test_without_the_path_one_items_side_effect_would_pass_for_anothers(
    shop: Database, monkeypatch: pytest.MonkeyPatch
):
    """The mutant: named by the event alone, the second item's e-mail is never sent."""
    monkeypatch.setattr("boathook.db.deliveries._effect", lambda claim, name: name)
    hook = Boathook()
    calls: list[str] = []

    @hook.on("mail", concurrency=1)
    async def note(event: Event) -> None:
        await event.once("mail", lambda: calls.append(event.item["id"]))

    async with running_worker(shop, hook):
        await Sender(shop).send(thing("1"), thing("2"))
        await wait_for_states(shop, succeeded=2)
    assert len(calls) == 1


async def test_an_event_without_items_is_its_own_item(shop: Database):
    hook = Boathook()
    seen: list[tuple[Any, str | None, str]] = []

    @hook.on("mail")
    async def note(event: Event) -> None:
        seen.append((event.item, event.item_path, event.type))

    async with running_worker(shop, hook):
        version = (await read_routes(shop)).version
        owed_to = Router((to("handler:note"),), 1).route(
            source="mail", application=None, type="t", headers={}, body=b""
        )
        await EventStore(shop).append([event("k", source="mail", owed=owed_to, version=version)])
        await wait_for_states(shop, succeeded=1)
    assert seen == [({"a": 1}, None, "t")]


async def test_replaying_a_batch_delivers_each_finished_item_again(sender: Sender):
    receipt = await sender.send(thing("1"), thing("2", "mail.bounced"), thing("3"))
    good, dead, pending = await take(sender.db)
    await settle(sender.db, good)
    await mark_dead(sender.db, dead)
    pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(sender.db))
    done = await delivery_actions.replay_events(sender.db, [receipt.event_id], ACTION, pace=pace)
    assert (done.added, done.revived) == (1, 1), "what is still owed is not owed twice"
    again = await take(sender.db)
    assert {(one.ordinal, one.item_path, one.item_type) for one in again} == {
        (1, "events.1", "mail.bounced"),
        (3, "events.0", "mail.opened"),
    }
    for claim in (pending, *again):
        await settle(sender.db, claim)
    done = await delivery_actions.replay_events(sender.db, [receipt.event_id], ACTION, pace=pace, type="*.bounced")
    assert (done.added, done.revived) == (1, 0)
    assert [one.item_path for one in await take(sender.db)] == ["events.1"]
    await assert_balanced(sender.db)


async def test_a_replay_beyond_the_maximum_deliveries_is_refused(sender: Sender):
    receipt = await sender.send(thing("1"), thing("2"))
    for claim in await take(sender.db):
        await settle(sender.db, claim)
    await sender.db.execute("update boathook.delivery_archive set ordinal = 32767 where ordinal = 1")
    pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(sender.db))
    with pytest.raises(InvalidTransition, match="32767 deliveries"):
        await delivery_actions.replay_events(sender.db, [receipt.event_id], ACTION, pace=pace)
    assert await count(sender.db, "delivery") == 0


async def test_dead_items_are_found_ignored_and_replayed_by_their_type(sender: Sender):
    await sender.send(thing("1"), thing("2", "mail.bounced"), thing("3", "mail.bounced"))
    for claim in await take(sender.db):
        await mark_dead(sender.db, claim)
    bounced = Selection(ListFilter(type="*.bounced"))
    groups = await delivery_commands.count_dead(sender.db, Selection(ListFilter(type="batch")))
    assert [(group.type, group.number) for group in groups] == [("mail.bounced", 2), ("mail.opened", 1)]
    rows = await listings.list_dead_letters(sender.db, bounced.filter)
    assert [(row.item_path, row.type) for row in rows] == [("events.2", "mail.bounced"), ("events.1", "mail.bounced")]
    assert len(await delivery_actions.ignore_dead(sender.db, bounced, ACTION, limit=1)) == 1
    pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(sender.db))
    assert len(await delivery_actions.replay_dead(sender.db, bounced, ACTION, pace=pace, limit=9)) == 1
    listed = await listings.list_deliveries(sender.db, ListFilter(type="mail.*"))
    assert {(row.item_path, row.state) for row in listed} == {
        ("events.0", "dead"),
        ("events.1", "ignored"),
        ("events.2", "pending"),
    }
    await assert_balanced(sender.db)


async def test_events_are_found_by_the_types_of_their_items(sender: Sender):
    receipt = await sender.send(thing("1"), thing("2", "mail.bounced"))
    for wanted, number in (("batch", 1), ("mail.bounced", 1), ("mail.o*", 1), ("mail", 0)):
        assert len(await list_events(sender.db, EventFilter(type=wanted))) == number
        assert await event_search.count_events(sender.db, EventFilter(type=wanted)) == number
    for claim in await take(sender.db):
        await settle(sender.db, claim)
    assert await event_search.page_events(sender.db, EventFilter(type="mail.bounced"), after=None, limit=9) == [
        receipt.event_id
    ]
    rows = await listings.list_deliveries_of(sender.db, receipt.event_id)
    assert [(row.item_path, row.type) for row in rows] == [("events.0", "mail.opened"), ("events.1", "mail.bounced")]


async def filled(sender: Sender) -> None:
    """Bring batches into every state: pending, leased, ended, dead, replayed, in conflict, partly new."""
    await sender.send(thing("1"), thing("2"), thing("3"))
    good, dead, _leased = await take(sender.db)
    await settle(sender.db, good)
    await mark_dead(sender.db, dead)
    second = await sender.send(thing("1"), thing("4"), thing("2", n=1))
    (claim,) = await take(sender.db)
    await settle(sender.db, claim)
    pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(sender.db))
    assert (await delivery_actions.replay_events(sender.db, [second.event_id], ACTION, pace=pace)).added == 1
    version = (await read_routes(sender.db)).version
    await sender.store.append([event("plain", source="mail", version=version)])
    await sender.send(thing("5"), thing("6"))


ITEM_5 = "event_id = (select event_id from boathook.delivery where state = 'pending' and not is_replay and item_path = 'events.0')"
PLAIN = "event_id = (select id from boathook.event where dedup_key = 'plain')"
UNCHECKED = "alter table boathook.delivery drop constraint delivery_item_complete;"
BREAKAGES = {
    "an item lost": ("every delivery exists", f"delete from boathook.delivery where {ITEM_5} and ordinal = 0"),
    "an ended item lost": ("every delivery exists", "delete from boathook.delivery_archive where item_path = 'events.0'"),
    "an item owed twice": ("one original delivery per recipient", f"update boathook.delivery set item_path = 'events.1' where {ITEM_5}"),
    "an item's key forgotten": ("every event has its dedup key", f"delete from boathook.dedup where {ITEM_5} and item_path = 'events.1'"),
    "an ended item's key forgotten": ("every event has its dedup key", "delete from boathook.dedup where item_path = 'events.0'"),
    "another item than was owed": ("every event has its dedup key", f"update boathook.delivery set item_path = 'events.9' where {ITEM_5} and ordinal = 0"),
    "an item with two keys": ("one dedup key per event", f"insert into boathook.dedup values (gen_random_uuid(), null, (select event_id from boathook.delivery where {ITEM_5} limit 1), sha256('x'), now(), 'events.0')"),
    "an item that became the whole": ("deliveries refer to items of their event", f"update boathook.delivery set item_path = null, item_type = null where {ITEM_5} and ordinal = 0"),
    "a whole that became an item": ("deliveries refer to items of their event", f"update boathook.delivery set item_path = 'a', item_type = 't' where {PLAIN}"),
    "a key of the whole": ("deliveries refer to items of their event", f"update boathook.dedup set item_path = null where {ITEM_5}"),
    "a replay of another item": ("replays refer to original deliveries", "update boathook.delivery set item_path = 'events.0' where is_replay"),
    "a replay as another type": ("replays refer to original deliveries", "update boathook.delivery set item_type = 'x' where is_replay"),
    "an item without a type": ("open deliveries are in a valid state", UNCHECKED + f"update boathook.delivery set item_type = null where {ITEM_5}"),
    "an ended item without a type": ("ended deliveries are in a valid state", "update boathook.delivery_archive set item_type = null where item_path is not null"),
    "the rule itself gone": ("the schema's constraints exist", UNCHECKED),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKAGES)
async def test_every_breakage_of_a_batch_is_found(sender: Sender, name: str):
    await filled(sender)
    await assert_balanced(sender.db)
    check, sql = BREAKAGES[name]
    await sender.db.execute(sql)
    found = await integrity.check_integrity(sender.db, dedup_days=30, is_deep=True)
    broken = {one.check: one for one in found.violations}
    assert check in broken, f"found only {list(broken)}"
    assert 1 <= len(broken[check].examples) <= broken[check].count
