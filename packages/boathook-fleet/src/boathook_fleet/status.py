"""Metrics of the app, in its operator's terms: acknowledgement, queue, duplicates, readiness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from boathook import Boathook, Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet import fetching
from boathook_fleet.app import hook
from boathook_fleet.log import Phase, count_errors, errors
from boathook_fleet.records import count_unparsed
from boathook_fleet.settings import SOURCES, FleetSettings, show_size

SQL: Final = load_statements(__file__)
REQUESTS: Final = "fleet_requests_total"
ACK: Final = "fleet_ack_seconds"
DUPLICATES: Final = "fleet_duplicates_total"
MAX_POINTS: Final = 2_000
"""Rows of the history; boathook returns no more."""
_ROWS: Final = ("dirty", "unknown", "unparsed")
"""Numbers of rows, by their names in `read_counts`."""

hook.mirror(
    REQUESTS, "Requests of the app's sources, by the status answered.", of="boathook_requests_total",
    where={"source": SOURCES}, labels={"status": "status"},
)  # fmt: skip
hook.mirror(ACK, "Times of their acknowledgements.", of="boathook_ack_seconds", where={"source": SOURCES})
hook.mirror(DUPLICATES, "Repetitions among them.", of="boathook_duplicates_total", where={"source": SOURCES})
rows = hook.gauge("fleet_rows", "Objects to be written, requests and objects that were not understood.", "kind")
queue = hook.gauge("fleet_queue", "Deliveries of the app that are not finished, and objects to be fetched.", "state")
not_ready = hook.gauge("fleet_readiness_problems", "Checks of readiness that fail.")
Series = Sequence[Mapping[str, Any]]
_STATES: Final = {"leased": "inflight", "pending": "pending", "dead": "dead"}
"""The states of deliveries, and the names of their numbers in `describe`."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The metrics of boathook that concern this app."""

    status: Mapping[str, Any]
    recipients: str
    """The prefix of this app's recipients."""

    def series(self, name: str) -> Series:
        """Return all series of a metric."""
        series: Series = self.status["metrics"].get(name, {}).get("series", ())
        return series

    def recent_increase(self, name: str, is_wanted: Callable[[Mapping[str, str]], bool] = lambda _labels: True) -> int:
        """Return the increase of a counter of this app's sources in the last minute."""
        window_s = self.status["window_s"]
        count_new = (
            series["per_second"] * window_s
            for series in self.series(name)
            if series["labels"].get("source") in SOURCES and is_wanted(series["labels"])
        )
        total: float = sum(count_new)
        return round(total)

    def ack_ms(self, statistic: str) -> float | None:
        """Return the mean or a quantile of the acknowledgement time in the last minute, of the slowest source.

        It is in ms, or None without requests.
        """
        seconds = [
            series[statistic]
            for series in self.series("boathook_ack_seconds")
            if series["labels"]["source"] in SOURCES and series["per_second"] > 0
        ]
        return round(max(seconds) * 1_000, 3) if seconds else None

    def dedup_window_s(self) -> float | None:
        """Return how long RentProg's requests are recognized by what is in force; None until a gateway reports it."""
        series = self.series("boathook_dedup_window_seconds")
        return next((row["value"] for row in series if row["labels"]["source"] == SOURCES[0]), None)

    def gauge(self, name: str) -> float | None:
        """Return the value of a gauge of this host, without labels; None if it is not reported."""
        return next((series["value"] for series in self.series(name)), None)

    def redis(self) -> str:
        """Return whether the gateways can use `shared.redis`: ``up``, ``down``, or ``absent`` if there is none."""
        unavailable = self.gauge("boathook_redis_unavailable")
        return "absent" if unavailable is None else "down" if unavailable else "up"

    def queue(self) -> dict[str, int]:
        """Return this app's open deliveries, by the names of `_STATES`."""
        numbers = dict.fromkeys(_STATES.values(), 0)
        for series in self.series("boathook_backlog"):
            state = _STATES.get(series["labels"]["state"])
            if state is not None and series["labels"]["recipient"].startswith(self.recipients):
                numbers[state] += int(series["value"])
        return numbers

    def total(self, name: str, **labels: str) -> int:
        """Return the value of a counter of this app's sources."""
        return sum(
            int(series["value"])
            for series in self.series(name)
            if series["labels"].get("source") in SOURCES and labels.items() <= series["labels"].items()
        )


async def read_figures(hook: Boathook) -> Figures:
    """Return the current metrics."""
    return Figures(await hook.platform.health(), f"handler:{hook.name}.")


