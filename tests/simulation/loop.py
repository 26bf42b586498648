"""Event loop with virtual time: the clock jumps to the next timer, and a seed decides which process runs next.

Every callback belongs to a `Process`, found through its context. Of the processes that are ready one is drawn for each
turn, and within a process callbacks keep their order, as in a real one. A process that is paused keeps its callbacks
for later, one that was killed loses them: neither notices anything, as with SIGSTOP and SIGKILL.
"""

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

_COMPACT_AT = 4_096


class OutOfSteps(RuntimeError):
    """A run exceeded its limit of callbacks: something runs in an endless loop."""


PROCESS: "contextvars.ContextVar[Process]" = contextvars.ContextVar("process")


class Process:
    """A simulated operating system process: its callbacks are paused and killed together."""

    __slots__ = ("clock_ahead", "context", "is_busy", "is_dead", "is_paused", "is_still", "name", "on_death", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Turn] = deque()
        self.is_busy = False
        self.is_paused = False
        self.is_dead = False
        self.is_still = False
        """Whether its callbacks do not run, as it is paused or dead; a dead one's are kept for the end of the run."""
        self.clock_ahead = timedelta()
        """How far its host's wall clock is ahead."""
        self.on_death: list[Callable[[], None]] = []
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)


class Turn(asyncio.TimerHandle):
    """A callback that waits for its turn: as asyncio's own handle, without what that does for debugging."""

    __slots__ = ("at", "is_cancelled", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        world: Process,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self.at = 0.0
        self.is_cancelled = False
        self.process = self._context.get(PROCESS, world)

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.at

    def __lt__(self, other: object) -> bool:
        return False  # never asked: the number before it in the heap decides

    def __hash__(self) -> int:
        return id(self)


class NumberedTask(asyncio.Task[Any]):
    """A task that has the same place in a set in every process."""

    def __init__(self, coro: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs simulated processes in virtual time."""

    def __init__(self, rng: random.Random, *, most_steps: int = 2_000_000) -> None:
        super().__init__()
        self.rng = rng
        self.now = 0.0
        self.steps = 0
        self.surprises: list[str] = []
        """Exceptions of callbacks that were not handled."""
        self.world = Process("world")
        self._busy: list[Process] = []
        self._timers: list[tuple[float, int, Turn]] = []
        self._timer_number = 0
        self._task_number = 0
        self._most_steps = most_steps
        self._all_tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    # What asyncio calls

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Turn:
        turn = Turn(callback, args, context, self.world)
        process = turn.process
        process.ready.append(turn)
        if not process.is_busy and not process.is_still:
            process.is_busy = True
            self._busy.append(process)
        return turn

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Turn:
        turn = Turn(callback, args, context, self.world)
        turn.at = when
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, turn))
        return turn

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Turn:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.surprises.append(f"{context.get('message')}: {error!r}")

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        busy, rng_random = self._busy, self.rng.random
        while not self._stopping:  # type: ignore[attr-defined]
            if not busy:
                self._advance()
                continue
            index = int(rng_random() * len(busy)) if len(busy) > 1 else 0
            process = busy[index]
            if process.ready and not process.is_still:
                turn = process.ready.popleft()
                if not turn.is_cancelled:
                    self.steps += 1
                    try:
                        turn._context.run(turn._callback, *turn._args)
                    except Exception as error:  # noqa: BLE001 as in asyncio: a callback's error ends no other callback
                        self.surprises.append(f"{turn._callback!r} raised {error!r}")
            if not process.ready or process.is_still:
                process.is_busy = False
                busy.remove(process)
            if self.steps > self._most_steps:
                raise OutOfSteps(f"{self.steps} steps at {self.now:.3f} s")

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if not timers:
            raise RuntimeError("nothing is ready and no timer runs: everybody waits for each other")
        self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            turn = heapq.heappop(timers)[2]
            if turn.is_cancelled:
                continue
            process = turn.process
            process.ready.append(turn)
            if not process.is_busy and not process.is_still:
                process.is_busy = True
                self._busy.append(process)

    # Processes

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        self._task_number += 1
        task = NumberedTask(coro, self._task_number, loop=self, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._all_tasks.append(task)
        if len(self._all_tasks) > _COMPACT_AT:
            self._all_tasks = [one for one in self._all_tasks if not one.done()]
        return task

    def spawn(self, process: Process, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start *coro* as a task of *process*."""
        return self.create_task(coro, context=process.context.copy())

    def pause(self, process: Process) -> None:
        """Freeze a process."""
        process.is_paused = process.is_still = True

    def resume(self, process: Process) -> None:
        """Resume a frozen process, with everything that fell due meanwhile."""
        process.is_paused = False
        process.is_still = process.is_dead
        if process.ready and not process.is_still and not process.is_busy:
            process.is_busy = True
            self._busy.append(process)

    def kill(self, process: Process) -> None:
        """End a process at any point."""
        process.is_dead = process.is_still = True
        process.is_paused = False
        for told in process.on_death:
            told()

    def bury(self, processes: list[Process]) -> None:
        """Let every task unwind, dead ones too, so that the garbage collector finds nothing later."""
        for process in processes:
            process.is_dead = False
            self.resume(process)
        for patience in range(30):
            left = [task for task in self._all_tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0.001 * min(2**patience, 30_000)))
        self._all_tasks.clear()
        self._timers.clear()
