"""Downloads a file, and resumes an interrupted download if the server still has the same file (RFC 9110, 14).

An incomplete file is `NAME.part` in the target's directory, with a metadata file that says what it is a part of. Only
one process and thread at a time works on it, by flock(2). Data written by a killed process is intact, because the
kernel has it. Data written before a power failure may have holes, so metadata of an earlier boot is ignored.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Final, Self

import msgspec

from boathook.domain.errors import FetchFailed
from boathook.http_client.messages import DownloadResult, host_of
from boathook.http_client.response import ResponseStream

STALL_S: Final = 30
"""Seconds below 1 KiB/s after which a download fails."""
_OURS: Final = frozenset({"range", "if-range", "accept-encoding"})
_MAX_DIGITS: Final = 30
"""Maximum digits of a Content-Length that are read."""
OpenResponse = Callable[[Mapping[str, str], float, int], ResponseStream]
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
LOCK_S: Final = 5.0
"""Seconds to wait for another download of the same file, which may be about to end."""
_LOOK_S: Final = 0.02
_PIECE: Final = 1_048_576
_MAX_NOTE: Final = 262_144
_PRINTED: Final = re.compile(r"[ -~]*")


class DownloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be downloaded."""

    url: str
    to: Path
    headers: Mapping[str, str]
    max_bytes: int
    timeout_s: float

    def check(self) -> None:
        """Reject headers that would select a part of the file. Raises FetchFailed."""
        for name in self.headers:
            if name.lower() in _OURS:
                raise FetchFailed(f"the header {name} is set by boathook; remove it", is_final=True)


class _Changed(Exception):
    """The server does not have this part, or the file has changed: the download must start again."""


class _TooLarge(Exception):
    """The file exceeds its size limit."""


def download(spec: DownloadSpec, open_response: OpenResponse, is_stopped: Callable[[], bool]) -> DownloadResult:
    """Download a file, blocking the calling thread.

    Args:
        spec: the file to download.
        open_response: starts a GET request with headers in addition to the spec's, a timeout in seconds, and the
            seconds it may stall.
        is_stopped: returns whether to stop the download.

    Raises:
        FetchFailed: it is not allowed, failed, or is too large; the partial file is kept unless it is too large.
    """
    if is_stopped():
        raise FetchFailed("shutting down")
    spec.check()
    ends_at = time.monotonic() + spec.timeout_s
    with PartialDownload(spec.to, spec.url, is_stopped) as part:
        try:
            try:
                total = _fetch(spec, part, open_response, ends_at)
            except _Changed:
                part.clear()
                total = _fetch(spec, part, open_response, ends_at)
        except _TooLarge:
            part.discard()
            raise FetchFailed(f"the file is larger than {spec.max_bytes:,} bytes", is_final=True) from None
        if total is not None and total != part.size:
            raise FetchFailed(f"the file broke off at {part.size:,} of {total:,} bytes")
        content_type = "" if part.note is None else part.note.content_type
        return DownloadResult(part.size, content_type, part.complete())


def _fetch(spec: DownloadSpec, part: "PartialDownload", open_response: OpenResponse, ends_at: float) -> int | None:
    """Write the response; return the size of the whole file as the server announced it."""
    ranges: dict[str, str] = {}
    if part.size and part.note is not None:
        ranges = {"Range": f"bytes={part.size}-", "If-Range": part.note.validator}
    left_s = max(0.001, ends_at - time.monotonic())
    with _opened(open_response(ranges, left_s, STALL_S)) as response:
        total = _begin(response, spec, part)
        _check_size(total or 0, spec)
        while piece := response.read().result():
            _check_size(part.size + len(piece), spec)
            part.add(piece)
        return total


@contextlib.contextmanager
def _opened(response: ResponseStream) -> Iterator[ResponseStream]:
    """Wait for the head of a response, and on exit until its connection is closed."""
    try:
        response.started.result()
        yield response
    finally:
        response.close()
        response.ended.result()


def _begin(response: ResponseStream, spec: DownloadSpec, part: "PartialDownload") -> int | None:
    """Read the head of the response, and reset the part if it brings the whole file; return the file's size."""
    status, headers = response.status, response.headers
    packed = headers.get("content-encoding", "identity")
    match status:
        case 200 if packed.lower() == "identity":
            total = None if "transfer-encoding" in headers else _read_length(headers)
            content_type = headers.get("content-type", "")
            part.begin(make_metadata(spec.url, validator=_validator(headers), total=total, content_type=content_type))
            return total
        case 206 if part.size:
            return go_on(headers, part)
        case 416 if part.size:
            raise _Changed
        case 200:
            problem = f"the server compressed the file ({packed[:20]!r}), although the request forbids it"
        case 301 | 302 | 303 | 307 | 308:
            problem = f"the server answered with status {status}; redirects are not followed"
        case _:
            problem = f"the server answered with status {status}"
    raise FetchFailed(f"{response.origin}: {problem}", status=status, host=host_of(response.origin), headers=headers)


def go_on(headers: Mapping[str, str], part: "PartialDownload") -> int | None:
    """Check that the response is the missing part of the same file; return the file's size."""
    note, span = part.note, _RANGE.fullmatch(headers.get("content-range", "").strip())
    if note is None or span is None or int(span[1]) != part.size:
        raise _Changed
    total = note.total if span[3] == "*" else int(span[3])
    # Some servers honour Range and ignore If-Range. A partial response must have the file's ETag (RFC 9110, section
    # 15.3.7), but need not have its Last-Modified.
    is_etag = note.validator.startswith('"')
    validator = headers.get("etag", "") if is_etag else headers.get("last-modified", note.validator)
    if validator != note.validator or note.total not in {None, total}:
        raise _Changed
    return total


