"""Queries for pages about applications and endpoints, which never read the whole history.

Lists are read in scans. A scan reads a bounded number of rows, newest first, keeps those that match, and returns its
position. Rare rows therefore cost no more than common ones, and the caller decides whether to continue.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from boathook.db.applications import MAX_ID, Application
from boathook.db.database import Connection, Database, Record
from boathook.db.messages import uid_of
from boathook.db.queries.listings import like_pattern
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.health import AttemptResults
from boathook.observability.metrics import SECONDS

SQL = load(__file__)
MAX_MEASURED: Final = 20_000
"""Attempts that a measurement reads."""
LATENCY_BOUNDS_MS: Final = tuple(1000 * bound for bound in SECONDS)
"""Upper bounds of the latency buckets in milliseconds, the same as in the histograms of metrics."""
MAX_SEARCHED: Final = 5_000
"""Endpoints that a search reads."""
SCAN_ROWS: Final = 2_000
"""Rows that one step of a scan reads."""

Row = TypeVar("Row")


class ScanPage(msgspec.Struct, Generic[Row], frozen=True):
    """The rows that one step of a scan found."""

    rows: list[Row]
    place: UUID | None
    """Where the next step continues; None if there is nothing further."""


class ApplicationSummary(msgspec.Struct, frozen=True):
    """An application in a list."""

    application: Application
    endpoints: int
    disabled: int


class EndpointHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The failures of an endpoint since it last succeeded, and its circuit breaker."""

    failures: int = 0
    """Consecutive failures."""
    failing_since: datetime | None = None
    last_failed_at: datetime | None = None
    open_until: datetime | None = None
    """Until when deliveries are paused, if they are."""


class UnhealthyEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that is disabled or whose newest attempt failed."""

    application_id: UUID
    application_name: str
    id: UUID
    url: str
    is_disabled: bool
    disabled_because: str | None
    disabled_at: datetime | None


class SecretValidity(msgspec.Struct, frozen=True):
    """When a secret starts and stops signing; None: until it is rotated."""

    created_at: datetime
    expires_at: datetime | None


class TimeBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the attempts in one time bucket."""

    start: datetime
    succeeded: int = 0
    failed: int = 0


class AttemptStats(msgspec.Struct, frozen=True, kw_only=True):
    """Results and durations of a recipient's attempts in a period."""

    succeeded: int
    failed: int
    p50_ms: float | None
    """None if there were none."""
    p95_ms: float | None
    p99_ms: float | None
    latencies: tuple[int, ...]
    """Attempts by duration: one number for each of `LATENCY_BOUNDS_MS`, and one for longer ones."""
    stretches: tuple[TimeBucket, ...]
    """All time buckets, including those without attempts, earliest first."""
    span_s: float
    """Length in seconds of the time in which they were counted."""
    cut_at: datetime | None = None
    """The earliest attempt that was read, if there were too many to read all."""

    @property
    def total(self) -> int:
        """All attempts that were read."""
        return self.succeeded + self.failed

    @property
    def rate(self) -> float:
        """Attempts per second."""
        return self.total / self.span_s if self.span_s > 0 else 0.0

    @property
    def error_share(self) -> float:
        """The share of the attempts that failed."""
        return self.failed / self.total if self.total else 0.0


class AttemptSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt in a list."""

    id: UUID
    event_id: UUID
    type: str
    status: int
    """0 if there was no response."""
    duration_ms: int
    is_success: bool
    is_manual: bool
    error: str | None

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.ATTEMPT, self.id)

    @property
    def message(self) -> str:
        """The public id of its message."""
        return ids.show(ids.MESSAGE, self.event_id)

    @property
    def at(self) -> datetime:
        """When the attempt was made."""
        return ids.created_at(self.id)


class MessageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a list, with the number of its deliveries by state."""

    id: UUID
    type: str
    uid: str | None
    channels: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    deliver_at: datetime | None
    succeeded: int
    waiting: int
    dead: int

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.MESSAGE, self.id)

    @property
    def at(self) -> datetime:
        """When it was published."""
        return ids.created_at(self.id)


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data of a sent request."""

    number: int
    """Number of the attempt at its delivery."""
    code: str | None
    started_at: datetime
    headers: tuple[tuple[str, str], ...]
    worker: str


async def search_applications(
    connection: Connection, organization: str, words: str | None, place: UUID | None, *, limit: int
) -> list[ApplicationSummary]:
    """Return applications whose name or uid contains *words*, newest first, after *place* (exclusive)."""
    pattern = None if words is None else like_pattern(f"*{words}*")
    rows = await connection.fetch(SQL["search_applications"], organization, place or MAX_ID, pattern, limit)
    return [ApplicationSummary(_application(row), row["endpoints"], row["disabled"]) for row in rows]


class FoundEndpoint(msgspec.Struct, frozen=True):
    """An endpoint that a search has found."""

    id: UUID
    url: str
    application_id: UUID
    application_name: str


async def search_endpoints(
    connection: Connection, organization: str, words: str, *, limit: int
) -> Sequence[FoundEndpoint]:
    """Return endpoints whose URL, uid or description contains *words*, of the newest `MAX_SEARCHED`, newest first."""
    pattern = like_pattern(f"*{words}*")
    rows = await connection.fetch(SQL["search_endpoints"], organization, pattern, MAX_SEARCHED, limit)
    return [FoundEndpoint(**dict(row)) for row in rows]


def _application(row: Record) -> Application:
    names = (
        "id",
        "organization",
        "uid",
        "imported_id",
        "name",
        "throttle_rate",
        "is_operational",
        "created_at",
        "updated_at",
    )
    return Application(**{name: row[name] for name in names}, metadata=msgspec.json.decode(row["metadata"]))


async def find_owner(
    connection: Connection, organization: str, endpoint_id: UUID, *, only: UUID | None = None
) -> UUID | None:
    """Return the organization's application that owns an endpoint; *only* is the only one that it may be."""
    owner: UUID | None = await connection.fetchval(SQL["find_owner"], organization, endpoint_id, only)
    return owner


async def list_unhealthy(connection: Connection, organization: str, *, limit: int) -> list[UnhealthyEndpoint]:
    """Return an organization's endpoints that are disabled or whose newest attempt failed, latest change first."""
    rows = await connection.fetch(SQL["list_troubled"], organization, limit)
    own = ("application_id", "application_name", "id", "url", "is_disabled", "disabled_because", "disabled_at")
    return [UnhealthyEndpoint(**{name: row[name] for name in own}) for row in rows]


async def read_results(
    database: Database | Connection, endpoint_ids: Sequence[UUID], since: datetime
) -> Mapping[UUID, AttemptResults]:
    """Return the results of the latest `MAX_MEASURED` attempts of each endpoint since a time.

    If the newest succeeded, no other attempt is counted, because its health is then the same.
    """
    recipients = [_recipient(endpoint_id) for endpoint_id in endpoint_ids]
    rows = await database.fetch(SQL["count_results"], list(endpoint_ids), recipients, ids.first_of(since), MAX_MEASURED)
    return {row["id"]: AttemptResults(row["succeeded"], row["failed"], bool(row["is_newest_failed"])) for row in rows}


async def list_health(connection: Connection, endpoint_ids: Sequence[UUID]) -> Mapping[UUID, EndpointHealth]:
    """Return the health of these endpoints, without those that never failed."""
    rows = await connection.fetch(SQL["list_health"], list(endpoint_ids))
    return {row["endpoint_id"]: _health(row) for row in rows}


def _health(row: Record) -> EndpointHealth:
    names = ("failing_since", "last_failed_at", "open_until")
    return EndpointHealth(failures=row["failures"] or 0, **{name: row[name] for name in names})


async def find_disabled_by(connection: Connection, endpoint: str) -> str | None:
    """Return who last disabled the endpoint with this public id."""
    actor: str | None = await connection.fetchval(SQL["find_disabler"], endpoint)
    return actor


async def list_secrets(connection: Connection, endpoint_id: UUID) -> list[SecretValidity]:
    """Return the validity of an endpoint's secrets: the current one first, then old ones that still sign."""
    rows = await connection.fetch(SQL["list_secrets"], endpoint_id)
    return [SecretValidity(row["created_at"], row["expires_at"]) for row in rows]


async def measure_attempts(
    connection: Connection, endpoint_id: UUID, now: datetime, span: timedelta, width: timedelta
) -> AttemptStats:
    """Measure an endpoint's attempts in the *span* before *now*, in buckets of *width*."""
    since = ids.first_of(now - span)
    arguments = (since, MAX_MEASURED, width, list(LATENCY_BOUNDS_MS))
    rows = await connection.fetch(SQL["measure_attempts"], _recipient(endpoint_id), *arguments)
    (whole,) = (row for row in rows if row["grouped"] == _WHOLE)
    total = whole["succeeded"] + whole["failed"]
    p50, p95, p99 = whole["durations"] or (None, None, None)
    latencies = {row["latency"]: row["succeeded"] + row["failed"] for row in rows if row["grouped"] == _BY_LATENCY}
    cut_at = whole["earliest"] if total >= MAX_MEASURED else None
    return AttemptStats(
        succeeded=whole["succeeded"],
        failed=whole["failed"],
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        latencies=tuple(latencies.get(index, 0) for index in range(len(LATENCY_BOUNDS_MS) + 1)),
        stretches=_fill_buckets([row for row in rows if row["grouped"] == _BY_TIME], now, span, width),
        span_s=(now - (cut_at or now - span)).total_seconds(),
        cut_at=cut_at,
    )


