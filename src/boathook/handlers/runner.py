"""Runs one claim: the handler in a transaction, its outcome, and the settle that commits both.

A success is settled here, in one commit with the handler's effects. Any other outcome is rolled back here and returned
to the caller, which applies the retry policy.

Failures between the handler's return and the result of the commit:

- The settle finds that the fence is outdated: everything is rolled back, and another worker's attempt counts.
- PostgreSQL aborted the transaction (deadlock, serialization failure): the attempt runs again under the same lease.
- The connection was lost, so the result of the commit is unknown: the delivery is queried on another connection.
"""

import asyncio
import functools
import time
import traceback as tracebacks
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, assert_never

from boathook.db import replies
from boathook.db.database import Connection, Database, is_connection_closed, reset_statements, translate_errors
from boathook.db.deliveries import ClaimedDelivery, CommitOutcome, DeliveryStore, settle_arguments, transaction_mark
from boathook.db.sql_functions import (
    ANSWER,
    LEASE_LOST,
    RETRYABLE_STATES,
    SETTLE,
    WRONG_TRANSACTION,
    SqlCall,
    is_connection_lost,
    sqlstate,
)
from boathook.domain import ids, model
from boathook.domain.errors import (
    ApplicationNotFound,
    DatabaseError,
    DatabaseUnavailable,
    HandlerMisuse,
    HandlerTimeout,
    LeaseLost,
)
from boathook.domain.model import Claim
from boathook.domain.policy import (
    MAX_KEY,
    MAX_SECONDS,
    Complete,
    Completed,
    Dead,
    Failure,
    Ignore,
    Interruption,
    NotStarted,
    Result,
    Retry,
    Stopped,
    Success,
    Superseded,
    WaitFor,
    complete_ignored,
    is_key,
    leaves,
    matches,
)
from boathook.handlers.causes import as_cause
from boathook.handlers.dependency_errors import dependency_of, retry_after_s
from boathook.handlers.event import Event, ReplySlot, make_event
from boathook.handlers.handler import Handler
from boathook.handlers.sessions import AsyncSessions, Completion, SyncSessions
from boathook.handlers.threads import HandlerThread, ThreadPool
from boathook.handlers.transaction import SyncTransaction, Transaction
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

MAX_TRACEBACK: Final = 8_192
CONFLICT: Final = "CONFLICT"
"""Code of an attempt whose transaction PostgreSQL aborted in every run because of conflicts with others."""
_MAX_RUNS: Final = 4
_CODES: Final[Mapping[type[BaseException], str]] = {
    HandlerTimeout: "TIMEOUT",
    HandlerMisuse: "HANDLER_MISUSE",
    ApplicationNotFound: "APPLICATION_NOT_FOUND",
}
"""Codes of failures; that of any other exception is the name of its class."""
_OUR_FRAMES: Final = (__name__.rpartition(".")[0], "boathook.testing")
"""Modules whose frames precede those of the user's code."""


class Unsuccessful(Exception):
    """Carries `Retry`, `WaitFor` and `Dead` out of a transaction that must be rolled back."""

    def __init__(self, outcome: Retry | WaitFor | Dead) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class NoTransaction(Exception):
    """The database is unavailable, and the handler has not been called."""


class RunningAttempt:
    """One attempt in progress, as seen by its worker."""

    __slots__ = (
        "_deadline", "claimed_s", "error", "is_lost", "is_stopped", "overdue_at", "started_at", "thread", "work",
    )  # fmt: skip

    def __init__(self, work: ClaimedDelivery, started_at: datetime, claimed_s: float) -> None:
        self.work = work
        self.started_at = started_at
        self.claimed_s = claimed_s
        """When the delivery was claimed, by the monotonic clock."""
        self.overdue_at: float | None = None
        """Loop time of the handler's deadline, while the handler runs."""
        self.thread: HandlerThread | None = None
        """The thread of a sync handler, which may outlive the attempt."""
        self.error: BaseException | None = None
        """The handler's final exception, for its breaker."""
        self.is_lost = False
        self.is_stopped = False
        self._deadline: asyncio.Timeout | None = None

    def lose(self) -> None:
        """Abort the handler because another worker holds the lease."""
        self.is_lost = True
        self._break_off()

    def stop(self) -> None:
        """Abort the handler because the worker is stopping."""
        self.is_stopped = True
        self._break_off()

    def _break_off(self) -> None:
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def within(self, seconds: float, handling: Awaitable[object]) -> object:
        """Await the handler for at most *seconds*.

        Raises:
            HandlerTimeout: the time was up, or the handler was aborted.
        """
        loop = asyncio.get_running_loop()
        self.overdue_at = loop.time() + seconds
        deadline = self._deadline = asyncio.timeout_at(self.overdue_at)
        try:
            async with deadline:
                return await handling
        except TimeoutError:
            if not deadline.expired():
                raise
            raise HandlerTimeout(f"the handler ran longer than its {seconds:g} seconds") from None
        finally:
            self._deadline = None
            self.overdue_at = None


