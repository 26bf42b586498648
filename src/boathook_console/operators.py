"""Pages of operators and their tokens for admins, and each operator's own account."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from urllib.parse import quote
from uuid import UUID

from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import AdminError, BoathookError, InvalidState, InvalidValue, NotFound
from boathook.domain.model import Role
from boathook.service.access import operator_tokens, operators
from boathook.service.access.authorization import Permission
from boathook.service.access.login_rate import LoginRateLimiter
from boathook.service.access.operator_tokens import OperatorToken
from boathook.service.access.operators import Operator
from boathook.service.catalogue import operator_tokens as token_actions
from boathook.service.catalogue import operators as actions
from boathook.service.catalogue.values import name_object
from boathook_console.routes import BASE, ConsoleContext, Routes

routes = Routes()
_LIST: Final = f"{BASE}/operators"
_ACCOUNT: Final = f"{BASE}/account"
_LIFETIMES: Final = (("1", "in a day"), ("7", "in a week"), ("30", "in 30 days"), ("90", "in 90 days"))
_rate_limiter = LoginRateLimiter()


@routes.get("/operators", Permission.OPERATOR_MANAGE)
async def list_operators(context: ConsoleContext, status: int = 200, error: str = "") -> Response:
    """Show the operators."""
    async with context.work() as work:
        everyone = await actions.list_operators(work, actions.AllOperators())
    return context.page("operators/list.html", status, people=everyone.data, roles=list(Role), error=error)


@routes.post("/operators", Permission.OPERATOR_ACCESS_MANAGE)
async def create(context: ConsoleContext) -> Response:
    """Create an operator."""
    password = context.field("password")
    try:
        async with context.work() as work:
            new = actions.NewOperator(name=context.field("name"), role=_role(context), password=password or None)
            created = await actions.create(work, new)
    except AdminError as error:
        return await list_operators(context, 400, str(error))
    return context.to(_LIST, f"{created.name} can now sign in as {created.role}.")


@routes.post("/operators/{name}/role", Permission.OPERATOR_ACCESS_MANAGE)
async def change_role(context: ConsoleContext) -> Response:
    """Change the role of an operator."""
    async with context.work() as work:
        changed = await actions.set_role(work, actions.NewRole(name=context.path["name"], role=_role(context)))
    return context.to(_LIST, f"{changed.name} is {changed.role}.")


@routes.post("/operators/{name}/password", Permission.OPERATOR_ACCESS_MANAGE)
async def change_password(context: ConsoleContext) -> Response:
    """Set a new password for an operator."""
    name = context.path["name"]
    async with context.work() as work:
        new = actions.NewPassword(name=name, password=context.field("password"), keep=_own_session(context, name))
        await actions.set_password(work, new)
    return context.to(_LIST, f"{name} has a new password and is signed out of all other sessions.")


@routes.post("/operators/{name}/disable", Permission.OPERATOR_MANAGE)
async def disable(context: ConsoleContext) -> Response:
    """Disable an operator, end their sessions and revoke their tokens."""
    async with context.work() as work:
        await actions.disable(work, _named(context))
    return context.to(_LIST, f"{context.path['name']} is disabled and signed out.")


@routes.post("/operators/{name}/enable", Permission.OPERATOR_ACCESS_MANAGE)
async def enable(context: ConsoleContext) -> Response:
    """Enable an operator."""
    async with context.work() as work:
        await actions.enable(work, _named(context))
    return context.to(_LIST, f"{context.path['name']} is enabled.")


@routes.post("/operators/{name}/delete", Permission.OPERATOR_MANAGE)
async def delete(context: ConsoleContext) -> Response:
    """Delete an operator."""
    async with context.work() as work:
        await actions.delete(work, _named(context))
    return context.to(_LIST, f"{context.path['name']} is deleted. Their audit entries are kept.")


@routes.get("/operators/{name}/tokens", Permission.OPERATOR_MANAGE)
async def list_tokens(context: ConsoleContext, status: int = 200, error: BoathookError | None = None) -> Response:
    """Show the tokens of an operator."""
    async with context.work() as work:
        owner = await operators.get(work, context.path["name"])
        rows = await operator_tokens.list_of(work, owner)
    return context.page(
        "operators/tokens.html", status, base=_tokens_path(owner.name), **_token_values(context, owner, rows, error)
    )


@routes.post("/operators/{name}/tokens", Permission.OPERATOR_ACCESS_MANAGE)
async def create_token(context: ConsoleContext) -> Response:
    """Create a token of an operator, and show it only in this response."""
    try:
        lifetime = _read_lifetime(context)
        new = token_actions.NewToken(
            operator=context.path["name"],
            name=context.field("name"),
            role=_role(context),
            lifetime_seconds=int(lifetime.total_seconds()),
        )
        async with context.work() as work:
            created = await token_actions.create(work, new)
    except AdminError as error:
        return await list_tokens(context, 400, error)
    return context.page(
        "operators/token_created.html", created=created, text=created.token, back=_tokens_path(created.operator)
    )


@routes.post("/operators/{name}/tokens/{id}/revoke", Permission.OPERATOR_MANAGE)
async def revoke_token(context: ConsoleContext) -> Response:
    """Revoke a token of an operator immediately."""
    async with context.work() as work:
        owner = await operators.get(work, context.path["name"])
        reference = name_object(token_actions.TokenNamed, context.path["id"])
        if reference.id not in {token.shown_id for token in await operator_tokens.list_of(work, owner)}:
            raise NotFound(f"{owner.name} has no token {reference.id}")
        await token_actions.revoke(work, reference)
    return context.to(_tokens_path(owner.name), _revoked_text(context))


@routes.get("/account", Permission.ACCOUNT)
async def show_account(context: ConsoleContext, status: int = 200, error: BoathookError | None = None) -> Response:
    """Show the operator's own account, with their tokens."""
    async with context.work() as work:
        rows = await operator_tokens.list_of(work, context.operator)
    base = f"{_ACCOUNT}/tokens"
    return context.page(
        "operators/account.html", status, base=base, **_token_values(context, context.operator, rows, error)
    )


