"""Fetches a file into storage: with size limits, with its format detected by content, under its own name."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from boathook import BoathookError
from boathook_app_tools.file_types import HEAD, extension_of
from boathook_app_tools.storage import Storage, StorageFailed

EXPIRED: Final = frozenset({401, 403, 404, 410})
"""The statuses with which file servers respond to expired URLs."""
STORAGE: Final = "storage"
"""The name of the storage as a dependency."""
_WORTH_TRYING: Final = frozenset({408, 425, 429})


class DownloadFailed(BoathookError):
    """A file could not be stored.

    Args:
        message: one sentence.
        code: one word for machines.
        is_final: whether a retry is pointless.
        dependency: the host that failed, if one did.
    """

    def __init__(self, message: str, code: str, *, is_final: bool, dependency: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.is_final = is_final
        self.dependency = dependency


class StorageUnavailable(DownloadFailed):
    """The storage did not take the file; the dependency is ``storage``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The metadata of a stored file."""

    key: str
    size: int
    sha256: str
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Everything needed to store one file."""

    url: str
    stem: str
    kind: str
    """What it must be, such as ``audio``; part of the code if it is not."""
    formats: Mapping[str, str]
    """The allowed content types by extension; see `file_types`."""
    max_bytes: int
    timeout_s: float
    incoming: Path
    """The folder for unfinished downloads."""
    http: Any
    """A `boathook.handlers.platform.Http`."""
    storage: Storage

    @property
    def path(self) -> Path:
        """The downloaded file; its name includes the URL, because content from another URL is another file."""
        name = hashlib.sha256(f"{self.kind} {self.stem} {self.url}".encode()).hexdigest()[:40]
        return self.incoming / f"{name}.{self.kind}"


async def keep(work: Download) -> StoredFile:
    """Fetch a file and put it into storage. Raises DownloadFailed, and StorageUnavailable, which is one.

    A partial download is resumed by the next attempt on this host.
    """
    try:
        return await _keep(work)
    except StorageFailed as error:
        raise StorageUnavailable(str(error), error.code, is_final=False, dependency=STORAGE) from None
    except FileNotFoundError:  # a worker that lost its lease was faster
        raise DownloadFailed("another attempt is at the same file", "BUSY", is_final=False) from None
    except OSError as error:
        words = f"files cannot be fetched to {work.incoming}: {error.strerror or error}"
        raise DownloadFailed(words, "INCOMING_FAILED", is_final=False) from None


async def _keep(work: Download) -> StoredFile:
    await asyncio.to_thread(work.incoming.mkdir, parents=True, exist_ok=True)
    if not await asyncio.to_thread(work.path.is_file):  # else an earlier attempt ended between fetching and storing
        try:
            await work.http.download(work.url, work.path, max_bytes=work.max_bytes, timeout_s=work.timeout_s)
        except BoathookError as error:
            raise _judge(error) from None
    size, sha256, head = await asyncio.to_thread(_measure, work.path)
    extension = extension_of(head)
    if extension not in work.formats:
        await asyncio.to_thread(work.path.unlink, missing_ok=True)
        code = f"NOT_{work.kind.upper()}"
        raise DownloadFailed(f"the content at the address is not {work.kind}", code, is_final=True)
    content_type = work.formats[extension]
    file = StoredFile(key=f"{work.stem}.{extension}", size=size, sha256=sha256, content_type=content_type)
    await work.storage.put(work.path, file.key, content_type=file.content_type, sha256=sha256)
    await asyncio.to_thread(work.path.unlink, missing_ok=True)
    return file


def _judge(error: BoathookError) -> DownloadFailed:
    status, host = getattr(error, "status", None), getattr(error, "host", None)
    code = "DOWNLOAD_FAILED" if status is None else f"HTTP_{status}"
    if status in EXPIRED:
        return DownloadFailed(f"the address has expired: {error}", "URL_EXPIRED", is_final=True, dependency=host)
    if status is not None and 300 <= status < 500 and status not in _WORTH_TRYING:
        return DownloadFailed(str(error), code, is_final=True, dependency=host)
    if getattr(error, "is_final", False):
        return DownloadFailed(str(error), "REFUSED", is_final=True, dependency=host)
    return DownloadFailed(str(error), code, is_final=False, dependency=host)


def _measure(path: Path) -> tuple[int, str, bytes]:
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(0)
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest(), head
