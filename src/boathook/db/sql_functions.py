"""SQL functions that run on a handler's own connection, with any driver.

Every argument is passed as text and cast by PostgreSQL, so a call is the same through asyncpg, psycopg, SQLAlchemy and
Django; only the placeholders differ.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from boathook.domain.errors import DatabaseUnavailable

Arguments = tuple[str | None, ...]


class SqlFunction(msgspec.Struct, frozen=True):
    """One SQL function and the types of its parameters."""

    function: str
    types: tuple[str, ...] = ()

    def sql(self, placeholder: Callable[[int], str]) -> str:
        """Return the statement; *placeholder* returns the driver's placeholder of a parameter, by number."""
        marks = (
            f"cast(cast({placeholder(position)} as text) as {kind})"
            for position, kind in enumerate(self.types, start=1)
        )
        return f"select {self.function}({', '.join(marks)})"

    def literal(self, arguments: Arguments) -> str:
        """Return the statement with literal arguments, for a query string that contains several statements."""
        return f"select {self.function}({', '.join(map(_quoted, arguments))})"


SqlCall = tuple[SqlFunction, Arguments]
"""One call with its arguments."""


def _quoted(argument: str | None) -> str:
    """Return a string literal that is independent of standard_conforming_strings."""
    if argument is None:
        return "null"
    if "\x00" in argument:
        raise ValueError("PostgreSQL stores no NUL in text")
    escaped = argument.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


SETTLE: Final = SqlFunction(
    "boathook.settle", ("uuid", "integer", "bigint", "text", "text", "text", "timestamptz", "text")
)
"""Settles a delivery in the transaction of its effects; `deliveries.settle_arguments` returns the arguments."""
ANSWER: Final = SqlFunction("boathook.store_reply", ("uuid", "text", "integer", "text", "bytea"))
"""Stores a handler's reply to a waiting sender, and notifies the waiting gateway; `replies.reply_arguments` returns the
arguments."""
SIGNAL: Final = SqlFunction("boathook.signal", ("text",))
"""Tries deliveries again that wait for a key, when the transaction commits; returns how many are known so far."""
FIRE_ALERT: Final = SqlFunction("boathook.fire_alert", ("text", "text", "boolean", "json"))
"""Fires or resolves an alert of an app when the transaction commits."""
SET_MARK: Final = SqlFunction("set_config", ("text", "text", "boolean"))
"""Marks the transaction that boathook opens, so that a settle in any other transaction is rejected."""
NEWER: Final = SqlFunction("boathook.newer", ("text", "text", "text", "numeric", "uuid"))
"""Returns whether a stamp is the newest of its key, and stores it if so."""
ROUTES_FOR: Final = SqlFunction("boathook.routes_for", ("text", "text"))
"""Reads the routes of an organization's application, given by id, uid or name; `route_registry.decode_routing` decodes
them."""
PUBLISH_MESSAGE: Final = SqlFunction("boathook.publish_message", ("json", "bytea", "json"))
"""Stores a message with its deliveries; the function's comment describes arguments and results."""
REPLICATE: Final = SqlFunction("pg_logical_emit_message", ("boolean", "text", "text"))
"""Writes a record to PostgreSQL's write-ahead log, so that the commit waits for a synchronous standby. A transaction
that only reads may have seen a commit that the standby lacks, and would not wait. A transaction id alone does not make
it wait either: without a log record there is nothing to wait for."""
REPLICATE_ARGUMENTS: Final[Arguments] = ("true", "boathook", "")

LEASE_LOST: Final = "BH001"
"""SQLSTATE of a settle whose fence no longer holds."""
WRONG_TRANSACTION: Final = "BH002"
"""SQLSTATE of a settle in another transaction than the one boathook opened."""
RETRYABLE_STATES: Final = frozenset({"40001", "40P01"})
"""SQLSTATEs of a transaction that PostgreSQL aborted in a conflict; the same attempt runs again."""


_CONNECTION_STATES: Final = ("08", "25006", "25P03", "25P04", "53000", "53100", "53200", "53300", "57P", "58")
"""SQLSTATE prefixes of lost connections, of sessions ended when idle, and of a server that is shutting down, starting,
read-only, full or has a system error. Errors caused by the statement itself, such as its own timeout, are not included.
"""


def mark_arguments(mark: str) -> Arguments:
    """Return the arguments of `SET_MARK`."""
    return ("boathook.mark", mark, "true")


def sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of a driver's error, also inside the wrappers of SQLAlchemy and Django."""
    for _ in range(5):
        if error is None:
            return None
        for attribute in ("sqlstate", "pgcode"):
            state = getattr(error, attribute, None)
            if isinstance(state, str):
                return state
        error = getattr(error, "orig", None) or error.__cause__
    return None


def is_connection_lost(error: BaseException | None) -> bool:
    """Return whether a driver's error means that PostgreSQL is unavailable, also inside these wrappers."""
    state = sqlstate(error)
    if state is not None:
        return state.startswith(_CONNECTION_STATES)
    for _ in range(5):
        if error is None:
            return False
        if isinstance(error, DatabaseUnavailable) or _is_connection_error(error):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False


def _is_connection_error(error: BaseException) -> bool:
    # psycopg and Django have no SQLSTATE for a broken connection, only this class; SQLAlchemy marks its wrapper.
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    is_broken = not kinds.isdisjoint({("psycopg", "OperationalError"), ("django", "OperationalError")})
    return is_broken or bool(getattr(error, "connection_invalidated", False))
