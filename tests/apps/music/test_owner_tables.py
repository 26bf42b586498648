"""The import of a music system's own tables, and the view and functions under their names."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.apps.music.server import MusicServer
from tests.apps.owner_database import create_tables, fingerprint, kill_in_batch, run_import
from tests.support import until

HERE = Path(__file__).parent
TABLES = ("music.track", "music.webhook_log", "music.imported_row")
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWNER = uuid.uuid4()


@pytest.fixture
def studio(tmp_path, admin_url, pg_template) -> Iterator[MusicServer]:
    """An app with its tables and the owner's; its server does not run."""
    with MusicServer.prepared(tmp_path, admin_url, pg_template) as server:
        server.cli("migrate")
        create_tables(server, HERE / "owner_tables.sql", "old")
        yield server


def add_track(server: MusicServer, **values: Any) -> uuid.UUID:
    fields = {
        "id": uuid.uuid4(), "user_id": OWNER, "title": "Iron Man", "prompt": "a song", "status": "completed",
        "metadata": "{}", "created_at": T0, "updated_at": T0 + timedelta(minutes=2), **values,
    }  # fmt: skip
    names, places = ", ".join(fields), ", ".join(["%s"] * len(fields))
    server.rows(f"insert into old.tracks ({names}) values ({places})", *fields.values())
    return fields["id"]


def add_delivery(server: MusicServer, webhook: str, status: str = "completed") -> None:
    server.rows(
        "insert into old.webhook_delivery_log values (%s, %s, %s, %s, %s, %s)",
        webhook, status, json.dumps({"x-delivery-id": webhook}), json.dumps({"taskId": webhook}), T0, T0,
    )  # fmt: skip


def track(server: MusicServer, task: str) -> dict[str, Any]:
    [row] = server.rows("select * from music.track where task_id = %s", task)
    return row


def fill(server: MusicServer, tracks: int) -> None:
    for n in range(tracks):
        add_track(server, suno_id=f"task{n}")
        add_delivery(server, f"delivery{n}")


def test_tracks_and_deliveries_are_imported_once(studio):
    done = add_track(studio, metadata=json.dumps({"suno_task_id": "done", "style": "rock"}), suno_id="other")
    add_track(studio, suno_id="open", status="processing")
    add_track(studio, suno_id="failed", status="failed", error_message="no credits")
    add_track(studio, suno_id="kept", status="pending", archived_at=T0)
    add_delivery(studio, "d1")
    add_delivery(studio, "d2", "failed")
    first = run_import(studio, "--schema", "old", "--batch", "3")
    assert (first["tracks"], first["webhook_delivery_log"]) == ({"rows": 4, "imported": 4}, {"rows": 2, "imported": 2})
    assert {column for table, column in first["ignored"] if table == "tracks"} == {
        "improved_prompt", "audio_url", "duration",
    }  # fmt: skip
    row = track(studio, "done")
    assert (row["owner_id"], row["owner"], row["title"], row["status"]) == (done, str(OWNER), "Iron Man", "complete")
    assert row["prompt"] == {"prompt": "a song", "metadata": {"suno_task_id": "done", "style": "rock"}}
    assert (row["created_at"], row["completed_at"], row["expected_since"]) == (T0, T0 + timedelta(minutes=2), None)
    assert (track(studio, "open")["status"], track(studio, "open")["expected_since"]) == ("pending", T0)
    assert (track(studio, "failed")["status"], track(studio, "failed")["error"]) == ("failed", "no credits")
    assert (track(studio, "kept")["archived_at"], track(studio, "kept")["expected_since"]) == (T0, None)
    before = fingerprint(studio, *TABLES)
    again = run_import(studio, "--schema", "old")
    assert again["tracks"] == {"rows": 4, "unchanged": 4}
    assert fingerprint(studio, *TABLES) == before
    assert run_import(studio, "--schema", "old", "--dry-run") == again


