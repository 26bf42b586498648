"""One running boathook, one studio and one bucket for each file of tests that wants them."""

from collections.abc import Iterator

import pytest

from tests.apps.music.server import Bucketeer, Slow, Stand, served


@pytest.fixture(scope="module")
def stand(tmp_path_factory, admin_url, pg_template) -> Iterator[Stand]:
    with served(tmp_path_factory.mktemp("music"), admin_url, pg_template) as running:
        yield running


@pytest.fixture(scope="module")
def studio() -> Iterator[Slow]:
    with Slow() as open_studio:
        yield open_studio
        open_studio.go_on.set()


@pytest.fixture(scope="module")
def bucketeer() -> Iterator[Bucketeer]:
    made = Bucketeer()
    yield made
    made.close()
