"""Commands for the loaded apps."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import SecretStr

from boathook.cli.context import (
    UsageError,
    cli_context,
    confirm,
    open_database,
    run,
    run_with_database,
    warn_once,
)  # fmt: skip
from boathook.cli.options import Json, Yes
from boathook.cli.output import Column, View, print_done
from boathook.config import Settings
from boathook.config.faults import is_secret
from boathook.config.packages import module_of_app
from boathook.domain.alerts import show_number
from boathook.domain.errors import BoathookError, ConfigError
from boathook.service.shown_settings import reference, without_password

if TYPE_CHECKING:
    from boathook.server.loading import Boathook
    from boathook.service.database import KnownApps

apps = typer.Typer(help="Apps loaded by apps.load, such as billing.")


def _migrations(app_row: dict[str, Any]) -> str:
    if not app_row["loaded"]:
        return f"not loaded here; retire its handlers with `boathook apps forget {app_row['entry']}`"
    if app_row["pending"] is None:
        return "unknown"
    if app_row["pending"]:
        return f"lacks {', '.join(app_row['pending'])}: run `boathook migrate`"
    return "applied" if app_row["migrations"] else "none"


_VIEW: Final = View(
    (
        Column("name"),
        Column("entry"),
        Column("sources", lambda row: " ".join(row["sources"]), may_wrap=True),
        Column("handlers", lambda row: len(row["handlers"])),
        Column("chores", lambda row: len(row["chores"])),
        Column("mounts", lambda row: " ".join(row["mounts"]), may_wrap=True),
        Column("migrations", _migrations),
    )
)


@apps.callback(invoke_without_command=True, epilog="Example: boathook apps --json")
def list_by_default(ctx: typer.Context, as_json: Json = False) -> None:
    """List the apps of apps.load, or manage them with a subcommand."""
    if ctx.invoked_subcommand is None:
        list_apps(ctx, as_json)


@apps.command("list", epilog="Example: boathook apps list --json")
def list_apps(ctx: typer.Context, as_json: Json = False) -> None:
    """List loaded apps, and apps that are no longer loaded but still have handlers."""
    from boathook.server import with_apps

    settings, loaded = with_apps(cli_context(ctx).plain_settings())
    known_apps = run(_read_known_apps(settings, loaded))
    rows = [
        _describe(settings, entry, hook, known_apps) for entry, hook in zip(settings.apps.load, loaded, strict=True)
    ]
    packages = {module_of_app(package) for package in settings.packages if package.app is not None}
    ours = {*settings.apps.load, settings.server.app, *packages}
    rows += [_unloaded_app(owner) for owner in (known_apps.owners if known_apps else ()) if owner not in ours]
    _VIEW.print_rows(rows, as_json=as_json)


@apps.command("forget", epilog="Example: boathook apps forget billing")
def forget(
    ctx: typer.Context,
    entry: Annotated[str, typer.Argument(help="As `boathook apps list` shows it.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Retire the handlers of an app that no host loads any more: they get no further events.

    Their pending deliveries and the app's tables are kept.
    """
    from boathook.service import database as actions

    settings = cli_context(ctx).settings()
    if entry in (*settings.apps.load, settings.server.app):
        raise ConfigError(f"{entry} is loaded here: remove it from boathook.toml first")
    confirm(f"retire the handlers of {entry}", yes=yes)
    run_with_database(ctx, lambda database: actions.forget(database, entry))
    print_done({"entry": entry, "retired": True}, f"{entry}: handlers retired", as_json=as_json)


@apps.command("sample", epilog="Example: boathook apps sample billing > boathook.toml")
def print_sample(
    app: Annotated[str, typer.Argument(help="An installed app, such as billing, fleet, music or cashdesk.")],
) -> None:
    """Print a sample boathook.toml for an installed app."""
    from boathook.server.installed_apps import READY_MADE, installed_apps, sample_of

    installed = installed_apps()
    if app not in installed:
        install = f": pip install boathook-{app}" if app in READY_MADE else ""
        installed_names = ", ".join(sorted(installed)) or "none"
        raise UsageError(f"the app {app!r} is not installed{install}; installed are: {installed_names}")
    if (sample := sample_of(app)) is None:
        raise UsageError(f"the app {app} has no sample configuration")
    sys.stdout.write(sample.read_text(encoding="utf-8"))


