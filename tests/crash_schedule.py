"""Kills processes of a running boathook at chosen crash points, once at each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from boathook.observability.failpoints import VARIABLE
from tests.support import until


@dataclass(frozen=True, slots=True)
class CrashSchedule:
    """Kills one process at each of several crash points; processes started later die at the points that remain."""

    folder: Path
    hits: Mapping[str, int]
    """The crash points; at each, how often one process passes it before it dies."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that arm the crash points in a process."""
        return {VARIABLE: ",".join(f"{point}:{hits}:kill:{self._mark(point)}" for point, hits in self.hits.items())}

    def pending(self) -> set[str]:
        """Return the points at which no process has died yet."""
        return {point for point in self.hits if not self._mark(point).exists()}

    def wait(self, timeout: float = 300) -> None:
        """Wait until a process has died at each point."""
        try:
            until(lambda: not self.pending(), timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"no process died at {sorted(self.pending())}") from error

    def _mark(self, point: str) -> Path:
        return self.folder / f"died-{point}"
