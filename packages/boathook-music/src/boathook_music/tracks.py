"""Stores tracks, the ordered songs, and their callbacks.

All work on one task runs under one lock, so that a callback and the registration of its track see each other in either
order.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final
from uuid import UUID, uuid4

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_music import client_events, files
from boathook_music.app import gettext
from boathook_music.callbacks import MAX_ID, Callback, Stage, decode_clips, encode_clips, read_id
from boathook_music.links import links
from boathook_music.settings import problem_of_application
from boathook_music.stages import AddData, Forward, Late, Status, step

SQL: Final = load_statements(__file__)
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON writes it."""
_MAX_LENGTH: Final = {"owner": 200, "title": 500}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrack:
    """A song that was ordered."""

    task_id: str
    owner: str = ""
    title: str = ""
    prompt: Any = field(default_factory=dict)
    """The order's parameters; any JSON value."""
    application: str = ""
    """The application that its events are sent to; empty: that of the settings."""


def problem_of(track: NewTrack) -> str | None:
    """Return why a track cannot be registered, naming the field, or None if it can."""
    if read_id(track.task_id) != track.task_id or not track.task_id:
        return gettext(
            "task_id: %(id)r is not a task id; use 1 to %(max)d printable characters",
            id=track.task_id[:100],
            max=MAX_ID,
        )
    for name, longest in _MAX_LENGTH.items():
        text = getattr(track, name)
        if len(text) > longest or not _is_storable(text):
            return gettext("%(field)s: write at most %(max)d characters, and no NUL", field=name, max=longest)
    if not _is_storable(track.prompt):
        return gettext("prompt: it contains a value that is not JSON, or a NUL, which PostgreSQL cannot store")
    if track.application and (problem := problem_of_application(track.application)):
        return f"application: {gettext(problem, uid=track.application[:100])}"
    return None


def _is_storable(document: object) -> bool:
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        return False
    return _NUL.search(text) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A received callback's delivery, for the delivery log."""

    event_id: UUID
    delivery_id: str
    received_at: datetime


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """The result of a callback."""

    task_id: str
    stage: Stage
    result: str
    """``waiting``, ``applied`` or ``late``."""


async def lock(tx: Transaction, task_id: str) -> None:
    """Wait until no other transaction works on a task."""
    await tx.execute(SQL["lock_task"], task_id)


async def take(tx: Transaction, delivery: Delivery, callbacks: Sequence[Callback]) -> list[CallbackResult]:
    """Record callbacks, and apply them to known tracks; the others wait for their track."""
    results: list[CallbackResult] = []
    # In the order of task ids, to avoid deadlocks.
    for callback in sorted(callbacks, key=attrgetter("task_id")):
        task_id, stage, clips = callback.task_id, callback.stage, encode_clips(callback.clips)
        await lock(tx, task_id)
        await tx.execute(
            SQL["note_callback"], delivery.event_id, task_id, delivery.delivery_id, stage.value, callback.code,
            callback.message, clips, delivery.received_at,
        )  # fmt: skip
        await _apply_waiting(tx, task_id)
        result = await tx.fetchval(SQL["get_result"], delivery.event_id, task_id)
        results.append(CallbackResult(task_id, stage, result))
    return results


async def take_record(tx: Transaction, callback: Callback, *, name: str) -> bool:
    """Apply what the reseller said when it was asked; return whether that was news.

    *name* is shown among the track's callbacks.
    """
    await lock(tx, callback.task_id)
    status = await tx.fetchval(SQL["get_status"], callback.task_id)
    if status is None:
        return False
    effect = step(Status(status), callback.stage)
    if isinstance(effect, Late) or (isinstance(effect, AddData) and not callback.clips):
        return False
    await take(tx, Delivery(event_id=uuid4(), delivery_id=name, received_at=datetime.now(UTC)), [callback])
    return True


async def register(tx: Transaction, track: NewTrack) -> bool:
    """Register a track, and apply the callbacks that wait for it; return whether it was unknown."""
    await lock(tx, track.task_id)
    prompt = json.dumps(track.prompt)
    added = await tx.fetchval(
        SQL["add_track"], track.task_id, track.owner, track.title, prompt, track.application
    )  # fmt: skip
    await _apply_waiting(tx, track.task_id)
    return added is not None


