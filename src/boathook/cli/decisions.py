"""Commands that decide about what is stored: replay, ignore, purge, judge again."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from boathook.admin import operations
from boathook.cli import show
from boathook.cli.listings import dead, events, rejections
from boathook.cli.options import (
    All,
    Application,
    Code,
    DryRun,
    Ids,
    Json,
    Note,
    Rate,
    Reason,
    Recipient,
    Since,
    Source,
    Type,
    Until,
    Yes,
    example,
    read_delivery_ids,
    read_ids,
)  # fmt: skip
from boathook.cli.session import Misused, action, err, journal, out, run, session
from boathook.cli.show import Column
from boathook.domain import ids
from boathook.journal import moves
from boathook.journal.database import Database
from boathook.journal.ledger import Filter
from boathook.journal.moves import Selection

__all__ = ["dead", "events", "rejections"]

RunName = Annotated[
    str | None, typer.Option("--run", help="A name: what this run has replayed it will not replay again.")
]

_GROUPS = (
    Column("number", lambda group: group.number),
    Column("from", lambda group: group.source or group.application),
    Column("type", lambda group: group.type),
    Column("recipient", lambda group: group.recipient),
    Column("code", lambda group: group.code),
    Column("oldest", lambda group: show.age(group.oldest)),
)


@events.command("replay", epilog=example(
    "boathook events replay evt_01h455vb4pex5vsknk084sn02q4",
    "boathook events replay --source stripe --since 1d --rate 50 --run after-the-fix --yes",
))  # fmt: skip
def replay_events(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    since: Since = None, until: Until = None, everything: All = False, rate: Rate = None,
    run_name: RunName = None,
    dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """
    Run events again: for recipients that have ended theirs another delivery is added, dead letters are revived.

    What is pending or being run is left alone.
    """
    wanted = Filter(source=source, application=application, type=type, since=since, until=until)
    _check_choice(chosen, wanted, everything)

    async def work() -> None:
        named = read_ids(ids.EVENT, chosen) if chosen else None
        async with journal(session(ctx).settings()) as database:
            if named is None:
                number = await moves.count_events(database, wanted)
                out.print(f"{number} events")
                if number == 0 or not _may_act(dry_run, yes, f"replay {number} events"):
                    return
            elif dry_run:
                out.print(f"{len(named)} events")
                return
            with _Progress("replaying") as report:
                done = await operations.replay_events(
                    database, named or wanted, action(run_name), rate=rate, is_once=run_name is not None, report=report
                )
        out.print(f"replayed {done.events} events: {done.added} deliveries added, {done.revived} dead letters revived")

    run(work())


@dead.command("replay", epilog=example(
    "boathook dead replay dlv_01h455vb4pex5vsknk084sn02q4_0",
    "boathook dead replay --source stripe --code TIMEOUT --since 2h --rate 20 --yes",
))  # fmt: skip
def replay_dead(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, everything: All = False,
    rate: Rate = None, note: Note = None, dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Give dead letters another chance, each with a new budget of attempts."""
    wanted = Filter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until
    )
    move = partial(operations.replay_dead, rate=rate)
    _move_dead(ctx, "replay", "replayed", move, chosen, wanted, everything, note, dry_run, yes)


