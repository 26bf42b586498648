"""The way in and out: passwords, what slows down whoever guesses them, and the identity provider."""

import base64
import secrets
import time
import unicodedata
from collections import OrderedDict
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.admin import operators
from boathook.admin.authorization import Permission, needs
from boathook.admin.console.frame import Frame, check_origin, read_form
from boathook.admin.console.pages import BASE, SIGN_IN, Routes, Visit, cookie_name
from boathook.admin.oidc import Attempt, Provider, Refused
from boathook.admin.operators import SignedIn
from boathook.domain.errors import BoathookError, FetchFailed, LimitReached, NotPossible
from boathook.inbound.limits import client_key
from boathook.journal.operators import Browser
from boathook.telemetry.log import get_logger

routes = Routes()

AWAY: Final = f"{SIGN_IN}/away"
RETURN: Final = f"{SIGN_IN}/return"
_ATTEMPT: Final = "boathook_attempt"
_REFILL_S: Final = 12.0
_TRIES: Final = 10
"""Of one name from one address."""
_TRIES_OF_ADDRESS: Final = 60
"""More, as a whole office may share one."""
_TRIES_OF_NAME: Final = 120
"""More again, and ten times as fast refilled: else a single stranger who keeps guessing would keep its owner out."""
_NAME_REFILL_S: Final = _REFILL_S / 10
_REMEMBERED: Final = 10_000
_LONGEST_AGENT: Final = 300
_LONGEST_NAME: Final = 120
_LOG = get_logger("console")


class _Buckets:
    """Tries left by key, refilled in time; of the keys that were tried last."""

    def __init__(self, most: int, refill_s: float) -> None:
        self._most = float(most)
        self._refill_s = refill_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> bool:
        """Count one try; return whether there was one left."""
        now = time.monotonic()
        left, at = self._left.pop(key, (self._most, now))
        left = min(self._most, left + (now - at) / self._refill_s)
        is_left = left >= 1
        self._left[key] = (left - 1 if is_left else left, now)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        return is_left

    def give_back(self, key: str) -> None:
        """Count one try less."""
        if key in self._left:
            left, at = self._left[key]
            self._left[key] = (left + 1, at)

    def forget(self, key: str) -> None:
        """Let it begin anew."""
        self._left.pop(key, None)


class Tries:
    """How often somebody may still try: a bucket for a name from an address, the address, and the name, in this order.

    Each is asked only where those before it had something left. They are remembered apart, so that whoever makes names
    up makes none of the other counts forgotten. They are those of one process: at two gateways there are twice as many.
    """

    def __init__(self) -> None:
        self._both = _Buckets(_TRIES, _REFILL_S)
        self._addresses = _Buckets(_TRIES_OF_ADDRESS, _REFILL_S)
        self._names = _Buckets(_TRIES_OF_NAME, _NAME_REFILL_S)

    def take(self, name: str, address: str) -> bool:
        """Count one try for a name from an address; return whether there was one left."""
        name, address = _folded(name), client_key(address)
        return self._both.take(f"{address} {name}") and self._addresses.take(address) and self._names.take(name)

    def forget(self, name: str, address: str) -> None:
        """Let this name begin anew, as somebody has proved to be its owner; to the address that says little."""
        name, address = _folded(name), client_key(address)
        self._both.forget(f"{address} {name}")
        self._addresses.give_back(address)
        self._names.forget(name)


def _folded(name: str) -> str:
    """Return a name without what the database may hold for the same: case, accents and compatible forms."""
    plain = unicodedata.normalize("NFKD", name[:_LONGEST_NAME]).casefold()
    return "".join(char for char in plain if not unicodedata.combining(char))


