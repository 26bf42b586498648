"""Commands that decide about what is stored: replay, ignore, purge, judge again."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, action, cli_context, err, open_database, out, run
from boathook.cli.list import dead, events, rejections
from boathook.cli.options import (
    All,
    Application,
    Code,
    DryRun,
    Ids,
    InGroup,
    Json,
    Note,
    Rate,
    Reason,
    Recipient,
    Since,
    Source,
    Type,
    Unhandled,
    Until,
    Yes,
    read_delivery_ids,
    read_ids,
)  # fmt: skip
from boathook.cli.output import Column
from boathook.cli.progress import Progress
from boathook.domain import ids
from boathook.service import dead_letter_groups, failure_causes, operations
from boathook.service.database import Database
from boathook.service.dead_letter_groups import DeadLetterGroup
from boathook.service.operations import ListFilter, Selection

__all__ = ["dead", "events", "rejections"]

RunName = Annotated[str | None, typer.Option("--run", help="Name of this run; a run replays each event once.")]
Route = Annotated[bool, typer.Option("--route", help="Add deliveries for current handlers that never had one.")]
To = Annotated[str | None, typer.Option(metavar="HANDLER", help="With --route: to this handler only.")]

_LEFT = (
    "{} skipped: a dead letter was purged (--to HANDLER routes it anyway), or an older boathook stored the event as a"
    " batch"
)
_GROUPS = (
    Column("number", lambda group: group.number),
    Column("from", lambda group: group.source or group.application),
    Column("type", lambda group: group.type),
    Column("recipient", lambda group: group.recipient),
    Column("code", lambda group: group.code),
    Column("oldest", lambda group: output.format_age(group.oldest)),
)


@events.command("replay", epilog=example(
    "boathook events replay evt_01h455vb4pex5vsknk084sn02q4",
    "boathook events replay --source stripe --since 1d --rate 50 --run after-the-fix --yes",
    "boathook events replay --route --unhandled --since 7d",
    "boathook events replay --route --to handler:invoice --since 7d --dry-run",
))  # fmt: skip
def replay_events(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    since: Since = None, until: Until = None, unhandled: Unhandled = False, everything: All = False, rate: Rate = None,
    run_name: RunName = None, route: Route = False, to: To = None, note: Note = None,
    dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """
    Replay events: finished deliveries get a new delivery, dead letters are retried.

    Pending and leased deliveries are not changed. With --route, events are routed with the current handlers instead:
    each matching handler without a delivery of the event gets one. Repeating this adds nothing.
    """
    wanted = ListFilter(
        source=source, application=application, type=type, since=since, until=until, is_unhandled=unhandled
    )
    _check_choice(chosen, wanted, everything)
    if to is not None and not route:
        raise UsageError("--to needs --route; a replay uses the existing recipients")
    if route and run_name is not None:
        raise UsageError("--run cannot be used with --route, which never adds a delivery twice")
    if note is not None and run_name is not None:
        raise UsageError("give --run or --note, not both: the run's name is the note")
    if route:
        _route_events(ctx, chosen, wanted, to, rate, note, dry_run, yes)
        return

    async def work() -> None:
        named = read_ids(ids.EVENT, chosen) if chosen else None
        async with open_database(cli_context(ctx).settings()) as database:
            if named is None:
                number = await operations.count_events(database, wanted)
                out.print(f"{number} events")
                if number == 0 or not _confirm_action(dry_run, yes, f"replay {number} events"):
                    return
            elif dry_run:
                out.print(f"{len(named)} events")
                return
            else:
                number = len(named)
            with Progress("replaying", number) as report:
                done = await operations.replay_events(
                    database,
                    named or wanted,
                    action(run_name or note),
                    rate=rate,
                    is_once=run_name is not None,
                    report=report,
                )
        out.print(f"replayed {done.events} events: {done.added} deliveries added, {done.revived} dead letters retried")

    run(work())


def _route_events(
    ctx: typer.Context,
    chosen: Sequence[str] | None,
    wanted: ListFilter,
    to: str | None,
    rate: float | None,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Route events again by today's handlers; a dry run does so too, and takes it back."""

    async def work() -> None:
        named = read_ids(ids.EVENT, chosen) if chosen else None
        async with open_database(cli_context(ctx).settings()) as database:
            number = len(named) if named else await operations.count_events(database, wanted)
            if not named and not dry_run:
                out.print(f"{number} events")
                if number == 0 or not _confirm_action(dry_run, yes, f"route {number} events"):
                    return
            with Progress("routing", number) as report:
                done = await operations.route_events(
                    database, named or wanted, action(note), to=to, rate=rate, is_dry_run=dry_run, report=report
                )
        verb = "would be added" if dry_run else "added"
        out.print(f"{done.events} events, {done.routed} routed: {done.added} deliveries {verb}")
        if done.left:
            err.print(_LEFT.format(done.left), soft_wrap=True)

    run(work())


