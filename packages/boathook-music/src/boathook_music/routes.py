"""``/api/music``: tracks and the delivery log over HTTP, authenticated by an organization's API key; files by links."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from boathook import BoathookError
from boathook.languages import gettext_noop
from boathook.pages import InvalidForm, read_model
from boathook_app_tools.storage import LocalFolder
from boathook_app_tools.terminal import plain
from boathook_music import delivery_log, files, links, status, tracks
from boathook_music.app import gettext, hook, languages, storage
from boathook_music.delivery_log import DeliveryStatus, Kind
from boathook_music.stages import Status
from boathook_music.tracks import NewTrack

_MAX_BODY: Final = 262_144
_FILE_HEADERS: Final = {
    "cache-control": "private, no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_STATUSES: Final = {"NotFound": 404, "InvalidValue": 422}
"""By the names of boathook's errors: an app can import only their base."""


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError(gettext_noop("it must not contain NUL"))
    return text


Text = Annotated[str, AfterValidator(_without_nul)]
Model = TypeVar("Model", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TrackBody(_Strict):
    """The body that registers a track."""

    task_id: str
    owner: str = ""
    title: str = ""
    prompt: Any = Field(default_factory=dict)
    application: str = ""


class NoteBody(_Strict):
    """The reason for an action."""

    note: str = Field(min_length=1, max_length=500)


class DaysBody(_Strict):
    """The age limit in days."""

    days: float = Field(gt=0, le=36_500)


class _Page(BaseModel):
    after: Text | None = None
    limit: int = Field(default=50, ge=1, le=250)


class TrackQuery(_Page):
    """The query that lists tracks."""

    status: Status | None = None
    owner: Text | None = None


class DeliveryQuery(_Page):
    """The query that lists deliveries."""

    status: DeliveryStatus | None = None
    kind: Kind = Kind.CALLBACK


async def add_track(request: Request) -> Response:
    """Register a track; 201 if it is new, else 200."""
    track = NewTrack(**(await _body(request, TrackBody)).model_dump())
    if problem := tracks.problem_of(track):
        raise HTTPException(422, problem)
    async with hook.transaction() as tx:
        is_new = await tracks.register(tx, track)
        return _json(await tracks.shown(tx, track.task_id), 201 if is_new else 200)


async def list_tracks(request: Request) -> Response:
    """List tracks, newest first."""
    query = _read(TrackQuery, request.query_params)
    async with hook.transaction() as tx:
        return _page(await tracks.listed(tx, **query.model_dump()), query, "task_id")


async def show_track(request: Request) -> Response:
    """Return a track with its clips, files and callbacks."""
    async with hook.transaction() as tx:
        found = await tracks.shown(tx, request.path_params["task_id"])
    if found is None:
        raise HTTPException(404, gettext("there is no such track"))
    return _json(found)


async def delete_track(request: Request) -> Response:
    """Mark a track as deleted."""
    async with hook.transaction() as tx:
        if not await tracks.mark_deleted(tx, request.path_params["task_id"]):
            raise HTTPException(404, gettext("there is no such track, or it is deleted already"))
    return Response(status_code=204)


async def show_status(_request: Request) -> Response:
    """Return the state of the app in numbers."""
    async with hook.transaction() as tx:
        return _json(await status.read(tx))


async def list_deliveries(request: Request) -> Response:
    """List deliveries, newest first."""
    query = _read(DeliveryQuery, request.query_params)
    return _page(await delivery_log.listed(**query.model_dump()), query, "id")


async def show_delivery(request: Request) -> Response:
    """Return a delivery with its attempts and its request."""
    return _json(await delivery_log.shown(request.path_params["id"]))


async def replay_delivery(request: Request) -> Response:
    """Retry a failed delivery."""
    return _decided(await hook.operations.replay([request.path_params["id"]], note="POST /api/music"))


async def give_up_delivery(request: Request) -> Response:
    """Settle a failed delivery permanently."""
    body = await _body(request, NoteBody)
    return _decided(await hook.operations.ignore([request.path_params["id"]], note=body.note))


async def clean_up_deliveries(request: Request) -> Response:
    """Delete the records of old callbacks."""
    return _json({"forgotten": await delivery_log.clean_up((await _body(request, DaysBody)).days)})


async def serve_file(request: Request) -> Response:
    """Send a stored file to the holder of a signed link; parts of it on request."""
    key, place, query = request.path_params["key"], storage(), request.query_params
    async with hook.transaction() as tx:
        if not await links.is_valid(tx, key, query.get("expires", ""), query.get("signature", "")):
            raise HTTPException(403, gettext("this link is not valid or has expired; ask for a new one"))
        content_type = await files.content_type_of(tx, key)
    if content_type is None or not isinstance(place, LocalFolder) or await place.head(key) is None:
        raise HTTPException(404, gettext("there is no such file"))
    return FileResponse(place.path(key), media_type=content_type, headers=_FILE_HEADERS)


async def _body(request: Request, model: type[Model]) -> Model:
    raw = b""
    async for piece in request.stream():
        raw += piece
        if len(raw) > _MAX_BODY:
            raise HTTPException(413, gettext("the body is larger than %(max)d bytes", max=_MAX_BODY))
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, gettext("the body is not JSON")) from None
    if not isinstance(document, dict):
        raise HTTPException(422, gettext("the body is not a JSON object"))
    return _read(model, document)


