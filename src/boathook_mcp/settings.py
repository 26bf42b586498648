"""The settings of MCP: [mcp]."""

from collections.abc import Mapping
from typing import ClassVar, Final

from boathook.config import Settings
from boathook.config.packages import PackageTable, require_extra
from boathook.config.types import WebOrigin
from boathook_mcp import package

PATH: Final = "/mcp"


class McpTable(PackageTable):
    """What gateways with the role console serve at ``/mcp``."""

    own_paths: ClassVar[tuple[str, ...]] = (PATH,)

    enabled: bool
    allow_writes: bool
    hosts: tuple[str, ...]
    origins: tuple[WebOrigin, ...]


TABLES: Final[Mapping[str, type[PackageTable]]] = {"mcp": McpTable}


def check(settings: Settings) -> None:
    """Check that `/mcp` can be served if it is enabled. Raises ConfigError."""
    table = settings.table(McpTable)
    if table is not None and table.enabled:
        require_extra(package, "mcp.enabled:")
