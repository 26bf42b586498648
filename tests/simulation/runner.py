"""Runs seeds and says what came of each."""

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.patching import patched
from tests.simulation.plan import Plan, draw
from tests.simulation.server import driving
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one seed."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    steps: int
    virtual_s: float

    @property
    def hash(self) -> str:
        """The trace in 16 characters."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


@contextmanager
def simulating() -> Iterator[None]:
    """Prepare this process for runs."""
    with patched(), driving():
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_on:
                gc.enable()


def run(seed: int, plan: Plan | None = None) -> Result:
    """Run one seed, inside `simulating`."""
    world = World(plan or draw(seed))
    world.run()
    return Result(seed, tuple(world.recorder.violations), tuple(world.trace), world.loop.steps, world.loop.now)


def replay_line(seed: int) -> str:
    """Return what to type to see a seed again."""
    return f"python -m tests.simulation --seed {seed}"
