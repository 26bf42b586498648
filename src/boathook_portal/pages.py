"""The customers' portal: sign-in by a link that the owner's app creates, and the pages of one application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.domain import ids
from boathook.service.access import keys
from boathook.service.access.authorization import Permission, Principal, principal_of, requires
from boathook.service.access.keys import ApiKey
from boathook.service.access.portal_sessions import PATH, PortalAppearance, stylesheet_of
from boathook.service.catalogue import event_types as operations
from boathook.service.catalogue.event_types import EventType
from boathook.service.sending import event_types
from boathook.service.unit_of_work import AppContext, UnitOfWork
from boathook_console.settings import console_table
from boathook_console.shared.application_pages import APPLICATION_PAGES
from boathook_console.shared.context import (
    ApplicationScope,
    Page,
    Pages,
    RequestContext,
    read_verified_form,
)
from boathook_console.shared.rendering import PageRenderer
from boathook_pages.notices import read_notice, write_notice
from boathook_pages.security import check_origin, csrf_token, read_form

LAYOUT: Final = "portal/base.html"
_SESSION_COOKIE: Final = "boathook-portal"
_NOTICE_COOKIE: Final = "boathook-portal-notice"
_APPEARANCE_COOKIE: Final = "boathook-portal-look"
_IMG_SRC_DIRECTIVE: Final = "img-src 'self'"
_EXPIRED_LINK_TEXT: Final = "This link is no longer valid. Request a new link where you received this one."
_NOT_ALLOWED_TEXT: Final = "your portal link does not allow this; request a link that does"


class InvalidPortalToken(HTTPException):
    """The visitor has no valid token."""

    def __init__(self) -> None:
        super().__init__(401, _EXPIRED_LINK_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortalContext(RequestContext):
    """One request of a portal visitor."""

    principal: Principal
    token: str = field(repr=False)

    @property
    def actor(self) -> str:
        """The actor for the audit log."""
        return f"portal:{ids.show(ids.API_KEY, self.principal.key_id)}"

    @property
    def side(self) -> ApplicationScope:
        """The scope of the visitor's application."""
        assert self.principal.application_id is not None, "a key of the portal has an application"
        return ApplicationScope(
            context=self,
            reference=ids.show(ids.APPLICATION, self.principal.application_id),
            base=PATH,
            layout=LAYOUT,
            is_portal=True,
            may=self.principal.may,
            flags=self.principal.feature_flags,
        )

    @asynccontextmanager
    async def work(self) -> AsyncIterator[UnitOfWork]:
        """Open a transaction of the organization; it commits at the end and rolls back on an error."""
        async with self.app_context.work(self.principal.organization, self.actor, self.principal) as work:
            yield work

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page with the values that every page needs."""
        notice, kind = (
            ("", "") if self.is_fragment else read_notice(self.request, _cookie_name(self.request, _NOTICE_COOKIE))
        )
        all_values = {**self.values, "notice": notice, "notice_kind": kind}
        response = allow_icon_origin(self.renderer.show(template, status, **all_values, **values), self.values["look"])
        if notice:
            set_cookie(response, self.request, self.app_context, _NOTICE_COOKIE, "", lifetime_s=0)
        return response

    def to(self, url: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to a page that shows a notice."""
        response = RedirectResponse(url, 303)
        if notice:
            value = write_notice(notice, kind)
            set_cookie(response, self.request, self.app_context, _NOTICE_COOKIE, value, lifetime_s=60)
        return self.renderer.with_security_headers(response)

    @property
    def values(self) -> dict[str, Any]:
        """The values for every template."""
        return {
            **_shared_values(self.renderer, self.request),
            "visit": self,
            "form_token": csrf_token(self.token),
            "can": lambda _role: False,
            "here": self.request.url.path,
        }


def build_route(renderer: PageRenderer, page: Page) -> Route:
    """Return the route of a page, with authentication, authorization and error pages."""

    @requires(page.permission)
    async def endpoint(request: Request) -> Response:
        context: PortalContext | None = None
        try:
            context = await authenticate(renderer, request)
            require_permission(context, page.permission)
            return renderer.with_security_headers(await page.handler(context.side))
        except Exception as error:  # noqa: BLE001 - the error is logged and shown as a page
            return show_error(renderer, request, error, context)

    return Route(PATH + page.path, endpoint, methods=[page.method])


def require_permission(context: PortalContext, permission: Permission) -> None:
    """Check that the token has a permission. Raises HTTPException 403."""
    if not context.principal.may(permission):
        raise HTTPException(403, _NOT_ALLOWED_TEXT)


