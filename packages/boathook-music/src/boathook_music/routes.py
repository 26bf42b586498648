"""``/api/music``: tracks and the delivery log over HTTP, authenticated by an organization's API key."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from boathook_app_tools.delivery_log import Page
from boathook_app_tools.terminal import plain
from boathook_music import status, tracks
from boathook_music.app import gettext, hook, languages
from boathook_music.delivery_log import log as delivery_log
from boathook_music.stages import Status
from boathook_music.tracks import NewTrack
from boathook_pages import ApiRequest, InvalidForm, JsonApi, Missing

Reply = tuple[int, Any]


class TrackBody(BaseModel):
    """The body that registers a track."""

    model_config = ConfigDict(extra="forbid")

    task_id: str
    owner: str = ""
    title: str = ""
    prompt: Any = Field(default_factory=dict)
    application: str = ""


class TrackQuery(Page):
    """The query that lists tracks."""

    status: Status | None = None
    owner: str | None = None


async def add_track(request: ApiRequest) -> Reply:
    """Register a track; 201 if it is new, else 200."""
    track = NewTrack(**request.read(TrackBody).model_dump())
    if problem := tracks.problem_of(track):
        field, _, text = problem.partition(": ")
        raise InvalidForm({field: text})
    is_new = await tracks.register(request.tx, track)
    return 201 if is_new else 200, plain(await tracks.shown(request.tx, track.task_id))


async def list_tracks(request: ApiRequest) -> Reply:
    """List tracks, newest first."""
    query = request.read_query(TrackQuery)
    rows = await tracks.listed(request.tx, **query.model_dump())
    return 200, {"data": plain(rows), "next": rows[-1]["task_id"] if len(rows) == query.limit else None}


async def show_track(request: ApiRequest) -> Reply:
    """Return a track with its clips, files and callbacks."""
    track = await tracks.shown(request.tx, request.path["task_id"])
    if track is None:
        raise Missing(gettext("there is no such track"))
    return 200, plain(track)


async def delete_track(request: ApiRequest) -> Reply:
    """Mark a track as deleted."""
    if not await tracks.mark_deleted(request.tx, request.path["task_id"]):
        raise Missing(gettext("there is no such track, or it is deleted already"))
    return 204, None


async def show_status(request: ApiRequest) -> Reply:
    """Return the state of the app in numbers."""
    return 200, plain(await status.read(request.tx))


api = JsonApi(hook, None, languages, "/api/music")
api.add("/tracks", GET=list_tracks, POST=add_track)
api.add("/tracks/{task_id:path}", GET=show_track, DELETE=delete_track)
api.add("/status", GET=show_status)
delivery_log.add_routes(api)
api.mount()
