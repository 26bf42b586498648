"""Creates, changes and authenticates operators; what others may do with them is in the catalogue of operations.

A password's hash with weaker parameters than today's is renewed when the operator signs in. A session's token is 32
random bytes; the database stores only its SHA-256.
"""

import contextlib
import secrets
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from boathook.db import operators
from boathook.db.audit import record
from boathook.db.operators import ClientInfo as ClientInfo  # noqa: PLC0414 - re-exported
from boathook.db.operators import Operator as Operator  # noqa: PLC0414 - re-exported
from boathook.domain.endpoints import check_segment
from boathook.domain.errors import AlreadyExists, InvalidState, NotFound
from boathook.domain.model import Role
from boathook.domain.redaction import RedactedStruct
from boathook.service.access.identity_provider import ProvidedIdentity
from boathook.service.access.keys import hash_token
from boathook.service.access.passwords import hash_password, is_password, rehash_if_weak
from boathook.service.access.sign_in_link import redeem_token
from boathook.service.fields import Rule, check_value
from boathook.service.unit_of_work import AppContext, UnitOfWork, new_id

_MAX_NAME_LENGTH: Final = 120


def _check_name(name: str) -> None:
    name = name.strip()
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"a name has 1 to {_MAX_NAME_LENGTH} printable characters")
    check_segment(name)


OperatorName = Annotated[str, Rule(check=_check_name)]
_DEVELOPER: Final = "boathook dev"
_DEVELOPER_SUBJECT: Final = "boathook dev"
"""Subjects of identity providers begin with an issuer's URL."""


