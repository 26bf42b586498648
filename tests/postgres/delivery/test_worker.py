"""Workers and the keeper: fairness, breakers, limits, crashes, stopping."""

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import textwrap
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self
from uuid import UUID

import pytest

from boathook import HTTP_DEFAULTS, config
from boathook.db.database import Connection, Database
from boathook.db.queries.listings import list_attempts
from boathook.delivery import dispatcher, handler_executor, handler_queues
from boathook.delivery.dispatcher import AttemptStuck
from boathook.delivery.handler_executor import run_worker
from boathook.delivery.keeper import Keeper
from boathook.domain.errors import DatabaseUnavailable
from boathook.domain.policy import Breaker, Dead, Retry, RetryPolicy
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.handlers.runner import RunSlot
from boathook.observability import meters
from boathook.service.operating import listings
from tests.support import eventually, logged, sampled
from tests.worker_harness import accept_events, attempts, delivery_states, running_worker, settings_for, wait_for_states

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def shop(db: Database) -> Database:
    await db.execute("create table deed (n int)")
    return db


async def deeds(db: Database) -> list[int]:
    return [row["n"] for row in await db.fetch("select n from deed order by n")]


async def test_two_workers_do_everything_exactly_once(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(first_s=0.01))
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values ($1)", event.json["n"])
        if event.json["n"] % 5 == 0 and event.attempt == 1:
            raise ConnectionError

    async with running_worker(shop, hook, worker_id="w1"), running_worker(shop, hook, worker_id="w2"):
        await accept_events(shop, *({"n": n} for n in range(300)))
        await wait_for_states(shop, succeeded=300)
    assert await deeds(shop) == list(range(300))


async def test_order_keys_keep_accept_order_over_two_workers(shop: Database) -> None:
    hook, seen = Boathook(), []

    @hook.on("shop", order_by="who", retry=RetryPolicy(first_s=0.02))
    async def note(event: Event, tx: Transaction) -> None:
        await asyncio.sleep(0.001)
        if event.json["n"] % 4 == 0 and event.attempt == 1:
            raise ConnectionError
        seen.append((event.json["who"], event.json["n"]))

    async with running_worker(shop, hook, worker_id="w1"), running_worker(shop, hook, worker_id="w2"):
        for n in range(0, 20, 2):
            await accept_events(shop, *({"who": who, "n": n + more} for more in (0, 1) for who in "ab"))
        await wait_for_states(shop, succeeded=40)
    for who in "ab":
        assert [n for whose, n in seen if whose == who] == list(range(20))


async def is_quick_one_done(shop: Database, patience_s: float) -> bool:
    """Flood a worker with a slow handler's events; return whether a quick handler still finishes."""
    hook, done, go_on = Boathook(), asyncio.Event(), asyncio.Event()

    @hook.on("slow")
    async def slow(event: Event) -> None:
        await go_on.wait()

    @hook.on("quick")
    async def quick(event: Event) -> None:
        done.set()

    async with running_worker(shop, hook, concurrency=4):
        await accept_events(shop, *({} for _ in range(8)), source="slow")

        async def is_leased() -> bool:
            return (await delivery_states(shop)).get("leased", 0) >= 3

        await eventually(is_leased, every=0.005)
        await accept_events(shop, {}, source="quick")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), patience_s)
        was_done = done.is_set()
        go_on.set()
        await done.wait()
        return was_done


async def test_a_slow_handler_does_not_delay_another(shop: Database) -> None:
    assert await is_quick_one_done(shop, patience_s=60)


