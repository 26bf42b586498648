"""Messages that are published in one cell to an application of another: each arrives there once, or visibly fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from boathook.db import integrity
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.domain import ids
from boathook.domain.errors import ServedElsewhere
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Duplicate, IdempotencyKey
from boathook.handlers.hooks import Hooks
from boathook.handlers.outbox import Outbox
from boathook.handlers.sessions import AsyncSessions
from boathook.server.loading import bound
from boathook.service.operating import operations
from boathook.service.sending.message_store import MessageStore
from boathook_cells import app as cells_app
from boathook_cells import keys
from boathook_cells import store as stored_cells
from tests.databases import Pool
from tests.postgres.cells.cells_without_gateways import Cells, Network, make_application, move, open_cells
from tests.postgres.operating.dead_letter_actions import replay_dead
from tests.support import eventually
from tests.worker_harness import running_worker

NOW = "update boathook.delivery set due_at = now() where recipient like 'handler:cells.%' and state = 'pending'"
OPEN = (
    "select count(*) from boathook.delivery where recipient like 'handler:cells.%' and state in ('pending', 'leased')"
)


@dataclass
class World:
    """Three cells, of which c1 publishes, and the application that moves."""

    cells: Cells
    network: Network
    application: str

    def __getitem__(self, name: str) -> Database:
        return self.cells[name].db

    async def move(self, to: str) -> None:
        await move(self.cells, self.application, to)

    async def publish(self, key: str | None, payload: Any = None, cell: str = "c1", **more: Any) -> Any:
        """Publish in a transaction of a cell, as a handler does."""
        message = Message(
            application=self.application,
            type="invoice.paid",
            payload={"n": 1} if payload is None else payload,
            id=key,
            **more,
        )
        async with self[cell].transaction() as connection:
            return await Outbox().publish(connection, message)

    @contextlib.asynccontextmanager
    async def working(self, cell: str = "c1") -> AsyncIterator[None]:
        """Run the worker of a cell's own app."""
        settings = self.cells[cell].settings
        hook = cells_app.open_app(settings, self.network.post)
        assert hook is not None
        async with (
            bound(settings, Hooks({cells_app.__name__: hook})),
            running_worker(self[cell], hook, worker_id=f"worker-{len(self.network.posts)}"),
        ):
            yield

    async def work(self, cell: str = "c1") -> None:
        """Run it until every message was passed on or is dead."""

        async def is_done() -> bool:
            await self[cell].execute(NOW)
            return await self[cell].fetchval(OPEN) == 0

        async with self.working(cell):
            await eventually(is_done)

    async def fail_once(self, cell: str = "c1") -> None:
        """Run it until an attempt has failed."""

        ended = "select count(*) from boathook.attempt"
        before = await self[cell].fetchval(ended)

        async def has_failed() -> bool:
            return bool(await self[cell].fetchval(ended) > before)

        await self[cell].execute(NOW)
        async with self.working(cell):
            await eventually(has_failed)

    async def sent(self) -> dict[str, list[str]]:
        """Return the keys of the messages that endpoints get a delivery of, by cell."""
        found = {}
        for name, cell in self.cells.items():
            rows = await cell.db.fetch("""
                select e.dedup_key from boathook.delivery d join boathook.event e on e.id = d.event_id
                where d.recipient like 'endpoint:%' order by 1
            """)
            found[name] = [row["dedup_key"] for row in rows]
        return found

    async def dead(self, cell: str = "c1") -> list[tuple[str, str]]:
        rows = await self[cell].fetch("select code, error from boathook.delivery where state = 'dead'")
        return [(row["code"], row["error"]) for row in rows]

    async def repeats(self, cell: str, key: str) -> Any:
        """Publish a message again in a cell that has the application."""
        return await self.publish(key, cell=cell)


@pytest.fixture
async def world(databases: Pool) -> AsyncIterator[World]:
    """The application has moved to c2."""
    async with open_cells(databases) as made:
        application = await make_application(made["c1"])
        await move(made, application)
        yield World(made, Network(made), application)
        for cell in made.values():
            report = await integrity.check_integrity(cell.db, dedup_days=30, is_deep=True)
            assert report.violations == ()


