"""Receivers of messages are slow, endless, unsteady or long away; and the secrets they share with boathook change."""

import time
from dataclasses import replace
from itertools import pairwise

from tests.faults.rig import bank
from tests.faults.rig.environment import QUICK, Environment
from tests.faults.rig.history import Answered, Arrived, History
from tests.faults.rig.invariants import is_ok, is_refusal
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.receivers import Behaviour
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import SECRET, make_event

MB = 1_000_000
EVENT_COUNT = 60
GROWTH_MB = 20
AWKWARD = {
    "/hang": Behaviour(how="hang"),
    "/drip": Behaviour(how="drip"),
    "/slow": Behaviour(status=500, after_s=0.9),
    "/heads": Behaviour(how="heads", size=10 * MB),
    "/flood": Behaviour(status=500, how="flood", size=200 * MB),
    "/bomb": Behaviour(status=500, how="bomb", size=100 * MB, headers={"content-encoding": "gzip"}),
    "/reset": Behaviour(how="reset"),
}
"""Responses that are expensive for the sender."""


def _came(history: History, place: str, *, since: float = 0.0) -> list[Arrived]:
    return [fact for fact in history if isinstance(fact, Arrived) and fact.place == place and fact.at >= since]


def _resident_mb(env: Environment) -> float:
    return max(float(one.memory_info().rss) for one in env.host.children("sender")) / MB


@scenario(
    fault="of eight endpoints one hangs, one sends a byte a second, and others send 10 MB of headers, a body without end, "
    "an archive bomb, errors after a second, or resets",
    target=f"the eighth gets all at once; the sender grows by less than {GROWTH_MB} MB; all arrives in the end",
    mutant=Mutant("keeps_every_answer", breaks=frozenset({"C14"})),
    tier="soak",
)
def test_awkward_endpoints(env: Environment) -> None:
    env.endpoint("/good")
    for place in AWKWARD:
        env.endpoint(place, concurrency=2)
    env.start(senders=1, settings={"outbound": {"timeout_s": 1.0, "breaker_pause_s": 0.5, "breaker_max_pause_s": 1.0}})
    env.send(make_event("evt_first", "letter.sent", "a00", "a01", 1))
    env.outside.wait_arrived(1 + len(AWKWARD))
    before = _resident_mb(env)
    env.fault("seven of eight endpoints are awkward")
    for place, behaviour in AWKWARD.items():
        env.outside.answer(place, behaviour)
    began = time.time()
    env.send(*(make_event(f"evt_{n}", "letter.sent", f"a{n % 10:02}", "a19", n) for n in range(EVENT_COUNT)))
    peak = before
    deadline = time.monotonic() + 30
    while len(good := _came(env.history(), "/good", since=began)) < EVENT_COUNT and time.monotonic() < deadline:
        peak = max(peak, _resident_mb(env))
        time.sleep(0.1)
    env.expect(
        "C14", len(good) >= EVENT_COUNT, f"the good endpoint got {len(good)} of {EVENT_COUNT} while others were awkward"
    )
    rest = time.monotonic() + 3
    while time.monotonic() < rest:
        peak = max(peak, _resident_mb(env))
        time.sleep(0.05)
    env.expect("C14", peak - before < GROWTH_MB, f"the sender grew from {before:.0f} to {peak:.0f} MB")
    for place in AWKWARD:
        env.outside.answer(place, Behaviour())
    env.quiesce()
    env.figure("messages to the good one meanwhile", f"{len(good)} of {EVENT_COUNT}")
    env.figure("seconds until the good one had all", max((fact.at for fact in good), default=began) - began)
    env.figure("MB the sender grew", max(0.0, peak - before))


ROUNDS, ROUND_S = 4, 2.0
THRESHOLD = 3


@scenario(
    fault=f"an endpoint is up and down in turn, {ROUND_S:g} s each",
    target="after three failures in a row one probe a second at most; all arrives; attempts as the schedule says",
    mutant=Mutant(
        settings={"outbound": {"breaker_after": 0}}, label="gives endpoints no pause", breaks=frozenset({"C8"})
    ),
    tier="soak",
)
def test_flapping_endpoint(env: Environment) -> None:
    env.endpoint("/flapping", concurrency=1)
    env.start(
        senders=1,
        settings={"outbound": {"breaker_after": THRESHOLD, "breaker_pause_s": 1.25, "breaker_max_pause_s": 1.25}},
    )
    env.begin(rate=30, kinds={"letter.sent": 1.0})
    env.outside.wait_arrived(20)
    failures = []
    for _ in range(ROUNDS):
        env.fault("the endpoint is down")
        env.outside.answer("/flapping", Behaviour(status=503))
        began = time.time()
        time.sleep(ROUND_S)
        env.outside.answer("/flapping", Behaviour())
        failures.append(sum(not is_ok(one.status) for one in _came(env.history(), "/flapping", since=began)))
        env.outside.wait_arrived(5)
        time.sleep(ROUND_S)
    env.quiesce()
    # Three until it is given a pause, one more that was under way, and a probe for each second.
    allowed = THRESHOLD + 1 + int(ROUND_S)
    env.expect("C8", max(failures) <= allowed, f"{max(failures)} requests were wasted in one round, not {allowed}")
    most = env.ask("""
        select max(attempts) from boathook.delivery_archive where recipient ^@ 'endpoint:'""")[0][0]
    env.expect("C8", most <= len(QUICK.delays_s) + 1, f"{most} attempts of one message")
    wasted, sent = sum(failures), env.outside.count().arrived
    env.figure("requests wasted", f"{wasted} of {sent}")
    env.figure("most attempts of one message", most)