@routes.post("/account/tokens", Permission.ACCOUNT)
async def create_own_token(context: ConsoleContext) -> Response:
    """Create a token of the operator, and show it only in this response; requires the password, if there is one."""
    try:
        if context.operator.password_hash is not None:
            await _check_password(context, context.field("confirmed"), "confirmed")
        lifetime = _read_lifetime(context)
        async with context.work() as work:
            created = await operator_tokens.create(
                work, context.operator.name, context.field("name"), _role(context), lifetime
            )
    except AdminError as error:
        return await show_account(context, 400, error)
    return context.page(
        "operators/token_created.html", created=token_actions.view(created.token), text=created.text, back=_ACCOUNT
    )


@routes.post("/account/tokens/{id}/revoke", Permission.ACCOUNT)
async def revoke_own_token(context: ConsoleContext) -> Response:
    """Revoke a token of the operator immediately."""
    async with context.work() as work:
        await operator_tokens.revoke(work, _token_id(context), context.operator.id)
    return context.to(_ACCOUNT, _revoked_text(context))


def _read_lifetime(context: ConsoleContext) -> timedelta:
    days = context.field("lifetime")
    if days not in {value for value, _ in _LIFETIMES}:
        raise InvalidValue("choose one of these", "lifetime")
    return timedelta(days=int(days))


def _token_id(context: ConsoleContext) -> UUID:
    try:
        return ids.read(ids.OPERATOR_TOKEN, context.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None


def _tokens_path(owner: str) -> str:
    return f"{_LIST}/{quote(owner, safe='')}/tokens"


def _token_values(
    context: ConsoleContext, owner: Operator, rows: Sequence[OperatorToken], error: BoathookError | None
) -> dict[str, object]:
    """Return the template values of the list of tokens and of its form."""
    field = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    return {
        "owner": owner,
        "rows": rows,
        "roles": [role for role in Role if Role(owner.role).covers(role)],
        "lifetimes": _LIFETIMES,
        "form": context.form,
        "error": error or "",
        "where": field,
    }


def _revoked_text(context: ConsoleContext) -> str:
    return f"The token {context.path['id']} is revoked. Requests with it are rejected from now on."


@routes.post("/account/password", Permission.ACCOUNT)
async def change_own_password(context: ConsoleContext) -> Response:
    """Change the operator's own password; requires the current one."""
    try:
        await _check_password(context, context.field("present"), "present")
        async with context.work() as work:
            await operators.set_password(work, context.operator.name, context.field("password"), keep=context.session)
    except AdminError as error:
        return await show_account(context, 400, error)
    return context.to(_ACCOUNT, "Password changed. You are signed out of all other sessions.")


async def _check_password(context: ConsoleContext, password: str, field: str) -> None:
    """Check the password of the operator; limited, so that a thief of an open session cannot guess it.

    Raises:
        InvalidValue: it is wrong; names the field.
        InvalidState: there were too many attempts.
    """
    operator_id = context.operator.shown_id
    if not _rate_limiter.take(operator_id, operator_id):
        raise InvalidState("too many attempts; wait a minute and try again", "too_many_tries")
    if not await operators.is_password_of(context.operator, password):
        raise InvalidValue("the current password is wrong", field)
    _rate_limiter.forget(operator_id, operator_id)


@routes.post("/account/sign-out-everywhere", Permission.ACCOUNT)
async def sign_out_everywhere(context: ConsoleContext) -> Response:
    """End all other sessions of the operator."""
    async with context.work() as work:
        await operators.sign_out_everywhere(work, context.operator, but=context.session)
    return context.to(_ACCOUNT, "You are signed out of all other sessions.")


def _named(context: ConsoleContext) -> actions.OperatorNamed:
    return actions.OperatorNamed(name=context.path["name"])


def _role(context: ConsoleContext) -> Role:
    try:
        return Role(context.field("role"))
    except ValueError:
        raise InvalidState(f"role: choose one of {', '.join(Role)}", "role") from None


def _own_session(context: ConsoleContext, name: str) -> str | None:
    is_own = name.lower() == context.operator.name.lower()
    return context.session if is_own else None
