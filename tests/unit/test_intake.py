"""Group commit: batches, single failures, and duplicates answered from memory."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

import pytest

from boathook.domain.due import DueRecipient
from boathook.domain.errors import DatabaseUnavailable, Overloaded, RoutesChanged, ValueRejected
from boathook.domain.model import Accepted, Duplicate, NewDelivery, NewEvent, Origin, ProofStrength, Receipt
from boathook.ingest.intake import Intake
from tests.support import eventually


def event(key: str, body: bytes = b"{}", *, deliveries: tuple[NewDelivery, ...] = ()) -> NewEvent:
    digest = hashlib.sha256(key.encode()).digest()
    return NewEvent(
        id=UUID(bytes=hashlib.sha256(key.encode() + body).digest()[:16]),
        source="stripe",
        application=None,
        type="t",
        dedup_key=key,
        key_hash=UUID(bytes=digest[:16]),
        replay_hash=None,
        grade=ProofStrength.BODY,
        origin=Origin.RECEIVED,
        headers="{}",
        content_type="application/json",
        body=body,
        body_sha256=hashlib.sha256(body).digest(),
        deliveries=deliveries,
    )


class Shelf:
    """A store whose commits can be held back, and which rejects chosen events."""

    def __init__(self, judge: Callable[[NewEvent], Exception | Receipt] | None = None) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.judge = judge or (lambda one: Accepted(one.id))

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        self.batches.append([one.dedup_key for one in batch])
        await self.gate.wait()
        receipts = [self.judge(one) for one in batch]
        for receipt in receipts:
            if isinstance(receipt, Exception):
                raise receipt
        return [receipt for receipt in receipts if not isinstance(receipt, Exception)]


async def hand_in(intake: Intake, *events: NewEvent) -> list[Receipt | BaseException]:
    return await asyncio.gather(*[intake.accept(one) for one in events], return_exceptions=True)


async def test_events_arriving_during_a_commit_form_the_next_batch():
    shelf = Shelf()
    intake = Intake(shelf, batch=3)
    await intake.start()
    shelf.gate.clear()
    first = asyncio.create_task(intake.accept(event("a")))
    await eventually(lambda: shelf.batches)
    others = [asyncio.create_task(intake.accept(event(key))) for key in "bcde"]
    await asyncio.sleep(0)
    shelf.gate.set()
    await asyncio.gather(first, *others)
    assert shelf.batches == [["a"], ["b", "c", "d"], ["e"]]
    await intake.drain()


async def test_one_bad_event_fails_alone():
    shelf = Shelf(lambda one: ValueRejected("a row that cannot be") if one.dedup_key == "bad" else Accepted(one.id))
    intake = Intake(shelf)
    await intake.start()
    results = await hand_in(intake, *[event(key) for key in ("a", "b", "bad", "c", "d")])
    assert [isinstance(result, ValueRejected) for result in results] == [False, False, True, False, False]
    await intake.drain()


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), RoutesChanged("routes"), RuntimeError("surprise")])
async def test_a_batch_error_fails_every_request_and_intake_continues(error: Exception):
    failing = [True]
    shelf = Shelf(lambda one: error if failing else Accepted(one.id))
    intake = Intake(shelf)
    await intake.start()
    assert await hand_in(intake, event("a"), event("b")) == [error, error]
    failing.clear()
    assert await intake.accept(event("a")) == Accepted(event("a").id)
    await intake.drain()


async def test_the_queue_is_bounded():
    shelf = Shelf()
    intake = Intake(shelf, queue=2, batch=1)
    await intake.start()
    shelf.gate.clear()
    tasks = [asyncio.create_task(intake.accept(event("a")))]
    await eventually(lambda: shelf.batches)
    tasks += [asyncio.create_task(intake.accept(event(key))) for key in "bc"]
    await asyncio.sleep(0)
    assert intake.waiting == 2
    with pytest.raises(Overloaded):
        await intake.accept(event("d"))
    shelf.gate.set()
    assert all(isinstance(receipt, Accepted) for receipt in await asyncio.gather(*tasks))
    await intake.drain()


async def test_exact_copies_are_answered_from_memory_and_others_are_not():
    shelf = Shelf()
    intake = Intake(shelf)
    await intake.start()
    await intake.accept(event("a"))
    assert await intake.accept(event("a")) == Duplicate(event("a").id)
    assert shelf.batches == [["a"]]
    await intake.accept(event("a", b"another body"))
    assert shelf.batches == [["a"], ["a"]]
    await intake.drain()


async def test_a_conflict_is_never_answered_from_memory():
    shelf = Shelf(lambda one: Duplicate(UUID(int=1), conflict=True))
    intake = Intake(shelf)
    await intake.start()
    for _ in range(2):
        assert await intake.accept(event("a")) == Duplicate(UUID(int=1), conflict=True)
    assert len(shelf.batches) == 2
    await intake.drain()


async def test_an_outage_clears_the_dedup_cache():
    answers: list[Exception] = []
    shelf = Shelf(lambda one: answers.pop() if answers else Accepted(one.id))
    intake = Intake(shelf)
    await intake.start()
    await intake.accept(event("a"))
    answers.append(DatabaseUnavailable("it fails over to an older state"))
    with pytest.raises(DatabaseUnavailable):
        await intake.accept(event("b"))
    await intake.accept(event("a"))
    assert shelf.batches == [["a"], ["b"], ["a"]]
    await intake.drain()


async def test_memory_is_bounded_and_the_youngest_stay():
    shelf = Shelf()
    intake = Intake(shelf, dedup_cache_size=2)
    await intake.start()
    for key in "abcde":
        await intake.accept(event(key))
    await intake.accept(event("e"))
    await intake.accept(event("a"))
    assert shelf.batches == [["a"], ["b"], ["c"], ["d"], ["e"], ["a"]]
    await intake.drain()


async def test_draining_commits_queued_events_and_refuses_new_ones():
    shelf = Shelf()
    intake = Intake(shelf, batch=1)
    await intake.start()
    tasks = [asyncio.create_task(intake.accept(event(key))) for key in "abc"]
    await asyncio.sleep(0)
    await intake.drain()
    assert [await task for task in tasks] == [Accepted(event(key).id) for key in "abc"]
    with pytest.raises(Overloaded):
        await intake.accept(event("d"))


async def test_only_events_with_deliveries_are_announced():
    announced: list[Collection[DueRecipient]] = []

    async def announce(recipients: Collection[DueRecipient]) -> None:
        announced.append(recipients)

    intake = Intake(Shelf(lambda one: Accepted(one.id, has_deliveries=bool(one.deliveries))), announce=announce)
    await intake.start()
    await intake.accept(event("nobody's"))
    await asyncio.sleep(0)
    assert announced == []
    await intake.accept(event("somebody's", deliveries=(NewDelivery("handler:x"),)))
    await eventually(lambda: announced)
    assert announced == [{("handler:x", 0.0)}]
    await intake.drain()


async def test_a_cancelled_request_does_not_affect_others():
    shelf = Shelf()
    intake = Intake(shelf)
    await intake.start()
    shelf.gate.clear()
    gone, stays = (asyncio.create_task(intake.accept(event(key))) for key in "ab")
    await eventually(lambda: shelf.batches)
    gone.cancel()
    shelf.gate.set()
    assert await stays == Accepted(event("b").id)
    await intake.drain()


@pytest.mark.parametrize(("size", "commits"), [(65_536, 1), (0, 2)])
async def test_without_a_cache_duplicates_reach_the_store(size: int, commits: int):
    shelf = Shelf()
    intake = Intake(shelf, dedup_cache_size=size)
    await intake.start()
    for _ in range(2):
        await intake.accept(event("a"))
    assert shelf.batches == [["a"]] * commits
    await intake.drain()


async def test_another_cells_event_goes_to_its_intake():
    here, there = Shelf(), Shelf()
    other = Intake(there)
    intake = Intake(here, elsewhere=lambda one: other if one.dedup_key == "theirs" else None)
    await intake.start()
    await other.start()
    await asyncio.gather(*(intake.accept(event(key)) for key in ("ours", "theirs")))
    assert (here.batches, there.batches) == ([["ours"]], [["theirs"]])
    await intake.drain()
    await other.drain()


async def test_an_event_whose_source_moves_while_queued_follows_it():
    there = Shelf()
    other = Intake(there)
    moved: list[str] = []

    def refuse(one: NewEvent) -> Exception | Receipt:
        """Let its source move away once the event is about to be stored."""
        if one.dedup_key == "moving" and not moved:
            moved.append(one.dedup_key)
            return RoutesChanged("the assignments changed")
        return Accepted(one.id)

    async def route(events: Sequence[NewEvent]) -> list[NewEvent]:
        return list(events)

    here = Shelf(refuse)
    intake = Intake(here, reroute=route, elsewhere=lambda one: other if one.dedup_key in moved else None)
    await intake.start()
    await other.start()
    await asyncio.gather(*(intake.accept(event(key)) for key in ("first", "moving", "last")))
    assert there.batches == [["moving"]]
    assert [key for batch in here.batches for key in batch if key != "moving"][-2:] == ["first", "last"]
    await intake.drain()
    await other.drain()


async def test_an_unresponsive_cell_delays_no_local_event():
    here, there = Shelf(), Shelf()
    there.gate.clear()
    other = Intake(there)
    intake = Intake(here, elsewhere=lambda one: other if one.dedup_key.startswith("theirs") else None)
    await intake.start()
    await other.start()
    waiting = [asyncio.create_task(intake.accept(event(f"theirs {number}"))) for number in range(300)]
    await eventually(lambda: other.waiting)
    for number in range(3):
        await intake.accept(event(f"ours {number}"))
    assert not any(task.done() for task in waiting)
    there.gate.set()
    await asyncio.gather(*waiting)
    await intake.drain()
    await other.drain()
