"""`boathook listen` gets each event once although events come late, connections break and gateways restart."""

import asyncio
import http.server
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import httpx
import pytest
from msgspec.structs import replace

from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.route_registry import read_router
from boathook.domain import ids
from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.test_listen import Listening, Local
from tests.postgres.api.test_listening import made
from tests.support import until


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    one = shared_boathook(roles="gateway,keeper,console")
    until(lambda: httpx.get(f"{one.base}/api/v1/health/ping").status_code == 204)
    return one


@pytest.fixture(scope="module")
def key(running: BoathookProcess) -> str:
    return make_key(running)["token"]


def make_key(running: BoathookProcess) -> dict[str, str]:
    (found,) = running.listing("keys", "create", "--scope", "organization")
    return found


@pytest.fixture
def listen(running: BoathookProcess, key: str) -> Iterator[Callable[..., Listening]]:
    begun: list[Listening] = []

    def start(*arguments: str, token: str = key) -> Listening:
        begun.append(Listening(running, *arguments, BOATHOOK_API_KEY=token))
        return begun[-1]

    yield start
    for one in begun:
        one.close()


def commit(running: BoathookProcess, events: list[Any]) -> None:
    """Store events as a gateway does, with ids of earlier times."""

    async def run() -> None:
        database = await Database.open(running.database_url, purpose="test", size=1)
        try:
            version = (await read_router(database)).version
            await EventStore(database).append([replace(one, routes_version=version) for one in events])
        finally:
            await database.close()

    asyncio.run(run())


def late(source: str) -> list[Any]:
    """Return events with ids up to 58 seconds old."""
    now, run = datetime.now(UTC), time.time_ns()
    ages = [age for age in (58, 50, 40, 30, 20, 10, 4, 0) for _ in range(10)]
    return [
        made(f"{run} {number}", now - timedelta(seconds=age), source=source, type="late.one")
        for number, age in enumerate(ages)
    ]


def shown(event: Any) -> str:
    return ids.show(ids.EVENT, event.id)


def has_lines(listening: Listening, number: int) -> bool:
    return len(listening.lines) >= number


def heard(listening: Listening) -> list[str]:
    return [one["id"] for one in listening.objects()]


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_late_commits_are_received_once_despite_gateway_crashes(running: BoathookProcess, listen: Any):
    listeners = {("stripe", "git"): listen("--type", "late.*", "--since", "2m", "--json")}
    listeners[("git",)] = listen("--type", "late.*", "--since", "2m", "--json", "--source", "git")
    wanted: dict[str, list[str]] = {"stripe": [], "git": []}
    for number in range(2):
        events = [*late("stripe"), *late("git")]
        commit(running, events)
        for one in events:
            wanted[one.source].append(shown(one))
        # The newest events arrive at once, the oldest after some seconds: it is in between that the connection breaks.
        until(lambda: all(wanted["git"][-1] in heard(one) for one in listeners.values()))
        if number == 0:
            running.kill("gateway")
    for sources, listening in listeners.items():
        expected = sorted(id for source in sources for id in wanted[source])
        until(partial(has_lines, listening, len(expected)))
        assert sorted(heard(listening)) == expected


class Odd(http.server.BaseHTTPRequestHandler):
    """A local server that redirects every request to a URL that must not be requested."""

    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append(self.path)
        self.send_response(302 if self.path == "/hook" else 200)
        self.send_header("location", "/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - the standard library's name

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def odd_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
        server.shutdown()


@pytest.mark.extended("starts several servers of its own")
def test_a_local_server_that_redirects_is_shown_and_not_followed(running: BoathookProcess, listen: Any):
    commit(running, [made(f"odd {n}", datetime.now(UTC), type="odd.one") for n in range(2)])
    with odd_server() as url:
        listening = listen("--type", "odd.*", "--since", "2m", "--json", "--forward-to", url, "--limit", "2")
        assert listening.process.wait(300) == 0
    assert [one["status"] for one in listening.objects()] == [302, 302]
    assert Odd.seen == ["/hook", "/hook"]


@pytest.mark.extended("differs in the size of its bodies only")
def test_bodies_of_five_megabytes_are_forwarded(running: BoathookProcess, listen: Any):
    rows = [made(f"large {n}", datetime.now(UTC), type="large.one", body=random.randbytes(5_000_000)) for n in range(6)]
    commit(running, rows)
    with closing(Local()) as local:
        listening = listen("--type", "large.*", "--since", "2m", "--forward-to", local.url, "--limit", "6")
        assert listening.process.wait(300) == 0
    assert [body for *_, body in local.got] == [one.body for one in rows]


def has_passed(moment: float) -> bool:
    return time.monotonic() > moment


@pytest.mark.soak
def test_an_unresponsive_local_server_causes_no_loss(running: BoathookProcess, listen: Any):
    is_hanging, are_committed = threading.Event(), threading.Event()
    with closing(Local()) as local:
        serve = local.server.RequestHandlerClass.do_POST  # type: ignore[attr-defined]

        def hang_once(handler: Any) -> None:
            if is_hanging.is_set():
                serve(handler)
            else:
                is_hanging.set()
                are_committed.wait()

        local.server.RequestHandlerClass.do_POST = hang_once  # type: ignore[attr-defined]
        listen("--type", "held.*", "--since", "2m", "--forward-to", local.url)
        for number in range(40):
            commit(running, [made(f"held {number}", datetime.now(UTC), type="held.up", body=b"x" * 1_000_000)])
            until(partial(has_passed, time.monotonic() + 1))
        are_committed.set()
        until(lambda: len(local.got) >= 39)
    assert len(local.got) == 39, "all but the one that it did not take, and each once"


@pytest.mark.soak
def test_revoking_a_key_ends_its_listener(running: BoathookProcess, listen: Any):
    own = make_key(running)
    listening = listen("--type", "secret.*", "--since", "2m", "--json", token=own["token"])
    commit(running, [made("secret 1", datetime.now(UTC), type="secret.one")])
    until(lambda: listening.lines)
    running.cli("keys", "revoke", own["id"])
    assert listening.process.wait(300) == 2
    assert "cannot listen to" in "".join(listening.said)