class RunSlot:
    """One of a worker's slots for attempts; keeps a connection from one attempt to the next.

    If another claim waits when an attempt commits, the same message begins the next transaction.

    Args:
        keeps_connection: whether there is a connection for each slot.
        has_waiting: returns whether a claim waits for a slot.
    """

    def __init__(
        self, database: Database, *, keeps_connection: bool = True, has_waiting: Callable[[], bool] = lambda: False
    ) -> None:
        self._database = database
        self._keeps = keeps_connection
        self._has_waiting = has_waiting
        self._stack: AsyncExitStack | None = None
        self._connection: Connection | None = None
        self._transactions = 0
        self._begun_s: float | None = None
        """When the transaction began that no attempt uses yet, by the monotonic clock; None without one."""
        self._ending = asyncio.Lock()

    @property
    def is_idle_in_transaction(self) -> bool:
        """Whether a transaction has begun that no attempt uses yet."""
        return self._begun_s is not None

    async def begin(self, claimed_s: float) -> tuple[Connection, str]:
        """Return a connection in a new transaction, and the transaction's mark.

        Args:
            claimed_s: when the attempt's delivery was claimed; an older transaction would have an older ``now()``.

        Raises:
            DatabaseUnavailable: the connection cannot be made, or was lost.
        """
        if self._ending.locked() or (self._begun_s is not None and self._begun_s < claimed_s):
            await self.end_transaction()
        connection = await self.connection()
        if self._begun_s is None:
            with translate_errors():
                await connection.execute(self._begin_statement())
        self._begun_s = None
        return connection, self._mark

    async def commit(self, connection: Connection, calls: Sequence[str]) -> None:
        """Execute the calls that settle a delivery, and commit."""
        # One message: PostgreSQL commits only if the settle did not raise. Session settings of the handler must not
        # leak to the next one.
        statements = [*calls, "commit", *reset_statements(connection)]
        begun_s = None
        if self._keeps and self._has_waiting():
            begun_s = time.monotonic()
            statements.append(self._begin_statement())
        await connection.execute("; ".join(statements))
        self._begun_s = begun_s

    async def end_transaction(self) -> None:
        """Roll back a transaction that no attempt uses; close the connection if that fails."""
        async with self._ending:
            if self._begun_s is not None and self._connection is not None:
                self._begun_s = None
                await _roll_back(self._connection, self)

    def _begin_statement(self) -> str:
        self._transactions += 1
        return f"begin; set local boathook.mark = '{self._mark}'"

    @property
    def _mark(self) -> str:
        return str(self._transactions)

    async def connection(self) -> Connection:
        """Return a connection; it is in a transaction only if `is_idle_in_transaction`."""
        if self._connection is not None and (
            is_connection_closed(self._connection)
            or self._connection.is_in_transaction() is not self.is_idle_in_transaction
        ):
            await self.release()
        if self._connection is None:
            self._stack = AsyncExitStack()
            self._connection = await self._stack.enter_async_context(self._database.acquire())
        return self._connection

    async def free(self) -> None:
        """Return the connection to the pool between two attempts if there are fewer connections than slots."""
        if not self._keeps:
            await self.release()

    async def release(self) -> None:
        """Return the connection to the pool."""
        if self._begun_s is not None:
            await self.end_transaction()
        stack, self._stack, self._connection = self._stack, None, None
        if stack is not None:
            await stack.aclose()


