"""Senders that misbehave: copies, conflicts, strangers' keys, and no order at all."""

from tests.faults.rig.environment import Lab
from tests.faults.rig.mutants import Twin
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import Letter, make_letter

COPIES = 1_000
KEYS = 200


@scenario(
    fault="one signed event a thousand times from 50 connections, the gateway killed meanwhile",
    target="1 row, 1 effect, every copy answered 2xx in the end",
    twin=Twin("forgets_keys", breaks=frozenset({"C3"})),
    tier="extended",
)
def test_duplicate_flood(it: Lab) -> None:
    it.start()
    letter = make_letter("evt_again", "move.made", "a00", "a01", 1)
    it.send(*[letter] * COPIES, most_at_once=50)
    it.outside.wait_accepted(COPIES // 4)
    it.fault("the gateway is killed")
    it.host.kill("gateway")
    it.quiesce()
    it.expect("C3", it.ask("select count(*) from boathook.event") == [(1,)], "the copies made more than one row")
    it.expect("C1", it.outside.count().accepted >= COPIES, "some copies were not answered 2xx")
    it.figure("copies", COPIES)


@scenario(
    fault="one id, two signed bodies, 200 times",
    target="every second body kept and flagged, the first effect only",
    twin=Twin("forgets_conflicts", breaks=frozenset({"C1"})),
)
def test_one_id_two_bodies(it: Lab) -> None:
    it.start()
    first = [make_letter(f"evt_{number}", "move.made", f"a{number % 10:02}", "a19", number) for number in range(KEYS)]
    second = [make_letter(one.key, one.kind, one.line, "a18", number) for number, one in enumerate(first)]
    for some in (first, second):
        it.send(*some)
        it.outside.settle()
    flagged = it.ask("select count(*) from boathook.conflict where differs = 'body'")[0][0]
    it.expect("C1", flagged == KEYS, f"{flagged} of {KEYS} conflicts are flagged")
    it.figure("flagged", f"{flagged} of {KEYS}")


@scenario(
    fault="strangers send the ids of 200 future events, badly signed",
    target="0 rows, 0 keys of theirs; every real event accepted",
    twin=Twin("believes_everybody", breaks=frozenset({"C2"})),
    tier="soak",
)
def test_poisoned_keys(it: Lab) -> None:
    it.start()
    real = [make_letter(f"evt_{number}", "move.made", f"a{number % 10:02}", "a19", number) for number in range(KEYS)]
    it.fault("strangers send")
    it.send(*(Letter(one.key, b" " + one.body, one.line, one.kind, is_signed=False) for one in real))
    it.outside.settle()
    known = it.ask("select count(*) from boathook.dedup")[0][0]
    it.expect("C2", known == 0, f"strangers left {known} keys in dedup memory")
    it.send(*real)
    it.outside.settle()
    accepted = it.outside.count().accepted
    it.expect("C1", accepted == KEYS, f"{accepted} of {KEYS} real events were accepted")
    it.figure("real events accepted", f"{accepted} of {KEYS}")


@scenario(
    fault="five accounts' events leave in any order, 300 a second, copies and retries among them",
    target="effects in accept order; the newest state stays",
    twin=Twin("orders_nothing", breaks=frozenset({"C6"})),
    tier="extended",
)
def test_out_of_order_flood(it: Lab) -> None:
    it.start()
    it.begin(rate=300, count=600, accounts=5, shuffled=40, copies=0.1)
    it.outside.wait_events(600)
    it.quiesce()
    stale = it.ask("""
        select l.account from bank.latest l join (
            select convert_from(body, 'utf8')::json ->> 'account' as account,
                max((convert_from(body, 'utf8')::json ->> 'n')::int) as n
            from boathook.event group by 1) as e using (account)
        where l.n <> e.n""")
    it.expect("C6", not stale, f"an older event was taken for the newest of {stale}")