@dead.command("ignore", epilog=example(
    "boathook dead ignore dlv_01h455vb4pex5vsknk084sn02q4_0 --note 'refunded by hand'",
    "boathook dead ignore --recipient handler:crm --note 'the old CRM is gone' --yes",
))  # fmt: skip
def ignore_dead(
    ctx: typer.Context, note: Annotated[str, typer.Option(help="Why; it is kept as the delivery's outcome.")],
    chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, everything: All = False,
    dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Decide that dead letters need nothing more; they end as ignored, with the note."""
    wanted = Filter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until
    )
    _move_dead(ctx, "ignore", "ignored", operations.ignore_dead, chosen, wanted, everything, note, dry_run, yes)


@dead.command("purge", epilog=example("boathook dead purge --source test --since 7d --yes"))
def purge_dead(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, everything: All = False,
    note: Note = None, dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Delete dead letters with their attempts; they are counted as dropped, and their events stay until their time."""
    wanted = Filter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until
    )
    _move_dead(ctx, "purge", "purged", operations.purge_dead, chosen, wanted, everything, note, dry_run, yes)


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
    Judge refused requests again by the present secrets, as of when they came; those that hold are accepted.

    Exits with 1 if any is still refused.
    """
    # What judges requests takes longer to import than other commands take.
    from boathook.admin.reverifying import reverify

    wanted = Filter(source=source, code=reason, since=since, until=until)
    _check_choice(chosen, wanted, everything)

    async def work() -> int:
        named = read_ids(ids.REJECTION, chosen) if chosen else None
        failed, number = 0, 0
        settings = session(ctx).settings()
        async with journal(settings) as database:
            async for result in reverify(database, settings, named or wanted, action()):
                number += 1
                failed += result.outcome in {"refused", "impossible"}
                if as_json:
                    show.print_json(result)
                else:
                    grade = f" ({result.grade})" if result.grade else ""
                    detail = f"{result.event_id}{grade}" if result.event_id else result.detail
                    out.print(show.text(f"{result.rejection_id}  {result.outcome}  {detail}"), soft_wrap=True)
        if not as_json:
            out.print(f"{number} judged again, {number - failed} accepted, {failed} still refused")
        return failed

    if run(work()):
        raise typer.Exit(1)


def _check_choice(chosen: Sequence[str] | None, wanted: Filter, everything: bool) -> None:
    """Refuse a move of nothing in particular: forgetting a filter must not mean everything."""
    is_filtered = wanted != Filter()
    if chosen and (is_filtered or everything):
        raise Misused("give ids or filters, not both")
    if not chosen and not is_filtered and not everything:
        raise Misused("say which: ids, filters such as --source, or --all")


def _may_act(dry_run: bool, yes: bool, what: str) -> bool:
    """Ask before a move in bulk; without a terminal there must be --yes."""
    if dry_run:
        return False
    if yes:
        return True
    if not out.is_terminal:
        raise Misused(f"this would {what}: add --yes to do it, or --dry-run to only count")
    return typer.confirm(f"{what[:1].upper()}{what[1:]}?")


class _Progress:
    """A running count on a terminal; elsewhere silence."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._status = err.status(f"{title} …") if err.is_terminal else None

    def __enter__(self) -> Callable[[int], None]:
        if self._status is not None:
            self._status.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def _report(self, done: int) -> None:
        if self._status is not None:
            self._status.update(f"{self._title} … {done}")


def _move_dead(
    ctx: typer.Context,
    verb: str,
    done_verb: str,
    move: Callable[..., Awaitable[int]],
    chosen: Sequence[str] | None,
    wanted: Filter,
    everything: bool,
    note: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    _check_choice(chosen, wanted, everything)

    async def work() -> None:
        keys = read_delivery_ids(chosen) if chosen else None
        async with journal(session(ctx).settings()) as database:
            if keys is not None:
                keys = await operations.check_dead(database, keys)
                selection = Selection(Filter(), keys)
            else:
                selection = Selection(wanted)
            if (dry_run or keys is None) and not await _confirm(database, selection, verb, dry_run, yes):
                return
            with _Progress(verb) as report:
                number = await move(database, selection, action(note), report=report)
        out.print(f"{done_verb} {number} dead letter{'' if number == 1 else 's'}")

    run(work())


async def _confirm(database: Database, selection: Selection, verb: str, dry_run: bool, yes: bool) -> bool:
    groups = await moves.count_dead(database, selection)
    total = sum(group.number for group in groups)
    if groups:
        out.print(show.table(_GROUPS, groups))
    out.print(f"{total} dead letter{'' if total == 1 else 's'}")
    return total > 0 and _may_act(dry_run, yes, f"{verb} {total} dead letter{'' if total == 1 else 's'}")
