"""Who runs an operation: what it may do, and whose rows it may touch."""

from collections.abc import Mapping
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec


class Caller(Protocol):
    """The caller of a unit of work; `access.authorization` has those with a role or a key."""

    @property
    def tenant(self) -> str | None:
        """The only organization whose rows it may touch; None: those of the whole deployment."""
        ...

    @property
    def application_id(self) -> UUID | None:
        """The only application whose rows it may touch; None: those of all its organization's."""
        ...

    def may(self, permission: Any, /) -> bool:
        """Return whether it has a `Permission`."""
        ...

    def frozen(self) -> Mapping[str, str]:
        """Return what a job keeps of it, to find out later whether it may still do this; see `db.tasks`."""
        ...


class TrustedCaller(msgspec.Struct, frozen=True):
    """The user of the command line, who has the database password, and boathook's own processes: may do everything."""

    tenant: str | None = None
    application_id: UUID | None = None

    def may(self, _permission: Any, /) -> bool:
        """Return True."""
        return True

    def frozen(self) -> Mapping[str, str]:
        """Return nothing: its permissions do not end."""
        return {}


class UnknownCaller(msgspec.Struct, frozen=True):
    """The caller, without permissions, of an interface that names no caller."""

    tenant: str | None = ""
    application_id: UUID | None = None

    def may(self, _permission: Any, /) -> bool:
        """Return False."""
        return False

    def frozen(self) -> Mapping[str, str]:
        """Return nothing, as it starts no job."""
        return {}


HOST: Final = TrustedCaller()
UNKNOWN_CALLER: Final = UnknownCaller()
