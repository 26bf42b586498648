"""Renders pages: templates, static files, headers, forms and errors."""

import contextlib
import functools
import hashlib
import hmac
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, TemplateSyntaxError
from jinja2.bccache import Bucket
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from boathook.config import Logo
from boathook.domain.errors import (
    AdminError,
    BoathookError,
    DatabaseUnavailable,
    InvalidTransition,
    NotFound,
    Overloaded,
    SendError,
)
from boathook.http.asgi import is_own_origin
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.log import get_logger
from boathook.service.authorization import Permission, requires
from boathook.service.unit_of_work import AppContext

STATIC: Final = "/console/static"
CSP_REPORT_PATH: Final = "/console/csp-reports"
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 32
_FOLDER: Final = Path(__file__).parent
_MAX_FORM_BYTES: Final = 1_048_576
_MAX_FORM_FIELDS: Final = 2_000
_SVG: Final = "image/svg+xml"
# An SVG file is a document: opened by itself, its scripts would run with the rights of a page.
_IMAGE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
_LOG = get_logger("console")
mimetypes.add_type("font/woff2", ".woff2")  # Python's own table has it since 3.13

Headers = Mapping[str, str]


class ConsoleState(msgspec.Struct, frozen=True):
    """The shared state of all pages; one per process."""

    app_context: AppContext
    live_metrics: LiveMetrics


class CsrfError(HTTPException):
    """A form from another site or another session."""

    def __init__(self) -> None:
        super().__init__(403, "this form belongs to another session; go back, reload the page and try again")


class PageRenderer:
    """Renders pages and serves static files.

    Args:
        state: the shared state of all pages.
        embed_origins: origins that may embed the pages.
        static: the base URL of the static files.
        logo: the image that is served as the static file ``logo``.
    """

    def __init__(
        self,
        state: ConsoleState,
        *,
        embed_origins: tuple[str, ...] = (),
        static: str = STATIC,
        logo: Logo | None = None,
    ) -> None:
        self.state = state
        self._static = static
        self._files, self._templates = _read_files(), _templates()
        if logo is not None:
            self._files = {**self._files, "logo": _File.of(logo.content, logo.media_type)}
        self._headers = _security_headers(embed_origins)

    @property
    def has_logo(self) -> bool:
        """Whether there is a static file ``logo``."""
        return "logo" in self._files

    def warm(self) -> None:
        """Compile every template in advance; may run in a thread."""
        for name in self._templates.list_templates():
            try:
                self._templates.get_template(name)
            except TemplateSyntaxError as error:
                _LOG.error("template_unusable", template=name, line=error.lineno, error=error.message)

    def render(self, template: str, **values: Any) -> str:
        """Return the HTML of a page."""
        return self._templates.get_template(template).render(now=datetime.now(UTC), static=self._static_url, **values)

    def show(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page as a response."""
        return self.with_security_headers(HTMLResponse(self.render(template, **values), status))

    def with_security_headers(self, response: Response) -> Response:
        """Return a response with the security headers and without caching."""
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        return response

    def complete_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return ASGI headers, with missing security headers added."""
        given = list(headers)
        if any(name == b"content-security-policy" for name, _ in given):
            return given
        names = {name for name, _ in given}
        missing = ((name.encode(), value.encode()) for name, value in self._headers.items())
        return [*given, *(one for one in missing if one[0] not in names)]

    def show_error(
        self, error: Exception, *, back: str = "/console", template: str = "error.html", **values: Any
    ) -> Response:
        """Return the page for an error, with advice."""
        status, title, text = _describe_error(error)
        response = self.show(template, status, title=title, text=text, back=back, **values)
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    @requires(Permission.PUBLIC)
    async def serve_file(self, request: Request) -> Response:
        """Serve a static file; a URL with its content hash can be cached forever."""
        file = self._files.get(request.path_params["path"])
        if file is None:
            return Response(status_code=404)
        is_named = request.query_params.get("v") == file.version
        kept = "public, max-age=31536000, immutable" if is_named else "no-cache"
        headers = {"cache-control": kept, "etag": f'"{file.version}"', "x-content-type-options": "nosniff"}
        if file.kind == _SVG:
            headers["content-security-policy"] = _IMAGE_POLICY
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return self.with_security_headers(Response(file.content, media_type=file.kind, headers=headers))

    def _static_url(self, name: str) -> str:
        return f"{self._static}/{name}?v={self._files[name].version}"


class _File(msgspec.Struct, frozen=True):
    """A static file."""

    content: bytes
    kind: str
    version: str

    @classmethod
    def read(cls, path: Path) -> "_File":
        return cls.of(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream")

    @classmethod
    def of(cls, content: bytes, kind: str) -> "_File":
        return cls(content, kind, hashlib.sha256(content).hexdigest()[:16])


@functools.cache
def _read_files() -> Mapping[str, _File]:
    folder = _FOLDER / "static"
    return {path.relative_to(folder).as_posix(): _File.read(path) for path in folder.rglob("*") if path.is_file()}


class _BytecodeCache(FileSystemBytecodeCache):
    """Stores compiled templates in ``__pycache__``, as Python does for modules, if the folder is writable."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):
            Path(self.directory).mkdir(exist_ok=True)
            super().dump_bytecode(bucket)


@functools.cache
def _templates() -> Environment:
    """Return the template environment, shared by the process, because compiling templates is slow."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_BytecodeCache(str(_FOLDER / "__pycache__")),
    )
    environment.filters |= {"timestamp": _format_time, "count": _format_number, "short_id": _shorten_id}
    environment.filters["spark_points"] = spark_points
    environment.globals["spark_box"] = f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}"
    environment.filters |= {"timestamp_ms": _format_exact_time, "duration": _format_duration}
    return environment


