"""Long crash tests: random faults for minutes, checked against the senders' record.

``SOAK_MINUTES`` says how long (10), ``SOAK_SEED`` repeats the choices of an earlier run.
"""

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.acceptance.conftest import BoathookProcess
from tests.faults.conftest import OwnServer, Sender
from tests.support import until

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_a_random_nemesis(boathook: Callable[..., BoathookProcess], settle_and_judge, own_server: OwnServer):
    seed = int(os.environ.get("SOAK_SEED", time.time_ns()))
    print(f"SOAK_SEED={seed}")  # noqa: T201 - what repeats the run
    dice = random.Random(seed)
    running = boathook(database_url=own_server.url)

    def kill_database() -> None:
        own_server.kill()
        own_server.restart()

    def kill_everything() -> None:
        running.kill_all()
        running.start()

    def roll() -> None:
        assert running.stop() == 0
        running.start()

    faults = [
        lambda: running.kill("gateway"),
        lambda: running.kill("worker"),
        lambda: running.kill("keeper"),
        kill_database,
        kill_everything,
        roll,
    ]
    deadline = time.monotonic() + MINUTES * 60
    count = 0
    with Sender(running.base, retries=300) as sender:
        while time.monotonic() < deadline:
            sender.wait_for(dice.randint(5, 200), timeout=120)
            dice.choice(faults)()
            count += 1
        until(lambda: "gateway" in running.log())
        sender.wait_for(50, timeout=120)
    settle_and_judge(running, sender)
    print(f"{count} faults, {len(sender.accepted)} events answered 2xx, none lost, none done twice")  # noqa: T201 - the result
