"""Replaces asyncpg's connections and pools by ones to the simulated server, as far as boathook uses them."""

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from tests.simulation.loop import PROCESS, VirtualLoop
from tests.simulation.server import COMMIT, END, Request, Server, gone
from tests.simulation.sometimes import sometimes
from tests.simulation.statements import Record
from tests.simulation.tables import Transaction


class _Protocol:
    """What `boathook.db.connection` tells the driver of types; values stay as they are here."""

    def get_settings(self) -> "_Protocol":
        return self

    def register_data_types(self, types: object) -> None:
        pass


class Connection:
    """The driver's connection, as much of it as boathook uses."""

    def __init__(
        self,
        server: Server,
        number: int,
        command_timeout: float | None,
        statement_timeout: float,
        idle_timeout: float | None,
    ) -> None:
        self.server = server
        self.number = number
        self.command_timeout = command_timeout
        self.statement_timeout = statement_timeout
        self.idle_timeout = idle_timeout
        self.client = PROCESS.get(server.loop.world)
        self.context = contextvars.copy_context()
        self.transaction_: Transaction | None = None
        self.request: Request | None = None
        self.is_lost = False
        self.is_closed_here = False
        self.is_given_back = False
        self.is_open_transaction = False
        """What the client believes, by the answers it has heard."""
        self.is_idle_since = 0.0
        self.listeners: dict[str, list[Callable[..., object]]] = {}
        self._told: list[Callable[[object], object]] = []

    def __hash__(self) -> int:
        return self.number  # sets of connections are walked through in the same order in every process

    @property
    def _transport(self) -> asyncio.Transport:
        return asyncio.Transport()

    @property
    def _protocol(self) -> "_Protocol":
        return _Protocol()

    # The server's side

    def lose(self) -> None:
        """End the session: uncommitted changes are rolled back, and the client notices."""
        if self.is_lost:
            return
        self.is_lost = True
        if self.transaction_ is not None and not self.transaction_.is_over:
            self.transaction_.roll_back()
        self.transaction_ = None
        server = self.server
        server.sessions.pop(self.number, None)
        for name in [name for name, holder in server.session_locks.items() if holder is self]:
            del server.session_locks[name]
        server.loop.call_later(server.trip(), self._hear_loss, context=self.context)

    def watch_idleness(self) -> None:
        """End the session if its transaction stays idle for too long."""
        if self.transaction_ is None or self.idle_timeout is None:
            return
        since = self.is_idle_since

        def check() -> None:
            if (
                self.transaction_ is not None
                and self.is_idle_since == since
                and (self.request is None or self.request.is_over)
            ):
                sometimes("a session was ended for an idle transaction")
                self.lose()

        self.server.later(self.idle_timeout, check)

    # The client's side

    def _hear_loss(self) -> None:
        self.is_closed_here = True
        if self.request is not None and not self.request.answer.done():
            self.request.answer.set_exception(gone())
        for told in self._told:
            told(self)

    def hear(self, request: Request, answer: list[Record] | asyncpg.PostgresError) -> None:
        """Take in an answer."""
        if request.answer.done():
            return
        if isinstance(answer, asyncpg.PostgresError):
            request.answer.set_exception(answer)
        else:
            request.answer.set_result(answer)

    async def fetch(self, sql: str, *args: Any, timeout: float | None = None) -> list[Record]:
        if self.is_closed_here or self.server.is_closing:
            raise asyncpg.InterfaceError("connection is closed")
        if self.request is not None:
            raise asyncpg.InterfaceError("cannot perform operation: another operation is in progress")
        request = self.request = Request(self, sql, args, timeout)
        server = self.server
        server.loop.call_later(server.trip(), request.arrive, context=server.process.context)
        if server.is_silent:
            request.worry()
        try:
            rows = await request.answer
        except asyncio.CancelledError:
            # The driver asks the server to give up what is under way, and does not wait for that here.
            self._cut_off(request)
            raise
        except TimeoutError:
            self._cut_off(request)
            raise
        finally:
            self.request = None
        if sql.startswith("begin"):
            self.is_open_transaction = True
        elif sql in END or sql.endswith(COMMIT):
            self.is_open_transaction = False
        return rows

    def _cut_off(self, request: Request) -> None:
        request.is_given_up = True
        self.is_closed_here = True
        self.server.later(
            self.server.trip(), self.lose if request.is_over or not self.server.is_silent else lambda: None
        )

    async def fetchrow(self, sql: str, *args: Any, timeout: float | None = None) -> Record | None:
        rows = await self.fetch(sql, *args, timeout=timeout)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: Any, timeout: float | None = None) -> Any:
        rows = await self.fetch(sql, *args, timeout=timeout)
        return next(iter(rows[0])) if rows else None

    async def execute(self, sql: str, *args: Any, timeout: float | None = None) -> str:
        rows = await self.fetch(sql, *args, timeout=timeout)
        if sql == "commit":
            return str(rows[0]["tag"])
        return f"UPDATE {len(rows)}"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        await self.execute("begin")
        try:
            yield
        except BaseException:
            await self.execute("rollback")
            raise
        await self.execute("commit")

    def is_in_transaction(self) -> bool:
        return self.is_open_transaction

    def is_closed(self) -> bool:
        if self.is_given_back:
            raise asyncpg.InterfaceError("the connection has been released back to the pool")
        return self.is_closed_here

    def terminate(self) -> None:
        self.is_closed_here = True
        if self.request is not None and not self.request.answer.done():
            self.request.answer.set_exception(gone())
        # A server that does not listen goes on with what it has been sent.
        if self.server.is_silent:
            self.server.silenced.append(self.lose)
        else:
            self.server.later(self.server.trip(), self.lose)

    async def close(self, timeout: float | None = None) -> None:
        self.terminate()

    async def add_listener(self, channel: str, heard: Callable[..., object]) -> None:
        await self.fetch("select 1")
        self.listeners.setdefault(channel, []).append(heard)

    def add_termination_listener(self, told: Callable[[object], object]) -> None:
        self._told.append(told)


