"""Draws live statistics for a terminal: totals, a table of sources, a table of recipients."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from boathook.cli import output
from boathook.cli.output import Column
from boathook.domain.plurals import counted
from boathook.service.live_stats import (
    LiveStats,
    RecipientActivity,
    SourceActivity,
    format_duration,
    format_rate,
    format_size,
    recipient_title,
)

_MAX_SOURCES: Final = 8
_MAX_RECIPIENTS: Final = 14


class SortOrder(StrEnum):
    """The sort order of rows."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    NAME = "name"

    def next(self) -> "SortOrder":
        """Return the next order."""
        every = list(SortOrder)
        return every[(every.index(self) + 1) % len(every)]


_RECIPIENT_KEYS: Final[dict[SortOrder, Callable[[RecipientActivity], float]]] = {
    SortOrder.PENDING: lambda one: -one.backlog.pending,
    SortOrder.DONE: lambda one: -one.succeeded,
    SortOrder.FAILED: lambda one: -one.failed - one.backlog.dead / 1e9,
    SortOrder.NAME: lambda _: 0,
}
_SOURCE_KEYS: Final[dict[SortOrder, Callable[[SourceActivity], float]]] = {
    SortOrder.PENDING: lambda one: -one.accepted,
    SortOrder.DONE: lambda one: -one.accepted,
    SortOrder.FAILED: lambda one: -one.rejected - one.faults,
    SortOrder.NAME: lambda _: 0,
}


def dashboard(seen: LiveStats, order: SortOrder, footer: Text | None = None) -> RenderableType:
    """Return the whole dashboard; tables omit their less important columns where the terminal is narrow."""
    parts: list[RenderableType] = [_figures(seen), _sources(seen.sources, order), _recipients(seen.recipients, order)]
    return Group(*parts) if footer is None else Group(*parts, footer)


def line(seen: LiveStats) -> Text:
    """Return the most important figures in one line."""
    return Text(
        f"{seen.at:%H:%M:%S}  in {format_rate(seen.accepted)}/s  rejected {format_rate(seen.rejected)}/s"
        f"  ack p50 {format_duration(seen.ack_p50)} p99 {format_duration(seen.ack_p99)}"
        f"  done {format_rate(seen.succeeded)}/s"
        f"  failed {format_rate(seen.failed)}/s  due {seen.backlog.due}  later {seen.backlog.later}"
        f"  dead {seen.backlog.dead}  spool {seen.spool_records}"
    )


def _figures(seen: LiveStats) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    for name, figures in (*_flow(seen), *_stock(seen)):
        table.add_row(name, figures)
    return table


def _flow(seen: LiveStats) -> list[tuple[str, Text]]:
    return [
        ("boathook", Text(f"{seen.at:%Y-%m-%d %H:%M:%S} UTC   {_hosts(seen)}")),
        (
            "in",
            _joined(
                (f"{format_rate(seen.accepted)}/s accepted", ""),
                (f"{format_rate(seen.duplicates)}/s duplicates", ""),
                (f"{format_rate(seen.rejected)}/s rejected", "yellow" if seen.rejected else ""),
                (f"{format_rate(seen.bad_signatures)}/s bad signatures", "red" if seen.bad_signatures else ""),
                (f"{format_rate(seen.faults)}/s answered 5xx", "red" if seen.faults else ""),
            ),
        ),
        (
            "latency",
            _joined(
                (f"acknowledged {_pair(seen.ack_p50, seen.ack_p99)}", ""),
                (f"begun {_pair(seen.start_p50, seen.start_p99)}", ""),
                (f"endpoints answer {_pair(seen.send_p50, seen.send_p99)}", ""),
            ),
        ),
        (
            "out",
            _joined(
                (f"{format_rate(seen.succeeded)}/s done", ""),
                (f"{format_rate(seen.failed)}/s failed", "yellow" if seen.failed else ""),
                (f"{format_rate(seen.sent)}/s to endpoints", ""),
            ),
        ),
    ]


