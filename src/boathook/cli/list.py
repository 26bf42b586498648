"""Commands that look at what is stored: events, deliveries, dead letters, rejections."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, cli_context, err, open_database, out, run
from boathook.cli.options import (
    After,
    Application,
    Code,
    Json,
    Limit,
    Reason,
    Recipient,
    Since,
    Source,
    Type,
    Unhandled,
    Until,
    read_delivery_ids,
    read_ids,
)  # fmt: skip
from boathook.cli.output import Column
from boathook.domain import ids
from boathook.domain.model import Attempt, State
from boathook.service import dead_letter_groups, failure_causes, listings
from boathook.service.database import Database
from boathook.service.dead_letter_groups import DeadLetterGroup
from boathook.service.listings import DeliveryDetail, DeliveryRow, EventRow, ListFilter, StoredRequest

events = typer.Typer(no_args_is_help=True, help="Accepted events.")
deliveries = typer.Typer(no_args_is_help=True, help="Deliveries: one event for one recipient.")
dead = typer.Typer(no_args_is_help=True, help="Dead letters: deliveries that failed permanently.")
rejections = typer.Typer(no_args_is_help=True, help="Rejected requests.")

_ID = Column("id", lambda row: row.id, is_whole=True)
_EVENTS = (
    _ID,
    Column("from", lambda row: row.source or row.application),
    Column("type", lambda row: row.type),
    Column("proof", lambda row: output.grade(row.grade)),
    Column("owed", lambda row: row.fanout),
    Column("size", lambda row: row.size),
    Column("age", lambda row: output.format_age(row.accepted_at)),
)
_DELIVERIES = (
    _ID,
    Column("state", lambda row: row.state),
    Column("tries", lambda row: row.attempts),
    Column("next", lambda row: output.format_age(row.due_at) if row.due_at else ""),
    Column("ended", lambda row: output.format_age(row.ended_at)),
    Column("item", lambda row: row.item_path, is_optional=True),
    Column("recipient", lambda row: row.recipient),
    Column("type", lambda row: row.item_path and row.type, is_optional=True),
    Column("proof", lambda row: output.grade(row.grade)),
)
_DEAD = (
    _ID,
    Column("code", lambda row: row.code),
    Column("tries", lambda row: row.attempts),
    Column("died", lambda row: output.format_age(row.ended_at)),
    Column("item", lambda row: row.item_path, is_optional=True),
    Column("type", lambda row: row.type),
    Column("recipient", lambda row: row.recipient),
    Column("proof", lambda row: output.grade(row.grade)),
)
_REJECTIONS = (
    _ID,
    Column("source", lambda row: row.source),
    Column("reason", lambda row: row.reason),
    Column("age", lambda row: output.format_age(row.refused_at)),
    Column("accepted", lambda row: "yes" if row.event_id else ""),
)


def _list(
    ctx: typer.Context,
    lister: Callable[[Database, ListFilter], AsyncIterator[Sequence[Any]]],
    wanted: ListFilter,
    columns: Sequence[Column],
    as_json: bool,
) -> None:
    async def work() -> None:
        async with open_database(cli_context(ctx).settings()) as database:
            await output.print_pages(lister(database, wanted), columns, limit=wanted.limit, as_json=as_json)

    run(work())


@events.command("list", epilog=example(
    "boathook events list --source stripe --type 'invoice.*' --since 2h",
    "boathook events list --unhandled --since 1d",
))  # fmt: skip
def list_events(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None, since: Since = None,
    until: Until = None, unhandled: Unhandled = False, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List events, newest first."""
    after = after and ids.show(ids.EVENT, *read_ids(ids.EVENT, [after]))
    wanted = ListFilter(
        source=source, application=application, type=type, since=since, until=until, is_unhandled=unhandled,
        limit=limit, after=after,
    )  # fmt: skip
    _list(ctx, listings.list_events, wanted, _EVENTS, as_json)


