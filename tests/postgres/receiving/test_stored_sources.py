"""Sources in PostgreSQL: encrypted, without references, never in the way of configured ones or of each other."""

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from boathook.config import SourceSettings
from boathook.db import source_secrets as secret_store
from boathook.db import stored_sources as store
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.events import EventStore
from boathook.db.live_settings import LiveSettings
from boathook.db.secret_box import SecretBox
from boathook.delivery.handler_executor import follow_inline
from boathook.domain.errors import AlreadyExists, InvalidState, InvalidValue, LimitReached, NotFound
from boathook.ingest.reply_waiter import inline_sources
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import CompiledSources, dedup_days_by_source
from boathook.ingest.stored_sources_file import FILE_NAME, read_stored_sources, save_stored_sources
from boathook.service.receiving import source_secrets, sources, stored_sources
from boathook.service.sending import endpoint_secrets
from boathook.service.unit_of_work import AppContext
from tests.postgres.api_client import KEY, make_context
from tests.support import eventually

STRIPE = {"provider": "stripe"}


def context_of(db: Database, folder: Path, *, key: str = KEY, **configured: Mapping[str, Any]) -> AppContext:
    context = make_context(db, server__data_dir=str(folder), outbound__encryption_keys=[key])
    table = {name: SourceSettings.model_validate(one) for name, one in configured.items()}
    return replace(context, settings=context.settings.with_sources(table), secret_box=SecretBox([key]))


@pytest.fixture
def context(db: Database, tmp_path: Path) -> AppContext:
    git = {"provider": "github", "secrets": ["in the file"], "paths": ["/hooks/git"]}
    return context_of(db, tmp_path, git=git)


async def add(
    context: AppContext,
    name: str,
    values: Mapping[str, Any] = STRIPE,
    secret: str | None = "whsec_one_of_the_tests",
    **more: Any,
) -> stored_sources.AddedSource:
    async with context.work(actor="test") as work:
        return await stored_sources.add(work, name, values, secret=secret, **more)


async def change(context: AppContext, name: str, changes: Mapping[str, Any], **more: Any) -> None:
    async with context.work(actor="test") as work:
        await stored_sources.change(work, name, changes, **more)


async def remove(context: AppContext, name: str) -> None:
    async with context.work(actor="test") as work:
        await stored_sources.remove(work, name)


def live_of(context: AppContext) -> LiveSettings:
    return LiveSettings(context.settings.with_stored_sources({}), context.secret_box)


async def view_of(context: AppContext, name: str) -> sources.SourceView:
    async with context.work() as work:
        return await sources.get(work, name)


async def views_of(context: AppContext) -> Sequence[sources.SourceView]:
    async with context.work() as work:
        return await sources.list_all(work)


async def insert_raw(context: AppContext, name: str, values: object, paths: tuple[str, ...] = ()) -> None:
    """Store a source as a newer or a broken boathook might."""
    id = uuid.uuid4()
    encrypted = context.secret_box.encrypt(json.dumps(values), store.encryption_context(name, id))
    async with context.work(actor="test") as work:
        assert await store.insert(work.connection, name=name, id=id, paths=paths, encrypted=encrypted, by="test")


async def test_a_stored_source_is_among_the_sources_and_can_be_changed_and_removed(context: AppContext, db: Database):
    await add(context, "shop", {**STRIPE, "paths": ["/hooks/shop"], "retry": "5, 60", "dedup_days": 3})
    settings = await context.refresh_settings()
    assert settings.stored == {"shop"}
    assert settings.sources["shop"].paths == ("/hooks/shop",)
    assert settings.retry_defaults().by_source["shop"].delays_s == (5, 60)
    view = await view_of(context, "shop")
    assert (view.is_stored, view.trouble, view.added_secrets, view.created_by) == (True, "", 1, "test")
    await change(context, "shop", {"paths": ["/hooks/other"], "retry": None})
    settings = await context.refresh_settings()
    assert settings.sources["shop"].paths == ("/hooks/other",)
    assert settings.sources["shop"].retry is None
    assert settings.sources["shop"].dedup_days == 3, "keys that are not named stay"
    await change(context, "shop", STRIPE, is_replaced=True)
    assert (await context.refresh_settings()).sources["shop"].dedup_days is None
    await remove(context, "shop")
    assert set((await context.refresh_settings()).sources) == {"git"}
    assert await secret_store.list_all(db) == (), "a later source of this name must not accept its secrets"


