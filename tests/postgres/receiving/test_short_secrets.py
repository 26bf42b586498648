"""A stored source with a secret that is too short today: it serves, can be changed, and the doctor reports it."""

import dataclasses
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from boathook.db import source_secrets as secret_store
from boathook.db import stored_sources as store
from boathook.db.database import Database
from boathook.db.secret_box import SecretBox
from boathook.domain.errors import InvalidValue
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import CompiledSources
from boathook.service.operating import doctor
from boathook.service.receiving import source_secrets, stored_sources
from boathook.service.unit_of_work import AppContext
from tests.postgres.api_client import KEY, make_context

PASSWORD = {"provider": "token", "username": "u", "password": "abc"}


@pytest.fixture
async def context(db: Database, tmp_path: Path) -> AppContext:
    """An installation whose sources were added when any secret was accepted."""
    context = make_context(db, server__data_dir=str(tmp_path), outbound__encryption_keys=[KEY])
    context = dataclasses.replace(context, secret_box=SecretBox([KEY]))
    await insert(context, "shop", {"provider": "github"}, "s3cr")
    await insert(context, "basic", PASSWORD)
    return context


async def insert(context: AppContext, name: str, values: Mapping[str, str], secret: str = "") -> None:
    id, encrypt = uuid.uuid4(), context.secret_box.encrypt
    encrypted = encrypt(json.dumps(values), store.encryption_context(name, id))
    async with context.work(actor="test") as work:
        assert await store.insert(work.connection, name=name, id=id, paths=(), encrypted=encrypted, by="test")
        if secret:
            encrypted = encrypt(secret, secret_store.encryption_context(name, id))
            await secret_store.insert(work.connection, id=id, source=name, encrypted=encrypted, note="", by="test")


async def change(context: AppContext, name: str, changes: Mapping[str, Any]) -> None:
    async with context.work(actor="test") as work:
        await stored_sources.change(work, name, changes)


async def test_it_is_served_and_reported(context: AppContext, db: Database):
    settings = await context.refresh_settings()
    cache = SecretsCache(settings, await secret_store.list_all(db))
    assert CompiledSources(context.live_settings, cache).by_path.keys() == {"/in/shop", "/in/basic"}
    findings = {finding.check: finding async for finding in doctor.examine(context.settings, db)}
    shop, basic = findings["source shop"], findings["source basic"]
    assert (shop.verdict, basic.verdict) == ("fail", "fail")
    assert shop.found.startswith("sources.shop.secrets[0]: this secret is easily guessed")
    assert "secrets add shop" in shop.fix
    assert basic.found.startswith("sources.basic.password: this secret is easily guessed")
    assert not any(secret in str(findings) for secret in ("s3cr", "abc"))


async def test_its_other_settings_can_be_changed(context: AppContext):
    await change(context, "shop", {"rate": 5})
    await change(context, "basic", {"rate": 5})
    settings = await context.refresh_settings()
    assert [settings.sources[name].rate for name in ("shop", "basic")] == [5, 5]


async def test_a_new_secret_must_be_long_enough(context: AppContext):
    with pytest.raises(InvalidValue, match="fewer than 6") as caught:
        await change(context, "basic", {"password": "abcd"})
    assert caught.value.where == ("settings", "password")
    with pytest.raises(InvalidValue, match="fewer than 6") as caught:
        async with context.work(actor="test") as work:
            await source_secrets.add(work, "shop", "other")
    assert caught.value.where == ("secret",)
    await change(context, "basic", {"password": "a long password"})
    async with context.work(actor="test") as work:
        await source_secrets.add(work, "shop", "a long secret")
