"""A pytest plugin that prints the providers named by the collected tests' judge marks, one a line."""

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print them once all tests are known."""
    for name in sorted({mark.args[0] for item in session.items for mark in item.iter_markers("judge")}):
        print(f"judged: {name}")  # noqa: T201 - the caller of the plugin reads it