async def test_without_kept_places_it_would(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(handler_queues.HandlerQueues, "_reserved", lambda self, queue: 0)
    assert not await is_quick_one_done(shop, patience_s=1)


async def test_an_open_breaker_burns_no_attempts_and_probes_one_by_one(shop: Database) -> None:
    hook, is_down, calls, began = Boathook(), [True], [], time.time()
    probe_at = meters.gauge_handle(
        "boathook_handler_circuit_breaker_probe_timestamp_seconds", recipient="handler:note", dependency="crm"
    )
    breaker = Breaker(dependency="crm", failure_threshold=3, pause_s=0.3)

    @hook.on("shop", breaker=breaker, concurrency=3, retry=RetryPolicy(first_s=0.01, max_attempts=20))
    async def note(event: Event) -> None:
        calls.append(time.monotonic())
        if is_down[0]:
            raise ConnectionError("the crm is away")

    with logged() as lines:
        async with running_worker(shop, hook):
            await accept_events(shop, *({} for _ in range(10)))
            await eventually(lambda: len(calls) >= 5)
            assert len(calls) <= 6
            await eventually(lambda: probe_at.value > began)
            is_down[0] = False
            await wait_for_states(shop, succeeded=10)
            await eventually(lambda: probe_at.value == 0)
    changes = [line for line in lines if line["event"] in {"breaker_opened", "breaker_closed"}]
    assert [line["event"] for line in changes] == ["breaker_opened", "breaker_closed"]
    assert {(line["dependency"], line["recipient"]) for line in changes} == {("crm", "handler:note")}
    assert changes[0]["code"] == "ConnectionError"
    assert datetime.fromisoformat(changes[0]["next_probe_at"]).timestamp() > began
    assert await shop.fetchval("select max(attempts) from boathook.delivery_archive") < 8


async def test_a_handler_that_names_no_policy_is_retried_for_hours(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop")
    async def note(event: Event) -> None:
        raise ConnectionError("the crm is away")

    async with running_worker(shop, hook, retry=config.defaults()["worker"]["retry"]):
        await accept_events(shop, {})
        for attempt in range(1, 12):
            await eventually(functools.partial(has_failed, shop, attempt))
            assert await shop.fetchval("select state from boathook.delivery") == "pending", f"after attempt {attempt}"
            await shop.execute("update boathook.delivery set due_at = now() where state = 'pending'")
        await wait_for_states(shop, dead=1)
    assert await shop.fetchval("select attempts from boathook.delivery") == 12


async def has_failed(shop: Database, times: int) -> bool:
    """Return whether the only delivery has failed so many times and is not being tried."""
    ended = await shop.fetchval("select count(*) from boathook.attempt")
    return ended == times and await shop.fetchval("select state from boathook.delivery") != "leased"


@pytest.mark.parametrize(
    ("own", "numbers"),
    [(None, {"shop": [1], "bank": [1, 2]}), (RetryPolicy(delays_s=(0, 0)), {"shop": [1, 2, 3], "bank": [1, 2, 3]})],
    ids=["settings", "own-policy"],
)
async def test_retry_policy_is_the_handlers_then_the_sources_then_the_default(
    shop: Database, own: RetryPolicy | None, numbers: dict[str, list[int]]
) -> None:
    hook = Boathook()

    @hook.on(None, retry=own)
    async def note(event: Event) -> None:
        raise ConnectionError("the crm is away")

    sources = {"shop": {"provider": "generic-hmac", "retry": "none"}}
    async with running_worker(shop, hook, sources=sources, retry="0"):
        for source in numbers:
            await accept_events(shop, {}, source=source)
        await wait_for_states(shop, dead=2)
    rows = await shop.fetch(
        "select e.source, a.number from boathook.attempt a join boathook.event e on e.id = a.event_id order by a.number"
    )
    assert {source: [row["number"] for row in rows if row["source"] == source] for source in numbers} == numbers


async def test_a_run_that_cannot_start_is_released_and_not_counted(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails between claim and handler more often than the policy allows."""
    hook, left = Boathook(), 12
    connect = RunSlot.connection

    async def connection(run_slot: RunSlot) -> Connection:
        nonlocal left
        left -= 1
        if left >= 0:
            raise DatabaseUnavailable("the database system is starting up")
        return await connect(run_slot)

    monkeypatch.setattr(RunSlot, "connection", connection)

    @hook.on("shop", retry=RetryPolicy(first_s=0.01, max_attempts=2))
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values ($1)", event.json["n"])

    async with running_worker(shop, hook):
        await accept_events(shop, {"n": 1}, {"n": 2})
        await wait_for_states(shop, succeeded=2)
    assert await deeds(shop) == [1, 2]
    assert left < 0
    assert await shop.fetchval("select max(attempts) from boathook.delivery_archive") == 1


async def test_a_limit_holds_over_two_workers(shop: Database) -> None:
    hook, running, most = Boathook(), [0], [0]

    @hook.on("shop", concurrency=2)
    async def note(event: Event) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        running[0] -= 1

    async with running_worker(shop, hook, worker_id="w1"), running_worker(shop, hook, worker_id="w2"):
        await accept_events(shop, *({} for _ in range(20)))
        await wait_for_states(shop, succeeded=20)
    assert most[0] <= 2


async def test_stopping_finishes_running_handlers_and_releases_the_rest(shop: Database) -> None:
    hook, started, goes_on = Boathook(), asyncio.Event(), asyncio.Event()

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        started.set()
        await goes_on.wait()

    async def stop_soon() -> None:
        await asyncio.sleep(0.1)
        goes_on.set()

    async with running_worker(shop, hook, concurrency=1) as one:
        await accept_events(shop, {}, {})
        await started.wait()
        stopping = asyncio.create_task(stop_soon())
        assert isinstance(one.queues, handler_queues.HandlerQueues)
        queue = one.queues.queues["handler:note"]
        queue.record(0.0001)  # as if it were quick, so that the second one is claimed ahead
        queue._mean_s = 0.0001
        one.must_discover.set()

        async def are_leased() -> bool:
            return (await delivery_states(shop)).get("leased") == 2

        await eventually(are_leased)
    await stopping
    assert await delivery_states(shop) == {"succeeded": 1, "pending": 1}
    assert await shop.fetchval("select attempts from boathook.delivery") == 0


async def test_a_handler_too_slow_to_stop_is_cancelled_and_not_counted(shop: Database) -> None:
    hook, started = Boathook(), asyncio.Event()

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        started.set()
        await asyncio.sleep(60)

    async with running_worker(shop, hook, drain_s=0.1):
        await accept_events(shop, {})
        await started.wait()
    assert await delivery_states(shop) == {"pending": 1}
    assert await shop.fetchval("select attempts from boathook.delivery") == 0
    assert await deeds(shop) == []


@pytest.mark.extended("waits for intervals and deadlines of the product")
@pytest.mark.parametrize("is_sync", [True, False])
async def test_a_handler_that_cannot_be_stopped_ends_the_worker(
    shop: Database, monkeypatch: pytest.MonkeyPatch, is_sync: bool
) -> None:
    monkeypatch.setattr(dispatcher, "GRACE_S", 0.2)
    monkeypatch.setattr(handler_executor, "GRACE_S", 0.2)
    hook = Boathook()
    if is_sync:

        @hook.on("shop", timeout=0.1, retry=RetryPolicy(first_s=60))
        def note(event: Event) -> None:
            time.sleep(3)

    else:

        @hook.on("shop", timeout=0.1, retry=RetryPolicy(first_s=60))
        async def deaf(event: Event) -> None:
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    continue

    with pytest.raises(AttemptStuck):  # noqa: PT012 it is the end of the block that raises
        async with running_worker(shop, hook, lease_s=0.3) as one:
            await accept_events(shop, {})
            await asyncio.wait_for(one._quit.wait(), 300)


async def test_a_dead_predecessors_leases_are_taken_over_at_once(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(first_s=0.01))
    async def note(event: Event) -> None: ...

    async with running_worker(shop, hook, worker_id="old"):
        pass
    await accept_events(shop, {})
    await shop.execute(
        "update boathook.delivery set state = 'leased', attempts = 1, fence = 1, leased_by = 'old',"
        " lease_until = now() + interval '1 hour'"
    )
    async with running_worker(shop, hook, worker_id="new", predecessors=["old"]):
        await wait_for_states(shop, succeeded=1)
    assert [outcome for _, outcome, _ in await attempts(shop)] == ["lost", "succeeded"]


async def test_a_dead_workers_attempt_counts_under_the_sources_policy(shop: Database) -> None:
    hook = Boathook()

    @hook.on()
    async def note(event: Event) -> None: ...

    sources = {"shop": {"provider": "stripe", "secrets": ["whsec_x"], "retry": "1"}}  # two attempts
    async with running_worker(shop, hook, worker_id="old", sources=sources):
        pass
    await accept_events(shop, {})
    await shop.execute(
        "update boathook.delivery set state = 'leased', attempts = 2, fence = 2, leased_by = 'old',"
        " lease_until = now() + interval '1 hour'"
    )
    async with running_worker(shop, hook, worker_id="new", predecessors=["old"], sources=sources):
        await wait_for_states(shop, dead=1)


async def test_a_suspect_runs_only_in_the_suspects_worker(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values ($1)", event.json["n"])

    async with running_worker(shop, hook, worker_id="w1"):
        pass
    await accept_events(shop, {"n": 1}, {"n": 2}, {"n": 3})
    await shop.execute("update boathook.delivery set crashes = 2 where seq = (select min(seq) from boathook.delivery)")
    async with running_worker(shop, hook, worker_id="w2"):
        await wait_for_states(shop, succeeded=2, pending=1)
    async with running_worker(shop, hook, worker_id="w3", only_suspects=True):
        await wait_for_states(shop, succeeded=3)
    assert await deeds(shop) == [1, 2, 3]


async def test_the_keeper_reaps_frees_and_counts(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", order_by="k", retry=RetryPolicy(first_s=0.01))
    async def note(event: Event) -> None: ...

    async with running_worker(shop, hook, worker_id="old"):
        pass
    await accept_events(shop, {"k": 1}, {"k": 2})
    await shop.execute("update boathook.delivery set is_blocked = true where order_key = '1'")
    await shop.execute(
        "update boathook.delivery set state = 'leased', attempts = 1, fence = 1, leased_by = 'gone',"
        " lease_until = now() - interval '1 s' where order_key = '2'"
    )
    stop, beats = asyncio.Event(), []
    keepers = [
        asyncio.create_task(Keeper(shop, settings_for(shop.url)).run(stop, lambda: beats.append(1))) for _ in range(2)
    ]
    async with running_worker(shop, hook, worker_id="w"):
        await wait_for_states(shop, succeeded=2)
    stop.set()
    await asyncio.gather(*keepers)
    assert beats


async def test_keeper_drops_its_gauges_and_keeps_those_of_other_roles(shop: Database) -> None:
    """In an application's process, it runs beside the intake, which sets its gauges when something changes."""
    meters.gauge("boathook_database_unavailable", 1)
    skew = meters.gauge_handle("boathook_sender_clock_skew_seconds", source="shop")
    stop = asyncio.Event()
    keepers = [asyncio.create_task(Keeper(shop, settings_for(shop.url)).run(stop, lambda: None)) for _ in range(2)]
    await eventually(lambda: bool(meters.snapshot().get("boathook_oldest_due_seconds")))
    skew.value = 3
    stop.set()
    await asyncio.gather(*keepers)
    left = meters.snapshot()
    assert not left.get("boathook_oldest_due_seconds")
    assert left["boathook_database_unavailable"] == [[[], 1]]
    assert [["shop"], 3] in left["boathook_sender_clock_skew_seconds"]


async def test_slow_clocks_of_this_host_do_not_bend_the_policy(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock an hour ahead, a delivery would count as too old for any retry."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(hours=1)

    monkeypatch.setattr(dispatcher, "datetime", Ahead)
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(first_s=0.01))
    async def note(event: Event) -> None:
        if event.attempt == 1:
            raise RuntimeError

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)


PROGRAM = textwrap.dedent("""
    import asyncio, os, sys, uuid
    from boathook.delivery.handler_executor import run_worker
    from boathook.domain.policy import RetryPolicy
    from boathook.handlers.api import Boathook
    from tests.worker_harness import settings_for

    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(first_s=0.05, max_attempts=4))
    async def note(event, tx):
        await tx.execute("insert into deed values ($1)", event.json["n"])
        if event.json["n"] == 13:
            os._exit(9)

    asyncio.run(run_worker(
        settings_for(sys.argv[1], lease_s=1.0), hook, worker_id=uuid.uuid4().hex, only_suspects=sys.argv[2] == "suspects",
        stop=asyncio.Event(), beat=lambda: None))
""")


def spawn(url: str, mode: str, **environment: str) -> "subprocess.Popen[bytes]":
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", **environment}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, url, mode], env=variables, stderr=subprocess.DEVNULL)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_payload_that_kills_its_worker_dies_and_others_succeed(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(first_s=0.05, max_attempts=4))
    async def note(event: Event) -> None: ...

    async with running_worker(shop, hook):
        pass
    await accept_events(shop, *({"n": n} for n in range(10, 20)))
    stop = asyncio.Event()
    keeper = asyncio.create_task(Keeper(shop, settings_for(shop.url)).run(stop, lambda: None))
    processes = {mode: spawn(shop.url, mode) for mode in ("normal", "suspects")}

    async def is_done() -> bool:
        for mode, process in processes.items():
            if process.poll() is not None:
                processes[mode] = spawn(shop.url, mode)
        return await delivery_states(shop) == {"succeeded": 9, "dead": 1}

    try:
        await eventually(is_done, every=0.1)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        stop.set()
        await keeper
    assert await deeds(shop) == [n for n in range(10, 20) if n != 13]
    row = await shop.fetchrow("select attempts, code from boathook.delivery")
    assert row is not None
    assert tuple(row) == (4, "LEASE_LOST")


@pytest.mark.parametrize(
    "point",
    sampled(["handler.before_commit", "claim.after_commit", "handler.before_effect", "handler.after_effect", "handler.after_commit"], keep=2),
)  # fmt: skip
async def test_a_kill_at_any_point_leaves_each_effect_once(shop: Database, point: str) -> None:
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(first_s=0.05, max_attempts=4))
    async def note(event: Event) -> None: ...

    async with running_worker(shop, hook):
        pass
    await accept_events(shop, *({"n": n} for n in range(5)))
    stop = asyncio.Event()
    keeper = asyncio.create_task(Keeper(shop, settings_for(shop.url)).run(stop, lambda: None))
    doomed = spawn(shop.url, "normal", BOATHOOK_CRASH_POINT=f"{point}:{1 if point.startswith('claim') else 3}:kill")
    try:
        await eventually(lambda: doomed.poll() is not None)
        assert doomed.returncode == -9
        second = spawn(shop.url, "normal")
        try:
            await wait_for_states(shop, succeeded=5)
        finally:
            second.kill()
            second.wait()
    finally:
        doomed.kill()
        stop.set()
        await keeper
    assert await deeds(shop) == list(range(5))


async def test_a_whole_worker_process_opens_works_and_ends(shop: Database) -> None:
    hook, stop, beats = Boathook(), asyncio.Event(), []

    @hook.on("shop", timeout=90)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values ($1)", event.json["n"])
        assert await tx.fetchval("show statement_timeout") == "90s"
        assert await tx.fetchval("show synchronous_commit") == "on"

    async with running_worker(shop, hook):
        pass
    await accept_events(shop, {"n": 1})
    task = asyncio.create_task(
        run_worker(
            settings_for(shop.url), hook, worker_id="whole", stop=stop, beat=lambda: beats.append(1), predecessors=["x"]
        )
    )
    await wait_for_states(shop, succeeded=1)
    stop.set()
    await asyncio.wait_for(task, 300)
    assert beats
    assert await deeds(shop) == [1]


class Ledger(Exception):
    dependency = "ledger"


async def test_what_retry_on_does_not_select_is_dead_at_once_with_its_dependency(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry_on=HTTP_DEFAULTS, retry=RetryPolicy(delays_s=(600,)))
    async def note(event: Event) -> Retry | Dead:
        if returned := event.json.get("returned"):
            return Retry(dependency="erp") if returned == "retry" else Dead("REFUSED", "no", "e\x00rp")
        raise TimeoutError("the crm is slow") if event.json["is_slow"] else Ledger("no such account")

    with logged() as lines:
        async with running_worker(shop, hook):
            slow, wrong, *returned = await accept_events(
                shop, {"is_slow": True}, {"is_slow": False}, {"returned": "retry"}, {"returned": "dead"}
            )
            await wait_for_states(shop, dead=2, pending=2)
            await eventually(lambda: has_failed_of(shop, slow))
            await eventually(lambda: has_failed_of(shop, returned[0]))
    failed = [line for line in lines if line["event"] == "attempt_failed"]
    assert {line["code"]: line.get("dependency") for line in failed} == {
        "Ledger": "ledger", "TimeoutError": None, "RETRY": "erp", "REFUSED": "e\x00rp"
    }  # fmt: skip
    assert [[one.dependency for one in await list_attempts(shop, key, 0)] for key in returned] == [["erp"], ["erp"]]
    row = await shop.fetchrow("select state, attempts, code from boathook.delivery where event_id = $1", wrong)
    assert row is not None
    assert tuple(row) == ("dead", 1, "Ledger")
    detail = await listings.get_delivery(shop, (wrong, 0))
    assert [attempt.dependency for attempt in detail.attempts] == ["ledger"]
    assert [one.dependency for one in await list_attempts(shop, slow, 0)] == [None]
    assert await shop.fetchval("select state from boathook.delivery where event_id = $1", slow) == "pending"


async def has_failed_of(shop: Database, event_id: UUID) -> bool:
    return bool(await shop.fetchval("select count(*) from boathook.attempt where event_id = $1", event_id))