async def test_a_committed_message_is_stored_unchanged_in_its_cell(world: World):
    later = datetime.now(UTC) + timedelta(hours=1)
    published = await world.publish(
        "one",
        b'{"n":  1}',
        channels=["a"],
        tags=["t"],
        headers={"x-one": "1"},
        content_type="application/json",
        deliver_at=later,
        content_until=later + timedelta(days=1),
        idempotency=IdempotencyKey(b"key", b"request"),
    )
    assert isinstance(published, Accepted)
    rows = await world["c1"].fetch("select recipient, due_at <= now() as is_due from boathook.delivery")
    assert [tuple(row) for row in rows] == [("handler:cells.c2", True)]
    await world.work()
    event = """
        select id, application, type, dedup_key, origin, headers::text, content_type, body, fanout, channels, tags, deliver_at,
            content_until
        from boathook.event
    """
    key = "select key, replay_key, event_id, body_sha256, request_sha256, expires_at from boathook.dedup where event_id = $1"
    (there,), (here,) = await world["c2"].fetch(event), await world["c1"].fetch(event)
    assert tuple(there) == tuple(here)
    assert there["id"] == published.event_id
    (there,), (here,) = (
        await world["c2"].fetch(key, published.event_id),
        await world["c1"].fetch(key, published.event_id),
    )
    assert tuple(there)[:-1] == tuple(here)[:-1]
    assert abs((there["expires_at"] - here["expires_at"]).total_seconds()) < 60
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    assert (await world["c2"].fetchval("select due_at from boathook.delivery")) == later
    assert await world["c1"].fetchval("select state from boathook.delivery_archive") == "succeeded"


async def test_the_dedup_key_of_a_message_without_id_outlives_retries(world: World):
    await world.publish(None)
    await world.work()
    rows = await world["c2"].fetch("select expires_at > now() + interval '7 days' as is_long from boathook.dedup")
    assert [row["is_long"] for row in rows] == [True]


async def publish_and_fail(world: World) -> None:
    """Publish in a transaction that is rolled back."""
    async with world["c1"].transaction() as connection:
        message = Message(application=world.application, type="invoice.paid", payload={}, id="never")
        await Outbox().publish(connection, message)
        raise RuntimeError("rolled back")


async def test_nothing_is_passed_on_if_its_publisher_rolls_back(world: World):
    with pytest.raises(RuntimeError, match="rolled back"):
        await publish_and_fail(world)
    await world.publish("one")
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    assert world.network.posts == ["c2"]


async def test_a_publisher_with_stale_routes_forwards_its_message(databases: Pool):
    async with open_cells(databases) as made:
        application = await make_application(made["c1"])
        world, outbox = World(made, Network(made), application), Outbox()
        async with made["c1"].db.transaction() as connection:
            await outbox.publish(connection, Message(application="acme", type="invoice.paid", payload={}, id="before"))
        await world.move("c2")
        async with made["c1"].db.transaction() as connection:
            await outbox.publish(connection, Message(application="acme", type="invoice.paid", payload={}, id="after"))
        await world.work()
        assert await world.sent() == {"c1": ["before"], "c2": ["after"], "c3": []}
        await world.move("c1")
        async with made["c1"].db.transaction() as connection:
            await outbox.publish(connection, Message(application="acme", type="invoice.paid", payload={}, id="back"))
        assert (await world.sent())["c1"] == ["back", "before"]


async def test_mutant_without_the_version_it_stores_its_message_for_the_old_cell(databases: Pool):
    version = """when t.application is not null and a.routes_version || '.' || a.xmin::text is distinct from t.routes"""
    async with open_cells(databases) as made:
        application = await make_application(made["c1"])
        world, outbox = World(made, Network(made), application), Outbox()
        whole = await world["c1"].fetchval("select pg_get_functiondef('boathook.publish_messages'::regproc)")
        assert version in whole
        await world["c1"].execute(whole.replace(version, "when false"))
        for key in ("before", "after"):
            async with made["c1"].db.transaction() as connection:
                await outbox.publish(connection, Message(application="acme", type="invoice.paid", payload={}, id=key))
            await world.move("c2")
        assert await world.sent() == {"c1": ["after", "before"], "c2": [], "c3": []}


