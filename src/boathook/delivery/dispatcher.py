"""The delivery engine: claims due deliveries, makes an attempt for each, and records the results.

Its loop is the same for every destination::

    claim(batch) -> await executor.execute(attempt) -> decide(outcome, policy, now) -> recorder.record(batch)

`Queues` choose what to claim and what to start next, an `Executor` makes an attempt, a `Recorder` writes results; these
belong to a kind of destination (`delivery.destination`). The dispatcher does the rest: it renews leases, releases
claims, wakes the loop and drains at shutdown.
"""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from logging import DEBUG
from typing import Any, Final, Generic

from boathook.config import Settings
from boathook.db import delivery_commands
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.db.due_notifier import DUE_CHANNEL
from boathook.delivery.destination import A, Executor, Queues, Recorder
from boathook.delivery.due_receiver import DueReceiver
from boathook.domain import ids
from boathook.domain.due import ANY_RECIPIENT, WALK_INTERVAL_S, Notifier
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.policy import (
    Complete,
    Completed,
    Dead,
    DeadLetter,
    Decision,
    Failure,
    Interruption,
    NotStarted,
    Outcome,
    Result,
    Retry,
    RetryAt,
    Stopped,
    Success,
    Superseded,
    WaitUntil,
    decide,
)
from boathook.observability import meters
from boathook.observability.log import Logger, OnceFilter, is_text

PACE_S: Final = 0.002
"""Minimum interval between two claims."""
GRACE_S: Final = 5.0
"""Seconds that an attempt may run past its timeout, and that others get to end once one is stuck."""
_RENEW_AGAIN_S: Final = 1.0
"""Pause before leases are renewed again after PostgreSQL was unavailable."""
_MAX_BATCH: Final = 500
"""Maximum number of results in one write."""
_BATCH_PACE_S: Final = 0.01
"""Minimum interval between two batches of results, unless a result blocks another delivery."""
_WRITE_PAUSE_S: Final = 0.5
_WRITE_ROUNDS: Final = 3
_BEAT_S: Final = 0.5
_LAST_S: Final = 2.0
_MAX_PAUSE_S: Final = 1.0
_RECEIVING: Final = "delivery:lane"
_MAX_CAUSES: Final = 1_000
"""How many causes of failures a process remembers, to log the traceback of each once."""
_SHARE_INTERVAL_S: Final = 1.0
"""Minimum interval between two times of naming surplus work to other processes."""
_SYNC_INTERVAL_S: Final = 10.0
"""Interval of reading PostgreSQL's clock."""
_SLOW_S: Final = 0.25
"""A claim or a write that takes longer is logged."""
_SLOW_INTERVAL_S: Final = 10.0
"""Minimum interval between two of these lines."""
_SUCCEEDED: Final = Complete()


class AttemptStuck(Exception):
    """An attempt runs past its timeout and cannot be stopped; only a process restart helps."""


class DatabaseClock:
    """PostgreSQL's clock, as of the latest claim or `Dispatcher` query."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def sync(self, database_now: datetime) -> None:
        """Set the clock to PostgreSQL's current time."""
        self._ahead = database_now - datetime.now(UTC)

    def now(self) -> datetime:
        """Return PostgreSQL's current time."""
        return datetime.now(UTC) + self._ahead

    def seconds(self) -> float:
        """Return PostgreSQL's current time in seconds since 1970."""
        return self.now().timestamp()


