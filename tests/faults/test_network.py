"""The network between boathook, PostgreSQL and the senders stalls, breaks, crawls and is led elsewhere."""

from collections.abc import Callable

from tests.faults.rig.environment import Host, Lab
from tests.faults.rig.history import Answered
from tests.faults.rig.mutants import Twin
from tests.faults.rig.outages import NO_SPOOL, RATE, Repeatedly, ride_out, silent, tell, unanswered
from tests.faults.rig.proxy import Proxy
from tests.faults.rig.scenario import scenario
from tests.support import until

TARGET = "every signed event answered 2xx meanwhile"


def _wired(it: Lab, **settings: dict[str, object]) -> tuple[Host, Proxy]:
    host = it.start(is_wired=True, settings=settings)
    assert host.wire is not None
    return host, host.wire


@scenario(
    fault="the way to PostgreSQL falls silent for 4 s, no connection ends",
    target=TARGET,
    twin=NO_SPOOL,
    tier="extended",
)
def test_silent_cut(it: Lab) -> None:
    _, wire = _wired(it)
    ride_out(it, "nothing passes between boathook and PostgreSQL", lambda: wire.set(is_stalled=True))


@scenario(
    fault="PostgreSQL hears nothing more and boathook is not told: half-open, 6 s",
    target=TARGET,
    twin=NO_SPOOL,
    tier="soak",
)
def test_deaf_server(it: Lab) -> None:
    _, wire = _wired(it)
    ride_out(it, "nothing passes to PostgreSQL", lambda: wire.set(deaf="up"), events=360)


ROUNDS = 4


@scenario(
    fault=f"PostgreSQL commits, its answers are lost and the connections cut, {ROUNDS} times",
    target="every event of unknown outcome is stored once",
    twin=Twin("drains_as_new", breaks=frozenset({"C3"})),
)
def test_outcome_unknown(it: Lab) -> None:
    gateway = it.start(roles="gateway", is_wired=True)
    it.start(roles="worker,keeper")
    wire = gateway.wire
    assert wire is not None
    unknown: set[str] = set()

    def of_unknown_outcome() -> set[str]:
        stored = {key for (key,) in it.ask("select dedup_key from boathook.event")}
        return {record.key for record in it.spooled()} & stored

    it.begin(rate=RATE)
    it.wait_row("select from bank.effect", timeout_s=90)
    for _ in range(ROUNDS):
        it.warm(20)
        it.fault("what PostgreSQL answers is lost")
        wire.set(deaf="down")
        unknown |= until(of_unknown_outcome, timeout=30)
        wire.reset()
        it.heal()
    it.warm(30)
    it.quiesce()
    failed = unanswered(it.history())
    it.expect("C11", not failed, f"{failed} signed requests were refused or not answered")
    it.figure("committed and spooled", len(unknown))


@scenario(
    fault="connections to PostgreSQL are reset every 0.3 s for 6 s, wherever they are",
    target=TARGET,
    twin=NO_SPOOL,
    tier="soak",
)
def test_resets(it: Lab) -> None:
    _, wire = _wired(it)
    it.begin(rate=RATE)
    it.warm(30)
    it.fault("connections are reset")
    with Repeatedly(wire.reset, every_s=0.3) as resets:
        it.outside.wait_events(360, timeout_s=60)
    it.heal()
    it.warm(30)
    it.quiesce()
    tell(it)
    it.figure("connections reset", resets.count)


def _crawl(it: Lab, fault: str, slowly: Callable[[Proxy], None]) -> None:
    """Let senders wait for 5 s, which is longer than boathook lets anybody wait for PostgreSQL, and no longer."""
    _, wire = _wired(it)
    it.begin(rate=RATE, timeout_s=5.0, most_at_once=5_000)
    it.warm(30)
    it.fault(fault)
    slowly(wire)
    it.outside.wait_events(int(12 * RATE), timeout_s=90)
    it.heal()
    it.warm(30, timeout_s=60)
    it.quiesce()
    tell(it)


@scenario(fault="PostgreSQL slow: 200 ms more on each way", target=f"{TARGET}, within 5 s", twin=NO_SPOOL, tier="soak")
def test_slow(it: Lab) -> None:
    _crawl(it, "every word takes 200 ms", lambda wire: wire.set(latency_s=0.2, jitter_s=0.05))


@scenario(
    fault="4 kB/s on each connection to PostgreSQL, a tenth of what arrives",
    target=f"{TARGET}, within 5 s",
    twin=NO_SPOOL,
    tier="soak",
)
def test_narrow(it: Lab) -> None:
    _crawl(it, "4 kB/s", lambda wire: wire.set(bytes_per_s=4_000))