async def authenticate(renderer: PageRenderer, request: Request) -> PortalContext:
    """Return the context of an authenticated visitor. Raises InvalidPortalToken, and CsrfError for a forged form."""
    app_context = renderer.state.app_context
    token = request.cookies.get(_cookie_name(request, _SESSION_COOKIE), "")
    key = await find_key(app_context, token)
    form = await read_verified_form(renderer, request, token)
    return PortalContext(renderer=renderer, request=request, principal=principal_of(key), token=token, form=form)


async def find_key(app_context: AppContext, token: str) -> ApiKey:
    """Return the key of a portal token. Raises InvalidPortalToken if the token is missing or not valid."""
    if not token:
        raise InvalidPortalToken
    async with app_context.work() as work:
        key = await keys.find_portal_key(work, token)
    if key is None:
        raise InvalidPortalToken
    return key


def show_error(
    renderer: PageRenderer, request: Request, error: Exception, context: PortalContext | None = None
) -> Response:
    """Return the page for an error, with advice."""
    values = (
        anonymous_values(renderer, request) if context is None else {"notice": "", "notice_kind": "", **context.values}
    )
    response = renderer.show_error(error, back=f"{PATH}/endpoints", template="portal/error.html", **values)
    return allow_icon_origin(response, values["look"])


def allow_icon_origin(response: Response, look: PortalAppearance) -> Response:
    """Allow a page to load its icon from the configured origin."""
    if look.icon:
        policy = response.headers["content-security-policy"]
        response.headers["content-security-policy"] = policy.replace(
            _IMG_SRC_DIRECTIVE, f"{_IMG_SRC_DIRECTIVE} {look.icon_origin}"
        )
    return response


def anonymous_values(renderer: PageRenderer, request: Request) -> dict[str, Any]:
    """Return the template values for an unauthenticated visitor."""
    return {**_shared_values(renderer, request), "visit": None, "notice": "", "notice_kind": "", "here": ""}


def _shared_values(renderer: PageRenderer, request: Request) -> dict[str, Any]:
    """Return the template values for every visitor."""
    return {
        "nav": (),
        "look": read_appearance(request),
        "portal_name": console_table(renderer.state.app_context.settings).portal_name,
        "has_logo": renderer.has_logo,
    }


def start_session(
    renderer: PageRenderer, request: Request, key: ApiKey, token: str, look: PortalAppearance
) -> Response:
    """Return the response that signs a browser in, until the key expires."""
    app_context, response = renderer.state.app_context, Response(status_code=204)
    left_s = 0 if key.expires_at is None else int((key.expires_at - datetime.now(UTC)).total_seconds())
    set_cookie(response, request, app_context, _SESSION_COOKIE, token, lifetime_s=left_s)
    set_cookie(response, request, app_context, _APPEARANCE_COOKIE, look.query, lifetime_s=left_s)
    return renderer.with_security_headers(response)


def end_session(context: PortalContext, response: Response) -> Response:
    """Delete the portal's cookies in a response."""
    for name in (_SESSION_COOKIE, _APPEARANCE_COOKIE, _NOTICE_COOKIE):
        set_cookie(response, context.request, context.app_context, name, "", lifetime_s=0)
    return context.renderer.with_security_headers(response)


def read_appearance(request: Request) -> PortalAppearance:
    """Return the appearance from the link's parameters, or from the cookie of an earlier visit."""
    cookie = request.cookies.get(_cookie_name(request, _APPEARANCE_COOKIE), "")
    return (
        PortalAppearance.of(request.query_params) or PortalAppearance.of(dict(parse_qsl(cookie))) or PortalAppearance()
    )


def set_cookie(
    response: Response, request: Request, app_context: AppContext, name: str, value: str, *, lifetime_s: int
) -> None:
    """Set a cookie of the portal; if other sites may embed it, a cookie that browsers also send from embedded pages.

    Such a cookie is partitioned (https://www.ietf.org/archive/id/draft-cutler-httpbis-partitioned-cookies-01.html):
    each embedding site has its own cookies, so that none can track a visitor. Browsers accept such cookies only over
    https.
    """
    parts = [f"{_cookie_name(request, name)}={value}", f"Path={PATH}", f"Max-Age={lifetime_s}", "HttpOnly"]
    is_secure, is_embedded = request.url.scheme == "https", bool(console_table(app_context.settings).embed_origins)
    if is_secure:
        parts.append("Secure")
    parts += ["SameSite=None", "Partitioned"] if is_secure and is_embedded else ["SameSite=Lax"]
    response.headers.append("set-cookie", "; ".join(parts))


