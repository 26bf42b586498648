"""Hypothesis state machine over the simulated processes, which shrinks a violation to a few steps."""

import gc
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.simulation import mutants
from tests.simulation.faults import operate_once
from tests.simulation.plan import SCRIPTS, Plan
from tests.simulation.runner import simulating
from tests.simulation.server import Rates
from tests.simulation.world import World

_NUMBERS = st.integers(0, 9)
_SCRIPTS = st.lists(st.sampled_from((*SCRIPTS, "kill")), min_size=1, max_size=2)


class Installation(RuleBasedStateMachine):
    """Two gateways, two workers, a worker for suspects and a keeper, whose fate Hypothesis decides."""

    world: World

    @initialize(
        seed=_NUMBERS, has_spool=st.booleans(), lease_s=st.sampled_from((1.0, 4.0)), slow=st.sampled_from((0.0, 0.4))
    )
    def start(self, seed: int, has_spool: bool, lease_s: float, slow: float) -> None:
        plan = Plan(
            seed, gateways=2, lease_s=lease_s, timeout_s=2.0, has_spool=has_spool, events=0, segment_bytes=600,
            rates=Rates(slow=slow), client_noticed_s=0.2,
        )  # fmt: skip
        self.world = World(plan)
        self.world.begin()
        self.world.go_on(2.0)

    @rule(number=_NUMBERS, who=st.integers(0, 1), note=_SCRIPTS, line=_SCRIPTS, is_changed=st.booleans())
    def ingest(self, number: int, who: int, note: list[str], line: list[str], is_changed: bool) -> None:
        """Send an event; with a number sent before it is a duplicate, or a conflict where its body differs."""
        self.world.bring(number, who, note, line if not is_changed else [*line, "ok"])

    @rule(seconds=st.sampled_from((0.01, 0.3, 1.0, 5.0)))
    def advance(self, seconds: float) -> None:
        self.world.go_on(seconds)

    @rule(which=st.integers(0, 2), seconds=st.sampled_from((0.5, 3.0, 8.0)))
    def pause_worker(self, which: int, seconds: float) -> None:
        if (process := self.world.workers[which].process) is not None:
            self.world.freeze(process, seconds)

    @rule(which=st.integers(0, 2))
    def kill_worker(self, which: int) -> None:
        process = self.world.workers[which].process
        if process is not None and not process.is_dead:
            self.world.kill(process)

    @rule(which=st.integers(0, 1))
    def kill_gateway(self, which: int) -> None:
        if not self.world.gateways[which].process.is_dead:
            self.world.kill(self.world.gateways[which].process)

    @rule()
    def deploy(self) -> None:
        for stop in (slot.stop for slots in (self.world.workers, self.world.gateways) for slot in slots):
            if stop is not None:
                stop.set()

    @rule(seconds=st.sampled_from((-5.0, -0.5, 0.5, 5.0)))
    def jump(self, seconds: float) -> None:
        self.world.server.clock_ahead += timedelta(seconds=seconds)

    @rule()
    def pg_down(self) -> None:
        self.world.server.go_down()

    @rule()
    def pg_hang(self) -> None:
        if self.world.server.is_up:
            self.world.server.fall_silent()

    @rule()
    def pg_up(self) -> None:
        self.world.server.wake()
        self.world.server.come_up()

    @rule()
    def power_cut(self) -> None:
        self.world.lose_power()

    @rule(rate=st.sampled_from((0.0, 0.5)))
    def spool_error(self, rate: float) -> None:
        self.world.disk.trouble.failing_sync = rate
        self.world.plan.disk_failing = max(rate, self.world.plan.disk_failing)

    @rule(kind=st.sampled_from(("replay dead", "ignore dead", "replay events", "wake", "routes change")))
    def operate(self, kind: str) -> None:
        self.world.loop.spawn(self.world.process("operator"), operate_once(self.world, kind))

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.found(), self.world.found()[0]

    def teardown(self) -> None:
        """Heal everything: then all must end."""
        if not hasattr(self, "world"):
            return
        try:
            if not self.world.found():
                self.world.heal_and_conclude()
        finally:
            self.world.unwind()
            gc.collect(1)
        assert not self.world.found(), self.world.found()[0]


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with simulating():
        yield


def profile(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def test_no_sequence_of_events_breaks_an_invariant() -> None:
    run_state_machine_as_test(Installation, settings=profile(30, 25))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_long_sequence_of_events_breaks_an_invariant() -> None:
    run_state_machine_as_test(Installation, settings=profile(3_000, 80))


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_a_sequence_that_breaks_an_invariant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: without memory of keys, sending one event twice is enough."""
    mutants.forgetting_keys(monkeypatch)
    with pytest.raises(AssertionError, match="C3"):
        run_state_machine_as_test(Installation, settings=settings(profile(100, 12), phases=(Phase.generate,)))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_violation_is_shrunk_to_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.forgetting_keys(monkeypatch)
    with pytest.raises(AssertionError, match="C3") as caught:
        run_state_machine_as_test(Installation, settings=profile(100, 12))
    assert 1 <= "\n".join(caught.value.__notes__).count("state.ingest(") <= 3
