"""Changes the code in small ways, one at a time, and reports which changes no test notices.

``python -m scripts.mutants`` takes a sample of all changes, and with ``--chosen`` makes those of
`scripts.chosen_mutants`; `make soak` runs both. Many a change that lives does no harm;
`ACCEPTED` has those that were looked at. The code is changed in a copy below ``build/mutants``, which the tests import
in place of ``src``; the report is written there too.

No library does this: neither mutmut 3.8 nor cosmic-ray 8.7 deletes a statement, and a sync, a lock or a check that is
lost is just that; mutmut passes over decorated functions besides, and its switch does not reach processes that tests
start.
"""

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from scripts.chosen_mutants import CHOSEN, ChosenMutant

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "boathook"
SANDBOX: Final = ROOT / "build/mutants"
_MIN_TIMEOUT_S: Final = 60.0
_TIMEOUT_FACTOR: Final = 10.0
"""A change after which the tests take so many times as long is noticed: they wait for what never comes."""
_OBSERVABILITY_CALLS: Final = ("meters.", "_LOG.", "log.", "self._log.")
"""Calls that only tell of what is done."""
_SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip

ACCEPTED: Final[dict[str, str]] = {}
"""Changes that live for a good reason, by `Mutant.name`."""


@dataclass(frozen=True, slots=True)
class Target:
    """Modules, and the tests that are to notice what is changed in them."""

    modules: tuple[str, ...]
    """Patterns below the package's folder."""
    tests: tuple[str, ...]


