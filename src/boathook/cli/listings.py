"""Commands that look at what is stored and decide about it: events, deliveries, dead letters, rejections."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from boathook.admin import operations
from boathook.cli import show
from boathook.cli.session import Misused, action, err, journal, out, run, session
from boathook.cli.show import Column
from boathook.domain import ids
from boathook.domain.model import Attempt, State
from boathook.journal import ledger, moves
from boathook.journal.database import Database
from boathook.journal.ledger import DeliveryRow, EventRow, Filter, StoredRequest
from boathook.journal.moves import Key, Selection

events = typer.Typer(no_args_is_help=True, help="What was accepted.")
deliveries = typer.Typer(no_args_is_help=True, help="What is or was owed: one event for one recipient.")
dead = typer.Typer(no_args_is_help=True, help="Deliveries that were given up, for a person to decide.")
rejections = typer.Typer(no_args_is_help=True, help="Requests that were refused at the gate.")

Source = Annotated[str | None, typer.Option(help="Only of this source.")]
Application = Annotated[str | None, typer.Option(help="Only for this application.")]
Type = Annotated[str | None, typer.Option(help="Only of types like this; * stands for any run of characters.")]
Recipient = Annotated[str | None, typer.Option(help="Only for recipients like this; * as in --type.")]
Code = Annotated[str | None, typer.Option(help="Only with this error code.")]
Since = Annotated[datetime | None, typer.Option(parser=show.read_moment, metavar="TIME", help="Not before: 2h, 7d or ISO 8601.")]  # fmt: skip
Until = Annotated[datetime | None, typer.Option(parser=show.read_moment, metavar="TIME", help="Before: 2h, 7d or ISO 8601.")]  # fmt: skip
Limit = Annotated[int, typer.Option(min=0, help="Most rows; 0 for all.")]
After = Annotated[str | None, typer.Option(help="The id of the last row of the page before.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Note = Annotated[str | None, typer.Option(help="Why, for the audit.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="At most so many fall due a second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
All = Annotated[bool, typer.Option("--all", help="Really all of them.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Which; or use the filters.", show_default=False)]  # fmt: skip

_ID = Column("id", lambda row: row.id, is_whole=True)
_EVENTS = (
    _ID,
    Column("from", lambda row: row.source or row.application),
    Column("type", lambda row: row.type),
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
    Column("recipient", lambda row: row.recipient),
)
_DEAD = (
    _ID,
    Column("code", lambda row: row.code),
    Column("tries", lambda row: row.attempts),
    Column("died", lambda row: show.age(row.ended_at)),
    Column("type", lambda row: row.type),
    Column("recipient", lambda row: row.recipient),
)
_REJECTIONS = (
    _ID,
    Column("source", lambda row: row.source),
    Column("reason", lambda row: row.reason),
    Column("age", lambda row: show.age(row.refused_at)),
    Column("accepted", lambda row: "yes" if row.event_id else ""),
)
_GROUPS = (
    Column("number", lambda group: group.number),
    Column("from", lambda group: group.source or group.application),
    Column("type", lambda group: group.type),
    Column("recipient", lambda group: group.recipient),
    Column("code", lambda group: group.code),
    Column("oldest", lambda group: show.age(group.oldest)),
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


def _example(*lines: str) -> str:
    return "\n\n".join(f"Example: {line}" for line in lines)


@events.command("list", epilog=_example("boathook events list --source stripe --type 'invoice.*' --since 2h"))
def list_events(
    ctx: typer.Context, source: Source = None, application: Application = None, type: Type = None, since: Since = None,
    until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List events, newest first."""
    wanted = Filter(
        source=source, application=application, type=type, since=since, until=until, limit=limit, after=after
    )
    _read_ids(ids.EVENT, [after] if after else [])
    _list(ctx, ledger.list_events, wanted, _EVENTS, as_json)


@events.command("show", epilog=_example("boathook events show evt_01h455vb4pex5vsknk084sn02q4"))
def show_event(
    ctx: typer.Context, event: Annotated[str, typer.Argument(metavar="ID", help="The event.")], as_json: Json = False
) -> None:
    """Show one event: its facts, headers, bytes and deliveries."""

    async def work() -> None:
        (event_id,) = _read_ids(ids.EVENT, [event])
        async with journal(session(ctx).settings()) as database:
            row, stored = await ledger.get_event(database, event_id)
            owed = await ledger.list_deliveries_of(database, event_id)
        if as_json:
            show.print_json({**asdict(row), **asdict(stored), "deliveries": [asdict(delivery) for delivery in owed]})
            return
        _print_event(row)
        _print_stored(stored)
        out.print(show.table(_DELIVERIES, owed))

    run(work())


