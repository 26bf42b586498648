"""The files of clips: which are wanted, and their state."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from boathook import Transaction
from boathook_music.app import APPLICATION, hook
from boathook_music.callbacks import Clip
from boathook_music.kinds import Kind, stem_of

WANTED: Final = "file.wanted"
_WANT: Final = """
    insert into music.file as f (task_id, clip_id, kind, url, stem) values ($1, $2, $3, $4, $5)
    on conflict (task_id, clip_id, kind) do update
        set url = excluded.url, state = 'wanted', round = f.round + 1, error_code = null, error = null,
            wanted_at = now()
        where f.state in ('removed', 'missing') or (f.state in ('failed', 'retrying') and f.url <> excluded.url)
    returning round
"""
_WANT_AGAIN: Final = """
    update music.file set state = 'wanted', round = round + 1, error_code = null, error = null, wanted_at = now()
    where task_id = $1 and clip_id = $2 and kind = $3 and state in ('failed', 'missing', 'retrying') returning round
"""
_FIND: Final = """
    select f.url, f.stem from music.file f join music.track t using (task_id)
    where f.task_id = $1 and f.clip_id = $2 and f.kind = $3 and f.round = $4 and t.status = 'complete'
        and f.state in ('wanted', 'retrying', 'failed')
"""
_STORED: Final = """
    update music.file set state = 'stored', key = $5, size = $6, sha256 = $7, content_type = $8, stored_at = now(),
        error_code = null, error = null
    where task_id = $1 and clip_id = $2 and kind = $3 and round = $4 and state <> 'stored'
"""
_FAILED: Final = """
    update music.file set state = $5, error_code = $6, error = $7
    where task_id = $1 and clip_id = $2 and kind = $3 and round = $4 and state in ('wanted', 'retrying', 'failed')
"""
_GIVE_UP: Final = """
    update music.file set state = 'failed', error_code = coalesce(error_code, 'GIVEN_UP'),
        error = coalesce(error, 'nobody could try it in time')
    where task_id = $2 and state in ('wanted', 'retrying') and wanted_at < now() - $1 * interval '1 second'
"""
_EXPIRED: Final = """
    select distinct task_id from music.file
    where state in ('wanted', 'retrying') and wanted_at < now() - $1 * interval '1 second'
"""
_CONTENT_TYPE: Final = """
    select f.content_type from music.file f join music.track t using (task_id)
    where f.key = $1 collate "C" and f.state = 'stored' and t.status <> 'deleted'
"""
_LIST: Final = """
    select task_id, clip_id, kind, state, round, key, size, sha256, content_type, error_code, error, wanted_at,
        stored_at
    from music.file
"""


class State(StrEnum):
    """The state of a file."""

    WANTED = "wanted"
    RETRYING = "retrying"
    STORED = "stored"
    FAILED = "failed"
    MISSING = "missing"
    """It was stored, but its object is missing."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """A file of a clip, and the number of times it was requested."""

    task_id: str
    clip_id: str
    kind: Kind
    round: int

    @property
    def row(self) -> tuple[str, str, str, int]:
        """The columns that identify it."""
        return self.task_id, self.clip_id, self.kind.value, self.round


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The metadata of a stored file."""

    key: str
    size: int
    sha256: str
    content_type: str


async def request_files(tx: Transaction, task_id: str, clip: Clip) -> None:
    """Request a clip's files, each once; request again with a new URL if the old one failed."""
    for kind, url in ((Kind.AUDIO, clip.audio_url), (Kind.COVER, clip.cover_url)):
        if url is None:
            continue
        round = await tx.fetchval(_WANT, task_id, clip.id, kind.value, url, stem_of(task_id, clip.id))
        if round is not None:
            await _publish(tx, FileRef(task_id=task_id, clip_id=clip.id, kind=kind, round=round))


async def request_again(tx: Transaction, task_id: str, clip_id: str, kind: Kind) -> bool:
    """Request a failed or missing file again with the same URL; return whether there was one."""
    round = await tx.fetchval(_WANT_AGAIN, task_id, clip_id, kind.value)
    if round is None:
        return False
    await _publish(tx, FileRef(task_id=task_id, clip_id=clip_id, kind=kind, round=round))
    return True


async def find(tx: Transaction, ref: FileRef) -> tuple[str, str] | None:
    """Return a file's URL and stem, while it is wanted."""
    row = await tx.fetchrow(_FIND, *ref.row)
    return None if row is None else (row["url"], row["stem"])


async def mark_stored(tx: Transaction, ref: FileRef, kept: StoredFile) -> bool:
    """Record where a file is stored; return whether it was still wanted."""
    tag = await tx.execute(_STORED, *ref.row, kept.key, kept.size, kept.sha256, kept.content_type)
    return tag != "UPDATE 0"


async def mark_failed(tx: Transaction, ref: FileRef, *, is_final: bool, code: str, error: str) -> None:
    """Record why a file is not stored yet, or never will be."""
    await tx.execute(_FAILED, *ref.row, "failed" if is_final else "retrying", code, error[:500])


async def with_expired(tx: Transaction, after_s: float) -> list[str]:
    """Return tracks with files whose retry period is over, because a worker that crashes at the end cannot do so."""
    return [row["task_id"] for row in await tx.fetch(_EXPIRED, after_s)]


async def give_up(tx: Transaction, task_id: str, after_s: float) -> None:
    """Mark the files of a track as failed whose retry period is over."""
    await tx.execute(_GIVE_UP, after_s, task_id)


async def of_track(tx: Transaction, task_id: str) -> list[dict[str, Any]]:
    """Return a track's files."""
    return [dict(row) for row in await tx.fetch(f"{_LIST} where task_id = $1 order by clip_id, kind", task_id)]


async def content_type_of(tx: Transaction, key: str) -> str | None:
    """Return the content type of a stored file by the key of its object, unless its track was deleted."""
    content_type: str | None = await tx.fetchval(_CONTENT_TYPE, key)
    return content_type


async def listed(tx: Transaction, *, state: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
    """Return files, most recently requested first."""
    sql = f"{_LIST} where $1::text is null or state = $1 order by wanted_at desc, task_id, clip_id, kind limit $2"
    return [dict(row) for row in await tx.fetch(sql, state, limit)]


async def _publish(tx: Transaction, ref: FileRef) -> None:
    await hook.publish(tx, application=APPLICATION, type=WANTED, payload=asdict(ref))
