"""A child starts with garbage collection off and must enable it, or its memory grows for weeks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sampled

ROLES = ("gateway", "worker", "suspects", "sender", "keeper")
PLAY = """
import asyncio, gc, json, socket, sys
from pathlib import Path

role, folder, mutant = sys.argv[1:]
gc.disable()
import boathook.delivery.keeper, boathook.delivery.sender, boathook.delivery.handler_executor
from boathook import config
from boathook.server import child, child_config, gateway
from boathook.server.child_config import ProcessContext, ChildConfig

if mutant:
    child_config.finish_startup = child.finish_startup = lambda: None
settings = config.load(overrides={"server.data_dir": folder, "server.roles": ["gateway", "worker", "keeper"]})

async def tell(*_, **__):
    print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 1_000]))

class Stop(asyncio.Event):
    wait = tell

class Idle:
    def __init__(self, *_, **__): pass
    def __getattr__(self, _):
        async def nothing(*_, **__): pass
        return nothing
    def hurry(self, _): pass
    async def __aenter__(self): pass
    async def __aexit__(self, *_): pass

boathook.delivery.handler_executor.run_worker = boathook.delivery.sender.run_sender = boathook.delivery.keeper.run_keeper = tell
gateway.IngestRuntime = gateway.Listener = Idle

async def play():
    order = ChildConfig(slot=f"{role}-0", worker_id="w", predecessors=[], settings="")
    bound = socket.socket().detach()
    nothing = lambda: None
    await child._run_role(role, ProcessContext(order, settings, Stop(), nothing, nothing, asyncio.Event(), bound))

asyncio.run(play())
"""
"""Plays a role as far as to where its work would begin, and tells there whether the collector works."""


def played(role: str, folder: Path, mutant: str = "") -> list[bool]:
    done = subprocess.run(
        [sys.executable, "-c", PLAY, role, str(folder), mutant],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    state: list[bool] = json.loads(done.stdout)
    return state


@pytest.mark.parametrize("role", sampled(ROLES, keep=1))
def test_garbage_collection_is_on_in_every_role(role: str, tmp_path: Path):
    assert played(role, tmp_path) == [True, True]


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("role", ["gateway", "worker"])
def test_mutant_garbage_collection_left_off_is_detected(role: str, tmp_path: Path):
    assert played(role, tmp_path, "off") == [False, False]


def test_a_child_starts_with_garbage_collection_off():
    assert started("keeper").splitlines() == ["False True"]


def started(role: str) -> str:
    """Start a child that reports whether garbage collection is on and imports are frozen."""
    code = "import asyncio, gc, os, sys, boathook.server.child; from boathook.server.fork_server import ForkServer\n"
    code += "boathook.server.child.run_child = lambda *_: print(gc.isenabled(), gc.get_freeze_count() > 1_000)\n"
    code += "server = ForkServer.start(['keeper'])\n"
    code += "async def start():\n    server.attach()\n    process = await server.spawn(sys.argv[1], 'x-0', os.pipe())\n"
    code += "    while process.returncode is None:\n        await asyncio.sleep(0.01)\n"
    code += "asyncio.run(start())"
    done = subprocess.run([sys.executable, "-c", code, role], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_a_command_runs_with_garbage_collection_on():
    code = "import gc, boathook.cli as cli; gc.disable(); cli._run(['completion', 'bash']); print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "True"
