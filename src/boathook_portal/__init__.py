"""The customers' portal: pages of one application, for anybody with a link to them.

settings    [portal]; logo: the image of [console] portal_logo
app         the portal as an ASGI application
pages       sign-in by a link that the owner's app creates, and the pages that only the portal has

It stands on `boathook_console.shared`, whose pages of an application it shows. This module declares the package and
imports none of it; docs/how-to/sending.md shows how to use it.
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="portal",
    tables="boathook_portal.settings:TABLES",
    check="boathook_portal.settings:check",
    site="boathook_portal.app:open_site",
)