async def test_a_refusing_publisher_rereads_routes_after_the_return(world: World):
    outbox, message = Outbox(), Message(application=world.application, type="invoice.paid", payload={}, id="one")
    async with world["c1"].transaction() as connection:
        await outbox.publish(
            connection, Message(application=world.application, type="invoice.paid", payload={}, id="on")
        )
    with pytest.raises(ServedElsewhere) as error:
        async with world["c1"].transaction() as connection:
            await outbox.publish(connection, message, passes_on=False)
    assert (error.value.home, error.value.revision > 0) == ("c2", True)
    await world.move("c1")
    async with world["c1"].transaction() as connection:
        await outbox.publish(connection, message, passes_on=False)
    assert (await world.sent())["c1"] == ["one"]


async def test_a_message_published_by_a_command_is_passed_on(world: World):
    cell = world.cells["c1"]
    message = Message(
        application="acme", type="invoice.paid", payload=b"{}", id="sent", content_type="application/json"
    )
    receipt = await operations.send(cell.db, cell.settings, AuditContext(actor="test"), message)
    assert isinstance(receipt, Accepted)
    assert receipt.home == "c2"
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["sent"], "c3": []}


async def test_a_message_waits_while_the_other_cell_is_down(world: World):
    world.network.away.add("c2")
    await world.publish("one")
    await world.fail_once()
    row = await world["c1"].fetchrow("select code, error, due_at > now() as is_later from boathook.delivery")
    assert row is not None
    assert (row["code"], row["is_later"]) == ("ConnectionError", True)
    assert "cell c2: no answer" in row["error"]
    world.network.away.clear()
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}


async def test_a_message_with_a_lost_response_is_stored_once(world: World):
    world.network.mute.add("c2")
    await world.publish("one")
    await world.publish(None)
    await world.fail_once()
    world.network.mute.clear()
    await world.work()
    assert len(world.network.posts) > 2
    assert len((await world.sent())["c2"]) == 2


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_message_with_a_taken_id_is_a_duplicate_or_conflict(world: World, is_same: bool):
    await world.publish("one", {"n": 2}, cell="c2")
    await world.publish("one", {"n": 2 if is_same else 3})
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    dead = await world.dead()
    if is_same:
        assert dead == []
    else:
        ((code, error),) = dead
        assert code == "DUPLICATE_MESSAGE"
        assert "the cell c2 has another message with its eventId or idempotency key: msg_" in error


async def test_it_follows_the_application_to_a_third_cell(world: World):
    world.network.away.add("c2")
    await world.publish("one")
    await world.fail_once()
    world.network.away.clear()
    await world.move("c3")
    world.network.posts.clear()
    await world.work()
    assert world.network.posts == ["c2", "c3"]
    assert await world.sent() == {"c1": [], "c2": [], "c3": ["one"]}
    assert isinstance(await world.repeats("c3", "one"), Duplicate)


async def test_an_outage_of_the_third_cell_does_not_delay_the_second(world: World):
    await make_application(world.cells["c1"], "other")
    other = (await world.cells["c1"].api.ask(200, "GET", "/app/other"))["id"]
    await move(world.cells, other)
    await world.move("c3")
    world.network.away.add("c3")
    for number in range(8):
        await world.publish(f"waits_{number}")
    ended = "select count(*) from boathook.attempt where code = 'FetchFailed'"

    async def have_failed() -> bool:
        await world["c1"].execute(NOW)
        return await world["c1"].fetchval(ended) >= 8

    async with world.working():
        await eventually(have_failed)
        async with world["c1"].transaction() as connection:
            await Outbox().publish(connection, Message(application=other, type="invoice.paid", payload={}, id="goes"))
        await eventually(lambda: _has_arrived(world, "goes"))
    world.network.away.clear()
    await world.work()
    assert (await world.sent())["c3"] == [f"waits_{number}" for number in range(8)]


async def _has_arrived(world: World, key: str) -> bool:
    return key in (await world.sent())["c2"]


async def test_mutant_if_its_key_were_copied_it_would_be_lost(world: World, monkeypatch: pytest.MonkeyPatch):
    whole = keys.SQL["read_message_keys"]
    cut = whole.replace("and (e.home is null or d.home is not null or d.event_id <> e.id)", "")
    assert cut != whole
    monkeypatch.setitem(keys.SQL, "read_message_keys", cut)
    await world.publish("one")
    await world.move("c3")
    await world.work()
    assert await world.sent() == {"c1": [], "c2": [], "c3": []}