def _read(model: type[Model], values: Mapping[str, Any]) -> Model:
    try:
        return read_model(model, values, languages)
    except InvalidForm as error:
        where, problem = next(iter(error.problems.items()))
        raise HTTPException(422, f"{where}: {problem}") from None


def _page(rows: list[dict[str, Any]], query: _Page, id: str) -> Response:
    return _json({"data": rows, "next": rows[-1][id] if len(rows) == query.limit else None})


def _decided(ids: list[str]) -> Response:
    if not ids:
        raise HTTPException(409, gettext("this delivery has not failed; only failed ones can be replayed or given up"))
    return _json({"ok": True, "id": ids[0]})


def _json(body: object, status: int = 200) -> Response:
    return JSONResponse(plain(body), status_code=status)


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


def _failed(_request: Request, error: Exception) -> Response:
    status = _STATUSES.get(type(error).__name__, 503)
    message = str(error) if status < 500 else gettext("it cannot be done at the moment; try again later")
    return JSONResponse({"error": message}, status_code=status)


class _InLanguage:
    """Words the answers of an application in the language of the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wishes = Headers(scope=scope).get("accept-language", "") if scope["type"] == "http" else ""
        with languages.using(languages.choose(accept_language=wishes)):
            await self._app(scope, receive, send)


def _mount(
    path: str, *routes: tuple[str, str, Callable[[Request], Awaitable[Response]]], is_open: bool = False
) -> None:
    handlers = {HTTPException: _refused, BoathookError: _failed}
    served = [Route(place, call, methods=[method]) for method, place, call in routes]
    app = Starlette(routes=served, exception_handlers=handlers, middleware=[Middleware(_InLanguage)])
    hook.mount(path, app, is_open=is_open)


_mount(
    "/api/music",
    ("POST", "/tracks", add_track),
    ("GET", "/tracks", list_tracks),
    ("GET", "/tracks/{task_id:path}", show_track),
    ("DELETE", "/tracks/{task_id:path}", delete_track),
    ("GET", "/status", show_status),
    ("GET", "/deliveries", list_deliveries),
    ("POST", "/deliveries/cleanup", clean_up_deliveries),
    ("GET", "/deliveries/{id}", show_delivery),
    ("POST", "/deliveries/{id}/replay", replay_delivery),
    ("POST", "/deliveries/{id}/giveup", give_up_delivery),
)
# Open, because the link is the permission.
_mount(links.PATH, ("GET", "/{key:path}", serve_file), is_open=True)
