"""Connections to PostgreSQL whose settings hold, and whose commits are never cancelled.

A commit that waits for a synchronous standby is not undone by a cancel request: PostgreSQL makes it visible although
the standby lacks it, and whoever reads it then takes it for safe. So where a commit takes too long, the connection is
cut. The server goes on waiting, and shows the commit to nobody before the standby has it.
"""

import asyncio
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

import asyncpg

_USER_TIMEOUT_MS: Final = 5_000
"""How long what was sent may go unacknowledged before the system gives a connection up."""
_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
)
SERVER_KEEPALIVES: Final = {
    "tcp_keepalives_idle": "6",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "12000",
}
"""Settings of a session by which the server gives up a client that has vanished, with the locks it holds: later than
the client gives up the server, so that nobody gets a lock whose holder does not know yet that it is lost."""

_COMMIT_STATEMENT: Final = re.compile(r"(?:^|;)\s*(?:commit|end)\b", re.IGNORECASE)
_SYNC_REP_FUNCTION: Final = "SyncRepWaitForLSN"
"""The function of PostgreSQL that says a commit was made visible before its standby had it."""
_FIND_UNAPPLIED: Final = "select name from pg_settings where name = any ($1) and source <> 'client'"


class SafeConnection(asyncpg.Connection):
    """A connection that is cut where others would cancel a commit."""

    __slots__ = ("_sent", "is_unreplicated", "restore")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sent = ""
        self.is_unreplicated = False
        """Whether somebody has cancelled a commit of this connection while it waited for a synchronous standby."""
        self.restore = ""
        """What makes settings again that a reset takes back, as they did not arrive with the start of the session."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109
        """Do what the driver does."""
        self._sent = query
        return str(await super().execute(query, *args, timeout=timeout))

    def get_reset_query(self) -> str:
        """Return what undoes all that a user of the connection has set."""
        return "\n".join(filter(None, (super().get_reset_query(), self.restore)))

    def _cancel_current_command(self, *waiters: Any) -> None:
        # Within a transaction only its end commits. All else may be a transaction by itself.
        if self.is_in_transaction() and not _COMMIT_STATEMENT.search(self._sent):
            super()._cancel_current_command(*waiters)  # type: ignore[misc]
        else:
            # Not before the driver has told whoever waits.
            asyncio.get_running_loop().call_soon(self.terminate)

    def _process_log_message(self, fields: Mapping[str, str], last_query: str) -> None:
        self.is_unreplicated |= fields.get("R") == _SYNC_REP_FUNCTION
        super()._process_log_message(fields, last_query)  # type: ignore[misc]

    async def settle(self, settings: Mapping[str, str], timeout_s: float | None) -> None:
        """Make those of *settings* that did not arrive with the start of the session: a pooler drops most of them."""
        rows = await self.fetch(_FIND_UNAPPLIED, list(settings), timeout=timeout_s)
        dropped = {row["name"]: settings[row["name"]] for row in rows}
        if dropped:
            self.restore = _set_config_statement(dropped)
            await self.execute(self.restore, timeout=timeout_s)


def _set_config_statement(settings: Mapping[str, str]) -> str:
    calls = (f"set_config({_quoted(name)}, {_quoted(value)}, false)" for name, value in settings.items())
    return f"select {', '.join(calls)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def reset_statements(connection: Any) -> Iterable[str]:
    """Return the statements that undo what was set for a session, and nothing that boathook has set for it."""
    restore: str = getattr(connection, "restore", "")
    return ("reset all", restore) if restore else ("reset all",)


async def connect(*args: Any, **options: Any) -> asyncpg.Connection:
    """Connect as `asyncpg.connect` does, to a `SafeConnection`; over TCP with keep-alive.

    The settings of ``server_settings`` hold behind a pooler too, as long as it gives each client a session to itself.
    """
    options["connection_class"] = SafeConnection
    settings = options.get("server_settings") or {}
    try:
        connection: asyncpg.Connection = await asyncpg.connect(*args, **options)
    except asyncpg.ProtocolViolationError as error:
        if "startup parameter" not in str(error):
            raise
        # PgBouncer refuses those that it is not told to ignore.
        known = {name: value for name, value in settings.items() if name == "application_name"}
        connection = await asyncpg.connect(*args, **options | {"server_settings": known})
    try:
        _set_socket_options(connection)
        if settings and isinstance(connection, SafeConnection):
            await connection.settle(settings, options.get("timeout"))
    except BaseException:
        connection.terminate()
        raise
    return connection


def _set_socket_options(connection: asyncpg.Connection) -> None:
    # The driver has no way to set options of its socket, nor to lend it.
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]  # noqa: SLF001
    wire = transport.get_extra_info("socket")
    if wire is not None and wire.family in {socket.AF_INET, socket.AF_INET6}:
        for level, name, value in _SOCKET_OPTIONS:
            if hasattr(socket, name):
                wire.setsockopt(level, getattr(socket, name), value)
