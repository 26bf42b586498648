"""Operations on operators, the users of the console. No token gives anybody access: see decision 0069."""

from datetime import datetime
from typing import Annotated, ClassVar, Final

from boathook.db import operator_tokens
from boathook.db import operators as stored
from boathook.db.audit import record
from boathook.db.operators import Operator as StoredOperator
from boathook.domain import ids
from boathook.domain.model import Role
from boathook.domain.redaction import RedactedStruct
from boathook.service.access import operators
from boathook.service.access.authorization import Permission
from boathook.service.access.operators import OperatorName
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Rule
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Operator"
_Named = Annotated[str, Rule(help="Sign-in name, such as an e-mail address.", argument="NAME")]
_Password = Annotated[str, Rule(help="Password, of at least 12 characters.", is_secret=True)]


class Operator(Result, frozen=True, kw_only=True):
    """An operator."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.OPERATOR)]
    name: str
    role: Role
    has_password: Annotated[bool, Rule(help="False for one who signs in only through the identity provider.")]
    sessions: Annotated[int, Rule(help="Number of active sessions.")]
    created_at: datetime | None
    signed_in_at: datetime | None
    disabled_at: datetime | None


class OperatorList(Result, frozen=True, kw_only=True):
    """All operators."""

    data: list[Operator]


class OperatorState(Result, frozen=True, kw_only=True):
    """Whether an operator may sign in."""

    name: str
    disabled: bool


class OperatorDeleted(Result, frozen=True, kw_only=True):
    """An operator that was deleted."""

    name: str
    deleted: bool = True


class PasswordChanged(Result, frozen=True, kw_only=True):
    """An operator with a new password."""

    name: str
    password: str = "changed"  # noqa: S105 - says only that there is a new one


class AllOperators(Input, frozen=True, kw_only=True):
    """Every operator."""


class OperatorNamed(Input, frozen=True, kw_only=True):
    """The operator that is meant."""

    name: _Named


class NewOperator(RedactedStruct, Input, frozen=True, kw_only=True, rename="camel"):
    """An operator to create."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"password"})

    name: Annotated[OperatorName, Rule(help="Sign-in name, such as an e-mail address.", argument="NAME")]
    role: Annotated[
        Role, Rule(help="viewer: read access; operator: also acts; admin: also manages operators, keys and secrets.")
    ] = Role.VIEWER
    password: _Password | None = None


class NewRole(Input, frozen=True, kw_only=True):
    """The operator that is meant, and the role."""

    name: _Named
    role: Annotated[Role, Rule(help="New role.", argument="ROLE")]


class NewPassword(RedactedStruct, Input, frozen=True, kw_only=True, rename="camel"):
    """The operator that is meant, and the password."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"password", "keep"})

    name: _Named
    password: _Password
    keep: Annotated[str | None, Rule(help="The only session that stays signed in.", is_secret=True)] = None


@operation(
    "operator.create",
    Permission.OPERATOR_ACCESS_MANAGE,
    Scope.DEPLOYMENT,
    None,
    tag=TAG,
    undo="delete it",
    says="{name} can now sign in as {role}",
    examples=(
        "boathook operators create anna@example.com --role admin",
        "pass show boathook | boathook operators create ci --role viewer --password-stdin",
        "boathook operators create ben@example.com --role operator --no-password",
    ),
)
async def create(work: UnitOfWork, new: NewOperator) -> Operator:
    """Create an operator."""
    return _view(await operators.create(work, new.name, new.role, new.password))


@operation(
    "operator.list",
    Permission.OPERATOR_MANAGE,
    Scope.DEPLOYMENT,
    Http("GET", "/operator"),
    tag=TAG,
    examples=("boathook operators list", "boathook operators list --json"),
)
async def list_operators(work: UnitOfWork, _all: AllOperators) -> OperatorList:
    """List operators."""
    return OperatorList(data=[_view(row) for row in await stored.list_all(work.connection)])


@operation(
    "operator.password",
    Permission.OPERATOR_ACCESS_MANAGE,
    Scope.DEPLOYMENT,
    None,
    tag=TAG,
    undo="set another one",
    says="{name} has a new password and is signed out everywhere",
    examples=("boathook operators password anna@example.com",),
)
async def set_password(work: UnitOfWork, new: NewPassword) -> PasswordChanged:
    """Set a new password and end the operator's sessions."""
    await operators.set_password(work, new.name, new.password, keep=new.keep)
    return PasswordChanged(name=new.name)


@operation(
    "operator.role",
    Permission.OPERATOR_ACCESS_MANAGE,
    Scope.DEPLOYMENT,
    None,
    tag=TAG,
    undo="set the former role",
    says="{name} is {role}",
    examples=("boathook operators role ben@example.com admin",),
)
async def set_role(work: UnitOfWork, new: NewRole) -> Operator:
    """Change the role of an operator."""
    return _view(await operators.set_role(work, new.name, new.role))


@operation(
    "operator.disable",
    Permission.OPERATOR_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/operator/{name}/disable"),
    tag=TAG,
    undo="enable the operator; revoked tokens stay revoked",
    says="{name} is disabled and signed out",
    examples=("boathook operators disable ben@example.com",),
)
async def disable(work: UnitOfWork, reference: OperatorNamed) -> OperatorState:
    """Disable an operator, end the sessions and revoke the tokens."""
    operator = await operators.get(work, reference.name)
    await operators.keep_an_admin(work, operator)
    await stored.update(work.connection, operator.id, is_disabled=True)
    await stored.end_sessions(work.connection, operator.id)
    await operator_tokens.revoke_all(work.connection, operator.id)
    await record(work.connection, work.actor, "operator.disable", operator.shown_id, operator.name)
    return OperatorState(name=operator.name, disabled=True)


@operation(
    "operator.enable",
    Permission.OPERATOR_ACCESS_MANAGE,
    Scope.DEPLOYMENT,
    None,
    tag=TAG,
    undo="disable the operator",
    says="{name} is enabled",
    examples=("boathook operators enable ben@example.com",),
)
async def enable(work: UnitOfWork, reference: OperatorNamed) -> OperatorState:
    """Enable an operator."""
    operator = await operators.get(work, reference.name)
    await stored.update(work.connection, operator.id, is_disabled=False)
    await record(work.connection, work.actor, "operator.enable", operator.shown_id, operator.name)
    return OperatorState(name=operator.name, disabled=False)


@operation(
    "operator.delete",
    Permission.OPERATOR_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/operator/{name}/delete"),
    tag=TAG,
    undo=None,
    says="{name} is deleted",
    examples=("boathook operators delete ben@example.com",),
)
async def delete(work: UnitOfWork, reference: OperatorNamed) -> OperatorDeleted:
    """Delete an operator; the audit entries are kept."""
    operator = await operators.get(work, reference.name)
    await operators.keep_an_admin(work, operator)
    await stored.delete(work.connection, operator.id)
    await record(work.connection, work.actor, "operator.delete", operator.shown_id, operator.name)
    return OperatorDeleted(name=operator.name)


def _view(row: StoredOperator) -> Operator:
    return Operator(
        id=row.shown_id,
        name=row.name,
        role=Role(row.role),
        has_password=row.password_hash is not None,
        sessions=row.sessions,
        created_at=row.created_at,
        signed_in_at=row.signed_in_at,
        disabled_at=row.disabled_at,
    )
