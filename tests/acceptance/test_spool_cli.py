"""`boathook spool`: operators list what waits on disk and import it, with a real gateway and PostgreSQL."""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from boathook.db import migrations
from boathook.service.receiving.spool import count
from boathook.spool.segment_store import REJECTED_FOLDER
from tests.acceptance.conftest import TABLES, BoathookProcess, payload, signed
from tests.commands import boathook_command
from tests.faults.rig.postgres import OwnServer
from tests.support import until


@pytest.fixture(scope="module")
def postgres() -> Iterator[OwnServer]:
    server = OwnServer()
    asyncio.run(migrations.migrate(server.url))
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(TABLES)
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(postgres: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    """A gateway alone, as nothing here is about handlers."""
    running = BoathookProcess(tmp_path_factory.mktemp("spool"), postgres.url, roles="gateway", extra=EXTRA)
    yield running.start()
    running.kill_all()


EXTRA = """
    [spool]
    fallback_after_s = 0.3
"""


@pytest.fixture(autouse=True)
def _ready(gateway: BoathookProcess, postgres: OwnServer) -> None:
    postgres.restart()
    if gateway.process is None or gateway.process.poll() is not None:
        gateway.start()
    # The next test would find in the spool what the gateway has not drained yet.
    until(lambda: away(gateway) == 0 and count(gateway.folder / "data" / "spool").events == 0)


def away(gateway: BoathookProcess) -> float:
    text = httpx.get(f"{gateway.base}/metrics").text
    return next(
        float(line.split()[1]) for line in text.splitlines() if line.startswith("boathook_database_unavailable ")
    )


def send(gateway: BoathookProcess, *keys: str) -> None:
    for key in keys:
        body, headers = signed(payload(key, "invoice.paid"))
        assert httpx.post(f"{gateway.base}/in/stripe", content=body, headers=headers, timeout=300).status_code == 200, (
            key
        )
        moment = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == moment:
            pass  # ids of one millisecond are in no order


def stored(postgres: OwnServer, prefix: str) -> list[str]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        rows = connection.execute(
            "select dedup_key from boathook.event where dedup_key like %s order by id", [f"{prefix}%"]
        )
        return [key for (key,) in rows]


def waiting(gateway: BoathookProcess, prefix: str, *more: str) -> list[dict[str, Any]]:
    rows = gateway.listing("spool", "inspect", "--limit", "0", *more)
    return [row for row in rows if row["key"].startswith(prefix)]


def import_reports(done: Any) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in map(json.loads, done.stdout.splitlines())}


def left_behind(gateway: BoathookProcess, postgres: OwnServer, *keys: str) -> Path:
    """Kill a gateway during an outage; return its spool on the disk of the lost host."""
    postgres.stop()
    send(gateway, *keys)
    gateway.kill_all()
    return gateway.folder / "data" / "spool"


def move(spool: Path, place: Path) -> Path:
    shutil.copytree(spool, place)
    shutil.rmtree(spool)
    return place


def test_status_and_inspect_show_waiting_events_in_an_outage(gateway: BoathookProcess, postgres: OwnServer):
    postgres.stop()
    send(gateway, "seen_1", "seen_2", "seen_3")
    (folder,) = [one for one in gateway.listing("spool", "status") if one["waiting"]]
    assert (folder["waiting"], folder["is_held"], folder["lost"], folder["refused"]) == (3, True, 0, 0)
    rows = waiting(gateway, "seen_")
    assert [row["key"] for row in rows] == ["seen_1", "seen_2", "seen_3"]
    assert [row["sequence"] for row in rows] == sorted(row["sequence"] for row in rows)
    assert {(row["source"], row["type"], row["state"]) for row in rows} == {("stripe", "invoice.paid", "waiting")}
    assert rows[0]["accepted_at"] == folder["oldest_at"]
    assert rows[0]["bytes"] == len(json.dumps(payload("seen_1", "invoice.paid")))
    assert Path(rows[0]["segment"]).is_file()
    told = gateway.cli("spool", "status").stdout
    assert "waiting for PostgreSQL: 3 events, of which running processes have 3" in told


@pytest.mark.extended("starts several servers of its own")
def test_inspect_shows_one_event_whole_and_its_body_byte_by_byte(gateway: BoathookProcess, postgres: OwnServer):
    postgres.stop()
    send(gateway, "whole_1")
    (row,) = waiting(gateway, "whole_")
    sent = json.dumps(payload("whole_1", "invoice.paid"))
    assert gateway.cli("spool", "inspect", row["event_id"], "--body").stdout == sent
    (shown,) = gateway.listing("spool", "inspect", row["event_id"])
    assert shown["body"] == sent
    assert shown["headers"]["content-type"] == "application/json"
    assert sent in gateway.cli("spool", "inspect", row["event_id"]).stdout
    assert waiting(gateway, "whole_", "--source", "github") == []
    assert waiting(gateway, "whole_", "--state", "done") == []


