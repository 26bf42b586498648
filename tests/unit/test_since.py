"""The `since` option of handlers."""

from datetime import timedelta

import pytest

from boathook import Boathook
from boathook.domain.errors import ConfigError


def handle(_event: object) -> None:
    """Handle nothing."""


@pytest.mark.parametrize(("since", "seconds"), [(None, None), ("7d", 604_800), (timedelta(hours=1), 3_600)])
def test_it_is_a_length_of_time(since: str | timedelta | None, seconds: float | None):
    hook = Boathook()
    hook.on("stripe", since=since)(handle)
    assert [route.since_s for route in hook.routes("shop")] == [seconds]


@pytest.mark.parametrize("since", ["soon", "0s", "", "4000d", timedelta(0), timedelta(days=-1), 7])
def test_anything_else_is_refused(since: str | timedelta):
    with pytest.raises(ConfigError, match=r"hook.on\('stripe'\): since: "):
        Boathook().on("stripe", since=since)
