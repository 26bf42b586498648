"""Storing events: once each with their deliveries in one statement, also with concurrent writers."""

import asyncio
import hashlib
import os
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from boathook.db.database import Database
from boathook.db.events import SQL, EventStore
from boathook.domain import ids
from boathook.domain.errors import NotFound, RoutesChanged
from boathook.domain.model import Accepted, Duplicate, NewDelivery, NewEvent, Origin, ProofStrength
from tests.support import LOCK_WAITED_FOR, eventually


def hashed(text: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(text).digest()[:16])


def hash_text(text: str) -> UUID:
    return hashed(text.encode())


def event(key: str, body: bytes = b'{"a":1}', **more: Any) -> NewEvent:
    replay = more.pop("replay", None)
    owed = more.pop("owed", (NewDelivery("handler:x"),))
    return NewEvent(
        id=ids.make(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big")),
        source=more.pop("source", "stripe"),
        application=None,
        type="t",
        dedup_key=key,
        key_hash=hashed(key.encode()),
        replay_hash=None if replay is None else hashed(replay),
        grade=ProofStrength.BODY,
        origin=Origin.RECEIVED,
        headers='{"user-agent": "x"}',
        content_type="application/json",
        body=body,
        body_sha256=hashlib.sha256(body).digest(),
        deliveries=owed,
        routes_version=more.pop("version", 1),
        **more,
    )


async def count(db: Database, table: str) -> int:
    return int(await db.fetchval(f"select count(*) from boathook.{table}"))


async def conflicts(db: Database) -> list[tuple[str, str, int]]:
    rows = await db.fetch("select dedup_key, differs, seen from boathook.conflict order by id")
    return [(row["dedup_key"], row["differs"], row["seen"]) for row in rows]


async def test_an_event_round_trips(db: Database):
    store = EventStore(db)
    body = b'\x00\xff{"id": "\\u0000", "id": 1e400}\n'
    new = event("k", body)
    assert await store.append([new]) == [Accepted(new.id)]
    found = await store.get(new.id)
    assert (found.body, found.dedup_key, found.headers) == (body, "k", {"user-agent": "x"})
    with pytest.raises(NotFound, match="evt_"):
        await store.get(UUID(int=1))


async def test_each_event_of_a_batch_keeps_its_own_values(db: Database):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - repeats the run
    draw = random.Random(seed)
    store = EventStore(db)
    for number in range(40):
        kinds = draw.randint(1, 3)
        owed = [tuple(NewDelivery(f"handler:{draw.randrange(kinds)}") for _ in range(draw.randint(0, 2))) for _ in "ab"]
        batch = [
            event(f"{number}.{position}", b"%d" % draw.randrange(kinds), owed=draw.choice(owed))
            for position in range(draw.randint(1, 5))
        ]
        batch = [
            structs.replace(
                one,
                source=draw.choice(["stripe", "github"][:kinds]),
                type=str(draw.randrange(kinds)),
                dedup_key=str(draw.randrange(kinds)),
                headers=f'{{"a": "{draw.randrange(kinds)}"}}',
                content_type=f"text/{draw.randrange(kinds)}",
            )
            for one in batch
        ]
        assert await store.append(batch) == [Accepted(one.id, has_deliveries=bool(one.deliveries)) for one in batch]
        for one in batch:
            row = await db.fetchrow("select * from boathook.event where id = $1", one.id)
            assert row is not None
            for name in (
                "source",
                "application",
                "type",
                "dedup_key",
                "headers",
                "content_type",
                "body",
                "body_sha256",
            ):
                assert row[name] == getattr(one, name), name
            sent = await db.fetch(
                "select recipient from boathook.delivery where event_id = $1 order by ordinal", one.id
            )
            assert [row["recipient"] for row in sent] == [delivery.recipient for delivery in one.deliveries]
            assert row["fanout"] == len(one.deliveries)


async def test_copies_in_one_batch_and_in_the_next_are_duplicates(db: Database):
    store = EventStore(db)
    first, duplicate, later = event("k"), event("k"), event("k")
    assert await store.append([first, duplicate]) == [Accepted(first.id), Duplicate(first.id)]
    assert await store.append([later]) == [Duplicate(first.id)]
    assert (await count(db, "event"), await count(db, "delivery")) == (1, 1)


async def test_a_retry_after_an_unknown_outcome_is_accepted(db: Database):
    store = EventStore(db)
    new = event("k")
    assert await store.append([new]) == await store.append([new]) == [Accepted(new.id)]


async def test_another_body_under_a_known_key_is_a_conflict_that_is_counted(db: Database):
    store = EventStore(db)
    first = event("k")
    await store.append([first])
    for _ in range(2):
        assert await store.append([event("k", b"other")]) == [Duplicate(first.id, conflict=True)]
    assert await conflicts(db) == [("k", "body", 2)]


async def same_bodies(db: Database) -> dict[str, UUID | None]:
    rows = await db.fetch("select dedup_key, same_body_as from boathook.event")
    return {row["dedup_key"]: row["same_body_as"] for row in rows}


async def test_a_known_body_under_another_unsigned_key_is_a_new_event_that_names_the_first(db: Database):
    """Within one commit, in a later one, and beside a repetition of each."""
    store = EventStore(db)
    made = [event(key, body, replay=body) for key, body in (("g1", b"x"), ("g2", b"x"), ("g3", b"y"), ("g2", b"x"))]
    receipts = await store.append(made)
    assert receipts[:3] == [Accepted(one.id) for one in made[:3]]
    assert receipts[3] == Duplicate(made[1].id)
    later = [event("g4", b"x", replay=b"x"), event("g1", b"x", replay=b"x"), event("g2", b"z", replay=b"z")]
    receipts = await store.append(later)
    assert receipts == [Accepted(later[0].id), Duplicate(made[0].id), Duplicate(made[1].id, conflict=True)]
    assert await same_bodies(db) == {"g1": None, "g2": made[0].id, "g3": None, "g4": made[0].id}
    assert await conflicts(db) == [("g2", "body", 1)]
    assert await count(db, "delivery") == 4


async def test_a_repeated_body_whose_commit_had_an_unknown_outcome_is_stored_once(db: Database):
    store = EventStore(db)
    first, second = event("g1", b"x", replay=b"x"), event("g2", b"x", replay=b"x")
    await store.append([first])
    for is_new in (True, False):
        (receipt,) = await store.append([second])
        assert isinstance(receipt, Accepted)
        assert (receipt.event_id, receipt.is_new) == (second.id, is_new)
    assert await count(db, "event") == 2


async def test_two_gateways_that_get_one_body_at_once_store_two_events_and_one_note(db: Database):
    """The index decides which is the first: the other waits for it, and finds it."""
    stores = [EventStore(db) for _ in range(6)]
    made = [event(f"g{number}", b"x", replay=b"x") for number in range(6)]
    receipts = await asyncio.gather(*(store.append([one]) for store, one in zip(stores, made, strict=True)))
    assert receipts == [[Accepted(one.id)] for one in made]
    noted = await same_bodies(db)
    (first,) = [key for key, same in noted.items() if same is None]
    assert {same for key, same in noted.items() if key != first} == {made[int(first[1:])].id}


@pytest.mark.parametrize("changed", ["encoding", "policy"])
async def test_a_known_body_under_another_key_is_a_conflict_if_refused_or_read_differently(db: Database, changed: str):
    """The source says so, or an unsigned part of the request changed what was read from the signed bytes."""
    store = EventStore(db)
    store.set_refusing(["stripe"] if changed == "policy" else ["other"])
    first = event("g1", b"x", replay=b"x")
    second = event("g2", b"x" if changed == "policy" else b"packed", replay=b"x")
    receipts = await store.append([first, second, event("g3", b"y", replay=b"y")])
    assert receipts[1] == Duplicate(first.id, conflict=True)
    assert isinstance(receipts[2], Accepted)
    assert await conflicts(db) == [("g2", "key" if changed == "policy" else "body", 1)]
    assert await same_bodies(db) == {"g1": None, "g3": None}


async def test_volatile_fields_make_no_conflict(db: Database):
    store = EventStore(db)
    first = event("v", b'{"id":1,"p":{"q":3}}')
    await store.append([first])
    again = event("v", b'{"id":1,"p":{"q":2}}', volatile=("p.q",))
    assert await store.append([again]) == [Duplicate(first.id)]
    assert await store.append([event("v", b'{"id":2,"p":{"q":2}}', volatile=("p.q",))]) == [
        Duplicate(first.id, conflict=True)
    ]


@pytest.mark.parametrize(
    "odd", [b'"\\ud83d"', b"1e400", b"9" * 5000], ids=["lone surrogate", "huge float", "huge integer"]
)
async def test_volatile_fields_make_no_conflict_beside_values_that_strict_parsers_refuse(db: Database, odd: bytes):
    store = EventStore(db)
    first = event("v", b'{"left":2,"text":%b}' % odd)
    await store.append([first])
    again = event("v", b'{"left":1,"text":%b}' % odd, volatile=("left",))
    assert await store.append([again]) == [Duplicate(first.id)]


async def test_an_expired_dedup_key_is_free(db: Database):
    store = EventStore(db, dedup_days=30, dedup_days_of={"short": 0.0})
    await store.append([event("k", source="short")])
    again = event("k", source="short")
    assert await store.append([again]) == [Accepted(again.id)]
    assert await count(db, "event") == 2


async def test_outdated_routes_store_nothing(db: Database):
    store = EventStore(db)
    with pytest.raises(RoutesChanged):
        await store.append([event("k", version=0)])
    with pytest.raises(RoutesChanged):
        await store.append([event("k"), event("l", version=2)])
    assert (await count(db, "event"), await count(db, "dedup")) == (0, 0)


async def test_a_route_registered_during_a_commit_is_not_missed(db: Database):
    """A registration waits for the batches before it, and those after it see it."""
    store = EventStore(db)
    async with db.transaction() as connection:
        await connection.execute("update boathook.route_version set version = version + 1")
        storing = asyncio.create_task(store.append([event("k")]))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
        assert not storing.done()
    with pytest.raises(RoutesChanged):
        await storing


async def test_without_the_lock_a_new_recipient_is_missed(db: Database, monkeypatch: pytest.MonkeyPatch):
    """The mutant: a guard that only reads lets an event miss a concurrently added recipient."""
    monkeypatch.setitem(
        SQL, "append_events", SQL["append_events"].replace("where version = $1 for share", "where version = $1")
    )
    store = EventStore(db)
    async with db.transaction() as connection:
        await connection.execute("update boathook.route_version set version = version + 1")
        receipts = await asyncio.wait_for(store.append([event("k")]), 300)
    assert isinstance(receipts[0], Accepted)


async def test_order_is_kept_within_a_batch_and_only_heads_may_run(db: Database):
    store = EventStore(db)
    batch = [event(f"o{n}", owed=(NewDelivery("handler:x", "ann" if n % 2 else "bob"),)) for n in range(6)]
    await store.append(batch)
    rows = await db.fetch("select event_id, is_blocked from boathook.delivery order by seq")
    assert [row["event_id"] for row in rows] == [one.id for one in batch]
    assert [row["is_blocked"] for row in rows] == [False, False, True, True, True, True]


async def test_gateways_that_store_the_same_events_in_any_order_agree(db: Database):
    """Eight writers, the same forty keys and bodies shuffled: no deadlock, one event each."""
    seed = time.time_ns()
    print(f"seed {seed}")  # noqa: T201 - repeats the run
    dice = random.Random(seed)
    store = EventStore(db)

    async def write() -> list[str]:
        keys = [f"k{n}" for n in range(40)]
        dice.shuffle(keys)
        accepted = []
        for start in range(0, 40, 10):
            batch = [event(key, key.encode()) for key in keys[start : start + 10]]
            receipts = await store.append(batch)
            accepted += [
                one.dedup_key for one, receipt in zip(batch, receipts, strict=True) if isinstance(receipt, Accepted)
            ]
        return accepted

    winners = [key for keys in await asyncio.gather(*[write() for _ in range(8)]) for key in keys]
    assert sorted(winners) == sorted(f"k{n}" for n in range(40))
    assert await count(db, "event") == await count(db, "delivery") == 40


async def holds_what_is_behind(
    db: Database, write: Callable[[str, str], Awaitable[Any]], hash_key: Callable[[str], UUID]
) -> bool:
    """Return whether a batch that waits for the lesser of two keys holds the greater one already."""
    lesser, greater = sorted(("one", "two"), key=hash_key)
    insert = (
        "insert into boathook.dedup (key, event_id, body_sha256, expires_at) values ($1, $1, sha256('x'), now())"
        " on conflict do nothing"
    )
    forget = "delete from boathook.dedup where key = $1"

    async def touch() -> None:
        async with db.transaction() as other:
            await other.execute(insert, hash_key(greater))
            await other.execute(forget, hash_key(greater))

    async def waiting() -> int:
        return int(await db.fetchval(LOCK_WAITED_FOR.replace("exists (select", "(select count(*)", 1)))

    async with db.transaction() as holder:
        await holder.execute(insert, hash_key(lesser))
        # The greater one first, as its sender has it.
        batch = asyncio.ensure_future(write(greater, lesser))
        await eventually(waiting)
        other = asyncio.create_task(touch())
        await eventually(lambda: is_done_or(other, waiting))
        is_held = not other.done()
        await holder.execute(forget, hash_key(lesser))
    await asyncio.gather(batch, other)
    return is_held


async def is_done_or(task: asyncio.Task[None], waiting: Callable[[], Awaitable[int]]) -> bool:
    """Return whether a task is done, or waits as well."""
    return task.done() or await waiting() > 1


async def test_dedup_keys_are_locked_in_sorted_order(db: Database):
    """Two batches that hold a key each and wait for the other's would wait for ever."""
    store = EventStore(db)
    assert not await holds_what_is_behind(db, lambda *keys: store.append([event(key) for key in keys]), hash_text)


async def test_mutant_keys_locked_in_batch_order_are_held_while_waiting(db: Database, monkeypatch):
    unsorted = re.sub(r"\s+order by key\b", "", SQL["append_events"])
    assert unsorted != SQL["append_events"]
    monkeypatch.setitem(SQL, "append_events", unsorted)
    store = EventStore(db)
    assert await holds_what_is_behind(db, lambda *keys: store.append([event(key) for key in keys]), hash_text)
