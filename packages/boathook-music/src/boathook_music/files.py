"""The files of clips: which are wanted, and their state."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from boathook import Transaction
from boathook_app_tools.downloads import StoredFile
from boathook_app_tools.statements import load_statements
from boathook_music.app import APPLICATION, hook
from boathook_music.callbacks import Clip
from boathook_music.kinds import Kind, stem_of

WANTED: Final = "file.wanted"
SQL: Final = load_statements(__file__)


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


async def request_files(tx: Transaction, task_id: str, clip: Clip) -> None:
    """Request a clip's files, each once; request again with a new URL if the old one failed."""
    for kind, url in ((Kind.AUDIO, clip.audio_url), (Kind.COVER, clip.cover_url)):
        if url is None:
            continue
        round = await tx.fetchval(SQL["want_file"], task_id, clip.id, kind.value, url, stem_of(task_id, clip.id))
        if round is not None:
            await _publish(tx, FileRef(task_id=task_id, clip_id=clip.id, kind=kind, round=round))


async def request_again(tx: Transaction, task_id: str, clip_id: str, kind: Kind) -> bool:
    """Request a failed or missing file again with the same URL; return whether there was one."""
    round = await tx.fetchval(SQL["want_file_again"], task_id, clip_id, kind.value)
    if round is None:
        return False
    await _publish(tx, FileRef(task_id=task_id, clip_id=clip_id, kind=kind, round=round))
    return True


async def find(tx: Transaction, ref: FileRef) -> tuple[str, str] | None:
    """Return a file's URL and stem, while it is wanted."""
    row = await tx.fetchrow(SQL["find_wanted"], *ref.row)
    return None if row is None else (row["url"], row["stem"])


async def mark_stored(tx: Transaction, ref: FileRef, file: StoredFile) -> bool:
    """Record where a file is stored; return whether it was still wanted."""
    tag = await tx.execute(SQL["mark_stored"], *ref.row, file.key, file.size, file.sha256, file.content_type)
    return tag != "UPDATE 0"


async def mark_failed(tx: Transaction, ref: FileRef, *, is_final: bool, code: str, error: str) -> None:
    """Record why a file is not stored yet, or never will be."""
    await tx.execute(SQL["mark_failed"], *ref.row, "failed" if is_final else "retrying", code, error[:500])


async def with_expired(tx: Transaction, after_s: float) -> list[str]:
    """Return tracks with files whose retry period is over, because a worker that crashes at the end cannot do so."""
    return [row["task_id"] for row in await tx.fetch(SQL["list_expired"], after_s)]


async def give_up(tx: Transaction, task_id: str, after_s: float) -> None:
    """Mark the files of a track as failed whose retry period is over."""
    await tx.execute(SQL["give_up"], after_s, task_id)


async def of_track(tx: Transaction, task_id: str) -> list[dict[str, Any]]:
    """Return a track's files."""
    return [dict(row) for row in await tx.fetch(SQL["list_of_track"], task_id)]


async def content_type_of(tx: Transaction, key: str) -> str | None:
    """Return the content type of a stored file by the key of its object, unless its track was deleted."""
    content_type: str | None = await tx.fetchval(SQL["get_content_type"], key)
    return content_type


async def listed(tx: Transaction, *, state: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
    """Return files, most recently requested first."""
    return [dict(row) for row in await tx.fetch(SQL["list_files"], state, limit)]


async def _publish(tx: Transaction, ref: FileRef) -> None:
    await hook.publish(tx, application=APPLICATION, type=WANTED, payload=asdict(ref))
