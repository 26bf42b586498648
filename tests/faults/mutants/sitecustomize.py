"""Removes one safeguard of boathook in a process that is started as a mutant; the scenario must then fail.

Python imports this by itself at its start where this folder is on PYTHONPATH; ``BOATHOOK_MUTANT`` names patches of
`PATCHES`, with commas between them. A patch is applied right after its module was first imported. What it replaces must exist, so that a rename
fails the mutant loudly instead of leaving it without effect. The product knows nothing of this.
"""

import asyncio
import contextlib
import datetime as dt
import importlib.abc
import importlib.machinery
import itertools
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec

_background: set[Any] = set()


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an existing attribute with ``make(old)``."""
    if not hasattr(owner, name):
        os.write(2, f"mutant: {owner.__name__} has no {name} any more; mend the patch\n".encode())
        os._exit(70)
    setattr(owner, name, make(getattr(owner, name)))


def answers_before_commit(intake: ModuleType) -> None:
    """Answer 2xx at once, and pass the event to the intake slightly later."""

    def make(put: Any) -> Any:
        def answer(self: Any, event: Any, waiter: Any) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(0.2, put, self, event, loop.create_future())
            waiter.set_result(intake.Accepted(event.id))

        return answer

    replace(intake.Intake, "put", make)


def _forget(task: "asyncio.Task[None]") -> None:
    _background.discard(task)
    if not task.cancelled():
        task.exception()


def forgets_keys(arrival: ModuleType) -> None:
    """Give each request a key of its own, so that no copy is known again."""
    replace(arrival, "_key_hash", lambda _: lambda source, verified: uuid.uuid4())
    replace(
        arrival.EventBuilder,
        "event",
        lambda real: lambda self, *args: arrival.replace(real(self, *args), replay_hash=None),
    )


def forgets_conflicts(events: ModuleType) -> None:
    """Treat every request with a known key as a duplicate, with any body."""

    def make(repeated: Any) -> Any:
        async def answer(self: Any, connection: Any, event: Any, seen: Any) -> Any:
            return events.Duplicate(seen["event_id"])

        return answer

    replace(events.EventStore, "_repeated", make)


def believes_everybody(hmac: ModuleType) -> None:
    """Accept every signature."""
    replace(hmac, "compare_digest", lambda _: lambda one, other: True)


def orders_nothing(filters: ModuleType) -> None:
    """Let no event wait for the one before it."""
    replace(filters, "_order_key", lambda _: lambda parts, body: None)


def commits_in_memory(database: ModuleType) -> None:
    """Let sessions commit as the server says, even where that is not durable."""

    def make(real: Any) -> Any:
        async def settings(url: str, timeout_s: float) -> dict[str, str]:
            found: dict[str, str] = await real(url, timeout_s)
            return {name: value for name, value in found.items() if name != "synchronous_commit"}

        return settings

    replace(database, "read_session_settings", make)


def believes_every_answer(attempt: ModuleType) -> None:
    """Treat every response of an endpoint as a success."""
    replace(attempt, "classify_response", lambda _: lambda answer: attempt.Success())


def waits_before_sync(disk: ModuleType) -> None:
    """Delay each sync: a power cut then often meets unsynced writes. Breaks nothing."""

    def make(sync: Any) -> Any:
        def wait(self: Any) -> None:
            time.sleep(0.03)
            sync(self)

        return wait

    replace(disk.File, "sync", make)


def syncs_nothing(disk: ModuleType) -> None:
    """Treat spool writes as durable without a sync."""
    replace(disk.File, "sync", lambda _: lambda self: None)


def ignores_failed_syncs(disk: ModuleType) -> None:
    """Treat failed syncs as successful."""

    def make(sync: Any) -> Any:
        def try_to(self: Any) -> None:
            with contextlib.suppress(OSError):
                sync(self)

        return try_to

    replace(disk.File, "sync", make)


def answers_before_sync(spool: ModuleType) -> None:
    """Answer as soon as an event is on its way to the spool."""

    def make(append: Any) -> Any:
        def at_once(self: Any, payload: bytes) -> Any:
            append(self, payload).add_done_callback(lambda written: written.exception())
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        return at_once

    replace(spool.Spool, "append", make)


def ignores_a_full_disk(shelf: ModuleType) -> None:
    """Treat writes to a full spool as successful."""

    def make(write: Any) -> Any:
        def try_to(self: Any, payloads: Any) -> None:
            with contextlib.suppress(shelf.SpoolUnavailable):
                write(self, payloads)

        return try_to

    replace(shelf.SegmentStore, "write", make)


def keeps_nothing_drained(shelf: ModuleType) -> None:
    """Throw a segment away as soon as it is drained."""

    def make(finish: Any) -> Any:
        def throw(self: Any, segment: Any) -> None:
            finish(self, segment)
            segment.path.with_suffix(shelf.DONE_SUFFIX).unlink()

        return throw

    replace(shelf.SegmentStore, "finish", make)


def believes_every_record(segment: ModuleType) -> None:
    """Skip the checksums of records."""

    def make(_: Any) -> Any:
        def frame_at(data: bytes, place: int) -> Any:
            body = place + segment.FRAME_BYTES
            if body > len(data):
                return None
            _marker, size, sequence, synced, _checksum = segment._FRAME.unpack_from(data, place)
            return segment.Record(sequence, data[body : body + size]), synced

        return frame_at

    replace(segment, "_frame_at", make)


def drains_as_new(draining: ModuleType) -> None:
    """Treat each event of the spool as new."""

    def make(decode: Any) -> Any:
        def anew(payload: bytes) -> Any:
            event = decode(payload)
            return msgspec.structs.replace(event, id=uuid.uuid4(), key_hash=uuid.uuid4(), replay_hash=None)

        return anew

    replace(draining, "decode", make)


def overtakes_the_spool(intake: ModuleType) -> None:
    """Bring newer events straight to PostgreSQL while older ones are drained."""

    async def store(self: Any, event: Any, waiter: Any) -> None:
        try:
            (receipt,) = await self._store.append([event])
        except Exception as error:  # noqa: BLE001 - as the intake hands it over
            waiter.set_exception(error)
        else:
            waiter.set_result(receipt)

    def make(put: Any) -> Any:
        def take(self: Any, event: Any, waiter: Any) -> None:
            if self.mode is not intake.Mode.DRAINING:
                put(self, event, waiter)
                return
            task = asyncio.create_task(store(self, event, waiter))
            _background.add(task)
            task.add_done_callback(_forget)

        return take

    replace(intake.Intake, "put", make)


def answers_before_write(spool: ModuleType) -> None:
    """Answer at once, and pass the event to the spool slightly later."""

    def make(append: Any) -> Any:
        def later(self: Any, payload: bytes) -> Any:
            loop = asyncio.get_running_loop()
            loop.call_later(0.2, append, self, payload)
            done = loop.create_future()
            done.set_result(None)
            return done

        return later

    replace(spool.Spool, "append", make)


def adopts_nothing(shelf: ModuleType) -> None:
    """Leave what dead processes have spooled where it is."""
    replace(shelf.SegmentStore, "adopt", lambda _: lambda self: 0)


def hoards_what_it_spools(spool: ModuleType) -> None:
    """Keep in memory, too, all that waits on disk."""
    hoard: list[bytes] = []

    def make(append: Any) -> Any:
        def keep(self: Any, payload: bytes) -> Any:
            hoard.append(payload)
            return append(self, payload)

        return keep

    replace(spool.Spool, "append", make)


def stops_at_once(listener: ModuleType) -> None:
    """Close all connections when stopping."""

    async def drain(self: Any, *, linger_s: float, drain_s: float) -> bool:
        self._server.close()
        self._stop()
        return True

    replace(listener.Listener, "drain", lambda _: drain)


def counts_collisions(runner: ModuleType) -> None:
    """Treat a transaction that PostgreSQL aborted as the handler's own failure."""
    replace(runner, "RETRYABLE_STATES", lambda _: frozenset())


