"""Commands for the brokers that hold events while PostgreSQL is unavailable."""

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import cli_context, run
from boathook.cli.options import Json
from boathook.cli.output import Column, say
from boathook.domain.plurals import counted
from boathook_rabbitmq import administration
from boathook_rabbitmq.administration import QueueStatus, ReturnedBatches
from boathook_rabbitmq.settings import notifies

buffer = typer.Typer(no_args_is_help=True, help="Events with brokers that wait for PostgreSQL.")

_STATUS = (
    Column("queue", is_whole=True),
    Column("messages", lambda row: "?" if row.messages is None else f"{row.messages:,}"),
    Column("problem", is_optional=True),
)


@buffer.command("status", epilog=example("boathook buffer status", "boathook buffer status --json"))
def show_status(ctx: typer.Context, as_json: Json = False) -> None:
    """Show the brokers' queues: the messages that wait in each, and what is wrong with it.

    A message holds up to 512 events. No database is needed, and running gateways are not affected. Exits with 1 if
    a queue cannot be used.
    """
    settings = cli_context(ctx).plain_settings()
    if not notifies(settings):
        administration.require_brokers(settings)

    async def work() -> list[QueueStatus]:
        return await administration.read_queues(settings)

    queues = run(work())
    if as_json:
        for queue in queues:
            output.print_json(queue)
    else:
        output.print_table(_STATUS, queues)
    raise typer.Exit(1 if any(queue.problem for queue in queues) else 0)


@buffer.command("retry", epilog=example("boathook buffer retry"))
def retry(ctx: typer.Context, as_json: Json = False) -> None:
    """Offer refused events to PostgreSQL again, once the cause is fixed.

    Their messages go back into a queue, which gateways drain. Damaged ones stay refused. Safe to repeat.
    """
    settings = cli_context(ctx).plain_settings()
    administration.require_brokers(settings)

    async def work() -> ReturnedBatches:
        return await administration.return_refused(settings)

    batches = run(work())
    if as_json:
        output.print_json(batches)
        return
    say(f"returned to a queue: {counted(batches.returned, 'message')}; damaged: {batches.unreadable}")
