"""The context of a request to the console or the portal."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from boathook.pages.rendering import PageRenderer, check_csrf_token, check_origin, read_form
from boathook.service.unit_of_work import AppContext, UnitOfWork

_MAX_NOTICE_CHARS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext(ABC):
    """One authenticated request."""

    renderer: PageRenderer
    request: Request
    form: FormData

    @property
    def app_context(self) -> AppContext:
        """The application context of the process."""
        return self.renderer.state.app_context

    @property
    def query(self) -> QueryParams:
        """The query parameters."""
        return self.request.query_params

    @property
    def path(self) -> Mapping[str, Any]:
        """The path parameters."""
        return self.request.path_params

    @property
    def is_fragment(self) -> bool:
        """Whether the request is for a part of a page."""
        return "hx-request" in self.request.headers

    @abstractmethod
    def work(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """Open a transaction of the organization; it commits at the end and rolls back on an error."""

    @abstractmethod
    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page with the values that every page needs."""

    @abstractmethod
    def to(self, url: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to a page that shows a notice."""


async def read_verified_form(renderer: PageRenderer, request: Request, session: str) -> FormData:
    """Return the form fields of a POST request after the origin and CSRF checks; empty for other methods.

    Raises:
        CsrfError: the request comes from another site or session.
    """
    if request.method != "POST":
        return FormData()
    check_origin(request, renderer.state.app_context.settings.server.public_url)
    form = await read_form(request)
    check_csrf_token(session, str(form.get("csrf", request.headers.get("x-csrf-token", ""))))
    return form


def write_notice(text: str, kind: str) -> str:
    """Return the value of a cookie that carries a notice to the next page."""
    return quote(f"{kind}:{text[:_MAX_NOTICE_CHARS]}", safe="")


def read_notice(request: Request, cookie: str) -> tuple[str, str]:
    """Return the text and kind of the notice in this cookie; both are empty if there is none."""
    kind, _, text = unquote(request.cookies.get(cookie, "")).partition(":")
    return (text, kind) if kind in {"good", "bad"} else ("", "")
