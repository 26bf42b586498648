"""The command that serves while handlers are written."""

import os
import sys
from typing import Annotated

import typer

from boathook.cli.context import cli_context


def dev(
    ctx: typer.Context,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTR", help="Your handlers: module:attribute of the Boathook object.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port, overriding the one in server.bind.")
    ] = None,
) -> None:
    """
    Serve while you write handlers: restarts when a file is saved, and prints one line for each attempt.

    Runs all roles on this machine. Without database.url it starts an embedded PostgreSQL. After an error in a file it
    waits for the next save. The printed link signs you in to the console, once and from this machine only.
    """
    from boathook_dev.developer import develop

    # Each `boathook serve` reads .env itself, so that a changed one counts.
    environment = dict(os.environ)
    context = cli_context(ctx)
    settings = context.plain_settings(server__app=app, server__port=port)
    flags = ["--role", "gateway,worker,keeper,console"]
    if data_dir := context.overrides.get("server.data_dir"):
        flags += ["--data-dir", str(data_dir)]
    if app is not None:
        flags += ["--app", app]
    if port is not None:
        flags += ["--port", str(port)]
    is_colored = sys.stdout.isatty() and not environment.get("NO_COLOR")
    develop(settings, flags, environment, _print_line, is_colored=is_colored)


def _print_line(line: str) -> None:
    # Not rich's console: the lines are coloured already, and wrapping would cut URLs.
    print(line, flush=True)
