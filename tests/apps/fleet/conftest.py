"""Fixture: the app, bound to a database without a server."""

from collections.abc import AsyncIterator

import pytest

from boathook.config import load
from boathook.server.loading import bound, load_hooks, migrations_of, with_apps
from boathook.server.supervisor import prepare_database

FLEET = 'application = "rental-owner"\nlate_after_s = 600.0\nwindow_s = 0.05\n[fleet.branches.4310]\nname = "Tbilisi"\n'


@pytest.fixture
async def fleet(pg_url, tmp_path) -> AsyncIterator[None]:
    """The app, bound to this test's database."""
    file = tmp_path / "boathook.toml"
    file.write_text(f'[database]\nurl = "{pg_url}"\n[apps]\nload = ["fleet"]\n[fleet]\nsecrets = ["x"]\n{FLEET}')
    settings, apps = with_apps(load(file))
    await prepare_database(settings, load_hooks(settings), migrations_of(apps))
    async with bound(settings, apps):
        yield
