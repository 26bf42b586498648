"""Received events and published messages alternate around outages: each 2xx exists once, each key has one id."""

from dataclasses import replace

from tests.faults.rig import bank
from tests.faults.rig.applications import open_publishing
from tests.faults.rig.environment import Environment
from tests.faults.rig.history import Confirmed
from tests.faults.rig.invariants import is_ok
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.outages import report_outage, run_outage
from tests.faults.rig.scenario import scenario
from tests.faults.rig.store_reader import read
from tests.support import until

TARGET = "0 requests without 2xx; each 2xx exists once, repeated keys have one id; drained by itself"
FORGETFUL = Mutant("forgets_buffered_keys", breaks=frozenset({"C1", "C3"}))
LIMITS = replace(bank.LIMITS, quiet_s=180.0)
ROLES = "gateway,console,worker,keeper"
EVENTS_PER_S = 30.0
BACKLOG_EVENTS_PER_S = 90.0
"""As many messages are published beside them."""
FROZEN_EVENTS = int(3 * BACKLOG_EVENTS_PER_S)
LATENCY_S = 0.003
"""Of the network to PostgreSQL, each way: a commit for each record takes longer than a record takes to arrive."""
TOO_MANY = 20
"""A backlog is not shrinking if so many times its records have arrived, and it is still there."""


def _figures(env: Environment) -> None:
    answers = [fact for fact in env.history() if isinstance(fact, Confirmed) and is_ok(fact.status)]
    reported = read(env.server.url).reported
    env.figure("messages accepted", len({fact.message for fact in answers}))
    env.figure("answered an id that was reported", sum(fact.message in reported for fact in answers))


@scenario(
    fault="PostgreSQL stopped for 4 s under events and messages in turn, some with keys, some repeated",
    target=TARGET,
    mutant=FORGETFUL,
    limits=LIMITS,
    tier="extended",
)
def test_mixed_traffic_while_stopped(env: Environment) -> None:
    env.start(roles=ROLES, senders=1)
    publishing = open_publishing(env, place="/notes")
    run_outage(env, "PostgreSQL is stopped", env.server.stop, events=120, rate=EVENTS_PER_S, publishing=publishing)
    _figures(env)


@scenario(
    fault="PostgreSQL hung for 4 s (SIGSTOP of all its processes) under events and messages in turn, some with keys, some repeated",
    target=TARGET,
    mutant=FORGETFUL,
    limits=LIMITS,
    tier="soak",
)
def test_mixed_traffic_while_hung(env: Environment) -> None:
    env.start(roles=ROLES, senders=1)
    publishing = open_publishing(env, place="/notes")
    run_outage(env, "PostgreSQL hangs", env.server.freeze, events=120, rate=EVENTS_PER_S, publishing=publishing)
    _figures(env)


@scenario(
    fault="PostgreSQL hung for 3 s at 180 requests/s, half of them messages; 6 ms of network to it",
    target="the backlog is drained while the load lasts; each 2xx exists once, repeated keys have one id",
    mutant=Mutant("drains_by_runs", breaks=frozenset({"C11"})),
    limits=LIMITS,
    tier="soak",
)
def test_backlog_of_mixed_traffic_shrinks_under_load(env: Environment) -> None:
    host = env.start(roles=ROLES, senders=1, is_wired=True)
    assert host.wire is not None
    publishing = open_publishing(env)
    host.wire.set(latency_s=LATENCY_S)
    env.begin(rate=BACKLOG_EVENTS_PER_S, kinds={"noise.made": 1.0}, publishing=publishing)
    env.warm(180, timeout_s=60)
    env.server.freeze()
    env.fault("PostgreSQL hangs")
    env.outside.wait_events(FROZEN_EVENTS, timeout_s=60)
    backlog, before = len(env.spooled()), env.outside.count().accepted
    env.server.thaw()
    until(lambda: _is_drained(env) or _accepted_since(env, before) > TOO_MANY * backlog, timeout=300)
    arrived, is_drained = _accepted_since(env, before), _is_drained(env)
    env.expect("C11", is_drained, f"a backlog of {backlog} records was not drained while {arrived} more arrived")
    env.warm(180, timeout_s=60)
    host.wire.heal()
    env.quiesce()
    report_outage(env, backlog)
    env.figure("backlog", backlog)
    env.figure("requests accepted until it was drained", arrived)
    _figures(env)


def _is_drained(env: Environment) -> bool:
    return '"spool_drained"' in env.host.log().rpartition('"spooling_started"')[2]


def _accepted_since(env: Environment, before: int) -> int:
    return env.outside.count().accepted - before
