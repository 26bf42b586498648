"""The operators' console: server-rendered pages that work without scripts, except for live updates.

settings     [console]
app          the console as an ASGI application
areas        all areas; routes: the pages of an area for signed-in operators; login: signs operators in
shared       what the console shares with the portal: its site, its templates' values, the pages of an application

An area, such as `events`, reads its forms, calls an action of `boathook.service`, and shows the result; it contains no
business logic. This module declares the package and imports none of it; docs/reference/console.md lists the pages.
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="console",
    tables="boathook_console.settings:TABLES",
    site="boathook_console.app:open_site",
)
