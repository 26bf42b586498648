"""Receivers of messages are slow, endless, unsteady or long away; and the secrets they share with boathook change."""

import time
from dataclasses import replace
from itertools import pairwise

from tests.faults.rig import bank
from tests.faults.rig.environment import QUICK, Lab
from tests.faults.rig.history import Answered, Arrived, History
from tests.faults.rig.invariants import is_ok, is_refusal
from tests.faults.rig.mutants import Twin
from tests.faults.rig.receivers import Manner
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import SECRET, make_letter

MB = 1_000_000
LETTERS = 60
GROWTH_MB = 20
AWKWARD = {
    "/hang": Manner(how="hang"),
    "/drip": Manner(how="drip"),
    "/slow": Manner(status=500, after_s=0.9),
    "/heads": Manner(how="heads", size=10 * MB),
    "/flood": Manner(status=500, how="flood", size=200 * MB),
    "/bomb": Manner(status=500, how="bomb", size=100 * MB, headers={"content-encoding": "gzip"}),
    "/reset": Manner(how="reset"),
}
"""Ways to answer that cost whoever asks a lot."""


def _came(history: History, place: str, *, since: float = 0.0) -> list[Arrived]:
    return [fact for fact in history if isinstance(fact, Arrived) and fact.place == place and fact.at >= since]


def _resident_mb(it: Lab) -> float:
    return max(float(one.memory_info().rss) for one in it.host.children("sender")) / MB


@scenario(
    fault="of eight endpoints one hangs, one sends a byte a second, and others send 10 MB of headers, a body without end, "
    "an archive bomb, errors after a second, or resets",
    target=f"the eighth gets all at once; the sender grows by less than {GROWTH_MB} MB; all arrives in the end",
    twin=Twin("keeps_every_answer", breaks=frozenset({"C14"})),
    tier="soak",
)
def test_awkward_endpoints(it: Lab) -> None:
    it.endpoint("/good")
    for place in AWKWARD:
        it.endpoint(place, concurrency=2)
    it.start(senders=1, settings={"outbound": {"timeout_s": 1.0, "breaker_pause_s": 0.5, "breaker_longest_s": 1.0}})
    it.send(make_letter("evt_first", "letter.sent", "a00", "a01", 1))
    it.outside.wait_arrived(1 + len(AWKWARD))
    before = _resident_mb(it)
    it.fault("seven of eight endpoints are awkward")
    for place, manner in AWKWARD.items():
        it.outside.answer(place, manner)
    began = time.time()
    it.send(*(make_letter(f"evt_{n}", "letter.sent", f"a{n % 10:02}", "a19", n) for n in range(LETTERS)))
    peak = before
    deadline = time.monotonic() + 30
    while len(good := _came(it.history(), "/good", since=began)) < LETTERS and time.monotonic() < deadline:
        peak = max(peak, _resident_mb(it))
        time.sleep(0.1)
    it.expect("C14", len(good) >= LETTERS, f"the good endpoint got {len(good)} of {LETTERS} while others were awkward")
    rest = time.monotonic() + 3
    while time.monotonic() < rest:
        peak = max(peak, _resident_mb(it))
        time.sleep(0.05)
    it.expect("C14", peak - before < GROWTH_MB, f"the sender grew from {before:.0f} to {peak:.0f} MB")
    for place in AWKWARD:
        it.outside.answer(place, Manner())
    it.quiesce()
    it.figure("messages to the good one meanwhile", f"{len(good)} of {LETTERS}")
    it.figure("seconds until the good one had all", max((fact.at for fact in good), default=began) - began)
    it.figure("MB the sender grew", max(0.0, peak - before))


ROUNDS, ROUND_S = 4, 2.0
THRESHOLD = 3


@scenario(
    fault=f"an endpoint is up and down in turn, {ROUND_S:g} s each",
    target="after three failures in a row one probe a second at most; all arrives; attempts as the schedule says",
    twin=Twin(settings={"outbound": {"breaker_after": 0}}, label="gives endpoints no pause", breaks=frozenset({"C8"})),
    tier="soak",
)
def test_flapping_endpoint(it: Lab) -> None:
    it.endpoint("/flapping", concurrency=1)
    it.start(
        senders=1,
        settings={"outbound": {"breaker_after": THRESHOLD, "breaker_pause_s": 1.25, "breaker_longest_s": 1.25}},
    )
    it.begin(rate=30, kinds={"letter.sent": 1.0})
    it.outside.wait_arrived(20)
    failures = []
    for _ in range(ROUNDS):
        it.fault("the endpoint is down")
        it.outside.answer("/flapping", Manner(status=503))
        began = time.time()
        time.sleep(ROUND_S)
        it.outside.answer("/flapping", Manner())
        failures.append(sum(not is_ok(one.status) for one in _came(it.history(), "/flapping", since=began)))
        it.outside.wait_arrived(5)
        time.sleep(ROUND_S)
    it.quiesce()
    # Three until it is given a pause, one more that was under way, and a probe for each second.
    allowed = THRESHOLD + 1 + int(ROUND_S)
    it.expect("C8", max(failures) <= allowed, f"{max(failures)} requests were wasted in one round, not {allowed}")
    most = it.ask("""
        select max(attempts) from boathook.outcome where recipient ^@ 'endpoint:'""")[0][0]
    it.expect("C8", most <= len(QUICK.delays_s) + 1, f"{most} attempts of one message")
    wasted, sent = sum(failures), it.outside.count().arrived
    it.figure("requests wasted", f"{wasted} of {sent}")
    it.figure("most attempts of one message", most)


