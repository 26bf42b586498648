"""How long the pages of the console and of the portal take with a long history, each with the hardest questions."""

import asyncio
import json
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from benchmarks import history
from benchmarks.crawler import Crawler, console_pages, portal_pages
from benchmarks.environment import BenchmarkEnvironment, Server
from benchmarks.page_client import PageClient
from boathook.config import load
from boathook.db.database import Database
from boathook.db.secret_box import open_secret_box
from boathook.domain.errors import ConfigError
from boathook.domain.model import Role
from boathook.handlers.outbox import Outbox
from boathook.service.access import operators
from boathook.service.access.authorization import Capability
from boathook.service.access.portal_sessions import PATH
from boathook.service.unit_of_work import AppContext
from boathook.testing import sign
from boathook_console.routes import BASE, SIGN_IN

TARGET_MS: Final = 300
"""What each page has to stay below, 95 times of 100."""
_APP: Final = "benchmarks.metric_app:hook"
_WARM_UPS: Final = 2
_MIN_VISITS: Final = 3
_TIMEOUT_S: Final = 60.0
_BUSIEST: Final = f"{BASE}/applications/tenant-1"
_GROUP: Final = f"{BASE}/dead/groups/{{group}}"
_STARTS: Final = tuple(
    f"{BASE}{path}"
    for path in (
        "",
        "/overview/state",
        "/overview/charts",
        "/account",
        "/settings",
        "/sources/stripe",
        "/alerts/history",
        "/events/replay?type=no.such",
        "/events/tail",
        "/events/suggestions/type",
        "/apps",
        "/apps/benchmark",
    )
)
"""From where all other pages can be reached, and what only scripts ask for."""
_NAME, _PASSWORD = "benchmark", "a password for a made-up operator"
_LARGE_BODY_LINES: Final = 6_000
"""Lines of a body that is larger than what a page shows of one."""
_SETTINGS: Final = """
[outbound]
allow = ["127.0.0.0/8"]
encryption_keys = ["a key for made-up secrets only"]
[cells]
name = "c1"
secret = "whsec_YSBzZWNyZXQgdGhhdCBwcm92ZXMgbm90aGluZw=="
[cells.members.c1]
url = "http://127.0.0.1:9"
accepts_new = true
""" + "".join(
    f'[sources.{name}]\nprovider = "stripe"\nsecrets = ["whsec_benchmark"]\n'
    for name in history.SOURCES if name != "stripe"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageTiming:
    """What the visits to one address took, in milliseconds."""

    page: str
    status: int
    first_ms: float
    """The very first one, without any warm-up."""
    p50_ms: float
    p95_ms: float
    max_ms: float
    kilobytes: int


def console(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Fill a database with the environment's number of events, serve it, and visit every page.

    Each address is visited as often as fits into *seconds* if each visit takes as long as it may.

    Raises:
        ConfigError: a page is missing, or fails.
    """
    url = environment.new_database()
    environment.report(f"storing {environment.events:,} events")
    history.fill(url, environment.events)
    history.fill_extras(url)
    return visit_all(environment, url, visits=max(_MIN_VISITS, int(seconds * 1000 / TARGET_MS)))


def visit_all(environment: BenchmarkEnvironment, url: str, *, visits: int) -> dict[str, Any]:
    """Serve a filled database and visit every page."""
    asyncio.run(_create_operator(url))
    with environment.serve(url, roles="gateway,worker,keeper,console", app=_APP, more=_SETTINGS) as server:
        timed = [*_time_console(environment, server, visits), *_time_portal(environment, server, visits)]
    timed.sort(key=lambda one: one.p95_ms, reverse=True)
    return {
        "events": environment.events,
        "pages": [asdict(one) for one in timed],
        "visits_each": visits,
        "slowest_p95_ms": timed[0].p95_ms,
        "slowest_first_ms": max(one.first_ms for one in timed),
        "target_ms": TARGET_MS,
        "is_met": timed[0].p95_ms <= TARGET_MS,
    }


async def _create_operator(url: str) -> None:
    settings = load(Path("/dev/null"), {"database.url": url})
    database = await Database.open(url, purpose="benchmark", size=1)
    app_context = AppContext(settings, database, open_secret_box(settings), Outbox.of(settings.retention))
    try:
        async with app_context.work(actor="benchmark") as work:
            await operators.create(work, _NAME, Role.ADMIN, _PASSWORD)
    finally:
        await database.close()


def _time_console(environment: BenchmarkEnvironment, server: Server, visits: int) -> list[PageTiming]:
    with PageClient(server.port) as page_client:
        _wait_until_open(page_client)
        page_client.send(SIGN_IN, name=_NAME, password=_PASSWORD, next=BASE)
        large = f"{BASE}/events/{_post_large(server.port)}"
        stored = _add_source(page_client)
        crawler = Crawler(console_pages())
        environment.report("finding the pages of the console")
        # What is kept of each kind is the first that is found: of applications it is the one with most messages.
        crawler.follow(page_client, _BUSIEST, large, f"{large}/history", *_STARTS, f"{stored}/edit")
        crawler.follow(page_client, *_start_jobs(page_client, crawler))
        return _time_pages(environment, page_client, crawler, visits)


def _wait_until_open(page_client: PageClient, page: str = SIGN_IN) -> None:
    """Wait for a page: a gateway starts the console after it accepts events, and reads stored sources later."""
    end = time.monotonic() + _TIMEOUT_S
    while page_client.get(page).status != 200:
        if time.monotonic() > end:
            raise ConfigError(f"{page} of the benchmark does not open")
        time.sleep(0.05)


def _add_source(page_client: PageClient) -> str:
    """Add a source that is stored in the database, as only such a one has a form, and return the path of its page."""
    form = f"{BASE}/sources-new/github"
    page_client.submit_form(form, form, name="stored", generate="yes")
    page = f"{BASE}/sources/stored"
    _wait_until_open(page_client, page)
    return page


def _start_jobs(page_client: PageClient, crawler: Crawler) -> Iterable[str]:
    """Do what has a page of its own that tells how far it has come, and yield its address."""
    yield from _start_endpoint_tasks(
        page_client, crawler.found[f"{BASE}/applications/{{application}}/endpoints/{{endpoint}}"]
    )
    # The last group, as the first is one that is visited.
    groups = [link for link in page_client.get(f"{BASE}/dead").links if crawler.path_of(link) == _GROUP]
    group = groups[-1].partition("?")[0]
    yield page_client.submit_form(group, f"{group}/ignore", note="it is only a benchmark").location
    yield page_client.submit_form(f"{BASE}/verify", f"{BASE}/verify", gently="yes").location


def _start_endpoint_tasks(page_client: PageClient, endpoint: str) -> Iterable[str]:
    yield page_client.submit_form(endpoint, f"{endpoint}/test").location
    yield page_client.submit_form(endpoint, f"{endpoint}/recover", since="2100-01-01T00:00").location


def _time_portal(environment: BenchmarkEnvironment, server: Server, visits: int) -> list[PageTiming]:
    with PageClient(server.port) as operator, PageClient(server.port) as portal_client:
        operator.send(SIGN_IN, name=_NAME, password=_PASSWORD, next=BASE)
        allowed = [Capability.MANAGE_ENDPOINT, Capability.CREATE_ATTEMPTS]
        shown = operator.submit_form(_BUSIEST, f"{_BUSIEST}/portal", lifetime="86400", capabilities=allowed)
        found = re.search(rb"key=([\w.%-]+)", shown.body)
        if found is None:
            raise ConfigError("the console made no way into the portal")
        portal_client.send(f"{PATH}/enter", key=unquote(found[1].decode()))
        crawler = Crawler(portal_pages())
        environment.report("finding the pages of the portal")
        crawler.follow(portal_client, f"{PATH}/endpoints", f"{PATH}/event-types")
        crawler.follow(
            portal_client, *_start_endpoint_tasks(portal_client, crawler.found[f"{PATH}/endpoints/{{endpoint}}"])
        )
        return _time_pages(environment, portal_client, crawler, visits)


def _post_large(port: int) -> str:
    """Let an event come whose body is larger than what a page shows of it, and return its id; a forged one, too."""
    lines = [{"sku": f"rope-{n}", "quantity": n, "tags": ["a", "b"]} for n in range(_LARGE_BODY_LINES)]
    body = json.dumps({"id": "evt_large", "type": "invoice.paid", "lines": lines}).encode()
    with PageClient(port) as sender:
        sender.post("/in/stripe", body, {})
        answer = sender.post("/in/stripe", body, sign("stripe", "whsec_benchmark", body))
    return str(json.loads(answer.body)["event_id"])


def _time_pages(
    environment: BenchmarkEnvironment, page_client: PageClient, crawler: Crawler, visits: int
) -> list[PageTiming]:
    if crawler.missing:
        raise ConfigError(f"the benchmark does not find the way to {', '.join(crawler.missing)}")
    addresses = list(crawler.queries())
    environment.report(f"visiting {len(addresses)} addresses, {visits} times each")
    return [_time_page(page_client, crawler, address, visits) for address in addresses]


def _time_page(page_client: PageClient, crawler: Crawler, address: str, visits: int) -> PageTiming:
    first = page_client.get(address)
    for _ in range(_WARM_UPS - 1):
        page_client.get(address)
    answers = [page_client.get(address) for _ in range(visits)]
    if failed := [answer.status for answer in (first, *answers) if answer.status >= 400]:
        raise ConfigError(f"{address} is answered {failed[0]}")
    waits = sorted(answer.ms for answer in answers)
    return PageTiming(
        page=_name(crawler, address),
        status=first.status,
        first_ms=round(first.ms, 1),
        p50_ms=round(waits[len(waits) // 2], 1),
        p95_ms=round(_quantile(waits, 0.95), 1),
        max_ms=round(waits[-1], 1),
        kilobytes=len(first.body) // 1024,
    )


def _name(crawler: Crawler, address: str) -> str:
    _, mark, question = address.partition("?")
    return f"{crawler.path_of(address)}{mark}{question}"


def _quantile(waits: Sequence[float], share: float) -> float:
    return waits[math.ceil(share * len(waits)) - 1]
