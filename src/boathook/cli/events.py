"""Commands for events and deliveries: list, show, replay, retry."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from msgspec.structs import asdict, replace
from rich.text import Text

from boathook.cli import output
from boathook.cli.bulk import add_bulk
from boathook.cli.commands import example
from boathook.cli.context import UsageError, out, run_with_database
from boathook.cli.derived import add, naming_options
from boathook.cli.options import (
    FILTERS,
    After,
    Application,
    Json,
    Limit,
    Since,
    Source,
    Type,
    Unhandled,
    Until,
    with_options,
)  # fmt: skip
from boathook.cli.output import ID, RECIPIENT, STATE, Column, View, say
from boathook.domain import ids
from boathook.domain.model import State
from boathook.service import id_prefixes
from boathook.service.catalogue import deliveries as delivery_actions
from boathook.service.catalogue import events as actions
from boathook.service.catalogue.operation import Operation
from boathook.service.database import Database
from boathook.service.fields import check
from boathook.service.operating import listings, search
from boathook.service.operating.event_query import UNHANDLED, EventQuery
from boathook.service.operating.listings import (
    AttemptDetail,
    ChainLink,
    DeliveryDetail,
    EventDetail,
    EventRow,
    ListFilter,
    StoredRequest,
)

events = typer.Typer(no_args_is_help=True, help="Accepted events.")
deliveries = typer.Typer(no_args_is_help=True, help="Deliveries: one event for one recipient.")

DeliveryState = Annotated[State | None, typer.Option("--state", help="Only with a delivery in this state.")]
Key = Annotated[str | None, typer.Option(help="Exact dedup key.")]
PayloadText = Annotated[str | None, typer.Option("--text", help="Only with this text in the payload, ignoring case.")]
Where = Annotated[
    str | None, typer.Option(metavar="PATH=VALUE", help="Only with this value in the JSON payload, by dotted path.")
]
Words = Annotated[str | None, typer.Option("--search", help="Only with this id, key, text or value.")]
Route = Annotated[bool, typer.Option("--route", help="Route them with the current handlers, as `events route`.")]
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
_BOTH: Final = "give --unhandled or --state, not both: an unhandled event has no deliveries"
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
    text: PayloadText = None, where: Where = None, words: Words = None, limit: Limit = 50, after: After = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List events, newest first."""
    if unhandled and state is not None:
        raise UsageError(_BOTH)
    query = EventQuery(
        source=source, application=application, type=type, since=since, until=until,
        state=UNHANDLED if unhandled else state and str(state), key=key, text=text, where=where, words=words,
    )  # fmt: skip

    async def read(database: Database) -> None:
        start = None if after is None else (await id_prefixes.find_ids(database, ids.EVENT, [after]))[0]
        whole = replace(query, application=application and await id_prefixes.complete(
            database, ids.APPLICATION, application
        ))  # fmt: skip
        pages = output.pages(
            lambda below, limit: search.list_events(database, whole, limit=limit, below=below),
            start,
            limit,
            lambda row: ids.read_event(row.id),
        )
        await _EVENTS.print_pages(pages, limit=limit, as_json=as_json)

    with naming_options(actions.replay):
        check(query)
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

    detail = run_with_database(ctx, read)
    if as_json:
        output.print_json({**asdict(detail.row), **asdict(detail.stored), "deliveries": detail.deliveries})
        return
    _print_event(detail.row)
    output.print_request(detail.stored.headers, detail.stored.body)
    output.print_table(_DELIVERIES.columns, detail.deliveries)


def _choose(own: Mapping[str, Any], values: dict[str, Any]) -> tuple[Operation[Any, Any], dict[str, Any]]:
    """Return the operation of ``events replay``, which with --route is that of ``events route``, and its values."""
    values = _with_unhandled(own, values)
    if not own["route"]:
        if own["to"] is not None:
            raise UsageError("--to needs --route; a replay uses the existing recipients")
        return actions.replay, values
    if values.pop("run") is not None:
        raise UsageError("--run cannot be used with --route, which never adds a delivery twice")
    return actions.route, values | {"to": own["to"]}


def _choose_route(own: Mapping[str, Any], values: dict[str, Any]) -> tuple[Operation[Any, Any], dict[str, Any]]:
    return actions.route, _with_unhandled(own, values)


def _with_unhandled(own: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    if own["unhandled"] and values["state"] is not None:
        raise UsageError(_BOTH)
    return values | {"state": UNHANDLED} if own["unhandled"] else values


add_bulk(
    events, actions.replay, "replay", "event", choose=_choose,
    more={"unhandled": (Unhandled, False), "route": (Route, False), "to": (To, None)},
)  # fmt: skip
add(events, actions.wake, "wake")
add_bulk(events, actions.route, "route", "event", choose=_choose_route, more={"unhandled": (Unhandled, False)})


@deliveries.command("list", epilog=example("boathook deliveries list --state pending --source github"))
@with_options(FILTERS, after="ctx")
def list_deliveries(
    ctx: typer.Context, state: Annotated[State | None, typer.Option(help="Only in this state.")] = None,
    limit: Limit = 50, after: After = None, as_json: Json = False, **filters: Any,
) -> None:  # fmt: skip
    """List deliveries, newest events first."""
    list_filter = ListFilter(**filters, state=state and str(state), limit=limit, after=after)
    output.print_listing(ctx, listings.list_deliveries, list_filter, _DELIVERIES, ids.DELIVERY, as_json=as_json)


Delivery = Annotated[str, typer.Argument(metavar="ID", help="The delivery: its id or the beginning of it.")]


@deliveries.command("show", epilog=example("boathook deliveries show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_delivery(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one delivery with its event, attempts, side effects and history."""

    async def read(database: Database) -> DeliveryDetail:
        return await listings.get_delivery(database, *await id_prefixes.find_deliveries(database, [delivery]))

    detail = run_with_database(ctx, read)
    if as_json:
        subject = {**asdict(detail.row), "event": {**asdict(detail.event), **asdict(detail.stored)}}
        attempts = [_plain_attempt(attempt) for attempt in detail.attempts]
        history: dict[str, object] = {
            "attempts_made": attempts,
            "effects": detail.side_effects,
            "audit": detail.audit,
            "chain": detail.chain,
        }
        if detail.first is not None:
            history["first_request"] = asdict(detail.first)
        output.print_json({**subject, **history})
        return
    row = detail.row
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
    _print_event(detail.event)
    output.print_request(detail.stored.headers, detail.stored.body)
    if len(detail.chain) > 1:
        _print_chain(detail.chain, detail.first)
    _print_attempts(detail.attempts)
    for effect in detail.side_effects:
        say(f"side effect: {effect.name} at {output.timestamp(effect.done_at)}, result {effect.result}")
    for entry in reversed(detail.audit):
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


add(deliveries, delivery_actions.retry, "retry")
add(deliveries, delivery_actions.replay, "replay")


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
        if error := _error_of(attempt):
            say(f"  {error}")
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