class Runs(Protocol):
    """What runs the handler of one claimed delivery."""

    async def run(self, handler: Handler, running: RunningAttempt, run_slot: RunSlot) -> Result:
        """See `Runner.run`."""
        ...


class Runner(Runs):
    """Runs the claims of one worker.

    Args:
        inline: The sources whose senders wait for a handler's reply, each with the statuses that are never sent.
    """

    def __init__(
        self, store: DeliveryStore, *, worker: str, timeout_s: float, inline: Mapping[str, frozenset[int]]
    ) -> None:
        self._store = store
        self._inline = inline
        self._worker = worker
        self._timeout_s = timeout_s
        self._threads = ThreadPool()

    async def run(self, handler: Handler, running: RunningAttempt, run_slot: RunSlot) -> Result:
        """Run one attempt to completion; raises only on cancellation of the worker."""
        work = running.work
        if work.event is None:
            return Dead("EVENT_MISSING", "the event of this delivery is not in the database")
        with as_cause(work.claim):
            return await self._run(handler, running, run_slot, work.event)

    async def _run(
        self, handler: Handler, running: RunningAttempt, run_slot: RunSlot, event_row: model.Event
    ) -> Result:
        work = running.work
        for _ in range(_MAX_RUNS):
            slot = self._slot(event_row.source)
            event = make_event(event_row, work.claim, self._store, slot)
            completion = Completion(transaction_mark(work.claim), functools.partial(self._conclude, running, slot))
            ending: Result | None
            try:
                await self._attempt(handler, event, running, run_slot, completion)
                failpoint("handler.after_commit")
                ending = Completed(completion.state or "succeeded")
            except Unsuccessful as unsuccessful:
                ending = unsuccessful.outcome
            except NoTransaction:
                ending = NotStarted()
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                # Any exception of the user's code is a failed attempt, unless this task itself is cancelled.
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                ending = await self._explain(error, handler, running, completion)
            if ending is not None:
                return ending
        return Interruption(code=CONFLICT, error="the transaction kept colliding with others")

    def _slot(self, source: str | None) -> ReplySlot | None:
        forbidden_statuses = None if source is None else self._inline.get(source)
        return None if forbidden_statuses is None else ReplySlot(forbidden_statuses)

    def _conclude(
        self, running: RunningAttempt, slot: ReplySlot | None, value: object, mark: str
    ) -> tuple[str, tuple[SqlCall, ...]]:
        """Turn the handler's return value into the calls that settle the delivery, or raise to roll back."""
        if running.is_lost:
            raise LeaseLost("another worker has taken this delivery over")
        failpoint("handler.after_effect")
        outcome = read_outcome(value)
        match outcome:
            case Success() | Ignore():
                pass
            case Retry() | WaitFor() | Dead():
                raise Unsuccessful(outcome)
            case _:
                assert_never(outcome)
        decision = Complete() if isinstance(outcome, Success) else complete_ignored(outcome.reason)
        claim = running.work.claim
        steps: tuple[SqlCall, ...] = (
            (SETTLE, settle_arguments(claim, decision, worker=self._worker, started_at=running.started_at, mark=mark)),
        )
        if slot is not None:
            steps += ((ANSWER, replies.reply_arguments(claim, slot.reply)),)
        return ("succeeded" if decision.ignored_because is None else "ignored"), steps

    async def _attempt(
        self, handler: Handler, event: Event, running: RunningAttempt, run_slot: RunSlot, completion: Completion
    ) -> None:
        failpoint("handler.before_effect")
        seconds = handler.timeout_s or self._timeout_s
        match handler.session:
            case None:
                await self._in_own_transaction(handler, event, running, run_slot, completion, seconds)
            case AsyncSessions() as sessions:
                await sessions.run(lambda session: running.within(seconds, invoke(handler, event, session)), completion)
            case SyncSessions() as sessions:
                thread = self._threads.run(
                    lambda: sessions.run(lambda session: invoke(handler, event, session), completion)
                )
                running.thread = thread
                await running.within(seconds, thread.future)
            case _:
                assert_never(handler.session)

    async def _in_own_transaction(
        self,
        handler: Handler,
        event: Event,
        running: RunningAttempt,
        run_slot: RunSlot,
        completion: Completion,
        seconds: float,
    ) -> None:
        try:
            connection, completion.mark = await run_slot.begin(running.claimed_s)
        except DatabaseUnavailable as error:
            await run_slot.release()
            raise NoTransaction from error
        completion.is_started = True
        is_committed = False
        try:
            transaction = Transaction(connection, running.work.claim)
            try:
                value = await running.within(seconds, self._handle(handler, event, transaction, running))
            finally:
                transaction._close()  # noqa: SLF001 only the runner may end it
            steps = completion.begin(value)
            if is_connection_closed(connection):
                raise DatabaseUnavailable("the connection was lost under the handler")
            if not connection.is_in_transaction():
                raise HandlerMisuse("the handler ended the transaction that boathook opened for it")
            await run_slot.commit(connection, [function.literal(arguments) for function, arguments in steps])
            is_committed = True
        finally:
            if not is_committed:
                completion.has_lost_connection = is_connection_closed(connection)
                await _roll_back(connection, run_slot)
            else:
                await run_slot.free()

    def _handle(
        self, handler: Handler, event: Event, transaction: Transaction, running: RunningAttempt
    ) -> Awaitable[object]:
        if handler.is_async:
            return invoke(handler, event, transaction)  # type: ignore[no-any-return]
        session = SyncTransaction(transaction, asyncio.get_running_loop())
        running.thread = self._threads.run(lambda: invoke(handler, event, session))
        return running.thread.future

    async def _explain(
        self, error: BaseException, handler: Handler, running: RunningAttempt, completion: Completion
    ) -> Result | None:
        """Return the result of an attempt that raised; None if it should run again."""
        state = sqlstate(error)
        if running.is_lost or isinstance(error, LeaseLost) or state == LEASE_LOST:
            return Superseded()
        if running.is_stopped and isinstance(error, HandlerTimeout):
            return Stopped()
        if state in RETRYABLE_STATES:
            return None
        if state == WRONG_TRANSACTION:
            error = HandlerMisuse(
                "the handler ended the transaction that boathook opened for it, so what it had done by then may be "
                "committed; it is not tried again, as that could do it twice"
            )
        elif completion.state is not None and not isinstance(error, HandlerMisuse):
            commit_outcome = await self._commit_outcome(running.work.claim, completion.state)
            if commit_outcome is not None:
                return commit_outcome
        if is_interrupted(error, completion):
            return Interruption(error=_sentence(error), traceback=format_traceback(error))
        running.error = error
        return make_failure(error, handler)

    async def _commit_outcome(self, claim: Claim, state: str) -> Result | None:
        """Query the result of a settle without an answer; None if it is known not to be committed."""
        while True:
            try:
                commit_outcome = await self._store.commit_outcome(claim)
            except DatabaseError as error:
                get_logger("worker").warning("fate_unknown", delivery=_name(claim), error=str(error))
                await asyncio.sleep(1)
                continue
            match commit_outcome:
                case CommitOutcome.SETTLED:
                    return Completed(state)
                case CommitOutcome.HELD:
                    return None
                case CommitOutcome.LOST:
                    return Superseded()


