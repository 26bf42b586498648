"""A whole boathook as a subprocess, and the API as any HTTP client sees it."""

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.acceptance.conftest import TABLES, Running
from tests.acceptance.svix.receiver import Mailbox
from tests.databases import created
from tests.support import until

ROLES = "gateway,worker,keeper,console"
OUTBOUND = """
    [outbound]
    allow = ["127.0.0.0/8"]
    retry = "0.2,0.2"
    breaker_after = 0
    [log]
    format = "json"
"""

NOWHERE = "http://127.0.0.1:61999/"
"""An address that nobody answers at."""
SUCCESS, PENDING, FAIL, SENDING, CANCELED = range(5)


def word() -> str:
    """Return a word that was never used before."""
    return f"w{uuid.uuid4().hex[:12]}"


def ago(**duration: float) -> str:
    """Return a moment in the past, as the API reads it."""
    return (datetime.now(UTC) - timedelta(**duration)).isoformat()


class Api:
    """Calls of the API with one token; every answer is checked for its status and for being JSON."""

    def __init__(self, base: str, token: str) -> None:
        self.base = base
        self.token = token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # No connection is kept, so that none is left open where a test does not close its client.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=f"{base}/api/v1", headers=headers, timeout=30, limits=limits)

    def ask(self, method: str, path: str, *, expect: int, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        assert answer.status_code == expect, f"{method} {path}: {answer.status_code} {answer.text[:600]}"
        if answer.status_code == 204:
            assert answer.content == b""
            return None
        assert answer.headers["content-type"].startswith("application/json"), (method, path, answer.headers)
        return answer.json()

    def get(self, path: str, *, expect: int = 200, **params: Any) -> Any:
        return self.ask("GET", path, expect=expect, params=params or None)

    def post(self, path: str, body: Any = None, *, expect: int = 200, headers: Mapping[str, str] | None = None) -> Any:
        return self.ask("POST", path, expect=expect, json=body, headers=headers)

    def put(self, path: str, body: Any, *, expect: int = 200) -> Any:
        return self.ask("PUT", path, expect=expect, json=body)

    def patch(self, path: str, body: Any, *, expect: int = 200) -> Any:
        return self.ask("PATCH", path, expect=expect, json=body)

    def delete(self, path: str, *, expect: int = 204) -> Any:
        return self.ask("DELETE", path, expect=expect)

    def pages(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Return all rows of a list, page by page."""
        rows: list[dict[str, Any]] = []
        while True:
            page = self.get(path, **params)
            rows += page["data"]
            if page["done"]:
                return rows
            params["iterator"] = page["iterator"]

    def close(self) -> None:
        self.http.close()


class Application:
    """One application of a test's own."""

    def __init__(self, api: Api, **fields: Any) -> None:
        self.api = api
        self.row = api.post("/app", {"name": f"shop {uuid.uuid4().hex[:6]}"} | fields, expect=201)
        self.id: str = self.row["id"]
        self.path = f"/app/{self.id}"

    def endpoint(self, url: str | Mailbox, **fields: Any) -> dict[str, Any]:
        """Create an endpoint that is retried twice within half a second."""
        url = url.url if isinstance(url, Mailbox) else url
        return self.api.post(f"{self.path}/endpoint", {"url": url, "retrySchedule": [0.2, 0.2]} | fields, expect=201)

    def secret(self, endpoint: Mapping[str, Any]) -> str:
        return self.api.get(f"{self.path}/endpoint/{endpoint['id']}/secret")["key"]

    def send(self, payload: Mapping[str, Any] | None = None, kind: str = "invoice.paid", **fields: Any) -> str:
        """Create a message and return its id."""
        body = {"eventType": kind, "payload": payload or {"n": 1}} | fields
        return self.api.post(f"{self.path}/msg", body, expect=202)["id"]

    def attempts(self, endpoint: Mapping[str, Any], **params: Any) -> list[dict[str, Any]]:
        """Return the attempts at an endpoint, newest first."""
        return self.api.pages(f"{self.path}/attempt/endpoint/{endpoint['id']}", **params)

    def status(self, message: str, endpoint: Mapping[str, Any]) -> int | None:
        """Return the state of a message at an endpoint; None where it is not meant for it."""
        rows = self.api.pages(f"{self.path}/msg/{message}/endpoint", expanded_statuses=True)
        return next((row["status"] for row in rows if row["id"] == endpoint["id"]), None)

    def wait_status(self, message: str, endpoint: Mapping[str, Any], status: int, *, timeout: float = 60) -> None:
        until(lambda: self.status(message, endpoint) == status, timeout=timeout)

    def wait_attempts(self, endpoint: Mapping[str, Any], count: int, **params: Any) -> list[dict[str, Any]]:
        """Return the attempts once there are as many as wanted."""
        until(lambda: len(self.attempts(endpoint, **params)) >= count)
        return self.attempts(endpoint, **params)


class House:
    """A boathook that runs, and what operators and customers have of it."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.base = running.base
        self.token = self.make_key()
        self.api = Api(self.base, self.token)

    def make_key(self, organization: str = "default", **more: str) -> str:
        """Make a token by the command line."""
        flags = [part for name, value in more.items() for part in (f"--{name}", value)]
        if organization != "default":
            flags += ["--organization", organization]
        done = self.running.cli("keys", "create", "--scope", "organization", *flags, "--json")
        return str(json.loads(done.stdout)["token"])

    def application(self, **fields: Any) -> Application:
        return Application(self.api, **fields)

    def query(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Look into the database, past everything of boathook's."""
        with psycopg.connect(self.running.database_url, autocommit=True) as connection:
            return connection.execute(statement, arguments).fetchall()

    def close(self) -> None:
        self.api.close()
        if self.running.process is not None and self.running.process.poll() is None:
            self.running.kill_all()


@contextlib.contextmanager
def open_database(admin_url: str, template: str) -> Iterator[str]:
    """Give a migrated database and drop it in the end."""
    with created(admin_url, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        yield url


def wait_for_api(running: Running) -> None:
    """Wait until the API is there: a gateway takes webhooks in before."""
    until(lambda: httpx.get(f"{running.base}/api/v1/health").status_code == 204)


@contextlib.contextmanager
def open_house(folder: Path, database_url: str, extra: str = OUTBOUND, **environment: str) -> Iterator[House]:
    """Start a boathook with all its parts and stop it in the end."""
    running = Running(folder, database_url, roles=ROLES, extra=extra, senders=1)
    running.environment |= environment
    house = None
    try:
        running.start()
        wait_for_api(running)
        house = House(running)
        yield house
    finally:
        if house is not None:
            house.close()
        elif running.process is not None and running.process.poll() is None:
            running.kill_all()
