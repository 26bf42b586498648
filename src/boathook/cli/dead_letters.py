"""Commands for dead letters: list, show, group by cause, replay, ignore, purge."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from msgspec.structs import asdict
from rich.text import Text

from boathook.cli import output
from boathook.cli.bulk import add_bulk
from boathook.cli.commands import example
from boathook.cli.context import UsageError, action, out, run_in_transaction, run_with_database
from boathook.cli.events import ITEM, PROOF, Delivery, show_delivery
from boathook.cli.options import (
    FILTERS,
    After,
    Code,
    Json,
    Limit,
    Recipient,
    with_options,
)  # fmt: skip
from boathook.cli.output import CODE, ID, RECIPIENT, Column, Progress, View, hint, say
from boathook.domain import ids
from boathook.service import id_prefixes
from boathook.service.catalogue import dead_letters as actions
from boathook.service.operating import bulk_jobs, dead_letters, listings, operations
from boathook.service.operating.dead_letters import DeadLetterGroup
from boathook.service.operating.listings import DeliveryRow, FirstEvent
from boathook.service.operating.operations import ListFilter, ReplayOutcomes
from boathook.service.unit_of_work import AppContext, UnitOfWork

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
    list_filter = ListFilter(**filters, limit=limit, after=after)
    output.print_listing(ctx, listings.list_dead_letters, list_filter, _VIEW, ids.DELIVERY, as_json=as_json)


@dead.command("show", epilog=example("boathook dead show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_dead(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one dead letter with its event, those that led to it, attempts, errors, side effects and history."""
    show_delivery(ctx, delivery, as_json)


@dead.command("groups", epilog=example("boathook dead groups", "boathook dead groups --recipient 'endpoint:*' --json"))
def list_groups(
    ctx: typer.Context, recipient: Recipient = None, code: Code = None, limit: Limit = 50, as_json: Json = False
) -> None:  # fmt: skip
    """List dead letters grouped by cause, most frequent first, with those that need more than a replay."""
    groups = run_with_database(
        ctx, lambda database: dead_letters.list_groups(database, recipient=recipient, code=code, limit=limit)
    )
    if as_json:
        for group in groups.rows:
            output.print_json(_group(group))
        return
    if not groups.rows:
        hint("nothing found")
    for group in groups.rows:
        _print_group(group)
    if groups.is_cut or groups.groups > len(groups.rows):
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


def _replay_first(ctx: typer.Context, values: dict[str, Any]) -> bool:
    """With --first, handle the first events of dead letters again, and print the new deliveries."""
    if not values["first"]:
        return False
    names, note, others = values["ids"], values["note"], ("ids", "note", "first", "as_json", "yes", "follow")
    if not names or any(value for name, value in values.items() if name not in others):
        raise UsageError("--first takes ids of dead letters: boathook dead replay --first ID")

    async def replay(work: UnitOfWork) -> list[DeliveryRow]:
        keys = await id_prefixes.find_deliveries(work.connection, names)
        return [await dead_letters.replay_first(work, key, note=note) for key in keys]

    added = run_in_transaction(ctx, replay)
    if values["as_json"]:
        output.print_json({"action": "replay first", "done": len(added), "deliveries": [row.id for row in added]})
        return True
    for row in added:
        say(f"{row.id} is pending at {row.recipient}; the dead letter is ignored")
    return True


async def _follow(opened: AppContext, replay_input: actions.Replay, since: datetime, number: int) -> ReplayOutcomes:
    """Wait until all replayed dead letters have ended; print and return the outcome."""
    hint("waiting until all have ended; Ctrl-C stops the waiting only")
    group = None if replay_input.group is None else ids.read(ids.DEAD_GROUP, replay_input.group)
    outcomes = ReplayOutcomes()
    with Progress("follow", number) as report:
        async for outcomes in operations.follow_replay(
            opened.database, action(replay_input.note or None), since=since, group=group
        ):
            report(outcomes.number - outcomes.retrying - outcomes.waiting)
    out.print(Text(bulk_jobs.describe_outcomes(outcomes), style="red" if outcomes.dead else "green"), soft_wrap=True)
    return outcomes


add_bulk(
    dead, actions.replay, "replay", "dead letter", follow=_follow, instead=_replay_first,
    more={"follow": (Follow, None), "first": (First, False)},
)  # fmt: skip
add_bulk(dead, actions.ignore, "ignore", "dead letter")
add_bulk(dead, actions.purge, "purge", "dead letter")
