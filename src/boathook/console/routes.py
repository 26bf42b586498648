"""The context of a signed-in operator's request, and the routes of an area of the console."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.domain.model import Role
from boathook.pages.context import RequestContext, read_notice, read_verified_form, write_notice
from boathook.pages.registry import PageRegistry, PageSpec
from boathook.pages.rendering import ConsoleState, PageRenderer, csrf_token
from boathook.service import alerts, operators
from boathook.service.alerts import FiringCount
from boathook.service.authorization import ACCESS_RULES, Permission, requires, role_may
from boathook.service.operators import Operator
from boathook.service.unit_of_work import UnitOfWork

BASE: Final = "/console"
SIGN_IN: Final = f"{BASE}/sign-in"
_NOTICE: Final = "boathook_notice"


@dataclass(frozen=True, slots=True)
class NavItem:
    """An entry of the navigation."""

    title: str
    path: str
    """Relative to /console."""
    key: str
    """Keyboard shortcut, pressed after g."""
    permission: Permission
    """The permission that shows the entry."""


NAV: Final = (
    NavItem("Now", "", "n", Permission.DASHBOARD_VIEW),
    NavItem("Events", "/events", "e", Permission.EVENT_VIEW),
    NavItem("Dead letters", "/dead", "d", Permission.DEAD_LETTER_VIEW),
    NavItem("Rejections", "/rejections", "r", Permission.REJECTION_VIEW),
    NavItem("Conflicts", "/conflicts", "c", Permission.CONFLICT_VIEW),
    NavItem("Sources", "/sources", "s", Permission.SOURCE_VIEW),
    NavItem("Applications", "/applications", "a", Permission.APPLICATION_LIST),
    NavItem("Event types", "/event-types", "t", Permission.EVENT_TYPE_VIEW),
    NavItem("Alerts", "/alerts", "l", Permission.ALERT_VIEW),
    NavItem("Verify", "/verify", "v", Permission.VERIFY_VIEW),
    NavItem("Keys", "/keys", "k", Permission.KEY_VIEW),
    NavItem("Operators", "/operators", "o", Permission.OPERATOR_MANAGE),
    NavItem("Audit", "/audit", "u", Permission.AUDIT_VIEW),
    NavItem("Settings", "/settings", "i", Permission.SETTINGS_VIEW),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleContext(RequestContext):
    """One request of a signed-in operator."""

    operator: Operator
    session: str = field(repr=False)
    firing: FiringCount
    """The number of firing alerts for the navigation."""

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

    @asynccontextmanager
    async def work(self) -> AsyncIterator[UnitOfWork]:
        """Open a transaction of the organization; it commits at the end and rolls back on an error."""
        async with self.app_context.work(actor=self.actor) as work:
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
        current = max(
            (one for one in NAV if self.request.scope["path"].startswith(BASE + one.path)),
            key=lambda one: len(one.path),
        )
        return {
            "visit": self,
            "form_token": csrf_token(self.session),
            "nav": [one for one in NAV if self.may(one.permission)],
            "here": current,
            "can": lambda permission: self.may(Permission(permission)),
        }


RouteSpec = PageSpec[ConsoleContext]
"""A page or an action; its path is relative to /console."""
Routes = PageRegistry[ConsoleContext]


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
    async with app_context.work() as work:
        operator = await operators.find_session(work, session, timedelta(hours=app_context.settings.console.idle_hours))
        firing = await alerts.count_firing(work) if operator is not None else FiringCount()
    if operator is None:
        return None
    form = await read_verified_form(renderer, request, session)
    return ConsoleContext(
        renderer=renderer, request=request, operator=operator, session=session, form=form, firing=firing
    )


def _to_sign_in(renderer: PageRenderer, request: Request) -> Response:
    if "hx-request" in request.headers or "text/event-stream" in request.headers.get("accept", ""):
        return renderer.with_security_headers(Response(status_code=401, headers={"hx-redirect": SIGN_IN}))
    wanted = request.scope["path"] if request.method == "GET" else BASE
    query = f"?{request.url.query}" if request.url.query and request.method == "GET" else ""
    return renderer.with_security_headers(RedirectResponse(f"{SIGN_IN}?next={quote(wanted + query, safe='')}", 303))