_BY_TIME: Final = 1
_BY_LATENCY: Final = 2
_WHOLE: Final = 3
_MONDAY: Final = datetime(2000, 1, 3, tzinfo=UTC)


def _fill_buckets(parts: Sequence[Record], now: datetime, span: timedelta, width: timedelta) -> tuple[TimeBucket, ...]:
    parts_by_start = {row["stretch"]: row for row in parts}
    return tuple(
        TimeBucket(start=start, succeeded=row["succeeded"], failed=row["failed"])
        if (row := parts_by_start.get(start)) is not None
        else TimeBucket(start=start)
        for start in bucket_starts(now, span, width)
    )


def bucket_starts(now: datetime, span: timedelta, width: timedelta) -> Sequence[datetime]:
    """Return the starts of the time buckets of *width* that contain the *span* before *now*, earliest first."""
    start = _MONDAY + (now - span - _MONDAY) // width * width
    return [start + width * index for index in range((now - start) // width + 1)]


async def scan_attempts(
    connection: Connection,
    endpoint_id: UUID,
    place: UUID | None,
    *,
    is_success: bool | None = None,
    status_class: int | None = None,
    type: str | None = None,
    limit: int,
) -> ScanPage[AttemptSummary]:
    """Scan an endpoint's next attempts, newest first, for at most *limit* matches.

    Args:
        status_class: the lowest status of a class, such as 400; 0 for attempts without a response.
        type: pattern for the message's type; ``*`` matches any characters.
    """
    arguments = (place or MAX_ID, SCAN_ROWS, is_success, status_class, like_pattern(type), limit)
    rows = await connection.fetch(SQL["look_at_attempts"], _recipient(endpoint_id), *arguments)
    return _to_scan_page(rows, _seen_attempt, limit)


async def scan_messages(
    connection: Connection,
    application: str,
    place: UUID | None,
    *,
    type: str | None = None,
    channel: str | None = None,
    limit: int,
) -> ScanPage[MessageSummary]:
    """Scan an application's next messages, newest first, for at most *limit* matches."""
    arguments = (place or MAX_ID, SCAN_ROWS, like_pattern(type), channel, limit)
    rows = await connection.fetch(SQL["look_at_messages"], application, *arguments)
    return _to_scan_page(rows, _seen_message, limit)


def _to_scan_page(rows: Sequence[Record], read: Any, limit: int) -> ScanPage[Any]:
    page_rows = [read(row) for row in rows if row["id"] is not None]
    if len(page_rows) == limit:
        return ScanPage(page_rows, page_rows[-1].id)
    return ScanPage(page_rows, rows[0]["last"] if rows[0]["looked"] == SCAN_ROWS else None)


def _seen_attempt(row: Record) -> AttemptSummary:
    return AttemptSummary(
        id=row["id"],
        event_id=row["event_id"],
        type=row["type"],
        status=row["status"] or 0,
        duration_ms=row["duration_ms"] or 0,
        is_success=row["outcome"] == "succeeded",
        is_manual=bool(row["is_manual"]),
        error=row["error"],
    )


def _seen_message(row: Record) -> MessageSummary:
    return MessageSummary(
        id=row["id"],
        type=row["type"],
        uid=uid_of(row["id"], row["dedup_key"]),
        channels=None if row["channels"] is None else tuple(row["channels"]),
        tags=None if row["tags"] is None else tuple(row["tags"]),
        deliver_at=row["deliver_at"],
        succeeded=row["succeeded"],
        waiting=row["waiting"],
        dead=row["dead"],
    )


async def find_request(connection: Connection, event_id: UUID, attempt_id: UUID) -> SentRequest | None:
    """Return the request of an attempt."""
    row = await connection.fetchrow(SQL["find_request"], event_id, attempt_id)
    if row is None:
        return None
    pairs = msgspec.json.decode(row["request_headers"] or "[]")
    return SentRequest(
        number=row["number"],
        code=row["code"],
        started_at=row["started_at"],
        headers=tuple((name, value) for name, value in pairs),
        worker=row["worker"],
    )


def _recipient(endpoint_id: UUID) -> str:
    return recipient_of(ids.show(ids.ENDPOINT, endpoint_id))
