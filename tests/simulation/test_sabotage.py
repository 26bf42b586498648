"""Sabotage twins of the simulation: without any one safeguard some seed finds a violation."""

import re
from collections.abc import Iterator

import pytest

from tests.simulation import runner, sabotage

MOST_SEEDS = 400


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with runner.simulating():
        yield


@pytest.mark.parametrize("undo", sabotage.ALL, ids=lambda undo: undo.__name__)
def test_the_simulation_finds_what_is_wrong(
    undo: sabotage.Sabotage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    undo(monkeypatch)
    invariants, known = sabotage.ALL[undo]
    for count, seed in enumerate([known, *range(1, MOST_SEEDS + 1)]):
        found = [one for one in runner.run(seed).violations if re.match(invariants, one)]
        runner.tidy(count)
        if found:
            with capsys.disabled():
                print(f"\n  {undo.__name__.replace('_', ' ')}: seed {seed}: {found[0][:150]}")  # noqa: T201 the seeds are worth reading
            return
    pytest.fail(f"{MOST_SEEDS} seeds did not notice it")
