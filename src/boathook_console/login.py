"""Sign-in and sign-out: passwords, rate limits, and the identity provider."""

import base64
import secrets
from datetime import timedelta
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.domain.errors import BoathookError, FetchFailed, InvalidState, LimitReached
from boathook.observability.log import get_logger
from boathook.service.access import operators
from boathook.service.access.authorization import Permission, requires
from boathook.service.access.identity_provider import AuthorizationRequest, open_identity_provider
from boathook.service.access.login_rate import LoginRateLimiter
from boathook.service.access.operators import ClientInfo, NewSession
from boathook.service.access.sign_in_link import LINK_PATH
from boathook_console.routes import BASE, SIGN_IN, ConsoleContext, Routes, cookie_name
from boathook_console.settings import console_table
from boathook_console.shared.rendering import PageRenderer
from boathook_pages.security import check_origin, read_form

routes = Routes()

PROVIDER_START_PATH: Final = f"{SIGN_IN}/away"
PROVIDER_CALLBACK_PATH: Final = f"{SIGN_IN}/return"
_PROXY_HEADERS: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
ATTEMPT_COOKIE: Final = "boathook_attempt"
_MAX_AGENT_CHARS: Final = 300
_LOG = get_logger("console")


class LoginPages:
    """The pages before sign-in."""

    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self._rate_limiter = LoginRateLimiter()
        self.routes = [
            Route(SIGN_IN, self._show, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(LINK_PATH, self._sign_in_with_link, methods=["GET"]),
            Route(PROVIDER_START_PATH, self._redirect_to_provider, methods=["GET"]),
            Route(PROVIDER_CALLBACK_PATH, self._handle_callback, methods=["GET"]),
        ]
        self._provider = open_identity_provider(renderer.state.app_context.settings)

    @requires(Permission.PUBLIC)
    async def _show(self, request: Request) -> Response:
        return self._page(request.query_params.get("next", ""))

    def _page(self, next_path: str, error: str = "", name: str = "", status: int = 200) -> Response:
        settings = console_table(self._renderer.state.app_context.settings)
        return self._renderer.show(
            "sign_in.html",
            status,
            visit=None,
            wanted=safe_redirect_path(next_path),
            error=error,
            name=name,
            passwords=settings.passwords,
            provider="" if self._provider is None else self._provider.name,
        )

    @requires(Permission.PUBLIC)
    async def _sign_in(self, request: Request) -> Response:
        app_context = self._renderer.state.app_context
        try:
            check_origin(request, app_context.settings.server.public_url)
            form = await read_form(request)
        except HTTPException as error:
            return self._page("", str(error.detail), status=error.status_code)
        name, next_path = str(form.get("name", "")).strip(), str(form.get("next", ""))
        browser = browser_of(request)
        tried = (name, browser.client_address)
        if not console_table(app_context.settings).passwords:
            return self._page(next_path, "Password sign-in is disabled.", name, 403)
        if not self._rate_limiter.take(*tried):
            return self._page(next_path, "Too many attempts; wait a minute and try again.", name, 429)
        try:
            lifetime = timedelta(hours=console_table(app_context.settings).session_hours)
            signed_in = await operators.sign_in(app_context, name, str(form.get("password", "")), lifetime, browser)
        except LimitReached as error:
            return self._page(next_path, f"{error}.", name, 503)
        except Exception as error:  # noqa: BLE001 - the error is logged and shown as a page
            return self._renderer.show_error(error, visit=None)
        if signed_in is None:
            _LOG.warning("sign_in_refused", name=name[:120], client=browser.client_address)
            return self._page(next_path, "Wrong name or password.", name, 401)
        self._rate_limiter.forget(*tried)
        return start_session(self._renderer, request, signed_in, next_path)

    @requires(Permission.PUBLIC)
    async def _sign_in_with_link(self, request: Request) -> Response:
        """Sign in a browser on this machine with the token of `boathook dev`."""
        if not is_local(request):
            _LOG.warning(
                "sign_in_refused", error="a link from another machine", client=browser_of(request).client_address
            )
            return self._page("", "This link works only on the machine that runs boathook dev.", status=403)
        if request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", ""):
            return self._renderer.with_security_headers(Response(status_code=204))  # the token must not be spent
        app_context = self._renderer.state.app_context
        lifetime = timedelta(hours=console_table(app_context.settings).session_hours)
        try:
            signed_in = await operators.sign_in_with_link(
                app_context, request.query_params.get("token", ""), lifetime, browser_of(request)
            )
        except InvalidState as error:
            return self._show_failure(error)
        except Exception as error:  # noqa: BLE001 - the error is logged and shown as a page
            return self._renderer.show_error(error, visit=None)
        if signed_in is None:
            return self._page("", "This link was used or has expired; restart boathook dev for another.", status=403)
        return start_session(self._renderer, request, signed_in, BASE)

    @requires(Permission.PUBLIC)
    async def _redirect_to_provider(self, request: Request) -> Response:
        """Redirect a browser to the identity provider, with the request's parameters in a cookie."""
        if self._provider is None:
            return self._page("", "No identity provider is configured; set console.oidc_issuer.", status=404)
        attempt = AuthorizationRequest(next_path=safe_redirect_path(request.query_params.get("next", "")))
        try:
            url = await self._provider.authorization_url(attempt, self._callback_url(request))
        except (FetchFailed, InvalidState) as error:
            return self._show_failure(error)
        response = RedirectResponse(url, 303)
        value = base64.urlsafe_b64encode(msgspec.json.encode(attempt)).decode()
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            ATTEMPT_COOKIE,
            value,
            max_age=600,
            path=PROVIDER_CALLBACK_PATH,
            secure=is_secure,
            httponly=True,
            samesite="lax",
        )
        return self._renderer.with_security_headers(response)

    @requires(Permission.PUBLIC)
    async def _handle_callback(self, request: Request) -> Response:
        """Complete the sign-in of a user that the identity provider has authenticated."""
        response = await self._complete_sign_in(request)
        response.delete_cookie(ATTEMPT_COOKIE, path=PROVIDER_CALLBACK_PATH)
        return response

    async def _complete_sign_in(self, request: Request) -> Response:
        attempt, query, app_context = _read_attempt(request), request.query_params, self._renderer.state.app_context
        if (
            self._provider is None
            or attempt is None
            or not secrets.compare_digest(query.get("state", "").encode(), attempt.state.encode())
        ):
            return self._page("", "This belongs to another sign-in attempt; sign in again.", status=400)
        if "code" not in query:
            return self._page(
                attempt.next_path,
                f"The identity provider returned {query.get('error', 'nothing')[:100]!r}.",
                status=403,
            )
        lifetime = timedelta(hours=console_table(app_context.settings).session_hours)
        try:
            user = await self._provider.complete_login(attempt, query["code"], self._callback_url(request))
            async with app_context.work(actor="console:sign-in") as work:
                signed_in = await operators.sign_in_with_provider(work, user, lifetime, browser_of(request))
        except (FetchFailed, InvalidState) as error:
            return self._show_failure(error)
        except Exception as error:  # noqa: BLE001 - the error is logged and shown as a page
            return self._renderer.show_error(error, visit=None)
        return start_session(self._renderer, request, signed_in, attempt.next_path)

    def _show_failure(self, error: BoathookError) -> Response:
        _LOG.warning("sign_in_refused", error=str(error))
        return self._page("", f"{error}.", status=503 if isinstance(error, FetchFailed) else 403)

    def _callback_url(self, request: Request) -> str:
        base = self._renderer.state.app_context.settings.server.public_url or str(request.base_url).rstrip("/")
        return f"{base}{PROVIDER_CALLBACK_PATH}"


