"""Sessions of other libraries: the handler uses its own session, and boathook settles in its transaction.

Pass one to ``hook.on(..., session=...)``::

    session=sqlalchemy_async(async_sessionmaker(engine))     # the handler gets an AsyncSession
    session=sqlalchemy_sync(sessionmaker(engine))            # a Session; the handler runs in a thread
    session=psycopg_async(lambda: AsyncConnection.connect(url))
    session=psycopg_sync(pool.connection)
    session=django()                                         # a Django connection, inside transaction.atomic

The session must connect to boathook's database, with a role that may call its functions.

boathook opens the transaction, marks it, calls the handler, settles and commits. The guarantees are the same for all
libraries:

- If the handler raises, or returns `Retry` or `Dead`, all its writes are rolled back.
- If the lease was lost, the settle raises and everything is rolled back.
- The handler must not end the transaction. Each library's own ``commit()`` is rejected; this fails the attempt and
  rolls everything back. A ``COMMIT`` sent as SQL cannot be rejected, but it is detected because the mark ends with the
  transaction. The delivery is then dead-lettered with the code HANDLER_MISUSE, as a retry could repeat the effects.
"""

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any

import msgspec

from boathook.db.sql_functions import SET_MARK, Arguments, SqlCall, SqlFunction, mark_arguments
from boathook.domain.errors import ConfigError, HandlerMisuse
from boathook.handlers.transaction import SyncTransaction, Transaction
from boathook.observability.failpoints import failpoint

_NO_COMMIT = (
    "the handler called commit() or rollback() on the session boathook opened for it. "
    "Return instead: boathook commits when the handler returns, and rolls back when it raises."
)


def _accept(_session: Any) -> None:
    pass


class Completion(msgspec.Struct):
    """Marks and settles one attempt on the user's connection."""

    mark: str
    conclude: Callable[[object, str], tuple[str, tuple[SqlCall, ...]]]
    """Turns the handler's return value and the mark into the resulting state and the calls that settle the delivery, or
    raises to roll back."""
    is_started: bool = False
    """Whether the handler has been called."""
    has_lost_connection: bool = False
    """Whether boathook's own connection was lost during the attempt."""
    state: str | None = None
    """The resulting state, set right before the settle is sent; an error after that may hide a commit."""

    def begin(self, value: object) -> tuple[SqlCall, ...]:
        """Return the calls that settle the handler's return value, in order."""
        self.state, steps = self.conclude(value, self.mark)
        failpoint("handler.before_commit")
        return steps


@dataclass(frozen=True, slots=True)
class AsyncSessions:
    """Opens sessions with a transaction for async handlers."""

    open: Callable[[], AbstractAsyncContextManager[Any]]
    """Opens a session inside its transaction; commits at the end, rolls back on an error."""
    refuse: Callable[[Any], None] = _accept
    """Raises if a settle now could be undone without boathook's knowledge."""

    async def run(self, handle: Callable[[Any], Awaitable[object]], completion: Completion) -> None:
        """Run one attempt; returns after the commit."""
        async with self.open() as session:
            await call(session, SET_MARK, mark_arguments(completion.mark))
            completion.is_started = True
            steps = completion.begin(await handle(session))
            self.refuse(session)
            for function, arguments in steps:
                await call(session, function, arguments)


BeginLate = Callable[[], Awaitable[Any]]
"""Returns the session of an attempt; the first call opens it."""


@dataclass(frozen=True, slots=True)
class LateSessions(AsyncSessions):
    """Opens the session when the handler calls what it gets instead, at the latest when the handler has returned.

    So a handler that waits for a server holds no connection and no transaction meanwhile.
    """

    async def run(self, handle: Callable[[Any], Awaitable[object]], completion: Completion) -> None:
        """Run one attempt; returns after the commit."""
        completion.is_started = True
        async with AsyncExitStack() as stack:
            opened: list[Any] = []

            async def begin() -> Any:
                if not opened:
                    opened.append(await stack.enter_async_context(self.open()))
                    await call(opened[0], SET_MARK, mark_arguments(completion.mark))
                return opened[0]

            steps = completion.begin(await handle(begin))
            session = await begin()
            for function, arguments in steps:
                await call(session, function, arguments)


