"""``boathook cashdesk ...``: users, their webhooks, and a trial with made-up shops."""

from typing import Annotated, Any

import typer

from boathook.apps import trials
from boathook.apps.cashdesk import sending, users
from boathook.apps.cashdesk.base import hook
from boathook.apps.cashdesk.entities import types_of
from boathook.apps.terminal import print_rows

commands = typer.Typer(no_args_is_help=True, help="The cash-register cabinet.")
_users = typer.Typer(no_args_is_help=True, help="Shops and integrators who have a cabinet.")
_webhooks = typer.Typer(no_args_is_help=True, help="Where they want to hear of what.")
commands.add_typer(_users, name="users")
commands.add_typer(_webhooks, name="webhooks")

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@_users.command("add", epilog='Example: boathook cashdesk users add "Tea & Co" --json')
def add_user(
    name: Annotated[str, typer.Argument(help="What the cabinet is called.")], *, as_json: Json = False
) -> None:
    """Make a user, and print the token of their cabinet, once."""

    async def work() -> dict[str, Any]:
        async with hook.transaction() as tx:
            user, token = await users.add(tx, name)
        return {"id": user.id, "name": user.name, "token": token}

    print_rows([hook.run(work())], as_json=as_json)


@_users.command("list", epilog="Example: boathook cashdesk users list --json")
def list_users(*, as_json: Json = False) -> None:
    """List the users with the number of their webhooks."""

    async def work() -> list[dict[str, Any]]:
        async with hook.transaction() as tx:
            return await users.list_all(tx)

    print_rows(hook.run(work()), as_json=as_json)


@_webhooks.command("list", epilog="Example: boathook cashdesk webhooks list --json")
def list_webhooks(*, as_json: Json = False) -> None:
    """List all users' webhooks."""

    async def work() -> list[dict[str, Any]]:
        async with hook.transaction() as tx:
            rows = await tx.fetch(
                "select w.id, u.id as user_id, u.name, w.url, w.types, w.is_active as active, w.created_at"
                " from cashdesk.webhooks w join cashdesk.users u on u.id = w.user_id order by w.id"
            )
        return [dict(row) | {"types": _named(row["types"], as_json=as_json)} for row in rows]

    print_rows(hook.run(work()), as_json=as_json)


def _named(mask: int, *, as_json: bool) -> object:
    types = types_of(mask)
    return types if as_json else " ".join(entity for entity, is_wanted in types.items() if is_wanted)


@commands.command("simulate", epilog="Example: boathook cashdesk simulate --url http://127.0.0.1:8080 --count 200")
def simulate(
    *,
    url: trials.Url = trials.HERE,
    count: Annotated[int, typer.Option(min=1, help="Requests of each shop.")] = 100,
    shops: Annotated[int, typer.Option(min=1, max=50, help="How many shops work side by side.")] = 3,
    seed: trials.Seed = None,
    wait: trials.Wait = trials.WAIT_S,
    as_json: Json = False,
) -> None:
    """Let made-up shops work, receive their webhooks here, and compare these with what happened."""
    done = hook.run(sending.simulate(url, count=count, shops=shops, seed=seed, wait_s=wait))
    trials.finish(done, as_json=as_json)
