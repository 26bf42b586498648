"""Each behaviour in the list has tests, and they exist."""

import ast
from pathlib import Path

import pytest

from tests.acceptance.svix.behaviours import BEHAVIOURS, NOT_HERE, ON_PURPOSE

ROOT = Path(__file__).parents[3]
ALL = BEHAVIOURS | ON_PURPOSE


def named_in(file: Path) -> set[str]:
    """Return the tests of a file, each with its class before it."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in _functions(node.body)}
        else:
            found |= _functions([node])
    return found


def _functions(body: list[ast.stmt]) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in body if isinstance(node, functions) and node.name.startswith("test_")}


def missing(names: tuple[str, ...]) -> list[str]:
    lost = []
    for name in names:
        file, _, test = name.partition("::")
        if not (ROOT / file).exists() or test not in named_in(ROOT / file):
            lost.append(name)
    return lost


@pytest.mark.parametrize("behaviour", ALL)
def test_every_behaviour_has_tests_that_exist(behaviour):
    assert ALL[behaviour], "no test is named"
    assert missing(ALL[behaviour]) == []


def test_a_test_that_does_not_exist_is_missed():
    """The mutant of the test above."""
    [first, *_] = next(iter(BEHAVIOURS.values()))
    assert missing((first, f"{first}_renamed", "tests/nowhere.py::test_x")) == [
        f"{first}_renamed",
        "tests/nowhere.py::test_x",
    ]


def test_unsupported_behaviours_have_a_reason():
    assert all(NOT_HERE.values())
    assert not set(NOT_HERE) & set(ALL)
