"""Events for clients, ``track.ready`` and ``track.failed``: published once for each track, to its application."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from boathook import Transaction
from boathook_music import files, links
from boathook_music.app import hook, settings

READY: Final = "track.ready"
FAILED: Final = "track.failed"
_DESCRIPTIONS: Final = {
    READY: "A song is complete, and its files are stored.",
    FAILED: "A song failed, or none of its audio could be stored.",
}
# In one statement, so that a track is announced once. A failure may be followed by success, never the reverse.
_ANNOUNCE: Final = """
    with news as (
        select coalesce(nullif(t.application, ''), $2) as application,
            case when t.status = 'failed' then 'failed'
                when t.status <> 'complete' or file.is_open or file.total = 0 then null
                when file.has_audio then 'ready' else 'failed' end as state
        from music.track t, lateral (
            select count(*) as total, coalesce(bool_or(state in ('wanted', 'retrying', 'missing')), false) as is_open,
                coalesce(bool_or(state = 'stored' and kind = 'audio'), false) as has_audio
            from music.file where task_id = t.task_id
        ) file where t.task_id = $1
    )
    update music.track t set announced = news.state from news
    where t.task_id = $1 and news.application <> '' and (
        news.state = 'ready' and t.announced is distinct from 'ready' or news.state = 'failed' and t.announced is null)
    returning t.announced, news.application, t.owner, t.title,
        coalesce(t.error_code, 'FILES_FAILED') as code,
        coalesce(t.error, 'none of its audio could be stored') as message
"""
_CLIPS: Final = "select clip_id, title, duration_s from music.clip where task_id = $1 order by position, clip_id"


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each event type, with examples."""
    folder = Path(__file__).with_name("schemas")
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in _DESCRIPTIONS}


async def declare(tx: Transaction) -> None:
    """Create the event types that do not exist yet."""
    await hook.operations.declare_types(tx, _DESCRIPTIONS, schemas())


async def announce(tx: Transaction, task_id: str) -> None:
    """Publish the event of a track that is ready or has failed since the last call; requires the track's lock."""
    row = await tx.fetchrow(_ANNOUNCE, task_id, settings().application)
    if row is None:
        return
    data = {"task_id": task_id, "owner": row["owner"], "title": row["title"]}
    if row["announced"] == "ready":
        type, data["clips"] = READY, await _clips(tx, task_id)
    else:
        type, data["code"], data["message"] = FAILED, row["code"], row["message"]
    application = row["application"]
    await hook.operations.put_application(tx, application, name=application)
    payload = {"type": type, "timestamp": datetime.now(UTC), "data": data}
    await hook.publish(tx, application=application, type=type, payload=payload)


async def _clips(tx: Transaction, task_id: str) -> list[dict[str, Any]]:
    stored = await links.with_links(tx, await files.of_track(tx, task_id))
    by_name = {(row["clip_id"], row["kind"]): _file(row) for row in stored if row["state"] == "stored"}
    return [
        {
            "id": row["clip_id"],
            "title": row["title"],
            "duration_s": None if row["duration_s"] is None else float(row["duration_s"]),
            "audio": by_name.get((row["clip_id"], "audio")),
            "cover": by_name.get((row["clip_id"], "cover")),
        }
        for row in await tx.fetch(_CLIPS, task_id)
    ]


def _file(row: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("content_type", "size", "sha256")
    return {"url": row["link"], "expires_at": row["link_expires_at"], **{name: row[name] for name in wanted}}
