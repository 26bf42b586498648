"""The consistency check command and its output."""

import time
from typing import Annotated, Final

import typer
from msgspec.structs import asdict
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from boathook.cli import output
from boathook.cli.context import cli_context, err, open_database, out, run, warn_once
from boathook.cli.options import Json, Since, Until
from boathook.config import Settings
from boathook.domain.errors import BoathookError, ConfigError
from boathook.domain.plurals import counted
from boathook.service.operating import integrity
from boathook.service.operating.integrity import Balance, CheckProgress, IntegrityReport, Violation
from boathook.service.receiving import spool
from boathook.service.receiving.spool import SpoolCounts

_EXIT_CHECK_FAILED: Final = 2


def check(
    ctx: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Also compare every stored body with its hash.")] = False,
    gently: Annotated[
        bool, typer.Option("--gently", help="Throttle: pause three times as long as each query takes.")
    ] = False,
    since: Since = None,
    until: Until = None,
    as_json: Json = False,
) -> None:
    """
    Check the store: every delivery of every accepted event is pending or finished exactly once.

    Read-only and safe under live traffic: it checks one short range of events at a time. Exits with 1 if an invariant
    is violated, with 2 if the check could not run. Use --since and --until to check a long history in parts.
    """

    async def work(settings: Settings) -> IntegrityReport:
        with _ProgressBar() as report:
            async with open_database(
                settings, purpose="check", statement_timeout_s=integrity.QUERY_TIMEOUT_S
            ) as database:
                return await integrity.check(
                    database, settings, is_deep=deep, is_gentle=gently, since=since, until=until, progress=report
                )

    settings = cli_context(ctx).settings()
    try:
        integrity_report = run(work(settings))
    except ConfigError:
        raise
    except BoathookError as error:
        err.print(Text(f"boathook: the check could not run: {error}"), soft_wrap=True)
        if (spooled := _spooled(settings)).events:
            err.print(Text(f"boathook: {counted(spooled.events, 'event')} in this host's spool"), soft_wrap=True)
        raise typer.Exit(_EXIT_CHECK_FAILED) from None
    spooled = _spooled(settings)
    if as_json:
        output.print_json(_document(integrity_report, spooled))
    else:
        _print(integrity_report, spooled)
    raise typer.Exit(0 if integrity_report.is_consistent else 1)


def _spooled(settings: Settings) -> SpoolCounts:
    """Count the events in this host's spool; if it cannot be read, warn and return zero counts."""
    try:
        return spool.count(spool.root_of(settings))
    except OSError as error:
        warn_once(f"this host's spool cannot be read, so its events are not counted: {error}")
        return SpoolCounts()


def _document(report: IntegrityReport, spooled: SpoolCounts) -> dict[str, object]:
    return {
        "balanced": report.is_consistent,
        "checks": report.checks,
        "looks": report.looks,
        "longest_look_s": round(report.longest_query_s, 3),
        "balance": {**asdict(report.balance), "missing": report.balance.missing},
        "spool": asdict(spooled),
        "imbalances": [asdict(violation) for violation in report.violations],
    }


def _print(report: IntegrityReport, spooled: SpoolCounts) -> None:
    """Print the totals as a table, and then the violations."""
    out.print(_balance(report.balance, spooled))
    out.print()
    for violation in report.violations:
        _print_violation(violation)
    if report.is_consistent:
        details = f"{report.checks} checks, {report.looks:,} queries, the longest took {report.longest_query_s:.1f} s"
        out.print(Text(f"✓ the store is consistent ({details})", style="bold green"))
    else:
        text = f"✗ the store is inconsistent: {len(report.violations)} of {report.checks} checks fail"
        out.print(Text(text, style="bold red"))


def _print_violation(violation: Violation) -> None:
    out.print(Text(f"✗ {violation.check}: {violation.count:,}", style="bold red"))
    out.print(output.text(f"  {violation.meaning}"), soft_wrap=True)
    for example in violation.examples:
        out.print(output.text(f"  {example}"), soft_wrap=True)
    if (command := next((example.look for example in violation.examples if example.look), None)) is not None:
        out.print(output.text(f"  see: {command}"), soft_wrap=True)
    out.print(output.text(f"  fix: {violation.remedy}"), soft_wrap=True)
    out.print()


def _balance(balance: Balance, spooled: SpoolCounts) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(min_width=44)
    table.add_column(justify="right", min_width=12)

    def line(label: str, number: int | str, style: str = "") -> None:
        table.add_row(Text(label, style=style), Text(f"{number:,}" if isinstance(number, int) else number, style=style))

    line("events", balance.events, "bold")
    line("  received", balance.received)
    line("  published", balance.published)
    line("  accepted conflicts", balance.accepted_conflicts)
    line("waiting in this host's spool", spooled.events, "bold")
    if spooled.refused:
        line("  rejected by PostgreSQL, to review", spooled.refused, "bold red")
    if spooled.damaged:
        line("  damaged segments with lost events", spooled.damaged, "bold red")
    line("deliveries created on accept", balance.deliveries, "bold")
    line("deliveries added by replays", balance.replayed, "bold")
    for state in ("succeeded", "ignored", "dead", "pending", "leased"):
        line(f"  {state}", getattr(balance, state))
    line("  purged by operators", balance.purged)
    line("  missing", balance.missing, "bold red" if balance.missing else "")
    line("attempts", balance.attempts, "bold")
    line("dedup keys stored", balance.remembered, "bold")
    line("conflicts (requests)", f"{balance.conflicts:,} ({balance.conflicting_requests:,})", "bold")
    line("rejections stored", balance.rejections, "bold")
    for reason, number in balance.dropped.items():
        line(f"dropped: {reason}", number, "dim")
    return table


class _ProgressBar:
    """A progress bar on a terminal; silent elsewhere."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left; {task.fields[pace]}"),
        )
        self._bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._bar.add_task("checking the store", total=1.0, pace="")
        self._began = time.monotonic()
        self._number = 0

    def __enter__(self) -> integrity.ProgressCallback:
        self._bar.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _report(self, step: CheckProgress) -> None:
        if step.number != self._number:
            self._number, self._began = step.number, time.monotonic()
            self._bar.reset(self._task, total=1.0)
        title = f"{step.number}/{step.of} {step.title}"
        self._bar.update(self._task, description=title, completed=step.share, pace=self._pace(step))

    def _pace(self, step: CheckProgress) -> str:
        rate = f"{step.events / max(time.monotonic() - self._began, 0.1):,.0f} events/s" if step.number == 1 else ""
        reached = f"{step.reached:%Y-%m-%dT%H:%M:%SZ}" if step.reached else ""
        return ", ".join(part for part in (rate, reached and f"at {reached}") if part)
