"""Adds the commands of optional packages and of apps to boathook's own."""

import contextlib
import copy
import functools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import typer

from boathook.cli.commands import COMMAND_ENTRIES, Root, complete_group, package_entries, parse_global_options
from boathook.cli.context import CliContext, server_url, warn_once
from boathook.config import Settings
from boathook.config.loader import is_configured
from boathook.domain.errors import ConfigError


def with_commands(app: typer.Typer, arguments: Sequence[str]) -> typer.Typer:
    """Return *app* with the commands of packages and apps, if *arguments* contain one of them or request help.

    Raises:
        ConfigError: the command may be an app's but the apps cannot be loaded, or it is that of a ready-made app that
            is not loaded.
    """
    config, word = parse_global_options(arguments)
    if word is not None and (whole := with_package_commands(app, word)) is not app:
        return whole
    whole = with_package_commands(app, None)
    try:
        if word is None and not is_configured(config):
            return whole  # without reading settings that load no apps
        return _extended(whole, CliContext(file=config), word)
    except ConfigError as error:
        if word is not None:
            raise
        warn_once(str(error))
        return whole


def with_package_commands(app: typer.Typer, word: str | None) -> typer.Typer:
    """Return *app* with the commands of optional packages, or with the one called *word*; itself if there are none."""
    entries = package_entries(word)
    if not entries:
        return app
    whole = copy.copy(app)
    whole.info = copy.copy(app.info)
    whole.info.cls = type("Root", (Root,), {"PACKAGE_ENTRIES": entries})
    return whole


def _extended(app: typer.Typer, opened: CliContext, word: str | None) -> typer.Typer:
    settings = opened.plain_settings()
    whole = copy.copy(app)
    whole.registered_groups = list(app.registered_groups)
    if settings.apps.load:
        _add(whole, settings)
    if word is not None and word not in {group.name for group in whole.registered_groups}:
        _refuse_unloaded(word, settings)
    return whole


def _add(whole: typer.Typer, settings: Settings) -> None:
    from boathook.server import bind, migrations_of, with_apps

    settings, loaded = with_apps(settings)
    bind(settings, loaded, server_url=functools.partial(_current_url, settings, migrations_of(loaded)))
    for hook in loaded:
        if hook.manifest.commands is not None and hook.name not in COMMAND_ENTRIES:
            whole.add_typer(complete_group(hook.manifest.commands), name=hook.name)


@contextlib.asynccontextmanager
async def _current_url(settings: Settings, folders: Sequence[tuple[str, Path]]) -> AsyncIterator[str]:
    """Open the database server and yield its URL. Raises ConfigError if tables of the apps are not current."""
    from boathook.service.database import require_current

    async with server_url(settings) as url:
        await require_current(url, folders)
        yield url


def _refuse_unloaded(word: str, settings: Settings) -> None:
    from boathook.server.installed_apps import READY_MADE, installed_apps

    is_installed = word in installed_apps()
    if not is_installed and word not in READY_MADE:
        return  # typer reports an unknown command
    if word in settings.apps.load:
        raise ConfigError(f"{word} is loaded, but has no commands")
    install = "" if is_installed else f"pip install boathook-{word}, and "
    line = f'add "{word}" to load' if settings.apps.load else f'add load = ["{word}"]'
    raise ConfigError(f"{word} is an app: {install}{line} under [apps] in boathook.toml")
