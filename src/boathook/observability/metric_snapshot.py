"""Metric values of many processes as one value: summed over processes, time and hosts, and stored as JSON.

A snapshot holds counters, gauges and histograms, each by label values. It covers either the time since the processes
began (`live_metrics.gather`) or one period (`MetricSnapshot.since`). Hosts store the latter in PostgreSQL as samples,
which charts and alert rules read.
"""

import math
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from boathook.observability.metrics import METRICS, Merge

SeriesKey = tuple[str, ...]
"""The values of a series' labels, in the order of `Metric.labels`."""
Series = Mapping[SeriesKey, float]

MAX_SERIES: Final = 500
"""Maximum number of series of one metric in a stored sample; the smallest of the others are added up under `OTHERS`."""
OTHERS: Final = "other"
ENDPOINTS: Final = "endpoint"
"""The recipient under which all endpoints are counted together."""
AGES: Final = ("10s", "1m", "10m", "1h", "older")
"""How long deliveries have been due: less than ten seconds, a minute, ten minutes, an hour, or longer."""

_SUMMED_LABELS: Final = frozenset({"source", "recipient"})
"""Labels that `MetricSnapshot.totals` sums over."""
_PROOF_REASONS: Final = ("signature_", "token_", "unknown_scheme")
"""Prefixes of rejection reasons that mean a failed verification."""

Record = TypeVar("Record", bound=msgspec.Struct)
Value = TypeVar("Value")


class Buckets(msgspec.Struct, frozen=True):
    """A histogram's counts, one more than its bounds, and the sum of its observations."""

    counts: tuple[int, ...]
    total: float

    def __add__(self, other: "Buckets") -> "Buckets":
        if len(self.counts) != len(other.counts):  # another version used other buckets
            return other
        return Buckets(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.total + other.total)

    def since(self, earlier: "Buckets | None") -> "Buckets":
        """Return the observations after *earlier*; a count that decreased means that the counter was reset."""
        if earlier is None or any(a < b for a, b in zip(self.counts, earlier.counts, strict=True)):
            return self
        differences = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Buckets(differences, self.total - earlier.total)

    def quantile(self, bounds: tuple[float, ...], share: float) -> float | None:
        """Return the value below which *share* of the observations lie, interpolated within its bucket."""
        target, seen = share * sum(self.counts), 0
        if not any(self.counts) or len(self.counts) != len(bounds) + 1:
            return None
        for i, n in enumerate(self.counts[:-1]):
            if n and seen + n >= target:
                low = bounds[i - 1] if i else 0.0
                return low + (bounds[i] - low) * (target - seen) / n
            seen += n
        return bounds[-1]


class SourceCounts(msgspec.Struct, frozen=True):
    """Counts of requests at one source."""

    accepted: float = 0
    duplicates: float = 0
    conflicts: float = 0
    rejected: float = 0
    bad_signatures: float = 0
    """Rejected requests whose verification failed."""
    requests: float = 0
    faults: float = 0
    """Requests with a 5xx response."""


class RecipientCounts(msgspec.Struct, frozen=True):
    """Finished attempts of one recipient, by the result for the delivery."""

    succeeded: float = 0
    ignored: float = 0
    retried: float = 0
    """Attempts that are followed by a retry."""
    dead: float = 0

    @property
    def failed(self) -> float:
        """Attempts that did not succeed."""
        return self.retried + self.dead

    @property
    def ended(self) -> float:
        """All attempts."""
        return self.succeeded + self.ignored + self.retried + self.dead


