"""The command that checks the books, and what it prints."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from boathook.cli import show
from boathook.cli.options import Json, Since, Until
from boathook.cli.session import complain_once, err, journal, out, run, session
from boathook.config import Settings
from boathook.domain.errors import BoathookError, ConfigError
from boathook.journal import books
from boathook.journal.balance import Balance, Books, Imbalance, Step
from boathook.spool import survey

_LOOK_TIMEOUT_S: Final = 300.0
"""Of one look, which takes a fraction of a second where PostgreSQL is well."""
_GENTLE_REST: Final = 3.0
_COULD_NOT: Final = 2


def verify(
    ctx: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Also compare every stored body with its hash.")] = False,
    gently: Annotated[bool, typer.Option("--gently", help="Rest three times as long as each look takes.")] = False,
    since: Since = None,
    until: Until = None,
    as_json: Json = False,
) -> None:
    """
    Check the books: every accepted event is owed or ended exactly once, and nothing else is stored.

    Changes nothing, and may run beside live traffic: it looks at one short range of events after the other. Exits with
    1 if anything is amiss, with 2 if it could not look. A long history can be checked in parts, by --since and --until.
    """
    from boathook.inbound.gates import dedup_days_of

    async def work(settings: Settings) -> Books:
        with _Bar() as report:
            async with journal(settings, purpose="verify", statement_timeout_s=_LOOK_TIMEOUT_S) as database:
                return await books.verify(
                    database,
                    dedup_days=settings.retention.dedup_days,
                    dedup_days_of=dedup_days_of(settings),
                    is_deep=deep,
                    since=since,
                    until=until,
                    rest=_GENTLE_REST if gently else 0.0,
                    progress=report,
                )

    settings = session(ctx).settings()
    try:
        found = run(work(settings))
    except ConfigError:
        raise
    except BoathookError as error:
        err.print(Text(f"boathook: the books could not be checked: {error}"), soft_wrap=True)
        if (spooled := _spooled(settings)).events:
            err.print(Text(f"boathook: {spooled.events:,} events wait in this host's spool"), soft_wrap=True)
        raise typer.Exit(_COULD_NOT) from None
    spooled = _spooled(settings)
    if as_json:
        show.print_json(_document(found, spooled))
    else:
        _print(found, spooled)
    raise typer.Exit(0 if found.is_balanced else 1)


@dataclass(frozen=True, slots=True)
class Spooled:
    """What lies in this host's spool."""

    events: int = 0
    """Accepted and not known to be drained; PostgreSQL may have taken some of a segment that is being drained."""
    refused: int = 0
    """Events set aside because PostgreSQL refused them."""
    damaged: int = 0
    """Segments of which something that was durable cannot be read any more."""


def _spooled(settings: Settings) -> Spooled:
    """Count what lies in this host's spool; one that cannot be read is told of, and counts as none."""
    try:
        return _count(settings.server.data_dir / "spool")
    except OSError as error:
        complain_once(f"this host's spool cannot be read, so what waits there is not counted: {error}")
        return Spooled()


def _count(root: Path) -> Spooled:
    """Count one segment at a time; nothing is changed or kept from anybody."""
    counts: Counter[survey.State] = Counter()
    for lying in (segment for folder in survey.look(root) for segment in folder.segments):
        match lying.state:
            case survey.State.WAITING | survey.State.REFUSED:
                contents = survey.read(lying)
                counts[lying.state] += len(contents.records) if contents else 0
            case survey.State.BAD:
                counts[lying.state] += 1
            case survey.State.DONE:
                pass
    return Spooled(counts[survey.State.WAITING], counts[survey.State.REFUSED], counts[survey.State.BAD])


def _document(found: Books, spooled: Spooled) -> dict[str, object]:
    return {
        "balanced": found.is_balanced,
        "checks": found.checks,
        "looks": found.looks,
        "longest_look_s": round(found.longest_look_s, 3),
        "balance": {**asdict(found.balance), "missing": found.balance.missing},
        "spool": asdict(spooled),
        "imbalances": [asdict(one) for one in found.imbalances],
    }


def _print(found: Books, spooled: Spooled) -> None:
    """Print the balance as a table, and below it everything that does not add up."""
    out.print(_balance(found.balance, spooled))
    out.print()
    for one in found.imbalances:
        _print_imbalance(one)
    if found.is_balanced:
        looked = f"{found.checks} checks, {found.looks:,} looks, the longest took {found.longest_look_s:.1f} s"
        out.print(Text(f"✓ the books balance ({looked})", style="bold green"))
    else:
        text = f"✗ the books do not balance: {len(found.imbalances)} of {found.checks} checks fail"
        out.print(Text(text, style="bold red"))


def _print_imbalance(one: Imbalance) -> None:
    out.print(Text(f"✗ {one.check}: {one.count:,}", style="bold red"))
    out.print(show.text(f"  {one.meaning}"), soft_wrap=True)
    for example in one.examples:
        out.print(show.text(f"  {example}"), soft_wrap=True)
    if (look := next((example.look for example in one.examples if example.look), None)) is not None:
        out.print(show.text(f"  see: {look}"), soft_wrap=True)
    out.print(show.text(f"  then: {one.remedy}"), soft_wrap=True)
    out.print()


def _balance(balance: Balance, spooled: Spooled) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(min_width=44)
    made.add_column(justify="right", min_width=12)

    def line(label: str, number: int | str, style: str = "") -> None:
        made.add_row(Text(label, style=style), Text(f"{number:,}" if isinstance(number, int) else number, style=style))

    line("events", balance.events, "bold")
    line("  received", balance.received)
    line("  published", balance.published)
    line("waiting in this host's spool", spooled.events, "bold")
    if spooled.refused:
        line("  refused by PostgreSQL, for a person to see", spooled.refused, "bold red")
    if spooled.damaged:
        line("  damaged segments, of which events are lost", spooled.damaged, "bold red")
    line("deliveries owed when accepted", balance.owed, "bold")
    line("deliveries added by replays", balance.replayed, "bold")
    for state in ("succeeded", "ignored", "dead", "pending", "leased"):
        line(f"  {state}", getattr(balance, state))
    line("  purged by operators", balance.purged)
    line("  missing", balance.missing, "bold red" if balance.missing else "")
    line("attempts", balance.attempts, "bold")
    line("dedup keys remembered", balance.remembered, "bold")
    line("conflicts (requests)", f"{balance.conflicts:,} ({balance.conflicting_requests:,})", "bold")
    line("rejections kept", balance.rejections, "bold")
    for what, number in balance.dropped.items():
        line(f"dropped: {what}", number, "dim")
    return made


class _Bar:
    """A bar on a terminal; elsewhere silence."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left; {task.fields[pace]}"),
        )
        self._bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._bar.add_task("checking the books", total=1.0, pace="")
        self._began = time.monotonic()
        self._number = 0

    def __enter__(self) -> books.Progress:
        self._bar.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _report(self, step: Step) -> None:
        if step.number != self._number:
            self._number, self._began = step.number, time.monotonic()
            self._bar.reset(self._task, total=1.0)
        title = f"{step.number}/{step.of} {step.title}"
        self._bar.update(self._task, description=title, completed=step.share, pace=self._pace(step))

    def _pace(self, step: Step) -> str:
        rate = f"{step.events / max(time.monotonic() - self._began, 0.1):,.0f} events/s" if step.number == 1 else ""
        reached = f"{step.reached:%Y-%m-%dT%H:%M:%SZ}" if step.reached else ""
        return ", ".join(part for part in (rate, reached and f"at {reached}") if part)
