"""Live messages on a real PostgreSQL: sent by commits only, received by every listening process."""

import asyncio
import gc

from boathook.db.database import Database
from boathook.db.pubsub import CHANNEL, Subscriber, Subscription, notify_call
from boathook.handlers.sessions import call
from tests.support import eventually


async def publish_live(db: Database, channel: str, *messages: object) -> None:
    async with db.transaction() as connection:
        for message in messages:
            await call(connection, *notify_call(channel, message))


async def connect_subscriptions(db: Database, *hearings: Subscription) -> None:
    """Return once each subscription is connected and empty."""
    for hearing in hearings:
        hearing.put("ready?")

        async def is_open(hearing: Subscription = hearing) -> bool:
            await publish_live(db, hearing.channel, "ready?")
            await asyncio.sleep(0.05)
            return len(hearing._waiting) > 1

        await eventually(is_open)
    for channel in {hearing.channel for hearing in hearings}:
        await publish_live(db, channel, "open")
    for hearing in hearings:
        while await next_of(hearing) != "open":
            pass


async def next_of(hearing: Subscription) -> object:
    return await asyncio.wait_for(anext(hearing), 300)


async def test_two_processes_receive_messages_in_commit_order(db, pg_url):
    others = [await Database.open(pg_url, purpose=f"ear{n}", size=2) for n in range(2)]
    hearings = [Subscriber(other).subscribe("cars") for other in others]
    await connect_subscriptions(db, *hearings)
    await publish_live(db, "cars", 1, {"two": [2]})
    await publish_live(db, "cars", None)
    for hearing in hearings:
        assert [await next_of(hearing) for _ in range(3)] == [1, {"two": [2]}, None]
    for other in others:
        await other.close()


async def test_a_rolled_back_message_is_not_received(db):
    hearing = Subscriber(db).subscribe("cars")
    await connect_subscriptions(db, hearing)
    async with db.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await call(connection, *notify_call("cars", "never"))
        await transaction.rollback()
    await publish_live(db, "cars", "after")
    assert await next_of(hearing) == "after"


async def test_a_message_is_received_only_after_its_commit(db):
    hearing = Subscriber(db).subscribe("cars")
    await connect_subscriptions(db, hearing)
    async with db.transaction() as connection:
        await call(connection, *notify_call("cars", "held"))
        await publish_live(db, "cars", "quick")
        assert await next_of(hearing) == "quick"
    assert await next_of(hearing) == "held"


async def test_a_process_listens_once_and_only_with_subscribers(db):
    async def listening() -> int:
        return await db.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'boathook:test:monitor'"
            " and datname = current_database()"
        )

    ear = Subscriber(db)
    assert await listening() == 0
    hearings = [ear.subscribe(f"c{n}") for n in range(20)]
    await connect_subscriptions(db, *hearings)
    assert await listening() == 1


async def test_a_lost_connection_is_made_again(db):
    hearing = Subscriber(db).subscribe("cars")
    await connect_subscriptions(db, hearing)
    ended = await db.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'boathook:test:monitor'"
        " and datname = current_database()"
    )
    assert len(ended) == 1
    await connect_subscriptions(db, hearing)
    await publish_live(db, "cars", "again")
    assert await next_of(hearing) == "again"


async def test_dropped_subscriptions_are_garbage_collected(db):
    ear = Subscriber(db)
    hearing = ear.subscribe("cars")
    for _ in range(50):
        ear.subscribe("cars")
    gc.collect()
    assert list(ear._subscriptions) == [hearing]


async def test_foreign_messages_on_our_channel_are_ignored(db):
    hearing = Subscriber(db).subscribe("cars")
    await connect_subscriptions(db, hearing)
    for text in ("", "{", "[]", '{"c": 7}', '{"c": "cars"}'):
        await db.execute("select pg_notify($1, $2)", CHANNEL, text)
    await publish_live(db, "cars", "sane")
    assert await next_of(hearing) == "sane"
