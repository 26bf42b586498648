"""The commands ``boathook cashdesk ...``: users, their webhooks, and a simulation with generated shops."""

import secrets
from typing import Annotated, Any

import typer

from boathook import Transaction
from boathook_app_tools import simulation
from boathook_app_tools.import_commands import add_import
from boathook_app_tools.terminal import Json, ask, print_rows
from boathook_cashdesk import owner_tables, sending, users
from boathook_cashdesk.app import hook, sign_in, webhooks

commands = typer.Typer(no_args_is_help=True, help="The cash-register cabinet.")
_users = sign_in.commands()
_webhooks = typer.Typer(no_args_is_help=True, help="Their webhooks, with the events that each receives.")
commands.add_typer(_users, name="users")
commands.add_typer(_webhooks, name="webhooks")
add_import(hook, commands, owner_tables.IMPORT)


@_users.command("add", epilog='Example: boathook cashdesk users add "Tea & Co" --json')
def add_user(
    name: Annotated[str, typer.Argument(help="The cabinet's name.")],
    *,
    with_password: Annotated[bool, typer.Option("--with-password", help="Make a password too.")] = False,
    as_json: Json = False,
) -> None:
    """Create a user, and print the token of their cabinet once, with the password if there is one."""
    password = secrets.token_urlsafe(15) if with_password else None
    user, token = ask(hook, lambda tx: users.add(tx, name, password))
    row = {"id": user.id, "name": user.name, "token": token}
    print_rows([row | {"password": password} if password else row], as_json=as_json)


@_users.command("list", epilog="Example: boathook cashdesk users list --json")
def list_users(*, as_json: Json = False) -> None:
    """List the users with the number of their webhooks."""
    print_rows(ask(hook, _list_users), as_json=as_json)


async def _list_users(tx: Transaction) -> list[dict[str, Any]]:
    rows = await tx.fetch(
        "select u.id, u.name, count(w.id) as webhooks, u.created_at from cashdesk.users u"
        " left join cashdesk.webhooks w on w.user_id = u.id group by u.id order by u.id"
    )
    return [dict(row) for row in rows]


@_webhooks.command("list", epilog="Example: boathook cashdesk webhooks list --json")
def list_webhooks(*, as_json: Json = False) -> None:
    """List all users' webhooks."""
    rows = ask(hook, webhooks.list_of_all)
    print_rows([row | {"types": _named(row["types"], as_json=as_json)} for row in rows], as_json=as_json)


def _named(mask: int, *, as_json: bool) -> object:
    types = webhooks.types_of(mask)
    return types if as_json else " ".join(entity for entity, is_wanted in types.items() if is_wanted)


@commands.command("simulate", epilog="Example: boathook cashdesk simulate --url http://127.0.0.1:8080 --count 200")
def simulate(
    *,
    url: simulation.Url = simulation.HERE,
    count: Annotated[int, typer.Option(min=1, help="Requests of each shop.")] = 100,
    shops: Annotated[int, typer.Option(min=1, max=50, help="How many shops work side by side.")] = 3,
    seed: simulation.Seed = None,
    wait: simulation.Wait = simulation.WAIT_S,
    as_json: Json = False,
) -> None:
    """Run simulated shops, receive their webhooks, and compare these with the changes they made."""
    result = hook.run(sending.simulate(url, count=count, shops=shops, seed=seed, wait_s=wait))
    simulation.finish(result, as_json=as_json)
