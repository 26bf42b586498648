"""SQL is in the .sql files of the database package and of optional packages, each statement with a verb and a comment."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src/boathook"
DB = PACKAGE / "db"
PROBE = "select 1"
"""Asks only whether the server answers; it names no table."""
STATEMENT = re.compile(
    r"\s*(select|SELECT|(?i:insert\s+into|update\s+\w+(\.\w+)?\s+set|delete\s+from|with\s+\w+\s+as))\s"
)
"""A sentence on a page begins with a capital: ``Select all``."""
OTHERS = {
    "boathook_cells": ("keys", "store"),
    "boathook_outage_publishing": ("store",),
    "boathook_pages": ("app_users",),
}
"""The packages with statements of their own, and their modules that have them in a .sql file beside them."""
NAMED = sorted([*DB.glob("*.sql"), *(path for name in OTHERS for path in PACKAGE.with_name(name).glob("*.sql"))])


def statements_in(code: str) -> list[str]:
    """Return the texts in Python *code* that are SQL; docstrings are not."""
    tree = ast.parse(code)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in prose
        and node.value != PROBE
        and STATEMENT.match(node.value)
    ]


def test_no_other_package_contains_sql():
    found = {
        str(path.relative_to(PACKAGE)): statements
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "db"
        and (statements := statements_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize("package", sorted(path.name for path in PACKAGE.parent.glob("boathook_*")))
def test_statements_of_an_optional_package_are_in_its_sql_files(package: str):
    folder = PACKAGE.with_name(package)
    assert {path.stem for path in folder.glob("*.sql")} == set(OTHERS.get(package, ()))
    assert [path.name for path in folder.rglob("*.py") if statements_in(path.read_text(encoding="utf-8"))] == []


def test_a_statement_in_another_package_is_found():
    assert statements_in('def peek(db):\n    return db.fetch("select id from boathook.event")') == [
        "select id from boathook.event"
    ]
    assert statements_in('"""select a source with care"""\nNOTE = "update the settings"') == []


@pytest.mark.parametrize("file", NAMED, ids=lambda file: file.name)
def test_each_statement_has_a_verb_and_a_sentence(file):
    blocks = re.split(r"^-- name: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        name, sentence, *_ = block.splitlines()
        assert re.fullmatch(r"[a-z]+_\w+", name), f"{name}: a verb and its object, such as find_seen"
        assert re.match(r"-- [A-Z]", sentence), f"{name} is not opened by a sentence"
