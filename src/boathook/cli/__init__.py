"""The command line: all actions of an operator in a shell.

commands  the list of commands, imported when called; shell completion
context   settings, the database, the operator
output    tables and JSON: `View` lists, shows and reports the objects of a command group
options   options and arguments that many commands share

events, dead_letters, rejections      stored data: events, deliveries, dead letters, rejections, conflicts
applications, endpoints, event_types  tenants, their endpoints, and event types
keys, operators, alerts, sources      configuration of the API, the console, alerts and sources
serve     serve, migrate, doctor, send
check     the consistency check
top       live statistics
spool     events on disk that wait for PostgreSQL
config    settings, Grafana dashboards
apps      the loaded apps: app_commands adds their commands, and those of optional packages
"""

import gc
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, cast

import typer

from boathook.cli.commands import COMMAND_ENTRIES, Root, completion_words, hoist_global_options, parse_global_options
from boathook.domain.errors import BoathookError, ConfigError, InvalidValue

_USAGE = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base class of typer's usage errors."""

_DESCRIPTION = (
    "Receive, process and send webhooks on PostgreSQL."
    " Accepted webhooks are never lost; handler effects in your database commit exactly once."
)

app = typer.Typer(
    name="boathook",
    cls=Root,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=_DESCRIPTION,
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
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="PATH", help="Folder of the embedded PostgreSQL, the spool and the metrics."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Run against this server; BOATHOOK_SERVER by default."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", help="The key: env:NAME, file:PATH or itself; BOATHOOK_API_KEY by default."
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Server and key of ~/.config/boathook/profiles.toml."),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Set up the log and the context that all commands share."""
    # Imported only here, as help and completion do not need it.
    from boathook.cli.context import CliContext, RemoteOptions, fit_output
    from boathook.observability import log

    log.configure("warning", "text")
    fit_output()
    overrides: dict[str, object] = {"server.data_dir": str(data_dir)} if data_dir else {}
    ctx.obj = CliContext(file=config, overrides=overrides, remote=RemoteOptions(server, api_key, profile))
    # Freeze the imported objects, so that the garbage collector does not traverse them.
    gc.freeze()
    gc.enable()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for success, 1 for a failure, 2 for a usage error."""
    gc.disable()  # until the command is imported: `start` turns it on
    _complete_streams()
    sys.exit(_run(hoist_global_options(sys.argv[1:] if arguments is None else arguments)))


def _complete_streams() -> None:
    """Open the null device for closed standard streams, whose descriptors the next socket or file would get."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115 - until the process ends
            os.set_inheritable(descriptor, True)
    if isinstance(sys.stdout, TextIOWrapper):  # texts of events may contain what the terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(arguments: list[str]) -> int:
    try:
        code = _whole(arguments)(args=arguments, prog_name="boathook", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except _USAGE as error:
        return _complain(str(getattr(error, "format_message", error.__str__)()), 2)
    except InvalidValue as error:
        return _complain(f"{'.'.join(map(str, error.where))}: {error}" if error.where else str(error), 2)
    except BoathookError as error:
        return _complain(str(error), 2 if _is_misuse(error) else 1)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, SystemExit) as error:
        # The reader, such as `head`, closed the pipe. typer and rich exit with 1 then.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # Flushing the buffer at exit must not print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - a traceback is shown only on request
        return _complain(f"internal error: {type(error).__name__}: {error}; BOATHOOK_DEBUG=1 shows where", 1)


def _whole(arguments: list[str]) -> typer.Typer:
    """Return the root command; add the commands of apps if the arguments or a shell completion may need them."""
    words = completion_words()
    command_words = arguments if words is None else words
    if parse_global_options(command_words)[1] in COMMAND_ENTRIES or "--version" in command_words:
        return app
    # Imported only here, as most commands are boathook's own.
    from boathook.cli.app_commands import with_commands

    try:
        return with_commands(app, command_words)
    except ConfigError:
        if words is None:
            raise
        return app


def _is_misuse(error: BoathookError) -> bool:
    from boathook.cli.context import UsageError

    return isinstance(error, (ConfigError, UsageError))


def _complain(message: str, code: int) -> int:
    if os.environ.get("BOATHOOK_DEBUG"):
        raise  # noqa: PLE0704 - only called in an exception handler
    # For a group without a command, typer's message is the group's help.
    print(message if message.startswith("Usage:") else f"boathook: {message.strip()}", file=sys.stderr)
    return code
