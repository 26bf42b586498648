"""For every mutant of the simulated code some seed finds a violation."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation import mutants, runner
from tests.simulation.plan import draw

MAX_SEEDS = 400

SLOW = (mutants.without_fences, mutants.counting_attempts_when_they_fail, mutants.removing_folders_of_the_living)


def _parameter(mutant: mutants.Mutant) -> Any:
    slow = pytest.mark.extended("is noticed after many seeds only")
    return pytest.param(mutant, id=mutant.__name__, marks=[slow] if mutant in SLOW else [])


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with runner.simulating():
        yield


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("mutant", [_parameter(mutant) for mutant in mutants.ALL])
def test_the_simulation_detects_each_mutant(
    mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant(monkeypatch)
    invariants, known = mutants.ALL[mutant]
    can_find = mutants.PLANS.get(mutant, lambda _plan: True)
    seeds = itertools.islice((seed for seed in itertools.count(1) if can_find(draw(seed))), MAX_SEEDS)
    noticed = runner.first_to_notice(runner.run, invariants, [known, *seeds])
    assert noticed is not None, f"{MAX_SEEDS} seeds did not notice it"
    seed, found = noticed
    with capsys.disabled():
        print(f"\n  {mutant.__name__.replace('_', ' ')}: seed {seed}: {found[:150]}")  # noqa: T201 the seeds are worth reading