def describe(
    figures: Figures,
    settings: FleetSettings,
    *,
    fetch_backlog: int = 0,
    branches: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the app's metrics as JSON values; none of them is a secret."""
    p95, problems = figures.ack_ms("p95"), list(figures.status.get("problems", ()))
    return {
        "version": _version(),
        "at": datetime.fromtimestamp(figures.status["at"], UTC).isoformat(),
        "window_s": figures.status["window_s"],
        "webhook_ok_1m": figures.recent_increase(
            "boathook_requests_total", lambda labels: labels["status"].startswith("2")
        ),
        "webhook_err_1m": figures.recent_increase(
            "boathook_requests_total", lambda labels: not labels["status"].startswith("2")
        ),
        "webhook_ack_avg_ms_1m": figures.ack_ms("mean"),
        "webhook_ack_p50_ms_1m": figures.ack_ms("p50"),
        "webhook_ack_p95_ms_1m": p95,
        "webhook_ack_sla_ms": settings.ack_sla_ms,
        "is_ack_within_sla": p95 is None or p95 <= settings.ack_sla_ms,
        "redis": figures.redis(),
        "queue": {**figures.queue(), "fetch_full_backlog": fetch_backlog},
        "readiness": {
            "ok": not problems,
            "problems": problems,
            "shutting_down": bool(figures.gauge("boathook_gateways_stopping")),
            "server_inflight": round(figures.gauge("boathook_requests_in_flight") or 0),
        },
        "dedup": {
            "backend": "postgresql",
            "ttl": round(figures.dedup_window_s() or settings.dedup_window_s),
            "memorySize": round(figures.gauge("boathook_dedup_cache_keys") or 0),
            "hits_1m": figures.recent_increase("boathook_duplicates_total"),
            "hits": figures.total("boathook_duplicates_total"),
        },
        "rateRps": settings.rate,
        "rate_burst": settings.burst,
        "jsonLimit": show_size(settings.max_body),
        "async_concurrency": settings.concurrency,
        "batch_window_ms": round(settings.window_s * 1_000),
        "dead_retry_s": list(settings.dead_retry_s),
        "branches": dict(branches or {}),
    }


def selftest(described: Mapping[str, Any], checks: Mapping[str, bool]) -> dict[str, Any]:
    """Return the answer of the self-test: what `describe` returns, with the figures of the last minute apart."""
    is_ok = described["readiness"]["ok"] and all(checks.values())
    names = [name for name in described if name.startswith("webhook_")]
    rest = {name: value for name, value in described.items() if name not in names}
    return {"ok": is_ok, "checks": checks, **rest, "metrics": {name: described[name] for name in names}}


def _version() -> str:
    try:
        return version("boathook")
    except PackageNotFoundError:
        return "not installed"


async def read_counts(tx: Transaction) -> dict[str, Any]:
    """Return counts of the app's own tables, for the last minute and for waiting work."""
    row = await tx.fetchrow(SQL["read_counts"])
    assert row is not None
    return dict(row) | {"unparsed": await count_unparsed(tx), "errors_1m": await count_errors(tx, minutes=1)}


async def set_gauges(tx: Transaction, figures: Figures) -> None:
    """Set the gauges, which the platform keeps minute by minute."""
    counts = await read_counts(tx)
    for name in _ROWS:
        rows.set(counts[name], kind=name)
    for state, number in (figures.queue() | {"fetch_full_backlog": await fetching.count_open(tx)}).items():
        queue.set(number, state=state)
    not_ready.set(len(figures.status.get("problems", ())))


async def list_minutes(*, minutes: int) -> list[dict[str, Any]]:
    """Return the metrics of the last minutes, oldest first; minutes in which nothing ran are missing.

    If there are more than `MAX_POINTS`, each row is the average of several.
    """
    width = -(-minutes // MAX_POINTS)
    return [_minute(point, width) for point in await hook.metric_history(minutes=minutes, step_s=60 * width)]


def _minute(point: Any, width: int) -> dict[str, Any]:
    def rate(number: float | None) -> float:
        return round(number or 0) if width == 1 else round((number or 0) / width, 2)

    by_status = {key[0]: point.value(REQUESTS, status=key[0]) or 0 for key in point.series(REQUESTS)}
    accepted = sum(number for status, number in by_status.items() if status.startswith("2"))
    times = {"avg": point.mean(ACK), "p50": point.quantile(ACK, 0.5), "p95": point.quantile(ACK, 0.95)}
    return {
        "minute": point.at.isoformat(),
        "webhook_ok_1m": rate(accepted),
        "webhook_err_1m": rate(sum(by_status.values()) - accepted),
        **{f"webhook_ack_{name}_ms_1m": s and round(s * 1_000, 3) for name, s in times.items()},
        "webhook_duplicates_1m": rate(point.value(DUPLICATES)),
        "changes_1m": rate(point.value("fleet_changes_total")),
        "errors_1m": {phase.value: rate(point.value(errors, phase=phase.value)) for phase in Phase},
        "queue": {key[0]: round(point.value(queue, state=key[0]) or 0) for key in point.series(queue)},
        "problems": round(point.value(not_ready) or 0),
        **{name: round(point.value(rows, kind=name) or 0) for name in _ROWS},
    }


async def clean_up(tx: Transaction, *, keep_days: float, max_errors: int) -> None:
    """Delete rows older than *keep_days*, and all but the latest errors."""
    for name, statement in SQL.items():
        if name.startswith("delete_"):
            await tx.execute(statement, keep_days * 86_400)
    await tx.execute(SQL["cut_errors"], max_errors)
