"""Creates and revokes the bearer tokens of operators, and authenticates their holders.

An operator has tokens for programs that use the API on the whole deployment: scripts, the remote command line, agents.
A token is created in the console or on the host, never with another token; it is shown once, and stored as a hash.
"""

import secrets
from datetime import timedelta
from typing import Annotated, ClassVar, Final
from uuid import UUID

from boathook.db import operator_tokens, operators
from boathook.db.audit import record
from boathook.db.operator_tokens import OperatorToken as OperatorToken  # noqa: PLC0414 - re-exported
from boathook.db.operators import Operator
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidValue, LimitReached, NotAllowed, NotFound
from boathook.domain.model import Role
from boathook.domain.redaction import RedactedStruct
from boathook.service import limits
from boathook.service.access.authorization import ApiCaller, OperatorTokenCaller
from boathook.service.access.keys import ENTROPY, hash_token
from boathook.service.access.login_rate import OperatorTokenRates
from boathook.service.access.operators import get
from boathook.service.common_fields import KeyName
from boathook.service.fields import Rule, check_value
from boathook.service.unit_of_work import Connection, UnitOfWork, new_id

PREFIX: Final = "bho_"
DEFAULT_LIFETIME: Final = timedelta(days=30)


def _check_lifetime(seconds: int) -> None:
    low, high = limits.MIN_OPERATOR_TOKEN_LIFETIME, limits.MAX_OPERATOR_TOKEN_LIFETIME
    if not low.total_seconds() <= seconds <= high.total_seconds():
        raise ValueError(f"write a minute to {high.days} days")


TokenLifetime = Annotated[int, Rule(check=_check_lifetime)]

rates = OperatorTokenRates()
"""Limits the requests of this process with operators' tokens."""


class CreatedToken(RedactedStruct, frozen=True):
    """A token that was just created."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"text"})

    token: OperatorToken
    text: str
    """The bearer token; it is not stored and cannot be shown again."""


async def create(
    work: UnitOfWork, operator: str, name: str, role: Role | None = None, lifetime: timedelta = DEFAULT_LIFETIME
) -> CreatedToken:
    """Create a token of an operator.

    Args:
        work: the unit of work.
        operator: the operator's name.
        name: what the token is for.
        role: the token's role; None: the operator's.
        lifetime: 90 days at most.

    Raises:
        NotAllowed: the caller has a key or a token itself.
        NotFound: there is no such operator.
        InvalidValue: the name or the lifetime is invalid, or the operator does not have this role.
        InvalidState: the operator is disabled.
        LimitReached: the operator has the maximum number of valid tokens.
    """
    if isinstance(work.caller, ApiCaller):
        raise NotAllowed(
            "no key and no token creates operator tokens; use the console, or the command line on the host"
        )
    owner = await _lock(work, operator)
    check_value(KeyName, name, "name")
    check_value(TokenLifetime, int(lifetime.total_seconds()), "lifetime")
    if role is not None and not Role(owner.role).covers(role):
        raise InvalidValue(f"{owner.name} is {owner.role}; a token has no higher role than its operator", "role")
    text = PREFIX + secrets.token_urlsafe(ENTROPY)
    token = OperatorToken(
        id=new_id(), operator_id=owner.id, operator=owner.name, name=name.strip(), role=role or owner.role
    )
    created = await operator_tokens.insert(
        work.connection, token, hash_token(text), lifetime, limit=limits.MAX_OPERATOR_TOKENS
    )
    if created is None:
        raise LimitReached(f"{owner.name} has {limits.MAX_OPERATOR_TOKENS} valid tokens; revoke unused ones")
    await record(work.connection, work.actor, "operator_token.create", created.shown_id, _describe(created))
    return CreatedToken(created, text)


async def _lock(work: UnitOfWork, name: str) -> Operator:
    """Return an operator, locked, so that a lower role, or its end, comes before the token or after it."""
    owner = await operators.lock(work.connection, (await get(work, name)).id)
    if owner is None:
        raise NotFound(f"there is no operator {name}; see: boathook operators list")
    if owner.disabled_at is not None:
        raise InvalidState(f"{owner.name} is disabled; enable the operator first", "operator_disabled")
    return owner


def _describe(token: OperatorToken) -> str:
    assert token.expires_at is not None, "a stored token has an expiry"
    return f"{token.operator}: {token.name}, {token.role}, until {token.expires_at:%Y-%m-%d %H:%M} UTC"


async def list_of(work: UnitOfWork, operator: Operator) -> list[OperatorToken]:
    """Return all tokens of an operator, newest first."""
    return await operator_tokens.list_all(work.connection, operator.id)


async def revoke(work: UnitOfWork, id: UUID, operator_id: UUID | None = None) -> None:
    """Revoke a token immediately.

    Args:
        work: the unit of work.
        id: the token's id.
        operator_id: only if it is a token of this operator.

    Raises:
        NotFound: there is no such valid token.
    """
    shown_id = ids.show(ids.OPERATOR_TOKEN, id)
    if not await operator_tokens.revoke(work.connection, id, operator_id):
        raise NotFound(f"there is no valid operator token {shown_id}")
    await record(work.connection, work.actor, "operator_token.revoke", shown_id)


async def authenticate(connection: Connection, token: str, client: str) -> OperatorTokenCaller | None:
    """Return the holder of an operator's token; None if it is not valid.

    The operator is read again for each request, so a lower role and a disabled operator have effect at once.

    Args:
        connection: reads the token.
        token: the bearer token.
        client: the client's address.

    Raises:
        RateLimited: the address has sent too many wrong tokens, or the token too many requests.
    """
    sha256 = hash_token(token)
    rates.check(sha256, client)
    usable = await operator_tokens.find(connection, sha256)
    if usable is None:
        rates.count_failure(sha256, client)
        return None
    rates.count_request(sha256)
    return OperatorTokenCaller(
        token_id=usable.id,
        operator_id=usable.operator_id,
        operator=usable.operator,
        role=Role(usable.role).at_most(Role(usable.operator_role)),
    )
