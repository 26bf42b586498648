"""Locals and parameters are named after what they hold: `endpoint`, `matching_rows`, not `one` or `found`."""

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.guards.documents import SOURCES

VAGUE: Final = frozenset((
    "asked", "brought", "chosen", "done", "ended", "found", "given", "gone", "held", "how", "kept", "known", "left",
    "made", "meant", "moment", "named", "one", "said", "shown", "stored", "taken", "thing", "things", "told", "wanted",
    "what", "where", "who", "why", "wish", "wishes",
))  # fmt: skip
"""Names that say what happened to a value, or that there is one, but not what it is."""
MAX_VAGUE: Final = {"cli": 1, "handlers": 1}
"""How many of them a package has, and may have: `where` is an option of a command and a parameter of the public API."""
Scope = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)


def bindings(scope: Scope) -> set[str]:
    """Return the parameters and locals of one function, lambda or comprehension, without those of inner ones."""
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        names = {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}
        inner: list[ast.AST] = list(scope.body) if isinstance(scope.body, list) else [scope.body]
    else:
        names = set()
        inner = [generator.target for generator in scope.generators]
    while inner:
        node = inner.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
        inner.extend(ast.iter_child_nodes(node))
    return names


def vague_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line of each scope with a vague name in it."""
    for node in ast.walk(tree):
        if isinstance(node, Scope):
            names = bindings(node)
            # Two operands are left and right.
            yield from ((node.lineno, name) for name in names if name.strip("_") in VAGUE and not _is_side(name, names))


def _is_side(name: str, names: set[str]) -> bool:
    return name == "left" and "right" in names


def test_locals_and_parameters_say_what_they_hold() -> None:
    places: dict[str, list[str]] = {}
    for root in SOURCES:
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).parts
            package = parts[1] if parts[0] == "boathook" and len(parts) > 2 else parts[0]
            tree = ast.parse(file.read_text(encoding="utf-8"))
            places.setdefault(package, []).extend(
                f"{'/'.join(parts)}:{line}: {name}" for line, name in vague_names(tree)
            )
    numbers = {package: len(names) for package, names in places.items()}
    worse = {package: places[package] for package in numbers if numbers[package] > MAX_VAGUE.get(package, 0)}
    assert worse == {}, "name them after what they hold"


def test_no_limit_is_for_a_package_that_is_gone() -> None:
    packages = {path.name for root in SOURCES for path in (*root.iterdir(), *root.glob("boathook/*"))}
    assert set(MAX_VAGUE) <= packages


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(found): return found", ["found"]),
        ("def f(self, *, given=1): pass", ["given"]),
        ("async def f(*known, **what): pass", ["known", "what"]),
        ("def f():\n    one = stored = 1", ["one", "stored"]),
        ("def f():\n    if shown := g(): pass", ["shown"]),
        ("def f():\n    for wanted, _ in g(): pass", ["wanted"]),
        ("def f():\n    with g() as (done, other): pass", ["done"]),
        ("def f():\n    try: pass\n    except E as told: pass", ["told"]),
        ("def f(x):\n    match x:\n        case [A(b=kept), *gone]: pass", ["kept", "gone"]),
        ("x = [one for one in y]", ["one"]),
        ("x = sorted(y, key=lambda one: one.id)", ["one"]),
        ("def f():\n    def inner(asked): pass", ["asked"]),
        ("def f(left, x): pass", ["left"]),
    ],
)
def test_mutant_a_planted_name_is_detected(code: str, names: list[str]) -> None:
    assert Counter(name for _, name in vague_names(ast.parse(code))) == Counter(names)


@pytest.mark.parametrize(
    "code",
    [
        "def f(left, right): pass",
        "def f(endpoint, matching_rows): found_rows = endpoint.one(given=1)",
        "one = 1",
        "class A:\n    where: str = ''\n    def known(self): return self.found",
        "def f():\n    x.done = 1",
    ],
)
def test_mutant_a_plain_name_is_not_reported(code: str) -> None:
    assert list(vague_names(ast.parse(code))) == []
