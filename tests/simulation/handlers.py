"""Event handlers of the simulated installation, which follow the script of each event."""

import asyncio
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from boathook.domain.policy import Dead, Ignore, Retry, WaitFor
from boathook.handlers.api import Boathook, Event, Transaction
from tests.simulation.loop import PROCESS
from tests.simulation.statements import EFFECT

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTE: Final = "note"
LINE: Final = "line"
"""The handler whose deliveries are ordered."""


class Killed(BaseException):
    """Ends the callback in which a process was killed."""


class FinalError(Exception):
    """An exception that handlers declare as final."""


def make_hook(world: "World") -> Boathook:
    """Return the handlers of a world."""
    hook = Boathook()
    hook.on("shop", name=NOTE, retry=world.plan.retry, final=(FinalError,))(functools.partial(_handle, world, NOTE))
    hook.on("shop", name=LINE, retry=world.plan.retry, order_by="who", concurrency=world.plan.limit)(
        functools.partial(_handle, world, LINE)
    )
    return hook


async def _handle(world: "World", name: str, event: Event, tx: Transaction) -> object:
    claim = tx._claim
    assert claim is not None
    world.recorder.handler_called((claim.event_id, claim.ordinal), event.body)
    script = event.json[name]
    action = script[min(event.attempt, len(script)) - 1] if event.attempt <= len(script) else "ok"
    world.note(
        "handler",
        name,
        f"{str(event.id)[-4:]}/{claim.ordinal}",
        f"attempt={event.attempt}",
        f"fence={claim.fence}",
        action,
    )
    if action == "ignore":
        return Ignore("not for us")
    if action == "late":
        await asyncio.sleep(world.rng.random() * world.plan.lease_s)
    await tx.execute(EFFECT, claim.event_id, claim.ordinal, claim.fence, event.json["n"])
    match action:
        case "fail":
            raise ValueError("it does not work")
        case "final":
            raise FinalError("it never will")
        case "retry" if name == LINE:
            # Nobody signals it: the next attempt is at the time.
            return WaitFor("what does not come", world.server.clock() + timedelta(seconds=world.rng.random() * 2))
        case "retry":
            return Retry(after=world.rng.random() * 2)
        case "dead":
            return Dead("HOPELESS")
        case "slow":
            await asyncio.sleep(world.rng.random() * 2 * world.plan.lease_s)
        case "hang":
            await asyncio.sleep(3600)
        case "once":
            assert await event.once("charge", _charge) == 1
        case "kill":
            world.kill(PROCESS.get(world.loop.world))
            raise Killed
        case _:
            await asyncio.sleep(0.002)
    return None


async def _charge() -> int:
    return 1
