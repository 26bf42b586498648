"""Client of the console's and portal's pages in the test process, on a real database."""

import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx

from boathook.config.packages import resolve
from boathook.db.applications import Application
from boathook.db.database import Database
from boathook.db.endpoints import Endpoint
from boathook.db.operators import ClientInfo
from boathook.domain.messages import Message
from boathook.domain.model import Role
from boathook.observability import log
from boathook.observability.live_metrics import LiveMetrics
from boathook.server.interfaces import site_paths
from boathook.service.access import keys, operators
from boathook.service.sending import applications, endpoints, messages
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.sending.messages import JSON_TYPE
from boathook.service.unit_of_work import AppContext
from tests.postgres.api_client import make_context

ORIGIN = "http://portal.localhost"


def build_site(context: AppContext, live_metrics: LiveMetrics) -> "BothSites":
    """Return the console and the portal as one application."""
    sites = {
        path: resolve(str(package.site))(context, live_metrics)
        for path, package in site_paths(context.settings).items()
    }

    return BothSites(sites)


class BothSites:
    """The console and the portal as one application."""

    def __init__(self, sites: Mapping[str, Any]) -> None:
        self.sites = sites

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.sites["/portal" if scope["path"].startswith("/portal") else "/console"](scope, receive, send)


class PageClient(httpx.AsyncClient):
    """HTTP client that reads pages and submits forms, as a browser without scripts."""

    def __init__(self, app: Any, base: str = ORIGIN) -> None:
        super().__init__(transport=httpx.ASGITransport(app), base_url=base, headers={"origin": base})

    async def get_page(self, path: str, status: int = 200) -> str:
        """Get a page, assert the status, and return its text."""
        answer = await self.get(path)
        assert answer.status_code == status, f"{path}: {answer.status_code} {_plain(answer.text)}"
        return answer.text

    async def submit_form(
        self, path: str, form: Mapping[str, Any] | None = None, *, on: str = "", status: int = 303
    ) -> Any:
        """Submit a form with the CSRF token of the page *on*, assert the status, and return the response."""
        token = re.search(r'name="csrf(?:-token)?" (?:content|value)="(\w+)"', await self.get_page(on or path))
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
    """An application with an endpoint, a message and portal tokens."""

    application: Application
    endpoint: Endpoint
    message: str
    tokens: dict[str, str] = field(default_factory=dict)


class ConsoleApp:
    """The console and portal in the test process; creates tenants, portal sessions and operators."""

    def __init__(self, context: AppContext) -> None:
        self.context = context
        self.app = build_site(context, LiveMetrics(None))

    async def tenant(self, name: str, organization: str = "default", *, uid: str | None = None) -> Tenant:
        """Create an application whose uid is its name unless another is set, with an endpoint and a message."""
        async with self.context.work(organization, "test") as work:
            application = await applications.create(work, NewApplication(name=name, uid=uid or name))
            endpoint = await endpoints.create(work, application, NewEndpoint(url=f"http://127.0.0.1:8999/{name}"))
            message = Message(
                organization=organization,
                application=application.shown_id,
                type="thing.done",
                payload=b'{"secret_of":1}',
                content_type=JSON_TYPE,
            )
            row, _ = await messages.create(work, application, message)
        return Tenant(application, endpoint, row.shown_id)

    async def token(self, tenant: Tenant, lifetime: timedelta = timedelta(hours=1), **more: Any) -> str:
        async with self.context.work(tenant.application.organization, "test") as work:
            return (await keys.create_for_portal(work, tenant.application, lifetime=lifetime, **more)).token

    async def portal_session(self, tenant: Tenant, **more: Any) -> PageClient:
        """Return a client with a portal session of this tenant."""
        return await self.enter_portal(await self.token(tenant, **more))

    async def enter_portal(self, token: str) -> PageClient:
        pages = PageClient(self.app)
        answer = await pages.post("/portal/enter", data={"key": token})
        assert answer.status_code == 204, answer.text
        return pages

    async def operator(self, name: str = "anna", role: Role = Role.ADMIN) -> PageClient:
        """Return a client signed in as a new operator."""
        async with self.context.work(actor="test") as work:
            made = await operators.create(work, name, role)
            signed_in = await operators.start_session(work, made, timedelta(hours=1), ClientInfo("127.0.0.1", "test"))
        pages = PageClient(self.app)
        pages.cookies.set("boathook", signed_in.token)
        return pages


@asynccontextmanager
async def open_console(database: Database, **overrides: Any) -> AsyncIterator[ConsoleApp]:
    """Yield the console and portal."""
    log.configure("error", "text")  # an error appears in the output of the failed test
    yield ConsoleApp(make_context(database, **overrides))
