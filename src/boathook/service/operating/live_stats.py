"""Live statistics over all hosts, for the dashboard and `boathook top`, and the latest events and dead letters.

Data of this host is read from its processes' metrics, at most one second old. Data of other hosts is read from the
samples they store in PostgreSQL, some seconds old.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from boathook.db.alerts import Alert
from boathook.db.database import Database
from boathook.db.metric_samples import HostSample, read_latest
from boathook.db.metric_samples import Sample as Sample  # noqa: PLC0414 - re-exported
from boathook.db.metric_samples import read_since as read_since  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import MAX_COUNTED as MAX_COUNTED  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import (
    LatestDeadLetter,
    LatestEvent,
    read_latest_dead_letters,
    read_latest_events,
)
from boathook.db.queries.summaries import OpenCounts as OpenCounts  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import count_open as count_open  # noqa: PLC0414 - re-exported
from boathook.domain.errors import DatabaseError, FetchFailed
from boathook.observability.exposition import from_prometheus
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.metric_snapshot import ENDPOINTS, OTHERS, MetricSnapshot, combine_hosts, host_name
from boathook.observability.metric_snapshot import BacklogCounts as BacklogCounts  # noqa: PLC0414 - re-exported
from boathook.service.operating.alerts import list_firing
from boathook.service.unit_of_work import AppContext

if TYPE_CHECKING:
    from boathook.service.remote import RemoteClient


WINDOW_S: Final = 15.0
"""Window of rates and quantiles in seconds; shorter while less data is available."""
MIN_WINDOW_S: Final = 2.0
"""Minimum window for a meaningful rate."""
_ALIVE_S: Final = 60.0
"""Seconds after its last sample until a host counts as gone."""
_ASK_S: Final = 3.0
_MAX_ROWS: Final = 20
_MAX_RESPONSE_BYTES: Final = 32 * 1_048_576
_REQUEST_TIMEOUT_S: Final = 10.0


class LatestActivity(msgspec.Struct, frozen=True):
    """The latest activity, newest first."""

    events: Sequence[LatestEvent] = ()
    dead_letters: Sequence[LatestDeadLetter] = ()
    firing: Sequence[Alert] = ()
    """All firing alerts."""
    open_counts: OpenCounts = msgspec.field(default_factory=OpenCounts)


async def read_latest_activity(app_context: AppContext, limit: int) -> LatestActivity:
    """Return the last *limit* events and dead letters, the firing alerts and the open counts. Raises DatabaseError."""
    database = app_context.database
    events = await read_latest_events(database, limit)
    dead_letters = await read_latest_dead_letters(database, limit)
    async with app_context.reading() as connection:
        firing = await list_firing(connection)
        return LatestActivity(events, dead_letters, firing, await count_open(connection))


async def read_host_samples(database: Database) -> Sequence[HostSample]:
    """Return the latest sample of each live host, some seconds old. Raises DatabaseError."""
    return await read_latest(database, within_s=_ALIVE_S)


class SourceActivity(msgspec.Struct, frozen=True):
    """Requests per second of one source, by result."""

    source: str
    accepted: float
    duplicates: float
    rejected: float
    bad_signatures: float
    faults: float
    health: str | None = None
    """As `domain.health` judges it; None if that is unknown, because only metrics can be read."""


class RecipientActivity(msgspec.Struct, frozen=True):
    """Attempts per second of one recipient, and its pending deliveries."""

    recipient: str
    succeeded: float
    failed: float
    backlog: BacklogCounts
    health: str | None = None
    """As that of a source."""
    paused_until: datetime | None = None
    """When the next probe of a paused one may go, if that is known."""


class Host(msgspec.Struct, frozen=True):
    """Processes that share a data directory."""

    name: str
    roles: dict[str, int]
    """Number of live processes by role."""
    notified_at: datetime


class LiveStats(msgspec.Struct, frozen=True, kw_only=True):
    """Live statistics at one time. Rates are per second; latencies are in seconds, None without data."""

    at: datetime
    accepted: float
    duplicates: float
    rejected: float
    bad_signatures: float
    faults: float
    """Requests answered 5xx."""
    succeeded: float
    """Successful deliveries, including those to endpoints."""
    failed: float
    """Failed attempts."""
    sent: float
    """Requests to endpoints."""
    ack_p50: float | None
    ack_p99: float | None
    start_p50: float | None
    """From accepting an event to its first attempt by a handler."""
    start_p99: float | None
    send_p50: float | None
    send_p99: float | None
    backlog: BacklogCounts
    oldest_due_s: float
    spool_records: int
    spool_bytes: int
    spool_filled: float
    """Share of `spool.max_bytes` used by the fullest gateway."""
    is_spooling: bool
    """Whether a gateway spools events because PostgreSQL does not accept them."""
    breakers_open: int
    failing_endpoints: int
    disabled_endpoints: int
    unhandled: int
    """Events of the last day that no handler matched; at most 10,000."""
    xmin_age_s: float
    connections: int
    sources: list[SourceActivity]
    """The busiest sources."""
    recipients: list[RecipientActivity]
    """The recipients with most pending deliveries or most attempts."""
    hosts: list[Host]


class LiveStatsReader:
    """Reads the live statistics repeatedly.

    Args:
        live_metrics: the metrics of this host's processes.
        data_dir: the data directory of this host.
        database: contains the samples of other hosts; None reads only this host.
    """

    def __init__(self, live_metrics: LiveMetrics, data_dir: Path, database: Database | None) -> None:
        self._live_metrics = live_metrics
        self._host = host_name(data_dir)
        self._database = database
        self._told: list[HostSample] = []
        self._asked_at = -_ASK_S

    async def read(self) -> LiveStats:
        """Return the live statistics; while PostgreSQL is unavailable, those of this host."""
        now = await asyncio.to_thread(self._live_metrics.now)
        own = self._live_metrics.recent(now, WINDOW_S)
        knows_own = own.span_s >= MIN_WINDOW_S and bool(own.roles)
        samples = [other for other in await self._others() if other.host != self._host or not knows_own]
        if knows_own:
            samples.append(HostSample(self._host, datetime.now(UTC), own))
        return summarize(samples)

    async def _others(self) -> Sequence[HostSample]:
        if self._database is not None and time.monotonic() - self._asked_at >= _ASK_S:
            self._asked_at = time.monotonic()
            try:
                self._told = await read_latest(self._database, within_s=_ALIVE_S)
            except DatabaseError:
                self._told = []
        return self._told


class RemoteStatsReader:
    """Reads the live statistics of a remote gateway repeatedly.

    Args:
        client: makes the requests.
        url: the URL of the gateway.
        key: sent as a bearer token; None if its metrics are unprotected.
    """

    def __init__(self, client: "RemoteClient", url: str, key: str | None) -> None:
        self._client = client
        self._url = url
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._snapshots: deque[MetricSnapshot] = deque()

    async def read(self) -> LiveStats:
        """Return the statistics since the first read, or of the last 15 seconds. Raises FetchFailed."""
        now = await self._fetch()
        self._snapshots.append(now)
        while now.at - self._snapshots[0].at > WINDOW_S:
            self._snapshots.popleft()
        return summarize([HostSample(self._url, datetime.now(UTC), now.since(self._snapshots[0]))])

    async def _fetch(self) -> MetricSnapshot:
        answer = await self._client.request(
            "GET",
            f"{self._url}/metrics",
            headers=self._headers,
            timeout_s=_REQUEST_TIMEOUT_S,
            max_bytes=_MAX_RESPONSE_BYTES,
        )
        if answer.status != 200:
            raise FetchFailed(f"{self._url}/metrics responds {answer.status}; check that --url is a boathook")
        try:
            return from_prometheus(answer.body.decode(), time.time())
        except ValueError:
            raise FetchFailed(f"{self._url}/metrics has no boathook metrics; check that --url is a boathook") from None


def summarize(samples: Sequence[HostSample]) -> LiveStats:
    """Return the live statistics for the latest samples of all hosts."""
    whole = combine_hosts(sample.snapshot for sample in samples)
    inflows, outflows = _inflows(samples), list_activity(samples)
    return LiveStats(
        at=datetime.now(UTC),
        accepted=sum(inflow.accepted for inflow in inflows),
        duplicates=sum(inflow.duplicates for inflow in inflows),
        rejected=sum(inflow.rejected for inflow in inflows),
        bad_signatures=sum(inflow.bad_signatures for inflow in inflows),
        faults=sum(inflow.faults for inflow in inflows),
        succeeded=sum(outflow.succeeded for outflow in outflows),
        failed=sum(outflow.failed for outflow in outflows),
        sent=_rates(samples, "recipients", ("ended",)).get(ENDPOINTS, [0.0])[0],
        ack_p50=whole.quantile("boathook_ack_seconds", 0.5),
        ack_p99=whole.quantile("boathook_ack_seconds", 0.99),
        start_p50=whole.quantile("boathook_first_attempt_delay_seconds", 0.5),
        start_p99=whole.quantile("boathook_first_attempt_delay_seconds", 0.99),
        send_p50=whole.quantile("boathook_endpoint_request_seconds", 0.5),
        send_p99=whole.quantile("boathook_endpoint_request_seconds", 0.99),
        backlog=whole.backlog,
        oldest_due_s=whole.gauge("boathook_oldest_due_seconds"),
        spool_records=int(whole.gauge("boathook_spool_events")),
        spool_bytes=int(whole.gauge("boathook_spool_bytes")),
        spool_filled=whole.gauge("boathook_spool_used_ratio"),
        is_spooling=whole.gauge("boathook_database_unavailable") > 0,
        breakers_open=int(whole.gauge("boathook_endpoint_circuit_breakers_open")),
        failing_endpoints=int(whole.gauge("boathook_failing_endpoints")),
        disabled_endpoints=int(whole.gauge("boathook_disabled_endpoints")),
        unhandled=int(whole.gauge("boathook_unhandled_events")),
        xmin_age_s=whole.gauge("boathook_oldest_snapshot_age_seconds"),
        connections=int(whole.gauge("boathook_connections")),
        sources=inflows[:_MAX_ROWS],
        recipients=outflows[:_MAX_ROWS],
        hosts=[
            Host(sample.host, sample.snapshot.roles, sample.at)
            for sample in sorted(samples, key=lambda sample: sample.host)
        ],
    )


def _inflows(samples: Sequence[HostSample]) -> list[SourceActivity]:
    """Return each source's rates, busiest first."""
    fields = ("accepted", "duplicates", "rejected", "bad_signatures", "faults")
    rows = [
        SourceActivity(source, accepted, duplicates, rejected, bad_signatures, faults)
        for source, (accepted, duplicates, rejected, bad_signatures, faults) in _rates(
            samples, "sources", fields
        ).items()
    ]
    return sorted(rows, key=lambda row: (-row.accepted - row.duplicates - row.rejected - row.faults, row.source))


