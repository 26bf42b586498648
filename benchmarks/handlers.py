"""The handler of the benchmarks: one small insert, and the time from acceptance to its start.

Where BOATHOOK_BENCHMARK_STARTS names a file, the waits are written there, in milliseconds, when the process ends.
"""

import atexit
import os
import time
from array import array

from boathook import Boathook, Event, Transaction

TABLE = "create table if not exists public.benchmark_effect (id bigserial primary key, event_key text not null)"
INSERT = "insert into public.benchmark_effect (event_key) values ($1)"

hook = Boathook()
waits_ms = array("d")


@hook.on("stripe")
async def record(event: Event, tx: Transaction) -> None:
    """Write one row for the event."""
    waits_ms.append(time.time() * 1e3 - (event.id.int >> 80))
    await tx.execute(INSERT, event.dedup_key)


def _write_waits(path: str) -> None:
    with open(f"{path}.{os.getpid()}", "wb") as file:  # noqa: PTH123 - atexit wants the plainest tools
        waits_ms.tofile(file)


if path := os.environ.get("BOATHOOK_BENCHMARK_STARTS"):
    atexit.register(_write_waits, path)