@dead.command("replay", epilog=example(
    "boathook dead replay dlv_01h455vb4pex5vsknk084sn02q4_0",
    "boathook dead replay --source stripe --code TIMEOUT --since 2h --rate 20 --yes",
    "boathook dead replay --group grp_01h455vb4pex5vsknk084sn02q4 --dry-run",
))  # fmt: skip
def replay_dead(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, everything: All = False,
    group: InGroup = None, rate: Rate = None, note: Note = None, dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Replay dead letters, each with its full number of attempts."""
    wanted = ListFilter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until
    )
    verb = _Verb(
        "replay",
        "replayed",
        partial(operations.replay_dead, rate=rate),
        partial(operations.replay_group, rate=rate),
    )
    _move_dead(ctx, verb, chosen, wanted, group, everything, note, dry_run, yes)


@dead.command("ignore", epilog=example(
    "boathook dead ignore dlv_01h455vb4pex5vsknk084sn02q4_0 --note 'refunded by hand'",
    "boathook dead ignore --recipient handler:crm --note 'the old CRM is gone' --yes",
))  # fmt: skip
def ignore_dead(
    ctx: typer.Context, note: Annotated[str, typer.Option(help="Reason; stored as the outcome of the delivery.")],
    chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, everything: All = False,
    group: InGroup = None, dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Mark dead letters as ignored, with a note."""
    wanted = ListFilter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until
    )
    verb = _Verb("ignore", "ignored", operations.ignore_dead, operations.ignore_group)
    _move_dead(ctx, verb, chosen, wanted, group, everything, note, dry_run, yes)