BACKLOG, RATE = 200, 20
UNLIMITED = """
    create function lab.no_rate() returns trigger language plpgsql as $$ begin new.throttle_rate := null; return new; end $$;
    create trigger no_rate before insert or update on boathook.endpoint for each row execute function lab.no_rate()
"""


@scenario(
    fault=f"an endpoint with a rate of {RATE} a second was away for long; it is back, and {BACKLOG} messages are due at once",
    target="all arrive, at no more than its rate; attempts as the schedule says",
    twin=Twin(sql=UNLIMITED, label="knows no rates", breaks=frozenset({"C14"})),
    tier="soak",
    limits=replace(bank.LIMITS, quiet_s=120.0),
)
def test_endpoint_back_after_long(it: Lab) -> None:
    it.endpoint("/away", throttle_rate=RATE)
    it.start(
        senders=1, settings={"outbound": {"breaker_after": THRESHOLD, "breaker_pause_s": 0.5, "breaker_longest_s": 0.5}}
    )
    it.fault("the endpoint is away")
    it.outside.shut_door()
    it.send(*(make_letter(f"evt_{n}", "letter.sent", f"a{n % 10:02}", "a19", n) for n in range(BACKLOG)))
    it.outside.settle()
    owed = "select 1 from boathook.delivery where recipient ^@ 'endpoint:' having count(*) = %s"
    it.wait_row(owed, BACKLOG, timeout_s=60)
    it.wait_row("select 1 from boathook.endpoint_health where open_until > now()")
    # A day passes: whatever was planned is due.
    it.ask("update boathook.delivery set due_at = now() where state = 'pending' returning 1")
    it.outside.open_door()
    began = time.time()
    it.quiesce()
    times = sorted(fact.at for fact in _came(it.history(), "/away", since=began))
    busiest = max(sum(start <= at < start + 1 for at in times) for start in times)
    # What was saved up for the first second may come beside the second's own.
    it.expect("C14", busiest <= 2 * RATE, f"{busiest} requests came within a second, where {RATE} are its rate")
    it.figure("most within a second", busiest)
    it.figure("seconds until all had come", times[-1] - times[0])


SECRETS = [SECRET, "whsec_the_second", "whsec_the_third"]
REVOKED = 40


def _secrets(*valid: str) -> dict[str, dict[str, object]]:
    return {"sources.stripe": {"provider": "stripe", "secrets": list(valid)}}


def _roll(it: Lab, *valid: str) -> None:
    """Give all hosts these secrets, one host after the other."""
    for host in it.hosts:
        host.revise(_secrets(*valid))
        assert host.stop() == 0
        host.start()


@scenario(
    fault="the secret is rotated twice under load, by rolling restarts of two hosts; then the old ones are revoked",
    target="0 valid requests refused meanwhile; 0 accepted with a revoked secret",
    twin=Twin(settings=_secrets(*SECRETS), label="revokes nothing", breaks=frozenset({"C2"})),
    tier="soak",
)
def test_secret_rotated(it: Lab) -> None:
    for _ in range(2):
        it.start(settings=_secrets(SECRETS[0]))
    for before, after in pairwise(SECRETS):
        it.begin(rate=40, forgeries=0, secret=before)
        it.warm(30)
        it.fault("a secret is added")
        _roll(it, before, after)
        it.begin(rate=40, forgeries=0, secret=after, lane="after")
        it.warm(60)
        it.outside.stop()
        it.outside.settle()
        it.begin(rate=40, forgeries=0, secret=after)
        it.fault("a secret is revoked")
        _roll(it, after)
        it.warm(30)
    it.outside.stop()
    it.outside.settle()
    refused = sum(isinstance(fact, Answered) and is_refusal(fact.status) for fact in it.history())
    it.expect("C1", not refused, f"{refused} valid requests were refused")
    for number in range(REVOKED):
        letter = make_letter(f"evt_revoked_{number}", "move.made", "a00", "a01", number)
        it.send(replace(letter, is_signed=False), stranger=SECRETS[number % 2])
    it.quiesce()
    it.figure("rotations", len(SECRETS) - 1)
    it.figure("valid requests refused", refused)
    it.figure("requests with a revoked secret", REVOKED)