async def test_a_message_is_delivered_here_once_if_its_application_returned(world: World):
    published = await world.publish("one", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    await world.publish("two")
    await world.move("c1")
    await world.work()
    assert world.network.posts == ["c2", "c2"]
    assert await world.sent() == {"c1": ["one", "two"], "c2": [], "c3": []}
    rows = await world["c1"].fetch("select due_at > now() as is_later from boathook.delivery order by 1")
    assert [row["is_later"] for row in rows] == [False, True]
    assert await world["c1"].fetchval("select count(*) from boathook.event where home is not null") == 0
    assert await world.repeats("c1", "one") == Duplicate(published.event_id)
    await world.move("c3")
    assert await world.repeats("c3", "one") == Duplicate(published.event_id)


async def test_mutant_without_taking_it_back_a_message_is_lost(world: World):
    await world["c1"].execute("""
        create or replace function boathook.take_back(
            p_ids uuid[], p_keys uuid[], d_events uuid[], d_ordinals smallint[], d_recipients text[], d_order_keys text[],
            d_due timestamptz[]
        ) returns uuid[] language sql as 'select ''{}''::uuid[]'
    """)
    await world.publish("one")
    await world.move("c1")
    await world.work()
    assert await world.sent() == {"c1": [], "c2": [], "c3": []}


async def lose_answer_and_return(world: World) -> None:
    """Let the other cell store a message without a response, and move its application back."""
    world.network.mute.add("c2")
    await world.publish("one")
    await world.fail_once()
    world.network.mute.clear()
    await world.move("c1")
    await world.work()


async def test_it_is_not_delivered_here_if_the_other_cell_has_stored_it(world: World):
    await lose_answer_and_return(world)
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    assert isinstance(await world.repeats("c1", "one"), Duplicate)


async def test_mutant_with_its_own_key_it_would_be_delivered_twice(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(keys.SQL, "drop_passed_on", "select 0 where $1::uuid[] is not null or $2::uuid[] is not null")
    await lose_answer_and_return(world)
    assert await world.sent() == {"c1": ["one"], "c2": ["one"], "c3": []}


@pytest.mark.parametrize("is_same", [True, False])
async def test_ids_used_in_the_other_cell_count_after_the_return(world: World, is_same: bool):
    await world.publish("one", {"n": 2}, cell="c2")
    await world.publish("one", {"n": 2 if is_same else 3})
    await world.move("c1")
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    assert [code for code, _ in await world.dead()] == ([] if is_same else ["DUPLICATE_MESSAGE"])


async def test_the_return_waits_for_an_uncommitted_publish(world: World):
    """The move back waits for a transaction that passes a message on under an id that the other cell has."""
    await world.publish("one", {"n": 2}, cell="c2")
    connection = await asyncpg.connect(world["c1"].url)
    transaction = connection.transaction()
    await transaction.start()
    await Outbox().publish(
        connection, Message(application=world.application, type="invoice.paid", payload={"n": 3}, id="one")
    )
    moving = asyncio.create_task(world.move("c1"))
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    async def is_waiting() -> bool:
        return bool(await world["c1"].fetchval(waiting))

    await eventually(is_waiting)
    await transaction.commit()
    await connection.close()
    await moving
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    assert [code for code, _ in await world.dead()] == ["DUPLICATE_MESSAGE"]


async def test_a_message_passed_back_by_the_other_cell_is_delivered(world: World):
    """It was spooled there, and the application returned before the drain."""
    world.network.spooling.add("c2")
    published = await world.publish("one")
    await world.work()
    await world.move("c1")
    store = MessageStore(lambda: world["c1"], Outbox())
    receipts = [one for _ in range(2) for one in await store.append(world.network.spooled)]
    assert [(one.event_id, one.is_new) for one in receipts if isinstance(one, Accepted)] == [
        (published.event_id, True),
        (published.event_id, False),
    ]
    assert await world.sent() == {"c1": ["one"], "c2": [], "c3": []}


async def test_a_message_taken_back_concurrently_is_delivered_once(world: World):
    world.network.spooling.add("c2")
    world.network.mute.add("c2")
    await world.publish("one")
    await world.fail_once()
    world.network.spooling.clear()
    world.network.mute.clear()
    await world.move("c1")
    stores = [MessageStore(lambda: world["c1"], Outbox()) for _ in range(4)]
    await asyncio.gather(*(store.append(world.network.spooled) for store in stores), world.work())
    assert await world.sent() == {"c1": ["one"], "c2": [], "c3": []}


async def test_a_message_with_an_expired_key_is_taken_back(world: World):
    await world.publish("one")
    await world.move("c1")
    await world["c1"].execute("update boathook.dedup set expires_at = now() - interval '1 day'")
    await world.work()
    assert await world.sent() == {"c1": ["one"], "c2": [], "c3": []}


async def test_the_first_ordered_delivery_after_the_return_is_not_blocked(world: World):
    await world["c2"].execute("update boathook.endpoint set order_by = '*'")
    await world.publish("one")
    await world.publish("two")
    await world.move("c1")
    await world.work()
    rows = await world["c1"].fetch("select is_blocked, order_key from boathook.delivery order by seq")
    assert len(rows) == 2
    assert not rows[0]["is_blocked"]
    assert rows[0]["order_key"] == rows[1]["order_key"] is not None


async def test_a_move_that_is_not_complete_only_delays(world: World):
    await world.publish("one")
    named = "update boathook.application set home = $1, routes_version = routes_version + 1"
    await world["c2"].execute(named, "c1")
    await world.fail_once()
    assert await world["c1"].fetchval("select code from boathook.delivery") == "MOVING"
    two, three, id = world["c2"], world["c3"], ids.read(ids.APPLICATION, world.application)
    document = await stored_cells.export_application(two, id)
    await stored_cells.reserve_application(three, id, document, await stored_cells.read_columns(two, three), "c2")
    await two.execute(named, "c3")
    world.network.posts.clear()
    await world.fail_once()
    assert world.network.posts == ["c2", "c3"]
    await two.execute(named, None)
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}


async def test_a_message_of_a_deleted_application_fails(world: World):
    await world.cells["c2"].api.ask(204, "DELETE", f"/app/{world.application}")
    await world.publish("one")
    await world.work()
    ((code, error),) = await world.dead()
    assert code == "REJECTED"
    assert "was deleted before this message was stored" in error


async def test_a_message_whose_content_was_deleted_fails(world: World):
    await world.publish("one")
    await world["c1"].execute("update boathook.event set content_until = now() - interval '1 s'")
    await world.work()
    assert await world.dead() == [("EXPUNGED", "its content was deleted before it was passed on")]


async def test_a_dead_one_can_be_replayed(world: World):
    world.network.away.add("c2")
    await world.publish("one")
    await world["c1"].execute("update boathook.delivery set enqueued_at = now() - interval '8 days'")
    await world.work()
    ((code, _),) = await world.dead()
    assert code == "ConnectionError"
    world.network.away.clear()
    await replay_dead(world["c1"], operations.Selection(operations.ListFilter()), AuditContext(actor="test"))
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}


