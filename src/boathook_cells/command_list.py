"""The commands of the package, as the help lists them."""

from typing import Final

from boathook.cli.commands import CommandEntry

cells: Final = CommandEntry(
    "boathook_cells.commands:cells", "Several installations that share sources and applications among them."
)
