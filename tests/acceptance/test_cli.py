"""The real command line as a subprocess, on a real PostgreSQL."""
# ruff: noqa: ASYNC220, ASYNC221 - nothing else runs in these tests while a command does

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from boathook.db.database import Database
from boathook.domain import ids
from tests.commands import boathook_command, boathook_process
from tests.conftest import open_folder
from tests.endpoint_factory import add_application, add_endpoint
from tests.postgres.db.test_integrity import Store, filled
from tests.postgres.operating.test_operations import mark_dead, quarantine
from tests.support import sampled

SETTINGS = """
[database]
url = "{url}"
[sources.shop]
provider = "github"
secrets = ["the right secret"]
paths = ["/webhooks/shop"]
"""

MANY_EVENTS = """
insert into boathook.event (id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout)
select boathook.min_id(now() - n * interval '1 second'), 'shop', 'x', n::text, 'none', 'received', '{}', '', '', sha256(''), 0
from generate_series(1, 2500) n
"""

AGE = re.compile(r"\d+ ?(ms|s|m)\b")

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"BOATHOOK_DEBUG", "COLUMNS"}}


class Cli:
    """A folder with a boathook.toml, to run commands in."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "boathook.toml").write_text(SETTINGS.format(url=url))

    def run(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = boathook_command(*arguments, cwd=self.folder, env={**ENVIRONMENT, **environment}, timeout=300)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def objects(self, *arguments: str, code: int = 0) -> list[dict]:
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).stdout.splitlines()]

    def complaint(self, *arguments: str, code: int = 2) -> str:
        """Return the one sentence on stderr of a command that fails."""
        done = self.run(*arguments, code=code)
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("boathook: ")
        return done.stderr


@pytest.fixture
def cli(tmp_path: Path, pg_url: str) -> Cli:
    return Cli(tmp_path, pg_url)


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


@pytest.fixture
async def full_store(db: Database) -> Store:
    return await filled(db)


ALIKE = (
    ["--version"], ["events"], ["nonsense"], ["events", "list", "--json"], ["events", "show", "x"],
    ["applications", "list"], ["endpoints", "list", "-a", "nobody"], ["config", "check"], ["apps", "list"],
    ["sources", "show", "shop"],
)  # fmt: skip
"""Commands of each kind."""


@pytest.mark.parametrize("arguments", sampled(ALIKE, keep=2), ids=" ".join)
async def test_a_fork_behaves_like_a_separate_process(full_store: Store, cli: Cli, arguments: list[str]):
    fork, process = (run(*arguments, cwd=cli.folder, env=ENVIRONMENT) for run in (boathook_command, boathook_process))
    told = [(done.returncode, AGE.sub("", done.stdout), done.stderr) for done in (fork, process)]
    assert told[0] == told[1]


class TestCheck:
    async def test_prints_the_balance_and_exits_with_0(self, full_store: Store, cli: Cli):
        text = cli.run("check").stdout
        assert re.search(r"events +14\n", text)
        assert "the store is consistent" in text
        (found,) = cli.objects("check", "--deep")
        assert found["balanced"] is True
        assert (found["balance"]["deliveries"], found["balance"]["missing"]) == (16, 0)

    async def test_exits_with_1_and_names_violations(self, full_store: Store, cli: Cli):
        event = await full_store.one("select id from boathook.event where dedup_key = 'good'")
        await full_store.db.execute("delete from boathook.delivery_archive where event_id = $1", event)
        text = cli.run("check", code=1).stdout
        assert "every delivery exists: 1" in text
        assert ids.show("evt", event) in text
        (found,) = cli.objects("check", code=1)
        assert {"every delivery exists", "no attempt without its delivery"} <= {
            one["check"] for one in found["imbalances"]
        }


class TestListings:
    async def test_show_a_table_of_80_columns_and_json_lines(self, full_store: Store, cli: Cli):
        for listing in (
            ["events", "list"],
            ["deliveries", "list"],
            ["dead", "list"],
            ["rejections", "list"],
            ["sources", "list"],
        ):
            lines = cli.run(*listing, COLUMNS="80").stdout.splitlines()
            rows = cli.objects(*listing)
            assert len(lines) == len(rows) + 1
            assert max(map(len, lines)) <= 80
            identifier = rows[0].get("id") or rows[0]["name"]
            assert any(line.startswith(identifier) for line in lines[1:]), "ids are shown whole"

    async def test_events_show_which_repeat_a_body(self, store: Store, cli: Cli):
        first, again = [await store.accept(key, "a", replay=UUID(int=7)) for key in ("one", "two")]
        rows = {row["id"]: row["same_body_as"] for row in cli.objects("events", "list")}
        assert rows == {ids.show(ids.EVENT, first): None, ids.show(ids.EVENT, again): ids.show(ids.EVENT, first)}
        head, newest, oldest = map(str.rstrip, cli.run("events", "list").stdout.splitlines())
        assert head.endswith("same body as")
        assert newest.endswith(ids.show(ids.EVENT, first))
        assert not oldest.endswith(ids.show(ids.EVENT, first))

    async def test_cut_nothing_where_the_output_is_no_terminal(self, full_store: Store, cli: Cli):
        code, recipient = "LookupError" * 9, "handler:" + "mail" * 30
        await full_store.db.execute(
            "update boathook.delivery set code = $1, recipient = $2 where state = 'dead'", code, recipient
        )
        lines = cli.run("dead", "list").stdout.splitlines()[1:]
        assert lines
        assert all(code in line and recipient in line for line in lines)

    async def test_filter_and_page(self, full_store: Store, cli: Cli):
        assert len(cli.objects("events", "list", "--source", "stripe", "--type", "payment.*", "--since", "1h")) == 14
        assert cli.objects("events", "list", "--source", "github") == []
        assert cli.objects("events", "list", "--until", "1h") == []
        (one,) = cli.objects("events", "list", "--state", "succeeded", "--key", "good")
        assert one["dedup_key"] == "good"
        assert "path and a value" in cli.complaint("events", "list", "--where", "value")
        states = [row["state"] for row in cli.objects("deliveries", "list", "--state", "leased")]
        assert states == ["leased", "leased"]
        first = cli.objects("events", "list", "--limit", "10")
        rest = cli.objects("events", "list", "--limit", "10", "--after", first[-1]["id"])
        assert len({row["id"] for row in first + rest}) == 14
        assert f"--after {first[-1]['id']}" in cli.run("events", "list", "--limit", "10").stderr

    async def test_long_listings_are_read_in_pages(self, store: Store, cli: Cli, pg_url: str):
        with psycopg.connect(pg_url) as connection:
            connection.execute(MANY_EVENTS)
        rows = cli.objects("events", "list", "--limit", "0")
        assert len({row["id"] for row in rows}) == 2500
        assert len(cli.objects("events", "list", "--limit", "1500")) == 1500

    @pytest.mark.parametrize("how", ["--json", ""])
    async def test_a_reader_that_stops_early_is_no_error(self, store: Store, cli: Cli, pg_url: str, how: str):
        with psycopg.connect(pg_url) as connection:
            connection.execute(MANY_EVENTS)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m boathook events list --limit 0 {how} | head -1"],
            cwd=cli.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        assert len(done.stdout.splitlines()) == 1
        assert done.stderr == ""


class TestDeadLetters:
    async def test_are_shown_with_all_that_is_needed_to_understand_them(self, store: Store, cli: Cli):
        ((event, _),) = await mark_dead(store, "one", body=b'{"raw":  "bytes\xff"}')
        name = ids.show_delivery(event, 0)
        cli.run("dead", "replay", name, "--note", "a first try")
        await store.fail(event, is_last=True)
        await store.db.execute("update boathook.attempt set dependency = 'crm' where number = 2")
        text = cli.run("dead", "show", name).stdout
        for wanted in (
            "dependency: crm",
            name,
            '{"raw":  "bytes\\xff"}',
            "attempt 1: failed",
            "attempt 2: failed",
            "BROKEN: it broke",
            "trace",
            "dead.replay by cli:",
            "a first try",
        ):
            assert wanted in text
        (shown,) = cli.objects("dead", "show", name)
        assert [attempt["traceback"] for attempt in shown["attempts_made"]] == ["trace", "trace"]
        assert [attempt["dependency"] for attempt in shown["attempts_made"]] == [None, "crm"]
        assert (shown["replays"], shown["event"]["dedup_key"]) == (1, "one")

    async def test_cannot_steer_the_terminal(self, store: Store, cli: Cli):
        ((event, _),) = await mark_dead(store, "\x1b]0;owned\x07", body=b"\x1b[2J[bold]x[/bold]")
        text = cli.run("dead", "show", ids.show_delivery(event, 0)).stdout
        assert "\x1b" not in text
        assert "[bold]x[/bold]" in text

    async def test_replay_ignore_and_purge_one_by_one(self, store: Store, cli: Cli):
        names = [ids.show_delivery(*key) for key in await mark_dead(store, "one", "two", "three")]
        beginning = names[0].removesuffix("_0")
        assert names[0] in cli.run("dead", "show", beginning).stdout
        assert cli.run("dead", "replay", beginning).stdout == "replayed 1 dead letter\n"
        pending = cli.run("dead", "replay", names[0])
        assert pending.stdout == "replayed 0 dead letters\n"
        assert "1 still pending, so not dead letters" in pending.stderr
        cli.run("dead", "ignore", names[1], "--note", "refunded by hand")
        cli.run("dead", "purge", names[2])
        assert cli.objects("dead", "list") == []
        states = {row["id"]: (row["state"], row["note"]) for row in cli.objects("deliveries", "list")}
        assert states == {names[0]: ("pending", "it broke"), names[1]: ("ignored", "refunded by hand")}
        assert "is ignored, not a dead letter" in cli.complaint("dead", "replay", names[1], code=1)
        assert "there is no delivery" in cli.complaint("dead", "purge", names[2], code=1)
        cli.run("check")

    async def test_change_in_bulk_only_with_a_filter_and_yes(self, store: Store, cli: Cli):
        await mark_dead(store, "one", "two")
        assert "nothing selected" in cli.complaint("dead", "replay")
        assert "both" in cli.complaint("dead", "replay", "--source", "stripe", "dlv_01h455vb4pex5vsknk084sn02q4_0")
        (rehearsed,) = cli.objects("dead", "replay", "--source", "stripe", "--dry-run")
        assert rehearsed == {"action": "replay", "dry_run": True, "matching": 2, "done": 0}
        dry = cli.run("dead", "replay", "--source", "stripe", "--dry-run").stdout
        assert "2 dead letters" in dry
        assert "BROKEN" in dry
        assert "add --yes" in cli.run("dead", "replay", "--source", "stripe", code=2).stderr
        assert len(cli.objects("dead", "list")) == 2
        assert (
            "replayed 2 dead letters" in cli.run("dead", "replay", "--source", "stripe", "--rate", "10", "--yes").stdout
        )
        assert cli.run("dead", "replay", "--source", "stripe", "--yes").stdout == "0 dead letters\n"

    async def test_ask_on_a_terminal(self, store: Store, cli: Cli):
        await mark_dead(store, "one")
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "boathook", "dead", "purge", "--all"],
            cwd=cli.folder, env={**ENVIRONMENT, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"Purge 1 dead letter?" not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, b"n\n")
        assert process.wait(300) == 0
        os.close(ours)
        assert len(cli.objects("dead", "list")) == 1


async def test_a_delivery_is_retried_before_its_next_attempt(store: Store, cli: Cli):
    event = await store.accept("one", "a")
    await store.fail(event)
    await store.db.execute("update boathook.delivery set due_at = now() + interval '1 hour'")
    name = ids.show_delivery(event, 0)
    assert "by `boathook deliveries retry`" in cli.run("events", "replay", ids.show("evt", event)).stderr
    assert cli.run("deliveries", "retry", name, "--note", "mended").stdout == (
        f"{name} is pending, but no app declares a; it waits until one does\n"
    )
    assert await store.one("select due_at <= now() from boathook.delivery")
    assert "delivery.retry by cli:" in cli.run("deliveries", "show", name).stdout
    await store.end(event)
    assert "replay its event" in cli.complaint("deliveries", "retry", name, code=1)


async def test_events_are_shown_and_replayed(store: Store, cli: Cli):
    event = await store.accept("one", "a")
    await store.end(event)
    name = ids.show("evt", event)
    assert cli.objects("events", "show", name)[0]["deliveries"][0]["state"] == "succeeded"
    assert "1 delivery added" in cli.run("events", "replay", name).stdout
    done = cli.run("events", "replay", name)
    assert "0 deliveries added" in done.stdout
    assert "1 delivery still pending; the next attempt is due at 2" in done.stderr
    assert re.search(
        r"replayed 1 event: 0 del", cli.run("events", "replay", "--source", "stripe", "--run", "x", "--yes").stdout
    )
    (again,) = cli.objects("events", "replay", "--source", "stripe", "--run", "x", "--yes")
    assert again == {"dry_run": False, "matching": 1, "events": 0, "added": 0, "revived": 0}
    cli.run("check")


async def test_rejections_are_verified_again(store: Store, cli: Cli):
    await quarantine(store, b'{"n": 1}', "the right secret")
    forged = ids.show("rej", await quarantine(store, b'{"n": 2}', "forged"))
    assert cli.objects("rejections", "show", forged)[0]["body"] == '{"n": 2}'
    done = cli.run("rejections", "reverify", "--source", "shop", code=1).stdout
    assert "2 verified again, 1 accepted, 1 still rejected" in done
    assert [row["id"] for row in cli.objects("rejections", "list", "--state", "open")] == [forged]
    (group,) = cli.objects("rejections", "groups", "--source", "shop")
    assert (group["cause"], group["number"], group["newest_id"]) == ("signature_mismatch", 1, forged)
    text = cli.run("rejections", "groups", "--reason", "signature_mismatch").stdout
    assert text.startswith("shop: 1 signature mismatch stored since ")
    assert text.endswith("; boathook rejections list --source shop --reason signature_mismatch --state open\n")
    assert cli.objects("events", "list")[0]["source"] == "shop"


async def test_an_attempt_at_an_endpoint_is_shown_with_its_response(store: Store, cli: Cli, pg_url: str):
    application = await add_application(store.db, "acme")
    await add_endpoint(store.db, application)
    cli.run("send", "--application", "acme", "--type", "x", "--data", "{}")
    (delivery,) = cli.objects("deliveries", "list")
    with psycopg.connect(pg_url) as connection:
        connection.execute(
            """
            insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, worker, started_at, ended_at, url,
                status, duration_ms, request_headers, response)
            select event_id, ordinal, 1, 'failed', 'HTTP_500', 'the endpoint answered with status 500', 'sender-0', now(), now(),
                'https://acme.example/hooks', 500, 12, '[["webhook-id", "msg_1"]]', %s
            from boathook.delivery
            """,
            [b"no such\x1b[2J account\n" + b"." * 5_000],
        )
    text = cli.run("deliveries", "show", delivery["id"]).stdout
    assert "  POST https://acme.example/hooks  500\n  HTTP_500: the endpoint answered with status 500\n" in text
    assert "response, the first 4096 of 5020 bytes\nno such\N{REPLACEMENT CHARACTER}[2J account\n..." in text
    (shown,) = cli.objects("deliveries", "show", delivery["id"])
    (attempt,) = shown["attempts_made"]
    assert (attempt["status"], attempt["request_headers"]) == (500, {"webhook-id": "msg_1"})


async def test_an_exception_is_named_once(store: Store, cli: Cli):
    event = await store.accept("one", "a")
    await store.fail(event)
    await store.db.execute("update boathook.attempt set code = 'KeyError', error = $1", "KeyError: 'id'")
    text = cli.run("deliveries", "show", ids.show_delivery(event, 0)).stdout
    assert "\n  KeyError: 'id'\n" in text


async def test_send_publishes_once(store: Store, cli: Cli, tmp_path: Path):
    application = await add_application(store.db, "acme")
    endpoint = await add_endpoint(store.db, application, channels=["eu"])
    (tmp_path / "data.json").write_text('{"n": 1}')
    send = ["send", "--application", "acme", "--type", "x", "--data", "@data.json", "--id", "k"]
    more = [
        "--channel",
        "eu",
        "--channel",
        "us",
        "--tag",
        "t",
        "--header",
        "X-A: b",
        "--deliver-at",
        "2100-01-31T12:00:00Z",
    ]
    (first,), (again,) = cli.objects(*send, *more), cli.objects(*send[:-2], "--key", "k")
    assert (first["duplicate"], again) == (False, {**first, "duplicate": True})
    assert first["message_id"] == first["event_id"].replace("evt_", "msg_")
    (event,) = cli.objects("events", "show", first["message_id"])
    assert event["body"] == '{"n": 1}'
    assert event["headers"] == {"x-a": "b"}
    (delivery,) = cli.objects("deliveries", "list")
    assert (delivery["recipient"], delivery["due_at"][:4]) == (endpoint, "2100")
    for name in ("acme", application):
        assert [one["id"] for one in cli.objects("events", "list", "--application", name)] == [first["event_id"]]
        assert [one["event_id"] for one in cli.objects("deliveries", "list", "--application", name)] == [
            first["event_id"]
        ]
    assert cli.objects("events", "list", "--application", "other") == []
    for name in (first["event_id"], first["message_id"]):
        assert cli.objects("events", "list", "--after", name) == []
    assert "msg_" in cli.run(*send).stdout


async def test_send_explains_wrong_arguments(store: Store, cli: Cli):
    await add_application(store.db, "acme")
    send = ["send", "--application", "acme", "--type", "x"]
    assert "--data: it is not JSON" in cli.complaint(*send, "--data", "{")
    assert "write NAME:VALUE" in cli.complaint(*send, "--header", "nonsense")
    assert "--channel: " in cli.complaint(*send, "--channel", "no spaces")
    cli.run(*send, "--id", "k", "--data", '{"n": 1}')
    assert "with a different payload" in cli.complaint(*send, "--id", "k", "--data", '{"n": 2}', code=1)
    assert "--data: write a JSON object" in cli.complaint(*send, "--data", "1")
    assert "--type: an event type is 1 to 256" in cli.complaint(*send[:-1], "orders/create")
    assert "--id: it must not start with msg_" in cli.complaint(*send, "--id", "msg_1")
    nobody = cli.complaint("send", "--application", "nobody", "--type", "x", code=1)
    assert "boathook applications create NAME --uid nobody" in nobody


class TestDoctor:
    async def test_passes_for_a_healthy_setup(self, cli: Cli):
        findings = {one["check"]: one for one in cli.objects("doctor")}
        assert {one["verdict"] for one in findings.values()} <= {"ok", "warn"}
        assert (
            findings["schema"]["verdict"] == findings["source shop"]["verdict"] == findings["clock"]["verdict"] == "ok"
        )

    async def test_reports_problems_with_fixes(self, store: Store, cli: Cli):
        await store.accept("one", "handler:gone")
        await store.db.execute("update boathook.delivery set due_at = now() - interval '1 hour'")
        with (cli.folder / "boathook.toml").open("a") as file:
            file.write('[sources.bare]\nprovider = "stripe"\n')
        done = cli.run("doctor", code=1)
        findings = {
            one["check"]: one for one in map(json.loads, cli.run("doctor", "--json", code=1).stdout.splitlines())
        }
        assert findings["routes"]["verdict"] == findings["backlog"]["verdict"] == "warn"
        assert "handler:gone (1)" in findings["routes"]["found"]
        assert findings["source bare"]["verdict"] == "fail"
        assert all(one["fix"] for one in findings.values() if one["verdict"] != "ok")
        assert "sources.bare" in done.stdout

    async def test_reports_a_missing_database(self, cli: Cli):
        found = cli.run("doctor", "--json", code=1, BOATHOOK_DATABASE_URL="postgresql://localhost:1/none").stdout
        (finding,) = [one for one in map(json.loads, found.splitlines()) if one["check"] == "database"]
        assert finding["verdict"] == "fail"


class TestSetUp:
    async def test_providers_are_listed(self, cli: Cli):
        rows = {row["name"]: row for row in cli.objects("sources", "providers")}
        assert {"stripe", "github", "slack", "standard-webhooks", "hmac", "token"} <= rows.keys()
        assert all(row["grade"] and row["docs"] for row in rows.values())

    async def test_secrets_are_never_shown(self, cli: Cli):
        for command in (["sources", "show", "shop"], ["sources", "list"], ["config", "show"]):
            for done in (cli.run(*command), cli.run(*command, "--json")):
                assert "the right secret" not in done.stdout
        (shown,) = cli.objects("sources", "show", "shop")
        assert (shown["ready"], shown["paths"]) == ("yes", ["/in/shop", "/webhooks/shop"])
        url = cli.run("config", "show", "--json", BOATHOOK_DATABASE_URL="postgresql://u:hush@h/d").stdout
        assert "hush" not in url

    async def test_settings_are_checked(self, cli: Cli):
        assert "1 source on 2 paths" in cli.run("config", "check").stdout
        (cli.folder / "boathook.toml").write_text("[server]\nbnid = 1\n")
        assert "bind" in cli.complaint("config", "check")

    async def test_the_config_option_may_follow_the_command(self, cli: Cli, tmp_path: Path):
        (tmp_path / "other.toml").write_text(
            "[sources.other]\nprovider = 'stripe'\nsecrets = ['whsec_x_of_the_tests']\n"
        )
        for arguments in (
            ["--config", "other.toml", "sources", "list"],
            ["sources", "list", "--config=other.toml"],
            ["sources", "-c", "other.toml", "list"],
        ):
            assert [row["name"] for row in cli.objects(*arguments)] == ["other"]


class TestErrors:
    @pytest.mark.parametrize("arguments", [
        ["nonsense"], ["events", "nonsense"], ["events", "list", "--nonsense"], ["events", "show"], ["events", "show", "x"],
        ["events", "list", "--since", "yesterday"], ["events", "list", "--after", "x"], ["dead", "list", "--after", "evt_1"],
        ["deliveries", "list", "--state", "odd"], ["events", "list", "--limit", "-1"], ["--config", "nope.toml", "check"],
        ["spool", "inspect", "--limit", "9" * 20],
        ["rejections", "list", "--state", "odd"], ["send", "--application", "a"],
        ["dead", "ignore", "--all"], ["serve", "--port", "99999"], ["serve", "--role", "cook"],
    ], ids=" ".join)  # fmt: skip
    async def test_wrong_arguments_are_explained_in_one_sentence(self, cli: Cli, arguments: list[str]):
        cli.complaint(*arguments)

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    async def test_closed_standard_streams_are_no_error(self, cli: Cli, closed: str):
        command = f"{sys.executable} -m boathook events list --json {closed}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=cli.folder, env=ENVIRONMENT, capture_output=True, timeout=300, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")

    async def test_characters_that_the_terminal_lacks_are_escaped(self, store: Store, cli: Cli, pg_url: str):
        with psycopg.connect(pg_url) as connection:
            connection.execute(MANY_EVENTS.replace("'x'", "'\N{EURO SIGN}'"))
        assert "\\u20ac" in cli.run("events", "list", PYTHONIOENCODING="latin-1").stdout

    async def test_an_unreachable_database_is_reported_in_one_sentence(self, cli: Cli):
        (cli.folder / "boathook.toml").write_text('[database]\nurl = "postgresql://localhost:1/none"\n')
        cli.complaint("events", "list", code=1)

    async def test_a_missing_schema_error_says_to_migrate(self, tmp_path: Path, empty_url: str):
        bare = Cli(tmp_path, empty_url)
        assert "run `boathook migrate`" in bare.complaint("events", "list")
        assert "lacks" in bare.run("migrate", "--check", code=1).stdout
        bare.run("migrate")
        assert bare.run("migrate").stdout == "the schema is current\n"
        assert bare.objects("events", "list") == []

    async def test_the_debug_variable_shows_the_traceback(self, cli: Cli):
        done = boathook_process("events", "show", "x", cwd=cli.folder, env={**ENVIRONMENT, "BOATHOOK_DEBUG": "1"})
        assert "Traceback" in done.stderr


def commands() -> list[list[str]]:
    """Return every command there is, from the help itself."""
    import typer.main

    from boathook.cli import app

    def walk(command, words):
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, [*words, name])

    return list(walk(typer.main.get_command(app), []))


async def test_groups_list_their_commands_with_the_whole_first_sentence(cli: Cli):
    import typer.main

    from boathook.cli import app

    root = typer.main.get_command(app)
    groups = commands()
    code = f"""