async def test_no_connection_is_held_while_a_message_is_posted(world: World, monkeypatch: pytest.MonkeyPatch):
    assert await count_open_transactions(world, monkeypatch) == 0


async def test_mutant_with_usual_sessions_a_transaction_would_be_open(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cells_app, "LateSessions", AsyncSessions)
    assert await count_open_transactions(world, monkeypatch) == 1


async def count_open_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many transactions are open in c1 while a message is posted."""
    held: list[int] = []
    real = world.network.post

    async def post(*arguments: Any) -> tuple[int, bytes]:
        held.append(
            await world["c1"].fetchval(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and state like 'idle in transaction%'"
            )
        )
        return await real(*arguments)

    monkeypatch.setattr(world.network, "post", post)
    await world.publish("one")
    await world.work()
    assert await world.sent() == {"c1": [], "c2": ["one"], "c3": []}
    return held[0]


async def test_its_handlers_are_registered_with_their_retries(world: World):
    settings = world.cells["c1"].settings
    hook = cells_app.open_app(settings)
    (two, three) = hook.routes(cells_app.__name__, retries=settings.retry_defaults())
    assert (two.recipient, three.recipient) == ("handler:cells.c2", "handler:cells.c3")
    assert two.policy.max_age_s == 7 * 86_400
    async with world.working():
        rows = await world["c1"].fetch("select recipient from boathook.route where is_active order by 1")
    assert [row["recipient"] for row in rows] == ["handler:cells.c2", "handler:cells.c3"]
