"""The operators' console: server-rendered pages that work without scripts, except for live updates.

`routes` declares the pages of an area for signed-in operators, and `login` signs operators in. An area, such as
`events`, reads its forms, calls an action of `boathook.service`, and shows the result; it contains no business logic.
`boathook_pages` contains what the console shares with the portal.
"""

from typing import Final

from starlette.routing import Route

from boathook_console import (
    alerts,
    applications,
    apps,
    audit,
    dead_letters,
    event_detail,
    event_types,
    events,
    handlers,
    keys,
    login,
    operators,
    overview,
    rejections,
    search,
    sources,
    system,
)
from boathook_console.login import LoginPages
from boathook_console.routes import build_route, pages_of_packages
from boathook_console.shared.application_pages import APPLICATION_PAGES
from boathook_console.shared.rendering import PageRenderer

AREAS: Final = (
    login.routes,
    overview.routes,
    search.routes,
    events.routes,
    event_detail.routes,
    rejections.routes,
    dead_letters.routes,
    system.routes,
    audit.routes,
    sources.routes,
    handlers.routes,
    apps.routes,
    event_types.routes,
    keys.routes,
    alerts.routes,
    operators.routes,
    applications.routes,
    *map(applications.operator_routes, APPLICATION_PAGES),
)  # fmt: skip
"""The routes of each area; the first match counts."""


def console_routes(renderer: PageRenderer) -> list[Route]:
    """Return the routes below /console."""
    added = [pages.routes for pages in pages_of_packages(renderer.state.app_context.settings)]
    return [
        *LoginPages(renderer).routes,
        *(build_route(renderer, entry) for area in (*AREAS, *added) for entry in area.entries),
    ]
