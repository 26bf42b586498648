"""Fixture: one fake of Telegram's Bot API for each test file."""

from collections.abc import Iterator

import pytest

from tests.apps.fleet.server import BotApi


@pytest.fixture(scope="module")
def bot() -> Iterator[BotApi]:
    with BotApi() as api:
        yield api
