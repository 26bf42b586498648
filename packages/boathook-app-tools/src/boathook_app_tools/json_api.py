"""A JSON API of an app on a mounted path: models read bodies and queries, errors are worded for the request."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from boathook import Boathook, BoathookError
from boathook.languages import Languages, gettext_noop
from boathook.pages import InvalidForm, read_model
from boathook_app_tools.terminal import plain

MAX_BODY: Final = 262_144
_STATUSES: Final = {"NotFound": 404, "InvalidValue": 422}
"""By the names of boathook's errors: an app can import only their base."""

Model = TypeVar("Model", bound=BaseModel)
Call = Callable[[Request], Awaitable[Response]]


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError(gettext_noop("it must not contain NUL"))
    return text


QueryText = Annotated[str, AfterValidator(_without_nul)]
"""Text of a query that PostgreSQL can store."""


class Body(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class JsonApi:
    """Serves functions that take a request and return a response, and raise HTTPException for a refusal.

    Refusals are ``{"error": "..."}``, as are boathook's errors: 404 and 422 with their message, 503 without.

    Args:
        hook: the app.
        path: where it is mounted.
        languages: those of the app.
        is_open: whether clients need no token; see `Boathook.mount`.
    """

    def __init__(self, hook: Boathook, path: str, languages: Languages, *, is_open: bool = False) -> None:
        self._hook = hook
        self._path = path
        self._languages = languages
        self._texts = Languages(Path(__file__).with_name("locale"), setting=lambda: languages.current)
        self._is_open = is_open
        self._routes: list[Route] = []

    def route(self, method: str, path: str) -> Callable[[Call], Call]:
        """Serve the decorated function."""

        def decorate(call: Call) -> Call:
            self._routes.append(Route(path, call, methods=[method]))
            return call

        return decorate

    def mount(self) -> None:
        """Mount the routes; call it last."""
        handlers = {HTTPException: _refused, BoathookError: self._failed}
        middleware = [Middleware(_InLanguage, languages=self._languages)]
        app = Starlette(routes=self._routes, exception_handlers=handlers, middleware=middleware)
        self._hook.mount(self._path, app, is_open=self._is_open)

    async def body(self, request: Request, model: type[Model]) -> Model:
        """Return the body as a model. Raises HTTPException: it is too large, not JSON, or does not match."""
        raw = b""
        async for piece in request.stream():
            raw += piece
            if len(raw) > MAX_BODY:
                raise HTTPException(413, self._texts.gettext("the body is larger than %(max)d bytes", max=MAX_BODY))
        try:
            document = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise HTTPException(400, self._texts.gettext("the body is not JSON")) from None
        if not isinstance(document, dict):
            raise HTTPException(422, self._texts.gettext("the body is not a JSON object"))
        return self._read(model, document)

    def query(self, request: Request, model: type[Model]) -> Model:
        """Return the query as a model. Raises HTTPException: it does not match."""
        return self._read(model, request.query_params)

    def _read(self, model: type[Model], values: Mapping[str, Any]) -> Model:
        try:
            return read_model(model, values, self._texts)
        except InvalidForm as error:
            field, problem = next(iter(error.problems.items()))
            raise HTTPException(422, f"{field}: {problem}") from None

    def _failed(self, _request: Request, error: Exception) -> Response:
        status = _STATUSES.get(type(error).__name__, 503)
        text = self._texts.gettext("it cannot be done at the moment; try again later")
        return respond({"error": str(error) if status < 500 else text}, status)


def respond(values: object, status: int = 200) -> Response:
    """Return a response with JSON; times as ISO 8601 in UTC."""
    return JSONResponse(plain(values), status_code=status)


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return respond({"error": error.detail}, error.status_code)


class _InLanguage:
    """Words the answers of an application in the language of the request."""

    def __init__(self, app: ASGIApp, languages: Languages) -> None:
        self._app = app
        self._languages = languages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wishes = Headers(scope=scope).get("accept-language", "") if scope["type"] == "http" else ""
        with self._languages.using(self._languages.choose(accept_language=wishes)):
            await self._app(scope, receive, send)
