"""Several hosts share one PostgreSQL over a network; each of them is lost, frozen, cut off and restarted."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.faults.rig import bank
from tests.faults.rig.history import Answered, History, Sent, Silent
from tests.faults.rig.hosts import NetworkEnvironment, NetworkHost, missing_privileges
from tests.faults.rig.invariants import is_ok
from tests.faults.rig.mutants import UNFENCED, Mutant
from tests.faults.rig.outages import NO_SPOOL, run_outage, unanswered
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import make_event
from tests.support import until

HOSTS = 3
RATE = 40.0
PATIENCE_S = 300.0
LIMITS = replace(bank.LIMITS, quiet_s=PATIENCE_S, wire_copies=50)
AWAY = {"timeout_s": 5.0, "longest_wait_s": 5.0, "most_at_once": 5_000}
"""How senders wait for a host that does not answer: the others' requests go on, and its own do not flood it later."""
JOB_S = 5.0
"""How long a handler is at work when its host fails."""
HOLDER = """
    select d.leased_by from boathook.delivery d join boathook.event e on e.id = d.event_id
    where e.dedup_key = %s and d.state = 'leased'
"""
DONE = """
    select 1 from boathook.delivery_archive d join boathook.event e on e.id = d.event_id where e.dedup_key = %s
"""
OPEN = "select 1 from boathook.delivery where state <> 'dead'"
HELD = "select 1 from boathook.delivery where state = 'leased' and leased_by like %s"
KEEPER = """
    select host(a.client_addr) from pg_locks l join pg_stat_activity a using (pid)
    where l.locktype = 'advisory' and l.granted and a.application_name = 'boathook:keeper'
"""
OVERLAPS = """
    select count(*) from bank.tick a join bank.tick b
    on a.number < b.number and b.began_at < coalesce(a.ended_at, a.began_at)
"""


@scenario(
    fault="the host of a gateway does not reach PostgreSQL, and senders reach it",
    target="every signed event answered 2xx meanwhile; drained in order",
    mutant=NO_SPOOL,
    limits=LIMITS,
    environment=NetworkEnvironment,
    needs=missing_privileges,
    tier="extended",
)
def test_gateway_host_without_postgresql(env: NetworkEnvironment) -> None:
    gateway = env.start(roles="gateway")
    env.start(roles="worker,keeper")
    run_outage(env, "nothing passes between the gateway's host and PostgreSQL", gateway.node.isolate)


@scenario(
    fault=f"of {HOSTS} hosts one loses its power, one is frozen (SIGSTOP), one has its link cut, in turn, with handlers at work",
    target="0 lost, effects once; the others take over; what a host has lost it cannot complete",
    mutant=Mutant(
        "finishes_lost_attempts", sql=UNFENCED, label="settles without the fence", breaks=frozenset({"C5", "C7"})
    ),
    tier="extended",
    limits=LIMITS,
    environment=NetworkEnvironment,
    needs=missing_privileges,
)
def test_hosts_fail_in_turn(env: NetworkEnvironment) -> None:
    env.endpoint("/receiver")
    hosts = [env.start(senders=1) for _ in range(HOSTS)]
    _begin(env)
    lost, job = _host_at_work(env, hosts, "lost")
    _fail(env, "a host loses its power", lost, lost.lose, job)
    lost.recover()
    env.warm(60, PATIENCE_S)
    # Sessions of a frozen host stay open. One with an open transaction keeps its locks, and the keeper's session stays elected.
    _finish_work(env)
    frozen, job = _other_host_at_work(env, hosts, "frozen")

    def freeze() -> None:
        frozen.freeze()
        _begin(env)

    _fail(env, "a host is frozen", frozen, freeze, job)
    frozen.thaw()
    env.warm(60, PATIENCE_S)
    cut, job = _host_at_work(env, hosts, "cut")
    _fail(env, "a host's link is cut", cut, cut.node.cut, job)
    cut.node.connect()
    env.warm(60, PATIENCE_S)
    env.quiesce()
    refused = frozen.log().count('"lease_lost"')
    env.expect("C7", refused, "the frozen host was not refused, so nothing was shown")
    env.figure("attempts refused", refused)
    env.figure("attempts lost", env.ask("select count(*) from boathook.attempt where outcome = 'lost'")[0][0])


def _begin(env: NetworkEnvironment) -> None:
    env.begin(rate=RATE / 2, kinds={"move.made": 0.8, "letter.made": 0.2}, **AWAY)
    env.warm(60, PATIENCE_S)


def _finish_work(env: NetworkEnvironment) -> None:
    """Stop the load, and wait until all that it brought is done."""
    env.outside.stop()
    env.outside.settle(PATIENCE_S)
    until(lambda: not env.ask(OPEN))


