"""Commands for alerts: list, history, silences, test messages and the Prometheus rules."""

import sys
from typing import Annotated, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import cli_context, run_in_transaction
from boathook.cli.derived import add, run_operation, runs
from boathook.cli.options import Json
from boathook.cli.output import STATE, Column, View
from boathook.config.packages import own_packages
from boathook.domain.alerts import show_number
from boathook.observability import prometheus_rules
from boathook.service.catalogue import alerts as operations
from boathook.service.catalogue import silences
from boathook.service.operating import alerts as actions
from boathook.service.operating.alerts import Alert
from boathook.service.unit_of_work import UnitOfWork

alerts = typer.Typer(no_args_is_help=True, help="Alerts: list, silence and test them.")

_VIEW: Final = View(
    (
        Column("rule", is_whole=True),
        Column("subject", is_optional=True),
        Column("severity"),
        STATE,
        Column("summary", may_wrap=True, is_optional=True),
        Column("figure", lambda row: show_number(row["value"])),
        Column("worst", lambda row: show_number(row["worst"])),
        Column("since", output.moment_of("fired_at"), is_optional=True),
        Column("recovered", output.moment_of("recovered_at"), is_optional=True),
        Column("silenced", lambda row: "yes" if row["is_silenced"] else "", is_optional=True),
    )
)
Limit = Annotated[int, typer.Option(min=1, max=1_000, help="Maximum rows.")]


@alerts.command("list", epilog=example("boathook alerts list --json"))
def list_alerts(ctx: typer.Context, as_json: Json = False) -> None:
    """List firing and pending alerts."""

    async def read(work: UnitOfWork) -> list[Alert]:
        overview = await actions.read_overview(work.connection, work.app_context.settings)
        return [*overview.firing, *overview.pending]

    _print(ctx, run_in_transaction(ctx, read), as_json=as_json)


@alerts.command("history", epilog=example("boathook alerts history --limit 20"))
def list_history(ctx: typer.Context, limit: Limit = 50, as_json: Json = False) -> None:
    """List recovered alerts, newest first."""
    _print(
        ctx, run_in_transaction(ctx, lambda work: actions.read_history(work.connection, limit=limit)), as_json=as_json
    )


_End = Annotated[
    str | None, typer.Option(metavar="ID", help="End this silence: its id or the beginning of it.", show_default=False)
]
add(alerts, silences.create, "silence", alternatives={"end": (silences.end, _End)})
add(alerts, silences.list_silences, "silences")


@alerts.command("test", epilog=example(*operations.test.examples))
@runs(operations.test)
def try_channel(
    ctx: typer.Context, channel: Annotated[str, typer.Argument(help="Channel name.")], as_json: Json = False
) -> None:
    """Send a test message to a channel. Exits with 1 if it fails."""
    tested = run_operation(ctx, operations.test, operations.ChannelNamed(channel=channel))
    output.print_done(tested, f"{channel}: {tested.error or 'test message accepted'}", as_json=as_json)
    if not tested.sent:
        raise typer.Exit(1)


@alerts.command("rules", epilog=example("boathook alerts rules > /etc/prometheus/rules/boathook.yml"))
def print_rules(ctx: typer.Context) -> None:
    """Print the alert rules for Prometheus."""
    # Also those of packages that are not used here: a rule over a metric that is absent never fires.
    used = cli_context(ctx).plain_settings().packages
    sys.stdout.write(prometheus_rules(dict.fromkeys((*own_packages(), *used))))


def _print(ctx: typer.Context, rows: list[Alert], *, as_json: bool) -> None:
    rules = cli_context(ctx).settings().notifications.rules
    _VIEW.print_rows([actions.alert_view(alert, rules) for alert in rows], as_json=as_json)
