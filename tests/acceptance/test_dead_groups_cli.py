"""`boathook dead groups`, decisions about whole groups, and bulk jobs that survive a kill."""

import json
from collections.abc import Callable

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until

SETTLE = "select count(*) from boathook.delivery where state = 'dead'"


def run(running: BoathookProcess, *command: str, fails: bool = False) -> str:
    done = running.cli(*command, check=False)
    assert (done.returncode != 0) is fails, done.stderr
    return done.stderr if fails else done.stdout


def make_dead(running: BoathookProcess, db: psycopg.Connection, number: int) -> None:
    """Let so many events of the shop's broken handler die."""
    for place in range(number):
        body, headers = signed(payload(f"broken-{place}", "broken.thing"))
        assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300).status_code == 200
    until(lambda: db.execute(SETTLE).fetchone() == (number,))


def test_a_group_is_listed_rehearsed_replayed_and_ignored(boathook: Callable[..., BoathookProcess]):
    running = boathook()
    with psycopg.connect(running.database_url, autocommit=True) as db:
        make_dead(running, db, 3)
        (line,) = run(running, "dead", "groups", "--json").splitlines()
        group = json.loads(line)
        assert group["sentence"] == "3 deliveries to handler:broken failed with RuntimeError: this never works"
        assert (group["number"], group["types"], group["escalate"]) == (3, ["broken.thing"], [])
        assert group["newest_id"].startswith("dlv_")
        assert group["sentence"] in run(running, "dead", "groups", "--code", "RuntimeError")
        assert run(running, "dead", "groups", "--code", "NONE") == ""
        rehearsed = run(running, "dead", "replay", "--group", group["id"], "--dry-run")
        assert group["sentence"] in rehearsed
        assert "it would run handler:broken for broken.thing" in rehearsed
        assert db.execute(SETTLE).fetchone() == (3,)
        assert "add --yes" in run(running, "dead", "replay", "--group", group["id"], fails=True)
        assert "give --group alone" in run(running, "dead", "replay", "--group", group["id"], "--all", fails=True)
        assert "expected an id like grp_" in run(running, "dead", "replay", "--group", "x", "--yes", fails=True)
        followed = ("dead", "replay", "--group", group["id"], "--rate", "50", "--yes", "--follow")
        done = running.cli(*followed, check=False)
        assert done.returncode == 1, done.stderr
        assert done.stdout.endswith(
            "replayed 3 dead letters\n3 replayed: 0 succeeded, 3 failed again with the same cause\n"
        )
        again = "select count(*) from boathook.delivery where state = 'dead' and replays = 1"
        assert db.execute(again).fetchone() == (3,)
        (line,) = run(running, "dead", "groups", "--json").splitlines()
        assert json.loads(line)["escalate"] == ["3 dead letters failed again after a replay"]
        assert "escalate: 3 dead letters failed again" in run(running, "dead", "groups")
        assert "ignored 3" in run(running, "dead", "ignore", "--group", group["id"], "--note", "never mind", "--yes")
        assert "no dead letters are left in" in run(running, "dead", "purge", "--group", group["id"], "--yes")
        run(running, "check")


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_bulk_jobs_continue_after_all_processes_were_killed(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles="gateway,worker,console,keeper")
    with psycopg.connect(running.database_url, autocommit=True) as db:
        make_dead(running, db, 6)
        (line,) = run(running, "dead", "groups", "--json").splitlines()
        db.execute(
            """
            insert into boathook.task (id, organization, kind, request)
            select boathook.min_id(now()), 'default', 'dead.replay-group', json_build_object(
                'group', boathook.read_id('grp', %s), 'rate', 2, 'note', 'deployed', 'actor', 'console:anna', 'total', 6)
            """,
            [json.loads(line)["id"]],
        )
        done = "select coalesce((data ->> 'done')::int, 0), state from boathook.task"
        until(lambda: (db.execute(done).fetchone() or (0,))[0] >= 2)
        running.kill_all()
        part = db.execute(done).fetchone()
        assert part is not None
        assert part[1] == "running"
        assert part[0] < 6
        running.start()
        until(lambda: db.execute(done).fetchone() == (6, "finished"))
        replays = db.execute(
            "select count(*), count(distinct subject) from boathook.audit where action = 'dead.replay'"
        )
        assert replays.fetchone() == (6, 6)
