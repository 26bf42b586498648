"""The command of the package, as the help lists it."""

from typing import Final

from boathook.cli.commands import CommandEntry, example

mcp: Final = CommandEntry(
    "boathook_mcp.commands:serve_stdio",
    "Serve MCP on standard input and output, for an agent on this host; reads only, unless --allow-writes.",
    example("boathook mcp", "boathook --config /etc/boathook.toml mcp --allow-writes"),
)
