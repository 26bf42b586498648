"""Conflicts on the command line."""

import pytest

from boathook.db.database import Database
from tests.acceptance.test_cli import Cli
from tests.acceptance.test_cli import cli as cli  # noqa: PLC0414 - a fixture
from tests.postgres.db.test_integrity import Store, new_event


@pytest.fixture
async def conflicts(db: Database) -> Store:
    """Three events with another body each, the first seen twice."""
    store = Store(db)
    for key in ("one", "two", "three"):
        await store.events.append([new_event(key, body=b'{"amount":100,"to":"anna"}')])
        await store.events.append([new_event(key, body=b'{"amount":900,"to":"anna"}')])
    await store.events.append([new_event("one", body=b'{"amount":900,"to":"anna"}')])
    return store


async def test_they_are_listed_newest_first_as_a_table_and_as_json(cli: Cli, conflicts: Store):
    table = cli.run("conflicts", "list").stdout
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["three", "two", "one"]
    rows = cli.objects("conflicts", "list")
    assert [(row["dedup_key"], row["differs"], row["seen"]) for row in rows] == [
        ("three", "body", 1), ("two", "body", 1), ("one", "body", 2),
    ]  # fmt: skip
    assert [row["dedup_key"] for row in cli.objects("conflicts", "list", "--after", rows[0]["id"], "--limit", "1")] == [
        "two"
    ]
    assert cli.objects("conflicts", "list", "--source", "other") == []


async def test_they_are_grouped_by_cause(cli: Cli, conflicts: Store):
    text = cli.run("conflicts", "groups").stdout
    assert text.startswith("stripe: 3 known keys with different bodies stored since ")
    assert "3 in the last hour; boathook conflicts list --source stripe --differs body" in text
    (group,) = cli.objects("conflicts", "groups", "--source", "stripe")
    assert (group["cause"], group["number"], sum(group["hourly"])) == ("body", 3, 3)
    assert len(cli.objects("conflicts", "list", "--differs", "body")) == 3
    assert cli.objects("conflicts", "list", "--differs", "key") == []
    assert "--differs must be body or key" in cli.complaint("conflicts", "list", "--differs", "both")


async def test_one_is_shown_line_by_line_and_as_json(cli: Cli, conflicts: Store):
    (*_, row) = cli.objects("conflicts", "list")
    text = cli.run("conflicts", "show", row["id"]).stdout
    assert '-   "amount": 100,' in text
    assert '+   "amount": 900,' in text
    assert "The key is the same, the body is not" in text
    (found,) = cli.objects("conflicts", "show", row["id"])
    assert found["body"] == '{"amount":900,"to":"anna"}'
    assert found["event"]["body"] == '{"amount":100,"to":"anna"}'
    assert found["difference"].splitlines()[1:3] == ['-   "amount": 100,', '+   "amount": 900,']


async def test_an_unknown_conflict_is_reported_in_one_sentence(cli: Cli, conflicts: Store):
    assert "cfl_" in cli.complaint("conflicts", "show", "nonsense")
    name = "cfl_01h455vb4pex5vsknk084sn02q4"
    assert cli.complaint("conflicts", "show", name, code=1) == (
        f"boathook: there is no conflict {name}; retention may have dropped it\n"
    )


async def test_conflicts_are_accepted_once(cli: Cli, conflicts: Store):
    (*_, row) = cli.objects("conflicts", "list")
    (done,) = cli.objects("conflicts", "accept", row["id"], "--note", "the second order")
    assert (done["conflict_id"], done["is_new"]) == (row["id"], True)
    again = cli.run("conflicts", "accept", row["id"]).stdout
    assert again == f"{row['id']}  was accepted before as {done['event_id']}\n"
    (shown,) = cli.objects("conflicts", "show", row["id"])
    assert shown["accepted_as"] == done["event_id"]
    (event,) = cli.objects("events", "show", done["event_id"])
    assert (event["origin"], event["dedup_key"]) == ("accepted_conflict", row["id"])
    assert "note: " in cli.complaint("conflicts", "accept", row["id"], "--note", "x" * 2_001)
