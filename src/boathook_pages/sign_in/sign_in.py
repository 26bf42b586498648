"""The pages with which users of an app sign in and out, and change their password."""

import hashlib
from typing import Any, Final

import typer
from starlette.requests import Request
from starlette.responses import Response

from boathook.db.operators import ClientInfo
from boathook.domain.errors import AlreadyExists, InvalidValue, LimitReached
from boathook.service.access.passwords import MAX_PASSWORD_LENGTH, MIN_PASSWORD_LENGTH
from boathook_pages.kit.request import PageRequest
from boathook_pages.kit.site import SIGN_IN, Pages
from boathook_pages.languages import gettext_noop
from boathook_pages.security import read_form
from boathook_pages.sign_in.commands import make_commands
from boathook_pages.sign_in.users import AnyUser, Users

SIGN_OUT: Final = "/sign-out"
ACCOUNT: Final = "/account"
_MAX_AGENT_CHARS: Final = 300
_TOO_MANY: Final = gettext_noop("Too many attempts. Wait a minute, and try again.")


class SignIn(Users[AnyUser]):
    """The users of an app's pages, with the pages ``/sign-in``, ``/sign-out`` and ``/account``.

    The arguments are those of `boathook_pages.sign_in.users.Users`.
    """

    @property
    def cookie(self) -> str:
        """The name of the session's cookie."""
        return f"{self.hook.name}_session"

    def commands(self, group: str = "users") -> typer.Typer:
        """Return a `typer.Typer` with which operators manage the users, for ``add_typer(..., name=group)``."""
        return make_commands(self, group)

    def attach(self, pages: Pages) -> None:
        """Add the pages to those of the app."""

        async def show(request: Request) -> Response:
            return self._page(pages, request, request.query_params.get("next", "/"))

        async def sign_in(request: Request) -> Response:
            return await self._sign_in(pages, request)

        pages.public_endpoint(SIGN_IN, show)
        pages.public_endpoint(SIGN_IN, sign_in, methods=["POST"])
        pages.post(SIGN_OUT)(self._sign_out)
        pages.get(ACCOUNT)(self._show_account)
        pages.post(ACCOUNT)(self._change_password)

    def _page(
        self, pages: Pages, request: Request, target: str, error: str = "", name: str = "", status: int = 200
    ) -> Response:
        values: dict[str, Any] = {"target": pages.safe_path(target), "error": error, "name": name}
        return pages.render(request, "boathook/sign_in.html", status, has_tokens=self.has_tokens, **values)

    async def _sign_in(self, pages: Pages, request: Request) -> Response:
        # There is no session for a CSRF token yet; the Origin check prevents a sign-in by another site.
        pages.check_origin(request)
        form = await read_form(request)
        name, password = str(form.get("name", "")).strip(), str(form.get("password", ""))
        token, target = str(form.get("token", "")).strip(), str(form.get("next", "/"))
        client = _client_of(request)
        # A token cannot be guessed, so that wrong ones are limited by their address only.
        key = f"token {hashlib.sha256(token.encode('utf-8', 'replace')).hexdigest()}" if token else name
        if not self.rate_limiter.take(key, client.client_address):
            return self._page(pages, request, target, pages.languages.gettext(_TOO_MANY), name, 429)
        try:
            session = await self._start(name, password, token, client)
        except LimitReached:
            return self._page(pages, request, target, pages.languages.gettext(_TOO_MANY), name, 503)
        if session is None:
            self.hook.log.warning("sign_in_refused", name=name[:120], client=client.client_address)
            text = gettext_noop("Unknown token.") if token else gettext_noop("Wrong name or password.")
            return self._page(pages, request, target, pages.languages.gettext(text), name, 401)
        self.rate_limiter.forget(key, client.client_address)
        response = pages.redirect(request, pages.safe_path(target))
        pages.set_cookie(response, request, self.cookie, session, self.session_s)
        return response

    async def _start(self, name: str, password: str, token: str, client: ClientInfo) -> str | None:
        if not token:
            return await self.log_in(name, password, client)
        async with self.hook.transaction() as tx:
            return await self.log_in_with_token(tx, token, client) if self.has_tokens else None

    async def _sign_out(self, request: PageRequest) -> Response:
        await self.log_out(request.tx, request.session)
        response = request.redirect(SIGN_IN)
        request.pages.delete_cookie(response, self.cookie)
        response.headers["clear-site-data"] = '"cache", "storage"'
        return response

    async def _show_account(self, request: PageRequest, error: str = "", status: int = 200) -> Response:
        return request.page("boathook/account.html", status, error=error, min_length=MIN_PASSWORD_LENGTH)

    async def _change_password(self, request: PageRequest) -> Response:
        """Change the user's password, and end the sessions of the user's other browsers."""
        gettext = request.pages.languages.gettext
        client = _client_of(request.request)
        key = f"account {request.user.id}"
        try:
            if not self.rate_limiter.take(key, client.client_address):
                return await self._show_account(request, gettext(_TOO_MANY), 429)
            if not await self.is_password_of(request.user, request.field("current")):
                return await self._show_account(request, gettext("The current password is wrong."), 401)
            self.rate_limiter.forget(key, client.client_address)
            await self.set_password(request.tx, request.user, request.field("new"), keep=request.session)
        except LimitReached:
            return await self._show_account(request, gettext(_TOO_MANY), 503)
        except InvalidValue:
            text = gettext(
                "A password has at least %(least)s characters and at most %(most)s.",
                least=MIN_PASSWORD_LENGTH,
                most=MAX_PASSWORD_LENGTH,
            )
            return await self._show_account(request, text, 400)
        except AlreadyExists:
            return await self._show_account(request, gettext("Another user signs in with this name."), 409)
        return request.redirect(ACCOUNT, gettext("The password was changed; other browsers were signed out."))


def _client_of(request: Request) -> ClientInfo:
    address = request.client.host if request.client else ""
    return ClientInfo(address, request.headers.get("user-agent", "")[:_MAX_AGENT_CHARS])