async def test_nothing_secret_is_in_the_database_or_the_audit(context: AppContext, db: Database):
    values = {"provider": "token", "header": "x-key"}
    await add(context, "till", values, "the quiet token")
    await add(context, "basic", {"provider": "token", "username": "u", "password": "a quiet password"}, None)
    await change(context, "basic", {"password": "another quiet one"})
    await change(context, "basic", {"provider": "token", "username": "v", "password": "(hidden)"}, is_replaced=True)
    rows = await db.fetch(
        "select s::text as text from boathook.source s union all select s::text from boathook.source_secret s"
    )
    assert len(rows) == 3
    audit = await db.fetch("select actor, action, subject, note from boathook.audit order by id")
    assert [row["action"] for row in audit] == ["source.add", "source.add", "source.change", "source.change"]
    assert not any("quiet" in str(dict(row)) for row in (*rows, *audit))
    assert sources.read_stored_settings(context, "basic")["password"] == "(hidden)"
    assert (await context.refresh_settings()).sources["basic"].password == "another quiet one"


async def test_settings_copied_to_another_source_are_not_used(context: AppContext, db: Database):
    await add(context, "shop")
    await add(context, "till")
    await db.execute(
        "update boathook.source t set encrypted = s.encrypted from boathook.source s where t.name = 'till' and s.name = 'shop'"
    )
    live = live_of(context)
    await live.refresh(db)
    assert set(live.current.stored) == {"shop"}
    assert "does not belong" in live.problems["till"]


