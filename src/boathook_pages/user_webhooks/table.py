"""Stores the webhooks of an app's users, in the app's own schema; see `included_migrations`."""

from boathook.db.database import Connection, Record
from boathook.db.statements import load
from boathook_pages.app_users import UserTables

SQL = load(__file__)


def _sql(tables: UserTables, name: str) -> str:
    return SQL[name].replace("{schema}", tables.schema).replace("{prefix}", tables.prefix)


async def insert(
    connection: Connection, tables: UserTables, user_id: int, url: str, types: int, *, is_active: bool
) -> int:
    """Store a webhook and return its id."""
    id: int = await connection.fetchval(_sql(tables, "insert_webhook"), user_id, url, types, is_active)
    return id


async def find(connection: Connection, tables: UserTables, user_id: int, id: int) -> Record | None:
    """Return a webhook of a user."""
    return await connection.fetchrow(_sql(tables, "find_webhook"), user_id, id)


async def list_page(connection: Connection, tables: UserTables, user_id: int) -> list[Record]:
    """Return the webhooks of a user, oldest first."""
    rows: list[Record] = await connection.fetch(_sql(tables, "list_webhooks"), user_id)
    return rows


async def list_all(connection: Connection, tables: UserTables) -> list[Record]:
    """Return the webhooks of all users with the users' names, oldest first."""
    rows: list[Record] = await connection.fetch(_sql(tables, "list_all_webhooks"))
    return rows


async def count(connection: Connection, tables: UserTables, user_id: int) -> int:
    """Return the number of a user's webhooks."""
    number: int = await connection.fetchval(_sql(tables, "count_webhooks"), user_id)
    return number


async def update(
    connection: Connection, tables: UserTables, user_id: int, id: int, url: str, types: int, *, is_active: bool
) -> bool:
    """Change a webhook of a user; return whether there was one."""
    return await connection.fetchval(_sql(tables, "update_webhook"), user_id, id, url, types, is_active) is not None


async def delete(connection: Connection, tables: UserTables, user_id: int, id: int) -> bool:
    """Delete a webhook of a user; return whether there was one."""
    return await connection.fetchval(_sql(tables, "delete_webhook"), user_id, id) is not None
