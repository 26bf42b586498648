"""The pages of one application, written once for both who see them: operators, and its customer in the portal.

A page is a function of an `ApplicationScope`, which says where the page is and what its reader may do. `Pages` collects
them with the permission that each needs; the console serves them below /console/applications/{application}, the portal
below /portal.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.datastructures import FormData, QueryParams
from starlette.responses import Response

from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.service import applications
from boathook.service.applications import Application
from boathook.service.authorization import Permission
from boathook.service.unit_of_work import AppContext, UnitOfWork

APPLICATIONS_PATH: Final = f"{BASE}/applications"


class PageContext(Protocol):
    """What a page needs of a visit, whoever makes it."""

    @property
    def app_context(self) -> AppContext:
        """The parts actions stand on."""

    @property
    def form(self) -> FormData:
        """The fields of a form."""

    @property
    def query(self) -> QueryParams:
        """The parameters of the address."""

    @property
    def path(self) -> Mapping[str, Any]:
        """The parameters in the path."""

    @property
    def is_fragment(self) -> bool:
        """Whether a page asks for a part of itself."""

    def work(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """Lend one transaction."""

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page."""

    def to(self, url: str, notice: str = "", kind: str = "good") -> Response:
        """Send the browser to a page of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationScope:
    """One application, as somebody sees it."""

    context: PageContext
    reference: str
    """The application's id or uid."""
    base: str
    """Where its pages are."""
    layout: str
    """The template they are set in."""
    is_portal: bool
    may: Callable[[Permission], bool]
    flags: frozenset[str] | None = None
    """Only event types that need none or one of these are shown; None shows all."""

    @asynccontextmanager
    async def work(self) -> AsyncIterator[tuple[UnitOfWork, Application]]:
        """Lend one transaction and the application. Raises NotFound."""
        async with self.context.work() as work:
            yield work, await applications.get(work, self.reference)

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        known = {"side": self, "base": self.base, "layout": self.layout, "may": self._may_word}
        return self.context.page(template, status, **known, **values)

    def to(self, path: str, notice: str = "", kind: str = "good") -> Response:
        """Send the browser to another page of the application."""
        return self.context.to(self.base + path, notice, kind)

    def field(self, name: str) -> str:
        """Return what a form holds under a name; nothing where it does not hold it."""
        return str(self.context.form.get(name, ""))

    def _may_word(self, permission: str) -> bool:
        return self.may(Permission(permission))


PageHandler = Callable[[ApplicationScope], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of an application, or what a form there does."""

    method: str
    path: str
    """Below the application's own."""
    permission: Permission
    handler: PageHandler


class Pages:
    """The pages and forms of one area."""

    def __init__(self) -> None:
        self.entries: list[Page] = []

    def get(self, path: str, permission: Permission) -> Callable[[PageHandler], PageHandler]:
        """Register a page."""
        return self._add("GET", path, permission)

    def post(self, path: str, permission: Permission) -> Callable[[PageHandler], PageHandler]:
        """Register what a form does."""
        return self._add("POST", path, permission)

    def _add(self, method: str, path: str, permission: Permission) -> Callable[[PageHandler], PageHandler]:
        def add(handler: PageHandler) -> PageHandler:
            self.entries.append(Page(method, path, permission, handler))
            return handler

        return add


def console_routes(pages: Pages) -> Routes:
    """Return the routes by which operators see the pages of an application."""
    routes = Routes()
    for page in pages.entries:
        register = routes.get if page.method == "GET" else routes.post
        register(f"/applications/{{application}}{page.path}", page.permission)(_operator_handler(page))
    return routes


def _operator_handler(page: Page) -> Callable[[ConsoleContext], Awaitable[Response]]:
    async def handler(context: ConsoleContext) -> Response:
        return await page.handler(operator_scope(context, context.path["application"]))

    return handler


def operator_scope(context: ConsoleContext, reference: str) -> ApplicationScope:
    """Return an application as an operator sees it."""
    return ApplicationScope(
        context=context,
        reference=reference,
        base=f"{APPLICATIONS_PATH}/{reference}",
        layout="base.html",
        is_portal=False,
        may=context.may,
    )
