"""Writes tests/faults/results.json and the table of tests/faults/README.md from the results of scenarios.

    BOATHOOK_TEST_RESULTS=DIR pytest tests/faults -m fault      # or "fault or soak"
    python -m tests.faults.rig.report DIR

A scenario that was not run keeps the row it has, with the date and the commit it is of; one that is gone loses it; one that
was never run says so. Without DIR only the rows are brought up to date.
"""

import importlib
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.faults.rig.recorder import ROOT
from tests.faults.rig.scenario import REGISTRY, Result, Scenario

PAGE = ROOT / "tests/faults/README.md"
DATA = ROOT / "tests/faults/results.json"
BEGIN, END = "<!-- scenarios: written by `python -m tests.faults.rig.report` -->", "<!-- end of scenarios -->"
_NEVER = "not run yet"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All results, for programs."""

    machine: str = ""
    """The machine of the newest results."""
    results: tuple[Result, ...] = ()
    """At most two of each scenario: the sound run and the mutant."""


def load_scenarios() -> dict[str, Scenario]:
    """Import all test modules with scenarios and return the scenarios."""
    for path in sorted((ROOT / "tests/faults").glob("test_*.py")):
        if "@scenario(" in path.read_text():
            importlib.import_module(f"tests.faults.{path.stem}")
    return REGISTRY


def read(path: Path = DATA) -> Report:
    """Return the stored report."""
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else Report()


def update(report: Report, found: Iterable[Result], names: Iterable[str]) -> Report:
    """Return the report with *found* in place of earlier results, and only of these scenarios."""
    found = list(found)
    known = {(one.name, bool(one.mutant)): one for one in (*report.results, *found)}
    kept = sorted((one for key, one in known.items() if key[0] in set(names)), key=lambda one: (one.name, one.mutant))
    return Report(machine=machine() if found else report.machine, results=tuple(kept))


def machine() -> str:
    """Return a description of this machine."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}"


def render(report: Report, scenarios: dict[str, Scenario]) -> str:
    """Return the part of the page between the marks."""
    sound = {one.name: one for one in report.results if not one.mutant}
    mutants = {one.name: one for one in report.results if one.mutant}
    caught = sum(one.is_good for one in mutants.values())
    good = sum(one.is_good for one in sound.values())
    count = f"{len(scenarios)} scenarios: {good} of {len(sound)} that were run are sound; {caught} of {len(mutants)} mutants were caught."
    rows = [
        _row(one, sound.get(one.name), mutants.get(one.name))
        for one in sorted(scenarios.values(), key=lambda one: (one.module, one.name))
    ]
    head = ["| fault | target | found | with the safeguard off | run |", "|---|---|---|---|---|"]
    return "\n".join([f"{count} Machine: {report.machine or _NEVER}.", "", *head, *rows])


def _row(one: Scenario, sound: Result | None, mutant: Result | None) -> str:
    path = f"{one.module.rpartition('.')[2]}.py"
    cells = [
        f"[{one.fault}]({path}) `{one.name}`",
        one.target,
        _NEVER if sound is None else _found(sound),
        f"{one.mutant.name}: {_NEVER if mutant is None else _caught(mutant)}",
        "" if sound is None else f"{sound.at[:10]}, {sound.commit}, seed {sound.seed}, {sound.seconds:g} s",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _found(one: Result) -> str:
    n = one.counts
    what = [
        f"{n['sent']} sent, {n['ok']} accepted, {n['lost']} lost, {n['effects']} effects, {n['twice']} of them twice"
    ]
    if n["arrived"]:
        what.append(f"{n['arrived']} messages, {n['copies']} of them copies")
    what += [f"{name} {value}" for name, value in one.figures.items()]
    return ("" if one.is_good else f"**broken: {', '.join(one.broken)}**; ") + "; ".join(what)


def _caught(one: Result) -> str:
    return f"{'caught by' if one.is_good else 'NOT caught, only'} {', '.join(one.broken) or 'nothing'}"


def write(report: Report, scenarios: dict[str, Scenario]) -> None:
    """Write both files."""
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n\n{render(report, scenarios)}\n\n{END}{tail}")


def main(folder: str = "") -> None:
    """Bring both files up to date with the results in a folder."""
    scenarios = load_scenarios()
    paths = sorted(Path(folder).glob("*.json")) if folder else []
    found = [msgspec.json.decode(path.read_bytes(), type=Result) for path in paths]
    write(update(read(), found, scenarios), scenarios)


if __name__ == "__main__":
    main(*sys.argv[1:])
