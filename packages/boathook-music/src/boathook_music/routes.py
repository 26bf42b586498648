"""``/api/music``: tracks and the delivery log over HTTP, authenticated by an organization's API key; files by links."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from boathook import BoathookError
from boathook_app_tools.terminal import plain
from boathook_music import delivery_log, files, links, status, tracks
from boathook_music.app import hook, storage
from boathook_music.delivery_log import DeliveryStatus, Kind
from boathook_music.stages import Status
from boathook_music.storage import LocalFolder
from boathook_music.tracks import NewTrack

_MAX_BODY: Final = 262_144
_MAX_LISTED: Final = 250
_FILE_HEADERS: Final = {
    "cache-control": "private, no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class TrackBody(BaseModel):
    """The body that registers a track."""

    model_config = ConfigDict(extra="forbid")

    task_id: str
    owner: str = ""
    title: str = ""
    prompt: Any = Field(default_factory=dict)
    application: str = ""


class NoteBody(BaseModel):
    """The reason for an action."""

    model_config = ConfigDict(extra="forbid")

    note: str = Field(min_length=1, max_length=500)


class DaysBody(BaseModel):
    """The age limit in days."""

    model_config = ConfigDict(extra="forbid")

    days: float = Field(gt=0, le=36_500)


async def add_track(request: Request) -> Response:
    """Register a track; 201 if it is new, else 200."""
    body = await _read(request, TrackBody)
    track = NewTrack(**body.model_dump())
    if problem := tracks.problem_of(track):
        raise HTTPException(422, problem)
    async with hook.transaction() as tx:
        is_new = await tracks.register(tx, track)
        found = await tracks.shown(tx, body.task_id)
    return _json(found, status=201 if is_new else 200)


async def list_tracks(request: Request) -> Response:
    """List tracks, newest first."""
    state, limit = _word(request, "status", Status), _limit(request)
    owner, after = _text(request, "owner"), _text(request, "after")
    async with hook.transaction() as tx:
        rows = await tracks.listed(tx, status=state, owner=owner, after=after, limit=limit)
    return _json({"data": rows, "next": rows[-1]["task_id"] if len(rows) == limit else None})


async def show_track(request: Request) -> Response:
    """Return a track with its clips, files and callbacks."""
    async with hook.transaction() as tx:
        found = await tracks.shown(tx, _task(request))
    if found is None:
        raise HTTPException(404, "there is no such track")
    return _json(found)


async def delete_track(request: Request) -> Response:
    """Mark a track as deleted."""
    async with hook.transaction() as tx:
        if not await tracks.mark_deleted(tx, _task(request)):
            raise HTTPException(404, "there is no such track, or it is deleted already")
    return Response(status_code=204)


async def show_status(_request: Request) -> Response:
    """Return the state of the app in numbers."""
    async with hook.transaction() as tx:
        return _json(await status.read(tx))


async def list_deliveries(request: Request) -> Response:
    """List deliveries, newest first."""
    limit = _limit(request)
    rows = await delivery_log.listed(
        standing=_word(request, "status", DeliveryStatus),
        kind=_word(request, "kind", Kind) or Kind.CALLBACK,
        after=request.query_params.get("after"),
        limit=limit,
    )
    return _json({"data": rows, "next": rows[-1]["id"] if len(rows) == limit else None})


async def show_delivery(request: Request) -> Response:
    """Return a delivery with its attempts and its request."""
    return _json(await delivery_log.shown(request.path_params["id"]))


async def replay_delivery(request: Request) -> Response:
    """Retry a failed delivery."""
    return _decided(await delivery_log.replay([request.path_params["id"]], note="POST /api/music"))


async def give_up_delivery(request: Request) -> Response:
    """Settle a failed delivery permanently."""
    body = await _read(request, NoteBody)
    return _decided(await delivery_log.give_up([request.path_params["id"]], note=body.note))


async def clean_up_deliveries(request: Request) -> Response:
    """Delete the records of old callbacks."""
    body = await _read(request, DaysBody)
    return _json({"forgotten": await delivery_log.clean_up(body.days)})


async def serve_file(request: Request) -> Response:
    """Send a stored file to the holder of a signed link; parts of it on request."""
    key, place = request.path_params["key"], storage()
    query = request.query_params
    async with hook.transaction() as tx:
        if not await links.is_valid(tx, key, query.get("expires", ""), query.get("signature", "")):
            raise HTTPException(403, "this link is not valid or has expired; ask for a new one")
        content_type = await files.content_type_of(tx, key)
    if content_type is None or not isinstance(place, LocalFolder) or await place.head(key) is None:
        raise HTTPException(404, "there is no such file")
    return FileResponse(place.path(key), media_type=content_type, headers=_FILE_HEADERS)


def _decided(done: list[str]) -> Response:
    if not done:
        raise HTTPException(409, "this delivery has not failed; only failed ones can be replayed or given up")
    return _json({"ok": True, "id": done[0]})


async def _read(request: Request, kind: type[Any]) -> Any:
    raw = b""
    async for piece in request.stream():
        raw += piece
        if len(raw) > _MAX_BODY:
            raise HTTPException(413, f"the body is larger than {_MAX_BODY} bytes")
    try:
        return kind.model_validate(msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise HTTPException(422, f"{where or 'the body'}: {first['msg']}") from None


def _word(request: Request, key: str, kind: type[Any]) -> Any:
    text = request.query_params.get(key)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        words = ", ".join(word.value for word in kind)
        raise HTTPException(422, f"{key}: write one of {words}") from None


def _text(request: Request, key: str) -> str | None:
    text = request.query_params.get(key)
    if text is not None and "\x00" in text:
        raise HTTPException(422, f"{key}: it must not contain NUL")
    return text


def _task(request: Request) -> str:
    task_id: str = request.path_params["task_id"]
    if "\x00" in task_id:
        raise HTTPException(404, "there is no such track")
    return task_id


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "50")
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= _MAX_LISTED):
        raise HTTPException(422, f"limit: write a whole number from 1 to {_MAX_LISTED}")
    return int(text)


def _json(body: object, status: int = 200) -> Response:
    return JSONResponse(plain(body), status_code=status)


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


def _failed(_request: Request, error: Exception) -> Response:
    # By name, because an app can import only the base of boathook's errors.
    status = {"NotFound": 404, "InvalidValue": 422}.get(type(error).__name__, 503)
    message = str(error) if status < 500 else "it cannot be done at the moment; try again later"
    return JSONResponse({"error": message}, status_code=status)


def _route(path: str, call: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
    return Route(path, call, methods=[method])


api = Starlette(
    routes=[
        _route("/tracks", add_track, "POST"),
        _route("/tracks", list_tracks),
        _route("/tracks/{task_id:path}", show_track),
        _route("/tracks/{task_id:path}", delete_track, "DELETE"),
        _route("/status", show_status),
        _route("/deliveries", list_deliveries),
        _route("/deliveries/cleanup", clean_up_deliveries, "POST"),
        _route("/deliveries/{id}", show_delivery),
        _route("/deliveries/{id}/replay", replay_delivery, "POST"),
        _route("/deliveries/{id}/giveup", give_up_delivery, "POST"),
    ],
    exception_handlers={HTTPException: _refused, BoathookError: _failed},
)

file_links = Starlette(
    routes=[_route("/{key:path}", serve_file)],
    exception_handlers={HTTPException: _refused, BoathookError: _failed},
)

hook.mount("/api/music", api)
# Open, because the link is the permission.
hook.mount(links.PATH, file_links, is_open=True)
