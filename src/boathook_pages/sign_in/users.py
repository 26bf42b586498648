"""Users of an app and their browser sessions, in the app's own tables."""

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from boathook.db.included_migrations import check_included
from boathook.db.operators import ClientInfo
from boathook.domain.errors import AlreadyExists, ConfigError, InvalidState, InvalidValue, NotFound
from boathook.handlers.api import Boathook
from boathook.handlers.transaction import Transaction, connection_of
from boathook.service.access.login_rate import LoginRateLimiter
from boathook.service.access.passwords import hash_password, is_password, rehash_if_weak
from boathook_pages import app_users
from boathook_pages.app_users import UserTables

TABLES: Final = "sign_in"
VERSION: Final = 1
"""The version of the tables that this code needs."""
_MAX_NAME_LENGTH: Final = 200
_ID: Final = re.compile("[0-9]{1,18}")
_PREFIX: Final = re.compile("([a-z][a-z0-9_]{0,19})?")
_ROLE: Final = re.compile("[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, kw_only=True)
class User:
    """A user of an app."""

    id: int
    name: str
    roles: frozenset[str] = frozenset()
    language: str | None = None
    """The user's own choice."""
    is_disabled: bool = False

    def has_role(self, role: str | None) -> bool:
        """Return whether the user has a role; no role means every user."""
        return role is None or role in self.roles


AnyUser = TypeVar("AnyUser", bound=User)


class Users(Generic[AnyUser]):
    """The users of one app and their sessions.

    A user has a password, or a token for programs that also opens a session, or both. Only hashes of them are stored.

    Args:
        hook: The app, whose migrations include the tables.
        prefix: The prefix of the tables' names, as in the migration.
        roles: The roles that users may have.
        token_prefix: The beginning of each token; empty for users without tokens.
        session_hours: Returns how long a session lasts, in hours.
        user: The class of users, a subclass of `User` without further fields.

    Raises:
        ConfigError: an argument is invalid, or no migration of the app includes the tables.
    """

    def __init__(
        self,
        hook: Boathook,
        *,
        prefix: str = "",
        roles: Sequence[str] = (),
        token_prefix: str = "",
        session_hours: Callable[[], float] = lambda: 12.0,
        user: type[AnyUser] | None = None,
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"SignIn: prefix={prefix!r} must be lower-case letters, digits and _, such as staff_")
        if invalid := [role for role in roles if not _ROLE.fullmatch(role)]:
            raise ConfigError(f"SignIn: invalid role {invalid[0]!r}; use lower-case letters, digits, _ and -")
        self.hook = hook
        self.roles = tuple(roles)
        self.has_tokens = bool(token_prefix)
        self.rate_limiter = LoginRateLimiter()
        self._tables = UserTables(hook.name, prefix)
        self._token_prefix = token_prefix
        self._session_hours = session_hours
        self._class: type[Any] = user or User
        check_included(hook.name, hook.manifest.migrations, TABLES, VERSION, prefix)

    @property
    def session_s(self) -> int:
        """How long a session lasts, in seconds."""
        return int(self._session_hours() * 3_600)

    async def add(
        self,
        tx: Transaction,
        name: str,
        *,
        password: str | None = None,
        roles: Sequence[str] = (),
        with_token: bool = False,
    ) -> tuple[AnyUser, str | None]:
        """Create a user; return it with its new token, which is not stored.

        Raises:
            InvalidValue: the name, the password or a role is invalid.
            AlreadyExists: a user with a password has the name.
        """
        if not name.strip() or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
            raise InvalidValue(f"name: write 1 to {_MAX_NAME_LENGTH} printable characters", "name")
        self._check_roles(roles)
        token = self._new_token() if with_token else None
        row = await app_users.insert(
            connection_of(tx),
            self._tables,
            name,
            None if password is None else await hash_password(password),
            None if token is None else hash_token(token),
            roles,
        )
        if row is None:
            raise AlreadyExists(f"user {name} already exists")
        return self._user(row), token

    async def find(self, tx: Transaction, name_or_id: str) -> AnyUser:
        """Return the user with an id, else with a name.

        Raises:
            NotFound: there is no such user.
            InvalidState: several users have the name.
        """
        id = int(name_or_id) if _ID.fullmatch(name_or_id) else None
        rows = await app_users.search(connection_of(tx), self._tables, id, name_or_id)
        if not rows:
            raise NotFound(f"there is no user {name_or_id}")
        if len(rows) > 1 and rows[0]["id"] != id:
            ids = ", ".join(str(row["id"]) for row in rows)
            raise InvalidState(f"several users are called {name_or_id}: name the id, one of {ids}", "ambiguous_name")
        return self._user(rows[0])

    async def list_all(self, tx: Transaction) -> list[AnyUser]:
        """Return all users, oldest first."""
        return [self._user(row) for row in await app_users.list_all(connection_of(tx), self._tables)]

    async def set_password(self, tx: Transaction, user: User, password: str, *, keep: str | None = None) -> None:
        """Change a user's password, and end all sessions except the one with the token *keep*. Raises as `add`."""
        row = await app_users.lock(connection_of(tx), self._tables, user.id)
        if row is None:
            raise NotFound(f"there is no user {user.name}")
        namesake = await app_users.find_by_name(connection_of(tx), self._tables, row["name"])
        if namesake is not None and namesake["id"] != user.id:
            raise AlreadyExists(f"another user signs in as {user.name}; create one with another name")
        await app_users.set_password(connection_of(tx), self._tables, user.id, await hash_password(password))
        kept_session = None if keep is None else hash_token(keep)
        await app_users.end_sessions(connection_of(tx), self._tables, user.id, but=kept_session)

    async def renew_token(self, tx: Transaction, user: User) -> str:
        """Replace a user's token, end all sessions, and return the new token, which is not stored."""
        token = self._new_token()
        # In this order: a concurrent sign-in locks the row, so its session already exists and is deleted.
        await app_users.set_token(connection_of(tx), self._tables, user.id, hash_token(token))
        await app_users.end_sessions(connection_of(tx), self._tables, user.id)
        return token

    async def set_roles(self, tx: Transaction, user: User, roles: Sequence[str]) -> None:
        """Replace a user's roles. Raises InvalidValue."""
        self._check_roles(roles)
        await app_users.set_roles(connection_of(tx), self._tables, user.id, roles)

    async def set_language(self, tx: Transaction, user: User, language: str | None) -> None:
        """Change a user's language; None follows the browser."""
        await app_users.set_language(connection_of(tx), self._tables, user.id, language)

    async def disable(self, tx: Transaction, user: User) -> None:
        """Disable a user, whose sessions and token then have no effect."""
        await app_users.set_disabled(connection_of(tx), self._tables, user.id, is_disabled=True)
        await app_users.end_sessions(connection_of(tx), self._tables, user.id)

    async def enable(self, tx: Transaction, user: User) -> None:
        """Enable a user again."""
        await app_users.set_disabled(connection_of(tx), self._tables, user.id, is_disabled=False)

    async def delete(self, tx: Transaction, user: User) -> None:
        """Delete a user with all sessions."""
        await app_users.delete(connection_of(tx), self._tables, user.id)

    async def find_by_token(self, tx: Transaction, token: str) -> AnyUser | None:
        """Return the enabled user with this token, or None."""
        row = await app_users.find_by_token(connection_of(tx), self._tables, hash_token(token))
        return None if row is None else self._user(row)

    async def find_by_session(self, tx: Transaction, session: str) -> AnyUser | None:
        """Return the user of a browser's session, or None if it is unknown or has expired."""
        row = await app_users.find_session(connection_of(tx), self._tables, hash_token(session))
        return None if row is None else self._user(row)

    async def log_in(self, name: str, password: str, client: ClientInfo) -> str | None:
        """Return the token of a new session if the password is right; an unknown name is rejected after the same time.

        No transaction is open during the comparison, so guessing clients cannot exhaust the database connections.

        Raises:
            LimitReached: too many passwords wait to be compared.
        """
        async with self.hook.transaction() as tx:
            row = await app_users.find_by_name(connection_of(tx), self._tables, name)
        password_hash = None if row is None or row["disabled_at"] is not None else row["password_hash"]
        if not await is_password(password_hash, password) or row is None or password_hash is None:
            return None
        renewed = await rehash_if_weak(password_hash, password)
        async with self.hook.transaction() as tx:
            # Locked, so that a concurrent change of the password ends this session too.
            current = await app_users.lock(connection_of(tx), self._tables, row["id"])
            if current is None or current["password_hash"] != password_hash or current["disabled_at"] is not None:
                return None
            if renewed is not None:
                await app_users.set_password(connection_of(tx), self._tables, row["id"], renewed)
            return await self._start_session(tx, row["id"], client)

    async def log_in_with_token(self, tx: Transaction, token: str, client: ClientInfo) -> str | None:
        """Return the token of a new session for the user with this token, or None."""
        row = await app_users.find_by_token(connection_of(tx), self._tables, hash_token(token), is_locked=True)
        return None if row is None else await self._start_session(tx, row["id"], client)

    async def log_out(self, tx: Transaction, session: str) -> None:
        """End a session."""
        await app_users.end_session(connection_of(tx), self._tables, hash_token(session))

    async def is_password_of(self, user: User, password: str) -> bool:
        """Return whether this is the password of a user. Raises LimitReached."""
        async with self.hook.transaction() as tx:
            row = await app_users.find(connection_of(tx), self._tables, user.id)
        return await is_password(None if row is None else row["password_hash"], password)

    async def _start_session(self, tx: Transaction, user_id: int, client: ClientInfo) -> str:
        session = secrets.token_urlsafe(32)
        lifetime = timedelta(seconds=self.session_s)
        await app_users.start_session(connection_of(tx), self._tables, hash_token(session), user_id, lifetime, client)
        return session

    def _check_roles(self, roles: Sequence[str]) -> None:
        if unknown := [role for role in roles if role not in self.roles]:
            role_names = ", ".join(self.roles) or "none"
            raise InvalidValue(f"there is no role {unknown[0]}; roles here are: {role_names}", "roles")

    def _new_token(self) -> str:
        return self._token_prefix + secrets.token_urlsafe(32)

    def _user(self, row: Any) -> AnyUser:
        user: AnyUser = self._class(
            id=row["id"],
            name=row["name"],
            roles=frozenset(row["roles"]),
            language=row["language"],
            is_disabled=row["disabled_at"] is not None,
        )
        return user


def hash_token(token: str) -> bytes:
    """Return the stored hash of a token or session; they have 256 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
