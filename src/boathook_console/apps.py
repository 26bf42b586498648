"""Pages of apps: a list, and one page for each with the history of its metrics."""

from typing import Any, Final

from starlette.responses import Response

from boathook.domain.alerts import show_number
from boathook.observability.metrics import MetricKind
from boathook.service.access.authorization import Permission
from boathook.service.operating import app_metrics
from boathook.service.operating.app_metrics import AppSeries
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()
APPS_PATH: Final = f"{BASE}/apps"
_SPANS: Final[dict[str, tuple[str, float, int]]] = {
    "hour": ("hour", 60.0, 60),
    "day": ("day", 1_440.0, 900),
    "week": ("week", 10_080.0, 7_200),
}
"""Title, minutes and seconds of a point, by the name in the URL."""


@routes.get("/apps", Permission.HANDLER_VIEW)
async def list_apps(context: ConsoleContext) -> Response:
    """Show the apps that declare metrics."""
    return context.page("apps/list.html", apps=app_metrics.list_apps(), path=APPS_PATH)


@routes.get("/apps/{app}", Permission.HANDLER_VIEW)
async def show_app(context: ConsoleContext) -> Response:
    """Show the history of an app's metrics."""
    span = query_params.get_text(context.query, "span") or ""
    span = span if span in _SPANS else "hour"
    _, minutes, step_s = _SPANS[span]
    app = context.path["app"]
    series = await app_metrics.read_series(context.app_context.database, app, minutes=minutes, step_s=step_s)
    return context.page(
        "apps/show.html",
        app=app,
        series=series,
        figure=_figure,
        span=span,
        spans={name: title for name, (title, _, _) in _SPANS.items()},
        path=APPS_PATH,
    )


def _figure(series: AppSeries) -> dict[str, Any]:
    """Return the figure of a series as text, and what it is."""
    if series.kind is MetricKind.COUNTER:
        return {"value": show_number(series.total), "unit": "in this time"}
    latest = "none" if series.latest is None else show_number(series.latest)
    return {"value": latest, "unit": "now" if series.kind is MetricKind.GAUGE else "p95 of the last point"}