@pytest.mark.parametrize(
    ("name", "values", "secret", "where", "words"),
    [
        ("a/b", STRIPE, "x", ("name",), "letters, digits"),
        ("../etc", STRIPE, "x", ("name",), "letters, digits"),
        ("", STRIPE, "x", ("name",), "letters, digits"),
        ("x" * 101, STRIPE, "x", ("name",), "100 characters"),
        ("shop", {"provider": "strip"}, "x", ("settings", "provider"), "stripe"),
        ("shop", {**STRIPE, "public_url": "env:HOME"}, "whsec_x_of_the_tests", ("settings", "public_url"), "reference"),
        ("shop", {"provider": "token", "password": "env:HOME"}, None, ("settings", "password"), "reference"),
        ("shop", {"provider": "token", "password": "file:/etc/passwd"}, None, ("settings", "password"), "reference"),
        ("shop", {**STRIPE, "dedup_fields": ["id", "env:HOME"]}, "whsec_x_of_the_tests", ("settings", "dedup_fields"), "reference"),
        ("shop", {**STRIPE, "schema": {"const": "file:/etc/passwd"}}, "whsec_x_of_the_tests", ("settings", "schema"), "reference"),
        ("shop", {**STRIPE, "schema": "/etc/passwd"}, "whsec_x_of_the_tests", ("settings", "schema"), "the JSON Schema itself"),
        ("shop", {**STRIPE, "schema": {"type": 7}}, "whsec_x_of_the_tests", ("settings", "schema"), "type"),
        ("shop", {**STRIPE, "secrets": ["x"]}, "whsec_x_of_the_tests", ("secret",), "add them as secrets"),
        ("shop", {**STRIPE, "secret": "x"}, "whsec_x_of_the_tests", ("secret",), "add them as secrets"),
        ("shop", {**STRIPE, "pahts": []}, "whsec_x_of_the_tests", ("settings", "pahts"), "did you mean"),
        ("shop", {**STRIPE, "nonsense": "1"}, "whsec_x_of_the_tests", ("settings", "nonsense"), "no such setting"),
        ("shop", {**STRIPE, "rate": -1}, "whsec_x_of_the_tests", ("settings", "rate"), "must be at least 0"),
        ("shop", {**STRIPE, "paths": ["hooks"]}, "whsec_x_of_the_tests", ("settings", "paths"), "must start with"),
        ("shop", {**STRIPE, "paths": ["/api/v1/app"]}, "whsec_x_of_the_tests", ("settings", "paths"), "belongs to boathook"),
        ("shop", {**STRIPE, "paths": ["/hooks/git"]}, "whsec_x_of_the_tests", ("settings", "paths"), "source 'git'"),
        ("shop", {**STRIPE, "fallback_body": "x"}, "whsec_x_of_the_tests", ("settings",), "inline"),
        ("shop", {**STRIPE, "mode": "inline", "reply_within_s": 900}, "whsec_x_of_the_tests", ("settings", "reply_within_s"), "waits only"),
        ("shop", {**STRIPE, "schema": {"enum": ["x" * 140_000]}}, "whsec_x_of_the_tests", ("settings",), "bytes"),
        ("shop", {**STRIPE, "paths": ["/a\0b"]}, "whsec_x_of_the_tests", ("settings", "paths"), "must start with"),
        ("shop", {**STRIPE, "dedup_days": float("inf")}, "whsec_x_of_the_tests", ("settings", "dedup_days"), "at most"),
        ("shop", {**STRIPE, "dedup_days": 36_501}, "whsec_x_of_the_tests", ("settings", "dedup_days"), "36500"),
        ("shop", {**STRIPE, "rate": float("nan")}, "whsec_x_of_the_tests", ("settings", "rate"), "at most"),
        ("shop", STRIPE, None, ("secret",), "paste its secret"),
        ("shop", STRIPE, "  ", ("secret",), "printable"),
        ("shop", STRIPE, "env:HOME", ("secret",), "the secret itself"),
        ("shop", {"provider": "adyen"}, "not hexadecimal", ("secret",), "hexadecimal"),
        ("shop", {**STRIPE, "unsigned": True}, "whsec_x_of_the_tests", ("settings", "unsigned"), "remove them"),
    ],
)  # fmt: skip
async def test_wrong_values_are_refused_at_their_field(
    context: AppContext,
    db: Database,
    name: str,
    values: dict[str, Any],
    secret: str | None,
    where: tuple[str, ...],
    words: str,
):
    with pytest.raises(InvalidValue, match=words) as caught:
        await add(context, name, values, secret)
    assert caught.value.where == where
    assert await store.list_all(db) == ()
    assert await secret_store.list_all(db) == ()
    assert await db.fetch("select from boathook.audit") == []


async def test_settings_that_are_nested_too_deeply_are_refused(context: AppContext):
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"not": schema}
    with pytest.raises(InvalidValue, match="too deeply"):
        await add(context, "shop", {**STRIPE, "schema": schema}, "x")


async def test_names_are_unique_among_all_sources(context: AppContext):
    await add(context, "shop")
    with pytest.raises(AlreadyExists, match=r"boathook\.toml"):
        await add(context, "git")
    with pytest.raises(AlreadyExists, match="already"):
        await add(context, "shop")
    await change(context, "shop", {"paths": ["/a"]})
    with pytest.raises(InvalidValue, match="source 'shop'"):
        await add(context, "till", {**STRIPE, "paths": ["/a"]})


async def test_configured_sources_are_not_changed_here(context: AppContext):
    for act in (change(context, "git", {"rate": 1}), remove(context, "git")):
        with pytest.raises(InvalidState, match=r"boathook\.toml"):
            await act
    for act in (change(context, "nowhere", {"rate": 1}), remove(context, "nowhere")):
        with pytest.raises(NotFound, match="nowhere"):
            await act


async def test_there_is_a_limit(context: AppContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_sources, "MAX_STORED_SOURCES", 2)
    await add(context, "one")
    await add(context, "two")
    with pytest.raises(LimitReached, match="remove"):
        await add(context, "three")


