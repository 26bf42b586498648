"""Simulated PostgreSQL server on the fake database, with its connections, outages and errors.

A request travels, is executed, commits and is answered; between any two of these the server can go away or fall silent,
the connection can be lost, and the statement can be killed. A statement may be slow: then it works on a snapshot that
grows old, and holds its locks for a while before it commits. The caller sees one and the same error whatever was lost.
"""

import asyncio
import contextvars
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from boathook.db import deliveries, server_monitor
from boathook.db.database import NO_SCANS
from tests.simulation.lease_statements import settle
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.patching import BEGINNING
from tests.simulation.sometimes import sometimes
from tests.simulation.statements import BY_TEXT, Record
from tests.simulation.tables import Blocked, Tables, Transaction

if TYPE_CHECKING:
    from tests.simulation.driver import Connection

_MARK: Final = re.compile(r"begin; set local boathook\.mark = '([^']*)'")
_NEXT: Final = re.compile(r"(; begin; set local boathook\.mark = '([^']*)')?$")
"""Matches the statement that begins the next transaction in the message that ends one."""
_LITERAL: Final = re.compile(r"E'((?:[^'\\]|''|\\\\)*)'|(null)")
SETTLE: Final = "select boathook.settle("
COMMIT: Final = "; commit; reset all"
_BEGIN: Final = frozenset({"begin"})
END: Final = frozenset({"commit", "rollback", "rollback; reset all"})
_FREE_LOCK_S: Final = 0.05


@dataclass(slots=True)
class Rates:
    """Probabilities of each fault, per request."""

    lost_before: float = 0.0
    """The connection is lost before the server has the request."""
    lost_after: float = 0.0
    """It is lost after the commit, before the answer."""
    lost_commit: float = 0.0
    """It is lost at a commit, and it is unknown whether that happened."""
    killed: float = 0.0
    """An administrator or a timeout kills the statement."""
    sacrificed: float = 0.0
    """A transaction of many statements is given up for others, as after a deadlock."""
    slow: float = 0.0
    """The statement works on an ageing snapshot, and holds its locks for a while."""
    slow_s: float = 0.5
    late_execution: float = 0.5
    """Share of the requests abandoned by their caller that a silent server still executes."""


def gone() -> asyncpg.PostgresError:
    return asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")


class Server:
    """The server process and its sessions."""

    def __init__(self, loop: VirtualLoop, rates: Rates) -> None:
        self.loop = loop
        loop.server = self  # type: ignore[attr-defined]
        self.rates = rates
        self.tables = Tables(self.clock)
        self.tables.notify = self._notify
        self.clock_ahead = timedelta()
        self.is_up = True
        self.is_silent = False
        self.is_closing = False
        """Set at the very end of a run, when processes only unwind."""
        self.sessions: dict[int, Connection] = {}
        self.session_locks: dict[str, Connection] = {}
        self.silenced: deque[Callable[[], None]] = deque()
        self.process = Process("server")
        self._number = 0
        self._dialling: list[asyncio.Future[None]] = []

    def clock(self) -> datetime:
        """Return the server's wall clock."""
        return BEGINNING + timedelta(seconds=round(self.loop.now, 6)) + self.clock_ahead

    def trip(self) -> float:
        """Return how long a message takes."""
        return 0.0001 + self.loop.rng.random() * 0.002

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """Do something in the server after a while."""
        self.loop.call_at(self.loop.now + delay, do, context=self.process.context)

    # Faults

    def go_down(self) -> None:
        """Crash: everything uncommitted is lost, and connections are refused."""
        self.is_up = False
        self.is_silent = False
        self.silenced.clear()
        for session in list(self.sessions.values()):
            session.lose()
        waiting, self._dialling = self._dialling, []
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionRefusedError("the server went away"))

    def come_up(self) -> None:
        """Let connections in again."""
        self.is_up = True

    def fall_silent(self) -> None:
        """Stop answering, like a process that was frozen."""
        self.is_silent = True
        for session in self.sessions.values():
            if session.request is not None:
                session.request.worry()

    def wake(self) -> None:
        """Continue where it stopped."""
        self.is_silent = False
        todo, self.silenced = self.silenced, deque()
        for do in todo:
            self.later(self.trip(), do)
        waiting, self._dialling = self._dialling, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def heal(self) -> None:
        """End every fault."""
        self.rates = Rates()
        self.wake()
        self.come_up()
        self.clock_ahead = max(self.clock_ahead, timedelta())

    # Sessions

    async def connect(
        self, timeout: float | None, command_timeout: float | None, server_settings: Mapping[str, str]
    ) -> "Connection":
        """Let a client in."""
        async with asyncio.timeout(timeout):
            await asyncio.sleep(self.trip())
            if self.is_closing or not self.is_up:
                raise ConnectionRefusedError("the server is down")
            if self.is_silent:
                future: asyncio.Future[None] = self.loop.create_future()
                self._dialling.append(future)
                await future
        statement_timeout = float(server_settings.get("statement_timeout", 0)) / 1000 or 3600.0
        idle_timeout = float(server_settings.get("idle_in_transaction_session_timeout", 0)) / 1000 or None
        self._number += 1
        from tests.simulation.driver import Connection

        connection = Connection(self, self._number, command_timeout, statement_timeout, idle_timeout)
        self.sessions[self._number] = connection
        return connection

    def client_died(self, process: Process, within_s: float) -> None:
        """Notice after a while that a client is no more."""
        for session in [one for one in self.sessions.values() if one.client is process]:
            self.later(self.loop.rng.random() * within_s, session.lose)

    def _notify(self, channel: str, payload: str) -> None:
        for session in list(self.sessions.values()):
            for heard in session.listeners.get(channel, ()):
                self.loop.call_later(self.trip(), heard, session, 0, channel, payload, context=session.context)


