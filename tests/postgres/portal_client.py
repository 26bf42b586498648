"""What tests of the customers' portal stand on: clients of the pages in this process, against a real database."""

import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx

from boathook.admin import applications, endpoints, keys, messages, operators
from boathook.admin.applications import NewApplication
from boathook.admin.console import build_console
from boathook.admin.desk import Desk
from boathook.admin.endpoints import NewEndpoint
from boathook.admin.messages import NewMessage
from boathook.domain.roles import Role
from boathook.journal.applications import Application
from boathook.journal.database import Database
from boathook.journal.endpoints import Endpoint
from boathook.journal.operators import Browser
from boathook.telemetry import log
from boathook.telemetry.exporters import History
from tests.postgres.api_client import make_desk

ORIGIN = "http://portal.test"


class Pages(httpx.AsyncClient):
    """A browser without scripts."""

    def __init__(self, app: Any, base: str = ORIGIN) -> None:
        super().__init__(transport=httpx.ASGITransport(app), base_url=base, headers={"origin": base})

    async def see(self, path: str, status: int = 200) -> str:
        """Open a page, expect this status, and return its text."""
        answer = await self.get(path)
        assert answer.status_code == status, f"{path}: {answer.status_code} {_plain(answer.text)}"
        return answer.text

    async def fill(self, path: str, form: Mapping[str, Any] | None = None, *, on: str = "", status: int = 303) -> Any:
        """Send a form with the token that the page *on* has, expect this status, and return the answer."""
        token = re.search(r'name="csrf(?:-token)?" (?:content|value)="(\w+)"', await self.see(on or path))
        assert token, f"{on or path} has no form"
        answer = await self.post(path, data={"csrf": token[1], **(form or {})})
        assert answer.status_code == status, f"{path}: {answer.status_code} {_plain(answer.text)}"
        return answer


def _plain(text: str) -> str:
    main = text.partition("<main")[2] or text
    wrong = " | ".join(re.findall(r"<strong>(.*?)</strong>", main))
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", main).split()))[:400] + f" wrong: {wrong}"


@dataclass
class Tenant:
    """An application with an endpoint and a message, and a way to its portal."""

    application: Application
    endpoint: Endpoint
    message: str
    tokens: dict[str, str] = field(default_factory=dict)


class House:
    """A boathook's pages with two tenants, one of another organization, and an operator."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.app = build_console(desk, History(None))

    async def tenant(self, name: str, organization: str = "default") -> Tenant:
        async with self.desk.work(organization, "test") as work:
            application = await applications.create(work, NewApplication(name=name, uid=name))
            endpoint = await endpoints.create(work, application, NewEndpoint(url=f"http://127.0.0.1:8999/{name}"))
            row, _ = await messages.create(work, application, NewMessage(type="thing.done", body=b'{"secret_of":1}'))
        return Tenant(application, endpoint, row.shown_id)

    async def token(self, tenant: Tenant, lifetime: timedelta = timedelta(hours=1), **more: Any) -> str:
        async with self.desk.work(tenant.application.organization, "test") as work:
            return (await keys.create_for_portal(work, tenant.application, lifetime=lifetime, **more)).token

    async def guest(self, tenant: Tenant, **more: Any) -> Pages:
        """Return a browser that a link has let in."""
        return await self.entered(await self.token(tenant, **more))

    async def entered(self, token: str) -> Pages:
        pages = Pages(self.app)
        answer = await pages.post("/portal/enter", data={"key": token})
        assert answer.status_code == 204, answer.text
        return pages

    async def operator(self, name: str = "anna", role: Role = Role.ADMIN) -> Pages:
        """Return the browser of an operator who has signed in."""
        async with self.desk.work(actor="test") as work:
            made = await operators.create(work, name, role)
            signed_in = await operators.begin(work, made, timedelta(hours=1), Browser("127.0.0.1", "test"))
        pages = Pages(self.app)
        pages.cookies.set("boathook", signed_in.token)
        return pages


@asynccontextmanager
async def opened_house(database: Database, **overrides: Any) -> AsyncIterator[House]:
    """Lend the pages of a boathook."""
    log.configure("error", "text")  # a fault shows in what the failed test printed
    yield House(make_desk(database, **overrides))