def is_local(request: Request) -> bool:
    """Return whether the request comes directly from this machine to a loopback address, without a proxy or tunnel."""
    client = request.client.host if request.client else ""
    is_forwarded = any(name in request.headers for name in _PROXY_HEADERS)
    return _is_loopback(client) and _is_loopback(request.url.hostname or "") and not is_forwarded


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read_attempt(request: Request) -> AuthorizationRequest | None:
    try:
        return msgspec.json.decode(
            base64.urlsafe_b64decode(request.cookies.get(ATTEMPT_COOKIE, "")), type=AuthorizationRequest
        )
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def start_session(renderer: PageRenderer, request: Request, signed_in: NewSession, next_path: str) -> Response:
    """Return the response that signs a browser in."""
    response = RedirectResponse(safe_redirect_path(next_path), 303)
    response.set_cookie(
        cookie_name(request),
        signed_in.token,
        max_age=int(console_table(renderer.state.app_context.settings).session_hours * 3600),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return renderer.with_security_headers(response)


def browser_of(request: Request) -> ClientInfo:
    """Return the address and the user agent of a request."""
    address = request.client.host if request.client else ""
    return ClientInfo(address, request.headers.get("user-agent", "")[:_MAX_AGENT_CHARS])


def safe_redirect_path(path: str) -> str:
    """Return *path* if it is a path of the console, else the path of the overview."""
    parts = urlsplit(path)
    is_own = path == BASE or path.startswith((f"{BASE}/", f"{BASE}?"))
    is_plain = not parts.scheme and not parts.netloc and path.isprintable() and "\\" not in path
    has_dots = not {".", ".."}.isdisjoint(unquote(parts.path).split("/"))  # browsers resolve them, also encoded
    return path if is_own and is_plain and not has_dots and not path.startswith(SIGN_IN) else BASE


@routes.post("/sign-out", Permission.ACCOUNT)
async def sign_out(visit: ConsoleContext) -> Response:
    """Sign this browser out."""
    async with visit.work() as work:
        await operators.sign_out(work, visit.operator, visit.session)
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(
        cookie_name(visit.request), path="/", secure=visit.request.url.scheme == "https", httponly=True
    )
    response.headers["clear-site-data"] = '"cache", "storage"'
    return response