class BacklogCounts(msgspec.Struct, frozen=True):
    """Unfinished deliveries and dead letters of one recipient, as the keeper last counted them."""

    due: int = 0
    later: int = 0
    """Pending and not due yet; most of them wait for a retry."""
    blocked: int = 0
    leased: int = 0
    dead: int = 0
    under_10s: int = 0
    """Due deliveries that have been due for less than ten seconds."""
    under_1m: int = 0
    """For less than a minute, and so on."""
    under_10m: int = 0
    under_1h: int = 0
    older: int = 0

    @property
    def ages(self) -> tuple[int, int, int, int, int]:
        """Due deliveries by how long they have been due; see `AGES`."""
        return self.under_10s, self.under_1m, self.under_10m, self.under_1h, self.older

    @property
    def pending(self) -> int:
        """Deliveries that a worker or sender has yet to finish."""
        return self.due + self.later + self.blocked + self.leased


class MetricSnapshot(msgspec.Struct):
    """Metric values at one time, or counted in one period."""

    at: float = 0.0
    """When it was taken, in seconds since 1970."""
    span_s: float = 0.0
    """Length of the period in seconds; 0: since the processes began. For several hosts, the longest."""
    roles: dict[str, int] = msgspec.field(default_factory=dict)
    """Live processes by role."""
    counters: dict[str, dict[SeriesKey, float]] = msgspec.field(default_factory=dict)
    gauges: dict[str, dict[SeriesKey, float]] = msgspec.field(default_factory=dict)
    histograms: dict[str, dict[SeriesKey, Buckets]] = msgspec.field(default_factory=dict)

    def since(self, before: "MetricSnapshot") -> "MetricSnapshot":
        """Return what was counted after *before*, with the current gauges.

        A counter that decreased was reset and counts as 0. A counter that did not increase is included with 0; a
        histogram without observations is left out.
        """
        return MetricSnapshot(
            at=self.at,
            span_s=round(max(0.0, self.at - before.at), 3),
            roles=dict(self.roles),
            counters={
                name: {
                    labels: max(0.0, value - before.counters.get(name, {}).get(labels, 0))
                    for labels, value in series.items()
                }
                for name, series in self.counters.items()
            },
            gauges={name: dict(series) for name, series in self.gauges.items()},
            histograms={
                name: risen
                for name, series in self.histograms.items()
                if (risen := _observed_since(series, before.histograms.get(name, {})))
            },
        )

    def only(self, metrics: Iterable[str]) -> "MetricSnapshot":
        """Return a snapshot of only these metrics."""
        names = frozenset(metrics)
        return self._with(lambda series: {name: of for name, of in series.items() if name in names})

    def totals(self) -> "MetricSnapshot":
        """Return a snapshot summed over sources and recipients, whose names become `OTHERS`."""

        def fold(series: Mapping[str, Mapping[SeriesKey, Any]]) -> dict[str, dict[SeriesKey, Any]]:
            return {name: _fold(of, _without_names(name)) for name, of in series.items()}

        return self._with(fold)

    def limited(self) -> "MetricSnapshot":
        """Return a snapshot with at most `MAX_SERIES` series of each metric, and one for the sum of the others."""
        return self._with(lambda series: {name: _limit_series(of) for name, of in series.items()})

    def _with(self, change: Callable[[Any], Any]) -> "MetricSnapshot":
        changed = {name: change(getattr(self, name)) for name in ("counters", "gauges", "histograms")}
        return msgspec.structs.replace(self, **changed)

    def counter(self, name: str) -> float:
        """Return a counter summed over all its labels."""
        return sum(self.counters.get(name, {}).values())

    def gauge(self, name: str) -> float:
        """Return a gauge over all its labels: their sum or maximum, by `Metric.merge`; 0 if it was not set."""
        values = self.gauges.get(name, {}).values()
        return max(values, default=0.0) if METRICS[name].merge is Merge.MAX else sum(values)

    def histogram(self, name: str) -> Buckets | None:
        """Return a histogram summed over all its labels."""
        series = list(self.histograms.get(name, {}).values())
        return sum(series[1:], series[0]) if series else None

    def quantile(self, name: str, share: float) -> float | None:
        """Return the value below which *share* of the observations of a histogram lie."""
        buckets = self.histogram(name)
        return None if buckets is None else buckets.quantile(METRICS[name].bounds, share)

    @property
    def sources(self) -> dict[str, SourceCounts]:
        """Requests by source."""
        table = _CountTable()
        for field, metric in _SOURCE_COUNTERS.items():
            for (source,), n in self.counters.get(metric, {}).items():
                table.add(source, field, n)
        for (source, status), n in self.counters.get("boathook_requests_total", {}).items():
            table.add(source, "requests", n)
            table.add(source, "faults", n if status.startswith("5") else 0)
        for (source, reason), n in self.counters.get("boathook_rejections_total", {}).items():
            table.add(source, "rejected", n)
            table.add(source, "bad_signatures", n if reason.startswith(_PROOF_REASONS) else 0)
        return {source: SourceCounts(**counts) for source, counts in table.items()}

    @property
    def recipients(self) -> dict[str, RecipientCounts]:
        """Attempts by recipient; those of all endpoints are together under `ENDPOINTS`."""
        table = _CountTable()
        for (recipient, outcome), n in self.counters.get("boathook_attempts_total", {}).items():
            if outcome != "waiting":  # neither a success nor a failure
                table.add(recipient, _OUTCOME_FIELDS.get(outcome, "retried"), n)
        for (outcome,), n in self.counters.get("boathook_endpoint_requests_total", {}).items():
            table.add(ENDPOINTS, _OUTCOME_FIELDS.get(outcome, "retried"), n)
        return {recipient: RecipientCounts(**counts) for recipient, counts in table.items()}

    @property
    def backlogs(self) -> dict[str, BacklogCounts]:
        """Unfinished deliveries and dead letters by recipient."""
        by_recipient: dict[str, dict[str, int]] = {}
        for (recipient, state), value in self.gauges.get("boathook_backlog", {}).items():
            by_recipient.setdefault(recipient, {})[state] = int(value)
        for (recipient, age), value in self.gauges.get("boathook_backlog_due", {}).items():
            if recipient in by_recipient and age in _AGE_FIELDS:
                by_recipient[recipient][_AGE_FIELDS[age]] = int(value)
        return {recipient: BacklogCounts(**counts) for recipient, counts in by_recipient.items()}

    @property
    def arrived(self) -> SourceCounts:
        """Requests at all sources."""
        return _total(SourceCounts, self.sources.values())

    @property
    def worked(self) -> RecipientCounts:
        """Attempts of all recipients, including endpoints."""
        return _total(RecipientCounts, self.recipients.values())

    @property
    def sends(self) -> RecipientCounts:
        """Requests to endpoints."""
        return self.recipients.get(ENDPOINTS, RecipientCounts())

    @property
    def backlog(self) -> BacklogCounts:
        """Unfinished deliveries and dead letters of all recipients."""
        return _total(BacklogCounts, self.backlogs.values())