def is_cancelled() -> bool:
    """Return whether the current task itself is being cancelled, rather than one that the user's code awaited."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a sync handler in a test without an event loop
        return False
    return task is not None and task.cancelling() > 0


def invoke(handler: Handler, event: Event, session: object) -> Any:
    """Call the handler's function, with the session if it takes one."""
    return handler.function(event, session) if handler.takes_session else handler.function(event)


def read_outcome(value: object) -> Success | Ignore | Retry | WaitFor | Dead:
    """Return the outcome that a handler's return value stands for. Raises HandlerMisuse."""
    match value:
        case None:
            return Success()
        case Ignore(reason=str()) | Dead(code=str(), note=str(), dependency=None | str()):
            return value
        case Retry(after=None, code=str(), dependency=None | str()):
            return value
        case Retry(after=int() | float() as after, code=str(), dependency=None | str()) if abs(after) <= MAX_SECONDS:
            return value
        case WaitFor(key=key, until=datetime() as until, reason=str(), code=str(), on_timeout="dead" | "ignore") if (
            is_key(key) and until.tzinfo is not None
        ):
            return value
        case WaitFor():
            raise HandlerMisuse(
                f"write key as printable text of 1 to {MAX_KEY} characters, until as a datetime with a time zone, code"
                f' and reason as text, and on_timeout as "dead" or "ignore"; the handler returned {value!r}'
            )
        case Ignore() | Retry() | Dead():
            raise HandlerMisuse(
                f"write reason, code, note and dependency as text, and after in seconds, at most a century; the handler"
                f" returned {value!r}"
            )
        case _:
            raise HandlerMisuse(
                f"the handler returned {type(value).__name__}; return nothing for success, or Ignore, Retry, WaitFor or"
                " Dead"
            )