def elects_everybody(keeper: ModuleType) -> None:
    """Let every keeper be elected and run every chore."""

    @contextlib.asynccontextmanager
    async def grant(database: Any, name: str = "") -> Any:
        async with database.acquire() as connection:
            yield connection

    replace(keeper, "elect_keeper", lambda _: grant)
    replace(keeper, "try_advisory_lock", lambda _: grant)


def finishes_lost_attempts(executor: ModuleType) -> None:
    """Let a handler continue after losing its lease."""
    replace(executor.HandlerExecutor, "lose", lambda _: lambda _self, _attempt: None)


def commits_effects_first(sessions: ModuleType) -> None:
    """Commit a handler's effects, and the end of its delivery in a later transaction."""

    class Late:
        def __init__(self, function: Any, mark: str) -> None:
            self.function, self.mark = function, mark

        def literal(self, arguments: Any) -> str:
            apart = f"commit; select pg_sleep(0.3); begin; set local boathook.mark = '{self.mark}'"
            return f"{apart}; {self.function.literal(arguments)}"

    def make(begin: Any) -> Any:
        def settle(self: Any, value: object) -> Any:
            (function, arguments), *rest = begin(self, value)
            return ((Late(function, self.mark), arguments), *rest)

        return settle

    replace(sessions.Completion, "begin", make)