class SigningIn:
    """The pages of those who have not signed in yet."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._tries = Tries()
        self.routes = [
            Route(SIGN_IN, self._show, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(AWAY, self._leave, methods=["GET"]),
            Route(RETURN, self._come_back, methods=["GET"]),
        ]
        settings = frame.state.desk.settings
        self._provider = Provider(settings) if settings.console.oidc_issuer else None

    @needs(Permission.PUBLIC)
    async def _show(self, request: Request) -> Response:
        return self._page(request.query_params.get("next", ""))

    def _page(self, wanted: str, error: str = "", name: str = "", status: int = 200) -> Response:
        settings = self._frame.state.desk.settings.console
        return self._frame.show(
            "sign_in.html",
            status,
            visit=None,
            wanted=own_path(wanted),
            error=error,
            name=name,
            passwords=settings.passwords,
            oidc=settings.oidc_issuer,
        )

    @needs(Permission.PUBLIC)
    async def _sign_in(self, request: Request) -> Response:
        desk = self._frame.state.desk
        try:
            check_origin(request, desk.settings.server.public_url)
            form = await read_form(request)
        except HTTPException as error:
            return self._page("", str(error.detail), status=error.status_code)
        name, wanted = str(form.get("name", "")).strip(), str(form.get("next", ""))
        browser = browser_of(request)
        tried = (name, browser.client_address)
        if not desk.settings.console.passwords:
            return self._page(wanted, "Passwords are switched off here.", name, 403)
        if not self._tries.take(*tried):
            return self._page(wanted, "Too many tries; wait a minute and try again.", name, 429)
        try:
            lifetime = timedelta(hours=desk.settings.console.session_hours)
            signed_in = await operators.sign_in(desk, name, str(form.get("password", "")), lifetime, browser)
        except LimitReached as error:
            return self._page(wanted, f"{error}.", name, 503)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the browser gets a page and the log the rest
            return self._frame.show_error(error, visit=None)
        if signed_in is None:
            _LOG.warning("sign_in_refused", name=name[:120], client=browser.client_address)
            return self._page(wanted, "The name or the password is wrong.", name, 401)
        self._tries.forget(*tried)
        return let_in(self._frame, request, signed_in, wanted)

    @needs(Permission.PUBLIC)
    async def _leave(self, request: Request) -> Response:
        """Send a browser to the identity provider, with a cookie that says what it was sent with."""
        if self._provider is None:
            return self._page("", "There is no identity provider; see console.oidc_issuer.", status=404)
        attempt = Attempt(wanted=own_path(request.query_params.get("next", "")))
        try:
            url = await self._provider.leave(attempt, self._return_to(request))
        except (FetchFailed, Refused) as error:
            return self._refuse(error)
        response = RedirectResponse(url, 303)
        value = base64.urlsafe_b64encode(msgspec.json.encode(attempt)).decode()
        is_secure = request.url.scheme == "https"
        response.set_cookie(_ATTEMPT, value, max_age=600, path=RETURN, secure=is_secure, httponly=True, samesite="lax")
        return self._frame.guarded(response)

    @needs(Permission.PUBLIC)
    async def _come_back(self, request: Request) -> Response:
        """Let in whom the identity provider vouches for."""
        response = await self._return(request)
        response.delete_cookie(_ATTEMPT, path=RETURN)
        return response

    async def _return(self, request: Request) -> Response:
        attempt, query, desk = _read_attempt(request), request.query_params, self._frame.state.desk
        if (
            self._provider is None
            or attempt is None
            or not secrets.compare_digest(query.get("state", "").encode(), attempt.state.encode())
        ):
            return self._page("", "This belongs to another attempt; sign in again.", status=400)
        if "code" not in query:
            return self._page(
                attempt.wanted, f"The identity provider says {query.get('error', 'nothing')[:100]!r}.", status=403
            )
        lifetime = timedelta(hours=desk.settings.console.session_hours)
        try:
            person = await self._provider.come_back(attempt, query["code"], self._return_to(request))
            async with desk.work(actor="console:sign-in") as work:
                signed_in = await operators.sign_in_through(work, person, lifetime, browser_of(request))
        except (FetchFailed, NotPossible) as error:
            return self._refuse(error)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the browser gets a page and the log the rest
            return self._frame.show_error(error, visit=None)
        return let_in(self._frame, request, signed_in, attempt.wanted)

    def _refuse(self, error: BoathookError) -> Response:
        _LOG.warning("sign_in_refused", error=str(error))
        return self._page("", f"{error}.", status=503 if isinstance(error, FetchFailed) else 403)

    def _return_to(self, request: Request) -> str:
        base = self._frame.state.desk.settings.server.public_url or str(request.base_url).rstrip("/")
        return f"{base}{RETURN}"


def _read_attempt(request: Request) -> Attempt | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(request.cookies.get(_ATTEMPT, "")), type=Attempt)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def let_in(frame: Frame, request: Request, signed_in: SignedIn, wanted: str) -> Response:
    """Return the answer that signs a browser in."""
    response = RedirectResponse(own_path(wanted), 303)
    response.set_cookie(
        cookie_name(request),
        signed_in.token,
        max_age=int(frame.state.desk.settings.console.session_hours * 3600),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return frame.guarded(response)


def browser_of(request: Request) -> Browser:
    """Return where a request comes from."""
    address = request.client.host if request.client else ""
    return Browser(address, request.headers.get("user-agent", "")[:_LONGEST_AGENT])


def own_path(wanted: str) -> str:
    """Return a path of the console; whatever else is asked for is its first page."""
    parts = urlsplit(wanted)
    is_own = wanted == BASE or wanted.startswith((f"{BASE}/", f"{BASE}?"))
    is_plain = not parts.scheme and not parts.netloc and wanted.isprintable() and "\\" not in wanted
    return wanted if is_own and is_plain and not wanted.startswith(SIGN_IN) else BASE


@routes.post("/sign-out", Permission.ACCOUNT)
async def sign_out(visit: Visit) -> Response:
    """Sign this browser out."""
    async with visit.work() as work:
        await operators.sign_out(work, visit.operator, visit.session)
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(
        cookie_name(visit.request), path="/", secure=visit.request.url.scheme == "https", httponly=True
    )
    response.headers["clear-site-data"] = '"cache", "storage"'
    return response
