"""The portal as an ASGI application."""

from boathook.http.asgi import Asgi
from boathook.observability.live_metrics import LiveMetrics
from boathook.service.access.portal_sessions import PATH
from boathook.service.unit_of_work import AppContext
from boathook_console.settings import console_table
from boathook_console.shared.rendering import ConsoleState, PageRenderer
from boathook_console.shared.site import Site
from boathook_portal.logo import find_logo
from boathook_portal.pages import portal_routes, show_error


def open_site(app_context: AppContext, live_metrics: LiveMetrics) -> Asgi:
    """Return the pages below /portal; their modules are loaded when they are first needed."""
    settings = app_context.settings
    renderer = PageRenderer(
        ConsoleState(app_context, live_metrics),
        PATH,
        embed_origins=console_table(settings).embed_origins,
        logo=find_logo(settings),
    )
    return Site(
        renderer,
        portal_routes(renderer),
        show_error=lambda request, error: show_error(renderer, request, error),
    )
