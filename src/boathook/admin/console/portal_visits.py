"""A visit to the customers' portal: somebody whom a link with a token of one application has let in.

The token itself is the session: it is what the cookie holds and what is looked up with each request, so that one that
is revoked, or has ended, lets nobody in any more.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.admin.authorization import Permission, Principal, needs, principal_of
from boathook.admin.console.application_visits import Page, Side
from boathook.admin.console.frame import Frame, token_of
from boathook.admin.console.visits import Call, read_notice, read_proven_form, write_notice
from boathook.admin.desk import Desk, Work
from boathook.admin.keys import hash_token
from boathook.admin.portal import PATH, Look
from boathook.domain import ids
from boathook.journal import api_keys
from boathook.journal.api_keys import Key

LAYOUT: Final = "portal/base.html"
_SESSION: Final = "boathook-portal"
_NOTICE: Final = "boathook-portal-notice"
_LOOK: Final = "boathook-portal-look"
_PICTURES: Final = "img-src 'self'"
_NOT_LET_IN: Final = "This link is not valid any more. Ask for another one where you had it from."
_REFUSED: Final = "your link does not allow this; ask for one that does where you had it from"


class NotLetIn(HTTPException):
    """A visitor without a token that is valid."""

    def __init__(self) -> None:
        super().__init__(401, _NOT_LET_IN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest(Call):
    """One request of a visitor of the portal."""

    principal: Principal
    token: str = field(repr=False)

    @property
    def actor(self) -> str:
        """Who acts, for the audit."""
        return f"portal:{ids.show(ids.API_KEY, self.principal.key_id)}"

    @property
    def side(self) -> Side:
        """The one application they may see."""
        assert self.principal.application_id is not None, "a key of the portal has an application"
        return Side(
            visit=self,
            reference=ids.show(ids.APPLICATION, self.principal.application_id),
            base=PATH,
            layout=LAYOUT,
            is_portal=True,
            may=self.principal.may,
            flags=self.principal.feature_flags,
        )

    @asynccontextmanager
    async def work(self) -> AsyncIterator[Work]:
        """Lend one transaction of the organization; it commits at the end and rolls back on an error."""
        async with self.desk.work(self.principal.organization, self.actor) as work:
            yield work

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page, with what each needs."""
        notice, kind = ("", "") if self.is_fragment else read_notice(self.request, _cookie(self.request, _NOTICE))
        shown = {**self.values, "notice": notice, "notice_kind": kind}
        response = with_icon(self.frame.show(template, status, **shown, **values), self.values["look"])
        if notice:
            set_cookie(response, self.request, self.desk, _NOTICE, "", lifetime_s=0)
        return response

    def to(self, url: str, notice: str = "", kind: str = "good") -> Response:
        """Send the browser to a page of ours, which shows a notice."""
        response = RedirectResponse(url, 303)
        if notice:
            value = write_notice(notice, kind)
            set_cookie(response, self.request, self.desk, _NOTICE, value, lifetime_s=60)
        return self.frame.guarded(response)

    @property
    def values(self) -> dict[str, Any]:
        """What every template may use."""
        return {
            "visit": self,
            "form_token": token_of(self.token),
            "nav": (),
            "can": lambda _role: False,
            "look": read_look(self.request),
            "here": self.request.url.path,
        }


def route_of(frame: Frame, page: Page) -> Route:
    """Return a page as a route of the portal: with who may come in, and a page for each error."""

    @needs(page.permission)
    async def endpoint(request: Request) -> Response:
        guest: Guest | None = None
        try:
            guest = await admit(frame, request)
            check(guest, page.permission)
            return frame.guarded(await page.answer(guest.side))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the browser gets a page and the log the rest
            return show_error(frame, request, error, guest)

    return Route(PATH + page.path, endpoint, methods=[page.method])


def check(guest: Guest, permission: Permission) -> None:
    """Refuse what the token does not allow. Raises HTTPException 403."""
    if not guest.principal.may(permission):
        raise HTTPException(403, _REFUSED)


