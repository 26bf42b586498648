"""The context of a signed-in operator's request, and the routes of an area of the console."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.domain.model import Role
from boathook.service.access import operators
from boathook.service.access.authorization import ACCESS_RULES, OperatorCaller, Permission, requires, role_may
from boathook.service.access.operators import Operator
from boathook.service.operating.live_stats import MAX_COUNTED, OpenCounts, count_open
from boathook.service.unit_of_work import UnitOfWork
from boathook_console.settings import PATH, console_table
from boathook_console.shared.context import PageRegistry, PageSpec, RequestContext, read_verified_form
from boathook_console.shared.rendering import ConsoleState, PageRenderer
from boathook_pages.notices import read_notice, write_notice
from boathook_pages.security import csrf_token

BASE: Final = PATH
SIGN_IN: Final = f"{BASE}/sign-in"
_NOTICE: Final = "boathook_notice"


class NavItem(msgspec.Struct, frozen=True):
    """An entry of the navigation."""

    title: str
    path: str
    """Relative to /console."""
    key: str
    """Keyboard shortcut, pressed after g."""
    permission: Permission
    """The permission that shows the entry."""
    icon: str
    group: str = ""


NAV: Final = (
    NavItem("Overview", "", "o", Permission.OVERVIEW_VIEW, "overview"),
    NavItem("Events", "/events", "e", Permission.EVENT_VIEW, "events", "Observe"),
    NavItem("Failed deliveries", "/dead", "d", Permission.DEAD_LETTER_VIEW, "failed", "Observe"),
    NavItem("Rejections", "/rejections", "r", Permission.REJECTION_VIEW, "rejections", "Observe"),
    NavItem("Conflicts", "/conflicts", "c", Permission.CONFLICT_VIEW, "conflicts", "Observe"),
    NavItem("Alerts", "/alerts", "l", Permission.ALERT_VIEW, "alerts", "Observe"),
    NavItem("Sources", "/sources", "s", Permission.SOURCE_VIEW, "sources", "Receive"),
    NavItem("Handlers", "/handlers", "h", Permission.HANDLER_VIEW, "handlers", "Receive"),
    NavItem("Applications", "/applications", "a", Permission.APPLICATION_LIST, "applications", "Send"),
    NavItem("Event types", "/event-types", "t", Permission.EVENT_TYPE_VIEW, "event-types", "Send"),
    NavItem("Consistency check", "/verify", "v", Permission.VERIFY_VIEW, "check", "System"),
    NavItem("Audit", "/audit", "u", Permission.AUDIT_VIEW, "audit", "System"),
    NavItem("Operators", "/operators", "p", Permission.OPERATOR_MANAGE, "operators", "System"),
    NavItem("API keys", "/keys", "k", Permission.KEY_VIEW, "keys", "System"),
    NavItem("Settings", "/settings", "i", Permission.SETTINGS_VIEW, "settings", "System"),
)
"""The navigation; groups are in the order of their names."""


class NavCount(msgspec.Struct, frozen=True):
    """A count beside an entry of the navigation."""

    number: int
    kind: str
    """The class of its badge: ``bad`` if an operator has to act, ``warn`` if one should look."""
    label: str
    """Label of the count for screen readers."""

    @property
    def text(self) -> str:
        """The number as it is shown."""
        return show_capped(self.number)


def nav_counts(open_counts: OpenCounts) -> dict[str, NavCount]:
    """Return the counts that are not 0, by the path of their entry."""
    counts = {
        "/dead": NavCount(open_counts.dead_letters, "bad", "to review"),
        "/rejections": NavCount(open_counts.rejections, "", "in the last day"),
        "/conflicts": NavCount(open_counts.conflicts, "warn", "in the last day"),
        "/alerts": NavCount(open_counts.firing, "bad" if open_counts.critical else "warn", "firing"),
    }
    return {path: count for path, count in counts.items() if count.number}


def show_capped(count: int) -> str:
    """Format a count of `OpenCounts`, which stops at `MAX_COUNTED`."""
    return f"{MAX_COUNTED - 1}+" if count >= MAX_COUNTED else str(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleContext(RequestContext):
    """One request of a signed-in operator."""

    operator: Operator
    session: str = field(repr=False)
    open_counts: OpenCounts
    """The counts in the navigation."""

    @property
    def state(self) -> ConsoleState:
        """The shared state of all pages."""
        return self.renderer.state

    @property
    def role(self) -> Role:
        """The operator's role."""
        return Role(self.operator.role)

    @property
    def actor(self) -> str:
        """The actor for the audit log."""
        return f"console:{self.operator.name}"

    def may(self, permission: Permission) -> bool:
        """Return whether the operator has a permission."""
        return role_may(self.role, permission)

    @property
    def navigation(self) -> list[NavItem]:
        """The entries of the navigation that the operator may open."""
        added = (item for pages in pages_of_packages(self.app_context.settings) for item in pages.navigation)
        return [item for item in (*NAV, *added) if self.may(item.permission)]

    @asynccontextmanager
    async def work(self) -> AsyncIterator[UnitOfWork]:
        """Open a transaction of the organization; it commits at the end and rolls back on an error."""
        async with self.app_context.work(actor=self.actor, caller=OperatorCaller(self.role, self.operator.id)) as work:
            yield work

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page with the values that every page needs."""
        notice, kind = ("", "") if self.is_fragment else read_notice(self.request, _NOTICE)
        response = self.renderer.show(template, status, notice=notice, notice_kind=kind, **self.values, **values)
        if notice:
            response.delete_cookie(_NOTICE, path=BASE)
        return response

    def to(self, url: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to a page that shows a notice."""
        response = RedirectResponse(url, 303)
        if notice:
            value, is_secure = write_notice(notice, kind), self.request.url.scheme == "https"
            response.set_cookie(
                _NOTICE, value, max_age=60, path=BASE, secure=is_secure, httponly=True, samesite="strict"
            )
        return self.renderer.with_security_headers(response)

    @property
    def values(self) -> dict[str, Any]:
        """The values for every template."""
        navigation = self.navigation
        current = max(
            (entry for entry in navigation if self.request.scope["path"].startswith(BASE + entry.path)),
            key=lambda entry: len(entry.path),
        )
        is_here = self.request.scope["path"] == BASE + current.path
        return {
            "visit": self,
            "form_token": csrf_token(self.session),
            "nav": navigation,
            "here": current,
            "is_here": is_here,
            "nav_counts": nav_counts(self.open_counts),
            "can": lambda permission: self.may(Permission(permission)),
        }


