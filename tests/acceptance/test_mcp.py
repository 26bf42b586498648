"""MCP over both transports, as clients start it: a running `boathook serve`, and `boathook mcp` as a process."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.raw_http import boathook_on_new_database, send_request, write_config
from tests.commands import boathook_command
from tests.postgres.mcp.mcp_client import ToolFailed, Tools, open_tools
from tests.support import until

SETTINGS = """
[sources.stripe]
provider = "stripe"
secrets = ["whsec_acceptance"]
[mcp]
enabled = true
allow_writes = true
"""
ALL = 12
WITHOUT_EXTRA = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "mcp" else find(name, *more)
"""


@pytest.fixture(scope="module")
def running(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("mcp")) as process:
        write_config(process, SETTINGS, roles='["gateway", "console", "keeper"]')
        process.start()
        until(lambda: send_request(process, "POST", "/mcp", {}, b"{}").status == 401)
        yield process


def make_token(running: BoathookProcess) -> str:
    made = running.cli("keys", "create", "--scope", "organization", "--json")
    return str(json.loads(made.stdout)["token"])


@contextlib.asynccontextmanager
async def stdio_tools(running: BoathookProcess, *arguments: str) -> AsyncIterator[Tools]:
    """Start `boathook mcp` as a client does."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "boathook", "mcp", *arguments], cwd=running.folder
    )
    async with Client(server) as client:
        yield Tools(client)


async def test_a_running_server_answers_at_mcp(running: BoathookProcess):
    token = await asyncio.to_thread(make_token, running)
    async with open_tools(f"http://127.0.0.1:{running.port}/mcp", token) as tools:
        assert {"find_events", "replay"} < set(await tools.names())
        sources = (await tools.call("list_sources"))["sources"]
        assert [source["name"] for source in sources] == ["stripe"]
        assert (await tools.call("wait_for_events", seconds=1))["events"] == []


def test_a_server_rejects_what_it_should(running: BoathookProcess):
    token = make_token(running)
    bearer = {"authorization": f"Bearer {token}", "content-type": "application/json", "accept": "application/json"}
    assert send_request(running, "POST", "/mcp", {"authorization": "Bearer bhk_x"}, b"{").status == 401
    assert send_request(running, "POST", "/mcp", bearer | {"origin": "https://evil.example"}, b"{").status == 403
    assert send_request(running, "POST", "/mcp", bearer | {"host": "evil.example"}, b"{").status == 421
    assert send_request(running, "POST", "/mcp", bearer, b"{").status == 400
    assert send_request(running, "POST", "/mcp", bearer, b"x" * 300_000).status == 413
    assert send_request(running, "GET", "/mcp", bearer).status == 405


async def test_a_process_on_the_host_has_every_tool_and_reads_only(running: BoathookProcess):
    async with stdio_tools(running) as tools:
        names = await tools.names()
        assert {"list_alerts", "read_stats"} < set(names)
        assert len(names) == ALL - 2
        for name in ("list_alerts", "read_stats", "find_events", "list_failures"):
            assert await tools.call(name)
        with pytest.raises(ToolFailed, match="--allow-writes"):
            await tools.call("preview_replay", code="X")
    async with stdio_tools(running, "--allow-writes") as tools:
        assert len(await tools.names()) == ALL
        with pytest.raises(ToolFailed, match="no dead letters match"):
            await tools.call("preview_replay", code="X")


@pytest.mark.parametrize("command", ["mcp", "serve"])
def test_without_the_extra_it_says_what_to_install(running: BoathookProcess, tmp_path: Path, command: str):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRA)
    environment = running.environment | {"PYTHONPATH": str(tmp_path)}
    result = boathook_command(command, cwd=running.folder, env=environment)
    assert result.returncode == 2, result.stderr
    assert "pip install 'boathook[mcp]'" in result.stderr


def test_it_is_off_by_default(admin_url: str, pg_template: str, tmp_path: Path):
    with boathook_on_new_database(admin_url, pg_template, tmp_path) as process:
        write_config(process, SETTINGS.replace("enabled = true", "enabled = false"), roles='["gateway", "console"]')
        process.start()
        until(lambda: send_request(process, "GET", "/api/v1/health").status == 204)
        assert send_request(process, "POST", "/mcp", {}, b"{}").status == 404