class SyncSessions(msgspec.Struct, frozen=True):
    """Opens sessions with a transaction for sync handlers, in the handler's thread."""

    open: Callable[[], AbstractContextManager[Any]]
    refuse: Callable[[Any], None] = _accept

    def run(self, handle: Callable[[Any], object], completion: Completion) -> None:
        """Run one attempt; returns after the commit."""
        with self.open() as session:
            call_sync(session, SET_MARK, mark_arguments(completion.mark))
            completion.is_started = True
            steps = completion.begin(handle(session))
            self.refuse(session)
            for function, arguments in steps:
                call_sync(session, function, arguments)


def sqlalchemy_async(factory: Callable[[], Any]) -> AsyncSessions:
    """Open SQLAlchemy AsyncSessions with *factory*, such as an ``async_sessionmaker``."""
    _require("sqlalchemy")
    _check_factory("sqlalchemy_async", factory, "async_sessionmaker(engine)")

    @asynccontextmanager
    async def open_session() -> AsyncIterator[Any]:
        async with factory() as session:
            with refusing_commit(session.sync_session) as guard:
                transaction = await session.begin()
                try:
                    yield session
                    guard.is_ours = True
                    await transaction.commit()
                finally:
                    guard.is_ours = True
                    if transaction.is_active:
                        await transaction.rollback()

    return AsyncSessions(open_session, lambda session: _refuse_savepoint(session.in_nested_transaction()))


def sqlalchemy_sync(factory: Callable[[], Any]) -> SyncSessions:
    """Open SQLAlchemy Sessions with *factory*, such as a ``sessionmaker``."""
    _require("sqlalchemy")
    _check_factory("sqlalchemy_sync", factory, "sessionmaker(engine)")

    @contextmanager
    def open_session() -> Iterator[Any]:
        with factory() as session, refusing_commit(session) as guard:
            transaction = session.begin()
            try:
                yield session
                guard.is_ours = True
                transaction.commit()
            finally:
                guard.is_ours = True
                if transaction.is_active:
                    transaction.rollback()

    return SyncSessions(open_session, lambda session: _refuse_savepoint(session.in_nested_transaction()))


def _require(library: str) -> None:
    """Raise ConfigError if the library of a session is not installed, where the session is declared."""
    if importlib.util.find_spec(library) is None:
        raise ConfigError(f'session: {library} is not installed; pip install "boathook[{library}]"')


def _check_factory(helper: str, factory: object, example: str) -> None:
    """Raise ConfigError if *factory* is not callable, or is the sessionmaker of the other kind."""
    kinds = {"sqlalchemy_async": "sessionmaker", "sqlalchemy_sync": "async_sessionmaker"}
    if not callable(factory) or type(factory).__name__ == kinds.get(helper):
        raise ConfigError(f"session: write {helper}({example}), not a {type(factory).__name__}")


class _Guard(msgspec.Struct):
    is_ours: bool = False


@contextmanager
def refusing_commit(session: Any, savepoint: Any = None) -> Iterator[_Guard]:
    """Reject a commit of a SQLAlchemy session that ends *savepoint*, or without one the transaction itself."""
    from sqlalchemy import event

    guard = _Guard()

    def before_commit(committing: Any) -> None:
        if not guard.is_ours and committing.get_nested_transaction() is savepoint:
            raise HandlerMisuse(_NO_COMMIT)

    event.listen(session, "before_commit", before_commit)
    try:
        yield guard
    finally:
        event.remove(session, "before_commit", before_commit)


def _refuse_savepoint(is_nested: bool) -> None:
    if is_nested:
        raise HandlerMisuse("the handler returned inside a savepoint it had opened; close it before returning")


def psycopg_async(connect: Callable[[], Any]) -> AsyncSessions:
    """Open psycopg AsyncConnections; *connect* opens or borrows one, as ``pool.connection`` does."""
    _require("psycopg")
    _check_factory("psycopg_async", connect, "pool.connection")

    @asynccontextmanager
    async def open_connection() -> AsyncIterator[Any]:
        opened = connect()
        async with await opened if isinstance(opened, Awaitable) else opened as connection:
            _refuse_busy(connection)
            async with connection.transaction():
                yield connection

    return AsyncSessions(open_connection, _refuse_open_block)


