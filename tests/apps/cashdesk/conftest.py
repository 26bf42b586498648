"""One running cabinet for each file of tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from boathook.apps.cashdesk.receiver import Receiver
from tests.apps.cashdesk.server import Cabinet, Stand


@pytest.fixture(scope="module")
def cabinet(tmp_path_factory: pytest.TempPathFactory, admin_url: str, pg_template: str) -> Iterator[Cabinet]:
    """A cabinet that all tests of a file share; each makes users of its own."""
    with Stand.served(tmp_path_factory.mktemp("cashdesk"), admin_url, pg_template) as running:
        yield Cabinet(running)
        assert running.stop() == 0


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that takes everything."""
    async with Receiver().open() as one:
        yield one


@pytest.fixture
def running(tmp_path: Path, admin_url: str, pg_template: str) -> Iterator[Stand]:
    """A cabinet that is not started, for tests that kill it or want it otherwise."""
    with Stand.lent(tmp_path, admin_url, pg_template) as one:
        yield one