RouteSpec = PageSpec[ConsoleContext]
"""A page or an action; its path is relative to /console."""
Routes = PageRegistry[ConsoleContext]


class ConsolePages(msgspec.Struct, frozen=True):
    """The pages that an optional package adds to the console; their templates are in its folder ``templates``."""

    routes: Routes
    navigation: tuple[NavItem, ...] = ()


def pages_of_packages(settings: Settings) -> list[ConsolePages]:
    """Return the pages of the packages in use."""
    opened = (resolve(package.pages)(settings) for package in settings.packages if package.pages is not None)
    return [pages for pages in opened if pages is not None]


def cookie_name(request: Request) -> str:
    """Return the name of the session cookie; over https, with a prefix that blocks other hosts and plain http pages."""
    return "__Host-boathook" if request.url.scheme == "https" else "boathook"


def build_route(renderer: PageRenderer, entry: RouteSpec) -> Route:
    """Return the route of an entry, with authentication, authorization, CSRF checks and error pages."""

    @requires(entry.permission)
    async def endpoint(request: Request) -> Response:
        context: ConsoleContext | None = None
        try:
            context = await _authenticate(renderer, request)
            if context is None:
                return _to_sign_in(renderer, request)
            if not context.may(entry.permission):
                role = ACCESS_RULES[entry.permission].role
                raise HTTPException(403, f"this requires the role {role}; {context.operator.name} is {context.role}")
            return renderer.with_security_headers(await entry.handler(context))
        except Exception as error:  # noqa: BLE001 - the error is logged and shown as a page
            values = {} if context is None else {"notice": "", "notice_kind": "", **context.values}
            return renderer.show_error(error, **{"visit": None, **values})

    return Route(BASE + entry.path, endpoint, methods=[entry.method])


async def _authenticate(renderer: PageRenderer, request: Request) -> ConsoleContext | None:
    """Return the context of a signed-in operator; None if not signed in. Raises CsrfError for a forged form."""
    session = request.cookies.get(cookie_name(request), "")
    if not session:
        return None
    app_context = renderer.state.app_context
    idle = timedelta(hours=console_table(app_context.settings).idle_hours)
    async with app_context.work() as work:
        operator = await operators.find_session(work, session, idle)
        open_counts = await count_open(work.connection) if operator is not None else OpenCounts()
    if operator is None:
        return None
    form = await read_verified_form(renderer, request, session)
    return ConsoleContext(
        renderer=renderer, request=request, operator=operator, session=session, form=form, open_counts=open_counts
    )


def _to_sign_in(renderer: PageRenderer, request: Request) -> Response:
    if "hx-request" in request.headers or "text/event-stream" in request.headers.get("accept", ""):
        return renderer.with_security_headers(Response(status_code=401, headers={"hx-redirect": SIGN_IN}))
    path = request.scope["path"] if request.method == "GET" else BASE
    query = f"?{request.url.query}" if request.url.query and request.method == "GET" else ""
    return renderer.with_security_headers(RedirectResponse(f"{SIGN_IN}?next={quote(path + query, safe='')}", 303))
