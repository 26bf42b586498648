"""The commands with which operators manage the users of an app: ``boathook APP users ...``."""

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from boathook.handlers.transaction import Transaction

if TYPE_CHECKING:
    from boathook_pages.sign_in.users import User, Users

Result = TypeVar("Result")
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Who = Annotated[str, typer.Argument(metavar="NAME|ID", help="As `list` shows it.")]


def make_commands(users: "Users[Any]", group: str) -> typer.Typer:  # noqa: PLR0915 - one function for each command
    """Return the commands for the users of one app."""
    command = f"boathook {users.hook.name} {group}"
    roles_help = f"A role: {', '.join(users.roles)}." if users.roles else "A role; there are none here."
    Roles = Annotated[list[str] | None, typer.Option("--role", help=roles_help)]  # noqa: N806 - a type
    commands = typer.Typer(no_args_is_help=True, help="Users who sign in to the pages.")

    def run(work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        async def inside() -> Result:
            async with users.hook.transaction() as tx:
                return await work(tx)

        result: Result = users.hook.run(inside())
        return result

    def change(name: str, action: Callable[[Transaction, "User"], Awaitable[object]], *, as_json: bool) -> None:
        async def work(tx: Transaction) -> "User":
            user = await users.find(tx, name)
            await action(tx, user)
            changed: User = await users.find(tx, str(user.id))
            return changed

        _print(_shown(run(work)), as_json=as_json)

    @commands.command("add", epilog=f"Example: {command} add anna --json")
    def add(
        name: Annotated[str, typer.Argument(help="The name to sign in with.")],
        *,
        role: Roles = None,
        as_json: Json = False,
    ) -> None:
        """Create a user, and print the new password once; the user can change it."""
        password = _new_password()
        user, token = run(
            lambda tx: users.add(tx, name, password=password, roles=role or (), with_token=users.has_tokens)
        )
        _print(_shown(user) | {"password": password} | ({"token": token} if token else {}), as_json=as_json)

    @commands.command("list", epilog=f"Example: {command} list --json")
    def list_users(*, as_json: Json = False) -> None:
        """List the users, oldest first."""
        for user in run(users.list_all):
            _print(_shown(user), as_json=as_json)

    @commands.command("password", epilog=f"Example: {command} password anna --json")
    def renew_password(user: Who, *, as_json: Json = False) -> None:
        """Replace a user's password, print the new one once, and end all sessions."""
        password = _new_password()

        async def work(tx: Transaction) -> "User":
            found_user: User = await users.find(tx, user)
            await users.set_password(tx, found_user, password)
            return found_user

        _print(_shown(run(work)) | {"password": password}, as_json=as_json)

    if users.has_tokens:

        @commands.command("renew", epilog=f"Example: {command} renew anna --json")
        def renew_token(user: Who, *, as_json: Json = False) -> None:
            """Replace a lost or leaked token, print the new one once, and end all sessions."""

            async def work(tx: Transaction) -> tuple["User", str]:
                found_user: User = await users.find(tx, user)
                return found_user, await users.renew_token(tx, found_user)

            user_row, token = run(work)
            _print(_shown(user_row) | {"token": token}, as_json=as_json)

    @commands.command("roles", epilog=f"Example: {command} roles anna --role {next(iter(users.roles), 'ROLE')}")
    def set_roles(user: Who, *, role: Roles = None, as_json: Json = False) -> None:
        """Replace a user's roles."""
        change(user, lambda tx, member: users.set_roles(tx, member, role or ()), as_json=as_json)

    @commands.command("disable", epilog=f"Example: {command} disable anna")
    def disable(user: Who, *, as_json: Json = False) -> None:
        """Disable a user, and end all sessions."""
        change(user, users.disable, as_json=as_json)

    @commands.command("enable", epilog=f"Example: {command} enable anna")
    def enable(user: Who, *, as_json: Json = False) -> None:
        """Enable a user again."""
        change(user, users.enable, as_json=as_json)

    @commands.command("delete", epilog=f"Example: {command} delete anna")
    def delete(user: Who) -> None:
        """Delete a user."""

        async def work(tx: Transaction) -> None:
            await users.delete(tx, await users.find(tx, user))

        run(work)

    return commands


def _new_password() -> str:
    return secrets.token_urlsafe(15)


def _shown(user: "User") -> dict[str, Any]:
    return {"id": user.id, "name": user.name, "roles": sorted(user.roles), "is_disabled": user.is_disabled}


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(row, ensure_ascii=False))
        return
    words = (f"{name}={' '.join(value) if isinstance(value, list) else value}" for name, value in row.items())
    typer.echo("  ".join(words))