async def test_a_secret_is_generated_where_the_user_chooses_it(context: AppContext, db: Database):
    made = await add(context, "git-2", {"provider": "github"}, None, is_secret_generated=True)
    assert made.secret
    (one,) = await secret_store.list_all(db)
    assert context.secret_box.open(one.encrypted, one.context) == made.secret
    assert made.secret not in repr(made)


async def test_an_earlier_secret_of_the_name_is_not_accepted_by_a_new_source(
    context: AppContext, db: Database, tmp_path: Path
):
    former = context_of(db, tmp_path, shop={"provider": "stripe", "secrets": ["whsec_in the file"]})
    async with former.work(actor="test") as work:
        await source_secrets.add(work, "shop", "whsec_of the former owner")
    await add(context, "shop", secret="whsec_of the new owner")
    assert [context.secret_box.open(one.encrypted, one.context) for one in await secret_store.list_all(db)] == [
        "whsec_of the new owner"
    ]


async def test_the_file_wins_and_the_stored_source_is_reported(context: AppContext, db: Database, tmp_path: Path):
    await add(context, "shop", {**STRIPE, "paths": ["/hooks/a"]})
    await add(context, "till", {**STRIPE, "paths": ["/hooks/b"]})
    await add(context, "fine", STRIPE)
    own = {"provider": "github", "secrets": ["x"]}
    later = context_of(db, tmp_path, shop=own, other={**own, "paths": ["/hooks/b"]})
    settings = await later.refresh_settings()
    assert set(settings.sources) == {"shop", "other", "fine"}
    assert settings.stored == {"fine"}
    assert settings.sources["shop"].provider == "github"
    views = {view.name: view for view in await views_of(later)}
    assert "boathook.toml" in views["shop"].stored_problem
    assert "source 'other'" in views["till"].trouble
    assert views["till"].is_stored
    assert not views["fine"].trouble
    compiled = CompiledSources(later.live_settings, SecretsCache(settings, await secret_store.list_all(db)))
    assert compiled.unavailable == {"/in/till": "till", "/hooks/a": "shop"}
    await remove(later, "shop")
    assert {one.source for one in await secret_store.list_all(db)} == {"shop", "till", "fine"}, "shop may use its own"
    await change(later, "till", {"paths": ["/hooks/c"]})
    assert (await later.refresh_settings()).stored == {"fine", "till"}
    assert later.live_settings.problems == {}


async def test_an_invalid_stored_source_is_skipped_and_can_be_repaired(context: AppContext, db: Database):
    await insert_raw(context, "newer", {**STRIPE, "rate": "many"}, ("/hooks/newer",))
    await insert_raw(context, "odd", ["no table"])
    await insert_raw(context, "spy", {**STRIPE, "public_url": "env:HOME"})
    await add(context, "fine")
    settings = await context.refresh_settings()
    assert settings.stored == {"fine"}
    assert set(context.live_settings.problems) == {"newer", "odd", "spy"}
    assert "sources.newer.rate" in context.live_settings.problems["newer"]
    for name in ("newer", "odd", "spy"):
        view = await view_of(context, name)
        assert view.is_stored
        assert view.trouble
        async with context.work() as work:
            assert await source_secrets.list_secrets(work, name) == []
    async with context.work(actor="test") as work:
        await work.connection.execute("delete from boathook.source where name = 'odd'")
    await insert_secret(context, "newer")
    await change(context, "newer", {"rate": 5})
    assert (await context.refresh_settings()).stored == {"fine", "newer"}


async def insert_secret(context: AppContext, name: str) -> None:
    id = uuid.uuid4()
    encrypted = context.secret_box.encrypt("whsec_x_of_the_tests", secret_store.encryption_context(name, id))
    async with context.work() as work:
        await secret_store.insert(work.connection, id=id, source=name, encrypted=encrypted, note="", by="test")


