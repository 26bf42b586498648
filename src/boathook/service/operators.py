"""Operators: made, changed and listed, and how they prove who they are.

Passwords are hashed with Argon2id (RFC 9106), whose parameters are those its library holds to be right; a hash that was
made with weaker ones is renewed when its owner signs in. A session's token is 32 random bytes, of which the database
knows the SHA-256 alone.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from boathook.db import operators
from boathook.db.audit import record
from boathook.db.operators import ClientInfo as ClientInfo  # noqa: PLC0414 - what these functions are asked for
from boathook.db.operators import Operator as Operator  # noqa: PLC0414 - what these functions return
from boathook.domain.errors import AlreadyExists, InvalidState, InvalidValue, LimitReached, NotFound
from boathook.domain.model import Role
from boathook.service.keys import hash_token
from boathook.service.oidc import OidcIdentity
from boathook.service.unit_of_work import AppContext, UnitOfWork, new_id

Result = TypeVar("Result")

MIN_PASSWORD_LENGTH: Final = 12
_MAX_PASSWORD_LENGTH: Final = 1_024
_MAX_NAME_LENGTH: Final = 120
_HASHER: Final = PasswordHasher()
_DUMMY_HASH: Final = "$argon2id$v=19$m={0.memory_cost},t={0.time_cost},p={0.parallelism}${1}${2}".format(
    _HASHER, "A" * 22, "A" * 43
)
"""What a password of nobody is compared with, so that an unknown name takes as long as a known one: zeros in the place
of salt and hash, which no password is known to lead to. To make a real one would take as long at each start."""
_PASSWORD_POOL: Final = ThreadPoolExecutor(1, "passwords")
"""One at a time: each takes 64 MiB and a good part of a second of several cores, which are there for events as well."""
_MAX_WAITING: Final = 8
"""Whoever comes when so many wait is told to come again: strangers may ask for as many comparisons as they like."""
_waiting = 0


@dataclass(frozen=True, slots=True)
class NewSession:
    """A browser in which somebody has just signed in."""

    operator: Operator
    token: str


async def create(
    work: UnitOfWork, name: str, role: Role, password: str | None = None, subject: str | None = None
) -> Operator:
    """Let somebody sign in.

    Args:
        password: None for those who sign in through the identity provider only.
        subject: who they are to the identity provider; None binds them to whoever comes from there with this name.

    Raises:
        InvalidValue: the name or the password breaks a rule.
        Taken: there is somebody with this name.
    """
    name = _checked_name(name)
    if await operators.find(work.connection, name) is not None:
        raise AlreadyExists(f"there is an operator {name} already")
    password_hash = None if password is None else await _hashed(password)
    made = await operators.insert(
        work.connection, Operator(id=new_id(), name=name, role=role, password_hash=password_hash, subject=subject)
    )
    await record(work.connection, work.actor, "operator.create", made.shown_id, f"{name}, {role}")
    return made


async def list_all(work: UnitOfWork) -> Sequence[Operator]:
    """Return everybody, in the order of their names."""
    return await operators.list_all(work.connection)


async def get(work: UnitOfWork, name: str) -> Operator:
    """Return who has this name. Raises NotFound."""
    found = await operators.find(work.connection, name)
    if found is None:
        raise NotFound(f"there is no operator {name}; see: boathook operators list")
    return found


async def set_role(work: UnitOfWork, name: str, role: Role) -> Operator:
    """Give somebody another role.

    Raises:
        NotFound: there is nobody with this name.
        InvalidState: nobody would be admin any more.
    """
    operator = await get(work, name)
    if role is not Role.ADMIN:
        await _keep_an_admin(work, operator)
    await operators.update(work.connection, operator.id, role=role)
    await record(
        work.connection, work.actor, "operator.role", operator.shown_id, f"{operator.name}: {operator.role} to {role}"
    )
    return await get(work, name)


async def set_password(work: UnitOfWork, name: str, password: str, *, keep: str | None = None) -> None:
    """Give somebody another password, and sign them out everywhere but in the browser with the token *keep*.

    Raises:
        NotFound: there is nobody with this name.
        InvalidValue: the password breaks a rule.
    """
    operator = await get(work, name)
    await operators.update(work.connection, operator.id, password_hash=await _hashed(password))
    await operators.end_sessions(work.connection, operator.id, but=None if keep is None else hash_token(keep))
    await record(work.connection, work.actor, "operator.password", operator.shown_id, operator.name)


async def disable(work: UnitOfWork, name: str) -> None:
    """Keep somebody out, and sign them out everywhere. Raises as `set_role` does."""
    operator = await get(work, name)
    await _keep_an_admin(work, operator)
    await operators.update(work.connection, operator.id, is_disabled=True)
    await operators.end_sessions(work.connection, operator.id)
    await record(work.connection, work.actor, "operator.disable", operator.shown_id, operator.name)


async def enable(work: UnitOfWork, name: str) -> None:
    """Let somebody in again. Raises NotFound."""
    operator = await get(work, name)
    await operators.update(work.connection, operator.id, is_disabled=False)
    await record(work.connection, work.actor, "operator.enable", operator.shown_id, operator.name)


async def delete(work: UnitOfWork, name: str) -> None:
    """Remove somebody; what they did stays in the audit. Raises as `set_role` does."""
    operator = await get(work, name)
    await _keep_an_admin(work, operator)
    await operators.delete(work.connection, operator.id)
    await record(work.connection, work.actor, "operator.delete", operator.shown_id, operator.name)


async def _keep_an_admin(work: UnitOfWork, operator: Operator) -> None:
    others = [id for id in await operators.lock_admins(work.connection) if id != operator.id]
    if operator.role == Role.ADMIN and operator.disabled_at is None and not others:
        raise InvalidState(f"{operator.name} is the only admin; make another one first", "last_admin")


async def sign_in(
    app_context: AppContext, name: str, password: str, lifetime: timedelta, browser: ClientInfo
) -> NewSession | None:
    """Return a new session if this is the password of *name*; an unknown name is refused as late.

    No transaction is open while a password is compared, so that strangers who guess keep nobody from the database.

    Raises:
        LimitReached: too many passwords wait to be compared.
    """
    async with app_context.work() as work:
        operator = await operators.find(work.connection, name)
    known = _DUMMY_HASH if operator is None or operator.password_hash is None else operator.password_hash
    is_right = len(password) <= _MAX_PASSWORD_LENGTH and await _is_password(known, password)
    if operator is None or not is_right or operator.password_hash is None or operator.disabled_at is not None:
        return None
    renewed = await _hash(password) if _HASHER.check_needs_rehash(operator.password_hash) else None
    async with app_context.work() as work:
        # Locked, as a change of the password that comes at this moment is to end this session as well.
        present = await operators.lock(work.connection, operator.id)
        if present is None or present.password_hash != operator.password_hash or present.disabled_at is not None:
            return None
        if renewed is not None:
            await operators.update(work.connection, present.id, password_hash=renewed)
        return await start_session(work, present, lifetime, browser)


async def sign_in_with_oidc(
    work: UnitOfWork, person: OidcIdentity, lifetime: timedelta, browser: ClientInfo
) -> NewSession:
    """Return a new session of somebody whom the identity provider vouches for.

    Whoever comes for the first time is made known, or taken for the operator of that name who has no other way in.
    Where the settings say which claim means which role, each sign-in brings their present one, or none.

    Raises:
        InvalidState: they may not, or their name belongs to somebody else.
    """
    operator = await operators.find_by_subject(work.connection, person.subject)
    if operator is None:
        operator = await _link_or_create(work, person)
    if operator.disabled_at is not None:
        raise InvalidState(f"{operator.name} is kept out; an admin can let them in again", "operator_disabled")
    if person.role is None and person.is_role_managed:
        raise _roleless(person)
    if person.role is not None and person.role != operator.role:
        operator = await set_role(work, operator.name, person.role)
    return await start_session(work, operator, lifetime, browser)


async def _link_or_create(work: UnitOfWork, person: OidcIdentity) -> Operator:
    known = await operators.find(work.connection, person.name)
    if known is not None:
        if known.password_hash is not None or known.subject is not None or not person.is_name_verified:
            raise InvalidState(
                f"the name {person.name} belongs to another operator; an admin can change that", "name_taken"
            )
        bound = await operators.link_subject(work.connection, known.id, person.subject)
        await record(work.connection, work.actor, "operator.bind", known.shown_id, person.subject)
        return bound
    if person.role is None:
        raise _roleless(person)
    return await create(work, person.name, person.role, subject=person.subject)


def _roleless(person: OidcIdentity) -> InvalidState:
    return InvalidState(f"{person.name} has no role here; see console.oidc_roles", "no_role")


async def is_password_of(operator: Operator, password: str) -> bool:
    """Return whether this is the password of somebody who has signed in."""
    known = operator.password_hash
    return known is not None and len(password) <= _MAX_PASSWORD_LENGTH and await _is_password(known, password)


async def start_session(work: UnitOfWork, operator: Operator, lifetime: timedelta, browser: ClientInfo) -> NewSession:
    """Begin a session of somebody who has proved who they are."""
    token = secrets.token_urlsafe(32)
    await operators.start_session(work.connection, hash_token(token), operator.id, lifetime, browser)
    await record(
        work.connection, f"console:{operator.name}", "operator.sign_in", operator.shown_id, browser.client_address
    )
    return NewSession(operator, token)


async def find_session(work: UnitOfWork, token: str, idle: timedelta, *, is_active: bool = True) -> Operator | None:
    """Return who has signed in with this token, if the session is still good.

    Args:
        work: the transaction.
        token: what the browser holds.
        idle: for how long nobody may have been there.
        is_active: whether somebody is there now, which makes the session last.
    """
    return await operators.find_session(work.connection, hash_token(token), idle, is_active=is_active)


async def sign_out(work: UnitOfWork, operator: Operator, token: str) -> None:
    """End the session of one browser."""
    await operators.end_session(work.connection, hash_token(token))
    await record(work.connection, work.actor, "operator.sign_out", operator.shown_id)


async def sign_out_everywhere(work: UnitOfWork, operator: Operator, *, but: str | None = None) -> None:
    """End all sessions of somebody, but that with the token *but*."""
    await operators.end_sessions(work.connection, operator.id, but=None if but is None else hash_token(but))
    await record(work.connection, work.actor, "operator.sign_out_everywhere", operator.shown_id)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidValue(f"a name has 1 to {_MAX_NAME_LENGTH} characters that can be printed", "name")
    return name


async def _hashed(password: str) -> str:
    if not MIN_PASSWORD_LENGTH <= len(password) <= _MAX_PASSWORD_LENGTH:
        raise InvalidValue(
            f"a password has at least {MIN_PASSWORD_LENGTH} characters, and no more than {_MAX_PASSWORD_LENGTH}",
            "password",
        )
    return await _hash(password)


async def _hash(password: str) -> str:
    return await _run_in_pool(_HASHER.hash, password)


async def _is_password(password_hash: str, password: str) -> bool:
    try:
        return await _run_in_pool(_HASHER.verify, password_hash, password)
    except (VerifyMismatchError, InvalidHashError):
        return False


async def _run_in_pool(work: Callable[..., Result], *values: str) -> Result:
    global _waiting  # noqa: PLW0603 - it goes with the thread, which is one for a process too
    if _waiting > _MAX_WAITING:
        raise LimitReached("too many passwords wait to be compared; try again in a few seconds")
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_PASSWORD_POOL, work, *values)
    finally:
        _waiting -= 1
