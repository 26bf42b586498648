"""Client of the API in the test process, on a real database."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from boathook import config
from boathook.api import build_api
from boathook.db.database import Database
from boathook.db.secret_box import SecretBox
from boathook.domain.errors import NotFound
from boathook.domain.model import Role
from boathook.handlers.outbox import Outbox
from boathook.observability import log
from boathook.service.access import operator_tokens, operators
from boathook.service.caller import HOST
from boathook.service.catalogue import keys
from boathook.service.catalogue.keys import KeyScope, NewKey
from boathook.service.unit_of_work import AppContext

KEY = "a key of at least sixteen characters"


def make_context(database: Database, **overrides: Any) -> AppContext:
    """Return an application context that allows endpoints on loopback; *overrides* are settings with __ for the dot."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    settings = config.load(None, {"outbound.allow": ["127.0.0.0/8"], **dotted})
    return AppContext(settings, database, SecretBox([KEY]), Outbox())


async def make_token(
    context: AppContext, organization: str = "default", application: str | None = None, **more: Any
) -> str:
    """Create an API key and return its token."""
    scope = KeyScope.APPLICATION if application else KeyScope.MOUNT if "mount" in more else KeyScope.ORGANIZATION
    new = NewKey(scope=scope, organization=organization, application=application, **more)
    async with context.work(organization, "test", HOST) as work:
        return (await keys.create(work, new)).token


async def make_operator_token(
    context: AppContext, operator: str = "anna", role: Role = Role.ADMIN, token_role: Role | None = None, **more: Any
) -> str:
    """Create a token of an operator, who is created with this role if there is none, and return it."""
    async with context.work(actor="test") as work:
        try:
            await operators.get(work, operator)
        except NotFound:
            await operators.create(work, operator, role)
        return (await operator_tokens.create(work, operator, "ci", token_role, **more)).text


class ApiClient(httpx.AsyncClient):
    """Client with one token; paths are relative to /api/v1."""

    def __init__(self, context: AppContext, token: str, app: Any = None) -> None:
        self.app = app or build_api(context)
        super().__init__(
            transport=httpx.ASGITransport(self.app),
            base_url="http://api.test/api/v1",
            headers={"authorization": f"Bearer {token}"} if token else {},
        )
        self.context = context

    async def ask(self, status: int, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request, assert the status, and return the JSON of the response; None for 204."""
        if body is not None:
            options["json"] = body
        response = await self.request(method, path, **options)
        assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
        assert bool(response.content) is (status != 204)
        return response.json() if response.content else None

    def as_token(self, token: str) -> "ApiClient":
        """Return a client with another token."""
        return ApiClient(self.context, token, self.app)


@contextlib.asynccontextmanager
async def open_api_client(database: Database, **overrides: Any) -> AsyncIterator[ApiClient]:
    """Yield a client with a token of the organization "default"."""
    log.configure("error", "text")  # an error appears in the output of the failed test
    context = make_context(database, **overrides)
    async with ApiClient(context, await make_token(context)) as api:
        yield api
