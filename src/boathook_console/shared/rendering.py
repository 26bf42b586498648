"""Renders pages: templates, static files, headers, forms and errors."""

import functools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, TemplateSyntaxError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from boathook.config import Settings
from boathook.config.packages import folder_of
from boathook.domain.errors import (
    AdminError,
    BoathookError,
    DatabaseUnavailable,
    InvalidTransition,
    NotAllowed,
    NotFound,
    Overloaded,
    SendError,
)
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.log import get_logger
from boathook.service.access.authorization import Permission, requires
from boathook.service.unit_of_work import AppContext
from boathook_pages.security import complete_headers, security_headers, with_headers
from boathook_pages.static_files import KIT_FOLDER, StaticFile, StaticFiles, read_files
from boathook_pages.templates import make_environment

SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 32
_LOG = get_logger("console")


class ConsoleState(msgspec.Struct, frozen=True):
    """The shared state of all pages; one per process."""

    app_context: AppContext
    live_metrics: LiveMetrics


class PageRenderer:
    """Renders pages and serves static files.

    Args:
        state: the shared state of all pages.
        base: the path that all of them are below, such as ``/console``.
        embed_origins: origins that may embed the pages.
        logo: the image that is served as the static file ``logo``.
    """

    def __init__(
        self,
        state: ConsoleState,
        base: str,
        *,
        embed_origins: tuple[str, ...] = (),
        logo: StaticFile | None = None,
    ) -> None:
        self.state = state
        self.base = base
        self.static_path = f"{base}/static"
        self.report_path = f"{base}/csp-reports"
        """Where browsers report violations of the Content-Security-Policy."""
        self.has_logo = logo is not None
        """Whether there is a static file ``logo``."""
        folders = _folders(state.app_context.settings)
        files = {name: file for folder in folders for name, file in read_files(folder / "static").items()}
        self._files = StaticFiles(files if logo is None else {**files, "logo": logo}, self.static_path)
        self._templates = _templates(folders)
        self._headers = security_headers(embed_origins, self.report_path)

    def warm(self) -> None:
        """Compile every template in advance; may run in a thread."""
        for name in self._templates.list_templates():
            try:
                self._templates.get_template(name)
            except TemplateSyntaxError as error:
                _LOG.error("template_unusable", template=name, line=error.lineno, error=error.message)

    def render(self, template: str, **values: Any) -> str:
        """Return the HTML of a page."""
        return self._templates.get_template(template).render(now=datetime.now(UTC), static=self._files.url, **values)

    def show(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page as a response."""
        return self.with_security_headers(HTMLResponse(self.render(template, **values), status))

    def with_security_headers(self, response: Response) -> Response:
        """Return a response with the security headers and without caching."""
        return with_headers(response, self._headers)

    def complete_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return ASGI headers, with missing security headers added."""
        return complete_headers(headers, self._headers)

    def show_error(self, error: Exception, *, back: str = "", template: str = "error.html", **values: Any) -> Response:
        """Return the page for an error, with advice; it links to *back*, or to the first page."""
        status, title, text = _describe_error(error)
        response = self.show(template, status, title=title, text=text, back=back or self.base, **values)
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    @requires(Permission.PUBLIC)
    async def serve_file(self, request: Request) -> Response:
        """Serve a static file."""
        return self.with_security_headers(await self._files.serve(request))


def _folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders with templates and static files: of apps' pages, then of packages in use that have pages."""
    packages = (package for package in settings.packages if package.site is not None or package.pages is not None)
    return (KIT_FOLDER, *(Path(str(folder_of(package))) for package in packages))


@functools.cache
def _templates(folders: tuple[Path, ...]) -> Environment:
    """Return the template environment, shared by the process, because compiling templates is slow."""
    environment = make_environment(
        FileSystemLoader([folder / "templates" for folder in folders]), Path(__file__).parent / "__pycache__"
    )
    environment.install_null_translations(newstyle=True)  # type: ignore[attr-defined]
    environment.filters |= {"timestamp": _format_time, "count": _format_number, "short_id": _shorten_id}
    environment.filters["spark_points"] = spark_points
    environment.globals["spark_box"] = f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}"
    environment.filters |= {"timestamp_ms": _format_exact_time, "duration": _format_duration}
    return environment


def spark_points(values: Sequence[float | None]) -> str:
    """Return the points of a sparkline through *values*; empty if fewer than two are known."""
    points = [(step, value) for step, value in enumerate(values) if value is not None]
    if len(points) < 2:
        return ""
    highest, width = max(value for _, value in points) or 1.0, len(values) - 1
    places = ((SPARK_WIDTH * step / width, 1 + (SPARK_HEIGHT - 2) * (1 - value / highest)) for step, value in points)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _describe_error(error: Exception) -> tuple[int, str, str]:
    """Return status, title and text of the page for an error."""
    match error:
        case HTTPException():
            return error.status_code, _TITLES.get(error.status_code, "Request failed"), str(error.detail)
        case NotFound():
            return 404, "Not found", str(error)
        case NotAllowed():
            return 403, _TITLES[403], str(error)
        case DatabaseUnavailable() | Overloaded():
            text = f"{error}. Gateways with a spool still accept events. This page works again when PostgreSQL is back."
            return 503, "PostgreSQL is unavailable", text
        case InvalidTransition():
            return 409, "Not possible now", str(error)
        case AdminError() | SendError() | BoathookError():
            return 400, "Invalid request", str(error)
        case _:
            _LOG.error("page_failed", exc_info=error)
            return (
                500,
                "Internal error",
                "See boathook's log for details. Nothing was changed.",
            )


_TITLES: Final = {
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    413: "Request too large",
    421: "Unknown host name",
    429: "Too many attempts",
}


def _format_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _format_exact_time(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}"


def _format_duration(seconds: float) -> str:
    """Return a duration to the millisecond."""
    ms = round(seconds * 1000)
    if ms < 1_000:
        return f"{ms} ms"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if number]
    return " ".join([*parts, f"{ms / 1000:.3f} s"])


def _shorten_id(value: str) -> str:
    """Return the prefix and the end of a public id, which differ where the time in its middle does not."""
    prefix, _, rest = value.partition("_")
    return f"{prefix}_…{rest[-6:]}"


def _format_number(value: float) -> str:
    # Narrow no-break space.
    return f"{value:,}".replace(",", "\u202f")
