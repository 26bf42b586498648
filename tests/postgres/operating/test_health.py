"""The health of handlers, endpoints and sources: the same rows give the same word on every page, API and command."""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import HostSample
from boathook.db.route_registry import register
from boathook.domain import ids
from boathook.domain.model import Role, Route
from boathook.observability.metric_snapshot import MetricSnapshot
from tests.commands import boathook_command
from tests.postgres.api_client import open_api_client
from tests.postgres.portal_client import open_console
from tests.sender_harness import add_endpoint


async def put_sample(db: Database, ago_s: float, counters: dict[Any, Any], gauges: dict[Any, Any]) -> None:
    at = datetime.now(UTC) - timedelta(seconds=ago_s)
    await metric_samples.insert(db, [HostSample("a", at, MetricSnapshot(span_s=10, counters=counters, gauges=gauges))])


def handler_attempts(**by_name: tuple[int, int, str]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the counters and gauges of handlers: attempts that succeeded, that failed, and the newest one's result."""
    counts: dict[Any, float] = {}
    newest: dict[Any, float] = {}
    for name, (succeeded, failed, result) in by_name.items():
        recipient = f"handler:{name}"
        counts |= {(recipient, "succeeded"): succeeded, (recipient, "retry"): failed}
        newest |= {(recipient, "succeeded"): 1000.0, (recipient, "failed"): 1000.0}
        newest[recipient, result] = 2000.0
    return {"boathook_attempts_total": counts}, {"boathook_newest_attempt_timestamp_seconds": newest}


HANDLERS = {
    "all_failed": ((0, 4, "failed"), "failing"),
    "at_threshold": ((3, 1, "failed"), "failing"),
    "recovered": ((1, 9, "succeeded"), "healthy"),
    "rarely": ((9, 1, "failed"), "healthy"),
    "gone": ((0, 4, "failed"), "not registered"),
    "broken": ((5, 0, "succeeded"), "paused"),
}


async def test_a_handler_that_failed_in_the_range_stays_failing_while_it_is_idle(db: Database) -> None:
    names = [*HANDLERS, "quiet"]
    await register(db, "s:h", [Route(recipient=f"handler:{name}", app="s:h") for name in names])
    await register(db, "s:h", [Route(recipient=f"handler:{name}", app="s:h") for name in names if name != "gone"])
    counters, gauges = handler_attempts(**{name: results for name, (results, _) in HANDLERS.items()})
    await put_sample(db, 1800, counters, gauges)
    backlog = {(f"handler:{name}", "dead"): 1.0 for name in names}
    breakers = {("handler:broken", "crm"): 1.0}
    await put_sample(db, 5, {}, {"boathook_backlog": backlog, "boathook_handler_circuit_breaker_open": breakers})
    expected = {**{name: word for name, (_, word) in HANDLERS.items()}, "quiet": "idle"}
    async with open_console(db) as console:
        vera = await console.operator("vera", Role.VIEWER)
        page = await vera.get_page("/console/handlers")
        rows = re.findall(r'href="/console/handlers/(\w+)\?span=hour">.*?class="badge ?\w*">([\w ]+)<', page, re.DOTALL)
        assert dict(rows) == expected
        for name, word in expected.items():
            if name != "gone":  # it has no delivery in the store
                own = await vera.get_page(f"/console/handlers/{name}")
                found = re.search(r'<h1[^>]*>\w+ <span class="badge ?\w*">([\w ]+)<', own)
                assert found is not None
                assert found[1] == word, name
        page = await vera.get_page("/console")
        assert "2 handlers failing" in page
        rows = re.findall(r'href="/console/handlers/(\w+)">[^<]*</a></th><td><span class="badge ?\w*">([\w ]+)<', page)
        assert dict(rows) == expected


async def put_attempts(db: Database, endpoint: UUID, results: str, ago: timedelta = timedelta(minutes=10)) -> None:
    """Store attempts of an endpoint, oldest first: ``f`` failed, ``s`` succeeded."""
    now = datetime.now(UTC)
    for index, result in enumerate(results):
        at = now - ago + timedelta(seconds=index)
        await db.execute(
            "insert into boathook.attempt (event_id, ordinal, number, outcome, worker, started_at, ended_at, id, recipient,"
            " url, status, duration_ms) values ($1, 0, $2, $3, 'w', $4, $4, $1, $5, 'http://x', 0, 1)",
            ids.make(int(at.timestamp() * 1000), index),
            index + 1,
            {"f": "failed", "s": "succeeded"}[result],
            at,
            f"endpoint:{ids.show(ids.ENDPOINT, endpoint)}",
        )


async def test_an_endpoint_has_the_same_health_on_every_interface(db: Database, pg_url: str, tmp_path: Path) -> None:
    async with open_api_client(db) as api, open_console(db) as console:
        made = await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        application = ids.read(ids.APPLICATION, made["id"])
        expected = {}
        for results, columns, health, word in (
            ("", {}, None, "idle"),
            ("sssf", {}, (1, None), "failing"),
            ("f", {}, (1, None), "failing"),
            ("ssssf", {}, (1, None), "healthy"),
            ("fffs", {}, None, "healthy"),
            ("ffff", {}, (9, datetime.now(UTC) + timedelta(hours=1)), "paused"),
            ("ffff", {"is_disabled": True, "disabled_because": "manual", "disabled_at": datetime.now(UTC)},
             (9, datetime.now(UTC) + timedelta(hours=1)), "disabled"),
        ):  # fmt: skip
            endpoint = await add_endpoint(db, "http://127.0.0.1:9/x", application=application, **columns)
            await put_attempts(db, endpoint.id, results)
            if health is not None:
                await db.execute(
                    "insert into boathook.endpoint_health (endpoint_id, failures, open_until, pauses, last_failed_at,"
                    " failing_since) values ($1, $2, $3, 1, now(), now())",
                    endpoint.id,
                    *health,
                )
            expected[ids.show(ids.ENDPOINT, endpoint.id)] = word

        anna = await console.operator()
        home = f"/console/applications/{made['id']}"
        page = await anna.get_page(f"{home}/endpoints")
        badge = r'endpoints/(ep_\w+)">.*?class="badge ?\w*">([\w ]+)<'
        assert dict(re.findall(badge, page, re.DOTALL)) == expected
        for key, word in expected.items():
            health = await api.ask(200, "GET", f"/app/acme/endpoint/{key}/health")
            assert (health["health"], health["pausedUntil"] is not None) == (word, word == "paused")
            own = await anna.get_page(f"{home}/endpoints/{key}")
            found = re.search(r'<h1[^>]*>[^<]* <span class="badge ?\w*">([\w ]+)<', own)
            assert found is not None
            assert found[1] == word
            assert ("/resume" in own) == (word == "paused")
        troubled = await anna.get_page("/console/applications/unhealthy")
        assert dict(re.findall(badge, troubled, re.DOTALL)) == {
            key: word for key, word in expected.items() if word in ("failing", "paused", "disabled")
        }

    env = {**os.environ, "BOATHOOK_DATABASE_URL": pg_url, "BOATHOOK_DATA_DIR": str(tmp_path)}
    result = boathook_command("endpoints", "list", "-a", "acme", "--json", cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["id"]: row["health"] for row in rows} == expected
    paused = next(key for key, word in expected.items() if word == "paused")
    shown = boathook_command("endpoints", "show", "-a", "acme", paused, "--json", cwd=tmp_path, env=env)
    assert json.loads(shown.stdout)["health"] == "paused"
    assert json.loads(shown.stdout)["paused_until"]


@pytest.mark.parametrize(
    ("counts", "newest", "word"),
    [
        ({}, None, "idle"),
        ({"200": 9, "401": 1}, "failed", "healthy"),
        ({"200": 3, "401": 1}, "failed", "failing"),
        ({"200": 3, "401": 9}, "succeeded", "healthy"),
        ({"503": 2}, "failed", "failing"),
    ],
)
async def test_a_source_has_the_same_health_on_every_interface(
    db: Database, counts: dict[str, int], newest: str | None, word: str
) -> None:
    times = {("shop", newest): 2000.0, ("shop", "x"): 1.0} if newest else {}
    await put_sample(
        db,
        1800,
        {"boathook_requests_total": {("shop", status): number for status, number in counts.items()}},
        {"boathook_newest_request_timestamp_seconds": times},
    )
    async with open_console(db, sources__shop__provider="stripe") as console:
        vera = await console.operator("vera", Role.VIEWER)
        for path in ("/console/sources", "/console/sources/shop", "/console"):
            page = await vera.get_page(path)
            found = re.search(
                r'>shop(?:</a>(?: <span class="badge bad">[\w ]+</span>)?</th>\s*<td>| )<span class="badge ?\w*">([\w ]+)<',
                page,
            )
            assert found is not None, path
            assert found[1] == word, path
