"""What other installations of boathook serve: the seam for a package that divides sources and applications among them.

Each source and each application has a home: the installation that stores its events. Without such a package, that is
always this one. In a gateway, the package's part forwards events to their home (`GatewayPart.elsewhere`); here is what
the other processes ask.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.db.database import Database
from boathook.domain.errors import ServedElsewhere
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent


class NamedSpool(msgspec.Struct, frozen=True):
    """A spool of this host whose events do not wait for its own PostgreSQL."""

    name: str
    title: str
    """Whom its events wait for, such as "for the cell c2"."""
    root: Path
    """Its folder."""


class Elsewhere(Protocol):
    """Knows which sources and applications other installations serve; one object in each process."""

    noun: str
    """What the settings call an installation, which is also the key of its name in JSON output."""

    def url_of(self, home: str) -> str:
        """Return the URL of an installation; empty if it is not configured."""
        ...

    def answer(self, error: ServedElsewhere) -> Mapping[str, Any]:
        """Return the body of the API's answer to a request that another installation must get."""
        ...

    async def find_application(self, organization: str, reference: str) -> str | None:
        """Return the other installation that has an application, given by id or uid; None if none is known."""
        ...

    def reject(self, router: Callable[[], Router]) -> Callable[[NewEvent], None]:
        """Return a function that raises ValueRejected for an event that is stored elsewhere.

        For processes without a gateway, which cannot forward it.

        Args:
            router: returns the routes last read.
        """
        ...

    async def select_own(self, database: Database, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Return those of some events that this installation has stored, and not another one. Raises DatabaseError."""
        ...


def elsewhere_of(settings: Settings) -> Elsewhere | None:
    """Return what knows the other installations; None if there are none."""
    for package in settings.packages:
        if package.elsewhere is not None:
            opened: Elsewhere | None = resolve(package.elsewhere)(settings)
            return opened
    return None


def noun_of_homes(settings: Settings) -> str:
    """Return what the settings call an installation."""
    elsewhere = elsewhere_of(settings)
    return "installation" if elsewhere is None else elsewhere.noun


def reject_elsewhere(settings: Settings, router: Callable[[], Router]) -> Callable[[NewEvent], None] | None:
    """Return a function that rejects events that are stored elsewhere; None if there are no other installations."""
    elsewhere = elsewhere_of(settings)
    return None if elsewhere is None else elsewhere.reject(router)
