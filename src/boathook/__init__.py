"""Receive, handle and send webhooks on PostgreSQL.

An accepted webhook is never lost, and its handler's effects are committed exactly once.

The flow and its main names:

1. A sender's request arrives at a source, is verified, and is stored once as an `Event`.
2. A `Boathook` object defines the handlers. Each function under ``@hook.on(...)`` that matches gets one delivery.
3. A worker calls the function with the event and a `Transaction`. Writes in that transaction and the delivery's result
   are committed together or not at all.
4. The function returns None for success, or `Ignore`, `Retry`, `WaitFor` or `Dead`; an exception is a failed attempt.
   A `RetryPolicy` schedules the next attempt, ``retry_on=HTTP_DEFAULTS`` limits them to failures that may pass, and a
   `Breaker` pauses calls to a dependency that keeps failing. `WaitFor` waits until something else has come.
5. A delivery that fails permanently becomes a dead letter, to be inspected and replayed: ``boathook dead list``.

`verify` checks the signature of a request in any web framework, without a server or a database.

`BoathookError` is the base class of all errors that boathook raises. `ConfigError` names the setting to change, and
`LeaseLost` means that another worker now holds the delivery.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from boathook.domain.alerts import AlertReading
    from boathook.domain.errors import BoathookError, ConfigError, LeaseLost
    from boathook.domain.policy import Breaker, Dead, Ignore, Retry, RetryPolicy, WaitFor
    from boathook.handlers.api import Boathook
    from boathook.handlers.dependency_errors import HTTP_DEFAULTS
    from boathook.handlers.event import Event
    from boathook.handlers.transaction import SyncTransaction, Transaction
    from boathook.verification.library import verify

__all__ = [  # noqa: RUF022 in the order of `sorted`, as `dir` returns them
    "AlertReading",
    "Boathook",
    "BoathookError",
    "Breaker",
    "ConfigError",
    "Dead",
    "Event",
    "HTTP_DEFAULTS",
    "Ignore",
    "LeaseLost",
    "Retry",
    "RetryPolicy",
    "SyncTransaction",
    "Transaction",
    "WaitFor",
    "verify",
]

_HOMES: typing.Final = {
    "AlertReading": "domain.alerts",
    "Boathook": "handlers.api",
    "BoathookError": "domain.errors",
    "Breaker": "domain.policy",
    "ConfigError": "domain.errors",
    "Dead": "domain.policy",
    "HTTP_DEFAULTS": "handlers.dependency_errors",
    "Event": "handlers.event",
    "Ignore": "domain.policy",
    "LeaseLost": "domain.errors",
    "Retry": "domain.policy",
    "RetryPolicy": "domain.policy",
    "SyncTransaction": "handlers.transaction",
    "Transaction": "handlers.transaction",
    "WaitFor": "domain.policy",
    "verify": "verification.library",
}

# Every command and every child process imports this module, and most need few of these names or none. So each name is
# imported on first access. Type checkers do not see `__getattr__`, or they would accept any name.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return list(__all__)