def psycopg_sync(connect: Callable[[], Any]) -> SyncSessions:
    """Open psycopg Connections; *connect* opens or borrows one, as ``pool.connection`` does."""
    _require("psycopg")
    _check_factory("psycopg_sync", connect, "pool.connection")

    @contextmanager
    def open_connection() -> Iterator[Any]:
        with connect() as connection:
            _refuse_busy(connection)
            with connection.transaction():
                yield connection

    return SyncSessions(open_connection, _refuse_open_block)


def _refuse_busy(connection: Any) -> None:
    if connection.info.transaction_status != 0:
        raise HandlerMisuse("the connection is inside a transaction; end it first: boathook needs its own")


def _refuse_open_block(connection: Any) -> None:
    # psycopg has no public API for the nesting depth. If the attribute is renamed, an open block is committed with the
    # rest.
    _refuse_savepoint(getattr(connection, "_num_transactions", 1) > 1)


def django(using: str = "default") -> SyncSessions:
    """Run the handler inside ``transaction.atomic(using)`` and pass it the connection; models work as usual."""
    _require("django")

    @contextmanager
    def open_atomic() -> Iterator[Any]:
        from django.db import connections, transaction

        connection = connections[using]
        connection.close_if_unusable_or_obsolete()
        if connection.in_atomic_block:
            raise HandlerMisuse(
                "this thread is inside transaction.atomic; leave it first: boathook needs a transaction of its own"
            )
        with transaction.atomic(using, durable=True):
            yield connection

    def refuse(connection: Any) -> None:
        if connection.needs_rollback:
            raise HandlerMisuse("the handler marked its transaction for rollback; raise or return Retry instead")
        _refuse_savepoint(bool(connection.savepoint_ids))

    return SyncSessions(open_atomic, refuse)


async def call(session: Any, function: SqlFunction, arguments: Arguments) -> Any:
    """Call one of boathook's SQL functions on an async session of a supported library and return its value."""
    match library_of(session):
        case "boathook":
            return await session._call(function, arguments)  # noqa: SLF001 the only access from this module
        case "asyncpg":
            return await session.fetchval(function.sql(lambda position: f"${position}"), *arguments)
        case "sqlalchemy":
            return (await session.execute(*_sqlalchemy_statement(function, arguments))).scalar()
        case "psycopg":
            cursor = await session.execute(function.sql(lambda _: "%s"), arguments)
            return _first(await cursor.fetchone())
        case library:
            raise _unknown(session, library)


def call_sync(session: Any, function: SqlFunction, arguments: Arguments) -> Any:
    """Call one of boathook's SQL functions on a sync session of a supported library and return its value."""
    match library_of(session):
        case "boathook":
            return session._call(function, arguments)  # noqa: SLF001 the only access from this module
        case "sqlalchemy":
            return session.execute(*_sqlalchemy_statement(function, arguments)).scalar()
        case "psycopg":
            return _first(session.execute(function.sql(lambda _: "%s"), arguments).fetchone())
        case "django":
            with session.cursor() as cursor:
                cursor.execute(function.sql(lambda _: "%s"), arguments)
                return _first(cursor.fetchone())
        case library:
            raise _unknown(session, library)


def library_of(session: Any) -> str:
    """Return the library that a session belongs to; ``boathook`` for a transaction of boathook's own."""
    if isinstance(session, Transaction | SyncTransaction):
        return "boathook"
    if not any(hasattr(session, method) for method in ("execute", "cursor")):  # such as an engine or a pool
        return type(session).__module__
    for ancestor in type(session).__mro__:
        root = ancestor.__module__.partition(".")[0]
        if root in {"asyncpg", "sqlalchemy", "psycopg", "django"}:
            return root
    return type(session).__module__


def _sqlalchemy_statement(function: SqlFunction, arguments: Arguments) -> tuple[Any, dict[str, str | None]]:
    from sqlalchemy import text

    bound = {f"p{position}": value for position, value in enumerate(arguments, start=1)}
    return text(function.sql(lambda position: f":p{position}")), bound


def _first(row: Any) -> Any:
    # A row factory may return mappings instead of tuples.
    return next(iter(row.values())) if isinstance(row, dict) else row[0]


def _unknown(session: Any, library: str) -> TypeError:
    return TypeError(
        f"{type(session).__qualname__} of {library} is not a supported session: use a handler's transaction, "
        "asyncpg, psycopg, SQLAlchemy or Django, with publish for async ones and publish_sync for sync ones"
    )