@events.command("replay", epilog=_example(
    "boathook events replay evt_01h455vb4pex5vsknk084sn02q4",
    "boathook events replay --source stripe --since 1d --rate 50 --run after-the-fix --yes",
))  # fmt: skip
def replay_events(
    ctx: typer.Context, chosen: Ids = None, source: Source = None, application: Application = None, type: Type = None,
    since: Since = None, until: Until = None, everything: All = False, rate: Rate = None,
    run_name: Annotated[str | None, typer.Option("--run", help="A name: what this run has replayed it will not replay again.")] = None,
    dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """
    Run events again: for recipients that have ended theirs another delivery is added, dead letters are revived.

    What is pending or being run is left alone.
    """
    wanted = Filter(source=source, application=application, type=type, since=since, until=until)
    _check_choice(chosen, wanted, everything)

    async def work() -> None:
        named = _read_ids(ids.EVENT, chosen) if chosen else None
        async with journal(session(ctx).settings()) as database:
            if named is None:
                number = await moves.count_events(database, wanted)
                out.print(f"{number} events")
                if number == 0 or not _may_act(dry_run, yes, f"replay {number} events"):
                    return
            elif dry_run:
                out.print(f"{len(named)} events")
                return
            with _progress("replaying") as report:
                done = await operations.replay_events(
                    database, named or wanted, action(run_name), rate=rate, is_once=run_name is not None, report=report
                )
        out.print(f"replayed {done.events} events: {done.added} deliveries added, {done.revived} dead letters revived")

    run(work())


@deliveries.command("list", epilog=_example("boathook deliveries list --state pending --source github"))
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
    _read_delivery_ids([after] if after else [])
    _list(ctx, ledger.list_deliveries, wanted, _DELIVERIES, as_json)


Delivery = Annotated[str, typer.Argument(metavar="ID", help="The delivery.")]


@deliveries.command("show", epilog=_example("boathook deliveries show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_delivery(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one delivery: its event with its bytes, every attempt, what was done, and by whom it was moved."""
    _show_delivery(ctx, delivery, as_json)


@dead.command("show", epilog=_example("boathook dead show dlv_01h455vb4pex5vsknk084sn02q4_0"))
def show_dead(ctx: typer.Context, delivery: Delivery, as_json: Json = False) -> None:
    """Show one dead letter: its event with its bytes, every attempt with its error, what was done, and who moved it."""
    _show_delivery(ctx, delivery, as_json)


@dead.command("list", epilog=_example("boathook dead list --code TIMEOUT --since 1d --json"))
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
    _read_delivery_ids([after] if after else [])
    _list(ctx, ledger.list_dead, wanted, _DEAD, as_json)


@dead.command("replay", epilog=_example(
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


@dead.command("ignore", epilog=_example(
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


@dead.command("purge", epilog=_example("boathook dead purge --source test --since 7d --yes"))
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


@rejections.command("list", epilog=_example("boathook rejections list --source stripe --reason signature_mismatch"))
def list_rejections(
    ctx: typer.Context, source: Source = None,
    reason: Annotated[str | None, typer.Option(help="Only refused for this reason.")] = None,
    state: Annotated[str | None, typer.Option(help="open: not accepted since; accepted: accepted later.")] = None,
    since: Since = None, until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List refused requests, newest first."""
    if state not in {None, "open", "accepted"}:
        raise Misused("--state must be open or accepted")
    wanted = Filter(source=source, code=reason, state=state, since=since, until=until, limit=limit, after=after)
    _read_ids(ids.REJECTION, [after] if after else [])
    _list(ctx, ledger.list_rejections, wanted, _REJECTIONS, as_json)


@rejections.command("show", epilog=_example("boathook rejections show rej_01h455vb4pex5vsknk084sn02q4"))
def show_rejection(
    ctx: typer.Context, rejection: Annotated[str, typer.Argument(metavar="ID", help="The rejection.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show one refused request: why, its headers and its bytes. Credentials are never kept."""

    async def work() -> None:
        (rejection_id,) = _read_ids(ids.REJECTION, [rejection])
        async with journal(session(ctx).settings()) as database:
            row, stored = await ledger.get_rejection(database, rejection_id)
        if as_json:
            show.print_json({**asdict(row), **asdict(stored)})
            return
        show.facts({**asdict(row), "refused_at": show.moment(row.refused_at)})
        out.print()
        _print_stored(stored)

    run(work())


@rejections.command("reverify", epilog=_example(
    "boathook rejections reverify --source stripe --since 1d",
    "boathook rejections reverify rej_01h455vb4pex5vsknk084sn02q4",
))  # fmt: skip
def reverify(
    ctx: typer.Context, chosen: Ids = None, source: Source = None,
    reason: Annotated[str | None, typer.Option(help="Only refused for this reason.")] = None,
    since: Since = None, until: Until = None, everything: All = False, as_json: Json = False,
) -> None:  # fmt: skip
    """
    Judge refused requests again by the present secrets, as of when they came; those that hold are accepted.

    Exits with 1 if any is still refused.
    """
    wanted = Filter(source=source, code=reason, since=since, until=until)
    _check_choice(chosen, wanted, everything)

    async def work() -> int:
        named = _read_ids(ids.REJECTION, chosen) if chosen else None
        failed, number = 0, 0
        settings = session(ctx).settings()
        async with journal(settings) as database:
            async for result in operations.reverify(database, settings, named or wanted, action()):
                number += 1
                failed += result.outcome in {"refused", "impossible"}
                if as_json:
                    show.print_json(result)
                else:
                    detail = result.event_id or result.detail
                    out.print(show.text(f"{result.rejection_id}  {result.outcome}  {detail}"), soft_wrap=True)
        if not as_json:
            out.print(f"{number} judged again, {number - failed} accepted, {failed} still refused")
        return failed

    if run(work()):
        raise typer.Exit(1)


def _read_ids(prefix: str, words: Sequence[str]) -> list[UUID]:
    try:
        return [ids.read(prefix, word) for word in words]
    except ValueError as error:
        raise Misused(str(error)) from None


def _read_delivery_ids(words: Sequence[str]) -> list[Key]:
    try:
        return [ids.read_delivery(word) for word in words]
    except ValueError as error:
        raise Misused(str(error)) from None


def _check_choice(chosen: Sequence[str] | None, wanted: Filter, everything: bool) -> None:
    """Refuse a move of nothing in particular: forgetting a filter must not mean everything."""
    is_filtered = any((wanted.source, wanted.application, wanted.type, wanted.recipient, wanted.code, wanted.since, wanted.until))  # fmt: skip
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


def _progress(title: str) -> Any:
    """Show a running count on a terminal; elsewhere stay silent."""
    return _Progress(title)


class _Progress:
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
        keys = _read_delivery_ids(chosen) if chosen else None
        async with journal(session(ctx).settings()) as database:
            if keys is not None:
                keys = await operations.check_dead(database, keys)
                selection = Selection(Filter(), keys)
            else:
                selection = Selection(wanted)
            if (dry_run or keys is None) and not await _confirm(database, selection, verb, dry_run, yes):
                return
            with _progress(verb) as report:
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


def _show_delivery(ctx: typer.Context, delivery: str, as_json: bool) -> None:
    async def work() -> None:
        (key,) = _read_delivery_ids([delivery])
        async with journal(session(ctx).settings()) as database:
            await _print_delivery(database, key, as_json)

    run(work())


async def _print_delivery(database: Database, key: Key, as_json: bool) -> None:
    row = await ledger.get_delivery(database, *key)
    event, stored = await ledger.get_event(database, key[0])
    attempts = await ledger.list_attempts(database, *key)
    effects = await ledger.list_effects(database, key[0], row.recipient)
    audit = await ledger.list_audit(database, Filter(limit=1_000), subject=row.id)
    if as_json:
        show.print_json({
            **asdict(row), "event": {**asdict(event), **asdict(stored)}, "attempts_made": [asdict(one) for one in attempts],
            "effects": [asdict(effect) for effect in effects], "audit": [asdict(entry) for entry in audit],
        })  # fmt: skip
        return
    show.facts(_delivery_facts(row))
    out.print()
    _print_event(event)
    _print_stored(stored)
    for attempt in attempts:
        _print_attempt(attempt)
    for effect in effects:
        out.print(show.text(f"done and remembered: {effect.name} at {show.moment(effect.done_at)}, result {effect.result}"))
    for entry in reversed(audit):
        because = f": {entry.note}" if entry.note else ""
        out.print(show.text(f"{show.moment(entry.at)}  {entry.action} by {entry.actor}{because}"))


def _delivery_facts(row: DeliveryRow) -> Mapping[str, object]:
    return {
        "delivery": row.id,
        "recipient": row.recipient,
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
    head = f"attempt {attempt.number}: {attempt.outcome}"
    out.print(Text(head, style="bold") + show.text(f"  {show.moment(attempt.started_at)}, {took:.3f} s, by {attempt.worker}"), soft_wrap=True)  # fmt: skip
    if attempt.error or attempt.code:
        out.print(show.text(f"  {attempt.code or ''}: {attempt.error or ''}"), soft_wrap=True)
    if attempt.traceback:
        show.block("", attempt.traceback)
