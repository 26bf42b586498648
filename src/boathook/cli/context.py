"""The context of a command: its settings, its database connection, and the operator."""

import asyncio
import contextlib
import functools
import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

import msgspec
import typer
from rich.console import Console

from boathook import config
from boathook.domain.errors import BoathookError, ConfigError
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.domain.redaction import RedactedStruct

if TYPE_CHECKING:
    from boathook.service.database import Database
    from boathook.service.operating.operations import AuditContext
    from boathook.service.unit_of_work import AppContext, UnitOfWork

Result = TypeVar("Result")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


UNLIMITED_WIDTH: Final = 100_000
"""Width of output that is not a terminal: programs such as `grep` need complete values."""


def fit_output() -> None:
    """Make tables as wide as their content if neither a terminal nor COLUMNS sets the width."""
    if not out.is_terminal and not os.environ.get("COLUMNS"):
        out.width = UNLIMITED_WIDTH


class UsageError(BoathookError):
    """The command line is invalid; the message says how to write it."""


def option_error(option: str, place: Sequence[str | int], reason: str) -> UsageError:
    """Return the error of an option's value, or of a place in it."""
    return UsageError(": ".join([" ".join([option, *filter(None, [".".join(map(str, place))])]), reason]))


SERVER_VARIABLE: Final = "BOATHOOK_SERVER"
API_KEY_VARIABLE: Final = "BOATHOOK_API_KEY"


class RemoteOptions(RedactedStruct, frozen=True):
    """What the command line says about a server to run the command against."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"api_key"})

    server: str | None = None
    api_key: str | None = None
    profile: str | None = None


class CliContext(msgspec.Struct):
    """One run of the command line."""

    file: Path | None = None
    """The configuration file given; None reads ``boathook.toml`` if it exists."""
    overrides: dict[str, object] = msgspec.field(default_factory=dict)
    remote: RemoteOptions = RemoteOptions()

    @property
    def is_remote(self) -> bool:
        """Whether the command runs against a server instead of on the database."""
        return bool(self.remote.server or self.remote.profile or os.environ.get(SERVER_VARIABLE))

    def settings(self, **overrides: object) -> config.Settings:
        """Read the settings, with the sources of the apps; warn about apps that cannot be loaded, and skip them.

        Raises:
            ConfigError: as `plain_settings`.
        """
        settings = self.plain_settings(**overrides)
        if not settings.apps.load:
            return settings
        # Imported only here, as most installations have no apps.
        from boathook.server.loading import with_apps

        try:
            return with_apps(settings)[0]
        except ConfigError as error:
            warn_once(str(error))
            return settings

    def plain_settings(self, **overrides: object) -> config.Settings:
        """Read the settings without apps; *overrides* are dotted keys with ``__`` for the dot. Raises ConfigError."""
        config.read_env_file(self.file)
        flags = {name.replace("__", "."): value for name, value in overrides.items()}
        return config.load(self.file, {**self.overrides, **flags})


def cli_context(ctx: typer.Context) -> CliContext:
    """Return the context of this run of the command line."""
    return cast("CliContext", ctx.obj)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run one command's asynchronous part to completion."""
    return asyncio.run(work)


def server_url(settings: config.Settings) -> contextlib.AbstractAsyncContextManager[str]:
    """Open the database server and yield its URL; an embedded server runs at least as long.

    Raises:
        ConfigError: no server is configured, and no embedded one was created before.
    """
    # Imported only here, as help and some commands do not need PostgreSQL.
    from boathook.service import database

    return database.server_url(settings, progress=startup_progress())


@functools.cache
def warn_once(message: str) -> None:
    """Print a warning that does not stop the command."""
    print(f"boathook: {message}", file=sys.stderr)


def startup_progress() -> Callable[[str], None] | None:
    """Return a callback that shows the start of an embedded PostgreSQL; None without a terminal."""
    return _say if err.is_terminal else None


def _say(message: str) -> None:
    err.print(message, style="dim", markup=False)


def open_database(
    settings: config.Settings, *, purpose: str = "cli", statement_timeout_s: float | None = None
) -> contextlib.AbstractAsyncContextManager["Database"]:
    """Open connections to the database.

    Raises:
        ConfigError: there is no database yet, or an error shows that its schema is not current.
        DatabaseError: it cannot be reached.
    """
    # Imported only here, as help and some commands do not need PostgreSQL.
    from boathook.service import database

    return database.open_database(
        settings, purpose=purpose, statement_timeout_s=statement_timeout_s, progress=startup_progress()
    )


def open_app_context(settings: config.Settings) -> contextlib.AbstractAsyncContextManager["AppContext"]:
    """Open the context that service functions need.

    Raises:
        ConfigError: as `open_database`, or the encryption key is not available.
    """
    # Imported only here, as most commands do not need encryption.
    from boathook.service import unit_of_work

    return unit_of_work.open_app_context(settings, purpose="cli", progress=startup_progress())


def run_in_transaction(
    ctx: typer.Context, do: Callable[["UnitOfWork"], Awaitable[Result]], organization: str = DEFAULT_ORGANIZATION
) -> Result:
    """Return the result of *do*, run in one transaction of an organization; an error rolls it back.

    Raises ConfigError like `open_app_context`.
    """

    async def inside() -> Result:
        from boathook.service.caller import HOST

        settings = cli_context(ctx).settings()
        async with open_app_context(settings) as opened, opened.work(organization, actor(), HOST) as work:
            return await do(work)

    return run(inside())


def run_with_database(ctx: typer.Context, do: Callable[["Database"], Awaitable[Result]]) -> Result:
    """Return the result of *do*, run on the configured database. Raises as `open_database` does."""

    async def inside() -> Result:
        async with open_database(cli_context(ctx).settings()) as database:
            return await do(database)

    return run(inside())


def confirm(action_text: str, *, yes: bool) -> None:
    """Ask for confirmation of an irreversible action; without a terminal, --yes is required.

    Raises:
        UsageError: there is no terminal.
        typer.Abort: the answer is no.
    """
    if not ask(action_text, yes=yes):
        raise typer.Abort


def ask(action_text: str, *, yes: bool, advice: str = "add --yes to confirm") -> bool:
    """Return whether an action is confirmed; without a terminal, --yes is required. Raises UsageError."""
    if yes:
        return True
    if not out.is_terminal:
        raise UsageError(f"this would {action_text}; {advice}")
    return typer.confirm(f"{action_text[:1].upper()}{action_text[1:]}?")


def actor() -> str:
    """Return the current user as the actor for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"cli:{user}"


def action(note: str | None = None) -> "AuditContext":
    """Return the current user and a reason for the audit log."""
    from boathook.service.operating.operations import AuditContext

    return AuditContext(actor=actor(), note=note)
