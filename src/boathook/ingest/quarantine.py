"""Stores a sample of rejected requests, so that operators can see why and verify them again with another secret.

Unauthenticated clients control how often this is called, so everything is bounded: a rate, an in-memory queue, a
truncated body, and one batched write at a time. Requests beyond these bounds are counted and dropped. Three kinds of
rejections have bounds of their own, so that none displaces another: of requests that failed verification and of those
rejected by their head, for each source, and of requests that belong to no source. Credentials are never stored.
"""

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from msgspec.structs import replace

from boathook.db.rejections import NewRejection
from boathook.domain.errors import DatabaseError
from boathook.domain.verification import HEAD_REASONS, Reason, Rejected, Request
from boathook.http.limits import RateLimiter
from boathook.observability import meters
from boathook.observability.log import get_logger

MAX_STORED_BODY: Final = 65_536
_MAX_STORED_TEXT: Final = 8_192  # verification reads no more of a signature header
MAX_WAITING: Final = 1_000
MAX_WAITING_OF_NO_SOURCE: Final = 100
_MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
_BATCH: Final = 100
_BATCH_DELAY_S: Final = 0.25
_RETRY_S: Final = 5.0
_ALWAYS_STORED: Final = ("content-type", "content-encoding", "user-agent")
CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "x-gitlab-token"})

_LOG = get_logger("quarantine")

Explain = Callable[[], str | None]
Write = Callable[[Sequence[NewRejection]], Awaitable[None]]


class Quarantine:
    """Writes rejected requests to the database in batches.

    Args:
        write: stores a batch.
        per_second: maximum rejections per second of each kind and source; 0 stores none.
    """

    def __init__(self, write: Write, *, per_second: float) -> None:
        self._write = write
        self._rate = RateLimiter(per_second, max(1, int(per_second))) if per_second > 0 else None
        self._waiting: deque[NewRejection] = deque()
        self._of_no_source = 0
        self._bytes = 0
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the writer task; requires a running event loop."""
        self._task = asyncio.create_task(self._run(), name="quarantine")

    async def drain(self) -> None:
        """Write the queued rejections once, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            while self._waiting:
                await self._write_some()
        except DatabaseError as error:
            _LOG.warning("rejections_dropped", count=len(self._waiting), error=str(error))

    def add(
        self,
        identifier: UUID,
        source: str,
        request: Request,
        verdict: Rejected,
        reverify_headers: frozenset[str],
        secret_queries: Collection[str] = (),
        explain: Explain | None = None,
        *,
        size: int | None = None,
    ) -> str:
        """Queue a rejected request that was admitted; return its detail with the hint.

        Args:
            identifier: the rejection's id, created when the request was rejected.
            source: the source's name; empty if the request belongs to none.
            request: the request as received; one that was rejected by its head has no body.
            verdict: why it was rejected.
            reverify_headers: headers needed to verify it again; see `Verifier.reverify_headers`.
            secret_queries: query parameters of any source that hold a token, as the request may be for the wrong
                source.
            explain: looks for a common mistake behind the rejection; called only if the request is stored.
            size: the announced bytes of a body that was not read; by default those of the request's body.
        """
        if explain is not None and (hint := explain()) is not None:
            verdict = replace(verdict, detail=f"{verdict.detail}; {hint}")
        rejection = _to_rejection(identifier, source, request, verdict, reverify_headers, secret_queries)
        self._waiting.append(rejection if size is None else replace(rejection, body_size=size))
        self._bytes += len(rejection.body)
        self._of_no_source += not source
        self._has_work.set()
        return verdict.detail

    def admit(self, source: str, reason: Reason, size: int = 0) -> bool:
        """Return whether there is room for a rejected request with a body of *size* bytes; count it as dropped if not.

        Call it before `add`, so that a flood costs no more than this.
        """
        is_admitted = self._has_room(source, reason, min(size, MAX_STORED_BODY))
        if not is_admitted:
            meters.count("boathook_rejections_dropped_total", source=source)
        return is_admitted

    def _has_room(self, source: str, reason: Reason, stored_bytes: int) -> bool:
        kind = f"{source}\x00head" if reason in HEAD_REASONS else source
        if self._rate is None or self._rate.wait_s(kind, time.monotonic()) > 0:
            return False
        if not source:
            return self._of_no_source < MAX_WAITING_OF_NO_SOURCE
        is_full = len(self._waiting) - self._of_no_source >= MAX_WAITING
        return not is_full and self._bytes + stored_bytes <= _MAX_WAITING_BYTES

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(_BATCH_DELAY_S)
            try:
                await self._write_some()
            except DatabaseError as error:
                _LOG.warning("rejections_wait", count=len(self._waiting), error=str(error))
                await asyncio.sleep(_RETRY_S)
            if not self._waiting:
                self._has_work.clear()

    async def _write_some(self) -> None:
        batch = [self._waiting[i] for i in range(min(_BATCH, len(self._waiting)))]
        await self._write(batch)
        for rejection in batch:
            self._waiting.popleft()
            self._bytes -= len(rejection.body)
            self._of_no_source -= not rejection.source


def _to_rejection(
    id: UUID,
    source: str,
    request: Request,
    verdict: Rejected,
    reverify_headers: frozenset[str],
    secret_queries: Collection[str],
) -> NewRejection:
    return NewRejection(
        id=id,
        source=source,
        status=verdict.status,
        reason=verdict.reason,
        detail=_storable_text(verdict.detail),
        client_address=request.client,
        method=request.method,
        url=_storable_text(redact_query(request.url, secret_queries)),
        headers=json.dumps(stored_headers(request.headers, reverify_headers)),
        content_type=_storable_text(request.headers.get("content-type", "")),
        body=request.body[:MAX_STORED_BODY],
        body_size=len(request.body),
    )


def stored_headers(headers: Mapping[str, str], reverify_headers: frozenset[str]) -> dict[str, str]:
    """Return the headers a rejection stores; a credential is replaced by its hash, so that two can be compared."""
    stored_values = {
        name: _storable_text(headers[name]) for name in (*_ALWAYS_STORED, *sorted(reverify_headers)) if name in headers
    }
    for name in CREDENTIALS & headers.keys():
        stored_values[name] = _hashed(headers[name])
    return stored_values


def redact_query(url: str, secret: Collection[str]) -> str:
    """Return *url* with the values of *secret* query parameters replaced by their hashes."""
    base, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    if not any(name in secret for name, _ in pairs):
        return url
    return f"{base}?{urlencode([(name, _hashed(value) if name in secret else value) for name, value in pairs])}"


def _hashed(value: str) -> str:
    return "sha256:" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _storable_text(text: str) -> str:
    """Make text storable: PostgreSQL accepts neither NUL nor lone surrogates."""
    return (
        text[:_MAX_STORED_TEXT].replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    )
