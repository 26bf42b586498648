"""Runs a boathook process with the fleet app, and a fake of RentProg's API."""

import asyncio
import json
import re
import threading
import uuid
from collections.abc import Callable
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self

import httpx
import psycopg
from aiohttp import web

from boathook_app_tools.simulation import SimulatedRequest
from boathook_fleet.simulator import Expected
from boathook_fleet.tables import TABLES
from tests import reality
from tests.apps.app_server import AppServer
from tests.support import until

TOKEN = "fleet-test-token"
UMNICO = "umnico-test-token"
PATH = "/api/rentprog/webhook"
ALIAS = "/webhook/rentprog-webhook-create"

_ids = count(uuid.uuid4().int % 10**6 * 10_000)

POISON = """
create function fleet.refuse() returns trigger language plpgsql as $$
begin raise exception 'the cars are poisoned'; end $$;
create trigger poison before insert or update on fleet.cars for each row
    when (new.data ->> 'poison' = 'yes') execute function fleet.refuse();
"""
"""SQL that makes `fleet.apply` fail for cars with ``poison: yes``; dropping the trigger ends that."""


class FleetServer(AppServer):
    """A `boathook serve` process with the fleet app, its requests and its tables."""

    app = "fleet"
    page = "/webhooks/_selftest"

    def __init__(self, folder: Path, database_url: str, *, fleet: str = "", extra: str = "") -> None:
        head = f'[fleet]\nsecrets = ["{TOKEN}"]\numnico_secrets = ["{UMNICO}"]\n'
        super().__init__(folder, database_url, head, fleet, extra)
        self._client: httpx.Client | None = None

    @cached_property
    def key(self) -> str:
        """An organization's token."""
        made = self.cli("keys", "create", "--scope", "organization", "--json").stdout
        return str(json.loads(made)["token"])

    @property
    def client(self) -> httpx.Client:
        if self._client is None:
            headers = {"authorization": f"Bearer {self.key}"}
            self._client = httpx.Client(base_url=self.base, timeout=300, headers=headers)
        return self._client

    def kill_all(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        super().kill_all()

    def post(self, document: Any, *, path: str = PATH, token: str = TOKEN) -> httpx.Response:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        headers = {"content-type": "application/json"}
        return httpx.post(f"{self.base}{path}", params={"token": token}, content=body, headers=headers, timeout=300)

    def send_event(self, event: str, payload: Any, *, path: str = PATH, **more: Any) -> httpx.Response:
        """Send an event as RentProg does; it must be accepted."""
        response = self.post({"event": event, "payload": payload, **more}, path=path)
        assert response.status_code == 200, response.text
        return response

    def send(self, letter: SimulatedRequest) -> int:
        """Send a simulated request and return its status, or 0 if there was no response."""
        try:
            return httpx.request(
                letter.method, self.base + letter.path, content=letter.body, headers=dict(letter.headers), timeout=300
            ).status_code
        except httpx.TransportError:
            return 0

    def thing(self, table: str, id: object) -> dict[str, Any] | None:
        found = self.rows(f"select * from fleet.{table} where id = %s", str(id))
        return found[0] if found else None

    def known(self, table: str, id: object, is_wanted: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
        """Wait until a row exists as wanted, and return it."""

        def look() -> dict[str, Any] | None:
            row = self.thing(table, id)
            return row if row and row["stamp"] and is_wanted(row) else None

        return until(look)

    def is_idle(self) -> bool:
        """Whether no delivery is pending."""
        return not self.rows("select from boathook.delivery where state <> 'dead'")

    def differences(self, expected: Expected) -> list[str]:
        """Return the differences between the tables and the simulator's expectation."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return differences(connection, expected)


def differences(connection: psycopg.Connection, expected: Expected) -> list[str]:
    """Return the differences between the tables and the simulator's expectation, read with plain SQL."""
    found = []
    for entity, table in TABLES.items():
        rows = connection.execute(f"select id, data, deleted_at is not null, stamp is null from fleet.{table.name}")
        kept = {id: rest for id, *rest in rows}
        for (one, id), thing in expected.things.items():
            if one is entity and kept.get(id) != [dict(thing.data), thing.is_deleted, thing.is_stub]:
                found.append(f"{entity} {id}: {kept.get(id)} is not {thing}")
    return found


def new_id() -> int:
    return next(_ids)


started = FleetServer.started


class FakeService:
    """An HTTP server in a thread of this process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        self._started.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


class RentProg(FakeService):
    """RentProg's API as far as tests/reality/rentprog_api documents it; objects are found by the search alone."""

    companies: ClassVar = {"4310": "company-one-secret", "5872": "company-two-secret"}

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        """By company, entity and id."""
        self.troubles: list[web.Response] = []
        """Responses to the next requests that carry a token."""
        self.is_down = False
        self.requests: list[str] = []
        """The paths with their queries, without those of logins."""
        self.logins = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.is_down:
            return web.Response(status=500)
        if request.path == "/get_token":
            company = {token: id for id, token in self.companies.items()}.get(request.query.get("company_token", ""))
            if company is None:
                return web.Response(status=401)
            self.logins += 1
            token = json.loads(reality.examples("rentprog_api")["token.json"])
            return web.json_response(token | {"token": f"request-token.{company}.{self.logins}"})
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not token.startswith("request-token."):
            return web.Response(status=401)
        self.requests.append(request.path_qs)
        if self.troubles:
            return self.troubles.pop(0)
        match = re.fullmatch(r"/search_(car|client|booking)s", request.path)
        if match is None:
            return web.Response(status=404)
        id = request.query["query"]
        found = self.objects.get((token.split(".")[1], match[1], id))
        # A search finds others as well.
        return web.json_response([{"id": int(id) * 10}, *([found] if found else [])])