class _CountTable(dict[str, dict[str, float]]):
    """Counts by name and field."""

    def add(self, name: str, field: str, n: float) -> None:
        """Add *n* to one field of a name."""
        counts = self.setdefault(name, {})
        counts[field] = counts.get(field, 0) + n


_SOURCE_COUNTERS: Final = {
    "accepted": "boathook_events_accepted_total",
    "duplicates": "boathook_duplicates_total",
    "conflicts": "boathook_conflicts_total",
}
_OUTCOME_FIELDS: Final = {"succeeded": "succeeded", "ignored": "ignored", "retry": "retried", "dead": "dead"}
_AGE_FIELDS: Final = dict(zip(AGES, ("under_10s", "under_1m", "under_10m", "under_1h", "older"), strict=True))


def host_name(data_dir: Path) -> str:
    """Return the name of this host in samples: the machine and the data directory that its processes share."""
    return f"{platform.node()}:{data_dir.absolute()}"


def concatenate(snapshots: Iterable[MetricSnapshot]) -> MetricSnapshot:
    """Merge consecutive snapshots of one host: counters are summed, gauges take the maximum."""
    return _combine(list(snapshots), span=sum, roles=max, gauge=lambda _name: max)


def combine_hosts(snapshots: Iterable[MetricSnapshot]) -> MetricSnapshot:
    """Merge the snapshots of several hosts for one period; gauges are merged by `Metric.merge`."""
    return _combine(list(snapshots), span=max, roles=sum, gauge=_merge_rule)


