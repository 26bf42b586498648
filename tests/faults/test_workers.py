"""Workers die together, freeze at the worst time, collide, and get replays."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import psycopg

from tests.faults.rig import bank
from tests.faults.rig.disks import copy_server, in_memory, still
from tests.faults.rig.environment import Environment, Host
from tests.faults.rig.mutants import UNCOUNTED, UNFENCED, Mutant
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import make_event
from tests.support import until

MANY = 60
STEPS = ("claim.after_commit", "handler.before_effect", "handler.after_effect", "handler.before_commit")
"""Where a worker is frozen: from its claim to the moment before its commit."""
BRIEF = {"worker": {"lease_s": 1.0}}
LEASED = "select event_id, ordinal, fence from boathook.delivery where state = 'leased'"
WORTH_IT = 300.0


@scenario(
    fault="all workers are killed together, three times under load",
    target="work goes on by itself; what the dead had claimed counts as attempts",
    mutant=Mutant(sql=UNCOUNTED, label="counts no attempt whose worker died", breaks=frozenset({"C8"})),
    tier="soak",
)
def test_all_workers_killed(env: Environment) -> None:
    env.start()
    env.begin(rate=60)
    env.send(make_event("evt_long", "slow.job", "a00", "a01", 1, seconds=0.5))
    for fence in (1, 2):
        env.wait_row(
            "select 1 from boathook.delivery where recipient = 'handler:slow' and state = 'leased' and fence = %s",
            fence,
        )
        _kill_workers(env)
    env.wait_row("select 1 from boathook.delivery_archive where recipient = 'handler:slow'")
    _kill_workers(env)
    env.warm(30)
    env.quiesce()
    ends = env.ask("""
        select a.number, a.outcome from boathook.attempt a join boathook.event e on e.id = a.event_id
        where e.type = 'slow.job' order by a.number""")
    wanted = [(1, "lost"), (2, "lost"), (3, "succeeded")]
    env.expect("C8", ends == wanted, f"the attempts on record are {ends}, not {wanted}")
    env.figure("kills", 3)
    env.figure("attempts lost", env.ask("select count(*) from boathook.attempt where outcome = 'lost'")[0][0])


def _kill_workers(env: Environment) -> None:
    env.fault("all workers are killed")
    for role in ("worker", "suspects"):
        env.host.kill(role)


@contextmanager
def _frozen_there(env: Environment, host: Host) -> Iterator[list[tuple[object, ...]]]:
    """Wait until a worker of *host* has frozen itself, and give the leases of that moment; at the end it goes on.

    Its supervisor sleeps as long, as both do where a virtual machine is paused, and so does not consider it stuck.
    """
    assert host.process is not None
    zombie = until(
        lambda: [one for one in host.children("worker") if one.status() == psutil.STATUS_STOPPED], timeout=60
    )
    held = env.ask(LEASED)
    env.fault("a worker is frozen")
    host.pause(*zombie, psutil.Process(host.process.pid))
    yield held
    host.thaw()


def _wait_taken_over(env: Environment, held: list[tuple[object, ...]]) -> None:
    """Wait until no process holds one of these leases."""
    until(lambda: not set(held).intersection(env.ask(LEASED)))


def _refused(env: Environment) -> int:
    """Return how many attempts found, at their end or before, that their lease was another's."""
    return sum(host.log().count('"lease_lost"') for host in env.hosts)


@scenario(
    fault="a worker frozen beyond its lease at four steps, from its claim to the moment before its commit",
    target="effects once; every stale commit is refused",
    mutant=Mutant(sql=UNFENCED, label="settles without the fence", breaks=frozenset({"C5"})),
    tier="soak",
)
def test_worker_frozen_at_every_step(env: Environment) -> None:
    marks = [f"{step}:{5 + 4 * n}:stop:{env.folder}/frozen-{n}" for n, step in enumerate(STEPS)]
    frozen = env.start(settings=BRIEF, BOATHOOK_CRASH_POINT=",".join(marks))
    env.begin(rate=30)
    for number in range(len(STEPS)):
        with _frozen_there(env, frozen) as held:
            if number == 0:
                env.start(roles="worker,keeper", settings=BRIEF)
            _wait_taken_over(env, held)
    env.warm(20)
    env.quiesce()
    refused = _refused(env)
    env.expect("C7", refused, "nobody was refused, so nothing was shown")
    env.figure("freezes", len(STEPS))
    env.figure("attempts refused", refused)


