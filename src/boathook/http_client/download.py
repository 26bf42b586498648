"""Fetches a file, and goes on where an earlier try broke off, if the server still has the same file (RFC 9110, 14)."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from boathook.domain.errors import FetchFailed
from boathook.http_client.curl_easy import CurlEasyClient, Stopped
from boathook.http_client.partial_download import PartialDownload, make_metadata
from boathook.http_client.request import HttpRequest
from boathook.http_client.response import DownloadResult

STALL_S: Final = 30
"""Seconds below a kibibyte a second after which a download is given up."""
_OURS: Final = frozenset({"range", "if-range", "accept-encoding"})
_LONGEST: Final = 30
"""Digits of a length that are read."""
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSpec:
    """A file to be fetched."""

    url: str
    to: Path
    headers: Mapping[str, str]
    max_bytes: int
    timeout_s: float

    def check(self) -> None:
        """Refuse headers that would say which part is asked for. Raises FetchFailed."""
        for name in self.headers:
            if name.lower() in _OURS:
                raise FetchFailed(f"the header {name} is boathook's own to write; leave it out")


class _Changed(Exception):
    """The server has no such part, or of another file: it must be begun anew."""


class _TooLarge(Exception):
    """The file is larger than it may be."""


def download(line: CurlEasyClient, spec: DownloadSpec, is_stopped: Stopped) -> DownloadResult:
    """Fetch a file, blocking the calling thread.

    Raises:
        FetchFailed: it may not or could not be fetched, or is too large; what came is kept unless it is too large.
    """
    spec.check()
    ends_at = time.monotonic() + spec.timeout_s
    with PartialDownload(spec.to, spec.url, is_stopped) as part:
        try:
            try:
                total = _exchange(line, spec, part, ends_at, is_stopped)
            except _Changed:
                part.clear()
                total = _exchange(line, spec, part, ends_at, is_stopped)
        except _TooLarge:
            part.discard()
            raise FetchFailed(f"the file is larger than {spec.max_bytes:,} bytes", is_final=True) from None
        if total is not None and total != part.size:
            raise FetchFailed(f"the file broke off at {part.size:,} of {total:,} bytes")
        content_type = "" if part.note is None else part.note.content_type
        return DownloadResult(part.size, content_type, part.finish())


def _exchange(
    line: CurlEasyClient, spec: DownloadSpec, part: PartialDownload, ends_at: float, is_stopped: Stopped
) -> int | None:
    """Take in what the server sends; return how large it says that the whole file is."""
    headers = dict(spec.headers)
    if part.size and part.note is not None:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.note.validator}
    left_s = ends_at - time.monotonic()
    call = HttpRequest(method="GET", url=spec.url, headers=headers, timeout_s=max(0.001, left_s), stall_s=STALL_S)
    arriving = _Arriving(part, spec)
    line.send(call, arriving, is_stopped)
    return arriving.total


class _Arriving:
    """What comes of the file, written as it comes."""

    def __init__(self, part: PartialDownload, spec: DownloadSpec) -> None:
        self._part = part
        self._url = spec.url
        self._max_bytes = spec.max_bytes
        self.total: int | None = None

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        packed = headers.get("content-encoding", "identity")
        match status:
            case 200 if packed.lower() == "identity":
                self._begin_anew(headers)
            case 206 if self._part.size:
                self._go_on(headers)
            case 416 if self._part.size:
                raise _Changed
            case 200:
                raise FetchFailed(
                    f"the file came packed ({packed[:20]!r}), though it was asked for as it is", status=status
                )
            case 301 | 302 | 303 | 307 | 308:
                raise FetchFailed(
                    f"the server answered with status {status}; redirects are not followed", status=status
                )
            case _:
                raise FetchFailed(f"the server answered with status {status}", status=status)

    def take(self, piece: bytes) -> None:
        self._check_size(self._part.size + len(piece))
        self._part.add(piece)

    def _begin_anew(self, headers: Mapping[str, str]) -> None:
        self.total = None if "transfer-encoding" in headers else _read_length(headers)
        self._check_size(self.total or 0)
        note = make_metadata(
            self._url,
            validator=_validator(headers),
            total=self.total,
            content_type=headers.get("content-type", ""),
        )
        self._part.begin(note)

    def _go_on(self, headers: Mapping[str, str]) -> None:
        """Check that the part that comes is the one that is missing, of the file that the rest is of."""
        note, span = self._part.note, _RANGE.fullmatch(headers.get("content-range", "").strip())
        if note is None or span is None or int(span[1]) != self._part.size:
            raise _Changed
        self.total = note.total if span[3] == "*" else int(span[3])
        # Some servers honour Range and ignore If-Range. A part must carry the file's ETag (RFC 9110, section 15.3.7),
        # and need not carry its Last-Modified.
        is_etag = note.validator.startswith('"')
        named = headers.get("etag", "") if is_etag else headers.get("last-modified", note.validator)
        if named != note.validator or note.total not in {None, self.total}:
            raise _Changed
        self._check_size(self.total or 0)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise _TooLarge


def _read_length(headers: Mapping[str, str]) -> int | None:
    """Return what is announced; libcurl takes a number that is too large for it as none."""
    text = headers.get("content-length", "")
    return int(text[:_LONGEST]) if re.fullmatch(r"[0-9]+", text) else None


def _validator(headers: Mapping[str, str]) -> str:
    """Return what says for certain that a file is still the same, byte by byte; empty where nothing does."""
    etag = headers.get("etag", "")
    if etag.startswith('"') and etag.isascii():
        return etag
    modified = headers.get("last-modified", "")
    try:
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(modified)
        # A file written in this very second may be written again in it.
        return modified if age.total_seconds() >= 1 else ""
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return ""