def tables(settings: Settings) -> dict[str, Any]:
    """Return every table that is not boathook's own: an app's with its defaults; secrets only as references."""
    from boathook.server.loading import load_apps, settings_of

    tables_by_name: dict[str, Any] = dict(settings.extra)
    try:
        for hook in load_apps(settings):
            if (own := settings_of(hook, settings)) is not None:
                tables_by_name[hook.name] = own.model_dump(mode="json")
    except ConfigError:  # which was reported when the settings were read
        tables_by_name = {name: _configured_table(table) for name, table in settings.extra.items()}
    return {name: _hidden(table, name) for name, table in tables_by_name.items()}


def _configured_table(table: Any) -> Any:
    """Return a table that no app has validated, with masked values: a misspelled key may hold a secret."""
    match table:
        case dict():
            return {name: _configured_table(part) for name, part in table.items()}
        case list():
            return [_configured_table(part) for part in table]
        case _:
            return reference(table)


def _hidden(value: Any, key: str) -> Any:
    match value:
        case dict():
            return {name: _hidden(part, key if is_secret(key) else str(name)) for name, part in value.items()}
        case list():
            return [_hidden(part, key) for part in value]
        case str() if value and (is_secret(key) or value == _MASKED):
            return reference(value)
        case str():
            return without_password(value)
        case int() | float() if is_secret(key) and not isinstance(value, bool):
            return reference(value)
        case _:
            return value


_MASKED = str(SecretStr("any"))
"""How pydantic displays a secret."""


async def _read_known_apps(settings: Settings, loaded: "Sequence[Boathook]") -> "KnownApps | None":
    """Return the state of apps in the database; None if it does not exist or is unavailable."""
    from boathook.server import migrations_of
    from boathook.service.database import read_known

    try:
        async with open_database(settings) as database:
            return await read_known(database, migrations_of(loaded))
    except BoathookError as error:
        warn_once(str(error))
        return None


def _describe(settings: Settings, entry: str, hook: "Boathook", known_apps: "KnownApps | None") -> dict[str, Any]:
    from boathook.server.loading import sources_of

    manifest = hook.manifest
    return {
        "name": hook.name,
        "entry": entry,
        "loaded": True,
        "sources": sorted(sources_of(entry, hook, settings)),
        "handlers": sorted(hook.handlers),
        "chores": [chore.name for chore in manifest.chores],
        "mounts": [mount.path for mount in manifest.mounts],
        "commands": manifest.commands is not None,
        "migrations": sorted(path.stem for path in manifest.migrations.glob("*.sql")) if manifest.migrations else [],
        "pending": known_apps.pending_of(hook.name) if known_apps else None,
    }


def _unloaded_app(owner: str) -> dict[str, Any]:
    empty: dict[str, Any] = {key: [] for key in ("sources", "handlers", "chores", "mounts", "migrations", "pending")}
    return {"name": None, "entry": owner, "loaded": False, "commands": False, **empty}


_METRICS: Final = View(
    (
        Column("metric", is_whole=True),
        Column("labels", is_optional=True),
        Column("kind"),
        Column("latest", lambda series: "" if series.latest is None else show_number(series.latest)),
        Column("total", lambda series: show_number(series.total) if series.kind == "counter" else "", is_optional=True),
    )
)


@apps.command("metrics", epilog="Example: boathook apps metrics billing --minutes 60 --json")
def list_metrics(
    ctx: typer.Context,
    app: Annotated[str, typer.Argument(metavar="APP", help="The app's name, such as billing.")],
    minutes: Annotated[float, typer.Option(min=1, max=10_080, help="How far back; each minute is a value.")] = 60.0,
    as_json: Json = False,
) -> None:
    """
    Show the history of an app's metrics over all hosts, with a value for each minute.

    The value of a counter is its increase, that of a histogram its 95th percentile in seconds.
    """
    from boathook.server.loading import load_apps
    from boathook.service.operating import app_metrics

    step_s = 60 * math.ceil(minutes / app_metrics.MAX_POINTS)
    load_apps(cli_context(ctx).settings())
    rows = run_with_database(ctx, lambda db: app_metrics.read_series(db, app, minutes=minutes, step_s=step_s))
    _METRICS.print_rows(rows, as_json=as_json)
