"""Tokens of operators, made and ended on the real command line."""

import pytest

from tests.acceptance.test_cli import Cli
from tests.postgres.api_client import ApiClient, make_context


@pytest.fixture
def cli(tmp_path, pg_url):
    return Cli(tmp_path, pg_url)


async def test_a_token_is_created_listed_and_revoked(cli, db):
    cli.run("operators", "create", "ci", "--role", "operator", "--no-password")
    (created,) = cli.objects("operators", "tokens", "create", "ci", "--name", "deploy", "--expires", "7d")
    assert (created["operator"], created["name"], created["role"]) == ("ci", "deploy", "operator")
    api = ApiClient(make_context(db), created["token"])
    await api.ask(201, "POST", "/app", {"name": "Acme"})
    plain = cli.run("operators", "tokens", "create", "ci", "--name", "reader", "--role", "viewer").stdout.strip()
    await api.as_token(plain).ask(403, "POST", "/app", {"name": "Acme"})

    rows = cli.objects("operators", "tokens", "list", "ci")
    assert [(row["name"], row["role"], row["revoked_at"]) for row in rows] == [
        ("reader", "viewer", None),
        ("deploy", "operator", None),
    ]
    assert rows[1]["used_at"] is not None
    assert not any("token" in row for row in rows)

    cli.run("operators", "tokens", "revoke", created["id"][:-1])
    await api.ask(401, "GET", "/app")
    assert "no valid operator token" in cli.complaint("operators", "tokens", "revoke", created["id"], code=1)


def test_invalid_options_are_explained(cli):
    cli.run("operators", "create", "ci", "--role", "operator", "--no-password")
    create = ("operators", "tokens", "create", "ci", "--name", "deploy")
    assert "--role: ci is operator" in cli.complaint(*create, "--role", "admin")
    assert "--expires: write a minute to 90 days" in cli.complaint(*create, "--expires", "91d")
    assert "--name" in cli.complaint("operators", "tokens", "create", "ci")
    assert "there is no operator nobody" in cli.complaint("operators", "tokens", "list", "nobody", code=1)
    assert "otk_" in cli.complaint("operators", "tokens", "revoke", "key_01h455vb4pex5vsknk084sn02q4")