Reducer = Callable[[Sequence[Any]], Any]


def _combine(
    snapshots: Sequence[MetricSnapshot], *, span: Reducer, roles: Reducer, gauge: Callable[[str], Reducer]
) -> MetricSnapshot:
    if len(snapshots) < 2:
        return snapshots[0] if snapshots else MetricSnapshot()

    def merge(kind: str, rule: Callable[[str], Reducer]) -> dict[str, dict[SeriesKey, Any]]:
        by_metric = _grouped(getattr(snapshot, kind) for snapshot in snapshots)
        return {
            name: {key: rule(name)(values) for key, values in _grouped(tables).items()}
            for name, tables in by_metric.items()
        }

    return MetricSnapshot(
        at=max(snapshot.at for snapshot in snapshots),
        span_s=span([snapshot.span_s for snapshot in snapshots]),
        roles={role: roles(counts) for role, counts in _grouped(snapshot.roles for snapshot in snapshots).items()},
        counters=merge("counters", lambda _name: sum),
        gauges=merge("gauges", gauge),
        histograms=merge("histograms", lambda _name: _add_buckets),
    )


def _merge_rule(name: str) -> Reducer:
    metric = METRICS.get(name)
    return sum if metric is not None and metric.merge is Merge.SUM else max


def _grouped(tables: Iterable[Mapping[Any, Value]]) -> dict[Any, list[Value]]:
    groups: dict[Any, list[Value]] = {}
    for table in tables:
        for name, value in table.items():
            groups.setdefault(name, []).append(value)
    return groups


def _add_buckets(buckets: Sequence[Buckets]) -> Buckets:
    """Return the sum of histograms, all at once, which is faster for many; those with other buckets are left out."""
    same = [item for item in buckets if len(item.counts) == len(buckets[-1].counts)]
    counts = tuple(map(sum, zip(*(item.counts for item in same), strict=True)))
    return Buckets(counts, sum(item.total for item in same))


def _observed_since(
    series: Mapping[SeriesKey, Buckets], before: Mapping[SeriesKey, Buckets]
) -> dict[SeriesKey, Buckets]:
    risen = {labels: buckets.since(before.get(labels)) for labels, buckets in series.items()}
    return {
        labels: Buckets(buckets.counts, round(buckets.total, 6))
        for labels, buckets in risen.items()
        if any(buckets.counts)
    }


def _without_names(name: str) -> Callable[[SeriesKey], SeriesKey]:
    labels = METRICS[name].labels if name in METRICS else ()
    if _SUMMED_LABELS.isdisjoint(labels):
        return lambda key: key
    return lambda key: tuple(
        OTHERS if label in _SUMMED_LABELS else value for label, value in zip(labels, key, strict=False)
    )


def _fold(series: Mapping[SeriesKey, Any], key_of: Callable[[SeriesKey], SeriesKey]) -> dict[SeriesKey, Any]:
    folded: dict[SeriesKey, Any] = {}
    for key, value in series.items():
        target = key_of(key)
        folded[target] = folded[target] + value if target in folded else value
    return folded


def _limit_series(series: Mapping[SeriesKey, Any]) -> Mapping[SeriesKey, Any]:
    if len(series) <= MAX_SERIES:
        return series
    heaviest = frozenset(sorted(series, key=lambda key: -_weight(series[key]))[:MAX_SERIES])
    return _fold(series, lambda key: key if key in heaviest else (OTHERS,) * len(key))


def _weight(value: float | Buckets) -> float:
    return sum(value.counts) if isinstance(value, Buckets) else abs(value)