@pytest.mark.extended("starts several servers of its own")
def test_a_running_gateways_folder_is_left_to_it(gateway: BoathookProcess, postgres: OwnServer):
    postgres.stop()
    send(gateway, "live_1", "live_2")
    assert import_reports(gateway.cli("spool", "drain", "--dry-run", "--json"))["waiting"]["events"] == 0
    failed = gateway.cli("spool", "drain", check=False)
    assert failed.returncode == 1, "PostgreSQL is unavailable"
    assert "Traceback" not in failed.stderr
    postgres.restart()
    until(lambda: stored(postgres, "live_") == ["live_1", "live_2"])
    assert import_reports(gateway.cli("spool", "drain", "--json"))["waiting"]["segments"] == 0


def test_a_lost_hosts_spool_is_drained_in_order_and_once(gateway: BoathookProcess, postgres: OwnServer, tmp_path: Path):
    keys = [f"lost_{number:03d}" for number in range(40)]
    old = move(left_behind(gateway, postgres, *keys), tmp_path / "old")
    postgres.restart()
    assert (
        import_reports(gateway.cli("spool", "drain", "--dir", str(old), "--dry-run", "--json"))["waiting"]["events"]
        == 40
    )
    first = import_reports(gateway.cli("spool", "drain", "--dir", str(old), "--json"))["waiting"]
    assert (first["accepted"], first["refused"], first["lost"]) == (40, 0, 0)
    assert stored(postgres, "lost_") == keys
    second = import_reports(gateway.cli("spool", "drain", "--dir", str(old), "--json"))["waiting"]
    assert second["segments"] == 0
    assert "waiting for PostgreSQL: 0 events" in gateway.cli("spool", "status", "--dir", str(old)).stdout


@pytest.mark.extended("starts several servers of its own")
def test_a_drain_that_was_cut_short_is_taken_up_again(gateway: BoathookProcess, postgres: OwnServer, tmp_path: Path):
    """Its copy is drained too, as if the first drain had died before it could put its segments aside."""
    spool = left_behind(gateway, postgres, "cut_1", "cut_2", "cut_3")
    copy = tmp_path / "copy"
    shutil.copytree(spool, copy)
    postgres.restart()
    gateway.cli("spool", "drain")
    again = import_reports(gateway.cli("spool", "drain", "--dir", str(copy), "--json"))["waiting"]
    assert (again["accepted"], again["there"]) == (0, 3)
    assert stored(postgres, "cut_") == ["cut_1", "cut_2", "cut_3"]


@pytest.mark.extended("starts several servers of its own")
def test_drain_again_restores_events_missing_after_a_restore(gateway: BoathookProcess, postgres: OwnServer):
    postgres.stop()
    send(gateway, "back_1", "back_2", "back_3")
    postgres.restart()
    until(lambda: stored(postgres, "back_") == ["back_1", "back_2", "back_3"])
    gateway.cli("spool", "drain", "--again")
    assert found(gateway, "drained")["verdict"] == "ok"
    restore_to_before(postgres, "back_2", "back_3")
    assert "the database lacks 2" in found(gateway, "drained")["found"]
    done = gateway.cli("spool", "drain", "--again")
    assert "missing in this database, and imported: 2 events" in done.stdout
    assert stored(postgres, "back_") == ["back_1", "back_2", "back_3"]
    again = import_reports(gateway.cli("spool", "drain", "--again", "--json"))["again"]
    assert again["accepted"] == 0
    assert again["there"] >= 3
    assert waiting(gateway, "back_", "--state", "done") != [], "they are still kept"
    gateway.cli("check")


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_again_a_restored_database_lacks_events(gateway: BoathookProcess, postgres: OwnServer):
    postgres.stop()
    send(gateway, "gone_1")
    postgres.restart()
    until(lambda: stored(postgres, "gone_") == ["gone_1"])
    restore_to_before(postgres, "gone_1")
    gateway.cli("spool", "drain")
    assert stored(postgres, "gone_") == []
    gateway.cli("spool", "drain", "--again")
    assert stored(postgres, "gone_") == ["gone_1"]


