"""The command line: everything an operator does, from a shell.

commands  the list of commands, imported when called; shell completion
context   settings, the database, who acts
output    tables and JSON: `View`, by which each group lists, shows and reports its objects
options   options and arguments that many commands share
events, dead_letters, rejections      what is stored: events, deliveries, dead letters, rejections, conflicts
applications, endpoints, event_types  the tenants, where their messages go, and what they are about
keys, operators, alerts, sources      the set-up of the API, the console, alerts and sources
serve     serve, migrate, doctor, demo, send
check     the consistency check
listen    events as they are accepted, forwarded to a local server: event_feed, forwarding
top       live statistics: dashboard draws them
spool     events on disk that wait for PostgreSQL
import_   configuration of another system
config    settings, Grafana dashboards
apps      the apps that are loaded: app_commands adds their own commands
"""

import gc
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, cast

import typer

from boathook.cli.commands import COMMAND_ENTRIES, Root, completion_words, parse_global_options
from boathook.domain.errors import BoathookError, ConfigError, InvalidValue

_USAGE = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base of typer's complaints about how a command was written."""

app = typer.Typer(
    name="boathook",
    cls=Root,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Receive, process and send webhooks on PostgreSQL. No accepted webhook is lost or processed twice.",
    epilog="Example: boathook demo --seconds 20",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        try:
            print(f"boathook {version('boathook')}")
        except PackageNotFoundError:
            print("boathook, run from its source without being installed")
        raise typer.Exit


@app.callback()
def start(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="PATH", help="Configuration file; boathook.toml by default if it exists."
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Receive, process and send webhooks on PostgreSQL. No accepted webhook is lost or processed twice."""
    # Imported only here, as help and completion do without.
    from boathook.cli.context import CliContext, fit_output

    fit_output()
    ctx.obj = CliContext(file=config)
    # What was imported stays, so that no collection need walk through it.
    gc.freeze()
    gc.enable()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 when all is well, 1 when something failed, 2 when it was not understood."""
    gc.disable()  # until the command is imported: `start` turns it on
    sys.exit(_run(_hoist_config(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    try:
        return int(_whole(arguments)(args=arguments, prog_name="boathook", standalone_mode=False) or 0)
    except _USAGE as error:
        return _complain(str(getattr(error, "format_message", error.__str__)()), 2)
    except InvalidValue as error:
        return _complain(f"{'.'.join(map(str, error.where))}: {error}" if error.where else str(error), 2)
    except BoathookError as error:
        return _complain(str(error), 2 if _is_misuse(error) else 1)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; what is still buffered must not be complained about at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - a traceback is for developers, who ask for it
        return _complain(f"internal error: {type(error).__name__}: {error}; BOATHOOK_DEBUG=1 shows where", 1)


def _whole(arguments: list[str]) -> typer.Typer:
    """Return our commands with those of apps, as far as they are asked for, by name or by a shell that completes."""
    words = completion_words()
    asked = arguments if words is None else words
    if parse_global_options(asked)[1] in COMMAND_ENTRIES or "--version" in asked:
        return app
    # Imported only here, as most commands are our own.
    from boathook.cli.app_commands import with_commands

    try:
        return with_commands(app, asked)
    except ConfigError:
        if words is None:
            raise
        return app


def _is_misuse(error: BoathookError) -> bool:
    from boathook.cli.context import UsageError

    return isinstance(error, (ConfigError, UsageError))


def _complain(message: str, code: int) -> int:
    if os.environ.get("BOATHOOK_DEBUG"):
        raise  # noqa: PLE0704 - only called while an error is being handled
    # Where a command of a group is missing, typer's message is the group's help.
    print(message if message.startswith("Usage:") else f"boathook: {message.strip()}", file=sys.stderr)
    return code


def _hoist_config(arguments: list[str]) -> list[str]:
    """Move ``--config PATH`` to the front, where typer expects it, from wherever it was written."""
    for position, word in enumerate(arguments):
        if word == "--":
            break
        if word in {"--config", "-c"} and position + 1 < len(arguments):
            return [word, arguments[position + 1], *arguments[:position], *arguments[position + 2 :]]
        if word.startswith("--config="):
            return [word, *arguments[:position], *arguments[position + 1 :]]
    return arguments
