"""The commands of the package, as the help lists them."""

from typing import Final

from boathook.cli.commands import CommandEntry

buffer: Final = CommandEntry("boathook_rabbitmq.commands:buffer", "Events with brokers that wait for PostgreSQL.")
