"""A worker process: claims due deliveries under lease, runs their handlers, and sends back what did not succeed.

Four loops share one schedule. *Claiming* fills it when there is room, woken by notifications, by ended attempts and
by the clock. *Places* take from it and run one attempt after another. *Renewing* prolongs every lease held and
breaks off what is lost or stuck. *Returning* writes the failures in batches. Successes are written by the places
themselves, in the transaction of the handler's effects.
"""

import asyncio
import contextlib
import functools
import logging
import random
import resource
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, assert_never
from uuid import UUID

from boathook.config import Settings
from boathook.db.database import DUE_CHANNEL, Database, wait_for_database
from boathook.db.deliveries import ClaimedDelivery, DeliveryStore, FailedAttempt
from boathook.db.delivery_commands import notify_due
from boathook.delivery.failure_writer import FailureWriter
from boathook.delivery.handler_queues import HandlerQueue, HandlerQueues
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, HandlerTimeout
from boathook.domain.policy import (
    AttemptState,
    BreakerState,
    Complete,
    Dead,
    DeadLetter,
    Failure,
    Interruption,
    Retry,
    RetryAt,
    decide,
)
from boathook.handlers.api import Boathook
from boathook.handlers.hooks import Hooks
from boathook.handlers.runner import (
    Completed,
    NotStarted,
    RolledBack,
    Runner,
    RunningAttempt,
    RunResult,
    RunSlot,
    Stopped,
    Superseded,
)
from boathook.handlers.threads import HandlerThread
from boathook.handlers.tracing import TracedRunner
from boathook.observability import meters, tracing
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

PACE_S: Final = 0.002
"""Shortest time between two claims."""
GRACE_S: Final = 5.0
"""Seconds past its timeout after which a handler that goes on all the same counts as stuck."""
RENEW_AGAIN_S: Final = 1.0
"""Seconds after which leases are prolonged that could not be because PostgreSQL was away."""
_OWN_CONNECTIONS: Final = 2
_BEAT_S: Final = 0.5
_LAST_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 1.0
_NOBODY_WAITS: Final[Mapping[str, frozenset[int]]] = MappingProxyType({})

Key = tuple[UUID, int, int]


class HandlerStuck(Exception):
    """A handler went on past its timeout and cannot be stopped; only a new process can."""


