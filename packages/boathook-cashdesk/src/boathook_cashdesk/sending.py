"""Runs simulated shops against a running boathook, and compares their webhooks with the changes they made."""

import asyncio
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from boathook import BoathookError
from boathook_app_tools.simulation import ResponseCounts, SimulationResult, has_open, pick_seed, send, settle
from boathook_cashdesk import users
from boathook_cashdesk.app import hook, webhooks
from boathook_cashdesk.entities import Entity
from boathook_cashdesk.receiver import Receiver
from boathook_cashdesk.simulator import Change, Shop, SimulatedRequest

_TRIES: Final = 60
_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ShopRun:
    """One simulated shop with its webhook."""

    shop: Shop
    path: str
    webhook: int
    types: Mapping[Entity, bool]

    def expected(self) -> set[Change]:
        """Return the changes that its webhook must have received at the end."""
        return self.shop.expected(self.types)


async def simulate(url: str, *, count: int, shops: int, seed: int | None, wait_s: float) -> SimulationResult:
    """Let *shops* send *count* requests each, receive their webhooks here, and return the result.

    Raises:
        BoathookError: *url* is invalid or unreachable.
    """
    number, answers = pick_seed(seed), ResponseCounts()
    async with Receiver().open() as receiver:
        shop_runs = [await _open(url, receiver, index, number + index) for index in range(shops)]
        await asyncio.gather(*(_work(url, shop_run.shop, count, answers) for shop_run in shop_runs))

        async def compare() -> list[str]:
            return [sentence for shop_run in shop_runs for sentence in _differences(receiver, shop_run)]

        busy = functools.partial(has_open, hook, recipients=("endpoint:*",))
        wrong, is_finished = await settle(compare, busy, wait_s)
        for shop_run in shop_runs:
            await _ask(url, shop_run.shop.token, "DELETE", f"webhooks/{shop_run.webhook}")
        heard = sum(len(receiver.heard[shop_run.path]) for shop_run in shop_runs)
    effects = {"webhooks delivered": heard}
    return SimulationResult(seed=number, answers=answers, effects=effects, differences=wrong, is_finished=is_finished)


async def _open(url: str, receiver: Receiver, index: int, seed: int) -> ShopRun:
    """Create a shop with a webhook; the first one's selects all kinds of objects, the others' half of them."""
    async with hook.transaction() as tx:
        _, token = await users.add(tx, f"simulated shop {seed}")
    mask = 0b111111 if index == 0 else 0b010101 << index % 2
    types = {Entity(kind): is_wanted for kind, is_wanted in webhooks.types_of(mask).items()}
    path = f"/shop/{index}"
    webhook = await _ask(
        url, token, "POST", "webhooks", {"url": receiver.base + path, "types": types, "isActive": True}
    )
    receiver.secrets[path] = (await _ask(url, token, "GET", f"webhooks/{webhook['id']}/secret"))["secret"]
    return ShopRun(Shop(token, seed), path, webhook["id"], types)


async def _work(url: str, shop: Shop, count: int, answers: ResponseCounts) -> None:
    for _ in range(count):
        request = shop.write()
        status, body = await send(hook, url, request)
        answers.note(request, status, request.expect)
        shop.answered(request, status, body)


async def _ask(url: str, token: str, method: str, path: str, document: object = None) -> dict[str, Any]:
    body = b"" if document is None else json.dumps(document).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = SimulatedRequest(method, f"/cabinet/api/{path}", body, headers, frozenset())
    status, answer = await send(hook, url, request)
    for _ in range(_TRIES):
        if status != 503:
            break
        # A boathook that just started accepts events before its pages are ready.
        await asyncio.sleep(_AGAIN_S)
        status, answer = await send(hook, url, request)
    if not 200 <= status < 300:
        raise BoathookError(f"{method} {url}/cabinet/api/{path}: {status} {answer[:300].decode(errors='replace')}")
    return dict(json.loads(answer)) if answer else {}


def _missing(receiver: Receiver, shop_run: ShopRun) -> set[Change]:
    return shop_run.expected() - set(receiver.heard[shop_run.path])


def _differences(receiver: Receiver, shop_run: ShopRun) -> Iterator[str]:
    """Yield a sentence for each difference between received and expected changes."""
    for change in sorted(_missing(receiver, shop_run), key=str):
        yield f"{shop_run.path} was not sent {_named(change)}"
    for change in sorted(set(receiver.heard[shop_run.path]) - shop_run.expected(), key=str):
        yield f"{shop_run.path} was sent {_named(change)}, which did not happen"
    if forged := receiver.forged[shop_run.path]:
        yield f"{shop_run.path} got {forged} requests with an invalid signature"


def _named(change: Change) -> str:
    return f"{change.entity}.{change.action} of {change.id}, revision {change.revision}"