async def test_a_source_with_a_rejected_option_is_unavailable(context: AppContext, db: Database):
    await insert_raw(context, "newer", {**STRIPE, "of_the_future": "1"}, ("/hooks/newer",))
    await add(context, "fine")
    settings = await context.refresh_settings()
    cache = SecretsCache(settings, await secret_store.list_all(db))
    compiled = CompiledSources(context.live_settings, cache)
    assert set(compiled.by_path) == {"/in/git", "/hooks/git", "/in/fine"}
    assert "of_the_future" in (await view_of(context, "newer")).trouble
    assert not compiled.unavailable.keys() & compiled.by_path.keys()
    assert "/in/newer" in compiled.unavailable


async def test_an_unchanged_source_keeps_its_counters_and_rate_limit(context: AppContext, db: Database):
    await add(context, "shop", {**STRIPE, "rate": 1})
    await add(context, "till", {**STRIPE, "rate": 1})
    await context.refresh_settings()
    cache = SecretsCache(context.settings, await secret_store.list_all(db))
    compiled = CompiledSources(context.live_settings, cache)
    shop, till, git = (compiled.by_name[name] for name in ("shop", "till", "git"))
    assert not compiled.is_outdated(has_new_secrets=True)
    await change(context, "till", {"max_body": 100})
    await context.refresh_settings()
    assert compiled.is_outdated(has_new_secrets=False)
    compiled.update()
    assert compiled.by_name["shop"] is shop
    assert compiled.by_name["git"] is git
    assert compiled.by_name["till"] is not till
    assert compiled.by_name["till"].max_body == 100
    assert compiled.by_name["till"].rate is till.rate
    await change(context, "till", {"rate": 2})
    await context.refresh_settings()
    compiled.update()
    assert compiled.by_name["till"].rate is not till.rate


async def test_a_wrong_encryption_key_makes_stored_sources_unavailable(
    context: AppContext, db: Database, tmp_path: Path
):
    await add(context, "shop", {**STRIPE, "paths": ["/hooks/shop"]})
    other = context_of(db, tmp_path, key="another key, long enough to be one")
    settings = await other.refresh_settings()
    assert settings.sources == {}
    compiled = CompiledSources(other.live_settings, SecretsCache(settings, ()))
    assert compiled.unavailable == {"/in/shop": "shop", "/hooks/shop": "shop"}, "paths are known without the key"
    with pytest.raises(InvalidState, match="cannot be read"):
        await change(other, "shop", {"rate": 1})


async def test_stored_settings_are_reencrypted_with_a_new_key(context: AppContext, db: Database):
    await add(context, "shop", {**STRIPE, "rate": 7})
    both = SecretBox(["another key, long enough too", KEY])
    found = await endpoint_secrets.reencrypt(db, both, AuditContext(actor="test"))
    assert (found.number, found.old, found.unreadable.total()) == (2, 2, 0)
    live = LiveSettings(context.settings.with_stored_sources({}), SecretBox(["another key, long enough too"]))
    await live.refresh(db)
    assert live.current.sources["shop"].rate == 7
    lost = await endpoint_secrets.examine(db, SecretBox([KEY]))
    assert "source shop" in lost.endpoints


async def test_changes_by_other_processes_are_followed(context: AppContext, db: Database):
    live = live_of(context)
    seen: list[set[str]] = []
    live.subscribe(lambda settings: seen.append(set(settings.stored)))
    retries = live.retry_defaults()
    async with live.following(db):
        await add(context, "shop", {**STRIPE, "retry": "7"})
        await eventually(lambda: live.current.stored == {"shop"})
        assert retries.of("shop").delays_s == (7,)
        await change(context, "shop", {"retry": "9"})
        await eventually(lambda: retries.of("shop").delays_s == (9,))
        await remove(context, "shop")
        await eventually(lambda: not live.current.stored)
    assert retries.of("shop") == retries.policy
    assert {"shop"} in seen


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_change_without_a_notification_is_found_by_polling(
    context: AppContext, db: Database, monkeypatch: pytest.MonkeyPatch
):
    live = live_of(context)
    monkeypatch.setattr(live, "on_notification", lambda _payload: None)
    async with live.following(db):
        await add(context, "shop")
        await eventually(lambda: live.current.stored == {"shop"})