@events.command("show", epilog=example("boathook events show evt_01h455vb4pex5vsknk084sn02q4"))
def show_event(
    ctx: typer.Context, event: Annotated[str, typer.Argument(metavar="ID", help="The event.")], as_json: Json = False
) -> None:
    """Show one event with its headers, body and deliveries."""

    async def work() -> None:
        (event_id,) = read_ids(ids.EVENT, [event])
        async with open_database(cli_context(ctx).settings()) as database:
            found = await listings.get_event(database, event_id)
        if as_json:
            output.print_json({**asdict(found.row), **asdict(found.stored), "deliveries": found.deliveries})
            return
        _print_event(found.row)
        _print_stored(found.stored)
        out.print(output.table(_DELIVERIES, found.deliveries))

    run(work())


@deliveries.command("list", epilog=example("boathook deliveries list --state pending --source github"))
def list_deliveries(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None,
    state: Annotated[State | None, typer.Option(help="Only in this state.")] = None, recipient: Recipient = None,
    code: Code = None, since: Since = None, until: Until = None, limit: Limit = 50, after: After = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List deliveries, newest events first."""
    wanted = ListFilter(
        source=source, application=application, type=type, state=state and str(state), recipient=recipient, code=code,
        since=since, until=until, limit=limit, after=after,
    )  # fmt: skip
    read_delivery_ids([after] if after else [])
    _list(ctx, listings.list_deliveries, wanted, _DELIVERIES, as_json)


Delivery = Annotated[str, typer.Argument(metavar="ID", help="The delivery.")]


@deliveries.command("show", epilog=example("boathook deliveries show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_delivery(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one delivery with its event, attempts, side effects and history."""
    _show_delivery(ctx, delivery, as_json)


@dead.command("show", epilog=example("boathook dead show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_dead(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one dead letter with its event, attempts, errors, side effects and history."""
    _show_delivery(ctx, delivery, as_json)


@dead.command("list", epilog=example("boathook dead list --code TIMEOUT --since 1d --json"))
def list_dead(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, limit: Limit = 50,
    after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List dead letters, newest events first; --since and --until filter by the time of failure."""
    wanted = ListFilter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until,
        limit=limit, after=after,
    )  # fmt: skip
    read_delivery_ids([after] if after else [])
    _list(ctx, listings.list_dead_letters, wanted, _DEAD, as_json)


@dead.command("groups", epilog=example("boathook dead groups", "boathook dead groups --recipient 'endpoint:*' --json"))
def list_groups(
    ctx: typer.Context, recipient: Recipient = None, code: Code = None, limit: Limit = 50, as_json: Json = False
) -> None:  # fmt: skip
    """List dead letters grouped by cause, most frequent first, with those that need more than a replay."""

    async def work() -> None:
        async with open_database(cli_context(ctx).settings()) as database:
            found = await dead_letter_groups.list_groups(database, recipient=recipient, code=code, limit=limit)
        if as_json:
            for group in found.rows:
                output.print_json(_group(group))
            return
        _print_groups(found.rows)
        if found.is_cut or found.groups > len(found.rows):
            err.print("more results: raise --limit or add --recipient", style="dim")

    run(work())


def _group(group: DeadLetterGroup) -> Mapping[str, object]:
    told = asdict(group)
    newest = ids.show_delivery(told.pop("event_id"), told.pop("ordinal"))
    del told["key"]
    alarms = failure_causes.escalation_reasons(group)
    return {
        "id": group.id,
        "sentence": failure_causes.describe_group(group),
        "escalate": alarms,
        "newest_id": newest,
        **told,
    }


def _print_groups(groups: Sequence[DeadLetterGroup]) -> None:
    if not groups:
        err.print("nothing found", style="dim")
    for group in groups:
        out.print(
            Text(group.id, style="bold") + output.text(f"  {failure_causes.describe_group(group)}"), soft_wrap=True
        )
        since = f"newest {output.format_age(group.newest)} ago, oldest {output.format_age(group.oldest)} ago"
        out.print(output.text(f"  {since}, {', '.join(group.types)}"), soft_wrap=True)
        for alarm in failure_causes.escalation_reasons(group):
            out.print(Text("  escalate: ", style="bold red") + output.text(alarm), soft_wrap=True)


@rejections.command("list", epilog=example("boathook rejections list --source stripe --reason signature_mismatch"))
def list_rejections(
    ctx: typer.Context, source: Source = None,
    reason: Reason = None,
    state: Annotated[str | None, typer.Option(help="open: not accepted; accepted: accepted later.")] = None,
    since: Since = None, until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List rejected requests, newest first."""
    if state not in {None, "open", "accepted"}:
        raise UsageError("--state must be open or accepted")
    wanted = ListFilter(source=source, code=reason, state=state, since=since, until=until, limit=limit, after=after)
    read_ids(ids.REJECTION, [after] if after else [])
    _list(ctx, listings.list_rejections, wanted, _REJECTIONS, as_json)


@rejections.command("show", epilog=example("boathook rejections show rej_01h455vb4pex5vsknk084sn02q4"))
def show_rejection(
    ctx: typer.Context, rejection: Annotated[str, typer.Argument(metavar="ID", help="The rejection.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show one rejected request with its reason, headers and body. Credentials are never stored."""

    async def work() -> None:
        (rejection_id,) = read_ids(ids.REJECTION, [rejection])
        async with open_database(cli_context(ctx).settings()) as database:
            row, stored = await listings.get_rejection(database, rejection_id)
        if as_json:
            output.print_json({**asdict(row), **asdict(stored)})
            return
        output.print_fields({**asdict(row), "refused_at": output.moment(row.refused_at)})
        out.print()
        _print_stored(stored)

    run(work())


def _show_delivery(ctx: typer.Context, delivery: str, as_json: bool) -> None:
    async def work() -> None:
        (key,) = read_delivery_ids([delivery])
        async with open_database(cli_context(ctx).settings()) as database:
            found = await listings.get_delivery(database, key)
        _print_delivery(found, as_json)

    run(work())


def _print_delivery(found: DeliveryDetail, as_json: bool) -> None:
    if as_json:
        shown = {**asdict(found.row), "event": {**asdict(found.event), **asdict(found.stored)}}
        made = {"attempts_made": found.attempts, "effects": found.side_effects, "audit": found.audit}
        output.print_json({**shown, **made})
        return
    output.print_fields(_delivery_facts(found.row))
    out.print()
    _print_event(found.event)
    _print_stored(found.stored)
    for attempt in found.attempts:
        _print_attempt(attempt)
    for effect in found.side_effects:
        out.print(output.text(f"side effect: {effect.name} at {output.moment(effect.done_at)}, result {effect.result}"))
    for entry in reversed(found.audit):
        because = f": {entry.note}" if entry.note else ""
        out.print(output.text(f"{output.moment(entry.at)}  {entry.action} by {entry.actor}{because}"), soft_wrap=True)


def _delivery_facts(row: DeliveryRow) -> Mapping[str, object]:
    return {
        "delivery": row.id,
        "recipient": row.recipient,
        "item": row.item_path,
        "item's type": row.item_path and row.type,
        "state": row.state,
        "attempts": row.attempts,
        "replays": row.replays or None,
        "due": output.moment(row.due_at),
        "ended": output.moment(row.ended_at),
        "order key": row.order_key,
        "code": row.code,
        "note": row.note,
    }


def _print_event(row: EventRow) -> None:
    output.print_fields(
        {
            "event": row.id,
            "source": row.source,
            "application": row.application,
            "type": row.type,
            "dedup key": row.dedup_key,
            "proof": row.grade,
            "accepted": output.moment(row.accepted_at),
        }
    )
    out.print()


def _print_stored(stored: StoredRequest) -> None:
    output.print_block(
        "headers", "\n".join(f"{name}: {value}" for name, value in stored.headers.items()) or "(none stored)"
    )
    output.print_block(f"body, {len(stored.body)} bytes", _readable(stored.body))


def _readable(body: bytes) -> str:
    """Return a body as its own text, where it is text; the bytes that are not are written as \\xNN."""
    return body.decode("utf-8", "backslashreplace")


def _print_attempt(attempt: Attempt) -> None:
    took = (attempt.ended_at - attempt.started_at).total_seconds()
    head = Text(f"attempt {attempt.number}: {attempt.outcome}", style="bold")
    rest = output.text(f"  {output.moment(attempt.started_at)}, {took:.3f} s, by {attempt.worker}")
    out.print(head + rest, soft_wrap=True)
    if attempt.error or attempt.code:
        out.print(output.text(f"  {attempt.code or ''}: {attempt.error or ''}"), soft_wrap=True)
    if attempt.traceback:
        output.print_block("", attempt.traceback)
