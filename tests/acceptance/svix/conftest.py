"""Fixtures: one boathook process with all roles and one receiver, shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.acceptance.svix.receiver import Receiver
from tests.acceptance.svix.server import Api, Application, BoathookServer, open_database, open_server, unique_name


@pytest.fixture(scope="package")
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def server(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookServer]:
    """The shared boathook process; each test creates its own applications."""
    with (
        open_database(admin_url, pg_template) as url,
        open_server(tmp_path_factory.mktemp("server"), url) as opened,
    ):
        yield opened


@pytest.fixture
def api(server: BoathookServer) -> Api:
    """A client of the API with the default organization's token."""
    return server.api


@pytest.fixture
def app(server: BoathookServer) -> Application:
    """An application of this test."""
    return server.application()


@pytest.fixture(scope="module")
def own(server: BoathookServer) -> Iterator[Api]:
    """A client of the API with the token of an organization that only this module uses."""
    opened = Api(server.base, server.make_key(f"own-{unique_name()}"))
    yield opened
    opened.close()