async def _roll_back(connection: Connection, run_slot: RunSlot) -> None:
    """Roll back; terminate the connection if that fails."""
    try:
        if connection.is_in_transaction():
            await connection.execute("; ".join(["rollback", *reset_statements(connection)]), timeout=5)
        await run_slot.free()
    except Exception:  # noqa: BLE001 after any failure the connection is useless
        if not is_connection_closed(connection):
            connection.terminate()
        await run_slot.release()


def is_interrupted(error: BaseException, completion: Completion) -> bool:
    """Return whether an attempt failed because the connection to PostgreSQL was lost or never made."""
    if isinstance(error, HandlerMisuse):
        return False
    is_without_session = isinstance(error, OSError) and not completion.is_started
    return completion.has_lost_connection or is_without_session or is_connection_lost(error)


def make_failure(error: BaseException, handler: Handler) -> Failure:
    """Return the failure of an attempt that raised *error*."""
    is_timeout = isinstance(error, HandlerTimeout)
    is_final, fault = _judge(error, handler)
    return Failure(
        code=next((code for kind, code in _CODES.items() if isinstance(error, kind)), type(error).__name__),
        error=_sentence(error) + fault,
        traceback=None if is_timeout else format_traceback(error),
        is_final=is_final,
        retry_after_s=retry_after_s(error),
        # A breaker counts the timeout of the whole attempt as one of its dependency.
        dependency=dependency_of(TimeoutError() if is_timeout else error, handler.breaker),
    )


def _judge(error: BaseException, handler: Handler) -> tuple[bool, str]:
    """Return whether an error is final, and a remark about a function of `retry_on` that raised.

    `final` comes first; `retry_on` is about what the handler raises, so not about the timeout of the attempt.
    """
    if isinstance(error, HandlerMisuse) or any(isinstance(part, handler.final) for part in (error, *leaves(error))):
        return True, ""
    if handler.retry_on is None or isinstance(error, HandlerTimeout):
        return False, ""
    try:
        return not matches(error, handler.retry_on), ""
    except Exception as fault:  # noqa: BLE001 - a fault in a user's function must not lose the delivery's retries
        return False, f" (retry_on raised {_sentence(fault)})"


def _sentence(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 - an exception with a broken __str__ must not end the worker
        text = "it cannot be shown, as its own __str__ raises"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_traceback(error: BaseException) -> str:
    """Return the traceback of *error* from the user's code on, without local values, in at most 8 KiB."""
    tail = error.__traceback__
    while tail is not None and _is_ours(tail) and tail.tb_next is not None:
        tail = tail.tb_next
    text = "".join(tracebacks.format_exception(type(error), error, tail, limit=-40, chain=True))
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    raw = text.encode("utf-8", "replace")
    if len(raw) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2 - 16
        raw = raw[:half] + b"\n[...]\n" + raw[-half:]
    return raw.decode("utf-8", "ignore")


def _is_ours(tail: TracebackType) -> bool:
    name = tail.tb_frame.f_globals.get("__name__", "")
    return name.startswith(_OUR_FRAMES) or name in {"asyncio.tasks", "asyncio.timeouts", "asyncio.futures"}


def _name(claim: Claim) -> str:
    return ids.show_delivery(claim.event_id, claim.ordinal)
