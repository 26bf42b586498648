"""Fixture: one running boathook process with the billing app, shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.apps.billing.server import BillingServer, started


@pytest.fixture(scope="package")
def server(tmp_path_factory, admin_url, pg_template) -> Iterator[BillingServer]:
    with started(tmp_path_factory.mktemp("billing"), admin_url, pg_template) as running:
        yield running