class NewSession(RedactedStruct, frozen=True):
    """The session of an operator who has just signed in."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    operator: Operator
    token: str


async def create(
    work: UnitOfWork, name: str, role: Role, password: str | None = None, subject: str | None = None
) -> Operator:
    """Create an operator.

    Args:
        work: the unit of work.
        name: the operator's name.
        role: the operator's role.
        password: None for an operator who signs in only through the identity provider.
        subject: the operator's id at the identity provider; None links the first user from there with this name.

    Raises:
        InvalidValue: the name or the password is invalid.
        AlreadyExists: there is an operator with this name.
    """
    name = check_value(OperatorName, name.strip(), "name")
    if await operators.find(work.connection, name) is not None:
        raise AlreadyExists(f"operator {name} already exists")
    password_hash = None if password is None else await hash_password(password)
    created = await operators.insert(
        work.connection, Operator(id=new_id(), name=name, role=role, password_hash=password_hash, subject=subject)
    )
    if created is None:
        raise AlreadyExists(f"operator {name} already exists")
    await record(work.connection, work.actor, "operator.create", created.shown_id, f"{name}, {role}")
    return created


async def get(work: UnitOfWork, name: str) -> Operator:
    """Return the operator with this name. Raises NotFound."""
    operator = await operators.find(work.connection, name)
    if operator is None:
        raise NotFound(f"there is no operator {name}; see: boathook operators list")
    return operator


async def set_role(work: UnitOfWork, name: str, role: Role) -> Operator:
    """Change an operator's role.

    Raises:
        NotFound: there is no operator with this name.
        InvalidState: no admin would be left.
    """
    operator = await get(work, name)
    if role is not Role.ADMIN:
        await keep_an_admin(work, operator)
    await operators.update(work.connection, operator.id, role=role)
    await record(
        work.connection, work.actor, "operator.role", operator.shown_id, f"{operator.name}: {operator.role} to {role}"
    )
    return await get(work, name)


async def set_password(work: UnitOfWork, name: str, password: str, *, keep: str | None = None) -> None:
    """Change an operator's password, and end all of their sessions except the one with the token *keep*.

    Raises:
        NotFound: there is no operator with this name.
        InvalidValue: the password is invalid.
    """
    operator = await get(work, name)
    await operators.update(work.connection, operator.id, password_hash=await hash_password(password))
    await operators.end_sessions(work.connection, operator.id, but=None if keep is None else hash_token(keep))
    await record(work.connection, work.actor, "operator.password", operator.shown_id, operator.name)


async def keep_an_admin(work: UnitOfWork, operator: Operator) -> None:
    """Check that another enabled admin is left without this operator. Raises InvalidState."""
    others = [id for id in await operators.lock_admins(work.connection) if id != operator.id]
    if operator.role == Role.ADMIN and operator.disabled_at is None and not others:
        raise InvalidState(f"{operator.name} is the only admin; create another one first", "last_admin")


async def sign_in(
    app_context: AppContext, name: str, password: str, lifetime: timedelta, browser: ClientInfo
) -> NewSession | None:
    """Return a new session if the password is right; an unknown name is rejected after the same time.

    No transaction is open during the comparison, so guessing clients cannot exhaust the database connections.

    Raises:
        LimitReached: too many passwords wait to be compared.
    """
    async with app_context.work() as work:
        operator = await operators.find(work.connection, name)
    is_right = await is_password(None if operator is None else operator.password_hash, password)
    if operator is None or not is_right or operator.password_hash is None or operator.disabled_at is not None:
        return None
    renewed = await rehash_if_weak(operator.password_hash, password)
    async with app_context.work() as work:
        # Locked, so that a concurrent change of the password ends this session too.
        current = await operators.lock(work.connection, operator.id)
        if current is None or current.password_hash != operator.password_hash or current.disabled_at is not None:
            return None
        if renewed is not None:
            await operators.update(work.connection, current.id, password_hash=renewed)
        return await start_session(work, current, lifetime, browser)


async def sign_in_with_provider(
    work: UnitOfWork, person: ProvidedIdentity, lifetime: timedelta, browser: ClientInfo
) -> NewSession:
    """Return a new session for a user whom the identity provider has authenticated.

    A first login creates an operator, or links the operator of that name who has no other way to sign in. If the
    settings map a claim to roles, each login updates the role.

    Raises:
        InvalidState: the user has no access, or another operator has their name.
    """
    operator = await operators.find_by_subject(work.connection, person.subject)
    if operator is None:
        operator = await _link_or_create(work, person)
    if operator.disabled_at is not None:
        raise InvalidState(f"{operator.name} is disabled; an admin can enable it", "operator_disabled")
    if person.role is None and person.is_role_managed:
        raise _roleless(person)
    if person.role is not None and person.role != operator.role:
        operator = await set_role(work, operator.name, person.role)
    return await start_session(work, operator, lifetime, browser)


async def _link_or_create(work: UnitOfWork, person: ProvidedIdentity) -> Operator:
    operator = await operators.find(work.connection, person.name)
    if operator is None:
        if person.role is None:
            raise _roleless(person)
        with contextlib.suppress(AlreadyExists):  # at the same moment, for example by a sign-in in another tab
            return await create(work, person.name, person.role, subject=person.subject)
        operator = await get(work, person.name)
    operator = await operators.lock(work.connection, operator.id)
    if operator is not None and operator.subject == person.subject:
        return operator
    if (
        operator is None
        or operator.password_hash is not None
        or operator.subject is not None
        or not person.is_name_verified
    ):
        raise InvalidState(
            f"the name {person.name} belongs to another operator; an admin can change that", "name_taken"
        )
    linked = await operators.link_subject(work.connection, operator.id, person.subject)
    await record(work.connection, work.actor, "operator.bind", operator.shown_id, person.subject)
    return linked


def _roleless(person: ProvidedIdentity) -> InvalidState:
    return InvalidState(f"{person.name} has no role here; see console.oidc_roles", "no_role")


async def sign_in_with_link(
    app_context: AppContext, token: str, lifetime: timedelta, browser: ClientInfo
) -> NewSession | None:
    """Return a new session of the developer, an admin, if `boathook dev` made the token; None if it is not valid.

    The operator has no password, and a subject of no identity provider, so there is no other way to sign in as it.

    Raises:
        InvalidState: an admin has disabled the developer.
    """
    if not redeem_token(app_context.settings.server.data_dir, token):
        return None
    async with app_context.work(actor="console:sign-in") as work:
        operator = await operators.find_by_subject(work.connection, _DEVELOPER_SUBJECT)
        if operator is None:
            operator = await create(work, _DEVELOPER, Role.ADMIN, subject=_DEVELOPER_SUBJECT)
        if operator.disabled_at is not None:
            raise InvalidState(f"{operator.name} is disabled; another admin can enable it", "operator_disabled")
        return await start_session(work, operator, lifetime, browser)


async def is_password_of(operator: Operator, password: str) -> bool:
    """Return whether this is the password of a signed-in operator."""
    return await is_password(operator.password_hash, password)


async def start_session(work: UnitOfWork, operator: Operator, lifetime: timedelta, browser: ClientInfo) -> NewSession:
    """Start a session for an authenticated operator."""
    token = secrets.token_urlsafe(32)
    await operators.start_session(work.connection, hash_token(token), operator.id, lifetime, browser)
    await record(
        work.connection, f"console:{operator.name}", "operator.sign_in", operator.shown_id, browser.client_address
    )
    return NewSession(operator, token)


async def find_session(work: UnitOfWork, token: str, idle: timedelta, *, is_active: bool = True) -> Operator | None:
    """Return the operator of a session token, if the session is still valid.

    Args:
        work: the unit of work.
        token: the session token of the browser.
        idle: the idle timeout.
        is_active: whether to extend the session, because the user is active.
    """
    return await operators.find_session(work.connection, hash_token(token), idle, is_active=is_active)


async def sign_out(work: UnitOfWork, operator: Operator, token: str) -> None:
    """End the session of one browser."""
    await operators.end_session(work.connection, hash_token(token))
    await record(work.connection, work.actor, "operator.sign_out", operator.shown_id)


async def sign_out_everywhere(work: UnitOfWork, operator: Operator, *, but: str | None = None) -> None:
    """End all sessions of an operator, except the one with the token *but*."""
    await operators.end_sessions(work.connection, operator.id, but=None if but is None else hash_token(but))
    await record(work.connection, work.actor, "operator.sign_out_everywhere", operator.shown_id)