BACKLOG, RATE = 200, 20
UNLIMITED = """
    create function fault_rig.no_rate() returns trigger language plpgsql as $$ begin new.throttle_rate := null; return new; end $$;
    create trigger no_rate before insert or update on boathook.endpoint for each row execute function fault_rig.no_rate()
"""


@scenario(
    fault=f"an endpoint with a rate of {RATE} a second was away for long; it is back, and {BACKLOG} messages are due at once",
    target="all arrive, at no more than its rate; attempts as the schedule says",
    mutant=Mutant(sql=UNLIMITED, label="knows no rates", breaks=frozenset({"C14"})),
    tier="soak",
    limits=replace(bank.LIMITS, quiet_s=120.0),
)
def test_endpoint_back_after_long(env: Environment) -> None:
    env.endpoint("/away", throttle_rate=RATE)
    env.start(
        senders=1,
        settings={"outbound": {"breaker_after": THRESHOLD, "breaker_pause_s": 0.5, "breaker_max_pause_s": 0.5}},
    )
    env.fault("the endpoint is away")
    env.outside.shut_door()
    env.send(*(make_event(f"evt_{n}", "letter.sent", f"a{n % 10:02}", "a19", n) for n in range(BACKLOG)))
    env.outside.settle()
    owed = "select 1 from boathook.delivery where recipient ^@ 'endpoint:' having count(*) = %s"
    env.wait_row(owed, BACKLOG, timeout_s=60)
    env.wait_row("select 1 from boathook.endpoint_health where open_until > now()")
    # A day passes: whatever was planned is due.
    env.ask("update boathook.delivery set due_at = now() where state = 'pending' returning 1")
    env.outside.open_door()
    began = time.time()
    env.quiesce()
    times = sorted(fact.at for fact in _came(env.history(), "/away", since=began))
    busiest = max(sum(start <= at < start + 1 for at in times) for start in times)
    # What was saved up for the first second may come beside the second's own.
    env.expect("C14", busiest <= 2 * RATE, f"{busiest} requests came within a second, where {RATE} are its rate")
    env.figure("most within a second", busiest)
    env.figure("seconds until all had come", times[-1] - times[0])


SECRETS = [SECRET, "whsec_the_second", "whsec_the_third"]
REVOKED = 40


def _secrets(*valid: str) -> dict[str, dict[str, object]]:
    return {"sources.stripe": {"provider": "stripe", "secrets": list(valid)}}


def _roll(env: Environment, *valid: str) -> None:
    """Give all hosts these secrets, one host after the other."""
    for host in env.hosts:
        host.revise(_secrets(*valid))
        assert host.stop() == 0
        host.start()


@scenario(
    fault="the secret is rotated twice under load, by rolling restarts of two hosts; then the old ones are revoked",
    target="0 valid requests refused meanwhile; 0 accepted with a revoked secret",
    mutant=Mutant(settings=_secrets(*SECRETS), label="revokes nothing", breaks=frozenset({"C2"})),
    tier="soak",
)
def test_secret_rotated(env: Environment) -> None:
    for _ in range(2):
        env.start(settings=_secrets(SECRETS[0]))
    for before, after in pairwise(SECRETS):
        env.begin(rate=40, forgeries=0, secret=before)
        env.warm(30)
        env.fault("a secret is added")
        _roll(env, before, after)
        env.begin(rate=40, forgeries=0, secret=after, lane="after")
        env.warm(60)
        env.outside.stop()
        env.outside.settle()
        env.begin(rate=40, forgeries=0, secret=after)
        env.fault("a secret is revoked")
        _roll(env, after)
        env.warm(30)
    env.outside.stop()
    env.outside.settle()
    refused = sum(isinstance(fact, Answered) and is_refusal(fact.status) for fact in env.history())
    env.expect("C1", not refused, f"{refused} valid requests were refused")
    for number in range(REVOKED):
        event = make_event(f"evt_revoked_{number}", "move.made", "a00", "a01", number)
        env.send(replace(event, is_signed=False), forger_secret=SECRETS[number % 2])
    env.quiesce()
    env.figure("rotations", len(SECRETS) - 1)
    env.figure("valid requests refused", refused)
    env.figure("requests with a revoked secret", REVOKED)
