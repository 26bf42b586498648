"""A pytest plugin that prints the providers named by the collected tests' judge marks, one a line."""

from collections.abc import Iterable

import pytest


def judged_by(items: Iterable[pytest.Item]) -> set[str]:
    """Return the providers named by the judge marks of these tests."""
    return {mark.args[0] for item in items for mark in item.iter_markers("judge")}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print them once all tests are known."""
    for name in sorted(judged_by(session.items)):
        print(f"judged: {name}")  # noqa: T201 - the caller of the plugin reads it
