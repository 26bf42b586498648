"""Users of the cabinet, and their authentication by token or by browser session."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from boathook import BoathookError, Transaction
from boathook_cashdesk.app import hook
from boathook_cashdesk.cabinet_errors import BadField, Conflict, Missing
from boathook_cashdesk.entities import EVENT_TYPES

_PREFIX: Final = "cdk_"
_MAX_NAME: Final = 200
_ID: Final = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class User:
    """A shop or an integrator with its own cabinet."""

    id: int
    name: str

    @property
    def application(self) -> str:
        """The uid of the application that the user's events are published to."""
        return f"cashdesk-{self.id}"


async def add(tx: Transaction, name: str) -> tuple[User, str]:
    """Create a user with a boathook application; return it with its token, which is not stored.

    Raises:
        BadField: the name is empty, too long or not printable.
    """
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise BadField("name", f"write 1 to {_MAX_NAME} printable characters")
    token = _new_token()
    id = await tx.fetchval(
        "insert into cashdesk.users (name, token_sha256) values ($1, $2) returning id", name, _hash(token)
    )
    user = User(id, name)
    await hook.operations.put_application(tx, user.application, name=name)
    await hook.operations.declare_types(tx, EVENT_TYPES)
    return user, token


async def renew(tx: Transaction, whom: str) -> tuple[User, str]:
    """Replace the token of the user with this id or name; return the new token, which is not stored.

    All sessions that were opened with the old token end.

    Raises:
        Missing: there is no such user.
        Conflict: several users have the name.
    """
    user, token = await _find(tx, whom), _new_token()
    # In this order: a concurrent login locks the row, so its session already exists and is deleted.
    await tx.execute("update cashdesk.users set token_sha256 = $2 where id = $1", user.id, _hash(token))
    await tx.execute("delete from cashdesk.sessions where user_id = $1", user.id)
    return user, token


async def _find(tx: Transaction, whom: str) -> User:
    """Return the user with an id, else with a name."""
    id = int(whom) if _ID.fullmatch(whom) else None
    rows = await tx.fetch(
        "select id, name from cashdesk.users where id = $1 or name = $2 order by id = $1 desc nulls last, id limit 20",
        id, whom,
    )  # fmt: skip
    if not rows:
        raise Missing(f"there is no user {whom}; see `boathook cashdesk users list`")
    if len(rows) > 1 and rows[0]["id"] != id:
        raise Conflict(
            f"several users are called {whom}: name the id, one of {', '.join(str(row['id']) for row in rows)}"
        )
    return User(rows[0]["id"], rows[0]["name"])


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


async def find_by_token(tx: Transaction, token: str) -> User | None:
    """Return the user with this token, or None."""
    return _user(await tx.fetchrow("select id, name from cashdesk.users where token_sha256 = $1", _hash(token)))


async def log_in(tx: Transaction, token: str) -> str | None:
    """Open a session for the user with this token; return the session's token for the browser, or None.

    The session's token is not stored.
    """
    # The lock prevents a concurrently replaced token from leaving a session behind.
    held = "select id from cashdesk.users where token_sha256 = $1 for key share"
    user_id = await tx.fetchval(held, _hash(token))
    if user_id is None:
        return None
    session = secrets.token_urlsafe(32)
    await tx.execute("delete from cashdesk.sessions where expires_at < now()")
    await tx.execute(
        "insert into cashdesk.sessions (token_sha256, user_id, expires_at)"
        " values ($1, $2, now() + make_interval(secs => $3))",
        _hash(session), user_id, hook.settings.session_hours * 3_600,
    )  # fmt: skip
    return session


async def find_by_session(tx: Transaction, session: str) -> User | None:
    """Return the user of this session, or None if it is unknown or expired."""
    return _user(
        await tx.fetchrow(
            "select u.id, u.name from cashdesk.sessions s join cashdesk.users u on u.id = s.user_id"
            " where s.token_sha256 = $1 and s.expires_at > now()",
            _hash(session),
        )
    )


async def log_out(tx: Transaction, session: str) -> None:
    """End a session."""
    await tx.execute("delete from cashdesk.sessions where token_sha256 = $1", _hash(session))


def _new_token() -> str:
    return _PREFIX + secrets.token_urlsafe(32)


def _user(row: Any) -> User | None:
    return row and User(row["id"], row["name"])


def _hash(secret: str) -> bytes:
    # The hashed text has 256 random bits, so a slow hash would add no protection.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
