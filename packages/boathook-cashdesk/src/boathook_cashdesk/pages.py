"""The cabinet's pages: server-rendered, usable without scripts, for a browser that has logged in with a token.

A form is accepted only from the cabinet's own pages: the browser's Origin must be the cabinet's, and the form must
contain the session's CSRF token. Text from users or receivers is always escaped.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from boathook import BoathookError, Transaction
from boathook_cashdesk import records, users, webhooks
from boathook_cashdesk.app import hook
from boathook_cashdesk.cabinet_errors import BadField, CabinetError, Forged, Unauthenticated
from boathook_cashdesk.entities import Entity, types_of
from boathook_cashdesk.forms import WebhookForm, read
from boathook_cashdesk.users import User
from boathook_cashdesk.web import MOUNT, guarded, path_id, read_form, read_origin

COOKIE: Final = "cabinet_session"
_HOME: Final = f"{MOUNT}/"
_SHOWN: Final = 25
"""Attempts and dropped deliveries on a page."""
_DONE: Final = {
    "created": "The webhook was created.",
    "saved": "The changes were saved.",
    "deleted": "The webhook was deleted.",
    "tested": "A test event is on its way; look at the record below.",
    "replayed": "It is being sent again.",
    "settled": "That was not dropped, so it is not sent again.",
}
"""The message shown after a form, by the word in the URL; nothing else of a URL is shown."""
_FOLDER: Final = Path(__file__).parent
_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request of a logged-in user, in its transaction."""

    tx: Transaction
    user: User
    request: Request
    session: str = field(repr=False)
    form: dict[str, str]

    @property
    def id(self) -> int:
        """The id in the path."""
        return path_id(self.request)

    def show(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page, with the CSRF token for its forms."""
        done = _DONE.get(self.request.query_params.get("done", ""))
        return _page(template, status, user=self.user, csrf=_csrf(self.session), done=done, **values)


Answer = Callable[[PageRequest], Awaitable[Response]]


def safely(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return *answer* as an endpoint that shows an error page for every failure."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await answer(request)
        except Unauthenticated:
            response = _go(_HOME)
        except CabinetError as refusal:
            response = _page("refused.html", refusal.status, user=None, message=str(refusal))
        except BoathookError as error:
            hook.log.warning("request_failed", path=request.url.path, exc_info=error)
            response = _page("refused.html", 503, user=None, message="The cabinet cannot do this now. Try again.")
        return guarded(response)

    return endpoint


def authenticated_endpoint(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return *answer* as an endpoint for logged-in users that accepts only forms of the cabinet's own pages."""

    async def enter(request: Request) -> Response:
        session = request.cookies.get(COOKIE, "")
        form = await read_form(request) if request.method == "POST" else {}
        if request.method == "POST":
            _check_form(request, session, form)
        async with hook.transaction() as tx:
            user = await users.find_by_session(tx, session)
            if user is None:
                raise Unauthenticated("log in first")
            return await answer(PageRequest(tx, user, request, session, form))

    return safely(enter)


def _page(template: str, status: int = 200, **values: Any) -> Response:
    defaults: dict[str, Any] = {
        "home": _HOME, "done": None, "message": None, "is_simulated": hook.settings.drive.is_simulated,
    }  # fmt: skip
    return HTMLResponse(_TEMPLATES.get_template(template).render(defaults | values), status)


def _go(path: str) -> Response:
    return RedirectResponse(path, 303)


def _csrf(session: str) -> str:
    return hmac.digest(session.encode("utf-8", "surrogatepass"), b"csrf", hashlib.sha256).hex()


def _check_form(request: Request, session: str, form: dict[str, str]) -> None:
    """Reject a form that does not come from the cabinet's own pages. Raises Forged."""
    _check_origin(request)
    if not hmac.compare_digest(_csrf(session).encode(), form.get("csrf", "").encode("utf-8", "surrogatepass")):
        raise Forged("This form is out of date, or not of this cabinet. Go back, load the page anew, and try again.")


def _check_origin(request: Request) -> None:
    # A proxy may use another scheme than the browser, so without a public URL only the host is compared.
    host, public = request.headers.get("host", ""), hook.settings.public_url
    own = {read_origin(url) for url in ([public] if public else [f"http://{host}", f"https://{host}"])}
    origin = read_origin(request.headers.get("origin", ""))
    if origin is None or origin not in own:
        raise Forged("This form does not come from the cabinet's own pages.")


async def show_unknown(_request: Request, error: HTTPException) -> Response:
    """Show a page for a request without a route."""
    message = "There is no such page." if error.status_code == 404 else error.detail
    response = _page("refused.html", error.status_code, user=None, message=message)
    response.headers.update(error.headers or {})
    return guarded(response)


async def _home(request: Request) -> Response:
    """Show the webhooks, or the login form."""
    if request.method == "POST":
        return await _log_in(request)
    session = request.cookies.get(COOKIE, "")
    async with hook.transaction() as tx:
        user = await users.find_by_session(tx, session)
        if user is None:
            return _page("login.html", user=None)
        found = await webhooks.list_all(tx, user)
        return PageRequest(tx, user, request, session, {}).show("list.html", webhooks=found)


async def _log_in(request: Request) -> Response:
    # There is no session for a CSRF token yet; the Origin check prevents a login by another site.
    _check_origin(request)
    form = await read_form(request)
    async with hook.transaction() as tx:
        session = await users.log_in(tx, form.get("token", "").strip())
    if session is None:
        return _page("login.html", 401, user=None, message="Unknown token.")
    response = _go(_HOME)
    is_secure = request.url.scheme == "https" or hook.settings.public_url.startswith("https:")
    response.set_cookie(COOKIE, session, path=MOUNT, httponly=True, samesite="strict", secure=is_secure)
    return response


async def _log_out(visit: PageRequest) -> Response:
    await users.log_out(visit.tx, visit.session)
    response = _go(_HOME)
    response.delete_cookie(COOKIE, path=MOUNT)
    return response


async def _new(visit: PageRequest) -> Response:
    if visit.request.method == "GET":
        return visit.show("edit.html", webhook=None, url="", types=types_of(0), active=True)
    try:
        async with visit.tx.savepoint():
            made = await webhooks.create(visit.tx, visit.user, _read(visit.form))
    except CabinetError as refusal:
        return _again(visit, refusal, None)
    return _go(f"{MOUNT}/webhooks/{made.id}?done=created")


async def _edit(visit: PageRequest) -> Response:
    webhook = await webhooks.get(visit.tx, visit.user, visit.id)
    if visit.request.method == "GET":
        return await _show(visit)
    try:
        async with visit.tx.savepoint():
            await webhooks.change(visit.tx, visit.user, webhook.id, _read(visit.form))
    except CabinetError as refusal:
        return _again(visit, refusal, webhook)
    return _go(f"{MOUNT}/webhooks/{webhook.id}?done=saved")


async def _show(visit: PageRequest, *, secret: str | None = None) -> Response:
    webhook = await webhooks.get(visit.tx, visit.user, visit.id)
    attempts = await records.attempts(visit.tx, visit.user, webhook.id, _SHOWN)
    dropped = await records.deliveries(visit.tx, visit.user, webhook.id, "dead", _SHOWN)
    form: dict[str, Any] = {"url": webhook.url, "types": webhook.wanted, "active": webhook.is_active}
    return visit.show("webhook.html", webhook=webhook, attempts=attempts, dropped=dropped, secret=secret, **form)


def _again(visit: PageRequest, refusal: CabinetError, webhook: webhooks.Webhook | None) -> Response:
    """Show the form again with its values and the error."""
    values: dict[str, Any] = {
        "url": visit.form.get("url", ""),
        "types": {entity: entity in visit.form for entity in Entity},
        "active": "active" in visit.form,
    }
    return visit.show("edit.html", refusal.status, webhook=webhook, message=str(refusal), **values)


def _read(form: dict[str, str]) -> WebhookForm:
    types = {entity.value: entity in form for entity in Entity}
    return read(WebhookForm, {"url": form.get("url", ""), "types": types, "isActive": "active" in form})


async def _activate(visit: PageRequest) -> Response:
    await users.lock(visit.tx, visit.user)
    webhook = await webhooks.get(visit.tx, visit.user, visit.id)
    types = {entity.value: is_wanted for entity, is_wanted in webhook.wanted.items()}
    form = read(WebhookForm, {"url": webhook.url, "types": types, "isActive": visit.form.get("active") == "yes"})
    await webhooks.change(visit.tx, visit.user, webhook.id, form)
    return _go(f"{_HOME}?done=saved")


async def _delete(visit: PageRequest) -> Response:
    webhook = await webhooks.get(visit.tx, visit.user, visit.id)
    if visit.request.method == "GET":
        return visit.show("delete.html", webhook=webhook)
    await webhooks.remove(visit.tx, visit.user, webhook.id)
    return _go(f"{_HOME}?done=deleted")


async def _test(visit: PageRequest) -> Response:
    await webhooks.test(visit.tx, visit.user, visit.id)
    return _go(f"{MOUNT}/webhooks/{visit.id}?done=tested")


async def _show_secret(visit: PageRequest) -> Response:
    return await _show(visit, secret=await webhooks.secret(visit.tx, visit.user, visit.id))


async def _replay(visit: PageRequest) -> Response:
    name = visit.form.get("delivery")
    if not name:
        raise BadField("delivery", "this field is required")
    is_replayed = await records.replay(visit.tx, visit.user, visit.id, name)
    return _go(f"{MOUNT}/webhooks/{visit.id}?done={'replayed' if is_replayed else 'settled'}")


def routes() -> list[Route | Mount]:
    """Return all routes of the pages."""
    webhook = "/webhooks/{id:cashdesk_id}"
    return [
        Route("/", safely(_home), methods=["GET", "POST"]),
        Mount("/static", StaticFiles(directory=_FOLDER / "static")),
        Route("/logout", authenticated_endpoint(_log_out), methods=["POST"]),
        Route("/webhooks/new", authenticated_endpoint(_new), methods=["GET", "POST"]),
        Route(webhook, authenticated_endpoint(_edit), methods=["GET", "POST"]),
        Route(webhook + "/active", authenticated_endpoint(_activate), methods=["POST"]),
        Route(webhook + "/delete", authenticated_endpoint(_delete), methods=["GET", "POST"]),
        Route(webhook + "/test", authenticated_endpoint(_test), methods=["POST"]),
        Route(webhook + "/secret", authenticated_endpoint(_show_secret), methods=["POST"]),
        Route(webhook + "/replay", authenticated_endpoint(_replay), methods=["POST"]),
    ]