def found(gateway: BoathookProcess, check: str) -> dict[str, Any]:
    """Return the doctor's findings."""
    findings = map(json.loads, gateway.cli("doctor", "--json", check=False).stdout.splitlines())
    return next(one for one in findings if one["check"] == check)


def restore_to_before(postgres: OwnServer, *keys: str) -> None:
    """Have the database know nothing of these events, as one that was restored from an older backup."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        found = connection.execute("select id from boathook.event where dedup_key = any (%s)", [list(keys)]).fetchall()
        for table, column in (("dedup", "event_id"), ("delivery", "event_id"), ("event", "id")):
            connection.execute(f"delete from boathook.{table} where {column} = any (%s)", [[one for (one,) in found]])


@pytest.mark.extended("starts several servers of its own")
def test_rejected_events_are_kept_reported_and_drained_once_fixed(gateway: BoathookProcess, postgres: OwnServer):
    left_behind(gateway, postgres, "fine_1", "bad_1", "fine_2")
    postgres.restart()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("alter table boathook.event add constraint odd check (dedup_key not like 'bad%') not valid")
        done = gateway.cli("spool", "drain", "--json", check=False)
        assert done.returncode == 1
        assert (import_reports(done)["waiting"]["accepted"], import_reports(done)["waiting"]["refused"]) == (2, 1)
        assert stored(postgres, "fine_") == ["fine_1", "fine_2"]
        assert [row["key"] for row in waiting(gateway, "bad_", "--state", "refused")] == ["bad_1"]
        assert "boathook spool drain --refused" in gateway.cli("spool", "status").stdout
        refused = gateway.cli("spool", "drain", "--refused", "--json", check=False)
        assert (refused.returncode, import_reports(refused)["refused"]["refused"]) == (1, 1)
        connection.execute("alter table boathook.event drop constraint odd")
    mended = gateway.cli("spool", "drain", "--refused", "--json")
    assert import_reports(mended)["refused"]["accepted"] == 1
    assert stored(postgres, "bad_") == ["bad_1"]
    assert waiting(gateway, "bad_", "--state", "refused") == []
    folders = {one["life"]: one for one in gateway.listing("spool", "status")}
    assert folders[REJECTED_FOLDER]["refused"] == 0


@pytest.mark.extended("starts several servers of its own")
def test_a_damaged_segment_reports_losses_and_the_rest_is_drained(
    gateway: BoathookProcess, postgres: OwnServer, tmp_path: Path
):
    old = move(left_behind(gateway, postgres, "rot_1", "rot_2", "rot_3"), tmp_path / "old")
    postgres.restart()
    (segment,) = {Path(row["segment"]) for row in rows_of(gateway, old) if row["key"] == "rot_2"}
    data = bytearray(segment.read_bytes())
    data[data.index(b"rot_2")] ^= 1
    segment.write_bytes(data)
    done = gateway.cli("spool", "drain", "--dir", str(old), "--json", check=False)
    assert done.returncode == 1
    assert (import_reports(done)["waiting"]["accepted"], import_reports(done)["waiting"]["lost"]) == (2, 1)
    assert stored(postgres, "rot_") == ["rot_1", "rot_3"]
    told = gateway.cli("spool", "status", "--dir", str(old)).stdout
    assert "(unreadable): 1 event;" in told
    assert [row["key"] for row in rows_of(gateway, old, "--state", "bad")] == ["rot_1", "rot_3"]


def rows_of(gateway: BoathookProcess, spool: Path, *more: str) -> list[dict[str, Any]]:
    return gateway.listing("spool", "inspect", "--dir", str(spool), *more)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["status", "--dir", "nowhere"], "give the spool folder"),
        (["status", "--dir", "data"], "use --dir data/spool"),
        (["inspect", "--body"], "--body needs an event id"),
        (["inspect", "evt_zzz"], "expected an id like evt_"),
        (["inspect", "evt_01h455vb4pex5vsknk084sn02q4"], "`boathook events show` looks in the database"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_errors_name_the_fix(gateway: BoathookProcess, arguments: list[str], fix: str):
    (gateway.folder / "data" / "spool").mkdir(exist_ok=True, parents=True)
    done = gateway.cli("spool", *arguments, check=False)
    assert done.returncode in {1, 2}
    assert fix in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_spool_is_no_error(gateway: BoathookProcess, tmp_path: Path):
    (tmp_path / "none").mkdir()
    done = boathook_command("spool", "status", "--dir", "none", cwd=tmp_path, env=gateway.environment)
    assert (done.returncode, done.stdout) == (0, "the spool at none is empty\n")
    done = boathook_command("spool", "status", cwd=tmp_path, env=gateway.environment)
    assert done.returncode == 0
