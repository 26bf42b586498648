"""``boathook cashdesk ...``: users, their webhooks, and a trial with made-up shops."""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from boathook import BoathookError
from boathook.apps.cashdesk import users
from boathook.apps.cashdesk.base import hook
from boathook.apps.cashdesk.entities import EVERYTHING, Entity, types_of
from boathook.apps.cashdesk.receiver import Receiver
from boathook.apps.cashdesk.refusals import kind_of
from boathook.apps.cashdesk.simulator import Change, Letter, Shop
from boathook.apps.terminal import print_rows

commands = typer.Typer(no_args_is_help=True, help="The cash-register cabinet.")
_users = typer.Typer(no_args_is_help=True, help="Shops and integrators who have a cabinet.")
_webhooks = typer.Typer(no_args_is_help=True, help="Where they want to hear of what.")
commands.add_typer(_users, name="users")
commands.add_typer(_webhooks, name="webhooks")

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
_PATIENCE_S: Final = 60.0
"""How long a trial waits for webhooks, once all requests are answered."""


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
    url: Annotated[str, typer.Option(help="Where boathook serves.")] = "http://127.0.0.1:8080",
    count: Annotated[int, typer.Option(min=1, help="Requests of each shop.")] = 100,
    shops: Annotated[int, typer.Option(min=1, max=50, help="How many shops work side by side.")] = 3,
    seed: Annotated[int | None, typer.Option(help="The same seed makes the same shops.")] = None,
    as_json: Json = False,
) -> None:
    """Let made-up shops work, receive their webhooks here, and compare these with what happened.

    It needs [outbound] allow = ["127.0.0.0/8"] in boathook.toml, as both sides are on this machine. Exits 1 where
    anything is missing, or came that did not happen.
    """
    rows = hook.run(_simulate(url.rstrip("/"), count, shops, secrets.randbelow(2**31) if seed is None else seed))
    print_rows(rows, as_json=as_json)
    if not all(row["balanced"] for row in rows):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Trial:
    """One shop with its webhook, while it is tried out."""

    shop: Shop
    path: str
    webhook: int
    types: Mapping[Entity, bool]

    def expected(self) -> set[Change]:
        """Return what its webhook must have been told in the end."""
        return self.shop.expected(self.types)


async def _simulate(url: str, count: int, number: int, seed: int) -> list[dict[str, Any]]:
    async with Receiver().open() as receiver:
        trials = [await _begin(url, receiver, place, seed + place) for place in range(number)]
        await asyncio.gather(*(_work(url, trial.shop, count) for trial in trials))
        await receiver.wait_until(lambda: not any(_missing(receiver, trial) for trial in trials), _PATIENCE_S)
        for trial in trials:
            await _ask(url, trial.shop.token, "DELETE", f"webhooks/{trial.webhook}")
        return [_balance(receiver, trial, count) for trial in trials]


async def _begin(url: str, receiver: Receiver, place: int, seed: int) -> Trial:
    """Make a shop with a webhook; the first one's is about everything, the others' about half of it."""
    async with hook.transaction() as tx:
        _, token = await users.add(tx, f"simulated shop {seed}")
    types = types_of(EVERYTHING if place == 0 else 0b010101 << place % 2)
    path = f"/shop/{place}"
    made = await _ask(url, token, "POST", "webhooks", {"url": receiver.base + path, "types": types})
    receiver.secrets[path] = (await _ask(url, token, "GET", f"webhooks/{made['id']}/secret"))["secret"]
    return Trial(Shop(token, seed), path, made["id"], types)


async def _work(url: str, shop: Shop, count: int) -> None:
    for _ in range(count):
        letter = shop.write()
        status, body = await _send(url, letter)
        shop.answered(letter, status, body)


async def _ask(url: str, token: str, method: str, path: str, document: object = None) -> dict[str, Any]:
    body = b"" if document is None else json.dumps(document).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    status, answer = await _send(url, Letter(method, f"/cabinet/api/{path}", body, headers, frozenset()))
    if not 200 <= status < 300:
        raise BoathookError(f"{method} {url}/cabinet/api/{path}: {status} {answer[:300].decode(errors='replace')}")
    return dict(json.loads(answer)) if answer else {}


async def _send(url: str, letter: Letter) -> tuple[int, bytes]:
    try:
        answer = await hook.http.request(letter.method, url + letter.path, headers=letter.headers, body=letter.body)
    except BoathookError as error:
        if kind_of(error) != "FetchFailed":
            raise
        raise BoathookError(
            f"{url}: {error}. Start `boathook serve` there, and for an address of this machine write"
            ' allow = ["127.0.0.0/8"] under [outbound].'
        ) from None
    return answer.status, answer.body


def _missing(receiver: Receiver, trial: Trial) -> set[Change]:
    return trial.expected() - set(receiver.heard[trial.path])


def _balance(receiver: Receiver, trial: Trial, count: int) -> dict[str, Any]:
    heard = receiver.heard[trial.path]
    missing, extra = _missing(receiver, trial), set(heard) - trial.expected()
    faults = len(trial.shop.surprises) + receiver.forged[trial.path]
    return {
        "shop": trial.path.rpartition("/")[2],
        "requests": count,
        "expected": len(trial.expected()),
        "received": len(heard),
        "twice": heard.total() - len(heard),
        "missing": len(missing),
        "extra": len(extra),
        "faults": faults,
        "balanced": not (missing or extra or faults),
    }
