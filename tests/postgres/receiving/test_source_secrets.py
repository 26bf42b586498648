"""Secrets of sources in the database: encrypted for one place, ended in time, never the last one gone."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from boathook.config import Settings, SourceSettings, load
from boathook.db import source_secrets as stored
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.secret_box import SecretBox
from boathook.db.source_secrets import SourceSecret
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidValue, LimitReached, NotFound, SecretUnreadable
from boathook.ingest.secrets_cache import FILE_NAME, SecretsCache
from boathook.service.receiving import source_secrets
from boathook.service.sending import endpoint_secrets
from boathook.service.unit_of_work import AppContext
from tests.postgres.api_client import make_context

KEY = "a key of the tests, long enough"


def context_of(
    db: Database, *, file_secret: str = "in the file", secret_box: SecretBox | None = None, **source: object
) -> AppContext:
    context = make_context(db)
    secrets = {"secrets": [file_secret]} if file_secret else {}
    sources = {
        "git": SourceSettings.model_validate({"provider": "github", **secrets, **source}),
        "adyen": SourceSettings.model_validate({"provider": "adyen", "secrets": ["00ff"]}),
        "open": SourceSettings.model_validate({"provider": "hmac", "unsigned": True}),
        "sns": SourceSettings.model_validate({"provider": "sns", "topic_arn": "arn:aws:sns:eu-west-1:1:a"}),
    }
    settings = context.settings.with_sources(sources)
    return replace(context, settings=settings, secret_box=secret_box or SecretBox([KEY]))


async def add(
    context: AppContext, text: str | None, source: str = "git", **more: object
) -> source_secrets.CreatedSecret:
    async with context.work(actor="test") as work:
        return await source_secrets.add(work, source, text, **more)


def with_key(settings: Settings, key: str, folder: Path) -> Settings:
    outbound = settings.outbound.model_copy(update={"encryption_keys": (key,)})
    server = settings.server.model_copy(update={"data_dir": folder})
    return settings.model_copy(update={"outbound": outbound, "server": server})


async def test_added_secrets_are_newest_first_and_per_source(db: Database, tmp_path: Path):
    context = context_of(db)
    for text in ("the first", "the second"):
        await add(context, text)
    added = SecretsCache(with_key(context.settings, KEY, tmp_path), await stored.list_all(db))
    assert added.of("git", datetime.now(UTC).timestamp()) == ("the second", "the first")
    assert added.of("adyen", datetime.now(UTC).timestamp()) == ()


async def test_a_secret_copied_to_another_source_cannot_be_decrypted(db: Database, tmp_path: Path):
    context = context_of(db)
    made = await add(context, "of git alone")
    await db.execute("update boathook.source_secret set source = 'adyen' where id = $1", made.secret.id)
    (moved,) = await stored.list_all(db)
    with pytest.raises(SecretUnreadable):
        context.secret_box.open(moved.encrypted, moved.context)
    added = SecretsCache(with_key(context.settings, KEY, tmp_path), [moved])
    assert added.of("adyen", datetime.now(UTC).timestamp()) == ()


async def test_an_end_is_kept_to_without_the_database(db: Database, tmp_path: Path):
    context = context_of(db)
    made = await add(context, "for an hour")
    async with context.work(actor="test") as work:
        await source_secrets.expire(work, "git", made.secret.shown_id, timedelta(hours=1))
    settings = with_key(context.settings, KEY, tmp_path)
    SecretsCache(settings, await stored.list_all(db)).save()
    kept, now = SecretsCache(settings), datetime.now(UTC).timestamp()
    assert kept.of("git", now) == ("for an hour",)
    assert kept.of("git", now + 3_601) == ()


async def test_a_damaged_file_does_not_prevent_the_start(db: Database, tmp_path: Path):
    (tmp_path / FILE_NAME).write_text('[{"id": "nonsense"')
    added = SecretsCache(with_key(context_of(db).settings, KEY, tmp_path))
    assert added.known == ()
    added.save()
    assert (tmp_path / FILE_NAME).read_text().strip() == "[]"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expires_at", "2026-01-01T00:00:00"),
        ("expires_at", "9999-12-31T23:59:59-14:00"),
        ("id", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
        ("id", "evt_01h455vb4pex5vsknk084sn02q"),
        ("encrypted", "%%%"),
        ("encrypted", "AAAA"),
        ("source", "nowhere"),
    ],
)
def test_a_foreign_file_does_not_prevent_the_start(tmp_path: Path, key: str, value: str):
    row = {"id": ids.show(ids.SOURCE_SECRET, ids.make(1, 1)), "source": "git", "encrypted": "AAAA", "expires_at": None}
    (tmp_path / FILE_NAME).write_text(json.dumps([row | {key: value}]))
    added = SecretsCache(with_key(load(None), KEY, tmp_path))
    assert added.of("git", datetime.now(UTC).timestamp()) == ()


@pytest.mark.parametrize(
    ("source", "text", "error", "words"),
    [
        ("git", "in the file", InvalidValue, "already"),
        ("git", "   ", InvalidValue, "printable"),
        ("git", "x" * 9_000, InvalidValue, "8,192"),
        ("git", "env:SECRET", InvalidValue, "boathook.toml"),
        ("adyen", "not hexadecimal", InvalidValue, "hexadecimal"),
        ("open", "pointless", InvalidState, "unsigned"),
        ("sns", "pointless", InvalidValue, "fetches"),
        ("nowhere", "x", NotFound, "unknown source"),
    ],
)
async def test_an_unusable_secret_is_refused(db: Database, source: str, text: str, error: type, words: str):
    with pytest.raises(error, match=words):
        await add(context_of(db), text, source)
    assert await stored.list_all(db) == ()


async def test_a_source_has_no_more_than_so_many(db: Database):
    context = context_of(db)
    for number in range(source_secrets.MAX_SECRETS):
        await add(context, f"number {number}")
    with pytest.raises(LimitReached, match="remove"):
        await add(context, "one more")


async def test_the_last_secret_of_a_source_cannot_expire_or_be_removed(db: Database):
    context = context_of(db, file_secret="")
    made = await add(context, "the only one")
    async with context.work(actor="test") as work:
        with pytest.raises(InvalidState, match="the last secret"):
            await source_secrets.expire(work, "git", made.secret.shown_id, timedelta())
        with pytest.raises(InvalidState, match="the last secret"):
            await source_secrets.remove(work, "git", made.secret.shown_id)
    await add(context, "the next one")
    async with context.work(actor="test") as work:
        await source_secrets.remove(work, "git", made.secret.shown_id)
    assert [one.note for one in await stored.list_all(db)] == [""]


async def test_one_that_no_key_opens_does_not_make_another_one_dispensable(db: Database):
    await add(
        context_of(db, file_secret="", secret_box=SecretBox(["a key that is lost since, alas"])), "of the lost key"
    )
    context = context_of(db, file_secret="")
    made = await add(context, "the one that works")
    async with context.work(actor="test") as work:
        with pytest.raises(InvalidState, match="the last secret"):
            await source_secrets.remove(work, "git", made.secret.shown_id)
        with pytest.raises(InvalidState, match="the last secret"):
            await source_secrets.expire(work, "git", made.secret.shown_id, timedelta(days=1))


async def test_an_expired_secret_cannot_be_restored(db: Database):
    context = context_of(db)
    made = await add(context, "over soon")
    async with context.work(actor="test") as work:
        await source_secrets.expire(work, "git", made.secret.shown_id, timedelta())
    async with context.work(actor="test") as work:
        with pytest.raises(NotFound, match="has expired already"):
            await source_secrets.expire(work, "git", made.secret.shown_id, None)
        (line,) = [one for one in await source_secrets.list_secrets(work, "git") if one.where == "added"]
    assert line.is_over


async def test_added_secrets_are_reencrypted_with_a_new_key(db: Database):
    context = context_of(db)
    await add(context, "encrypted with the old key")
    both = SecretBox(["another key, long enough too", KEY])
    found = await endpoint_secrets.reencrypt(db, both, AuditContext(actor="test"))
    assert (found.number, found.old, found.unreadable.total()) == (1, 1, 0)
    (one,) = await stored.list_all(db)
    assert SecretBox(["another key, long enough too"]).open(one.encrypted, one.context) == "encrypted with the old key"
    lost = await endpoint_secrets.examine(db, SecretBox([KEY]))
    assert lost.unreadable.total() == 1
    assert lost.endpoints == [one.shown_id]


async def test_every_change_is_in_the_audit_and_no_text_is(db: Database):
    context = context_of(db)
    made = await add(context, "a text to be kept quiet", note_text="for the winter")
    async with context.work(actor="test") as work:
        await source_secrets.expire(work, "git", made.secret.shown_id, timedelta(days=1))
        await source_secrets.remove(work, "git", made.secret.shown_id)
    rows = await db.fetch("select actor, action, subject, note from boathook.audit order by id")
    assert [row["action"] for row in rows] == ["source.secret.add", "source.secret.expire", "source.secret.remove"]
    assert {row["subject"] for row in rows} == {"git"}
    assert not any("kept quiet" in (row["note"] or "") for row in rows)


async def add_at_once(context: AppContext, number: int) -> list[object]:
    return await asyncio.gather(*(add(context, "the very same") for _ in range(number)), return_exceptions=True)


async def test_adding_a_secret_concurrently_succeeds_once(db: Database):
    found = await add_at_once(context_of(db), 4)
    assert sum(isinstance(one, source_secrets.CreatedSecret) for one in found) == 1
    assert sum(isinstance(one, InvalidValue) for one in found) == 3


async def test_without_the_lock_it_would_be_there_twice(db: Database, monkeypatch: pytest.MonkeyPatch):
    """The mutant: without the lock, concurrent additions exceed the limit."""
    together, insert = asyncio.Barrier(3), stored.insert

    async def do_not_wait(*_: object) -> None:
        pass

    async def insert_together(*arguments: Any, **values: Any) -> SourceSecret:
        await together.wait()  # each has read what is there by now
        return await insert(*arguments, **values)

    monkeypatch.setattr(stored, "lock", do_not_wait)
    monkeypatch.setattr(stored, "insert", insert_together)
    found = await add_at_once(context_of(db), 3)
    assert sum(isinstance(one, source_secrets.CreatedSecret) for one in found) > 1