@scenario(
    fault="whatever passes between boathook and PostgreSQL comes byte by byte, at 4 kB/s",
    target=f"{TARGET}, within 5 s",
    twin=NO_SPOOL,
    tier="soak",
)
def test_byte_by_byte(it: Lab) -> None:
    _crawl(it, "byte by byte", lambda wire: wire.set(slice_bytes=1, bytes_per_s=4_000))


@scenario(
    fault="ten times the load for some seconds, PostgreSQL slow and in small batches",
    target="2xx, 429 or 503, and never a timeout; memory bounded",
    twin=Twin(
        settings={
            "spool": {"enabled": False},
            "database": {"intake_queue": 1_000_000},
            "limits": {"max_connections": 100_000, "max_connections_per_client": 100_000},
        },
        label="a queue without end, and no spool",
        breaks=frozenset({"C11"}),
    ),
    tier="soak",
)
def test_tenfold_burst(it: Lab) -> None:
    host, wire = _wired(it, database={"intake_batch": 8})
    gateway = host.children("gateway")[0]
    it.begin(rate=30)
    it.warm(30)
    before = gateway.memory_info().rss
    it.fault("ten times the load")
    wire.set(latency_s=0.1)
    it.begin(lane="burst", rate=300, timeout_s=5.0, most_at_once=5_000)
    it.outside.wait_events(2_400, timeout_s=90)
    it.outside.stop("burst")
    after = gateway.memory_info().rss
    it.heal()
    it.quiesce()
    history = it.history()
    answers = [fact.status for fact in history if isinstance(fact, Answered)]
    odd = sum(status >= 400 and status not in {401, 429, 503} for status in answers)
    it.expect("C11", not silent(history), f"{silent(history)} signed requests got no answer in time")
    it.expect("C11", not odd, f"{odd} requests were refused with neither 429 nor 503")
    it.expect("C14", after < 2 * before, f"the gateway grew from {before >> 20} to {after >> 20} MiB")
    it.figure("answered 429 or 503", sum(status in {429, 503} for status in answers))
    it.figure("memory", f"{after / before:.2f} times that before")


def _roll(it: Lab, rounds: int) -> None:
    """Stop and start two boathooks in turn behind a proxy that sends newcomers to the other one."""
    settings = {"server": {"linger_s": 1.0}}
    hosts = [it.start(settings=settings), it.start(settings=settings, roles="gateway")]
    balancer = it.proxy(("127.0.0.1", hosts[1].port))
    balancer.set(latency_s=0.2)
    it.begin(rate=RATE, hosts=(f"127.0.0.1:{balancer.port}",), is_keeping=False)
    it.warm(30)
    for number in range(rounds):
        it.fault("one of two is deployed anew")
        host, other = hosts[number % 2], hosts[1 - number % 2]
        balancer.target = ("127.0.0.1", other.port)
        it.outside.wait_events(5)
        it.expect("C11", host.stop() == 0, "it did not stop well")
        host.start()
        it.warm(20)
    it.outside.mark("healed")
    it.quiesce()
    failed = unanswered(it.history())
    it.expect("C11", not failed, f"{failed} signed requests were refused or not answered")
    it.figure("deploys", rounds)
    it.figure("failed", failed)


STOPS_AT_ONCE = Twin("stops_at_once", breaks=frozenset({"C11"}))


@scenario(
    fault="20 rolling deploys under load: SIGTERM, wait, start",
    target="0 failed requests",
    twin=STOPS_AT_ONCE,
    tier="soak",
)
def test_rolling_deploys(it: Lab) -> None:
    _roll(it, 20)


@scenario(
    fault="two rolling deploys under load: SIGTERM, wait, start",
    target="0 failed requests",
    twin=STOPS_AT_ONCE,
    tier="soak",
)
def test_two_rolling_deploys(it: Lab) -> None:
    _roll(it, 2)


@scenario(
    fault="a whole host frozen with open requests (SIGSTOP, as a paused machine), then thawed",
    target="clients time out and come again: one row each",
    twin=Twin("forgets_keys", breaks=frozenset({"C3"})),
    tier="soak",
)
def test_frozen_gateway(it: Lab) -> None:
    host = it.start()
    it.begin(rate=RATE, timeout_s=2.0, most_at_once=5_000)
    it.warm(30)
    for _ in range(2):
        it.fault("everything is frozen")
        host.freeze()
        it.outside.wait_events(400, timeout_s=90)
        host.thaw()
        it.warm(30)
    it.quiesce()
    it.figure("requests without an answer", unanswered(it.history()))
