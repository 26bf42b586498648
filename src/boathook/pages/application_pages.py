"""The pages of one application, shared by the console for operators and the portal for its customer.

A page is a function of an `ApplicationScope`, which contains the base path of the pages and the permissions of the
user. `Pages` collects them with the permission that each requires. The console serves them below
/console/applications/{application}, the portal below /portal.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.responses import Response

from boathook.pages.context import RequestContext
from boathook.pages.registry import PageRegistry, PageSpec
from boathook.service import applications
from boathook.service.applications import Application
from boathook.service.authorization import Permission
from boathook.service.unit_of_work import UnitOfWork


class ApplicationScope(msgspec.Struct, frozen=True, kw_only=True):
    """One application, as seen by an operator or a portal visitor."""

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
        known = {"side": self, "base": self.base, "layout": self.layout, "may": self._may_word}
        return self.context.page(template, status, **known, **values)

    def to(self, path: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to another page of the application."""
        return self.context.to(self.base + path, notice, kind)

    def field(self, name: str) -> str:
        """Return the value of a form field; empty if it is missing."""
        return str(self.context.form.get(name, ""))

    def _may_word(self, permission: str) -> bool:
        return self.may(Permission(permission))


Page = PageSpec[ApplicationScope]
"""A page of an application; its path is relative to the application's base path."""
Pages = PageRegistry[ApplicationScope]
