"""Whether messages are accepted while PostgreSQL is unavailable: what the settings say, and without the package."""

from typing import Any, cast

import pytest

from boathook import config
from boathook.config import packages
from boathook.service.sending.buffered_publisher import open_buffered_publisher, send_buffered
from boathook_outage_publishing.settings import publishes_without_database

UNUSED = cast("Any", None)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, True),
        ({"buffer.key_max_age_h": 0}, False),
        ({"outbound.validate_payloads": True}, False),
        ({"spool.enabled": False}, False),
    ],
)
def test_the_settings_decide(overrides: dict[str, Any], expected: bool, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert publishes_without_database(config.load(overrides=overrides)) is expected


async def test_without_the_package_messages_need_postgresql(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packages, "used_by_default", dict)
    settings = config.load()
    assert settings.packages == ()
    assert open_buffered_publisher(settings, UNUSED, UNUSED, UNUSED) is None
    assert await send_buffered(settings, UNUSED) is None
