"""What all processes of a host have counted in some seconds, small enough to be kept for weeks and added up.

A tally knows counts, which rise, levels, which stand somewhere, and spreads, which are histograms. Tallies that follow
one another add their counts and spreads and keep the highest level; tallies of several hosts at one time add those
levels, too, that each host has its own share of.
"""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from boathook.observability.exporters import Buckets, MergedMetrics, MetricHistory
from boathook.observability.meters import SeriesKey
from boathook.observability.metrics import METRICS

MAX_NAMES: Final = 100
"""Most sources and most recipients that a tally tells apart; the quieter ones are one, named `OTHERS`."""
OTHERS: Final = "other"
ENDPOINTS: Final = "endpoint"
"""The recipient that all endpoints are together."""
AGES: Final = ("10s", "1m", "10m", "1h", "older")
"""How long deliveries have been due: less than ten seconds, a minute, ten minutes, an hour, or longer."""

_PROOF_REASONS: Final = ("signature_", "token_", "unknown_scheme")
"""How reasons of rejections begin where the sender's proof failed."""

Record = TypeVar("Record", bound=msgspec.Struct)
Value = TypeVar("Value")


class SourceCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests at one source."""

    requests: int = 0
    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    bad_signatures: int = 0
    """Of those rejected, the ones whose proof failed."""
    faults: int = 0
    """Requests that were answered 5xx."""


class RecipientCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempts of one recipient that ended, by what became of the delivery."""

    succeeded: int = 0
    ignored: int = 0
    retried: int = 0
    """Attempts after which another one is owed."""
    dead: int = 0

    @property
    def failed(self) -> int:
        """Attempts that did not end well."""
        return self.retried + self.dead

    @property
    def ended(self) -> int:
        """All attempts."""
        return self.succeeded + self.ignored + self.retried + self.dead


class BacklogCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Deliveries of one recipient that have not ended well, as the keeper last counted them."""

    due: int = 0
    later: int = 0
    """Pending and not due yet: most of them wait to be tried again."""
    blocked: int = 0
    leased: int = 0
    dead: int = 0
    under_10s: int = 0
    """Of those that are due, the ones that have been so for less than ten seconds."""
    under_1m: int = 0
    """For less than a minute, and so on."""
    under_10m: int = 0
    under_1h: int = 0
    older: int = 0

    @property
    def ages(self) -> tuple[int, int, int, int, int]:
        """Those that are due, by how long they have been so; see `AGES`."""
        return self.under_10s, self.under_1m, self.under_10m, self.under_1h, self.older

    @property
    def pending(self) -> int:
        """All that a worker or sender has yet to end."""
        return self.due + self.later + self.blocked + self.leased


class MetricSnapshot(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was counted in so many seconds."""

    span_s: float = 0.0
    """Seconds that were counted; of several hosts, those of the one that counted longest."""

    sources: dict[str, SourceCounts] = {}
    recipients: dict[str, RecipientCounts] = {}
    owed: dict[str, BacklogCounts] = {}
    """Levels, by recipient."""
    roles: dict[str, int] = {}
    """Processes alive, by role."""

    published: int = 0
    overloaded: int = 0
    """Events refused because the queue of a gateway was full."""
    spooled: int = 0
    drained: int = 0
    """Events brought from a spool to PostgreSQL."""
    spool_refused: int = 0
    leases_lost: int = 0
    restarts: int = 0
    endpoints_disabled: int = 0
    """Endpoints that boathook disabled in that time."""

    ack: Buckets | None = None
    """Seconds from a request's head to its reply, of accepted events."""
    start: Buckets | None = None
    """Seconds from accepting an event to its first attempt by a handler."""
    handling: Buckets | None = None
    """Seconds that attempts of handlers took."""
    sending: Buckets | None = None
    """Seconds that requests to endpoints took."""

    spool_records: float = 0
    spool_bytes: float = 0
    connections: float = 0
    running: float = 0
    """Handlers at work."""
    under_way: float = 0
    """Requests to endpoints under way."""
    spool_filled: float = 0
    """Share of `spool.max_bytes` in use, of the fullest gateway."""
    spool_oldest_s: float = 0
    spool_failing: float = 0
    journal_away: float = 0
    """1 where a gateway took events into its spool, as PostgreSQL did not."""
    oldest_due_s: float = 0
    xmin_age_s: float = 0
    breakers_open: float = 0
    """Endpoints that are given a pause."""
    dependencies_open: float = 0
    """1 where the circuit breaker of a handler's dependency is open."""
    failing: float = 0
    """Enabled endpoints whose latest requests failed."""
    disabled: float = 0
    """Endpoints that stand disabled."""
    unhandled: float = 0
    """Events of the last day that no handler matched."""

    @property
    def arrived(self) -> SourceCounts:
        """Requests at all sources."""
        return _total(SourceCounts, self.sources.values())

    @property
    def worked(self) -> RecipientCounts:
        """Attempts of all recipients, endpoints included."""
        return _total(RecipientCounts, self.recipients.values())

    @property
    def sends(self) -> RecipientCounts:
        """Requests to endpoints."""
        return self.recipients.get(ENDPOINTS, RecipientCounts())

    @property
    def backlog(self) -> BacklogCounts:
        """What all recipients are owed."""
        return _total(BacklogCounts, self.owed.values())

    def quantile(self, spread: str, share: float) -> float | None:
        """Return below how many seconds *share* of ``ack``, ``start``, ``handling`` or ``sending`` lie."""
        found: Buckets | None = getattr(self, spread)
        return None if found is None else found.quantile(METRICS[_HISTOGRAMS[spread]].bounds, share)


