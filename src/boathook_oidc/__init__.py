"""OpenID Connect: operators sign in to the console through an identity provider.

This module declares the package and imports none of it; docs/reference/console.md shows how to use it.

settings    the keys of [console] about the provider
provider    its requests, and what is trusted of its answers
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="oidc",
    tables="boathook_oidc.settings:TABLES",
    check="boathook_oidc.settings:check",
    identity_provider="boathook_oidc.provider:open_provider",
    in_tests={"console.oidc_issuer": ""},
)
