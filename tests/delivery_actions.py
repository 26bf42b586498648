"""Commands on deliveries, each in a transaction of its own."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from boathook.db import delivery_commands
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext, Key, Selection


async def _alone(command: Callable[..., Awaitable[Any]], database: Database, *arguments: Any, **options: Any) -> Any:
    async with database.transaction() as connection:
        return await command(connection, *arguments, **options)


async def _purge(connection: Connection, selection: Selection, action: AuditContext, *, limit: int) -> list[Key]:
    keys = await delivery_commands.lock_dead(connection, selection, limit)
    await delivery_commands.purge_locked(connection, keys, action)
    return keys


replay_dead = functools.partial(_alone, delivery_commands.replay_dead)
ignore_dead = functools.partial(_alone, delivery_commands.ignore_dead)
purge_dead = functools.partial(_alone, _purge)
replay_events = functools.partial(_alone, delivery_commands.replay_events)
replay_delivery = functools.partial(_alone, delivery_commands.replay_delivery)
retry_delivery = functools.partial(_alone, delivery_commands.retry_delivery)
