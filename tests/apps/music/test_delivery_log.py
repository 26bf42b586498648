"""The delivery log: registered, completed, failed, and its five operations, over HTTP and by commands."""

import json
from datetime import datetime, timedelta

import pytest

from tests.apps.music.server import clip, unique
from tests.support import until

STANDINGS = {"registered", "completed", "failed"}


@pytest.fixture(scope="module")
def failed(server, file_server) -> list[str]:
    """The ids of four files' deliveries that failed for good."""
    task = unique()
    server.register(task)
    server.send_callback(
        task, "complete", clips=[clip(f"{task}-{number}", file_server.url, "/gone/") for number in (1, 2)]
    )
    server.await_files(task, *["failed"] * 4)

    def all_four() -> list[str]:
        ids = [row["id"] for row in listed(server, status="failed", kind="file")]
        return ids if len(ids) >= 4 else []

    # A file is known to have failed a moment before its delivery is dead.
    return until(all_four)


def listed(server, **query: str) -> list[dict]:
    response = server.api("GET", "/deliveries", params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def standing(server, id: str) -> str:
    return server.api("GET", f"/deliveries/{id}").json()["standing"]


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_delivery_is_registered_until_it_is_completed(server):
    """A failing handler is retried; until then its delivery is registered."""
    task = unique()
    server.rows(f"""
        create function music.refuse() returns trigger language plpgsql as
            $$ begin if new.task_id = '{task}' then raise 'not now'; end if; return new; end $$;
        create trigger refuse before insert on music.callback for each row execute function music.refuse();
    """)
    server.send_callback(task, "text", answer=202)
    (row,) = until(lambda: [one for one in listed(server, status="registered") if one["attempts"]])
    assert (row["standing"], row["result"], row["state"]) == ("registered", None, "pending")
    server.rows("drop trigger refuse on music.callback; drop function music.refuse")
    until(lambda: standing(server, row["id"]) == "completed")
    (done,) = [one for one in listed(server, status="completed") if one["task_id"] == task]
    assert (done["id"], done["stage"], done["result"]) == (row["id"], "text", "waiting")
    assert done["delivery_id"] == f"suno:{task}:text"


def test_1_list(server, failed):
    for name in STANDINGS:
        assert {row["standing"] for row in listed(server, status=name)} <= {name}
        assert {row["standing"] for row in listed(server, status=name, kind="file")} <= {name}
    assert set(failed) <= {row["id"] for row in listed(server, kind="file", limit="250")}
    (row,) = [
        one
        for one in server.listing("music", "deliveries", "list", "--status", "failed", "--kind", "file")
        if one["id"] == failed[0]
    ]
    assert (row["code"], row["standing"]) == ("URL_EXPIRED", "failed")


def test_1_list_continues_after_the_last_id(server, failed):
    whole = [row["id"] for row in listed(server, kind="file", limit="250")]
    pages, after = [], None
    while True:
        query = {"kind": "file", "limit": "2"} | ({"after": after} if after else {})
        page = server.api("GET", "/deliveries", params=query).json()
        pages += [row["id"] for row in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert pages == whole
    assert len(set(pages)) == len(pages)


def test_2_show(server, failed):
    shown = server.api("GET", f"/deliveries/{failed[0]}").json()
    assert (shown["standing"], shown["attempts"][0]["code"]) == ("failed", "URL_EXPIRED")
    assert json.loads(shown["body"])["round"] == 1
    assert json.loads(server.cli("music", "deliveries", "show", failed[0]).stdout)["id"] == failed[0]
    task = unique()
    server.send_callback(task, "text", answer=202, said="<script>alert(1)</script>")
    (row,) = [one for one in listed(server) if one["task_id"] == task]
    told = server.api("GET", f"/deliveries/{row['id']}").json()
    assert json.loads(told["body"])["data"]["task_id"] == task
    assert told["tracks"][0]["message"] == "<script>alert(1)</script>"
    (received,) = server.rows("select received_at from music.callback where task_id = %s", task)
    assert abs(datetime.fromisoformat(row["received_at"]) - received["received_at"]) < timedelta(seconds=1)


def test_3_replay(server, failed):
    response = server.api("POST", f"/deliveries/{failed[0]}/replay")
    assert (response.status_code, response.json()["id"]) == (200, failed[0])
    shown = until(lambda: (one := server.api("GET", f"/deliveries/{failed[0]}").json())["standing"] == "failed" and one)
    assert len(shown["attempts"]) == 2
    done = server.cli("music", "deliveries", "replay", failed[1], "--note", "the sender says it is there").stdout
    assert done == "1 of 1 are tried again\n"


def test_4_give_up(server, failed):
    assert server.api("POST", f"/deliveries/{failed[2]}/giveup", json={}).status_code == 400
    response = server.api("POST", f"/deliveries/{failed[2]}/giveup", json={"note": "an old song"})
    assert response.status_code == 200
    shown = server.api("GET", f"/deliveries/{failed[2]}").json()
    assert (shown["standing"], shown["state"], shown["note"]) == ("completed", "ignored", "an old song")
    assert server.api("POST", f"/deliveries/{failed[2]}/replay").status_code == 409
    assert "1 of 1" in server.cli("music", "deliveries", "giveup", failed[3], "--note", "an old song").stdout
    refused = server.cli("music", "deliveries", "giveup", failed[3], "--note", "again", check=False)
    assert refused.returncode != 0
    assert "none of them has failed" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_5_clean_up(server):
    task = unique()
    server.send_callback(task, "text", answer=202)
    server.rows("update music.callback set received_at = now() - interval '40 days' where task_id = %s", task)
    assert server.api("POST", "/deliveries/cleanup", json={"days": 0}).status_code == 400
    assert server.api("POST", "/deliveries/cleanup", json={"days": 30}).json() == {"forgotten": 1}
    assert server.rows("select from music.callback where task_id = %s", task) == []
    assert server.cli("music", "deliveries", "cleanup", "--days", "30").stdout == "0 callbacks forgotten\n"


@pytest.mark.parametrize(
    "path",
    [
        "/deliveries/absent",
        "/deliveries/dlv_01kaz3absent",
        "/deliveries?status=x",
        "/deliveries?limit=0",
        "/deliveries?after=x",
        "/deliveries?after=%00",
    ],
)
def test_invalid_requests_get_a_reason(server, path):
    response = server.api("GET", path)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["message"]


def test_commands_end_with_a_sentence_and_no_traceback(server):
    for words in (
        ("tracks", "show", "absent"),
        ("tracks", "delete", "absent"),
        ("tracks", "add", "x" * 201),
        ("tracks", "add", "x", "--prompt", "{"),
        ("files", "retry", "absent", "c", "audio"),
        ("deliveries", "show", "absent"),
        ("deliveries", "replay", "dlv_00000000000000000000000000_0"),
    ):
        ended = server.cli("music", *words, check=False)
        assert ended.returncode != 0, words
        assert "Traceback" not in ended.stderr, words
        assert ended.stderr.strip(), words


def test_a_failed_file_can_be_retried_by_command(server, file_server):
    task = unique()
    server.register(task)
    name = f"{task}-1"
    server.send_callback(task, "complete", clips=[{**clip(name, file_server.url, "/gone/"), "image_url": None}])
    server.await_files(task, "failed")
    server.rows("update music.file set url = %s where task_id = %s", f"{file_server.url}/files/{name}.mp3", task)
    server.cli("music", "files", "retry", task, name, "audio")
    server.await_files(task, "stored")