_HISTOGRAMS: Final = {
    "ack": "boathook_ack_seconds",
    "start": "boathook_accept_to_start_seconds",
    "handling": "boathook_handler_seconds",
    "sending": "boathook_send_seconds",
}
_COUNTERS: Final = {
    "published": "boathook_published_total",
    "overloaded": "boathook_intake_overloaded_total",
    "spooled": "boathook_spool_appended_total",
    "drained": "boathook_spool_drained_total",
    "spool_refused": "boathook_spool_refused_total",
    "leases_lost": "boathook_leases_lost_total",
    "restarts": "boathook_restarts_total",
    "endpoints_disabled": "boathook_endpoints_disabled_total",
}
_SUM_GAUGES: Final = {
    "spool_records": "boathook_spool_records",
    "spool_bytes": "boathook_spool_bytes",
    "connections": "boathook_connections",
    "running": "boathook_running",
    "under_way": "boathook_sending",
}
"""Levels of which each host has its own share."""
_MAX_GAUGES: Final = {
    "spool_filled": "boathook_spool_filled",
    "spool_oldest_s": "boathook_spool_oldest_seconds",
    "spool_failing": "boathook_spool_failing",
    "journal_away": "boathook_journal_away",
    "oldest_due_s": "boathook_oldest_due_seconds",
    "xmin_age_s": "boathook_oldest_xmin_age_seconds",
    "breakers_open": "boathook_endpoint_breakers_open",
    "dependencies_open": "boathook_breaker_open",
    "failing": "boathook_failing_endpoints",
    "disabled": "boathook_disabled_endpoints",
    "unhandled": "boathook_unhandled_events",
}
"""Levels of which the highest counts: every host would say the same, or only the worst matters."""
_SOURCE_COUNTERS: Final = {
    "accepted": "boathook_events_accepted_total",
    "duplicates": "boathook_duplicates_total",
    "conflicts": "boathook_conflicts_total",
}
_OUTCOME_FIELDS: Final = {"succeeded": "succeeded", "ignored": "ignored", "retry": "retried", "dead": "dead"}


def snapshot_between(before: MergedMetrics, after: MergedMetrics) -> MetricSnapshot:
    """Return what was counted between two moments, with the levels of the later one."""
    numbers: dict[str, Any] = {name: _total_increase(before, after, metric) for name, metric in _COUNTERS.items()}
    numbers |= {name: _level(after, metric, sum) for name, metric in _SUM_GAUGES.items()}
    numbers |= {name: _level(after, metric, max) for name, metric in _MAX_GAUGES.items()}
    numbers |= {name: _histogram_increase(before, after, metric) for name, metric in _HISTOGRAMS.items()}
    return MetricSnapshot(
        span_s=round(max(0.0, after.at - before.at), 3),
        sources=_limit_names(SourceCounts, _source_counts(before, after)),
        recipients=_limit_names(RecipientCounts, _recipient_counts(before, after)),
        owed=_limit_names(BacklogCounts, _backlog_counts(after)),
        roles=dict(after.roles),
        **numbers,
    )


