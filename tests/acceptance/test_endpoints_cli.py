"""What an operator does about applications, endpoints and event types, by the real command line."""

import json
import re
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.test_cli import Cli

URL = "https://acme.example/hooks"


@pytest.fixture
def cli(tmp_path: Path, pg_url: str) -> Cli:
    made = Cli(tmp_path, pg_url)
    made.run("applications", "create", "Acme Corp", "--uid", "acme", "--metadata", "plan=pro")
    return made


@pytest.fixture
def endpoint(cli: Cli) -> str:
    return cli.run("endpoints", "create", "-a", "acme", "--url", URL, "--type", "invoice.*").stdout.strip()


def act(cli: Cli, command: str, endpoint: str, *more: str, code: int = 0) -> str:
    return cli.run("endpoints", command, "-a", "acme", endpoint, *more, code=code).stdout.strip()


def seen(cli: Cli, endpoint: str) -> dict:
    (found,) = cli.objects("endpoints", "show", "-a", "acme", endpoint)
    return found


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("endpoints", "create", "-a", "acme", "--url", URL, "--concurrency", "5000"), "--concurrency: write a number from 1 to 1,000"),
        (("endpoints", "create", "-a", "acme", "--url", URL, "--timeout", "3000"), "--timeout: write a number from 1 to 60"),
        (("endpoints", "create", "-a", "acme", "--url", URL, "--rate", "65536"), "--rate: write a number from 1 to 65,535"),
        (("endpoints", "create", "-a", "acme", "--url", URL, "--uid", ".."), "--uid: it must not be '..'"),
        (("applications", "create", "x", "--uid", "."), "--uid: it must not be '.'"),
        (("applications", "create", "x" * 1_001), "NAME: write 1,000 characters at most"),
        (("keys", "create", "--scope", "organization", "--name", ""), "--name: write 1 to 200 characters"),
        (("keys", "create", "--scope", "organization", "--name", "x" * 201), "--name: write 200 characters at most"),
        (("event-types", "create", "a.b", "--description", "x" * 4_097), "--description: write 4,096 characters at most"),
        (("event-types", "create", "a.b", "--flag", ""), "--flag: write 1 to 256 characters"),
        (("applications", "create", "x", "--rate", "0"), "--rate: write a number from 1 to 65,535"),
        (("operators", "create", " ", "--no-password"), "NAME: a name has 1 to"),
        (("alerts", "silence", "--rule", "", "--note", "x"), "--rule: write a name"),
        (("alerts", "silence", "--for", "999d", "--note", "x"), "--for: must be positive"),
        (("alerts", "silence"), "--note: write a note"),
        (("events", "list", "--since", "1h", "--until", "2h"), "--until: it must be later"),
        (("sources", "secrets", "add", "shop", "--expire-others", "999d"), "--expire-others: write a time"),
        (("send", "--application", "acme", "--type", "a", "--data", "{"), "--data: it is not JSON"),
        (("send", "--application", "acme", "--type", "a", "--channel", "a b"), "--channel: "),
        (("send", "--application", "acme", "--type", "a\n"), "--type: an event type is 1 to 256 letters"),
        (("send", "--application", "acme", "--type", "a", "--id", ""), "--id: write 1 to 512 printable characters"),
    ],
)  # fmt: skip
def test_the_command_line_refuses_what_other_interfaces_refuse(cli: Cli, words: tuple[str, ...], complaint: str):
    assert cli.complaint(*words).startswith(f"boathook: {complaint}")


