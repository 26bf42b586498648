"""The workload: an app that moves one unit of money between two accounts for each event, in order by paying account.

It is loaded by the real command line as ``server.app = "tests.faults.rig.bank:hook"``. Every handler first writes its effect
(one row of `bank.effect`, numbered in the order of writing), then moves the money, so that what must be rolled back is
there to be rolled back. `TABLES` are its tables; `LIMITS` tells the checker about its handlers.

Types of events, all sent to the source ``stripe`` with a body ``{"id", "type", "account", "to", "n"}``:

    move.*              moves the unit
    letter.*            moves it and publishes a message for the application named in BANK_APPLICATION
    slow.*              writes its effect, then waits ``seconds`` before it moves the unit; in order, too
    flaky.*             fails twice, then moves the unit
    broken.*            fails until the file BANK_MENDED exists; dead after four attempts
    clash.*             moves it without heeding the order of names, so that two of them may wait for each other
    poison.crash        kills its worker                  poison.segfault     likewise, by touching memory that is not there
    poison.memory       asks for 8 GiB                    poison.recursion    recurses without end
    poison.loop         never returns nor awaits          poison.deadlock     waits for a lock that it holds by itself

An event's field ``n`` is its number in its account's own sequence: `bank.latest` keeps the highest that was seen, by `tx.newer`.
Where BANK_TICKS is set, a chore leaves a row in `bank.tick` for each time it was done, with its beginning and its end.
"""

import asyncio
import ctypes
import hashlib
import os
import signal
from pathlib import Path
from typing import Final

from boathook import Boathook, Event, RetryPolicy, Transaction
from tests.faults.rig.store_state import Limits

ACCOUNTS: Final = 20
OPENING: Final = 10_000
ATTEMPTS: Final = 4
POISON_ATTEMPTS: Final = 3
TICK_S: Final = 0.3

TABLES: Final = f"""
create schema bank;
create table bank.account (name text primary key, balance bigint not null);
insert into bank.account select 'a' || lpad(i::text, 2, '0'), {OPENING} from generate_series(0, {ACCOUNTS - 1}) as i;
create table bank.effect (
    number bigserial primary key, event_key text not null, event_id uuid not null, handler text not null,
    attempt integer not null, account text not null, other text not null, sha text not null
);
create table bank.latest (account text primary key, n bigint not null, event_key text not null);
create table bank.tick (
    number bigserial primary key, began_at timestamptz not null default clock_timestamp(), ended_at timestamptz
);
"""

hook = Boathook()
_QUICK: Final = RetryPolicy(first_s=0.05, max_delay_s=0.2, max_attempts=ATTEMPTS)
_POISON: Final = RetryPolicy(first_s=0.05, max_delay_s=0.2, max_attempts=POISON_ATTEMPTS)
_POISONS: Final = ("crash", "segfault", "memory", "recursion", "loop", "deadlock")

LIMITS: Final = Limits(
    attempts={f"handler:{name}": ATTEMPTS for name in ("move", "letter", "slow", "flaky", "broken", "clash")}
    | {f"handler:poison_{name}": POISON_ATTEMPTS for name in _POISONS},
)


async def _write_effect(event: Event, tx: Transaction) -> None:
    await tx.execute(
        "insert into bank.effect (event_key, event_id, handler, attempt, account, other, sha)"
        " values ($1, $2, $3, $4, $5, $6, $7)",
        event.dedup_key,
        event.id,
        event.recipient.removeprefix("handler:"),
        event.attempt,
        event.json["account"],
        event.json["to"],
        hashlib.sha256(event.body).hexdigest(),
    )


async def _move(event: Event, tx: Transaction) -> None:
    """Move the unit; rows are locked in the order of their names, so that no two handlers wait for each other."""
    changes = sorted([(event.json["account"], -1), (event.json["to"], 1)])
    for account, change in changes:
        await tx.execute("update bank.account set balance = balance + $2 where name = $1", account, change)
    if "n" in event.json and await tx.newer("account", event.json["account"], event.json["n"]):
        await tx.execute(
            "insert into bank.latest (account, n, event_key) values ($1, $2, $3) on conflict (account) do update"
            " set n = excluded.n, event_key = excluded.event_key",
            event.json["account"],
            event.json["n"],
            event.dedup_key,
        )


