"""Creates users with their boathook application, and publishes their events."""

from collections.abc import Mapping
from typing import Any

from boathook import BoathookError, Transaction
from boathook_cashdesk.app import User, hook, sign_in
from boathook_cashdesk.catalogue import schemas
from boathook_cashdesk.entities import EVENT_TYPES


async def add(tx: Transaction, name: str, password: str | None = None) -> tuple[User, str]:
    """Create a user with a boathook application; return it with its token, which is not stored.

    Raises:
        BoathookError: the name or the password is invalid, or the name is taken by another user with a password.
    """
    user, token = await sign_in.add(tx, name, password=password, with_token=True)
    assert token is not None, "it was asked for"
    await hook.operations.put_application(tx, user.application, name=name)
    await hook.operations.declare_types(tx, EVENT_TYPES, schemas(hook.settings.format))
    return user, token


async def renew(tx: Transaction, name_or_id: str) -> tuple[User, str]:
    """Replace the token of a user, and end all sessions; return the new token, which is not stored.

    Raises:
        BoathookError: there is no such user, or several have the name.
    """
    user = await sign_in.find(tx, name_or_id)
    return user, await sign_in.renew_token(tx, user)


async def list_all(tx: Transaction) -> list[dict[str, Any]]:
    """Return all users with the number of their webhooks, oldest first."""
    rows = await tx.fetch(
        "select u.id, u.name, count(w.id) as webhooks, u.created_at from cashdesk.users u"
        " left join cashdesk.webhooks w on w.user_id = u.id group by u.id order by u.id"
    )
    return [dict(row) for row in rows]


async def publish(tx: Transaction, user: User, type: str, payload: Mapping[str, Any]) -> None:
    """Publish an event to the user's application; create the application again if an operator has deleted it."""
    try:
        await hook.publish(tx, application=user.application, type=type, payload=payload)
    except BoathookError as error:
        if error.name != "ApplicationNotFound":
            raise
        # The transaction goes on: the name was looked up, and nothing failed in PostgreSQL.
        await hook.operations.put_application(tx, user.application, name=user.name)
        await hook.publish(tx, application=user.application, type=type, payload=payload)


async def lock(tx: Transaction, user: User) -> None:
    """Make concurrent calls for this user wait until the transaction ends."""
    await tx.execute("select from cashdesk.users where id = $1 for no key update", user.id)
