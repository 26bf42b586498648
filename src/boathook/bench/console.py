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

from boathook.admin import operators
from boathook.admin.authorization import Capability
from boathook.admin.console.pages import BASE, SIGN_IN
from boathook.admin.desk import Desk
from boathook.admin.portal import PATH
from boathook.bench import history
from boathook.bench.stage import Server, Stage
from boathook.bench.tour import Tour, console_pages, portal_pages
from boathook.bench.visitor import Visitor
from boathook.config import load
from boathook.domain.errors import ConfigError
from boathook.domain.roles import Role
from boathook.handlers.outbox import Outbox, memory_days
from boathook.journal.database import Database
from boathook.journal.vault import open_vault
from boathook.testing import sign

TARGET_MS: Final = 300
"""What each page has to stay below, 95 times of 100."""
_WARM_UPS: Final = 2
_FEWEST: Final = 3
_PATIENCE_S: Final = 60.0
_BUSIEST: Final = f"{BASE}/applications/tenant-1"
_GROUP: Final = f"{BASE}/dead/groups/{{group}}"
_STARTS: Final = tuple(
    f"{BASE}{path}"
    for path in ("", "/now/state", "/now/charts", "/account", "/settings", "/sources/stripe", "/alarms/history")
)
"""From where all other pages can be reached, and what only scripts ask for."""
_NAME, _PASSWORD = "bench", "a password for a made-up operator"
_LARGE: Final = 6_000
"""Lines of a body that is larger than what a page shows of one."""
_SETTINGS: Final = """
[outbound]
allow = ["127.0.0.0/8"]
encryption_keys = ["a key for made-up secrets only"]
""" + "".join(
    f'[sources.{name}]\nprovider = "stripe"\nsecrets = ["whsec_bench"]\n'
    for name in history.SOURCES if name != "stripe"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timed:
    """What the visits to one address took, in milliseconds."""

    page: str
    status: int
    first_ms: float
    """The very first one, which nobody had prepared for."""
    p50_ms: float
    p95_ms: float
    max_ms: float
    kilobytes: int


def console(stage: Stage, seconds: float) -> dict[str, Any]:
    """Fill a database with the stage's number of events, serve it, and visit every page.

    Each address is visited as often as fits into *seconds* if each visit takes as long as it may.

    Raises:
        ConfigError: a page is missing, or fails.
    """
    url = stage.new_database()
    stage.report(f"storing {stage.events:,} events")
    history.fill(url, stage.events)
    history.furnish(url)
    return visit_all(stage, url, visits=max(_FEWEST, int(seconds * 1000 / TARGET_MS)))


def visit_all(stage: Stage, url: str, *, visits: int) -> dict[str, Any]:
    """Serve a filled database and visit every page."""
    asyncio.run(_let_in(url))
    with stage.serve(url, roles="gateway,worker,keeper,console", app="", more=_SETTINGS) as server:
        timed = [*_of_console(stage, server, visits), *_of_portal(stage, server, visits)]
    timed.sort(key=lambda one: one.p95_ms, reverse=True)
    return {
        "events": stage.events,
        "pages": [asdict(one) for one in timed],
        "visits_each": visits,
        "slowest_p95_ms": timed[0].p95_ms,
        "slowest_first_ms": max(one.first_ms for one in timed),
        "target_ms": TARGET_MS,
        "is_met": timed[0].p95_ms <= TARGET_MS,
    }


async def _let_in(url: str) -> None:
    settings = load(Path("/dev/null"), {"database.url": url})
    database = await Database.open(url, purpose="bench", size=1)
    desk = Desk(settings, database, open_vault(settings), Outbox(memory_days=memory_days(settings.retention)))
    try:
        async with desk.work(actor="bench") as work:
            await operators.create(work, _NAME, Role.ADMIN, _PASSWORD)
    finally:
        await database.close()


def _of_console(stage: Stage, server: Server, visits: int) -> list[Timed]:
    with Visitor(server.port) as visitor:
        _wait_until_open(visitor)
        visitor.send(SIGN_IN, name=_NAME, password=_PASSWORD, next=BASE)
        large = f"{BASE}/events/{_post_large(server.port)}"
        tour = Tour(console_pages())
        stage.report("finding the pages of the console")
        # What is kept of each kind is the first that is found: of applications it is the one with most messages.
        tour.follow(visitor, _BUSIEST, large, f"{large}/story", *_STARTS)
        tour.follow(visitor, *_acted(visitor, tour))
        return _timed(stage, visitor, tour, visits)


def _wait_until_open(visitor: Visitor) -> None:
    """Wait for the console, which a gateway opens only after its door for events."""
    end = time.monotonic() + _PATIENCE_S
    while visitor.get(SIGN_IN).status != 200:
        if time.monotonic() > end:
            raise ConfigError("the console of the bench does not open")
        time.sleep(0.05)


def _acted(visitor: Visitor, tour: Tour) -> Iterable[str]:
    """Do what has a page of its own that tells how far it has come, and yield its address."""
    yield from _acted_on(visitor, tour.found[f"{BASE}/applications/{{application}}/endpoints/{{endpoint}}"])
    # The last group, as the first is one that is visited.
    group = [link for link in visitor.get(f"{BASE}/dead").links if tour.path_of(link) == _GROUP][-1]
    yield visitor.fill_in(group, f"{group}/ignore", note="it is only a bench").location
    yield visitor.fill_in(f"{BASE}/verify", f"{BASE}/verify", gently="yes").location


def _acted_on(visitor: Visitor, endpoint: str) -> Iterable[str]:
    yield visitor.fill_in(endpoint, f"{endpoint}/test").location
    yield visitor.fill_in(endpoint, f"{endpoint}/recover", since="2100-01-01T00:00").location


def _of_portal(stage: Stage, server: Server, visits: int) -> list[Timed]:
    with Visitor(server.port) as operator, Visitor(server.port) as guest:
        operator.send(SIGN_IN, name=_NAME, password=_PASSWORD, next=BASE)
        allowed = [Capability.MANAGE_ENDPOINT, Capability.CREATE_ATTEMPTS]
        shown = operator.fill_in(_BUSIEST, f"{_BUSIEST}/portal", lifetime="86400", capabilities=allowed)
        found = re.search(rb"key=([\w.%-]+)", shown.body)
        if found is None:
            raise ConfigError("the console made no way into the portal")
        guest.send(f"{PATH}/enter", key=unquote(found[1].decode()))
        tour = Tour(portal_pages())
        stage.report("finding the pages of the portal")
        tour.follow(guest, f"{PATH}/endpoints", f"{PATH}/event-types")
        tour.follow(guest, *_acted_on(guest, tour.found[f"{PATH}/endpoints/{{endpoint}}"]))
        return _timed(stage, guest, tour, visits)


def _post_large(port: int) -> str:
    """Let an event come whose body is larger than what a page shows of it, and return its id; a forged one, too."""
    lines = [{"sku": f"rope-{n}", "quantity": n, "tags": ["a", "b"]} for n in range(_LARGE)]
    body = json.dumps({"id": "evt_large", "type": "invoice.paid", "lines": lines}).encode()
    with Visitor(port) as sender:
        sender.post("/in/stripe", body, {})
        answer = sender.post("/in/stripe", body, sign("stripe", "whsec_bench", body))
    return str(json.loads(answer.body)["event_id"])


def _timed(stage: Stage, visitor: Visitor, tour: Tour, visits: int) -> list[Timed]:
    if tour.missing:
        raise ConfigError(f"the bench does not find the way to {', '.join(tour.missing)}")
    addresses = list(tour.questions())
    stage.report(f"visiting {len(addresses)} addresses, {visits} times each")
    return [_time(visitor, tour, address, visits) for address in addresses]


def _time(visitor: Visitor, tour: Tour, address: str, visits: int) -> Timed:
    first = visitor.get(address)
    for _ in range(_WARM_UPS - 1):
        visitor.get(address)
    answers = [visitor.get(address) for _ in range(visits)]
    if failed := [answer.status for answer in (first, *answers) if answer.status >= 400]:
        raise ConfigError(f"{address} is answered {failed[0]}")
    waits = sorted(answer.ms for answer in answers)
    return Timed(
        page=_name(tour, address),
        status=first.status,
        first_ms=round(first.ms, 1),
        p50_ms=round(waits[len(waits) // 2], 1),
        p95_ms=round(_quantile(waits, 0.95), 1),
        max_ms=round(waits[-1], 1),
        kilobytes=len(first.body) // 1024,
    )


def _name(tour: Tour, address: str) -> str:
    _, mark, question = address.partition("?")
    return f"{tour.path_of(address)}{mark}{question}"


def _quantile(waits: Sequence[float], share: float) -> float:
    return waits[math.ceil(share * len(waits)) - 1]
