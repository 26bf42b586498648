"""What PostgreSQL compresses: lz4 if it can, and else nothing, because pglz costs more than it saves."""

import pytest

from boathook import config
from boathook.db.database import Database
from boathook.service.operating.doctor import CheckStatus, examine


async def test_bodies_are_compressed_by_lz4_or_not_at_all(db: Database):
    has_lz4 = await db.fetchval(
        "select 'lz4' = any (enumvals) from pg_settings where name = 'default_toast_compression'"
    )
    storages = await db.fetch("""
        select a.attstorage::text as storage, current_setting('default_toast_compression') as compression
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'boathook'::regnamespace and a.attname = 'body'
            and (c.relname = 'event' or c.oid in (select inhrelid from pg_inherits where inhparent = 'boathook.event'::regclass))
    """)
    assert len(storages) > 2
    found = {(row["storage"], row["compression"]) for row in storages}
    assert found == ({("x", "lz4")} if has_lz4 else {("e", "pglz")})


@pytest.mark.parametrize(("value", "verdict"), [("on", CheckStatus.WARN), ("off", CheckStatus.OK)])
async def test_the_doctor_warns_of_a_log_compressed_by_pglz(pg_url: str, value: str, verdict: CheckStatus):
    url = f"{pg_url}{'&' if '?' in pg_url else '?'}wal_compression={value}"
    database = await Database.open(url, purpose="test", size=1)
    try:
        settings = config.load(None, {"database.url": url})
        findings = {one.check: one async for one in examine(settings, database)}
    finally:
        await database.close()
    assert findings["log"].verdict is verdict
    assert ("set wal_compression = " in findings["log"].fix) == (verdict is CheckStatus.WARN)
