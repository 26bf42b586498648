"""Replies in the database: the first handler's counts, waiting senders get it, and a failure sends no reply."""

import asyncio
from uuid import UUID, uuid4

import pytest

from boathook.db import replies
from boathook.db.database import Database
from boathook.db.replies import ReplyStatus
from boathook.domain.policy import Ignore, RetryPolicy
from boathook.domain.replies import MAX_BODY
from boathook.handlers.api import Boathook, Event
from tests.worker_harness import accept_events, attempts, running_worker, wait_for_states

ONCE = RetryPolicy(max_attempts=1)


async def look(db: Database, event_id: UUID) -> tuple[bytes | None, bool]:
    """Return an event's reply and whether anything of it is open."""
    [found] = await replies.find(db, [event_id])
    return (found.reply.body if found.reply else None), found.is_open


async def test_the_first_handler_to_end_answers(db: Database) -> None:
    hook, goes_on = Boathook(), asyncio.Event()

    @hook.on("shop")
    async def quick(event: Event) -> None:
        event.reply("quick")

    @hook.on("shop")
    async def thorough(event: Event) -> None:
        await goes_on.wait()
        event.reply("thorough")

    async with running_worker(db, hook, inline=["shop"]):
        [event_id] = await accept_events(db, {})
        await wait_for_states(db, succeeded=1, leased=1)
        assert await look(db, event_id) == (b"quick", True)
        goes_on.set()
        await wait_for_states(db, succeeded=2)
    assert await look(db, event_id) == (b"quick", False)
    assert await db.fetchval("select recipient from boathook.reply") == "handler:quick"


async def test_waiters_are_notified_of_every_outcome(db: Database) -> None:
    hook, told = Boathook(), asyncio.Queue[str]()

    @hook.on("shop", "ends.*", retry=ONCE)
    async def ends(event: Event) -> Ignore | None:
        if event.type == "ends.badly":
            raise RuntimeError
        return Ignore("no") if event.type == "ends.ignored" else None

    await db.listen(replies.CHANNEL, told.put_nowait)
    async with running_worker(db, hook, inline=["shop"]):
        for kind in ("ends.well", "ends.ignored", "ends.badly"):
            [event_id] = await accept_events(db, {}, type=kind)
            assert await asyncio.wait_for(told.get(), 300) == str(event_id), kind
            assert await look(db, event_id) == (None, False)


async def test_without_inline_mode_replies_are_ignored(db: Database) -> None:
    hook, told = Boathook(), asyncio.Queue[str]()

    @hook.on("shop")
    async def answers(event: Event) -> None:
        event.reply(object(), status=999)

    await db.listen(replies.CHANNEL, told.put_nowait)
    async with running_worker(db, hook):
        [event_id] = await accept_events(db, {})
        await wait_for_states(db, succeeded=1)
    assert await look(db, event_id) == (None, False)
    assert told.empty()


@pytest.mark.parametrize(
    ("body", "status", "word"), [("", 302, "302"), ("", 410, "410"), ("", 99, "99"), ("x" * (MAX_BODY + 1), 200, "bytes"),
                                 (object(), 200, "JSON"), (float("nan"), 200, "JSON"), ("no", 204, "204")],
)  # fmt: skip
async def test_an_unsendable_reply_is_a_dead_letter_with_a_hint(
    db: Database, body: object, status: int, word: str
) -> None:
    hook = Boathook()

    @hook.on("shop")
    async def answers(event: Event) -> None:
        event.reply(body, status=status)

    async with running_worker(db, hook, inline=["shop"]):
        await accept_events(db, {})
        await wait_for_states(db, dead=1)
    assert await attempts(db) == [(1, "failed", "HANDLER_MISUSE")]
    error = await db.fetchval("select error from boathook.delivery")
    assert "event.reply" in error
    assert word in error


async def test_the_largest_reply_round_trips(db: Database) -> None:
    hook, body = Boathook(), bytes(range(256)) * (MAX_BODY // 256)

    @hook.on("shop")
    async def answers(event: Event) -> None:
        event.reply(body)

    async with running_worker(db, hook, inline=["shop"]):
        [event_id] = await accept_events(db, {})
        await wait_for_states(db, succeeded=1)
    assert (await look(db, event_id))[0] == body


async def test_an_unknown_event_has_no_reply_and_is_not_open(db: Database) -> None:
    unknown = uuid4()
    assert await replies.find(db, [unknown]) == [ReplyStatus(unknown, None, is_open=False)]
