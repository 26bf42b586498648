"""The command that serves MCP on standard input and output."""

from typing import Annotated

import typer

from boathook.cli.context import actor, cli_context, open_app_context, run
from boathook.config.packages import require_extra
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.service.caller import HOST
from boathook_mcp import package
from boathook_mcp.session import Session


def serve_stdio(
    ctx: typer.Context,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Offer the tools that replay; without it, every tool only reads.")
    ] = False,
    organization: Annotated[
        str, typer.Option(help="Organization of the applications that tools name.")
    ] = DEFAULT_ORGANIZATION,
) -> None:
    """Serve MCP on standard input and output, for an agent on this host; reads only, unless --allow-writes.

    An agent's client starts it, as docs/how-to/mcp.md shows. It needs access to the database, like other commands.
    """
    require_extra(package, "boathook mcp")
    settings = cli_context(ctx).settings()
    # Imported only here, as it takes a second of processor time, and help does not need it.
    from mcp.server.stdio import stdio_server

    from boathook_mcp.server import build_server

    async def serve() -> None:
        async with open_app_context(settings) as app_context:
            session = Session(
                app_context=app_context,
                caller=HOST,
                organization=organization,
                actor=actor(),
                allows_writes=allow_writes,
            )
            server = build_server(lambda _context: session)
            async with stdio_server() as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())

    run(serve())