class TestApplications:
    def test_are_listed_page_by_page_and_shown_by_uid(self, cli: Cli):
        cli.run("applications", "create", "Beta")
        (first,) = cli.objects("applications", "list", "--limit", "1")
        (second,) = cli.objects("applications", "list", "--after", first["id"])
        assert (first["uid"], first["metadata"], second["name"]) == ("acme", {"plan": "pro"}, "Beta")
        assert cli.objects("applications", "show", "acme") == [first]

    def test_a_uid_must_be_unique_and_valid(self, cli: Cli):
        assert "another application has this uid" in cli.complaint(
            "applications", "create", "x", "--uid", "acme", code=1
        )
        assert "--uid: it must not start with app_" in cli.complaint("applications", "create", "x", "--uid", "app_x")
        assert "NAME: write 1 to" in cli.complaint("applications", "create", " ")

    def test_are_deleted_only_when_that_is_confirmed(self, cli: Cli):
        assert "add --yes to confirm" in cli.complaint("applications", "delete", "acme")
        cli.run("applications", "delete", "acme", "--yes")
        assert "unknown application acme" in cli.complaint("applications", "show", "acme", code=1)

    def test_a_portal_link_is_printed_with_its_capabilities(self, cli: Cli, pg_url: str):
        link = cli.run("applications", "portal", "acme", "--expires", "12h", "--read-only", "--theme", "dark").stdout
        assert re.fullmatch(r"http://[\d.:]+/portal\?theme=dark#key=bhk_[\w-]+\n", link)
        (made,) = cli.objects("applications", "portal", "acme", "--may", "CreateAttempts")
        assert made["url"].endswith(f"/portal#key={made['token']}")
        with psycopg.connect(pg_url) as connection:
            rows = connection.execute(
                "select capabilities, expires_at - created_at < '12h 1s' from boathook.api_key order by id"
            ).fetchall()
            noted = connection.execute("select count(*) from boathook.audit where action = 'key.create_for_portal'")
            assert noted.fetchone() == (2,)
        assert rows == [(["ViewBase"], True), (["CreateAttempts"], False)]

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (("--expires", "8d"), "--expires: write 3,600 to 604,800 seconds"),
            (("--may", "Everything"), "use ViewBase"),
            (("--may", "ViewBase", "--read-only"), "not both"),
            (("--theme", "pink"), "light, dark or nothing"),
            (("--colour", "red"), "six hexadecimal digits"),
        ],
    )
    def test_a_portal_link_that_cannot_be_is_refused(self, cli: Cli, words: tuple[str, ...], complaint: str):
        assert complaint in cli.complaint("applications", "portal", "acme", *words)


class TestEndpoints:
    def test_set_and_reset_every_setting(self, cli: Cli, endpoint: str):
        act(cli, "update", endpoint, "--rate", "5", "--retry", "svix", "--filter", '{"body": {"amount": {"gt": 1}}}')
        act(cli, "update", endpoint, "--channel", "eu", "--order-by", "customer", "--concurrency", "2", "--uid", "one")
        found = seen(cli, "one")
        assert (found["rate"], found["retry"], found["order_by"]) == (5, "svix", "customer")
        assert (found["filter"], found["channels"]) == ({"body": {"amount": {"gt": 1}}}, ["eu"])
        act(
            cli,
            "update",
            "one",
            "--rate",
            "0",
            "--retry",
            "",
            "--filter",
            "",
            "--channel",
            "",
            "--type",
            "",
            "--uid",
            "",
        )
        found = seen(cli, endpoint)
        assert [found[name] for name in ("rate", "retry", "filter", "channels", "event_types", "uid")] == [None] * 6
        assert (found["order_by"], found["concurrency"]) == ("customer", 2)

    def test_wrong_values_are_named(self, cli: Cli, endpoint: str):
        def complaint(*more: str) -> str:
            return cli.complaint("endpoints", "update", "-a", "acme", endpoint, *more)

        assert "--url: " in complaint("--url", "http://10.0.0.1/")
        assert "--type: there is no event type order.paid" in complaint("--type", "order.paid")
        assert "--filter: " in complaint("--filter", '{"body": {"a": {"bad": 1}}}')
        assert "--retry: " in complaint("--retry", "often")
        assert "--auth: oauth2 is an object with clientId" in complaint("--auth", '{"oauth2": {}}')
        assert "give a setting to change" in complaint()

    def test_are_disabled_enabled_and_deleted(self, cli: Cli, endpoint: str):
        act(cli, "disable", endpoint)
        assert (seen(cli, endpoint)["enabled"], seen(cli, endpoint)["disabled_because"]) == (False, "manual")
        act(cli, "enable", endpoint, "--backlog", "cancel")
        assert seen(cli, endpoint)["enabled"] is True
        assert "add --yes" in cli.complaint("endpoints", "delete", "-a", "acme", endpoint)
        act(cli, "delete", endpoint, "--yes")
        assert cli.objects("endpoints", "list", "-a", "acme") == []

    def test_the_backlog_is_cancelled_or_kept(self, cli: Cli, endpoint: str, pg_url: str):
        for policy, state in (("send", "pending"), ("cancel", "dead")):
            act(cli, "disable", endpoint)
            with psycopg.connect(pg_url) as connection:
                connection.execute(
                    "insert into boathook.delivery (event_id, ordinal, recipient) values (gen_random_uuid(), 0, %s)",
                    (f"endpoint:{endpoint}",),
                )
            act(cli, "enable", endpoint, "--backlog", policy)
            with psycopg.connect(pg_url) as connection:
                rows = connection.execute("select distinct state from boathook.delivery").fetchall()
            assert rows == [(state,)]

    def test_a_test_message_goes_to_this_endpoint_only(self, cli: Cli, endpoint: str):
        cli.run("endpoints", "create", "-a", "acme", "--url", URL)
        message = act(cli, "test", endpoint)
        assert message.startswith("msg_")
        (owed,) = cli.objects("deliveries", "list")
        assert owed["recipient"] == f"endpoint:{endpoint}"
        assert json.loads(act(cli, "stats", endpoint, "--json"))["pending"] == 1