class Request:
    """One message from a client on its way through the server."""

    def __init__(self, connection: "Connection", sql: str, args: tuple[Any, ...], timeout: float | None) -> None:
        self.connection = connection
        self.server = connection.server
        self.sql = sql
        self.args = args
        self.answer: asyncio.Future[list[Record]] = self.server.loop.create_future()
        self.sent_at = self.server.loop.now
        self.timeout = timeout if timeout is not None else connection.command_timeout
        self.is_over = False
        self.is_given_up = False
        self._is_worried = False
        self.context = contextvars.copy_context()

    def worry(self) -> None:
        """Let the client's timeout run, which is of no interest while answers come at once."""
        if self._is_worried or self.timeout is None:
            return
        self._is_worried = True
        self.server.loop.call_at(
            max(self.server.loop.now, self.sent_at + self.timeout), self._time_out, context=self.context
        )

    def _time_out(self) -> None:
        if not self.is_over and not self.answer.done():
            sometimes("a caller gave up on a silent server")
            self.is_given_up = True
            self.answer.set_exception(TimeoutError())

    def arrive(self) -> None:
        """Reach the server."""
        server, rates, rng = self.server, self.server.rates, self.server.loop.rng
        if self.connection.is_lost:
            return
        if server.is_silent:
            self.worry()
            server.silenced.append(self.arrive)
            return
        if self.is_given_up and rng.random() >= rates.late_execution:
            self.connection.lose()
            return
        if rates.lost_before and rng.random() < rates.lost_before:
            self.connection.lose()
            return
        if rates.killed and rng.random() < rates.killed:
            self.fail(asyncpg.QueryCanceledError("canceling statement due to user request"))
            return
        if (
            rates.sacrificed
            and self.connection.transaction_ is not None
            and self.sql not in END
            and rng.random() < rates.sacrificed
        ):
            sometimes("a transaction was sacrificed")
            self.fail(asyncpg.DeadlockDetectedError("deadlock detected"))
            return
        if rates.slow and rng.random() < rates.slow:
            self.worry()
            snapshot = server.tables.snapshot()
            server.later(rng.random() * rates.slow_s, lambda: self.execute(snapshot, is_slow=True))
        else:
            self.execute(None)

    def execute(self, snapshot: Any, *, is_slow: bool = False) -> None:
        """Execute the request, or wait for the transaction that blocks it."""
        connection, server = self.connection, self.server
        if connection.is_lost:
            return
        if server.is_silent:
            self.worry()
            server.silenced.append(lambda: self.execute(snapshot, is_slow=is_slow))
            return
        is_own = connection.transaction_ is None and _MARK.match(self.sql) is None and self.sql not in _BEGIN
        transaction = connection.transaction_ or Transaction(server.tables, connection)
        writes, effects, audit = dict(transaction.writes), len(transaction.effects), len(transaction.audit)
        try:
            if transaction.is_failed and self.sql not in END:
                raise asyncpg.InFailedSQLTransactionError("current transaction is aborted")
            transaction.see(snapshot)
            rows, ends = _execute(transaction, connection, self.sql, self.args)
        except Blocked as blocked:
            transaction.writes, transaction.effects, transaction.audit = (
                writes,
                transaction.effects[:effects],
                transaction.audit[:audit],
            )
            self._wait(transaction, blocked.holder, is_own=is_own)
            return
        except asyncpg.PostgresError as error:
            transaction.writes, transaction.effects, transaction.audit = (
                writes,
                transaction.effects[:effects],
                transaction.audit[:audit],
            )
            self._refuse(transaction, error, is_own=is_own)
            return
        finally:
            transaction.waits_for = None
        self._finish(transaction, rows, "commit" if is_own else ends, is_slow=is_slow)

    def _refuse(self, transaction: Transaction, error: asyncpg.PostgresError, *, is_own: bool) -> None:
        if is_own:
            transaction.roll_back()
        else:
            transaction.is_failed = True
        self.reply(error)

    def _wait(self, transaction: Transaction, holder: Transaction, *, is_own: bool) -> None:
        sometimes("a statement waited for a lock")
        transaction.waits_for = holder
        other: Transaction | None = holder
        while other is not None:
            if other is transaction:
                sometimes("a deadlock was found")
                transaction.waits_for = None
                self._refuse(transaction, asyncpg.DeadlockDetectedError("deadlock detected"), is_own=is_own)
                return
            other = other.waits_for
        # A statement of its own begins anew, in a transaction that holds no locks that block others.
        if is_own:
            transaction.roll_back()
        self.worry()
        is_waiting = [True]
        deadline = max(0.0, self.sent_at + self.connection.statement_timeout - self.server.loop.now)

        def go_on() -> None:
            if is_waiting:
                is_waiting.clear()
                self.server.later(0.0, lambda: self.execute(None))

        def give_up() -> None:
            if is_waiting and not self.connection.is_lost:
                is_waiting.clear()
                transaction.waits_for = None
                sometimes("a statement waited too long for a lock")
                self._refuse(
                    transaction,
                    asyncpg.QueryCanceledError("canceling statement due to statement timeout"),
                    is_own=is_own,
                )

        holder.on_end.append(go_on)
        self.server.later(deadline, give_up)

    def _finish(self, transaction: Transaction, rows: list[Record], ends: str | None, *, is_slow: bool) -> None:
        if ends is None:
            self.connection.transaction_ = transaction
            self.reply(rows)
            return
        self.connection.transaction_ = transaction
        if is_slow:
            self.server.later(
                self.server.loop.rng.random() * self.server.rates.slow_s, lambda: self._end(transaction, rows, ends)
            )
        else:
            self._end(transaction, rows, ends)

    def _end(self, transaction: Transaction, rows: list[Record], ends: str) -> None:
        server, rates, rng = self.server, self.server.rates, self.server.loop.rng
        if transaction.is_over:
            return
        if server.is_silent:
            self.worry()
            server.silenced.append(lambda: self._end(transaction, rows, ends))
            return
        is_change = ends == "commit" and bool(transaction.writes or transaction.effects)
        if is_change and rates.lost_commit and rng.random() < rates.lost_commit:
            sometimes("a connection was lost before a commit", if_=bool(transaction.effects))
            self.connection.lose()
            return
        self.connection.transaction_ = None
        if ends == "rollback" or transaction.is_failed:
            transaction.roll_back()
        else:
            transaction.commit()
            if (following := _NEXT.search(self.sql)) is not None and following.group(2) is not None:
                self.connection.transaction_ = Transaction(server.tables, self.connection)
                self.connection.transaction_.mark = following.group(2)
        if rates.lost_after and rng.random() < rates.lost_after:
            sometimes("a connection was lost after a commit", if_=is_change)
            self.connection.lose()
            return
        self.reply(rows)

    def fail(self, error: asyncpg.PostgresError) -> None:
        """Answer with an error, which fails the transaction too."""
        if self.connection.transaction_ is not None:
            self.connection.transaction_.is_failed = True
        self.reply(error)

    def reply(self, answer: list[Record] | asyncpg.PostgresError) -> None:
        """Send the answer on its way."""
        if self.is_over:
            return
        self.is_over = True
        self.connection.is_idle_since = self.server.loop.now
        self.connection.watch_idleness()
        self.server.loop.call_later(self.server.trip(), self.connection.hear, self, answer, context=self.context)


