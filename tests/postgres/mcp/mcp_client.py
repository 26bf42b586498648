"""The official MCP client, connected to `/mcp` of a server on a real socket in the test process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from boathook.service.unit_of_work import AppContext
from boathook_mcp.http import McpEndpoint
from boathook_mcp.settings import McpTable
from tests.support import eventually


class ToolFailed(AssertionError):
    """A tool has returned an error."""


@contextlib.asynccontextmanager
async def serve_mcp(context: AppContext, **table: Any) -> AsyncIterator[str]:
    """Serve `/mcp` with these settings; yield its URL."""
    defaults = {"enabled": True, "allow_writes": False, "hosts": (), "origins": ()}
    endpoint = McpEndpoint(context, McpTable(**defaults | table))
    server = uvicorn.Server(uvicorn.Config(endpoint, host="127.0.0.1", port=0, lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        context.closing.set()
        await endpoint.stop()
        server.should_exit = True
        await serving


class Tools:
    """The tools that one caller has."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def names(self) -> list[str]:
        """Return the names of the tools."""
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def read(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool and return its result as text. Raises ToolFailed."""
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        if result.is_error:
            raise ToolFailed(content.text)
        return content.text

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result. Raises ToolFailed."""
        result: dict[str, Any] = json.loads(await self.read(tool, **arguments))
        return result


@contextlib.asynccontextmanager
async def open_tools(url: str, token: str) -> AsyncIterator[Tools]:
    """Connect to `/mcp` with a token."""
    opened: asyncio.Future[Tools] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def hold() -> None:
        # The client must be left by the task that has entered it, and a fixture ends in another one.
        try:
            async with (
                httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                opened.set_result(Tools(client))
                await closing.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    holding = asyncio.create_task(hold())
    try:
        yield await opened
    finally:
        closing.set()
        await holding


def texts_outside_untrusted(value: Any) -> list[str]:
    """Return all texts of a result but those in an object named ``untrusted``."""
    match value:
        case dict():
            return [
                text
                for name, element in value.items()
                if name != "untrusted"
                for text in texts_outside_untrusted(element)
            ]
        case list():
            return [text for element in value for text in texts_outside_untrusted(element)]
        case str():
            return [value]
        case _:
            return []
