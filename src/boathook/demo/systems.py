"""The four systems, each played as its owner would: by its own `simulate`, a process beside the demo's senders.

What they say of themselves is all that is known of them here; each compares its own books with what was sent to it.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from boathook.demo.folder import Folder, environment

EVENTS_PER_S: Final[Mapping[str, float]] = {"billing": 2.5, "fleet": 2.0, "music": 1.0, "cashdesk": 3.0}
"""How many payments, things, songs and requests of each shop fit a second of play."""
_MAX_DURATION_S: Final = 30.0
"""Longer plays make no longer stories, so that Ctrl-C need not wait for their ends."""
_WAIT_S: Final = 30.0
_TIMEOUT_S: Final = 420.0
"""Longer than a `simulate` waits for books that go on changing, so that it can say so itself."""
_ERROR_LINES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What one system says of itself in the end."""

    sent: int = 0
    taken: int = 0
    """Requests answered 2xx; what is made up to be refused is not."""
    effects: Mapping[str, int] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()
    """A sentence for everything that is not as it must be."""
    is_finished: bool = True
    """Whether it ended with nothing under way; complaints of one that did not may be about what was yet to come."""

    @property
    def summary(self) -> str:
        """The effects in words."""
        return ", ".join(f"{number} {what}" for what, number in self.effects.items()) or "nothing"


def read_result(code: int, output: str, errors: str) -> SimulationResult:
    """Read what a `simulate` has printed before it ended with the exit code *code*."""
    try:
        row: dict[str, Any] = json.loads(output)
        taken = sum(number for status, number in row["answers"].items() if status.startswith("2"))
        complaints = (*row["surprises"], *row["differences"])
        found = SimulationResult(
            sent=row["sent"],
            taken=taken,
            effects=row["effects"],
            complaints=complaints,
            is_finished=row.get("finished", True),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        found = SimulationResult()
    if (code == 0 and found.sent) or found.complaints:
        return found
    said = " ".join([line.strip() for line in errors.splitlines() if line.strip()][-_ERROR_LINES:])
    return SimulationResult(complaints=(f"its simulate ended with exit code {code}: {said}",))


class AppSimulators:
    """Plays all of them at once."""

    def __init__(self, folder: Folder, port: int, seconds: float, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{port}"
        self._seconds = min(seconds, _MAX_DURATION_S)
        self._say = say
        self._ended: dict[str, SimulationResult] = {}

    @property
    def outcomes(self) -> dict[str, SimulationResult]:
        """What those say that have ended, by name."""
        return {name: self._ended[name] for name in EVENTS_PER_S if name in self._ended}

    @property
    def are_right(self) -> bool:
        """Whether all have ended without a complaint."""
        return self._ended.keys() == EVENTS_PER_S.keys() and not any(one.complaints for one in self._ended.values())

    async def play(self) -> None:
        """Let each send what is made up for it, until its books are right or it gives up; none outlives this call."""
        async with asyncio.TaskGroup() as group:
            for name in EVENTS_PER_S:
                group.create_task(self._play(name))

    async def _play(self, name: str) -> None:
        outcome = self._ended[name] = await self._simulate(name)
        self._say(f"{name} has played: {outcome.summary}")

    async def _simulate(self, name: str) -> SimulationResult:
        count = max(6, round(self._seconds * EVENTS_PER_S[name]))
        options = ["--url", self._url, "--count", str(count), "--wait", f"{_WAIT_S:.0f}", "--json"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "boathook", "--config", str(self._folder.configuration), name, "simulate"),
            *options,
            cwd=self._folder.path,
            env=environment(self._folder),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            # Ctrl-C at the terminal is for the demo.
            start_new_session=True,
        )
        try:
            return await _read_process(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _read_process(process: Process) -> SimulationResult:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        sentence = f"its simulate was not done after {_TIMEOUT_S:.0f} seconds"
        return SimulationResult(complaints=(sentence,), is_finished=False)
    code = process.returncode
    assert code is not None
    return read_result(code, output.decode(errors="replace"), errors.decode(errors="replace"))
