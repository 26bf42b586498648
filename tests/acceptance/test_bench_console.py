"""`python -m benchmarks console` visits every page over HTTP and compares it with its target."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import crawler
from benchmarks.console import TARGET_MS
from benchmarks.page_client import PageClient, PageResponse
from boathook.domain.errors import ConfigError

pytestmark = pytest.mark.extended("starts several servers of its own")

ROOT = Path(__file__).parents[2]
EVENTS = 2_000


@pytest.fixture(scope="module")
def figures(admin_url: str) -> dict[str, Any]:
    """Return the command's output for a short history."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "console", "--events", str(EVENTS), "--seconds", "0.5", "--json"],
        cwd=ROOT,
        env={**os.environ, "BOATHOOK_DATABASE_URL": admin_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_page_but_the_streaming_one_is_visited(figures: dict[str, Any]):
    visited = {page["page"].partition("?")[0] for page in figures["pages"]}
    assert visited == {*crawler.console_pages(), *crawler.portal_pages()} - crawler.STREAMING_PAGES
    assert {page["page"] for page in figures["pages"]} >= {
        f"{path}?{question}" for path, questions in crawler.QUERIES.items() for question in questions
    }


def test_the_slowest_page_decides_whether_the_target_is_met(figures: dict[str, Any]):
    worst = max(page["p95_ms"] for page in figures["pages"])
    assert figures["events"] == EVENTS
    assert (figures["slowest_p95_ms"], figures["target_ms"]) == (worst, TARGET_MS)
    assert figures["is_met"] == (worst <= TARGET_MS)
    assert all(page["status"] in {200, 303} for page in figures["pages"])
    assert all(page["p50_ms"] <= page["p95_ms"] <= page["max_ms"] for page in figures["pages"])


class Deserted:
    """A console of which a link leads nowhere."""

    def get(self, path: str) -> PageResponse:
        if path == "/console":
            return PageResponse(200, 1.0, b'<a href="/console/events">Events</a>', "")
        return PageResponse(404, 1.0, b"", "")


def test_a_broken_link_is_reported():
    walk = crawler.Crawler(crawler.console_pages())
    with pytest.raises(ConfigError, match="/console/events, which is answered 404"):
        walk.follow(cast("PageClient", Deserted()), "/console")


def test_an_unlinked_page_is_reported():
    walk = crawler.Crawler(("/console", "/console/events", "/console/attic"))
    walk.found["/console"] = walk.found["/console/events"] = "-"
    assert walk.missing == ["/console/attic"]
