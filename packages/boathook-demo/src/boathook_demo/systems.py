"""The four systems, each run by its own `simulate` command, a process in parallel to the demo's senders.

Only their own reports are used here; each compares its own data with the requests it sent.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from boathook_demo.folder import Folder, environment

EVENTS_PER_S: Final[Mapping[str, float]] = {"billing": 2.5, "fleet": 2.0, "music": 1.0, "cashdesk": 3.0}
"""Payments, events, songs, or requests of each shop per second of the demo."""
_MAX_DURATION_S: Final = 30.0
"""Longer demos do not simulate more, so that Ctrl-C need not wait long for the end."""
_WAIT_S: Final = 30.0
_TIMEOUT_S: Final = 420.0
"""Longer than a `simulate` waits for changing results, so that it can report a timeout itself."""
_ERROR_LINES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One system's own report at the end."""

    sent: int = 0
    taken: int = 0
    """Requests answered 2xx; requests that are meant to be refused do not count."""
    effects: Mapping[str, int] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()
    """One sentence for each problem."""
    is_finished: bool = True
    """Whether nothing was in progress at the end; otherwise complaints may be about work still to be done."""

    @property
    def summary(self) -> str:
        """The effects as text."""
        return ", ".join(f"{number} {effect}" for effect, number in self.effects.items()) or "nothing"


def read_result(code: int, output: str, errors: str) -> SimulationResult:
    """Parse the output of a `simulate` that ended with the exit code *code*."""
    try:
        row: dict[str, Any] = json.loads(output)
        accepted = sum(number for status, number in row["answers"].items() if status.startswith("2"))
        complaints = (*row["surprises"], *row["differences"])
        result = SimulationResult(
            sent=row["sent"],
            taken=accepted,
            effects=row["effects"],
            complaints=complaints,
            is_finished=row.get("finished", True),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        result = SimulationResult()
    if (code == 0 and result.sent) or result.complaints:
        return result
    message = " ".join([line.strip() for line in errors.splitlines() if line.strip()][-_ERROR_LINES:])
    return SimulationResult(complaints=(f"its simulate ended with exit code {code}: {message}",))


class AppSimulators:
    """Runs all simulators concurrently."""

    def __init__(self, folder: Folder, port: int, seconds: float, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{port}"
        self._seconds = min(seconds, _MAX_DURATION_S)
        self._say = say
        self._ended: dict[str, SimulationResult] = {}

    @property
    def outcomes(self) -> dict[str, SimulationResult]:
        """The reports of the systems that have ended, by name."""
        return {name: self._ended[name] for name in EVENTS_PER_S if name in self._ended}

    @property
    def are_right(self) -> bool:
        """Whether all have ended without a complaint."""
        return self._ended.keys() == EVENTS_PER_S.keys() and not any(
            result.complaints for result in self._ended.values()
        )

    async def play(self) -> None:
        """Run all simulators until their results are right or they time out; no process outlives this call."""
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
            # Ctrl-C at the terminal is handled by the demo.
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
