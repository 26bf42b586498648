"""Receive, handle and send webhooks on PostgreSQL: what was accepted is never lost, and never done twice.

The flow, and the names you meet on it:

1. A sender's request arrives at a source, is verified, and becomes an `Event`, stored once.
2. A `Boathook` says who gets it: each function under ``@hook.on(...)`` is owed one delivery.
3. A worker calls the function with the event and a `Transaction`. What the function writes there is committed
   together with the delivery's end, or not at all.
4. The function returns nothing for success, or `Ignore`, `Retry` or `Dead`; an exception is a failed attempt.
   A `RetryPolicy` decides about the next attempt, a `Breaker` about a dependency that keeps failing.
5. What fails for good is a dead letter, to be looked at and replayed: ``boathook dead list``.

`verify` alone says, in any web framework and without a server or a database, whether a request is its sender's.

`BoathookError` is the base of every error raised on purpose; `ConfigError` says what to change in the set-up, and
`LeaseLost` that a delivery belongs to another worker by now.
"""

from boathook.domain.errors import BoathookError, ConfigError, LeaseLost
from boathook.domain.policy import Breaker, Dead, Ignore, Retry, RetryPolicy
from boathook.handlers.api import Boathook
from boathook.handlers.event import Event
from boathook.handlers.transaction import Transaction
from boathook.verification import verify

__all__ = [
    "Boathook",
    "BoathookError",
    "Breaker",
    "ConfigError",
    "Dead",
    "Event",
    "Ignore",
    "LeaseLost",
    "Retry",
    "RetryPolicy",
    "Transaction",
    "verify",
]