async def catch_up(tx: Transaction, task_id: str) -> None:
    """Apply the callbacks that wait for a track inserted by plain SQL."""
    await lock(tx, task_id)
    await _apply_waiting(tx, task_id)


async def with_waiting(tx: Transaction) -> list[str]:
    """Return known tracks for which callbacks wait, at most a hundred."""
    return [row["task_id"] for row in await tx.fetch(SQL["list_known_waiting"])]


async def mark_deleted(tx: Transaction, task_id: str) -> bool:
    """Mark a track as deleted, so that cleaning removes its files; return whether there was one."""
    await lock(tx, task_id)
    return await tx.execute(SQL["delete_track"], task_id) != "UPDATE 0"


async def archive(tx: Transaction, task_id: str, *, is_archived: bool = True) -> bool:
    """Archive a track, so that cleaning keeps its files and nothing is asked for it; return whether there was one.

    With *is_archived* false, end that.
    """
    await lock(tx, task_id)
    return await tx.execute(SQL["archive_track"], task_id, is_archived) != "UPDATE 0"


async def listed(
    tx: Transaction,
    *,
    status: str | None = None,
    owner: str | None = None,
    after: str | None = None,
    overdue_s: float | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return tracks, newest first; *after* is the task of the last one seen.

    With *overdue_s*, only unfinished tracks without news for so many seconds.
    """
    return [dict(row) for row in await tx.fetch(SQL["list_tracks"], status, owner, after, limit, overdue_s)]


async def count_overdue(tx: Transaction, overdue_s: float) -> int:
    """Return the number of unfinished tracks without news for *overdue_s* seconds."""
    return int(await tx.fetchval(SQL["count_overdue"], overdue_s))


async def shown(tx: Transaction, task_id: str) -> dict[str, Any] | None:
    """Return a track with its clips, their files with links, and its callbacks, or None."""
    track = await tx.fetchrow(SQL["get_track"], task_id)
    if track is None:
        return None
    return {
        **dict(track),
        "prompt": json.loads(track["prompt"]),
        "clips": [dict(row) for row in await tx.fetch(SQL["list_clips"], task_id)],
        "files": await links.with_links(tx, await files.of_track(tx, task_id)),
        "callbacks": [dict(row) for row in await tx.fetch(SQL["list_callbacks"], task_id)],
    }


async def _apply_waiting(tx: Transaction, task_id: str) -> None:
    """Apply all callbacks that wait for a track, in order of receipt; do nothing if the track is unknown."""
    text = await tx.fetchval(SQL["get_status"], task_id)
    if text is None:
        return
    status = Status(text)
    for row in await tx.fetch(SQL["list_waiting"], task_id):
        callback = Callback(
            task_id=task_id,
            stage=Stage(row["stage"]),
            code=row["code"],
            message=row["message"],
            clips=decode_clips(row["clips"]),
        )
        effect = step(status, callback.stage)
        result, note = ("late", effect.why) if isinstance(effect, Late) else ("applied", "")
        if isinstance(effect, Forward):
            status = effect.status
            await _move(tx, callback, status)
        if result == "applied" and status is Status.COMPLETE:
            await _add_clips(tx, callback)
        await tx.execute(SQL["mark_applied"], row["event_id"], task_id, result, note)
    await client_events.announce(tx, task_id)


async def _move(tx: Transaction, callback: Callback, to: Status) -> None:
    code = message = None
    if to is Status.FAILED:
        code = "ERROR" if callback.code is None or callback.code < 400 else str(callback.code)
        message = callback.message
    is_open = to in {Status.TEXT, Status.FIRST} or (to is Status.COMPLETE and not callback.clips)
    await tx.execute(SQL["move_track"], callback.task_id, to.value, code, message, is_open)


async def _add_clips(tx: Transaction, callback: Callback) -> None:
    for position, clip in enumerate(callback.clips, 1):
        await tx.execute(SQL["put_clip"], callback.task_id, clip.id, position, clip.title, clip.duration_s)
        await files.request_files(tx, callback.task_id, clip)
    if callback.clips:
        await tx.execute(SQL["expect_nothing"], callback.task_id)