@hook.on("stripe", "move.*", order_by="account", retry=_QUICK)
async def move(event: Event, tx: Transaction) -> None:
    """Move one unit."""
    await _write_effect(event, tx)
    await _move(event, tx)


@hook.on("stripe", "letter.*", order_by="account", retry=_QUICK)
async def letter(event: Event, tx: Transaction) -> None:
    """Move one unit and publish a message to the application's endpoints."""
    await _write_effect(event, tx)
    await hook.publish(
        tx,
        application=os.environ["BANK_APPLICATION"],
        type="unit.moved",
        payload={"key": event.dedup_key, "account": event.json["account"]},
        id=f"told:{event.dedup_key}",
    )
    await _move(event, tx)


@hook.on("stripe", "slow.*", order_by="account", retry=_QUICK, timeout=60)
async def slow(event: Event, tx: Transaction) -> None:
    """Take as long as the event says, the effect written."""
    await _write_effect(event, tx)
    await asyncio.sleep(event.json["seconds"])
    await _move(event, tx)


@hook.on("stripe", "flaky.*", order_by="account", retry=_QUICK)
async def flaky(event: Event, tx: Transaction) -> None:
    """Succeed at the third attempt."""
    await _write_effect(event, tx)
    if event.attempt < 3:
        raise ConnectionError("the bank is away")
    await _move(event, tx)


@hook.on("stripe", "broken.*", retry=_QUICK)
async def broken(event: Event, tx: Transaction) -> None:
    """Fail until the cause is fixed."""
    await _write_effect(event, tx)
    if not Path(os.environ.get("BANK_MENDED", "/nonexistent")).exists():  # noqa: ASYNC240 - a look at one file
        raise RuntimeError("this never works")
    await _move(event, tx)


@hook.on("stripe", "clash.*", retry=_QUICK)
async def clash(event: Event, tx: Transaction) -> None:
    """Lock the payer first, and wait before locking the other account."""
    await _write_effect(event, tx)
    for account, change in ((event.json["account"], -1), (event.json["to"], 1)):
        await tx.execute("update bank.account set balance = balance + $2 where name = $1", account, change)
        await asyncio.sleep(0.02)


async def tick() -> None:
    """Leave a row, and take some time for it."""
    async with hook.transaction() as tx:
        number = await tx.fetchval("insert into bank.tick default values returning number")
    await asyncio.sleep(TICK_S / 2)
    async with hook.transaction() as tx:
        await tx.execute("update bank.tick set ended_at = clock_timestamp() where number = $1", number)


if os.environ.get("BANK_TICKS"):
    hook.every(TICK_S)(tick)


@hook.on("stripe", "poison.crash", retry=_POISON)
async def poison_crash(event: Event, tx: Transaction) -> None:
    """Kill the worker."""
    await _write_effect(event, tx)
    os.kill(os.getpid(), signal.SIGKILL)


@hook.on("stripe", "poison.segfault", retry=_POISON)
async def poison_segfault(event: Event, tx: Transaction) -> None:
    """Access invalid memory."""
    await _write_effect(event, tx)
    ctypes.string_at(0)


@hook.on("stripe", "poison.memory", retry=_POISON)
async def poison_memory(event: Event, tx: Transaction) -> None:
    """Ask for more memory than a worker with a limit may have."""
    await _write_effect(event, tx)
    bytearray(8 * 1024**3)


@hook.on("stripe", "poison.recursion", retry=_POISON)
async def poison_recursion(event: Event, tx: Transaction) -> None:
    """Recurse without end."""
    await _write_effect(event, tx)
    _recurse(0)


def _recurse(depth: int) -> int:
    return _recurse(depth + 1) + 1


@hook.on("stripe", "poison.loop", retry=_POISON, timeout=1)
async def poison_loop(event: Event, tx: Transaction) -> None:
    """Never give the worker its thread back."""
    await _write_effect(event, tx)
    while True:
        pass


@hook.on("stripe", "poison.deadlock", retry=_POISON, timeout=1)
async def poison_deadlock(event: Event, tx: Transaction) -> None:
    """Wait for a lock that is never released."""
    await _write_effect(event, tx)
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()
