"""Runs a load before, during and after an outage of PostgreSQL, and records the figures of all three."""

import json
import threading
from collections.abc import Callable
from typing import Self

from tests.faults.rig.environment import Environment
from tests.faults.rig.history import FAULT, HEALED, Answered, Confirmed, History, Marked, Published, Sent, Silent
from tests.faults.rig.invariants import is_ok, percentile
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.publishing import Publishing

RATE = 60.0
"""Events a second of an outage's load."""
NO_SPOOL = Mutant(settings={"spool": {"enabled": False}}, label="no spool", breaks=frozenset({"C11"}))
"""Without a spool the gateway must reject events."""
_ENOUGH = 240
_NOTICED_S = 2.0
"""After this time every process knows that PostgreSQL is away; events wait for it no longer than a second."""


class Repeatedly:
    """Repeats an action in the background of a scenario.

    Args:
        act: does it once, and returns how many it has hit.
        every_s: seconds between two times.
    """

    def __init__(self, act: Callable[[], int], *, every_s: float) -> None:
        self.count = 0
        """How many were hit in all."""
        self._act = act
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(300)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.count += self._act()


def nothing() -> None:
    """Leave the end of an outage to `Environment.heal`."""


def run_outage(
    env: Environment,
    fault: str,
    begin: Callable[[], object],
    *,
    events: int = 240,
    end: Callable[[], object] = nothing,
    rate: float = RATE,
    drains: float = 0.0,
    publishing: Publishing | None = None,
) -> None:
    """Run the hosts through an outage of a number of events, and check the senders' responses.

    Args:
        env: the environment with its hosts started.
        fault: what is done, in words.
        begin: does it.
        events: how many are sent meanwhile.
        end: undoes what `Environment.heal` does not know of.
        rate: of the load, in events a second.
        drains: how many times as fast as events arrive the spool must be drained; 0: not judged.
        publishing: how messages are published beside the events; None: there are none.
    """
    env.begin(rate=rate, publishing=publishing)
    env.warm(30)
    env.fault(fault)
    begin()
    if publishing is not None:
        env.fault(f"{fault}: from here on nothing is stored")
    # A mutant has shown its violations within seconds; senders rejected for a minute would flood it with retries.
    events = min(events, _ENOUGH) if env.is_mutant else events
    env.outside.wait_events(events, timeout_s=60 + 4 * events / rate)
    waiting = len(env.spooled())
    end()
    env.heal()
    env.warm(30, timeout_s=90)
    env.quiesce()
    report_outage(env, waiting)
    if drains and not env.is_mutant:
        times = drain_rate(env) / rate
        env.expect("C11", times >= drains, f"the spool was drained {times:.1f} times as fast as events arrived")


def report_outage(env: Environment, waiting: int = 0) -> None:
    """Check that every request was answered 2xx and that the spool was used, and record the figures.

    Args:
        env: the environment after `quiesce`.
        waiting: how many events were seen to wait in the spool.
    """
    failed = unanswered(env.history())
    env.expect("C11", not failed, f"{failed} signed requests were refused or not answered")
    spooled = max(waiting, sum(events for events, _ in _drains(env)))
    env.expect("C11", env.is_mutant or spooled, "nothing went into the spool")
    env.figure("without 2xx", failed)
    env.figure("spooled", spooled)
    answers = during(env.history())
    if answers:
        env.figure("p99 meanwhile", f"{percentile(answers, 99) * 1000:.0f} ms")
    if rate := drain_rate(env):
        env.figure("drained", f"{rate:.0f}/s, {rate / RATE:.1f} times the arrivals")


def unanswered(history: History) -> int:
    """Return how many requests with a good signature or token were refused or got no answer."""
    genuine = _genuine(history)
    refused = [fact for fact in history if isinstance(fact, Answered | Confirmed) and not is_ok(fact.status)]
    return silent(history) + sum(fact.number in genuine for fact in refused)


def silent(history: History) -> int:
    """Return how many requests with a good signature or token got no answer."""
    genuine = _genuine(history)
    return sum(isinstance(fact, Silent) and fact.number in genuine for fact in history)


def _genuine(history: History) -> set[int]:
    return {
        fact.number for fact in history if (isinstance(fact, Sent) and fact.is_signed) or isinstance(fact, Published)
    }


def during(history: History) -> list[float]:
    """Return how many seconds answers took while a fault went on that had been noticed."""
    found: list[float] = []
    since = float("inf")
    for fact in history:
        if isinstance(fact, Marked) and fact.what.startswith(FAULT):
            since = fact.at + _NOTICED_S
        elif isinstance(fact, Marked) and fact.what == HEALED:
            since = float("inf")
        elif isinstance(fact, Answered | Confirmed) and fact.at > since:
            found.append(fact.seconds)
    return found


def drain_rate(env: Environment) -> float:
    """Return the events per second of the longest drain, from the gateways' logs; 0 if there was none."""
    events, seconds = max(_drains(env), default=(0, 1.0))
    return events / max(seconds, 0.001)


def _drains(env: Environment) -> list[tuple[int, float]]:
    """Return how many events each drain of a spool has brought to PostgreSQL, and in how many seconds."""
    told = [json.loads(line) for host in env.hosts for line in host.log().splitlines() if '"spool_drained"' in line]
    return [(one["events"], one["seconds"]) for one in told]
