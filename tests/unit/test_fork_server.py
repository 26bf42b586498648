"""The fork server: its responses when it can fork, cannot fork, and is gone."""

import os
import subprocess
import sys

import pytest

PLAY = """
import asyncio, errno, os, signal, sys

import boathook.server.child
from boathook.server.fork_server import ForkServer

real_fork, count = os.fork, 0


def fork_or_fail():
    global count
    count += 1
    if count == 3:
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    return real_fork()


def run_child(role, beat, bound=-1):
    os.write(beat, f"{role} {bound >= 0} {os.getpgrp() == os.getpid()} {len(os.listdir('/proc/self/fd'))}".encode())
    return len(os.read(0, 100))


os.fork, boathook.server.child.run_child = fork_or_fail, run_child
server = ForkServer.start([])


async def spawn(*more):
    (standard_input, told), (heard, beat) = os.pipe(), os.pipe()
    try:
        return await server.spawn("keeper", "keeper-0", [standard_input, beat, *more]), told, heard
    finally:
        os.close(standard_input)
        os.close(beat)


async def ended(process):
    while process.returncode is None:
        await asyncio.sleep(0.01)
    return process.returncode


async def play():
    server.attach()
"""


def play(steps: str) -> list[str]:
    code = PLAY + "".join(f"    {line}\n" for line in steps.splitlines()) + "\n\nasyncio.run(play())\nserver.close()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_child_has_its_descriptors_its_group_and_an_exit_code() -> None:
    assert play(
        """process, told, heard = await spawn(os.open("/dev/null", os.O_RDONLY))
os.write(told, b"seven..")
print(await ended(process), os.read(heard, 100).decode())"""
    ) == ["7 keeper True True 6"]


def test_a_signal_ends_a_child_and_is_reported() -> None:
    assert play(
        """process, told, heard = await spawn()
process.send_signal(signal.SIGTERM)
print(await ended(process))
process.send_signal(signal.SIGTERM)"""
    ) == ["-15"]


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_a_fork_that_fails_is_an_error_and_the_next_one_may_succeed() -> None:
    assert play(
        """first, told, heard = await spawn()
try:
    await spawn()
except BlockingIOError as error:
    print(error)
third, *_ = await spawn()
print(first.pid != third.pid)"""
    ) == [f"[Errno {11}] {os.strerror(11)}", "True"]


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_without_it_nothing_starts_and_children_are_orphans() -> None:
    assert play(
        """process, told, heard = await spawn()
os.kill(server.pid, signal.SIGKILL)
while not server.has_ended:
    await asyncio.sleep(0.01)
print(process.is_orphan, process.returncode)
try:
    await spawn()
except OSError as error:
    print(error)"""
    ) == ["True None", "the fork server has ended"]


def test_another_one_starts_children_while_those_of_the_first_go_on() -> None:
    assert play(
        """orphan, told, heard = await spawn()
os.kill(server.pid, signal.SIGKILL)
while not server.has_ended:
    await asyncio.sleep(0.01)
server.restart([])
process, other, heard_too = await spawn()
print(orphan.is_orphan, process.is_orphan, orphan.pid != process.pid)
process.send_signal(signal.SIGTERM)
print(await ended(process))
os.kill(orphan.pid, 0)
orphan.send_signal(signal.SIGKILL)
while os.read(heard, 100):
    pass
print("the orphan has ended")"""
    ) == ["True False True", "-15", "the orphan has ended"]


def test_children_start_without_what_only_the_api_and_the_pages_need() -> None:
    """Those take as long to import as the rest."""
    code = (
        "import sys; from boathook.server import fork_server; fork_server.import_modules(fork_server._MODULES);"
        "print([name for name in ('fastapi', 'jinja2', 'boathook.api') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