async def admit(frame: Frame, request: Request) -> Guest:
    """Return the visit of somebody with a valid token. Raises NotLetIn, and Forged for a foreign form."""
    desk = frame.state.desk
    token = request.cookies.get(_cookie(request, _SESSION), "")
    key = await find_key(desk, token)
    form = await read_proven_form(frame, request, token)
    return Guest(frame=frame, request=request, principal=principal_of(key), token=token, form=form)


async def find_key(desk: Desk, token: str) -> Key:
    """Return the key of a portal's token. Raises NotLetIn where it is none, or not valid."""
    if not token:
        raise NotLetIn
    async with desk.work() as work:
        key = await api_keys.find(work.connection, hash_token(token))
    if key is None or not key.is_portal or key.application_id is None:
        raise NotLetIn
    return key


def show_error(frame: Frame, request: Request, error: Exception, guest: Guest | None = None) -> Response:
    """Return the page for an error, which says what to do."""
    values = plain_values(request) if guest is None else {"notice": "", "notice_kind": "", **guest.values}
    response = frame.show_error(error, back=f"{PATH}/endpoints", template="portal/error.html", **values)
    return with_icon(response, values["look"])


def with_icon(response: Response, look: Look) -> Response:
    """Let a page show the icon of its look, which may be elsewhere."""
    if look.icon:
        policy = response.headers["content-security-policy"]
        response.headers["content-security-policy"] = policy.replace(_PICTURES, f"{_PICTURES} {look.icon_origin}")
    return response


def plain_values(request: Request) -> dict[str, Any]:
    """Return what a template needs for somebody who was not let in."""
    return {"visit": None, "nav": (), "look": read_look(request), "notice": "", "notice_kind": "", "here": ""}


def let_in(frame: Frame, request: Request, key: Key, token: str, look: Look) -> Response:
    """Return the answer that lets a browser in, for as long as the key is valid."""
    desk, response = frame.state.desk, Response(status_code=204)
    left_s = 0 if key.expires_at is None else int((key.expires_at - datetime.now(UTC)).total_seconds())
    set_cookie(response, request, desk, _SESSION, token, lifetime_s=left_s)
    set_cookie(response, request, desk, _LOOK, look.query, lifetime_s=left_s)
    return frame.guarded(response)


def let_out(guest: Guest, response: Response) -> Response:
    """Return the answer with which a browser forgets the portal."""
    for name in (_SESSION, _LOOK, _NOTICE):
        set_cookie(response, guest.request, guest.desk, name, "", lifetime_s=0)
    return guest.frame.guarded(response)


def read_look(request: Request) -> Look:
    """Return how the portal shall look: as the link says, or as it said before."""
    kept = request.cookies.get(_cookie(request, _LOOK), "")
    if "=" not in kept:  # as older versions wrote it
        theme, _, colour = kept.partition(".")
        kept = urlencode({"theme": theme, "colour": colour})
    return Look.of(request.query_params) or Look.of(dict(parse_qsl(kept))) or Look()


def set_cookie(response: Response, request: Request, desk: Desk, name: str, value: str, *, lifetime_s: int) -> None:
    """Set a cookie of the portal; where other sites may show it, one that browsers also send from within these.

    There it is partitioned (https://www.ietf.org/archive/id/draft-cutler-httpbis-partitioned-cookies-01.html): each
    site that embeds the portal has cookies of its own, so that none can follow a visitor. Browsers take such cookies
    over https only.
    """
    parts = [f"{_cookie(request, name)}={value}", f"Path={PATH}", f"Max-Age={lifetime_s}", "HttpOnly"]
    is_secure, is_embedded = request.url.scheme == "https", bool(desk.settings.console.embed_origins)
    if is_secure:
        parts.append("Secure")
    parts += ["SameSite=None", "Partitioned"] if is_secure and is_embedded else ["SameSite=Lax"]
    response.headers.append("set-cookie", "; ".join(parts))


def _cookie(request: Request, name: str) -> str:
    """Return a cookie's name; over https it is one that no plain page can set."""
    return f"__Secure-{name}" if request.url.scheme == "https" else name
