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

import importlib
import typing

if typing.TYPE_CHECKING:
    from boathook.domain.errors import BoathookError, ConfigError, LeaseLost
    from boathook.domain.policy import Breaker, Dead, Ignore, Retry, RetryPolicy
    from boathook.handlers.api import Boathook
    from boathook.handlers.event import Event
    from boathook.handlers.transaction import Transaction
    from boathook.verification.library import verify

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

_HOMES: typing.Final = {
    "Boathook": "handlers.api",
    "BoathookError": "domain.errors",
    "Breaker": "domain.policy",
    "ConfigError": "domain.errors",
    "Dead": "domain.policy",
    "Event": "handlers.event",
    "Ignore": "domain.policy",
    "LeaseLost": "domain.errors",
    "Retry": "domain.policy",
    "RetryPolicy": "domain.policy",
    "Transaction": "handlers.transaction",
    "verify": "verification.library",
}

# Every command and every child process passes through this module, and most need few of these names or none. So each
# is imported when it is first asked for; type checkers do not see how, lest they take any name for one of ours.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return list(__all__)
