"""What people who operate a boathook may do."""

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What somebody may do; each may do what those before it may."""

    VIEWER = "viewer"
    """Look at everything but secrets."""
    OPERATOR = "operator"
    """Also replay, ignore, test, and manage what is sent to whom."""
    ADMIN = "admin"
    """Also purge, and manage keys, secrets of sources and other operators."""

    def covers(self, needed: "Role") -> bool:
        """Return whether who has this role may do what *needed* may."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}
