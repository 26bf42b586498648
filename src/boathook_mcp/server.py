"""The MCP server: lists the tools that a caller has, and calls them."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import mcp_types as types
from mcp.server import Server, ServerRequestContext

from boathook.domain.errors import BoathookError, InvalidValue
from boathook.observability.log import get_logger
from boathook_mcp import events, failures, operating
from boathook_mcp.outside import NOTICE
from boathook_mcp.session import Session
from boathook_mcp.tool import Tool

Context = ServerRequestContext[Any, Any]

TOOLS: Final[tuple[Tool, ...]] = (
    events.find_events,
    events.explain_event,
    events.wait_for_events,
    failures.list_failures,
    failures.preview_replay,
    failures.replay,
    operating.check_endpoints,
    operating.list_sources,
    operating.list_rejections,
    operating.list_alerts,
    operating.read_stats,
    operating.search,
)
"""Every tool, in the order in which they are listed."""
_BY_NAME: Final = {tool.name: tool for tool in TOOLS}
_INSTRUCTIONS: Final = (
    "boathook receives webhooks at sources, runs handlers on them, and sends messages of applications (customers) to"
    " their endpoints. An event has one delivery for each recipient; a delivery whose attempts have all failed is dead."
    f" {NOTICE} Before a replay, show the user what preview_replay found, and ask."
)
_LOG = get_logger("mcp")


def build_server(session_of: Callable[[Context], Session]) -> Server[Any]:
    """Return the server; *session_of* returns the caller of a request."""

    async def list_tools(context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        session = session_of(context)
        return types.ListToolsResult(tools=[describe(tool) for tool in TOOLS if tool.is_for(session)])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        session = session_of(context)
        try:
            tool = _BY_NAME.get(params.name)
            if tool is None:
                return _failed(f"there is no tool {params.name[:100]}; tools/list has them")
            result = await tool.call(session, params.arguments or {})
        except InvalidValue as error:
            return _failed("\n".join(_describe(fault) for fault in (error, *error.others)))
        except BoathookError as error:
            return _failed(str(error))
        except Exception as error:  # noqa: BLE001 - its text may hold what the caller must not see
            _LOG.error("tool_failed", tool=params.name, exc_info=error)
            return _failed("internal error: see tool_failed in the log of boathook")
        _LOG.info("tool_called", tool=tool.name, actor=session.actor, size=len(result))
        return types.CallToolResult(content=[types.TextContent(type="text", text=result.decode())])

    return Server(
        "boathook", version=_version(), instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def describe(tool: Tool) -> types.Tool:
    """Return the definition of a tool."""
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema(),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.is_read_only,
            destructive_hint=None if tool.is_read_only else False,
            idempotent_hint=None if tool.is_read_only else True,
            open_world_hint=False,
        ),
    )


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _describe(fault: InvalidValue) -> str:
    return f"{'.'.join(map(str, fault.where))}: {fault}" if fault.where else str(fault)


def _version() -> str:
    try:
        return version("boathook")
    except PackageNotFoundError:  # run from its source without being installed
        return ""
