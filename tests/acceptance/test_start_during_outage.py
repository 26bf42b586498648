"""A boathook started during an outage accepts events and delivers them to handlers later."""

import contextlib
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.faults.rig.proxy import Proxy, Target
from tests.support import until


def target_of(url: str) -> Target:
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder:
        return f"{folder}/.s.PGSQL.{parse_qs(parts.query).get('port', ['5432'])[0]}"
    return str(parts.hostname), parts.port or 5432


def through(url: str, port: int) -> str:
    parts = urlsplit(url)
    user = parts.username or parse_qs(parts.query).get("user", ["postgres"])[0]
    secret = f":{parts.password}" if parts.password else ""
    return f"postgresql://{user}{secret}@127.0.0.1:{port}{parts.path}?sslmode=disable"


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_events_accepted_before_routes_were_read_are_delivered(boathook: Callable[..., BoathookProcess], pg_url: str):
    with Proxy(target_of(pg_url)) as wire, psycopg.connect(pg_url, autocommit=True) as direct:
        one = boathook(start=False)
        configuration = one.folder / "boathook.toml"
        configuration.write_text(configuration.read_text().replace(pg_url, through(pg_url, wire.port)))
        wire.set(is_refusing=True)
        one.start()
        body, headers = signed(payload("evt_early"))
        assert httpx.post(f"{one.base}/webhooks/stripe", content=body, headers=headers).status_code == 200
        with direct.transaction():
            # As if another host migrated at this moment, which has to end before the handlers' routes can be known.
            direct.execute("select pg_advisory_xact_lock(hashtextextended('boathook.migrate', 0))")
            wire.heal()
            one.wait_logged("migration_lock_wait")
            deadline = time.monotonic() + 3
            with contextlib.suppress(AssertionError):
                until(lambda: time.monotonic() > deadline or direct.execute("select 1 from boathook.event").fetchone())
        until(lambda: direct.execute("select 1 from shop.effect where event_key = 'evt_early'").fetchone())
        assert one.stop() == 0
