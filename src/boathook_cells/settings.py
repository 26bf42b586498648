"""The section [cells] of boathook.toml."""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from boathook.config import Settings
from boathook.config.packages import PackageTable
from boathook.config.types import BaseUrl, Table
from boathook.domain.errors import ConfigError
from boathook.domain.signing import STANDARD_SECRET_BYTES, KeyFormat, decode_key
from boathook_cells.directory import CellDirectory

EVENTS_PATH: Final = "/cells/events"
APPLICATIONS_PATH: Final = "/cells/applications"


class CellSettings(Table):
    """One cell, as the others reach it."""

    url: Annotated[BaseUrl, Field(min_length=1)]
    """Base URL of its gateways."""
    database: Annotated[str, Field(repr=False)] = ""
    """The URL of its PostgreSQL, for commands that read or move sources of several cells."""
    accepts_new: bool = False
    """Whether sources that are not assigned yet may be assigned to it."""


class CellsSettings(PackageTable):
    """Several installations, each on a PostgreSQL of its own, that share sources and applications."""

    own_paths = (EVENTS_PATH, APPLICATIONS_PATH)

    name: str
    secret: str = Field(repr=False)
    members: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")], CellSettings]

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if not self.name:
            if self.members:
                raise ValueError("name: is empty; name the cell that this host belongs to, one of members")
            return self
        if self.name not in self.members:
            raise ValueError(
                f"name: there is no section [cells.members.{self.name}]; add it, with the URL of this cell"
            )
        if not self.secret:
            raise ValueError('secret: is empty; write "env:NAME" or "file:PATH", the same in all cells')
        for key in ("url", "database"):
            values = [value for member in self.members.values() if (value := getattr(member, key).rstrip("/"))]
            if len(values) != len(set(values)):
                raise ValueError(f"members: two cells have the same {key}")
        if not any(member.accepts_new for member in self.members.values()):
            raise ValueError("members: no cell has accepts_new = true; set it for those that new sources may go to")
        return self

    @property
    def directory(self) -> CellDirectory:
        """Finds the cell of each source."""
        return CellDirectory(self.name, [name for name, member in self.members.items() if member.accepts_new])

    @property
    def others(self) -> dict[str, CellSettings]:
        """The cells but this one, by name."""
        return {name: member for name, member in self.members.items() if name != self.name}


TABLES: Final = {"cells": CellsSettings}
"""The class of each section."""


def find_cells(settings: Settings) -> CellsSettings | None:
    """Return the cells; None if this installation is not one of several."""
    cells = settings.table(CellsSettings)
    return cells if cells is not None and cells.name else None


def require_cells(settings: Settings) -> CellsSettings:
    """Return the cells. Raises ConfigError if this installation is not one of several."""
    cells = find_cells(settings)
    if cells is None:
        raise ConfigError("there are no cells: cells.name is not set; see docs/how-to/cells.md")
    return cells


def read_secret(settings: Settings) -> str:
    """Return the resolved secret of all cells. Raises as `Settings.resolve`, and ConfigError if it is unusable."""
    secret = settings.resolve(require_cells(settings).secret, "cells.secret")
    try:
        is_usable = len(decode_key(secret, KeyFormat.STANDARD)) in STANDARD_SECRET_BYTES
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConfigError('cells.secret: must be "whsec_" and 24 to 64 bytes in base64, the same in all cells')
    return secret


def check(settings: Settings) -> None:
    """Check what the keys refer to. Raises ConfigError."""
    if find_cells(settings) is not None:
        read_secret(settings)
