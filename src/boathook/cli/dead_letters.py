"""Commands for dead letters: list, show, group by cause, replay, ignore, purge."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
import typer
from msgspec.structs import asdict
from rich.text import Text

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, action, err, out, run_in_transaction, run_with_database
from boathook.cli.events import ITEM, PROOF, Delivery, show_delivery
from boathook.cli.options import (
    FILTERS,
    After,
    All,
    Code,
    DryRun,
    Ids,
    InGroup,
    Json,
    Limit,
    Note,
    Rate,
    Recipient,
    Yes,
    check_choice,
    confirm_selection,
    with_options,
)  # fmt: skip
from boathook.cli.output import CODE, ID, RECIPIENT, Column, Progress, View, hint, say
from boathook.domain import ids
from boathook.domain.plurals import counted
from boathook.service import id_prefixes
from boathook.service.database import Database
from boathook.service.operating import bulk_jobs, dead_letters, listings, operations
from boathook.service.operating.dead_letters import DeadLetterGroup
from boathook.service.operating.listings import DeliveryRow, FirstEvent
from boathook.service.operating.operations import ListFilter, ReplayOutcomes, Selection
from boathook.service.unit_of_work import UnitOfWork

dead = typer.Typer(no_args_is_help=True, help="Dead letters: deliveries that failed permanently.")

Follow = Annotated[
    bool | None,
    typer.Option(
        "--follow/--no-follow", help="Wait until all have ended, and print the outcome; the default on a terminal."
    ),
]
First = Annotated[
    bool,
    typer.Option(
        "--first", help="Handle the first event of each chain again instead, and mark the dead letter as ignored."
    ),
]
_VIEW: Final = View(
    (
        ID,
        CODE,
        Column("attempts"),
        Column("failed", output.age_of("ended_at")),
        ITEM,
        Column("type"),
        Column("first event", lambda row: _show_first(row.first), is_optional=True),
        RECIPIENT,
        PROOF,
    )
)
_GROUPS: Final = (
    Column("number"),
    Column("from", lambda group: group.source or group.application),
    Column("type"),
    RECIPIENT,
    CODE,
    Column("oldest", output.age_of("oldest")),
)


def _show_first(first: FirstEvent | None) -> str:
    return "" if first is None else f"{first.source or first.application or ''} {first.type or first.id}".strip()


@dead.command("list", epilog=example("boathook dead list --code TIMEOUT --since 1d --json"))
@with_options(FILTERS, after="ctx")
def list_dead(
    ctx: typer.Context, limit: Limit = 50, after: After = None, as_json: Json = False, **filters: Any
) -> None:
    """
    List dead letters, newest events first; --since and --until filter by the time of failure.

    --source and --type match the event of the dead letter, or the first event of its chain if a handler published it.
    """
    wanted = ListFilter(**filters, limit=limit, after=after)
    output.print_listing(ctx, listings.list_dead_letters, wanted, _VIEW, ids.DELIVERY, as_json=as_json)


@dead.command("show", epilog=example("boathook dead show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_dead(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one dead letter with its event, those that led to it, attempts, errors, side effects and history."""
    show_delivery(ctx, delivery, as_json)


@dead.command("groups", epilog=example("boathook dead groups", "boathook dead groups --recipient 'endpoint:*' --json"))
def list_groups(
    ctx: typer.Context, recipient: Recipient = None, code: Code = None, limit: Limit = 50, as_json: Json = False
) -> None:  # fmt: skip
    """List dead letters grouped by cause, most frequent first, with those that need more than a replay."""
    found = run_with_database(
        ctx, lambda database: dead_letters.list_groups(database, recipient=recipient, code=code, limit=limit)
    )
    if as_json:
        for group in found.rows:
            output.print_json(_group(group))
        return
    if not found.rows:
        hint("nothing found")
    for group in found.rows:
        _print_group(group)
    if found.is_cut or found.groups > len(found.rows):
        hint("more results: raise --limit or add --recipient")


def _group(group: DeadLetterGroup) -> Mapping[str, object]:
    fields = asdict(group)
    newest = ids.show_delivery(fields.pop("event_id"), fields.pop("ordinal"))
    del fields["key"]
    return {
        "id": group.id,
        "sentence": dead_letters.describe_group(group),
        "escalate": dead_letters.escalation_reasons(group),
        "newest_id": newest,
        **fields,
    }


def _print_group(group: DeadLetterGroup) -> None:
    sentence = output.text(f"  {dead_letters.describe_group(group)}")
    out.print(Text(group.id, style="bold") + sentence, soft_wrap=True)
    since = f"newest {output.format_age(group.newest)} ago, oldest {output.format_age(group.oldest)} ago"
    say(f"  {since}, {', '.join(group.types)}")
    for reason in dead_letters.escalation_reasons(group):
        out.print(Text("  escalate: ", style="bold red") + output.text(reason), soft_wrap=True)