def test_the_log_of_the_public_migration_is_imported_too(studio):
    create_tables(studio, HERE / "deployed_log.sql", "old")
    studio.rows(
        "insert into old.webhook_delivery_log (webhook_id, provider, task_id, status, error_message)"
        " values ('a', 'suno', 't', 'processing', null), ('b', 'suno', 't', 'failed', 'boom')"
    )
    assert run_import(studio, "--schema", "old")["webhook_delivery_log"] == {"rows": 2, "imported": 2}
    assert studio.rows("select webhook_id, status, reason, headers from music.webhook_log order by 1") == [
        {"webhook_id": "a", "status": "registered", "reason": None, "headers": None},
        {"webhook_id": "b", "status": "failed", "reason": "boom", "headers": None},
    ]


@pytest.mark.parametrize("after", [2, 9])
def test_a_kill_loses_and_doubles_nothing(studio, after):
    fill(studio, 6)
    kill_in_batch(studio, "--schema", "old", "--batch", "4", after=after)
    [count] = studio.rows("select count(*) as n from music.imported_row")
    rest = run_import(studio, "--schema", "old", "--batch", "4")
    assert rest["tracks"].get("imported", 0) + rest["webhook_delivery_log"].get("imported", 0) == 12 - count["n"]
    assert studio.rows("select count(*) as n from music.track") == [{"n": 6}]
    assert studio.rows("select count(*) as n from music.webhook_log") == [{"n": 6}]


def test_bad_rows_are_named_with_key_and_column(studio):
    drafts = add_track(studio, status="draft", suno_id="a")
    taskless = add_track(studio)
    long = add_track(studio, suno_id="b", title="x" * 501)
    spaced = add_track(studio, suno_id="bad\nid")
    listed = add_track(studio, suno_id="c", metadata="[]")
    add_track(studio, suno_id="good")
    done = run_import(studio, "--schema", "old", code=1)
    assert done["tracks"] == {"rows": 6, "imported": 1, "rejected": 5}
    assert {key: column for (_, key), (column, _) in done["rejected"].items()} == {
        str(drafts): "status", str(taskless): "suno_id", str(long): "title", str(spaced): "suno_id",
        str(listed): "metadata",
    }  # fmt: skip


def test_two_tracks_of_one_task_are_reported(studio):
    first, second = sorted((add_track(studio, suno_id="same"), add_track(studio, suno_id="same")), key=str)
    done = run_import(studio, "--schema", "old", code=1)
    [((_, key), (column, problem))] = done["rejected"].items()
    assert (key, column) == (str(second), "task_id")
    assert f"the row {first} was imported as the same" in problem


def test_an_unknown_schema_is_refused(studio):
    studio.rows("alter table old.tracks drop column metadata")
    done = studio.cli("music", "import", "--schema", "old", check=False)
    assert done.returncode == 1
    assert "the column tracks.metadata is missing" in done.stderr.replace("\n", " ")


def call(server: MusicServer, sql: str, *arguments: Any) -> Any:
    [row] = server.rows(f"select {sql} as result", *arguments)
    return row["result"]


def test_the_documents_functions_keep_the_log(studio):
    studio.cli("music", "views", "create")
    add_delivery(studio, "before")
    run_import(studio, "--schema", "old")
    assert call(studio, "check_webhook_processed(p_webhook_id => 'before')") is True
    assert call(studio, "check_webhook_processed('test-123')") is False
    register = (
        'register_webhook_delivery(p_webhook_id => %s, p_headers => \'{"a": "b"}\', p_payload => \'{"taskId": "abc"}\')'
    )
    assert call(studio, register, "test-123") is True
    assert call(studio, register, "test-123") is False
    assert call(studio, "check_webhook_processed('test-123')") is False
    studio.rows("select fail_webhook_delivery(p_webhook_id => 'test-123', p_reason => 'track_not_found')")
    view = "select status, headers, payload from webhook_delivery_log where webhook_id = 'test-123'"
    assert studio.rows(view) == [{"status": "failed", "headers": {"a": "b"}, "payload": {"taskId": "abc"}}]
    assert call(studio, register, "test-123") is True
    studio.rows("select complete_webhook_delivery(p_webhook_id => 'test-123')")
    assert call(studio, "check_webhook_processed('test-123')") is True
    assert call(studio, register, "test-123") is False
    studio.rows("update music.webhook_log set updated_at = now() - interval '40 days' where webhook_id = 'test-123'")
    assert call(studio, "cleanup_old_webhook_logs(p_days => 60)") == 1  # the imported one is of March
    assert call(studio, "cleanup_old_webhook_logs(p_days => 30)") == 1
    for wrong, message in (
        ("complete_webhook_delivery('no')", "the webhook no is not registered"),
        ("fail_webhook_delivery('no', 'x')", "the webhook no is not registered"),
        ("register_webhook_delivery('', null, null)", "p_webhook_id is empty"),
        ("cleanup_old_webhook_logs(-1)", "p_days is -1"),
    ):
        with pytest.raises(psycopg.Error, match=message):
            studio.rows(f"select {wrong}")