def _execute(
    transaction: Transaction, connection: "Connection", sql: str, args: tuple[Any, ...]
) -> tuple[list[Record], str | None]:
    """Run one message; returns its rows, and how it ends the transaction."""
    if (known := BY_TEXT.get(sql)) is not None:
        return known[1](transaction, *args), None
    if marked := _MARK.match(sql):
        transaction.mark = marked.group(1)
        return [], None
    if sql.startswith(SETTLE):
        _settle(transaction, sql)
        return [], "commit" if _NEXT.sub("", sql).endswith(COMMIT) else None
    match sql:
        case "begin":
            return [], None
        case "commit":
            return [
                Record(tag="ROLLBACK" if transaction.is_failed else "COMMIT")
            ], "rollback" if transaction.is_failed else "commit"
        case "rollback" | "rollback; reset all":
            return [], "rollback"
        case _ if sql == NO_SCANS:
            return [], None
        case "select 1":
            return [Record(one=1)], None
        case _ if sql == server_monitor.SQL["read_safety"]:
            return [
                Record(
                    fsync="on",
                    full_page_writes="on",
                    synchronous_commit="on",
                    synchronous_standby_names="",
                    stalled=0,
                    is_standby=False,
                    is_read_only=False,
                    role="boathook",
                )
            ], None
        case _ if sql == deliveries.SQL["elect_keeper"]:
            holder = connection.server.session_locks.setdefault("keeper", connection)
            sometimes("a second keeper stood for election", if_=holder is not connection)
            return [Record(locked=holder is connection)], None
    if "from pg_settings" in sql:
        return [], None
    raise AssertionError(f"the fake store does not know this statement:\n{sql}")


def _settle(transaction: Transaction, sql: str) -> None:
    call = _NEXT.sub("", sql)[len(SETTLE) :].removesuffix(COMMIT)
    found = [None if null else text.replace("''", "'").replace("\\\\", "\\") for text, null in _LITERAL.findall(call)]
    event_id, ordinal, fence, state, note, _worker, _started, mark = found
    assert event_id is not None
    assert ordinal is not None
    assert fence is not None
    assert state is not None
    settle(transaction, UUID(event_id), int(ordinal), int(fence), state, note, mark)