@scenario(
    fault="a delivery dies of age while its frozen worker is about to commit; it is replayed, and the worker goes on",
    target="1 effect, by the replay",
    mutant=Mutant(sql=UNFENCED, label="settles without the fence", breaks=frozenset({"C5", "C9"})),
    tier="soak",
)
def test_replay_races_a_zombie(env: Environment) -> None:
    frozen = env.start(settings=BRIEF, BOATHOOK_CRASH_POINT=f"handler.before_commit:1:stop:{env.folder}/frozen")
    env.send(make_event("evt_raced", "move.made", "a00", "a01", 1))
    with _frozen_there(env, frozen):
        env.ask("update boathook.delivery set enqueued_at = now() - interval '1 year' returning 1")
        env.start(roles="worker,keeper", settings=BRIEF)
        env.wait_row("select 1 from boathook.delivery where state = 'dead'")
        frozen.cli("dead", "replay", "--all", "--yes")
        # Its rows are still locked by the frozen worker's transaction, so that the replay cannot be over yet.
        env.wait_row("select 1 from boathook.delivery where state = 'leased' and replays = 1")
    env.quiesce()
    env.expect("C7", _refused(env), "the frozen worker was not refused, so nothing was shown")
    env.expect("C5", env.ask("select attempt from bank.effect") == [(2,)], "the effect is not the replay's")


ANEW = """
    create function fault_rig.keep_dead() returns trigger language plpgsql as $$
    begin
        insert into boathook.delivery (event_id, ordinal, recipient, state, attempts, attempts_before, replays, fence, dead_at, code)
        values (old.event_id, old.ordinal, old.recipient, 'dead', old.attempts, old.attempts_before, old.replays, old.fence, now(),
            'REPLAYED');
        return null;
    end $$;
    create trigger keep_dead after delete on boathook.delivery for each row when (old.replays > 0) execute function fault_rig.keep_dead()
"""
"""A dead letter stays in the list after it was replayed with success."""


@scenario(
    fault="every attempt of a handler raises; it is mended, and all dead letters are replayed, then replayed again",
    target="each has 1 effect; the second replay changes nothing",
    mutant=Mutant(sql=ANEW, label="keeps dead letters that were replayed", breaks=frozenset({"C4", "C5"})),
)
def test_bug_storm(env: Environment) -> None:
    mended = env.folder / "mended"
    env.start(BANK_MENDED=str(mended))
    env.fault("the handler has a bug")
    env.send(*(make_event(f"evt_{n}", "broken.made", f"a{n % 10:02}", "a19", n) for n in range(MANY)))
    env.quiesce()
    dead = env.ask("select count(*) from boathook.delivery where state = 'dead'")[0][0]
    env.expect("C4", dead == MANY, f"{dead} of {MANY} are dead")
    env.fault("the bug is mended")
    mended.touch()
    _replay_all(env)
    edges = env.ask("select count(*) from fault_rig.edge")
    _replay_all(env)
    env.expect("C4", env.ask("select count(*) from fault_rig.edge") == edges, "the second replay changed something")
    env.expect("C5", env.ask("select count(*) from bank.effect") == [(MANY,)], "not each has one effect")
    env.figure("replayed", dead)


def _replay_all(env: Environment) -> None:
    env.host.cli("dead", "replay", "--all", "--yes")
    env.quiesce()


@scenario(
    fault="handlers lock the same rows in different orders, and PostgreSQL ends one of each pair",
    target="they run again; no attempt is held against them",
    mutant=Mutant("counts_collisions", breaks=frozenset({"C8"})),
    tier="extended",
)
def test_deadlocked_handlers(env: Environment) -> None:
    env.server.set(deadlock_timeout="50ms")
    env.start(settings={"worker": {"concurrency": 8}})
    env.fault("handlers deadlock")
    env.begin(rate=60, accounts=4, kinds={"clash.made": 1.0})
    env.warm(120)
    env.quiesce()
    deadlocks = env.wait_row("""
        select deadlocks from pg_stat_database where datname = current_database() and deadlocks > 0""")[0]
    failed = env.ask(
        "select distinct outcome, code from boathook.attempt where outcome <> 'succeeded' and code <> 'CONFLICT'"
    )
    env.expect("C8", not failed, f"attempts failed by {failed}")
    again = env.ask("select count(*) from boathook.attempt where code = 'CONFLICT'")[0][0]
    env.figure("deadlocks", deadlocks)
    env.figure("attempts put off", again)


OVERLAPS = """
    select count(*) from bank.tick a join bank.tick b
    on a.number < b.number and b.began_at < coalesce(a.ended_at, a.began_at)
"""


