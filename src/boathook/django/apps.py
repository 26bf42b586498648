"""The Django application: imports every app's ``hooks.py``, and migrates boathook's schema with the project's."""

import asyncio
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from boathook import config
from boathook.django.database import ALIAS, database_url, is_postgresql
from boathook.service import database


class BoathookConfig(AppConfig):  # type: ignore[misc]  # Django carries no types
    """boathook in INSTALLED_APPS."""

    name = "boathook.django"
    label = "boathook"

    def ready(self) -> None:
        """Register the handlers, the checks and the migration."""
        from boathook.django import checks  # noqa: F401 - it registers them

        autodiscover_modules("hooks")
        post_migrate.connect(_migrate, sender=self)


def _migrate(using: str, **_: Any) -> None:
    """Bring boathook's schema up to date after ``manage.py migrate``, and in the database of tests."""
    if using == ALIAS and is_postgresql():
        asyncio.run(database.migrate(config.load(None, {"database.url": database_url()}), ()))
