"""A JSON API of an app, beside its pages or by itself, with one transaction a request.

Clients are authenticated by the tokens of the app's users, or by the mount: an API key or a user of ``[jwt]``.

A response is sent after the commit, so a 2xx means that the change and its events are committed. Refusals are answered
as ``{"error": {"code": "...", "message": "..."}}``, with the field if one is invalid.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from boathook.domain.errors import BoathookError, InvalidValue, NotFound
from boathook.handlers.api import Boathook
from boathook.handlers.transaction import Transaction
from boathook_pages.kit.errors import InvalidForm, Missing, Refusal
from boathook_pages.kit.forms import read_model
from boathook_pages.kit.request import SignedInUser
from boathook_pages.languages import Languages, gettext_noop
from boathook_pages.security import security_headers, with_headers

Model = TypeVar("Model", bound=BaseModel)
Reply = tuple[int, Any] | Response
"""A status and the document of the body, None for no body; or a response, which is sent as it is."""
Answer = Callable[["ApiRequest"], Awaitable[Reply]]

_MAX_BODY: Final = 262_144
_HEADERS: Final = security_headers()
_UNAVAILABLE: Final = gettext_noop("This cannot be done now. Try again.")
_NO_TOKEN: Final = gettext_noop("Send your token: Authorization: Bearer TOKEN")


class TokenUsers(Protocol):
    """The users of the API; `boathook_pages.sign_in.SignIn` is one."""

    async def find_by_token(self, tx: Transaction, token: str) -> SignedInUser | None:
        """Return the user with a token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request of an authenticated client, in its transaction."""

    tx: Transaction
    user: Any
    """The user with the token; None where the mount authenticates."""
    request: Request
    body: bytes
    languages: Languages

    @property
    def path(self) -> Mapping[str, Any]:
        """The path parameters."""
        return self.request.path_params

    def read(self, model: type[Model]) -> Model:
        """Validate the body, and return the model. Raises InvalidForm."""
        return read_model(model, self.body, self.languages)

    def document(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises InvalidForm."""
        try:
            document = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise InvalidForm({"": self.languages.gettext("the body is not a JSON object")})
        return document

    def query(self, name: str) -> str | None:
        """Return a parameter of the query; None if it is missing. Raises InvalidForm."""
        text = self.request.query_params.get(name)
        if text is not None and "\x00" in text:
            raise InvalidForm({name: self.languages.gettext("it must not contain NUL")})
        return text

    def read_query(self, model: type[Model]) -> Model:
        """Validate the query, and return the model. Raises InvalidForm."""
        return read_model(model, {name: self.query(name) for name in self.request.query_params}, self.languages)

    def number(self, name: str, default: int, maximum: int) -> int:
        """Return a number of the query, such as ``?limit=50``. Raises InvalidForm."""
        text = self.query(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > maximum:
            expected = self.languages.gettext("write a number from 0 to %(maximum)s", maximum=maximum)
            raise InvalidForm({name: expected})
        return int(text)

    def limit(self, default: int = 50, maximum: int = 200) -> int:
        """Return how many rows the query asks for, as ``?limit=50``. Raises InvalidForm."""
        return max(1, self.number("limit", default, maximum))


class JsonApi:
    """The routes of an API below one path: of the pages' mount, by ``pages.mount(routes=api.routes())``, or its own.

    Args:
        hook: The app.
        users: The users, whose tokens authenticate requests; None where the mount authenticates.
        languages: The languages of the app, for messages.
        path: The path.
    """

    def __init__(self, hook: Boathook, users: TokenUsers | None, languages: Languages, path: str = "/api") -> None:
        self._hook = hook
        self._users = users
        self._languages = languages
        self._path = path
        self._routes: list[BaseRoute] = []

    def add(self, path: str, **answers: Answer | None) -> None:
        """Add a path, with an answer for each method that is not None: ``api.add("/cars", GET=list_cars)``."""
        methods = {method: answer for method, answer in answers.items() if answer is not None}

        async def endpoint(request: Request) -> Response:
            return await self._respond(methods["GET" if request.method == "HEAD" else request.method], request)

        self._routes.append(Route(path, endpoint, methods=list(methods)))

    def routes(self) -> list[BaseRoute]:
        """Return the routes; every other path of the API is refused in JSON too."""
        app = self._app()
        return [Mount(self._path, app), Route(self._path, app)]

    def mount(self, *, is_open: bool = False) -> None:
        """Mount the API at its path, after all routes were added; see `Boathook.mount`.

        Args:
            is_open: Whether clients need no token. With users, their tokens are always required.
        """
        self._hook.mount(self._path, self._app(), is_open=is_open or self._users is not None)

    def _app(self) -> Starlette:
        return Starlette(routes=self._routes, exception_handlers={HTTPException: refuse_unknown})

    async def _respond(self, answer: Answer, request: Request) -> Response:
        accepted = request.headers.get("accept-language", "")
        with self._languages.using(self._languages.choose(accept_language=accepted)):
            try:
                body = await self._read_body(request)
                async with self._hook.transaction() as tx:
                    user = None if self._users is None else await self._authenticate(self._users, tx, request)
                    with self._languages.using(
                        self._languages.choose(None if user is None else user.language, accepted)
                    ):
                        reply = await answer(
                            ApiRequest(tx=tx, user=user, request=request, body=body, languages=self._languages)
                        )
            except Refusal as refusal:
                return _refuse(refusal)
            except NotFound as error:
                return _refuse(Missing(str(error)))
            except InvalidValue as error:
                return _refuse(InvalidForm({".".join(map(str, error.where)): str(error)}))
            except BoathookError as error:
                # Refusals are the app's own errors; another error here means that it is unavailable.
                self._hook.log.warning("request_failed", path=request.url.path, exc_info=error)
                text = self._languages.gettext(_UNAVAILABLE)
                return _refuse(Refusal(text, status=503, code="unavailable"), {"retry-after": "2"})
        if isinstance(reply, Response):
            return reply
        status, document = reply
        content = b"" if document is None else msgspec.json.encode(document)
        media_type = None if document is None else "application/json"
        return with_headers(Response(content, status, media_type=media_type), _HEADERS)

    async def _authenticate(self, users: TokenUsers, tx: Transaction, request: Request) -> SignedInUser:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        user = await users.find_by_token(tx, token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise Refusal(self._languages.gettext(_NO_TOKEN), status=401, code="unknown_token")
        return user

    async def _read_body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BODY:
                text = self._languages.gettext("A body has at most %(maximum)s bytes.", maximum=_MAX_BODY)
                raise Refusal(text, status=413, code="too_large")
        return bytes(body)


def _refuse(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    error = {"code": refusal.code, "message": str(refusal)}
    if isinstance(refusal, InvalidForm):
        error["field"] = refusal.field
    if refusal.status == 401:
        headers = {"www-authenticate": "Bearer"}
    return with_headers(JSONResponse({"error": error}, refusal.status, headers), _HEADERS)


async def refuse_unknown(_request: Request, error: Exception) -> Response:
    """Refuse a request without a route."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "refused"
    return _refuse(Refusal(error.detail, status=error.status_code, code=code), error.headers)