def recent_snapshot(history: MetricHistory, span_s: float) -> MetricSnapshot:
    """Return what the processes of this host have counted in about the last *span_s* seconds, of a minute at most."""
    return snapshot_between(history.before(span_s), history.now())


def host_name(data_dir: Path) -> str:
    """Return what samples call the processes that share a data directory: the machine, and the directory there."""
    return f"{platform.node()}:{data_dir.absolute()}"


def concatenate(tallies: Iterable[MetricSnapshot]) -> MetricSnapshot:
    """Return the tally of the whole time of one host's tallies: counts are added, levels are the highest."""
    return _combine(list(tallies), span=sum, share=max)


def combine_hosts(tallies: Iterable[MetricSnapshot]) -> MetricSnapshot:
    """Return the tally of several hosts over one time: counts, and the levels that hosts share, are added."""
    return _combine(list(tallies), span=max, share=sum)


def without_names(tally: MetricSnapshot) -> MetricSnapshot:
    """Return a tally that says the same of all sources, all handlers and all endpoints together, and names none."""
    handlers = [worked for recipient, worked in tally.recipients.items() if recipient != ENDPOINTS]
    return msgspec.structs.replace(
        tally,
        sources=_without_zeros({OTHERS: tally.arrived}),
        recipients=_without_zeros({ENDPOINTS: tally.sends, OTHERS: _total(RecipientCounts, handlers)}),
        owed=_without_zeros({OTHERS: tally.backlog}),
    )


def _without_zeros(records: Mapping[str, Record]) -> dict[str, Record]:
    """Leave out what is all zero."""
    return {name: record for name, record in records.items() if record != type(record)()}


Reducer = Callable[[Sequence[Any]], Any]


def _combine(tallies: Sequence[MetricSnapshot], *, span: Reducer, share: Reducer) -> MetricSnapshot:
    if len(tallies) < 2:
        return tallies[0] if tallies else MetricSnapshot()

    def of(name: str) -> list[Any]:
        return [getattr(tally, name) for tally in tallies]

    numbers: dict[str, Any] = {name: sum(of(name)) for name in _COUNTERS}
    numbers |= {name: share(of(name)) for name in _SUM_GAUGES}
    numbers |= {name: max(of(name)) for name in _MAX_GAUGES}
    numbers |= {name: _add_histograms(of(name)) for name in _HISTOGRAMS}
    return MetricSnapshot(
        span_s=span(of("span_s")),
        sources=_limit_names(SourceCounts, _by_name(SourceCounts, of("sources"), sum)),
        recipients=_limit_names(RecipientCounts, _by_name(RecipientCounts, of("recipients"), sum)),
        owed=_limit_names(BacklogCounts, _by_name(BacklogCounts, of("owed"), max)),
        roles={name: share(found) for name, found in _grouped(of("roles")).items()},
        **numbers,
    )


def _by_name(kind: type[Record], tables: Iterable[Mapping[str, Record]], rule: Reducer) -> dict[str, Record]:
    return {name: _field_by_field(kind, records, rule) for name, records in _grouped(tables).items()}


def _grouped(tables: Iterable[Mapping[str, Value]]) -> dict[str, list[Value]]:
    groups: dict[str, list[Value]] = {}
    for table in tables:
        for name, value in table.items():
            groups.setdefault(name, []).append(value)
    return groups


def _add_histograms(spreads: Iterable[Buckets | None]) -> Buckets | None:
    """Add spreads; those with other buckets than the last, as another version has counted them, are left out."""
    known = [one for one in spreads if one is not None]
    if not known:
        return None
    alike = [one for one in known if len(one.counts) == len(known[-1].counts)]
    return Buckets(tuple(map(sum, zip(*(one.counts for one in alike), strict=True))), sum(one.total for one in alike))


def _field_by_field(kind: type[Record], records: Sequence[Record], rule: Reducer) -> Record:
    if len(records) == 1:
        return records[0]
    return kind(*map(rule, zip(*map(msgspec.structs.astuple, records), strict=True)))


