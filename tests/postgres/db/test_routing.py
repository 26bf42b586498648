"""Events that no handler matched, and how they are routed again by the handlers of today."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.db import delivery_commands, ordering, rerouting, route_registry, tasks
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.maintenance import run_maintenance
from boathook.db.queries import event_search, listings
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import ListFilter
from boathook.db.rerouting import RerouteResult, count_unhandled
from boathook.db.route_registry import read_router, read_routes, register
from boathook.db.secret_box import SecretBox
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, NotFound, ValueRejected
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, NewEvent, Route
from boathook.handlers.outbox import Outbox
from boathook.ingest.event_builder import scoped_hash
from boathook.service.caller import HOST
from boathook.service.catalogue import jobs
from boathook.service.catalogue.jobs import JobNamed
from boathook.service.operating.event_query import EventQuery
from boathook.service.unit_of_work import AppContext
from tests.endpoint_factory import add_application
from tests.postgres.db.test_events import event as arrived
from tests.postgres.db.test_integrity import Store
from tests.postgres.operating.dead_letter_actions import purge_dead
from tests.postgres.operating.event_actions import list_events, replay_events, route_events, start_route
from tests.postgres.receiving.test_batches import Sender, thing
from tests.support import eventually

ACTION = AuditContext(actor="test", note="the typo is mended")
ALL = EventQuery()
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def new_event(key: str, type: str = "payment.paid", source: str = "stripe", **more) -> NewEvent:
    return replace(arrived(key, owed=(), **more), type=type, source=source, key_hash=scoped_hash(source, key.encode()))


def to(name: str, **more) -> Route:
    return Route(recipient=f"handler:{name}", app="shop", **{"source": "stripe", **more})


class RoutingStore(Store):
    """A store whose events are routed by the registered routes, as in a gateway."""

    async def receive(self, key: str, type: str = "payment.paid", body: bytes = b"{}", **more) -> UUID:
        made = await self.routed(new_event(key, type=type, body=body, **more))
        assert await self.events.append([made]) == [Accepted(made.id)]
        return made.id

    async def routed(self, event: NewEvent) -> NewEvent:
        router = await read_router(self.db)
        owed = router.route(source=event.source, application=None, type=event.type, headers={}, body=event.body)
        return replace(event, deliveries=owed, routes_version=router.version)

    async def owed(self, event_id: UUID) -> list[str]:
        return [row.recipient for row in await listings.list_deliveries_of(self.db, event_id)]

    async def unhandled(self) -> list[str]:
        return [row.id for row in await list_events(self.db, EventFilter(is_unhandled=True))]

    async def route(self, chosen: EventQuery | list[UUID] = ALL, **more) -> RerouteResult:
        return await route_events(self.db, chosen, ACTION, **more)

    async def assert_balanced(self) -> None:
        assert (await self.verify(is_deep=True)).violations == ()


@pytest.fixture
def store(db: Database) -> RoutingStore:
    return RoutingStore(db)


@pytest.fixture
def context(db: Database) -> AppContext:
    return AppContext(load(None), db, SecretBox(["a key that only tests know"]), Outbox())


class TestUnhandled:
    async def test_a_source_event_without_recipients_is_unhandled(self, store: RoutingStore):
        await register(store.db, "shop", [to("pay", types=("payment.*",))])
        lost = await store.receive("one", "refund.made")
        await store.receive("two", "payment.paid")
        assert await store.unhandled() == [ids.show(ids.EVENT, lost)]
        assert await count_unhandled(store.db, datetime.now(UTC) - timedelta(hours=1)) == {"stripe": 1}
        assert await count_unhandled(store.db, datetime.now(UTC) + timedelta(hours=1)) == {}

    async def test_a_duplicate_is_not_counted_again(self, store: RoutingStore):
        made = await store.routed(new_event("one"))
        await store.events.append([made, replace(made, id=ids.make(5, 5))])
        await store.events.append([replace(made, id=ids.make(6, 6))])
        assert await store.unhandled() == [ids.show(ids.EVENT, made.id)]

    async def test_a_published_message_without_recipients_is_not_unhandled(self, store: RoutingStore):
        application = await add_application(store.db)
        message = Message(application=application, type="user.created", payload=b"{}")
        async with store.db.transaction() as connection:
            await Outbox().publish(connection, message)
        assert await store.one("select count(*) from boathook.event") == 1
        assert await store.unhandled() == []

    async def test_of_a_filter_only_unhandled_ones_are_counted_and_paged(self, store: RoutingStore):
        await register(store.db, "shop", [to("pay", types=("payment.*",))])
        lost = [await store.receive(f"lost-{number}", "refund.made") for number in range(3)]
        await store.receive("paid")
        wanted = EventFilter(is_unhandled=True, source="stripe", type="refund.*")
        assert await event_search.count_events(store.db, wanted) == 3
        assert await event_search.page_events(store.db, wanted, after=lost[0], limit=1) == [lost[1]]
        assert await event_search.count_events(store.db, replace(wanted, source="github")) == 0
        page = await list_events(store.db, replace(wanted, below=lost[2]), limit=2)
        assert [row.id for row in page] == [ids.show(ids.EVENT, one) for one in (lost[1], lost[0])]


class TestRoute:
    async def test_rerouting_delivers_unhandled_events_to_new_handlers(self, store: RoutingStore):
        await register(store.db, "shop", [to("pay", source="strpe")])
        event = await store.receive("one")
        assert await store.owed(event) == []
        assert (await replay_events(store.db, [event], ACTION)).added == 0, "a replay cannot help here"
        await register(store.db, "shop", [to("pay")])
        assert await store.route() == RerouteResult(events=1, routed=1, added=1)
        (row,) = await listings.list_deliveries_of(store.db, event)
        assert (row.recipient, row.state, row.is_replay) == ("handler:pay", "pending", True)
        assert await store.unhandled() == []
        (note,) = await listings.list_audit(store.db, ListFilter(), action=delivery_commands.ROUTE_EVENT)
        assert (note.actor, note.subject) == ("test", ids.show(ids.EVENT, event))
        assert note.note == "the typo is mended; to handler:pay"
        await store.assert_balanced()
        await store.end(event)
        await store.assert_balanced()

    async def test_repeated_rerouting_adds_nothing(self, store: RoutingStore):
        events = [await store.receive(f"e{number}") for number in range(4)]
        await register(store.db, "shop", [to("pay")])
        assert (await store.route()).added == 4
        await store.end(events[0])
        await store.end(events[1], state="ignored", note="not for us")
        await store.fail(events[2], is_last=True)
        assert await store.route() == RerouteResult(events=4)
        assert await store.route(to="pay") == RerouteResult(events=4)
        assert len(await listings.list_audit(store.db, ListFilter(), action=delivery_commands.ROUTE_EVENT)) == 4
        await store.assert_balanced()

    async def test_mutant_without_known_deliveries_rerouting_adds_twice(self, store: RoutingStore, monkeypatch):
        event = await store.receive("one")
        await register(store.db, "shop", [to("pay")])
        forgetful = rerouting.SQL["add_routed"].replace("k.recipient = w.recipient", "k.recipient is null")
        monkeypatch.setitem(rerouting.SQL, "add_routed", forgetful)
        assert (await store.route()).added == (await store.route()).added == 1
        assert await store.owed(event) == ["handler:pay", "handler:pay"]

    async def test_only_new_recipients_are_added(self, store: RoutingStore):
        await register(store.db, "shop", [to("old")])
        event = await store.receive("one")
        await register(store.db, "shop", [to("old"), to("new"), to("other")])
        assert await store.route([event], to="handler:new") == RerouteResult(events=1, routed=1, added=1)
        assert await store.owed(event) == ["handler:old", "handler:new"]
        assert (await store.route([event])).added == 1
        assert await store.owed(event) == ["handler:old", "handler:new", "handler:other"]
        await store.assert_balanced()

    async def test_a_replay_then_runs_all_of_them_again(self, store: RoutingStore):
        await register(store.db, "shop", [to("old")])
        event = await store.receive("one")
        await register(store.db, "shop", [to("old"), to("new")])
        await store.route()
        await store.end(event, 0)
        await store.end(event, 1)
        assert (await replay_events(store.db, [event], ACTION)).added == 2
        await store.assert_balanced()

    async def test_types_filters_sources_and_orders_are_those_of_today(self, store: RoutingStore):
        big = await store.receive("big", body=b'{"amount": 500, "customer": "c"}')
        small = await store.receive("small", body=b'{"amount": 5, "customer": "c"}')
        again = await store.receive("again", body=b'{"amount": 700, "customer": "c"}')
        await store.receive("other", "refund.made", body=b'{"amount": 500}')
        wanted = to("big", types=("payment.*",), filter={"body": {"amount": {"gt": 100}}}, order_by="customer")
        await register(store.db, "shop", [wanted, to("elsewhere", source="github")])
        assert await store.route() == RerouteResult(events=4, routed=2, added=2)
        assert await store.owed(small) == []
        rows = await store.db.fetch("select event_id, order_key, is_blocked from boathook.delivery order by seq")
        assert [tuple(row) for row in rows] == [(big, "c", False), (again, "c", True)]
        assert await store.claim(again) is None
        await store.end(big)
        assert await store.claim(again) is not None

    async def test_it_joins_the_end_of_its_order_keys_line(self, store: RoutingStore):
        first = await store.receive("first", body=b'{"c": 1}')
        await register(store.db, "shop", [to("pay", order_by="c")])
        second = await store.receive("second", body=b'{"c": 1}')
        await store.route([first])
        assert await store.claim(first) is None
        await store.end(second)
        assert await store.claim(first) is not None

    async def test_a_rate_spreads_due_times(self, store: RoutingStore, monkeypatch):
        monkeypatch.setattr("boathook.service.catalogue.events.BATCH", 2)
        for number in range(4):
            await store.receive(f"e{number}")
        await register(store.db, "shop", [to("pay")])
        seen: list[int] = []
        await store.route(rate=0.5, report=seen.append)
        assert seen == [2, 4]
        spread = await store.one("select max(due_at) - min(due_at) from boathook.delivery")
        assert spread > timedelta(seconds=5)

    async def test_a_dry_run_counts_and_changes_nothing(self, store: RoutingStore):
        event = await store.receive("one")
        await register(store.db, "shop", [to("pay")])
        assert await store.route(is_dry_run=True) == RerouteResult(events=1, routed=1, added=1)
        assert await store.owed(event) == []
        assert await store.one("select count(*) from boathook.audit where action = 'event.route'") == 0
        assert len(await store.unhandled()) == 1

    async def test_an_unknown_handler_is_refused_with_one_like_it(self, store: RoutingStore):
        await register(store.db, "shop", [to("upgrade")])
        with pytest.raises(NotFound, match=r"no handler handler:upgrad is registered; did you mean handler:upgrade\?"):
            await store.route(to="upgrad")
        await register(store.db, "shop", [])
        with pytest.raises(NotFound, match="registered are: none"):
            await store.route(to="upgrade")

    async def test_an_unknown_event_is_refused(self, store: RoutingStore):
        with pytest.raises(NotFound):
            await store.route([ids.make(1, 1)])

    async def test_purged_deliveries_are_rerouted_only_to_a_named_handler(self, store: RoutingStore):
        event = await store.receive("one")
        await register(store.db, "shop", [to("pay")])
        await store.route()
        await store.fail(event, is_last=True)
        assert await purge_dead(store.db, Selection(ListFilter()), ACTION) == 1
        assert await store.route() == RerouteResult(events=1, left=1)
        assert await store.owed(event) == []
        assert (await store.route(to="pay")).added == 1

    async def test_mutant_without_the_audit_purged_deliveries_are_rerouted(self, store: RoutingStore, monkeypatch):
        await store.receive("one")
        await register(store.db, "shop", [to("pay")])
        monkeypatch.setitem(
            rerouting.SQL, "add_routed", rerouting.SQL["add_routed"].replace("a.action = $10", "a.action = 'x' || $10")
        )
        await store.route()
        await store.fail(await store.one("select id from boathook.event"), is_last=True)
        await purge_dead(store.db, Selection(ListFilter()), ACTION)
        assert (await store.route()).added == 1

    async def test_expunged_events_are_not_rerouted(self, store: RoutingStore):
        event = await store.receive("one")
        await store.db.execute("update boathook.event set body = '', expunged_at = now() where id = $1", event)
        await register(store.db, "shop", [to("pay")])
        assert (await store.route()).added == 0

    async def test_events_in_any_partition_are_routed(self, store: RoutingStore):
        made = await store.routed(new_event("old"))
        old = replace(made, id=ids.make(1_600_000_000_000, 7))
        await store.events.append([old])
        assert await store.one("select tableoid::regclass::text from boathook.event") == "boathook.event_default"
        await register(store.db, "shop", [to("pay")])
        assert (await store.route()).added == 1

    async def test_large_bodies_are_read_a_few_at_a_time(self, store: RoutingStore, monkeypatch):
        monkeypatch.setattr(rerouting, "MAX_BYTES", 100)
        for number in range(5):
            await store.receive(f"e{number}", body=json.dumps({"amount": number, "text": "x" * 60}).encode())
        await register(store.db, "shop", [to("pay", filter={"body": {"amount": {"gt": 1}}})])
        assert await store.route() == RerouteResult(events=5, routed=3, added=3)

    async def test_messages_of_applications_reach_handlers_by_id_or_uid(self, store: RoutingStore):
        application = await add_application(store.db, uid="acme")
        message = Message(application="acme", type="user.created", payload=b"{}")
        async with store.db.transaction() as connection:
            await Outbox().publish(connection, message)
        await register(store.db, "shop", [to("a", source=None, application="acme")])
        assert (await store.route()).added == 1
        await register(
            store.db,
            "shop",
            [to("b", source=None, application=application), to("any", source=None, application="other")],
        )
        assert (await store.route()).added == 1
        await store.assert_balanced()


class TestConcurrentRerouting:
    async def two_at_once(self, store: RoutingStore, monkeypatch) -> list:
        """Route one event twice, the first not committing before the second waits for it."""
        unblock = ordering.unblock

        async def once_the_other_waits(*args):
            await eventually(lambda: store.one(WAITING))
            monkeypatch.setattr("boathook.db.rerouting.unblock", unblock)
            await unblock(*args)

        monkeypatch.setattr("boathook.db.rerouting.unblock", once_the_other_waits)
        event = await store.receive("one")
        await register(store.db, "shop", [to("pay")])
        return await asyncio.gather(*(store.route([event]) for _ in range(2)), return_exceptions=True)

    async def test_two_operators_at_once_add_one_delivery(self, store: RoutingStore, monkeypatch):
        done = await self.two_at_once(store, monkeypatch)
        assert sorted(one.added for one in done) == [0, 1]
        await store.assert_balanced()

    async def test_mutant_without_the_lock_they_would_collide(self, store: RoutingStore, monkeypatch):
        monkeypatch.setitem(delivery_commands.SQL, "lock_replays", "select $1::uuid[]")
        done = await self.two_at_once(store, monkeypatch)
        assert [type(one) for one in done if isinstance(one, Exception)] == [ValueRejected]

    async def test_one_that_breaks_down_midway_is_finished_by_repeating_it(self, store: RoutingStore, monkeypatch):
        monkeypatch.setattr("boathook.service.catalogue.events.BATCH", 2)
        for number in range(5):
            await store.receive(f"e{number}")
        await register(store.db, "shop", [to("pay")])
        calls = []
        note = rerouting.record

        async def break_down(*args):
            calls.append(1)
            if len(calls) == 2:
                raise DatabaseError("the connection is gone")
            return await note(*args)

        monkeypatch.setattr(rerouting, "record", break_down)
        with pytest.raises(DatabaseError):
            await store.route()
        assert await store.one("select count(*) from boathook.delivery") == 2
        assert await store.route() == RerouteResult(events=5, routed=3, added=3)
        await store.assert_balanced()


class TestBatches:
    async def test_each_item_is_rerouted_separately(self, db: Database):
        sender, store = Sender(db), RoutingStore(db)
        await register(db, "shop", [to("opened", source="mail", types=("mail.opened",))])
        receipt = await sender.send(thing("1"), thing("2", "mail.bounced", who="x"), thing("3", "mail.bounced"))
        assert len(await store.owed(receipt.event_id)) == 1
        bounced = to("bounced", source="mail", types=("mail.bounced",), filter={"body": {"who": "x"}})
        await register(db, "shop", [bounced, to("all", source="mail")])
        assert await store.route() == RerouteResult(events=1, routed=1, added=4)
        rows = await listings.list_deliveries_of(db, receipt.event_id)
        assert sorted((row.recipient, row.item_path, row.type) for row in rows[1:]) == [
            ("handler:all", "events.0", "mail.opened"), ("handler:all", "events.1", "mail.bounced"),
            ("handler:all", "events.2", "mail.bounced"), ("handler:bounced", "events.1", "mail.bounced"),
        ]  # fmt: skip
        assert (await store.route()).added == 0
        await store.assert_balanced()

    async def test_a_batch_that_no_handler_matched_is_unhandled(self, db: Database):
        sender, store = Sender(db), RoutingStore(db)
        receipt = await sender.send(thing("1"), thing("2", "mail.bounced"))
        assert receipt == Accepted(receipt.event_id)
        assert not receipt.has_deliveries
        assert len(await store.unhandled()) == 1
        await register(db, "shop", [to("all", source="mail")])
        assert (await store.route(EventQuery(state="unhandled"))).added == 2
        assert await store.unhandled() == []

    async def test_a_type_chooses_the_items(self, db: Database):
        sender, store = Sender(db), RoutingStore(db)
        await sender.send(thing("1"), thing("2", "mail.bounced"))
        await register(db, "shop", [to("all", source="mail")])
        assert (await store.route(EventQuery(type="mail.b*"))).added == 1

    async def test_duplicate_items_stay_with_their_first_batch(self, db: Database):
        sender, store = Sender(db), RoutingStore(db)
        first = await sender.send(thing("1"))
        second = await sender.send(thing("1"), thing("2"))
        await register(db, "shop", [to("all", source="mail")])
        assert (await store.route()).added == 2
        assert (len(await store.owed(first.event_id)), len(await store.owed(second.event_id))) == (1, 1)

    async def test_events_of_an_older_version_are_rerouted_as_far_as_known(self, db: Database):
        sender, store = Sender(db), RoutingStore(db)
        await register(db, "shop", [to("opened", source="mail", types=("mail.opened",))])
        partly = await sender.send(thing("1"), thing("2", "mail.bounced"))
        wholly = await sender.send(thing("3", "mail.bounced"))
        plain = await store.receive("plain", "mail.bounced", source="mail")
        await db.execute("update boathook.event set items = default")
        await register(db, "shop", [to("all", source="mail")])
        assert await store.route() == RerouteResult(events=3, routed=2, added=2, left=1)
        assert await store.owed(partly.event_id) == ["handler:opened", "handler:all"]
        assert await store.owed(wholly.event_id) == []
        assert await store.owed(plain) == ["handler:all"]


class TestRegistration:
    async def past(self, db: Database) -> None:
        """Run the keeper's tasks until none is left."""
        while await runner.run_step(db, Outbox()):
            pass

    async def test_a_new_handler_gets_past_events_with_since(self, store: RoutingStore):
        old = await store.routed(new_event("old"))
        long_ago = int((datetime.now(UTC) - timedelta(days=8)).timestamp() * 1000)
        await store.events.append([replace(old, id=ids.make(long_ago, 1))])
        await register(store.db, "shop", [to("old")])
        recent = await store.receive("recent")
        await register(store.db, "shop", [to("old"), to("new", since_s=7 * 86_400.0)])
        await self.past(store.db)
        assert await store.owed(recent) == ["handler:old", "handler:new"]
        assert await store.one("select count(*) from boathook.delivery") == 2, (
            "nothing of the time before, nor to others"
        )
        assert await store.one("select subject from boathook.audit where action = 'route.since'") == "handler:new"
        await store.assert_balanced()

    async def test_it_is_done_at_the_first_registration_alone(self, store: RoutingStore):
        await store.receive("one")
        asking = to("new", since_s=3_600.0)
        for routes in ([asking], [asking], [replace(asking, timeout_s=3.0)], [], [asking]):
            await register(store.db, "shop", routes)
        assert await store.one("select count(*) from boathook.task") == 1
        version = (await read_routes(store.db)).version
        await register(store.db, "shop", [asking])
        assert (await read_routes(store.db)).version == version

    async def test_concurrent_registrations_start_one_task(self, store: RoutingStore):
        await store.receive("one")
        asking = [to("new", since_s=3_600.0)]
        await asyncio.gather(*(register(store.db, "shop", asking) for _ in range(4)))
        await asyncio.gather(*(self.past(store.db) for _ in range(3)))
        assert await store.one("select count(*) from boathook.task") == 1
        assert await store.one("select count(*) from boathook.delivery") == 1

    async def test_mutant_without_the_registry_lock_two_tasks_start(self, store: RoutingStore, monkeypatch):
        monkeypatch.setitem(route_registry.SQL, "lock_route_version", "select 1")
        owe = route_registry.schedule_backfill
        met = asyncio.Barrier(2)

        async def both_at_once(*args):
            await asyncio.wait_for(met.wait(), 60)
            await owe(*args)

        monkeypatch.setattr(route_registry, "schedule_backfill", both_at_once)
        monkeypatch.setitem(route_registry.SQL, "save_routes", "select $1::jsonb")
        asking = [to("new", since_s=3_600.0)]
        await asyncio.gather(*(register(store.db, "shop", asking) for _ in range(2)))
        assert await store.one("select count(*) from boathook.task") == 2

    async def test_an_event_accepted_during_registration_is_delivered_once(self, store: RoutingStore):
        """Those routed without the handler are committed before it is registered, the others are routed with it."""
        made = await store.routed(new_event("racing"))
        receive = asyncio.gather(*(store.receive(f"e{number}") for number in range(10)), return_exceptions=True)
        await register(store.db, "shop", [to("new", since_s=3_600.0)])
        await receive
        with pytest.raises(DatabaseError):
            await store.events.append([made])
        await store.events.append([await store.routed(made)])
        await self.past(store.db)
        stored = await store.one("select count(*) from boathook.event")
        assert await store.one("select count(*) from boathook.delivery") == stored
        assert await store.one("select count(distinct event_id) from boathook.delivery") == stored

    async def test_a_killed_keeper_loses_and_repeats_nothing(self, store: RoutingStore, monkeypatch):
        monkeypatch.setattr(runner, "STEP", 2)
        for number in range(7):
            await store.receive(f"e{number}")
        await register(store.db, "shop", [to("new", since_s=3_600.0)])
        await runner.run_step(store.db, Outbox())
        save = tasks.save

        async def killed(*_args, **_more):
            raise asyncio.CancelledError

        monkeypatch.setattr(tasks, "save", killed)
        with pytest.raises(asyncio.CancelledError):
            await runner.run_step(store.db, Outbox())
        monkeypatch.setattr(tasks, "save", save)
        assert await store.one("select count(*) from boathook.delivery") == 2
        await asyncio.gather(*(self.past(store.db) for _ in range(2)))
        assert await store.one("select count(*) from boathook.delivery") == 7
        assert await store.one("select count(*) from boathook.audit where action = 'event.route'") == 7

    async def test_a_handler_that_an_older_release_retires_is_waited_for(self, store: RoutingStore):
        await store.receive("one")
        await register(store.db, "shop", [to("new", since_s=3_600.0)])
        await register(store.db, "shop", [])
        await self.past(store.db)
        assert await store.one("select state from boathook.task") == "running"
        await register(store.db, "shop", [to("new", since_s=3_600.0)])
        await store.db.execute("update boathook.task set place = null")
        await self.past(store.db)
        assert await store.one("select state from boathook.task") == "finished"
        assert await store.one("select count(*) from boathook.delivery") == 1


