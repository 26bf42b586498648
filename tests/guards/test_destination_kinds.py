"""Kinds of destinations are known to their declarations alone: no other code compares a kind with a name."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.guards.documents import ROOT

SRC = ROOT / "src"
OWN = {"boathook/config/destinations.py", "boathook/delivery/http_destination.py"}
"""The registry and the declaration of HTTP."""
_TEMPLATE = re.compile(r"""(?:destination|kind\.name)[^{}%\n]*?(?:[!=]=|\bin\b)\s*[\[(]?["']""")


def comparisons(source: str) -> Iterator[str]:
    """Yield the comparisons of kinds of destinations with names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare | ast.Match):
            text = ast.unparse(node.subject if isinstance(node, ast.Match) else node)
            names = {word for word in ast.walk(node) if isinstance(word, ast.Constant) and isinstance(word.value, str)}
            is_named = "DEFAULT_DESTINATION" in ast.unparse(node) or {word.value for word in names} - {"destination"}
            if is_named and "destination" in text.lower():
                yield text


def test_no_code_but_the_registry_compares_a_kind_with_a_name() -> None:
    violations = [
        f"{path.relative_to(SRC)}: {text}"
        for path in sorted(SRC.rglob("*.py"))
        if str(path.relative_to(SRC)) not in OWN
        for text in comparisons(path.read_text())
    ]
    assert violations == []


def test_no_page_compares_a_kind_with_a_name() -> None:
    pages = [path for path in SRC.rglob("*.html") if _TEMPLATE.search(path.read_text())]
    assert pages == []


@pytest.mark.parametrize(
    "source",
    [
        'if endpoint.destination == "http": pass',
        'x = "file" != config.destination',
        'if row["destination"] in {"http", "file"}: pass',
        "if before.destination is DEFAULT_DESTINATION: pass",
        'match endpoint.destination:\n    case "http": pass',
    ],
)
def test_mutant_a_comparison_is_found(source: str) -> None:
    assert list(comparisons(source))


def test_mutant_a_comparison_in_a_page_is_found() -> None:
    assert _TEMPLATE.search('{% if endpoint.destination == "http" %}')
    assert not _TEMPLATE.search('{% if endpoint.destination == kind %}"x"')
