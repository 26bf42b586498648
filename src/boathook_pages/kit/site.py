"""The pages of one app: their routes, navigation, templates, static files and error pages."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

import msgspec
from jinja2 import ChoiceLoader, FileSystemLoader, PrefixLoader
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from boathook.domain.errors import BoathookError, ConfigError
from boathook.handlers.api import Boathook
from boathook.handlers.transaction import Transaction
from boathook_pages.kit.api import refuse_unknown
from boathook_pages.kit.errors import Refusal, SignInRequired
from boathook_pages.kit.request import PageRequest, SignedInUser
from boathook_pages.languages import Languages, gettext_noop
from boathook_pages.languages.catalogues import LANGUAGE_NAMES
from boathook_pages.notices import read_notice, write_notice
from boathook_pages.security import (
    CsrfError,
    check_csrf_token,
    check_origin,
    csrf_token,
    read_form,
    security_headers,
    with_headers,
)
from boathook_pages.static_files import KIT_FOLDER, StaticFiles, read_files
from boathook_pages.templates import make_environment

SIGN_IN: Final = "/sign-in"
"""The path of the page for users without a session."""
_KIT_TEMPLATES: Final = Path(__file__).parents[1] / "templates/kit"
_KIT_FILES: Final = {
    name: file
    for name, file in read_files(KIT_FOLDER / "static").items()
    if name.endswith((".css", ".woff2", "icon.svg"))
}
_LANGUAGE_COOKIE_S: Final = 365 * 86_400
_HEADERS: Final = security_headers()

Page = Callable[[PageRequest], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]
AnyPage = TypeVar("AnyPage", bound=Page)
Values = Callable[[], Mapping[str, Any]]
AnyValues = TypeVar("AnyValues", bound=Values)


class _IdConvertor(IntegerConvertor):
    """An id in a path, ``{id:id}``: at most as many digits as a bigint always has room for."""

    regex = "[0-9]{1,18}"


register_url_convertor("id", _IdConvertor())


class NavItem(msgspec.Struct, frozen=True):
    """An entry of the navigation."""

    path: str
    title: str
    role: str | None


class Accounts(Protocol):
    """The users of an app's pages; `boathook_pages.sign_in.SignIn` is one."""

    @property
    def cookie(self) -> str:
        """The name of the session's cookie."""
        ...

    def attach(self, pages: "Pages") -> None:
        """Add the pages for signing in and out."""
        ...

    async def find_by_session(self, tx: Transaction, session: str) -> SignedInUser | None:
        """Return the user of a session."""
        ...

    async def set_language(self, tx: Transaction, user: Any, language: str | None) -> None:
        """Store a user's choice of a language."""
        ...


