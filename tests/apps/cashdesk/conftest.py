"""One running cabinet for each file of tests."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from boathook.apps.cashdesk.receiver import Receiver
from tests.acceptance.conftest import Running
from tests.apps.cashdesk.stand import Cabinet, make_running, new_database, started
from tests.conftest import open_folder


@pytest.fixture(scope="module")
def cabinet(admin_url: str, pg_template: str) -> Iterator[Cabinet]:
    """A cabinet that all tests of a file share; each makes users of its own."""
    folder = open_folder()
    with new_database(admin_url, pg_template) as url:
        running = make_running(folder, url)
        try:
            yield Cabinet(started(running))
            assert running.stop() == 0
        finally:
            if running.process is not None and running.process.poll() is None:
                running.kill_all()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that takes everything."""
    async with Receiver().open() as one:
        yield one


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that an unprivileged server can enter."""
    made = open_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def running(folder: Path, admin_url: str, pg_template: str) -> Iterator[Running]:
    """A cabinet that is not started, for tests that kill it or want it otherwise."""
    with new_database(admin_url, pg_template) as url:
        one = make_running(folder, url)
        try:
            yield one
        finally:
            if one.process is not None and one.process.poll() is None:
                one.kill_all()
