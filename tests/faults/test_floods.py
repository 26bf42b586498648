"""Senders that misbehave: copies, conflicts, keys of other senders, and random order."""

from tests.faults.rig.environment import Environment
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import SignedEvent, make_event

COPIES = 1_000
KEYS = 200


@scenario(
    fault="one signed event a thousand times from 50 connections, the gateway killed meanwhile",
    target="1 row, 1 effect, every copy answered 2xx in the end",
    mutant=Mutant("forgets_keys", breaks=frozenset({"C3"})),
    tier="extended",
)
def test_duplicate_flood(env: Environment) -> None:
    env.start()
    event = make_event("evt_again", "move.made", "a00", "a01", 1)
    env.send(*[event] * COPIES, most_at_once=50)
    env.outside.wait_accepted(COPIES // 4)
    env.fault("the gateway is killed")
    env.host.kill("gateway")
    env.quiesce()
    env.expect("C3", env.ask("select count(*) from boathook.event") == [(1,)], "the copies made more than one row")
    env.expect("C1", env.outside.count().accepted >= COPIES, "some copies were not answered 2xx")
    env.figure("copies", COPIES)


@scenario(
    fault="one id, two signed bodies, 200 times",
    target="every second body kept and flagged, the first effect only",
    mutant=Mutant("forgets_conflicts", breaks=frozenset({"C1"})),
)
def test_one_id_two_bodies(env: Environment) -> None:
    env.start()
    first = [make_event(f"evt_{number}", "move.made", f"a{number % 10:02}", "a19", number) for number in range(KEYS)]
    second = [make_event(one.key, one.kind, one.line, "a18", number) for number, one in enumerate(first)]
    for some in (first, second):
        env.send(*some)
        env.outside.settle()
    env.quiesce()  # what a gateway has spooled meanwhile is flagged once it is drained
    flagged = env.ask("select count(*) from boathook.conflict where differs = 'body'")[0][0]
    env.expect("C1", flagged == KEYS, f"{flagged} of {KEYS} conflicts are flagged")
    env.figure("flagged", f"{flagged} of {KEYS}")


@scenario(
    fault="strangers send the ids of 200 future events, badly signed",
    target="0 rows, 0 keys of theirs; every real event accepted",
    mutant=Mutant("believes_everybody", breaks=frozenset({"C2"})),
    tier="soak",
)
def test_poisoned_keys(env: Environment) -> None:
    env.start()
    real = [make_event(f"evt_{number}", "move.made", f"a{number % 10:02}", "a19", number) for number in range(KEYS)]
    env.fault("strangers send")
    env.send(*(SignedEvent(one.key, b" " + one.body, one.line, one.kind, is_signed=False) for one in real))
    env.outside.settle()
    known = env.ask("select count(*) from boathook.dedup")[0][0]
    env.expect("C2", known == 0, f"strangers left {known} keys in dedup memory")
    env.send(*real)
    env.outside.settle()
    accepted = env.outside.count().accepted
    env.expect("C1", accepted == KEYS, f"{accepted} of {KEYS} real events were accepted")
    env.figure("real events accepted", f"{accepted} of {KEYS}")


@scenario(
    fault="five accounts' events leave in any order, 300 a second, copies and retries among them",
    target="effects in accept order; the newest state stays",
    mutant=Mutant("orders_nothing", breaks=frozenset({"C6"})),
    tier="extended",
)
def test_out_of_order_flood(env: Environment) -> None:
    env.start()
    env.begin(rate=300, count=600, accounts=5, shuffled=40, copies=0.1)
    env.outside.wait_events(600)
    env.quiesce()
    stale = env.ask("""
        select l.account from bank.latest l join (
            select convert_from(body, 'utf8')::json ->> 'account' as account,
                max((convert_from(body, 'utf8')::json ->> 'n')::int) as n
            from boathook.event group by 1) as e using (account)
        where l.n <> e.n""")
    env.expect("C6", not stale, f"an older event was taken for the newest of {stale}")
