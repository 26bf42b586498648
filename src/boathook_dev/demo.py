"""The command that runs the demo, a distribution of its own."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from boathook.cli.context import cli_context, out
from boathook.domain.errors import ConfigError


def demo(
    ctx: typer.Context,
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after this many seconds.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Address to serve; the next free port is used if it is taken.")
    ] = 8080,
    buffer: Annotated[
        Literal["auto", "disk", "rabbitmq"],
        typer.Option(
            help="auto also runs RabbitMQ and Redis where they are installed, disk neither. With rabbitmq, which must"
            " be installed, PostgreSQL is stopped for a while in the middle."
        ),
    ] = "auto",
) -> None:
    """
    Start everything on an embedded PostgreSQL and send realistic signed traffic for a few minutes.

    Its folder is `.boathook-demo`, or that of --data-dir, and is emptied at the start. Exits with 0 only if the
    consistency check passes at the end.
    """
    try:
        run_demo = import_module("boathook_demo").run_demo
    except ModuleNotFoundError as error:
        if error.name != "boathook_demo":
            raise
        raise ConfigError("the demo is a package of its own: pip install boathook-demo") from None

    data_dir = Path(str(cli_context(ctx).overrides.get("server.data_dir", ".boathook-demo")))
    raise typer.Exit(run_demo(seconds=seconds, data_dir=data_dir, port=port, console=out, buffer=buffer))
