"""Stores tracks, the ordered songs, and their callbacks.

All work on one task runs under one lock, so that a callback and the registration of its track see each other in either
order.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

from boathook import Transaction
from boathook_music import client_events, files, links
from boathook_music.callbacks import MAX_ID, Callback, Stage, clip_of, read_id
from boathook_music.settings import problem_of_application
from boathook_music.stages import AddData, Forward, Late, Status, step

_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('music:' || $1, 0))"
_NOTE: Final = """
    insert into music.callback
        (event_id, task_id, delivery_id, stage, code, message, clips, state, received_at)
    values ($1, $2, $3, $4, $5, $6, $7::jsonb, 'waiting', $8)
    on conflict (event_id, task_id) do nothing
"""
_RESULT: Final = "select state from music.callback where event_id = $1 and task_id = $2"
_WAITING: Final = """
    select event_id, stage, code, message, clips from music.callback
    where task_id = $1 and state = 'waiting' order by received_at, event_id
"""
_MOVE: Final = """
    update music.track set status = $2, updated_at = now(),
        error_code = $3, error = $4, completed_at = case when $2 = 'complete' then now() else completed_at end,
        expected_since = case when $5 then now() end, asks = 0, asked_at = null, ask_error = null
    where task_id = $1
"""
_EXPECT_NOTHING: Final = """
    update music.track set expected_since = null, ask_error = null where task_id = $1 and expected_since is not null
"""
_CLIP: Final = """
    insert into music.clip (task_id, clip_id, position, title, duration_s) values ($1, $2, $3, $4, $5)
    on conflict (task_id, clip_id) do update set title = excluded.title, duration_s = excluded.duration_s
"""
_ARCHIVE: Final = """
    update music.track set updated_at = now(), expected_since = case when $2 then null else expected_since end,
        archived_at = case when $2 then coalesce(archived_at, now()) end
    where task_id = $1
"""
_ADD: Final = """
    insert into music.track (task_id, owner, title, prompt, application) values ($1, $2, $3, $4::jsonb, $5)
    on conflict (task_id) do nothing returning task_id
"""
_LIST: Final = """
    select t.task_id, t.owner, t.title, t.status, t.error_code, t.error, t.created_at, t.updated_at, t.completed_at,
        t.archived_at, t.asks, t.asked_at, t.ask_error,
        count(f.kind) as files, count(f.kind) filter (where f.state = 'stored') as stored
    from music.track t left join music.file f using (task_id)
    where ($1::text is null or t.status = $1) and ($2::text is null or t.owner = $2)
        and ($3::text is null or (t.created_at, t.task_id) < (
            select created_at, task_id from music.track where task_id = $3
        ))
        and ($5::float8 is null or (t.status in ('pending', 'text', 'first')
            and t.expected_since < now() - $5 * interval '1 second'))
    group by t.task_id order by t.created_at desc, t.task_id desc limit $4
"""
_KNOWN_WAITING: Final = """
    select distinct task_id from music.callback c
    where state = 'waiting' and exists (select from music.track t where t.task_id = c.task_id) limit 100
"""
_OVERDUE: Final = """
    select count(*) from music.track
    where expected_since < now() - $1 * interval '1 second' and status in ('pending', 'text', 'first')
