"""`python -m benchmarks.trips` counts the functions that one request, delivery and message pass through."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src/boathook"


@pytest.fixture(scope="module")
def trips(admin_url: str) -> dict[str, Any]:
    """The command's output."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trips", "--json"],
        cwd=ROOT,
        env={**os.environ, "BOATHOOK_DATABASE_URL": admin_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def functions(tree: ast.AST, scope: str = "") -> Iterator[str]:
    """Return the qualified names of all functions in *tree*."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield scope + name
                yield from functions(node, f"{scope}{name}.<locals>.")
            case ast.ClassDef(name=name):
                yield from functions(node, f"{scope}{name}.")
            case _:
                yield from functions(node, scope)


@pytest.mark.extended("measures the code; it says nothing of what it does")
def test_each_trip_has_functions_and_files(trips: dict[str, Any]):
    assert list(trips) == ["inbound", "handler", "outbound"]
    for trip in trips.values():
        assert trip["functions"] == len(set(trip["names"])) > 0
        assert trip["files"] == len({name.partition(":")[0] for name in trip["names"]}) > 0


@pytest.mark.extended("measures the code; it says nothing of what it does")
def test_every_function_named_exists(trips: dict[str, Any]):
    named = {name for trip in trips.values() for name in trip["names"]}
    files = {name.partition(":")[0] for name in named}
    known = {f"{file}:{name}" for file in files for name in functions(ast.parse((PACKAGE / file).read_text()))}
    assert named - known == set()


@pytest.mark.parametrize(
    ("trip", "name"),
    [
        ("inbound", "ingest/direct.py:DirectIngest.handle"),
        ("inbound", "db/events.py:EventStore.append"),
        ("handler", "handlers/runner.py:Runner.run"),
        ("outbound", "service/operating/operations.py:send"),
        ("outbound", "http_client/connection_pool.py:ConnectionPool.send"),
    ],
)
@pytest.mark.extended("measures the code; it says nothing of what it does")
def test_a_trip_covers_each_stage(trips: dict[str, Any], trip: str, name: str):
    assert name in trips[trip]["names"]
