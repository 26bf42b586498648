"""The tests of the ready-made apps are a job of their own, `make test-apps`; `make test` runs those marked as smoke tests."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.app)
