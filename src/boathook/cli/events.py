"""Commands for events and deliveries: list, show, replay, retry."""

from collections.abc import Sequence
from typing import Annotated, Any, Final
from uuid import UUID

import typer
from msgspec.structs import asdict, replace
from rich.text import Text

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, action, cli_context, err, open_database, out, run, run_with_database
from boathook.cli.derived import add
from boathook.cli.options import (
    FILTERS,
    After,
    All,
    Application,
    DryRun,
    Ids,
    Json,
    Limit,
    Note,
    Rate,
    Since,
    Source,
    Type,
    Unhandled,
    Until,
    Yes,
    check_choice,
    confirm_selection,
    with_options,
)  # fmt: skip
from boathook.cli.output import ID, RECIPIENT, STATE, Column, Progress, View, hint, say
from boathook.domain import ids
from boathook.domain.model import State
from boathook.domain.plurals import counted
from boathook.service import id_prefixes
from boathook.service.catalogue import deliveries as actions
from boathook.service.database import Database
from boathook.service.operating import listings, operations, search
from boathook.service.operating.listings import (
    AttemptDetail,
    ChainLink,
    DeliveryDetail,
    EventDetail,
    EventRow,
    ListFilter,
    StoredRequest,
)
from boathook.service.operating.search import SearchQuery

events = typer.Typer(no_args_is_help=True, help="Accepted events.")
deliveries = typer.Typer(no_args_is_help=True, help="Deliveries: one event for one recipient.")

DeliveryState = Annotated[State | None, typer.Option("--state", help="Only with a delivery in this state.")]
Key = Annotated[str | None, typer.Option(help="Exact dedup key.")]
PayloadText = Annotated[str | None, typer.Option("--text", help="Only with this text in the payload, ignoring case.")]
Where = Annotated[
    str | None, typer.Option(metavar="PATH=VALUE", help="Only with this value in the JSON payload, by dotted path.")
]
RunName = Annotated[str | None, typer.Option("--run", help="Name of this run; a run replays each event once.")]
Route = Annotated[bool, typer.Option("--route", help="Add deliveries for current handlers that never had one.")]
To = Annotated[str | None, typer.Option(metavar="HANDLER", help="With --route: to this handler only.")]
PROOF: Final = Column("proof", lambda row: output.grade(row.grade))
ITEM: Final = Column("item", "item_path", is_optional=True)

_EVENTS: Final = View(
    (
        ID,
        Column("from", lambda row: row.source or row.application),
        Column("type"),
        PROOF,
        Column("fanout"),
        Column("size"),
        Column("age", output.age_of("received_at")),
        Column("same body as", "same_body_as", is_optional=True),
    )
)
_DELIVERIES: Final = View(
    (
        ID,
        STATE,
        Column("attempts"),
        Column("code", is_whole=True, is_optional=True),
        Column("next", output.age_of("due_at")),
        Column("paused until", output.age_of("paused_until"), is_optional=True),
        Column("ended", output.age_of("ended_at")),
        ITEM,
        RECIPIENT,
        Column("type", lambda row: row.item_path and row.type, is_optional=True),
        PROOF,
    )
)
_LEFT: Final = (
    "{} skipped: a dead letter was purged (--to HANDLER routes it anyway), or an older boathook stored the event as a"
    " batch"
)
_ATTEMPT_FIELDS: Final = (
    "number",
    "outcome",
    "code",
    "error",
    "dependency",
    "traceback",
    "started_at",
    "ended_at",
    "worker",
)
_REQUEST_FIELDS: Final = ("url", "status", "duration_ms", "request_headers", "response", "response_size", "is_manual")


