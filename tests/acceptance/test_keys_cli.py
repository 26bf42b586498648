"""Keys of the API, made and ended on the real command line."""

import pytest

from boathook.service.access.keys import hash_token
from tests.acceptance.test_cli import Cli
from tests.postgres.api_client import ApiClient, make_context


@pytest.fixture
def cli(tmp_path, pg_url):
    return Cli(tmp_path, pg_url)


async def test_a_key_is_made_listed_and_revoked(cli, db):
    (made,) = cli.objects("keys", "create", "--scope", "organization", "--name", "backend", "--expires", "30d")
    api = ApiClient(make_context(db), made["token"])
    application = await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
    own = cli.run("keys", "create", "--scope", "application", "--application", "acme").stdout.strip()
    assert own.startswith("bhk_")
    await api.as_token(own).ask(200, "GET", "/app/acme")
    await api.as_token(own).ask(403, "GET", "/app")

    listed = cli.objects("keys", "list")
    assert [(key["scope"], key["application"], key["name"]) for key in listed] == [
        ("application", application["id"], ""),
        ("organization", None, "backend"),
    ]
    assert listed[1]["id"] == made["id"]
    assert listed[1]["expires_at"] is not None
    assert not any("token" in key for key in listed)

    cli.run("keys", "revoke", made["id"])
    await api.ask(401, "GET", "/app")
    assert "no valid key" in cli.complaint("keys", "revoke", made["id"], code=1)


def test_conflicting_options_are_explained(cli):
    assert "--application" in cli.complaint("keys", "create", "--scope", "application")
    assert "30d" in cli.complaint("keys", "create", "--scope", "organization", "--expires", "soon")
    for given in (["--mount", "/x"], ["--role", "reader"], ["--mount", "/x", "--role", "reader"]):
        scope = "mount" if len(given) == 2 else "organization"
        assert "--scope mount" in cli.complaint("keys", "create", "--scope", scope, *given)
    no_path = ("keys", "create", "--scope", "mount", "--mount", "x", "--role", "reader")
    assert "must be the path that an app mounts" in cli.complaint(*no_path)
    create = ("keys", "create", "--scope", "application", "--application", "nobody")
    assert "nobody" in cli.complaint(*create, code=1)


async def test_a_key_of_a_mount_is_made_listed_and_revoked(cli, db):
    create = ("keys", "create", "--scope", "mount", "--mount", "/api/rentprog", "--role", "reader", "--expires", "30d")
    (made,) = cli.objects(*create)
    (listed,) = cli.objects("keys", "list")
    assert (listed["scope"], listed["mount"], listed["role"]) == ("mount", "/api/rentprog", "reader")
    assert "token" not in listed
    assert await db.fetchval("select token_sha256 from boathook.api_key") == hash_token(made["token"])
    cli.run("keys", "revoke", made["id"])
    assert await db.fetchval("select revoked_at is not null from boathook.api_key")
    actions = await db.fetch("select action, subject, note from boathook.audit order by id")
    assert [tuple(row) for row in actions] == [
        ("key.create", made["id"], "reader of /api/rentprog"),
        ("key.revoke", made["id"], None),
    ]
