"""Runs seeds and returns the violations and the trace of each."""

import gc
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.simulation.base_world import BaseWorld
from tests.simulation.driver import driving
from tests.simulation.patching import patched
from tests.simulation.plan import Plan, draw
from tests.simulation.sending.plan import Plan as SendingPlan
from tests.simulation.sending.plan import draw as draw_sending
from tests.simulation.sending.world import SendingWorld
from tests.simulation.server import Rates
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one seed."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    steps: int
    virtual_s: float

    @property
    def hash(self) -> str:
        """A 16-character hash of the trace."""
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
    """Run one seed of receiving and handling, inside `simulating`."""
    return _result(seed, World(plan or draw(seed)))


def run_sending(seed: int, plan: SendingPlan | None = None) -> Result:
    """Run one seed of sending, inside `simulating`."""
    return _result(seed, SendingWorld(plan or draw_sending(seed)))


def _result(seed: int, world: BaseWorld) -> Result:
    world.run()
    return Result(seed, tuple(world.found()), tuple(world.trace), world.loop.steps, world.loop.now)


def calm_plan(seed: int) -> Plan:
    """Return what *seed* draws, without anything that goes wrong."""
    plan = draw(seed)
    return replace(
        plan,
        faults=(),
        crash_rate=0.0,
        poison=0.0,
        disk_full=0.0,
        disk_failing=0.0,
        disk_died=0.0,
        rates=Rates(),
        scripts=("ok",),
    )


def kept_seeds(of: str = "") -> list[int]:
    """Return the seeds of seeds.txt; *of* is "sending" for those of sending."""
    lines = (Path(__file__).parent / of / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def tidy(count: int) -> None:
    """Collect garbage now and then, which is switched off while seeds run."""
    if count % 25 == 24:
        gc.collect()


def first_to_notice(run: Callable[[int], Result], invariants: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the first seed that breaks one of *invariants*, a pattern of their names, and what it found."""
    for count, seed in enumerate(seeds):
        found = [one for one in run(seed).violations if re.match(invariants, one)]
        tidy(count)
        if found:
            return seed, found[0]
    return None


def replay_line(seed: int, of: str = "") -> str:
    """Return the command that replays a seed; *of* is "sending" where it is one of those."""
    return f"python -m tests.simulation {of and f'--{of} '}--seed {seed}"
