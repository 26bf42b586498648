"""The keys of [console] about an identity provider."""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from boathook.config import Settings
from boathook.config.packages import PackageTable
from boathook.config.types import BaseUrl


class OidcTable(PackageTable):
    """An OpenID Connect identity provider for the operators of the console."""

    oidc_issuer: BaseUrl
    """The provider's address; empty for none."""
    oidc_client_id: str
    oidc_client_secret: str = Field(repr=False)
    oidc_name_claim: str
    oidc_role_claim: str
    oidc_roles: dict[str, Literal["viewer", "operator", "admin"]]
    """The role for each value of the claim."""
    oidc_default_role: Literal["", "viewer", "operator", "admin"]


TABLES: Final[Mapping[str, type[PackageTable]]] = {"console": OidcTable}


def find_table(settings: Settings) -> OidcTable | None:
    """Return the keys of the provider; None if there is none."""
    table = settings.table(OidcTable)
    return table if table is not None and table.oidc_issuer else None


def check(settings: Settings) -> None:
    """Check that the client's secret can be read. Raises ConfigError."""
    if (table := find_table(settings)) is not None:
        resolve_secret(settings, table)


def resolve_secret(settings: Settings, table: OidcTable) -> str:
    """Return the client's secret; empty if it has none. Raises ConfigError."""
    return settings.resolve(table.oidc_client_secret, "console.oidc_client_secret")
