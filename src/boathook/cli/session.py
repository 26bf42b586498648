"""What every command shares: the settings, the way to the journal, and who is at the keyboard."""

import asyncio
import contextlib
import functools
import getpass
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import typer
from rich.console import Console

from boathook import config
from boathook.domain.errors import BoathookError, ConfigError, JournalError
from boathook.domain.model import DEFAULT_ORGANIZATION

if TYPE_CHECKING:
    from boathook.admin.desk import Desk, Work
    from boathook.journal.database import Database
    from boathook.journal.moves import Action

Result = TypeVar("Result")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


UNCUT: Final = 100_000
"""Columns of what is no terminal: whatever reads it wants values whole, such as `grep`."""


def fit_output() -> None:
    """Let tables be as wide as what they hold where no terminal, nor COLUMNS, says how wide they may be."""
    if not out.is_terminal and not os.environ.get("COLUMNS"):
        out.width = UNCUT


class Misused(BoathookError):
    """The command line asks for what cannot be; the message says how to write it."""


@dataclass(slots=True)
class Session:
    """One run of the command line."""

    file: Path | None = None
    """The configuration file given; None reads ``boathook.toml`` where there is one."""
    overrides: dict[str, object] = field(default_factory=dict)

    def settings(self, **overrides: object) -> config.Settings:
        """Read the settings, with the sources of the apps; an app that cannot be loaded is told of, and left out.

        Raises:
            ConfigError: as `plain_settings`.
        """
        settings = self.plain_settings(**overrides)
        if not settings.apps.load:
            return settings
        # Imported only here, as most have no apps.
        from boathook.server.loading import with_apps

        try:
            return with_apps(settings)[0]
        except ConfigError as error:
            complain_once(str(error))
            return settings

    def plain_settings(self, **overrides: object) -> config.Settings:
        """Read the settings alone; *overrides* are dotted keys with ``__`` for the dot. Raises ConfigError."""
        flags = {name.replace("__", "."): value for name, value in overrides.items()}
        return config.load(self.file, {**self.overrides, **flags})


def session(ctx: typer.Context) -> Session:
    """Return what the command line was started with."""
    return cast("Session", ctx.obj)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run one command's asynchronous part to its end."""
    return asyncio.run(work)


@contextlib.asynccontextmanager
async def server_url(settings: config.Settings, *, may_create: bool = False) -> AsyncIterator[str]:
    """Lend the URL of the journal's server, an embedded one running at least as long.

    Raises:
        ConfigError: no server is configured and no embedded one was made before, unless *may_create*.
    """
    if url := settings.database_url():
        yield url
        return
    home = settings.server.data_dir
    if not may_create and not (home / "postgres").exists():
        raise ConfigError(
            f"there is no database yet: database.url is not set and {home} holds none;"
            " set database.url, or start with `boathook serve` or `boathook migrate`"
        )
    # Imported only here, as one that is configured needs nothing started.
    from boathook.journal.embedded import EmbeddedServer

    home.mkdir(parents=True, exist_ok=True)
    server = await EmbeddedServer.start(home, progress=_say if err.is_terminal else None)
    try:
        yield server.url
    finally:
        await server.stop()


@functools.cache
def complain_once(message: str) -> None:
    """Tell of something that does not keep the command from being done."""
    print(f"boathook: {message}", file=sys.stderr)


def _say(message: str) -> None:
    err.print(message, style="dim", markup=False)


@contextlib.asynccontextmanager
async def journal(
    settings: config.Settings, *, purpose: str = "cli", statement_timeout_s: float | None = None
) -> AsyncIterator["Database"]:
    """Lend connections to the journal.

    Raises:
        ConfigError: there is no database yet, or an error shows that its schema is not current.
        JournalError: it cannot be reached.
    """
    # Imported only here, as help and some commands do without PostgreSQL.
    from boathook.journal.database import Database

    async with server_url(settings) as url:
        database = await Database.open(
            url,
            purpose=purpose,
            size=4,
            connect_timeout_s=settings.database.connect_timeout_s,
            statement_timeout_s=statement_timeout_s or settings.database.statement_timeout_s,
        )
        try:
            yield database
        except JournalError as error:
            await _explain(database, error)
            raise
        finally:
            await database.close()


@contextlib.asynccontextmanager
async def desk(settings: config.Settings) -> AsyncIterator["Desk"]:
    """Lend what actions need.

    Raises:
        ConfigError: as `journal`, or the key that secrets are encrypted with cannot be had.
    """
    # Imported only here, as most commands do without encryption.
    from boathook.admin.desk import Desk
    from boathook.handlers.outbox import Outbox, memory_days
    from boathook.journal.vault import open_vault

    async with journal(settings) as database:
        yield Desk(settings, database, open_vault(settings), Outbox(memory_days=memory_days(settings.retention)))


@contextlib.asynccontextmanager
async def work(settings: config.Settings, organization: str = DEFAULT_ORGANIZATION) -> AsyncIterator["Work"]:
    """Lend one transaction to an action of an organization; an error undoes it. Raises ConfigError as `desk`."""
    async with desk(settings) as lent, lent.work(organization, action().actor) as one:
        yield one


def act(ctx: typer.Context, do: Callable[["Work"], Awaitable[Result]]) -> Result:
    """Run what is done in one transaction of the organization, and return what came of it."""

    async def inside() -> Result:
        async with work(session(ctx).settings()) as one:
            return await do(one)

    return run(inside())


async def _explain(database: "Database", error: JournalError) -> None:
    """Name lacking migrations as the cause of an error, where there are any."""
    from boathook.journal.migrations import pending

    with contextlib.suppress(JournalError):
        if lacking := await pending(database):
            raise ConfigError(f"the database lacks {', '.join(lacking)}: run `boathook migrate` first") from error


def confirm(what: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal there must be --yes.

    Raises:
        Misused: there is nobody to ask.
        typer.Abort: the answer is no.
    """
    if yes:
        return
    if not out.is_terminal:
        raise Misused(f"this would {what}: add --yes to do it")
    typer.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True)


def action(note: str | None = None) -> "Action":
    """Return who acts, for the audit."""
    from boathook.journal.moves import Action

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return Action(actor=f"cli:{user}", note=note)
