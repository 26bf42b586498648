"""Runs handlers for claimed deliveries, each attempt in the transaction that also settles its delivery."""

import asyncio
import functools
import resource
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from boathook.config import Settings
from boathook.db.database import Database, wait_for_database
from boathook.db.deliveries import DeliveryStore, FailedAttempt, WaitingAttempt
from boathook.db.due_notifier import DueNotifier, notify_due
from boathook.db.live_settings import LiveSettings
from boathook.delivery.destination import Executor, Recorder
from boathook.delivery.dispatcher import GRACE_S, DatabaseClock, Dispatcher
from boathook.delivery.due_receiver import open_notifier
from boathook.delivery.handler_queues import HandlerAttempt, HandlerQueues
from boathook.domain.due import DueRecipient
from boathook.domain.policy import (
    Complete,
    Dead,
    DeadLetter,
    Failure,
    Interruption,
    Result,
    Retry,
    RetryAt,
    RetryDefaults,
    WaitFor,
    WaitUntil,
)
from boathook.handlers.api import Boathook
from boathook.handlers.collector import collecting_due
from boathook.handlers.dependency_errors import clean_name
from boathook.handlers.hooks import Hooks
from boathook.handlers.runner import Runner, RunningAttempt, Runs, RunSlot
from boathook.handlers.threads import HandlerThread
from boathook.observability import meters, tracer
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

OWN_CONNECTIONS: Final = 2
_IDLE_S: Final = 0.5
"""Interval of looking for transactions that began for a claim which then did not start."""
_NO_REPLIES: Final[Mapping[str, frozenset[int]]] = MappingProxyType({})

FindInline = Callable[[Settings], Mapping[str, frozenset[int]]]
"""Returns the sources whose senders wait for a handler's reply, each with the statuses that must not be sent."""


