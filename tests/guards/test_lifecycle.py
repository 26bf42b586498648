"""Lifecycles have one vocabulary: `start` and `stop`, or an async context manager; `run` loops; `drain` finishes work.

What only frees a handle may have a plain `close`, as in the standard library.
"""

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.guards.documents import SOURCES

ALTERNATIVES: Final = {
    "aclose": "stop", "begin": "start", "close": "stop", "dispose": "stop", "halt": "stop", "launch": "start",
    "open": "start", "quit": "stop", "shutdown": "drain or stop", "shut_down": "drain or stop", "terminate": "stop",
}  # fmt: skip
"""What a method of the name would be called instead."""
MAX_OTHERS: Final = {
    "boathook_mcp": 1, "boathook_rabbitmq": 1, "boathook_redis": 1, "db": 1, "delivery": 3, "http": 1,
    "service": 2,
}  # fmt: skip
"""How many methods a package still has under such a name; the number only falls. A package that is not here has none."""


def other_verbs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each lifecycle method with another verb."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name not in ALTERNATIVES:
                continue
            is_handle = method.name == "close" and isinstance(method, ast.FunctionDef)
            arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
            if not is_handle and len(arguments) == 1 and not method.decorator_list:
                yield method.lineno, f"{owner.name}.{method.name}: call it {ALTERNATIVES[method.name]}"


def test_lifecycle_methods_start_stop_run_or_drain() -> None:
    places: dict[str, list[str]] = {}
    for root in SOURCES:
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).parts
            package = parts[1] if parts[0] == "boathook" and len(parts) > 2 else parts[0]
            tree = ast.parse(file.read_text(encoding="utf-8"))
            places.setdefault(package, []).extend(
                f"{'/'.join(parts)}:{line}: {name}" for line, name in other_verbs(tree)
            )
    numbers = {package: len(names) for package, names in places.items()}
    worse = {package: places[package] for package in numbers if numbers[package] > MAX_OTHERS.get(package, 0)}
    assert worse == {}


def test_no_limit_is_for_a_package_that_is_gone() -> None:
    packages = {path.name for root in SOURCES for path in (*root.iterdir(), *root.glob("boathook/*"))}
    assert set(MAX_OTHERS) <= packages


@pytest.mark.parametrize(
    "method",
    [
        "async def close(self): ...",
        "async def open(self): ...",
        "def shutdown(self): ...",
        "async def begin(self): ...",
    ],
)
def test_mutant_a_planted_verb_is_detected(method: str) -> None:
    assert len(list(other_verbs(ast.parse(f"class Server:\n    {method}")))) == 1


@pytest.mark.parametrize(
    "method",
    [
        "def close(self): ...",
        "async def start(self): ...",
        "async def close(self, code): ...",
        "@property\n    def open(self): ...",
        "@classmethod\n    async def open(cls): ...",
    ],
)
def test_mutant_other_methods_are_not_reported(method: str) -> None:
    assert list(other_verbs(ast.parse(f"class Server:\n    {method}"))) == []
