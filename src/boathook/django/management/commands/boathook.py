"""``manage.py boathook``: boathook's command line, with the database and the handlers of the project."""

import argparse
import os
from typing import Any

from django.core.management.base import BaseCommand

from boathook import config
from boathook.cli import main
from boathook.django.apps import database_url


class Command(BaseCommand):  # type: ignore[misc]  # Django carries no types
    """Runs a command of boathook."""

    help = "Run a command of boathook with this project's database and handlers: serve, dev, check, doctor, ..."
    requires_system_checks = ()  # `boathook serve` checks the same, and `boathook check` must work despite them

    def add_arguments(self, parser: Any) -> None:
        """Take everything after the first word as boathook's."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="The command with its options, such as: serve")

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """Run the command and exit with its code."""
        before = set(os.environ)
        config.read_env_file()
        settings = config.load()
        for name in set(os.environ) - before:  # each command reads .env itself, `boathook dev` after every change
            del os.environ[name]
        if not settings.database.url:
            os.environ["BOATHOOK_DATABASE_URL"] = database_url()
        if not settings.server.app:
            os.environ["BOATHOOK_SERVER_APP"] = "boathook.django.project:hook"
        main(arguments)
