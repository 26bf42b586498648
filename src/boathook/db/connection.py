"""Connections to PostgreSQL whose settings survive poolers, and whose commits are never cancelled.

A cancel request does not undo a commit that waits for a synchronous standby: PostgreSQL makes it visible although the
standby does not have it, and readers then consider it safe. Instead of cancelling a slow commit, boathook closes the
connection. The server keeps waiting, and makes the commit visible only when the standby has it.
"""

import asyncio
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

import asyncpg

_USER_TIMEOUT_MS: Final = 5_000
"""How long sent data may remain unacknowledged before the system closes a connection."""
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
"""Session settings by which the server drops a client that has vanished, with the locks it holds. The server does so
later than the client drops the server, so that no lock is granted while its former holder still relies on it."""

_COMMIT_STATEMENT: Final = re.compile(r"(?:^|;)\s*(?:commit|end)\b", re.IGNORECASE)
_SYNC_REP_FUNCTION: Final = "SyncRepWaitForLSN"
"""The PostgreSQL function that reports a commit made visible before its standby had it."""
_FIND_UNAPPLIED: Final = "select name from pg_settings where name = any ($1) and source <> 'client'"
_READ_VALUES: Final = "select array_agg(current_setting(name) order by name) from unnest($1::text[]) as name"
_applied_values: Final[dict[frozenset[tuple[str, str]], list[str]]] = {}
"""For settings that were all applied at a session's start: their values there, as the server writes them."""

_ARRAY_TYPES: Final = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int2": (1005, 21),
    "int4": (1007, 23),
    "int8": (1016, 20),
    "float8": (1022, 701),
    "timestamptz": (1185, 1184),
    "interval": (1187, 1186),
    "json": (199, 114),
    "uuid": (2951, 2950),
}
"""For types of which boathook's statements use arrays: the ids of the array and of the type, which are the same on all
servers (https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat)."""
_ARRAY_CODECS: Final = [
    {
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
    }
    for name, (array, element) in _ARRAY_TYPES.items()
]


class SafeConnection(asyncpg.Connection):
    """A connection that is closed where the driver would cancel a commit."""

    __slots__ = ("_sent", "is_unreplicated", "restore")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sent = ""
        self.is_unreplicated = False
        """Whether a commit on this connection was cancelled while it waited for a synchronous standby."""
        self.restore = ""
        """Statement that applies settings again after a reset; for settings that were not applied at session start."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109
        """Execute as in the base class, and remember the statement."""
        self._sent = query
        return str(await super().execute(query, *args, timeout=timeout))

    def get_reset_query(self) -> str:
        """Return the statements that undo the settings of a user of the connection."""
        return "\n".join(filter(None, (super().get_reset_query(), self.restore)))

    def _cancel_current_command(self, *waiters: Any) -> None:
        # In a transaction only its end commits. Any other statement may be a transaction of its own.
        if self.is_in_transaction() and not _COMMIT_STATEMENT.search(self._sent):
            super()._cancel_current_command(*waiters)  # type: ignore[misc]
        else:
            # After the driver has notified the waiting callers.
            asyncio.get_running_loop().call_soon(self.terminate)

    def _process_log_message(self, fields: Mapping[str, str], last_query: str) -> None:
        self.is_unreplicated |= fields.get("R") == _SYNC_REP_FUNCTION
        super()._process_log_message(fields, last_query)  # type: ignore[misc]

    async def settle(self, settings: Mapping[str, str], timeout_s: float | None) -> None:
        """Apply those of *settings* that were not applied at session start, because a pooler drops most of them."""
        names, wanted = list(settings), frozenset(settings.items())
        values = await self.fetchval(_READ_VALUES, names, timeout=timeout_s)
        if values == _applied_values.get(wanted):
            return
        # It reads all settings of the server, so each new connection would spend a third of its start on it.
        rows = await self.fetch(_FIND_UNAPPLIED, names, timeout=timeout_s)
        dropped = {row["name"]: settings[row["name"]] for row in rows}
        if dropped:
            self.restore = _set_config_statement(dropped)
            await self.execute(self.restore, timeout=timeout_s)
        else:
            _applied_values[wanted] = values


def _set_config_statement(settings: Mapping[str, str]) -> str:
    calls = (f"set_config({_quoted(name)}, {_quoted(value)}, false)" for name, value in settings.items())
    return f"select {', '.join(calls)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def reset_statements(connection: Any) -> Iterable[str]:
    """Return the statements that undo the settings of a session, except those of boathook."""
    restore: str = getattr(connection, "restore", "")
    return ("reset all", restore) if restore else ("reset all",)


async def connect(*args: Any, **options: Any) -> asyncpg.Connection:
    """Connect like `asyncpg.connect`, but to a `SafeConnection`, and with keep-alive over TCP.

    The settings in ``server_settings`` also apply behind a pooler, if it gives each client its own session.
    """
    options["connection_class"] = SafeConnection
    settings = options.get("server_settings") or {}
    try:
        connection: asyncpg.Connection = await asyncpg.connect(*args, **options)
    except asyncpg.ProtocolViolationError as error:
        if "startup parameter" not in str(error):
            raise
        # PgBouncer rejects startup parameters that it is not configured to ignore.
        known = {name: value for name, value in settings.items() if name == "application_name"}
        connection = await asyncpg.connect(*args, **options | {"server_settings": known})
    try:
        _set_socket_options(connection)
        _register_array_types(connection)
        if settings and isinstance(connection, SafeConnection):
            await connection.settle(settings, options.get("timeout"))
    except BaseException:
        connection.terminate()
        raise
    return connection


def _register_array_types(connection: asyncpg.Connection) -> None:
    # Otherwise the driver queries them on each connection, which takes twice as long as opening it.
    connection._protocol.get_settings().register_data_types(_ARRAY_CODECS)  # type: ignore[attr-defined]  # noqa: SLF001


def _set_socket_options(connection: asyncpg.Connection) -> None:
    # The driver has no public access to its socket or socket options.
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]  # noqa: SLF001
    wire = transport.get_extra_info("socket")
    if wire is not None and wire.family in {socket.AF_INET, socket.AF_INET6}:
        for level, name, value in _SOCKET_OPTIONS:
            if hasattr(socket, name):
                wire.setsockopt(level, getattr(socket, name), value)
