"""The network between boathook, PostgreSQL and the senders stalls, breaks, crawls and is led elsewhere."""

import contextlib
from collections.abc import Callable

from tests.faults.rig.environment import Environment, Host
from tests.faults.rig.history import Answered
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.outages import NO_SPOOL, RATE, Repeatedly, report_outage, run_outage, silent, unanswered
from tests.faults.rig.proxy import Proxy
from tests.faults.rig.scenario import scenario
from tests.support import until

TARGET = "every signed event answered 2xx meanwhile"


def _wired(env: Environment, **settings: dict[str, object]) -> tuple[Host, Proxy]:
    host = env.start(is_wired=True, settings=settings)
    assert host.wire is not None
    return host, host.wire


@scenario(
    fault="the way to PostgreSQL falls silent for 4 s, no connection ends",
    target=TARGET,
    mutant=NO_SPOOL,
    tier="extended",
)
def test_silent_cut(env: Environment) -> None:
    _, wire = _wired(env)
    run_outage(env, "nothing passes between boathook and PostgreSQL", lambda: wire.set(is_stalled=True))


@scenario(
    fault="PostgreSQL hears nothing more and boathook is not told: half-open, 6 s",
    target=TARGET,
    mutant=NO_SPOOL,
    tier="soak",
)
def test_deaf_server(env: Environment) -> None:
    _, wire = _wired(env)
    run_outage(env, "nothing passes to PostgreSQL", lambda: wire.set(deaf="up"), events=360)


ROUNDS = 4


@scenario(
    fault=f"PostgreSQL commits, its answers are lost and the connections cut, {ROUNDS} times",
    target="every event of unknown outcome is stored once",
    mutant=Mutant("drains_as_new", breaks=frozenset({"C3"})),
)
def test_outcome_unknown(env: Environment) -> None:
    gateway = env.start(roles="gateway", is_wired=True)
    env.start(roles="worker,keeper")
    wire = gateway.wire
    assert wire is not None
    unknown: set[str] = set()

    def of_unknown_outcome() -> set[str]:
        stored = {key for (key,) in env.ask("select dedup_key from boathook.event")}
        return {record.key for record in env.spooled()} & stored

    env.begin(rate=RATE)
    env.wait_row("select from bank.effect", timeout_s=90)
    for _ in range(ROUNDS):
        found: set[str] = set()
        while not found:  # a gateway that spools already, as on a busy machine, has asked PostgreSQL nothing
            env.warm(20)
            env.fault("what PostgreSQL answers is lost")
            wire.set(deaf="down")
            with contextlib.suppress(AssertionError):
                found = until(of_unknown_outcome, timeout=20)
            wire.reset()
            env.heal()
        unknown |= found
    env.warm(30)
    env.quiesce()
    failed = unanswered(env.history())
    env.expect("C11", not failed, f"{failed} signed requests were refused or not answered")
    env.figure("committed and spooled", len(unknown))


@scenario(
    fault="connections to PostgreSQL are reset every 0.3 s for 6 s, wherever they are",
    target=TARGET,
    mutant=NO_SPOOL,
    tier="soak",
)
def test_resets(env: Environment) -> None:
    _, wire = _wired(env)
    env.begin(rate=RATE)
    env.warm(30)
    env.fault("connections are reset")
    with Repeatedly(wire.reset, every_s=0.3) as resets:
        env.outside.wait_events(360, timeout_s=60)
    env.heal()
    env.warm(30)
    env.quiesce()
    report_outage(env)
    env.figure("connections reset", resets.count)


def _crawl(env: Environment, fault: str, slowly: Callable[[Proxy], None]) -> None:
    """Let senders wait for 5 s, longer than boathook waits for PostgreSQL."""
    _, wire = _wired(env)
    env.begin(rate=RATE, timeout_s=5.0, most_at_once=5_000)
    env.warm(30)
    env.fault(fault)
    slowly(wire)
    env.outside.wait_events(int(12 * RATE), timeout_s=90)
    env.heal()
    env.warm(30, timeout_s=60)
    env.quiesce()
    report_outage(env)


@scenario(
    fault="PostgreSQL slow: 200 ms more on each way", target=f"{TARGET}, within 5 s", mutant=NO_SPOOL, tier="soak"
)
def test_slow(env: Environment) -> None:
    _crawl(env, "every word takes 200 ms", lambda wire: wire.set(latency_s=0.2, jitter_s=0.05))


@scenario(
    fault="4 kB/s on each connection to PostgreSQL, a tenth of what arrives",
    target=f"{TARGET}, within 5 s",
    mutant=NO_SPOOL,
    tier="soak",
)
def test_narrow(env: Environment) -> None:
    _crawl(env, "4 kB/s", lambda wire: wire.set(bytes_per_s=4_000))


