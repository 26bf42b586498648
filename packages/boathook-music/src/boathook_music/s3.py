"""Stores files in a bucket of S3, or of a compatible service, through the guarded client.

URLs are path-style. A file is sent by one PUT, which these services accept up to 5 GiB. That is far above the size
limits, so multipart uploads are not needed. The SHA-256 of the file is signed, so the service rejects a corrupted
upload.
"""

import asyncio
import email.utils
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from boathook import BoathookError
from boathook_music.sigv4 import EMPTY, Credentials, encode_path, encode_query, presign, sign
from boathook_music.storage import PAGE, StorageFailed, Stored

_TRIES: Final = 3
_FIRST_WAIT_S: Final = 0.2
_MAX_LISTED: Final = 8_388_608
_TRYING_HELPS: Final = frozenset({429, 500, 502, 503, 504})


class HttpClient(Protocol):
    """The part of the HTTP client that is used."""

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | Path, timeout_s: float, max_bytes: int
    ) -> Any:
        """Send one request; see `boathook.handlers.platform.Http`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket with its credentials."""

    endpoint: str
    name: str
    region: str
    credentials: Credentials
    timeout_s: float = 120.0
    """Timeout in seconds for sending one file."""


class S3:
    """Stores files in a bucket.

    Args:
        bucket: the bucket.
        http: the guarded client; a private address requires ``outbound.allow``.
        clock: returns the time that is signed.
    """

    def __init__(
        self, bucket: Bucket, http: HttpClient, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._bucket = bucket
        self._http = http
        self._clock = clock

    async def put(self, path: Path, key: str, *, content_type: str, sha256: str) -> None:
        """Store a file atomically, replacing the object with the same key."""
        answer = await self._send("PUT", key, headers={"content-type": content_type}, body=path, sha256=sha256)
        _check(answer, f"{key} cannot be stored")

    async def head(self, key: str) -> Stored | None:
        """Return an object, or None if it does not exist."""
        answer = await self._send("HEAD", key)
        if answer.status == 404:
            return None
        _check(answer, f"{key} cannot be read")
        try:
            modified = email.utils.parsedate_to_datetime(answer.headers["last-modified"])
            size = int(answer.headers["content-length"])
        except (KeyError, ValueError):
            raise StorageFailed(f"the storage shows {key} without size or moment", "BAD_ANSWER") from None
        return Stored(key, size, _in_utc(modified))

    async def delete(self, key: str) -> None:
        """Delete an object; it may already be gone."""
        answer = await self._send("DELETE", key)
        if answer.status != 404:
            _check(answer, f"{key} cannot be deleted")

    async def pages(self, prefix: str, *, size: int = PAGE) -> AsyncIterator[Sequence[Stored]]:
        """Yield all objects whose keys start with *prefix*, page by page in the order of their keys."""
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(size), "encoding-type": "url"}
        while True:
            answer = await self._send("GET", "", query=query)
            _check(answer, f"the bucket {self._bucket.name} cannot be listed")
            root = _read(answer.body)
            if _name(root) != "ListBucketResult":
                raise StorageFailed(f"the storage answered with {_name(root)[:60]} in place of a listing", "BAD_ANSWER")
            if page := list(_objects(root)):
                yield page
            token = _text(root, "NextContinuationToken")
            if _text(root, "IsTruncated") != "true" or not token:
                return
            if token == query.get("continuation-token"):
                raise StorageFailed("the storage lists the same page again and again", "BAD_ANSWER")
            query = {**query, "continuation-token": token}

    def link(self, key: str, expires_s: int, at: datetime) -> str:
        """Return a URL with which anyone can read an object for *expires_s* seconds from *at*."""
        bucket = self._bucket
        return presign(
            "GET",
            self._url(key, None),
            credentials=bucket.credentials,
            region=bucket.region,
            at=at,
            expires_s=expires_s,
        )

    async def _send(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path = b"",
        sha256: str = EMPTY,
    ) -> Any:
        """Send one request, with retries after service or network errors; all requests are idempotent."""
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, _TRIES + 1):
            try:
                answer = await self._ask(method, self._url(key, query), headers or {}, body, sha256)
            except BoathookError as error:
                if attempt == _TRIES:
                    raise StorageFailed(f"the storage cannot be reached: {error}", "STORAGE_UNREACHABLE") from None
            else:
                if answer.status not in _TRYING_HELPS or attempt == _TRIES:
                    return answer
            await asyncio.sleep(wait_s * (0.5 + random.random()))
            wait_s *= 4
        raise AssertionError("the last try returns or raises")

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | Path, sha256: str) -> Any:
        bucket = self._bucket
        signed = sign(
            method,
            url,
            headers,
            body_sha256=sha256,
            credentials=bucket.credentials,
            region=bucket.region,
            at=self._clock(),
        )
        return await self._http.request(
            method, url, headers=signed, body=body, timeout_s=bucket.timeout_s, max_bytes=_MAX_LISTED
        )

    def _url(self, key: str, query: Mapping[str, str] | None) -> str:
        path = encode_path(f"/{self._bucket.name}/{key}" if key else f"/{self._bucket.name}")
        return self._bucket.endpoint.rstrip("/") + path + (f"?{encode_query(query)}" if query else "")


def _check(answer: Any, what: str) -> None:
    if answer.is_ok:
        return
    code, message = f"S3_{answer.status}", ""
    try:
        root = _read(answer.body)
        code, message = _text(root, "Code") or code, _text(root, "Message")
    except StorageFailed:  # an HTML page of a proxy, or nothing
        pass
    raise StorageFailed(f"{what}: status {answer.status}, {code[:60]} {message[:200]}".strip(), code[:60])


def _read(body: bytes) -> ET.Element:
    # S3 responses contain no declarations, and entity declarations can make a small document huge.
    if b"<!" in body:
        raise StorageFailed("the storage answered with a document that contains declarations", "BAD_ANSWER")
    try:
        return ET.fromstring(body)  # noqa: S314 - no declarations, and its size is limited
    except (ET.ParseError, ValueError):
        raise StorageFailed("the storage did not answer with XML", "BAD_ANSWER") from None


def _objects(root: ET.Element) -> Iterator[Stored]:
    is_encoded = _text(root, "EncodingType") == "url"
    for one in root:
        if _name(one) != "Contents":
            continue
        key = _text(one, "Key")
        try:
            modified_at = _in_utc(datetime.fromisoformat(_text(one, "LastModified")))
            size = int(_text(one, "Size"))
        except ValueError:
            raise StorageFailed(f"the storage lists {key[:100]!r} without size or moment", "BAD_ANSWER") from None
        yield Stored(unquote_plus(key) if is_encoded else key, size, modified_at)


def _in_utc(moment: datetime) -> datetime:
    # Some services omit the zone; they mean UTC.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _text(parent: ET.Element, name: str) -> str:
    return next((one.text or "" for one in parent if _name(one) == name), "")


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