async def test_the_consoles_bulk_job_routes_filtered_events(store: RoutingStore, context: AppContext):
    lost = await store.receive("lost", "refund.made")
    other = await store.receive("other", "payout.made")
    await register(store.db, "shop", [to("refund"), to("all")])
    wanted = EventQuery(state="unhandled", type="refund.*")
    async with context.work(caller=HOST) as work:
        task = await start_route(work, wanted, to="refund", note="the typo")
    while await runner.run_step(store.db, Outbox()):
        pass
    async with context.work(caller=HOST) as work:
        progress = await jobs.get(work, JobNamed(id=task.shown_id))
    assert (progress.state, progress.done, progress.total, progress.title) == ("finished", 1, 1, "Re-route events")
    assert (await store.owed(lost), await store.owed(other)) == (["handler:refund"], [])
    async with context.work(caller=HOST) as work:
        with pytest.raises(NotFound, match="did you mean"):
            await start_route(work, wanted, to="refun")


async def test_retention_deletes_unhandled_marks_with_their_events(store: RoutingStore):
    made = await store.routed(new_event("old"))
    await store.events.append([replace(made, id=ids.make(1_600_000_000_000, 7))])
    await store.receive("new")
    retention = load(None).retention.model_copy(update={"events_days": 7.0})
    report = await run_maintenance(store.db, retention)
    assert report.dropped["unhandled", "age"] == 1
    assert len(await store.unhandled()) == 1
    assert await store.one("select count(*) from boathook.unhandled") == 1
