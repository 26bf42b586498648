"""Seeds of the simulation: nothing is lost, duplicated or reordered under any faults; rare states occur."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation import runner
from tests.simulation.runner import Result, kept_seeds, replay_line, simulating
from tests.simulation.sometimes import EXPECTED, RARE, REACHED

COUNT, MAX = 80, 500
"""How many seeds `make test-all` runs: the fewest, and the most where something worth seeing has not been seen by then."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with simulating():
        yield


def judge(result: Result) -> None:
    assert not result.violations, f"{result.violations[0]}\n    see it again: {replay_line(result.seed)}"


@pytest.mark.parametrize("seed", kept_seeds())
def test_past_seeds_still_pass(seed: int) -> None:
    judge(runner.run(seed))


@pytest.mark.parametrize("seed", range(1, 21))
def test_no_seed_breaks_an_invariant(seed: int) -> None:
    judge(runner.run(seed))


@pytest.mark.extended("runs as many seeds as it takes to reach every rare state; 20 seeds stay")
def test_no_seed_breaks_an_invariant_and_every_rare_state_is_reached() -> None:
    REACHED.clear()
    for seed in range(1, MAX + 1):
        judge(runner.run(seed))
        runner.tidy(seed)
        if seed >= COUNT and REACHED.keys() >= EXPECTED:
            break
    missing = sorted(EXPECTED - REACHED.keys())
    assert not missing, f"never reached in {MAX} seeds: {missing}"


def test_a_state_that_is_never_reached_fails_the_run() -> None:
    """Mutant: without pauses and kills, no commit is ever stale."""
    REACHED.clear()
    for seed in range(5):
        judge(runner.run(seed, runner.calm_plan(seed)))
    assert "a stale commit was refused" not in REACHED
    assert EXPECTED - REACHED.keys()


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
@pytest.mark.parametrize("seed", [76, 955])
def test_a_seed_leaves_the_same_trace_in_every_process(seed: int) -> None:
    here = runner.run(seed)
    assert here.hash == runner.run(seed).hash
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        shown = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert shown.stdout.splitlines()[: len(here.trace)] == list(here.trace), shown.stderr
        assert f"trace {here.hash}" in shown.stdout


def test_two_seeds_leave_two_traces() -> None:
    assert runner.run(7).hash != runner.run(8).hash


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_seeds() -> None:
    REACHED.clear()
    for seed in range(10_000, 30_000):
        judge(runner.run(seed))
        runner.tidy(seed)
    assert not (EXPECTED | RARE) - REACHED.keys()
