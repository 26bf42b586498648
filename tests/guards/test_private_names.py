"""Tests use what code does for others: the private names of other objects and modules that they use only become fewer.

A test that changes a private name to remove a safeguard counts too, and so does one that shortens a private interval: a
limit or interval that tests have to change is a public constant of its module.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
OWN: Final = ("boathook", "tests", "scripts", "benchmarks", "examples")
"""How the packages of this repository begin; the private names of other packages have no other form."""
PUBLIC: Final = frozenset({"_asdict", "_replace", "_fields", "_make", "_field_defaults"})
"""The documented methods of named tuples."""
SETTERS: Final = frozenset({"setattr", "getattr", "hasattr", "delattr", "patch", "object"})
"""Functions that take the name of an attribute as text."""
ITSELF: Final = frozenset({"self", "cls", "mcs"})
MAX: Final[Mapping[str, int]] = {
    "": 5, "acceptance": 3, "apps": 7, "faults": 10, "guards": 4, "postgres": 84, "security": 17, "simulation": 13, "unit": 85,
}  # fmt: skip
"""How many uses a folder still has; the number only falls. A folder that is not here has none."""


def is_private(name: str) -> bool:
    """Return whether a name is private to its module or class."""
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def own_names(tree: ast.Module) -> set[str]:
    """Return what the classes of a test file define: the test may use it on their objects."""
    names: set[str] = set()
    for node in (node for defined in ast.walk(tree) if isinstance(defined, ast.ClassDef) for node in ast.walk(defined)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case (
                ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store())
                | ast.Name(id=name, ctx=ast.Store())
            ):
                names.add(name)
    return names


def imported(tree: ast.Module) -> dict[str, str]:
    """Return the module that each imported name of a file comes from."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {alias.asname or alias.name: node.module or "" for alias in node.names}
    return modules


def root_of(node: ast.expr) -> str:
    """Return the name that an expression begins with, or nothing."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def private_uses(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the code of each use of another object's or module's private name."""
    if not re.search(r"\b_[A-Za-z]", text):
        return
    tree = ast.parse(text)
    modules, defined = imported(tree), own_names(tree)

    def is_foreign(node: ast.expr) -> bool:
        module = modules.get(root_of(node))
        return module is not None and not module.startswith(OWN)

    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name) and name not in defined:
                is_itself = isinstance(value, ast.Name) and value.id in ITSELF
                if not is_itself and root_of(value) != "super" and not is_foreign(value):
                    yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module=module, names=names) if (module or "").startswith(OWN):
                yield from ((node.lineno, ast.unparse(node)) for alias in names if is_private(alias.name))
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=arguments) if called in SETTERS:
                texts = [part.value for part in arguments[:2] if isinstance(part, ast.Constant)]
                names_in = [name for each in texts if isinstance(each, str) for name in each.split(".")]
                has_private = any(is_private(name) and name not in defined for name in names_in)
                if has_private and not is_foreign(arguments[0]):
                    yield node.lineno, ast.unparse(node)


def places(root: Path) -> dict[str, list[str]]:
    """Return the uses in each folder of tests."""
    by_folder: dict[str, list[str]] = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        folder = parts[0] if len(parts) > 1 else ""
        uses = private_uses(file.read_text(encoding="utf-8"))
        by_folder.setdefault(folder, []).extend(f"{'/'.join(parts)}:{line}: {code}" for line, code in uses)
    return by_folder


def test_the_private_names_that_tests_use_become_fewer():
    by_folder = places(ROOT / "tests")
    more = {name: (len(uses), uses) for name, uses in by_folder.items() if len(uses) > MAX.get(name, 0)}
    assert more == {}, "test what the code does for others, or name what tests need without an underscore"


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("queue._limit", 1),
        ("queue.rows._limit()", 1),
        ("from boathook.db.events import _read, write", 1),
        ("from boathook.db import events\nevents._read()", 1),
        ("from boathook.db import events\nmonkeypatch.setattr(events, '_WAIT_S', 0)", 1),
        ("monkeypatch.setattr('boathook.db.events._WAIT_S', 0)", 1),
        ("getattr(queue, '_limit')", 1),
        ("patch.object(Queue, '_take', None)", 1),
    ],
)
def test_mutant_a_planted_use_is_found(code: str, number: int):
    assert len(list(private_uses(code))) == number


@pytest.mark.parametrize(
    "code",
    [
        "queue.limit",
        "queue.__dict__",
        "row._asdict()",
        "import os\nos._exit(1)",
        "from httpx._config import DEFAULT",
        "class Queue:\n    def __init__(self): self._limit = 1\nQueue()._limit",
        "class Queue(Base):\n    def take(self): return self._limit + super()._limit",
        "import stripe\nstripe.WebhookSignature._compute_signature(text)",
        "monkeypatch.setattr(queue, 'limit', 1)",
    ],
)
def test_mutant_what_is_public_or_its_own_is_not_reported(code: str):
    assert list(private_uses(code)) == []
