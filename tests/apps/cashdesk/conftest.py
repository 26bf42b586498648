"""Fixtures: a running cashdesk app for each test file, and a receiver of its webhooks."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from boathook_cashdesk.receiver import Receiver
from tests.apps.cashdesk.server import Cabinet, CashdeskServer


@pytest.fixture(scope="module")
def cabinet(tmp_path_factory: pytest.TempPathFactory, admin_url: str, pg_template: str) -> Iterator[Cabinet]:
    """A cashdesk app that all tests of a file share; each test creates its own users."""
    with CashdeskServer.started(tmp_path_factory.mktemp("cashdesk"), admin_url, pg_template) as running:
        yield Cabinet(running)
        assert running.stop() == 0


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that accepts every request."""
    async with Receiver().open() as one:
        yield one


@pytest.fixture
def running(tmp_path: Path, admin_url: str, pg_template: str) -> Iterator[CashdeskServer]:
    """A server that is not started, for tests that kill it or change its configuration."""
    with CashdeskServer.prepared(tmp_path, admin_url, pg_template) as one:
        yield one
