"""Fixtures: a running boathook process with the music app, a file server and an S3 bucket."""

from collections.abc import Iterator

import pytest

from tests.apps.music.server import MusicServer, S3Server, SlowStudio, started


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template) -> Iterator[MusicServer]:
    with started(tmp_path_factory.mktemp("music"), admin_url, pg_template) as running:
        yield running


@pytest.fixture(scope="module")
def file_server() -> Iterator[SlowStudio]:
    with SlowStudio() as open_studio:
        yield open_studio
        open_studio.go_on.set()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()
