"""Runs a boathook process with all roles, and calls its API over plain HTTP."""

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.acceptance.conftest import TABLES, BoathookProcess
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

UNREACHABLE_URL = "http://127.0.0.1:61999/"
"""A URL at which nothing listens."""
SUCCESS, PENDING, FAIL, SENDING, CANCELED = range(5)


def unique_name() -> str:
    """Return a name that no other test uses."""
    return f"w{uuid.uuid4().hex[:12]}"


def ago(**duration: float) -> str:
    """Return a time in the past in the format of the API."""
    return (datetime.now(UTC) - timedelta(**duration)).isoformat()


class Api:
    """Client of the API with one token; it checks the status and the JSON content type of every response."""

    def __init__(self, base: str, token: str) -> None:
        self.base = base
        self.token = token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # Connections are not kept open, as tests do not always close their client.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=f"{base}/api/v1", headers=headers, timeout=300, limits=limits)

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
    """An application that one test creates and uses."""

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
        """Return the status of a message at an endpoint; None if the endpoint does not receive it."""
        rows = self.api.pages(f"{self.path}/msg/{message}/endpoint", expanded_statuses=True)
        return next((row["status"] for row in rows if row["id"] == endpoint["id"]), None)

    def wait_status(self, message: str, endpoint: Mapping[str, Any], status: int, *, timeout: float = 300) -> None:
        until(lambda: self.status(message, endpoint) == status, timeout=timeout)

    def wait_attempts(self, endpoint: Mapping[str, Any], count: int, **params: Any) -> list[dict[str, Any]]:
        """Wait for *count* attempts and return them."""
        until(lambda: len(self.attempts(endpoint, **params)) >= count)
        return self.attempts(endpoint, **params)


class BoathookServer:
    """A running boathook process with an API key and access to its database."""

    def __init__(self, running: BoathookProcess) -> None:
        self.running = running
        self.base = running.base
        self.token = self.make_key()
        self.api = Api(self.base, self.token)

    def make_key(self, organization: str = "default", **more: str) -> str:
        """Create an API key with the command line and return its token."""
        flags = [part for name, value in more.items() for part in (f"--{name}", value)]
        if organization != "default":
            flags += ["--organization", organization]
        done = self.running.cli("keys", "create", "--scope", "organization", *flags, "--json")
        return str(json.loads(done.stdout)["token"])

    def application(self, **fields: Any) -> Application:
        return Application(self.api, **fields)

    def query(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Query the database directly."""
        with psycopg.connect(self.running.database_url, autocommit=True) as connection:
            return connection.execute(statement, arguments).fetchall()

    def close(self) -> None:
        self.api.close()
        if self.running.process is not None and self.running.process.poll() is None:
            self.running.kill_all()


@contextlib.contextmanager
def open_database(admin_url: str, template: str) -> Iterator[str]:
    """Yield the URL of a migrated database and drop it at the end."""
    with created(admin_url, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        yield url


def wait_for_api(running: BoathookProcess) -> None:
    """Wait until the API responds; the gateway accepts webhooks earlier."""
    until(lambda: httpx.get(f"{running.base}/api/v1/health").status_code == 204)


@contextlib.contextmanager
def open_server(folder: Path, database_url: str, extra: str = OUTBOUND, **environment: str) -> Iterator[BoathookServer]:
    """Start a boathook process with all roles and stop it at the end."""
    running = BoathookProcess(folder, database_url, roles=ROLES, extra=extra, senders=1)
    running.environment |= environment
    server = None
    try:
        running.start()
        wait_for_api(running)
        server = BoathookServer(running)
        yield server
    finally:
        if server is not None:
            server.close()
        elif running.process is not None and running.process.poll() is None:
            running.kill_all()
