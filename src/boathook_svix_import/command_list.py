"""The commands of the package, as the help lists them."""

from typing import Final

from boathook.cli.commands import CommandEntry

importing: Final = CommandEntry(
    "boathook_svix_import.commands:importing", "Import the configuration of another system.", title="Sending"
)
