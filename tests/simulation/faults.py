"""Injects faults into a simulated installation, and runs its operators' commands."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from boathook.db import delivery_commands
from boathook.db.database import Database
from boathook.db.queries.listings import ListFilter
from boathook.domain.errors import BoathookError
from tests import delivery_actions
from tests.simulation.base_world import BaseWorld
from tests.simulation.sometimes import sometimes
from tests.simulation.statements import DEPLOY

if TYPE_CHECKING:
    from tests.simulation.world import World

MOVES = ("replay dead", "ignore dead", "replay events", "wake", "routes change")


async def inject_faults(world: "World") -> None:
    """Let one of the seed's faults happen every now and then."""
    kinds = [kind for kind in world.plan.faults if kind not in MOVES]
    while kinds:
        await asyncio.sleep(world.rng.expovariate(1 / world.plan.fault_every_s))
        _inject_fault(world, world.rng.choice(kinds))


def _inject_fault(world: "World", kind: str) -> None:
    rng = world.rng
    longest_s = 3 * world.plan.lease_s
    worker = rng.choice(world.workers)
    gateway = rng.choice(world.gateways)
    match kind:
        case "kill worker" if worker.process is not None and not worker.process.is_dead:
            world.kill(worker.process)
        case "pause worker" if worker.process is not None:
            world.freeze(worker.process, rng.random() * longest_s)
        case "kill gateway" if not gateway.process.is_dead:
            world.kill(gateway.process)
        case "pause gateway":
            world.freeze(gateway.process, rng.random() * longest_s)
        case "kill keeper":
            keeper = rng.choice(world.keepers)[0]
            if keeper is not world.loop.world and not keeper.is_dead:
                world.kill(keeper)
        case "clock jump" if worker.process is not None:
            worker.process.clock_ahead += timedelta(seconds=rng.uniform(-longest_s, longest_s))
        case "deploy":
            world.note("DEPLOY")
            for one in world.workers:
                if one.stop is not None:
                    one.stop.set()
        case "deploy gateways":
            world.note("DEPLOY GATEWAYS")
            for each in world.gateways:
                each.stop.set()
        case "power cut":
            world.lose_power()
        case _:
            inject_server_fault(world, kind, longest_s)


def inject_server_fault(world: BaseWorld, kind: str, longest_s: float) -> None:
    """Let a fault of the database's host happen, where *kind* is one."""
    rng, server = world.rng, world.server
    match kind:
        case "database down" if server.is_up:
            world.note("DATABASE DOWN")
            server.go_down()
            world.loop.call_later(rng.random() * 6, _come_up, world, context=world.loop.world.context)
        case "database silent" if server.is_up and not server.is_silent:
            world.note("DATABASE SILENT")
            server.fall_silent()
            world.loop.call_later(rng.random() * 12, _wake, world, context=world.loop.world.context)
        case "server clock jump":
            seconds = rng.uniform(-longest_s, longest_s)
            world.note("SERVER CLOCK", f"{seconds:+.2f}s")
            server.clock_ahead += timedelta(seconds=seconds)
        case _:
            pass


def _come_up(world: BaseWorld) -> None:
    if not world.server.is_up:
        world.note("DATABASE UP")
        world.server.come_up()


def _wake(world: BaseWorld) -> None:
    if world.server.is_silent:
        world.note("DATABASE AWAKE")
        world.server.wake()


async def operate(world: BaseWorld, kinds: Sequence[str], every_s: float) -> None:
    """Let operators replay, ignore and wake deliveries, and deployments change the routes."""
    while kinds:
        await asyncio.sleep(world.rng.expovariate(1 / every_s))
        process = world.process("operator")
        world.loop.spawn(process, operate_once(world, world.rng.choice(kinds)))


async def operate_once(world: BaseWorld, kind: str) -> None:
    """Make one move as an operator, in a process that knows the database only."""
    try:
        database = await Database.open(
            "postgresql://simulated/boathook", purpose="operator", size=1, statement_timeout_s=2.0
        )
        try:
            await _move(world, database, kind)
        finally:
            await database.close()
    except BoathookError as error:
        world.note("operator failed", kind, repr(error)[:80])


async def _move(world: BaseWorld, database: Database, kind: str) -> None:
    action = delivery_commands.AuditContext(actor="operator", note=None)
    everything = delivery_commands.Selection(ListFilter())
    stored = list(world.server.tables.committed["event"])
    match kind:
        case "replay dead":
            pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(database))
            keys = await delivery_actions.replay_dead(
                database, everything, action, pace=pace, limit=world.rng.randint(1, 5)
            )
            sometimes("dead letters were replayed", if_=bool(keys))
        case "ignore dead":
            keys = await delivery_actions.ignore_dead(database, everything, action, limit=1)
            sometimes("a dead letter was ignored", if_=bool(keys))
        case "replay events" if stored:
            pace = delivery_commands.ReplaySchedule(
                await delivery_commands.read_clock(database), gap_s=world.rng.random()
            )
            replayed = await delivery_actions.replay_events(database, world.rng.sample(stored, 1), action, pace=pace)
            sometimes("an event was replayed", if_=bool(replayed.added))
        case "wake" if stored:
            async with database.transaction() as connection:
                await delivery_commands.make_due_now(connection, world.rng.choice(stored), action)
        case "routes change":
            await database.execute(DEPLOY)
        case _:
            pass
