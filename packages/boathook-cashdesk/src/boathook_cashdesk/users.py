"""Creates users with their boathook application."""

from boathook import Transaction
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