class SlowSteps:
    """Logs claims and writes that take PostgreSQL long, one line per interval."""

    def __init__(self, log: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._log_at = -math.inf
        self._skipped = 0

    def note(self, step: str, rows: int, took_s: float) -> None:
        """Log a claim or settle of *rows* deliveries if it was slow; *skipped* counts those since the last line."""
        if took_s < _SLOW_S:
            return
        if self._clock() < self._log_at:
            self._skipped += 1
            return
        self._log.warning("queue_slow", step=step, deliveries=rows, took_s=round(took_s, 3), skipped=self._skipped)
        self._log_at, self._skipped = self._clock() + _SLOW_INTERVAL_S, 0


class Dispatcher(Generic[A]):
    """Delivers to one kind of recipient in one process."""

    def __init__(
        self, queues: Queues[A], executor: Executor[A], recorder: Recorder[A], *, database: Database,
        deliveries: DeliveryStore, clock: DatabaseClock, settings: Settings, log: Logger,
        notifier: Notifier | None = None,
    ) -> None:  # fmt: skip
        self.queues = queues
        self._notifier = notifier
        self._due = DueReceiver(self._include, clock.seconds, notifier)
        self._executor = executor
        self._recorder = recorder
        self._database = database
        self._deliveries = deliveries
        self._clock = clock
        self._lease_s = settings.worker.lease_s
        self._poll_s = settings.worker.poll_interval_s
        self._drain_s = settings.server.drain_s
        self._log = log
        self.held: set[A] = set()
        """All attempts under lease in this process, except those to be released."""
        self.running: set[A] = set()
        self._returned: list[A] = []
        """Claims to be released."""
        self._results: list[A] = []
        """Results to be written."""
        self._logged_causes = OnceFilter(_MAX_CAUSES)
        self._has_results = asyncio.Event()
        self._is_urgent = asyncio.Event()
        """Set when an unwritten result blocks another delivery."""
        self._is_writing = self._is_launching = self._is_stopping = False
        self.must_discover = asyncio.Event()
        self.must_discover.set()
        self._unknown: set[str] = set()
        """Named recipients that must be looked up."""
        self._has_unknown = asyncio.Event()
        self._share_at = self._sync_at = 0.0
        self._slow = SlowSteps(log)
        self._wake = asyncio.Event()
        self._quit = asyncio.Event()
        self._stuck: str | None = None
        self._error: BaseException | None = None

    async def run(self, stop: asyncio.Event, beat: Callable[[], None], *, predecessors: Sequence[str] = ()) -> None:
        """Deliver until *stop* is set, then finish the running attempts.

        Raises:
            AttemptStuck: an attempt cannot be stopped; the process should exit so that another replaces it.
        """
        # Whatever became due before PostgreSQL began to notify, or during an outage, had no notification.
        await self._database.listen(DUE_CHANNEL, self._due.notified, partial(self._include, [ANY_RECIPIENT]))
        feeding = [*map(asyncio.create_task, (self._discover(), self._look_up(), self._claim(predecessors)))]
        if self._notifier is not None:
            feeding.append(asyncio.create_task(self._notifier.run(self._due.received), name=_RECEIVING))
        loops = [self._write(), self._renew(), self._beat(beat), self._executor.run()]
        tasks = [*feeding, *[asyncio.create_task(loop) for loop in loops]]
        stopping = [asyncio.create_task(stop.wait()), asyncio.create_task(self._quit.wait())]
        try:
            finished, _ = await asyncio.wait([*stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in finished.difference(stopping):
                task.result()
            if self._error is None:
                await self._drain(feeding)
        finally:
            attempts = [attempt.task for attempt in self.held | self.running if attempt.task is not None]
            self._due.close()
            await _end([*stopping, *tasks, *attempts])
            await self._executor.stop()
        if self._error is not None:
            raise self._error
        if self._stuck is not None:
            raise AttemptStuck(self._stuck)

    def _include(self, recipients: Sequence[str]) -> None:
        unknown = self.queues.include(recipients, self._wake.set)
        if unknown:
            self._unknown.update(unknown)
            self._has_unknown.set()
        if ANY_RECIPIENT in recipients:
            self.must_discover.set()

    async def _drain(self, feeding: Sequence["asyncio.Task[None]"]) -> None:
        """Stop claiming, release waiting claims, let running attempts finish, and stop those that take too long."""
        self._is_stopping = True
        self.must_discover.set()
        self._has_unknown.set()
        self._wake.set()
        for task in feeding:
            if task.get_name() == _RECEIVING:
                task.cancel()
        await asyncio.wait(feeding, timeout=_LAST_S)
        await _end(feeding)
        self._put_back(self.queues.empty())
        await self._try_give_back()
        await self._until(lambda: not self.running, GRACE_S if self._stuck else self._drain_s)
        for attempt in list(self.running):
            self._executor.cancel(attempt)
        await self._until(lambda: not self.running, _LAST_S)
        await self._until(lambda: not self._results and not self._is_writing, _LAST_S)
        await self._try_give_back()

    @staticmethod
    async def _until(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # Polling is enough for three conditions at shutdown.
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    # Claiming

    async def _discover(self) -> None:
        discover_at = time.monotonic()
        while not self._is_stopping:
            self.must_discover.clear()
            try:
                await self._sync_clock()
                wait_s = await self.queues.discover(self._wake.set)
                wait_s = min(self._poll_s, max(PACE_S, wait_s))
                discover_at = time.monotonic() + (WALK_INTERVAL_S if self._due.relies_on_notifier else wait_s)
            except DatabaseError as error:
                self._log.warning("discover_failed", error=str(error))
                await self._database.monitor.wait_until_available()
                discover_at = time.monotonic() + self._poll_s
            await _wait(self.must_discover, discover_at - time.monotonic())

    async def _sync_clock(self) -> None:
        """Set the clock, by which timers start, also in a process that claims nothing."""
        if time.monotonic() >= self._sync_at:
            self._clock.sync(await delivery_commands.read_clock(self._database))
            self._sync_at = time.monotonic() + _SYNC_INTERVAL_S

    async def _look_up(self) -> None:
        """Look up named recipients, also while all are being discovered, which may take seconds."""
        while not self._is_stopping:
            await self._has_unknown.wait()
            self._has_unknown.clear()
            unknown, self._unknown = list(self._unknown), set()
            try:
                are_all_due = not unknown or await self.queues.look_up(unknown, self._wake.set)
            except DatabaseError as error:
                self._log.warning("look_up_failed", error=str(error))
                await self._database.monitor.wait_until_available()
                are_all_due = False
            if not are_all_due and not self._due.relies_on_notifier:  # discovery also finds when they are due
                self.must_discover.set()
            await asyncio.sleep(PACE_S)

    def _share(self) -> None:
        """Name recipients whose deliveries this process has no room for: no other may have been notified of them."""
        now = time.monotonic()
        if self._notifier is not None and self._notifier.is_available and now >= self._share_at:
            self._share_at = now + _SHARE_INTERVAL_S
            for recipient in self.queues.surplus():
                self._notifier.put(recipient, 0.0, 0.0)

    async def _claim(self, predecessors: Sequence[str]) -> None:
        pause_s = PACE_S
        while not self._is_stopping:
            wait_s = 0.0
            try:
                if predecessors:
                    await self._deliveries.reap(dead_workers=predecessors)
                    predecessors = ()
                self._wake.clear()
                if released := self.queues.release():
                    self._put_back(released)
                if self._returned:
                    await self._give_back()
                began = time.monotonic()
                claimed, wait_s = await self.queues.claim()
                self._slow.note("claim", len(claimed), time.monotonic() - began)
                self.held.update(claimed)
                self._launch()
                self._share()
                pause_s = PACE_S
            except DatabaseError as error:
                pause_s = min(_MAX_PAUSE_S, pause_s * 4)
                self._log.warning("claim_failed", error=str(error), pause_s=round(pause_s, 3))
                if self._database.monitor.is_unavailable:
                    await self._database.monitor.wait_until_available()
                    pause_s = PACE_S
            await asyncio.sleep(pause_s)
            if wait_s > 0:
                await _wait(self._wake, min(self._poll_s, wait_s))

    def _put_back(self, attempts: Sequence[A]) -> None:
        # Claims that cannot be released are not renewed either, so that the keeper reaps them.
        self.held.difference_update(attempts)
        self._returned += attempts

    async def _give_back(self) -> None:
        returned = list(self._returned)
        await self._deliveries.release_claims([attempt.lease for attempt in returned])
        del self._returned[: len(returned)]

    async def _try_give_back(self) -> None:
        if self._returned:
            with contextlib.suppress(DatabaseError):  # leases that are not released expire
                await self._give_back()

    # Attempts

    def _launch(self) -> None:
        """Start the claims that have a free slot."""
        if self._is_stopping:
            return
        now = time.monotonic()
        for attempt in self.queues.take():
            if now > attempt.lease_until and not self._executor.is_fenced:
                # The keeper reaps this delivery.
                self.held.discard(attempt)
                self.queues.finish(attempt, Superseded())
                continue
            self.running.add(attempt)
            attempt.task = asyncio.create_task(self._run(attempt))

    def _launch_next(self) -> None:
        self._is_launching = False
        self._launch()
        self._wake.set()

    async def _run(self, attempt: A) -> None:
        try:
            await self._attempt(attempt)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._error = error
            self._quit.set()

    async def _attempt(self, attempt: A) -> None:
        """Make one attempt, then conclude it or pass its result to `_write`."""
        attempt.started_at = self._clock.now()
        began = time.monotonic()
        result: Result
        try:
            result = await self._executor.execute(attempt)
        except asyncio.CancelledError:
            if not attempt.is_stopped:
                raise
            result = Stopped()
        except Exception as error:  # noqa: BLE001 - an executor error fails one attempt, not the process
            self._log.error("executor_failed", **attempt.fields(), exc_info=error)
            result = Failure(code=type(error).__name__, error=str(error))
        if attempt.took_s is None:
            attempt.took_s = time.monotonic() - began
        self.running.discard(attempt)
        self.queues.finish(attempt, result)
        if not self._is_launching:  # once for all attempts that end in one iteration of the event loop
            self._is_launching = True
            asyncio.get_running_loop().call_soon(self._launch_next)
        if isinstance(result, Completed):
            self.held.discard(attempt)
            self._conclude(attempt, _SUCCEEDED, result.state)
        elif isinstance(result, Superseded):
            self._lost(attempt)
        elif isinstance(result, NotStarted):
            self._put_back([attempt])
            self._log.warning("attempt_not_begun", **attempt.fields(), reason="PostgreSQL is unavailable")
        elif isinstance(result, Stopped):
            self._put_back([attempt])
            self._log.info("attempt_stopped", **attempt.fields(), took_s=round(attempt.took_s, 4))
        else:
            self._settle(attempt, result)

    def _settle(self, attempt: A, outcome: Outcome) -> None:
        """Decide what follows an outcome, and queue the result for the next batch."""
        attempt.outcome = outcome
        decision: Decision = _SUCCEEDED
        if not isinstance(outcome, Success):
            decision = decide(attempt.state, outcome, attempt.policy, self._clock.now(), random.random())
            if attempt.is_single and isinstance(decision, RetryAt):
                decision = DeadLetter(decision.code, decision.error)
        attempt.decision = decision
        self._results.append(attempt)
        self._has_results.set()
        if attempt.is_blocking:
            self._is_urgent.set()

    def _lost(self, attempt: A) -> None:
        self.held.discard(attempt)
        meters.count("boathook_leases_lost_total", recipient=attempt.label)
        self._log.warning("lease_lost", **attempt.fields(), took_s=round(attempt.took_s or 0.0, 4))

    def _conclude(self, attempt: A, decision: Decision, outcome: str) -> None:
        """Count and log a committed result, and wake the loop for what it unblocks or retries soon."""
        attempt.count(outcome)
        result = "succeeded" if isinstance(decision, Complete | WaitUntil) else "failed"
        meters.gauge("boathook_newest_attempt_timestamp_seconds", time.time(), recipient=attempt.label, outcome=result)
        if attempt.is_blocking:
            self._resume(attempt)
        if isinstance(decision, Complete):
            if self._log.is_enabled_for(attempt.SUCCEEDED_LEVEL):
                words = {**attempt.fields(), "outcome": outcome, "took_s": round(attempt.took_s or 0.0, 4)}
                self._log.log(attempt.SUCCEEDED_LEVEL, attempt.SUCCEEDED_EVENT, **words)
            return
        if isinstance(decision, WaitUntil):
            words = {
                **attempt.fields(),
                "code": decision.code,
                "key": decision.key,
                "until": decision.until.isoformat(),
            }
            self._log.info("attempt_waits", **words, took_s=round(attempt.took_s or 0.0, 4))
            # It is due at once if it was signalled meanwhile.
            self._resume(attempt)
            return
        took_s, wait_s = round(attempt.took_s or 0.0, 4), None
        error: dict[str, Any] = {"code": decision.code, "error": decision.error}
        if isinstance(decision, RetryAt):
            wait_s = max(0.0, (decision.due_at - self._clock.now()).total_seconds())
            error["retry_in_s"] = round(wait_s, 1)
        if isinstance(attempt.outcome, Failure | Retry | Dead) and attempt.outcome.dependency is not None:
            error["dependency"] = attempt.outcome.dependency
        traceback = attempt.outcome.traceback if isinstance(attempt.outcome, Failure | Interruption) else None
        if traceback and (
            is_text() or self._log.is_enabled_for(DEBUG) or self._is_new_cause(attempt.recipient, traceback)
        ):
            error["traceback"] = traceback
        self._log.warning(attempt.FAILED_EVENT, **attempt.fields(), outcome=outcome, took_s=took_s, **error)
        if isinstance(decision, RetryAt) and self._due.relies_on_notifier:
            self._due.include_later(attempt.recipient, decision.due_at.timestamp(), wait_s or 0.0)
        elif wait_s is not None and wait_s < self._poll_s:
            # A retry that is due before the next poll gets its own wake-up.
            asyncio.get_running_loop().call_later(wait_s + PACE_S, self._resume, attempt)

    def _is_new_cause(self, recipient: str, traceback: str) -> bool:
        """Return whether this process has not logged this failure of the recipient yet; the message does not count."""
        frames = [line for line in traceback.splitlines() if line.startswith("  File ")]
        return self._logged_causes.is_new(recipient, *frames)

    def _resume(self, attempt: A) -> None:
        self.queues.resume(attempt)
        self._wake.set()

    # Results

    async def _write(self) -> None:
        """Write results until cancelled; while one batch is written, the next one grows."""
        while True:
            await self._has_results.wait()
            self._has_results.clear()
            while self._results:
                began = time.monotonic()
                self._is_writing = True
                self._is_urgent.clear()
                batch, self._results = self._results[:_MAX_BATCH], self._results[_MAX_BATCH:]
                for attempt, is_held in zip(batch, await self._write_batch(batch), strict=True):
                    self.held.discard(attempt)
                    if is_held:
                        self._conclude(attempt, attempt.decision, _outcome_name(attempt.decision))
                    else:
                        self._lost(attempt)
                self._is_writing = False
                # Larger batches cost PostgreSQL less per result.
                if not any(attempt.is_blocking for attempt in self._results):
                    await _wait(self._is_urgent, began + _BATCH_PACE_S - time.monotonic())

    async def _write_batch(self, batch: Sequence[A]) -> list[bool]:
        """Write results; a result that cannot be written fails alone, and its lease expires."""
        refusals = 0
        while True:
            began = time.monotonic()
            try:
                are_held = await self._recorder.record(batch)
            except DatabaseUnavailable as error:
                self._log.warning("settle_delayed", attempts=len(batch), error=str(error))
                await asyncio.sleep(_WRITE_PAUSE_S)
            except DatabaseError as error:
                refusals += 1
                if refusals < _WRITE_ROUNDS:
                    continue
                if len(batch) > 1:
                    return [is_held for attempt in batch for is_held in await self._write_batch([attempt])]
                lease = batch[0].lease
                name = ids.show_delivery(lease.event_id, lease.ordinal)
                self._log.error("settle_refused", delivery=name, error=str(error))
                return [False]
            else:
                self._slow.note("settle", len(batch), time.monotonic() - began)
                return are_held

    # Leases

    async def _renew(self) -> None:
        period_s = pause_s = self._lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            pause_s = period_s
            self._check()
            now = time.monotonic()
            old = [attempt for attempt in self.held if attempt.lease_until - now < self._lease_s - period_s / 2]
            if not old:
                continue
            try:
                lost = await self._deliveries.renew([attempt.lease for attempt in old], lease_s=self._lease_s)
            except DatabaseError as error:
                self._log.warning("renew_failed", error=str(error), leases=len(old))
                pause_s = min(period_s, _RENEW_AGAIN_S)
                continue
            for attempt in old:
                attempt.lease_until = now + self._lease_s
            if lost:
                self._lose(
                    {
                        attempt
                        for attempt in old
                        if (attempt.lease.event_id, attempt.lease.ordinal, attempt.lease.fence) in lost
                    }
                )

    def _lose(self, lost: set[A]) -> None:
        self.held -= lost
        for attempt in lost & self.running:
            self._executor.lose(attempt)
        self.queues.drop(lost - self.running)

    def _check(self) -> None:
        stuck = self._executor.check(self.running)
        if stuck is not None and self._stuck is None:
            self._stuck = stuck
            self._log.error("attempt_stuck", error=stuck)
            self._quit.set()

    async def _beat(self, beat: Callable[[], None]) -> None:
        while True:
            beat()
            self.queues.report()
            await asyncio.sleep(_BEAT_S)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait for them for at most `_LAST_S`."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_LAST_S)


OUTCOMES: Final = {Complete: "succeeded", RetryAt: "retry", WaitUntil: "waiting", DeadLetter: "dead"}


def _outcome_name(decision: Decision) -> str:
    """Return the outcome as metrics and the log name it."""
    is_ignored = isinstance(decision, Complete) and decision.ignored_because is not None
    return "ignored" if is_ignored else OUTCOMES[type(decision)]
