"""The console as an ASGI application."""

from boathook.http.asgi import Asgi
from boathook.observability.live_metrics import LiveMetrics
from boathook.service.unit_of_work import AppContext
from boathook_console.areas import console_routes
from boathook_console.settings import PATH
from boathook_console.shared.rendering import ConsoleState, PageRenderer
from boathook_console.shared.site import Site


def open_site(app_context: AppContext, live_metrics: LiveMetrics) -> Asgi:
    """Return the pages below /console; their modules are loaded when they are first needed."""
    renderer = PageRenderer(ConsoleState(app_context, live_metrics), PATH)
    return Site(
        renderer,
        console_routes(renderer),
        show_error=lambda _request, error: renderer.show_error(error, visit=None),
        is_host_checked=True,
    )
