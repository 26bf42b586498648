"""A supervisor that is stopped just as PostgreSQL has become available."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boathook import config
from boathook.server.supervisor import StopSignal, Supervisor


class StubProcess:
    """A child that stops within half a second of SIGTERM."""

    pid, is_orphan = 1, False

    def __init__(self) -> None:
        self.returncode: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM:
            asyncio.get_running_loop().call_later(0.5, self._end, 0)
        else:
            self._end(-number)

    def _end(self, code: int) -> None:
        self.returncode = code if self.returncode is None else self.returncode


class StubForkServer:
    """Starts stubs; a stop is requested while it forks the first child that needs PostgreSQL."""

    has_ended = False

    def __init__(self, stop: StopSignal) -> None:
        self.started: list[StubProcess] = []
        self.inputs: list[int] = []
        self._stop = stop

    async def spawn(self, role: str, _slot: str, descriptors: Sequence[int]) -> StubProcess:
        process = StubProcess()
        self.started.append(process)
        self.inputs.append(os.dup(descriptors[0]))  # a child's standard input stays open
        if role != "gateway":
            self._stop.graceful.set()
            await asyncio.sleep(0.1)
        return process


async def test_children_started_while_it_stops_are_stopped_too(tmp_path: Path):
    settings: Any = config.defaults()
    settings["server"] |= {"data_dir": tmp_path, "gateways": 1, "drain_s": 1, "linger_s": 0}
    settings["database"]["url"] = "postgresql://127.0.0.1:1/none"
    stop = StopSignal()
    server: Any = StubForkServer(stop)
    supervisor = Supervisor(config.Settings.model_validate(settings), server, None, "", None, {})
    try:
        async with asyncio.timeout(20):
            assert await supervisor.run(stop, lambda: asyncio.sleep(0)) == 0
        assert [process.returncode for process in server.started] == [0, 0]
    finally:
        for child in supervisor._children:
            child.close()
        for descriptor in server.inputs:
            os.close(descriptor)
        await asyncio.sleep(0)  # lets the transports close their pipes
