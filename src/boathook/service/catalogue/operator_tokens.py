"""Operations on tokens of operators; no key and no token creates one."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

from msgspec.structs import asdict

from boathook.db import operator_tokens as stored
from boathook.db.operator_tokens import OperatorToken as StoredToken
from boathook.domain import ids
from boathook.domain.model import Role
from boathook.service.access import operator_tokens, operators
from boathook.service.access.authorization import Permission
from boathook.service.access.operator_tokens import DEFAULT_LIFETIME, TokenLifetime
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import PageInput, Result, read_id, read_iterator
from boathook.service.common_fields import KeyName
from boathook.service.fields import Input, Rule
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Operator"


class OperatorToken(Result, frozen=True, kw_only=True):
    """A token of an operator, without its text."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.OPERATOR_TOKEN)]
    operator: Annotated[str, Rule(help="The operator's name.")]
    name: str
    role: Annotated[Role, Rule(help="Its role; it has that of its operator if this is lower.")]
    created_at: datetime | None
    expires_at: datetime | None
    used_at: Annotated[datetime | None, Rule(help="When it was last used, to the minute.")]
    revoked_at: datetime | None


class CreatedToken(OperatorToken, frozen=True, kw_only=True):
    """A token that was just created."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    token: Annotated[str, Rule(help="The bearer token; it is not stored, and never shown again.")]


class TokenRevoked(Result, frozen=True, kw_only=True):
    """A token that is not valid any more."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.OPERATOR_TOKEN)]
    revoked: bool = True


class TokenPage(Result, frozen=True, kw_only=True):
    """A page of tokens."""

    data: list[OperatorToken]
    iterator: str | None
    done: bool


class NewToken(Input, frozen=True, kw_only=True):
    """A token to create."""

    operator: Annotated[str, Rule(help="The operator's name.", argument="OPERATOR")]
    name: Annotated[KeyName, Rule(help="What uses the token.")]
    role: Annotated[Role | None, Rule(help="A lower role than the operator's.")] = None
    lifetime_seconds: Annotated[
        TokenLifetime, Rule(help="Lifetime, 90d at most.", unit="seconds", option="--expires", is_duration=True)
    ] = int(DEFAULT_LIFETIME.total_seconds())


class TokenFilter(PageInput, frozen=True, kw_only=True):
    """The tokens to list."""

    operator: Annotated[str | None, Rule(help="Only of this operator.", argument="OPERATOR")] = None


class TokenNamed(Input, frozen=True, kw_only=True):
    """The token that is meant."""

    id: Annotated[str, Rule(help="The token's id.", argument="TOKEN", prefix=ids.OPERATOR_TOKEN)]


@operation(
    "operator_token.create",
    Permission.OPERATOR_ACCESS_MANAGE,
    Scope.DEPLOYMENT,
    None,
    tag=TAG,
    undo="revoke it",
    secret="token",  # noqa: S106 - the name of a field
    examples=(
        "boathook operators tokens create anna@example.com --name laptop",
        "boathook operators tokens create ci --name deploy --role operator --expires 7d --json",
    ),
)
async def create(work: UnitOfWork, new: NewToken) -> CreatedToken:
    """Create a token and print it once; it is not stored."""
    lifetime = timedelta(seconds=new.lifetime_seconds)
    created = await operator_tokens.create(work, new.operator, new.name, new.role, lifetime)
    return CreatedToken(token=created.text, **asdict(view(created.token)))


@operation(
    "operator_token.list",
    Permission.OPERATOR_MANAGE,
    Scope.DEPLOYMENT,
    Http("GET", "/operator-token"),
    tag=TAG,
    examples=("boathook operators tokens list", "boathook operators tokens list ci --json"),
)
async def list_tokens(work: UnitOfWork, input: TokenFilter) -> TokenPage:
    """List tokens, newest first."""
    owner = None if input.operator is None else (await operators.get(work, input.operator)).id
    before = None if input.iterator is None else read_iterator(ids.OPERATOR_TOKEN, input.iterator)
    rows: Sequence[StoredToken] = await stored.list_all(work.connection, owner, before=before, limit=input.limit + 1)
    data = [view(row) for row in rows[: input.limit]]
    return TokenPage(data=data, iterator=data[-1].id if data else None, done=len(rows) <= input.limit)


@operation(
    "operator_token.revoke",
    Permission.OPERATOR_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/operator-token/{id}/revoke"),
    tag=TAG,
    undo=None,
    says="{id} revoked",
    examples=("boathook operators tokens revoke otk_01h455vb4pex5vsknk084sn02q4",),
)
async def revoke(work: UnitOfWork, reference: TokenNamed) -> TokenRevoked:
    """Revoke a token immediately."""
    await operator_tokens.revoke(work, read_id(ids.OPERATOR_TOKEN, reference.id))
    return TokenRevoked(id=reference.id)


def view(token: StoredToken) -> OperatorToken:
    """Return a token as interfaces show it."""
    return OperatorToken(
        id=token.shown_id,
        operator=token.operator,
        name=token.name,
        role=Role(token.role),
        created_at=token.created_at,
        expires_at=token.expires_at,
        used_at=token.used_at,
        revoked_at=token.revoked_at,
    )