class HandlerExecutor(Executor[HandlerAttempt]):
    """Runs handlers.

    Args:
        own: connections for boathook's own statements.
        handlers: connections for the transactions of handlers.
        is_keeping_connections: whether there is a connection for each concurrent attempt.
        has_waiting: returns whether a claim waits for a slot.
        announce: notifies of the messages that handlers have published.
    """

    is_fenced = True

    def __init__(
        self, runner: Runs, *, handlers: Database, is_keeping_connections: bool,
        has_waiting: Callable[[], bool], announce: Callable[[Collection[DueRecipient]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._runner = runner
        self._notifier = DueNotifier(announce)
        self._new_slot = functools.partial(
            RunSlot, handlers, keeps_connection=is_keeping_connections, has_waiting=has_waiting
        )
        self._slots: list[RunSlot] = []
        """Unused slots; the most recently used one is reused first."""
        self._threads: list[tuple[HandlerThread, float]] = []
        """Threads that outlived their attempt, with the loop time at which the attempt ended."""

    async def execute(self, attempt: HandlerAttempt) -> Result:
        """Run the handler and settle its delivery in one transaction."""
        work = attempt.work
        running = attempt.running = RunningAttempt(work, attempt.started_at, attempt.claimed_s)
        if work.claim.attempt == 1 and work.event is not None:
            waited_s = (attempt.started_at - work.event.accepted_at).total_seconds()
            meters.observe("boathook_first_attempt_delay_seconds", max(0.0, waited_s))
        loop = asyncio.get_running_loop()
        slot = self._slots.pop() if self._slots else self._new_slot()
        began = loop.time()
        try:
            with collecting_due() as collector:
                return await self._runner.run(attempt.queue.handler, running, slot)
        finally:
            if due := collector.take():
                self._notifier.notify(due)
            self._slots.append(slot)
            meters.observe("boathook_handler_seconds", loop.time() - began, recipient=work.claim.recipient)
            if running.thread is not None and not running.thread.is_over:
                self._threads.append((running.thread, loop.time()))

    def cancel(self, attempt: HandlerAttempt) -> None:
        """Cancel the handler, but not the commit that follows it."""
        if attempt.running is not None:
            attempt.running.stop()

    def lose(self, attempt: HandlerAttempt) -> None:
        """Stop the handler, because its transaction could not commit."""
        if attempt.running is not None:
            attempt.running.lose()

    def check(self, running: Collection[HandlerAttempt]) -> str | None:
        """Check for handlers past their timeout; only the end of the process stops them."""
        now = asyncio.get_running_loop().time()
        self._threads = [(thread, ended_at) for thread, ended_at in self._threads if not thread.is_over]
        for attempt in running:
            overdue_at = None if attempt.running is None else attempt.running.overdue_at
            if overdue_at is not None and now > overdue_at + GRACE_S:
                return f"{attempt.label} is still running after its timeout"
        if any(now > ended_at + GRACE_S for _, ended_at in self._threads):
            return "a handler's thread is still running after its timeout"
        return None

    async def run(self) -> None:
        """Notify other processes of messages that handlers have published, and end transactions that nothing uses."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._notifier.run())
            group.create_task(self._end_idle_transactions())

    async def _end_idle_transactions(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_S)
            for slot in list(self._slots):
                await slot.end_transaction()

    async def stop(self) -> None:
        """Release the connections."""
        for slot in self._slots:
            await slot.release()


class HandlerRecorder(Recorder[HandlerAttempt]):
    """Records handler attempts that did not succeed, or wait; successful ones are committed with their effects."""

    def __init__(self, store: DeliveryStore, worker_id: str) -> None:
        self._store = store
        self._worker_id = worker_id

    async def record(self, attempts: Sequence[HandlerAttempt]) -> list[bool]:
        """See `Recorder.record`."""
        waiting = {attempt for attempt in attempts if isinstance(attempt.decision, WaitUntil | Complete)}
        failed = [self._failed(attempt) for attempt in attempts if attempt not in waiting]
        _pass_points(failed, "before_schedule", "before_move")
        if waiting:
            waits = [self._waiting(attempt) for attempt in attempts if attempt in waiting]
            held_failed, held_waits = map(iter, await self._store.record_attempts(failed, waits))
            leases_held = [next(held_waits if attempt in waiting else held_failed) for attempt in attempts]
        else:
            leases_held = await self._store.record_failed_attempts(failed)
        _pass_points(failed, "after_schedule", "after_move")
        return leases_held

    def _waiting(self, attempt: HandlerAttempt) -> WaitingAttempt:
        decision = attempt.decision
        if not isinstance(attempt.outcome, WaitFor) or not isinstance(decision, WaitUntil | Complete):
            raise AssertionError(f"{attempt.outcome} cannot settle a delivery")  # noqa: TRY004 - no error of the caller
        return WaitingAttempt(attempt.work.claim, decision, self._worker_id, attempt.started_at)

    def _failed(self, attempt: HandlerAttempt) -> FailedAttempt:
        outcome, decision = attempt.outcome, attempt.decision
        assert isinstance(decision, RetryAt | DeadLetter)
        traceback = outcome.traceback if isinstance(outcome, Failure | Interruption) else None
        reported = outcome.dependency if isinstance(outcome, Failure | Retry | Dead) else None
        dependency = (clean_name(reported) if reported else None) or None
        name = _OUTCOMES[type(outcome)]
        return FailedAttempt(
            attempt.work.claim, decision, name, traceback, self._worker_id, attempt.started_at, dependency
        )


def _pass_points(failed: Sequence[FailedAttempt], retry: str, dead: str) -> None:
    for attempt in failed:
        failpoint(f"dead.{dead}" if isinstance(attempt.decision, DeadLetter) else f"retry.{retry}")


_OUTCOMES: Final[Mapping[type, str]] = {
    Retry: "retry", Dead: "dead", WaitFor: "dead", Failure: "failed", Interruption: "failed",
}  # fmt: skip
"""The recorded outcome of attempts that are retried or dead."""


def make_worker(
    settings: Settings, hooks: Hooks | Boathook, *, own: Database, handlers: Database, worker_id: str,
    only_suspects: bool = False, inline: Mapping[str, frozenset[int]] = _NO_REPLIES,
    retries: RetryDefaults | None = None,
) -> Dispatcher[HandlerAttempt]:  # fmt: skip
    """Create the dispatcher for handlers on the given connections; see `run_worker`."""
    retries = retries or settings.retry_defaults()
    clock, store = DatabaseClock(), DeliveryStore(own, retries)
    places = 1 if only_suspects else settings.worker.concurrency
    queues = HandlerQueues(
        hooks.handlers, places, store=store, worker_id=worker_id, lease_s=settings.worker.lease_s,
        retries=retries, clock=clock, only_suspects=only_suspects,
    )  # fmt: skip
    runner = Runner(store, worker=worker_id, timeout_s=settings.worker.timeout_s, inline=inline)
    # A message reaches one process, and most are not for suspects.
    notifier = None if only_suspects else open_notifier(settings, "handlers", clock.seconds)
    announce = functools.partial(notify_due, own)
    installed = tracer.current()
    executor = HandlerExecutor(
        runner if installed is None else installed.wrap_runner(runner), handlers=handlers,
        is_keeping_connections=settings.database.worker_connections >= places, has_waiting=queues.has_waiting,
        announce=announce if notifier is None else functools.partial(notifier.announce, announce),
    )  # fmt: skip
    return Dispatcher(
        queues, executor, HandlerRecorder(store, worker_id), database=own, deliveries=store, clock=clock,
        settings=settings, log=get_logger("worker").bind(worker=worker_id), notifier=notifier,
    )  # fmt: skip


async def run_worker(
    settings: Settings,
    hooks: Hooks | Boathook,
    *,
    worker_id: str,
    only_suspects: bool = False,
    find_inline: FindInline = lambda _settings: _NO_REPLIES,
    stop: asyncio.Event,
    beat: Callable[[], None],
    predecessors: Sequence[str] = (),
) -> None:
    """Run one worker until *stop* is set, then finish or release its claimed deliveries.

    Args:
        worker_id: A new, unique id; names the holder of this process's leases.
        only_suspects: Run only deliveries that have lost their worker twice in a row, one at a time.
        find_inline: Returns the inline sources of settings; called again when stored sources change.
        beat: Called twice a second while the event loop is alive.
        predecessors: Ids of workers known to be dead, whose leases are reaped immediately.

    Raises:
        AttemptStuck: a handler cannot be stopped; the process should exit without waiting for its threads.
    """
    if settings.worker.memory_mb:
        size = settings.worker.memory_mb * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    database = settings.database
    # A handler may spend its whole timeout on one statement, or on other work while its transaction is open.
    max_timeout_s = max([settings.worker.timeout_s, *(handler.timeout_s or 0.0 for handler in hooks.handlers.values())])
    open_own = functools.partial(
        Database.open,
        database.url,
        purpose="worker",
        size=OWN_CONNECTIONS,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=database.statement_timeout_s,
        is_reset=False,
        is_queue=True,
    )
    open_handlers = functools.partial(
        Database.open,
        database.url,
        purpose="handlers",
        size=database.worker_connections,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=max_timeout_s,
        idle_in_transaction_s=max_timeout_s + settings.worker.lease_s,
    )
    async with wait_for_database(stop, open_own) as own:
        if own is None:
            return
        async with wait_for_database(stop, functools.partial(open_handlers, monitor=own.monitor)) as handlers:
            if handlers is None:
                return
            live = LiveSettings(settings)
            async with live.following(own):
                worker = make_worker(
                    settings,
                    hooks,
                    own=own,
                    handlers=handlers,
                    worker_id=worker_id,
                    only_suspects=only_suspects,
                    inline=follow_inline(live, find_inline),
                    retries=live.retry_defaults(),
                )
                await worker.run(stop, beat, predecessors=predecessors)


def follow_inline(live: LiveSettings, find_inline: FindInline) -> Mapping[str, frozenset[int]]:
    """Return the inline sources, which follow the stored sources."""
    inline = dict(find_inline(live.current))

    def update(settings: Settings) -> None:
        inline.clear()
        inline.update(find_inline(settings))

    live.subscribe(update)
    return inline