TARGETS: Final = {
    "spool": Target(("spool/*.py",), ("tests/unit/test_spool.py", "tests/unit/test_spool_survey.py")),
    "database": Target(
        ("db/database.py",), ("tests/postgres/delivery/test_outages.py", "tests/postgres/db/test_connection_errors.py")
    ),
    "verification": Target(
        ("verification/*.py",),
        (
            "tests/unit/test_verification.py", "tests/unit/test_verify.py", "tests/unit/test_asymmetric.py",
            "tests/unit/test_jwt.py", "tests/unit/test_fields.py", "tests/unit/test_diagnostics.py",
            "tests/unit/test_times.py", "tests/unit/test_providers.py",
        ),
    ),
    "permissions": Target(("service/access/authorization.py",), ("tests/postgres/access/test_permissions.py",)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small change of one module."""

    module: str
    """The module's path below the package's folder."""
    line: int
    change: str
    source: str
    """The whole module, changed."""

    @property
    def name(self) -> str:
        """The module and the change, without the line, which other changes move."""
        return f"{self.module} {self.change}"


@dataclass(frozen=True, slots=True)
class _Site:
    line: int
    change: str
    apply: Callable[[], None]


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return every change of a module."""
    found = []
    for place in range(len(list(_sites(ast.parse(source), "")))):
        tree = ast.parse(source)
        site = list(_sites(tree, ""))[place]
        site.apply()
        found.append(Mutant(module, site.line, site.change, ast.unparse(ast.fix_missing_locations(tree))))
    return found


def _sites(node: ast.AST, scope: str) -> Iterator[_Site]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    for change, apply in _changes(node):
        yield _Site(getattr(node, "lineno", 0), f"{scope or 'module'}: {change}", apply)
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if isinstance(statements, list):
            yield from _deletions(statements, scope)
    for child in ast.iter_child_nodes(node):
        yield from _sites(child, scope)


def _deletions(statements: list[ast.stmt], scope: str) -> Iterator[_Site]:
    for place, statement in enumerate(statements):
        if _is_deletable(statement):
            change = f"{scope or 'module'}: delete `{_shown(statement)}`"

            def apply(place: int = place) -> None:
                statements[place] = ast.Pass()

            yield _Site(statement.lineno, change, apply)


def _is_deletable(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return not ast.unparse(statement).startswith(_OBSERVABILITY_CALLS)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case _:
            return isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield f"not `{_shown(test)}`", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
            yield f"swap {_named(op)} in `{_shown(node)}`", lambda: node.ops.__setitem__(0, _swapped(op))
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in _SWAPPED:
            yield f"swap {_named(op)} in `{_shown(node)}`", lambda: setattr(node, "op", _swapped(op))
        case ast.Constant(value=bool() as value):
            yield f"{value} to {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int() as value):
            yield f"{value} to {value + 1}", lambda: setattr(node, "value", value + 1)
        case ast.comprehension(ifs=[test]):
            yield f"not `{_shown(test)}`", lambda: node.ifs.__setitem__(0, ast.UnaryOp(ast.Not(), test))


def _swapped(op: ast.AST) -> Any:
    return _SWAPPED[type(op)]()


def _named(op: ast.AST) -> str:
    return type(op).__name__


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:100]


def sample(mutants: Sequence[Mutant], number: int, seed: int) -> list[Mutant]:
    """Return some mutants; which ones hardly depends on those that other changes of the code add or remove."""
    ranked = sorted(mutants, key=lambda one: hashlib.sha256(f"{seed} {one.name} {one.line}".encode()).digest())
    return sorted(ranked[:number], key=lambda one: (one.module, one.line))


class Sandbox:
    """A copy of the source in which one module at a time is changed."""

    def __init__(self, source: Path, folder: Path, tests: Sequence[str], *, root: Path = ROOT) -> None:
        self._root = root
        self._source = source
        self._folder = folder
        self._tests = tests
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))

    def passes(self, module: str = "", text: str = "", timeout_s: float = 3_600.0) -> bool:
        """Return whether the tests pass in time, with this text in place of a module's."""
        changed = self._folder / self._source.name / module
        if module:
            changed.write_text(text, encoding="utf-8")
        # Compiled modules are known by their second and size, which a change may leave as they were.
        environment = os.environ | {"PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *self._tests]
        try:
            done = subprocess.run(command, cwd=self._root, env=environment, capture_output=True, timeout=timeout_s)  # noqa: PLW1510
        except subprocess.TimeoutExpired:
            return False
        finally:
            if module:
                shutil.copy(self._source / module, changed)
        return done.returncode == 0


def survivors(sandboxes: Sequence[Sandbox], mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants with which the tests pass.

    Raises:
        RuntimeError: the tests fail without any change, or do not see one.
    """
    begun = time.monotonic()
    if not sandboxes[0].passes():
        raise RuntimeError("the tests fail without any change")
    timeout_s = max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * (time.monotonic() - begun))
    if mutants and sandboxes[0].passes(mutants[0].module, "raise SystemExit(1)"):
        raise RuntimeError(f"the tests do not import {mutants[0].module} from the copy")
    free: SimpleQueue[Sandbox] = SimpleQueue()
    for sandbox in sandboxes:
        free.put(sandbox)

    def lives(mutant: Mutant) -> bool:
        sandbox = free.get()
        try:
            is_alive = sandbox.passes(mutant.module, mutant.source, timeout_s)
        finally:
            free.put(sandbox)
        print("S" if is_alive else ".", end="", flush=True)  # noqa: T201 - what somebody who waits sees
        return is_alive

    with ThreadPoolExecutor(len(sandboxes)) as workers:
        return [mutant for mutant, is_alive in zip(mutants, workers.map(lives, mutants), strict=True) if is_alive]


def place_of(module: str) -> tuple[Path, str]:
    """Return a package's folder and a module's path below it; the name of another package than boathook comes first."""
    package, _, rest = module.partition("/")
    if not package.startswith(f"{PACKAGE}_"):
        return ROOT / "src" / PACKAGE, module
    if (ROOT / "src" / package).is_dir():
        return ROOT / "src" / package, rest
    return ROOT / "packages" / package.replace("_", "-") / "src" / package, rest


def _all_of(target: Target) -> list[Mutant]:
    source = ROOT / "src" / PACKAGE
    paths = sorted(path for pattern in target.modules for path in source.glob(pattern))
    return [
        mutant
        for path in paths
        for mutant in mutants_of(str(path.relative_to(source)), path.read_text(encoding="utf-8"))
    ]


def _report(name: str, arguments: argparse.Namespace) -> list[str]:
    """Run a target's sample and return the lines of its report."""
    target = TARGETS[name]
    every = _all_of(target)
    chosen = sample(every, arguments.sample, arguments.seed)
    print(f"{name}: {len(chosen)} of {len(every)} changes ", end="", flush=True)  # noqa: T201 - the same
    folders = [SANDBOX / f"{name}-{number}" for number in range(arguments.jobs)]
    found = survivors([Sandbox(ROOT / "src" / PACKAGE, folder, target.tests) for folder in folders], chosen)
    print()  # noqa: T201 - the same
    lines = [f"{name}: {len(chosen) - len(found)} of {len(chosen)} changes were noticed"]
    for one in found:
        why = f" (accepted: {ACCEPTED[one.name]})" if one.name in ACCEPTED else ""
        lines.append(f"  lives: {one.module}:{one.line} {one.change}{why}")
    return lines


def _report_chosen(name: str, arguments: argparse.Namespace) -> list[str]:
    """Make the chosen changes of an area and return the lines of its report."""
    chosen = CHOSEN[name]
    print(f"{name}: {len(chosen)} chosen changes ", end="", flush=True)  # noqa: T201 - what somebody who waits sees
    selections: dict[tuple[Path, tuple[str, ...]], dict[Mutant, ChosenMutant]] = {}
    for one in chosen:
        source, module = place_of(one.module)
        changed = one.apply((source / module).read_text(encoding="utf-8"))
        mutant = Mutant(module, 0, f"{one.old!r} to {one.new!r}", changed)
        selections.setdefault((source, tuple(one.tests)), {})[mutant] = one
    found: list[ChosenMutant] = []
    for (source, tests), mutants in selections.items():
        sandboxes = [Sandbox(source, SANDBOX / f"chosen-{name}-{number}", tests) for number in range(arguments.jobs)]
        found += [mutants[mutant] for mutant in survivors(sandboxes, list(mutants))]
    print()  # noqa: T201 - the same
    lines = [f"{name}: {len(chosen) - len(found)} of {len(chosen)} chosen changes were noticed"]
    for one in found:
        why = f" (accepted: {one.lives})" if one.lives else ""
        lines.append(f"  lives: {one.module} {one.old!r} to {one.new!r}{why}")
    return lines


def main() -> None:
    """Run a sample, or the chosen changes, and report which live."""
    parser = argparse.ArgumentParser(description="report changes of the code that no test notices")
    parser.add_argument("targets", nargs="*", help="of which modules; all by default")
    parser.add_argument("--chosen", action="store_true", help="the changes chosen by hand in place of a sample")
    parser.add_argument("--sample", type=int, default=15, help="changes of each target")
    parser.add_argument("--seed", type=int, default=0, help="another seed takes other changes")
    parser.add_argument("--jobs", type=int, default=2, help="tests that run at once")
    arguments = parser.parse_args()
    names, report = (CHOSEN, _report_chosen) if arguments.chosen else (TARGETS, _report)
    if unknown := set(arguments.targets) - names.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    text = "\n".join(line for name in arguments.targets or names for line in report(name, arguments))
    (SANDBOX / ("chosen.txt" if arguments.chosen else "report.txt")).write_text(text + "\n", encoding="utf-8")
    print(text)  # noqa: T201 - the result


if __name__ == "__main__":
    main()
