"""The settings of the console, and of the portal's look: [console]."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator

from boathook.config import Settings
from boathook.config.packages import PackageTable
from boathook.config.types import Hours, Origin

PATH: Final = "/console"
_MAX_PORTAL_NAME: Final = 60


def _portal_name(text: str) -> str:
    if not text.strip() or len(text) > _MAX_PORTAL_NAME or not text.isprintable():
        raise ValueError(f'must be 1 to {_MAX_PORTAL_NAME} printable characters, such as "Acme webhooks"')
    return text.strip()


PortalName = Annotated[str, AfterValidator(_portal_name)]


class ConsoleTable(PackageTable):
    """The operators' console and the customers' portal."""

    enabled: bool
    session_hours: Hours
    idle_hours: Hours
    passwords: bool
    portal_name: PortalName
    portal_logo: str
    embed_origins: tuple[Origin, ...]

    @property
    def site_path(self) -> str:
        """The path of the console; empty if it is off."""
        return PATH if self.enabled else ""


TABLES: Final[Mapping[str, type[PackageTable]]] = {"console": ConsoleTable}


def console_table(settings: Settings) -> ConsoleTable:
    """Return the section [console], which each installation with console or portal has."""
    table = settings.table(ConsoleTable)
    assert table is not None
    return table
