"""boathook as an application of a Django project: its handlers, its database, its migrations and its system checks."""

import asyncio
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.apps import AppConfig
from django.core import checks
from django.db import connections
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from boathook import config
from boathook.config import Settings
from boathook.django import hook
from boathook.domain.errors import ConfigError
from boathook.service.database import migrate, with_url
from boathook.service.operating.doctor import (
    CheckStatus,
    Finding,
    check_settings,
    examine_handlers,
    examine_loaded,
    examine_settings,
)

_ALIAS: Final = "default"
_OPTIONS: Final = ("passfile", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs")
"""Keys of OPTIONS that have the same meaning in a URL; the others are for psycopg or Django."""


class BoathookConfig(AppConfig):  # type: ignore[misc]  # Django carries no types
    """boathook in INSTALLED_APPS."""

    name = "boathook.django"
    label = "boathook"

    def ready(self) -> None:
        """Register the handlers and the migration."""
        autodiscover_modules("hooks")
        post_migrate.connect(_migrate, sender=self)


def _migrate(using: str, **_: Any) -> None:
    """Bring boathook's schema up to date after ``manage.py migrate``, and in the database of tests."""
    if using == _ALIAS and is_postgresql():
        asyncio.run(migrate(config.load(None, {"database.url": database_url()}), ()))


def is_postgresql() -> bool:
    """Return whether the project's database is PostgreSQL."""
    return bool(connections[_ALIAS].vendor == "postgresql")


def database_url() -> str:
    """Return the URL of the project's database, which is that of the tests while they run."""
    options: dict[str, Any] = connections[_ALIAS].settings_dict
    user, password = (quote(str(options.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host, port = str(options.get("HOST") or ""), str(options.get("PORT") or "")
    query = {key: str(value) for key, value in (options.get("OPTIONS") or {}).items() if key in _OPTIONS}
    if host.startswith("/"):  # the folder of a Unix socket
        query["host"], host = host, ""
        query |= {"port": port} if port else {}
    elif port:
        host = f"{host or 'localhost'}:{port}"
    tail = f"?{urlencode(query, safe='/')}" if query else ""
    return f"postgresql://{login}{host}/{quote(str(options.get('NAME') or ''), safe='')}{tail}"


@checks.register("boathook")  # type: ignore[untyped-decorator]  # Django carries no types
def check_project(**_: Any) -> list[checks.CheckMessage]:
    """Return what keeps boathook from working in this project."""
    messages: list[checks.CheckMessage] = []
    if not is_postgresql():
        hint = 'Set its ENGINE to "django.db.backends.postgresql".'
        messages.append(
            checks.Error(f"boathook needs PostgreSQL in DATABASES[{_ALIAS!r}].", hint=hint, id="boathook.E001")
        )
    try:
        settings = config.load()
    except ConfigError as error:
        return [*messages, checks.Error(str(error), hint="Correct the setting.", id="boathook.E002")]
    if settings.file is None:
        hint = "Write one beside manage.py, with a table [sources.NAME] for each sender, and run manage.py there."
        messages.append(
            checks.Warning(f"There is no {config.FILE_NAME} in {Path.cwd()}.", hint=hint, id="boathook.W001")
        )
        return messages
    settings = with_url(settings, "postgresql://")  # the project's own database counts
    try:
        check_settings(settings)
    except ConfigError as error:
        return [*messages, checks.Error(str(error), hint="Correct the setting.", id="boathook.E002")]
    return [*messages, *map(_message, examine_settings(settings)), *_check_handlers(settings)]


def _check_handlers(settings: Settings) -> list[checks.CheckMessage]:
    routes = hook.routes("", timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults())
    sections = () if settings.apps.load else examine_loaded(settings, {hook.name: hook})
    return [_message(finding) for finding in (*sections, *examine_handlers(settings, routes))]


def _message(finding: Finding) -> checks.CheckMessage:
    if finding.verdict is CheckStatus.FAIL:
        return checks.Error(finding.found, hint=finding.fix, id="boathook.E003")
    return checks.Warning(finding.found, hint=finding.fix, id="boathook.W002")
