"""Commands for rejected requests, and for conflicts: requests with the same key or body as an event, but not both."""

from collections.abc import Mapping
from typing import Annotated, Final

import typer
from msgspec.structs import asdict

from boathook.cli import output
from boathook.cli.bulk import add_bulk
from boathook.cli.commands import example
from boathook.cli.context import UsageError, out, run_with_database
from boathook.cli.options import After, Application, Json, Limit, Since, Source, Until
from boathook.cli.output import ID, Column, View, hint, say
from boathook.domain import ids
from boathook.service import id_prefixes
from boathook.service.catalogue import conflicts as conflict_actions
from boathook.service.catalogue import rejections as rejection_actions
from boathook.service.catalogue.stored_requests import Outcome
from boathook.service.database import Database
from boathook.service.operating import listings
from boathook.service.operating.listings import ListFilter, RejectionRow, StoredRequest
from boathook.service.receiving import request_groups
from boathook.service.receiving.request_groups import RequestGroup, RequestKind

rejections = typer.Typer(no_args_is_help=True, help="Rejected requests.")
conflicts = typer.Typer(
    no_args_is_help=True,
    help="Requests with a stored key and a different body, or the same content and a different key.",
)

Reason = Annotated[str | None, typer.Option(help="Only rejected for this reason.")]
Differs = Annotated[str | None, typer.Option(help="Only with a different body, or with a different key: body, key.")]
_REJECTIONS: Final = View(
    (
        ID,
        Column("source"),
        Column("reason", is_whole=True),
        Column("age", output.age_of("refused_at")),
        Column("accepted", lambda row: "yes" if row.event_id else ""),
        Column("detail"),
    )
)
_CONFLICTS: Final = View(
    (
        ID,
        Column("from", lambda row: row.source or row.application),
        Column("differs"),
        Column("seen"),
        Column("accepted", lambda row: "yes" if row.accepted_as else ""),
        Column("last", output.age_of("last_seen_at")),
        Column("key", "dedup_key"),
    )
)


