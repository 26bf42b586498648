"""Fixtures of the tests that send requests."""

import pytest

from boathook.http_client.connection_pool import ConnectionPool


@pytest.fixture(params=["pool", "libcurl"])
def way(request, monkeypatch):
    """Make requests over the sender's own connections, or all by libcurl; return which."""
    if request.param == "libcurl":
        monkeypatch.setattr(ConnectionPool, "send", lambda *_: False)
    return request.param