def _stock(seen: LiveStats) -> list[tuple[str, Text]]:
    backlog = seen.backlog
    oldest = f" (the oldest for {format_duration(seen.oldest_due_s)})" if backlog.due else ""
    spool = f"{counted(seen.spool_records, 'event')}, {format_size(seen.spool_bytes)}"
    return [
        (
            "pending",
            _joined(
                (f"{backlog.due} due{oldest}", ""),
                (f"{backlog.later} later", ""),
                (f"{backlog.leased} in progress", ""),
                (f"{backlog.dead} dead", "red" if backlog.dead else ""),
            ),
        ),
        (
            "endpoints",
            _joined(
                (f"{seen.failing_endpoints} failing", "yellow" if seen.failing_endpoints else ""),
                (f"{seen.breakers_open} paused", "yellow" if seen.breakers_open else ""),
                (f"{seen.disabled_endpoints} disabled", "red" if seen.disabled_endpoints else ""),
            ),
        ),
        ("spool", _joined((spool, "yellow" if seen.spool_records else ""), *_away(seen))),
    ]


def _away(seen: LiveStats) -> list[tuple[str, str]]:
    return [("PostgreSQL does not accept events", "red")] if seen.is_spooling else []


def _hosts(seen: LiveStats) -> str:
    if not seen.hosts:
        return "no processes found; is `boathook serve` running with this server.data_dir or database.url?"
    processes = sum(number for host in seen.hosts for number in host.roles.values())
    suffix = f", {counted(processes, 'process')}" if processes else ""
    return f"{counted(len(seen.hosts), 'host')}{suffix}"


def _pair(p50: float | None, p99: float | None) -> str:
    return f"p50 {format_duration(p50)} p99 {format_duration(p99)}"


def _joined(*parts: tuple[str, str]) -> Text:
    return Text("   ").join(Text(text, style=style) for text, style in parts)


def _sources(rows: Sequence[SourceActivity], order: SortOrder) -> Table:
    shown = sorted(rows, key=lambda one: (_SOURCE_KEYS[order](one), one.source))[:_MAX_SOURCES]
    return output.table(_SOURCE_COLUMNS, shown, box=box.SIMPLE_HEAD)


def _recipients(rows: Sequence[RecipientActivity], order: SortOrder) -> Table:
    shown = sorted(rows, key=lambda one: (_RECIPIENT_KEYS[order](one), one.recipient))[:_MAX_RECIPIENTS]
    return output.table(
        _RECIPIENT_COLUMNS,
        shown,
        box=box.SIMPLE_HEAD,
        style_of=lambda one: "red" if one.backlog.dead else "yellow" if one.failed else "",
    )


def _number(title: str, read: Callable[[Any], object], *, is_whole: bool = False) -> Column:
    return Column(title, read, is_number=True, is_whole=is_whole)


def _rate(title: str, name: str, *, is_whole: bool = False) -> Column:
    return _number(title, lambda one: format_rate(getattr(one, name)), is_whole=is_whole)


def _age(title: str, place: int) -> Column:
    return _number(title, lambda one: one.backlog.ages[place])


_SOURCE_COLUMNS: Final = (
    Column("source", is_whole=True),
    _rate("accepted/s", "accepted"),
    _rate("duplicates/s", "duplicates"),
    _rate("rejected/s", "rejected", is_whole=True),
    _rate("bad signatures/s", "bad_signatures"),
    _rate("5xx/s", "faults"),
)
_RECIPIENT_COLUMNS: Final = (
    Column("recipient", lambda one: recipient_title(one.recipient), is_whole=True),
    _rate("done/s", "succeeded"),
    _rate("failed/s", "failed"),
    *(_age(title, place) for place, title in enumerate(("<10s", "<1m", "<10m", "<1h", "older"))),
    _number("later", lambda one: one.backlog.later),
    _number("work", lambda one: one.backlog.leased),
    _number("dead", lambda one: one.backlog.dead, is_whole=True),
)
