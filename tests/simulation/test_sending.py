"""Seeds of sending: messages reach their endpoints, in order and within limits, under any faults."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation import runner
from tests.simulation.runner import Result, kept_seeds, replay_line, simulating
from tests.simulation.sending import mutants
from tests.simulation.sending.plan import draw
from tests.simulation.sending.world import SendingWorld
from tests.simulation.server import Rates
from tests.simulation.sometimes import REACHED, SENDING

COUNT, MAX = 40, 300
"""How many seeds `make test-all` runs: the fewest, and the most where something worth seeing has not been seen by then."""
MAX_SEEDS = 200
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with simulating():
        yield


def judge(result: Result) -> None:
    line = replay_line(result.seed, of="sending")
    assert not result.violations, f"{result.violations[0]}\n    see it again: {line}"


@pytest.mark.parametrize("seed", kept_seeds("sending"))
def test_past_sending_seeds_still_pass(seed: int) -> None:
    judge(runner.run_sending(seed))


@pytest.mark.parametrize("seed", range(1, 21))
def test_no_seed_of_sending_breaks_an_invariant(seed: int) -> None:
    judge(runner.run_sending(seed))


@pytest.mark.extended("runs as many seeds as it takes to reach every rare state; 20 seeds stay")
def test_no_sending_seed_breaks_an_invariant_and_rare_states_are_reached() -> None:
    REACHED.clear()
    for seed in range(1, MAX + 1):
        judge(runner.run_sending(seed))
        runner.tidy(seed)
        if seed >= COUNT and REACHED.keys() >= SENDING:
            break
    missing = sorted(SENDING - REACHED.keys())
    assert not missing, f"never reached in {MAX} seeds: {missing}"


def test_without_faults_nothing_is_sent_twice_or_rare() -> None:
    """Mutant of the rare states that must be reached, and of what excuses a duplicate."""
    REACHED.clear()
    for seed in range(1, 6):
        plan = draw(seed)
        calm = replace(plan, faults=(), crash_rate=0.0, rates=Rates(), is_healing=True)
        world = SendingWorld(calm)
        world.run()
        assert not world.found()
        assert all(len(fences) == 1 for fences in world.recorder.takes.values())
    assert SENDING - REACHED.keys()


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("mutant", mutants.ALL, ids=lambda mutant: mutant.__name__)
def test_the_sending_simulation_detects_each_mutant(
    mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant(monkeypatch)
    expected = mutants.ALL[mutant]

    def run(seed: int) -> Result:
        return runner.run_sending(seed, expected.plan(draw(seed)))

    noticed = runner.first_to_notice(run, expected.by, [expected.seed, *range(1, MAX_SEEDS + 1)])
    assert noticed is not None, f"{MAX_SEEDS} seeds did not notice it"
    seed, found = noticed
    with capsys.disabled():
        print(f"\n  {mutant.__name__.replace('_', ' ')}: seed {seed}: {found[:150]}")  # noqa: T201 the seeds are worth reading


@pytest.mark.extended("repeats what stays with other values")
@pytest.mark.parametrize("seed", [9])
def test_a_seed_of_sending_leaves_the_same_trace_in_every_process(seed: int) -> None:
    here = runner.run_sending(seed)
    command = [sys.executable, "-m", "tests.simulation", "--sending", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert shown.stdout.splitlines()[: len(here.trace)] == list(here.trace), shown.stderr


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_seeds_of_sending() -> None:
    for seed in range(10_000, 30_000):
        judge(runner.run_sending(seed))
        runner.tidy(seed)