@scenario(
    fault="two hosts with a keeper each; workers and both keepers are killed in turn",
    target="no delivery is taken back twice, no chore is done twice at once, and chores go on",
    mutant=Mutant("elects_everybody", breaks=frozenset({"C7"})),
    tier="soak",
)
def test_two_keepers(env: Environment) -> None:
    for _ in range(2):
        env.start(settings=BRIEF, BANK_TICKS="yes")
    until(lambda: all(host.children("keeper") and _is_up(host, "keeper-0") for host in env.hosts))
    _wait_ticks(env, 10)
    env.begin(rate=60, kinds={"move.made": 0.7, "flaky.made": 0.3})
    for host in env.hosts:
        env.warm(40)
        env.fault("a host's keeper and workers are killed")
        host.kill("worker")
        host.kill("keeper")
        _wait_ticks(env, 5)
    env.quiesce()
    overlaps, ticks = env.ask(OVERLAPS)[0][0], env.ask("select count(*) from bank.tick")[0][0]
    env.expect("C7", not overlaps, f"a chore was begun {overlaps} times before it had ended")
    env.figure("chores done", ticks)
    env.figure("of them at once", overlaps)


def _is_up(host: Host, child: str) -> bool:
    return any('"child_ready"' in line and f'"{child}"' in line for line in host.log().splitlines())


def _wait_ticks(env: Environment, more: int) -> None:
    ticks = env.ask("select count(*) from bank.tick")[0][0]
    env.wait_row("select 1 from bank.tick having count(*) >= %s", ticks + more, timeout_s=60)


@scenario(
    fault="a copy of the database is taken while workers are busy; it is lost later, and the copy goes on",
    target="nothing that was done in the copy is done again; all else is done once; the books balance",
    mutant=Mutant("commits_effects_first", breaks=frozenset({"C5", "C7"})),
    tier="soak",
)
def test_database_copy_continues(env: Environment) -> None:
    env.start(settings={"worker": {"concurrency": 2}})
    env.begin(rate=200, kinds={"move.made": 0.8, "flaky.made": 0.2})
    env.warm(300)
    # On any machine something waits in the copy then, and some of it is done in the original before that is lost.
    with still(env.host.processes("worker")):
        env.warm(40)
        env.outside.stop()
        env.outside.settle()
        copy = copy_server(env.server, env.enter(in_memory()) / "copy")
        done = env.ask("select count(*) from bank.effect")[0][0]
    env.wait_row("select 1 from bank.effect having count(*) > %s", done, timeout_s=60)
    later = env.ask("select count(*) from bank.effect")[0][0]
    env.fault("the database is lost")
    assert env.host.stop() == 0
    env.server.stop()
    env.use(OwnServer(template=copy))
    done = env.ask("select count(*) from bank.effect")[0][0]
    waiting = env.ask("select count(*) from boathook.delivery")[0][0]
    env.expect("C4", waiting, "nothing waited in the copy, so nothing was shown")
    env.host.start()
    env.quiesce()
    env.figure("done in the copy", done)
    env.figure("waiting in it", waiting)
    env.figure("done since and lost with the database", later - done)


FINISHED = 60_000
MAX_PAGES = 500
BLOAT = """
    begin;
    alter table boathook.delivery disable trigger lab_edges;
    insert into boathook.delivery (event_id, ordinal, recipient, due_at)
    select gen_random_uuid(), 0, 'handler:move', now() - interval '1 hour' + n * interval '10 milliseconds'
    from generate_series(1, %(number)s) as n;
    delete from boathook.delivery where due_at < now() - interval '1 minute';
    alter table boathook.delivery enable trigger lab_edges;
    commit
"""
PAGES = """
    select t.heap_blks_hit + t.heap_blks_read + t.idx_blks_hit + t.idx_blks_read, (select count(*) from boathook.delivery_archive)
    from pg_statio_user_tables t where schemaname = 'boathook' and relname = 'delivery'
"""
"""Pages read of deliveries and their indexes, and how many were done."""


@scenario(
    fault="60,000 finished deliveries in the index of due ones, which a snapshot held open keeps from being cleaned",
    target=f"at most {MAX_PAGES} pages are read for each delivery",
    mutant=Mutant("looks_at_all_that_was", breaks=frozenset({"C14"})),
    tier="soak",
    limits=replace(bank.LIMITS, quiet_s=WORTH_IT),
)
def test_old_snapshot(env: Environment) -> None:
    with psycopg.connect(env.server.url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from boathook.delivery")
        with psycopg.connect(env.server.url, autocommit=True) as db:
            db.execute(BLOAT % {"number": FINISHED})
        env.start()
        env.fault("a snapshot stays open")
        env.begin(rate=40)
        env.warm(60)
        before, since = env.ask(PAGES)[0], time.monotonic()
        env.warm(200, timeout_s=120)
        after, seconds = env.ask(PAGES)[0], time.monotonic() - since
        old.rollback()
    env.quiesce()
    pages, done = after[0] - before[0], after[1] - before[1]
    env.expect("C14", pages <= MAX_PAGES * done, f"{pages / done:.0f} pages are read for each delivery")
    env.figure("pages read for each delivery", round(pages / done))
    env.figure("deliveries a second", done / seconds)
