"""The `scenario` decorator: makes a test of a function with a fault, a target, and a mutant that must fail.

A scenario with its mutant is written like this, in any `tests/faults/test_*.py`::

    from tests.faults.rig.environment import Environment
    from tests.faults.rig.scenario import scenario
    from tests.faults.rig.mutants import Mutant

    @scenario(
        fault="SIGKILL of the gateway under load",
        target="0 lost, 0 phantom",
        mutant=Mutant("answers_before_commit", breaks=frozenset({"C1"})),
    )
    def test_gateway_killed(env: Environment) -> None:
        env.start()
        env.begin(rate=150)
        env.warm(60)
        for _ in range(3):
            env.fault("gateway killed")
            env.host.kill("gateway")
            env.warm(60)
        env.figure("kills", 3)

pytest then runs it twice: ``test_gateway_killed[sound]`` as it is, and ``[mutant]`` with one safeguard removed. After the body, the rig
heals, quiesces and judges by itself. The sound run fails on any violation; the mutant run fails unless one of *breaks* is found.
Both may call `env.heal()` and `env.quiesce()` themselves where the moment matters. A body must not assume which run it is.

``tier="soak"`` keeps a scenario out of `make test`: use it for all that takes more than ten seconds. `make soak` runs all.
"""

import datetime as dt
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.faults.rig import bank
from tests.faults.rig.checker import Verdict
from tests.faults.rig.environment import Environment
from tests.faults.rig.mutants import SOUND, Mutant
from tests.faults.rig.recorder import ROOT
from tests.faults.rig.store_state import Limits

