"""Pages of operators for admins, and each operator's own account."""

from starlette.responses import Response

from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.domain.errors import AdminError, InvalidState
from boathook.domain.model import Role
from boathook.service.access import operators
from boathook.service.access.authorization import Permission
from boathook.service.access.login_rate import LoginRateLimiter

routes = Routes()
_LIST = f"{BASE}/operators"
_rate_limiter = LoginRateLimiter()


@routes.get("/operators", Permission.OPERATOR_MANAGE)
async def list_operators(context: ConsoleContext, status: int = 200, error: str = "") -> Response:
    """Show the operators."""
    async with context.work() as work:
        found = await operators.list_all(work)
    return context.page("operators/list.html", status, people=found, roles=list(Role), error=error)


@routes.post("/operators", Permission.OPERATOR_ACCESS_MANAGE)
async def create(context: ConsoleContext) -> Response:
    """Create an operator."""
    password = context.field("password")
    try:
        async with context.work() as work:
            made = await operators.create(work, context.field("name"), _role(context), password or None)
    except AdminError as error:
        return await list_operators(context, 400, str(error))
    return context.to(_LIST, f"{made.name} can now sign in as {made.role}.")


@routes.post("/operators/{name}/role", Permission.OPERATOR_MANAGE)
async def change_role(context: ConsoleContext) -> Response:
    """Change the role of an operator."""
    async with context.work() as work:
        changed = await operators.set_role(work, context.path["name"], _role(context))
    return context.to(_LIST, f"{changed.name} is {changed.role}.")


@routes.post("/operators/{name}/password", Permission.OPERATOR_ACCESS_MANAGE)
async def change_password(context: ConsoleContext) -> Response:
    """Set a new password for an operator."""
    name = context.path["name"]
    async with context.work() as work:
        await operators.set_password(work, name, context.field("password"), keep=_own_session(context, name))
    return context.to(_LIST, f"{name} has a new password and is signed out of all other sessions.")


@routes.post("/operators/{name}/disable", Permission.OPERATOR_MANAGE)
async def disable(context: ConsoleContext) -> Response:
    """Disable an operator and end their sessions."""
    async with context.work() as work:
        await operators.disable(work, context.path["name"])
    return context.to(_LIST, f"{context.path['name']} is disabled and signed out.")


@routes.post("/operators/{name}/enable", Permission.OPERATOR_MANAGE)
async def enable(context: ConsoleContext) -> Response:
    """Enable an operator."""
    async with context.work() as work:
        await operators.enable(work, context.path["name"])
    return context.to(_LIST, f"{context.path['name']} is enabled.")


@routes.post("/operators/{name}/delete", Permission.OPERATOR_MANAGE)
async def delete(context: ConsoleContext) -> Response:
    """Delete an operator."""
    async with context.work() as work:
        await operators.delete(work, context.path["name"])
    return context.to(_LIST, f"{context.path['name']} is deleted. Their audit entries are kept.")


@routes.get("/account", Permission.ACCOUNT)
async def show_account(context: ConsoleContext) -> Response:
    """Show the operator's own account."""
    return context.page("operators/account.html", error="")


@routes.post("/account/password", Permission.ACCOUNT)
async def change_own_password(context: ConsoleContext) -> Response:
    """Change the operator's own password; requires the current one."""
    try:
        await _check_password(context, context.field("present"))
        async with context.work() as work:
            await operators.set_password(work, context.operator.name, context.field("password"), keep=context.session)
    except AdminError as error:
        return context.page("operators/account.html", 400, error=str(error))
    return context.to(f"{BASE}/account", "Password changed. You are signed out of all other sessions.")


async def _check_password(context: ConsoleContext, password: str) -> None:
    """Raise InvalidState if the password is wrong; limited, so that a thief of an open session cannot guess it."""
    who = context.operator.shown_id
    if not _rate_limiter.take(who, who):
        raise InvalidState("too many attempts; wait a minute and try again", "too_many_tries")
    if not await operators.is_password_of(context.operator, password):
        raise InvalidState("the current password is wrong", "wrong_password")
    _rate_limiter.forget(who, who)


@routes.post("/account/sign-out-everywhere", Permission.ACCOUNT)
async def sign_out_everywhere(context: ConsoleContext) -> Response:
    """End all other sessions of the operator."""
    async with context.work() as work:
        await operators.sign_out_everywhere(work, context.operator, but=context.session)
    return context.to(f"{BASE}/account", "You are signed out of all other sessions.")


def _role(context: ConsoleContext) -> Role:
    try:
        return Role(context.field("role"))
    except ValueError:
        raise InvalidState(f"role: choose one of {', '.join(Role)}", "role") from None


def _own_session(context: ConsoleContext, name: str) -> str | None:
    is_own = name.lower() == context.operator.name.lower()
    return context.session if is_own else None
