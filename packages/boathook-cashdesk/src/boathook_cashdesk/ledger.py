"""Stores the cabinet's rows, and publishes the event of each change in the same transaction.

All writes go through this module, so no change is published without being made, and none is made without its event.
Every statement filters by user: another user's row counts as missing.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from boathook import Transaction
from boathook_cashdesk import wire
from boathook_cashdesk.app import User, gettext, hook, webhooks
from boathook_cashdesk.entities import Action, Entity, Object, event_type
from boathook_pages import Missing

Lock = Literal["", "for key share", "for share", "for update"]

_FIND: Final = (
    "select (to_jsonb(t) - 'user_id')::text from cashdesk.{table} t where t.user_id = $1 and t.id = $2 {lock}"
)
_PAGE: Final = """
    select (to_jsonb(t) - 'user_id')::text as object from cashdesk.{table} t
    where t.user_id = $1 and t.id > $2 order by t.id limit $3"""
_INSERT: Final = """
    insert into cashdesk.{table} as t (user_id, {columns})
    select $1, {columns} from jsonb_populate_record(null::cashdesk.{table}, $2::text::jsonb)
    on conflict do nothing
    returning (to_jsonb(t) - 'user_id')::text"""
_UPDATE: Final = """
    update cashdesk.{table} t
    set ({columns}, revision, updated_at) = (
        select {columns}, t.revision + 1, clock_timestamp() from jsonb_populate_record(t, $3::text::jsonb))
    where t.user_id = $1 and t.id = $2
    returning (to_jsonb(t) - 'user_id')::text"""
_DELETE: Final = """
    delete from cashdesk.{table} t where t.user_id = $1 and t.id = $2 returning (to_jsonb(t) - 'user_id')::text"""
_MAX_ID: Final = 2**63 - 1


async def get(tx: Transaction, user: User, entity: Entity, id: int, lock: Lock = "") -> Object:
    """Return an object of the user; with *lock* it cannot change until the transaction ends. Raises Missing."""
    document = id <= _MAX_ID and await tx.fetchval(_FIND.format(table=entity, lock=lock), user.id, id)
    return _object(document or None, entity, id)


async def page(tx: Transaction, user: User, entity: Entity, after: int, limit: int) -> list[Object]:
    """Return the user's objects of one kind with ids above *after*, oldest first."""
    rows = await tx.fetch(_PAGE.format(table=entity), user.id, min(after, _MAX_ID), limit)
    return [msgspec.json.decode(row["object"]) for row in rows]


async def create(tx: Transaction, user: User, entity: Entity, values: Object) -> Object | None:
    """Store an object and publish its CREATE; return None if one with the same unique values exists."""
    statement = _INSERT.format(table=entity, columns=_columns(values))
    document = await tx.fetchval(statement, user.id, msgspec.json.encode(values).decode())
    if document is None:
        return None
    added: Object = msgspec.json.decode(document)
    await _publish(tx, user, entity, Action.CREATE, added)
    return added


async def change(tx: Transaction, user: User, entity: Entity, id: int, values: Object) -> Object:
    """Change an object and publish its UPDATE with the new state. Raises Missing."""
    statement = _UPDATE.format(table=entity, columns=_columns(values))
    document = id <= _MAX_ID and await tx.fetchval(statement, user.id, id, msgspec.json.encode(values).decode())
    changed = _object(document or None, entity, id)
    await _publish(tx, user, entity, Action.UPDATE, changed)
    return changed


async def remove(tx: Transaction, user: User, entity: Entity, id: int) -> Object:
    """Delete an object and publish its DELETE with its last state. Raises Missing."""
    document = id <= _MAX_ID and await tx.fetchval(_DELETE.format(table=entity), user.id, id)
    removed = _object(document or None, entity, id)
    await _publish(tx, user, entity, Action.DELETE, removed)
    return removed


def _object(document: Any, entity: Entity, id: int) -> Object:
    if document is None:
        raise Missing(gettext("You have nothing with the id %(id)s among your %(kind)s.", id=id, kind=entity))
    row: Object = msgspec.json.decode(document)
    return row


def _columns(names: Iterable[str]) -> str:
    # They become part of SQL statements, so they must be identifiers, never user input.
    names = list(names)
    if not names or not all(name.isidentifier() for name in names):
        raise ValueError(f"not a list of columns: {names}")
    return ", ".join(names)


async def _publish(tx: Transaction, user: User, entity: Entity, action: Action, state: Object) -> None:
    format: wire.Format = hook.settings.format
    owner = wire.owner_of(format, entity, state)
    fields = await get(tx, user, *owner) if owner else {}
    body = wire.change_body(format, entity, action, state, fields)
    await webhooks.publish(tx, user, event_type(entity, action), body)
