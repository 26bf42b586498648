"""One stand-in for Telegram's Bot API for each file of tests that wants it."""

from collections.abc import Iterator

import pytest

from tests.apps.fleet.server import BotApi


@pytest.fixture(scope="module")
def bot() -> Iterator[BotApi]:
    with BotApi() as api:
        yield api
