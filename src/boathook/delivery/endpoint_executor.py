"""Chooses the executor of each endpoint by the kind of its destination.

The kind is looked up when an endpoint is prepared, not for each attempt.
"""

from abc import abstractmethod
from collections.abc import Collection, Coroutine
from typing import Any, Final

import msgspec

from boathook.config import Settings
from boathook.config.destinations import DestinationKind, find_kind
from boathook.config.packages import resolve
from boathook.db.endpoint_deliveries import EndpointConfig
from boathook.delivery.destination import Executor
from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.delivery.endpoint_recorder import SenderTracer
from boathook.delivery.prepared_endpoint import UNAVAILABLE, UNREADABLE, PreparedEndpoint
from boathook.domain.errors import AdminError, InvalidValue
from boathook.domain.policy import Failure, Result, RetryPolicy


class ExecutorContext(msgspec.Struct, frozen=True):
    """What a sender gives to the executor of a kind that it opens."""

    kind: DestinationKind
    settings: Settings
    tracer: SenderTracer | None = None


class EndpointExecutor(Executor[EndpointAttempt]):
    """Makes attempts at the endpoints of one kind in one sender."""

    @abstractmethod
    def prepare(self, config: EndpointConfig, policy: RetryPolicy, timeout_s: float) -> PreparedEndpoint:
        """Return an endpoint in the form that `execute` uses, with this executor in it.

        Raises:
            ValueError: nothing can be sent to it; attempts fail with the reason.
        """
        ...


class _NotPrepared(Executor[EndpointAttempt]):
    """Fails the attempts at endpoints that nothing can be sent to."""

    async def execute(self, attempt: EndpointAttempt) -> Result:
        """Return why."""
        assert attempt.endpoint is not None
        assert attempt.endpoint.fault is not None
        attempt.took_s = 0.0
        return attempt.endpoint.fault


_NOT_PREPARED: Final = _NotPrepared()


class EndpointExecutors(Executor[EndpointAttempt]):
    """The executors of one sender, each opened for the first endpoint of its kind."""

    def __init__(self, settings: Settings, tracer: SenderTracer | None = None) -> None:
        self._settings = settings
        self._tracer = tracer
        self._policy = settings.retry_defaults().endpoints
        self._timeout_s = settings.outbound.timeout_s
        self._opened: dict[str, EndpointExecutor] = {}
        """By kind."""

    def prepare(self, config: EndpointConfig) -> PreparedEndpoint:
        """Prepare an endpoint for the executor of its kind."""
        policy, timeout_s = config.policy or self._policy, config.timeout_s or self._timeout_s
        reason: Exception
        try:
            if config.fault:
                raise ValueError(config.fault)
            return self._open(config.destination).prepare(config, policy, timeout_s)
        except (ValueError, KeyError) as error:
            code, reason = UNREADABLE, error
        except AdminError as error:  # the kind is not available, or has other fields than when they were stored
            code, reason = UNAVAILABLE, error
        return PreparedEndpoint(
            revision=config.revision,
            url=config.url,
            policy=policy,
            timeout_s=timeout_s,
            executor=_NOT_PREPARED,
            fault=Failure(code=code, error=f"nothing was sent: {reason}"),
        )

    def _open(self, name: str) -> EndpointExecutor:
        """Return the executor of a kind. Raises InvalidValue if the kind is not installed or not allowed."""
        executor = self._opened.get(name)
        if executor is None:
            kind = find_kind(name) if name in self._settings.outbound.destinations else None
            if kind is None:
                raise InvalidValue(f"outbound.destinations does not have the kind {name!r}", "destination", "kind")
            executor = self._opened[name] = resolve(kind.executor)(ExecutorContext(kind, self._settings, self._tracer))
        return executor

    def execute(self, attempt: EndpointAttempt) -> Coroutine[Any, Any, Result]:
        """Make one attempt by the executor of its endpoint."""
        assert attempt.endpoint is not None
        return attempt.endpoint.executor.execute(attempt)

    def cancel(self, attempt: EndpointAttempt) -> None:
        """See `Executor.cancel`."""
        assert attempt.endpoint is not None
        attempt.endpoint.executor.cancel(attempt)

    def lose(self, attempt: EndpointAttempt) -> None:
        """See `Executor.lose`."""
        assert attempt.endpoint is not None
        attempt.endpoint.executor.lose(attempt)

    def check(self, running: Collection[EndpointAttempt]) -> str | None:
        """See `Executor.check`."""
        for executor in self._opened.values():
            own = [attempt for attempt in running if attempt.endpoint and attempt.endpoint.executor is executor]
            reason = executor.check(own)
            if reason is not None:
                return reason
        return None

    async def stop(self) -> None:
        """Stop all executors."""
        for executor in self._opened.values():
            await executor.stop()
