"""Threads for sync handlers: unlike those of the standard pool, they never delay the exit of the process."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class HandlerThread:
    """One function that runs in a thread."""

    __slots__ = ("future", "is_over")

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        self.future = future
        """The function's result. Cancelling it does not stop the thread, as threads cannot be stopped."""
        self.is_over = False
        """Whether the thread has left the function."""


class ThreadPool:
    """Runs functions in threads; starts as many threads as needed and reuses idle ones."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> HandlerThread:
        """Start *function* in a thread."""
        loop = asyncio.get_running_loop()
        thread = HandlerThread(loop.create_future())
        context = contextvars.copy_context()

        def finish(result: Any, error: BaseException | None) -> None:
            thread.is_over = True
            if thread.future.cancelled():
                return
            if error is None:
                thread.future.set_result(result)
            else:
                thread.future.set_exception(error)

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function)
            except StopIteration as stop:  # cannot be set on a future
                error = RuntimeError(repr(stop))
            except BaseException as raised:  # noqa: BLE001 it is raised where the future is awaited
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, error)

        self._start(job)
        return thread

    def _start(self, job: Callable[[], None]) -> None:
        with self._lock:
            is_new_needed = self._idle == 0
            if not is_new_needed:
                self._idle -= 1
        if is_new_needed:
            threading.Thread(target=self._work, args=(job,), daemon=True, name="boathook-handler").start()
        else:
            self._jobs.put(job)

    def _work(self, job: Callable[[], None]) -> None:
        while True:
            job()
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
