"""Assigns sources and applications to cells. A cell is a complete installation on a PostgreSQL of its own."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from boathook.domain.homes import Assignment

APP: Final = "cells"
"""The name of the package's app, whose handlers pass messages on to other cells."""


class ApplicationAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The cell that an application has moved to, according to one cell: the highest revision is right."""

    application: str
    """Its public id."""
    home: str
    revision: int


def choose_cell(source: str, cells: Sequence[str]) -> str:
    """Return the cell of a source that is not assigned yet, by rendezvous hashing.

    Each cell gets an equal share of the sources, and one that is added takes over only its own share.
    """
    return max(cells, key=lambda cell: hashlib.sha256(f"{cell}\0{source}".encode()).digest())


class CellDirectory:
    """Finds the cell of each source: the one it is assigned to, or else one of those that accept new sources.

    Args:
        own: the name of this cell.
        accepting: the cells that accept new sources.
    """

    def __init__(self, own: str, accepting: Sequence[str]) -> None:
        self.own = own
        self._accepting = tuple(accepting)

    def find(self, source: str, assignments: Mapping[str, Assignment]) -> str:
        """Return the name of the cell that stores the events of *source*."""
        assigned = assignments.get(source)
        if assigned is not None:
            return assigned.home
        return choose_cell(source, self._accepting) if self._accepting else self.own
