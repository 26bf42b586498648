"""The spools of this host for events of other cells."""

from pathlib import Path
from typing import Final

from boathook.config import Settings
from boathook.service.elsewhere import NamedSpool

FOLDER: Final = "cells"
"""The folder with the spools, in `server.data_dir`."""
HELD: Final = "_held"
"""A reserved name in place of a cell's: its spool has the events that no cell accepts yet."""


def root_of(settings: Settings, cell: str) -> Path:
    """Return the folder of the spool for events of another cell."""
    return settings.server.data_dir / FOLDER / cell


def list_spools(settings: Settings) -> list[NamedSpool]:
    """Return the spools in the order of the cells' names, also those of cells that are not configured any more."""
    folder = settings.server.data_dir / FOLDER
    roots = sorted(folder.iterdir()) if folder.is_dir() else []
    return [NamedSpool(root.name, _title(root.name), root) for root in roots]


def _title(cell: str) -> str:
    return f"for the cell {cell}" if cell != HELD else "for sources whose cell accepts no events yet"