@rejections.command("list", epilog=example("boathook rejections list --source stripe --reason signature_mismatch"))
def list_rejections(
    ctx: typer.Context, source: Source = None, reason: Reason = None,
    state: Annotated[str | None, typer.Option(help="open: not accepted; accepted: accepted later.")] = None,
    since: Since = None, until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List rejected requests, newest first."""
    if state not in {None, "open", "accepted"}:
        raise UsageError("--state must be open or accepted")
    filters = ListFilter(source=source, code=reason, state=state, since=since, until=until, limit=limit, after=after)
    output.print_listing(ctx, listings.list_rejections, filters, _REJECTIONS, ids.REJECTION, as_json=as_json)


@rejections.command(
    "groups", epilog=example("boathook rejections groups", "boathook rejections groups --source github")
)
def list_rejection_groups(
    ctx: typer.Context, source: Source = None, reason: Reason = None, limit: Limit = 50, as_json: Json = False
) -> None:
    """List rejected requests that were not accepted since, grouped by source and reason, largest group first."""
    _print_groups(ctx, RequestKind.REJECTION, ListFilter(source=source, code=reason, limit=limit), as_json=as_json)


def _print_groups(ctx: typer.Context, kind: RequestKind, filters: ListFilter, *, as_json: bool) -> None:
    async def read(database: Database) -> request_groups.GroupPage:
        whole = await id_prefixes.complete_filter(database, ids.CONFLICT, filters)
        return await request_groups.list_groups(database, kind, whole)

    groups_page = run_with_database(ctx, read)
    rows = groups_page.rows[: filters.limit] if filters.limit else groups_page.rows
    for group in rows:
        sentence = request_groups.describe_group(group)
        if as_json:
            output.print_json({"sentence": sentence, **asdict(group)})
        else:
            say(sentence)
            last_day = f"{sum(group.hourly)} in the last 24 hours, {group.hourly[-1]} in the last hour"
            say(f"  newest {output.format_age(group.last_seen)} ago, {last_day}; {_list_command(kind, group)}")
    if not as_json and not rows:
        hint("nothing found")
    if not as_json and (groups_page.is_cut or len(rows) < len(groups_page.rows)):
        hint("more results: raise --limit or add --source")


def _list_command(kind: RequestKind, group: RequestGroup) -> str:
    """Return the command that lists a group's requests."""
    origin = f" --source {group.source}" if group.source else ""
    if kind is RequestKind.REJECTION:
        return f"boathook rejections list{origin} --reason {group.cause} --state open"
    return f"boathook conflicts list{origin or f' --application {group.application}'} --differs {group.cause}"


@rejections.command("show", epilog=example("boathook rejections show rej_01h455vb4pex5vsknk084sn02q4"))
def show_rejection(
    ctx: typer.Context, rejection: Annotated[str, typer.Argument(metavar="ID", help="Id, or the beginning of it.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show one rejected request with its reason, headers and body. Credentials are never stored."""

    async def read(database: Database) -> tuple[RejectionRow, StoredRequest]:
        (identifier,) = await id_prefixes.find_ids(database, ids.REJECTION, [rejection])
        return await listings.get_rejection(database, identifier)

    row, stored_request = run_with_database(ctx, read)
    if as_json:
        output.print_json({**asdict(row), **asdict(stored_request)})
        return
    output.print_fields({**asdict(row), "refused_at": output.timestamp(row.refused_at)})
    out.print()
    output.print_request(stored_request.headers, stored_request.body)


def _show_reverified(outcome: Outcome) -> tuple[Mapping[str, object], str]:
    fields = {
        "rejection_id": outcome.id,
        "outcome": outcome.outcome,
        "detail": outcome.detail,
        "event_id": outcome.event_id,
        "grade": outcome.proof,
    }
    grade = f" ({outcome.proof})" if outcome.proof else ""
    detail = f"{outcome.event_id}{grade}" if outcome.event_id else outcome.detail
    return fields, f"{outcome.id}  {outcome.outcome}  {detail}"


add_bulk(rejections, rejection_actions.reverify, "reverify", "rejection", show=_show_reverified)


@conflicts.command("list", epilog=example("boathook conflicts list --source stripe --since 7d"))
def list_conflicts(
    ctx: typer.Context, source: Source = None, application: Application = None, differs: Differs = None,
    since: Since = None, until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List conflicts, newest first."""
    if differs not in {None, "body", "key"}:
        raise UsageError("--differs must be body or key")
    filters = ListFilter(
        source=source, application=application, code=differs, since=since, until=until, limit=limit, after=after
    )
    output.print_listing(ctx, listings.list_conflicts, filters, _CONFLICTS, ids.CONFLICT, as_json=as_json)


@conflicts.command("groups", epilog=example("boathook conflicts groups", "boathook conflicts groups --json"))
def list_conflict_groups(
    ctx: typer.Context, source: Source = None, application: Application = None, limit: Limit = 50, as_json: Json = False
) -> None:
    """List conflicts grouped by source or application and by what differs, largest group first."""
    filters = ListFilter(source=source, application=application, limit=limit)
    _print_groups(ctx, RequestKind.CONFLICT, filters, as_json=as_json)


def _show_accepted(outcome: Outcome) -> tuple[Mapping[str, object], str]:
    is_new = outcome.outcome == "accepted"
    fields = {"conflict_id": outcome.id, "event_id": outcome.event_id, "is_new": is_new}
    if outcome.event_id is None:
        return fields | {"detail": outcome.detail}, f"{outcome.id}  not accepted: {outcome.detail}"
    return fields, f"{outcome.id}  {outcome.detail}"


add_bulk(conflicts, conflict_actions.accept, "accept", "conflict", show=_show_accepted)


@conflicts.command("show", epilog=example("boathook conflicts show cfl_01h455vb4pex5vsknk084sn02q4"))
def show_conflict(
    ctx: typer.Context, conflict: Annotated[str, typer.Argument(metavar="ID", help="Id, or the beginning of it.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show one conflict with a diff of both bodies."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import conflicts as actions

    async def read(database: Database) -> actions.Comparison:
        return await actions.compare_conflict(database, *await id_prefixes.find_ids(database, ids.CONFLICT, [conflict]))

    comparison = run_with_database(ctx, read)
    row = comparison.conflict.row
    if as_json:
        event = (
            None
            if comparison.event is None or comparison.first is None
            else {**asdict(comparison.event), **asdict(comparison.first)}
        )
        fields = {**asdict(row), **asdict(comparison.conflict.stored), "content_type": comparison.conflict.content_type}
        difference = None if comparison.lines is None else actions.unified_diff(comparison)
        compared = {
            "verdict": comparison.verdict,
            "item_path": comparison.item_path,
            "difference": difference,
            "event": event,
        }
        output.print_json(fields | compared)
        return
    output.print_fields(
        {
            "conflict": row.id,
            "event": row.event_id,
            "item": comparison.item_path,
            "source": row.source,
            "application": row.application,
            "type": row.type,
            "differs": row.differs,
            "accepted as": row.accepted_as,
            "key": row.dedup_key,
            "seen": row.seen,
            "first": output.timestamp(row.first_seen_at),
            "last": output.timestamp(row.last_seen_at),
        }
    )
    out.print()
    say(comparison.verdict)
    out.print()
    if comparison.lines:
        output.print_block("- original event, + conflict", actions.unified_diff(comparison))
    else:
        body = comparison.conflict.stored.body.decode("utf-8", "backslashreplace")
        output.print_block(f"body of the conflict, {row.size} bytes", body)
