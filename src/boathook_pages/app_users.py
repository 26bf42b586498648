"""Stores the users who sign in to the pages of an app, with their sessions, in the app's own schema.

The app creates the tables by a line in one of its migrations; see `included_migrations`. Passwords and tokens are
stored only as hashes.
"""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.operators import ClientInfo
from boathook.db.statements import load

SQL = load(__file__)


class UserTables(msgspec.Struct, frozen=True):
    """The tables of one app's users.

    Both names are identifiers: `server.loading` checks the names of apps, and `boathook_pages.sign_in` the prefixes.
    """

    schema: str
    prefix: str

    def sql(self, name: str) -> str:
        """Return a statement about these tables."""
        return SQL[name].replace("{schema}", self.schema).replace("{prefix}", self.prefix)


async def insert(
    connection: Connection,
    tables: UserTables,
    name: str,
    password_hash: str | None,
    token_sha256: bytes | None,
    roles: Sequence[str],
) -> Record | None:
    """Store a user; None if another one signs in with this name."""
    return await connection.fetchrow(tables.sql("insert_user"), name, password_hash, token_sha256, list(roles))


async def find(connection: Connection, tables: UserTables, id: int) -> Record | None:
    """Return the user with this id."""
    return await connection.fetchrow(tables.sql("find_user"), id)


async def find_by_token(
    connection: Connection, tables: UserTables, token_sha256: bytes, *, is_locked: bool = False
) -> Record | None:
    """Return the enabled user with this token; locked, so that a renewal of the token also ends the new session."""
    name = "lock_user_by_token" if is_locked else "find_user_by_token"
    return await connection.fetchrow(tables.sql(name), token_sha256)


async def find_by_name(connection: Connection, tables: UserTables, name: str) -> Record | None:
    """Return the user who signs in with this name, ignoring case."""
    return await connection.fetchrow(tables.sql("find_user_by_name"), name)


async def search(connection: Connection, tables: UserTables, id: int | None, name: str) -> list[Record]:
    """Return the user with an id first, then up to 20 with a name."""
    rows: list[Record] = await connection.fetch(tables.sql("search_users"), id, name)
    return rows


async def list_all(connection: Connection, tables: UserTables) -> list[Record]:
    """Return all users, oldest first."""
    rows: list[Record] = await connection.fetch(tables.sql("list_users"))
    return rows


async def lock(connection: Connection, tables: UserTables, id: int) -> Record | None:
    """Return a user, locked against changes until the transaction ends."""
    return await connection.fetchrow(tables.sql("lock_user"), id)


async def set_password(connection: Connection, tables: UserTables, id: int, password_hash: str) -> None:
    """Change a user's password."""
    await connection.execute(tables.sql("set_password"), id, password_hash)


async def set_token(connection: Connection, tables: UserTables, id: int, token_sha256: bytes) -> None:
    """Change a user's token."""
    await connection.execute(tables.sql("set_token"), id, token_sha256)


async def set_roles(connection: Connection, tables: UserTables, id: int, roles: Sequence[str]) -> None:
    """Change a user's roles."""
    await connection.execute(tables.sql("set_roles"), id, list(roles))


async def set_language(connection: Connection, tables: UserTables, id: int, language: str | None) -> None:
    """Change a user's language."""
    await connection.execute(tables.sql("set_language"), id, language)


async def set_disabled(connection: Connection, tables: UserTables, id: int, *, is_disabled: bool) -> None:
    """Disable or enable a user."""
    await connection.execute(tables.sql("set_disabled"), id, is_disabled)


async def delete(connection: Connection, tables: UserTables, id: int) -> None:
    """Delete a user with all sessions."""
    await connection.execute(tables.sql("delete_user"), id)


async def start_session(
    connection: Connection,
    tables: UserTables,
    token_sha256: bytes,
    user_id: int,
    lifetime: timedelta,
    client: ClientInfo,
) -> None:
    """Store a session of a user."""
    await connection.execute(
        tables.sql("insert_session"), token_sha256, user_id, lifetime, client.client_address, client.user_agent
    )


async def find_session(connection: Connection, tables: UserTables, token_sha256: bytes) -> Record | None:
    """Return the user of a valid session."""
    return await connection.fetchrow(tables.sql("find_session"), token_sha256)


async def end_session(connection: Connection, tables: UserTables, token_sha256: bytes) -> None:
    """End one session."""
    await connection.execute(tables.sql("end_session"), token_sha256)


async def end_sessions(connection: Connection, tables: UserTables, id: int, *, but: bytes | None = None) -> None:
    """End all sessions of a user, except the one with the token's hash *but*."""
    await connection.execute(tables.sql("end_sessions"), id, but)
