"""The context of a request to the console or the portal, and the registry of the pages that take it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from boathook.service.access.authorization import Permission
from boathook.service.sending import applications
from boathook.service.sending.applications import Application
from boathook.service.unit_of_work import AppContext, UnitOfWork
from boathook_console.shared.rendering import PageRenderer
from boathook_pages.security import check_csrf_token, check_origin, read_form


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

    def field(self, name: str) -> str:
        """Return the value of a form field; empty if it is missing."""
        return str(self.form.get(name, ""))

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


Context = TypeVar("Context")
Handler = Callable[[Context], Awaitable[Response]]
Decorated = TypeVar("Decorated", bound=Callable[..., Awaitable[Response]])


class PageSpec(msgspec.Struct, Generic[Context], frozen=True):
    """A page, or the handler of a form."""

    method: str
    path: str
    permission: Permission
    handler: Handler[Context]


class PageRegistry(Generic[Context]):
    """The pages and forms of one area; the first match counts."""

    def __init__(self) -> None:
        self.entries: list[PageSpec[Context]] = []

    def get(self, path: str, permission: Permission) -> Callable[[Decorated], Decorated]:
        """Register a page."""
        return self._add("GET", path, permission)

    def post(self, path: str, permission: Permission) -> Callable[[Decorated], Decorated]:
        """Register the handler of a form."""
        return self._add("POST", path, permission)

    def _add(self, method: str, path: str, permission: Permission) -> Callable[[Decorated], Decorated]:
        def add(handler: Decorated) -> Decorated:
            self.entries.append(PageSpec(method, path, permission, handler))
            return handler

        return add


class ApplicationScope(msgspec.Struct, frozen=True, kw_only=True):
    """One application, as seen by an operator or a portal visitor; what the pages that both see are functions of.

    The console serves these pages below /console/applications/{application}, the portal below /portal.
    """

    context: RequestContext
    reference: str
    """The application's id or uid."""
    base: str
    """The base path of its pages."""
    layout: str
    """The layout template of its pages."""
    is_portal: bool
    may: Callable[[Permission], bool]
    flags: frozenset[str] | None = None
    """Feature flags that limit the visible event types; None shows all."""

    @asynccontextmanager
    async def work(self) -> AsyncIterator[tuple[UnitOfWork, Application]]:
        """Open a transaction and load the application. Raises NotFound."""
        async with self.context.work() as work:
            yield work, await applications.get(work, self.reference)

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page."""
        common_values = {"side": self, "base": self.base, "layout": self.layout, "may": self._may_word}
        return self.context.page(template, status, **common_values, **values)

    def to(self, path: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to another page of the application."""
        return self.context.to(self.base + path, notice, kind)

    def field(self, name: str) -> str:
        """Return the value of a form field; empty if it is missing."""
        return self.context.field(name)

    def _may_word(self, permission: str) -> bool:
        return self.may(Permission(permission))


Page = PageSpec[ApplicationScope]
"""A page of an application; its path is relative to the application's base path."""
Pages = PageRegistry[ApplicationScope]