class TestSecrets:
    def test_are_rotated_and_shown_by_their_public_half(self, cli: Cli, endpoint: str):
        first = act(cli, "secret", endpoint)
        assert first.startswith("whsec_")
        second = act(cli, "rotate-secret", endpoint, "--ed25519", "--grace", "60")
        assert second.startswith("whpk_")
        assert act(cli, "secret", endpoint) == second

    def test_headers_are_set_removed_and_hidden_where_they_must_be(self, cli: Cli, endpoint: str):
        shown = act(cli, "headers", endpoint, "--header", "X-Team: billing", "--header", "Authorization: Bearer canary")
        assert shown.splitlines() == ["X-Team: billing", "Authorization: (hidden)"]
        assert act(cli, "headers", endpoint, "--remove", "x-team") == "Authorization: (hidden)"

    def test_are_reencrypted_and_unreadable_ones_reported(self, cli: Cli, endpoint: str):
        file = cli.folder / ".boathook" / "encryption.key"
        keys = f'["a brand new key of ours", "file:{file}"]'
        assert self.secrets(cli)["verdict"] == "ok"
        assert "old key" in self.secrets(cli, BOATHOOK_OUTBOUND_ENCRYPTION_KEYS=keys)["found"]
        done = cli.run("endpoints", "reencrypt", "--json", BOATHOOK_OUTBOUND_ENCRYPTION_KEYS=keys)
        assert json.loads(done.stdout) == {"encrypted": 1, "reencrypted": 1, "unreadable": 0}
        assert self.secrets(cli, BOATHOOK_OUTBOUND_ENCRYPTION_KEYS='["a brand new key of ours"]')["verdict"] == "ok"
        lost = cli.run("endpoints", "reencrypt", code=1)
        assert "not among outbound.encryption_keys" in lost.stderr
        found = self.secrets(cli, code=1)
        assert found["verdict"] == "fail"
        assert endpoint in found["fix"]

    @staticmethod
    def secrets(cli: Cli, code: int = 0, **environment: str) -> dict:
        lines = cli.run("doctor", "--json", code=code, **environment).stdout.splitlines()
        (found,) = [one for one in map(json.loads, lines) if one["check"] == "secrets"]
        return found


class TestEventTypes:
    def test_are_made_imported_and_archived(self, cli: Cli):
        cli.run("event-types", "create", "invoice.paid", "--schema", '{"type": "object"}')
        schema = {"post": {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}}
        (cli.folder / "api.json").write_text(json.dumps({"openapi": "3.1.0", "webhooks": {"order.paid": schema}}))
        assert cli.objects("event-types", "import-openapi", "api.json", "--dry-run") == [{"name": "order.paid"}]
        assert len(cli.objects("event-types", "list")) == 1
        cli.run("event-types", "import-openapi", "api.json")
        cli.run("event-types", "archive", "invoice.paid")
        assert [one["name"] for one in cli.objects("event-types", "list")] == ["order.paid"]
        assert len(cli.objects("event-types", "list", "--all")) == 2

    def test_wrong_ones_are_refused(self, cli: Cli):
        assert "NAME: an event type is" in cli.complaint("event-types", "create", "a b")
        assert "--schema: invalid JSON" in cli.complaint("event-types", "create", "a", "--schema", "{")
        assert "--schema 1: " in cli.complaint("event-types", "create", "a", "--schema", '{"type": 5}')