import boathook.cli as cli
for words in {groups!r}:
    print("=====", words)
    assert cli._run([*words, "--help"]) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cli.folder, env={**ENVIRONMENT, "COLUMNS": "80"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for page in done.stdout.split("=====")[1:]:
        listed = page.partition("\nCommands:\n")[2]
        assert not re.search(r"\.\.\.$", listed, re.MULTILINE), page
    text = " ".join(done.stdout.split())
    for words in (words for words in groups if len(words) > 1):  # the root lists first sentences
        command: Any = root
        for word in words:
            command = command.commands[word]
        sentence = " ".join((command.help or "").partition("\n\n")[0].split())
        assert f"{words[-1]} {sentence}" in text, words


async def test_every_command_explains_itself_with_an_example(cli: Cli):
    # In one process: forty starts of Python would take a minute.
    code = f"""
import boathook.cli as cli
for words in {commands()!r}:
    print("=====", words)
    assert cli._run([*words, "--help"]) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cli.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    pages = done.stdout.split("===== ")[1:]
    assert len(pages) == len(commands()) > 25
    for page in pages:
        assert "Example: boathook" in page or "Commands:" in page, page


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
def test_without_a_url_commands_share_an_embedded_server():
    folder = open_folder()
    try:
        bare = Cli(folder, "")
        assert "no database: database.url is not set" in bare.complaint("check")
        bare.run("migrate")
        bare.run("applications", "create", "Acme", "--uid", "acme")
        (sent,) = bare.objects("send", "--application", "acme", "--type", "x", "--data", "{}")
        assert [row["id"] for row in bare.objects("events", "list")] == [sent["event_id"]]
        assert bare.objects("check")[0]["balanced"] is True
        pid_file = folder / ".boathook" / "postgres" / "data" / "postmaster.pid"
        assert not pid_file.exists(), "the server ran only as long as a command needed it"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