"""
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
        return f"task_id: {track.task_id[:100]!r} is not a task id; use 1 to {MAX_ID} printable characters"
    for name, longest in _MAX_LENGTH.items():
        text = getattr(track, name)
        if len(text) > longest or not _is_storable(text):
            return f"{name}: write at most {longest} characters, and no NUL"
    if not _is_storable(track.prompt):
        return "prompt: it contains a value that is not JSON, or a NUL, which PostgreSQL cannot store"
    if track.application and (problem := problem_of_application(track.application)):
        return f"application: {problem}"
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
    await tx.execute(_LOCK, task_id)


async def take(tx: Transaction, delivery: Delivery, callbacks: Sequence[Callback]) -> list[CallbackResult]:
    """Record callbacks, and apply them to known tracks; the others wait for their track."""
    taken: list[CallbackResult] = []
    # In the order of task ids, to avoid deadlocks.
    for callback in sorted(callbacks, key=lambda one: one.task_id):
        await lock(tx, callback.task_id)
        clips = json.dumps([clip.as_json() for clip in callback.clips])
        await tx.execute(
            _NOTE,
            delivery.event_id,
            callback.task_id,
            delivery.delivery_id,
            callback.stage.value,
            callback.code,
            callback.message,
            clips,
            delivery.received_at,
        )
        await _apply_waiting(tx, callback.task_id)
        result = await tx.fetchval(_RESULT, delivery.event_id, callback.task_id)
        taken.append(CallbackResult(callback.task_id, callback.stage, result))
    return taken


async def take_record(tx: Transaction, callback: Callback, *, name: str) -> bool:
    """Apply what the reseller said when it was asked; return whether that was news.

    *name* is shown among the track's callbacks.
    """
    await lock(tx, callback.task_id)
    status = await tx.fetchval("select status from music.track where task_id = $1", callback.task_id)
    if status is None:
        return False
    match step(Status(status), callback.stage):
        case Late():
            return False
        case AddData() if not callback.clips:
            return False
        case _:
            delivery = Delivery(event_id=uuid4(), delivery_id=name, received_at=datetime.now(UTC))
            await take(tx, delivery, [callback])
            return True


async def register(tx: Transaction, track: NewTrack) -> bool:
    """Register a track, and apply the callbacks that wait for it; return whether it was unknown."""
    await lock(tx, track.task_id)
    prompt = json.dumps(track.prompt)
    is_new = await tx.fetchval(_ADD, track.task_id, track.owner, track.title, prompt, track.application) is not None
    await _apply_waiting(tx, track.task_id)
    return is_new


async def catch_up(tx: Transaction, task_id: str) -> None:
    """Apply the callbacks that wait for a track inserted by plain SQL."""
    await lock(tx, task_id)
    await _apply_waiting(tx, task_id)


async def with_waiting(tx: Transaction) -> list[str]:
    """Return known tracks for which callbacks wait, at most a hundred."""
    return [row["task_id"] for row in await tx.fetch(_KNOWN_WAITING)]


async def mark_deleted(tx: Transaction, task_id: str) -> bool:
    """Mark a track as deleted, so that cleaning removes its files; return whether there was one."""
    await lock(tx, task_id)
    tag = await tx.execute(
        "update music.track set status = 'deleted', updated_at = now(), expected_since = null"
        " where task_id = $1 and status <> 'deleted'",
        task_id,
    )
    return tag != "UPDATE 0"


async def archive(tx: Transaction, task_id: str, *, is_archived: bool = True) -> bool:
    """Archive a track, so that cleaning keeps its files and nothing is asked for it; return whether there was one.

    With *is_archived* false, end that.
    """
    await lock(tx, task_id)
    return await tx.execute(_ARCHIVE, task_id, is_archived) != "UPDATE 0"


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
    return [dict(row) for row in await tx.fetch(_LIST, status, owner, after, limit, overdue_s)]


async def count_overdue(tx: Transaction, overdue_s: float) -> int:
    """Return the number of unfinished tracks without news for *overdue_s* seconds."""
    return int(await tx.fetchval(_OVERDUE, overdue_s))


async def shown(tx: Transaction, task_id: str) -> dict[str, Any] | None:
    """Return a track with its clips, their files with links, and its callbacks, or None."""
    track = await tx.fetchrow("select * from music.track where task_id = $1", task_id)
    if track is None:
        return None
    clips = await tx.fetch(
        "select clip_id, position, title, duration_s from music.clip where task_id = $1 order by position, clip_id",
        task_id,
    )
    callbacks = await tx.fetch(
        "select delivery_id, stage, code, message, state, note, received_at from music.callback "
        "where task_id = $1 order by received_at, event_id",
        task_id,
    )
    return {
        **dict(track),
        "prompt": json.loads(track["prompt"]),
        "clips": [dict(row) for row in clips],
        "files": await links.with_links(tx, await files.of_track(tx, task_id)),
        "callbacks": [dict(row) for row in callbacks],
    }


async def _apply_waiting(tx: Transaction, task_id: str) -> None:
    """Apply all callbacks that wait for a track, in order of receipt; do nothing if the track is unknown."""
    status = await tx.fetchval("select status from music.track where task_id = $1 for update", task_id)
    if status is None:
        return
    for row in await tx.fetch(_WAITING, task_id):
        callback = Callback(
            task_id=task_id,
            stage=Stage(row["stage"]),
            code=row["code"],
            message=row["message"],
            clips=tuple(map(clip_of, json.loads(row["clips"]))),
        )
        status, result, note = await _apply(tx, Status(status), callback)
        await tx.execute(
            "update music.callback set state = $3, note = $4, applied_at = now() where event_id = $1 and task_id = $2",
            row["event_id"],
            task_id,
            result,
            note,
        )
    await client_events.announce(tx, task_id)


async def _apply(tx: Transaction, status: Status, callback: Callback) -> tuple[Status, str, str]:
    """Apply one callback; return the track's new status, the result, and the reason."""
    match step(status, callback.stage):
        case Late(why=why):
            return status, "late", why
        case AddData():
            await _add_clips(tx, callback)
            return status, "applied", ""
        case Forward(status=to):
            is_failed = to is Status.FAILED
            code = _error_code(callback) if is_failed else None
            is_open = to in {Status.TEXT, Status.FIRST} or (to is Status.COMPLETE and not callback.clips)
            message = callback.message if is_failed else None
            await tx.execute(_MOVE, callback.task_id, to.value, code, message, is_open)
            if to is Status.COMPLETE:
                await _add_clips(tx, callback)
            return to, "applied", ""


async def _add_clips(tx: Transaction, callback: Callback) -> None:
    for position, clip in enumerate(callback.clips, 1):
        await tx.execute(_CLIP, callback.task_id, clip.id, position, clip.title, clip.duration_s)
        await files.request_files(tx, callback.task_id, clip)
    if callback.clips:
        await tx.execute(_EXPECT_NOTHING, callback.task_id)


def _error_code(callback: Callback) -> str:
    return "ERROR" if callback.code is None or callback.code < 400 else str(callback.code)