async def test_the_saved_file_restores_them_without_the_database(context: AppContext, db: Database, tmp_path: Path):
    assert read_stored_sources(tmp_path) is None
    await add(context, "shop", {**STRIPE, "paths": ["/hooks/shop"], "rate": 3})
    save_stored_sources(tmp_path, await store.list_all(db))
    live = live_of(context)
    live.set_rows(read_stored_sources(tmp_path) or ())
    assert live.current.sources["shop"].rate == 3
    assert live.current.sources["shop"].paths == ("/hooks/shop",)
    kept = live.current.sources["shop"]
    await live.refresh(db)
    assert live.current.sources["shop"] is kept, "the database has the same, so nothing is compiled again"


@pytest.mark.parametrize("text", ["", "{", "[{}]", '[{"name": "a", "id": "b", "paths": [], "encrypted": ""}]', "[1]"])
def test_a_damaged_file_does_not_prevent_a_start(tmp_path: Path, text: str):
    (tmp_path / FILE_NAME).write_text(text)
    assert read_stored_sources(tmp_path) is None


async def add_at_once(context: AppContext, *named: tuple[str, Mapping[str, Any]]) -> list[object]:
    return await asyncio.gather(*(add(context, name, values) for name, values in named), return_exceptions=True)


async def test_claiming_a_path_concurrently_succeeds_once(context: AppContext):
    values = {**STRIPE, "paths": ["/hooks/shared"]}
    found = await add_at_once(context, *((f"shop-{number}", values) for number in range(4)))
    assert sum(isinstance(one, stored_sources.AddedSource) for one in found) == 1
    assert sum(isinstance(one, InvalidValue) for one in found) == 3


async def test_mutant_without_the_lock_two_take_one_path(context: AppContext, monkeypatch: pytest.MonkeyPatch):
    """The mutant: without the lock, neither sees the other."""
    together = asyncio.Barrier(2)

    async def do_not_wait(*_: object) -> None:
        return

    insert = store.insert

    async def insert_together(*arguments: Any, **named: Any) -> Any:
        await together.wait()
        return await insert(*arguments, **named)

    monkeypatch.setattr(store, "lock", do_not_wait)
    monkeypatch.setattr(store, "insert", insert_together)
    values = {**STRIPE, "paths": ["/hooks/shared"]}
    found = await add_at_once(context, ("one", values), ("two", values))
    assert sum(isinstance(one, stored_sources.AddedSource) for one in found) == 2
    settings = await context.refresh_settings()
    assert settings.stored == {"one"}, "even then one is served, and the other reported"
    assert "source 'one'" in context.live_settings.problems["two"]


async def test_workers_follow_which_sources_are_inline(context: AppContext, db: Database):
    live = live_of(context)
    inline = follow_inline(live, inline_sources)
    async with live.following(db):
        await add(context, "shop", {**STRIPE, "mode": "inline"})
        await insert_raw(context, "newer", {**STRIPE, "mode": "inline", "reply_within_s": 900})
        await eventually(lambda: live.current.stored == {"shop", "newer"})
        assert set(inline) == {"shop"}, "one with impossible settings does not stop the worker"
        await change(context, "shop", {"mode": None})
        await eventually(lambda: not inline)


async def test_dedup_days_of_stored_sources_apply(context: AppContext):
    await add(context, "shop", {**STRIPE, "dedup_days": 90})
    await add(context, "till", {**STRIPE, "dedup_days": 2})
    days = dedup_days_by_source(await context.refresh_settings())
    assert (days["shop"], days["till"]) == (90, 2)
    events = EventStore(dedup_days=30)
    events.set_dedup_days(days)
    assert events._memory_of == {name: timedelta(days=number) for name, number in days.items()}