def keeps_every_answer(reader: ModuleType) -> None:
    """Read and keep complete responses of endpoints."""

    def make(_: Any) -> Any:
        def on_body(self: Any, data: bytes) -> None:
            self._body.append(data)

        return on_body

    replace(reader, "MAX_HEAD", lambda _: 1 << 40)
    replace(reader.ResponseReader, "on_body", make)


def looks_at_all_that_was(schedule: ModuleType) -> None:
    """Begin each claim with the oldest entry of the index, finished or not."""

    def make(claim_limit: Any) -> Any:
        def from_the_beginning(self: Any, slots: int, now_s: float) -> Any:
            self._full_look_at = 0.0
            return claim_limit(self, slots, now_s)

        return from_the_beginning

    replace(schedule.HandlerQueue, "claim_limit", make)


def shift_clock(hours: float) -> Callable[[ModuleType], None]:
    """Return a patch that shifts a process's wall clock, except `datetime`; breaks nothing by itself."""

    def patch(clock: ModuleType) -> None:
        replace(clock, "time", lambda real: lambda: real() + hours * 3600)
        replace(clock, "time_ns", lambda real: lambda: real() + int(hours * 3.6e12))

    return patch


def shift_dates(hours: float) -> Callable[[ModuleType], None]:
    """Return a patch that shifts `datetime` in one module; breaks nothing by itself."""

    class Shifted(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return dt.datetime.now(tz) + dt.timedelta(hours=hours)

    return lambda module: replace(module, "datetime", lambda _: Shifted)


def schedules_by_its_own_clock(dispatcher: ModuleType) -> None:
    """Schedule retries by the worker's clock."""
    replace(dispatcher.DatabaseClock, "now", lambda _: lambda self: dispatcher.datetime.now(dispatcher.UTC))


def never_forgets(intake: ModuleType) -> None:
    """Answer duplicates from memory, regardless of the store."""
    replace(intake.Intake, "clear_dedup_cache", lambda _: lambda self: None)


def drains_by_runs(event_writer: ModuleType) -> None:
    """Store each run of events or messages of a batch in a transaction of its own."""

    def make(append: Any) -> Any:
        async def append_runs(self: Any, events: Sequence[Any], within_s: float | None = None) -> list[Any]:
            receipts: list[Any] = []
            for _, run in itertools.groupby(events, lambda event: event.publication is None):
                receipts += await append(self, list(run), within_s)
            return receipts

        return append_runs

    replace(event_writer.EventWriter, "append", make)


def forgets_buffered_keys(publisher: ModuleType) -> None:
    """Forget the idempotency keys of messages that wait in the buffer."""
    replace(publisher.OutagePublisher, "remember", lambda _: lambda self, key, identifier, days=1.0: None)


def lets_silent_clients_stay(protocol: ModuleType) -> None:
    """Let connections stay open without any deadline."""
    replace(protocol.Connection, "check", lambda _: lambda self, now: None)


PATCHES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "answers_before_commit": ("boathook.ingest.intake", answers_before_commit),
    "drains_by_runs": ("boathook.ingest.event_writer", drains_by_runs),
    "forgets_buffered_keys": ("boathook_outage_publishing.publisher", forgets_buffered_keys),
    "believes_every_answer": ("boathook.delivery.http_attempt", believes_every_answer),
    "commits_effects_first": ("boathook.handlers.sessions", commits_effects_first),
    "counts_collisions": ("boathook.handlers.runner", counts_collisions),
    "elects_everybody": ("boathook.delivery.keeper", elects_everybody),
    "finishes_lost_attempts": ("boathook.delivery.handler_executor", finishes_lost_attempts),
    "keeps_every_answer": ("boathook.http_client.response_reader", keeps_every_answer),
    "looks_at_all_that_was": ("boathook.delivery.handler_queues", looks_at_all_that_was),
    "commits_in_memory": ("boathook.db.database", commits_in_memory),
    "forgets_keys": ("boathook.ingest.event_builder", forgets_keys),
    "forgets_conflicts": ("boathook.db.events", forgets_conflicts),
    "believes_everybody": ("hmac", believes_everybody),
    "lets_silent_clients_stay": ("boathook.http.connection", lets_silent_clients_stay),
    "never_forgets": ("boathook.ingest.intake", never_forgets),
    "waits_before_sync": ("boathook.spool.disk", waits_before_sync),
    "syncs_nothing": ("boathook.spool.disk", syncs_nothing),
    "ignores_failed_syncs": ("boathook.spool.disk", ignores_failed_syncs),
    "answers_before_sync": ("boathook.spool.spool", answers_before_sync),
    "ignores_a_full_disk": ("boathook.spool.segment_store", ignores_a_full_disk),
    "keeps_nothing_drained": ("boathook.spool.segment_store", keeps_nothing_drained),
    "believes_every_record": ("boathook.spool.segment", believes_every_record),
    "drains_as_new": ("boathook.ingest.event_writer", drains_as_new),
    "overtakes_the_spool": ("boathook.ingest.intake", overtakes_the_spool),
    "answers_before_write": ("boathook.spool.spool", answers_before_write),
    "adopts_nothing": ("boathook.spool.segment_store", adopts_nothing),
    "hoards_what_it_spools": ("boathook.spool.spool", hoards_what_it_spools),
    "stops_at_once": ("boathook.http.listener", stops_at_once),
    "clock_an_hour_ahead": ("time", shift_clock(1)),
    "clock_an_hour_behind": ("time", shift_clock(-1)),
    "workers_an_hour_ahead": ("boathook.delivery.dispatcher", shift_dates(1)),
    "workers_an_hour_behind": ("boathook.delivery.dispatcher", shift_dates(-1)),
    "schedules_by_its_own_clock": ("boathook.delivery.dispatcher", schedules_by_its_own_clock),
    "orders_nothing": ("boathook.domain.filters", orders_nothing),
}
"""By name: the module, and the function that patches it."""


class _Loader(importlib.abc.Loader):
    """Loads a module as usual, then patches it."""

    def __init__(self, usual: Any, patches: Sequence[Callable[[ModuleType], None]]) -> None:
        self._usual = usual
        self._patches = patches

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._usual.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        for patch in self._patches:
            patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be patched."""

    def __init__(self, patches: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self._patches[fullname])
        return spec


def apply_patches(*names: str) -> None:
    """Arrange for the patches of these names, in this order."""
    later: dict[str, list[Callable[[ModuleType], None]]] = {}
    for name in names:
        module, patch = PATCHES[name]
        if module in sys.modules:
            patch(sys.modules[module])
        else:
            later.setdefault(module, []).append(patch)
    sys.meta_path.insert(0, _Finder(later))


if os.environ.get("BOATHOOK_MUTANT"):
    apply_patches(*os.environ["BOATHOOK_MUTANT"].split(","))
