"""tests/security/README.md is correct: every row has an existing test, a target and a figure."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "tests/security/README.md"
COLUMNS = ["Area", "Rule", "Test", "Target", "Latest figure"]
LINK = re.compile(r"\[(\w+)\]\(([^)]+\.py)\)")
AREAS = {
    "Body", "Slow clients", "Smuggling", "Signature headers", "Signatures tried", "JSON", "Constant time", "Rate limits", "Algorithm",
    "Filters", "SSRF", "Responses", "Headers", "Tenants", "API", "Pages",
}  # fmt: skip
"""What the page must speak of, whatever else it speaks of."""


def rows(text: str) -> list[list[str]]:
    """Return the cells of all rows of all tables, their heads left out."""
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [cells for line in lines if (cells := [cell.strip() for cell in line.split("|")]) != COLUMNS]


def faults(text: str) -> list[str]:
    """Return the faults of the page's rows."""
    return [f"{row[0]}: {fault}" for row in rows(text) for fault in _faults(row)]


def _faults(row: list[str]) -> list[str]:
    if len(row) != len(COLUMNS) or not all(row):
        return [f"a row has the cells {COLUMNS}, and none is empty"]
    links = LINK.findall(row[2])
    missing = [f"there is no {name} in {place}" for name, place in links if name not in _tests(PAGE.parent / place)]
    return missing if links else ["no test is linked by its name"]


def _tests(file: Path) -> set[str]:
    if not file.exists():
        return set()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)}


def test_every_row_has_a_test_a_target_and_a_figure():
    assert faults(PAGE.read_text(encoding="utf-8")) == []


def test_every_area_has_a_row():
    assert AREAS - {row[0].partition(",")[0] for row in rows(PAGE.read_text(encoding="utf-8"))} == set()


def test_every_wire_test_file_is_linked_from_the_page():
    linked = {Path(place).name for _, place in LINK.findall(PAGE.read_text(encoding="utf-8"))}
    files = {path.name for path in Path(__file__).parent.glob("test_wire_*.py")} - {Path(__file__).name}
    assert files - linked == set()


@pytest.mark.parametrize(
    "row",
    [
        "| A | b | [test_that_is_not_there](../tests/security/test_wire_bombs.py) | c | d |",
        "| A | b | [test_a](../tests/security/test_nowhere.py) | c | d |",
        "| A | b | by hand | c | d |",
        "| A | b | [test_every_area_has_a_row](../tests/security/test_wire_page.py) | c | |",
    ],
)
def test_a_row_that_is_not_true_is_found(row: str):
    assert faults(row)
