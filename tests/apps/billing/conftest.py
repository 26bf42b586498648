"""One running boathook with the billing app for each file of tests."""

from collections.abc import Iterator

import pytest

from tests.apps.billing.server import Stand, served


@pytest.fixture(scope="package")
def stand(tmp_path_factory, admin_url, pg_template) -> Iterator[Stand]:
    with served(tmp_path_factory.mktemp("billing"), admin_url, pg_template) as running:
        yield running