@dead.command("purge", epilog=example("boathook dead purge --source test --since 7d --yes"))
def purge_dead(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, everything: All = False,
    group: InGroup = None, note: Note = None, dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Permanently delete dead letters and their attempts; they are counted as dropped. Their events are kept."""
    wanted = ListFilter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until
    )
    verb = _Verb("purge", "purged", operations.purge_dead, operations.purge_group)
    _move_dead(ctx, verb, chosen, wanted, group, everything, note, dry_run, yes)


@rejections.command("reverify", epilog=example(
    "boathook rejections reverify --source stripe --since 1d",
    "boathook rejections reverify rej_01h455vb4pex5vsknk084sn02q4",
))  # fmt: skip
def reverify_rejections(
    ctx: typer.Context, chosen: Ids = None, source: Source = None,
    reason: Reason = None,
    since: Since = None, until: Until = None, everything: All = False, as_json: Json = False,
) -> None:  # fmt: skip
    """
    Verify rejected requests again with the current secrets; valid ones are accepted.

    Exits with 1 if any is still rejected.
    """
    # What judges requests takes longer to import than other commands take.
    from boathook.service.reverification import reverify

    wanted = ListFilter(source=source, code=reason, since=since, until=until)
    _check_choice(chosen, wanted, everything)

    async def work() -> int:
        named = read_ids(ids.REJECTION, chosen) if chosen else None
        failed, number = 0, 0
        settings = cli_context(ctx).settings()
        async with open_database(settings) as database:
            async for result in reverify(database, settings, named or wanted, action()):
                number += 1
                failed += result.outcome in {"refused", "impossible"}
                if as_json:
                    output.print_json(result)
                else:
                    grade = f" ({result.grade})" if result.grade else ""
                    detail = f"{result.event_id}{grade}" if result.event_id else result.detail
                    out.print(output.text(f"{result.rejection_id}  {result.outcome}  {detail}"), soft_wrap=True)
        if not as_json:
            out.print(f"{number} verified again, {number - failed} accepted, {failed} still rejected")
        return failed

    if run(work()):
        raise typer.Exit(1)


def _check_choice(chosen: Sequence[str] | None, wanted: ListFilter, everything: bool) -> None:
    """Refuse a move of nothing in particular: forgetting a filter must not mean everything."""
    is_filtered = wanted != ListFilter()
    if chosen and (is_filtered or everything):
        raise UsageError("give ids or filters, not both")
    if not chosen and not is_filtered and not everything:
        raise UsageError("nothing selected: give ids, filters such as --source, or --all")


def _confirm_action(dry_run: bool, yes: bool, what: str) -> bool:
    """Ask before a move in bulk; without a terminal there must be --yes."""
    if dry_run:
        return False
    if yes:
        return True
    if not out.is_terminal:
        raise UsageError(f"this would {what}; add --yes to confirm, or --dry-run to count")
    return typer.confirm(f"{what[:1].upper()}{what[1:]}?")


@dataclass(frozen=True, slots=True)
class _Verb:
    """What is done with dead letters: with a selection of them, or with a group."""

    name: str
    done: str
    move: Callable[..., Awaitable[int]]
    move_group: Callable[..., Awaitable[int]]


def _move_dead(
    ctx: typer.Context,
    verb: _Verb,
    chosen: Sequence[str] | None,
    wanted: ListFilter,
    group: str | None,
    everything: bool,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    if group is None:
        _check_choice(chosen, wanted, everything)
    elif chosen or everything or wanted != ListFilter():
        raise UsageError("give --group alone, without ids or filters")

    async def work() -> None:
        async with open_database(cli_context(ctx).settings()) as database:
            if group is not None:
                number = await _on_group(database, verb, group, note, dry_run, yes)
            else:
                number = await _on_selection(database, verb, chosen, wanted, note, dry_run, yes)
        if number is not None:
            out.print(f"{verb.done} {_letters(number)}")

    run(work())


async def _on_selection(
    database: Database,
    verb: _Verb,
    chosen: Sequence[str] | None,
    wanted: ListFilter,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> int | None:
    keys = read_delivery_ids(chosen) if chosen else None
    total = None
    if keys is not None:
        keys = await operations.check_dead(database, keys)
        selection, total = Selection(ListFilter(), keys), len(keys)
    else:
        selection = Selection(wanted)
    if dry_run or keys is None:
        total = await _confirm(database, selection, verb.name, dry_run, yes)
        if total is None:
            return None
    with Progress(verb.name, total) as report:
        return await verb.move(database, selection, action(note), report=report)


async def _on_group(
    database: Database, verb: _Verb, reference: str, note: str | None, dry_run: bool, yes: bool
) -> int | None:
    (key,) = read_ids(ids.DEAD_GROUP, [reference])
    group = await dead_letter_groups.find_group(database, key)
    if group is None:
        out.print(f"no dead letters are left in {reference}")
        return None
    out.print(output.text(failure_causes.describe_group(group)), soft_wrap=True)
    for alarm in failure_causes.escalation_reasons(group):
        out.print(output.text(f"escalate: {alarm}"), soft_wrap=True)
    if verb.name == "replay":
        await _print_preview(database, group)
    if not _confirm_action(dry_run, yes, f"{verb.name} {_letters(group.number)}"):
        return None
    with Progress(verb.name, group.number) as report:
        return await verb.move_group(database, key, action(note), report=report)


async def _print_preview(database: Database, group: DeadLetterGroup) -> None:
    """Tell what a replay would run, and what would keep it from running."""
    foreseen = await dead_letter_groups.preview_replay(database, group)
    out.print(output.text(f"it would run {group.recipient} for {', '.join(group.types)}"), soft_wrap=True)
    if not foreseen.is_open:
        out.print("none would run: the endpoint is deleted or disabled; enable it first")
    if not foreseen.has_route:
        out.print("they would wait: no handler with this name is registered")
    if foreseen.expunged:
        out.print(f"{foreseen.expunged} stay dead letters: their payload was deleted")


def _letters(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"


async def _confirm(database: Database, selection: Selection, verb: str, dry_run: bool, yes: bool) -> int | None:
    """Show what a selection holds and ask; return how many, or None where nothing is to be done."""
    groups = await operations.count_dead(database, selection)
    total = sum(group.number for group in groups)
    if groups:
        out.print(output.table(_GROUPS, groups))
    out.print(_letters(total))
    return total if total > 0 and _confirm_action(dry_run, yes, f"{verb} {_letters(total)}") else None