class Pool:
    """The driver's pool of connections."""

    def __init__(
        self, server: Server, url: str, *, max_size: int, timeout: float, command_timeout: float,
        server_settings: dict[str, str], connect: Callable[..., Awaitable[Connection]], **_options: Any,
    ) -> None:  # fmt: skip
        self._server = server
        self._size = max_size
        self._dial = functools.partial(
            connect, url, timeout=timeout, command_timeout=command_timeout, server_settings=server_settings
        )
        self._free: list[Connection] = []
        self._lent = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    async def acquire(self, *, timeout: float | None = None) -> Connection:
        if self._is_closed:
            raise asyncpg.InterfaceError("pool is closed")
        if timeout is None:
            return await self._acquire()
        async with asyncio.timeout(timeout):
            return await self._acquire()

    async def _acquire(self) -> Connection:
        while self._lent >= self._size:
            future: asyncio.Future[None] = self._server.loop.create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._pass_on()
                raise
        self._lent += 1
        try:
            while self._free:
                connection = self._free.pop()
                if not connection.is_closed_here:
                    connection.is_given_back = False
                    return connection
            return await self._dial()
        except BaseException:
            self._lent -= 1
            self._pass_on()
            raise

    async def release(self, connection: Connection) -> None:
        if connection.is_given_back:
            return
        try:
            if connection.is_open_transaction and not connection.is_closed_here:
                await connection.execute("rollback", timeout=5)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            connection.terminate()
        finally:
            connection.is_given_back = True
            self._lent -= 1
            if not connection.is_closed_here:
                self._free.append(connection)
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    async def fetch(self, sql: str, *args: Any) -> list[Record]:
        connection = await self.acquire()
        try:
            return await connection.fetch(sql, *args)
        finally:
            await self.release(connection)

    async def fetchrow(self, sql: str, *args: Any) -> Record | None:
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: Any) -> Any:
        rows = await self.fetch(sql, *args)
        return next(iter(rows[0])) if rows else None

    async def execute(self, sql: str, *args: Any) -> str:
        return f"UPDATE {len(await self.fetch(sql, *args))}"

    async def close(self) -> None:
        self._is_closed = True
        for connection in self._free:
            connection.terminate()
        self._free.clear()

    def terminate(self) -> None:
        self._is_closed = True
        for connection in self._free:
            connection.terminate()


@contextmanager
def driving() -> Iterator[None]:
    """Let the driver's `connect` and `create_pool` lead to the server of the running loop."""
    connect, create_pool = asyncpg.connect, asyncpg.create_pool

    async def fake_connect(
        _url: str, *, timeout: float | None = None, command_timeout: float | None = None,
        server_settings: Mapping[str, str] | None = None, **_options: Any,
    ) -> Connection:  # fmt: skip
        return await _server().connect(timeout, command_timeout, server_settings or {})

    async def fake_pool(url: str, **options: Any) -> Pool:
        return Pool(_server(), url, **options)

    asyncpg.connect, asyncpg.create_pool = fake_connect, fake_pool  # type: ignore[assignment]
    try:
        yield
    finally:
        asyncpg.connect, asyncpg.create_pool = connect, create_pool


def _server() -> Server:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server: Server = loop.server  # type: ignore[attr-defined]
    return server