def _cookie_name(request: Request, name: str) -> str:
    """Return a cookie's name; over https, with a prefix that plain http pages cannot set."""
    return f"__Secure-{name}" if request.url.scheme == "https" else name


_MAX_SHOWN: Final = 200

pages = Pages()


def all_pages() -> list[Page]:
    """Return every application page of the portal."""
    return [page for area in (*APPLICATION_PAGES, pages) for page in area.entries]


def portal_routes(renderer: PageRenderer) -> list[Route]:
    """Return the routes of the portal."""
    return [*_SignInPages(renderer).routes, *(build_route(renderer, page) for page in all_pages())]


class _SignInPages:
    """The sign-in page of a portal link; its script submits the token from the URL fragment."""

    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self.routes = [
            Route(PATH, self._show, methods=["GET"]),
            Route(f"{PATH}/enter", self._sign_in, methods=["POST"]),
            Route(f"{PATH}/here", self._check_session, methods=["GET"]),
            Route(f"{PATH}/leave", self._sign_out, methods=["POST"]),
            Route(f"{PATH}/look.css", self._serve_stylesheet, methods=["GET"]),
        ]

    @requires(Permission.PUBLIC)
    async def _show(self, request: Request) -> Response:
        values = anonymous_values(self._renderer, request)
        return allow_icon_origin(self._renderer.show("portal/enter.html", **values), values["look"])

    @requires(Permission.PUBLIC)
    async def _sign_in(self, request: Request) -> Response:
        app_context = self._renderer.state.app_context
        try:
            check_origin(request, app_context.settings.server.public_url)
            form = await read_form(request)
            token = str(form.get("key", ""))
            look = PortalAppearance.of({name: str(value) for name, value in form.items()}) or PortalAppearance()
            return start_session(self._renderer, request, await find_key(app_context, token), token, look)
        except Exception as error:  # noqa: BLE001 - the error is logged and shown as a page
            return show_error(self._renderer, request, error)

    @requires(Permission.ENDPOINT_VIEW)
    async def _check_session(self, request: Request) -> Response:
        """Respond with 204 if the browser has kept the session cookie; used by the script."""
        try:
            require_permission(await authenticate(self._renderer, request), Permission.ENDPOINT_VIEW)
        except Exception as error:  # noqa: BLE001 - the same
            return show_error(self._renderer, request, error)
        return self._renderer.with_security_headers(Response(status_code=204))

    @requires(Permission.TOKEN_END)
    async def _sign_out(self, request: Request) -> Response:
        """Revoke the token, as the API's logout does, so that a leaked link becomes useless."""
        try:
            context = await authenticate(self._renderer, request)
            require_permission(context, Permission.TOKEN_END)
            async with context.work() as work:
                await keys.revoke(work, context.principal.key_id, work.organization)
        except Exception as error:  # noqa: BLE001 - the same
            return show_error(self._renderer, request, error)
        return end_session(context, RedirectResponse(PATH, 303))

    @requires(Permission.PUBLIC)
    async def _serve_stylesheet(self, request: Request) -> Response:
        headers = {"cache-control": "public, max-age=3600", "x-content-type-options": "nosniff"}
        return Response(stylesheet_of(read_appearance(request)), media_type="text/css", headers=headers)


@pages.get("/event-types", Permission.EVENT_TYPE_VIEW)
async def list_types(scope: ApplicationScope) -> Response:
    """Show the event types that the visitor may subscribe to."""
    async with scope.work() as (work, application):
        rows = await event_types.list_page(
            work, limit=_MAX_SHOWN, place=scope.context.query.get("after") or None, flags=scope.flags
        )
    more = rows[-1].name if len(rows) == _MAX_SHOWN else ""
    return scope.page("portal/event_types.html", application=application, rows=rows, more=more)


@pages.get("/event-types/{name}", Permission.EVENT_TYPE_VIEW)
async def show_type(scope: ApplicationScope) -> Response:
    """Show an event type with its schema and its example."""
    async with scope.work() as (work, application):
        event_type = await operations.get(work, operations.EventTypeNamed(name=scope.context.path["name"]))
    version, schema = _latest_schema(event_type)
    examples = schema.get("examples") if isinstance(schema, dict) else None
    return scope.page(
        "portal/event_type.html",
        application=application,
        type=event_type,
        version=version,
        schema=schema,
        example=examples[0] if isinstance(examples, list) and examples else None,
    )


def _latest_schema(type: EventType) -> tuple[str, Any]:
    schemas = type.schemas or {}
    if not schemas:
        return "", None
    version = max(schemas, key=lambda name: (int(name) if name.isdecimal() else -1, name))
    return version, schemas[version]
