"""The background tasks of a part of a process."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final, Self

_CANCEL_TIMEOUT_S: Final = 3.0


class BackgroundTasks:
    """Runs coroutines until the end of the block, which cancels them and waits for at most three seconds.

    Args:
        works: what to run from the beginning of the block, by the names of the tasks.
    """

    def __init__(self, works: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = MappingProxyType({})) -> None:
        self._works = works
        self._tasks: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        """Run one more coroutine."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        for name, work in self._works.items():
            self.start(work(), name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCEL_TIMEOUT_S)