class Worker:
    """One process's work, on connections it is given."""

    def __init__(
        self,
        settings: Settings,
        hooks: Hooks | Boathook,
        *,
        own: Database,
        handlers: Database,
        worker_id: str,
        only_suspects: bool = False,
        inline: Mapping[str, frozenset[int]] = _NOBODY_WAITS,
    ) -> None:
        self._settings = settings.worker
        self._drain_s = settings.server.drain_s
        self._id = worker_id
        self._only_suspects = only_suspects
        self._places = 1 if only_suspects else settings.worker.concurrency
        self._keeps_connections = settings.database.worker_connections >= self._places
        self._handlers = handlers
        self._retries = settings.retry_defaults()
        self._store = DeliveryStore(own)
        self._own = own
        self._queues = HandlerQueues(hooks.handlers, self._places)
        runner = Runner(self._store, worker=worker_id, timeout_s=settings.worker.timeout_s, inline=inline)
        tracer = tracing.current()
        self._runner = runner if tracer is None else TracedRunner(runner, tracer)
        self._failure_writer = FailureWriter(self._store, self._on_failure_written)
        self._running: dict[Key, RunningAttempt] = {}
        self._failures_in_write: dict[Key, FailedAttempt] = {}
        self._threads: list[tuple[HandlerThread, float]] = []
        """Threads that went on when their attempt had ended, with the loop time of that."""
        self._stopped: list[ClaimedDelivery] = []
        """Claims to give back: their attempts were broken off by the stop, or never began."""
        self._ahead = timedelta()
        """How far the journal's clock is ahead of this host's."""
        self._hooks = hooks
        self._announced = hooks.published
        self._quit = asyncio.Event()
        self._stuck: str | None = None
        self._hint = asyncio.Event()
        self._room = asyncio.Event()
        self._idle: list[asyncio.Future[None]] = []
        self._is_stopping = False
        self._log = get_logger("worker").bind(worker=worker_id)

    async def run(self, stop: asyncio.Event, beat: Callable[[], None], *, predecessors: Sequence[str] = ()) -> None:
        """Work until *stop* is set, then finish what is under way.

        Raises:
            Stuck: a handler cannot be stopped; the process should end so that another takes its place.
        """
        await self._own.listen(DUE_CHANNEL, lambda _payload: self._hint.set())
        loops = [self._claim(predecessors), self._renew(), self._failure_writer.run(), self._beat(beat)]
        tasks = [asyncio.create_task(loop) for loop in loops]
        places = [asyncio.create_task(self._place()) for _ in range(self._places)]
        stopping = [asyncio.create_task(stop.wait()), asyncio.create_task(self._quit.wait())]
        try:
            done, _ = await asyncio.wait([*stopping, *tasks, *places], return_when=asyncio.FIRST_COMPLETED)
            for task in done.difference(stopping):
                task.result()
            await self._drain(tasks[0])
        finally:
            await _end([*stopping, *tasks, *places])
        if self._stuck is not None:
            raise HandlerStuck(self._stuck)

    async def _drain(self, claiming: "asyncio.Task[None]") -> None:
        """Start nothing more, give back what waits, and let what runs finish; break off what takes too long."""
        self._is_stopping = True
        await _end([claiming])
        with contextlib.suppress(DatabaseError):  # the leases of what is not given back run out
            await self._give_back(self._queues.empty())
        await self._until(lambda: not self._running, GRACE_S if self._stuck else self._drain_s)
        for running in list(self._running.values()):
            running.stop()
        await self._until(lambda: not self._running, _LAST_S)
        await self._until(lambda: not self._failures_in_write, _LAST_S)
        with contextlib.suppress(DatabaseError):
            await self._give_back_stopped()

    @staticmethod
    async def _until(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # Three conditions at the end of a process need no event each.
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _claim(self, predecessors: Sequence[str]) -> None:
        pause_s = PACE_S
        while not self._is_stopping:
            try:
                if predecessors:
                    await self._store.reap(dead_workers=predecessors)
                    predecessors = ()
                await self._give_back_stopped()
                has_more_due = await (self._claim_suspect() if self._only_suspects else self._claim_due())
                pause_s = PACE_S
            except DatabaseError as error:
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 4)
                self._log.warning("claim_failed", error=str(error), pause_s=round(pause_s, 3))
                if self._own.monitor.is_unavailable:
                    await self._own.monitor.wait_until_available()
                    pause_s = PACE_S
                has_more_due = True
            await asyncio.sleep(pause_s)
            if not has_more_due:
                await self._wait(self._hint, self._settings.poll_s)

    async def _claim_due(self) -> bool:
        """Claim once; returns whether there may be more to claim at once."""
        await self._give_back(list(self._queues.paused(self._now())))
        if self._announced != self._hooks.published:
            self._announced = self._hooks.published
            await notify_due(self._own)
        self._hint.clear()
        self._room.clear()
        wants = self._queues.wants(self._now())
        if not wants:
            await self._wait(self._room, self._settings.poll_s)
            return True
        works = await self._store.claim(wants, worker=self._id, lease_s=self._settings.lease_s)
        if works:
            failpoint("claim.after_commit")
            self._ahead = works[0].claimed_at - datetime.now(UTC)
        self._queues.accept(wants, works)
        self._wake(len(works))
        return any(self._queues.queues[want.recipient].has_more_due for want in wants)

    async def _claim_suspect(self) -> bool:
        self._hint.clear()
        self._room.clear()
        wants = self._queues.wants(self._now())
        if self._running or not wants:
            await self._wait(self._room, self._settings.poll_s)
            return True
        recipients = [want.recipient for want in wants]
        work = await self._store.claim_suspect(recipients, worker=self._id, lease_s=self._settings.lease_s)
        if work is None:
            return False
        failpoint("claim.after_commit")
        self._ahead = work.claimed_at - datetime.now(UTC)
        self._queues.accept([want for want in wants if want.recipient == work.claim.recipient], [work])
        self._wake(1)
        await self._wait(self._room, self._settings.poll_s)
        return True

    async def _give_back(self, works: Sequence[ClaimedDelivery]) -> None:
        if works:
            await self._store.release_claims([work.claim for work in works])

    async def _give_back_stopped(self) -> None:
        works = list(self._stopped)
        await self._give_back(works)
        self._stopped = self._stopped[len(works) :]

    @staticmethod
    async def _wait(event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                count -= 1

    # Places

    async def _place(self) -> None:
        run_slot = RunSlot(self._handlers, keeps_connection=self._keeps_connections)
        try:
            while True:
                taken = None if self._is_stopping else self._queues.take(self._now())
                if taken is None:
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._idle.append(future)
                    await future
                    continue
                await self._attempt(*taken, run_slot)
        finally:
            await run_slot.release()

    async def _attempt(self, queue: HandlerQueue, work: ClaimedDelivery, run_slot: RunSlot) -> None:
        began = time.monotonic()
        running = RunningAttempt(work, self._now())
        key = _key(work)
        self._running[key] = running
        if work.claim.attempt == 1 and work.event is not None:
            waited_s = (running.started_at - work.event.accepted_at).total_seconds()
            meters.observe("boathook_accept_to_start_seconds", max(0.0, waited_s))
        try:
            ending = await self._runner.run(queue.handler, running, run_slot)
        finally:
            took_s = time.monotonic() - began
            del self._running[key]
            self._queues.finish(queue, took_s)
            if running.thread is not None and not running.thread.is_over:
                self._threads.append((running.thread, asyncio.get_running_loop().time()))
            self._room.set()
        meters.observe("boathook_handler_seconds", took_s, recipient=work.claim.recipient)
        self._conclude(queue, running, ending, took_s)
        self._wake(1)

    def _conclude(self, queue: HandlerQueue, running: RunningAttempt, ending: RunResult, took_s: float) -> None:
        work = running.work
        match ending:
            case Completed(state=state):
                if self._announced != self._hooks.published:
                    self._hint.set()
                self._update_breaker(queue, None)
                if work.claim.order_key is not None:
                    self._hint.set()  # the next one of its order key is free
                meters.count("boathook_deliveries_total", recipient=work.claim.recipient, outcome=state)
                if self._log.is_enabled_for(logging.INFO):
                    self._log.info("attempt_ended", **_words(work), outcome=state, took_s=round(took_s, 4))
            case RolledBack(outcome=outcome, error=error):
                if error is not None:
                    self._update_breaker(queue, TimeoutError() if isinstance(error, HandlerTimeout) else error)
                self._write_failure(queue, running, outcome)
            case Superseded():
                meters.count("boathook_leases_lost_total", recipient=work.claim.recipient)
                self._log.warning("lease_lost", **_words(work), took_s=round(took_s, 4))
            case NotStarted():
                self._log.warning("attempt_not_begun", **_words(work), reason="PostgreSQL is away")
                self._stopped.append(work)
                self._hint.set()
            case Stopped():
                self._log.info("attempt_stopped", **_words(work), took_s=round(took_s, 4))
                self._stopped.append(work)
            case _:
                assert_never(ending)

    def _update_breaker(self, queue: HandlerQueue, error: BaseException | None) -> None:
        state = self._queues.update_breaker(queue, error, self._now())
        if state is not None and queue.handler.breaker is not None:
            is_open = 0 if state is BreakerState.CLOSED else 1
            meters.gauge("boathook_breaker_open", is_open, dependency=queue.handler.breaker.dependency)

    def _write_failure(
        self, queue: HandlerQueue, running: RunningAttempt, outcome: Retry | Dead | Failure | Interruption
    ) -> None:
        """Ask the policy what follows an attempt that did not succeed, and queue it for the journal."""
        work, claim = running.work, running.work.claim
        standing = AttemptState(
            attempt=claim.attempt - claim.attempts_before, owed_since=claim.owed_since, excused=claim.excused
        )
        policy = queue.handler.retry or self._retries.of(work.event.source if work.event is not None else None)
        move = decide(standing, outcome, policy, self._now(), random.random())
        if isinstance(move, Complete):
            raise AssertionError(f"{outcome} cannot settle a delivery")  # noqa: TRY004 no caller chose a type
        traceback = outcome.traceback if isinstance(outcome, Failure | Interruption) else None
        ended = FailedAttempt(claim, move, _recorded(outcome), traceback, self._id, running.started_at)
        self._failures_in_write[_key(work)] = ended
        self._failure_writer.put(ended)
        what = "dead" if isinstance(move, DeadLetter) else "retry"
        self._log.warning("attempt_failed", **_words(work), outcome=what, code=move.code, error=move.error)

    def _on_failure_written(self, ended: FailedAttempt, was_held: bool) -> None:
        claim = ended.claim
        self._failures_in_write.pop((claim.event_id, claim.ordinal, claim.fence), None)
        if not was_held:
            meters.count("boathook_leases_lost_total", recipient=claim.recipient)
            return
        match ended.move:
            case RetryAt(due_at=due_at):
                meters.count("boathook_deliveries_total", recipient=claim.recipient, outcome="retry")
                wait_s = (due_at - self._now()).total_seconds()
                if wait_s < self._settings.poll_s:
                    asyncio.get_running_loop().call_later(max(0.0, wait_s), self._hint.set)
            case DeadLetter():
                meters.count("boathook_deliveries_total", recipient=claim.recipient, outcome="dead")
                if claim.order_key is not None:
                    self._hint.set()
            case _:
                assert_never(ended.move)

    # Renewing

    async def _renew(self) -> None:
        period_s = pause_s = self._settings.lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            pause_s = period_s
            self._look_for_stuck()
            claims = [running.work.claim for running in self._running.values()]
            claims += [work.claim for queue in self._queues.queues.values() for work in queue.waiting]
            claims += [ended.claim for ended in self._failures_in_write.values()]
            if not claims:
                continue
            try:
                lost = await self._store.renew(claims, lease_s=self._settings.lease_s)
            except DatabaseError as error:
                self._log.warning("renew_failed", error=str(error), leases=len(claims))
                pause_s = min(period_s, RENEW_AGAIN_S)
                continue
            self._lose(lost)

    def _lose(self, lost: Collection[Key]) -> None:
        for key in lost:
            running = self._running.get(key)
            if running is not None:
                running.lose()
        if lost:
            self._queues.drop(lost)

    def _look_for_stuck(self) -> None:
        """Find handlers that went on past their timeout: the process must end to be rid of them."""
        now = asyncio.get_running_loop().time()
        self._threads = [(thread, ended_at) for thread, ended_at in self._threads if not thread.is_over]
        late = [
            running.work.claim.recipient
            for running in self._running.values()
            if running.overdue_at is not None and now > running.overdue_at + GRACE_S
        ]
        if late:
            self._stuck = f"{late[0]} goes on although its time is up"
        elif any(now > ended_at + GRACE_S for _, ended_at in self._threads):
            self._stuck = "a handler's thread goes on although its time is up"
        if self._stuck is not None and not self._quit.is_set():
            self._log.error("handler_stuck", error=self._stuck)
            self._quit.set()

    # The process

    def _now(self) -> datetime:
        """Return the journal's time, as far as the latest claim told."""
        return datetime.now(UTC) + self._ahead

    async def _beat(self, beat: Callable[[], None]) -> None:
        while True:
            beat()
            for recipient, queue in self._queues.queues.items():
                meters.gauge("boathook_running", queue.running, recipient=recipient)
            await asyncio.sleep(_BEAT_S)


async def run_worker(
    settings: Settings,
    hooks: Hooks | Boathook,
    *,
    worker_id: str,
    only_suspects: bool = False,
    inline: Mapping[str, frozenset[int]] = _NOBODY_WAITS,
    stop: asyncio.Event,
    beat: Callable[[], None],
    predecessors: Sequence[str] = (),
) -> None:
    """Run one worker until *stop* is set; its unfinished work is finished or given back first.

    Args:
        worker_id: Never used before; names the holder of this process's leases.
        only_suspects: Run nothing but deliveries that have lost their worker twice in a row, one at a time.
        inline: The sources whose senders wait for a handler's reply, each with the statuses never to be answered.
        beat: Called twice a second while the event loop is alive.
        predecessors: Ids of workers known to be dead, whose leases are taken back at once.

    Raises:
        Stuck: a handler cannot be stopped; the process should end, without waiting for its threads.
    """
    if settings.worker.memory_mb:
        size = settings.worker.memory_mb * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    database = settings.database
    # A handler's time is its own: to spend on one statement, or on something else while its transaction is open.
    longest_s = max([settings.worker.timeout_s, *(one.timeout_s or 0.0 for one in hooks.handlers.values())])
    open_own = functools.partial(
        Database.open,
        database.url,
        purpose="worker",
        size=_OWN_CONNECTIONS,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=database.statement_timeout_s,
        is_reset=False,
    )
    open_handlers = functools.partial(
        Database.open,
        database.url,
        purpose="handlers",
        size=database.worker_connections,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=longest_s,
        idle_in_transaction_s=longest_s + settings.worker.lease_s,
    )
    async with wait_for_database(stop, open_own) as own:
        if own is None:
            return
        async with wait_for_database(stop, functools.partial(open_handlers, monitor=own.monitor)) as handlers:
            if handlers is None:
                return
            pools = {"own": own, "handlers": handlers}
            worker = Worker(settings, hooks, **pools, worker_id=worker_id, only_suspects=only_suspects, inline=inline)
            await worker.run(stop, beat, predecessors=predecessors)


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait for them, but not for one that refuses to end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_LAST_S)


def _recorded(outcome: Retry | Dead | Failure | Interruption) -> str:
    match outcome:
        case Retry():
            return "retry"
        case Dead():
            return "dead"
        case Failure() | Interruption():
            return "failed"
        case _:
            assert_never(outcome)


def _key(work: ClaimedDelivery) -> Key:
    return work.claim.event_id, work.claim.ordinal, work.claim.fence


def _words(work: ClaimedDelivery) -> dict[str, Any]:
    """Return what a log line says about an attempt."""
    event = work.event
    return {
        "delivery": ids.show_delivery(work.claim.event_id, work.claim.ordinal),
        "recipient": work.claim.recipient,
        "attempt": work.claim.attempt,
        "source": event.source if event else None,
        "type": event.type if event else None,
        "dedup_key": event.dedup_key if event else None,
    }
