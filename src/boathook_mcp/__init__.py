"""MCP: tools by which an agent finds out what happened to events, and replays what has failed.

tool            the declaration of a tool; inputs: fields that several tools take
outside         texts of others, marked and redacted
session         the caller of a tool, and what is in reach
events, failures, operating     the tools; previews: what a replay may touch
server          the MCP server; http: `/mcp`; commands: `boathook mcp`
settings        [mcp]

This module declares the package and imports none of it; docs/how-to/mcp.md shows how to use it.
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="mcp",
    requires=("mcp",),
    tables="boathook_mcp.settings:TABLES",
    check="boathook_mcp.settings:check",
    mounts="boathook_mcp.http:open_mounts",
)
