"""Commands for alerts: list, history, silences, test messages and the Prometheus rules."""

import sys
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import actor, cli_context, run, run_in_transaction
from boathook.cli.options import Json, lifetime_option
from boathook.cli.output import STATE, Column, View
from boathook.domain import ids
from boathook.domain.alerts import show_number
from boathook.domain.filters import Pattern
from boathook.observability import ALERT_RULES
from boathook.service.id_prefixes import complete
from boathook.service.operating import alerts as actions
from boathook.service.operating.alerts import Alert, SendFailed
from boathook.service.unit_of_work import UnitOfWork

alerts = typer.Typer(no_args_is_help=True, help="Alerts: list, silence and test them.")

_VIEW: Final = View(
    (
        Column("rule", is_whole=True),
        Column("subject", is_optional=True),
        Column("severity"),
        STATE,
        Column("summary", may_wrap=True, is_optional=True),
        Column("figure", lambda one: show_number(one["value"])),
        Column("worst", lambda one: show_number(one["worst"])),
        Column("since", output.moment_of("fired_at"), is_optional=True),
        Column("recovered", output.moment_of("recovered_at"), is_optional=True),
        Column("silenced", lambda one: "yes" if one["is_silenced"] else "", is_optional=True),
    )
)
Limit = Annotated[int, typer.Option(min=1, max=1_000, help="Maximum rows.")]


@alerts.command("list", epilog=example("boathook alerts list --json"))
def list_alerts(ctx: typer.Context, as_json: Json = False) -> None:
    """List firing and pending alerts."""

    async def read(work: UnitOfWork) -> list[Alert]:
        found = await actions.read_overview(work.connection, work.app_context.settings)
        return [*found.firing, *found.pending]

    _print(ctx, run_in_transaction(ctx, read), as_json=as_json)


@alerts.command("history", epilog=example("boathook alerts history --limit 20"))
def list_history(ctx: typer.Context, limit: Limit = 50, as_json: Json = False) -> None:
    """List recovered alerts, newest first."""
    _print(
        ctx, run_in_transaction(ctx, lambda work: actions.read_history(work.connection, limit=limit)), as_json=as_json
    )


@alerts.command("silence", epilog=example(
    "boathook alerts silence --rule error_rate --subject 'handler:crm' --for 2h --note 'the CRM moves tonight'",
    "boathook alerts silence --end sil_01h455vb4pex5vsknk084sn02q4",
))  # fmt: skip
def silence(
    ctx: typer.Context,
    rule: Annotated[str, typer.Option(help="Rule name; * matches any characters.")] = "*",
    subject: Annotated[str, typer.Option(help="Subject of the alert; * matches any characters.")] = "*",
    length: Annotated[timedelta, lifetime_option("Duration: 45m, 2h, 7d.", "--for")] = "4h",  # type: ignore[assignment]  # typer parses the text of the default
    note: Annotated[str, typer.Option(help="Reason; recorded with your name.")] = "",
    end: Annotated[
        str | None, typer.Option(metavar="ID", help="End this silence: its id or the beginning of it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send no messages about matching alerts for a time; they are still listed."""

    async def make(work: UnitOfWork) -> Any:
        if end is not None:
            return await actions.end_silence(work, await complete(work.connection, ids.SILENCE, end))
        return await actions.silence(work, rule=rule, subject=subject, text=note, length=length)

    made = run_in_transaction(ctx, make)
    message = f"{made.shown_id} has ended" if end else f"{made.shown_id}: silenced until {output.timestamp(made.until)}"
    fields = {"id": made.shown_id, "rule": made.rule, "subject": made.subject, "until": made.ended_at or made.until}
    output.print_done(fields, message, as_json=as_json)
    rules = cli_context(ctx).settings().notifications.rules
    if end is None and not any(map(Pattern(rule).matches, rules)):
        output.hint(f"no rule matches {rule!r}, so this silences nothing; the rules are {', '.join(sorted(rules))}")


@alerts.command("test", epilog=example("boathook alerts test ops"))
def try_channel(
    ctx: typer.Context, channel: Annotated[str, typer.Argument(help="Channel name.")], as_json: Json = False
) -> None:
    """Send a test message to a channel. Exits with 1 if it fails."""
    run_in_transaction(ctx, lambda work: actions.note_test(work, channel))
    outcome = run(actions.test_channel(cli_context(ctx).settings(), channel, actor()))
    error = outcome.error if isinstance(outcome, SendFailed) else None
    message = f"{channel}: test message accepted" if error is None else f"{channel}: {error}"
    output.print_done({"channel": channel, "sent": error is None, "error": error}, message, as_json=as_json)
    if error is not None:
        raise typer.Exit(1)


@alerts.command("rules", epilog=example("boathook alerts rules > /etc/prometheus/rules/boathook.yml"))
def print_rules() -> None:
    """Print the alert rules for Prometheus."""
    sys.stdout.write(ALERT_RULES.read_text(encoding="utf-8"))


def _print(ctx: typer.Context, found: list[Alert], *, as_json: bool) -> None:
    rules = cli_context(ctx).settings().notifications.rules
    _VIEW.print_rows([actions.alert_view(one, rules) for one in found], as_json=as_json)