Body = Callable[[Any], None]
"""Takes what the scenario's `environment` makes."""
Place = Callable[[Path], AbstractContextManager[Path | None]]
RESULTS = "BOATHOOK_TEST_RESULTS"
"""Names the folder where results are kept for the report; nothing is written where it is not set."""
SEED = int(os.environ.get("BOATHOOK_TEST_SEED", "1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row of the fault matrix."""

    name: str
    module: str
    fault: str
    target: str
    mutant: Mutant
    tier: Literal["quick", "soak"]
    limits: Limits
    body: Body
    needs: Callable[[], str]
    place: Place
    environment: Callable[..., Environment]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of a scenario."""

    name: str
    module: str
    fault: str
    target: str
    tier: str
    mutant: str
    """The safeguard that was removed; empty for the sound run."""
    is_good: bool
    """Whether the sound run was sound, or the mutant was caught."""
    broken: tuple[str, ...]
    summary: str
    counts: dict[str, int]
    """Those of the checker, see `Counts`."""
    figures: dict[str, str]
    seconds: float
    at: str
    commit: str
    seed: int


_LOG_LINES = 30
_MAX_S = {"quick": 1200, "extended": 1200, "soak": 2400}
"""A busy machine takes several times as long."""
MUTANT_ATTEMPTS = 3
EXTENDED_REASON = "one scenario of each family of faults stays"
MUTANT_REASON = "the mutant of a test that stays: it shows that the test can fail"
REGISTRY: dict[str, Scenario] = {}
"""Every scenario of the modules that were imported, by name."""


def _nothing() -> str:
    return ""


def _in_memory(_folder: Path) -> AbstractContextManager[Path | None]:
    return nullcontext()


def scenario(
    *,
    fault: str,
    target: str,
    mutant: Mutant,
    tier: Literal["quick", "extended", "soak"] = "quick",
    limits: Limits = bank.LIMITS,
    needs: Callable[[], str] = _nothing,
    place: Place = _in_memory,
    environment: Callable[..., Environment] = Environment,
    name: str = "",
) -> Callable[[Body], Any]:
    """Make a scenario of a function that takes a `Environment`.

    Args:
        fault: what is done, as the first column of the table.
        target: what must hold, with its figure.
        mutant: what is removed in the second run, and which invariants that must break.
        tier: ``quick`` for `make test`, whose mutant runs in `make test-all`; ``extended`` for both runs in `make test-all`,
            ``soak`` for `make soak` only.
        limits: what the checker allows; start from `dataclasses.replace(bank.LIMITS, ...)`.
        needs: returns why this machine cannot do it, such as a missing program; empty where it can.
        place: opens the folder for PostgreSQL, such as one on a loop image, given the run's own folder; that is in memory
            where absent.
        environment: makes the argument of the body.
        name: of the test, where one body makes many scenarios; the body's own where absent. Put what the decorator returns
            into the module under that name: ``globals()[name] = scenario(name=name, ...)(body)``.
    """
    assert mutant.breaks, "a mutant must say which invariants it breaks"
    assert mutant.name, "a mutant must say what is removed: patch= or label="

    def make(body: Body) -> Any:
        one = Scenario(
            name=name or body.__name__, module=body.__module__, fault=fault, target=target, mutant=mutant, tier=tier, limits=limits,
            body=body, needs=needs, place=place, environment=environment,
        )  # fmt: skip
        assert REGISTRY.get(one.name, one).module == one.module, f"two scenarios are called {one.name}"
        REGISTRY[one.name] = one

        def test(run: str, cluster_template: Path, tmp_path: Path) -> None:
            if reason := needs():
                pytest.skip(reason)
            if run == "sound":
                _run_sound(one, cluster_template, tmp_path)
            else:
                _run_mutant(one, cluster_template, tmp_path)

        test.__name__, test.__doc__, test.__module__ = one.name, body.__doc__, body.__module__
        without = pytest.param("mutant", marks=pytest.mark.extended(MUTANT_REASON)) if tier == "quick" else "mutant"
        marked = pytest.mark.parametrize("run", ["sound", without])(pytest.mark.fault(test))
        marked = pytest.mark.timeout(_MAX_S[tier])(marked)
        if tier == "extended":
            return pytest.mark.extended(EXTENDED_REASON)(marked)
        return pytest.mark.soak(marked) if tier == "soak" else marked

    return make


def _run_sound(one: Scenario, template: Path, folder: Path) -> None:
    verdict, env, seconds = _run(one, template, folder, SOUND)
    keep(_result(one, verdict, env, seconds, mutant="", is_good=verdict.is_sound))
    assert verdict.is_sound, f"{one.fault}: {verdict.report}\n{_logs(env)}"


def _run_mutant(one: Scenario, template: Path, folder: Path) -> None:
    """Run the scenario without its safeguard until the damage is seen: a single run may be spared by chance."""
    verdict, env, seconds = _run(one, template, _subfolder(folder, 1), one.mutant)
    for attempt in range(2, MUTANT_ATTEMPTS + 1):
        if verdict.broken & one.mutant.breaks:
            break
        verdict, env, seconds = _run(one, template, _subfolder(folder, attempt), one.mutant)
    is_caught = bool(verdict.broken & one.mutant.breaks)
    keep(_result(one, verdict, env, seconds, mutant=one.mutant.name, is_good=is_caught))
    expected = ", ".join(sorted(one.mutant.breaks))
    assert is_caught, (
        f"with {one.mutant.name} one of {expected} must break, and did not: {verdict.report}\n{_logs(env)}"
    )


def _subfolder(folder: Path, attempt: int) -> Path:
    made = folder / f"attempt{attempt}"
    made.mkdir()
    return made


def _run(one: Scenario, template: Path, folder: Path, mutant: Mutant) -> tuple[Verdict, Environment, float]:
    began = time.monotonic()
    with (
        one.place(folder) as place,
        one.environment(folder, template=template, mutant=mutant, limits=one.limits, place=place, seed=SEED) as env,
    ):
        try:
            one.body(env)
            if not env.is_quiet:
                env.quiesce()
            return env.judge(), env, time.monotonic() - began
        except BaseException as error:
            error.add_note(_logs(env))
            raise


def _result(one: Scenario, verdict: Verdict, env: Environment, seconds: float, *, mutant: str, is_good: bool) -> Result:
    return Result(
        name=one.name, module=one.module, fault=one.fault, target=one.target, tier=one.tier, mutant=mutant, is_good=is_good,
        broken=tuple(sorted(verdict.broken, key=lambda name: int(name[1:]))), summary=verdict.summary,
        counts=asdict(verdict.counts),
        figures=env.figures, seconds=round(seconds, 1), at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), commit=_commit(),
        seed=SEED,
    )  # fmt: skip


@cache
def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def keep(result: Result) -> None:
    """Save a result for the report."""
    if os.environ.get(RESULTS):
        folder = Path(os.environ[RESULTS])
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{result.name}-{'mutant' if result.mutant else 'sound'}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def _logs(env: Environment) -> str:
    """Return the ends of the logs, without what goes well thousands of times."""
    shown = []
    for host in env.hosts:
        lines = [line for line in host.log().splitlines() if '"level":"info"' not in line or '"child_' in line]
        shown.append("\n".join([f"--- {host.folder.name}", *lines[-_LOG_LINES:]]))
    return "\n".join(shown)
