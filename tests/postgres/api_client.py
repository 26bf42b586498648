"""What tests of the API stand on: a client that speaks to it in this process, against a real database."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from boathook import config
from boathook.admin import applications, keys
from boathook.admin.api import build_api
from boathook.admin.desk import Desk
from boathook.handlers.outbox import Outbox
from boathook.journal.database import Database
from boathook.journal.vault import Vault
from boathook.telemetry import log

KEY = "a key of at least sixteen characters"


def make_desk(database: Database, **overrides: Any) -> Desk:
    """Return a desk whose endpoints may be on loopback; *overrides* are settings with __ for the dot."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    settings = config.load(None, {"outbound.allow": ["127.0.0.0/8"], **dotted})
    return Desk(settings, database, Vault([KEY]), Outbox())


async def make_token(desk: Desk, organization: str = "default", application: str | None = None, **more: Any) -> str:
    """Make a key and return its token."""
    async with desk.work(organization, "test") as work:
        found = await applications.get(work, application) if application else None
        return (await keys.create(work, application=found, **more)).token


class Api(httpx.AsyncClient):
    """A client with a token; paths are below /api/v1."""

    def __init__(self, desk: Desk, token: str, app: Any = None) -> None:
        self.app = app or build_api(desk)
        super().__init__(
            transport=httpx.ASGITransport(self.app),
            base_url="http://api.test/api/v1",
            headers={"authorization": f"Bearer {token}"} if token else {},
        )
        self.desk = desk

    async def ask(self, status: int, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request, expect this status, and return the JSON of the answer, None for a 204."""
        if body is not None:
            options["json"] = body
        response = await self.request(method, path, **options)
        assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
        assert bool(response.content) is (status != 204)
        return response.json() if response.content else None

    def as_token(self, token: str) -> "Api":
        """Return a client with another token."""
        return Api(self.desk, token, self.app)


@contextlib.asynccontextmanager
async def opened_api(database: Database, **overrides: Any) -> AsyncIterator[Api]:
    """Lend a client with a token of the organization "default"."""
    log.configure("error", "text")  # a fault shows in what the failed test printed
    desk = make_desk(database, **overrides)
    async with Api(desk, await make_token(desk)) as api:
        yield api
