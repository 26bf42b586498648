"""Group commit: rows that arrive during a commit form the next one, and each row's waiter gets its own outcome.

There is no timer. A committer commits all waiting rows, up to the limits of one commit, and rows that arrive meanwhile
wait until it is free. A single row is therefore committed at once, and concurrent rows share one commit.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar

from boathook.domain.errors import DatabaseError, DatabaseUnavailable, TooManyDeliveries, ValueRejected

Row = TypeVar("Row")
Outcome = TypeVar("Outcome")
Outcome_contra = TypeVar("Outcome_contra", contravariant=True)

_MIN_COMMIT_SHARE: Final = 0.25
"""Minimum time for a commit, as a share of `within_s`, however long its oldest row has waited."""


class Waiter(Protocol[Outcome_contra]):
    """Waits for the outcome of one row, as an `asyncio.Future` does; it must not raise."""

    def done(self) -> bool:
        """Return whether it waits no longer."""
        ...

    def set_result(self, outcome: Outcome_contra, /) -> None:
        """Take the outcome: the row is committed, or need not be."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """Take the reason why the row is not known to be committed."""
        ...


Entry = tuple[Row, Waiter[Outcome], float]
"""A row, its waiter, and the monotonic time from which it waits."""


class GroupCommit(Generic[Row, Outcome]):
    """Commits rows in groups, in the order they arrive.

    A group that holds a row which can never be stored is split by halves until that row fails alone. A row that waits
    for longer than `within_s`, or whose commit finds the store unavailable, is passed to `on_failure`, with all that
    wait behind it if there is such a limit: what takes them over need not wait for a timeout of theirs.

    Args:
        commit: stores a group, within a number of seconds if that is not None, and returns the outcome of each row, in
            the same order. It raises ValueRejected or TooManyDeliveries if a row can never be stored, and another
            DatabaseError if the store fails: then nothing is known to be stored.
        name: the name of the committers' tasks.
        weigh: returns the weight of a row.
        max_weight: maximum weight of one commit; a single row may exceed it.
        max_rows: maximum number of rows in one commit.
        max_waiting: the number of waiting rows from which `is_full` is true.
        committers: maximum number of concurrent commits.
        within_s: how long a row may wait for the end of its commit; None: as long as that takes.
        on_failure: takes rows that were not stored, and why; by default, their waiters get the error.
        is_paused: whether rows wait until `resume` is called.
    """

    def __init__(
        self,
        commit: Callable[[list[Row], float | None], Awaitable[Sequence[Outcome]]],
        *,
        name: str,
        weigh: Callable[[Row], int],
        max_weight: int,
        max_rows: int,
        max_waiting: int,
        committers: int,
        within_s: float | None = None,
        on_failure: Callable[[Sequence[Entry[Row, Outcome]], DatabaseError], None] | None = None,
        is_paused: bool = False,
    ) -> None:
        self._commit = commit
        self._name = name
        self._weigh = weigh
        self._max_weight = max_weight
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._committers = committers
        self._within_s = within_s
        self._on_failure = fail if on_failure is None else on_failure
        self._is_paused = is_paused
        self._waiting: deque[Entry[Row, Outcome]] = deque()
        self._running = 0
        # A committer serves many requests, so it must not run in the context of the one that starts it.
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of rows whose commit has not begun."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more rows should be put."""
        return len(self._waiting) >= self._max_waiting

    def put(self, row: Row, waiter: Waiter[Outcome]) -> None:
        """Commit a row, and pass the outcome or an error to its waiter."""
        self._waiting.append((row, waiter, time.monotonic()))
        if self._running < self._committers and not self._is_paused:
            self._start_committer()

    def pause(self) -> list[Entry[Row, Outcome]]:
        """Begin no commit until `resume` is called; return the rows that were waiting, which are waiting no longer."""
        self._is_paused = True
        waiting, self._waiting = self._waiting, deque()
        return list(waiting)

    def resume(self) -> None:
        """Commit the rows that are waiting, and those that are put from now on."""
        self._is_paused = False
        for _ in range(min(self._committers - self._running, len(self._waiting))):
            self._start_committer()

    async def drain(self) -> None:
        """Return once no commit is under way, and no row is waiting for one unless this is paused."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start_committer(self) -> None:
        self._running += 1
        task = asyncio.create_task(self._run_committer(), name=self._name, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_committer(self) -> None:
        within_s = self._within_s
        try:
            while self._waiting and not self._is_paused:
                if within_s is not None and time.monotonic() - self._waiting[0][2] > within_s:
                    error = DatabaseUnavailable(f"commits have been waited for for more than {within_s:g} s")
                    self._fail([], error)
                    continue
                await self._commit_split(self._take_group())
        finally:
            # Here, not in a done callback: a row that is put before the callback runs must start another one.
            self._running -= 1

    def _take_group(self) -> list[Entry[Row, Outcome]]:
        """Take the oldest waiting rows, up to the limits of one commit."""
        waiting, weigh = self._waiting, self._weigh
        group = [waiting.popleft()]
        room = self._max_weight - weigh(group[0][0])
        while waiting and len(group) < self._max_rows:
            room -= weigh(waiting[0][0])
            if room < 0:
                break
            group.append(waiting.popleft())
        return group

    async def _commit_split(self, group: list[Entry[Row, Outcome]]) -> None:
        """Commit a group in order; isolate rows that can never be stored by halves."""
        parts = deque([group])
        while parts:
            part = parts.popleft()
            try:
                outcomes = await self._commit([entry[0] for entry in part], self._time_left(part[0][2]))
            except (ValueRejected, TooManyDeliveries) as error:
                if len(part) == 1:
                    fail(part, error)
                else:
                    middle = len(part) // 2
                    parts.extendleft((part[middle:], part[:middle]))
            except DatabaseError as error:
                self._fail([*part, *chain.from_iterable(parts)], error)
                return
            except Exception as error:  # noqa: BLE001 - a committer must survive any error and report it to its callers
                fail(part, error)
            else:
                for (_, waiter, _), outcome in zip(part, outcomes, strict=True):
                    if not waiter.done():
                        waiter.set_result(outcome)

    def _time_left(self, since: float) -> float | None:
        """Return the time limit of a commit whose oldest row has waited since *since*."""
        if self._within_s is None:
            return None
        return max(self._within_s - (time.monotonic() - since), self._within_s * _MIN_COMMIT_SHARE)

    def _fail(self, failed: list[Entry[Row, Outcome]], error: DatabaseError) -> None:
        if self._within_s is not None:
            failed += self._waiting
            self._waiting.clear()
        self._on_failure(failed, error)


def fail(entries: Iterable[Entry[Row, Outcome]], error: Exception) -> None:
    """Pass an error to all waiters that still wait."""
    for _, waiter, _ in entries:
        if not waiter.done():
            waiter.set_exception(error)
