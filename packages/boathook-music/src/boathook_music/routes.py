"""``/api/music``: tracks and the delivery log over HTTP, authenticated by an organization's API key."""

from typing import Any

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from boathook_app_tools.delivery_log import Page
from boathook_app_tools.json_api import Body, JsonApi, QueryText, respond
from boathook_music import status, tracks
from boathook_music.app import gettext, hook, languages
from boathook_music.delivery_log import log as delivery_log
from boathook_music.stages import Status
from boathook_music.tracks import NewTrack

api = JsonApi(hook, "/api/music", languages)


class TrackBody(Body):
    """The body that registers a track."""

    task_id: str
    owner: str = ""
    title: str = ""
    prompt: Any = Field(default_factory=dict)
    application: str = ""


class TrackQuery(Page):
    """The query that lists tracks."""

    status: Status | None = None
    owner: QueryText | None = None


@api.route("POST", "/tracks")
async def add_track(request: Request) -> Response:
    """Register a track; 201 if it is new, else 200."""
    track = NewTrack(**(await api.body(request, TrackBody)).model_dump())
    if problem := tracks.problem_of(track):
        raise HTTPException(422, problem)
    async with hook.transaction() as tx:
        is_new = await tracks.register(tx, track)
        return respond(await tracks.shown(tx, track.task_id), 201 if is_new else 200)


@api.route("GET", "/tracks")
async def list_tracks(request: Request) -> Response:
    """List tracks, newest first."""
    query = api.query(request, TrackQuery)
    async with hook.transaction() as tx:
        rows = await tracks.listed(tx, **query.model_dump())
    return respond({"data": rows, "next": rows[-1]["task_id"] if len(rows) == query.limit else None})


@api.route("GET", "/tracks/{task_id:path}")
async def show_track(request: Request) -> Response:
    """Return a track with its clips, files and callbacks."""
    async with hook.transaction() as tx:
        found = await tracks.shown(tx, request.path_params["task_id"])
    if found is None:
        raise HTTPException(404, gettext("there is no such track"))
    return respond(found)


@api.route("DELETE", "/tracks/{task_id:path}")
async def delete_track(request: Request) -> Response:
    """Mark a track as deleted."""
    async with hook.transaction() as tx:
        if not await tracks.mark_deleted(tx, request.path_params["task_id"]):
            raise HTTPException(404, gettext("there is no such track, or it is deleted already"))
    return Response(status_code=204)


@api.route("GET", "/status")
async def show_status(_request: Request) -> Response:
    """Return the state of the app in numbers."""
    async with hook.transaction() as tx:
        return respond(await status.read(tx))


delivery_log.add_routes(api)
api.mount()
