"""Processes die at every failpoint while shops work: exactly the committed changes are delivered."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from boathook.observability.failpoints import FAILPOINTS
from boathook_cashdesk.entities import Action, Entity
from boathook_cashdesk.receiver import Receiver
from boathook_cashdesk.simulator import Change, Shop
from tests.apps.cashdesk.server import Cabinet, CashdeskServer, Client, wait_until_delivered
from tests.crash_schedule import CrashSchedule
from tests.support import eventually

pytestmark = pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")

WEBHOOKS = {
    "/all": dict.fromkeys(Entity, True),
    "/goods": {Entity.PRODUCTS: True, Entity.SHIFTS: True},
    "/money": {Entity.RECEIPTS: True, Entity.OPERATIONS: True, Entity.ENCASHMENTS: True},
}
KILLED = ("gateway", "worker", "sender")
HANDLER_POINTS = tuple(point for point in FAILPOINTS if point.startswith("handler."))
SEND_POINTS = tuple(point for point in FAILPOINTS if point.startswith("send."))


@asynccontextmanager
async def at_work(cabinet: Cabinet, shop: Client, seed: int) -> AsyncIterator[list[int]]:
    """Let a shop work until the block ends; yields the statuses it was answered, 0 where it got no answer."""
    statuses: list[int] = []
    task = asyncio.create_task(_work(cabinet, Shop(shop.token, seed), statuses))
    try:
        yield statuses
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _work(cabinet: Cabinet, shop: Shop, statuses: list[int]) -> None:
    async with httpx.AsyncClient(base_url=cabinet.running.base, timeout=300) as http:
        while True:
            letter = shop.write()
            try:
                answer = await http.request(letter.method, letter.path, content=letter.body, headers=letter.headers)
            except httpx.TransportError:
                shop.lost(letter)
                statuses.append(0)
                await asyncio.sleep(0.05)
                continue
            statuses.append(answer.status_code)
            if answer.status_code in letter.expect:
                shop.answered(letter, answer.status_code, answer.content)
            else:
                shop.lost(letter)
                await asyncio.sleep(0.05)


def committed(cabinet: Cabinet, shop: Client) -> set[Change]:
    """Return every committed change, derived from the rows: revision 3 means one creation and two updates.

    Of deleted rows the events alone can tell, which is why these are judged by `phantom_changes` too.
    """
    changes = set()
    for entity in Entity:
        for id, revision in cabinet.rows(
            f"select id, revision from cashdesk.{entity} where user_id = %s", shop.user.id
        ):
            changes.add(Change(entity, Action.CREATE, id, 1))
            changes |= {Change(entity, Action.UPDATE, id, number) for number in range(2, revision + 1)}
    return changes


def phantom_changes(cabinet: Cabinet, shop: Client, heard: set[Change]) -> set[Change]:
    """Return delivered changes that contradict the rows."""
    wrong = set()
    for entity in Entity:
        revisions = dict(cabinet.rows(f"select id, revision from cashdesk.{entity} where user_id = %s", shop.user.id))
        for change in heard:
            if change.entity is entity and not is_so(change, revisions):
                wrong.add(change)
    return wrong


def is_so(change: Change, revisions: dict[int, int]) -> bool:
    if change.action is Action.DELETE:
        return change.id not in revisions
    return change.revision <= revisions.get(change.id, change.revision)


def judge(cabinet: Cabinet, shop: Client, receiver: Receiver) -> None:
    """Assert that each webhook got exactly the committed changes of its types, and the store is consistent."""
    changes = committed(cabinet, shop)
    everything = set(receiver.heard["/all"])
    assert len(changes) > 20, "a matrix of a shop that did nothing proves nothing"
    for path, types in WEBHOOKS.items():
        heard, wanted = set(receiver.heard[path]), {entity for entity in types if types[entity]}
        assert {change for change in changes if change.entity in wanted} - heard == set(), f"{path} missed changes"
        assert {change.entity for change in heard} <= wanted
        assert phantom_changes(cabinet, shop, heard) == set()
        assert heard == {change for change in everything if change.entity in wanted}, f"{path} and /all differ"
    deleted = {(change.entity, change.id) for change in everything if change.action is Action.DELETE}
    for change in everything:
        exists = any((one.entity, one.id) == (change.entity, change.id) for one in changes)
        assert exists or (change.entity, change.id) in deleted, f"{change}: neither there nor deleted"
    assert receiver.forged.total() == 0
    assert cabinet.rows("select count(*) from cashdesk.receipts where state = 'PENDING'") == [(0,)]
    documents = cabinet.rows(
        "select r.document, s.device_id from cashdesk.receipts r join cashdesk.shifts s on s.id = r.shift_id"
        " where r.document is not null"
    )
    assert len(documents) == len(set(documents)), "a fiscal document was numbered twice"
    cabinet.verify()


async def begin(running: CashdeskServer, receiver: Receiver) -> tuple[Cabinet, Client]:
    cabinet = Cabinet(running)
    shop = await cabinet.client()
    for path, types in WEBHOOKS.items():
        await shop.webhook(receiver, path, types)
    return cabinet, shop


async def judge_finally(cabinet: Cabinet, shop: Client, receiver: Receiver) -> None:
    await wait_until_delivered(cabinet, shop.user, timeout=300)
    judge(cabinet, shop, receiver)


async def _more(statuses: list[int], number: int) -> None:
    goal = len([status for status in statuses if 200 <= status < 300]) + number
    await eventually(lambda: len([status for status in statuses if 200 <= status < 300]) >= goal)


@pytest.mark.parametrize("role", KILLED)
async def test_a_process_is_killed_while_shops_work(role: str, running: CashdeskServer, receiver: Receiver):
    cabinet, shop = await begin(running.start(), receiver)
    async with at_work(cabinet, shop, 1) as statuses:
        for _ in range(3):
            await _more(statuses, 25)
            running.kill(role)
        await _more(statuses, 25)
    await judge_finally(cabinet, shop, receiver)


async def test_everything_is_killed_and_started_again(running: CashdeskServer, receiver: Receiver):
    cabinet, shop = await begin(running.start(), receiver)
    for seed in (1, 2):
        async with at_work(cabinet, shop, seed) as statuses:
            await _more(statuses, 30)
            await asyncio.to_thread(running.kill_all)
        await asyncio.to_thread(running.start)
    async with at_work(cabinet, shop, 3) as statuses:
        await _more(statuses, 30)
    await judge_finally(cabinet, shop, receiver)


async def test_workers_and_senders_die_at_every_point(running: CashdeskServer, receiver: Receiver, tmp_path: Path):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(["claim.after_commit", *HANDLER_POINTS, *SEND_POINTS], 5))
    running.start(**crashes.environment)
    cabinet, shop = await begin(running, receiver)
    async with at_work(cabinet, shop, 4) as statuses:
        await asyncio.to_thread(crashes.wait)
        await _more(statuses, 30)
    await judge_finally(cabinet, shop, receiver)


MUTATIONS: tuple[Callable[[Receiver], object], ...] = (
    lambda receiver: receiver.heard["/all"].pop(next(iter(receiver.heard["/all"]))),
    lambda receiver: receiver.heard["/goods"].update({Change(Entity.PRODUCTS, Action.UPDATE, 1, 10_000): 1}),
    lambda receiver: receiver.heard["/money"].clear(),
)


async def test_the_comparison_detects_damage(running: CashdeskServer, receiver: Receiver):
    """Mutant: a change that was not published and one that was published but never happened are both found."""
    cabinet, shop = await begin(running.start(), receiver)
    async with at_work(cabinet, shop, 5) as statuses:
        await _more(statuses, 60)
    await judge_finally(cabinet, shop, receiver)
    heard = copy.deepcopy(receiver.heard)
    for mutate in MUTATIONS:
        mutate(receiver)
        with pytest.raises(AssertionError):
            judge(cabinet, shop, receiver)
        receiver.heard = copy.deepcopy(heard)
    judge(cabinet, shop, receiver)
