"""An endpoint's configuration in the form in which an executor uses it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from boathook.delivery.destination import Executor
from boathook.domain.policy import Failure, RetryPolicy

GONE: Final = "GONE"
"""Failure code after which the endpoint is disabled."""
CONTENT_GONE: Final = "CONTENT_GONE"
"""Failure code of an attempt for which nothing was sent, because the message's content was deleted."""
UNREADABLE: Final = "SECRET_UNREADABLE"
"""Failure code of an attempt for which a stored secret could not be used."""
UNAVAILABLE: Final = "DESTINATION_UNAVAILABLE"
"""Failure code of an attempt whose kind of destination this installation does not have or allow."""
CONTENT_DELETED: Final = Failure(code=CONTENT_GONE, error="the message's content was deleted", is_final=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEndpoint:
    """An endpoint that is ready to be sent to, or the reason why it is not."""

    revision: int
    url: str
    policy: RetryPolicy
    timeout_s: float
    executor: Executor[Any]
    """Makes the attempts at it."""
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Texts to redact from responses."""
    good_until: datetime | None = None
    fault: Failure | None = None

    def is_current(self, revision: int) -> bool:
        """Return whether it has at least this revision of the endpoint, and none of its secrets has expired."""
        if self.revision < revision:
            return False
        return self.good_until is None or datetime.now(UTC) < self.good_until
