"""Rejected requests and conflicts grouped by cause: counted, described, and shown with their diagnosis."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from boathook.db import request_groups as store
from boathook.db.database import Database
from boathook.domain import ids
from boathook.domain.verification import Reason
from boathook.service.operating.listings import ListFilter
from boathook.service.receiving.request_groups import RequestGroup, RequestKind, describe_group, list_groups
from tests.postgres.db.test_integrity import Store, new_event
from tests.postgres.portal_client import PageClient, open_console

REJECT = """
    insert into boathook.rejection
        (id, source, status, reason, detail, client_address, method, url, headers, content_type, body, body_size, event_id)
    values ($1, $2, 401, $3, 'no signature fits', '192.0.2.1', 'POST', 'http://h/in/shop',
        '{"x-hub-signature-256": "sha256=00", "x-github-event": "push", "x-github-delivery": "d"}', 'application/json',
        '{}', 2, $4)
"""
SHOP = {"provider": "github", "secrets": ["right"]}


async def reject(db: Database, source: str, reason: str, *, hours_ago: float = 0, event: UUID | None = None) -> str:
    """Store a rejected request; return its id."""
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    name = ids.make(int(at.timestamp() * 1000), hash((source, reason, hours_ago)) & 0xFFFFFFFF)
    await db.execute(REJECT, name, source, reason, event)
    return ids.show(ids.REJECTION, name)


async def conflict(db: Database, *keys: str) -> None:
    """Store an event and a conflict with it for each of these keys."""
    events = Store(db).events
    for key in keys:
        await events.append([new_event(key, body=b'{"amount":100}')])
        await events.append([new_event(key, body=b'{"amount":900}')])


@asynccontextmanager
async def console(db: Database) -> AsyncIterator[PageClient]:
    async with open_console(db, sources__shop=SHOP) as app:
        yield await app.operator()


async def groups(db: Database, kind: RequestKind, **wanted: str) -> list[RequestGroup]:
    return list((await list_groups(db, kind, ListFilter(**wanted))).rows)


async def test_rejections_of_one_source_and_reason_are_one_group(db: Database):
    oldest = await reject(db, "shop", "signature_mismatch", hours_ago=30)
    for hours_ago in (23.5, 1.5):
        await reject(db, "shop", "signature_mismatch", hours_ago=hours_ago)
    newest = await reject(db, "shop", "signature_mismatch", hours_ago=0.5)
    await reject(db, "shop", "timestamp_too_old")
    await reject(db, "bank", "signature_mismatch", hours_ago=48)
    await reject(db, "bank", "body_invalid", event=ids.make(1, 1))  # accepted since
    found = await groups(db, RequestKind.REJECTION)
    assert [(one.origin, one.cause, one.number) for one in found] == [
        ("shop", "signature_mismatch", 4),
        ("bank", "signature_mismatch", 1),
        ("shop", "timestamp_too_old", 1),
    ]
    first = found[0]
    assert first.hourly == (1,) + (0,) * 21 + (1, 1)
    assert first.newest_id == newest
    assert first.first_seen == ids.created_at(ids.read(ids.REJECTION, oldest))
    assert first.last_seen == ids.created_at(ids.read(ids.REJECTION, newest))
    assert sum(found[1].hourly) == 0
    for wanted, origins in (({"source": "bank"}, ["bank"]), ({"code": "timestamp_too_old"}, ["shop"])):
        assert [one.origin for one in await groups(db, RequestKind.REJECTION, **wanted)] == origins


async def test_conflicts_of_one_source_and_difference_are_one_group(db: Database):
    await conflict(db, "one", "two", "two")
    await db.execute("update boathook.conflict set last_seen_at = now() + interval '1 hour' where dedup_key = 'one'")
    await conflict(db, "three")
    await db.execute("update boathook.conflict set source = null, application = 'acme' where dedup_key = 'three'")
    first, second = await groups(db, RequestKind.CONFLICT)
    assert (first.source, first.application, first.cause, first.number) == ("stripe", None, "body", 2)
    assert (second.source, second.application, second.number) == (None, "acme", 1)
    newest = await db.fetchval("select id from boathook.conflict where dedup_key = 'two'")
    assert first.newest_id == ids.show(ids.CONFLICT, newest)
    assert first.last_seen > first.first_seen + timedelta(minutes=59)
    assert first.hourly[-1] == 2
    assert await groups(db, RequestKind.CONFLICT, source="stripe") == [first]
    assert await groups(db, RequestKind.CONFLICT, application="acme") == [second]
    assert await groups(db, RequestKind.CONFLICT, code="key") == []


async def test_a_list_and_its_counts_are_bounded(db: Database, monkeypatch):
    monkeypatch.setattr(store, "MAX_COUNTED", 2)
    monkeypatch.setattr("boathook.service.receiving.request_groups.MAX_COUNTED", 2)
    monkeypatch.setattr(store, "MAX_GROUPS", 2)
    monkeypatch.setattr("boathook.service.receiving.request_groups.MAX_GROUPS", 2)
    for source in ("a", "b", "c"):
        for hours_ago in (3, 2, 1):
            await reject(db, source, "token_missing", hours_ago=hours_ago)
    found = await list_groups(db, RequestKind.REJECTION, ListFilter())
    assert found.is_cut
    assert [describe_group(one).partition(" since ")[0] for one in found.rows] == [
        "a: 2+ missing tokens stored",
        "b: 2+ missing tokens stored",
    ]
    assert found.rows[0].last_seen - found.rows[0].first_seen > timedelta(hours=1, minutes=59)


@pytest.mark.parametrize("cause", [*Reason, "body", "key"])
def test_every_cause_has_a_name(cause: str):
    at = datetime(2026, 1, 31, 16, 7, tzinfo=UTC)
    names = []
    for number in (1, 85):
        group = RequestGroup(
            source="github", application=None, cause=cause, number=number, first_seen=at, last_seen=at, newest_id="",
            hourly=(),
        )  # fmt: skip
        names.append(describe_group(group))
    assert names[0].startswith("github: 1 ")
    assert names[1].startswith("github: 85 ")
    assert names[0][10:] != names[1][11:], "one and several have different names"
    assert all(name.endswith(" since 2026-01-31 16:07 UTC") and "rejected as" not in name for name in names)


async def test_pages_lead_from_a_cause_to_its_diagnosis_and_requests(db: Database):
    newest = await reject(db, "shop", "signature_mismatch")
    other = await reject(db, "shop", "timestamp_too_old")
    await conflict(db, "one")
    async with console(db) as pages:
        page = await pages.get_page("/console/rejections")
        assert "shop: 1 signature mismatch stored since " in page
        assert '<svg class="spark" viewBox="0 0 120 32"' in page
        url = "/console/rejections/requests?source=shop&amp;reason=signature_mismatch&amp;state=open"
        assert f'href="{url}"' in page
        assert "outdated timestamp" not in await pages.get_page("/console/rejections?reason=signature_mismatch")
        page = await pages.get_page(url.replace("&amp;", "&"))
        assert "Most likely the secret of this source is not the one that the sender signs with" in page
        assert newest in page
        assert other not in page
        assert "Likely cause" not in await pages.get_page("/console/rejections/requests?source=shop")
        assert "invalid time" in await pages.get_page("/console/rejections/requests?since=soon")
        page = await pages.get_page("/console/conflicts")
        url = "/console/conflicts/requests?source=stripe&amp;differs=body"
        assert f'href="{url}"' in page
        assert "stripe: 1 known key with a different body stored since " in page
        page = await pages.get_page(url.replace("&amp;", "&"))
        assert "The key is the same, the body is not" in page
        assert "Ask the sender which of them counts" in page
        assert "Likely cause" not in await pages.get_page("/console/conflicts/requests?source=stripe&differs=key")
        assert "No conflicts." in await pages.get_page("/console/conflicts?source=shop")


async def test_heads_and_requests_of_no_source_are_shown_as_what_they_are(db: Database):
    unknown = await reject(db, "", "unknown_path")
    await reject(db, "", "unknown_path", hours_ago=1)
    large = await reject(db, "shop", "body_too_large")
    found = await groups(db, RequestKind.REJECTION)
    assert [(one.source, one.cause, one.number) for one in found] == [
        (None, "unknown_path", 2),
        ("shop", "body_too_large", 1),
    ]
    assert describe_group(found[0]).startswith("no source: 2 unknown paths stored since ")
    async with console(db) as pages:
        url = "/console/rejections/requests?reason=unknown_path&amp;state=open"
        assert f'href="{url}"' in await pages.get_page("/console/rejections")
        page = await pages.get_page(url.replace("&amp;", "&"))
        assert "Correct the URL at the sender, or add the path to paths of the source" in page
        assert large not in page
        assert "Verify all of" not in await pages.get_page("/console/rejections?reason=unknown_path")
        for rejection in (unknown, large):
            page = await pages.get_page(f"/console/rejections/{rejection}")
            assert "it was rejected by its head, so no body was stored" in page
            assert "Verify again" not in page
            assert "<h2>Body</h2>" not in page
        assert 'href="/console/sources/"' not in await pages.get_page(f"/console/rejections/{unknown}")
        mismatch = await reject(db, "shop", "signature_mismatch")
        page = await pages.get_page(f"/console/rejections/{mismatch}")
        assert "Verify again" in page
        assert "<h2>Body</h2>" in page
