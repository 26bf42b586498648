"""The recorder: a process that is never killed, with the senders, the receivers and the log of both.

A test starts it, gives it commands and reads the log, which is the only evidence for the checks::

    with Recorder(folder) as outside:
        outside.receiver                            # http://127.0.0.1:PORT, any path of it is an endpoint
        outside.begin(Load(hosts=("127.0.0.1:8080",), rate=100))
        outside.wait_accepted(300)                  # so many more 2xx than at this moment
        outside.mark("fault: gateway killed")
        outside.stop()                              # no more events; those begun are sent until they are accepted
        outside.settle(timeout_s=20)                # all of them are; else they are given up
        outside.history()

It is driven by JSON lines: a command on its standard input, one line of counts in answer to each.
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.faults.rig import history
from tests.faults.rig.history import Fact, History, Marked
from tests.faults.rig.receivers import Behaviour, Receivers
from tests.faults.rig.senders import Load, Senders, SignedEvent
from tests.support import until

ROOT = Path(__file__).parents[3]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a command."""

    accepted: int
    """Requests answered 2xx so far."""
    events: int
    """Events begun so far."""
    under_way: int
    arrived: int
    """Messages that came to receivers so far."""
    port: int


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to do; without any of them it only counts."""

    begin: Load | None = None
    send: list[SignedEvent] = []
    like: Load | None = None
    """How to send these."""
    stop: str | None = None
    """A lane; empty for all."""
    give_up: bool = False
    mark: str = ""
    behaviours: dict[str, Behaviour] = {}
    door: str = ""
    """``shut`` or ``open``: whether the receivers' port takes connections."""


class Recorder:
    """The recorder's client in the test."""

    def __init__(self, folder: Path, *, address: str = "127.0.0.1") -> None:
        self.path = folder / "history.jsonl"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.rig.recorder", str(self.path), address],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.receiver = f"http://{address}:{self.count().port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(300)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(300)
        self._process.stdout.close()
        assert code == 0 or error is not None, f"the recorder ended with {code}: its log proves nothing"

    def _do(self, **command: Any) -> Counted:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(Command(**command)) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the recorder has died"
        return msgspec.json.decode(line, type=Counted)

    def count(self) -> Counted:
        """Return its current counts."""
        return self._do()

    def begin(self, load: Load) -> None:
        """Start a load; loads with different lanes and prefixes run side by side."""
        self._do(begin=load)

    def send(self, load: Load, *some: SignedEvent) -> None:
        """Send these at once, side by side, in the manner of *load*."""
        self._do(send=list(some), like=load)

    def stop(self, lane: str = "") -> None:
        """Begin no more events of a lane, or of any."""
        self._do(stop=lane)

    def settle(self, timeout_s: float = 20.0) -> bool:
        """Wait until every event is accepted or rejected; then abandon the rest, and return whether there was none."""
        deadline = time.monotonic() + timeout_s
        while self.count().under_way:
            if time.monotonic() > deadline:
                self._do(give_up=True)
                until(lambda: not self.count().under_way)
                return False
            time.sleep(0.02)
        return True

    def wait_accepted(self, more: int, timeout_s: float = 30.0) -> None:
        """Wait until this many more requests were answered 2xx."""
        goal = self.count().accepted + more
        until(lambda: self.count().accepted >= goal, timeout=timeout_s, every=0.02)

    def wait_events(self, more: int, timeout_s: float = 30.0) -> None:
        """Wait until this many more events were sent, with any response."""
        goal = self.count().events + more
        until(lambda: self.count().events >= goal, timeout=timeout_s, every=0.02)

    def wait_arrived(self, more: int, timeout_s: float = 30.0) -> None:
        """Wait until this many more messages reached receivers."""
        goal = self.count().arrived + more
        until(lambda: self.count().arrived >= goal, timeout=timeout_s, every=0.02)

    def mark(self, what: str) -> None:
        """Write a line of the test's own into the log."""
        self._do(mark=what)

    def answer(self, place: str, behaviour: Behaviour) -> None:
        """Set the receivers' response for a path from now on."""
        self._do(behaviours={place: behaviour})

    def shut_door(self) -> None:
        """Refuse the receivers' connections."""
        self._do(door="shut")

    def open_door(self) -> None:
        """Accept connections again."""
        self._do(door="open")

    def history(self) -> History:
        """Return all facts so far."""
        return history.read(self.path)


class _Outside:
    """The part of the recorder that runs in its own process."""

    def __init__(self, log: int, address: str) -> None:
        self._log = log
        self.senders = Senders(self.write)
        self.receivers = Receivers(self.write, address)

    def write(self, fact: Fact) -> None:
        os.write(self._log, history.to_line(fact))

    async def do(self, command: Command) -> Counted:
        if command.mark:
            self.write(Marked(at=time.time(), what=command.mark))
        if command.begin is not None:
            self.senders.begin(command.begin)
        for event in command.send:
            assert command.like is not None
            self.senders.send(command.like, event)
        if command.stop is not None:
            self.senders.stop(command.stop)
        self.senders.is_given_up |= command.give_up
        self.receivers.behaviours.update(command.behaviours)
        if command.door:
            await (self.receivers.shut() if command.door == "shut" else self.receivers.open())
        return Counted(
            accepted=self.senders.accepted, events=self.senders.events, under_way=self.senders.under_way,
            arrived=self.receivers.arrived, port=self.receivers.port,
        )  # fmt: skip


async def _main(path: str, address: str) -> None:
    outside = _Outside(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), address)
    await outside.receivers.open()
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    commands = msgspec.json.Decoder(Command)
    while line := await reader.readline():
        answer = await outside.do(commands.decode(line))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
