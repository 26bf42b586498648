"""Django's system checks of boathook: the database, boathook.toml, and the sources of handlers."""

from pathlib import Path
from typing import Any

from django.core import checks

from boathook import config
from boathook.config import Settings
from boathook.django import hook
from boathook.django.database import ALIAS, is_postgresql
from boathook.domain.errors import ConfigError
from boathook.service.doctor import CheckStatus, Finding, examine_handlers


@checks.register("boathook")  # type: ignore[untyped-decorator]  # Django carries no types
def check_project(**_: Any) -> list[checks.CheckMessage]:
    """Return what keeps boathook from working in this project."""
    found: list[checks.CheckMessage] = []
    if not is_postgresql():
        hint = 'Set its ENGINE to "django.db.backends.postgresql".'
        found.append(checks.Error(f"boathook needs PostgreSQL in DATABASES[{ALIAS!r}].", hint=hint, id="boathook.E001"))
    try:
        settings = config.load()
    except ConfigError as error:
        return [*found, checks.Error(str(error), hint="Correct the setting.", id="boathook.E002")]
    if settings.file is None:
        hint = "Write one beside manage.py, with a table [sources.NAME] for each sender, and run manage.py there."
        found.append(checks.Warning(f"There is no {config.FILE_NAME} in {Path.cwd()}.", hint=hint, id="boathook.W001"))
        return found
    return found + _check_handlers(settings)


def _check_handlers(settings: Settings) -> list[checks.CheckMessage]:
    routes = hook.routes("", timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults())
    return [_message(finding) for finding in examine_handlers(settings, routes)]


def _message(finding: Finding) -> checks.CheckMessage:
    if finding.verdict is CheckStatus.FAIL:
        return checks.Error(finding.found, hint=finding.fix, id="boathook.E003")
    return checks.Warning(finding.found, hint=finding.fix, id="boathook.W002")
