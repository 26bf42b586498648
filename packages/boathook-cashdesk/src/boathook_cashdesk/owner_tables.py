"""The table of a system before this one: how `boathook cashdesk import` reads it.

It is ``Webhook``, with the bit mask ``subscribes``. Each user whom it names gets a cabinet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from boathook import Transaction
from boathook_app_tools.table_import import (
    FLAG,
    ID,
    INTEGER,
    TEXT,
    TIME,
    BadValue,
    Converted,
    Import,
    Row,
    Source,
    SourceTable,
    require,
    without_nulls,
)
from boathook_cashdesk import users
from boathook_cashdesk.app import User, webhooks
from boathook_cashdesk.entities import Entity
from boathook_pages import InvalidForm

_EVERYTHING: Final = 2 ** len(Entity) - 1
_FIND: Final = "select id, name from cashdesk.users where owner_uuid = $1 or owner_id = $2"
_LINK: Final = "update cashdesk.users set owner_uuid = $2, owner_id = $3 where id = $1"


async def _webhooks(tx: Transaction, _source: Source, rows: Sequence[Row]) -> Sequence[Converted]:
    results: list[Converted] = []
    for row in rows:
        try:
            form = _form(row)
        except BadValue as error:
            results.append(error)
            continue
        user = await _user(tx, row["userId"])
        values = {"user_id": user.id, "url": form.url, "types": row["subscribes"], "is_active": row["isActive"]}
        results.append(values | without_nulls(created_at=row["createdAt"], updated_at=row["updatedAt"]))
    return results


def _form(row: Row) -> Any:
    require(row, "userId", "isActive", "subscribes", "url")
    if not 0 <= row["subscribes"] <= _EVERYTHING:
        raise BadValue("subscribes", f"{row['subscribes']} has bits of unknown kinds; known are 0 to {_EVERYTHING}")
    fields: Mapping[str, Any] = {
        "url": row["url"], "types": webhooks.types_of(row["subscribes"]), "isActive": row["isActive"],
    }  # fmt: skip
    try:
        return webhooks.read(fields)
    except InvalidForm as error:
        raise BadValue(error.field, str(error).removeprefix(f"{error.field}: ")) from None


async def _user(tx: Transaction, owner: Any) -> User:
    """Return the user with an id of the owner's; one that is unknown gets a cabinet."""
    ids = (owner, None) if isinstance(owner, UUID) else (None, owner)
    if row := await tx.fetchrow(_FIND, *ids):
        return User(id=row["id"], name=row["name"])
    # Its token is discarded; `users renew` makes one that is shown.
    user, _token = await users.add(tx, f"user {owner}")
    await tx.execute(_LINK, user.id, *ids)
    return user


async def _add_endpoint(tx: Transaction, _source: Source, row: Row, key: str) -> None:
    user = await _user(tx, row["userId"])
    try:
        await webhooks.put_endpoint(tx, user, int(key), _form(row))
    except InvalidForm as error:
        raise BadValue(error.field, str(error).removeprefix(f"{error.field}: ")) from None


IMPORT: Final = Import(
    app="cashdesk",
    tables=(
        SourceTable(
            name="Webhook",
            columns={"id": ID, "url": TEXT, "subscribes": INTEGER, "userId": ID, "isActive": FLAG},
            optional={"createdAt": TIME, "updatedAt": TIME},
            target="cashdesk.webhooks",
            convert=_webhooks,
            stored=_add_endpoint,
        ),
    ),
)
