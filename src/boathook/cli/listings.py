"""Commands that look at what is stored: events, deliveries, dead letters, rejections."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from boathook.admin import failures
from boathook.cli import show
from boathook.cli.commands import example
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
from boathook.cli.session import Misused, err, journal, out, run, session
from boathook.cli.show import Column
from boathook.domain import ids
from boathook.domain.model import Attempt, State
from boathook.journal import dead_groups, ledger
from boathook.journal.database import Database
from boathook.journal.dead_groups import Group
from boathook.journal.ledger import DeliveryRow, EventRow, Filter, StoredRequest
from boathook.journal.moves import Key

events = typer.Typer(no_args_is_help=True, help="What was accepted.")
deliveries = typer.Typer(no_args_is_help=True, help="What is or was owed: one event for one recipient.")
dead = typer.Typer(no_args_is_help=True, help="Deliveries that were given up, for a person to decide.")
rejections = typer.Typer(no_args_is_help=True, help="Requests that were refused at the gate.")

_ID = Column("id", lambda row: row.id, is_whole=True)
_EVENTS = (
    _ID,
    Column("from", lambda row: row.source or row.application),
    Column("type", lambda row: row.type),
    Column("proof", lambda row: show.grade(row.grade)),
    Column("owed", lambda row: row.fanout),
    Column("size", lambda row: row.size),
    Column("age", lambda row: show.age(row.accepted_at)),
)
_DELIVERIES = (
    _ID,
    Column("state", lambda row: row.state),
    Column("tries", lambda row: row.attempts),
    Column("next", lambda row: show.age(row.due_at) if row.due_at else ""),
    Column("ended", lambda row: show.age(row.ended_at)),
    Column("item", lambda row: row.item_path, is_optional=True),
    Column("recipient", lambda row: row.recipient),
    Column("type", lambda row: row.item_path and row.type, is_optional=True),
    Column("proof", lambda row: show.grade(row.grade)),
)
_DEAD = (
    _ID,
    Column("code", lambda row: row.code),
    Column("tries", lambda row: row.attempts),
    Column("died", lambda row: show.age(row.ended_at)),
    Column("item", lambda row: row.item_path, is_optional=True),
    Column("type", lambda row: row.type),
    Column("recipient", lambda row: row.recipient),
    Column("proof", lambda row: show.grade(row.grade)),
)
_REJECTIONS = (
    _ID,
    Column("source", lambda row: row.source),
    Column("reason", lambda row: row.reason),
    Column("age", lambda row: show.age(row.refused_at)),
    Column("accepted", lambda row: "yes" if row.event_id else ""),
)


def _list(
    ctx: typer.Context,
    lister: Callable[[Database, Filter], Awaitable[Sequence[Any]]],
    wanted: Filter,
    columns: Sequence[Column],
    as_json: bool,
) -> None:
    async def work() -> None:
        async with journal(session(ctx).settings()) as database:
            await show.listing(partial(lister, database), wanted, columns, as_json=as_json)

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
    wanted = Filter(
        source=source, application=application, type=type, since=since, until=until, is_unhandled=unhandled,
        limit=limit, after=after,
    )  # fmt: skip
    _list(ctx, ledger.list_events, wanted, _EVENTS, as_json)


@events.command("show", epilog=example("boathook events show evt_01h455vb4pex5vsknk084sn02q4"))
def show_event(
    ctx: typer.Context, event: Annotated[str, typer.Argument(metavar="ID", help="The event.")], as_json: Json = False
) -> None:
    """Show one event: its facts, headers, bytes and deliveries."""

    async def work() -> None:
        (event_id,) = read_ids(ids.EVENT, [event])
        async with journal(session(ctx).settings()) as database:
            row, stored = await ledger.get_event(database, event_id)
            owed = await ledger.list_deliveries_of(database, event_id)
        if as_json:
            show.print_json({**asdict(row), **asdict(stored), "deliveries": owed})
            return
        _print_event(row)
        _print_stored(stored)
        out.print(show.table(_DELIVERIES, owed))

    run(work())


@deliveries.command("list", epilog=example("boathook deliveries list --state pending --source github"))
def list_deliveries(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None,
    state: Annotated[State | None, typer.Option(help="Only in this state.")] = None, recipient: Recipient = None,
    code: Code = None, since: Since = None, until: Until = None, limit: Limit = 50, after: After = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List deliveries, those of the newest events first."""
    wanted = Filter(
        source=source, application=application, type=type, state=state and str(state), recipient=recipient, code=code,
        since=since, until=until, limit=limit, after=after,
    )  # fmt: skip
    read_delivery_ids([after] if after else [])
    _list(ctx, ledger.list_deliveries, wanted, _DELIVERIES, as_json)