class Pages:
    """Declares the pages of an app below one path.

    Every page needs a signed-in user, unless it is declared with ``is_public=True``. A POST request reaches its
    function only if the browser's Origin is this server's and the form has the session's CSRF token.

    Args:
        hook: The app.
        path: The path of the mount, such as ``/cabinet``.
        title: The name of the pages, marked by `gettext_noop`.
        folder: The folder with ``templates`` and, optionally, ``static``.
        languages: The languages of the app.
        sign_in: The users; None if all pages are public.
        public_url: Returns the app's own public URL, such as ``https://cabinet.example``; empty for the host that the
            request names.
    """

    def __init__(
        self,
        hook: Boathook,
        path: str,
        *,
        title: str,
        folder: Path,
        languages: Languages,
        sign_in: Accounts | None = None,
        public_url: Callable[[], str] = lambda: "",
    ) -> None:
        self.hook = hook
        self.mount_path = path.rstrip("/")
        self.languages = languages
        self.navigation: list[NavItem] = []
        self._title = title
        self._sign_in = sign_in
        self._public_url = public_url
        self._values: list[Values] = []
        self._routes: list[BaseRoute] = []
        self._notice_cookie = f"{hook.name}_notice"
        self._language_cookie = f"{hook.name}_language"
        own = {f"own/{name}": file for name, file in read_files(folder / "static").items()}
        self._files = StaticFiles({**_KIT_FILES, **own}, f"{self.mount_path}/static")
        self._templates = make_environment(
            ChoiceLoader(
                [FileSystemLoader(folder / "templates"), PrefixLoader({"boathook": FileSystemLoader(_KIT_TEMPLATES)})]
            ),
            folder / "__pycache__",
        )
        self._templates.install_gettext_callables(  # type: ignore[attr-defined]
            languages.translate, languages.translate_plural, newstyle=True
        )
        self._templates.filters |= {"time": languages.format_time, "date": languages.format_date}
        self._templates.globals |= {
            "amount": languages.format_amount,
            "number": languages.format_number,
            "url": self.url,
            "kit_file": self._files.url,
            "static": lambda name: self._files.url(f"own/{name}"),
        }
        self.public_endpoint("/static/{path:path}", self._serve_file)
        self.public_endpoint("/language", self._set_language, methods=["POST"])
        if sign_in is not None:
            sign_in.attach(self)

    def url(self, path: str) -> str:
        """Return the URL of a path in the mount, such as ``/bookings/5``."""
        return f"{self.mount_path}{path}"

    def nav(self, path: str, title: str, *, role: str | None = None) -> None:
        """Add an entry to the navigation, for users with *role*; mark the title by `gettext_noop`."""
        self.navigation.append(NavItem(path, title, role))

    def values(self, function: AnyValues) -> AnyValues:
        """Make the decorated function return values for every template."""
        self._values.append(function)
        return function

    def get(self, path: str, *, role: str | None = None, is_public: bool = False) -> Callable[[AnyPage], AnyPage]:
        """Declare a page; parameters are written ``{name}``, ids ``{id:id}``. Only users with *role* may open it."""
        return self._declare(path, ["GET"], role, is_public=is_public)

    def post(self, path: str, *, role: str | None = None, is_public: bool = False) -> Callable[[AnyPage], AnyPage]:
        """Declare the function for a form, as `get` declares a page."""
        return self._declare(path, ["POST"], role, is_public=is_public)

    def _declare(
        self, path: str, methods: list[str], role: str | None, *, is_public: bool
    ) -> Callable[[AnyPage], AnyPage]:
        if self._sign_in is None and not is_public:
            raise ConfigError(f"Pages: {path} needs users: pass sign_in=SignIn(...), or declare it is_public=True")

        def decorate(page: AnyPage) -> AnyPage:
            async def endpoint(request: Request) -> Response:
                return await self._answer(page, request, role, is_public=is_public)

            self.public_endpoint(path, endpoint, methods=methods)
            return page

        return decorate

    async def _answer(self, page: Page, request: Request, role: str | None, *, is_public: bool) -> Response:
        session = self.session_of(request)
        form = FormData()
        if request.method == "POST":
            self.check_origin(request)
            form = await read_form(request)
        async with self.hook.transaction() as tx:
            user = await self._find_user(tx, session)
            if request.method == "POST" and not (is_public and user is None):
                check_csrf_token(session, str(form.get("csrf", "")))
            if user is None and not is_public:
                raise SignInRequired
            with self._language_for(request, user):
                if user is not None and not user.has_role(role):
                    raise Refusal(self.languages.gettext("Your account may not open this page."), status=403)
                return await page(
                    PageRequest(pages=self, request=request, tx=tx, user=user, form=form, session=session)
                )

    def public_endpoint(self, path: str, endpoint: Endpoint, *, methods: Sequence[str] = ("GET",)) -> None:
        """Add an endpoint that gets the plain request and checks access itself; its errors are shown as pages."""

        async def shown(request: Request) -> Response:
            with self._language_for(request, None):
                try:
                    response = await endpoint(request)
                except SignInRequired:
                    response = self._ask_to_sign_in(request)
                except (BoathookError, HTTPException) as error:
                    response = await self._show_error(request, error)
            return with_headers(response, _HEADERS)

        self._routes.append(Route(path, shown, methods=list(methods)))

    def mount(self, routes: Sequence[BaseRoute] = ()) -> None:
        """Serve the pages, after all of them are declared; *routes* are served beside them, such as an API."""
        app = Starlette(routes=[*routes, *self._routes], exception_handlers={HTTPException: self._refuse_unknown})
        self.hook.mount(self.mount_path or "/", app, is_open=True)

    def render(
        self, request: Request, template: str, status: int = 200, *, user: Any = None, session: str = "", **values: Any
    ) -> Response:
        """Return a page as a response; `PageRequest.page` is the usual way."""
        notice, kind = read_notice(request, self._notice_cookie)
        path = request.scope["path"].removeprefix(self.mount_path)
        navigation = [item for item in self.navigation if user is not None and user.has_role(item.role)]
        here = max((item.path for item in navigation if _is_below(path, item.path)), key=len, default=None)
        common_values: dict[str, Any] = {
            "site_title": self._title,
            "user": user,
            "form_token": csrf_token(session),
            "navigation": navigation,
            "here": here,
            "path": path,
            "language": self.languages.current,
            "language_names": {} if self.languages.is_fixed else self._language_names(),
            "notice": notice,
            "notice_kind": kind,
        }
        for function in self._values:
            common_values |= function()
        response = HTMLResponse(self._templates.get_template(template).render({**common_values, **values}), status)
        if notice:
            response.delete_cookie(self._notice_cookie, path=self.mount_path or "/")
        return with_headers(response, _HEADERS)

    def redirect(self, request: Request, path: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to a path in the mount, which shows a notice; see `PageRequest.redirect`."""
        response = RedirectResponse(self.url(path), 303)
        if notice:
            self.set_cookie(response, request, self._notice_cookie, write_notice(notice, kind), 60)
        return response

    def set_cookie(self, response: Response, request: Request, name: str, value: str, max_age_s: int) -> None:
        """Set a cookie that only this server's pages of the mount send, and no script reads."""
        response.set_cookie(
            name,
            value,
            max_age=max_age_s,
            path=self.mount_path or "/",
            secure=request.url.scheme == "https" or self._public_url().startswith("https:"),
            httponly=True,
            samesite="strict",
        )

    def delete_cookie(self, response: Response, name: str) -> None:
        """Delete a cookie of `set_cookie`."""
        response.delete_cookie(name, path=self.mount_path or "/")

    def session_of(self, request: Request) -> str:
        """Return the token of the browser's session; empty without one."""
        return "" if self._sign_in is None else request.cookies.get(self._sign_in.cookie, "")

    def check_origin(self, request: Request) -> None:
        """Check that a form comes from a page of this server. Raises CsrfError."""
        check_origin(request, self._public_url(), is_only_url=bool(self._public_url()))

    def safe_path(self, path: str) -> str:
        """Return *path* if it is a path in the mount, else ``/``."""
        parts = urlsplit(path)
        is_path = path.startswith("/") and not path.startswith("//") and not parts.scheme and not parts.netloc
        is_plain = path.isprintable() and "\\" not in path
        has_dots = not {".", ".."}.isdisjoint(unquote(parts.path).split("/"))  # browsers resolve them, also encoded
        return path if is_path and is_plain and not has_dots and not path.startswith(SIGN_IN) else "/"

    async def _find_user(self, tx: Transaction, session: str) -> SignedInUser | None:
        if self._sign_in is None or not session:
            return None
        return await self._sign_in.find_by_session(tx, session)

    def _language_for(self, request: Request, user: SignedInUser | None) -> AbstractContextManager[None]:
        own = request.cookies.get(self._language_cookie) if user is None else user.language
        return self.languages.using(self.languages.choose(own, request.headers.get("accept-language", "")))

    def _language_names(self) -> dict[str, str]:
        return {name: LANGUAGE_NAMES.get(name, name) for name in self.languages.available}

    async def _serve_file(self, request: Request) -> Response:
        response = await self._files.serve(request)
        if response.status_code == 404:
            raise HTTPException(404)
        return response

    async def _set_language(self, request: Request) -> Response:
        """Store the choice of a language: for a user, else in the browser."""
        self.check_origin(request)
        form = await read_form(request)
        language = str(form.get("language", ""))
        if language not in self.languages.available:
            raise Refusal(self.languages.gettext("There are no texts in this language."))
        session = self.session_of(request)
        async with self.hook.transaction() as tx:
            user = await self._find_user(tx, session)
            if user is not None and self._sign_in is not None:
                check_csrf_token(session, str(form.get("csrf", "")))
                await self._sign_in.set_language(tx, user, language)
        response = self.redirect(request, self.safe_path(str(form.get("next", "/"))))
        self.set_cookie(response, request, self._language_cookie, language, _LANGUAGE_COOKIE_S)
        return response

    def _ask_to_sign_in(self, request: Request) -> Response:
        if request.method != "GET":
            return self.redirect(request, SIGN_IN)
        path = self.safe_path(request.scope["path"].removeprefix(self.mount_path) or "/")
        return self.redirect(request, SIGN_IN if path == "/" else f"{SIGN_IN}?{urlencode({'next': path})}")

    async def _show_error(self, request: Request, error: BoathookError | HTTPException) -> Response:
        if isinstance(error, HTTPException) and "text/html" not in request.headers.get("accept", ""):
            return await refuse_unknown(request, error)  # a program expects what an API answers
        session = self.session_of(request)
        user = await self._user_if_available(session)
        with self._language_for(request, user):
            status, text = self._describe(request, error)
            response = self.render(request, "boathook/error.html", status, user=user, session=session, text=text)
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    async def _user_if_available(self, session: str) -> SignedInUser | None:
        try:
            async with self.hook.transaction() as tx:
                return await self._find_user(tx, session)
        except BoathookError:
            return None  # the page for an error must not fail itself

    def _describe(self, request: Request, error: BoathookError | HTTPException) -> tuple[int, str]:
        """Return status and text of the page for an error."""
        match error:
            case Refusal():
                return error.status, str(error)
            case CsrfError():
                return 403, self.languages.gettext(_FORGED)
            case HTTPException(status_code=404):
                return 404, self.languages.gettext(_UNKNOWN)
            case HTTPException():
                return error.status_code, str(error.detail)
            case _:
                # Refusals are the app's own errors; another error here means that it is unavailable.
                self.hook.log.warning("request_failed", path=request.url.path, exc_info=error)
                return 503, self.languages.gettext(_UNAVAILABLE)

    async def _refuse_unknown(self, request: Request, error: Exception) -> Response:
        """Answer a request without a route."""
        assert isinstance(error, HTTPException)
        return await self._show_error(request, error)


_FORGED: Final = gettext_noop(
    "This form is out of date, or does not come from these pages. Go back, reload the page, and try again."
)
_UNKNOWN: Final = gettext_noop("There is no such page.")
_UNAVAILABLE: Final = gettext_noop("This cannot be done now. Try again.")


def _is_below(path: str, item: str) -> bool:
    """Return whether a page belongs to an entry of the navigation."""
    return item in {path, "/"} or path.startswith(f"{item}/")
