"""Lifecycles have one vocabulary: `start` and `stop`, or an async context manager; `run` loops; `drain` finishes work.

What only frees a handle may have a plain `close`, as in the standard library. A connection to a server keeps the
`close` that users of asyncpg, aio-pika or redis-py expect of one: `CONNECTIONS` names them, and no other class.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.guards.documents import SOURCES

ALTERNATIVES: Final = {
    "aclose": "stop", "begin": "start", "close": "stop", "dispose": "stop", "halt": "stop", "launch": "start",
    "end": "stop", "finish": "drain or stop", "open": "start", "quit": "stop", "shutdown": "drain or stop", "shut_down": "drain or stop", "terminate": "stop",
}  # fmt: skip
"""What a method of the name would be called instead."""
CONNECTIONS: Final = {
    "BrokerConnection": "an AMQP connection, as aio-pika's and pika's",
    "Database": "a pool of connections, as asyncpg's",
    "RedisLeases": "a connection to Redis, as redis-py's",
}
"""The classes that have an asynchronous `close`, and what else has one there."""


def other_verbs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each lifecycle method with another verb."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name not in ALTERNATIVES:
                continue
            is_handle = method.name == "close" and (isinstance(method, ast.FunctionDef) or owner.name in CONNECTIONS)
            arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
            if not is_handle and len(arguments) == 1 and not method.decorator_list:
                yield method.lineno, f"{owner.name}.{method.name}: call it {ALTERNATIVES[method.name]}"


def modules(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules below a folder."""
    for file in sorted(root.rglob("*.py")):
        yield file, ast.parse(file.read_text(encoding="utf-8"))


def test_lifecycle_methods_start_stop_run_or_drain() -> None:
    places = [
        f"{file.relative_to(root)}:{line}: {name}"
        for root in SOURCES
        for file, tree in modules(root)
        for line, name in other_verbs(tree)
    ]
    assert places == []


def test_every_named_connection_has_an_asynchronous_close() -> None:
    owners = {
        owner.name
        for root in SOURCES
        for _, tree in modules(root)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        and any(isinstance(method, ast.AsyncFunctionDef) and method.name == "close" for method in owner.body)
    }
    assert set(CONNECTIONS) <= owners


@pytest.mark.parametrize(
    "method",
    [
        "async def close(self): ...",
        "async def open(self): ...",
        "def shutdown(self): ...",
        "async def begin(self): ...",
        "def finish(self): ...",
        "async def end(self): ...",
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
