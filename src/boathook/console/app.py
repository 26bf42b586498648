"""The routes of the console: its areas, and the pages of an application that the portal shows too."""

from typing import Final

from starlette.routing import Route

from boathook.console import (
    alerts,
    applications,
    audit,
    background_work,
    cells,
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
    settings,
    sources,
)
from boathook.console.login import LoginPages
from boathook.console.routes import build_route
from boathook.pages import APPLICATION_PAGES
from boathook.pages.rendering import PageRenderer

AREAS: Final = (
    login.routes,
    overview.routes,
    search.routes,
    events.routes,
    event_detail.routes,
    rejections.routes,
    dead_letters.routes,
    background_work.routes,
    audit.routes,
    sources.routes,
    handlers.routes,
    event_types.routes,
    keys.routes,
    alerts.routes,
    operators.routes,
    settings.routes,
    cells.routes,
    applications.routes,
    *map(applications.operator_routes, APPLICATION_PAGES),
)  # fmt: skip
"""The routes of each area; the first match counts."""


def console_routes(renderer: PageRenderer) -> list[Route]:
    """Return the routes below /console."""
    return [
        *LoginPages(renderer).routes,
        *(build_route(renderer, entry) for area in AREAS for entry in area.entries),
    ]