def _other_host_at_work(env: NetworkEnvironment, hosts: Sequence[NetworkHost], job: str) -> tuple[NetworkHost, str]:
    """Do the same as `_host_at_work` with a host that is not that of the elected keeper."""
    (address,) = env.wait_row(KEEPER, timeout_s=PATIENCE_S)
    keeper = next(host for host in hosts if host.ip == address)
    keeper.freeze("worker")
    found = _host_at_work(env, hosts, job)
    keeper.thaw()
    return found


def _host_at_work(env: NetworkEnvironment, hosts: Sequence[NetworkHost], job: str) -> tuple[NetworkHost, str]:
    """Send an event that a handler takes long for, and return the host that has claimed it, and the event's key."""
    env.send(make_event(job, "slow.job", "a00", "a01", 1, seconds=JOB_S), **AWAY)
    (holder,) = env.wait_row(HOLDER, job, timeout_s=PATIENCE_S)
    return next(host for host in hosts if f"@{host.name}:" in holder), job


def _fail(env: NetworkEnvironment, fault: str, host: NetworkHost, fail: Callable[[], None], job: str) -> None:
    """Let a host fail, and wait until others have done its job and hold its leases."""
    env.fault(fault)
    fail()
    env.wait_row(DONE, job, timeout_s=PATIENCE_S)
    until(lambda: not env.ask(HELD, f"%@{host.name}:%"))
    env.warm(60, PATIENCE_S)


@scenario(
    fault=f"of {HOSTS} hosts that of the elected keeper does not reach PostgreSQL any more",
    target="another one is elected; no chore is done twice at once, and chores go on",
    mutant=Mutant("elects_everybody", breaks=frozenset({"C7"})),
    tier="extended",
    limits=LIMITS,
    environment=NetworkEnvironment,
    needs=missing_privileges,
)
def test_keeper_host_without_postgresql(env: NetworkEnvironment) -> None:
    hosts = [env.start(BANK_TICKS="yes") for _ in range(HOSTS)]
    elected = until(lambda: [host for host in hosts if _is_elected(host)])[0]
    others = [host for host in hosts if host is not elected]
    _wait_ticks(env, 5)
    env.begin(rate=RATE)
    env.warm(30, PATIENCE_S)
    env.fault("nothing passes between the elected keeper's host and PostgreSQL")
    elected.node.isolate()
    until(lambda: any(map(_is_elected, others)))
    _wait_ticks(env, 5)
    elected.node.connect()
    env.warm(60, PATIENCE_S)
    _wait_ticks(env, 5)
    env.quiesce()
    overlaps, ticks = env.ask(OVERLAPS)[0][0], env.ask("select count(*) from bank.tick")[0][0]
    failed = unanswered(env.history())
    env.expect("C7", not overlaps, f"a chore was begun {overlaps} times before it had ended")
    env.expect("C11", not failed, f"{failed} signed requests were refused or not answered")
    env.figure("chores done", ticks)
    env.figure("of them at once", overlaps)


def _is_elected(host: NetworkHost) -> bool:
    return '"keeper_elected"' in host.log()


def _wait_ticks(env: NetworkEnvironment, more: int) -> None:
    ticks = env.ask("select count(*) from bank.tick")[0][0]
    env.wait_row("select 1 from bank.tick having count(*) >= %s", ticks + more, timeout_s=PATIENCE_S)


@scenario(
    fault=f"a rolling restart of {HOSTS} hosts under load: SIGTERM, wait, start",
    target="the only requests that fail are connections refused by the host that is down",
    mutant=Mutant("stops_at_once", breaks=frozenset({"C11"})),
    tier="extended",
    limits=LIMITS,
    environment=NetworkEnvironment,
    needs=missing_privileges,
)
def test_rolling_restart_of_hosts(env: NetworkEnvironment) -> None:
    # Each commit takes a tenth of a second, so that requests are under way whenever a host stops.
    env.server.set(commit_delay="100000", commit_siblings="0")
    hosts = [env.start() for _ in range(HOSTS)]
    env.begin(rate=RATE, is_keeping=False)
    env.warm(60, PATIENCE_S)
    for host in hosts:
        env.fault("a host is restarted")
        env.expect("C11", host.stop() == 0, "it did not stop well")
        env.warm(30, PATIENCE_S)
        host.start()
        env.warm(30, PATIENCE_S)
    env.quiesce()
    refused, failed = _failures(env.history())
    env.expect("C11", not failed, f"{len(failed)} requests failed otherwise: {sorted(set(failed))}")
    env.figure("connections refused", refused)
    env.figure("failed otherwise", len(failed))


def _failures(history: History) -> tuple[int, list[str]]:
    """Return how many signed requests could not connect, and how the others without 2xx ended."""
    signed = {fact.number for fact in history if isinstance(fact, Sent) and fact.is_signed}
    silent = [fact.why for fact in history if isinstance(fact, Silent) and fact.number in signed]
    answers = [fact for fact in history if isinstance(fact, Answered) and fact.number in signed]
    others = [why for why in silent if why != "ConnectionRefusedError"]
    return len(silent) - len(others), others + [str(fact.status) for fact in answers if not is_ok(fact.status)]
