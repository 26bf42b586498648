"""Moments at which the processes of a running boathook die, each once, one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from boathook.telemetry.crashpoints import VARIABLE
from tests.support import until


@dataclass(frozen=True, slots=True)
class Deaths:
    """What kills a process at each of several crash points; who is started again meets those that are left."""

    folder: Path
    hits: Mapping[str, int]
    """Each point, and how often one process passes there before it dies."""

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process of it."""
        return {VARIABLE: ",".join(f"{point}:{hits}:kill:{self._mark(point)}" for point, hits in self.hits.items())}

    def left(self) -> set[str]:
        """Return the points at which nobody has died yet."""
        return {point for point in self.hits if not self._mark(point).exists()}

    def wait(self, timeout: float = 90) -> None:
        """Wait until somebody has died at each."""
        try:
            until(lambda: not self.left(), timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"nobody died at {sorted(self.left())}") from error

    def _mark(self, point: str) -> Path:
        return self.folder / f"died-{point}"