def _total(kind: type[Record], records: Iterable[Record]) -> Record:
    columns = zip(*map(msgspec.structs.astuple, records), strict=True)
    return kind(*map(sum, columns))


class _Stored(msgspec.Struct, omit_defaults=True):
    """A snapshot in its JSON form: a series is its label values with its value."""

    span_s: float = 0.0
    roles: dict[str, int] = {}
    counters: dict[str, list[tuple[SeriesKey, float]]] = {}
    gauges: dict[str, list[tuple[SeriesKey, float]]] = {}
    histograms: dict[str, list[tuple[SeriesKey, tuple[int, ...], float]]] = {}


_DECODER: Final = msgspec.json.Decoder(_Stored)


def encode(snapshot: MetricSnapshot) -> str:
    """Encode a snapshot as JSON, without its time."""
    record = _Stored(
        span_s=snapshot.span_s,
        roles=snapshot.roles,
        counters={name: _as_rows(of) for name, of in snapshot.counters.items() if of},
        gauges={name: _as_rows(of) for name, of in snapshot.gauges.items() if of},
        histograms={
            name: [(key, buckets.counts, buckets.total) for key, buckets in of.items()]
            for name, of in snapshot.histograms.items()
            if of
        },
    )
    return msgspec.json.encode(record).decode()


def _as_rows(series: Series) -> list[tuple[SeriesKey, float]]:
    """Return series in their stored form: whole numbers as integers, which are shorter, and only finite numbers."""
    return [
        (key, int(value) if value == int(value) else value) for key, value in series.items() if math.isfinite(value)
    ]


def decode(text: str | bytes, at: float = 0.0) -> MetricSnapshot:
    """Decode the output of `encode`. Raises msgspec.DecodeError for anything else."""
    record = _DECODER.decode(text)
    return MetricSnapshot(
        at=at,
        span_s=record.span_s,
        roles=record.roles,
        counters=_read(record.counters, lambda row: row[1]),
        gauges=_read(record.gauges, lambda row: row[1]),
        histograms=_read(record.histograms, lambda row: Buckets(row[1], row[2])),
    )


class _Undecoded(msgspec.Struct, omit_defaults=True):
    """A snapshot in its JSON form, of which nothing but the names of the metrics is decoded."""

    span_s: float = 0.0
    counters: dict[str, msgspec.Raw] = {}
    gauges: dict[str, msgspec.Raw] = {}
    histograms: dict[str, msgspec.Raw] = {}


_NAMES_DECODER: Final = msgspec.json.Decoder(_Undecoded)
_ROWS_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])


def decode_only(text: str | bytes, metrics: Collection[str], names: Collection[str] | None = None) -> MetricSnapshot:
    """Decode part of the output of `encode`, and skip the rest. Raises msgspec.DecodeError.

    Args:
        text: the output.
        metrics: the metrics to decode.
        names: the sources or recipients to decode, which are the first labels; None decodes all.
    """
    record = _NAMES_DECODER.decode(text)
    starts = None if names is None else tuple(b"[[" + msgspec.json.encode(name) for name in names)
    selected = (
        {name: rows if starts is None else _only_rows(rows, starts) for name, rows in tables.items() if name in metrics}
        for tables in (record.counters, record.gauges, record.histograms)
    )
    return decode(msgspec.json.encode(_Undecoded(record.span_s, *selected)))


def _only_rows(rows: msgspec.Raw, starts: tuple[bytes, ...]) -> msgspec.Raw:
    return msgspec.Raw(
        msgspec.json.encode([row for row in _ROWS_DECODER.decode(rows) if bytes(row).startswith(starts)])
    )


def _read(tables: Mapping[str, list[Any]], value_of: Callable[[Any], Value]) -> dict[str, dict[SeriesKey, Value]]:
    """Return stored series, without those whose labels do not match this version's metric."""
    return {
        name: {row[0]: value_of(row) for row in rows if name not in METRICS or len(row[0]) == len(METRICS[name].labels)}
        for name, rows in tables.items()
    }