def _total(kind: type[Record], records: Iterable[Record]) -> Record:
    found = list(records)
    return _field_by_field(kind, found, sum) if found else kind()


def _limit_names(kind: type[Record], records: Mapping[str, Record]) -> dict[str, Record]:
    """Keep the names with the largest numbers, and make one of the others; what is all zero is left out."""
    busy = _without_zeros(records)
    if len(busy) <= MAX_NAMES:
        return busy
    kept = sorted(busy, key=lambda name: (name != OTHERS, -_weight(busy[name])))[:MAX_NAMES]
    rest = _total(kind, [record for name, record in busy.items() if name not in kept or name == OTHERS])
    return {**{name: busy[name] for name in kept if name != OTHERS}, OTHERS: rest}


def _weight(record: msgspec.Struct) -> int:
    return sum(msgspec.structs.astuple(record))


def _increases(before: MergedMetrics, after: MergedMetrics, metric: str) -> Iterable[tuple[SeriesKey, int]]:
    """Yield each series of a counter with what it rose by; one that fell was started anew and tells nothing."""
    earlier = before.numbers.get(metric, {})
    for labels, value in after.numbers.get(metric, {}).items():
        if (risen := round(value - earlier.get(labels, 0))) > 0:
            yield labels, risen


def _total_increase(before: MergedMetrics, after: MergedMetrics, metric: str) -> int:
    return sum(n for _, n in _increases(before, after, metric))


def _level(after: MergedMetrics, metric: str, rule: Callable[[Sequence[float]], float]) -> float:
    return rule([*after.numbers.get(metric, {}).values(), 0.0])


def _histogram_increase(before: MergedMetrics, after: MergedMetrics, metric: str) -> Buckets | None:
    whole = after.summed(metric)
    if whole is None:
        return None
    lately = whole.since(before.summed(metric))
    return Buckets(lately.counts, round(lately.total, 6)) if any(lately.counts) else None


def _source_counts(before: MergedMetrics, after: MergedMetrics) -> dict[str, SourceCounts]:
    found: dict[str, dict[str, int]] = {}

    def add(source: str, what: str, n: int) -> None:
        one = found.setdefault(source, {})
        one[what] = one.get(what, 0) + n

    for what, metric in _SOURCE_COUNTERS.items():
        for (source,), n in _increases(before, after, metric):
            add(source, what, n)
    for (source, status), n in _increases(before, after, "boathook_requests_total"):
        add(source, "requests", n)
        add(source, "faults", n if status.startswith("5") else 0)
    for (source, reason), n in _increases(before, after, "boathook_rejections_total"):
        add(source, "rejected", n)
        add(source, "bad_signatures", n if reason.startswith(_PROOF_REASONS) else 0)
    return {source: SourceCounts(**one) for source, one in found.items()}


def _recipient_counts(before: MergedMetrics, after: MergedMetrics) -> dict[str, RecipientCounts]:
    found: dict[str, dict[str, int]] = {}
    ended = [
        (recipient, outcome, n) for (recipient, outcome), n in _increases(before, after, "boathook_deliveries_total")
    ]
    ended += [(ENDPOINTS, outcome, n) for (outcome,), n in _increases(before, after, "boathook_sends_total")]
    for recipient, outcome, n in ended:
        one = found.setdefault(recipient, {})
        what = _OUTCOME_FIELDS.get(outcome, "retried")
        one[what] = one.get(what, 0) + n
    return {recipient: RecipientCounts(**one) for recipient, one in found.items()}


def _backlog_counts(after: MergedMetrics) -> dict[str, BacklogCounts]:
    states: dict[str, dict[str, int]] = {}
    for (recipient, state), value in after.numbers.get("boathook_backlog", {}).items():
        states.setdefault(recipient, {})[state] = int(value)
    ages = after.numbers.get("boathook_backlog_age", {})
    fields = tuple(zip(("under_10s", "under_1m", "under_10m", "under_1h", "older"), AGES, strict=True))
    return {
        recipient: BacklogCounts(**numbers, **{field: int(ages.get((recipient, age), 0)) for field, age in fields})
        for recipient, numbers in states.items()
    }
