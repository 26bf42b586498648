"""The migrations of the apps: a database that has applied one must find the same text again."""

import importlib
from pathlib import Path

import asyncpg

from boathook.db.migrations import migrate

APPLIED = {
    "billing/0001_first": "b64791c49ca63d83ae15db783bea2d6790852584b7ae6c99674c401341ff3090",
    "billing/0002_staff": "c56285b320f91067713fc161758c640288f779099e1650b125d41a0c9b0b36be",
    "cashdesk/0001_first": "e67c20c89ae80ec4d7e68d328ac3845d865be470568e1f6061e5c2515dd56a8d",
    "cashdesk/0002_pending_operations": "c148a70b211e9fcda9f62dab012594cbadd8e14ff50d6149aedd081577783b4d",
    "cashdesk/0003_drive": "f42f564279cebc98e566564f08330357bdb6cb90452d967c2afd36b458c33493",
    "fleet/0001_first": "f3fd4a583e481fc6d0762d3898149fa4eafd7a05c9de66f6430350654e40f220",
    "music/0001_tracks": "a9f545027e81334459720986731c6ae08042a94469a55efe3ac3cd33dca9c1fe",
}
"""The hashes of migrations that databases have applied; a new migration is added here."""


async def test_applied_migrations_have_the_text_that_was_applied(empty_url: str):
    apps = ("billing", "cashdesk", "fleet", "music")
    folders = {app: Path(str(importlib.import_module(f"boathook_{app}").__file__)).parent for app in apps}
    await migrate(empty_url, [(app, folder / "migrations") for app, folder in folders.items()])
    connection = await asyncpg.connect(empty_url)
    rows = await connection.fetch("select app, name, sha256 from boathook.migration where app <> 'boathook'")
    await connection.close()
    assert {f"{row['app']}/{row['name']}": row["sha256"].hex() for row in rows} == APPLIED