def test_only_granted_roles_may_call_the_functions(studio):
    studio.cli("music", "views", "create")
    role = f"reader_{uuid.uuid4().hex[:8]}"
    studio.rows(f"create role {role}")
    try:
        for is_granted in (False, True):
            if is_granted:
                studio.rows(f"grant execute on function public.check_webhook_processed to {role}")
            with psycopg.connect(studio.database_url) as connection:
                connection.execute(f"set role {role}")
                if is_granted:
                    assert connection.execute("select check_webhook_processed('x')").fetchone() == (False,)
                else:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute("select check_webhook_processed('x')")
    finally:
        studio.rows(f"drop owned by {role}")
        studio.rows(f"drop role {role}")


def test_functions_of_the_owner_are_not_replaced(studio):
    studio.rows("create function public.check_webhook_processed(id text) returns boolean language sql as 'select true'")
    done = studio.cli("music", "views", "create", check=False)
    assert done.returncode == 1
    assert "function check_webhook_processed(text)" in done.stderr.replace("\n", " ")
    assert call(studio, "check_webhook_processed('x')") is True
    assert studio.rows("select from pg_class where relname = 'webhook_delivery_log' and relkind = 'v'") == []
    studio.rows("drop function public.check_webhook_processed")
    for _ in range(2):
        studio.cli("music", "views", "create")
    assert studio.cli("music", "views", "drop").stdout.count(",") == 5
    assert studio.rows("select from pg_proc where proname like '%webhook_delivery'") == []


def test_the_view_shows_received_callbacks_and_an_imported_track_is_completed_by_one(studio):
    add_track(studio, suno_id="abc", status="pending")
    run_import(studio, "--schema", "old")
    studio.cli("music", "views", "create")
    studio.start()
    studio.send_callback("abc", headers={"x-delivery-id": "test-123"})
    until(lambda: track(studio, "abc")["status"] == "complete", timeout=60)
    log = "select status, headers ->> 'x-delivery-id' as header, payload from webhook_delivery_log where webhook_id = 'test-123'"
    until(lambda: studio.rows(log)[0]["status"] == "completed", timeout=60)
    [row] = studio.rows(log)
    assert row["header"] == "test-123"
    assert row["payload"]["data"]["task_id"] == "abc"
    assert call(studio, "check_webhook_processed('test-123')") is True
    # What a program registered under the same id is shown once.
    studio.rows("select register_webhook_delivery('test-123', '{}', '{}')")
    assert len(studio.rows(log)) == 1


def test_an_archived_track_is_not_expected(studio):
    studio.cli("music", "tracks", "add", "abc")
    assert track(studio, "abc")["expected_since"] is not None
    assert studio.cli("music", "tracks", "archive", "abc").stdout == "abc is archived\n"
    assert (track(studio, "abc")["archived_at"] is not None, track(studio, "abc")["expected_since"]) == (True, None)
    studio.cli("music", "tracks", "archive", "abc", "--undo")
    assert track(studio, "abc")["archived_at"] is None
    assert studio.cli("music", "tracks", "archive", "nothing", check=False).returncode == 1