@dead.command("replay", epilog=example(
    "boathook dead replay dlv_01h455vb4pex5vsknk084sn02q4_0",
    "boathook dead replay --source stripe --code TIMEOUT --since 2h --rate 20 --yes",
    "boathook dead replay --group grp_01h455vb4pex5vsknk084sn02q4 --dry-run",
    "boathook dead replay --group grp_01h455vb4pex5vsknk084sn02q4 --yes --follow",
    "boathook dead replay --first dlv_01h455vb4pex5vsknk084sn02q4_0",
))  # fmt: skip
@with_options(FILTERS, after="chosen")
def replay_dead(
    ctx: typer.Context, chosen: Ids = None, everything: All = False, group: InGroup = None, rate: Rate = None,
    note: Note = None, dry_run: DryRun = False, yes: Yes = False, as_json: Json = False, follow: Follow = None,
    first: First = False, **filters: Any,
) -> None:  # fmt: skip
    """
    Replay dead letters, each with its full number of attempts.

    Exits with 1 if it followed them and any failed again.
    """
    if first:
        if not chosen or group or everything or dry_run or ListFilter(**filters) != ListFilter():
            raise UsageError("--first takes ids of dead letters: boathook dead replay --first ID")
        _replay_first(ctx, chosen, note, as_json=as_json)
        return
    replay, replay_group = partial(operations.replay_dead, rate=rate), partial(operations.replay_group, rate=rate)
    is_followed = out.is_terminal and not as_json if follow is None else follow
    bulk = _Action("replay", "replayed", replay, replay_group, note, dry_run, yes, as_json, is_followed=is_followed)
    bulk.run(ctx, chosen, ListFilter(**filters), group, everything=everything)


def _replay_first(ctx: typer.Context, chosen: Sequence[str], note: str | None, *, as_json: bool) -> None:
    """Handle the first events of dead letters again, in one transaction, and print the new deliveries."""

    async def replay(work: UnitOfWork) -> list[DeliveryRow]:
        keys = await id_prefixes.find_deliveries(work.connection, chosen)
        return [await dead_letters.replay_first(work, key, note=note or "") for key in keys]

    added = run_in_transaction(ctx, replay)
    if as_json:
        output.print_json({"action": "replay first", "done": len(added), "deliveries": [row.id for row in added]})
        return
    for row in added:
        say(f"{row.id} is pending at {row.recipient}; the dead letter is ignored")


@dead.command("ignore", epilog=example(
    "boathook dead ignore dlv_01h455vb4pex5vsknk084sn02q4_0 --note 'refunded by hand'",
    "boathook dead ignore --recipient handler:crm --note 'the old CRM is gone' --yes",
))  # fmt: skip
@with_options(FILTERS, after="chosen")
def ignore_dead(
    ctx: typer.Context, note: Annotated[str, typer.Option(help="Reason; stored as the outcome of the delivery.")],
    chosen: Ids = None, everything: All = False, group: InGroup = None, dry_run: DryRun = False, yes: Yes = False,
    as_json: Json = False, **filters: Any,
) -> None:  # fmt: skip
    """Mark dead letters as ignored, with a note."""
    bulk = _Action("ignore", "ignored", operations.ignore_dead, operations.ignore_group, note, dry_run, yes, as_json)
    bulk.run(ctx, chosen, ListFilter(**filters), group, everything=everything)


@dead.command("purge", epilog=example("boathook dead purge --source test --since 7d --yes"))
@with_options(FILTERS, after="chosen")
def purge_dead(
    ctx: typer.Context, chosen: Ids = None, everything: All = False, group: InGroup = None, note: Note = None,
    dry_run: DryRun = False, yes: Yes = False, as_json: Json = False, **filters: Any,
) -> None:  # fmt: skip
    """Permanently delete dead letters and their attempts; they are counted as dropped. Their events are kept."""
    bulk = _Action("purge", "purged", operations.purge_dead, operations.purge_group, note, dry_run, yes, as_json)
    bulk.run(ctx, chosen, ListFilter(**filters), group, everything=everything)


