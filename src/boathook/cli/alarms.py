"""Commands about alarms: what fires, what has, what is silenced, and whether messages arrive."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from boathook.admin import alarms as actions
from boathook.admin.desk import Work
from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.keys import read_lifetime
from boathook.cli.options import Json
from boathook.cli.session import act, action, out, run, session
from boathook.cli.show import Column
from boathook.domain.telling import show_number
from boathook.journal.alarms import Alarm
from boathook.outbound.notifier import NotSent

alarms = typer.Typer(no_args_is_help=True, help="What operators are told of.")

_OPEN = (
    Column("rule", lambda one: one["rule"], is_whole=True),
    Column("subject", lambda one: one["subject"], is_optional=True),
    Column("severity", lambda one: one["severity"]),
    Column("state", lambda one: one["state"]),
    Column("figure", lambda one: show_number(one["value"])),
    Column("worst", lambda one: show_number(one["worst"])),
    Column("since", lambda one: show.moment(one["fired_at"]), is_optional=True),
    Column("recovered", lambda one: show.moment(one["recovered_at"]), is_optional=True),
    Column("silenced", lambda one: "yes" if one["is_silenced"] else "", is_optional=True),
)
Limit = Annotated[int, typer.Option(min=1, max=1_000, help="Most rows.")]


@alarms.command("list", epilog=example("boathook alarms list --json"))
def list_alarms(ctx: typer.Context, as_json: Json = False) -> None:
    """List the alarms that fire, and those that soon may."""

    async def read(work: Work) -> list[Alarm]:
        found = await actions.read(work.connection, work.desk.settings)
        return [*found.firing, *found.pending]

    _print(ctx, act(ctx, read), as_json=as_json)


@alarms.command("history", epilog=example("boathook alarms history --limit 20"))
def list_history(ctx: typer.Context, limit: Limit = 50, as_json: Json = False) -> None:
    """List the alarms that have recovered, the latest first."""
    _print(ctx, act(ctx, lambda work: actions.read_history(work.connection, limit=limit)), as_json=as_json)


@alarms.command("silence", epilog=example(
    "boathook alarms silence --rule error_rate --subject 'handler:crm' --for 2h --note 'the CRM moves tonight'",
    "boathook alarms silence --end sil_01h455vb4pex5vsknk084sn02q4",
))  # fmt: skip
def silence(
    ctx: typer.Context,
    rule: Annotated[str, typer.Option(help="The rule's name; * stands for any run of characters.")] = "*",
    subject: Annotated[str, typer.Option(help="Whom it is about; a pattern as well.")] = "*",
    length: Annotated[
        timedelta, typer.Option("--for", parser=read_lifetime, metavar="LENGTH", help="For how long: 45m, 2h, 7d.")
    ] = "4h",  # type: ignore[assignment]  # typer reads it as it reads what is typed
    note: Annotated[str, typer.Option(help="Why; it is kept with your name.")] = "",
    end: Annotated[str | None, typer.Option(metavar="ID", help="End this silence instead.")] = None,
    as_json: Json = False,
) -> None:
    """Tell nobody of some alarms for a time; they are shown all the same."""

    async def make(work: Work) -> Any:
        if end is not None:
            return await actions.end_silence(work, end)
        return await actions.silence(work, rule=rule, subject=subject, text=note, length=length)

    made = act(ctx, make)
    if as_json:
        show.print_json(
            {"id": made.shown_id, "rule": made.rule, "subject": made.subject, "until": made.ended_at or made.until}
        )
    elif end is not None:
        out.print(f"{made.shown_id} has ended", markup=False)
    else:
        out.print(f"{made.shown_id}: nobody is told until {show.moment(made.until)}", markup=False)


@alarms.command("test", epilog=example("boathook alarms test ops"))
def try_channel(
    ctx: typer.Context, channel: Annotated[str, typer.Argument(help="The channel's name.")], as_json: Json = False
) -> None:
    """Send a channel a message that says it is a test. Exits with 1 if it does not arrive."""
    act(ctx, lambda work: actions.note_test(work, channel))
    outcome = run(actions.test_channel(session(ctx).settings(), channel, action().actor))
    error = outcome.error if isinstance(outcome, NotSent) else None
    if as_json:
        show.print_json({"channel": channel, "sent": error is None, "error": error})
    else:
        out.print(show.text(f"{channel} has taken it" if error is None else f"{channel}: {error}"), soft_wrap=True)
    if error is not None:
        raise typer.Exit(1)


def _print(ctx: typer.Context, found: list[Alarm], *, as_json: bool) -> None:
    rules = session(ctx).settings().notifications.rules
    rows = [actions.alarm_view(one, rules) for one in found]
    show.print_rows(rows, _OPEN, as_json=as_json, plain=dict, after="")