Delivery = Annotated[str, typer.Argument(metavar="ID", help="The delivery.")]


@deliveries.command("show", epilog=example("boathook deliveries show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_delivery(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one delivery: its event with its bytes, every attempt, what was done, and by whom it was moved."""
    _show_delivery(ctx, delivery, as_json)


@dead.command("show", epilog=example("boathook dead show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_dead(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one dead letter: its event with its bytes, every attempt with its error, what was done, and who moved it."""
    _show_delivery(ctx, delivery, as_json)


@dead.command("list", epilog=example("boathook dead list --code TIMEOUT --since 1d --json"))
def list_dead(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None,
    recipient: Recipient = None, code: Code = None, since: Since = None, until: Until = None, limit: Limit = 50,
    after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List dead letters, those of the newest events first; --since and --until bound the time of death."""
    wanted = Filter(
        source=source, application=application, type=type, recipient=recipient, code=code, since=since, until=until,
        limit=limit, after=after,
    )  # fmt: skip
    read_delivery_ids([after] if after else [])
    _list(ctx, ledger.list_dead, wanted, _DEAD, as_json)


@dead.command("groups", epilog=example("boathook dead groups", "boathook dead groups --recipient 'endpoint:*' --json"))
def list_groups(
    ctx: typer.Context, recipient: Recipient = None, code: Code = None, limit: Limit = 50, as_json: Json = False
) -> None:  # fmt: skip
    """List what failed alike, the most frequent first: how many, since when, and what needs more than a replay."""

    async def work() -> None:
        async with journal(session(ctx).settings()) as database:
            groups, is_cut = await dead_groups.list_groups(database, recipient=recipient, code=code)
            chosen = await dead_groups.with_types(database, groups[: limit or None])
        if as_json:
            for group in chosen:
                show.print_json(_group(group))
            return
        _print_groups(chosen)
        if len(groups) > len(chosen) or is_cut:
            err.print("more: add a larger --limit, or --recipient", style="dim")

    run(work())


def _group(group: Group) -> Mapping[str, object]:
    told = asdict(group)
    newest = ids.show_delivery(told.pop("event_id"), told.pop("ordinal"))
    del told["key"]
    alarms = failures.escalate(group)
    return {"id": group.id, "sentence": failures.tell_group(group), "escalate": alarms, "newest_id": newest, **told}


def _print_groups(groups: Sequence[Group]) -> None:
    if not groups:
        err.print("nothing found", style="dim")
    for group in groups:
        out.print(Text(group.id, style="bold") + show.text(f"  {failures.tell_group(group)}"), soft_wrap=True)
        since = f"newest {show.age(group.newest)} ago, oldest {show.age(group.oldest)} ago"
        out.print(show.text(f"  {since}, {', '.join(group.types)}"), soft_wrap=True)
        for alarm in failures.escalate(group):
            out.print(Text("  escalate: ", style="bold red") + show.text(alarm), soft_wrap=True)


@rejections.command("list", epilog=example("boathook rejections list --source stripe --reason signature_mismatch"))
def list_rejections(
    ctx: typer.Context, source: Source = None,
    reason: Reason = None,
    state: Annotated[str | None, typer.Option(help="open: not accepted since; accepted: accepted later.")] = None,
    since: Since = None, until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List refused requests, newest first."""
    if state not in {None, "open", "accepted"}:
        raise Misused("--state must be open or accepted")
    wanted = Filter(source=source, code=reason, state=state, since=since, until=until, limit=limit, after=after)
    read_ids(ids.REJECTION, [after] if after else [])
    _list(ctx, ledger.list_rejections, wanted, _REJECTIONS, as_json)


@rejections.command("show", epilog=example("boathook rejections show rej_01h455vb4pex5vsknk084sn02q4"))
def show_rejection(
    ctx: typer.Context, rejection: Annotated[str, typer.Argument(metavar="ID", help="The rejection.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show one refused request: why, its headers and its bytes. Credentials are never kept."""

    async def work() -> None:
        (rejection_id,) = read_ids(ids.REJECTION, [rejection])
        async with journal(session(ctx).settings()) as database:
            row, stored = await ledger.get_rejection(database, rejection_id)
        if as_json:
            show.print_json({**asdict(row), **asdict(stored)})
            return
        show.facts({**asdict(row), "refused_at": show.moment(row.refused_at)})
        out.print()
        _print_stored(stored)

    run(work())


def _show_delivery(ctx: typer.Context, delivery: str, as_json: bool) -> None:
    async def work() -> None:
        (key,) = read_delivery_ids([delivery])
        async with journal(session(ctx).settings()) as database:
            await _print_delivery(database, key, as_json)

    run(work())


async def _print_delivery(database: Database, key: Key, as_json: bool) -> None:
    row = await ledger.get_delivery(database, *key)
    event, stored = await ledger.get_event(database, key[0])
    attempts = await ledger.list_attempts(database, *key)
    effects = await ledger.list_effects(database, key[0], row.recipient, row.item_path)
    audit = await ledger.list_audit(database, Filter(limit=1_000), subject=row.id)
    if as_json:
        shown = {**asdict(row), "event": {**asdict(event), **asdict(stored)}}
        show.print_json({**shown, "attempts_made": attempts, "effects": effects, "audit": audit})
        return
    show.facts(_delivery_facts(row))
    out.print()
    _print_event(event)
    _print_stored(stored)
    for attempt in attempts:
        _print_attempt(attempt)
    for effect in effects:
        out.print(
            show.text(f"done and remembered: {effect.name} at {show.moment(effect.done_at)}, result {effect.result}")
        )
    for entry in reversed(audit):
        because = f": {entry.note}" if entry.note else ""
        out.print(show.text(f"{show.moment(entry.at)}  {entry.action} by {entry.actor}{because}"), soft_wrap=True)


def _delivery_facts(row: DeliveryRow) -> Mapping[str, object]:
    return {
        "delivery": row.id,
        "recipient": row.recipient,
        "item": row.item_path,
        "item's type": row.item_path and row.type,
        "state": row.state,
        "attempts": row.attempts,
        "replays": row.replays or None,
        "due": show.moment(row.due_at),
        "ended": show.moment(row.ended_at),
        "order key": row.order_key,
        "code": row.code,
        "note": row.note,
    }


def _print_event(row: EventRow) -> None:
    show.facts(
        {
            "event": row.id,
            "source": row.source,
            "application": row.application,
            "type": row.type,
            "dedup key": row.dedup_key,
            "proof": row.grade,
            "accepted": show.moment(row.accepted_at),
        }
    )
    out.print()


def _print_stored(stored: StoredRequest) -> None:
    show.block("headers", "\n".join(f"{name}: {value}" for name, value in stored.headers.items()) or "(none kept)")
    show.block(f"body, {len(stored.body)} bytes", _readable(stored.body))


def _readable(body: bytes) -> str:
    """Return a body as its own text, where it is text; the bytes that are not are written as \\xNN."""
    return body.decode("utf-8", "backslashreplace")


def _print_attempt(attempt: Attempt) -> None:
    took = (attempt.ended_at - attempt.started_at).total_seconds()
    head = Text(f"attempt {attempt.number}: {attempt.outcome}", style="bold")
    rest = show.text(f"  {show.moment(attempt.started_at)}, {took:.3f} s, by {attempt.worker}")
    out.print(head + rest, soft_wrap=True)
    if attempt.error or attempt.code:
        out.print(show.text(f"  {attempt.code or ''}: {attempt.error or ''}"), soft_wrap=True)
    if attempt.traceback:
        show.block("", attempt.traceback)