@events.command("list", epilog=example(
    "boathook events list --source stripe --type 'invoice.*' --since 2h",
    "boathook events list --unhandled --since 1d",
    "boathook events list --where 'data.object.customer = cus_123' --state dead --since 7d",
))  # fmt: skip
def list_events(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None, since: Since = None,
    until: Until = None, unhandled: Unhandled = False, state: DeliveryState = None, key: Key = None,
    text: PayloadText = None, where: Where = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List events, newest first."""
    if unhandled and state is not None:
        raise UsageError("give --unhandled or --state, not both: an unhandled event has no deliveries")
    query = SearchQuery(
        source=source or "", application=application or "", type=type or "", since=since, until=until,
        state=search.UNHANDLED if unhandled else str(state or ""), key=key or "", text=text or "", where=where or "",
    )  # fmt: skip
    search.check(query)

    async def read(database: Database) -> None:
        start = None if after is None else (await id_prefixes.find_ids(database, ids.EVENT, [after]))[0]
        whole = await id_prefixes.complete(database, ids.APPLICATION, query.application)
        found = output.pages(
            lambda below, limit: search.list_events(
                database, replace(query, application=whole, below=below), limit=limit
            ),
            start,
            limit,
            lambda row: ids.read_event(row.id),
        )
        await _EVENTS.print_pages(found, limit=limit, as_json=as_json)

    run_with_database(ctx, read)


@events.command("show", epilog=example("boathook events show evt_01h455vb4pex5vsknk084sn02q4"))
def show_event(
    ctx: typer.Context,
    event: Annotated[str, typer.Argument(metavar="ID", help="The event: its id or the beginning of it.")],
    as_json: Json = False,
) -> None:
    """Show one event with its headers, body and deliveries."""

    async def read(database: Database) -> EventDetail:
        return await listings.get_event(database, *await id_prefixes.find_ids(database, ids.EVENT, [event]))

    found = run_with_database(ctx, read)
    if as_json:
        output.print_json({**asdict(found.row), **asdict(found.stored), "deliveries": found.deliveries})
        return
    _print_event(found.row)
    output.print_request(found.stored.headers, found.stored.body)
    output.print_table(_DELIVERIES.columns, found.deliveries)


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
    dry_run: DryRun = False, yes: Yes = False, as_json: Json = False,
) -> None:  # fmt: skip
    """
    Replay events: finished deliveries get a new delivery, dead letters are retried.

    Pending and leased deliveries are not changed. With --route, events are routed with the current handlers instead:
    each matching handler without a delivery of the event gets one. Repeating this adds nothing.
    """
    wanted = ListFilter(
        source=source, application=application, type=type, since=since, until=until, is_unhandled=unhandled
    )
    check_choice(chosen, is_filtered=wanted != ListFilter(), everything=everything)
    if to is not None and not route:
        raise UsageError("--to needs --route; a replay uses the existing recipients")
    if route and run_name is not None:
        raise UsageError("--run cannot be used with --route, which never adds a delivery twice")
    if note is not None and run_name is not None:
        raise UsageError("give --run or --note, not both: the run's name is the note")

    async def work() -> None:
        async with open_database(cli_context(ctx).settings()) as database:
            named = await id_prefixes.find_ids(database, ids.EVENT, chosen or [])
            matching = await id_prefixes.complete_filter(database, ids.EVENT, wanted)
            number = len(named) if named else await operations.count_events(database, matching)
            # A dry run of a routing routes too, and then rolls back.
            if not (route and dry_run) and (not named or dry_run):
                (hint if as_json else say)(counted(number, "event"))
                verb = "route" if route else "replay"
                if number == 0 or not confirm_selection(f"{verb} {counted(number, 'event')}", dry_run=dry_run, yes=yes):
                    if as_json:
                        output.print_json({"dry_run": dry_run, "matching": number, "events": 0})
                    return
            with Progress("routing" if route else "replaying", number) as report:
                if not route:
                    done = await operations.replay_events(
                        database, named or matching, action(run_name or note), rate=rate, is_once=run_name is not None,
                        report=report,
                    )  # fmt: skip
                    said = f"{counted(done.added, 'delivery')} added, {counted(done.revived, 'dead letter')} retried"
                    fields = {"dry_run": False, "matching": number, **asdict(done)}
                    output.print_done(fields, f"replayed {counted(done.events, 'event')}: {said}", as_json=as_json)
                    if len(named) == done.events == 1 and not done.added and not done.revived:
                        await _explain_no_replay(database, named[0])
                    return
                routed = await operations.route_events(
                    database, named or matching, action(note), to=to, rate=rate, is_dry_run=dry_run, report=report
                )
        added = f"{counted(routed.added, 'delivery')} {'would be added' if dry_run else 'added'}"
        message = f"{counted(routed.events, 'event')}, {routed.routed} routed: {added}"
        output.print_done({"dry_run": dry_run, "matching": number, **asdict(routed)}, message, as_json=as_json)
        if routed.left:
            err.print(_LEFT.format(routed.left), soft_wrap=True)

    run(work())


async def _explain_no_replay(database: Database, event_id: UUID) -> None:
    """Say why a replay changed nothing: deliveries are pending, or there were no recipients."""
    found = await listings.get_event(database, event_id)
    pending = [delivery for delivery in found.deliveries if delivery.state in {State.PENDING, State.LEASED}]
    if pending:
        due = [max(one.due_at, one.paused_until or one.due_at) for one in pending if one.due_at is not None]
        paused = " (paused)" if any(one.paused_until for one in pending) else ""
        when = f"; the next attempt is due at {output.timestamp(min(due))}{paused}" if due else ""
        hint(f"{counted(len(pending), 'delivery')} still pending{when}, or now by `boathook deliveries retry`")
    elif not found.deliveries:
        hint("it has no recipients; --route adds deliveries for current handlers")


@deliveries.command("list", epilog=example("boathook deliveries list --state pending --source github"))
@with_options(FILTERS, after="ctx")
def list_deliveries(
    ctx: typer.Context, state: Annotated[State | None, typer.Option(help="Only in this state.")] = None,
    limit: Limit = 50, after: After = None, as_json: Json = False, **filters: Any,
) -> None:  # fmt: skip
    """List deliveries, newest events first."""
    wanted = ListFilter(**filters, state=state and str(state), limit=limit, after=after)
    output.print_listing(ctx, listings.list_deliveries, wanted, _DELIVERIES, ids.DELIVERY, as_json=as_json)


Delivery = Annotated[str, typer.Argument(metavar="ID", help="The delivery: its id or the beginning of it.")]


@deliveries.command("show", epilog=example("boathook deliveries show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_delivery(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one delivery with its event, attempts, side effects and history."""

    async def read(database: Database) -> DeliveryDetail:
        return await listings.get_delivery(database, *await id_prefixes.find_deliveries(database, [delivery]))

    found = run_with_database(ctx, read)
    if as_json:
        shown = {**asdict(found.row), "event": {**asdict(found.event), **asdict(found.stored)}}
        attempts = [_plain_attempt(attempt) for attempt in found.attempts]
        made: dict[str, object] = {
            "attempts_made": attempts,
            "effects": found.side_effects,
            "audit": found.audit,
            "chain": found.chain,
        }
        if found.first is not None:
            made["first_request"] = asdict(found.first)
        output.print_json({**shown, **made})
        return
    row = found.row
    output.print_fields(
        {
            "delivery": row.id,
            "recipient": row.recipient,
            "item": row.item_path,
            "item's type": row.item_path and row.type,
            "state": row.state,
            "attempts": row.attempts,
            "replays": row.replays or None,
            "due": output.timestamp(row.due_at),
            "ended": output.timestamp(row.ended_at),
            "order key": row.order_key,
            "code": row.code,
            "note": row.note,
        }
    )
    out.print()
    _print_event(found.event)
    output.print_request(found.stored.headers, found.stored.body)
    if len(found.chain) > 1:
        _print_chain(found.chain, found.first)
    _print_attempts(found.attempts)
    for effect in found.side_effects:
        say(f"side effect: {effect.name} at {output.timestamp(effect.done_at)}, result {effect.result}")
    for entry in reversed(found.audit):
        because = f": {entry.note}" if entry.note else ""
        say(f"{output.timestamp(entry.at)}  {entry.action} by {entry.actor}{because}")


def _print_chain(chain: Sequence[ChainLink], first: StoredRequest | None) -> None:
    """Print the events that led to an event, and the request of the first one."""
    out.print()
    for link in chain:
        origin = link.source or link.application or "dropped by retention"
        published = f"  {link.recipient or 'a handler'} published:" if link.delivery_id else ""
        out.print(output.text(f"{link.event_id}  {origin} {link.type or ''}{published}"), soft_wrap=True)
    if first is not None:
        say("the first one:")
        output.print_request(first.headers, first.body)


add(deliveries, actions.retry, "retry")
add(deliveries, actions.replay, "replay")


def _print_event(row: EventRow) -> None:
    output.print_fields(
        {
            "event": row.id,
            "source": row.source,
            "application": row.application,
            "type": row.type,
            "dedup key": row.dedup_key,
            "same body as": row.same_body_as,
            "proof": row.grade,
            "received": output.timestamp(row.received_at),
            "accepted": output.timestamp(row.accepted_at),
        }
    )
    out.print()


def _plain_attempt(attempt: AttemptDetail) -> dict[str, Any]:
    """Return an attempt as JSON fields; what only requests have is omitted for handlers."""
    names = [*_ATTEMPT_FIELDS, *(() if attempt.url is None else _REQUEST_FIELDS)]
    return {name: getattr(attempt, name) for name in names}


def _print_attempts(attempts: Sequence[AttemptDetail]) -> None:
    for attempt in attempts:
        head = Text(f"attempt {attempt.number}: {attempt.outcome}", style="bold")
        rest = output.text(f"  {output.timestamp(attempt.started_at)}, {attempt.took_s:.3f} s, by {attempt.worker}")
        out.print(head + rest, soft_wrap=True)
        if attempt.url:
            say(f"  POST {attempt.url}  {attempt.status or 'no response'}")
        if said := _error_of(attempt):
            say(f"  {said}")
        if attempt.dependency:
            say(f"  dependency: {attempt.dependency}")
        if attempt.traceback:
            output.print_block("", attempt.traceback)
        if attempt.response:
            size = attempt.response_size or 0
            is_cut = size > len(attempt.response)
            title = f"response, the first {len(attempt.response)} of {size} bytes" if is_cut else "response"
            output.print_block(f"  {title}", attempt.response.decode("utf-8", "backslashreplace"))


def _error_of(attempt: AttemptDetail) -> str:
    """Return the code and the error; an exception's code is its class, with which its error begins already."""
    code, error = attempt.code or "", attempt.error or ""
    return error if error.startswith(f"{code}:") else ": ".join(filter(None, (code, error)))
