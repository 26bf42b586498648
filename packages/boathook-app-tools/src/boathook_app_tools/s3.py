"""Stores files in a bucket of S3, or of a compatible service: botocore's client, whose requests the guarded one sends.

A file is sent by one PUT with its SHA-256 signed, so the service rejects a corrupted upload. These services accept up
to 5 GiB in one PUT, far above the size limits.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import botocore.session
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.parsers import ResponseParserError

from boathook import BoathookError
from boathook_app_tools.storage import PAGE, StorageFailed, Stored

_MAX_LISTED: Final = 8_388_608
_BY_CLIENT: Final = frozenset({"content-length", "expect"})
"""Headers that the guarded client sets itself; they are not signed."""
_CONFIG: Final = Config(
    signature_version="s3v4",
    s3={"addressing_style": "path", "payload_signing_enabled": True},
    retries={"total_max_attempts": 3, "mode": "standard"},
    # Many compatible services do not know the newer checksums.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


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
    key_id: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    timeout_s: float = 120.0
    """Timeout in seconds for sending one file."""


class S3:
    """Stores files in a bucket.

    Args:
        bucket: the bucket.
        http: the guarded client; a private address requires ``outbound.allow``.
    """

    def __init__(self, bucket: Bucket, http: HttpClient) -> None:
        self._bucket = bucket
        self._http = http
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None

    async def put(self, path: Path, key: str, *, content_type: str, sha256: str) -> None:  # noqa: ARG002 - see Storage
        """Store a file atomically, replacing the object with the same key."""
        with await asyncio.to_thread(path.open, "rb") as body:
            problem = f"{key} cannot be stored"
            await self._call(problem, "put_object", Key=key, Body=body, ContentType=content_type)

    async def head(self, key: str) -> Stored | None:
        """Return an object, or None if it does not exist."""
        head = await self._call(f"{key} cannot be read", "head_object", may_be_missing=True, Key=key)
        return None if head is None else _stored(key, head, "ContentLength")

    async def delete(self, key: str) -> None:
        """Delete an object; it may already be gone."""
        await self._call(f"{key} cannot be deleted", "delete_object", may_be_missing=True, Key=key)

    async def pages(self, prefix: str, *, size: int = PAGE) -> AsyncIterator[Sequence[Stored]]:
        """Yield all objects whose keys start with *prefix*, page by page in the order of their keys."""
        problem = f"the bucket {self._bucket.name} cannot be listed"
        query: dict[str, Any] = {"Prefix": prefix, "MaxKeys": size}
        while True:
            page = await self._call(problem, "list_objects_v2", **query)
            if "IsTruncated" not in page:
                raise StorageFailed("the storage did not answer with a listing", "BAD_ANSWER")
            if objects := [_stored(str(entry.get("Key")), entry, "Size") for entry in page.get("Contents", ())]:
                yield objects
            token = page.get("NextContinuationToken")
            if not page["IsTruncated"] or not token:
                return
            if token == query.get("ContinuationToken"):
                raise StorageFailed("the storage lists the same page again and again", "BAD_ANSWER")
            query["ContinuationToken"] = token

    async def link(self, key: str, expires_s: int) -> str:
        """Return a URL with which anyone can read an object for *expires_s* seconds from now."""
        parameters = {"Bucket": self._bucket.name, "Key": key}
        client = await asyncio.to_thread(self._connect)
        return str(client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=expires_s))

    async def _call(self, problem: str, operation: str, *, may_be_missing: bool = False, **parameters: Any) -> Any:
        """Call an operation of botocore's client; all of them are idempotent, and retried by it."""
        self._loop = asyncio.get_running_loop()
        try:
            call = getattr(await asyncio.to_thread(self._connect), operation)
            return await asyncio.to_thread(call, Bucket=self._bucket.name, **parameters)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if may_be_missing and status == 404:
                return None
            code, message = (str(error.response["Error"].get(name, "")) for name in ("Code", "Message"))
            raise StorageFailed(f"{problem}: status {status}, {code[:60]} {message[:200]}".strip(), code[:60]) from None
        except HTTPClientError as error:
            words = f"the storage cannot be reached: {error.kwargs['error']}"
            raise StorageFailed(words, "STORAGE_UNREACHABLE") from None
        except (BotoCoreError, ResponseParserError, ValueError) as error:
            raise StorageFailed(f"{problem}: {str(error)[:200]}", "BAD_ANSWER") from None

    def _connect(self) -> Any:
        if self._client is None:
            bucket = self._bucket
            client = botocore.session.Session().create_client(
                "s3",
                region_name=bucket.region,
                endpoint_url=bucket.endpoint,
                aws_access_key_id=bucket.key_id,
                aws_secret_access_key=bucket.secret_key,
                aws_session_token=bucket.session_token or None,
                config=_CONFIG,
            )
            # What this returns takes the place of a request that botocore would send itself.
            client.meta.events.register("before-send.s3", self._send)
            self._client = client
        return self._client

    def _send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        headers = {
            name.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
            if name.lower() not in _BY_CLIENT
        }
        file = getattr(request.body, "name", None)
        work = self._http.request(
            request.method,
            request.url,
            headers=headers,
            body=Path(file) if file else request.body or b"",
            timeout_s=self._bucket.timeout_s,
            max_bytes=_MAX_LISTED,
        )
        assert self._loop is not None
        try:
            response = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except BoathookError as error:
            raise HTTPClientError(error=error) from None
        return AWSResponse(request.url, response.status, response.headers, _Body(response.body))


class _Body(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def _stored(key: str, values: Mapping[str, Any], size: str) -> Stored:
    try:
        modified_at: datetime = values["LastModified"]
        # Some services omit the zone; they mean UTC.
        modified_at = modified_at if modified_at.tzinfo else modified_at.replace(tzinfo=UTC)
        return Stored(key, int(values[size]), modified_at)
    except KeyError:
        raise StorageFailed(f"the storage lists {key[:100]!r} without its size or LastModified", "BAD_ANSWER") from None
