"""The settings of the console, and of the portal's look: [console]."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from boathook.config import Settings
from boathook.config.packages import PackageTable
from boathook.config.types import BaseUrl, Hours, Origin

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
    oidc_issuer: BaseUrl
    oidc_client_id: str
    oidc_client_secret: str = Field(repr=False)
    oidc_name_claim: str
    oidc_role_claim: str
    oidc_roles: dict[str, Literal["viewer", "operator", "admin"]]
    """The role for each value of the claim."""
    oidc_default_role: Literal["", "viewer", "operator", "admin"]

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


def check(settings: Settings) -> None:
    """Check that the secret of the identity provider's client can be read. Raises ConfigError."""
    table = console_table(settings)
    if table.oidc_issuer:
        settings.resolve(table.oidc_client_secret, "console.oidc_client_secret")
