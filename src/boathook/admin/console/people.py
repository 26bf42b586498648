"""Operators, for admins; and what each may do with their own account."""

from starlette.responses import Response

from boathook.admin import operators
from boathook.admin.authorization import Permission
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.admin.console.signing_in import Tries
from boathook.domain.errors import AdminError, NotPossible
from boathook.domain.roles import Role

routes = Routes()
_LIST = f"{BASE}/operators"
_tries = Tries()


@routes.get("/operators", Permission.OPERATOR_MANAGE)
async def list_operators(visit: Visit) -> Response:
    """Show who may sign in."""
    return await _list(visit)


async def _list(visit: Visit, status: int = 200, error: str = "") -> Response:
    async with visit.work() as work:
        people = await operators.list_all(work)
    return visit.page("people/list.html", status, people=people, roles=list(Role), error=error)


@routes.post("/operators", Permission.OPERATOR_MANAGE)
async def create(visit: Visit) -> Response:
    """Let somebody sign in."""
    form = visit.form
    password = str(form.get("password", ""))
    try:
        async with visit.work() as work:
            made = await operators.create(work, str(form.get("name", "")), _role(visit), password or None)
    except AdminError as error:
        return await _list(visit, 400, str(error))
    return visit.to(_LIST, f"{made.name} may sign in as {made.role}.")


@routes.post("/operators/{name}/role", Permission.OPERATOR_MANAGE)
async def change_role(visit: Visit) -> Response:
    """Give somebody another role."""
    async with visit.work() as work:
        changed = await operators.set_role(work, visit.path["name"], _role(visit))
    return visit.to(_LIST, f"{changed.name} is {changed.role}.")


@routes.post("/operators/{name}/password", Permission.OPERATOR_MANAGE)
async def change_password(visit: Visit) -> Response:
    """Give somebody another password."""
    name = visit.path["name"]
    async with visit.work() as work:
        await operators.set_password(work, name, str(visit.form.get("password", "")), keep=_own_session(visit, name))
    return visit.to(_LIST, f"{name} has another password, and is signed out everywhere else.")


@routes.post("/operators/{name}/disable", Permission.OPERATOR_MANAGE)
async def disable(visit: Visit) -> Response:
    """Keep somebody out."""
    async with visit.work() as work:
        await operators.disable(work, visit.path["name"])
    return visit.to(_LIST, f"{visit.path['name']} is signed out and kept out.")


@routes.post("/operators/{name}/enable", Permission.OPERATOR_MANAGE)
async def enable(visit: Visit) -> Response:
    """Let somebody in again."""
    async with visit.work() as work:
        await operators.enable(work, visit.path["name"])
    return visit.to(_LIST, f"{visit.path['name']} may sign in again.")


@routes.post("/operators/{name}/delete", Permission.OPERATOR_MANAGE)
async def delete(visit: Visit) -> Response:
    """Remove somebody."""
    async with visit.work() as work:
        await operators.delete(work, visit.path["name"])
    return visit.to(_LIST, f"{visit.path['name']} is gone; what they did stays in the audit.")


@routes.get("/account", Permission.ACCOUNT)
async def show_account(visit: Visit) -> Response:
    """Show what one may do with one's own account."""
    return visit.page("people/account.html", error="")


@routes.post("/account/password", Permission.ACCOUNT)
async def change_own_password(visit: Visit) -> Response:
    """Change one's own password, which takes the present one."""
    form = visit.form
    try:
        await _prove(visit, str(form.get("present", "")))
        async with visit.work() as work:
            await operators.set_password(work, visit.operator.name, str(form.get("password", "")), keep=visit.session)
    except AdminError as error:
        return visit.page("people/account.html", 400, error=str(error))
    return visit.to(f"{BASE}/account", "Your password is changed; you are signed out everywhere else.")


async def _prove(visit: Visit, password: str) -> None:
    """Raise NotPossible where it is not the visitor's password; who only found an open browser may guess slowly."""
    who = visit.operator.shown_id
    if not _tries.take(who, who):
        raise NotPossible("too many tries; wait a minute and try again", "too_many_tries")
    if not await operators.is_password_of(visit.operator, password):
        raise NotPossible("the present password is wrong", "wrong_password")
    _tries.forget(who, who)


@routes.post("/account/sign-out-everywhere", Permission.ACCOUNT)
async def sign_out_everywhere(visit: Visit) -> Response:
    """End all other sessions of one's own."""
    async with visit.work() as work:
        await operators.sign_out_everywhere(work, visit.operator, but=visit.session)
    return visit.to(f"{BASE}/account", "You are signed out everywhere else.")


def _role(visit: Visit) -> Role:
    try:
        return Role(str(visit.form.get("role", "")))
    except ValueError:
        raise NotPossible(f"role: choose one of {', '.join(Role)}", "role") from None


def _own_session(visit: Visit, name: str) -> str | None:
    is_own = name.lower() == visit.operator.name.lower()
    return visit.session if is_own else None
