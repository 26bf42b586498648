"""The event loops of tests close connections accepted last."""

import asyncio
import gc
import socket
from typing import Any

import pytest

from tests import conftest
from tests.support import eventually


def leave_an_accepted_connection() -> None:
    """Close a loop whose server has an accepted connection left open."""

    async def accept() -> socket.socket:
        loop: Any = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname())
        await eventually(lambda: len(loop._transports) == 1)
        server.close()
        return client

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(accept())
    loop.close()
    client.close()
    gc.collect()


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_closing_the_loop_closes_accepted_connections(recwarn: pytest.WarningsRecorder):
    leave_an_accepted_connection()
    assert [str(one.message) for one in recwarn if one.category is ResourceWarning] == []


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_mutant_an_unclosed_connection_reaches_the_collector(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
):
    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "close", conftest.close_loop)
    leave_an_accepted_connection()
    assert any("unclosed transport" in str(one.message) for one in recwarn)