def spark_points(values: Sequence[float | None]) -> str:
    """Return the points of a sparkline through *values*; empty if fewer than two are known."""
    known = [(step, value) for step, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    highest, width = max(value for _, value in known) or 1.0, len(values) - 1
    places = ((SPARK_WIDTH * step / width, 1 + (SPARK_HEIGHT - 2) * (1 - value / highest)) for step, value in known)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _security_headers(embed_origins: tuple[str, ...]) -> Headers:
    # Pages show untrusted data. If markup in it were not escaped, the policy would still block scripts.
    ancestors = " ".join(embed_origins) or "'none'"
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}; report-uri {CSP_REPORT_PATH}"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "cache-control": "no-store",
    }
    return headers if embed_origins else headers | {"x-frame-options": "DENY"}


async def read_form(request: Request) -> FormData:
    """Return the fields of a form.

    Raises:
        HTTPException: the body is too large, or not a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, f"the form is larger than {_MAX_FORM_BYTES:,} bytes")
    if body and kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "invalid form: the content type must be application/x-www-form-urlencoded")
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
        return FormData([(name, value) for name, value in fields])
    except (UnicodeDecodeError, ValueError):
        raise HTTPException(400, "invalid form: it must be UTF-8 with at most 2,000 fields") from None


def check_origin(request: Request, public_url: str) -> None:
    """Check that a request comes from a page of this server. Raises CsrfError.

    Browsers send `Origin` with each POST, and also `Sec-Fetch-Site`. A browser that sends neither does not support
    SameSite cookies either, so its request is rejected.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site not in {"same-origin", "none"}:
        raise CsrfError
    if origin is None:
        if site is None:
            raise CsrfError
        return
    if not is_own_origin(origin, request.headers.get("host", ""), public_url):
        raise CsrfError


def csrf_token(session: str) -> str:
    """Return the CSRF token of a session, which each of its forms contains."""
    return hmac.digest(session.encode(), b"boathook form", "sha256").hex()


def check_csrf_token(session: str, given: str) -> None:
    """Check the CSRF token of a form. Raises CsrfError."""
    if not hmac.compare_digest(csrf_token(session).encode(), given.encode()):
        raise CsrfError


def _describe_error(error: Exception) -> tuple[int, str, str]:
    """Return status, title and text of the page for an error."""
    match error:
        case HTTPException():
            return error.status_code, _TITLES.get(error.status_code, "Request failed"), str(error.detail)
        case NotFound():
            return 404, "Not found", str(error)
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
