"""The transaction passed to a handler: its effects and the end of its delivery are committed together."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from boathook.db.database import Connection, Record
from boathook.db.sql_functions import NEWER, Arguments, SqlFunction
from boathook.domain.due import DueRecipient
from boathook.domain.errors import HandlerMisuse
from boathook.domain.model import Claim

Stamp = int | float | Decimal | datetime | str
T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?")
_BEYOND_MICROSECONDS: Final = re.compile(r"(?<=\d)[.,]\d{6}(\d+)")


def to_number(stamp: Stamp) -> Decimal:
    """Return a stamp as a number with the same order; times become seconds since 1970.

    Raises:
        ValueError: *stamp* is not a number, a datetime with a time zone, or a string of either.
    """
    if isinstance(stamp, str):
        return _read_stamp(stamp)
    if isinstance(stamp, datetime):
        return _seconds_since_1970(stamp)
    if isinstance(stamp, bool) or not isinstance(stamp, int | float | Decimal):
        raise ValueError(f"stamp must be a number, datetime or ISO 8601 string, not {type(stamp).__name__}")  # noqa: TRY004 one error for all wrong stamps
    number = Decimal(str(stamp)) if isinstance(stamp, float) else Decimal(stamp)
    if not number.is_finite():
        raise ValueError(f"the stamp {stamp} cannot be ordered")
    return number


def _seconds_since_1970(time: datetime) -> Decimal:
    if time.tzinfo is None:
        raise ValueError(f"the stamp {time} has no time zone, so it cannot be ordered")
    since = time - _EPOCH
    return Decimal((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) / 1_000_000


def _read_stamp(text: str) -> Decimal:
    text = text.strip()
    try:
        if _NUMBER.fullmatch(text):
            return Decimal(text)
        time = datetime.fromisoformat(text)
    except (ValueError, InvalidOperation):
        raise ValueError(f"the stamp {text!r} is neither a number nor a time such as 2026-01-31T12:00:00Z") from None
    # A `datetime` drops what is beyond microseconds, so that two stamps in nanoseconds would look equal.
    beyond = _BEYOND_MICROSECONDS.search(text)
    return _seconds_since_1970(time) + Decimal(f"0.000000{beyond[1]}" if beyond else 0)


def newer_arguments(claim: Claim, kind: str, key: str, stamp: Stamp) -> Arguments:
    """Return the arguments of `NEWER` for the handler of *claim*."""
    return (claim.recipient, kind, str(key), f"{to_number(stamp):f}", str(claim.event_id))


class Transaction:
    """boathook's own transaction for one attempt, or for a block of ``hook.transaction()``, on asyncpg.

    Parameters are written ``$1``, ``$2`` as in asyncpg. Do not commit or roll back yourself. boathook commits when the
    handler returns, together with the end of the delivery, or when the block ends. It rolls back on an exception.
    """

    __slots__ = ("_claim", "_connection", "_savepoints", "due")

    def __init__(
        self, connection: Connection, claim: Claim | None = None, due: set[DueRecipient] | None = None
    ) -> None:
        self._savepoints = 0
        self._connection: Connection | None = connection
        self._claim = claim
        self.due = due
        """Gets the recipients of what is published in it, who are notified after the commit; a handler's has None."""

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise HandlerMisuse("this transaction has ended with its attempt; await everything before returning")
        return self._connection

    def _close(self) -> None:
        self._connection = None

    async def execute(self, sql: str, *args: Any) -> str:
        """Run one statement and return its command tag, such as ``UPDATE 1``."""
        tag: str = await self._open.execute(sql, *args)
        return tag

    async def executemany(self, sql: str, rows: Any) -> None:
        """Run one statement for each row of arguments."""
        await self._open.executemany(sql, rows)

    async def fetch(self, sql: str, *args: Any) -> list[Record]:
        """Run one statement and return its rows."""
        rows: list[Record] = await self._open.fetch(sql, *args)
        return rows

    async def fetchrow(self, sql: str, *args: Any) -> Record | None:
        """Run one statement and return its first row, if any."""
        return await self._open.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run one statement and return the first column of its first row."""
        return await self._open.fetchval(sql, *args)

    async def newer(self, kind: str, key: str, stamp: Stamp) -> bool:
        """Return whether *stamp* is newer than all that this handler has seen for *key*, and store it with the commit.

        Guards against events that arrive out of order: an equal stamp is not newer. *kind* separates several uses in
        one handler. A stamp is a number, a `datetime` with a zone, or a text of either.

        Raises:
            HandlerMisuse: this is not a handler's transaction, so stamps cannot be stored by handler.
        """
        if self._claim is None:
            raise HandlerMisuse(
                "newer() stores versions by handler, and hook.transaction() has no handler; "
                "call it in a handler, or compare with a column of your own table"
            )
        return bool(await self._call(NEWER, newer_arguments(self._claim, kind, key, stamp)))

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Roll back to the start of the block if an exception leaves it."""
        self._savepoints += 1
        name = f"boathook_{self._savepoints}"
        await self._open.execute(f"savepoint {name}")
        try:
            yield
        except BaseException:
            if self._connection is not None:
                await self._connection.execute(f"rollback to {name}; release {name}")
            raise
        await self._open.execute(f"release {name}")

    async def _call(self, call: SqlFunction, arguments: Arguments) -> Any:
        return await self._open.fetchval(call.sql(lambda position: f"${position}"), *arguments)


def connection_of(transaction: Transaction) -> Connection:
    """Return the connection that a transaction runs on, for boathook's own statements in it.

    Raises:
        HandlerMisuse: it has ended.
    """
    return transaction._open  # noqa: SLF001 the only access for boathook's own modules


class SyncTransaction:
    """The same transaction for a sync handler, which runs in a thread."""

    __slots__ = ("_loop", "_transaction")

    def __init__(self, transaction: Transaction, loop: asyncio.AbstractEventLoop) -> None:
        self._transaction = transaction
        self._loop = loop

    def execute(self, sql: str, *args: Any) -> str:
        """Run one statement and return its command tag, such as ``UPDATE 1``."""
        return self._wait(self._transaction.execute(sql, *args))

    def executemany(self, sql: str, rows: Any) -> None:
        """Run one statement for each row of arguments."""
        self._wait(self._transaction.executemany(sql, rows))

    def fetch(self, sql: str, *args: Any) -> list[Record]:
        """Run one statement and return its rows."""
        return self._wait(self._transaction.fetch(sql, *args))

    def fetchrow(self, sql: str, *args: Any) -> Record | None:
        """Run one statement and return its first row, if any."""
        return self._wait(self._transaction.fetchrow(sql, *args))

    def fetchval(self, sql: str, *args: Any) -> Any:
        """Run one statement and return the first column of its first row."""
        return self._wait(self._transaction.fetchval(sql, *args))

    def newer(self, kind: str, key: str, stamp: Stamp) -> bool:
        """Return whether *stamp* is newer than all that this handler has seen for *key*; see `Transaction.newer`."""
        return self._wait(self._transaction.newer(kind, key, stamp))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back to the start of the block if an exception leaves it."""
        block = self._transaction.savepoint()
        self._wait(block.__aenter__())
        try:
            yield
        except BaseException as error:
            self._wait(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._wait(block.__aexit__(None, None, None))

    def _call(self, call: SqlFunction, arguments: Arguments) -> Any:
        return self._wait(self._transaction._call(call, arguments))  # noqa: SLF001 wrapper of the same transaction

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise HandlerMisuse("the worker has ended, and this transaction with it") from None
        return future.result()
