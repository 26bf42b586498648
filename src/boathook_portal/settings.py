"""The settings of the portal: [portal]; its name, logo and embedding pages are in [console]."""

from collections.abc import Mapping
from typing import Final

from boathook.config import Settings
from boathook.config.packages import PackageTable


class PortalTable(PackageTable):
    """The customers' portal."""

    enabled: bool

    @property
    def site_path(self) -> str:
        """The path of the portal; empty if it is off."""
        # Imported only here, as every command reads the settings.
        from boathook.service.access.portal_sessions import PATH

        return PATH if self.enabled else ""


TABLES: Final[Mapping[str, type[PackageTable]]] = {"portal": PortalTable}


def check(settings: Settings) -> None:
    """Check that the logo can be shown. Raises ConfigError."""
    table = settings.table(PortalTable)
    if table is not None and table.enabled:
        # Imported only here, as most commands show no logo.
        from boathook_portal.logo import find_logo

        find_logo(settings)