def _check_size(size: int, spec: DownloadSpec) -> None:
    if size > spec.max_bytes:
        raise _TooLarge


def _read_length(headers: Mapping[str, str]) -> int | None:
    """Return the announced size; libcurl ignores a number that is too large for it."""
    text = headers.get("content-length", "")
    return int(text[:_MAX_DIGITS]) if re.fullmatch(r"[0-9]+", text) else None


def _validator(headers: Mapping[str, str]) -> str:
    """Return a validator that guarantees that the file is byte-identical, or an empty text if there is none."""
    etag = headers.get("etag", "")
    if etag.startswith('"') and etag.isascii():
        return etag
    modified = headers.get("last-modified", "")
    try:
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(modified)
        # A file written in this second may be written again within it.
        return modified if age.total_seconds() >= 1 else ""
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return ""


class PartialMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Describes which file the bytes of a part belong to."""

    url: str
    """SHA-256 of the URL, because URLs may contain credentials."""
    validator: str
    """The If-Range value: a strong ETag, or else a Last-Modified; empty if the download cannot be resumed."""
    total: int | None
    """Size of the whole file in bytes."""
    content_type: str
    boot: str
    """The machine's boot id when the part was written."""


def make_metadata(url: str, *, validator: str, total: int | None, content_type: str) -> PartialMetadata:
    """Return the metadata of a download from *url*."""
    digest = hashlib.sha256(url.encode()).hexdigest()
    return PartialMetadata(url=digest, validator=validator, total=total, content_type=content_type, boot=_boot())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class PartialDownload:
    """The partial file of one download, open and locked.

    Args:
        target: the path of the complete file.
        url: the file's URL; data from another URL is discarded.
        is_stopped: returns whether to stop waiting for the lock.

    Raises:
        FetchFailed: another download of the same file is in progress, or a file cannot be written.
    """

    def __init__(self, target: Path, url: str, is_stopped: Callable[[], bool]) -> None:
        self._target = target
        self._path = target.with_name(f"{target.name}.part")
        self._note_path = target.with_name(f"{target.name}.part.json")
        self._is_ours = True
        """Whether the part's path still refers to the locked file, and not to another download's."""
        with writing(self._target.name):
            self._file = self._open(is_stopped)
            try:
                self._begin(url)
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.size == 0:
                self.discard()
        finally:
            self._file.close()

    def _open(self, is_stopped: Callable[[], bool]) -> FileIO:
        ends_at = time.monotonic() + LOCK_S
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            opened = FileIO(descriptor, "r+b")
            if self._lock(opened):
                return opened
            opened.close()
            if is_stopped() or time.monotonic() > ends_at:
                raise FetchFailed(f"another download to {self._target.name} is in progress")
            time.sleep(_LOOK_S)

    def _lock(self, opened: FileIO) -> bool:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have renamed the file meanwhile: the lock would then be on the complete file.
            return os.path.samestat(os.fstat(opened.fileno()), self._path.stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def _begin(self, url: str) -> None:
        """Load the partial file of an earlier download, or discard it."""
        self._hash = hashlib.sha256()
        self.size = 0
        self.note = self._read_note()
        metadata = make_metadata(url, validator="", total=None, content_type="")
        is_same = self.note is not None and (self.note.url, self.note.boot) == (metadata.url, metadata.boot)
        if self.note is None or not is_same or not self.note.validator:
            self.clear()
            return
        if self.note.total is not None and os.fstat(self._file.fileno()).st_size >= self.note.total:
            # The last byte is requested again, so that the server confirms that it still has this file.
            self._file.truncate(max(0, self.note.total - 1))
        while piece := self._file.read(_PIECE):
            self._hash.update(piece)
            self.size += len(piece)

    def _read_note(self) -> PartialMetadata | None:
        """Return the metadata, or None if the file is missing or was not written by boathook."""
        try:
            # Opening a pipe could block forever, and a symbolic link could point elsewhere.
            descriptor = os.open(self._note_path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with FileIO(descriptor) as opened:
                note = msgspec.json.decode(opened.read(_MAX_NOTE) or b"", type=PartialMetadata)
        except (OSError, ValueError, RecursionError):
            return None
        return note if _PRINTED.fullmatch(note.validator) else None

    def clear(self) -> None:
        """Discard all data."""
        with writing(self._target.name):
            self._file.seek(0)
            self._file.truncate()
        self._hash = hashlib.sha256()
        self.size, self.note = 0, None

    def begin(self, note: PartialMetadata) -> None:
        """Start again, and store what the following bytes belong to."""
        self.clear()
        self.note = note
        with writing(self._target.name):
            self._note_path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with FileIO(os.open(self._note_path, flags, 0o644), "w") as opened:
                opened.write(msgspec.json.encode(note))

    def add(self, piece: bytes) -> None:
        """Append a piece."""
        with writing(self._target.name):
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._hash.update(piece)
        self.size += len(piece)

    def complete(self) -> str:
        """Turn the part into the complete file; return its SHA-256 in hexadecimal digits."""
        with writing(self._target.name):
            os.fsync(self._file.fileno())
            self._note_path.unlink(missing_ok=True)
            self._path.replace(self._target)
            self._is_ours = False
            _sync_folder(self._target.parent)
        return self._hash.hexdigest()

    def discard(self) -> None:
        """Delete the part and its metadata."""
        if not self._is_ours:
            return
        with writing(self._target.name):
            self._note_path.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        self._is_ours = False


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn disk errors inside the block into clear FetchFailed errors."""
    try:
        yield
    except OSError as error:
        raise FetchFailed(f"{name} cannot be written: {error.strerror or error}") from error
    except ValueError as error:  # an invalid file name
        raise FetchFailed(f"{name!r} cannot be written: {error}", is_final=True) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