class _Action(msgspec.Struct, frozen=True):
    """One action on dead letters: on a selection of them, or on a group."""

    verb: str
    done: str
    on_selection: Callable[..., Awaitable[int]]
    on_group: Callable[..., Awaitable[int]]
    note: str | None
    dry_run: bool
    yes: bool
    as_json: bool
    is_followed: bool = False
    """Whether to wait until all have ended, and print what has become of them."""

    def run(
        self,
        ctx: typer.Context,
        chosen: Sequence[str] | None,
        wanted: ListFilter,
        group: str | None,
        *,
        everything: bool,
    ) -> None:
        """Apply the action to the selected dead letters, and print their number. Exits with 1 if any failed again."""
        is_filtered = wanted != ListFilter()
        if group is None:
            check_choice(chosen, is_filtered=is_filtered, everything=everything)
        elif chosen or everything or is_filtered:
            raise UsageError("give --group alone, without ids or filters")

        async def act(database: Database) -> bool:
            since, key = await operations.read_clock(database), None
            if group is not None:
                (key,) = await id_prefixes.find_ids(database, ids.DEAD_GROUP, [group])
                matching, done = await self._act_on_group(database, key)
            else:
                matching, done = await self._act_on_selection(database, chosen, wanted)
            if done is not None:
                self._say(f"{self.done} {_format_count(done)}")
            outcome = None
            if done and self.is_followed:
                outcome = await self._follow(database, since, key, done)
            if self.as_json:
                fields = {"action": self.verb, "dry_run": self.dry_run, "matching": matching, "done": done or 0}
                output.print_json(fields | ({} if outcome is None else {"outcome": asdict(outcome)}))
            return outcome is None or not outcome.dead

        if not run_with_database(ctx, act):
            raise typer.Exit(1)

    async def _act_on_selection(
        self, database: Database, chosen: Sequence[str] | None, wanted: ListFilter
    ) -> tuple[int, int | None]:
        """Return how many dead letters match, and how many were moved; None if the action was not confirmed."""
        if chosen:
            found = await id_prefixes.find_deliveries(database, chosen)
            keys = await operations.check_dead(database, found)
            if pending := len(found) - len(keys):
                hint(f"{pending} still pending, so not dead letters: `boathook deliveries retry` makes one due now")
            selection, total = Selection(ListFilter(), keys), len(keys)
        else:
            selection, total = Selection(await id_prefixes.complete_filter(database, ids.DELIVERY, wanted)), 0
        if self.dry_run or not chosen:
            groups = await operations.count_dead(database, selection)
            total = sum(group.number for group in groups)
            if groups and not self.as_json:
                output.print_table(_GROUPS, groups)
            self._say(_format_count(total))
            if total == 0 or not self._confirm(total):
                return total, None
        with Progress(self.verb, total) as report:
            return total, await self.on_selection(database, selection, action(self.note), report=report)

    async def _act_on_group(self, database: Database, key: UUID) -> tuple[int, int | None]:
        group = await dead_letters.find_group(database, key)
        if group is None:
            self._say(f"no dead letters are left in {ids.show(ids.DEAD_GROUP, key)}")
            return 0, None
        self._say(dead_letters.describe_group(group))
        for reason in dead_letters.escalation_reasons(group):
            self._say(f"escalate: {reason}")
        if self.verb == "replay":
            for line in await _preview(database, group):
                self._say(line)
        if not self._confirm(group.number):
            return group.number, None
        with Progress(self.verb, group.number) as report:
            return group.number, await self.on_group(database, key, action(self.note), report=report)

    def _say(self, message: str) -> None:
        (hint if self.as_json else say)(message)

    async def _follow(self, database: Database, since: datetime, group: UUID | None, number: int) -> ReplayOutcomes:
        """Wait until all replayed dead letters have ended; print and return the outcome."""
        hint("waiting until all have ended; Ctrl-C stops the waiting only")
        with Progress("follow", number) as report:
            async for found in operations.follow_replay(database, action(self.note), since=since, group=group):
                report(found.number - found.retrying - found.waiting)
        console = err if self.as_json else out
        style = "red" if found.dead else "green"
        console.print(Text(bulk_jobs.describe_outcomes(found), style=style), soft_wrap=True)
        return found

    def _confirm(self, number: int) -> bool:
        return confirm_selection(f"{self.verb} {_format_count(number)}", dry_run=self.dry_run, yes=self.yes)


async def _preview(database: Database, group: DeadLetterGroup) -> list[str]:
    """Return which handlers or endpoints a replay would run, and obstacles."""
    preview = await dead_letters.preview_replay(database, group)
    lines = [f"it would run {group.recipient} for {', '.join(group.types)}"]
    if not preview.is_open:
        lines.append("none would run: the endpoint is deleted or disabled; enable it first")
    if not preview.has_route:
        lines.append("they would wait: no handler with this name is registered")
    if preview.expunged:
        lines.append(f"{preview.expunged} stay dead letters: their payload was deleted")
    return lines


def _format_count(number: int) -> str:
    return counted(number, "dead letter")
