"""One boathook with all its parts for every test of this folder that does not need its own, and one receiver."""

from collections.abc import Iterator

import pytest

from tests.acceptance.svix.receiver import Receiver
from tests.acceptance.svix.server import Api, Application, House, open_database, open_house, word


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def house(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The shared boathook: tests make applications of their own in it."""
    with (
        open_database(admin_url, pg_template) as url,
        open_house(tmp_path_factory.mktemp("house"), url) as opened,
    ):
        yield opened


@pytest.fixture
def api(house: House) -> Api:
    """The API with the default organization's token."""
    return house.api


@pytest.fixture
def app(house: House) -> Application:
    """An application of this test's own."""
    return house.application()


@pytest.fixture(scope="module")
def own(house: House) -> Iterator[Api]:
    """The API with the token of an organization of this module's own, so that its lists hold nothing else."""
    opened = Api(house.base, house.make_key(f"own-{word()}"))
    yield opened
    opened.close()
