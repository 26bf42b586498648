"""Sabotage twins of the simulation: without any one safeguard some seed finds a violation."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation import mutants, runner

MOST_SEEDS = 400


def _parameter(undo: mutants.Sabotage) -> Any:
    slow = pytest.mark.extended("is noticed after many seeds only")
    return pytest.param(undo, id=undo.__name__, marks=[slow] if undo is mutants.without_fences else [])


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with runner.simulating():
        yield


@pytest.mark.parametrize("undo", [_parameter(undo) for undo in mutants.ALL])
def test_the_simulation_finds_what_is_wrong(
    undo: mutants.Sabotage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    undo(monkeypatch)
    invariants, known = mutants.ALL[undo]
    noticed = runner.first_to_notice(runner.run, invariants, [known, *range(1, MOST_SEEDS + 1)])
    assert noticed is not None, f"{MOST_SEEDS} seeds did not notice it"
    seed, found = noticed
    with capsys.disabled():
        print(f"\n  {undo.__name__.replace('_', ' ')}: seed {seed}: {found[:150]}")  # noqa: T201 the seeds are worth reading
