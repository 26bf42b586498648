"""Events for clients, ``track.ready`` and ``track.failed``: published once for each track, to its application."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_music import files
from boathook_music.app import hook, settings
from boathook_music.links import links

READY: Final = "track.ready"
FAILED: Final = "track.failed"
_DESCRIPTIONS: Final = {
    READY: "A song is complete, and its files are stored.",
    FAILED: "A song failed, or none of its audio could be stored.",
}
SQL: Final = load_statements(__file__)


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each event type, with examples."""
    folder = Path(__file__).with_name("schemas")
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in _DESCRIPTIONS}


async def declare(tx: Transaction) -> None:
    """Create the event types that do not exist yet."""
    await hook.operations.declare_types(tx, _DESCRIPTIONS, schemas())


async def announce(tx: Transaction, task_id: str) -> None:
    """Publish the event of a track that is ready or has failed since the last call; requires the track's lock."""
    row = await tx.fetchrow(SQL["announce_track"], task_id, settings().application)
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
    linked = await links.with_links(tx, await files.of_track(tx, task_id))
    by_name = {(row["clip_id"], row["kind"]): _file(row) for row in linked if row["state"] == "stored"}
    return [
        {
            "id": row["clip_id"],
            "title": row["title"],
            "duration_s": None if row["duration_s"] is None else float(row["duration_s"]),
            "audio": by_name.get((row["clip_id"], "audio")),
            "cover": by_name.get((row["clip_id"], "cover")),
        }
        for row in await tx.fetch(SQL["list_clips"], task_id)
    ]


def _file(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = ("content_type", "size", "sha256")
    return {"url": row["link"], "expires_at": row["link_expires_at"], **{name: row[name] for name in columns}}