def list_activity(samples: Sequence[HostSample]) -> list[RecipientActivity]:
    """Return the attempts and pending deliveries of each recipient, those in trouble first."""
    backlogs = combine_hosts(sample.snapshot for sample in samples).backlogs
    rates = _rates(samples, "recipients", ("succeeded", "ignored", "failed"))
    activities = []
    for recipient in {*rates, *backlogs}:
        succeeded, ignored, failed = rates.get(recipient, (0.0, 0.0, 0.0))
        activities.append(
            RecipientActivity(recipient, succeeded + ignored, failed, backlogs.get(recipient, BacklogCounts()))
        )
    return sorted(
        activities,
        key=lambda activity: (
            -activity.backlog.pending - activity.backlog.dead,
            -activity.succeeded - activity.failed,
            activity.recipient,
        ),
    )


def _rates(samples: Sequence[HostSample], table: str, fields: Sequence[str]) -> dict[str, list[float]]:
    """Return the rates per second over all hosts, by the names in a table of the snapshots."""
    rates: dict[str, list[float]] = {}
    for sample in samples:
        for name, counts in getattr(sample.snapshot, table).items() if sample.snapshot.span_s > 0 else ():
            sums = rates.setdefault(name, [0.0] * len(fields))
            for index, column in enumerate(fields):
                sums[index] += getattr(counts, column) / sample.snapshot.span_s
    return {name: [round(rate, 3) for rate in sums] for name, sums in rates.items()}


def recipient_title(recipient: str) -> str:
    """Return the display name of a recipient."""
    return {ENDPOINTS: "all endpoints", OTHERS: "others"}.get(recipient, recipient)


def format_rate(value: float) -> str:
    """Format a rate per second."""
    return "0" if value == 0 else "<0.1" if value < 0.1 else f"{value:.1f}" if value < 100 else _grouped(value)


def format_duration(seconds: float | None) -> str:
    """Format a duration in a suitable unit."""
    if seconds is None:
        return "\u2013"
    for limit, unit, factor in _UNITS:
        if seconds * factor < limit:
            number = seconds * factor
            return f"{number:.1f} {unit}" if number < 10 and factor != 1 else f"{number:.0f} {unit}"
    return f"{seconds / 86_400:.1f} d"


_UNITS: Final = ((1000, "ms", 1000.0), (120, "s", 1.0), (120, "min", 1 / 60), (48, "h", 1 / 3600))


def format_size(size: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _grouped(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")
