"""What a kind of destination brings to the dispatcher: its attempts, executor, queues and recorder."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

from boathook.db.deliveries import Lease
from boathook.domain.policy import AttemptState, Decision, Outcome, Result, RetryPolicy


class Attempt(ABC):
    """One claimed delivery, from its claim until its result is recorded."""

    __slots__ = (
        "decision", "is_stopped", "lease", "lease_until", "outcome", "started_at", "task", "took_s",
    )  # fmt: skip

    SUCCEEDED_EVENT: ClassVar[str]
    """Event name and level of a success in the log."""
    SUCCEEDED_LEVEL: ClassVar[int]
    FAILED_EVENT: ClassVar[str]

    is_single: bool
    """Whether the delivery gets no further attempt."""
    is_blocking: bool
    """Whether another delivery cannot be claimed before this attempt is recorded."""

    def __init__(self, lease: Lease, lease_until: float) -> None:
        self.lease = lease
        self.lease_until = lease_until
        """By this process's monotonic clock."""
        self.started_at: datetime
        """By PostgreSQL's clock."""
        self.took_s: float | None = None
        """Duration of the attempt, if the executor measured it; otherwise the dispatcher does."""
        self.outcome: Outcome
        self.decision: Decision
        self.task: asyncio.Task[None] | None = None
        self.is_stopped = False

    @property
    @abstractmethod
    def state(self) -> AttemptState:
        """The state of the delivery, for the retry decision."""

    @property
    @abstractmethod
    def policy(self) -> RetryPolicy:
        """The retry policy of the recipient."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The recipient's label in metrics."""

    @property
    @abstractmethod
    def recipient(self) -> str:
        """The recipient of the delivery."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the log fields of the attempt."""

    @abstractmethod
    def count(self, outcome: str) -> None:
        """Count the attempt in the metrics."""

    def cancel(self) -> None:
        """Cancel the attempt's task; its delivery is released."""
        self.is_stopped = True
        if self.task is not None:
            self.task.cancel()


A = TypeVar("A", bound=Attempt)
A_contra = TypeVar("A_contra", bound=Attempt, contravariant=True)


class Executor(Protocol[A_contra]):
    """Makes attempts at one kind of destination. A subclass needs only `execute`."""

    is_fenced: ClassVar[bool] = False
    """Whether an attempt without a lease has no effects, because its effects are committed together with the result.
    Other attempts are not started after their lease has expired."""

    @abstractmethod
    async def execute(self, attempt: A_contra) -> Result:
        """Make one attempt and return its result; an exception counts as a failure.

        The dispatcher records `Success` and failures. `Completed` means that the result is already committed.
        """
        ...

    def cancel(self, attempt: A_contra) -> None:
        """Cancel an attempt because the process is shutting down."""
        attempt.cancel()

    def lose(self, attempt: A_contra) -> None:  # noqa: ARG002
        """Handle the loss of a running attempt's lease to another process; the result will not be recorded."""
        return

    def check(self, running: Collection[A_contra]) -> str | None:  # noqa: ARG002
        """Check for attempts past their timeout; return why the process must end, or None."""
        return None

    async def run(self) -> None:
        """Run the executor's background work until cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Release the executor's resources after the last attempt."""
        return


class Queues(Protocol[A]):
    """The recipients of one kind, with their waiting claims and running attempts."""

    async def discover(self, wake: Callable[[], None]) -> float:
        """Find recipients with due deliveries and call *wake* if there are any; return seconds until the next query."""
        ...

    def include(self, recipients: Sequence[str], wake: Callable[[], None]) -> list[str]:
        """Include the recipients that belong to this process in the next claim, and call *wake* if there are any.

        Returns those that only `look_up` or `discover` can include.
        """
        ...

    async def look_up(self, recipients: Sequence[str], wake: Callable[[], None]) -> bool:
        """Include those of these recipients that have due deliveries in the next claim; return whether all have."""
        ...

    def surplus(self) -> list[str]:
        """Return the recipients with due deliveries that this process has no room for, and others may have."""
        ...

    async def claim(self) -> tuple[list[A], float]:
        """Claim once; return the claims, and the seconds until more may be due unless `resume` is called earlier."""
        ...

    def resume(self, attempt: A) -> None:
        """Include the attempt's recipient in the next claim."""
        ...

    def take(self) -> list[A]:
        """Remove and return the claims to start now, and count them as running."""
        ...

    def finish(self, attempt: A, result: Result) -> None:
        """Count an attempt as no longer running."""
        ...

    def release(self) -> list[A]:
        """Remove and return the claims that cannot start soon, so that they can be released."""
        ...

    def drop(self, lost: set[A]) -> None:
        """Drop waiting claims whose lease is lost."""
        ...

    def empty(self) -> list[A]:
        """Remove and return all waiting claims."""
        ...

    def report(self) -> None:
        """Set the gauges."""
        ...


class Recorder(Protocol[A_contra]):
    """Writes the results of attempts whose `outcome` and `decision` are set."""

    async def record(self, attempts: Sequence[A_contra]) -> list[bool]:
        """Write results in one transaction; return for each whether its lease was still held.

        Raises:
            DatabaseError: nothing was written.
        """
        ...
