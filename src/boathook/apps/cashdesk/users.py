"""Whose cabinets there are, and who is asking: by a token of their own, or by a browser's session."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, Final

from boathook import Transaction
from boathook.apps.cashdesk.base import hook
from boathook.apps.cashdesk.entities import EVENT_TYPES
from boathook.apps.cashdesk.refusals import BadField

_PREFIX: Final = "cdk_"
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class User:
    """A shop or an integrator with a cabinet of their own."""

    id: int
    name: str

    @property
    def application(self) -> str:
        """The uid of the application that the user's events are published for."""
        return f"cashdesk-{self.id}"


async def add(tx: Transaction, name: str) -> tuple[User, str]:
    """Make a user with an application of boathook's; return it with its token, which is not kept.

    Raises:
        BadField: the name is empty, too long or not printable.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise BadField("name", f"write 1 to {_LONGEST_NAME} printable characters")
    token = _PREFIX + secrets.token_urlsafe(32)
    id = await tx.fetchval(
        "insert into cashdesk.users (name, token_sha256) values ($1, $2) returning id", name, _hash(token)
    )
    user = User(id, name)
    await hook.desk.put_application(tx, user.application, name=name)
    await hook.desk.declare_types(tx, EVENT_TYPES)
    return user, token


async def list_all(tx: Transaction) -> list[dict[str, Any]]:
    """Return every user with the number of their webhooks, the oldest first."""
    rows = await tx.fetch(
        "select u.id, u.name, count(w.id) as webhooks, u.created_at from cashdesk.users u"
        " left join cashdesk.webhooks w on w.user_id = u.id group by u.id order by u.id"
    )
    return [dict(row) for row in rows]


async def lock(tx: Transaction, user: User) -> None:
    """Make others who do the same for this user wait until the transaction ends."""
    await tx.execute("select from cashdesk.users where id = $1 for no key update", user.id)


async def find_by_token(tx: Transaction, token: str) -> User | None:
    """Return whose token this is, if anybody's."""
    return _user(await tx.fetchrow("select id, name from cashdesk.users where token_sha256 = $1", _hash(token)))


async def log_in(tx: Transaction, user: User) -> str:
    """Open a session of the pages; return what the browser shall hold, which is not kept."""
    session = secrets.token_urlsafe(32)
    await tx.execute("delete from cashdesk.sessions where expires_at < now()")
    await tx.execute(
        "insert into cashdesk.sessions (token_sha256, user_id, expires_at)"
        " values ($1, $2, now() + make_interval(secs => $3))",
        _hash(session), user.id, hook.settings.session_hours * 3_600,
    )  # fmt: skip
    return session


async def find_by_session(tx: Transaction, session: str) -> User | None:
    """Return who is logged in by this session, if it is one and has not run out."""
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


def _user(row: Any) -> User | None:
    return row and User(row["id"], row["name"])


def _hash(secret: str) -> bytes:
    # What is hashed has 256 bits of chance, so a slow hash would protect nothing.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