@scenario(
    fault="whatever passes between boathook and PostgreSQL comes byte by byte, at 4 kB/s",
    target=f"{TARGET}, within 5 s",
    mutant=NO_SPOOL,
    tier="soak",
)
def test_byte_by_byte(env: Environment) -> None:
    _crawl(env, "byte by byte", lambda wire: wire.set(slice_bytes=1, bytes_per_s=4_000))


@scenario(
    fault="ten times the load for some seconds, PostgreSQL slow and in small batches",
    target="2xx, 429 or 503, and never a timeout; memory bounded",
    mutant=Mutant(
        settings={
            "spool": {"enabled": False},
            "database": {"ingest_queue_size": 1_000_000},
            "limits": {"max_connections": 100_000, "max_connections_per_client": 100_000},
        },
        label="a queue without end, and no spool",
        breaks=frozenset({"C11"}),
    ),
    tier="soak",
)
def test_tenfold_burst(env: Environment) -> None:
    host, wire = _wired(env, database={"ingest_batch_size": 8})
    gateway = host.children("gateway")[0]
    env.begin(rate=30)
    env.warm(30)
    before = gateway.memory_info().rss
    env.fault("ten times the load")
    wire.set(latency_s=0.1)
    env.begin(lane="burst", rate=300, timeout_s=5.0, most_at_once=5_000)
    env.outside.wait_events(2_400, timeout_s=90)
    env.outside.stop("burst")
    after = gateway.memory_info().rss
    env.heal()
    env.quiesce()
    history = env.history()
    answers = [fact.status for fact in history if isinstance(fact, Answered)]
    odd = sum(status >= 400 and status not in {401, 429, 503} for status in answers)
    env.expect("C11", not silent(history), f"{silent(history)} signed requests got no answer in time")
    env.expect("C11", not odd, f"{odd} requests were refused with neither 429 nor 503")
    env.expect("C14", after < 2 * before, f"the gateway grew from {before >> 20} to {after >> 20} MiB")
    env.figure("answered 429 or 503", sum(status in {429, 503} for status in answers))
    env.figure("memory", f"{after / before:.2f} times that before")


def _roll(env: Environment, rounds: int) -> None:
    """Stop and start two boathooks in turn behind a proxy that sends newcomers to the other one."""
    settings = {"server": {"linger_s": 1.0}}
    hosts = [env.start(settings=settings), env.start(settings=settings, roles="gateway")]
    balancer = env.proxy(("127.0.0.1", hosts[1].port))
    balancer.set(latency_s=0.2)
    env.begin(rate=RATE, hosts=(f"127.0.0.1:{balancer.port}",), is_keeping=False)
    env.warm(30)
    for number in range(rounds):
        env.fault("one of two is deployed anew")
        host, other = hosts[number % 2], hosts[1 - number % 2]
        balancer.target = ("127.0.0.1", other.port)
        env.outside.wait_events(5)
        env.expect("C11", host.stop() == 0, "it did not stop well")
        host.start()
        env.warm(20)
    env.outside.mark("healed")
    env.quiesce()
    failed = unanswered(env.history())
    env.expect("C11", not failed, f"{failed} signed requests were refused or not answered")
    env.figure("deploys", rounds)
    env.figure("failed", failed)


STOPS_AT_ONCE = Mutant("stops_at_once", breaks=frozenset({"C11"}))


@scenario(
    fault="20 rolling deploys under load: SIGTERM, wait, start",
    target="0 failed requests",
    mutant=STOPS_AT_ONCE,
    tier="soak",
)
def test_rolling_deploys(env: Environment) -> None:
    _roll(env, 20)


@scenario(
    fault="two rolling deploys under load: SIGTERM, wait, start",
    target="0 failed requests",
    mutant=STOPS_AT_ONCE,
    tier="soak",
)
def test_two_rolling_deploys(env: Environment) -> None:
    _roll(env, 2)


@scenario(
    fault="a whole host frozen with open requests (SIGSTOP, as a paused machine), then thawed",
    target="clients time out and come again: one row each",
    mutant=Mutant("forgets_keys", breaks=frozenset({"C3"})),
    tier="soak",
)
def test_frozen_gateway(env: Environment) -> None:
    host = env.start()
    env.begin(rate=RATE, timeout_s=2.0, most_at_once=5_000)
    env.warm(30)
    for _ in range(2):
        env.fault("everything is frozen")
        host.freeze()
        env.outside.wait_events(400, timeout_s=90)
        host.thaw()
        env.warm(30)
    env.quiesce()
    env.figure("requests without an answer", unanswered(env.history()))
